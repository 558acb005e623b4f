-- Events for others: who wants to hear of what (subscriptions), and what has to leave (the outbox).

-- Of one task, or of all tasks of a tenant ('' is the tenant of those who name none), or of all (both null). `kinds` are kinds of
-- records between bars, or a star; `lane` is the receiver, whatever the subscription.
CREATE TABLE onward_subscriptions (
    id          text COLLATE "C" PRIMARY KEY,
    task_id     text COLLATE "C",
    tenant      text COLLATE "C",
    types       text NOT NULL,
    kinds       text NOT NULL,
    sink        text NOT NULL,
    lane        text COLLATE "C" NOT NULL,
    created_at  float8 NOT NULL,
    offered_at  float8,
    disabled    text,
    dropped     integer NOT NULL DEFAULT 0
);
CREATE INDEX onward_subscriptions_task ON onward_subscriptions (task_id, tenant);

-- One row for each subscription and record. `due_at` is when it is sent next; while somebody sends it (`holder`), when others
-- may. `body` is what is sent, from the first attempt on.
CREATE TABLE onward_outbox (
    task_id      text COLLATE "C" NOT NULL,
    seq          integer NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY,
    due_at       float8 NOT NULL,
    at           float8 NOT NULL,
    done_at      float8,
    attempts     integer NOT NULL DEFAULT 0,
    state        text NOT NULL DEFAULT 'pending',
    kind         text NOT NULL,
    lane         text COLLATE "C" NOT NULL,
    holder       text COLLATE "C",
    said         text,
    body         bytea,
    PRIMARY KEY (task_id, seq, subscription)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX onward_outbox_lane ON onward_outbox (lane, due_at) WHERE state = 'pending';
CREATE INDEX onward_outbox_line ON onward_outbox (subscription, task_id, seq) WHERE state = 'pending';
CREATE INDEX onward_outbox_done ON onward_outbox (state, done_at) WHERE state <> 'pending';
CREATE INDEX onward_outbox_number ON onward_outbox (number);

-- What the trigger does: a row for everybody who wants to hear of a record, in the transaction that writes it. Three ways through the
-- index, so that nobody pays for the subscriptions of other tenants. (The tenant of a task comes with the next migration, and no trigger
-- is made before that.)
CREATE FUNCTION onward_to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO onward_outbox (task_id, seq, subscription, kind, lane, at, due_at)
    SELECT NEW.task_id, NEW.seq, s.id, NEW.kind, s.lane, NEW.at, NEW.at FROM (
        SELECT * FROM onward_subscriptions WHERE task_id = NEW.task_id
        UNION ALL
        SELECT * FROM onward_subscriptions WHERE task_id IS NULL AND tenant IS NULL
        UNION ALL
        SELECT * FROM onward_subscriptions WHERE task_id IS NULL AND tenant = COALESCE((SELECT t.tenant FROM onward_tasks t WHERE t.id = NEW.task_id), '')
    ) s
    WHERE s.disabled IS NULL AND (s.kinds = '*' OR strpos(s.kinds, '|' || NEW.kind || '|') > 0)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- The triggers are made with the first subscription that needs them: until then a record costs what it did before. In the
-- name of whoever owns the tables, and only in a moment in which nobody has to wait for long.
CREATE FUNCTION onward_watch(busy boolean) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7205759404);
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'onward_journal'::regclass AND tgname = 'onward_outbox_tasks') THEN
        CREATE TRIGGER onward_outbox_tasks AFTER INSERT ON onward_journal FOR EACH ROW
            WHEN (NEW.kind LIKE 'task.%' AND NEW.kind <> 'task.submitted') EXECUTE FUNCTION onward_to_outbox();
    END IF;
    IF busy AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'onward_journal'::regclass AND tgname = 'onward_outbox_busy') THEN
        CREATE TRIGGER onward_outbox_busy AFTER INSERT ON onward_journal FOR EACH ROW
            WHEN (NEW.kind NOT LIKE 'task.%' OR NEW.kind = 'task.submitted') EXECUTE FUNCTION onward_to_outbox();
    END IF;
END $$;
