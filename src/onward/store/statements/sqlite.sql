-- SQLite's own: there is one writer at a time, so a verb is a few plain statements inside one transaction.

-- name: submit_task
-- Nothing is inserted where the id or the key is taken; changes() tells.
INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent)
VALUES (:id, :task, :queue, :priority, :now, :key, :fingerprint, :input, :options, :parent) ON CONFLICT DO NOTHING

-- name: submit_queue
-- Its queue row.
INSERT INTO onward_queue (task_id, queue, task, priority, parent, due_at, reason)
VALUES (:id, :queue, :task, :priority, :parent, CASE WHEN :delay > 0 THEN :now + :delay END, CASE WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END)

-- name: submit_record
-- Its first record.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, 1, 0, 'task.submitted', '', CAST('{}' AS BLOB), :now)

-- name: submitted
-- The task that stood in the way of a submit.
SELECT id, fingerprint FROM onward_tasks WHERE id = :id OR key = :key

-- name: ready
-- Ready tasks by priority and position, with the last number of their journals.
SELECT q.task_id, q.attempt, q.crashes, t.task, t.input, t.options, t.created_at, t.parent, q.inbox,
       (SELECT max(j.seq) FROM onward_journal j WHERE j.task_id = q.task_id) AS head
FROM onward_queue q JOIN onward_tasks t ON t.id = q.task_id
WHERE q.queue = :queue AND q.worker IS NULL AND q.due_at IS NULL AND (q.crashes >= 3) = :alone
  AND q.task IN (SELECT value FROM json_each(:names))
  AND EXISTS (SELECT 1 FROM onward_workers WHERE id = :worker AND lease_until > onward_now())
ORDER BY q.priority DESC, q.position LIMIT :room

-- name: take
-- The worker holds them.
UPDATE onward_queue SET worker = ?1, reason = 'running' WHERE task_id IN (SELECT value FROM json_each(?2))

-- name: save
-- One record. The primary key is the fence.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: end_queue
-- The tasks have ended.
DELETE FROM onward_queue WHERE task_id IN (SELECT value FROM json_each(?1))

-- name: end_outcome
-- And this is how.
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at) VALUES (?, ?, ?, ?, ?)

-- name: part
-- The task waits, or is ready for another. A wait that has not read all its messages is none.
UPDATE onward_queue SET worker = NULL, attempt = ?4, crashes = 0,
    due_at = CASE WHEN paused THEN 9e999 WHEN inbox = ?5 OR ?5 IS NULL THEN ?2 END,
    reason = CASE WHEN paused THEN 'paused' WHEN inbox = ?5 OR ?5 IS NULL THEN ?3 ELSE 'queued' END
WHERE task_id = ?1

-- name: wake
-- Sleepers whose time has come.
UPDATE onward_queue SET due_at = NULL, reason = 'queued'
WHERE position IN (SELECT position FROM onward_queue WHERE due_at IS NOT NULL AND due_at <= onward_now() ORDER BY due_at LIMIT 1000)

-- name: due
-- Whether there is anything to wake: a look that needs no writer.
SELECT min(due_at) - onward_now() FROM onward_queue WHERE due_at IS NOT NULL AND due_at < 9e999

-- name: ready_queues
-- Which queues have ready tasks, hopping from one to the next through the index.
WITH RECURSIVE names(queue) AS (
    SELECT * FROM (SELECT queue FROM onward_queue WHERE worker IS NULL AND due_at IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT q.queue FROM onward_queue q WHERE q.worker IS NULL AND q.due_at IS NULL AND q.queue > names.queue ORDER BY q.queue LIMIT 1)
    FROM names WHERE names.queue IS NOT NULL
)
SELECT queue FROM names WHERE queue IS NOT NULL

-- name: suspects
-- Where suspects wait.
SELECT DISTINCT queue FROM onward_queue WHERE crashes >= 3 AND worker IS NULL AND due_at IS NULL

-- name: release
-- A task that this worker holds without knowing it.
UPDATE onward_queue SET worker = NULL, reason = 'queued' WHERE worker = ?1 AND task_id = ?2

-- name: beat
-- One heartbeat for all tasks of a process. Only a worker that was declared dead has no row.
UPDATE onward_workers SET lease_until = onward_now() + :lease, rate = :rate WHERE id = :worker

-- name: held
-- What the store says a worker holds.
SELECT task_id, paused FROM onward_queue WHERE worker = :worker

-- name: bury
-- Workers that are dead, or whose lease had ended when we were asked: leases that end while everybody waits for the one
-- writer (it may be frozen in the middle of a commit) say nothing about their owners.
DELETE FROM onward_workers WHERE (:sweep AND lease_until < :asked) OR id IN (SELECT value FROM json_each(:dead))

-- name: rescue
-- Their tasks are ready again. A crash counts when the shift left nothing behind.
UPDATE onward_queue SET worker = NULL,
    due_at = CASE WHEN paused THEN 9e999 END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN EXISTS (
        SELECT 1 FROM onward_journal j WHERE j.task_id = onward_queue.task_id AND j.kind NOT IN ('step.started', 'step.retry', 'progress')
          AND j.seq > (SELECT h.shift FROM onward_journal h WHERE h.task_id = onward_queue.task_id ORDER BY h.seq DESC LIMIT 1)
    ) THEN 0 ELSE crashes + 1 END
WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = onward_queue.worker)

-- name: unpark
-- A task that waits for a person becomes ready, with its crashes forgiven.
UPDATE onward_queue SET due_at = CASE WHEN worker IS NULL THEN NULL ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'queued' ELSE reason END, crashes = 0, paused = 0
WHERE task_id = :id

-- name: pause
-- Nobody starts it; whoever holds it is told by the next heartbeat.
UPDATE onward_queue SET paused = 1, due_at = CASE WHEN worker IS NULL THEN 9e999 ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'paused' ELSE reason END
WHERE task_id = :id RETURNING worker

-- name: offer
-- A handler this worker has.
INSERT INTO onward_handlers (name, schema, offered_at) VALUES (?1, ?2, onward_now())
ON CONFLICT (name) DO UPDATE SET schema = excluded.schema, offered_at = excluded.offered_at

-- name: queue_row
-- The queue row of a task.
SELECT reason, attempt, worker, paused FROM onward_queue WHERE task_id = :id

-- name: outcome
-- How a task ended.
SELECT state, attempt FROM onward_outcomes WHERE task_id = :id

-- name: addresses
-- Where workers listen for nudges.
SELECT address FROM onward_workers WHERE address <> '' AND lease_until > onward_now()
