-- PostgreSQL's own: many tasks in one statement come as arrays, and a claim skips what others have locked. Big tables are
-- reached by `= ANY(array)` or LATERAL … LIMIT 1: both leave the planner no choice but their index, whatever the statistics
-- say of a queue that was empty a minute ago.

-- name: submit
-- Tasks, queue rows and first records in one statement. A key or id that is taken inserts nothing anywhere. Keys are taken
-- in their order, or two submits that share some would wait for each other.
WITH batch AS (
    SELECT * FROM unnest(:ids::text[], :tasks::text[], :queues::text[], :priorities::int[], :inputs::bytea[], :options::bytea[],
                         :keys::text[], :fingerprints::text[], :delays::float8[], :parents::text[])
    WITH ORDINALITY AS b(id, task, queue, priority, input, options, key, fingerprint, delay, parent, place)
), new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent)
    SELECT id, task, queue, priority, onward_now(), key, fingerprint, input, options, parent FROM batch ORDER BY key, place
    ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, parent, due_at, reason)
    SELECT id, queue, task, priority, parent, CASE WHEN delay > 0 THEN onward_now() + delay END, CASE WHEN delay > 0 THEN 'delayed' ELSE 'queued' END
    FROM batch JOIN new USING (id) ORDER BY place
), first AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT id, 1, 0, 'task.submitted', '', '{}', onward_now() FROM new
)
SELECT id FROM new

-- name: submit_one
-- The same for one task with a key, without arrays: the server does it in four fifths of the time.
WITH new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent)
    VALUES (:id, :task, :queue, :priority, onward_now(), :key, :fingerprint, :input, :options, :parent)
    ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, parent, due_at, reason)
    SELECT id, :queue, :task, :priority, :parent, CASE WHEN :delay::float8 > 0 THEN onward_now() + :delay END, CASE WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END
    FROM new
), first AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT id, 1, 0, 'task.submitted', '', '{}', onward_now() FROM new
)
SELECT id FROM new

-- name: submit_new
-- One task without a key. Nothing can be in its way but itself, when it is asked for again after a lost answer: that is an
-- error then, and the common case is three plain inserts.
WITH new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options)
    VALUES (:id, :task, :queue, :priority, onward_now(), :fingerprint, :input, :options)
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, due_at, reason)
    VALUES (:id, :queue, :task, :priority, CASE WHEN :delay::float8 > 0 THEN onward_now() + :delay END, CASE WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END)
)
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, 1, 0, 'task.submitted', '', '{}', onward_now())

-- name: submitted
-- The tasks that stood in the way of a submit, by id and by key.
SELECT id, key, fingerprint FROM onward_tasks WHERE id = ANY(:ids::text[]) OR key = ANY(:keys::text[])

-- name: claim
-- Ready tasks by priority and position. The queue row is locked first, then the journal's next number is taken; where an
-- append is just being committed the number is gone, the task stays ready and is found by the next claim. The worker's own
-- row is locked for its key, so that nobody can declare it dead in between.
WITH me AS MATERIALIZED (
    SELECT id FROM onward_workers WHERE id = :worker AND lease_until > onward_now() FOR KEY SHARE
), ready AS MATERIALIZED (
    SELECT q.task_id FROM onward_queue q
    WHERE q.queue = :queue AND q.worker IS NULL AND q.due_at IS NULL AND (q.crashes >= 3) = :alone AND q.task = ANY(:names::text[])
      AND EXISTS (SELECT 1 FROM me)
    ORDER BY q.priority DESC, q.position LIMIT :room FOR UPDATE OF q SKIP LOCKED
), shift AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT r.task_id, h.seq + 1, h.seq + 1, 'shift.started', '', :data, onward_now()
    FROM ready r CROSS JOIN LATERAL (SELECT j.seq FROM onward_journal j WHERE j.task_id = r.task_id ORDER BY j.seq DESC LIMIT 1) h
    ORDER BY r.task_id
    ON CONFLICT DO NOTHING RETURNING task_id, seq
), taken AS (
    UPDATE onward_queue SET worker = :worker, reason = 'running' WHERE task_id = ANY(ARRAY(SELECT task_id FROM shift))
    RETURNING task_id, attempt, crashes, inbox, priority, position
)
SELECT t.id, t.task, t.input, t.options, s.seq, k.attempt, k.crashes, t.created_at, onward_now(), t.parent, k.inbox
FROM taken k JOIN shift s ON s.task_id = k.task_id
CROSS JOIN LATERAL (SELECT * FROM onward_tasks f WHERE f.id = k.task_id LIMIT 1) t
ORDER BY k.priority DESC, k.position

-- name: save
-- The records of finished steps, of many tasks. One number that is taken refuses the whole statement, and the tasks are
-- then tried one by one: that is rare, and the common case is a plain insert.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
SELECT * FROM unnest(:ids::text[], :seqs::int[], :shifts::int[], :kinds::text[], :keys::text[], :datas::bytea[], :ats::float8[])

-- name: settle
-- Records, ends and waits together. The counts force the order: queue rows first, journal second, outcomes last (a part
-- of WITH that nobody asks for runs after all others, and cancel keeps the same order). A wait that has not read all its
-- messages is none. Rows of parents and children, which others lock as well, several at a time, are locked in the order of
-- their ids before anything else; nobody has to wait for those of all other tasks, and where there are no children at all
-- nothing is looked up.
WITH family AS MATERIALIZED (
    SELECT q.task_id FROM onward_queue q
    WHERE EXISTS (SELECT 1 FROM onward_queue WHERE parent IS NOT NULL) AND q.task_id = ANY(:end_ids::text[] || :wait_ids::text[])
      AND (q.parent IS NOT NULL OR (SELECT c.position FROM onward_queue c WHERE c.parent = q.task_id LIMIT 1) IS NOT NULL)
    ORDER BY q.task_id FOR UPDATE OF q
), gone AS (
    DELETE FROM onward_queue WHERE task_id = ANY(:end_ids::text[]) AND (SELECT count(*) FROM family) >= 0 RETURNING 1
), parted AS (
    UPDATE onward_queue q SET worker = NULL, attempt = w.attempt, crashes = 0,
        due_at = CASE WHEN q.paused THEN 'Infinity' WHEN q.inbox = w.inbox OR w.inbox IS NULL THEN w.due_at END,
        reason = CASE WHEN q.paused THEN 'paused' WHEN q.inbox = w.inbox OR w.inbox IS NULL THEN w.reason ELSE 'queued' END
    FROM unnest(:wait_ids::text[], :due_ats::float8[], :reasons::text[], :wait_attempts::int[], :inboxes::int[]) AS w(id, due_at, reason, attempt, inbox)
    WHERE q.task_id = w.id AND q.task_id = ANY(:wait_ids::text[]) AND (SELECT count(*) FROM family) >= 0 RETURNING 1
), written AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT * FROM unnest(:ids::text[], :seqs::int[], :shifts::int[], :kinds::text[], :keys::text[], :datas::bytea[], :ats::float8[])
    WHERE (SELECT count(*) FROM gone) + (SELECT count(*) FROM parted) >= 0 RETURNING 1
)
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at)
SELECT id, state, attempt, seq, onward_now() FROM unnest(:end_ids::text[], :states::text[], :end_attempts::int[], :end_seqs::int[]) AS e(id, state, attempt, seq)
WHERE (SELECT count(*) FROM written) >= 0

-- name: lock_rows
-- All queue rows that a settle touches, parents too, in their order, or two of them would wait for each other.
SELECT 1 FROM onward_queue WHERE task_id = ANY(:ids::text[]) ORDER BY task_id FOR UPDATE

-- name: tell_parents
-- The ends of children are messages for their parents.
WITH told AS (
    SELECT parent, id, child, data, row_number() OVER (PARTITION BY parent ORDER BY id) AS place
    FROM unnest(:parents::text[], :ids::text[], :children::text[], :datas::bytea[]) AS t(parent, id, child, data)
), counted AS (
    SELECT parent, count(*)::int AS several FROM told GROUP BY parent
), bumped AS (
    UPDATE onward_queue q SET inbox = q.inbox + c.several,
        due_at = CASE WHEN q.worker IS NULL AND q.reason IN ('signal', 'question', 'approval', 'child', 'in_doubt') THEN NULL ELSE q.due_at END,
        reason = CASE WHEN q.worker IS NULL AND q.reason IN ('signal', 'question', 'approval', 'child', 'in_doubt') THEN 'queued' ELSE q.reason END
    FROM counted c WHERE q.task_id = c.parent AND q.task_id = ANY(:parents::text[]) RETURNING q.task_id, q.inbox - c.several AS base
)
INSERT INTO onward_inbox (task_id, number, id, kind, name, data, at)
SELECT b.task_id, b.base + t.place, t.id, 'child', t.child, t.data, onward_now() FROM bumped b JOIN told t ON t.parent = b.task_id

-- name: wake
-- Sleepers whose time has come.
WITH due AS MATERIALIZED (
    SELECT task_id FROM onward_queue WHERE due_at <= onward_now() ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE onward_queue SET due_at = NULL, reason = 'queued' WHERE task_id = ANY(ARRAY(SELECT task_id FROM due))

-- name: outlook
-- Which queues have ready tasks (hopping from one to the next through the index), when the next sleeper is due, where suspects wait.
WITH RECURSIVE names AS (
    (SELECT queue FROM onward_queue WHERE worker IS NULL AND due_at IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT q.queue FROM onward_queue q WHERE q.worker IS NULL AND q.due_at IS NULL AND q.queue > n.queue ORDER BY q.queue LIMIT 1)
    FROM names n WHERE n.queue IS NOT NULL
)
SELECT ARRAY(SELECT queue FROM names WHERE queue IS NOT NULL) AS queues,
       (SELECT min(due_at) FROM onward_queue WHERE due_at IS NOT NULL AND due_at < 'Infinity') - onward_now() AS next_due_in,
       ARRAY(SELECT DISTINCT queue FROM onward_queue WHERE crashes >= 3 AND worker IS NULL AND due_at IS NULL) AS suspects

-- name: release
-- Tasks that this worker holds without knowing it.
UPDATE onward_queue SET worker = NULL, reason = 'queued' WHERE worker = :worker AND task_id = ANY(:ids::text[])

-- name: beat
-- One heartbeat for all tasks of a process. Only a worker that was declared dead has no row.
WITH me AS (
    UPDATE onward_workers SET lease_until = onward_now() + :lease, rate = :rate WHERE id = :worker RETURNING 1
)
SELECT (SELECT count(*) FROM me) AS alive, onward_now() AS now, ARRAY(SELECT task_id FROM onward_queue WHERE worker = :worker) AS held,
       ARRAY(SELECT task_id FROM onward_queue WHERE worker = :worker AND paused) AS paused

-- name: bury
-- Workers that are dead, or whose lease ended while the database was there to prolong it.
DELETE FROM onward_workers
WHERE id = ANY(:dead::text[])
   OR (lease_until < LEAST(onward_now(), :now::float8) AND extract(epoch FROM pg_postmaster_start_time())::float8 < onward_now() - :lease::float8)

-- name: rescue
-- Their tasks are ready again; they are locked in the order of their ids, or those who tell several parents at once would
-- wait for us and we for them. A crash counts when the shift left nothing behind. Tasks held by a worker that is gone (it
-- claimed while it was being declared dead) are found by the next rescue.
WITH lost AS MATERIALIZED (
    SELECT q.task_id FROM onward_queue q
    WHERE q.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = q.worker)
    ORDER BY q.task_id FOR UPDATE OF q
)
UPDATE onward_queue q SET worker = NULL,
    due_at = CASE WHEN q.paused THEN 'Infinity'::float8 END, reason = CASE WHEN q.paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN EXISTS (
        SELECT 1 FROM onward_journal j WHERE j.task_id = q.task_id AND j.kind NOT IN ('step.started', 'step.retry', 'progress')
          AND j.seq > (SELECT h.shift FROM onward_journal h WHERE h.task_id = q.task_id ORDER BY h.seq DESC LIMIT 1)
    ) THEN 0 ELSE q.crashes + 1 END
WHERE q.worker IS NOT NULL AND q.task_id = ANY(ARRAY(SELECT task_id FROM lost))

-- name: lock_held
-- All queue rows of a worker, in their order.
SELECT 1 FROM onward_queue WHERE worker = :worker ORDER BY task_id FOR UPDATE

-- name: absent
-- Workers whose presence lock nobody holds. Not just after a restart, which frees the locks of the living too.
SELECT w.id FROM onward_workers w
WHERE w.address = 'lock' AND pg_postmaster_start_time() < now() - make_interval(secs => :lease) AND NOT EXISTS (
    SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(w.id, 0))

-- name: attend
-- The presence lock: the server drops it with the session.
SELECT pg_advisory_lock(hashtextextended(:worker, 0))

-- name: unpark
-- A task that waits for a person becomes ready, with its crashes forgiven.
UPDATE onward_queue SET due_at = CASE WHEN worker IS NULL THEN NULL ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'queued' ELSE reason END, crashes = 0, paused = false
WHERE task_id = :id

-- name: pause
-- Nobody starts it; whoever holds it is told by the next heartbeat.
UPDATE onward_queue SET paused = true, due_at = CASE WHEN worker IS NULL THEN 'Infinity' ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'paused' ELSE reason END
WHERE task_id = :id RETURNING worker

-- name: offer
-- Handlers this worker has.
INSERT INTO onward_handlers (name, schema, offered_at) SELECT name, schema, onward_now() FROM unnest(:names::text[], :schemas::bytea[]) AS h(name, schema)
ON CONFLICT (name) DO UPDATE SET schema = excluded.schema, offered_at = excluded.offered_at

-- name: lock_queue_row
-- Queue row first: the order that every writer keeps.
SELECT reason, attempt, worker, paused FROM onward_queue WHERE task_id = :id FOR UPDATE

-- name: lock_outcome
-- Only a failed task is reopened, and only by one.
SELECT state, attempt FROM onward_outcomes WHERE task_id = :id FOR UPDATE

-- name: notify
-- Nudges for all processes.
SELECT pg_notify('onward', topic) FROM unnest(:topics::text[]) AS t(topic)

-- name: health
-- What `onward doctor` looks at.
SELECT current_setting('server_version_num')::int AS version, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS sync,
       COALESCE((SELECT max(extract(epoch FROM now() - xact_start)) FROM pg_stat_activity
                 WHERE state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()), 0)::float8 AS oldest
