-- Statements that read the same on PostgreSQL and SQLite.

-- name: columns
-- A task as every reader gets it. State and reason come from the queue row or the outcome, never from a column of their own. An input or
-- a last record that is longer than the reader wants is not read.
SELECT t.id, t.task, t.queue, COALESCE(q.priority, t.priority) AS priority, t.created_at, t.key, t.options,
       CASE WHEN length(t.input) <= :most THEN t.input END AS input,
       q.worker, q.due_at, q.reason, COALESCE(q.attempt, o.attempt, 1) AS attempt,
       o.state, o.finished_at, o.seq AS end_seq, t.parent, t.grp, t.tenant,
       (SELECT e.data FROM onward_journal e WHERE e.task_id = t.id AND e.seq = o.seq AND length(e.data) <= :most) AS ending,
       (SELECT h.at FROM onward_journal h WHERE h.task_id = t.id ORDER BY h.seq DESC LIMIT 1) AS updated_at,
       (SELECT f.at FROM onward_journal f WHERE f.task_id = t.id AND f.kind = 'shift.started' ORDER BY f.seq LIMIT 1) AS started_at

-- name: get
-- One task by its id, when the reader may see it: a task of one tenant, of none (''), or of any.
{columns}
FROM onward_tasks t
LEFT JOIN onward_queue q ON q.task_id = t.id
LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.id = :id AND (:of_all OR COALESCE(t.tenant, '') = :tenant)

-- name: tasks
-- Tasks by their ids.
{columns}
FROM onward_tasks t
LEFT JOIN onward_queue q ON q.task_id = t.id
LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.id AMONG (:ids)

-- name: value_sizes
-- The bytes of the input and the last record of these tasks, without reading them.
SELECT t.id, length(t.input) + COALESCE((SELECT length(e.data) FROM onward_journal e WHERE e.task_id = t.id AND e.seq = o.seq), 0) AS size
FROM onward_tasks t LEFT JOIN onward_outcomes o ON o.task_id = t.id WHERE t.id AMONG (:ids)

-- name: list_all
-- Tasks of all states, or of states that most tasks have, the newest first.
{columns}
{from_all}

-- name: ids_all
-- Their ids and options alone, to count them and to look for labels.
SELECT t.id, t.options
{from_all}

-- name: from_all
-- The tables and filters of both.
FROM onward_tasks t
{join_queue_row}
LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.id < :before AND t.id >= :since AND {matches} AND (:of_all OR COALESCE(t.tenant, '') = :tenant)
  AND (:any_state OR COALESCE(o.state, {open_state}) AMONG (:states))
ORDER BY t.id DESC LIMIT :limit

-- name: list_tenant
-- Tasks of one tenant, of all states or of an ended state that is not rare, the newest first. They are read through the index of
-- tenants, so that tasks of other tenants are never read.
{columns}
{from_tenant}

-- name: ids_tenant
-- Their ids and options alone, to count them and to look for labels.
SELECT t.id, t.options
{from_tenant}

-- name: from_tenant
-- The tables and filters of both.
FROM onward_tasks t
{join_queue_row}
LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.tenant = :tenant AND t.id < :before AND t.id >= :since AND {matches}
  AND (:any_state OR COALESCE(o.state, {open_state}) AMONG (:states))
ORDER BY t.id DESC LIMIT :limit

-- name: list_of
-- Children of one task, of any state or reason.
{columns}
{from_of}

-- name: ids_of
-- Their ids and options alone, to count them and to look for labels.
SELECT t.id, t.options
{from_of}

-- name: from_of
-- The tables and filters of both.
FROM onward_tasks t
{join_queue_row}
LEFT JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.parent = :parent AND (:of_all OR COALESCE(t.tenant, '') = :tenant) AND t.id < :before AND t.id >= :since AND {matches}
  AND (:any_reason OR q.reason AMONG (:reason)) AND (:any_state OR COALESCE(o.state, {open_state}) AMONG (:states))
ORDER BY t.id DESC LIMIT :limit

-- name: matches
-- The filters of a list that only need the task itself: names, queues, a label, a text.
(:any_task OR t.task AMONG (:task)) AND (:any_queue OR t.queue AMONG (:queue)) AND (:any_label OR {has_label}) AND (:any_text OR {says})

-- name: open_state
-- The state of an unfinished task, from its queue row.
CASE WHEN q.worker IS NOT NULL THEN 'running' WHEN q.reason IN ('queued', 'delayed', 'retrying', 'cancelling', 'quota') THEN 'pending' ELSE 'waiting' END

-- name: list_open
-- Unfinished tasks, read through the queue, so that finished tasks are never read.
{columns}
{from_open}

-- name: ids_open
-- Their ids and options alone, to count them and to look for labels.
SELECT t.id, t.options
{from_open}

-- name: from_open
-- The tables and filters of both.
FROM onward_queue q
JOIN onward_tasks t ON t.id = q.task_id
LEFT JOIN onward_outcomes o ON o.task_id = q.task_id
WHERE q.task_id < :before AND q.task_id >= :since AND {matches} AND (:of_all OR COALESCE(t.tenant, '') = :tenant)
  AND (:any_reason OR q.reason AMONG (:reason)) AND (:any_state OR {open_state} AMONG (:states))
ORDER BY q.task_id DESC LIMIT :limit

-- name: list_ended
-- Finished tasks of one state.
{columns}
{from_ended}

-- name: ids_ended
-- Their ids and options alone, to count them and to look for labels.
SELECT t.id, t.options
{from_ended}

-- name: from_ended
-- The tables and filters of both.
FROM onward_outcomes o
JOIN onward_tasks t ON t.id = o.task_id
{join_queue_row}
WHERE o.state = :state AND o.task_id < :before AND o.task_id >= :since AND {matches} AND (:of_all OR COALESCE(t.tenant, '') = :tenant)
ORDER BY o.task_id DESC LIMIT :limit

-- name: ahead
-- For each of these tasks, how many tasks that could be started now come before it, counted up to a number within its priority and above
-- it. (The ORDER BY makes the planner walk the index and stop there.)
SELECT q.task_id,
       (SELECT count(*) FROM (SELECT 1 FROM onward_queue h WHERE h.queue = q.queue AND h.worker IS NULL AND h.due_at IS NULL AND h.priority > q.priority
                              ORDER BY h.priority DESC, COALESCE(h.turn, h.position) LIMIT :most) a)
     + (SELECT count(*) FROM (SELECT 1 FROM onward_queue h WHERE h.queue = q.queue AND h.worker IS NULL AND h.due_at IS NULL AND h.priority = q.priority
                                AND COALESCE(h.turn, h.position) < COALESCE(q.turn, q.position) ORDER BY COALESCE(h.turn, h.position) LIMIT :most) b) AS ahead
FROM onward_queue q WHERE q.task_id AMONG (:ids) AND q.worker IS NULL AND q.due_at IS NULL

-- name: lately
-- The last records of unfinished tasks. Records that only a replay reads, and long ones, come without their data.
SELECT j.task_id, j.seq, j.shift, j.kind, j.key,
       CASE WHEN j.kind IN ('sleep.started', 'signal.awaited', 'question.asked', 'approval.requested', 'child.awaited', 'lock.awaited', 'step.waits', 'effect.in_doubt',
                            'message.received', 'task.retry', 'step.retry', 'task.parked', 'task.quarantined', 'shift.ended') AND length(j.data) <= :most
            THEN j.data ELSE substr(j.data, 1, 0) END AS data, j.at
FROM onward_queue q JOIN onward_journal j ON j.task_id = q.task_id
  AND j.seq > (SELECT h.seq FROM onward_journal h WHERE h.task_id = q.task_id ORDER BY h.seq DESC LIMIT 1) - :back
WHERE q.task_id AMONG (:ids) AND j.kind <> 'progress'
ORDER BY j.task_id, j.seq

-- name: last_records
-- The last records of tasks that have ended.
SELECT j.task_id, j.seq, j.shift, j.kind, j.key, j.data, j.at FROM onward_outcomes o JOIN onward_journal j ON j.task_id = o.task_id AND j.seq = o.seq
WHERE o.task_id AMONG (:ids)

-- name: model_calls
-- The steps of some tasks that may have called a model, by the keys of the records.
SELECT task_id, seq, shift, kind, key, data, at FROM onward_journal
WHERE task_id AMONG (:ids) AND kind = 'step.completed' AND key LIKE '%model%' ORDER BY task_id, seq

-- name: floor
-- The task that has so many others between it and an id: the bound of a limited search.
SELECT t.id FROM onward_tasks t WHERE t.id < :before AND (:of_all OR COALESCE(t.tenant, '') = :tenant) ORDER BY id DESC LIMIT 1 OFFSET :count

-- name: journal
-- The records of one task after a number, which may be larger than that of any record.
SELECT seq, shift, kind, key, data, at FROM onward_journal WHERE task_id = :id AND seq > CAST(:after AS bigint) AND kind <> 'pruned' ORDER BY seq LIMIT :limit

-- name: last_journal
-- The records of one task from its last checkpoint on.
SELECT seq, shift, kind, key, data, at FROM onward_journal WHERE task_id = :id AND kind <> 'pruned'
  AND seq >= COALESCE((SELECT c.seq FROM onward_journal c WHERE c.task_id = :id AND c.kind = 'checkpoint.saved' ORDER BY c.seq DESC LIMIT 1), 0)
ORDER BY seq LIMIT :limit

-- name: lead_steps
-- How many steps a task had completed by a number.
SELECT count(*) FROM onward_journal WHERE task_id = :id AND seq <= :seq AND kind = 'step.completed'

-- name: lead_last
-- The last progress record of a task up to a number.
SELECT seq, shift, kind, key, data, at FROM onward_journal WHERE task_id = :id AND seq <= :seq AND kind = 'progress' ORDER BY seq DESC LIMIT 1

-- name: lead_lately
-- The progress records of a task up to a number, since its shift began or ended, a step ended, or the task was forked or resumed.
SELECT seq, shift, kind, key, data, at FROM onward_journal WHERE task_id = :id AND seq <= :seq AND kind = 'progress'
  AND seq > COALESCE((SELECT b.seq FROM onward_journal b WHERE b.task_id = :id AND b.seq <= :seq
                      AND b.kind IN ('shift.started', 'shift.ended', 'step.completed', 'step.failed', 'effect.in_doubt',
                                     'task.forked', 'task.resumed', 'task.retry', 'task.parked', 'task.quarantined',
                                     'cancel.requested', 'deadline.passed', 'task.completed', 'task.failed', 'task.cancelled') ORDER BY b.seq DESC LIMIT 1), 0)
ORDER BY seq

-- name: oldest_kept
-- The oldest checkpoint that is kept: the last but so many, or an older one that was saved after a time.
SELECT c.seq, c.shift, c.kind, c.key, c.data, c.at FROM onward_journal c,
    (SELECT n.seq FROM onward_journal n WHERE n.task_id = :id AND n.kind = 'checkpoint.saved' ORDER BY n.seq DESC LIMIT 1 OFFSET :behind) AS last
WHERE c.task_id = :id AND c.kind = 'checkpoint.saved' AND (c.seq = last.seq OR (c.seq < last.seq AND c.at > :before))
ORDER BY c.seq LIMIT 1

-- name: drop_data
-- Delete the data of records that a kept checkpoint stands for: kinds that only a replay reads. A step that started a child keeps its
-- data, which names the child.
UPDATE onward_journal SET data = :data
WHERE task_id = :id AND seq < :seq AND at <= :before AND substr(data, 1, :size) <> :mark
  AND kind IN ('step.completed', 'state.patched', 'progress', 'checkpoint.saved') AND key NOT LIKE '%submit %'

-- name: prunable
-- Ended tasks without a parent, in the order of their ids. The caller bounds the ids: younger tasks cannot be old enough. Tasks of
-- intakes stay for a time of their own: their keys are the memory of messages that were received.
SELECT t.id FROM onward_tasks t JOIN onward_outcomes o ON o.task_id = t.id
WHERE t.id > :after AND t.id < :until AND t.parent IS NULL AND o.finished_at <= onward_now() - :age
  AND (t.key IS NULL OR t.key NOT LIKE :intake_keys OR o.finished_at <= onward_now() - :intake_age) ORDER BY t.id LIMIT :limit

-- name: parents
-- Which of these tasks exist, and their parents.
SELECT id, parent FROM onward_tasks WHERE id AMONG (:ids)

-- name: trees
-- All tasks of some trees: the root of each, whether it has ended, whether that was long enough ago, and whether an event of it is still
-- to be delivered.
WITH RECURSIVE tree(id, root) AS (
    SELECT id, id FROM onward_tasks WHERE id AMONG (:ids) AND parent IS NULL
    UNION ALL SELECT t.id, tree.root FROM tree JOIN onward_tasks t ON t.parent = tree.id
)
SELECT tree.id, tree.root,
       (SELECT o.seq FROM onward_outcomes o WHERE o.task_id = tree.id LIMIT 1) IS NOT NULL
           AND (SELECT q.attempt FROM onward_queue q WHERE q.task_id = tree.id LIMIT 1) IS NULL AS ended,
       COALESCE((SELECT o.finished_at <= onward_now() - :age FROM onward_outcomes o WHERE o.task_id = tree.id LIMIT 1), FALSE) AS old,
       (SELECT b.seq FROM onward_outbox b WHERE b.task_id = tree.id AND b.state = 'pending' LIMIT 1) IS NOT NULL AS owes
FROM tree ORDER BY tree.id

-- name: prune_tasks
-- Delete the tasks that are pruned.
DELETE FROM onward_tasks WHERE id AMONG (:ids)

-- name: prune_outcomes
-- Delete their outcomes.
DELETE FROM onward_outcomes WHERE task_id AMONG (:ids)

-- name: prune_inbox
-- Delete their messages.
DELETE FROM onward_inbox WHERE task_id AMONG (:ids)

-- name: prune_askers
-- Delete who resumed them, or sent them something.
DELETE FROM onward_askers WHERE task_id AMONG (:ids)

-- name: prune_contents
-- Delete their contents.
DELETE FROM onward_contents WHERE task_id AMONG (:ids)

-- name: prune_purses
-- Delete their ledgers.
DELETE FROM onward_purses WHERE task_id AMONG (:ids)

-- name: prune_outbox
-- Delete their rows of the outbox.
DELETE FROM onward_outbox WHERE task_id AMONG (:ids)

-- name: prune_subscriptions
-- Delete their own subscriptions.
DELETE FROM onward_subscriptions WHERE task_id AMONG (:ids)

-- name: fence_off
-- Mark the records of pruned tasks that stay as a fence: a number that another actor took from a shift, which may not know it, and the
-- last record of that shift, whose answer it may not have got.
UPDATE onward_journal SET kind = 'pruned', key = '', data = :nothing WHERE task_id AMONG (:ids)
  AND (EXISTS (SELECT 1 FROM onward_journal b WHERE b.task_id = onward_journal.task_id AND b.seq = onward_journal.seq - 1
               AND b.shift > 0 AND b.shift <> onward_journal.shift)
       OR shift > 0 AND EXISTS (SELECT 1 FROM onward_journal n WHERE n.task_id = onward_journal.task_id AND n.seq = onward_journal.seq + 1
                                AND n.shift <> onward_journal.shift))

-- name: prune_journal
-- Delete their other records.
DELETE FROM onward_journal WHERE task_id AMONG (:ids) AND kind <> 'pruned'

-- name: fork_gaps
-- A record of a fork whose data was deleted, with no whole checkpoint after it: another worker trimmed the origin while it was copied.
SELECT j.seq FROM onward_journal j WHERE j.task_id = :id AND substr(j.data, 1, :size) = :mark
  AND NOT EXISTS (SELECT 1 FROM onward_journal c WHERE c.task_id = :id AND c.kind = 'checkpoint.saved' AND c.seq > j.seq AND substr(c.data, 1, :size) <> :mark)
LIMIT 1

-- name: taker
-- The record that has the number.
SELECT shift, kind, at FROM onward_journal WHERE task_id = :id AND seq = :seq

-- name: head
-- The last record of a task.
SELECT seq, kind FROM onward_journal WHERE task_id = :id ORDER BY seq DESC LIMIT 1

-- name: outsider_record
-- Append a record that belongs to no shift. The primary key refuses it when the journal has moved on.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, :seq, 0, :kind, '', :data, onward_now())

-- name: outsider_end
-- The outcome that goes with the last record of an outsider.
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at) VALUES (:id, :state, :attempt, :seq, onward_now())

-- name: drop_queue
-- Delete the queue row of a task that has ended.
DELETE FROM onward_queue WHERE task_id = :id

-- name: drop_outcome
-- Delete the outcome of a failed task that is reopened.
DELETE FROM onward_outcomes WHERE task_id = :id AND state = 'failed'

-- name: reopen
-- Its new queue row, at the end of its priority, with the number of its messages.
INSERT INTO onward_queue (task_id, queue, task, priority, reason, parent, grp, turn_group, inbox)
SELECT id, queue, task, priority, 'queued', parent, grp, tenant, (SELECT COALESCE(max(number), 0) FROM onward_inbox WHERE task_id = :id) FROM onward_tasks WHERE id = :id

-- name: saga_state
-- What a cancel has to know of a journal: how many sagas are open, whether a cancel is requested already, and how many effects in doubt
-- a person wants undone that are not undone yet.
SELECT COALESCE(sum(CASE kind WHEN 'saga.started' THEN 1 WHEN 'saga.completed' THEN -1 WHEN 'saga.undone' THEN -1 ELSE 0 END), 0) AS sagas,
       COALESCE(max(CASE kind WHEN 'cancel.requested' THEN seq ELSE 0 END), 0) - COALESCE(max(CASE kind WHEN 'task.resumed' THEN seq ELSE 0 END), 0) AS cancelling,
       (SELECT count(*) FROM onward_inbox i WHERE i.task_id = :id AND i.kind = 'resolve' AND i.name = 'undo' AND NOT EXISTS (
            SELECT 1 FROM onward_journal d WHERE d.task_id = :id AND d.seq > i.ref AND d.kind = 'step.failed'
              AND d.key = (SELECT a.key FROM onward_journal a WHERE a.task_id = :id AND a.seq = i.ref))) AS undos
FROM onward_journal WHERE task_id = :id

-- name: cancelling
-- Make a task ready for the shift that undoes its finished steps; a pause ends.
UPDATE onward_queue SET worker = NULL, due_at = NULL, reason = 'cancelling', crashes = 0, paused = (1 = 0) WHERE task_id = :id

-- name: parent
-- The parent of a task.
SELECT parent FROM onward_tasks WHERE id = :id

-- name: children
-- The unfinished children of a task.
SELECT task_id FROM onward_queue WHERE parent = :id ORDER BY task_id

-- name: unfinished_below
-- The unfinished children of these tasks, and their reasons.
SELECT task_id, reason FROM onward_queue WHERE parent AMONG (:parents) ORDER BY task_id LIMIT :most

-- name: orphans
-- Unfinished tasks whose parent was cancelled: the caller that cancelled the tree did not reach them. The query hops from parent to
-- parent through the index, some of them at a time from an id on: thousands of children cost one hop. The last row names the parent from
-- which to go on, where there may be more.
WITH RECURSIVE parents(id, number) AS (
    SELECT * FROM (SELECT parent, 1 AS number FROM onward_queue WHERE parent IS NOT NULL AND parent > :after ORDER BY parent LIMIT 1) AS head
    UNION ALL
    SELECT (SELECT q.parent FROM onward_queue q WHERE q.parent IS NOT NULL AND q.parent > parents.id ORDER BY q.parent LIMIT 1), number + 1
    FROM parents WHERE parents.id IS NOT NULL AND number < :most
)
SELECT * FROM (
    SELECT q.task_id AS task_id, NULL AS parent FROM parents p CROSS JOIN onward_queue q
    WHERE q.parent = p.id AND q.parent IS NOT NULL AND EXISTS (SELECT 1 FROM onward_outcomes o WHERE o.task_id = p.id AND o.state = 'cancelled') ORDER BY q.task_id LIMIT 500) AS orphans
UNION ALL
SELECT NULL, id FROM parents WHERE number = :most AND id IS NOT NULL

-- name: bump
-- Count a new message, and wake the task when it waits for messages.
UPDATE onward_queue SET inbox = inbox + 1,
    due_at = CASE WHEN worker IS NULL AND reason IN ('signal', 'question', 'approval', 'child', 'in_doubt', 'budget', 'lock') THEN NULL ELSE due_at END,
    reason = CASE WHEN worker IS NULL AND reason IN ('signal', 'question', 'approval', 'child', 'in_doubt', 'budget', 'lock') THEN 'queued' ELSE reason END
WHERE task_id = :id RETURNING inbox

-- name: bump_quietly
-- Count a new message for an agent, without waking the task.
UPDATE onward_queue SET inbox = inbox + 1 WHERE task_id = :id RETURNING inbox

-- name: inbox_of
-- How many messages an unfinished task has.
SELECT inbox FROM onward_queue WHERE task_id = :id

-- name: post
-- Store the message.
INSERT INTO onward_inbox (task_id, number, id, kind, name, ref, data, at) VALUES (:id, :number, :message, :kind, :name, :ref, :data, onward_now())

-- name: next_number
-- The number of the next message to a task that has ended.
SELECT COALESCE(max(number), 0) + 1 AS number FROM onward_inbox WHERE task_id = :id

-- name: posted
-- The message that counts instead of a new one: two lookups by an index each. An OR would read the whole inbox.
SELECT id, kind, name, ref, data, number FROM onward_inbox WHERE task_id = :id AND number IN (
    SELECT a.number FROM onward_inbox a WHERE a.task_id = :id AND a.id = :message
    UNION ALL SELECT b.number FROM onward_inbox b WHERE b.task_id = :id AND b.ref = :ref) ORDER BY number LIMIT 1

-- name: inbox
-- Messages after a number, at most so many.
SELECT id, kind, name, ref, data, number FROM onward_inbox WHERE task_id = :id AND number > :after ORDER BY number LIMIT :limit

-- name: reply
-- The message about one record.
SELECT id, kind, name, ref, data, number FROM onward_inbox WHERE task_id = :id AND ref = CAST(:seq AS bigint) ORDER BY number LIMIT 1

-- name: replied
-- Which of these records of a task have a message about them.
SELECT ref FROM onward_inbox WHERE task_id = :id AND ref AMONG (:seqs)

-- name: votes
-- The votes on these approvals, in their order. (The tasks let the planner use an index.)
SELECT task_id, id, name, data, at {votes_on} ORDER BY task_id, number

-- name: vote_sizes
-- The bytes of the votes on each of these approvals.
SELECT task_id || '.' || name AS approval, sum(length(data)) AS size {votes_on} GROUP BY task_id || '.' || name

-- name: votes_on
-- The votes on some approvals, given by their ids.
FROM onward_inbox WHERE kind = 'vote' AND task_id AMONG (:tasks) AND task_id || '.' || name AMONG (:ids)

-- name: add_asker
-- A principal that resumed a task, sent it something, or submitted it again; unless the task has as many as it may have.
INSERT INTO onward_askers (task_id, asker, at)
SELECT t.id, :asker, onward_now() FROM onward_tasks t WHERE t.id = :id AND (SELECT count(*) FROM onward_askers WHERE task_id = :id) < :most
ON CONFLICT DO NOTHING

-- name: add_asker_through
-- The same over a connection of another program, which may not have onward_now().
INSERT INTO onward_askers (task_id, asker, at)
SELECT t.id, :asker, :now FROM onward_tasks t WHERE t.id = :id AND (SELECT count(*) FROM onward_askers WHERE task_id = :id) < :most
ON CONFLICT DO NOTHING

-- name: asker_left_out
-- Whether a principal is not among the askers of a task that has as many as it may have.
SELECT 1 FROM onward_tasks t WHERE t.id = :id AND (SELECT count(*) FROM onward_askers WHERE task_id = :id) >= :most
  AND NOT EXISTS (SELECT 1 FROM onward_askers a WHERE a.task_id = :id AND a.asker = :asker)

-- name: askers
-- The principals that resumed one of the tasks of a tree, sent it something, or submitted it again.
WITH RECURSIVE tree(id) AS (
    SELECT id FROM onward_tasks WHERE id = :id
    UNION ALL SELECT t.id FROM tree JOIN onward_tasks t ON t.parent = tree.id
)
SELECT DISTINCT a.asker FROM tree JOIN onward_askers a ON a.task_id = tree.id

-- name: asked
-- Tasks that asked a person, from an id on, in the order of their ids: so many, and for each whether the reader may see what it asks.
{asked_tasks}
SELECT h.ask, (SELECT q.attempt FROM onward_queue q WHERE q.task_id = h.ask LIMIT 1) IS NOT NULL
              AND (SELECT t.id FROM onward_tasks t WHERE t.id = h.ask AND (:of_all OR COALESCE(t.tenant, '') = :tenant) LIMIT 1) IS NOT NULL AS shown
FROM (SELECT hop.ask FROM hop WHERE hop.ask IS NOT NULL LIMIT :hops) h

-- name: asks
-- Open questions and approvals of these tasks, behind one of them. Of long data only the beginning is read.
{ask_columns}, CASE WHEN length(j.data) <= :small THEN j.data ELSE substr(j.data, 1, :head) END AS data, length(j.data) AS size
FROM onward_journal j JOIN onward_queue q ON q.task_id = j.task_id JOIN onward_tasks t ON t.id = j.task_id
WHERE j.kind IN ('question.asked', 'approval.requested') AND (:any_kind OR j.kind = :kind) AND j.task_id AMONG (:ids)
  AND (j.task_id > :after OR j.seq > CAST(:seq AS bigint)) AND {still_asked}
ORDER BY j.task_id, j.seq LIMIT :limit

-- name: ask_data
-- All data of some questions and approvals, given by their ids.
SELECT j.task_id || '.' || j.seq AS id, j.data FROM onward_journal j
WHERE j.kind IN ('question.asked', 'approval.requested') AND j.task_id AMONG (:tasks) AND j.task_id || '.' || j.seq AMONG (:ids)

-- name: open_ask
-- The time now, when this question or approval is open.
SELECT onward_now() FROM onward_journal j JOIN onward_queue q ON q.task_id = j.task_id
WHERE j.kind IN ('question.asked', 'approval.requested') AND j.task_id = :id AND j.seq = CAST(:seq AS bigint) AND {still_asked}

-- name: ask_size
-- The bytes of a question or an approval.
SELECT length(data) FROM onward_journal WHERE task_id = :id AND seq = CAST(:seq AS bigint) AND kind IN ('question.asked', 'approval.requested')

-- name: ask_columns
-- The columns of an open question or approval, without its data.
SELECT j.task_id, j.seq, j.kind, j.key, j.at, t.task, onward_now()

-- name: asked_tasks
-- Tasks from an id on that ever asked a person; among them are all unfinished ones. The query hops through two indexes in turns: from an
-- unfinished task to the next one that asked, and from there to the next unfinished one. So it costs as much as the shorter of both, and
-- skips tasks that asked and have ended.
WITH RECURSIVE hop(ask) AS (
    SELECT (SELECT j.task_id FROM onward_journal j WHERE j.kind IN ('question.asked', 'approval.requested')
              AND j.task_id >= COALESCE((SELECT q.task_id FROM onward_queue q WHERE q.task_id >= :from_id ORDER BY q.task_id LIMIT 1), '~')
            ORDER BY j.task_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.task_id FROM onward_journal j WHERE j.kind IN ('question.asked', 'approval.requested')
              AND j.task_id >= COALESCE((SELECT q.task_id FROM onward_queue q WHERE q.task_id > hop.ask ORDER BY q.task_id LIMIT 1), '~')
            ORDER BY j.task_id LIMIT 1)
    FROM hop WHERE hop.ask IS NOT NULL
)

-- name: open_asks
-- Their questions and approvals without an answer. (CROSS JOIN makes SQLite keep this order.)
FROM hop CROSS JOIN onward_journal j CROSS JOIN onward_tasks t
WHERE j.task_id = hop.ask AND t.id = j.task_id AND (SELECT q.attempt FROM onward_queue q WHERE q.task_id = hop.ask LIMIT 1) IS NOT NULL
  AND j.kind IN ('question.asked', 'approval.requested') AND {still_asked}

-- name: still_asked
-- Whether a question or an approval of an unfinished task is open. It is not when it has an answer; when it was asked inside a saga that
-- was given up since (its path is the key of the saga without the brackets); or before a cancel or a deadline after which the task was
-- not resumed.
NOT EXISTS (SELECT 1 FROM onward_inbox i WHERE i.task_id = j.task_id AND i.ref = j.seq)
  AND NOT EXISTS (
    SELECT 1 FROM (SELECT u.kind, u.seq, CASE WHEN u.key LIKE '[%' THEN replace(u.key, ']', '/') ELSE '[' || u.key END AS path
                   FROM onward_journal u WHERE u.task_id = j.task_id AND u.seq > j.seq AND u.kind IN ('cancel.requested', 'deadline.passed', 'saga.undoing')) g
    WHERE CASE WHEN g.kind = 'saga.undoing'
          THEN substr(j.key, 1, length(g.path)) = g.path AND substr(j.key, length(g.path) + 1, 1) IN (']', '/', '@')
          ELSE NOT EXISTS (SELECT 1 FROM onward_journal a WHERE a.task_id = j.task_id AND a.seq > g.seq AND a.kind = 'task.resumed') END)

-- name: doubts
-- Tasks that wait because of an effect in doubt.
SELECT task_id, task FROM onward_queue WHERE reason = 'in_doubt' AND task_id > :after ORDER BY task_id LIMIT :limit


-- name: fork_task
-- A task like another, of the same tenant and group, with its own input and options. It returns nothing where the id is taken.
INSERT INTO onward_tasks (id, task, queue, priority, created_at, fingerprint, input, options, tenant, grp)
SELECT :id, task, queue, priority, onward_now(), '', :input, COALESCE(:options, options), tenant, grp FROM onward_tasks WHERE id = :origin
ON CONFLICT DO NOTHING RETURNING id

-- name: fork_journal
-- Copy the first records of the origin.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at)
SELECT :id, seq, shift, kind, key, data, at FROM onward_journal WHERE task_id = :origin AND seq <= :at

-- name: fork_contents
-- Copy the contents that its records refer to.
INSERT INTO onward_contents (task_id, id, data) SELECT :id, id, data FROM onward_contents WHERE task_id = :origin

-- name: fork_inbox
-- Copy the messages that those records refer to: a question stays answered, and no number is used twice.
INSERT INTO onward_inbox (task_id, number, ref, id, kind, name, data, at)
SELECT :id, number, ref, id, kind, name, data, at FROM onward_inbox WHERE task_id = :origin AND number <= :inbox

-- name: journal_slice
-- Copied records, to be sealed anew.
SELECT seq, kind, key, data FROM onward_journal WHERE task_id = :id AND seq > :after ORDER BY seq LIMIT :limit

-- name: reseal_record
-- The payload of a record, sealed anew.
UPDATE onward_journal SET data = :data WHERE task_id = :id AND seq = :place

-- name: inbox_slice
-- Copied messages, to be sealed anew.
SELECT number, id, kind, name, ref, data FROM onward_inbox WHERE task_id = :id AND number > :after ORDER BY number LIMIT :limit

-- name: reseal_message
-- The payload of a message, sealed anew.
UPDATE onward_inbox SET data = :data WHERE task_id = :id AND number = :place

-- name: contents_slice
-- Copied contents, to be sealed anew.
SELECT id, data FROM onward_contents WHERE task_id = :id AND id > :after ORDER BY id LIMIT :limit

-- name: reseal_content
-- A content, sealed anew.
UPDATE onward_contents SET data = :data WHERE task_id = :id AND id = :place

-- name: fork_queue
-- Make the fork ready.
INSERT INTO onward_queue (task_id, queue, task, priority, reason, inbox, grp, turn_group)
SELECT id, queue, task, priority, 'queued', :inbox, grp, tenant FROM onward_tasks WHERE id = :id

-- name: prioritize
-- Change the priority of an unfinished task.
UPDATE onward_queue SET priority = :priority WHERE task_id = :id RETURNING task_id

-- name: depth
-- How many tasks of a queue wait to be started (tasks that sleep by their own choice are not counted), and how many a second the workers
-- finish.
SELECT (SELECT count(*) FROM onward_queue WHERE queue = :queue AND worker IS NULL AND due_at IS NULL)
     + (SELECT count(*) FROM onward_queue WHERE due_at IS NOT NULL AND queue = :queue AND reason IN ('delayed', 'quota')) AS waiting,
       (SELECT COALESCE(sum(rate), 0.0) FROM onward_workers) AS rate

-- name: add_minute
-- Add what a worker did in a minute, with the number of tasks that wait to be started now, counted up to a number.
INSERT INTO onward_minutes (minute, completed, failed, cancelled, seconds, slowest, cost, waiting)
VALUES (:minute, :completed, :failed, :cancelled, :seconds, :slowest, :cost,
        (SELECT count(*) FROM (SELECT 1 FROM onward_queue WHERE worker IS NULL AND due_at IS NULL LIMIT :most) AS waiting))
ON CONFLICT (minute) DO UPDATE SET
  completed = onward_minutes.completed + excluded.completed, failed = onward_minutes.failed + excluded.failed,
  cancelled = onward_minutes.cancelled + excluded.cancelled, seconds = onward_minutes.seconds + excluded.seconds,
  slowest = CASE WHEN excluded.slowest > onward_minutes.slowest THEN excluded.slowest ELSE onward_minutes.slowest END,
  cost = onward_minutes.cost + excluded.cost,
  waiting = CASE WHEN excluded.waiting > onward_minutes.waiting THEN excluded.waiting ELSE onward_minutes.waiting END

-- name: drop_minutes
-- Drop the minutes before this one.
DELETE FROM onward_minutes WHERE minute < :before

-- name: minutes
-- The minutes from this one on.
SELECT minute, completed, failed, cancelled, seconds, slowest, cost, waiting FROM onward_minutes
WHERE minute >= :since ORDER BY minute LIMIT :most

-- name: unfinished
-- Unfinished tasks by queue and reason, of the queues after a name, and how long ago the oldest of each was submitted. (Ids sort by
-- time, so the lowest id is the oldest.)
SELECT g.queue, g.reason, g.tasks, onward_now() - t.created_at AS oldest
FROM (SELECT queue, reason, count(*) AS tasks, min(task_id) AS first FROM onward_queue WHERE queue {by_bytes} > :after
      GROUP BY queue, reason ORDER BY queue {by_bytes}, reason {by_bytes} LIMIT :limit) g
JOIN onward_tasks t ON t.id = g.first
ORDER BY g.queue {by_bytes}, g.reason {by_bytes}

-- name: unfinished_of
-- The same, of one tenant, or of tasks without a tenant.
SELECT g.queue, g.reason, g.tasks, onward_now() - t.created_at AS oldest
FROM (SELECT q.queue, q.reason, count(*) AS tasks, min(q.task_id) AS first
      FROM onward_queue q JOIN onward_tasks o ON o.id = q.task_id
      WHERE COALESCE(o.tenant, '') = :tenant AND q.queue {by_bytes} > :after
      GROUP BY q.queue, q.reason ORDER BY q.queue {by_bytes}, q.reason {by_bytes} LIMIT :limit) g
JOIN onward_tasks t ON t.id = g.first
ORDER BY g.queue {by_bytes}, g.reason {by_bytes}

-- name: unfinished_in
-- The same, of one queue.
SELECT g.queue, g.reason, g.tasks, onward_now() - t.created_at AS oldest
FROM (SELECT queue, reason, count(*) AS tasks, min(task_id) AS first FROM onward_queue WHERE queue = :queue GROUP BY queue, reason) g
JOIN onward_tasks t ON t.id = g.first
ORDER BY g.reason {by_bytes}

-- name: unfinished_largest
-- The same, of the queues with the most tasks; those of all other queues are added up under the name `other`.
WITH counted AS (SELECT queue, reason, count(*) AS tasks, min(task_id) AS first FROM onward_queue GROUP BY queue, reason),
largest AS (SELECT queue FROM counted GROUP BY queue ORDER BY sum(tasks) DESC, queue {by_bytes} LIMIT :queues)
SELECT g.queue, g.reason, g.tasks, onward_now() - t.created_at AS oldest
FROM (SELECT CASE WHEN queue IN (SELECT queue FROM largest) THEN queue ELSE CAST(:other AS text) END AS queue, reason,
             CAST(sum(tasks) AS bigint) AS tasks, min(first) AS first
      FROM counted GROUP BY 1, 2) g
JOIN onward_tasks t ON t.id = g.first
ORDER BY g.queue {by_bytes}, g.reason {by_bytes}

-- name: unfinished_reasons
-- How many unfinished tasks there are, by reason.
SELECT reason, count(*) AS tasks FROM onward_queue GROUP BY reason

-- name: unfinished_reasons_of
-- The same, of one tenant, or of tasks without a tenant.
SELECT q.reason, count(*) AS tasks FROM onward_queue q JOIN onward_tasks o ON o.id = q.task_id
WHERE COALESCE(o.tenant, '') = :tenant GROUP BY q.reason

-- name: held_by
-- How many tasks each worker holds.
SELECT worker, count(*) AS several FROM onward_queue WHERE worker IS NOT NULL GROUP BY worker

-- name: latest_shifts
-- Of a page of the unfinished tasks, by id: how many there are, by reason and by the data of the `shift.started` record of their latest
-- shift. A shift that only handed the task back, or parked it, does not count where there was another one. The data is NULL for a task
-- that was never started.
SELECT data, reason, count(*) AS several, max(task_id) AS last FROM (
    SELECT q.task_id, q.reason, COALESCE(
        (SELECT s.data FROM onward_journal j JOIN onward_journal s ON s.task_id = j.task_id AND s.seq = j.shift
         WHERE j.task_id = q.task_id AND j.shift > 0 AND j.kind NOT IN ('shift.started', 'shift.ended', 'message.received', 'task.parked')
         ORDER BY j.seq DESC LIMIT 1),
        (SELECT j.data FROM onward_journal j WHERE j.task_id = q.task_id AND j.kind = 'shift.started' ORDER BY j.seq DESC LIMIT 1)) AS data
    FROM onward_queue q WHERE q.task_id > :after ORDER BY q.task_id LIMIT :limit) p
GROUP BY data, reason

-- name: ended
-- How many tasks have ended, by state, counted up to a number.
SELECT (SELECT count(*) FROM (SELECT 1 FROM onward_outcomes LIMIT :most) a) AS ended,
       (SELECT count(*) FROM (SELECT 1 FROM onward_outcomes WHERE state = 'failed' AND state <> 'completed' LIMIT :most) f) AS failed,
       (SELECT count(*) FROM (SELECT 1 FROM onward_outcomes WHERE state = 'cancelled' AND state <> 'completed' LIMIT :most) c) AS cancelled

-- name: pause_queue
-- Let no worker start a task of this queue.
INSERT INTO onward_limits (kind, name, concurrency) VALUES ('paused', :name, 0) ON CONFLICT DO NOTHING

-- name: unpause_queue
-- Let workers start tasks of this queue again.
DELETE FROM onward_limits WHERE kind = 'paused' AND name = :name

-- name: limits
-- All limits; there are few.
SELECT kind, name, concurrency, pace, burst FROM onward_limits

-- name: behind_queue
-- How many tasks of a queue with a limit are held: each of them has a gate.
SELECT count(*) AS held FROM onward_queue WHERE gate IS NOT NULL AND worker IS NOT NULL AND queue = :queue

-- name: turn
-- The turn of the next task of a group: the turn that is served now, or a hundred places behind the last one that waits. NULL when no
-- task waits: then its own place is right. The tasks of a tenant go by their `turn_group`, others by their group.
SELECT MAX(t) AS turn FROM (
    SELECT * FROM (SELECT COALESCE(turn, position) AS t FROM onward_queue WHERE queue = :queue AND priority = :priority AND worker IS NULL AND due_at IS NULL
                   ORDER BY COALESCE(turn, position) LIMIT 1) AS head
    UNION ALL
    SELECT * FROM (SELECT COALESCE(turn, position) + 100 AS t FROM onward_queue WHERE queue = :queue AND grp = :group AND priority = :priority AND worker IS NULL
                   AND grp IS NOT NULL AND CAST(:turn_group AS text) IS NULL ORDER BY COALESCE(turn, position) DESC LIMIT 1) AS last
    UNION ALL
    SELECT * FROM (SELECT COALESCE(turn, position) + 100 AS t FROM onward_queue WHERE turn_group = :turn_group AND turn_group IS NOT NULL AND queue = :queue
                   AND priority = :priority AND worker IS NULL ORDER BY COALESCE(turn, position) DESC LIMIT 1) AS last_of_tenant
) AS all_of_them

-- name: old_buckets
-- Delete buckets that have been full for an hour: they are the same as missing ones.
DELETE FROM onward_buckets WHERE full_at < onward_now() - 3600

-- name: offered
-- Registered handlers after a name, up to a number of bytes; always the first.
SELECT p.name, p.schema FROM (
    SELECT s.*, sum(length(s.schema)) OVER (ORDER BY s.name) - length(s.schema) AS before FROM (
        SELECT name, schema FROM onward_handlers WHERE name > :after ORDER BY name LIMIT :limit
    ) AS s
) AS p WHERE p.before < CAST(:most AS bigint) ORDER BY p.name

-- name: offered_of
-- The registered handlers of these names.
SELECT name, schema FROM onward_handlers WHERE name AMONG (:names)

-- name: schedules
-- Schedules after a name, up to a number of bytes; always the first.
SELECT p.name, p.task, p.input, p.options, p.queue, p.priority, p.cron, p.every, p.timezone, p.missed, p.next_at, p.last_at, p.paused, p.mark FROM (
    SELECT s.*, sum(length(s.input) + length(s.options)) OVER (ORDER BY s.name) - length(s.input) - length(s.options) AS before FROM (
        SELECT * FROM onward_schedules WHERE name > :after ORDER BY name LIMIT :limit
    ) AS s
) AS p WHERE p.before < CAST(:most AS bigint) ORDER BY p.name

-- name: schedule
-- One schedule by its name.
SELECT name, task, input, options, queue, priority, cron, every, timezone, missed, next_at, last_at, paused, mark
FROM onward_schedules WHERE name = :name

-- name: soonest
-- The schedules that tick next.
SELECT name, task, input, options, queue, priority, cron, every, timezone, missed, next_at, last_at, paused, mark
FROM onward_schedules WHERE next_at IS NOT NULL ORDER BY next_at, name LIMIT :limit

-- name: schedule_add
-- Add a schedule; it returns nothing when there is one of that name.
INSERT INTO onward_schedules (name, task, input, options, queue, priority, cron, every, timezone, missed, next_at, last_at, paused, mark)
VALUES (:name, :task, :input, :options, :queue, :priority, :cron, :every, :timezone, :missed, :next_at, :last_at, :paused, :mark)
ON CONFLICT DO NOTHING RETURNING name

-- name: schedule_turn
-- Change a schedule that still has this mark; it returns nothing when another caller was quicker.
UPDATE onward_schedules SET task = :task, input = :input, options = :options, queue = :queue, priority = :priority, cron = :cron,
    every = :every, timezone = :timezone, missed = :missed, next_at = :next_at, last_at = :last_at, paused = :paused, mark = :mark
WHERE name = :name AND mark = :seen RETURNING name

-- name: schedule_drop
-- Remove a schedule; its tasks stay.
DELETE FROM onward_schedules WHERE name = :name AND mark = :seen RETURNING name

-- name: schedule_mark
-- The mark of a schedule.
SELECT mark FROM onward_schedules WHERE name = :name

-- name: subscribe
-- Add a subscription, or change the types of an existing one.
INSERT INTO onward_subscriptions (id, task_id, tenant, types, kinds, sink, lane, created_at, offered_at)
VALUES (:id, :task_id, :tenant, :types, :kinds, :sink, :lane, onward_now(), CASE WHEN :offered THEN onward_now() END)
ON CONFLICT (id) DO UPDATE SET types = excluded.types, kinds = excluded.kinds, sink = excluded.sink, lane = excluded.lane, offered_at = excluded.offered_at

-- name: subscribe_task
-- Add the webhook of a task, in the transaction of its submit. The time is a parameter: connections of other programs may not have
-- onward_now().
INSERT INTO onward_subscriptions (id, task_id, tenant, types, kinds, sink, lane, created_at)
SELECT id, id, COALESCE(tenant, ''), :types, :kinds, :sink, :lane, CAST(:now AS float8) FROM onward_tasks WHERE id = :id
ON CONFLICT (id) DO NOTHING

-- name: realign
-- Rows of a receiver whose subscription has another one by now go to that one. (Code may name another place for its events.)
UPDATE onward_outbox SET lane = (SELECT s.lane FROM onward_subscriptions s WHERE s.id = onward_outbox.subscription)
WHERE lane = :lane AND state = 'pending' AND subscription IN (SELECT s.id FROM onward_subscriptions s WHERE s.lane <> :lane)

-- name: lane_of
-- The receiver of a subscription.
SELECT lane FROM onward_subscriptions WHERE id = :id

-- name: unsubscribe
-- Remove a subscription.
DELETE FROM onward_subscriptions WHERE id = :id RETURNING id

-- name: unsend
-- Remove its pending rows.
DELETE FROM onward_outbox WHERE subscription = :id AND state = 'pending'

-- name: disable
-- Disable a subscription.
UPDATE onward_subscriptions SET disabled = :why WHERE id = :id

-- name: fail_all
-- Its pending rows have failed.
UPDATE onward_outbox SET state = 'failed', said = :why, done_at = onward_now(), holder = NULL WHERE subscription = :id AND state = 'pending'

-- name: subscription_columns
-- The columns of a subscription.
SELECT id, task_id, tenant, types, kinds, sink, lane, created_at, offered_at, disabled, dropped FROM onward_subscriptions

-- name: subscription
-- One subscription, also the webhook of a task.
{subscription_columns} WHERE id = :id AND (:any_tenant OR tenant = :tenant)

-- name: subscriptions
-- Subscriptions that are not the webhook of a task, by their ids: webhooks of tasks, of which there are many, are never read.
{subscription_columns} WHERE task_id IS NULL AND id > :after AND (:any_tenant OR tenant = :tenant) ORDER BY id LIMIT :limit

-- name: subscribed
-- Whether there is any subscription.
SELECT EXISTS (SELECT 1 FROM onward_subscriptions) AS subscribed

-- name: lanes
-- Receivers with pending rows, and in how many seconds the first is due. The query hops from receiver to receiver through the index.
WITH RECURSIVE lanes(lane, number) AS (
    SELECT * FROM (SELECT lane, 1 AS number FROM onward_outbox WHERE state = 'pending' AND lane > :after ORDER BY lane LIMIT 1) AS head
    UNION ALL
    SELECT (SELECT o.lane FROM onward_outbox o WHERE o.state = 'pending' AND o.lane > lanes.lane ORDER BY o.lane LIMIT 1), number + 1
    FROM lanes WHERE lanes.lane IS NOT NULL AND number < :most
)
SELECT l.lane, (SELECT o.due_at FROM onward_outbox o WHERE o.state = 'pending' AND o.lane = l.lane ORDER BY o.due_at LIMIT 1) - onward_now() AS due_in
FROM lanes l WHERE l.lane IS NOT NULL

-- name: taken_columns
-- The columns of a row that a relay sends.
SELECT o.task_id, o.seq, o.subscription, o.attempts, s.types, s.sink, o.body, j.shift, j.kind, j.key, j.data, j.at, t.task, t.created_at, t.key, t.options,
       j.kind = 'shift.started' AND EXISTS (SELECT 1 FROM onward_journal f WHERE f.task_id = j.task_id AND f.seq < j.seq AND f.kind = 'shift.started') AS again,
       o.number, (SELECT 'e' || substr(e.id, 1, 8) FROM onward_epochs e WHERE e.restored_at <= j.at ORDER BY e.number DESC LIMIT 1) AS epoch

-- name: finish_rows
-- Delete rows that a broker has, when this relay still holds them.
DELETE FROM onward_outbox WHERE number AMONG (:numbers) AND holder = :holder AND state = 'pending'

-- name: release_rows
-- Let go of rows that could not be sent: they are due as they were, and it was no attempt.
UPDATE onward_outbox SET holder = NULL, due_at = at, attempts = attempts - 1, said = :why
WHERE number AMONG (:numbers) AND holder = :holder AND state = 'pending'

-- name: lane_depths
-- How many events wait for the receivers whose names are between two, and how long ago the oldest happened.
SELECT lane, count(*) AS events, onward_now() - min(at) AS oldest FROM onward_outbox
WHERE state = 'pending' AND lane >= :first AND lane < :beyond GROUP BY lane ORDER BY lane LIMIT :most

-- name: note_unsent
-- Write down why a relay cannot send the rows of a receiver that have been due for long. They stay as they are otherwise.
UPDATE onward_outbox SET said = :why WHERE state = 'pending' AND due_at < onward_now() - :age AND (task_id, seq, subscription) IN (
    SELECT task_id, seq, subscription FROM onward_outbox
    WHERE lane = :lane AND state = 'pending' AND due_at < onward_now() - :age AND (said IS NULL OR said <> :why) ORDER BY due_at LIMIT :some)

-- name: held_up_events
-- How many events wait for a relay that can decrypt or send them, counted up to a number, and how long ago the oldest happened.
SELECT count(*) AS events, onward_now() - min(at) AS oldest
FROM (SELECT at FROM onward_outbox WHERE state = 'pending' AND said = :why ORDER BY at LIMIT :most) AS locked

-- name: line_up
-- A row that is due but stands behind another of its line, which waits for its next attempt, becomes due with that one. (Behind a row
-- that is being sent it stays as it is: the relay that sends that one may have finished, and looked for the next, before this is
-- written.)
UPDATE onward_outbox SET due_at = (
    SELECT max(e.due_at) FROM onward_outbox e WHERE e.subscription = onward_outbox.subscription AND e.task_id = onward_outbox.task_id
      AND e.seq < onward_outbox.seq AND e.state = 'pending' AND e.holder IS NULL)
WHERE (task_id, seq, subscription) IN (
    SELECT o.task_id, o.seq, o.subscription FROM (
        SELECT task_id, seq, subscription FROM onward_outbox WHERE lane = :lane AND state = 'pending' AND due_at <= onward_now() ORDER BY due_at LIMIT :wide
    ) AS o
    WHERE (SELECT e.seq FROM onward_outbox e WHERE e.subscription = o.subscription AND e.task_id = o.task_id AND e.seq < o.seq
             AND e.state = 'pending' AND e.due_at > onward_now() AND e.holder IS NULL LIMIT 1) IS NOT NULL)

-- name: next_in_line
-- One row of a line is done: make the next one due.
UPDATE onward_outbox SET due_at = onward_now()
WHERE task_id = :task_id AND subscription = :subscription AND state = 'pending' AND due_at > onward_now() AND holder IS NULL AND seq = (
    SELECT n.seq FROM onward_outbox n WHERE n.subscription = :subscription AND n.task_id = :task_id AND n.state = 'pending' ORDER BY n.seq LIMIT 1)

-- name: keep_body
-- Store the body of a row before its first attempt.
UPDATE onward_outbox SET body = :body WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription AND holder = :holder

-- name: extend
-- Hold a row for longer.
UPDATE onward_outbox SET due_at = onward_now() + :lease
WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription AND holder = :holder AND state = 'pending'

-- name: settle_delivery
-- Store the result of an attempt, when this relay still holds the row.
UPDATE onward_outbox SET state = :state, said = :said, holder = NULL, due_at = onward_now() + :delay, attempts = attempts - 1 + :attempt,
    done_at = CASE WHEN :state = 'pending' THEN NULL ELSE onward_now() END
WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription AND holder = :holder AND attempts = :attempts AND state = 'pending'

-- name: skip_delivery
-- Delete a row whose event does not concern its subscription.
DELETE FROM onward_outbox WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription AND holder = :holder AND attempts = :attempts AND state = 'pending'

-- name: delivery_columns
-- The columns of a row of the outbox for display.
SELECT o.number, o.task_id, o.seq, o.subscription, o.kind, o.state, o.attempts, o.due_at, o.at, o.done_at, o.said, s.sink,
       o.holder IS NOT NULL AND o.due_at > onward_now() AS sending
FROM onward_outbox o LEFT JOIN onward_subscriptions s ON s.id = o.subscription

-- name: delivery_asked
-- The filters of a list of deliveries.
o.number < :before AND (:any_state OR o.state = :state) AND (:any_subscription OR o.subscription = :subscription) AND (:any_tenant OR s.tenant = :tenant)

-- name: deliveries
-- Rows of the outbox, the newest first.
{delivery_columns} WHERE {delivery_asked} ORDER BY o.number DESC LIMIT :limit

-- name: deliveries_of
-- The same of one task. (A statement of its own: so the planner knows that it may use the task.)
{delivery_columns} WHERE o.task_id = :task AND (:any_seq OR o.seq = :seq) AND {delivery_asked} ORDER BY o.number DESC LIMIT :limit

-- name: redeliver
-- Make a row due now, with no attempts counted.
UPDATE onward_outbox SET state = 'pending', due_at = onward_now(), attempts = 0, done_at = NULL, holder = NULL
WHERE task_id = :task_id AND seq = :seq AND subscription = :subscription AND (holder IS NULL OR due_at <= onward_now())
  AND EXISTS (SELECT 1 FROM onward_subscriptions s WHERE s.id = :subscription AND s.disabled IS NULL)
RETURNING number

-- name: forget_deliveries
-- Delete rows that were delivered or failed long ago.
DELETE FROM onward_outbox WHERE (task_id, seq, subscription) IN (
    SELECT task_id, seq, subscription FROM onward_outbox WHERE state = :state AND state <> 'pending' AND done_at < onward_now() - :age ORDER BY done_at LIMIT :some)
RETURNING subscription

-- name: forget_webhook
-- Delete the webhook of a task that has ended for good, when all of its events are gone.
DELETE FROM onward_subscriptions WHERE id = :id AND task_id IS NOT NULL
  AND EXISTS (SELECT 1 FROM onward_outcomes o WHERE o.task_id = :id AND o.state <> 'failed')
  AND NOT EXISTS (SELECT 1 FROM onward_outbox o WHERE o.task_id = :id AND o.subscription = :id)

-- name: give_up
-- Fail rows that no relay took for long: no process has the function of the subscription any more.
UPDATE onward_outbox SET state = 'failed', done_at = onward_now(), holder = NULL, said = 'no process took it'
WHERE (task_id, seq, subscription) IN (
    SELECT task_id, seq, subscription FROM onward_outbox WHERE lane = :lane AND state = 'pending' AND due_at < onward_now() - :age ORDER BY due_at LIMIT :some)
RETURNING subscription

-- name: crowd
-- The time of the first row of a receiver that is not beyond the limit.
SELECT due_at FROM onward_outbox WHERE lane = :lane AND state = 'pending' ORDER BY due_at DESC LIMIT 1 OFFSET :most

-- name: drop_crowd
-- Delete the rows before it.
DELETE FROM onward_outbox WHERE (task_id, seq, subscription) IN (
    SELECT task_id, seq, subscription FROM onward_outbox WHERE lane = :lane AND state = 'pending' AND due_at <= :due_at ORDER BY due_at LIMIT :some)
RETURNING subscription

-- name: count_dropped
-- Count the deleted rows.
UPDATE onward_subscriptions SET dropped = dropped + :count WHERE id = :id

-- name: fork_outbox
-- Delete the rows of copied records: their events did not happen to the fork.
DELETE FROM onward_outbox WHERE task_id = :id AND seq <= :at

-- name: join
-- Add a worker. Its id is new at every start.
INSERT INTO onward_workers (id, lease_until, started_at, machine, host, pid, slots, names, queues, address, version)
VALUES (:id, onward_now() + :lease, onward_now(), :machine, :host, :pid, :slots, :names, :queues, :address, :version)
ON CONFLICT (id) DO NOTHING

-- name: now
-- The clock of the database.
SELECT onward_now() AS now

-- name: leave
-- Remove a worker.
DELETE FROM onward_workers WHERE id = :worker

-- name: born_paused
-- Pause a child whose parent is paused.
UPDATE onward_queue SET paused = (1 = 1), due_at = :never, reason = 'paused'
WHERE task_id = :id AND EXISTS (SELECT 1 FROM onward_queue p WHERE p.task_id = :parent AND p.paused)

-- name: unconfirmed_pauses
-- Of these paused tasks, those that a living worker holds whose pause it has not confirmed.
SELECT q.task_id FROM onward_queue q WHERE q.task_id AMONG (:ids) AND q.paused AND q.worker IS NOT NULL AND q.reason <> 'paused'
  AND EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = q.worker AND w.lease_until > onward_now())

-- name: workers
-- Workers after an id that were not declared dead.
SELECT id, machine, host, pid, slots, names, queues, address, version, lease_until, started_at, rate FROM onward_workers
WHERE id > :after ORDER BY id LIMIT :limit

-- name: open_asks_by_kind
-- How many questions and approvals are open, by kind.
{asked_tasks}
SELECT kind, count(*) AS asked FROM ({ask_columns} {open_asks}) o GROUP BY kind

-- name: crew
-- The number of workers, their slots, and how many workers let their lease end.
SELECT count(*) AS workers, COALESCE(sum(slots), 0) AS slots, COALESCE(sum(CASE WHEN lease_until < onward_now() THEN 1 ELSE 0 END), 0) AS late
FROM onward_workers

-- name: outbox_depth
-- How many events have to be delivered, and how long ago the oldest happened.
SELECT count(*) AS events, COALESCE(onward_now() - min(at), 0.0) AS oldest FROM onward_outbox WHERE state = 'pending'

-- name: census
-- Faulty tasks with ids above one and up to another: a census reads all of history in such slices. Every unfinished task must be due,
-- held under a lease that a worker prolongs, or waiting with something that will wake it. Each line finds tasks that break a part of
-- this, or whose rows contradict each other.
SELECT t.id AS task_id, 'has neither a queue row nor an outcome' AS fault FROM onward_tasks t
 WHERE t.id > :low AND t.id <= :high AND (SELECT q.attempt FROM onward_queue q WHERE q.task_id = t.id LIMIT 1) IS NULL
   AND (SELECT o.seq FROM onward_outcomes o WHERE o.task_id = t.id LIMIT 1) IS NULL
UNION ALL
SELECT q.task_id, 'has a queue row although it has ended' FROM onward_queue q
 WHERE q.task_id > :low AND q.task_id <= :high AND (SELECT o.seq FROM onward_outcomes o WHERE o.task_id = q.task_id LIMIT 1) IS NOT NULL
UNION ALL
SELECT q.task_id, 'is held by a worker that does not exist' FROM onward_queue q
 WHERE q.task_id > :low AND q.task_id <= :high AND q.worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = q.worker)
UNION ALL
SELECT q.task_id, 'sleeps for ever although no person was asked' FROM onward_queue q
 WHERE q.task_id > :low AND q.task_id <= :high AND q.worker IS NULL AND q.due_at > 1e15 AND q.reason NOT IN ({moved_by_others})
UNION ALL
SELECT o.task_id, 'ended without an ending in its journal' FROM onward_outcomes o
 WHERE o.task_id > :low AND o.task_id <= :high AND (
     SELECT j.kind IN ('task.completed', 'task.failed', 'task.cancelled') FROM onward_journal j WHERE j.task_id = o.task_id AND j.seq = o.seq LIMIT 1) IS NOT TRUE
UNION ALL
SELECT task_id, 'has a gap in its journal' FROM onward_journal
 WHERE task_id > :low AND task_id <= :high AND kind <> 'pruned' GROUP BY task_id HAVING count(*) <> max(seq) OR min(seq) <> 1
UNION ALL
SELECT j.task_id, 'has records although there is no such task' FROM (
    SELECT DISTINCT task_id FROM onward_journal WHERE task_id > :low AND task_id <= :high AND kind <> 'pruned') j
 WHERE (SELECT t.id FROM onward_tasks t WHERE t.id = j.task_id LIMIT 1) IS NULL
UNION ALL
SELECT j.task_id, 'was pruned, and is still there' FROM (
    SELECT DISTINCT task_id FROM onward_journal WHERE task_id > :low AND task_id <= :high AND kind = 'pruned') j
 WHERE (SELECT t.id FROM onward_tasks t WHERE t.id = j.task_id LIMIT 1) IS NOT NULL
UNION ALL
SELECT t.id, 'is a child of a task that is not there' FROM onward_tasks t
 WHERE t.id > :low AND t.id <= :high AND t.parent IS NOT NULL AND (SELECT p.id FROM onward_tasks p WHERE p.id = t.parent LIMIT 1) IS NULL

-- name: moved_by_others
-- Reasons of tasks that sleep until a person, another task or a limit wakes them.
'parked', 'quarantined', 'signal', 'question', 'approval', 'child', 'in_doubt', 'paused', 'quota', 'budget', 'lock'

-- name: census_bound
-- The last task of a slice that begins after an id and has about so many records.
SELECT task_id FROM onward_journal WHERE task_id > :low ORDER BY task_id, seq LIMIT 1 OFFSET :records

-- name: census_lately
-- Faulty tasks among so many of each group in which a fault shows first: the oldest unfinished tasks, those that are held, those that
-- sleep for ever, and the newest. Each is looked up by its id, and only the end of its journal is read: the cost does not depend on
-- history.
WITH near AS (
    SELECT * FROM (SELECT task_id AS id, NULL AS asked, parent, reason, due_at, worker FROM onward_queue ORDER BY task_id LIMIT :most) a
    UNION ALL
    SELECT * FROM (SELECT task_id, NULL, parent, reason, due_at, worker FROM onward_queue WHERE worker IS NOT NULL ORDER BY worker LIMIT :most) b
    UNION ALL
    SELECT * FROM (SELECT task_id, NULL, parent, reason, due_at, worker FROM onward_queue WHERE due_at IS NOT NULL AND due_at > 1e15 ORDER BY due_at LIMIT :most) c
    UNION ALL
    SELECT d.id, d.queue, d.parent, (SELECT q.reason FROM onward_queue q WHERE q.task_id = d.id LIMIT 1), NULL, NULL
    FROM (SELECT id, queue, parent FROM onward_tasks ORDER BY id DESC LIMIT :most) d
), seen AS (
    SELECT n.id, n.asked, n.parent, n.reason, n.due_at, n.worker, (SELECT o.seq FROM onward_outcomes o WHERE o.task_id = n.id LIMIT 1) AS ended,
           (SELECT j.seq FROM onward_journal j WHERE j.task_id = n.id ORDER BY j.seq DESC LIMIT 1) AS head
    FROM near n
)
SELECT id AS task_id, 'has neither a queue row nor an outcome' AS fault FROM seen WHERE asked IS NOT NULL AND reason IS NULL AND ended IS NULL
UNION
SELECT id, 'has a queue row although it has ended' FROM seen WHERE reason IS NOT NULL AND ended IS NOT NULL
UNION
SELECT id, 'is held by a worker that does not exist' FROM seen WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_workers w WHERE w.id = seen.worker)
UNION
SELECT id, 'sleeps for ever although no person was asked' FROM seen WHERE worker IS NULL AND due_at > 1e15 AND reason NOT IN ({moved_by_others})
UNION
SELECT id, 'ended without an ending in its journal' FROM seen WHERE ended IS NOT NULL AND (
    SELECT j.kind IN ('task.completed', 'task.failed', 'task.cancelled') FROM onward_journal j WHERE j.task_id = seen.id AND j.seq = seen.ended LIMIT 1) IS NOT TRUE
UNION
SELECT id, 'has a gap in its journal' FROM seen WHERE head > 1 AND (SELECT j.seq FROM onward_journal j WHERE j.task_id = seen.id AND j.seq = seen.head - 1 LIMIT 1) IS NULL
UNION
SELECT id, 'is a child of a task that is not there' FROM seen WHERE parent IS NOT NULL AND (SELECT p.id FROM onward_tasks p WHERE p.id = seen.parent LIMIT 1) IS NULL

-- name: quota_of
-- A quota that was used up.
SELECT until, until - onward_now() AS remaining, why FROM onward_quotas WHERE name = :name

-- name: shut_quota
-- Record that a quota is used up. Of several times that are reported at once the longest counts. Without a time, a report does not make
-- a pause longer that still lasts.
INSERT INTO onward_quotas (name, until, pause, why)
VALUES (:name, onward_now() + COALESCE(CAST(:seconds AS float8), :first), COALESCE(CAST(:seconds AS float8), :first), :why)
ON CONFLICT (name) DO UPDATE SET why = excluded.why,
    until = CASE WHEN onward_quotas.until > onward_now() AND (CAST(:seconds AS float8) IS NULL OR onward_quotas.until > excluded.until) THEN onward_quotas.until
                 WHEN CAST(:seconds AS float8) IS NOT NULL THEN excluded.until
                 WHEN onward_quotas.pause * 2 > :cap THEN onward_now() + :cap ELSE onward_now() + onward_quotas.pause * 2 END,
    pause = CASE WHEN CAST(:seconds AS float8) IS NOT NULL THEN excluded.pause WHEN onward_quotas.until > onward_now() THEN onward_quotas.pause
                 WHEN onward_quotas.pause * 2 > :cap THEN :cap ELSE onward_quotas.pause * 2 END
RETURNING until, until - onward_now() AS remaining, why

-- name: reopen_quota
-- Forget a quota that answers again.
DELETE FROM onward_quotas WHERE name = :name AND until = :until

-- name: tenant_quotas
-- The quotas of all tenants that have some of their own.
SELECT tenant, quota FROM onward_tenant_quotas ORDER BY tenant

-- name: set_tenant_quota
-- The quotas of a tenant.
INSERT INTO onward_tenant_quotas (tenant, quota, changed_at) VALUES (:tenant, :quota, onward_now())
ON CONFLICT (tenant) DO UPDATE SET quota = excluded.quota, changed_at = excluded.changed_at

-- name: reset_tenant_quota
-- The tenant has the quotas of the settings again.
DELETE FROM onward_tenant_quotas WHERE tenant = :tenant

-- name: tenants
-- Tenants with a key, a session or quotas of their own, after a name.
SELECT tenant FROM onward_keys WHERE tenant > :after UNION SELECT tenant FROM onward_tenant_quotas WHERE tenant > :after
UNION SELECT tenant FROM onward_sessions WHERE tenant > :after ORDER BY 1 LIMIT :limit

-- name: tenant_depth
-- How many unfinished tasks of a tenant no worker holds, by queue.
SELECT queue, count(*) AS tasks FROM onward_queue WHERE turn_group AMONG (:turn_groups) AND turn_group IS NOT NULL AND worker IS NULL GROUP BY queue

-- name: key_add
-- A new key.
INSERT INTO onward_keys (id, hash, name, tenant, scopes, agent, created_at, expires_at, owner)
VALUES (:id, :hash, :name, :tenant, :scopes, :agent, onward_now(), onward_now() + CAST(:seconds AS float8), :owner)

-- name: key_columns
-- The columns of a key.
SELECT id, hash, name, tenant, scopes, agent, created_at, expires_at, revoked_at, last_used_at, owner, onward_now() AS now FROM onward_keys

-- name: key
-- One key by its id.
{key_columns} WHERE id = :id

-- name: keys
-- The keys that a reader may see, the oldest first, after a time and an id.
{key_columns} WHERE (:of_all OR COALESCE(tenant, '') = :tenant)
  AND (created_at > CAST(:after_at AS float8) OR (created_at = CAST(:after_at AS float8) AND id > :after)) ORDER BY created_at, id LIMIT :limit

-- name: keys_valid
-- How many valid keys a tenant has, up to a number.
SELECT count(*) AS keys FROM (SELECT 1 FROM onward_keys WHERE tenant = :tenant AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > onward_now()) LIMIT :limit) AS valid

-- name: key_names
-- The names of keys that a reader may see.
SELECT id, name FROM onward_keys WHERE id AMONG (:ids) AND (:of_all OR COALESCE(tenant, '') = :tenant)

-- name: has_keys
-- Whether there ever was a key: a revoked key counts too.
SELECT EXISTS (SELECT 1 FROM onward_keys) AS found

-- name: key_revoke
-- Revoke a key; it returns nothing when that was done before.
UPDATE onward_keys SET revoked_at = onward_now() WHERE id = :id AND revoked_at IS NULL AND (:of_all OR COALESCE(tenant, '') = :tenant) RETURNING id

-- name: key_used
-- Store when a key was used, to the minute.
UPDATE onward_keys SET last_used_at = onward_now() WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= onward_now() - 60)

-- name: session_add
-- A new session.
INSERT INTO onward_sessions (id, hash, person, name, roles, tenant, created_at, last_used_at, idle_s, expires_at)
VALUES (:id, :hash, :person, :name, :roles, :tenant, onward_now(), onward_now(), :idle_s, onward_now() + CAST(:seconds AS float8))

-- name: session_columns
-- The columns of a session.
SELECT id, hash, person, name, roles, tenant, created_at, last_used_at, idle_s, expires_at, onward_now() AS now FROM onward_sessions

-- name: session
-- One session by its id.
{session_columns} WHERE id = :id

-- name: session_by_hash
-- One session by the hash of its token.
{session_columns} WHERE hash = :hash

-- name: sessions
-- The sessions that a reader may see and that have not ended, the oldest first, after a time and an id.
{session_columns} WHERE expires_at > onward_now() AND last_used_at + idle_s > onward_now() AND (:of_all OR COALESCE(tenant, '') = :tenant)
  AND (created_at > CAST(:after_at AS float8) OR (created_at = CAST(:after_at AS float8) AND id > :after)) ORDER BY created_at, id LIMIT :limit

-- name: session_end
-- End a session; it returns nothing when that was done before.
DELETE FROM onward_sessions WHERE id = :id AND (:of_all OR COALESCE(tenant, '') = :tenant) RETURNING id

-- name: sessions_prune
-- Delete the sessions that have ended.
DELETE FROM onward_sessions WHERE expires_at <= onward_now() OR last_used_at + idle_s <= onward_now()

-- name: sessions_bound
-- End the sessions of a person beyond a number, those that were unused for the longest time; it returns them.
DELETE FROM onward_sessions WHERE id IN (SELECT id FROM onward_sessions WHERE person = :person ORDER BY last_used_at DESC, created_at DESC, id LIMIT 1000000 OFFSET :most)
RETURNING id, tenant, roles

-- name: session_used
-- Store when a session was used, to the minute. A session that has ended stays ended.
UPDATE onward_sessions SET last_used_at = onward_now()
WHERE id = :id AND last_used_at <= onward_now() - 60 AND last_used_at + idle_s > onward_now() AND expires_at > onward_now()

-- name: audit_head
-- The last entry, which the next one refers to.
SELECT number, hash FROM onward_audit ORDER BY number DESC LIMIT 1

-- name: audit_add
-- The next entry.
INSERT INTO onward_audit (number, at, tenant, key, name, action, subject, data, before, hash)
VALUES (:number, :at, :tenant, :key, :name, :action, :subject, :data, :before, :hash)

-- name: audit_end
-- The last entry, as it was written down with it.
SELECT number, hash, seal FROM onward_audit_end

-- name: audit_end_set
-- Write down the last entry. An end whose entry is gone stays: it is the evidence of that.
UPDATE onward_audit_end SET number = :number, hash = :hash, seal = :seal
WHERE number = 0 OR EXISTS (SELECT 1 FROM onward_audit a WHERE a.number = onward_audit_end.number AND a.hash = onward_audit_end.hash)

-- name: audit
-- Entries after a number, in order.
SELECT number, at, tenant, key, name, action, subject, data, before, hash FROM onward_audit WHERE number > :after ORDER BY number LIMIT :limit

-- name: audit_tenant
-- The same of one tenant.
SELECT number, at, tenant, key, name, action, subject, data, before, hash FROM onward_audit
WHERE tenant = :tenant AND number > :after ORDER BY number LIMIT :limit

-- name: audit_before
-- Entries before a number, the newest first.
SELECT number, at, tenant, key, name, action, subject, data, before, hash FROM onward_audit WHERE number < :before ORDER BY number DESC LIMIT :limit

-- name: audit_tenant_before
-- The same of one tenant.
SELECT number, at, tenant, key, name, action, subject, data, before, hash FROM onward_audit
WHERE tenant = :tenant AND number < :before ORDER BY number DESC LIMIT :limit

-- name: suggest_tasks
-- The newest tasks, for the completion of an id on the command line.
SELECT id AS value, task AS about FROM onward_tasks ORDER BY id DESC LIMIT :limit

-- name: suggest_waiting
-- Tasks that wait for this reason, for the completion of an id.
SELECT task_id AS value, task AS about FROM onward_queue WHERE reason = :reason ORDER BY task_id DESC LIMIT :limit

-- name: suggest_handlers
-- Names of registered handlers.
SELECT name AS value, '' AS about FROM onward_handlers ORDER BY name LIMIT :limit

-- name: suggest_queues
-- Queues with unfinished tasks.
SELECT queue AS value, '' AS about FROM onward_queue GROUP BY queue ORDER BY queue LIMIT :limit

-- name: suggest_schedules
-- Schedules by name.
SELECT name AS value, task AS about FROM onward_schedules ORDER BY name LIMIT :limit

-- name: suggest_intakes
-- Intakes that have dead letters, by name.
SELECT intake AS value, '' AS about FROM onward_dead_letters GROUP BY intake ORDER BY intake LIMIT :limit

-- name: suggest_letters
-- The newest dead letters.
SELECT id AS value, intake AS about FROM onward_dead_letters ORDER BY id DESC LIMIT :limit

-- name: by_key
-- The tasks that these keys belong to.
SELECT id, key, fingerprint FROM onward_tasks WHERE key AMONG (:keys)

-- name: kin
-- These tasks: their parents, names and options.
SELECT id, parent, task, options FROM onward_tasks WHERE id AMONG (:ids)

-- name: kin_below
-- The same of all their children.
SELECT id, parent, task, options FROM onward_tasks WHERE parent AMONG (:ids)

-- name: contents
-- The contents of a task that have these names.
SELECT id, data FROM onward_contents WHERE task_id = :id AND id AMONG (:ids)

-- name: purses
-- The ledgers of these tasks.
SELECT task_id, data FROM onward_purses WHERE task_id AMONG (:ids)

-- name: save_purse
-- A ledger as it is now.
INSERT INTO onward_purses (task_id, data) VALUES (:id, :data) ON CONFLICT (task_id) DO UPDATE SET data = excluded.data

-- name: offer
-- A handler of a worker.
INSERT INTO onward_handlers (name, schema, offered_at) VALUES (:name, :schema, onward_now())
ON CONFLICT (name) DO UPDATE SET schema = excluded.schema, offered_at = excluded.offered_at

-- name: sealed_with
-- The headers of the inputs of these tasks, and what their subjects follow from.
SELECT id, substr(input, 1, 12), tenant, options, parent FROM onward_tasks WHERE id AMONG (:ids)

-- name: sealed_unfinished
-- Unfinished tasks whose inputs one data key sealed.
SELECT t.id FROM onward_tasks t WHERE {sealed} AND substr(t.input, 1, 12) = :header
  AND EXISTS (SELECT 1 FROM onward_queue q WHERE q.task_id = t.id) ORDER BY t.id LIMIT :limit

-- name: plain_unfinished
-- Unfinished tasks whose inputs are not sealed, of one tenant or of all.
SELECT t.id FROM onward_queue q JOIN onward_tasks t ON t.id = q.task_id
WHERE q.task_id > :after AND NOT {sealed} AND (:any_tenant OR COALESCE(t.tenant, '') = :tenant) ORDER BY q.task_id LIMIT :limit

-- name: tasks_after
-- Tasks by their ids.
SELECT id FROM onward_tasks WHERE id > :after ORDER BY id LIMIT :limit

-- name: plain_records
-- Records of a task that are not sealed.
SELECT seq, kind, key, data FROM onward_journal WHERE task_id = :id AND seq > :after AND {plain_data} ORDER BY seq LIMIT :limit

-- name: plain_record_sizes
-- Their bytes.
SELECT seq, length(data) AS size FROM onward_journal WHERE task_id = :id AND seq > :after AND {plain_data} ORDER BY seq LIMIT :limit

-- name: seal_records
-- Seal the payload of a record, unless the record was trimmed, pruned or sealed meanwhile.
UPDATE onward_journal SET data = :data WHERE task_id = :id AND seq = :place AND data = :seen

-- name: plain_messages
-- Messages to a task that are not sealed.
SELECT number, id, kind, name, ref, data FROM onward_inbox WHERE task_id = :id AND number > :after AND {plain_data}
ORDER BY number LIMIT :limit

-- name: plain_message_sizes
-- Their bytes.
SELECT number, length(data) AS size FROM onward_inbox WHERE task_id = :id AND number > :after AND {plain_data} ORDER BY number LIMIT :limit

-- name: seal_messages
-- Seal the payload of a message.
UPDATE onward_inbox SET data = :data WHERE task_id = :id AND number = :place AND data = :seen

-- name: plain_contents
-- Contents of a task that are not sealed.
SELECT id, data FROM onward_contents WHERE task_id = :id AND id > :after AND {plain_data} ORDER BY id LIMIT :limit

-- name: plain_content_sizes
-- Their bytes.
SELECT id, length(data) AS size FROM onward_contents WHERE task_id = :id AND id > :after AND {plain_data} ORDER BY id LIMIT :limit

-- name: seal_contents
-- Seal a content.
UPDATE onward_contents SET data = :data WHERE task_id = :id AND id = :place AND data = :seen

-- name: plain_bodies
-- Bodies of deliveries of a task that are not sealed.
SELECT number, seq, subscription, body FROM onward_outbox WHERE task_id = :id AND number > :after AND {plain_body}
ORDER BY number LIMIT :limit

-- name: plain_body_sizes
-- Their bytes.
SELECT number, length(body) AS size FROM onward_outbox WHERE task_id = :id AND number > :after AND {plain_body} ORDER BY number LIMIT :limit

-- name: seal_bodies
-- Seal the body of a delivery.
UPDATE onward_outbox SET body = :data WHERE task_id = :id AND number = :place AND body = :seen

-- name: plain_input
-- The input of a task, unless it is sealed.
SELECT t.task, t.input, t.fingerprint FROM onward_tasks t WHERE t.id = :id AND NOT {sealed}

-- name: seal_input
-- Seal the input of a task together with its fingerprint.
UPDATE onward_tasks SET input = :data, fingerprint = :tag WHERE id = :id AND input = :seen RETURNING id

-- name: seal_schedule
-- Seal the input of a schedule.
UPDATE onward_schedules SET input = :data WHERE name = :name AND input = :seen RETURNING name

-- name: data_key_columns
-- The columns of a data key.
SELECT id, tenant, value, wrapped, master, created_at, retired_at, erased_at, erased_by FROM onward_data_keys

-- name: data_keys
-- Data keys by their ids.
{data_key_columns} WHERE id AMONG (:ids)

-- name: data_keys_of
-- The data keys of one subject, the oldest first: of two that were made at once, all processes use the same.
{data_key_columns} WHERE tenant = :tenant AND value = :value ORDER BY created_at, id

-- name: data_keys_live
-- The data keys that an erasure destroys.
{data_key_columns} WHERE (:any_tenant OR tenant = :tenant) AND (:any_value OR value = :value) AND wrapped IS NOT NULL ORDER BY id

-- name: data_keys_after
-- Data keys after an id.
{data_key_columns} WHERE id > :after ORDER BY id LIMIT :limit

-- name: data_key_masters
-- Which master keys wrap data keys, and how many.
SELECT master, count(*) AS keys FROM onward_data_keys WHERE wrapped IS NOT NULL GROUP BY master ORDER BY master

-- name: data_key_wrapped_by
-- One data key that a master key wraps.
{data_key_columns} WHERE master = :master AND wrapped IS NOT NULL ORDER BY id LIMIT 1

-- name: data_key_add
-- A new data key.
INSERT INTO onward_data_keys (id, tenant, value, wrapped, master, created_at) VALUES (:id, :tenant, :value, :wrapped, :master, onward_now())

-- name: data_key_add_through
-- The same over a connection of another program, which may not have onward_now().
INSERT INTO onward_data_keys (id, tenant, value, wrapped, master, created_at) VALUES (:id, :tenant, :value, :wrapped, :master, :now)

-- name: data_key_rewrap
-- Wrap a data key anew, unless another process has done so or destroyed it.
UPDATE onward_data_keys SET wrapped = :wrapped, master = :master WHERE id = :id AND wrapped = :seen RETURNING id

-- name: data_keys_retire
-- Let data keys seal nothing new.
UPDATE onward_data_keys SET retired_at = onward_now()
WHERE (:any_tenant OR tenant = :tenant) AND (:any_value OR value = :value) AND wrapped IS NOT NULL AND retired_at IS NULL RETURNING id

-- name: data_key_destroy
-- Destroy a data key; its row stays as a tombstone.
UPDATE onward_data_keys SET wrapped = NULL, erased_at = onward_now(), erased_by = :by WHERE id = :id AND wrapped IS NOT NULL

-- name: plain_tasks
-- How many tasks have an input that is not sealed, counted up to a number.
SELECT count(*) FROM (SELECT 1 FROM onward_tasks t WHERE NOT {sealed} AND (:any_tenant OR COALESCE(t.tenant, '') = :tenant)
                      AND (:any_label OR {has_label}) LIMIT :limit) AS plain

-- name: letter_add
-- A dead letter. A message that comes again keeps the id of its letter.
INSERT INTO onward_dead_letters (id, intake, identity, tenant, reason, position, sent_id, size, data, attempts, at)
VALUES (:id, :intake, :identity, :tenant, :reason, :position, :sent_id, :size, :data, 1, onward_now())
ON CONFLICT (intake, identity) DO UPDATE SET reason = excluded.reason

-- name: letter_columns
-- A dead letter without its data.
SELECT id, intake, identity, tenant, reason, position, sent_id, size, attempts, at, redrive_at FROM onward_dead_letters

-- name: letters
-- Dead letters below an id, the newest first.
{letter_columns} WHERE id < :before AND (:of_all OR COALESCE(tenant, '') = :tenant) ORDER BY id DESC LIMIT :limit

-- name: letters_in
-- The same, of one intake.
{letter_columns} WHERE intake = :intake AND id < :before AND (:of_all OR COALESCE(tenant, '') = :tenant) ORDER BY id DESC LIMIT :limit

-- name: letter
-- One dead letter.
{letter_columns} WHERE id = :id AND (:of_all OR COALESCE(tenant, '') = :tenant)

-- name: letter_data
-- The data of dead letters.
SELECT id, data FROM onward_dead_letters WHERE id AMONG (:ids)

-- name: letters_of
-- Which of these messages have a dead letter.
SELECT id FROM onward_dead_letters WHERE intake = :intake AND identity AMONG (:identities) ORDER BY id

-- name: letter_counts
-- How many dead letters each of these intakes has.
SELECT intake, count(*) FROM onward_dead_letters WHERE intake AMONG (:names) AND (:of_all OR COALESCE(tenant, '') = :tenant) GROUP BY intake

-- name: letter_counts_redriven
-- How many of them are to be tried again.
SELECT intake, count(*) FROM onward_dead_letters WHERE redrive_at IS NOT NULL AND intake AMONG (:names) AND (:of_all OR COALESCE(tenant, '') = :tenant) GROUP BY intake

-- name: letter_crowd
-- How many dead letters an intake has, counted up to a number.
SELECT count(*) FROM (SELECT 1 FROM onward_dead_letters WHERE intake = :intake LIMIT :most) AS counted

-- name: letters_chosen
-- So many dead letters from one id to another, the oldest first.
SELECT id FROM onward_dead_letters WHERE id >= :first AND id <= :last AND (:of_all OR COALESCE(tenant, '') = :tenant) ORDER BY id LIMIT :limit

-- name: letters_chosen_in
-- The same, of one intake.
SELECT id FROM onward_dead_letters
WHERE intake = :intake AND id >= :first AND id <= :last AND (:of_all OR COALESCE(tenant, '') = :tenant) ORDER BY id LIMIT :limit

-- name: letters_redrive
-- Ask for dead letters to be tried again. It returns all of them, also those that wait for it already.
UPDATE onward_dead_letters SET redrive_at = COALESCE(redrive_at, onward_now()) WHERE id IN ({letters_chosen}) RETURNING id, tenant

-- name: letters_redrive_in
-- The same, of one intake.
UPDATE onward_dead_letters SET redrive_at = COALESCE(redrive_at, onward_now()) WHERE id IN ({letters_chosen_in}) RETURNING id, tenant

-- name: letters_drop
-- Delete dead letters. It returns them.
DELETE FROM onward_dead_letters WHERE id IN ({letters_chosen}) RETURNING id, tenant

-- name: letters_drop_in
-- The same, of one intake.
DELETE FROM onward_dead_letters WHERE id IN ({letters_chosen_in}) RETURNING id, tenant

-- name: letters_prune
-- Delete so many old dead letters, the oldest first. The caller bounds the ids: younger letters cannot be old enough.
DELETE FROM onward_dead_letters WHERE id IN (
  SELECT id FROM onward_dead_letters WHERE id < :until AND at <= onward_now() - :age
    AND (redrive_at IS NULL OR redrive_at <= onward_now() - :age) ORDER BY id LIMIT :limit)

-- name: letters_aged
-- How many dead letters below an id each intake has, counted up to a number.
SELECT intake, count(*) FROM (SELECT intake FROM onward_dead_letters WHERE id < :until ORDER BY id LIMIT :most) AS aged
GROUP BY intake ORDER BY intake

-- name: letter_still_dead
-- A dead letter that was tried again and failed again.
UPDATE onward_dead_letters SET redrive_at = NULL, held_until = NULL, attempts = attempts + 1, reason = :reason WHERE id = :id

-- name: letters_remove
-- Delete the dead letters of messages that were received after all.
DELETE FROM onward_dead_letters WHERE id AMONG (:ids)

-- name: intake_report
-- What a process says about an intake.
INSERT INTO onward_intakes (name, process, source, target, tenant, state, detail, taken, dead, rate, lag, started_at, seen_at)
VALUES (:name, :process, :source, :target, :tenant, :state, :detail, :taken, :dead, :rate, :lag, onward_now(), onward_now())
ON CONFLICT (name, process) DO UPDATE SET source = excluded.source, target = excluded.target, tenant = excluded.tenant, state = excluded.state,
  detail = excluded.detail, taken = excluded.taken, dead = excluded.dead, rate = excluded.rate, lag = excluded.lag, seen_at = excluded.seen_at

-- name: intakes_forget
-- Delete old reports: of processes that stopped, and of silent ones where another process reported since. The last report of an intake
-- stays longer, so that its silence is noticed.
DELETE FROM onward_intakes WHERE seen_at < onward_now() - :last_age OR (seen_at < onward_now() - :age AND (state = 'stopped' OR EXISTS (
  SELECT 1 FROM onward_intakes o WHERE o.name = onward_intakes.name AND o.seen_at >= onward_now() - :age)))

-- name: intakes
-- What processes say about these intakes.
SELECT name, process, source, target, tenant, state, detail, taken, dead, rate, lag, started_at, seen_at, onward_now() - seen_at FROM onward_intakes
WHERE name AMONG (:names) AND (:of_all OR COALESCE(tenant, '') = :tenant) ORDER BY name, process LIMIT :limit

-- name: intake_names
-- The names, after one, of intakes that a process reported, or that have dead letters.
SELECT name FROM (
    SELECT name FROM onward_intakes WHERE name > :after AND (:of_all OR COALESCE(tenant, '') = :tenant)
    UNION SELECT intake FROM onward_dead_letters WHERE intake > :after AND (:of_all OR COALESCE(tenant, '') = :tenant)
) AS known ORDER BY name {by_bytes} LIMIT :limit

-- name: intake_sources
-- The places that processes receive from.
SELECT DISTINCT source FROM onward_intakes LIMIT :limit

-- name: lock_lives
-- Whether the holder `h` of a lock lives: an unfinished task, or a program whose lease has not ended.
CASE WHEN h.task_id IS NULL THEN h.until > onward_now() ELSE EXISTS (SELECT 1 FROM onward_queue q WHERE q.task_id = h.task_id) END

-- name: lock_ready
-- Whether the waiter `w` could take a lock now. A task that is paused, or waits for a person, keeps its place in the line and is passed over.
CASE WHEN w.task_id IS NULL THEN w.until > onward_now()
     ELSE EXISTS (SELECT 1 FROM onward_queue q WHERE q.task_id = w.task_id AND NOT q.paused
                  AND (q.worker IS NOT NULL OR q.reason NOT IN ('parked', 'quarantined', 'in_doubt'))) END

-- name: lock_holder
-- The row of the holder of a lock.
SELECT h.owner, h.label, h.since, {lock_lives} AS lives FROM onward_locks h WHERE h.tenant = :tenant AND h.name = :name AND h.token IS NOT NULL

-- name: lock_ahead
-- The first that waits for a lock before this owner, and could take it now.
SELECT w.label, w.since FROM onward_locks w
WHERE w.tenant = :tenant AND w.name = :name AND w.token IS NULL AND w.owner <> :owner AND {lock_ready}
  AND w.place < COALESCE((SELECT o.place FROM onward_locks o WHERE o.tenant = :tenant AND o.name = :name AND o.owner = :owner), 9223372036854775807)
ORDER BY w.place LIMIT 1

-- name: lock_still
-- Who has a lock, or comes first in its line, while this owner waits for it; no row when it does not wait, or has to say soon that it still does.
SELECT (SELECT h.label FROM onward_locks h WHERE h.tenant = :tenant AND h.name = :name AND h.token IS NOT NULL AND {lock_lives}) AS holder,
       (SELECT w.label FROM onward_locks w WHERE w.tenant = :tenant AND w.name = :name AND w.token IS NULL AND w.place < m.place AND {lock_ready}
        ORDER BY w.place LIMIT 1) AS ahead
FROM onward_locks m WHERE m.tenant = :tenant AND m.name = :name AND m.owner = :owner AND m.token IS NULL AND m.until > onward_now() + :fresh_s

-- name: lock_row
-- The row of an owner.
SELECT token, place FROM onward_locks WHERE tenant = :tenant AND name = :name AND owner = :owner

-- name: lock_line
-- How many wait for a lock, and the last place in the line.
SELECT count(*), COALESCE(max(place), 0) FROM onward_locks WHERE tenant = :tenant AND name = :name AND token IS NULL

-- name: locks_of_task
-- How many locks a task holds or waits for.
SELECT count(*) FROM onward_locks WHERE task_id = :id

-- name: lock_count
-- The next token of a bucket.
UPDATE onward_lock_counters SET token = token + 1 WHERE bucket = :bucket RETURNING token

-- name: lock_hold
-- The owner holds the lock from now on. One that held it already has held it since then.
INSERT INTO onward_locks (tenant, name, owner, label, task_id, key, token, place, since, until, bucket, outside)
VALUES (:tenant, :name, :owner, :label, :task_id, :key, :token, 0, onward_now(), onward_now() + CAST(:ttl_s AS float8), :bucket, :outside)
ON CONFLICT (tenant, name, owner) DO UPDATE SET token = excluded.token, until = excluded.until, woken = NULL, outside = excluded.outside,
    since = CASE WHEN onward_locks.token IS NULL THEN excluded.since ELSE onward_locks.since END

-- name: lock_wait
-- The owner waits, in the place that it has in the line, or in a new one at the end. A row that is up to date is not written again.
INSERT INTO onward_locks (tenant, name, owner, label, task_id, key, token, place, since, until, bucket, outside)
VALUES (:tenant, :name, :owner, :label, :task_id, :key, NULL, :place, onward_now(), onward_now() + CAST(:ttl_s AS float8), :bucket, :outside)
ON CONFLICT (tenant, name, owner) DO UPDATE SET until = excluded.until, woken = NULL
WHERE onward_locks.woken IS NOT NULL OR onward_locks.until < excluded.until - 1

-- name: lock_renew
-- Renew the lease of a program, unless it has ended or the lock was taken from it.
UPDATE onward_locks SET until = onward_now() + CAST(:ttl_s AS float8)
WHERE tenant = :tenant AND name = :name AND owner = :owner AND token = :token AND until > onward_now() RETURNING token

-- name: lock_drop
-- The owner neither holds the lock nor waits for it any more.
DELETE FROM onward_locks WHERE tenant = :tenant AND name = :name AND owner = :owner AND (:any_token OR token = :token) RETURNING token

-- name: lock_release
-- Take a lock from its holder.
DELETE FROM onward_locks WHERE tenant = :tenant AND name = :name AND token IS NOT NULL RETURNING label, token, outside, owner

-- name: drop_locks_of
-- A task leaves a block, or (with an empty key) ends: it neither holds nor waits for the lock, or any lock.
DELETE FROM onward_locks WHERE task_id = :id AND (:key = '' OR key = :key)

-- name: locks_of_the_dead
-- Delete what ended tasks and programs without a lease have left. Those of programs stay a minute longer, for readers.
DELETE FROM onward_locks WHERE (task_id IS NULL AND until < onward_now() - 60)
    OR (task_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onward_queue q WHERE q.task_id = onward_locks.task_id))

-- name: lock_lines
-- Locks that some wait for, and that no one holds who lives.
SELECT DISTINCT n.tenant, n.name FROM onward_locks n WHERE n.token IS NULL
  AND NOT EXISTS (SELECT 1 FROM onward_locks h WHERE h.tenant = n.tenant AND h.name = n.name AND h.token IS NOT NULL AND {lock_lives}) LIMIT :limit

-- name: lock_first
-- The first in the line of a lock that could take it now.
SELECT w.owner, w.task_id, w.place FROM onward_locks w WHERE w.tenant = :tenant AND w.name = :name AND w.token IS NULL AND {lock_ready}
ORDER BY w.place LIMIT 1

-- name: lock_woken
-- Note that a waiting task was told that it is its turn.
UPDATE onward_locks SET woken = onward_now() WHERE tenant = :tenant AND name = :name AND owner = :owner AND token IS NULL
  AND (woken IS NULL OR woken < onward_now() - :again_s) RETURNING woken

-- name: lock_names
-- Locks after a name that a reader may see, by tenant and name.
SELECT tenant, name, count(*) - count(token) AS waiting FROM onward_locks
WHERE (:of_all OR tenant = :tenant) AND (tenant > :after_tenant OR (tenant = :after_tenant AND name > :after_name))
GROUP BY tenant, name ORDER BY tenant, name LIMIT :limit

-- name: lock_contenders
-- The holder of a lock, and the first of its line.
SELECT label, task_id, token, since, until, outside FROM onward_locks WHERE tenant = :tenant AND name = :name
ORDER BY CASE WHEN token IS NULL THEN 1 ELSE 0 END, place LIMIT :limit

-- name: locks_outside
-- Locks that tasks hold with a coordinator outside of this database.
SELECT tenant, name, owner, label FROM onward_locks
WHERE outside <> '' AND token IS NOT NULL AND task_id IS NOT NULL AND (tenant > :after_tenant OR (tenant = :after_tenant AND name > :after_name))
ORDER BY tenant, name LIMIT :limit

-- name: mark_mirror
-- Note that a database is the mirror of another engine, unless it has tasks.
INSERT INTO onward_schema (name, value) SELECT 'mirror', 1 WHERE NOT EXISTS (SELECT 1 FROM onward_tasks)
ON CONFLICT (name) DO UPDATE SET value = 1 RETURNING name

-- name: copy_progress
-- How much of a task a copy has: its last record, its last message, how many contents, and its outcome. Of a pruned task some records stay.
SELECT COALESCE((SELECT j.seq FROM onward_journal j WHERE j.task_id = :id ORDER BY j.seq DESC LIMIT 1), 0) AS head,
       COALESCE((SELECT max(i.number) FROM onward_inbox i WHERE i.task_id = :id), 0) AS messages,
       (SELECT count(*) FROM onward_contents c WHERE c.task_id = :id) AS contents,
       (SELECT o.state FROM onward_outcomes o WHERE o.task_id = :id) AS state,
       EXISTS (SELECT 1 FROM onward_tasks t WHERE t.id = :id) AS known

-- name: copy_task
-- A task of another engine, in a copy for readers.
INSERT INTO onward_tasks (id, task, queue, priority, created_at, key, fingerprint, input, options, parent, grp, tenant)
VALUES (:id, :task, :queue, :priority, :created_at, :key, :fingerprint, :input, :options, :parent, :grp, :tenant) ON CONFLICT DO NOTHING

-- name: copy_queue
-- Its row while it has not ended.
INSERT INTO onward_queue (task_id, queue, task, priority, attempt, reason, due_at, worker, parent, grp, turn_group, inbox)
VALUES (:id, :queue, :task, :priority, :attempt, :reason, :due_at, :worker, :parent, :grp, :tenant, :inbox)
ON CONFLICT (task_id) DO UPDATE SET attempt = excluded.attempt, reason = excluded.reason, due_at = excluded.due_at, worker = excluded.worker,
    inbox = excluded.inbox

-- name: copy_record
-- A record of it, with the number and the time that it has there.
INSERT INTO onward_journal (task_id, seq, shift, kind, key, data, at) VALUES (:id, :seq, :shift, :kind, :key, :data, :at) ON CONFLICT DO NOTHING

-- name: copy_message
-- A message to it.
INSERT INTO onward_inbox (task_id, number, id, kind, name, ref, data, at) VALUES (:id, :number, :message, :kind, :name, :ref, :data, onward_now())
ON CONFLICT DO NOTHING

-- name: copy_content
-- A content of it.
INSERT INTO onward_contents (task_id, id, data) VALUES (:id, :name, :data) ON CONFLICT DO NOTHING

-- name: copy_outcome
-- How it ended, at the time of its last record.
INSERT INTO onward_outcomes (task_id, state, attempt, seq, finished_at)
SELECT j.task_id, CAST(:state AS text), CAST(:attempt AS integer), j.seq, j.at FROM onward_journal j WHERE j.task_id = :id AND j.seq = CAST(:seq AS bigint)
ON CONFLICT DO NOTHING

-- name: document_put
-- Store a document, in place of an older one.
INSERT INTO onward_documents (tenant, collection, key, data, at) VALUES (:tenant, :collection, :key, :data, onward_now())
ON CONFLICT (tenant, collection, key) DO UPDATE SET data = excluded.data, at = excluded.at

-- name: document_add
-- Store a document, unless there is one under its key.
INSERT INTO onward_documents (tenant, collection, key, data, at) VALUES (:tenant, :collection, :key, :data, onward_now())
ON CONFLICT (tenant, collection, key) DO NOTHING

-- name: documents
-- Documents by their keys.
SELECT key, data FROM onward_documents WHERE tenant = :tenant AND collection = :collection AND key AMONG (:keys)

-- name: documents_between
-- Documents from one key up to another, in the order of their keys.
SELECT key, data FROM onward_documents WHERE tenant = :tenant AND collection = :collection AND key >= :start AND key < :stop
ORDER BY key LIMIT :limit

-- name: documents_back
-- The same from the last one on.
SELECT key, data FROM onward_documents WHERE tenant = :tenant AND collection = :collection AND key >= :start AND key < :stop
ORDER BY key DESC LIMIT :limit

-- name: document_keys
-- The keys of documents from one key up to another, in their order.
SELECT key FROM onward_documents WHERE tenant = :tenant AND collection = :collection AND key >= :start AND key < :stop
ORDER BY key LIMIT :limit

-- name: documents_drop
-- Delete documents.
DELETE FROM onward_documents WHERE tenant = :tenant AND collection = :collection AND key AMONG (:keys)

-- name: documents_after
-- Where documents are, in order, after one of them.
SELECT tenant, collection, key FROM onward_documents WHERE (tenant, collection, key) > (:tenant, :collection, :key)
ORDER BY tenant, collection, key LIMIT :limit

-- name: document_seal
-- Seal a document that is as it was read.
UPDATE onward_documents SET data = :data WHERE tenant = :tenant AND collection = :collection AND key = :key AND data = :seen RETURNING key

-- name: epoch
-- The present epoch.
SELECT number, id, backup_at, restored_at, own_tables FROM onward_epochs ORDER BY number DESC LIMIT 1

-- name: epoch_id
-- The name of the present epoch.
SELECT id FROM onward_epochs ORDER BY number DESC LIMIT 1

-- name: lost_since
-- The time that the restores after a moment took from what was there then: since when, and whether the tables of the application went back
-- with all of them.
SELECT min(backup_at), min(CASE WHEN own_tables THEN 1 ELSE 0 END) FROM onward_epochs WHERE restored_at > :at

-- name: epoch_begin
-- A new epoch.
INSERT INTO onward_epochs (number, id, backup_at, restored_at, own_tables) VALUES (:number, :id, :backup_at, :restored_at, :own_tables)

-- name: epoch_release
-- Free the tasks that workers of the epoch before held. Their leases have ended.
UPDATE onward_queue SET worker = NULL, due_at = CASE WHEN paused THEN CAST(:never AS float8) END, reason = CASE WHEN paused THEN 'paused' ELSE 'queued' END
WHERE worker IS NOT NULL

-- name: epoch_verdicts
-- Unfinished tasks may have acted on these verdicts since the backup: their effects are in doubt again, and can be resolved again.
UPDATE onward_inbox SET ref = NULL WHERE kind = 'resolve' AND name IN ('not_happened', 'nothing_happened')
AND task_id IN (SELECT task_id FROM onward_queue)

-- name: epoch_workers
-- Forget the workers of the epoch before.
DELETE FROM onward_workers

-- name: epoch_intakes
-- Forget what their intakes reported.
DELETE FROM onward_intakes

-- name: epoch_sessions
-- End all sessions of people: some of them may have been ended since the backup.
DELETE FROM onward_sessions

-- name: epoch_tokens
-- Let the next tokens of locks be higher than all that were given since the backup.
UPDATE onward_lock_counters SET token = CASE WHEN token + :jump > CAST(:least AS bigint) THEN token + :jump ELSE CAST(:least AS bigint) END

-- name: epoch_held_tokens
-- The same for the locks that tasks hold.
UPDATE onward_locks SET token = CASE WHEN token + :jump > CAST(:least AS bigint) THEN token + :jump ELSE CAST(:least AS bigint) END
WHERE token IS NOT NULL

-- name: epoch_moment
-- The time of the newest record.
SELECT COALESCE(max(at), 0) FROM onward_journal

-- name: lost_count
-- How many they are.
SELECT count(*) FROM onward_queue q WHERE EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = q.task_id AND j.kind = 'task.restored')

-- name: lost_tasks
-- Unfinished tasks that a restore has taken back to the moment of the backup, in the order of their ids.
SELECT q.task_id, q.task, q.reason, q.worker FROM onward_queue q
WHERE q.task_id > :after AND EXISTS (SELECT 1 FROM onward_journal j WHERE j.task_id = q.task_id AND j.kind = 'task.restored')
ORDER BY q.task_id LIMIT :limit
