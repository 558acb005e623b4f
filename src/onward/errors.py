"""The exception tree. Callers pass data; each error writes its own sentence: what happened, to which task, what to do now.

    OnwardError
    ├── UsageError            the caller asked for something impossible
    │   ├── InvalidInput · KeyConflict · BadSetting · ArtifactTooLarge · NotSentAgain · BadWebhook · UnknownSecret · PriorityTooHigh
    ├── NotFound              UnknownTask (no such handler) · TaskNotFound (no such id) · ScheduleNotFound · NoState ·
    │                         ArtifactNotFound · DeadLetterNotFound
    ├── Unauthorized          the request has no key or session, or an invalid one; Forbidden: the key is not for this (OwnCall,
    │                         NotApprover, NotForTenants)
    │   └── KeylessOutside    there is no key at all yet, and the request does not come from this machine
    ├── StateConflict         the task's state forbids it; CannotFork: not after this record
    ├── TooManyAskers         a task has as many askers as Onward records
    ├── MoreMatch             for many tasks at once: far more match than the caller saw
    ├── QueueFull             come back in `retry_after` seconds; QuotaExceeded: a tenant has used up a quota; TooManyStreams
    ├── StoreUnavailable      the database cannot be reached or written now; DiskFull, ReadOnly, TooSlow, FileReplaced, EpochEnded
    │   └── SchemaMismatch    the database has another version of the tables
    ├── BackupDamaged         a folder is no whole backup, or was changed since it was written
    ├── BrokerUnavailable     a broker cannot be reached now, or has not the place that was named
    ├── Unreachable           for clients: the server gives no answer
    ├── SecretMissing         the worker has no value for a secret; UnfitSecret (a Fatal): it has one that cannot be masked
    ├── ArtifactDamaged       the stored bytes are not the bytes that the step saved
    ├── TaskFailed            raised to callers that wait for the result; TaskCancelled
    ├── ResultTimeout         no result within the time given; TaskParked: none before a person resumes the task
    ├── StepFailed            raised inside a handler when a step has failed for good; StepTimeout is its usual cause
    ├── WaitTimeout           the message that a handler waited for did not come in time; LockTimeout: nor was a lock free; Denied: an
    │                         approval was refused
    ├── TooManyLocks          a task holds too many locks, or too many wait for one; CoordinatorUnavailable: Redis or etcd is away
    ├── AlreadyDecided        another person was quicker to decide, or (AskExpired) its time was up
    ├── Withdrawn             the task no longer waits for this question or approval; StaleDecision: it is another one
    ├── AuditKeyMissing       the audit log is keyed, and this process has no key to write to it
    ├── EncryptionKeyMissing  a payload is encrypted, and this process has not its key; DataErased: its key was destroyed;
    │                         PayloadDamaged: it was changed; StillNeeded: unfinished tasks need data that is to be erased
    ├── DeadlineExceeded      why a task failed that took, or (Expired) waited, too long
    ├── UnfitCheckpoint       why a task parked: it cannot continue from its last checkpoint
    └── Fatal                 for handlers to raise: no retry can heal this; RetryLater: a retry can, but not before a time
        ├── BudgetSpent       there is not enough left of a budget
        ├── TimeUp            a part of an agent's work was cut off, so that it can still answer within its deadline
        └── NoAnswer          an agent's model gave none; TooDeep: agents hand work on to agents without an end

`code` is stable and meant for programs, `status` is the HTTP status and `exit_status` that of the command line.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any


class OnwardError(Exception):
    """The base of all exceptions that Onward raises on purpose."""

    code = "error"
    status = 500
    exit_status = 1


class UsageError(OnwardError):
    """The call itself is wrong; trying again will not help."""

    code = "usage"
    status = 400
    exit_status = 2


class InvalidInput(UsageError):
    """The input is not JSON, or the handler does not accept it."""

    code = "invalid_input"
    status = 422


class BadSetting(UsageError):
    """A setting (argument, environment variable or file) has an impossible value."""

    code = "bad_setting"

    def __init__(self, name: str, value: object, wanted: str) -> None:
        super().__init__(f"{name} is {value!r}, but must be {wanted}")


class KeyConflict(UsageError):
    """An idempotency key was used before with another task, input or options."""

    code = "key_conflict"
    status = 422

    def __init__(self, key: str, task_id: str, state: str = "", differs: Sequence[str] = ()) -> None:
        self.key: str = key
        self.task_id: str = task_id
        self.state: str = str(state)
        self.differs: list[str] = list(differs)
        """The fields that differ, as `input.order.amount` or `queue`, where the caller may read the task. The first few only."""
        other = f"other values ({', '.join(differs)})" if differs else "another task name, input or options"
        super().__init__(
            f"the key {key!r} belongs to task {task_id}{state and f' ({state})'}, which was submitted with {other}; "
            "use a new key for new work, or the same input and options to get that task back"
        )


class NotFound(OnwardError):
    """The named task, schedule, handler or artifact does not exist."""

    code = "not_found"
    status = 404
    exit_status = 4


def _near(name: str, known: list[str]) -> str:
    """A question, when the name looks like one of those that are known."""
    near = difflib.get_close_matches(name[:200], known[:1000], n=1)
    return f"did you mean {near[0]!r}? If not, " if near else ""


NAMED_HANDLERS = 20
"""Handlers that an error names."""


class UnknownTask(NotFound):
    """No handler of that name is known."""

    code = "unknown_task"

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        names = sorted(known)
        more = f" and {len(names) - NAMED_HANDLERS:,} more" if len(names) > NAMED_HANDLERS else ""
        listed = (", ".join(names[:NAMED_HANDLERS]) or "none so far") + more
        super().__init__(
            f"no task is named {name!r} (known: {listed}); {_near(name, names)}start a worker that offers it, or check the spelling"
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
        near = _near(name, known)
        super().__init__(f"there is no schedule {name!r} (there are: {listed}); {near}`onward schedules` lists them")


class DeadLetterNotFound(NotFound):
    """No dead letter has that id."""

    code = "dead_letter_not_found"

    def __init__(self, letter_id: str) -> None:
        self.letter_id = letter_id
        super().__init__(f"there is no dead letter {letter_id!r:.80}; `onward dead` lists those that there are")


class NoState(NotFound):
    """The task keeps no state."""

    code = "no_state"

    def __init__(self, task_id: str, task: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"task {task_id} ({task}) has no state: only agents have one, and handlers that begin one with ctx.patch, "
            "and not before a worker has started them"
        )


class Unauthorized(OnwardError):
    """The request has no valid key or session. One sentence for every reason, so that callers do not learn which keys exist."""

    code = "unauthorized"
    status = 401
    exit_status = 2
    sign_in: str = ""
    """The identity provider, where people can sign in with one."""

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
    """The key or session is valid, but lacks the scope for this request."""

    code = "forbidden"
    status = 403
    exit_status = 2

    def __init__(self, scope: str, name: str, *, person: bool = False) -> None:
        self.scope = scope
        if person:
            sentence = (
                f"{name} has no role with the scope {scope!r}; ask your administrator for one, then sign in again"
            )
        else:
            whose = f"the key {name!r}" if name else "this key"
            sentence = f"{whose} lacks the scope {scope!r}; use one that has it (`onward keys create --scope {scope}`)"
        super().__init__(sentence)


class OwnCall(Forbidden):
    """An agent used its own key to decide on a task in which it takes part."""

    code = "own_call"

    def __init__(self, task_id: str, agent: str, name: str) -> None:
        self.task_id = task_id
        self.agent = agent
        OnwardError.__init__(
            self,
            f"the key {name!r} belongs to the agent {agent!r}, which takes part in task {task_id} or its tree: "
            "a person or another key has to decide; nothing was written",
        )


class NotApprover(Forbidden):
    """The rule of an approval does not let this caller decide it."""

    code = "not_approver"

    def __init__(self, what: str, why: str, rule: str) -> None:
        self.why = why
        self.rule = rule
        OnwardError.__init__(self, f"{what} has a rule, and {why}. It needs {rule}. Nothing was written")


class NotForTenants(Forbidden):
    """A key or a person of a tenant was used for something beyond that tenant."""

    code = "not_for_tenants"

    def __init__(self, subject: str, tenant: str, name: str, *, person: bool = False) -> None:
        self.tenant = tenant
        whose = f"{name} belongs to" if person else f"the key {name!r} is for"
        advice = "a person without a tenant can do it" if person else "use a key without a tenant"
        OnwardError.__init__(
            self, f"{whose} tenant {tenant!r}, and this is about {subject}, beyond that tenant; {advice}"
        )


class StateConflict(OnwardError):
    """The state of the task forbids the request."""

    code = "state_conflict"
    status = 409
    exit_status = 2

    def __init__(self, task_id: str, state: str, verb: str, advice: str) -> None:
        self.task_id: str = task_id
        self.state: str = state
        super().__init__(f"task {task_id} is {state} and cannot be {verb}; {advice}")


class TooManyAskers(OnwardError):
    """A task has as many askers as Onward records for one; the request was refused."""

    code = "too_many_askers"
    status = 409
    exit_status = 2

    def __init__(self, task_id: str, most: int) -> None:
        self.task_id: str = task_id
        super().__init__(
            f"{most:,} principals asked for task {task_id} already, and each of them is recorded; "
            "submit a task of your own, with another key, or ask one of them"
        )


class CannotFork(StateConflict):
    """The journal cannot be forked after this record: something is open there that belongs to its task."""

    code = "cannot_fork"

    def __init__(self, task_id: str, at: int, why: str, near: list[int]) -> None:
        self.task_id: str = task_id
        self.at: int = at
        self.near: list[int] = near
        numbers = " and ".join(str(number) for number in near)
        advice = f"the nearest records after which it can be are {numbers}" if near else "nor after any other"
        OnwardError.__init__(self, f"task {task_id} cannot be forked after record {at}: {why}; {advice}")


class QueueFull(OnwardError):
    """The queue has as many waiting tasks as it may; nothing was submitted."""

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


class TooManyStreams(OnwardError):
    """As many streams of progress are open in this process as the setting `streams` allows."""

    code = "too_many_streams"
    status = 503
    exit_status = 6

    def __init__(self, limit: int, retry_after: float) -> None:
        self.limit: int = limit
        self.retry_after: float = retry_after
        super().__init__(
            f"{limit} streams are open, the most that ONWARD_STREAMS allows; try again in {retry_after:g} s"
        )


class QuotaExceeded(OnwardError):
    """A tenant, or one of its keys, has used up a quota; nothing was done. Other tenants are not concerned."""

    code = "quota_exceeded"
    status = 429
    exit_status = 6

    def __init__(
        self,
        tenant: str,
        quota: str,
        limit: int,
        retry_after: float,
        whose: str,
        unit: str,
        rates: Sequence[Any] = (),
        *,
        remedy: str = "",
    ) -> None:
        self.tenant: str = tenant
        self.quota: str = quota
        self.limit: int = limit
        self.retry_after: float = retry_after
        self.rates: tuple[Any, ...] = tuple(rates)
        advice = "an admin can raise it with `onward quotas set`" if tenant else "ONWARD_QUOTA_REQUESTS raises it"
        super().__init__(
            f"{whose} has used up its quota {quota!r} ({limit:,} {unit}); nothing was done; "
            f"{remedy or f'come back in {math.ceil(retry_after)} s'}; {advice}"
        )


class PriorityTooHigh(UsageError):
    """A tenant gave a task a higher priority than it may."""

    code = "priority_too_high"
    status = 403

    def __init__(self, tenant: str, priority: int, limit: int) -> None:
        self.tenant: str = tenant
        self.priority: int = priority
        self.limit: int = limit
        super().__init__(
            f"tenant {tenant!r:.80} may give priorities up to {limit}, not {priority}: a higher one would go before the tasks of other "
            "tenants; use lower priorities for the tasks that can wait, or ask an admin to raise it (`onward quotas set`)"
        )


class StoreUnavailable(OnwardError):
    """The database cannot be reached or written now; acknowledged writes are safe."""

    code = "store_unavailable"
    status = 503
    exit_status = 6


class DiskFull(StoreUnavailable):
    """The disk of the database is full."""

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
    """The database did not answer in time; it may have executed the request, or not."""

    code = "too_slow"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} did not answer in time ({why}); it or the network is slow, or another transaction holds a lock"
        )


class FileReplaced(StoreUnavailable):
    """The database file is no longer the file that this process has opened."""

    code = "file_replaced"

    def __init__(self, where: str, file: str, *, there: bool) -> None:
        change = "is another file now: it was replaced" if there else "is not there any more: it was deleted or moved"
        super().__init__(
            f"{where}: {file} {change} while this process had it open. This process writes nothing any more, as it would go into the old "
            "file and be lost; acknowledged writes are in the old file. Put that file back, or restart this process (and all "
            "others that use it) to go on with the new one"
        )


class EpochEnded(StoreUnavailable):
    """The database was restored from a backup after this process had opened it."""

    code = "epoch_ended"

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} was restored from a backup while this process had it open. This process writes nothing any more: what it knows may "
            "be from the time that the restore took back. Restart it"
        )


class SchemaMismatch(StoreUnavailable):
    """The database has another version of the tables than this program."""

    code = "schema_mismatch"


class BackupDamaged(OnwardError):
    """A folder is no whole backup, or was changed since it was written."""

    code = "backup_damaged"
    status = 422
    exit_status = 1

    def __init__(self, folder: object, why: str) -> None:
        super().__init__(f"{folder} cannot be restored: {why}. Nothing was changed; use another backup")


class BrokerUnavailable(OnwardError):
    """A broker cannot be reached, or refuses the place that it was asked for. Nothing is lost: messages stay there, events stay here."""

    code = "broker_unavailable"
    status = 503
    exit_status = 6

    def __init__(self, broker: str, why: str) -> None:
        self.broker = broker
        super().__init__(f"broker {broker}: {why}")


class Unreachable(OnwardError):
    """The server does not answer. The request may have been carried out (`in_doubt`), unless sending it twice has the same effect as
    once."""

    code = "unreachable"
    status = 503
    exit_status = 6

    def __init__(self, url: str, tries: int, why: str, in_doubt: bool) -> None:
        self.url: str = url
        self.tries: int = tries
        self.in_doubt: bool = in_doubt
        times = "once" if tries == 1 else f"{tries} times"
        advice = (
            "the request was sent and may have been carried out: look, before you ask again"
            if in_doubt
            else "check the address, and whether the server runs"
        )
        super().__init__(f"{url} was asked {times} and gave no answer ({why}); {advice}")


class TaskFailed(OnwardError):
    """The task has failed. `partial` is the best result that it had by then, where it had one."""

    code = "task_failed"
    partial: object = None

    def __init__(self, task_id: str, task: str, error: dict[str, object], partial: object = None) -> None:
        self.partial = partial
        self.task_id: str = task_id
        self.error: dict[str, object] = error
        super().__init__(f"task {task_id} ({task}) failed: {error.get('message', 'unknown error')}")


class TaskCancelled(OnwardError):
    """The task was cancelled."""

    code = "task_cancelled"

    def __init__(self, task_id: str, task: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} ({task}) was cancelled")


class ResultTimeout(OnwardError):
    """There was no result in time; the task itself goes on."""

    code = "result_timeout"
    status = 504
    exit_status = 3

    def __init__(self, task_id: str, timeout: float, state: str, reason: str) -> None:
        self.task_id = task_id
        stuck = reason in {"parked", "quarantined", "paused"}
        then = f"and stays so until you run `onward resume {task_id}`" if stuck else "and goes on; ask again later"
        super().__init__(f"task {task_id} has no result after {timeout:g} s: it is {state} ({reason}) {then}")


class TaskParked(ResultTimeout):
    """The task is parked or quarantined: there is no result before a person resumes it. `why` is the reason in the journal."""

    code = "task_parked"

    def __init__(self, task_id: str, task: str, reason: str, why: str) -> None:
        OnwardError.__init__(
            self,
            f"task {task_id} ({task}) stands still, it is {reason}: {why or 'its journal does not say why'}; when that is fixed, "
            f"`onward resume {task_id}` lets it go on, and `onward cancel {task_id}` ends it",
        )
        self.task_id: str = task_id
        self.reason: str = reason
        self.why: str = why


class StepFailed(OnwardError):
    """A step has failed for good. The same error is raised again when the journal is replayed."""

    code = "step_failed"

    def __init__(self, step: str, attempts: int, kind: str, message: str, details: Any = None) -> None:
        self.step: str = step
        self.details: Any = details
        """The `step_details` of the error, as JSON: for a library that raises the error again with its type."""
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
    """The message that a handler waited for did not come in time."""

    code = "wait_timeout"


class LockTimeout(WaitTimeout):
    """A lock was not free in time. `holder` is the task or the program that has it."""

    code = "lock_timeout"
    status = 409

    def __init__(self, name: str, timeout: float, holder: str) -> None:
        self.name: str = name
        self.timeout: float = timeout
        self.holder: str = holder
        super().__init__(
            f"lock {name!r} was not free within {timeout:g} s: {holder} has it; `onward locks` shows who holds what, and "
            f"`onward locks release` takes a lock from a holder that is stuck"
        )


class TooManyLocks(OnwardError):
    """A task holds or awaits as many locks as one task may, or as many wait for a lock as may."""

    code = "too_many_locks"
    status = 409


class CoordinatorUnavailable(OnwardError):
    """The coordinator of locks (Redis or etcd) cannot be reached, or refuses."""

    code = "coordinator_unavailable"
    status = 503


class UnfitCheckpoint(OnwardError):
    """The task cannot continue from its last checkpoint: it is too old, of another version, or unreadable. A task whose handler raises
    this error parks, and a person looks at it; it is not retried."""

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
    """A person, or the default, denied an approval. A retry does not ask again."""

    code = "denied"

    def __init__(self, what: str, reason: str, by: str | None = None, *, expired: bool = False) -> None:
        self.what: str = what
        self.reason: str = reason
        self.by: str | None = by
        """The person who denied it, where that is known."""
        self.expired: bool = expired
        """Whether the time ran out without a decision, and the default was to deny."""
        super().__init__(f"denied: {what}" + (f" ({reason})" if reason else ""))


class BudgetSpent(Fatal):
    """A budget has not enough left for the next call."""

    code = "budget_spent"
    status = 409

    def __init__(
        self, task_id: str, kind: str, used: float, limit: float | None, needs: float | None = None, held: float = 0
    ) -> None:
        self.task_id: str = task_id
        self.kind: str = kind
        self.needs: float | None = needs
        option = BUDGET_OPTIONS.get(kind, kind)
        self.left: float | None = None if limit is None or kind == "wall_time" else max(limit - used, 0)
        self.enough: float | None = None if needs is None else _rounded_up(used + needs, kind)
        """The limit with which the next call would fit."""
        self.reason: str = "its time is up"
        """How much the next call needs, and how much is left."""
        if self.left is not None:
            reserved = f" ({_amount(held, kind)} more are reserved by calls under way)" if held > 0 else ""
            need = "an unknown amount" if needs is None else _amount(needs, kind)
            self.reason = (
                f"it needs {need}, and {_amount(self.left, kind)} of {_amount(limit or 0, kind)} are left{reserved}"
            )
        self.what: str = f"the budget of task {task_id} has not enough {option} for the next call: {self.reason}"
        enough = "N" if self.enough is None else f"{self.enough:.10g}"
        super().__init__(f"{self.what}; `onward budget {task_id[-8:]} --{option} {enough}` raises it")


def _amount(value: float, kind: str) -> str:
    return f"${value:,.6g}" if kind == "cost_usd" else f"{value:,.0f}"


def _rounded_up(value: float, kind: str) -> float:
    return math.ceil(value * 10_000) / 10_000 if kind == "cost_usd" else math.ceil(value)


BUDGET_OPTIONS = {"llm_tokens": "tokens", "cost_usd": "usd", "wall_time": "time"}
"""The options of `onward budget` whose name is not that of the limit."""


class TimeUp(Fatal):
    """Most of a task's time is gone: its agent starts nothing new and cuts off its waits, because the rest is for its answer."""

    code = "time_up"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: most of the task's time until its deadline is gone")


class NoAnswer(Fatal):
    """An agent gave up on its model, whose replies were of no use again and again."""

    code = "no_answer"


class TooDeep(Fatal):
    """Agents hand work on to agents, and those to others, without an end."""

    code = "too_deep"

    def __init__(self, agent: str, max_depth: int) -> None:
        super().__init__(
            f"the agent {agent!r} was not asked: agents have handed this work on {max_depth} times, and no further; "
            "do it yourself, or answer with what you have"
        )


class AlreadyDecided(OnwardError):
    """Another person decided first."""

    code = "already_decided"
    status = 409
    exit_status = 2

    def __init__(self, what: str, said: str) -> None:
        self.said = said
        super().__init__(f"{what} is decided already: {said}; your decision changes nothing")


class AskExpired(AlreadyDecided):
    """The time for a decision was up first."""

    code = "ask_expired"
    status = 410

    def __init__(self, what: str) -> None:
        super().__init__(what, "its time was up")


class Withdrawn(OnwardError):
    """The task no longer waits for this question or approval: it goes on, or is being undone."""

    code = "withdrawn"
    status = 409
    exit_status = 2

    def __init__(self, what: str, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"task {task_id} no longer waits for {what}: it is being cancelled, or has undone the step that asked; "
            "nothing was written"
        )


class EncryptionKeyMissing(OnwardError):
    """A payload is encrypted, and this process has not the key to read it."""

    code = "encryption_key_missing"
    status = 503
    exit_status = 2

    def __init__(self, key_id: str, what: str = "a payload") -> None:
        self.key_id: str = key_id
        super().__init__(
            f"{what} is encrypted with the key {key_id!r}, and this process has not that key; set it in ONWARD_ENCRYPTION_KEYS as in the "
            "other processes"
        )


class DataErased(OnwardError):
    """The key of a payload was destroyed (`onward erase`): no process can read it any more."""

    code = "erased"
    status = 410

    def __init__(self, what: str = "the payload") -> None:
        super().__init__(f"{what} was erased: its key was destroyed, and no process can read it any more")


class PayloadDamaged(OnwardError):
    """A payload was changed, or copied from another row; or it is plain where plain payloads are refused."""

    code = "payload_damaged"

    def __init__(self, what: str = "a payload") -> None:
        super().__init__(
            f"{what} cannot be trusted: it was changed where it is stored or copied from another place, or it is not encrypted though "
            "ONWARD_ENCRYPTION_PLAIN is 'refuse'; restore it from a backup"
        )


class StillNeeded(OnwardError):
    """Data cannot be erased, because unfinished tasks need it."""

    code = "still_needed"
    status = 409
    exit_status = 2

    def __init__(
        self, subject: str, task_ids: list[str], count: int, *, undoing: bool = False, schedules: Sequence[str] = ()
    ) -> None:
        self.task_ids: list[str] = task_ids
        self.schedules: tuple[str, ...] = tuple(schedules)
        needs = [f"{count:,} unfinished task{'' if count == 1 else 's'} ({_shown(task_ids)})"] if count else []
        if schedules:
            needs.append(f"{len(schedules):,} schedule{'' if len(schedules) == 1 else 's'} ({_shown(schedules)})")
        advice = "they undo their steps first; try again when they have ended"
        if not undoing:
            advice = "wait for the tasks, or cancel them with --force" if count else ""
            advice += ("; " if count else "") + "--force removes the schedules" if schedules else ""
        super().__init__(f"{subject} has {' and '.join(needs)}; {advice}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


class AuditKeyMissing(OnwardError):
    """The audit log is keyed, and this process has no key to write to it."""

    code = "audit_key_missing"
    status = 503
    exit_status = 2

    def __init__(self, key_id: str) -> None:
        self.key_id: str = key_id
        super().__init__(
            f"the audit log is written with a key (id {key_id}), and this process has none; nothing was written. Set "
            "ONWARD_AUDIT_KEY as in the other processes"
        )


class StaleDecision(OnwardError):
    """The decision names an approval that is not the open one."""

    code = "stale_decision"
    status = 409
    exit_status = 2

    def __init__(self, what: str, asked: str, seen: str, field: str = "hash") -> None:
        self.asked: str = asked
        self.seen: str = seen
        super().__init__(
            f"{what} is not the one that you saw (its {field} is {asked}, and not {seen:.80}); nothing was "
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
        advice = f"`onward artifacts {task_id}` lists its artifacts, and ONWARD_ARTIFACTS must name the place where they are stored"
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
            f"the artifact {artifact_id} of task {task_id} is damaged: its bytes were changed where they "
            "are stored; restore them from a backup"
        )


class ArtifactTooLarge(UsageError):
    """The bytes are more than an artifact may have."""

    code = "artifact_too_large"
    status = 413

    def __init__(self, size: int, most: int) -> None:
        self.size: int = size
        self.most: int = most
        super().__init__(
            f"an artifact may have {most:,} bytes, this has {size:,} and was not stored; store less of it, or in parts, or "
            "store it elsewhere and keep its address"
        )


class BadWebhook(UsageError):
    """A URL to which no webhook is sent."""

    code = "bad_webhook"
    status = 422

    def __init__(self, url: object, why: str) -> None:
        self.why: str = why
        without_query = str(url).partition("?")[0]  # the query may hold a secret
        super().__init__(f"no webhook is sent to {without_query[:120]!r}: {why}; nothing was written")


class UnknownSecret(UsageError):
    """The app does not declare this name: a caller must not read any secret it likes."""

    code = "unknown_secret"
    status = 422

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no secret is named {name!r:.130} here (declared: {listed}); check the spelling, or declare it: app.secret(NAME)"
        )


class SecretMissing(OnwardError):
    """The secret has no value where this process searches for it."""

    code = "secret_missing"
    status = 409

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        super().__init__(
            f"the secret {name!r} is not there ({where}); put it where the worker finds it, then `onward resume` the task"
        )


class UnfitSecret(Fatal):
    """The value cannot be masked, so it cannot be kept out of what is written."""

    code = "unfit_secret"

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"the secret {name!r} {why}")
