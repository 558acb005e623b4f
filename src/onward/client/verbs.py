"""The verbs of both clients. They have the same names as those of the app, and each is written once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from onward.client.cluster import ClusterVerbs
from onward.client.feed import Feed
from onward.client.parse import parse_artifact, parse_budget, parse_record, parse_state, parse_task, parse_update
from onward.client.script import NO_BODY, Item, Pause, Script, Stream, stream, verb
from onward.client.sending import path, segment
from onward.core.budget import Budget
from onward.core.doubts import Doubt, InDoubt
from onward.core.durations import Duration, Moment, seconds
from onward.core.filter import as_list
from onward.core.journal.progress import Only, Update
from onward.core.record import Record
from onward.core.result_types import type_of
from onward.core.task import NEEDS_A_PERSON, SAME, State, Task, Tasks
from onward.core.text import iso
from onward.core.view_json import from_json
from onward.core.views import Acted, Ask, Spent
from onward.errors import (
    BadSetting,
    InvalidInput,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TaskParked,
    UsageError,
)

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

HOLD_S = 25.0
"""Seconds for which the server may hold a result back. Most proxies wait for 60."""
POLL_INTERVAL_S = 0.5
"""Seconds between two reads, where nothing new came and the server has no streams."""
ASK_KINDS = ("question", "approval")

T = TypeVar("T")
H = TypeVar("H")
Asks = list[Ask]
Doubts = list[Doubt]
Records = list[Record]
Refs = list["ArtifactRef"]


class Which(TypedDict, total=False):
    """The filters of a list, as `Onward.list` has them."""

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
    """For callers that see the tasks of all tenants."""


class Verbs(ClusterVerbs, Generic[H]):
    """All verbs of a client."""

    def handle(self, task_id: str) -> H:
        """A handle for a task by its id; nothing is looked up yet."""
        raise NotImplementedError

    # ── submit ───────────────────────────────────────────────────────────────────────────────────────────────────

    @verb
    def submit(
        self,
        task: str,
        input: Any = None,  # noqa: A002 -- as in Onward.submit
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
        """Submit a task; returns after the commit. As `Onward.submit`.

        The request is sent again until it is answered. A request without a `key` gets one, so that it submits one task, however often
        it is sent. When the queue is full, the client tries again at the time that the server names, as long as `patience` lasts; then
        it raises QueueFull.
        """
        body = submit_body(
            task,
            input,
            priority=priority,
            queue=queue,
            deadline=deadline,
            delay=delay,
            expires=expires,
            labels=labels,
            group=group,
            budget=budget,
            after=after,
            webhook=webhook,
        )
        headers = key_header(self._ids() if key is None else key)
        response = yield from self._call("POST", "/api/tasks", body, headers=headers, idempotent=True)
        return self.handle(response.json["task_id"])

    # ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @verb
    def get(self, task_id: str) -> Script[Task]:
        """The task. Raises TaskNotFound."""
        return parse_task((yield from self._read(_path(task_id))))

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
            for task in page:
                yield Item(task)
            if cursor is None:
                return

    def _page(self, limit: int, cursor: str | None, which: Which) -> Script[tuple[Tasks, str | None]]:
        document = yield from self._read("/api/tasks", limit=limit, cursor=cursor, **task_query(which))
        return [parse_task(task) for task in document["tasks"]], document["next"]

    @verb
    def count(self, **which: Unpack[Which]) -> Script[tuple[int, bool]]:
        """How many tasks such a list has, and whether there may be more: they are counted up to 10,000."""
        document = yield from self._read("/api/tasks/count", **task_query(which))
        return document["count"], document["capped"]

    @verb
    def act(self, action: str, count: int, *, priority: int | None = None, **which: Unpack[Which]) -> Script[Acted]:
        """Cancel, resume, pause or prioritize ("priority") all tasks that such a list has. `count` is how many you have seen: when far
        more match by now, nothing is done and MoreMatch is raised. Not sent twice."""
        lists = {"state", "reason", "task", "queue", "label"}
        filters = {n: [v] if n in lists and isinstance(v, str) else v for n, v in task_query(which).items()}
        body = {"action": action, "count": count, "filter": filters}
        body |= {} if priority is None else {"priority": priority}
        return from_json(Acted, (yield from self._call("POST", "/api/tasks/actions", body)).json)

    @verb
    def result(
        self, task_id: str, timeout: Duration | None = None, *, partial: bool = False, returns: Any = None
    ) -> Script[Any]:
        """Wait for the result. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on regardless. Raises TaskParked (a
        ResultTimeout) at once for a task that is parked or quarantined. With `partial`, a task that failed gives the best result that it
        had by then, where it had one. `returns` is the type that the result is built in, as the handler's annotation names it; without it
        the result is JSON. Raises InvalidInput when the result does not fit it."""
        declared = None if returns is None else type_of(returns)
        task = yield from self._wait(task_id, None if timeout is None else seconds(timeout, "timeout"))
        if partial and task.partial is not None:
            return task.partial
        if task.state is State.FAILED:
            raise TaskFailed(task.task_id, task.task, task.error or {}, task.partial)
        if task.state is State.CANCELLED:
            raise TaskCancelled(task.task_id, task.task)
        try:
            return task.result if declared is None else declared.load(task.result)
        except ValueError as error:
            raise InvalidInput(
                f"the result of task {task_id} does not fit the type that `returns` names ({error})"
            ) from None

    def _wait(self, task_id: str, timeout: float | None) -> Script[Task]:
        until = math.inf if timeout is None else self._clock.monotonic() + timeout
        while True:
            left = max(0.0, until - self._clock.monotonic())
            hold = min(left, HOLD_S)
            response = yield from self._call(
                "GET",
                f"{_path(task_id)}/result",
                query={"timeout_s": hold},
                hold_s=hold,
                patience=min(self.patience, max(left, 1.0)),
            )
            task = parse_task(response.json)
            if task.ended:
                return task
            if task.reason in NEEDS_A_PERSON:
                raise TaskParked(task_id, task.task, str(task.reason), (task.error or {}).get("message", ""))
            if self._clock.monotonic() >= until:
                raise ResultTimeout(task_id, timeout or 0, task.state, task.reason or "")

    @verb
    def journal(self, task_id: str, after: int = 0, limit: int = 1000) -> Script[Records]:
        """Records after a number. Raises TaskNotFound."""
        records: list[Record] = []
        while True:  # the server ends a page early when its records are large
            wanted = limit - len(records)
            document = yield from self._read(f"{_path(task_id)}/events", after=after, limit=wanted)
            records += [parse_record(record) for record in document["records"]]
            if document["next"] is None or len(records) >= limit:
                return records
            after = document["next"]

    @stream
    def tail(self, task_id: str, after: int = 0) -> Stream[Record]:
        """Every record after a number, as it is written, until the task has ended: each once, also when the connection or the server goes
        away in between."""
        yield from self._follow(task_id, Feed(self, f"{_path(task_id)}/events", {}, after), parse_record)

    @stream
    def follow(self, task_id: str, after: int = 0, *, only: Only | None = None) -> Stream[Update]:
        """Progress updates after a number (`Update.seq`), as they come, until the task has ended; each once, as with `tail`. With
        `only="progress"`, what the handler gave to `ctx.progress`, and the end without the result or the error."""
        query = {"task_id": task_id} if only is None else {"task_id": task_id, "only": only}
        yield from self._follow(task_id, Feed(self, "/api/progress", query, after), parse_update)

    def _follow(self, task_id: str, feed: Feed[T], parse: Callable[[dict[str, Any]], T]) -> Stream[T]:
        ended = False
        while True:
            outcome = yield from feed.read(parse)
            if ended and outcome == (0, True):  # the task had ended before this connection began, and no item was left
                return
            ended = parse_task((yield from self._read(_path(task_id)))).ended
            if not outcome.items and not (ended and outcome.whole):
                yield Pause(POLL_INTERVAL_S)

    @verb
    def state(self, task_id: str) -> Script[AgentState]:
        """The state of an agent. Raises NoState for a task without a state."""
        return parse_state((yield from self._read(f"{_path(task_id)}/state")))

    @verb
    def artifacts(self, task_id: str) -> Script[Refs]:
        """The artifacts of a task, of all pages."""
        artifacts = yield from self._pages(f"{_path(task_id)}/artifacts", "artifacts")
        return [parse_artifact(artifact) for artifact in artifacts]

    @verb
    def artifact(self, task_id: str, artifact_id: str) -> Script[bytes]:
        """The bytes of an artifact of this task. Raises ArtifactNotFound."""
        return (yield from self._call("GET", path("artifacts", f"{task_id}.{artifact_id}"))).body

    @verb
    def budget(self, task_id: str) -> Script[Spent]:
        """The budget that a task spends from, its own or the nearest above it, and how much of it is spent."""
        return parse_budget((yield from self._read(f"{_path(task_id)}/budget")))

    @verb
    def asks(self, kind: str | None = None) -> Script[Asks]:
        """Questions and approvals that wait for people, the oldest first, of all pages. Where a page has no room for all of one, `left_out`
        names the values that are missing; `approval` and `question` return it in full."""
        asks: Asks = []
        for ask_kind in ASK_KINDS if kind is None else (kind,):
            asks += yield from self._asks(ask_kind)
        return sorted(asks, key=lambda ask: ask.asked_at)

    @verb
    def approvals(self) -> Script[Asks]:
        """Approvals that wait for people, of all pages, with `left_out` as in `asks`. In a page those that expire first come first."""
        return (yield from self._asks("approval"))

    @verb
    def approval(self, approval_id: str) -> Script[Ask]:
        """An approval in full, open or decided. Raises NotFound."""
        return from_json(Ask, (yield from self._read(path("approvals", approval_id))))

    @verb
    def questions(self) -> Script[Asks]:
        """Questions that wait for people, of all pages, with `left_out` as in `asks`. In a page the oldest comes first."""
        return (yield from self._asks("question"))

    @verb
    def question(self, question_id: str) -> Script[Ask]:
        """A question in full, open or answered. Raises NotFound."""
        return from_json(Ask, (yield from self._read(path("questions", question_id))))

    def _asks(self, kind: str) -> Script[Asks]:
        if kind not in ASK_KINDS:
            raise BadSetting("kind", kind, " or ".join(map(repr, ASK_KINDS)))
        document = yield from self._read(f"/api/{kind}s")
        asks = [from_json(Ask, ask) for ask in document[f"{kind}s"]]
        while (cursor := document.get("next")) is not None:  # an older server has one page
            document = yield from self._read(f"/api/{kind}s", cursor=cursor)
            asks += [from_json(Ask, ask) for ask in document[f"{kind}s"]]
        return asks

    @verb
    def doubts(self, task_id: str) -> Script[Doubts]:
        """The effects of a task that are in doubt."""
        document = yield from self._read(f"{_path(task_id)}/doubts")
        return [from_json(Doubt, doubt) for doubt in document["doubts"]]

    @verb
    def in_doubt(self, *, limit: int = 100, after: str = "") -> Script[InDoubt]:
        """The effects of all tasks that are in doubt, and the unfinished tasks that a restore took back: about `limit` of each, in the
        order of the tasks. `next` of the page is the `after` of the next one (None at the end)."""
        return from_json(InDoubt, (yield from self._read("/api/doubts", limit=limit, after=after or None)))

    # ── control: `idempotent` where twice is the same as once ─────────────────────────────────────────────────────

    @verb
    def cancel(self, task_id: str) -> Script[Task]:
        """Cancel the task, in any state."""
        return (yield from self._control(task_id, "cancel", idempotent=True))

    @verb
    def prune(self, task_id: str) -> Script[int]:
        """Prune an ended task and all that it started; how many tasks that were. As `Onward.prune`. Not sent twice: a pruned task is not
        found."""
        return int((yield from self._call("DELETE", _path(task_id))).json["pruned"])

    @verb
    def pause(self, task_id: str) -> Script[Task]:
        """Pause the task and its children until `resume`; running tasks stop at their next step."""
        return (yield from self._control(task_id, "pause", idempotent=True))

    @verb
    def resume(self, task_id: str) -> Script[Task]:
        """Go on with a failed, parked, quarantined or paused task. Not sent twice: a task that goes on cannot be resumed."""
        return (yield from self._control(task_id, "resume"))

    @verb
    def prioritize(self, task_id: str, priority: int) -> Script[Task]:
        """Change the priority of a task; higher goes first."""
        return (yield from self._control(task_id, "priority", {"priority": priority}, idempotent=True))

    @verb
    def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> Script[None]:  # noqa: A002
        """Send a signal to a task; it is kept until the task waits for it. The same `id` twice is one signal. A signal without an `id` gets
        one, so that the request can be sent again until it is answered."""
        verb = "signals/" + segment(name)
        yield from self._control(task_id, verb, {"value": value, "id": id or self._ids()}, idempotent=True)

    @verb
    def message(self, task_id: str, text: str, *, id: str | None = None) -> Script[None]:  # noqa: A002
        """Send a message of a person to a task that has not ended. As `Onward.message`; `id` is as for a signal."""
        yield from self._control(task_id, "message", {"text": text, "id": id or self._ids()}, idempotent=True)

    @verb
    def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Script[H]:  # noqa: A002
        """Start a new task that begins with records 1…`at` of another and goes on from there; with another `input`, from the first
        record. Not sent twice: that would start two tasks. Raises CannotFork where the journal cannot be cut."""
        body = ({} if at is None else {"at": at}) | ({} if input is SAME else {"input": input})
        return self.handle((yield from self._control(task_id, "fork", body)).task_id)

    def _control(self, task_id: str, verb: str, body: Any = NO_BODY, *, idempotent: bool = False) -> Script[Task]:
        response = yield from self._call("POST", f"{_path(task_id)}/{verb}", body, idempotent=idempotent)
        return parse_task(response.json)

    # ── decide: not sent twice, since the second request would get AlreadyDecided ────────────────────────────────

    @verb
    def answer(self, question_id: str, answer: Any) -> Script[None]:
        """Answer a question. Raises AlreadyDecided, AskExpired (a subclass), or Withdrawn when it is no longer open."""
        yield from self._call("POST", path("questions", question_id), {"answer": answer})

    @verb
    def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- as in Onward.decide
        digest: str | None = None,
    ) -> Script[bool]:
        """Approve or deny, once. As `Onward.decide`; the decision is recorded under the name of the key. Returns False for a vote on an
        approval whose rule needs more of them."""
        body = {"decision": decision, "reason": reason, "arguments": arguments, "always": always, "hash": hash}
        body |= {} if digest is None else {"digest": digest}  # a server of an earlier version does not know it
        response = yield from self._call("POST", path("approvals", approval_id), body)
        return bool(response.json["decided"])

    @verb
    def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Script[None]:
        """Resolve an effect in doubt: "happened" (with this result), "not_happened", "nothing_happened" (before a restore neither this
        nor any effect after it did) or "undo"."""
        yield from self._control(task_id, "resolve", {"verdict": verdict, "result": result, "step": step})

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
        body = _limits(
            max_steps=max_steps,
            max_wall_time=max_wall_time,
            max_llm_tokens=max_llm_tokens,
            max_cost_usd=max_cost_usd,
        )
        response = yield from self._call("POST", f"{_path(task_id)}/budget", body, idempotent=True)
        return parse_budget(response.json)


def submit_body(
    task: str,
    input: Any,  # noqa: A002 -- as in Onward.submit
    *,
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
) -> dict[str, Any]:
    """The body of a submit; its arguments are those of `submit`."""
    fields = {
        "task": task,
        "input": input,
        "priority": priority or None,
        "queue": queue,
        "deadline_s": _seconds("deadline", deadline),
        "delay_s": _seconds("delay", delay),
        "expires_s": _seconds("expires", expires),
        "labels": None if labels is None else dict(labels),
        "group": group,
        "budget": None if budget is None else _limits(**budget.to_json()),
        "after": after,
        "webhook_url": webhook,
    }
    return {name: value for name, value in fields.items() if value is not None}


def task_query(which: Which) -> dict[str, Any]:
    """The filters as parameters of a query."""
    query: dict[str, Any] = dict(which)
    for name in ("created_after", "created_before"):
        if isinstance(moment := query.get(name), float | int):
            query[name] = iso(moment)
        elif moment is not None:
            query[name] = moment.isoformat()
    labels = query.pop("labels", None) or {}
    query["label"] = [
        f"{name}:{value}" for name, values in labels.items() for value in as_list("labels", values)
    ] or None
    query["q"] = query.pop("text", None)
    return {name: _parameter(value) for name, value in query.items() if value is not None}


def _parameter(value: Any) -> Any:
    """One value, or several, as strings."""
    return str(value) if isinstance(value, str | int) else [str(item) for item in value]


def _path(task_id: str) -> str:
    if not task_id.strip("."):  # "." and ".." have a meaning of their own in a path
        raise TaskNotFound(task_id)
    return path("tasks", task_id)


def _seconds(name: str, value: Duration | None) -> float | None:
    return None if value is None else seconds(value, name)


def _limits(max_wall_time: Duration | None = None, **limits: Any) -> dict[str, Any]:
    body = {"max_wall_time_s": _seconds("max_wall_time", max_wall_time), **limits}
    return {name: value for name, value in body.items() if value is not None}


def key_header(key: str) -> dict[str, bytes]:
    """The header Idempotency-Key. Its value is a quoted string."""
    if not key.isprintable():
        raise UsageError(f"key must be a string of 1 to 512 printable characters, not {key!r:.80}")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return {"Idempotency-Key": f'"{escaped}"'.encode()}
