-- Minutes: what the workers did in each minute of the last day, for the charts of the whole.

-- One row for each minute (seconds since 1970, divided by 60) in which a worker had something to do. The workers add to it. `seconds` is the
-- sum of the times from the submit to the end of the tasks that ended; `waiting` is the most tasks that waited to be started.
CREATE TABLE onward_minutes (
    minute    bigint PRIMARY KEY,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    cancelled bigint NOT NULL,
    seconds   float8 NOT NULL,
    slowest   float8 NOT NULL,
    cost      float8 NOT NULL,
    waiting   bigint NOT NULL
);
