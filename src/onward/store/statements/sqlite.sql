-- Statements of SQLite alone: there is one writer at a time, so a verb is a few plain statements inside one transaction.

-- name: submit_task
-- It inserts nothing where the id or the key is taken; changes() tells. A child has the tenant of its parent.
INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent, grp, tenant)
VALUES (:id, :task, :queue, :priority, :now, :key, :fingerprint, :input, :options, :parent, :group, COALESCE((SELECT p.tenant FROM onward_tasks p WHERE p.id = :parent), :tenant)) ON CONFLICT DO NOTHING

-- name: submit_queue
-- Its queue row.
INSERT INTO onward_queue (task_id, queue, task, priority, parent, grp, turn_group, turn, due_at, reason)
VALUES (:id, :queue, :task, :priority, :parent, :group, :turn_group, :turn, CASE WHEN :delay > 0 THEN :now + :delay END, CASE WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END)

-- name: submit_record
-- Its first record.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, 1, 0, 'task.submitted', '', CAST('{}' AS BLOB), :now)

-- name: submitted
-- The task that has the id or the key of a submit.
SELECT id, fingerprint FROM onward_tasks WHERE id = :id OR key = :key

-- name: ready
-- Ready tasks by priority and turn, with the last number of their journals, where no limit applies (see `line`).
{ready_columns}
FROM ({first_ready}) f
{ready_tables}
WHERE {unlimited_worker}
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: ready_suspect
-- The same for tasks that run alone.
{ready_columns}
FROM ({first_suspects}) f
{ready_tables}
WHERE {unlimited_worker}
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: ready_beside
-- The same without the tasks of some tenants (see `first_beside`).
{ready_columns}
FROM ({first_beside}) f
{ready_tables}
WHERE {unlimited_worker}
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: line
-- The first ready tasks of a queue, with the columns of `ready` and their groups.
{ready_columns}, q.grp
FROM ({first_ready}) f
{ready_tables}
WHERE EXISTS (SELECT 1 FROM onward_workers WHERE id = :worker AND lease_until > onward_now())
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: line_beside
-- The same without the tasks of some tenants.
{ready_columns}, q.grp
FROM ({first_beside}) f
{ready_tables}
WHERE EXISTS (SELECT 1 FROM onward_workers WHERE id = :worker AND lease_until > onward_now())
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: line_of_suspects
-- The same for tasks that run alone.
{ready_columns}, q.grp
FROM ({first_suspects}) f
{ready_tables}
WHERE EXISTS (SELECT 1 FROM onward_workers WHERE id = :worker AND lease_until > onward_now())
ORDER BY q.priority DESC, COALESCE(q.turn, q.position)

-- name: ready_columns
-- The columns of a ready task.
SELECT q.task_id, q.attempt, q.crashes, t.task, t.input, t.options, t.created_at, t.parent, q.inbox,
       (SELECT max(j.seq) FROM onward_journal j WHERE j.task_id = q.task_id) AS head, t.tenant

-- name: ready_tables
-- The tables of these columns.
CROSS JOIN onward_queue q ON q.position = f.position CROSS JOIN onward_tasks t ON t.id = q.task_id

-- name: first_ready
-- The first ready tasks of these handlers. Each handler has its own range of the index, so tasks of other handlers are never read.
SELECT c.position FROM json_each(:names) n CROSS JOIN onward_queue c ON c.position IN (
    SELECT i.position FROM onward_queue i
    WHERE i.queue = :queue AND i.task = n.value AND i.worker IS NULL AND i.due_at IS NULL AND i.crashes < 3
    ORDER BY i.priority DESC, COALESCE(i.turn, i.position) LIMIT :room)
ORDER BY c.priority DESC, COALESCE(c.turn, c.position) LIMIT :room

-- name: first_beside
-- As `first_ready`, without some turn groups. It looks at the first `scan` ready tasks of each handler and no further: a tenant whose tasks
-- are passed over may have very many, and tasks of others get turns near the front.
SELECT c.position FROM json_each(:names) n CROSS JOIN onward_queue c ON c.position IN (
    SELECT i.position FROM onward_queue i
    WHERE i.queue = :queue AND i.task = n.value AND i.worker IS NULL AND i.due_at IS NULL AND i.crashes < 3
    ORDER BY i.priority DESC, COALESCE(i.turn, i.position) LIMIT :scan)
WHERE c.turn_group IS NULL OR c.turn_group NOT IN (SELECT value FROM json_each(:without))
ORDER BY c.priority DESC, COALESCE(c.turn, c.position) LIMIT :room

-- name: first_suspects
-- The same of the suspects, which are few and have their own index.
SELECT c.position FROM onward_queue c INDEXED BY onward_queue_suspect
WHERE c.queue = :queue AND c.crashes >= 3 AND c.worker IS NULL AND c.due_at IS NULL AND c.task IN (SELECT value FROM json_each(:names))
ORDER BY c.priority DESC, COALESCE(c.turn, c.position) LIMIT :room

-- name: unlimited_worker
-- Whether the lease of the worker is valid and no limit applies.
EXISTS (SELECT 1 FROM onward_workers WHERE id = :worker AND lease_until > onward_now())
  AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name IN (SELECT value FROM json_each(:names)) AND l.kind = 'task')
  AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name = :queue AND l.kind <> 'task')

-- name: behind_gate
-- How many tasks are held behind a gate, and when its bucket is full.
SELECT (SELECT count(*) FROM onward_queue WHERE gate = :gate AND gate IS NOT NULL AND worker IS NOT NULL), (SELECT full_at FROM onward_buckets WHERE gate = :gate)

-- name: take_behind
-- The worker holds a task under a limit.
UPDATE onward_queue SET worker = ?1, reason = 'running', gate = ?3 WHERE task_id = ?2

-- name: refuse
-- A task whose limit is reached leaves the ready rows, so that thousands of them slow down no claim.
UPDATE onward_queue SET due_at = 9e999, reason = 'quota', gate = ?2 WHERE task_id = ?1

-- name: admit
-- Make the first tasks that wait at a gate ready now; or, where a time is given and no other task there has one, due at that time.
UPDATE onward_queue SET due_at = :at, reason = CASE WHEN :at IS NULL THEN 'queued' ELSE 'quota' END
WHERE position IN (
    SELECT q.position FROM onward_queue q WHERE q.gate = :gate AND q.reason = 'quota' AND q.due_at = 9e999
      AND (:at IS NULL OR NOT EXISTS (SELECT 1 FROM onward_queue b WHERE b.gate = :gate AND b.reason = 'quota' AND b.due_at < 9e999))
    ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT :count)

-- name: fill_bucket
-- Starts were taken out of this bucket.
INSERT INTO onward_buckets (gate, full_at) VALUES (:gate, :full_at) ON CONFLICT (gate) DO UPDATE SET full_at = excluded.full_at

-- name: set_limit
-- Set a limit; changes() tells whether it is new or changed.
INSERT INTO onward_limits AS l (kind, name, concurrency, pace, burst) VALUES (:kind, :name, :concurrency, :pace, :burst)
ON CONFLICT (name, kind) DO UPDATE SET concurrency = excluded.concurrency, pace = excluded.pace, burst = excluded.burst
WHERE l.concurrency IS NOT excluded.concurrency OR l.pace IS NOT excluded.pace OR l.burst IS NOT excluded.burst

-- name: lift_limit
-- Lift a limit; changes() tells whether there was one.
DELETE FROM onward_limits WHERE kind = :kind AND name = :name

-- name: count_held
-- Count the tasks that are held now for a new limit.
UPDATE onward_queue SET gate = CASE WHEN :kind = 'task' THEN task || char(10) || COALESCE(grp, '') ELSE COALESCE(gate, '') END
WHERE worker IS NOT NULL AND CASE WHEN :kind = 'task' THEN task ELSE queue END = :name

-- name: reopen_gates
-- A limit has changed: tasks that waited for the old one are ready again.
UPDATE onward_queue SET due_at = NULL, reason = 'queued' WHERE reason = 'quota' AND task = :name

-- name: shut_gates
-- Some gates at which tasks wait, from a name on, hopping through the index: whether there is still a limit, how many tasks it allows,
-- how many are held, and whether a task that waits has a time.
WITH RECURSIVE gates(gate, number) AS (
    SELECT * FROM (SELECT gate, 1 FROM onward_queue WHERE reason = 'quota' AND gate > :after ORDER BY gate LIMIT 1)
    UNION ALL
    SELECT (SELECT q.gate FROM onward_queue q WHERE q.reason = 'quota' AND q.gate > gates.gate ORDER BY q.gate LIMIT 1), number + 1
    FROM gates WHERE gates.gate IS NOT NULL AND number < :most
)
SELECT g.gate, l.name IS NOT NULL AS limited, l.concurrency,
       (SELECT count(*) FROM onward_queue q WHERE q.gate = g.gate AND q.gate IS NOT NULL AND q.worker IS NOT NULL) AS held,
       EXISTS (SELECT 1 FROM onward_queue b WHERE b.gate = g.gate AND b.reason = 'quota' AND b.due_at < 9e999) AS timed
FROM gates g LEFT JOIN onward_limits l ON l.kind = 'task' AND l.name = substr(g.gate, 1, instr(g.gate, char(10)) - 1)
WHERE g.gate IS NOT NULL ORDER BY g.number

-- name: take
-- The worker holds them.
UPDATE onward_queue SET worker = ?1, reason = 'running' WHERE task_id IN (SELECT value FROM json_each(?2))

-- name: begin_shift
-- The first record of a shift, at a number that was read in the same transaction.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: save
-- One record, and one witness. The primary key is the fence. Where the witness is not there, the number is NULL, which the table refuses.
-- (An INSERT from a SELECT of the same table would go through a temporary table.)
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
VALUES (?1, ?2 + (SELECT 0 FROM onward_journal p WHERE p.task_id = ?8 AND p.seq = ?9 AND p.shift = ?10 AND (p.at = ?11 OR ?11 IS NULL)),
        ?3, ?4, ?5, ?6, ?7)

-- name: save_many
-- The same for many records and witnesses. A row of NULLs is left out.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL AND (
    SELECT count(p.seq) = count(w.column1) FROM (VALUES (?, ?, ?, ?)) w LEFT JOIN onward_journal p
    ON p.task_id = w.column1 AND p.seq = w.column2 AND p.shift = w.column3 AND (p.at = w.column4 OR w.column4 IS NULL)
)

-- name: end_queue
-- Delete the queue rows of tasks that have ended.
DELETE FROM onward_queue WHERE task_id IN (SELECT value FROM json_each(?1))

-- name: end_outcome
-- Their outcomes.
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at) VALUES (?, ?, ?, ?, ?)

-- name: part
-- The task waits, or is ready for another worker. A wait of a task that has not read all its messages ends at once. A task that waits
-- for the quota of an outside service has no gate. Crashes of a task that is delayed still count: this worker could not do it, and has not
-- survived it.
UPDATE onward_queue SET worker = NULL, attempt = ?4, crashes = CASE WHEN ?3 = 'delayed' THEN crashes ELSE 0 END,
    due_at = CASE WHEN paused THEN 9e999 WHEN inbox = ?5 OR ?5 IS NULL THEN ?2 END,
    reason = CASE WHEN paused THEN 'paused' WHEN inbox = ?5 OR ?5 IS NULL THEN ?3 ELSE 'queued' END,
    gate = CASE WHEN ?3 = 'quota' THEN NULL ELSE gate END
WHERE task_id = ?1

-- name: wake
-- Make sleeping tasks ready whose time has come.
UPDATE onward_queue SET due_at = NULL, reason = 'queued'
WHERE position IN (SELECT position FROM onward_queue WHERE due_at IS NOT NULL AND due_at <= onward_now() ORDER BY due_at LIMIT 1000)

-- name: due
-- In how many seconds the next task is due: a read, so that the writer is not needed for it.
SELECT min(due_at) - onward_now() FROM onward_queue WHERE due_at IS NOT NULL AND due_at < 9e999

-- name: ready_pairs
-- Which handlers have ready tasks, and in which queues, hopping from one pair to the next through the index. (For a pair that is greater than
-- another SQLite uses the first column of an index alone, and would walk through all tasks of the queue.)
WITH RECURSIVE pairs(queue, task) AS (
    SELECT * FROM (SELECT queue, task FROM onward_queue INDEXED BY onward_queue_name WHERE worker IS NULL AND due_at IS NULL ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT q.queue, q.task FROM pairs p CROSS JOIN onward_queue q ON q.position = COALESCE((
        SELECT n.position FROM onward_queue n INDEXED BY onward_queue_name WHERE n.worker IS NULL AND n.due_at IS NULL
        AND n.queue = p.queue AND n.task > p.task ORDER BY n.task LIMIT 1), (
        SELECT n.position FROM onward_queue n INDEXED BY onward_queue_name WHERE n.worker IS NULL AND n.due_at IS NULL
        AND n.queue > p.queue ORDER BY n.queue, n.task LIMIT 1))
)
SELECT queue, task FROM pairs

-- name: place
-- What a worker has to know beside the tasks: the workers, whether the lease of one has ended or a task is held by a worker that is gone
-- (hopping from holder to holder through the index), whether there are children, when a schedule is due, and whether a lock is held.
WITH RECURSIVE holders(worker) AS (
    SELECT * FROM (SELECT worker FROM onward_queue WHERE worker IS NOT NULL ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT (SELECT q.worker FROM onward_queue q WHERE q.worker IS NOT NULL AND q.worker > h.worker ORDER BY q.worker LIMIT 1)
    FROM holders h WHERE h.worker IS NOT NULL
)
SELECT (SELECT count(*) FROM onward_workers), (SELECT COALESCE(max(started_at), 0.0) FROM onward_workers),
       EXISTS (SELECT 1 FROM onward_workers w WHERE w.lease_until < onward_now())
           OR EXISTS (SELECT 1 FROM holders h WHERE h.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = h.worker)),
       EXISTS (SELECT 1 FROM onward_queue WHERE parent IS NOT NULL),
       (SELECT min(next_at) FROM onward_schedules WHERE next_at IS NOT NULL) - onward_now(),
       EXISTS (SELECT 1 FROM onward_locks)

-- name: suspects
-- Queues in which suspects wait and may be started.
SELECT DISTINCT queue FROM onward_queue q WHERE crashes >= 3 AND worker IS NULL AND due_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name = q.queue AND l.kind = 'paused')

-- name: quota
-- Whether tasks wait for a limit.
SELECT EXISTS (SELECT 1 FROM onward_queue WHERE reason = 'quota')

-- name: ended_estimate
-- An estimate of all outcomes: deleted rows are counted too.
SELECT COALESCE(max(rowid), 0) FROM onward_outcomes

-- name: offspring
-- The children of these tasks, and the beginnings of their last records.
SELECT t.id, t.task, o.seq IS NOT NULL, (SELECT substr(e.data, 1, :head) FROM onward_journal e WHERE e.task_id = t.id AND e.seq = o.seq)
FROM onward_tasks t LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.parent IN (SELECT value FROM json_each(:parents)) AND t.parent IS NOT NULL LIMIT :most

-- name: keep
-- Store contents that records refer to. The same content again is ignored.
INSERT OR IGNORE INTO onward_contents (task_id, id, data) VALUES (?1, ?2, ?3)

-- name: watch_tasks
-- Records `task.…` go to the outbox, in the transaction that writes them. Made with the first subscription.
CREATE TRIGGER onward_outbox_tasks AFTER INSERT ON onward_journal WHEN NEW.kind LIKE 'task.%' AND NEW.kind <> 'task.submitted'

-- name: watch_busy
-- All other records.
CREATE TRIGGER onward_outbox_busy AFTER INSERT ON onward_journal WHEN NEW.kind NOT LIKE 'task.%' OR NEW.kind = 'task.submitted'

-- name: to_outbox
-- A row for each subscription to a record: three ways through the index, so that subscriptions of other tenants cost nothing. It uses no
-- function of Onward: connections of other programs do not have them.
BEGIN
    INSERT OR IGNORE INTO onward_outbox (task_id, seq, subscription, kind, lane, at, due_at)
    SELECT NEW.task_id, NEW.seq, s.id, NEW.kind, s.lane, NEW.at, NEW.at FROM (
        SELECT * FROM onward_subscriptions WHERE task_id = NEW.task_id
        UNION ALL
        SELECT * FROM onward_subscriptions WHERE task_id IS NULL AND tenant IS NULL
        UNION ALL
        SELECT * FROM onward_subscriptions WHERE task_id IS NULL AND tenant = COALESCE((SELECT t.tenant FROM onward_tasks t WHERE t.id = NEW.task_id), '')
    ) s
    WHERE s.disabled IS NULL AND (s.kinds = '*' OR instr(s.kinds, '|' || NEW.kind || '|') > 0);
END

-- name: watched
-- The triggers that exist.
SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'onward_journal'

-- name: due_rows
-- The first row of each line that is due, of one receiver, among so many.
SELECT o.task_id, o.seq, o.subscription FROM (
    SELECT task_id, seq, subscription, due_at FROM onward_outbox
    WHERE lane = :lane AND state = 'pending' AND due_at <= onward_now() ORDER BY due_at LIMIT :wide
) o
WHERE NOT EXISTS (SELECT 1 FROM onward_outbox e WHERE e.subscription = o.subscription AND e.task_id = o.task_id AND e.seq < o.seq AND e.state = 'pending')
ORDER BY o.due_at LIMIT :room

-- name: hold
-- Hold a row for a while.
UPDATE onward_outbox SET holder = :holder, attempts = attempts + 1, due_at = onward_now() + :lease
WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription

-- name: hold_runs
-- Hold runs of rows that are due: the first pending rows of lines, without a gap. `near` are the lines of the rows that are due first, and each
-- of them gets its share. A row that is not due yet, or that another relay holds, ends the run of its line.
WITH near AS MATERIALIZED (
    SELECT subscription, task_id, min(due_at) AS due_at FROM (
        SELECT subscription, task_id, due_at FROM onward_outbox
        WHERE lane = :lane AND state = 'pending' AND due_at <= onward_now() ORDER BY due_at LIMIT :room
    ) GROUP BY subscription, task_id
), heads AS MATERIALIZED (
    SELECT e.number, e.seq, e.subscription, e.task_id, l.due_at, e.lane = :lane AND e.due_at <= onward_now() AS ours
    FROM near l CROSS JOIN onward_outbox e
    WHERE e.subscription = l.subscription AND e.task_id = l.task_id AND e.state = 'pending' AND e.seq <= COALESCE((
        SELECT x.seq FROM onward_outbox x WHERE x.subscription = l.subscription AND x.task_id = l.task_id AND x.state = 'pending'
        ORDER BY x.seq LIMIT 1 OFFSET (SELECT :room / count(*) FROM near)), 9e9)
), runs AS (
    SELECT number FROM (
        SELECT *, min(ours) OVER (PARTITION BY subscription, task_id ORDER BY seq) AS whole FROM heads
    ) WHERE whole ORDER BY due_at, task_id, subscription, seq LIMIT :room
)
UPDATE onward_outbox SET holder = :holder, attempts = attempts + 1, due_at = onward_now() + :lease WHERE number IN (SELECT number FROM runs)
RETURNING number

-- name: take_held
-- The rows of these numbers, in the order of their numbers.
{taken_columns}
FROM onward_outbox o JOIN onward_subscriptions s ON s.id = o.subscription
JOIN onward_journal j ON j.task_id = o.task_id AND j.seq = o.seq JOIN onward_tasks t ON t.id = o.task_id
WHERE o.number AMONG (:numbers) ORDER BY o.number

-- name: take_one
-- A row that was taken.
{taken_columns}
FROM onward_outbox o JOIN onward_subscriptions s ON s.id = o.subscription
JOIN onward_journal j ON j.task_id = o.task_id AND j.seq = o.seq JOIN onward_tasks t ON t.id = o.task_id
WHERE o.task_id = :task_id AND o.seq = :seq AND o.subscription = :subscription

-- name: confirm_pause
-- The worker that holds these paused tasks begins no further step of them.
UPDATE onward_queue SET reason = 'paused' WHERE worker = :worker AND paused AND task_id IN (SELECT value FROM json_each(:ids))

-- name: let_go
-- Tasks that a leaving worker holds become ready, or rest when they are paused; no crash is counted.
UPDATE onward_queue SET worker = NULL, due_at = CASE WHEN paused THEN 9e999 END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END WHERE worker = :worker

-- name: release
-- Release a task that this worker holds without knowing it. (A claim in the future was made before the clock was set back.)
UPDATE onward_queue SET worker = NULL, due_at = CASE WHEN paused THEN 9e999 END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN ?4 THEN max(crashes, 3) ELSE crashes END
WHERE worker = ?1 AND task_id = ?2 AND (
    SELECT j.at <= ?3 OR j.at > onward_now() FROM onward_journal j WHERE j.task_id = ?2 AND j.kind = 'shift.started' ORDER BY j.seq DESC LIMIT 1)

-- name: beat
-- One heartbeat for all tasks of a process. Only a worker that was declared dead has no row.
UPDATE onward_workers SET lease_until = onward_now() + :lease, rate = :rate WHERE id = :worker

-- name: join_queue_row
-- The queue row of a task of a list; differs by necessity because SQLite has no LATERAL, and always looks it up by its id.
LEFT JOIN onward_queue q ON q.task_id = t.id

-- name: held
-- The tasks that a worker holds by the store.
SELECT task_id, paused FROM onward_queue WHERE worker = :worker

-- name: bury
-- Delete workers that are dead, or whose lease had ended when the caller asked: leases that end while all callers wait for the one
-- writer (it may be frozen in the middle of a commit) say nothing about their workers.
DELETE FROM onward_workers WHERE (:sweep AND lease_until < :asked) OR id IN (SELECT value FROM json_each(:dead))

-- name: rescue
-- Their tasks are ready again. A crash counts when the shift left no record.
UPDATE onward_queue SET worker = NULL,
    due_at = CASE WHEN paused THEN 9e999 END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN EXISTS (
        SELECT 1 FROM onward_journal j WHERE j.task_id = onward_queue.task_id AND j.kind NOT IN ('step.started', 'step.retry', 'step.waits', 'artifact.kept', 'lock.taken', 'progress')
          AND j.seq > (SELECT h.shift FROM onward_journal h WHERE h.task_id = onward_queue.task_id ORDER BY h.seq DESC LIMIT 1)
    ) THEN 0 ELSE crashes + 1 END
WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = onward_queue.worker)

-- name: unpark
-- A task that waits for a person becomes ready, and its crashes are reset.
UPDATE onward_queue SET due_at = CASE WHEN worker IS NULL THEN NULL ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'queued' ELSE 'running' END, crashes = 0, paused = 0
WHERE task_id = :id

-- name: pause
-- Let no worker start a task. The next heartbeat tells the worker that holds it, and the one after that confirms it.
UPDATE onward_queue SET paused = 1, due_at = CASE WHEN worker IS NULL THEN 9e999 ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'paused' ELSE reason END
WHERE task_id = :id RETURNING worker

-- name: queue_row
-- The queue row of a task.
SELECT reason, attempt, worker, paused, gate FROM onward_queue WHERE task_id = :id

-- name: outcome
-- How a task ended.
SELECT state, attempt, finished_at FROM onward_outcomes WHERE task_id = :id

-- name: origin
-- The task that is forked.
SELECT id, task FROM onward_tasks WHERE id = :id

-- name: addresses
-- Addresses at which workers receive nudges.
SELECT address FROM onward_workers WHERE address <> '' AND lease_until > onward_now()

-- name: work
-- The work among these tasks, by queue and handler. Tasks that sleep are no work yet, but a worker has to know when they are due.
SELECT queue, task, due_at IS NULL, count(*) FROM onward_queue
WHERE task_id IN (SELECT value FROM json_each(:ids)) AND worker IS NULL AND (due_at IS NULL OR due_at < 9e999) GROUP BY queue, task, due_at IS NULL

-- name: workers_for
-- Addresses of some of the workers that can do it.
SELECT address FROM onward_workers w
WHERE address <> '' AND lease_until > onward_now() AND EXISTS (SELECT 1 FROM json_each(w.names) n WHERE n.value = :task)
  AND (w.queues = '[]' OR EXISTS (SELECT 1 FROM json_each(w.queues) q WHERE q.value = :queue))
ORDER BY random() LIMIT :most

-- name: own_tables
-- The tables of Onward, for a scan of all rows.
SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onward\_%' ESCAPE '\' ORDER BY name

-- name: outbox_there
-- Whether there is an outbox: the tables may be of an older version than the program.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onward_outbox'

-- name: tails
-- The next records of many tasks, each after a number; differs by necessity because of how a list of pairs is given.
SELECT task_id, seq, shift, kind, key, data, at FROM (
    SELECT n.*, sum(length(n.data)) OVER (ORDER BY n.task_id, n.seq) - length(n.data) AS before
    FROM (SELECT j.* FROM json_each(:after) AS f CROSS JOIN onward_journal AS j
          WHERE j.task_id = f.key AND j.seq > f.value AND j.seq <= f.value + :each AND j.kind <> 'pruned'
          ORDER BY j.task_id, j.seq LIMIT :limit) AS n)
WHERE before < :bytes ORDER BY task_id, seq

-- name: heads
-- Where the journals of many tasks end; differs by necessity because of how a list is given.
SELECT j.task_id, j.seq, j.kind FROM json_each(:ids) AS f CROSS JOIN onward_journal AS j
WHERE j.task_id = f.value AND j.kind <> 'pruned' AND j.seq = (SELECT max(i.seq) FROM onward_journal i WHERE i.task_id = f.value)

-- name: says
-- Whether a text stands in the name or the key of a task, in its labels or at the beginning of its input, or its id begins or ends with
-- it. An input that is sealed is left out. LIKE ignores the case of ASCII letters; for other letters both cases are tried.
(t.task LIKE :text ESCAPE '~' OR t.key LIKE :text ESCAPE '~' OR t.id LIKE :id_begins ESCAPE '~' OR t.id LIKE :id_ends ESCAPE '~'
 OR (NOT {sealed} AND CAST(substr(t.input, 1, :far) AS TEXT) LIKE :within ESCAPE '~')
 OR (:two_cases AND (t.task LIKE :text_too ESCAPE '~' OR t.key LIKE :text_too ESCAPE '~'
     OR (NOT {sealed} AND CAST(substr(t.input, 1, :far) AS TEXT) LIKE :within_too ESCAPE '~')))
 OR (instr(t.options, CAST('"labels":{' AS BLOB)) AND (
     CAST(substr(t.options, instr(t.options, CAST('"labels":{' AS BLOB)) + 10) AS TEXT) LIKE :labelled ESCAPE '~'
     OR (:two_cases AND CAST(substr(t.options, instr(t.options, CAST('"labels":{' AS BLOB)) + 10) AS TEXT) LIKE :labelled_too ESCAPE '~'))))

-- name: has_label
-- Whether the options of a task hold these bytes.
instr(t.options, :label) > 0

-- name: size
-- Bytes that the database takes.
SELECT p.page_count * s.page_size AS size FROM pragma_page_count() p, pragma_page_size() s

-- name: sealed
-- Whether the input of a task is sealed; differs by necessity because of how bytes are written.
substr(t.input, 1, 4) = X'014F4501'

-- name: keys_prune
-- Delete some keys that were revoked, or expired, so many seconds ago; the oldest first, and never the newest one.
DELETE FROM onward_keys WHERE id IN (
    SELECT id FROM onward_keys WHERE COALESCE(revoked_at, expires_at) <= onward_now() - :seconds
    AND id <> (SELECT id FROM onward_keys ORDER BY created_at DESC, id DESC LIMIT 1) ORDER BY created_at, id LIMIT :most)

-- name: plain_data
-- Whether a payload is not sealed; differs for the same reason.
substr(data, 1, 4) <> X'014F4501'

-- name: plain_body
-- The same of the body of a delivery.
substr(body, 1, 4) <> X'014F4501'

-- name: letters_take
-- Take dead letters that are to be tried again, for so many seconds.
UPDATE onward_dead_letters SET held_until = onward_now() + :lease WHERE id IN (
  SELECT id FROM onward_dead_letters WHERE intake = :intake AND redrive_at IS NOT NULL AND (held_until IS NULL OR held_until < onward_now())
  ORDER BY redrive_at, id LIMIT :limit)
RETURNING id, identity, position, sent_id, size, data, at

-- name: by_bytes
-- Compares strings as Python does, whatever the order of the database is.
COLLATE BINARY

-- name: epoch_records
-- A record in the journal of each unfinished task. It takes the next number, which a worker of the epoch before would take.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
SELECT q.task_id, (SELECT max(j.seq) FROM onward_journal j WHERE j.task_id = q.task_id) + 1, 0, 'task.restored', '', :data, :restored_at
FROM onward_queue q
