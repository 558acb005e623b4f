-- Events for others: who wants to hear of what (subscriptions), and what has to leave (the outbox).

-- Of one task, or of all tasks of a tenant ('' is the tenant of those who name none), or of all (both null). `kinds` are kinds of
-- records between bars, or a star; `lane` is the receiver, whatever the subscription.
CREATE TABLE onward_subscriptions (
    id          TEXT PRIMARY KEY,
    task_id     TEXT,
    tenant      TEXT,
    types       TEXT NOT NULL,
    kinds       TEXT NOT NULL,
    sink        TEXT NOT NULL,
    lane        TEXT NOT NULL,
    created_at  REAL NOT NULL,
    offered_at  REAL,
    disabled    TEXT,
    dropped     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX onward_subscriptions_task ON onward_subscriptions (task_id, tenant);

-- One row for each subscription and record. `due_at` is when it is sent next; while somebody sends it (`holder`), when others
-- may. `body` is what is sent, from the first attempt on. The triggers that fill it are made with the first subscription (see
-- `watch_tasks`): until then a record costs what it did before.
CREATE TABLE onward_outbox (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    subscription TEXT NOT NULL,
    due_at       REAL NOT NULL,
    at           REAL NOT NULL,
    done_at      REAL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    state        TEXT NOT NULL DEFAULT 'pending',
    kind         TEXT NOT NULL,
    lane         TEXT NOT NULL,
    holder       TEXT,
    said         TEXT,
    body         BLOB,
    UNIQUE (task_id, seq, subscription)
) STRICT;
CREATE INDEX onward_outbox_lane ON onward_outbox (lane, due_at) WHERE state = 'pending';
CREATE INDEX onward_outbox_line ON onward_outbox (subscription, task_id, seq) WHERE state = 'pending';
CREATE INDEX onward_outbox_done ON onward_outbox (state, done_at) WHERE state <> 'pending';
