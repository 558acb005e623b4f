"""Views: the dataclasses that the service returns, the server sends as JSON, and the client reads back. Each shape is spelled here
and nowhere else: `core/view_json.py` derives JSON from it, in both directions, and `server/schema/openapi.py` its schema, with the
docstrings as descriptions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from onward.core.approval import ApprovalRule, Vote
from onward.core.budget import KINDS, BudgetLedger
from onward.core.durations import Time
from onward.core.journal.waterfall import Bar, Point, position
from onward.core.record import Record
from onward.core.usage import Usage

# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaUse:
    """One quota of a tenant, and how much of it is used."""

    name: str
    limit: int
    """0 is no quota, except for `priority`."""
    used: int | None
    """`requests`, `streams` and `sessions` are those of the server process that answers; `queue_share` is that of the queue in which the
    tenant has the most tasks. Null where use is not counted."""
    own: bool
    """Whether the tenant has its own value, and not that of the settings."""


@dataclasses.dataclass(frozen=True, slots=True)
class TenantUse:
    """The quotas of a tenant, and its use of them."""

    tenant: str
    quotas: tuple[QuotaUse, ...]


# ── queues, workers, handlers ────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its unfinished tasks."""

    name: str
    waiting: int
    """Tasks that wait to be started, also for a limit or a time. The bound of the queue counts these."""
    running: int
    reasons: dict[str, int]
    """All its unfinished tasks by reason."""
    oldest_s: float | None
    """Seconds since the oldest task that could be started now was submitted."""
    paused: bool
    limit: int | None
    """How many of its tasks may run at once, over all workers."""
    rate: float
    """Tasks, of any queue, that the workers which serve this queue finish in a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that was not declared dead."""

    id: str
    host: str
    pid: int
    slots: int
    running: int
    queues: tuple[str, ...]
    """The queues that it serves; empty for all."""
    handlers: tuple[str, ...]
    version: str
    started_at: Time
    lease_s: float
    """Seconds until its lease ends; below 0, seconds since it ended."""
    rate: float
    """Tasks that it finishes in a second."""
    alive: bool
    """Whether its lease has not ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class CodeVersion:
    """A version of the code: the workers that have it, and the unfinished tasks whose latest shift it ran."""

    version: str
    """Of Onward and of the app's code, as in `WorkerView`. Empty for tasks of an Onward that did not record it."""
    workers: int
    """Living workers."""
    running: int
    waiting: int
    """Tasks that wait, sleep or are queued again, without the parked ones."""
    parked: int
    """Tasks that wait for code that fits them."""
    started_at: Time | None = None
    """When the first of its living workers started; null without one. In a deploy, the new version is the one with the latest time."""


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerView:
    """The handler of a task name."""

    name: str
    doc: str
    """The docstring of its code."""
    schema: dict[str, Any]
    """JSON schema of the input."""
    kind: Literal["task", "agent"]
    """"agent" where a model decides what it does."""
    queue: str
    here: bool
    """Whether the process that answers has it."""
    workers: int
    """How many living workers have it."""
    version: str | None
    """The version of Onward of these workers, the highest where they differ; null when there are none."""


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Figures of the whole installation."""

    states: dict[str, int]
    """Tasks by state."""
    reasons: dict[str, int]
    """Unfinished tasks by reason."""
    people: int
    """Unfinished tasks that wait for a person."""
    workers: int
    slots: int
    rate: float
    """Tasks that all workers finish in a second."""
    exact: bool
    """Whether all of `states` was counted. If not, `completed` is an estimate, and `failed` and `cancelled` are lower bounds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check. `fine` is null for a fact that is neither right nor wrong but worth knowing."""

    name: str
    fine: bool | None
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """The system as a whole."""

    database: str
    """Its name, without secrets."""
    store: str
    """"sqlite" or "postgres"."""
    tables: int
    """The number of the newest migration in the database."""
    tables_wanted: int
    """The number of the newest migration of this program."""
    skew_s: float
    """Seconds by which this machine's clock is behind the database's."""
    bytes: int
    stats: Stats
    settings: Mapping[str, Any]
    version: str
    python: str
    checks: list[Check]

    @property
    def fine(self) -> bool:
        """Whether no check found a fault."""
        return not any(check.fine is False for check in self.checks)


# ── questions and approvals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A question or an approval that waits for a person. Its id is the task's id and the number of its record."""

    id: str
    kind: Literal["question", "approval"]
    task_id: str
    task: str
    text: str
    risk: str | None
    data: Any
    choices: tuple[str, ...]
    asked_at: Time
    expires_at: Time | None
    default: str | None
    """The decision that counts when it expires without one: "approve" or "deny"."""
    tool: str | None
    """The tool that an agent wants to call, where this approval is for a tool call."""
    arguments: dict[str, Any] | None
    """The arguments of that call."""
    hash: str | None
    """Hash of the task, the record and all that it asks: a decision with this hash is for exactly this. `digest` is the longer one."""
    digest: str | None = None
    """SHA-256 of `id`, `task`, `text`, `risk` and `data` of an approval, and of its `rule` where it has one. A decision that names another
    digest is refused."""
    rule: ApprovalRule | None = None
    """The rule that says who may decide it. Without a rule each caller with the scope decide may, and the first decision counts."""
    votes: tuple[Vote, ...] = ()
    """The votes so far, where it has a rule."""
    description: str | None = None
    effect: str | None = None
    """The tool's description, and whether a call whose end is unknown may be repeated: not with the effect "once"."""
    left_out: tuple[str, ...] = ()
    """Fields of a list that are null or empty only because they are large; of a `text` the beginning is there. The approval alone has them,
    and a `hash` and a `digest`, which the one in the list has not. Also fields that were erased, or that the server has no key for."""

    @property
    def seq(self) -> int:
        """The number of its record."""
        return int(self.id.rpartition(".")[2])


@dataclasses.dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a decision or an answer."""

    id: str
    task_id: str
    decided: bool
    """Whether it is decided now; False while the rule of an approval needs more votes."""
    votes: int | None = None
    """How many callers have approved so far. Null without a rule."""
    needed: int | None = None
    """How many have to. Null without a rule."""


# ── schedules, subscriptions, deliveries, keys ───────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: it submits tasks at fixed times. `every` is in seconds."""

    name: str
    task: str
    input: Any
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    queue: str
    priority: int
    deadline: float | None
    labels: dict[str, str]
    next_at: Time | None
    """The next tick; null while it is paused."""
    upcoming: tuple[Time, ...]
    """The next ticks, `next_at` first: up to three."""
    last_at: Time | None
    """The last tick for which a task was submitted."""
    paused: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: which events go to which sink. `secret` is set only in the answer to `make`."""

    id: str
    types: tuple[str, ...]
    sink: str
    """A URL, or `on:NAME` for a function of an app."""
    task_id: str | None
    tenant: str | None
    created_at: Time
    offered_at: Time | None
    """When a process with that function was seen last."""
    disabled: str | None
    """Why its events are no longer sent."""
    dropped: int
    """Events that were dropped because too many waited."""
    secret: str | None = None


DeliveryState = Literal["pending", "delivered", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of one event to one receiver."""

    id: str
    subscription: str
    task_id: str
    seq: int
    type: str
    state: DeliveryState
    sink: str | None
    attempts: int
    said: str | None
    """The answer to the last attempt, or its error."""
    at: Time
    due_at: Time | None
    done_at: Time | None
    sending: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A key, without its token."""

    id: str
    name: str
    tenant: str | None
    scopes: tuple[str, ...]
    agent: str | None
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None
    """To the minute."""
    valid: bool
    owner: str | None = None
    """The caller that created it over HTTP, as `person:ID` or `key:ID`. Under approval rules both are the same caller. A key that was created
    on the database itself has the owner that its creator named, or none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """The session of a person who signed in."""

    id: str
    person: str
    """The stable id of the person."""
    name: str
    """The name for people, as it was at sign-in."""
    roles: tuple[str, ...]
    tenant: str | None
    created_at: Time
    last_used_at: Time
    """To the minute."""
    until: Time
    """When it ends if it is not used again."""
    expires_at: Time
    """When it ends, however often it is used."""


# ── intakes, dead letters ────────────────────────────────────────────────────────────────────────────────────────────

IntakeState = Literal["running", "waiting", "away", "stopped", "silent"]
"""It receives; it waits for the store, the queue or a handler; the broker is away; it was stopped; it has not reported for a while."""


@dataclasses.dataclass(frozen=True, slots=True)
class IntakeProcess:
    """A process that receives the messages of an intake, as it reported last."""

    process: str
    """Host, process id, and a few random characters."""
    state: IntakeState
    detail: str
    """Why it does not receive; empty while it does."""
    taken: int
    """Messages that it acknowledged."""
    dead: int
    """Dead letters that it wrote."""
    rate: float
    """Messages a second."""
    lag: int | None
    started_at: Time
    seen_at: Time


@dataclasses.dataclass(frozen=True, slots=True)
class Intake:
    """An intake, with the processes that receive its messages and the number of its dead letters."""

    name: str
    source: str
    """The broker and the place; empty where no process has reported for a week."""
    target: str
    """The tasks, or the function."""
    tenant: str | None
    state: IntakeState
    """Of the process that does best."""
    detail: str
    taken: int
    """Messages that the listed processes acknowledged."""
    rate: float
    """Messages a second, of all processes."""
    lag: int | None
    """Messages that wait at the broker; null where the broker does not say."""
    dead: int
    """Dead letters."""
    redriven: int
    """Those of them that wait to be tried again."""
    seen_at: Time | None
    processes: tuple[IntakeProcess, ...]
    """Empty for a caller with a tenant."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not become a task, without its content."""

    id: str
    intake: str
    tenant: str | None
    identity: str
    """The identity of the message: the same when it comes again."""
    reason: str
    """Why it could not; empty where it was erased."""
    position: str
    """Where it stands in its stream or topic; empty for a queue."""
    sent_id: str
    """The id that its sender gave it, in the way of the broker."""
    size: int
    """Bytes of its body."""
    attempts: int
    at: Time
    redrive_at: Time | None
    """When a caller asked for it to be tried again; null while no caller has."""
    erased: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetterContent(DeadLetter):
    """A dead letter with its headers and its body."""

    headers: dict[str, str]
    body: str | None
    """Its body; null where it was erased."""
    encoding: Literal["text", "base64"]
    left_out: tuple[str, ...]
    """`body` where only its beginning is here, `headers` where they are too large to be shown."""


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """A journal as a waterfall, or the part of it that changed after a record."""

    task_id: str
    began: float
    ended: float | None
    seq: int
    """The last record that is in it."""
    bars: list[Bar]
    marks: list[Point]
    more: bool = False
    """Whether the journal has more records: ask again with `after` = `seq`."""

    def then(self, later: Timeline) -> Timeline:
        """The timeline with all that changed after it. Bars that were open are in the later one."""
        bars = [bar for bar in self.bars if bar.end is not None]
        changed = {(bar.kind, bar.seq, bar.attempt) for bar in later.bars}
        bars = [bar for bar in bars if (bar.kind, bar.seq, bar.attempt) not in changed] + later.bars
        return dataclasses.replace(later, bars=sorted(bars, key=position), marks=self.marks + later.marks)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordView:
    """One record, and the input and output that it is about."""

    record: Record
    input: Any = None
    output: Any = None
    error: dict[str, Any] | None = None
    attempts: int | None = None
    effect_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TurnView:
    """A turn of an agent, summarised. Null is unknown."""

    turn: int
    seq: int
    at: Time
    took_s: float | None
    model: str
    finish: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    text: str
    """The beginning of the model's answer."""
    tools: tuple[str, ...]
    """The tools that the model called."""


# ── spending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """A budget and how much of it is spent. `task_id` is the task whose budget it is."""

    task_id: str
    ledger: BudgetLedger
    wall_time: float
    """Seconds since the first call."""

    @property
    def meters(self) -> dict[str, dict[str, Any]]:
        """For each kind: spent, reserved by calls under way, and the limit."""
        meters = {}
        for kind in KINDS:
            spent, used = getattr(self.ledger.spent, kind), self.ledger.used(kind)
            meters[kind] = {"spent": spent, "reserved": used - (spent or 0), "limit": self.ledger.budget.of(kind)}
        meters["wall_time"] = {"spent": self.wall_time, "reserved": 0, "limit": self.ledger.budget.of("wall_time")}
        return meters

    @property
    def waiting(self) -> tuple[str, ...]:
        """Tasks that wait for more budget."""
        return tuple(self.ledger.waiting)

    @property
    def needs(self) -> dict[str, dict[str, Any]]:
        """For each task that waits: the least that its next call needs."""
        return {
            task_id: {kind: getattr(amount, kind) for kind in KINDS} for task_id, amount in self.ledger.waiting.items()
        }


@dataclasses.dataclass(slots=True)
class UsageRow:
    """The model usage of one agent, model, key or day. `unknown` counts its tasks, or calls, that did not report all figures; the
    sums leave those figures out."""

    group: str
    tasks: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    unknown: int = 0

    def add(self, usage: Usage) -> None:
        """Add the usage of a task or a call. A figure that is None is unknown, and never zero."""
        figures = (usage.calls, usage.input_tokens, usage.output_tokens, usage.cost_usd)
        self.calls += figures[0] or 0
        self.tokens_in += figures[1] or 0
        self.tokens_out += figures[2] or 0
        self.usd += figures[3] or 0.0
        self.unknown += None in figures


@dataclasses.dataclass(frozen=True, slots=True)
class UsageReport:
    """Model usage in groups: the most expensive group first, days in order."""

    by: str
    rows: list[UsageRow]
    complete: bool
    """False when there are more than 10,000 tasks: only the newest 10,000 are counted."""


# ── many tasks at once ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A task on which the action failed, and why."""

    task_id: str
    code: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Acted:
    """The outcome of one action on many tasks."""

    matched: int
    done: int
    refused: tuple[Refused, ...]
    """The first twenty tasks on which it failed; `matched - done` is how many failed in all."""
