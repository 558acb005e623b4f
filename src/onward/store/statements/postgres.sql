-- Statements of PostgreSQL alone: many tasks of one statement come as arrays, and a claim skips rows that others have locked. Large tables are
-- read by `= ANY(array)` or LATERAL … LIMIT 1: both make the planner use their index, whatever the statistics say of a queue that
-- was empty a minute ago.

-- name: submit
-- Tasks, queue rows and first records in one statement. Where a key or id is taken, or the parent of a child was pruned, nothing is
-- inserted. A child of a paused task is paused. The pause is read without a lock: a pause reads the children again when the workers have
-- confirmed it, and no worker confirms while it submits a child. Keys are inserted in their order, or two submits with common keys would
-- wait for each other.
WITH batch AS (
    SELECT * FROM unnest(:ids::text[], :tasks::text[], :queues::text[], :priorities::int[], :inputs::bytea[], :options::bytea[],
                         :keys::text[], :fingerprints::text[], :delays::float8[], :parents::text[])
    WITH ORDINALITY AS b(id, task, queue, priority, input, options, key, fingerprint, delay, parent, place)
), new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent)
    SELECT id, task, queue, priority, onward_now(), key, fingerprint, input, options, parent FROM batch
    WHERE parent IS NULL OR EXISTS (SELECT 1 FROM onward_tasks p WHERE p.id = batch.parent FOR KEY SHARE) ORDER BY key, place
    ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, parent, paused, due_at, reason)
    SELECT id, queue, task, priority, parent, rests, CASE WHEN rests THEN 'Infinity' WHEN delay > 0 THEN onward_now() + delay END,
           CASE WHEN rests THEN 'paused' WHEN delay > 0 THEN 'delayed' ELSE 'queued' END
    FROM batch JOIN new USING (id) CROSS JOIN LATERAL (SELECT CASE WHEN batch.parent IS NULL THEN false ELSE COALESCE((SELECT p.paused FROM onward_queue p WHERE p.task_id = batch.parent LIMIT 1), false) END AS rests) r ORDER BY place
), first AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT id, 1, 0, 'task.submitted', '', '{}', onward_now() FROM new
)
SELECT id FROM new

-- name: submit_one
-- The same for one task with a key, without arrays: it takes the server four fifths of the time.
WITH new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent)
    SELECT :id, :task, :queue, :priority::int, onward_now(), :key, :fingerprint, :input::bytea, :options::bytea, :parent
    WHERE :parent::text IS NULL OR EXISTS (SELECT 1 FROM onward_tasks p WHERE p.id = :parent FOR KEY SHARE)
    ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, parent, paused, due_at, reason)
    SELECT id, :queue, :task, :priority, :parent, rests, CASE WHEN rests THEN 'Infinity' WHEN :delay::float8 > 0 THEN onward_now() + :delay END,
           CASE WHEN rests THEN 'paused' WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END
    FROM new CROSS JOIN LATERAL (SELECT COALESCE((SELECT p.paused FROM onward_queue p WHERE p.task_id = :parent LIMIT 1), false) AS rests) r
), first AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT id, 1, 0, 'task.submitted', '', '{}', onward_now() FROM new
)
SELECT id FROM new

-- name: submit_new
-- One task without a key. Its id can be taken only when it is submitted again after a lost answer: that is an error then, and the common
-- case is three plain inserts.
WITH new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options)
    VALUES (:id, :task, :queue, :priority, onward_now(), :fingerprint, :input, :options)
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, due_at, reason)
    VALUES (:id, :queue, :task, :priority, CASE WHEN :delay::float8 > 0 THEN onward_now() + :delay END, CASE WHEN :delay > 0 THEN 'delayed' ELSE 'queued' END)
)
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, 1, 0, 'task.submitted', '', '{}', onward_now())

-- name: submit_grouped
-- Tasks of which some have a group; all tasks with a tenant have one. The first task of a group gets the turn that is served now. Every
-- further one that waits stands a hundred places behind the one before it, so that other groups come in between. The tasks of a tenant
-- go by their `turn_group`, others by their group.
WITH batch AS (
    SELECT * FROM unnest(:ids::text[], :tasks::text[], :queues::text[], :priorities::int[], :inputs::bytea[], :options::bytea[],
                         :keys::text[], :fingerprints::text[], :delays::float8[], :parents::text[], :groups::text[], :tenants::text[],
                         :turn_groups::text[])
    WITH ORDINALITY AS b(id, task, queue, priority, input, options, key, fingerprint, delay, parent, grp, tenant, turn_group, place)
    CROSS JOIN LATERAL (SELECT CASE WHEN turn_group IS NULL THEN grp ELSE chr(10) || turn_group END AS line) l
), lines AS MATERIALIZED (
    SELECT g.queue, g.line, g.priority, COALESCE(GREATEST(
        (SELECT COALESCE(q.turn, q.position) FROM onward_queue q WHERE q.queue = g.queue AND q.priority = g.priority AND q.worker IS NULL AND q.due_at IS NULL
         ORDER BY COALESCE(q.turn, q.position) LIMIT 1),
        (SELECT COALESCE(q.turn, q.position) + 100 FROM onward_queue q WHERE q.queue = g.queue AND q.grp = g.line AND q.priority = g.priority AND q.grp IS NOT NULL AND q.worker IS NULL
         AND g.turn_group IS NULL ORDER BY COALESCE(q.turn, q.position) DESC LIMIT 1),
        (SELECT COALESCE(q.turn, q.position) + 100 FROM onward_queue q WHERE q.turn_group = g.turn_group AND q.turn_group IS NOT NULL AND q.queue = g.queue
         AND q.priority = g.priority AND q.worker IS NULL ORDER BY COALESCE(q.turn, q.position) DESC LIMIT 1)), (SELECT last_value FROM onward_queue_position_seq)) AS turn
    FROM (SELECT DISTINCT queue, line, turn_group, priority FROM batch WHERE line IS NOT NULL) g
), new AS (
    INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent, grp, tenant)
    SELECT id, task, queue, priority, onward_now(), key, fingerprint, input, options, parent, grp, tenant FROM batch
    WHERE parent IS NULL OR EXISTS (SELECT 1 FROM onward_tasks p WHERE p.id = batch.parent FOR KEY SHARE) ORDER BY key, place
    ON CONFLICT DO NOTHING RETURNING id
), queued AS (
    INSERT INTO onward_queue (task_id, queue, task, priority, parent, paused, grp, turn_group, turn, due_at, reason)
    SELECT id, queue, task, priority, parent, rests, grp, batch.turn_group, l.turn + 100 * (row_number() OVER (PARTITION BY queue, line, priority ORDER BY place) - 1),
           CASE WHEN rests THEN 'Infinity' WHEN delay > 0 THEN onward_now() + delay END,
           CASE WHEN rests THEN 'paused' WHEN delay > 0 THEN 'delayed' ELSE 'queued' END
    FROM batch JOIN new USING (id) LEFT JOIN lines l USING (queue, line, priority)
    CROSS JOIN LATERAL (SELECT CASE WHEN batch.parent IS NULL THEN false ELSE COALESCE((SELECT p.paused FROM onward_queue p WHERE p.task_id = batch.parent LIMIT 1), false) END AS rests) r ORDER BY place
), first AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT id, 1, 0, 'task.submitted', '', '{}', onward_now() FROM new
)
SELECT id FROM new

-- name: submitted
-- The tasks that have the ids or keys of a submit.
SELECT id, key, fingerprint FROM onward_tasks WHERE id = ANY(:ids::text[]) OR key = ANY(:keys::text[])

-- name: claim
-- Ready tasks by priority and turn, where no limit applies (see `line`). The statement locks the queue row first and then takes the next
-- number of the journal. Where another append is being committed the number is taken: the task stays ready, and the next claim finds it.
-- The row of the worker is locked for its key, so that it cannot be declared dead in between.
WITH me AS MATERIALIZED (
{unlimited_worker}
), ready AS MATERIALIZED (
{ready_by_name}
), {begin_shifts}

-- name: claim_from
-- The same, beginning at places that a survey found (see store/postgres/marks.py).
WITH me AS MATERIALIZED (
{unlimited_worker}
), ready AS MATERIALIZED (
{ready_from}
), {begin_shifts}

-- name: claim_beside
-- The same without the tasks of some tenants (see `ready_beside`).
WITH me AS MATERIALIZED (
{unlimited_worker}
), ready AS MATERIALIZED (
{ready_beside}
), {begin_shifts}

-- name: ready_beside
-- As `ready_by_name`, without some turn groups. It looks at the first `scan` ready tasks of each handler and no further: a tenant whose
-- tasks are passed over may have very many, and tasks of others get turns near the front.
SELECT r.task_id, r.task, r.grp, r.priority, r.turn FROM (
    SELECT i.task_id FROM unnest(:names::text[]) AS n(name) CROSS JOIN LATERAL (
        SELECT q.task_id, q.turn_group, q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
        WHERE q.queue || chr(10) || q.task = :queue || chr(10) || n.name AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3
        ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT :scan) i
    WHERE EXISTS (SELECT 1 FROM me) AND (i.turn_group IS NULL OR i.turn_group <> ALL(:without::text[]))
    ORDER BY i.priority DESC, i.turn LIMIT :room) s
CROSS JOIN LATERAL (
    SELECT q.task_id, q.task, q.grp, q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
    WHERE q.task_id = s.task_id AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3 LIMIT 1 FOR UPDATE OF q SKIP LOCKED) r

-- name: ready_from
-- As `ready_by_name`, for pairs of a handler and a priority, each from a place on: dead entries before it are not read.
SELECT r.task_id, r.task, r.grp, r.priority, r.turn FROM (
    SELECT f.name, f.priority, f.place, count(*) AS room FROM (
        SELECT n.name, n.priority, n.place FROM unnest(:marked::text[], :priorities::int[], :places::bigint[]) AS n(name, priority, place)
        CROSS JOIN LATERAL (
            SELECT COALESCE(q.turn, q.position) AS turn FROM onward_queue q
            WHERE q.queue || chr(10) || q.task = :queue || chr(10) || n.name AND q.priority = n.priority AND COALESCE(q.turn, q.position) >= n.place
              AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3
            ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT :room) i
        WHERE EXISTS (SELECT 1 FROM me) ORDER BY n.priority DESC, i.turn LIMIT :room) f
    GROUP BY f.name, f.priority, f.place) s
CROSS JOIN LATERAL (
    SELECT q.task_id, q.task, q.grp, q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
    WHERE q.queue || chr(10) || q.task = :queue || chr(10) || s.name AND q.priority = s.priority AND COALESCE(q.turn, q.position) >= s.place
      AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3
    ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT s.room FOR UPDATE OF q SKIP LOCKED) r

-- name: survey
-- For each handler and each priority of its ready tasks, the place of the first of them. The last row has the number of dead rows of the
-- queue, and the newest place.
WITH RECURSIVE fronts AS (
    SELECT n.name, f.priority, f.turn FROM unnest(:names::text[]) AS n(name) CROSS JOIN LATERAL (
        SELECT q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
        WHERE q.queue || chr(10) || q.task = :queue || chr(10) || n.name AND q.worker IS NULL AND q.due_at IS NULL
        ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT 1) f
    UNION ALL
    SELECT p.name, f.priority, f.turn FROM fronts p CROSS JOIN LATERAL (
        SELECT q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
        WHERE q.queue || chr(10) || q.task = :queue || chr(10) || p.name AND q.priority < p.priority AND q.worker IS NULL AND q.due_at IS NULL
        ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT 1) f
)
SELECT name, priority::bigint, turn FROM fronts
UNION ALL
SELECT NULL, pg_stat_get_dead_tuples('onward_queue'::regclass), (SELECT last_value FROM onward_queue_position_seq)

-- name: claim_suspect
-- The same for tasks that run alone.
WITH me AS MATERIALIZED (
{unlimited_worker}
), ready AS MATERIALIZED (
{ready_suspects}
), {begin_shifts}

-- name: unlimited_worker
-- The claiming worker, locked, unless its lease has ended or a limit applies.
SELECT id FROM onward_workers WHERE id = :worker AND lease_until > onward_now()
  AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name = ANY(:names::text[]) AND l.kind = 'task')
  AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name = :queue AND l.kind <> 'task') FOR KEY SHARE

-- name: ready_by_name
-- The first ready tasks of these handlers, locked. Each handler has its own range of the index, so tasks of other handlers are never
-- read. The first part counts, without a lock, how many tasks of each handler are among the first; the second locks that many of each.
SELECT r.task_id, r.task, r.grp, r.priority, r.turn FROM (
    SELECT f.name, count(*) AS room FROM (
        SELECT n.name FROM unnest(:names::text[]) AS n(name) CROSS JOIN LATERAL (
            SELECT q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
            WHERE q.queue || chr(10) || q.task = :queue || chr(10) || n.name AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3
            ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT :room) i
        WHERE EXISTS (SELECT 1 FROM me) ORDER BY i.priority DESC, i.turn LIMIT :room) f
    GROUP BY f.name) s
CROSS JOIN LATERAL (
    SELECT q.task_id, q.task, q.grp, q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
    WHERE q.queue || chr(10) || q.task = :queue || chr(10) || s.name AND q.worker IS NULL AND q.due_at IS NULL AND q.crashes < 3
    ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT s.room FOR UPDATE OF q SKIP LOCKED) r

-- name: ready_suspects
-- The same of the suspects, which are few and have their own index.
SELECT q.task_id, q.task, q.grp, q.priority, COALESCE(q.turn, q.position) AS turn FROM onward_queue q
WHERE q.queue = :queue AND q.crashes >= 3 AND q.worker IS NULL AND q.due_at IS NULL AND q.task = ANY(:names::text[]) AND EXISTS (SELECT 1 FROM me)
ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT :room FOR UPDATE OF q SKIP LOCKED

-- name: begin_shifts
-- Take the next number of each journal and give the task to the worker.
shift AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT r.task_id, h.seq + 1, h.seq + 1, 'shift.started', '', :data, onward_now()
    FROM ready r CROSS JOIN LATERAL (SELECT j.seq FROM onward_journal j WHERE j.task_id = r.task_id ORDER BY j.seq DESC LIMIT 1) h
    ORDER BY r.task_id
    ON CONFLICT DO NOTHING RETURNING task_id, seq
), taken AS (
    UPDATE onward_queue SET worker = :worker, reason = 'running' WHERE task_id = ANY(ARRAY(SELECT task_id FROM shift))
    RETURNING task_id, attempt, crashes, inbox, priority, COALESCE(turn, position) AS turn, position
)
SELECT t.id, t.task, t.input, t.options, s.seq, k.attempt, k.crashes, t.created_at, onward_now(), t.parent, k.inbox, NULL, t.tenant
FROM taken k JOIN shift s ON s.task_id = k.task_id
CROSS JOIN LATERAL (SELECT * FROM onward_tasks f WHERE f.id = k.task_id LIMIT 1) t
ORDER BY k.priority DESC, k.turn, k.position

-- name: line
-- The first ready tasks of a queue, locked, and whether each was never started. As in `claim`, the row of the worker is locked.
WITH me AS MATERIALIZED (
    SELECT id FROM onward_workers WHERE id = :worker AND lease_until > onward_now() FOR KEY SHARE
), ready AS MATERIALIZED (
{ready_by_name}
)
SELECT r.task_id, r.task, r.grp, NOT EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = r.task_id AND j.seq = 2) AS fresh FROM ready r
ORDER BY r.priority DESC, r.turn

-- name: line_beside
-- The same without the tasks of some tenants.
WITH me AS MATERIALIZED (
    SELECT id FROM onward_workers WHERE id = :worker AND lease_until > onward_now() FOR KEY SHARE
), ready AS MATERIALIZED (
{ready_beside}
)
SELECT r.task_id, r.task, r.grp, NOT EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = r.task_id AND j.seq = 2) AS fresh FROM ready r
ORDER BY r.priority DESC, r.turn

-- name: line_of_suspects
-- The same for tasks that run alone.
WITH me AS MATERIALIZED (
    SELECT id FROM onward_workers WHERE id = :worker AND lease_until > onward_now() FOR KEY SHARE
), ready AS MATERIALIZED (
{ready_suspects}
)
SELECT r.task_id, r.task, r.grp, NOT EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = r.task_id AND j.seq = 2) AS fresh FROM ready r
ORDER BY r.priority DESC, r.turn

-- name: lock_gates
-- Lock gates before their tasks are counted or the count changes; in one order, or two transactions would wait for each other. The key
-- of a queue begins with a line break, which no other key does. Queue rows are locked before, never after.
SELECT pg_advisory_xact_lock(hashtextextended(gate, 1)) FROM unnest(:gates::text[]) AS g(gate)

-- name: behind_gates
-- How many tasks are held behind each gate, and when its bucket is full.
SELECT g.gate, (SELECT count(*) FROM onward_queue q WHERE q.gate = g.gate AND q.gate IS NOT NULL AND q.worker IS NOT NULL) AS held,
       (SELECT b.full_at FROM onward_buckets b WHERE b.gate = g.gate) AS full_at, onward_now() AS now
FROM unnest(:gates::text[]) AS g(gate)

-- name: claim_these
-- A claim of tasks that are chosen and locked already.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(:ids::text[], :gates::text[]) WITH ORDINALITY AS w(id, gate, place)
), shift AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    SELECT w.id, h.seq + 1, h.seq + 1, 'shift.started', '', :data, onward_now()
    FROM wanted w CROSS JOIN LATERAL (SELECT j.seq FROM onward_journal j WHERE j.task_id = w.id ORDER BY j.seq DESC LIMIT 1) h
    ORDER BY w.id
    ON CONFLICT DO NOTHING RETURNING task_id, seq
), taken AS (
    UPDATE onward_queue q SET worker = :worker, reason = 'running', gate = w.gate FROM wanted w
    WHERE q.task_id = w.id AND q.task_id = ANY(ARRAY(SELECT task_id FROM shift))
    RETURNING q.task_id, q.attempt, q.crashes, q.inbox, q.gate, w.place
)
SELECT t.id, t.task, t.input, t.options, s.seq, k.attempt, k.crashes, t.created_at, onward_now(), t.parent, k.inbox, k.gate, t.tenant
FROM taken k JOIN shift s ON s.task_id = k.task_id
CROSS JOIN LATERAL (SELECT * FROM onward_tasks f WHERE f.id = k.task_id LIMIT 1) t
ORDER BY k.place

-- name: refuse
-- Tasks whose limit is reached leave the ready rows, so that thousands of them slow down no claim.
UPDATE onward_queue q SET due_at = 'Infinity', reason = 'quota', gate = w.gate FROM unnest(:ids::text[], :gates::text[]) AS w(id, gate)
WHERE q.task_id = w.id AND q.task_id = ANY(:ids::text[])

-- name: admit
-- Make the first tasks that wait at each gate ready now; or, where a time is given and no other task there has one, due at that time.
WITH first AS MATERIALIZED (
    SELECT r.task_id, g.at FROM unnest(:gates::text[], :counts::int[], :ats::float8[]) AS g(gate, count, at)
    CROSS JOIN LATERAL (
        SELECT q.task_id FROM onward_queue q WHERE q.gate = g.gate AND q.reason = 'quota' AND q.due_at = 'Infinity'
          AND (g.at IS NULL OR NOT EXISTS (SELECT 1 FROM onward_queue b WHERE b.gate = g.gate AND b.reason = 'quota' AND b.due_at < 'Infinity'))
        ORDER BY q.priority DESC, COALESCE(q.turn, q.position) LIMIT g.count FOR UPDATE SKIP LOCKED
    ) r
)
UPDATE onward_queue q SET due_at = f.at, reason = CASE WHEN f.at IS NULL THEN 'queued' ELSE 'quota' END
FROM first f WHERE q.task_id = f.task_id AND q.task_id = ANY(ARRAY(SELECT task_id FROM first))

-- name: fill_buckets
-- Starts were taken out of these buckets.
INSERT INTO onward_buckets (gate, full_at) SELECT * FROM unnest(:gates::text[], :full_ats::float8[])
ON CONFLICT (gate) DO UPDATE SET full_at = excluded.full_at

-- name: set_limits
-- Set limits; the names of those that are new or changed.
INSERT INTO onward_limits AS l (kind, name, concurrency, pace, burst)
SELECT * FROM unnest(:kinds::text[], :names::text[], :concurrencies::int[], :paces::float8[], :bursts::int[])
ON CONFLICT (name, kind) DO UPDATE SET concurrency = excluded.concurrency, pace = excluded.pace, burst = excluded.burst
WHERE (l.concurrency, l.pace, l.burst) IS DISTINCT FROM (excluded.concurrency, excluded.pace, excluded.burst)
RETURNING kind, name

-- name: lift_limits
-- Lift limits; the names of those that existed.
DELETE FROM onward_limits l USING unnest(:kinds::text[], :names::text[]) AS g(kind, name) WHERE l.kind = g.kind AND l.name = g.name
RETURNING l.kind, l.name

-- name: count_held
-- Count the tasks that are held now for a new limit.
WITH held AS MATERIALIZED (
    SELECT task_id FROM onward_queue WHERE worker IS NOT NULL AND (task = ANY(:tasks::text[]) OR queue = ANY(:queues::text[])) ORDER BY task_id FOR UPDATE
)
UPDATE onward_queue SET gate = CASE WHEN task = ANY(:tasks::text[]) THEN task || chr(10) || COALESCE(grp, '') ELSE COALESCE(gate, '') END
WHERE task_id = ANY(ARRAY(SELECT task_id FROM held))

-- name: reopen_gates
-- A limit has changed: tasks that waited for the old one are ready again.
WITH shut AS MATERIALIZED (
    SELECT task_id FROM onward_queue WHERE reason = 'quota' AND task = ANY(:tasks::text[]) ORDER BY task_id FOR UPDATE
)
UPDATE onward_queue SET due_at = NULL, reason = 'queued' WHERE task_id = ANY(ARRAY(SELECT task_id FROM shut))

-- name: shut_gates
-- Some gates at which tasks wait, from a name on, hopping through the index: whether there is still a limit, how many tasks it allows,
-- how many are held, and whether a task that waits has a time.
WITH RECURSIVE gates AS (
    (SELECT gate, task, 1 AS number FROM onward_queue WHERE reason = 'quota' AND gate > :after ORDER BY gate LIMIT 1)
    UNION ALL
    SELECT n.gate, n.task, g.number + 1 FROM gates g CROSS JOIN LATERAL (
        SELECT q.gate, q.task FROM onward_queue q WHERE q.reason = 'quota' AND q.gate > g.gate ORDER BY q.gate LIMIT 1) n
    WHERE g.number < :most
)
SELECT g.gate, l.name IS NOT NULL AS limited, l.concurrency,
       (SELECT count(*) FROM onward_queue q WHERE q.gate = g.gate AND q.gate IS NOT NULL AND q.worker IS NOT NULL) AS held,
       EXISTS (SELECT 1 FROM onward_queue b WHERE b.gate = g.gate AND b.reason = 'quota' AND b.due_at < 'Infinity') AS timed
FROM gates g LEFT JOIN onward_limits l ON l.kind = 'task' AND l.name = g.task ORDER BY g.number

-- name: journal_part
-- The records of `journal` up to a number of bytes; always the first.
SELECT p.seq, p.shift, p.kind, p.key, p.data, p.at FROM (
    SELECT j.*, sum(octet_length(j.data)) OVER (ORDER BY j.seq) - octet_length(j.data) AS before FROM (
        {journal}
    ) AS j
) AS p WHERE p.before < CAST(:most AS bigint) ORDER BY p.seq

-- name: last_journal_part
-- The records of `last_journal` up to a number of bytes; always the first.
SELECT p.seq, p.shift, p.kind, p.key, p.data, p.at FROM (
    SELECT j.*, sum(octet_length(j.data)) OVER (ORDER BY j.seq) - octet_length(j.data) AS before FROM (
        {last_journal}
    ) AS j
) AS p WHERE p.before < CAST(:most AS bigint) ORDER BY p.seq

-- name: there
-- Whether all witnesses are in the journal: 0 when they are, NULL when one is not.
SELECT CASE WHEN bool_and((SELECT p.seq FROM onward_journal p WHERE p.task_id = w.id AND p.seq = w.seq AND p.shift = w.shift
                           AND (p.at = w.at OR w.at IS NULL)) IS NOT NULL) THEN 0 END AS there
FROM unnest(:w_ids::text[], :w_seqs::int[], :w_shifts::int[], :w_ats::float8[]) AS w(id, seq, shift, at)

-- name: records
-- The records of a commit. Where a witness is not in the journal, their numbers are NULL, and the table refuses them.
SELECT r.id, r.seq + (
{there}
), r.shift, r.kind, r.key, r.data, r.at
FROM unnest(:ids::text[], :seqs::int[], :shifts::int[], :kinds::text[], :keys::text[], :datas::bytea[], :ats::float8[])
     AS r(id, seq, shift, kind, key, data, at)

-- name: save
-- The records of finished steps, of many tasks. One number that is taken, or one missing witness, refuses the whole statement; the store
-- then tries the tasks one by one. That is rare, and the common case is a plain insert.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
{records}

-- name: record
-- One record, as `records` has many. Where its witness is not in the journal, its number is NULL. Arrays of one element would take the
-- server, and the client, half as long again.
SELECT :id::text, :seq::int + (SELECT 0 FROM onward_journal p WHERE p.task_id = :w_id AND p.seq = :w_seq::int AND p.shift = :w_shift::int
                               AND (p.at = :w_at::float8 OR :w_at::float8 IS NULL)),
       :shift::int, :kind, :key, :data::bytea, :at::float8

-- name: save_one
-- The same as `save` for one record and one witness: the step of a task that runs alone.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
{record}

-- name: end_one
-- The same as `settle` for one task that ends with one record, in half the time. It locks one row, so it needs no order of rows.
WITH gone AS (
    DELETE FROM onward_queue WHERE task_id = :id::text RETURNING 1
), written AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    {record}
    WHERE (SELECT count(*) FROM gone) >= 0 RETURNING 1
)
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at)
SELECT :id, :state, :attempt::int, :end_seq::int, onward_now() WHERE (SELECT count(*) FROM written) >= 0

-- name: settle
-- Records, ends and waits together. The counts force the order: queue rows first, journal second, outcomes last (a part of WITH that no
-- other part reads runs after all others, and cancel keeps the same order). A wait of a task that has not read all its messages ends at
-- once. All queue rows are locked in the order of their ids before anything else, as a rescue and the end of a child lock them. Without
-- this the plan decides the order: a scan of the table meets them in the order in which they were last changed.
WITH mine AS MATERIALIZED (
    SELECT q.task_id FROM onward_queue q WHERE q.task_id = ANY(:end_ids::text[] || :wait_ids::text[]) ORDER BY q.task_id FOR UPDATE OF q
), gone AS (
    DELETE FROM onward_queue WHERE task_id = ANY(:end_ids::text[]) AND (SELECT count(*) FROM mine) >= 0 RETURNING 1
), parted AS (
    UPDATE onward_queue q SET worker = NULL, attempt = w.attempt,
        crashes = CASE WHEN w.reason = 'delayed' THEN q.crashes ELSE 0 END,  -- this worker could not do it, and has not survived it
        due_at = CASE WHEN q.paused THEN 'Infinity' WHEN q.inbox = w.inbox OR w.inbox IS NULL THEN w.due_at END,
        reason = CASE WHEN q.paused THEN 'paused' WHEN q.inbox = w.inbox OR w.inbox IS NULL THEN w.reason ELSE 'queued' END,
        gate = CASE WHEN w.reason = 'quota' THEN NULL ELSE q.gate END  -- the quota of an outside service is no gate
    FROM unnest(:wait_ids::text[], :due_ats::float8[], :reasons::text[], :wait_attempts::int[], :inboxes::int[]) AS w(id, due_at, reason, attempt, inbox)
    WHERE q.task_id = w.id AND q.task_id = ANY(:wait_ids::text[]) AND (SELECT count(*) FROM mine) >= 0 RETURNING 1
), written AS (
    INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
    {records}
    WHERE (SELECT count(*) FROM gone) + (SELECT count(*) FROM parted) >= 0 RETURNING 1
)
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at)
SELECT id, state, attempt, seq, onward_now() FROM unnest(:end_ids::text[], :states::text[], :end_attempts::int[], :end_seqs::int[]) AS e(id, state, attempt, seq)
WHERE (SELECT count(*) FROM written) >= 0

-- name: ended_estimate
-- An estimate of all outcomes: the size of the table now, by the rows per page when the server last counted, or by their usual width.
SELECT (pg_relation_size(oid) / current_setting('block_size')::int
        * CASE WHEN reltuples > 0 AND relpages > 0 THEN reltuples / relpages ELSE 80 END)::bigint
FROM pg_class WHERE oid = 'onward_outcomes'::regclass

-- name: offspring
-- The children of these tasks, and the beginnings of their last records.
SELECT t.id, t.task, o.seq IS NOT NULL, (SELECT substr(e.data, 1, :head) FROM onward_journal e WHERE e.task_id = t.id AND e.seq = o.seq)
FROM (SELECT id, task FROM onward_tasks WHERE parent = ANY(:parents::text[]) AND parent IS NOT NULL LIMIT :most) t
LEFT JOIN LATERAL (SELECT seq FROM onward_outcomes f WHERE f.task_id = t.id LIMIT 1) o ON true

-- name: keep
-- Store contents that records refer to. The same content again is ignored.
INSERT INTO onward_contents (task_id, id, data) SELECT * FROM unnest(:tasks::text[], :ids::text[], :datas::bytea[]) ORDER BY 1, 2 ON CONFLICT DO NOTHING

-- name: lock_purses
-- Lock the ledgers that a transaction changes, also one that does not exist yet; before any queue row.
SELECT pg_advisory_xact_lock(hashtextextended(purse, 2)) FROM unnest(:ids::text[]) AS p(purse)

-- name: watch
-- Make the triggers (see the migration) with the first subscription.
SELECT onward_watch(:busy)

-- name: take_deliveries
-- Take the first row of each line that is due, of one receiver, for a while. Rows are read and locked in the order in which they are due
-- until there are enough, at most so many; `crowded` says that so many were read, and most of them stand behind others.
WITH near AS MATERIALIZED (
    SELECT o.task_id, o.seq, o.subscription, o.due_at FROM onward_outbox o
    WHERE o.lane = :lane AND o.state = 'pending' AND o.due_at <= onward_now() ORDER BY o.due_at LIMIT :wide FOR UPDATE OF o SKIP LOCKED
), due AS MATERIALIZED (
    SELECT n.task_id, n.seq, n.subscription FROM near n
    WHERE (SELECT e.seq FROM onward_outbox e WHERE e.subscription = n.subscription AND e.task_id = n.task_id AND e.seq < n.seq AND e.state = 'pending' LIMIT 1) IS NULL
    LIMIT :room
), o AS (
    UPDATE onward_outbox u SET holder = :holder, attempts = u.attempts + 1, due_at = onward_now() + :lease
    FROM due d WHERE u.task_id = d.task_id AND u.seq = d.seq AND u.subscription = d.subscription
    RETURNING u.*
)
{taken_columns}, CASE WHEN (SELECT count(*) FROM due) < :room THEN (SELECT count(*) FROM near) = :wide ELSE false END AS crowded
FROM o JOIN onward_subscriptions s ON s.id = o.subscription
CROSS JOIN LATERAL (SELECT * FROM onward_journal r WHERE r.task_id = o.task_id AND r.seq = o.seq LIMIT 1) j
CROSS JOIN LATERAL (SELECT * FROM onward_tasks f WHERE f.id = o.task_id LIMIT 1) t

-- name: take_runs
-- Take runs of rows that are due: the first pending rows of lines, without a gap. `near` are the lines of the rows that are due first, and each
-- of them gets its share. A row that is not due yet, or that another relay holds or locks, ends the run of its line.
WITH near AS MATERIALIZED (
    SELECT n.subscription, n.task_id, min(n.due_at) AS due_at FROM (
        SELECT o.subscription, o.task_id, o.due_at FROM onward_outbox o
        WHERE o.lane = :lane AND o.state = 'pending' AND o.due_at <= onward_now() ORDER BY o.due_at LIMIT :room
    ) n GROUP BY n.subscription, n.task_id
), heads AS MATERIALIZED (
    SELECT h.number, h.seq, l.subscription, l.task_id, l.due_at FROM near l CROSS JOIN LATERAL (
        SELECT e.number, e.seq FROM onward_outbox e
        WHERE e.subscription = l.subscription AND e.task_id = l.task_id AND e.state = 'pending'
        ORDER BY e.seq LIMIT (SELECT 1 + :room / count(*) FROM near)) h
), locked AS MATERIALIZED (
    SELECT o.number FROM onward_outbox o  -- by its number: nothing here that another index has
    WHERE o.number = ANY(ARRAY(SELECT number FROM heads)) AND o.lane || '' = :lane AND o.state || '' = 'pending' AND o.due_at + 0 <= onward_now()
    FOR UPDATE OF o SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT h.*, h.number IN (SELECT number FROM locked) AS ours FROM heads h
), runs AS MATERIALIZED (
    SELECT r.number FROM (
        SELECT h.*, bool_and(h.ours) OVER (PARTITION BY h.subscription, h.task_id ORDER BY h.seq) AS whole FROM ready h
    ) r WHERE r.whole ORDER BY r.due_at, r.task_id, r.subscription, r.seq LIMIT :room
), o AS (
    UPDATE onward_outbox u SET holder = :holder, attempts = u.attempts + 1, due_at = onward_now() + :lease
    WHERE u.number = ANY(ARRAY(SELECT number FROM runs)) RETURNING u.*
)
{taken_columns}, (SELECT count(*) FROM ready WHERE NOT ours) > 0 AS crowded
FROM o JOIN onward_subscriptions s ON s.id = o.subscription
CROSS JOIN LATERAL (SELECT * FROM onward_journal r WHERE r.task_id = o.task_id AND r.seq = o.seq LIMIT 1) j
CROSS JOIN LATERAL (SELECT * FROM onward_tasks f WHERE f.id = o.task_id LIMIT 1) t
ORDER BY o.number

-- name: forget_strays
-- Delete rows of a subscription that is gone: its record was being committed, and had found the subscription, while that was removed. A
-- relay that takes such a row finds nothing to send, so they stay among the first. (SQLite has one writer and needs none of this.)
DELETE FROM onward_outbox WHERE (task_id, seq, subscription) IN (
    SELECT o.task_id, o.seq, o.subscription FROM unnest(:lanes::text[]) AS l(lane) CROSS JOIN LATERAL (
        SELECT task_id, seq, subscription FROM onward_outbox WHERE lane = l.lane AND state = 'pending' ORDER BY due_at LIMIT :wide) AS o
    WHERE (SELECT s.id FROM onward_subscriptions s WHERE s.id = o.subscription) IS NULL)

-- name: lock_rows
-- Lock all queue rows that a settle changes, also those of parents, in the order of their ids, or two of them would wait for each other.
SELECT 1 FROM onward_queue WHERE task_id = ANY(:ids::text[]) ORDER BY task_id FOR UPDATE

-- name: lock_copy
-- Of two processes that copy the same task of another engine, the second writes after the first, and sees what it wrote.
SELECT 1 FROM onward_tasks WHERE id = :id FOR UPDATE

-- name: tell_parents
-- Send the ends of children to their parents.
WITH told AS (
    SELECT parent, id, child, data, row_number() OVER (PARTITION BY parent ORDER BY id) AS place
    FROM unnest(:parents::text[], :ids::text[], :children::text[], :datas::bytea[]) AS t(parent, id, child, data)
), counted AS (
    SELECT parent, count(*)::int AS several FROM told GROUP BY parent
), bumped AS (
    UPDATE onward_queue q SET inbox = q.inbox + c.several,
        due_at = CASE WHEN q.worker IS NULL AND q.reason IN ('signal', 'question', 'approval', 'child', 'in_doubt', 'budget', 'lock') THEN NULL ELSE q.due_at END,
        reason = CASE WHEN q.worker IS NULL AND q.reason IN ('signal', 'question', 'approval', 'child', 'in_doubt', 'budget', 'lock') THEN 'queued' ELSE q.reason END
    FROM counted c WHERE q.task_id = c.parent AND q.task_id = ANY(:parents::text[]) RETURNING q.task_id, q.inbox - c.several AS base
)
INSERT INTO onward_inbox (task_id, number, id, kind, name, data, at)
SELECT b.task_id, b.base + t.place, t.id, 'child', t.child, t.data, onward_now() FROM bumped b JOIN told t ON t.parent = b.task_id

-- name: wake
-- Make sleeping tasks ready whose time has come.
WITH due AS MATERIALIZED (
    SELECT task_id FROM onward_queue WHERE due_at <= onward_now() ORDER BY due_at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE onward_queue SET due_at = NULL, reason = 'queued' WHERE task_id = ANY(ARRAY(SELECT task_id FROM due))

-- name: outlook
-- All that a worker without work has to know, in one statement: which queues have ready tasks of its handlers, when the next sleeping
-- task is due, where suspects wait and may be started, whether a worker has joined or left or its lease has ended, and what maintenance
-- has to do.
SELECT ARRAY(SELECT DISTINCT p.queue FROM ({ready_pairs}) p WHERE :any_name OR p.task = ANY(:names::text[]) ORDER BY p.queue) AS queues,
       (SELECT min(due_at) FROM onward_queue WHERE due_at IS NOT NULL AND due_at < 'Infinity') - onward_now() AS next_due_in,
       ARRAY(SELECT DISTINCT s.queue FROM onward_queue s WHERE s.crashes >= 3 AND s.worker IS NULL AND s.due_at IS NULL
             AND NOT EXISTS (SELECT 1 FROM onward_limits l WHERE l.name = s.queue AND l.kind = 'paused')) AS suspects,
       EXISTS (SELECT 1 FROM onward_queue WHERE reason = 'quota') AS quota,
       (SELECT count(*) FROM onward_workers) AS workers, (SELECT COALESCE(max(started_at), 0) FROM onward_workers) AS newest,
       EXISTS (SELECT 1 FROM onward_workers w WHERE w.lease_until < onward_now()) OR EXISTS ({lost_holders}) AS lost,
       EXISTS (SELECT 1 FROM onward_queue WHERE parent IS NOT NULL) AS children,
       (SELECT min(next_at) FROM onward_schedules WHERE next_at IS NOT NULL) - onward_now() AS next_tick_in,
       EXISTS (SELECT 1 FROM onward_locks) AS locks,
       CASE WHEN :lease::float8 IS NULL THEN '{}' ELSE ARRAY({absent}) END AS absent

-- name: ready_pairs
-- Which handlers have ready tasks, and in which queues, hopping from one pair to the next through the index by queue and name.
WITH RECURSIVE pairs(pair) AS (
    (SELECT queue || chr(10) || task FROM onward_queue WHERE worker IS NULL AND due_at IS NULL ORDER BY queue || chr(10) || task LIMIT 1)
    UNION ALL
    SELECT (SELECT q.queue || chr(10) || q.task FROM onward_queue q WHERE q.worker IS NULL AND q.due_at IS NULL
            AND q.queue || chr(10) || q.task > p.pair ORDER BY q.queue || chr(10) || q.task LIMIT 1)
    FROM pairs p WHERE p.pair IS NOT NULL
)
SELECT split_part(pair, chr(10), 1) AS queue, split_part(pair, chr(10), 2) AS task FROM pairs WHERE pair IS NOT NULL

-- name: confirm_pause
-- The worker that holds these paused tasks begins no further step of them. A heartbeat waits for no lock: the next one confirms a row
-- that is locked now.
WITH mine AS MATERIALIZED (
    SELECT task_id FROM onward_queue WHERE task_id = ANY(:ids::text[]) AND worker = :worker AND paused ORDER BY task_id FOR UPDATE SKIP LOCKED
)
UPDATE onward_queue SET reason = 'paused' WHERE task_id = ANY(ARRAY(SELECT task_id FROM mine))

-- name: let_go
-- Tasks that a leaving worker holds become ready, or rest when they are paused; no crash is counted.
UPDATE onward_queue SET worker = NULL, due_at = CASE WHEN paused THEN 'Infinity'::float8 END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END
WHERE worker = :worker

-- name: release
-- Release tasks that this worker holds without knowing it. (A claim in the future was made before the clock was set back.)
UPDATE onward_queue q SET worker = NULL, due_at = CASE WHEN q.paused THEN 'Infinity'::float8 END,
    reason = CASE WHEN q.paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN :suspect THEN GREATEST(crashes, 3) ELSE crashes END FROM (
    SELECT i.id, (SELECT j.at FROM onward_journal j WHERE j.task_id = i.id AND j.kind = 'shift.started' ORDER BY j.seq DESC LIMIT 1) AS at
    FROM unnest(:ids::text[]) AS i(id)) claimed
WHERE q.worker = :worker AND q.task_id = claimed.id AND q.task_id = ANY(:ids::text[]) AND (claimed.at <= :before OR claimed.at > onward_now())

-- name: beat
-- One heartbeat for all tasks of a process. Only a worker that was declared dead has no row.
WITH me AS (
    UPDATE onward_workers SET lease_until = onward_now() + :lease, rate = :rate WHERE id = :worker RETURNING 1
)
SELECT (SELECT count(*) FROM me) AS alive, onward_now() AS now, ARRAY(SELECT task_id FROM onward_queue WHERE worker = :worker) AS held,
       ARRAY(SELECT task_id FROM onward_queue WHERE worker = :worker AND paused) AS paused

-- name: bury
-- Delete workers that are dead, or whose lease ended while the database was there to prolong it.
DELETE FROM onward_workers
WHERE id = ANY(:dead::text[])
   OR (lease_until < LEAST(onward_now(), :now::float8) AND extract(epoch FROM pg_postmaster_start_time())::float8 < onward_now() - :lease::float8)

-- name: rescue
-- Their tasks are ready again. They are locked in the order of their ids, or a transaction that tells several parents would wait for
-- this one and this one for it. A crash counts when the shift left no record. The next rescue finds tasks of a worker that claimed while
-- it was being declared dead.
WITH lost AS MATERIALIZED (
    SELECT q.task_id FROM onward_queue q
    WHERE q.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = q.worker)
    ORDER BY q.task_id FOR UPDATE OF q
)
UPDATE onward_queue q SET worker = NULL,
    due_at = CASE WHEN q.paused THEN 'Infinity'::float8 END, reason = CASE WHEN q.paused THEN 'paused' ELSE 'queued' END,
    crashes = CASE WHEN EXISTS (
        SELECT 1 FROM onward_journal j WHERE j.task_id = q.task_id AND j.kind NOT IN ('step.started', 'step.retry', 'step.waits', 'artifact.kept', 'lock.taken', 'progress')
          AND j.seq > (SELECT h.shift FROM onward_journal h WHERE h.task_id = q.task_id ORDER BY h.seq DESC LIMIT 1)
    ) THEN 0 ELSE q.crashes + 1 END
WHERE q.worker IS NOT NULL AND q.task_id = ANY(ARRAY(SELECT task_id FROM lost))

-- name: lock_held
-- Lock all queue rows of a worker, in the order of their ids.
SELECT 1 FROM onward_queue WHERE worker = :worker ORDER BY task_id FOR UPDATE

-- name: absent
-- Workers whose presence lock is free. Not right after a restart, which frees the locks of living workers too.
SELECT w.id FROM onward_workers w
WHERE w.address = 'lock' AND pg_postmaster_start_time() < now() - make_interval(secs => :lease::float8) AND NOT EXISTS (
    SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(w.id, 0))

-- name: lost_holders
-- Workers that hold tasks and do not exist, hopping from one holder to the next through the index.
WITH RECURSIVE holders AS (
    (SELECT worker FROM onward_queue WHERE worker IS NOT NULL ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT n.worker FROM holders h CROSS JOIN LATERAL (
        SELECT q.worker FROM onward_queue q WHERE q.worker IS NOT NULL AND q.worker > h.worker ORDER BY q.worker LIMIT 1) n
)
SELECT 1 FROM holders h WHERE NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = h.worker)

-- name: attend
-- Take the presence lock of a worker: the server frees it with the session.
SELECT pg_advisory_lock(hashtextextended(:worker, 0))

-- name: depart
-- Give back the presence lock.
SELECT pg_advisory_unlock(hashtextextended(:worker, 0))

-- name: unpark
-- A task that waits for a person becomes ready, and its crashes are reset.
UPDATE onward_queue SET due_at = CASE WHEN worker IS NULL THEN NULL ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'queued' ELSE 'running' END, crashes = 0, paused = false
WHERE task_id = :id

-- name: pause
-- Let no worker start a task. The next heartbeat tells the worker that holds it, and the one after that confirms it.
UPDATE onward_queue SET paused = true, due_at = CASE WHEN worker IS NULL THEN 'Infinity' ELSE due_at END,
    reason = CASE WHEN worker IS NULL THEN 'paused' ELSE reason END
WHERE task_id = :id RETURNING worker

-- name: queue_row
-- The queue row of a task, locked first: every writer keeps this order.
SELECT reason, attempt, worker, paused, gate FROM onward_queue WHERE task_id = :id FOR UPDATE

-- name: lock_trees
-- The outcomes of all tasks of some trees, before the store decides whether to prune them.
WITH RECURSIVE tree(id) AS (
    SELECT id FROM onward_tasks WHERE id = ANY(:ids::text[]) AND parent IS NULL
    UNION ALL SELECT t.id FROM tree JOIN onward_tasks t ON t.parent = tree.id
)
SELECT task_id FROM onward_outcomes WHERE task_id = ANY(ARRAY(SELECT id FROM tree)) ORDER BY task_id FOR UPDATE

-- name: origin
-- The task that is forked, locked: it cannot be pruned meanwhile.
SELECT id, task FROM onward_tasks WHERE id = :id FOR KEY SHARE

-- name: outcome
-- How a task ended, locked: only one caller can reopen it.
SELECT state, attempt, finished_at FROM onward_outcomes WHERE task_id = :id FOR UPDATE

-- name: notify
-- Nudge all processes.
SELECT pg_notify(:channel, topic) FROM unnest(:topics::text[]) AS t(topic)

-- name: join_queue_row
-- The queue row of a task of a list, looked up by its id. (The planner takes a queue of dead rows for an empty one, and would read all of it.)
LEFT JOIN LATERAL (SELECT * FROM onward_queue r WHERE r.task_id = t.id LIMIT 1) q ON true

-- name: notify_workers
-- Nudge some of the workers that can do the present work: one for each task, and a spare one. Tasks that sleep are no work yet, but a
-- worker has to know when they are due. A task that was begun before may stand behind a mark (see store/postgres/marks.py). The first step
-- reads rows by their ids alone: the planner takes a queue of dead rows for an empty one, and would read all of it.
WITH named AS MATERIALIZED (
    SELECT task_id, queue, task, worker, due_at FROM onward_queue WHERE task_id = ANY(:ids::text[])
), work AS MATERIALIZED (
    SELECT queue, task, due_at IS NULL AS ready, count(*) AS tasks,
           bool_or(EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = named.task_id AND j.seq = 2)) AS again FROM named
    WHERE worker IS NULL AND (due_at IS NULL OR due_at < 'Infinity') GROUP BY queue, task, due_at IS NULL
)
SELECT pg_notify(:prefix::text || w.id, CASE WHEN NOT k.ready THEN 'ready' WHEN k.again THEN 'again ' || k.queue ELSE 'ready ' || k.queue END)
FROM work k CROSS JOIN LATERAL (
    SELECT w.id FROM onward_workers w
    WHERE w.address = 'lock' AND w.lease_until > onward_now() AND w.names::jsonb ? k.task AND (w.queues = '[]' OR w.queues::jsonb ? k.queue)
    ORDER BY random() LIMIT k.tasks + :spare::int) w

-- name: tails
-- The next records of many tasks, each after a number; differs by necessity because of how a list of pairs is given.
SELECT task_id, seq, shift, kind, key, data, at FROM (
    SELECT n.*, sum(octet_length(n.data)) OVER (ORDER BY n.task_id, n.seq) - octet_length(n.data) AS before
    FROM (SELECT j.task_id, j.seq, j.shift, j.kind, j.key, j.data, j.at
          FROM unnest(:ids::text[], :afters::int[]) AS f(id, after) CROSS JOIN LATERAL (
              SELECT i.* FROM onward_journal i WHERE i.task_id = f.id AND i.seq > f.after AND i.kind <> 'pruned' ORDER BY i.seq LIMIT :each
          ) AS j ORDER BY j.task_id, j.seq LIMIT :limit) AS n) AS s
WHERE before < :bytes ORDER BY task_id, seq

-- name: heads
-- Where the journals of many tasks end; differs by necessity because of how a list is given.
SELECT f.id, j.seq, j.kind FROM unnest(:ids::text[]) AS f(id) CROSS JOIN LATERAL (
    SELECT i.seq, i.kind FROM onward_journal i WHERE i.task_id = f.id AND i.kind <> 'pruned' ORDER BY i.seq DESC LIMIT 1) AS j

-- name: health
-- The figures for `onward doctor`.
SELECT current_setting('server_version_num')::int AS version, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS sync,
       COALESCE((SELECT max(extract(epoch FROM now() - xact_start)) FROM pg_stat_activity
                 WHERE state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()), 0)::float8 AS oldest

-- name: snapshots
-- The holders of the oldest snapshots of this database, the oldest first. (Only a user who may read all statistics sees those of
-- sessions of other users.)
SELECT h.kind, h.name, h.about, h.behind, h.seconds FROM (
    SELECT 'session' AS kind, a.pid::text AS name, concat_ws(', ', a.usename, NULLIF(a.application_name, ''), a.state) AS about,
           GREATEST(age(a.backend_xmin), age(a.backend_xid)) AS behind, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
    FROM pg_stat_activity a
    WHERE a.pid <> pg_backend_pid() AND a.datname = current_database() AND COALESCE(a.backend_xmin, a.backend_xid) IS NOT NULL
    UNION ALL
    SELECT 'replication slot', s.slot_name::text, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, age(s.xmin), NULL
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner::text, age(p.transaction), extract(epoch FROM clock_timestamp() - p.prepared)::float8
    FROM pg_prepared_xacts p WHERE p.database = current_database()
) h ORDER BY h.behind DESC, h.seconds DESC LIMIT 10

-- name: own_tables
-- The tables of Onward, for a scan of all rows.
SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'onward\_%' ORDER BY name

-- name: outbox_there
-- Whether there is an outbox: the tables may be of an older version than the program.
SELECT 1 WHERE to_regclass('onward_outbox') IS NOT NULL

-- name: keys_prune
-- Delete some keys that were revoked, or expired, so many seconds ago. It differs by necessity: the server has no right to delete keys.
SELECT onward_prune_keys(CAST(:seconds AS float8), CAST(:most AS integer))

-- name: lock_audit
-- Lock the audit log: a chain has one end. It is always the last lock of a transaction. (It has another number than `onward_watch`,
-- which waits for all writers.)
SELECT pg_advisory_xact_lock(7205759405)

-- name: says
-- Whether a text stands in the name or the key of a task, in its labels or at the beginning of its input, or its id begins or ends with
-- it. An input that is sealed is left out. It differs by necessity: bytes are no text here, and their beginning may end within a letter. The collation C ignores the case of
-- ASCII letters; for other letters both cases are tried. That takes long, so bytes without two letters of the text in a row are not
-- compared.
(t.task COLLATE "C" ILIKE :text ESCAPE '~' OR t.key COLLATE "C" ILIKE :text ESCAPE '~' OR t.id LIKE :id_begins ESCAPE '~' OR t.id LIKE :id_ends ESCAPE '~'
 OR (NOT {sealed} AND substring(t.input FROM 1 FOR :far) LIKE ANY (:pairs) AND (
     encode(substring(t.input FROM 1 FOR :far), 'escape') COLLATE "C" ILIKE :octal_within ESCAPE '~'
     OR (:two_cases AND encode(substring(t.input FROM 1 FOR :far), 'escape') COLLATE "C" ILIKE :octal_within_too ESCAPE '~')))
 OR (t.options LIKE ANY (:pairs) AND position('"labels":{'::bytea IN t.options) > 0 AND (
     encode(substring(t.options FROM position('"labels":{'::bytea IN t.options) + 10), 'escape') COLLATE "C" ILIKE :octal_labelled ESCAPE '~'
     OR (:two_cases AND encode(substring(t.options FROM position('"labels":{'::bytea IN t.options) + 10), 'escape') COLLATE "C" ILIKE :octal_labelled_too ESCAPE '~')))
 OR (:two_cases AND (t.task COLLATE "C" ILIKE :text_too ESCAPE '~' OR t.key COLLATE "C" ILIKE :text_too ESCAPE '~')))

-- name: has_label
-- Whether the options of a task hold these bytes.
position(:label IN t.options) > 0

-- name: size
-- Bytes that the database takes.
SELECT pg_database_size(current_database()) AS size

-- name: sealed
-- Whether the input of a task is sealed; differs by necessity because of how bytes are written.
substr(t.input, 1, 4) = '\x014f4501'::bytea

-- name: plain_data
-- Whether a payload is not sealed; differs for the same reason.
substr(data, 1, 4) <> '\x014f4501'::bytea

-- name: plain_body
-- The same of the body of a delivery.
substr(body, 1, 4) <> '\x014f4501'::bytea

-- name: letters_take
-- Take dead letters that are to be tried again, for so many seconds.
UPDATE onward_dead_letters SET held_until = onward_now() + :lease WHERE id IN (
  SELECT id FROM onward_dead_letters WHERE intake = :intake AND redrive_at IS NOT NULL AND (held_until IS NULL OR held_until < onward_now())
  ORDER BY redrive_at, id LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id, identity, position, sent_id, size, data, at

-- name: lock_bucket
-- One transaction at a time takes or frees a lock of a bucket.
SELECT 1 FROM onward_lock_counters WHERE bucket = :bucket FOR UPDATE

-- name: lock_buckets_of
-- The same for all locks of these tasks, in the order of the buckets.
SELECT 1 FROM onward_lock_counters WHERE bucket IN (SELECT l.bucket FROM onward_locks l WHERE l.task_id = ANY(:ids::text[])) ORDER BY bucket FOR UPDATE

-- name: by_bytes
-- Compares strings as Python does, whatever the order of the database is.
COLLATE "C"

-- name: epoch_records
-- A record in the journal of each unfinished task. It takes the next number, which a worker of the epoch before would take.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
SELECT q.task_id, (SELECT max(j.seq) FROM onward_journal j WHERE j.task_id = q.task_id) + 1, 0, 'task.restored', '', :data::bytea, :restored_at::float8
FROM onward_queue q
