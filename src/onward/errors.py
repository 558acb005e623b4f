"""The exception tree. Callers pass data; each error writes its own sentence and names what to do now.

    OnwardError
    ├── UsageError            the caller asked for something that cannot be
    │   ├── InvalidInput · KeyConflict · BadSetting · ArtifactTooLarge · NotSentAgain
    ├── NotFound              UnknownTask (no such handler) · TaskNotFound (no such id) · ScheduleNotFound · NoState ·
    │                         ArtifactNotFound
    ├── Unauthorized          no key was shown, or none that counts; Forbidden: it is not for this (OwnCall, NotForTenants)
    │   └── KeylessOutside    there is no key at all yet, and the request does not come from this machine
    ├── StateConflict         the task's state forbids it; CannotFork: not after this record
    ├── MoreMatch             for many tasks at once: far more match than were seen
    ├── QueueFull             come back in `retry_after` seconds
    ├── StoreUnavailable      the database cannot be reached or written just now; DiskFull, ReadOnly, TooSlow, FileReplaced
    │   └── SchemaMismatch    it is there, but not of this version
    ├── Unreachable           for clients: the server gives no answer
    ├── ArtifactDamaged       what was kept is not what was left behind
    ├── TaskFailed            raised where a result was awaited; TaskCancelled
    ├── ResultTimeout         no result within the time given; TaskParked: none before a person has seen to it
    ├── StepFailed            raised inside a handler when a step has failed for good; StepTimeout is its usual cause
    ├── WaitTimeout           what a handler waited for did not come in time; Denied: an approval was refused
    ├── AlreadyDecided        a question or approval that somebody else, or (AskExpired) the time, was quicker with
    ├── Withdrawn             a question or approval that nobody waits for any more; StaleDecision: it is another one
    ├── DeadlineExceeded      why a task failed that took, or (Expired) waited, too long
    ├── UnfitCheckpoint       why a task parked: its last checkpoint is not one to go on from
    └── Fatal                 for handlers to raise: no retry can heal this; RetryLater: it can, but not before a time
        ├── BudgetSpent       there is not enough left of a budget
        ├── TimeUp            a part of an agent's work was cut off, so that it can still answer within its deadline
        └── NoAnswer          an agent's model gave none; TooDeep: agents that hand work on to agents without an end

`code` is stable and meant for programs, `status` is the HTTP status and `exit_status` that of the command line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class OnwardError(Exception):
    """Everything Onward raises on purpose."""

    code = "error"
    status = 500
    exit_status = 1


class UsageError(OnwardError):
    """The call itself is wrong; trying again will not help."""

    code = "usage"
    status = 400
    exit_status = 2


class InvalidInput(UsageError):
    """The input is not JSON, or not what the handler takes."""

    code = "invalid_input"
    status = 422


class BadSetting(UsageError):
    """A setting (argument, environment or file) has a value that makes no sense."""

    code = "bad_setting"

    def __init__(self, name: str, value: object, wanted: str) -> None:
        super().__init__(f"setting {name} is {value!r}, but must be {wanted}")


class KeyConflict(UsageError):
    """An idempotency key was used before with another task, input or options."""

    code = "key_conflict"
    status = 422

    def __init__(self, key: str, task_id: str) -> None:
        self.key: str = key
        self.task_id: str = task_id
        super().__init__(
            f"the key {key!r} belongs to task {task_id}, which was submitted with another task name, input or options; "
            "use a new key for new work, or the same input to get that task back"
        )


class NotFound(OnwardError):
    """What was named does not exist."""

    code = "not_found"
    status = 404
    exit_status = 4


class UnknownTask(NotFound):
    """No handler of that name is known."""

    code = "unknown_task"

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        listed = ", ".join(sorted(known)) or "none so far"
        super().__init__(
            f"no task is named {name!r} (known: {listed}); start a worker that offers it, or check the spelling"
        )


class TaskNotFound(NotFound):
    """No task has that id."""

    code = "task_not_found"

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"there is no task {task_id!r}; `onward list` shows the ids")


class ScheduleNotFound(NotFound):
    """No schedule has that name."""

    code = "schedule_not_found"

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        listed = ", ".join(known[:20]) or "none so far"
        super().__init__(f"there is no schedule {name!r} (there are: {listed}); `onward schedules` lists them")


class NoState(NotFound):
    """A task that keeps no state."""

    code = "no_state"

    def __init__(self, task_id: str, task: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"task {task_id} ({task}) has no state: only agents have one, and handlers that begin one with ctx.patch, "
            "and not before a worker has started them"
        )


class Unauthorized(OnwardError):
    """Nobody knows who asks. One sentence for every reason, so that nobody learns which keys there were."""

    code = "unauthorized"
    status = 401
    exit_status = 2

    def __init__(self) -> None:
        super().__init__(
            "this needs a key that is valid now, as in `Authorization: Bearer onw_…`; `onward keys` makes one"
        )


class KeylessOutside(Unauthorized):
    """There is no key yet, and the request is not known to come from this machine."""

    code = "no_keys_yet"

    def __init__(self, why: str) -> None:
        OnwardError.__init__(
            self,
            f"there is no key yet, and without one only programs on this machine are answered; {why}. Make a key where the database is "
            "(`onward keys create --name ME --scope admin,read,submit,decide`) and send it as `Authorization: Bearer onw_…`",
        )


class Forbidden(OnwardError):
    """The key is known, and not for this."""

    code = "forbidden"
    status = 403
    exit_status = 2

    def __init__(self, scope: str, name: str) -> None:
        self.scope = scope
        whose = f"the key {name!r}" if name else "this key"
        super().__init__(
            f"{whose} lacks the scope {scope!r}; use one that has it (`onward keys create --scope {scope}`)"
        )


class StateConflict(OnwardError):
    """The state of the task forbids what was asked."""

    code = "state_conflict"
    status = 409
    exit_status = 2

    def __init__(self, task_id: str, state: str, verb: str, advice: str) -> None:
        self.task_id: str = task_id
        self.state: str = state
        super().__init__(f"task {task_id} is {state} and cannot be {verb}; {advice}")


class CannotFork(StateConflict):
    """A journal cannot be cut where something is open that belongs to its task."""

    code = "cannot_fork"

    def __init__(self, task_id: str, at: int, why: str, near: list[int]) -> None:
        self.task_id: str = task_id
        self.at: int = at
        self.near: list[int] = near
        numbers = " and ".join(str(number) for number in near)
        advice = f"the nearest records after which it can be are {numbers}" if near else "nor after any other"
        OnwardError.__init__(self, f"task {task_id} cannot be forked after record {at}: {why}; {advice}")


class QueueFull(OnwardError):
    """The queue holds as many waiting tasks as it may; nothing was submitted."""

    code = "queue_full"
    status = 429
    exit_status = 6

    def __init__(self, queue: str, limit: int, retry_after: float) -> None:
        self.queue: str = queue
        self.limit: int = limit
        self.retry_after: float = retry_after
        super().__init__(
            f"queue {queue!r} is full ({limit} tasks wait); nothing was submitted, come back in {retry_after:.0f} s "
            "or raise ONWARD_QUEUE_LIMIT"
        )


class StoreUnavailable(OnwardError):
    """The database cannot be reached or written at the moment; what was acknowledged is safe."""

    code = "store_unavailable"
    status = 503
    exit_status = 6


class DiskFull(StoreUnavailable):
    """There is no room for another write."""

    code = "disk_full"
    status = 507

    def __init__(self, where: str) -> None:
        super().__init__(
            f"no room left to write to {where}; nothing acknowledged was lost, free some space and try again"
        )


class ReadOnly(StoreUnavailable):
    """The database refuses writes."""

    code = "read_only"

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} cannot be written; check its permissions (and those of its folder), or name another with --db"
        )


class TooSlow(StoreUnavailable):
    """The database did not answer in time; it may have done what it was asked for, or not."""

    code = "too_slow"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} did not answer in time ({why}); it, or the network to it, is slow, or something holds a lock"
        )


class FileReplaced(StoreUnavailable):
    """The file of the database is not the one that this process has opened."""

    code = "file_replaced"

    def __init__(self, where: str, file: str, *, there: bool) -> None:
        happened = "is another file now: it was replaced" if there else "is not there any more: it was deleted or moved"
        super().__init__(
            f"{where}: {file} {happened} while this process had it open. Nothing is written any more, as it would go into the old file "
            "and be lost; what was acknowledged before is in the old file. Put that file back, or restart this process (and all "
            "others that use it) to go on with what is there now"
        )


class SchemaMismatch(StoreUnavailable):
    """The database has another version of the tables than this program."""

    code = "schema_mismatch"


class TaskFailed(OnwardError):
    """The task whose result was awaited has failed. `partial` is the best result that it had by then, where it had one."""

    code = "task_failed"
    partial: object = None

    def __init__(self, task_id: str, task: str, error: dict[str, object], partial: object = None) -> None:
        self.partial = partial
        self.task_id: str = task_id
        self.error: dict[str, object] = error
        super().__init__(f"task {task_id} ({task}) failed: {error.get('message', 'unknown error')}")


class TaskCancelled(OnwardError):
    """The task whose result was awaited was cancelled."""

    code = "task_cancelled"

    def __init__(self, task_id: str, task: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} ({task}) was cancelled")


class ResultTimeout(OnwardError):
    """The result was not there in time; the task itself goes on."""

    code = "result_timeout"
    status = 504
    exit_status = 3

    def __init__(self, task_id: str, timeout: float, state: str, reason: str) -> None:
        self.task_id = task_id
        stuck = reason in {"parked", "quarantined", "paused"}
        then = f"and rests until somebody says `onward resume {task_id}`" if stuck else "and goes on; ask again later"
        super().__init__(f"task {task_id} has no result after {timeout:g} s: it is {state} ({reason}) {then}")


class TaskParked(ResultTimeout):
    """The task is parked or quarantined: there will be no result before a person has seen to it. `why` is what the journal says."""

    code = "task_parked"

    def __init__(self, task_id: str, task: str, reason: str, why: str) -> None:
        OnwardError.__init__(
            self,
            f"task {task_id} ({task}) stands still, it is {reason}: {why or 'its journal does not say why'}; when that is mended, "
            f"`onward resume {task_id}` lets it go on, and `onward cancel {task_id}` ends it",
        )
        self.task_id: str = task_id
        self.reason: str = reason
        self.why: str = why


class StepFailed(OnwardError):
    """A step has failed for good. The same error is raised again when the journal is replayed."""

    code = "step_failed"

    def __init__(self, step: str, attempts: int, kind: str, message: str) -> None:
        self.step: str = step
        self.attempts: int = attempts
        self.kind: str = kind
        self.message: str = message
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"step {step!r} was tried {times} and failed: {kind}: {message}")


class StepTimeout(OnwardError):
    """A step took longer than its timeout."""

    code = "step_timeout"

    def __init__(self, step: str, timeout: float) -> None:
        super().__init__(f"step {step!r} took longer than its timeout of {timeout:g} s")


class DeadlineExceeded(OnwardError):
    """The task took longer than its deadline allows."""

    code = "deadline_exceeded"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"deadline exceeded: {seconds:g} s after its first start the task had not ended")


class Expired(OnwardError):
    """The task waited in the queue for longer than `expires`."""

    code = "expired"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"expired: no worker had started the task {seconds:g} s after it was submitted")


class WaitTimeout(OnwardError):
    """What a handler waited for did not come in time."""

    code = "wait_timeout"


class UnfitCheckpoint(OnwardError):
    """The last checkpoint of a task is not one to go on from: too old, of another version, not to be read. A task whose
    handler raises it parks, and a person looks; nothing is tried again blindly."""

    code = "unfit_checkpoint"
    status = 409
    exit_status = 2

    def __init__(self, number: int | None, why: str, advice: str) -> None:
        self.number = number
        which = "its last checkpoint" if number is None else f"its checkpoint {number}"
        super().__init__(f"the task cannot go on from {which}: {why}; {advice}")


class Fatal(OnwardError):
    """Raise it (or a subclass) in a step or handler for a failure that no retry can heal."""

    code = "fatal"


class Denied(Fatal):
    """Somebody, or the default, said no: nobody is asked again because of a retry."""

    code = "denied"

    def __init__(self, what: str, reason: str) -> None:
        self.what: str = what
        self.reason: str = reason
        super().__init__(f"denied: {what}" + (f" ({reason})" if reason else ""))


class BudgetSpent(Fatal):
    """There is not enough left of a budget for what comes next."""

    code = "budget_spent"
    status = 409

    def __init__(
        self, task_id: str, kind: str, used: float, limit: float | None, needs: float | None = None, held: float = 0
    ) -> None:
        self.task_id: str = task_id
        self.kind: str = kind
        self.needs: float | None = needs
        asked = BUDGET_OPTIONS.get(kind, kind)
        self.left: float | None = None if limit is None or kind == "wall_time" else max(limit - used, 0)
        self.enough: float | None = None if needs is None else _rounded_up(used + needs, kind)
        """The limit with which the next call would fit."""
        gone = "its time is up"
        if self.left is not None:
            by_others = f" ({_amount(held, kind)} more are reserved by calls under way)" if held > 0 else ""
            need = "an unknown amount" if needs is None else _amount(needs, kind)
            gone = f"it needs {need}, and {_amount(self.left, kind)} of {_amount(limit or 0, kind)} are left{by_others}"
        self.what: str = f"the budget of task {task_id} has not enough {asked} for the next call: {gone}"
        raised = "N" if self.enough is None else f"{self.enough:.10g}"
        super().__init__(f"{self.what}; `onward budget {task_id[-8:]} --{asked} {raised}` raises it")


def _amount(value: float, kind: str) -> str:
    return f"${value:,.6g}" if kind == "cost_usd" else f"{value:,.0f}"


def _rounded_up(value: float, kind: str) -> float:
    return math.ceil(value * 10_000) / 10_000 if kind == "cost_usd" else math.ceil(value)


BUDGET_OPTIONS = {"llm_tokens": "tokens", "cost_usd": "usd", "wall_time": "time"}
"""The options of `onward budget`, where they are not called as what they limit."""


class TimeUp(Fatal):
    """So much of a task's time is gone that an agent starts nothing new and cuts off what it waits for: the rest is for its
    answer."""

    code = "time_up"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: most of the task's time until its deadline is gone")


class NoAnswer(Fatal):
    """An agent gave up on its model: what it said again and again was of no use."""

    code = "no_answer"


class TooDeep(Fatal):
    """Agents that hand work on to agents, and those to others, and so on."""

    code = "too_deep"

    def __init__(self, agent: str, most: int) -> None:
        super().__init__(
            f"the agent {agent!r} was not asked: agents have handed this work on {most} times, and no further; "
            "do it yourself, or answer with what you have"
        )


class AlreadyDecided(OnwardError):
    """Somebody else was first."""

    code = "already_decided"
    status = 409
    exit_status = 2

    def __init__(self, what: str, said: str) -> None:
        self.said = said
        super().__init__(f"{what} is decided already: {said}; what you said changes nothing")


class AskExpired(AlreadyDecided):
    """The time was first."""

    code = "ask_expired"
    status = 410

    def __init__(self, what: str) -> None:
        super().__init__(what, "its time was up")


class Withdrawn(OnwardError):
    """The task goes on, or is being undone, without what it asked for here."""

    code = "withdrawn"
    status = 409
    exit_status = 2

    def __init__(self, what: str, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"nobody waits for {what} any more: task {task_id} is being cancelled, or has undone what asked for it; "
            "nothing was written"
        )


class StaleDecision(OnwardError):
    """Somebody decides on something else than what is asked."""

    code = "stale_decision"
    status = 409
    exit_status = 2

    def __init__(self, what: str, asked: str, seen: str) -> None:
        self.asked: str = asked
        self.seen: str = seen
        super().__init__(
            f"{what} asks for something else than what you saw (its hash is {asked}, and not {seen:.80}); nothing was "
            "written, look at it again (`onward approvals`) and decide anew"
        )


class RetryLater(OnwardError):
    """Raise it to say when the next attempt makes sense, as an API does with `Retry-After`."""

    code = "retry_later"

    def __init__(self, message: str, *, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class MoreMatch(OnwardError):
    """Far more tasks match a filter than the caller has seen."""

    code = "more_match"
    status = 409
    exit_status = 2

    def __init__(self, matched: int, count: int, more: bool) -> None:
        self.matched: int = matched
        self.count: int = count
        some = f"{matched:,} or more tasks match" if more else f"{matched:,} tasks match"
        super().__init__(f"{some} by now, and not {count:,}; nothing was done: look again, and say how many are meant")


class NotSentAgain(UsageError):
    """A delivery that cannot be sent again just now."""

    code = "not_sent_again"
    status = 409

    def __init__(self, delivery: str, why: str) -> None:
        super().__init__(f"delivery {delivery} is not sent again: {why}")


class ArtifactNotFound(NotFound):
    """The task has no artifact of that id. An artifact of another task does not count."""

    code = "artifact_not_found"

    def __init__(self, task_id: str, artifact_id: str, known: Iterable[str] | None = None) -> None:
        self.task_id: str = task_id
        self.artifact_id: str = artifact_id
        advice = f"`onward artifacts {task_id}` lists what it has, and ONWARD_ARTIFACTS must say where that is kept"
        if known is not None:
            ids = list(known)
            more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
            advice = f"it has {', '.join(ids[:5]) or 'none so far'}{more}"
        super().__init__(f"task {task_id} has no artifact {artifact_id[:80]!a}; {advice}")


class ArtifactDamaged(OnwardError):
    """The stored bytes do not have the hash of their id: they were changed."""

    code = "artifact_damaged"

    def __init__(self, task_id: str, artifact_id: str) -> None:
        self.task_id: str = task_id
        self.artifact_id: str = artifact_id
        super().__init__(
            f"the artifact {artifact_id} of task {task_id} is not what the task left behind: its bytes were changed where they "
            "are kept; bring them back from a copy"
        )


class ArtifactTooLarge(UsageError):
    """The bytes are more than an artifact may have."""

    code = "artifact_too_large"
    status = 413

    def __init__(self, size: int, most: int) -> None:
        self.size: int = size
        self.most: int = most
        super().__init__(
            f"an artifact may have {most:,} bytes, this has {size:,} and was not kept; leave less of it behind, in parts, or "
            "store it elsewhere and keep its address"
        )
