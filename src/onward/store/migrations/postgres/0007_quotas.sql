-- Quotas of others that are used up (a model provider's, by its address and model, never its key), so that no task asks in
-- vain. `pause` is how long the last one was. A quota that answers again has no row.
CREATE TABLE onward_quotas (
    name  text COLLATE "C" PRIMARY KEY,
    until float8 NOT NULL,
    pause float8 NOT NULL,
    why   text NOT NULL
);
