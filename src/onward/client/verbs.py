"""The verbs of both clients: the same words as those of the app, each written once."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from onward.client import parse as reading
from onward.client.cluster import PlaceVerbs
from onward.client.feed import Feed
from onward.client.script import NOTHING, Found, Pause, Script, Stream, stream, verb
from onward.client.sending import path
from onward.core.budget import Budget
from onward.core.durations import Duration, Moment, seconds
from onward.core.journal.progress import Update
from onward.core.record import Record
from onward.core.task import NEEDS_A_PERSON, State, Task, Tasks
from onward.errors import BadSetting, ResultTimeout, TaskCancelled, TaskFailed, TaskNotFound, TaskParked, UsageError
from onward.service.budgets import Spent
from onward.service.bulk import Acted
from onward.service.forks import SAME
from onward.service.listing import several
from onward.service.messages import Ask, Doubt
from onward.service.serialize import iso

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

HOLD = 25.0
"""Seconds for which the server may hold a result back. Most proxies wait for 60."""
POLL = 0.5
"""Seconds between two looks, where nothing was found and the server has no streams."""
KINDS = ("question", "approval")

T = TypeVar("T")
H = TypeVar("H")
Asks = list[Ask]
Doubts = list[Doubt]
Records = list[Record]
Refs = list["ArtifactRef"]


class Which(TypedDict, total=False):
    """Which tasks, as `Onward.list` has it."""

    state: State | str | Sequence[str] | None
    task: str | Sequence[str] | None
    queue: str | Sequence[str] | None
    reason: str | Sequence[str] | None
    parent: str | None
    labels: Mapping[str, str | Sequence[str]] | None
    created_after: Moment | None
    created_before: Moment | None
    key: str | None
    text: str | None
    tenant: str | None
    """For who sees the tasks of all tenants."""


class Verbs(PlaceVerbs, Generic[H]):
    """Everything that can be asked of a server."""

    def handle(self, task_id: str) -> H:
        """A handle for a task by its id; nothing is looked up yet."""
        raise NotImplementedError

    # ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────

    @verb
    def submit(
        self,
        task: str,
        input: Any = None,  # noqa: A002 -- the word for it at every door
        *,
        key: str | None = None,
        priority: int = 0,
        queue: str | None = None,
        deadline: Duration | None = None,
        delay: Duration | None = None,
        expires: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        group: str | None = None,
        budget: Budget | None = None,
        after: str | None = None,
        webhook: str | None = None,
    ) -> Script[H]:
        """Ask for a task; the answer comes after the commit. As `Onward.submit`.

        Sent again until it is answered; without a `key` it gets one, so that this is one task however often that is. When the
        queue is full, it comes back when the server says, as long as `patience` lasts; then QueueFull is raised.
        """
        said = {
            "task": task,
            "input": input,
            "priority": priority or None,
            "queue": queue,
            "deadline_s": _seconds("deadline", deadline),
            "delay_s": _seconds("delay", delay),
            "expires_s": _seconds("expires", expires),
            "labels": None if labels is None else dict(labels),
            "group": group,
            "budget": None if budget is None else _limits(**budget.told()),
            "after": after,
            "webhook_url": webhook,
        }
        body = {name: value for name, value in said.items() if value is not None}
        headers = {"Idempotency-Key": _quoted(self.ids() if key is None else key)}
        answer = yield from self.asked("POST", "/api/tasks", body, headers=headers, again=True)
        return self.handle(answer.json["task_id"])

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @verb
    def get(self, task_id: str) -> Script[Task]:
        """The task. Raises TaskNotFound."""
        return reading.task_of((yield from self.asked("GET", _at(task_id))).json)

    @verb
    def list(
        self, *, limit: int = 100, cursor: str | None = None, **which: Unpack[Which]
    ) -> Script[tuple[Tasks, str | None]]:
        """Tasks, newest first, and the cursor for the next page (None at the end)."""
        return (yield from self._page(limit, cursor, which))

    @stream
    def tasks(self, **which: Unpack[Which]) -> Stream[Task]:
        """All tasks, newest first, page after page."""
        cursor: str | None = None
        while True:
            page, cursor = yield from self._page(1000, cursor, which)
            for found in page:
                yield Found(found)
            if cursor is None:
                return

    def _page(self, limit: int, cursor: str | None, which: Which) -> Script[tuple[Tasks, str | None]]:
        query = {"limit": limit, **({} if cursor is None else {"cursor": cursor}), **_asked(which)}
        said = (yield from self.asked("GET", "/api/tasks", query=query)).json
        return [reading.task_of(one) for one in said["tasks"]], said["next"]

    @verb
    def count(self, **which: Unpack[Which]) -> Script[tuple[int, bool]]:
        """How many tasks such a list has, and whether there may be more: they are counted up to 10,000."""
        said = (yield from self.asked("GET", "/api/tasks/count", query=_asked(which))).json
        return said["count"], said["capped"]

    @verb
    def act(self, action: str, count: int, *, priority: int | None = None, **which: Unpack[Which]) -> Script[Acted]:
        """Cancel, resume, pause or prioritize ("priority") all tasks that such a list has. `count` is how many you have seen: when far
        more match by now, MoreMatch is raised and nothing is done. Not sent twice."""
        lists = {"state", "reason", "task", "queue", "label"}
        said = {n: [v] if n in lists and isinstance(v, str) else v for n, v in _asked(which).items()}
        body = {"action": action, "count": count, "filter": said}
        body |= {} if priority is None else {"priority": priority}
        return reading.acted_of((yield from self.asked("POST", "/api/tasks/actions", body)).json)

    @verb
    def result(self, task_id: str, timeout: Duration | None = None, *, partial: bool = False) -> Script[Any]:
        """The result, once it is there. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on regardless. TaskParked (a
        ResultTimeout) comes at once where nothing will go on before a person has seen to it. With
        `partial`, a task that failed gives the best result that it had by then, where it had one."""
        task = yield from self._ended(task_id, None if timeout is None else seconds(timeout, "timeout"))
        if partial and task.partial is not None:
            return task.partial
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        return task.result

    def _ended(self, task_id: str, timeout: float | None) -> Script[Task]:
        until = math.inf if timeout is None else self.clock.monotonic() + timeout
        while True:
            left = max(0.0, until - self.clock.monotonic())
            held = min(left, HOLD)
            answer = yield from self.asked(
                "GET",
                f"{_at(task_id)}/result",
                query={"timeout_s": held},
                held=held,
                patience=min(self.patience, max(left, 1.0)),
            )
            task = reading.task_of(answer.json)
            if task.ended:
                return task
            if task.reason in NEEDS_A_PERSON:
                raise TaskParked(task_id, task.task, str(task.reason), (task.error or {}).get("message", ""))
            if self.clock.monotonic() >= until:
                raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")

    @verb
    def journal(self, task_id: str, after: int = 0, limit: int = 1000) -> Script[Records]:
        """Records after a number. Raises TaskNotFound."""
        return (yield from self._records(task_id, after, limit))

    def _records(self, task_id: str, after: int, limit: int = 1000) -> Script[Records]:
        answer = yield from self.asked("GET", f"{_at(task_id)}/events", query={"after": after, "limit": limit})
        return [reading.record_of(one) for one in answer.json["records"]]

    @stream
    def tail(self, task_id: str, after: int = 0) -> Stream[Record]:
        """Every record after a number, as it comes, until the task has ended: each once, however often the connection or the
        server goes away in between."""
        yield from self._fed(task_id, Feed(self, f"{_at(task_id)}/events", {}, after), reading.record_of)

    @stream
    def follow(self, task_id: str, after: int = 0) -> Stream[Update]:
        """Progress updates after a number (`Update.seq`), as they come, until the task has ended; each once, as with `tail`."""
        yield from self._fed(task_id, Feed(self, "/api/progress", {"task_id": task_id}, after), reading.update_of)

    def _fed(self, task_id: str, feed: Feed[T], read: Callable[[dict[str, Any]], T]) -> Stream[T]:
        ended = False
        while True:
            heard = yield from feed.heard(read)
            if ended and heard == (0, True):  # it had ended before this connection began, and there was nothing more
                return
            ended = reading.task_of((yield from self.asked("GET", _at(task_id))).json).ended
            if not heard.things and not (ended and heard.whole):
                yield Pause(POLL)

    @verb
    def state(self, task_id: str) -> Script[AgentState]:
        """What an agent knows. Raises NoState for a task that has none."""
        return reading.state_of((yield from self.asked("GET", f"{_at(task_id)}/state")).json)

    @verb
    def artifacts(self, task_id: str) -> Script[Refs]:
        """What a task has left behind."""
        said = (yield from self.asked("GET", f"{_at(task_id)}/artifacts")).json
        return [reading.artifact_of(one) for one in said["artifacts"]]

    @verb
    def artifact(self, task_id: str, artifact_id: str) -> Script[bytes]:
        """The bytes of an artifact of this task. Raises ArtifactNotFound."""
        return (yield from self.asked("GET", path("artifacts", f"{task_id}.{artifact_id}"))).body

    @verb
    def budget(self, task_id: str) -> Script[Spent]:
        """The budget that a task spends from, its own or the nearest above it, and what of it is gone."""
        return reading.spent_of((yield from self.asked("GET", f"{_at(task_id)}/budget")).json)

    @verb
    def asks(self, kind: str | None = None) -> Script[Asks]:
        """Questions and approvals that wait for people, the oldest first."""
        found: Asks = []
        for one in KINDS if kind is None else (kind,):
            found += yield from self._asks(one)
        return sorted(found, key=lambda ask: ask.asked_at)

    @verb
    def approvals(self) -> Script[Asks]:
        """Approvals that wait for people, the oldest first."""
        return (yield from self._asks("approval"))

    @verb
    def questions(self) -> Script[Asks]:
        """Questions that wait for people, the oldest first."""
        return (yield from self._asks("question"))

    def _asks(self, kind: str) -> Script[Asks]:
        if kind not in KINDS:
            raise BadSetting("kind", kind, " or ".join(map(repr, KINDS)))
        said = (yield from self.asked("GET", f"/api/{kind}s")).json
        return [reading.ask_of(one) for one in said[f"{kind}s"]]

    @verb
    def doubts(self, task_id: str) -> Script[Doubts]:
        """The effects of a task of which nobody knows whether they happened."""
        said = (yield from self.asked("GET", f"{_at(task_id)}/doubts")).json
        return [reading.doubt_of(one) for one in said["doubts"]]

    # ── steer: `again` where twice is the same as once ───────────────────────────────────────────────────────────

    @verb
    def cancel(self, task_id: str) -> Script[Task]:
        """End the task wherever it stands."""
        return (yield from self._steered(task_id, "cancel", again=True))

    @verb
    def prune(self, task_id: str) -> Script[int]:
        """Forget an ended task and all that it started; how many tasks that were. As `Onward.prune`. Not sent twice: what is gone
        is not found."""
        return int((yield from self.asked("DELETE", _at(task_id))).json["pruned"])

    @verb
    def pause(self, task_id: str) -> Script[Task]:
        """Let nobody go on with the task and its children until `resume`; what runs stops at its next step."""
        return (yield from self._steered(task_id, "pause", again=True))

    @verb
    def resume(self, task_id: str) -> Script[Task]:
        """Go on with a failed, parked, quarantined or paused task. Not sent twice: one that goes on cannot be resumed."""
        return (yield from self._steered(task_id, "resume"))

    @verb
    def prioritize(self, task_id: str, priority: int) -> Script[Task]:
        """Change the priority of a task; higher goes first."""
        return (yield from self._steered(task_id, "priority", {"priority": priority}, again=True))

    @verb
    def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> Script[None]:  # noqa: A002
        """Send a signal to a task; one that nobody waits for yet is kept. The same `id` twice is one signal; without one it
        gets one, so that it can be sent again until it is answered."""
        verb = "signals/" + urllib.parse.quote(name, safe="")
        yield from self._steered(task_id, verb, {"value": value, "id": id or self.ids()}, again=True)

    @verb
    def message(self, task_id: str, text: str, *, id: str | None = None) -> Script[None]:  # noqa: A002
        """Say something to a task while it is under way. As `Onward.message`; the `id` is as that of a signal."""
        yield from self._steered(task_id, "message", {"text": text, "id": id or self.ids()}, again=True)

    @verb
    def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Script[H]:  # noqa: A002
        """A new task that begins with records 1…`at` of another and goes on from there; with another `input`, from the first
        record. Not sent twice: that would be two. Raises CannotFork where something is open."""
        said = ({} if at is None else {"at": at}) | ({} if input is SAME else {"input": input})
        return self.handle((yield from self._steered(task_id, "fork", said)).task_id)

    def _steered(self, task_id: str, verb: str, body: Any = NOTHING, *, again: bool = False) -> Script[Task]:
        return reading.task_of((yield from self.asked("POST", f"{_at(task_id)}/{verb}", body, again=again)).json)

    # ── decide: not sent twice, since the second one is told that somebody was quicker ───────────────────────────

    @verb
    def answer(self, question_id: str, answer: Any) -> Script[None]:
        """Answer a question. Raises AlreadyDecided (AskExpired) when somebody, or the time, was quicker, and Withdrawn."""
        yield from self.asked("POST", path("questions", question_id), {"answer": answer})

    @verb
    def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the word for it at every door
    ) -> Script[None]:
        """Approve or deny, once. As `Onward.decide`; who decided is the name of the key."""
        said = {"decision": decision, "reason": reason, "arguments": arguments, "always": always, "hash": hash}
        yield from self.asked("POST", path("approvals", approval_id), said)

    @verb
    def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Script[None]:
        """Say what became of an effect in doubt: "happened" (with this result), "not_happened" or "undo"."""
        yield from self._steered(task_id, "resolve", {"verdict": verdict, "result": result, "step": step})

    @verb
    def raise_budget(
        self,
        task_id: str,
        *,
        max_steps: int | None = None,
        max_wall_time: Duration | None = None,
        max_llm_tokens: int | None = None,
        max_cost_usd: float | None = None,
    ) -> Script[Spent]:
        """Set limits of that budget (absolute: the same call twice is the same). Tasks that wait for it go on."""
        said = _limits(
            max_steps=max_steps,
            max_wall_time=max_wall_time,
            max_llm_tokens=max_llm_tokens,
            max_cost_usd=max_cost_usd,
        )
        return reading.spent_of((yield from self.asked("POST", f"{_at(task_id)}/budget", said, again=True)).json)


def _asked(which: Which) -> dict[str, Any]:
    said: dict[str, Any] = dict(which)
    for moment in ("created_after", "created_before"):
        if isinstance(value := said.get(moment), float | int):
            said[moment] = iso(value)
        elif value is not None:
            said[moment] = value.isoformat()
    labels = said.pop("labels", None) or {}
    said["label"] = [f"{name}:{one}" for name, value in labels.items() for one in several("labels", value)] or None
    said["q"] = said.pop("text", None)
    return {name: _plain(value) for name, value in said.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value, or several, as a query takes them."""
    return str(value) if isinstance(value, str | int) else [str(one) for one in value]


def _at(task_id: str) -> str:
    if not task_id.strip("."):  # a path would mean something else
        raise TaskNotFound(task_id)
    return path("tasks", task_id)


def _seconds(name: str, value: Duration | None) -> float | None:
    return None if value is None else seconds(value, name)


def _limits(max_wall_time: Duration | None = None, **limits: Any) -> dict[str, Any]:
    said = {"max_wall_time_s": _seconds("max_wall_time", max_wall_time), **limits}
    return {name: value for name, value in said.items() if value is not None}


def _quoted(key: str) -> bytes:
    """As the header wants it."""
    if not key.isprintable():
        raise UsageError(f"key must be a text of 1 to 512 printable characters, not {key!r:.80}")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode()
