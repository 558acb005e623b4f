"""A server as the backend of a command: the verbs of `LocalBackend` over its HTTP API, with the rights of a key.

The server sends JSON that was made of the views that the service returns; here the same views are made of it. Errors of the server
become the errors that the database gives, with the same exit status.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from onward.app.application import VERSION
from onward.cli.backend.target import KEY, Target, not_remote
from onward.client.parse import parse_artifact, parse_budget, parse_record, parse_state, parse_task
from onward.client.script import NO_BODY, Response, Script, verb
from onward.client.sending import segment
from onward.client.verbs import key_header, submit_body, task_query
from onward.core import wire
from onward.core.asks import AskedIn
from onward.core.audit import Entry
from onward.core.doubts import Doubt, InDoubt
from onward.core.durations import Duration, seconds
from onward.core.history import History
from onward.core.journal.cuts import Again
from onward.core.journal.explain import Explanation
from onward.core.lock import Lock
from onward.core.page import Page, every_item
from onward.core.record import Record
from onward.core.task import SAME, Task, Tasks
from onward.core.text import iso
from onward.core.view_json import from_json, parse_time
from onward.core.views import (
    Acted,
    Ask,
    Check,
    CodeVersion,
    DeadLetter,
    DeadLetterContent,
    Decided,
    Delivery,
    HandlerView,
    Intake,
    Key,
    Queue,
    Schedule,
    Session,
    Spent,
    Stats,
    TenantUse,
    TurnView,
    UsageReport,
    WorkerView,
)
from onward.errors import InvalidInput, KeylessOutside, OnwardError, ResultTimeout, Unauthorized, UsageError
from onward.service.audit import Verdict
from onward.service.encryption import EncryptionStatus
from onward.service.forks import ForkPlan
from onward.service.keys import NewKey
from onward.service.submission import SubmitRequest
from onward.service.timeline import Turn
from onward.store.port.listing import MAX_ASKS

try:
    from onward.client.client import Client
except ImportError as error:
    raise UsageError(f"--url needs a package that is missing: {error}") from None

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

T = TypeVar("T")
Json = dict[str, Any]
Versions = list[CodeVersion]
Entries = list[Entry]
Uses = list[TenantUse]
Locks = list[Lock]
Letters = list[DeadLetter]
Deliveries = list[Delivery]
Doubts = list[Doubt]
Turns = list[TurnView]
Records = list[Record]

PATIENCE_S = 3.0
"""Seconds for which a request is sent again when the server does not answer. A person waits for it."""

FOLLOW_PATIENCE_S = 300.0
"""The same for a command that waits for a task: the task goes on while a server restarts, and so does the command."""

LONG_S = 600.0
"""Seconds for which the server may work at one request: the check of a long audit log."""

UNKNOWN_CALLS = frozenset({"no_such_path", "wrong_method"})
"""Codes of a server that does not have a call, because it is of an earlier version."""


class OtherVersion(UsageError):
    """The server does not have a call that this command needs, or its answer has another form."""

    code = "other_version"

    def __init__(self, url: str, version: str) -> None:
        super().__init__(
            f"the server at {url} is Onward {version} and this command is of {VERSION}: it does not know what this command asks for; "
            "update the older of the two"
        )


class NotOnward(UsageError):
    """The address is not that of an Onward server."""

    code = "not_onward"

    def __init__(self, url: str) -> None:
        super().__init__(f"the answer of {url} is not one of an Onward server; check the address")


class KeyNeeded(Unauthorized):
    """The server wants a key, or another one."""

    def __init__(self, url: str, *, given: bool) -> None:
        state = (
            "does not accept this key: it is unknown, revoked or expired; give another one" if given else "needs a key"
        )
        OnwardError.__init__(
            self,
            f"{url} {state} in {KEY}, or in a file with --key-file; `onward keys create` makes one where the database is",
        )


class _Http(Client):
    """A client with one verb: any request."""

    @verb
    def request(self, /, method: str, path: str, body: Any = NO_BODY, **options: Any) -> Script[Response]:
        """The response to a request, if it succeeded; options are those of `Request`."""
        return (yield from self._call(method, path, body, **options))


@contextlib.asynccontextmanager
async def open_remote(target: Target) -> AsyncIterator[RemoteBackend]:
    """The backend for a server. Errors about its version and its key become sentences for the user of a command line."""
    async with _Http(target.url, target.key, patience=PATIENCE_S, ca_file=target.ca_file) as http:
        backend = RemoteBackend(http)
        try:
            yield backend
        except KeylessOutside:
            raise
        except Unauthorized:
            raise KeyNeeded(http._shown_url, given=target.key is not None) from None
        except OnwardError as error:
            if error.code in UNKNOWN_CALLS and (version := await backend.version()) != VERSION:
                raise OtherVersion(http._shown_url, version) from None
            raise


class RemoteBackend:
    """The verbs of `LocalBackend` over HTTP."""

    kind = "server"

    def __init__(self, http: _Http) -> None:
        self._http = http
        self._patient = copy.copy(http)
        self._patient.patience = FOLLOW_PATIENCE_S
        self.where = http._shown_url

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def version(self) -> str:
        """The version of the server."""
        try:
            return str((await self._get("/api/whoami"))["version"])
        except (OnwardError, KeyError):
            return "of an unknown version"

    async def environment(self) -> str:
        """The name of the server's installation; empty without one."""
        return str((await self._get("/api/whoami")).get("environment", ""))

    async def _get(self, path: str, *, hold_s: float = 0.0, **query: Any) -> Json:
        given = {name: value for name, value in query.items() if value is not None}
        return self._document(await self._http.request("GET", path, query=given, hold_s=hold_s))

    async def _post(self, path: str, body: Any = NO_BODY, **options: Any) -> Json:
        return self._document(await self._http.request("POST", path, body, **options))

    def _document(self, response: Response) -> Json:
        if not response.body:
            return {}
        try:
            document = response.json
        except (InvalidInput, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise NotOnward(self.where)
        return document

    async def _made(self, make: Callable[[Json], T], document: Json) -> T:
        """The view of a document. Raises OtherVersion where a field is missing, or of another kind."""
        try:
            return make(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OtherVersion(self.where, await self.version()) from None

    async def _view(self, kind: type[T], document: Json) -> T:
        return await self._made(lambda given: from_json(kind, given), document)

    async def _page(self, kind: type[T], name: str, path: str, **query: Any) -> Page[T]:
        """A page of a list; `name` is that of its items in the document."""
        document = await self._get(path, **query)
        return await self._made(
            lambda page: Page([from_json(kind, item) for item in page[name]], page.get("next")), document
        )

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get(self, task_id: str) -> Task:
        return await self._made(parse_task, await self._get(_task(task_id)))

    async def get_patiently(self, task_id: str) -> Task:
        return await self._made(parse_task, self._document(await self._patient.request("GET", _task(task_id))))

    async def list(self, *, brief: bool = False, **filters: Any) -> tuple[Tasks, str | None]:
        tasks, _, cursor = await self.list_explained(brief=brief, **filters)
        return tasks, cursor

    async def list_explained(
        self, *, brief: bool = False, **filters: Any
    ) -> tuple[Tasks, dict[str, Explanation], str | None]:
        query = task_query(filters) | ({"brief": True} if brief else {})  # type: ignore[arg-type]
        document = await self._get("/api/tasks", **query)

        def made(page: Json) -> tuple[Tasks, dict[str, Explanation], str | None]:
            explanations = {task["task_id"]: _explanation(task["why"]) for task in page["tasks"]}
            return [parse_task(task) for task in page["tasks"]], explanations, page["next"]

        return await self._made(made, document)

    async def count(self, **filters: Any) -> tuple[int, bool]:
        document = await self._get("/api/tasks/count", **task_query(filters))  # type: ignore[arg-type]
        return int(document["count"]), bool(document["capped"])

    async def act(self, action: str, count: int, *, priority: int | None = None, **filters: Any) -> Acted:
        return await self._http.act(action, count, priority=priority, **filters)

    async def wait(self, task_id: str, timeout: float) -> Task:
        """As `LocalBackend.wait`. Raises ResultTimeout."""
        path, query = f"{_task(task_id)}/result", {"timeout_s": timeout}
        document = self._document(await self._patient.request("GET", path, query=query, hold_s=timeout))
        task = await self._made(parse_task, document)
        if not task.ended:
            raise ResultTimeout(task_id, timeout, task.state, task.reason or "")
        return task

    async def journal(self, task_id: str, after: int | None = 0, limit: int = 1000, most: int = 0) -> Page[Record]:  # noqa: ARG002
        """As `LocalBackend.journal`; the server decides how many bytes a page has, and not `most`."""
        document = await self._get(f"{_task(task_id)}/events", after=after, limit=limit)
        return await self._made(
            lambda page: Page(
                [parse_record(record) for record in page["records"]],
                None if page["next"] is None else str(page["next"]),
            ),
            document,
        )

    async def tail(self, task_id: str, after: int = 0) -> AsyncIterator[Record]:
        return self._patient.tail(task_id, after)

    async def record_json(self, task_id: str, seq: int) -> Json:
        return await self._get(f"{_task(task_id)}/records/{seq}")

    async def turns(self, task_id: str, after: int = 0, limit: int = 100) -> Turns:
        return await self._page(TurnView, "turns", f"{_task(task_id)}/turns", after=after, limit=limit)

    async def turn(self, task_id: str, number: int) -> Turn:
        document = await self._get(f"{_task(task_id)}/turns/{number}")
        return await self._made(
            lambda turn: Turn(from_json(TurnView, turn), turn["messages"], turn["reply"], turn["usage"]), document
        )

    async def submit(
        self, requests: Sequence[SubmitRequest], *, after: str | None = None, unchecked: bool = False
    ) -> Sequence[str]:
        return [await self._submit(request, after, unchecked) for request in requests]

    async def _submit(self, request: SubmitRequest, after: str | None, unchecked: bool) -> str:
        """Without a key the request is not sent twice, and the task has no key: as with the database."""
        body = submit_body(
            request.task,
            request.input,
            priority=request.priority,
            queue=request.queue,
            deadline=request.deadline,
            delay=request.delay,
            labels=request.labels,
            group=request.group,
            budget=request.budget,
            after=after,
            webhook=request.webhook,
        )
        body |= {"unchecked": True} if unchecked else {}  # a server of an earlier version does not know it
        headers = {} if request.key is None else key_header(request.key)
        document = await self._post("/api/tasks", body, headers=headers, idempotent=request.key is not None)
        return await self._made(lambda accepted: str(accepted["task_id"]), document)

    async def cancel(self, task_id: str) -> Task:
        return await self._http.cancel(task_id)

    async def pause(self, task_id: str) -> Task:
        return await self._http.pause(task_id)

    async def resume(self, task_id: str) -> Task:
        return await self._http.resume(task_id)

    async def prioritize(self, task_id: str, priority: int) -> Task:
        return await self._http.prioritize(task_id, priority)

    async def prune(self, task_id: str) -> int:
        return await self._http.prune(task_id)

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> str:  # noqa: A002
        return (await self._http.fork(task_id, at, input=input)).id

    async def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        plan = await self._http.fork_plan(task_id, at, input=input)
        again = tuple(Again(step["seq"], step["kind"], step["name"], step["effect"]) for step in plan["would_repeat"])
        return ForkPlan(await self.get(task_id), plan["keeps"], 0, again, tuple(plan["asks_again"]))

    async def fork_places(self, task_id: str) -> Records:
        places: Records = []
        after: int | None = 0
        while after is not None:
            document = await self._get(f"{_task(task_id)}/forks", after=after)
            places += [Record(place["at"], 0, place["kind"], place["key"], b"", 0.0) for place in document["places"]]
            after = document["next"]
        return places

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        await self._http.signal(task_id, name, value, id=id)

    async def message(self, task_id: str, text: str, *, id: str | None = None) -> Task:  # noqa: A002
        await self._http.message(task_id, text, id=id)
        return await self.get(task_id)

    # ── agents ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def state(self, task_id: str) -> AgentState:
        return await self._made(parse_state, await self._get(f"{_task(task_id)}/state"))

    async def patch(self, task_id: str, change: Json, *, id: str | None = None) -> AgentState | None:  # noqa: A002
        document = await self._post(f"{_task(task_id)}/state", {"patch": change, "id": id})
        return None if document["state"] is None else await self._made(parse_state, document["state"])

    async def artifacts(self, task_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[ArtifactRef]:
        document = await self._get(f"{_task(task_id)}/artifacts", limit=limit, cursor=cursor)
        return await self._made(
            lambda page: Page([parse_artifact(ref) for ref in page["artifacts"]], page["next"]), document
        )

    async def artifact(self, task_id: str, artifact_id: str) -> bytes:
        return await self._http.artifact(task_id, artifact_id)

    async def budget(self, task_id: str) -> Spent:
        return await self._made(parse_budget, await self._get(f"{_task(task_id)}/budget"))

    async def raise_budget(self, task_id: str, **limits: Any) -> Spent:
        return await self._http.raise_budget(task_id, **limits)

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def asks(self, kind: str | None = None, *, limit: int = MAX_ASKS, cursor: str | None = None) -> Page[Ask]:
        """As `LocalBackend.asks`; without a kind there is no cursor."""
        if kind is None:
            both = [ask for kind in ("question", "approval") for ask in await self.asks(kind, limit=limit)]
            return Page(_oldest_first(both)[:limit])
        page = await self._page(Ask, f"{kind}s", f"/api/{kind}s", limit=limit, cursor=cursor)
        return Page(_oldest_first(page), page.next)

    async def asks_of_one(self, task_id: str, kind: str, *, cursor: str | None = None) -> Page[Ask]:
        page = await self._page(Ask, f"{kind}s", f"/api/{kind}s", task_id=task_id, cursor=cursor)
        return Page(_oldest_first(page), page.next)

    async def ask(self, ask_id: str) -> Ask:
        path = f"/api/approvals/{segment(ask_id)}"
        try:
            return await self._view(Ask, await self._get(path))
        except OnwardError as error:
            if error.status != 404 or error.code in UNKNOWN_CALLS:
                raise
        return await self._view(Ask, await self._get(f"/api/questions/{segment(ask_id)}"))

    async def asked_in(self, ask_id: str) -> AskedIn:
        return await self._view(AskedIn, await self._get(f"/api/approvals/{segment(ask_id)}/turn"))

    async def answer(self, question_id: str, answer: Any) -> Decided:
        document = await self._post(f"/api/questions/{segment(question_id)}", {"answer": answer})
        return await self._view(Decided, document)

    async def decide(self, approval_id: str, decision: str, **options: Any) -> Decided:
        body = {"decision": decision, **{name: value for name, value in options.items() if value is not None}}
        return await self._view(Decided, await self._post(f"/api/approvals/{segment(approval_id)}", body))

    async def doubts(self, task_id: str) -> Doubts:
        return await self._page(Doubt, "doubts", f"{_task(task_id)}/doubts")

    async def in_doubt(self, limit: int, after: str = "") -> InDoubt:
        return await self._http.in_doubt(limit=limit, after=after)

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> Task:
        await self._http.resolve(task_id, verdict, result, step=step)
        return await self.get(task_id)

    # ── the system ───────────────────────────────────────────────────────────────────────────────────────────────

    async def schedules(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Schedule]:
        return await self._page(Schedule, "schedules", "/api/schedules", limit=limit, cursor=cursor)

    async def pause_schedule(self, name: str) -> Schedule:
        return await self._http.pause_schedule(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        return await self._http.unpause_schedule(name)

    async def remove_schedule(self, name: str) -> None:
        await self._post(f"/api/schedules/{segment(name)}/remove")

    async def trigger(self, name: str) -> str:
        return await self._http.trigger(name)

    async def queues(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Queue]:
        return await self._page(Queue, "queues", "/api/queues", limit=limit, cursor=cursor)

    async def queue(self, name: str) -> Queue:
        for queue in await every_item(lambda cursor: self.queues(cursor=cursor)):
            if queue.name == name:
                return queue
        return Queue(name, 0, 0, {}, None, paused=False, limit=None, rate=0.0)

    async def pause_queue(self, name: str) -> Queue:
        return await self._http.pause_queue(name)

    async def unpause_queue(self, name: str) -> Queue:
        return await self._http.unpause_queue(name)

    async def workers(self, *, limit: int = 1000, cursor: str | None = None) -> Page[WorkerView]:
        return await self._page(WorkerView, "workers", "/api/workers", limit=limit, cursor=cursor)

    async def versions(self) -> Versions:
        return await self._page(CodeVersion, "versions", "/api/versions")

    async def handlers(self, *, limit: int = 1000, cursor: str | None = None) -> Page[HandlerView]:
        return await self._page(HandlerView, "handlers", "/api/handlers", limit=limit, cursor=cursor)

    async def history(self, span: str = "hour") -> History:
        return await self._view(History, await self._get("/api/history", span=span))

    async def stats(self) -> Stats:
        return await self._view(Stats, await self._get("/api/stats"))

    async def usage(self, by: str, since: float | None = None, until: float | None = None) -> UsageReport:
        document = await self._get("/api/usage", by=by, since=iso(since), until=iso(until))
        return await self._view(UsageReport, document)

    async def doctor(self) -> tuple[str, Sequence[Check]]:
        """The database of the server, and the findings of its `onward doctor`."""
        document = await self._get("/api/system", hold_s=LONG_S)
        checks = await self._made(lambda system: [from_json(Check, check) for check in system["checks"]], document)
        return str(document["database"]), checks

    async def encryption(self) -> EncryptionStatus:
        return await self._view(EncryptionStatus, await self._get("/api/encryption"))

    # ── events and messages ──────────────────────────────────────────────────────────────────────────────────────

    async def deliveries(self, **filters: Any) -> tuple[Deliveries, str | None]:
        page = await self._page(Delivery, "deliveries", "/api/deliveries", **filters)
        return page, page.next

    async def redeliver(self, delivery_id: str) -> Delivery:
        return await self._http.redeliver(delivery_id)

    async def intakes(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Intake]:
        return await self._page(Intake, "intakes", "/api/intakes", limit=limit, cursor=cursor)

    async def dead_letters(
        self, intake: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[Letters, str | None]:
        page = await self._page(DeadLetter, "letters", "/api/dead-letters", intake=intake, limit=limit, cursor=cursor)
        return page, page.next

    async def dead_letter(self, letter_id: str, *, most: int) -> DeadLetterContent:
        path = f"/api/dead-letters/{segment(letter_id)}"
        return await self._view(DeadLetterContent, await self._get(path, body_bytes=most))

    async def redrive_letters(self, letter_id: str | None = None, **which: Any) -> int:
        return await self._http.redrive_letters(letter_id, **which)

    async def drop_letters(self, letter_id: str | None = None, **which: Any) -> int:
        return await self._http.drop_letters(letter_id, **which)

    # ── access ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def keys(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Key]:
        return await self._page(Key, "keys", "/api/keys", limit=limit, cursor=cursor)

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        agent: str | None = None,
        expires: Duration | None = None,
        owner: str | None = None,
    ) -> NewKey:
        if owner is not None:
            raise not_remote("--owner", "a key that is made over HTTP acts for the key that made it")
        expires_s = None if expires is None else seconds(expires, "expires")
        body = {"name": name, "scopes": scopes, "tenant": tenant, "agent": agent, "expires_s": expires_s}
        document = await self._post("/api/keys", body)
        return await self._made(
            lambda made: NewKey(from_json(Key, made), made["token"], made["webhook_secret"]), document
        )

    async def revoke_key(self, key_id: str) -> Key:
        return await self._view(Key, await self._post(f"/api/keys/{segment(key_id)}/revoke", idempotent=True))

    async def sessions(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Session]:
        return await self._page(Session, "sessions", "/api/sessions", limit=limit, cursor=cursor)

    async def revoke_session(self, session_id: str) -> Session:
        return await self._view(Session, await self._post(f"/api/sessions/{segment(session_id)}/revoke"))

    async def locks(self, limit: int = 100, cursor: str | None = None) -> tuple[Locks, str | None]:
        page = await self._page(Lock, "locks", "/api/locks", limit=limit, cursor=cursor)
        return page, page.next

    async def release_lock(self, name: str, reason: str, tenant: str | None = None) -> Lock:
        body = {"name": name, "reason": reason, "tenant": tenant}
        return await self._view(Lock, await self._post("/api/locks/release", body))

    async def quotas(self, after: str = "", limit: int = 100) -> Uses:
        return await self._page(TenantUse, "tenants", "/api/quotas", after=after, limit=limit)

    async def set_quota(self, tenant: str, values: Mapping[str, Any]) -> TenantUse:
        document = await self._post(f"/api/quotas/{segment(tenant)}", dict(values), idempotent=True)
        return await self._view(TenantUse, document)

    async def reset_quota(self, tenant: str) -> TenantUse:
        response = await self._http.request("DELETE", f"/api/quotas/{segment(tenant)}", idempotent=True)
        return await self._view(TenantUse, self._document(response))

    async def audit(self, after: int = 0, limit: int = 100, before: int | None = None) -> Entries:
        document = await self._get("/api/audit", after=after, limit=limit, before=before)
        return await self._made(lambda page: [_entry(entry) for entry in page["entries"]], document)

    async def verify_audit(self, heads: Sequence[str] = ()) -> Verdict:
        document = await self._post("/api/audit/verify", {"heads": list(heads)}, hold_s=LONG_S, idempotent=True)
        return await self._view(Verdict, document)


def _task(task_id: str) -> str:
    return f"/api/tasks/{segment(task_id)}"


def _oldest_first(asks: Sequence[Ask]) -> list[Ask]:
    """The order in which the database gives a page; the server gives approvals by the time at which they expire."""
    return sorted(asks, key=lambda ask: (ask.asked_at, ask.id))


def _explanation(why: Json) -> Explanation:
    times = {name: None if why[name] is None else parse_time(why[name]) for name in ("since", "until")}
    return Explanation(**{**why, **times})


def _entry(document: Json) -> Entry:
    return Entry(**{**document, "data": wire.encode(document["data"], "the entry")})
