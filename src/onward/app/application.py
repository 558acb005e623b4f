"""The class `Onward`: the only place that names the concrete parts and joins them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Self, TypeVar, Unpack, overload

from onward.app.connect import open_shelf, open_store
from onward.app.engines import OtherEngines, RunningWorker, open_engine, store_url
from onward.app.events import Events
from onward.app.frameworks import Frameworks
from onward.app.intakes import IntakeMethods
from onward.app.locks import Coordination
from onward.app.mcp import Mcp
from onward.app.queries import Queries
from onward.app.sign_in import make_sign_in
from onward.app.threads import running_loop
from onward.artifacts.keeper import Artifacts
from onward.config import Settings, load, read_secret, to_display
from onward.coordinate.connect import open_coordinator
from onward.coordinate.tasks import TaskLocks
from onward.core.approval import ApprovalRule, check_rule
from onward.core.audit import parse_keys
from onward.core.budget import Budget
from onward.core.caller import KEYLESS, in_python
from onward.core.clock import Clock, SystemClock
from onward.core.durations import Duration, seconds
from onward.core.encryption import MasterKeys
from onward.core.encryption import parse_keys as parse_encryption_keys
from onward.core.ids import Ids
from onward.core.limit import LimitRow
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.core.views import Ask, Doubt, Schedule, Spent
from onward.engine import background
from onward.engine.background import Spawn
from onward.engine.check.deploy_check import HANDLER_TIMEOUT_S, Checker, Finding, Progress, Replayed, show_no_progress
from onward.engine.context.secrets import Source
from onward.engine.context.signatures import JsonObject, SubmitManyOptions, SubmitOptions, T_co, Untyped
from onward.engine.worker.ticker import Ticker
from onward.engine.worker.worker import Worker
from onward.errors import UsageError
from onward.server.http.metrics import exposed
from onward.service.audit import Entries
from onward.service.forks import ForkPlan
from onward.service.intakes import DeadLetters
from onward.service.keys import Keys
from onward.service.service import Service
from onward.service.submission import SubmitRequest, named
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

VERSION = "0.1.0"

T = TypeVar("T")
InputT = TypeVar("InputT")

Refs = list["ArtifactRef"]
Doubts = list[Doubt]
Findings = list[Finding]
Schedules = list[Schedule]


class Onward(Events, IntakeMethods, Mcp, Frameworks, Queries, Coordination, OtherEngines):
    """An application: its handlers, its database, and all verbs.

        app = Onward()  # ONWARD_DB, or sqlite:///onward.db; also postgresql://… and sqlite://:memory:

    Every setting of `onward.config.Settings` can be given by name and overrides file and environment. `approval_rules` say who may decide
    the approvals that tasks of this app ask for; the first rule that matches holds. `encryption` takes the master keys of payloads from a key
    management service, in place of the setting `encryption_keys`. `brokers` names brokers by their URLs, for `intake` and `publish`.
    """

    _version = VERSION

    def __init__(
        self,
        db: str | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        store: Store | None = None,
        secrets: Source | None = None,
        approval_rules: Sequence[ApprovalRule] = (),
        encryption: MasterKeys | None = None,
        brokers: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._clock, self._rng = clock or SystemClock(), rng or random.SystemRandom()
        self._ids, self._users = Ids(self._clock.now, self._rng), 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.settings: Settings = load({"db": db, "brokers": brokers, **settings})
        self.approval_rules: tuple[ApprovalRule, ...] = tuple(approval_rules)
        for rule in self.approval_rules:
            check_rule(rule)
        self._master_keys = encryption or _master_keys(self.settings)
        self.secrets.source(self.settings.secrets if secrets is None else secrets)
        self._tool_cache = self._open_tool_cache
        self._join(store or open_store(store_url(self.settings), self._clock, self.settings.connections))

    def _join(self, store: Store) -> None:
        self.store: Store = store
        if self.settings.audit_key:
            store.audit.keys = parse_keys(read_secret("audit_key", self.settings.audit_key))
        if self._master_keys is not None:
            refuse = self.settings.encryption_plain == "refuse"
            label = self.settings.encryption_label
            store.data_keys.use(self._master_keys, label=label, refuse_plain=refuse, inline=store.inline)
        self._hang_bell(store)
        self._engine = open_engine(self.settings, store, self._clock, encrypted=self._master_keys is not None)
        if self._engine is not None:
            self.store = store = self._engine.store
        self._coordinator = open_coordinator(self.settings.coordinator)
        self.service: Service = Service(
            store,
            self._handler_specs,
            queue_limit=self.settings.queue_limit,
            clock=self._clock,
            ids=self._ids,
            artifacts=Artifacts(store, open_shelf(self.settings.artifacts)),
            webhooks=lambda: self.webhooks,
            tenant_quota=self.settings.tenant_quota,
            intake_keep_s=self.settings.intake_keep_s,
            coordinator=self._coordinator,
            broker_checks=self._check_brokers,
            engine=self._engine,
            await_end=self._await_end(),
        )
        if self._temporal is not None:
            self._temporal.use_artifacts(self.service.artifacts)

    def move(self, db: str) -> None:
        """Use another database. Raises UsageError while the app is open."""
        if self._users:
            raise UsageError("an app that is open cannot move to another database; close it first")
        self.settings = dataclasses.replace(self.settings, db=db)
        self._join(open_store(store_url(self.settings), self._clock, self.settings.connections))

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None) -> None:
        """Connect to the database. `async with app:` does it for you."""
        self.secrets.learn()
        await self.store.open(migrate=migrate)
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Close the connections to the database and those of the models of agents."""
        self._loop = None
        for model in self._models:
            await model.close()
        await self._close_cache()
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._close_engine()
        await self.store.close()

    async def __aenter__(self) -> Self:
        if self._users == 0:
            await self.open()
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0:
            await self.close()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Open the app in an event loop of its own thread while the block lasts: for programs without a loop that give the app to a
        framework, such as LangGraph with its blocking calls."""
        with running_loop(self):
            yield self

    @contextlib.asynccontextmanager
    async def worker(
        self, *, slots: int | None = None, queues: Sequence[str] = (), intakes: bool = True
    ) -> AsyncIterator[RunningWorker]:
        """Run a worker in this process while the block lasts. With `intakes`, it also receives messages of brokers."""
        settings = self.settings
        metrics = exposed(
            self.service.standing, settings.metrics_host, settings.metrics_port, settings.tls_cert, settings.tls_key
        )
        async with self, metrics, self._export_heads():
            worker = self._make_foreign_worker(slots) or self._make_worker(slots=slots, queues=queues)
            await worker.start()
            try:
                async with self.intakes() if intakes else contextlib.nullcontext():
                    yield worker
            finally:
                await worker.stop(self.settings.grace_s)

    def _make_worker(
        self, *, slots: int | None = None, queues: Sequence[str] = (), spawn: Spawn | None = None
    ) -> Worker:
        """A worker that is not started yet."""
        self._check_handlers()
        return Worker(
            self.store,
            self.handlers,
            slots=self.settings.slots if slots is None else slots,
            queues=tuple(queues),
            lease=self.settings.lease_s,
            heartbeat=self.settings.heartbeat_s,
            poll=self.settings.poll_s,
            version=VERSION,
            clock=self._clock,
            rng=self._rng,
            ids=self._ids,
            submit=self.service.child,
            cancel_children=self.service.cancel_children,
            ticker=Ticker(
                self.store, self._clock, self._rng, self._ids, self.save_schedules, spawn or background.spawn
            ),
            relay=self._make_relay(spawn or background.spawn),
            prune=self._pruning(),
            artifacts=self.service.artifacts,
            secrets=self.secrets,
            approval_rules=self.approval_rules,
            locks=TaskLocks(self.store, self._coordinator),
            running_limit=self.service.tenant_quotas.running_limit,
            limits=tuple(LimitRow("queue", name, limit) for name, limit in self._queue_limits.items()),
            spawn=spawn or background.start,
        )

    def _pruning(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return functools.partial(self.service.pruner.run, self.settings.prune_after_s, self._rng)

    def asgi(self, *, hosts: Collection[str] | None = None, keyless: bool = False) -> Any:
        """All verbs over HTTP, as an ASGI app (Starlette): run it with any server, or mount it in an app of your own, whose
        lifespan then has `async with app:`. It answers only requests for the host names in `hosts`; None accepts any. With
        `keyless`, programs on this machine may do everything as long as there is no key; without it, every call needs a key."""
        if keyless and not self.settings.oidc_issuer:
            logging.getLogger("onward.http").warning("%s", KEYLESS)
        return self._make_asgi(hosts=hosts, keyless=keyless)

    def _make_asgi(self, *, hosts: Collection[str] | None, keyless: bool) -> Any:
        """The same without the warning about keys, for a server that shows its own."""
        try:
            from onward.server.access import auth  # noqa: PLC0415 -- an extra
            from onward.server.access.authenticator import Authenticator  # noqa: PLC0415 -- an extra
            from onward.server.http import app as http  # noqa: PLC0415 -- an extra
            from onward.server.http.state import ServerState  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'onward[serve]'") from None
        people = bool(self.settings.oidc_issuer)
        sign_in, sessions = make_sign_in(self.settings, self.service, self._clock) if people else (None, None)
        server = ServerState(
            self.service,
            Authenticator(auth.KeyAuthenticator(self.service.keys, self._clock, key_needed=people), sessions),
            self.store.tails,
            self._clock,
            streams=self.settings.streams,
            version=VERSION,
            body_limit=self.settings.body_limit,
            now=self._clock.now,
            settings=to_display(self.settings, self.store.where),
            hooks=self.hooks,
            hosts=None if hosts is None else frozenset(hosts),
            origins=frozenset(self.settings.origins.split()),
            keyless=keyless and not people,
            sign_in=sign_in,
        )
        return http.asgi(server, more=[self._mcp_route(server)])

    @property
    def keys(self) -> Keys:
        """The keys for HTTP: `create`, `list`, `revoke`. Without any key, only programs on this machine are answered."""
        return self.service.keys

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages of brokers that could not become tasks: `list`, `get`, `redrive`, `drop`."""
        return self.service.dead_letters

    async def audit(self, *, after: int = 0, limit: int = 100) -> Entries:
        """The entries of the audit log after a number, in order (`onward audit verify` checks that they are unchanged)."""
        return await self.service.audit.list(after, limit)

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────────

    # fmt: off
    # by name; without input; with the handler's one argument; with its arguments by name. Then the same for plain functions.
    @overload
    async def submit(self, handler: str, input: Any = None, **options: Unpack[SubmitOptions]) -> Handle[Any]: ...
    @overload
    async def submit(self, handler: Callable[[Any], Awaitable[T]], input: None = None, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], Awaitable[T]], input: InputT, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], input: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any], T], input: None = None, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], T], input: InputT, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], T], input: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    # fmt: on
    async def submit(
        self,
        handler: Callable[..., Any] | str,
        input: Any = None,  # noqa: A002 -- the name in every interface
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
        asker: str | None = None,
        connection: Any = None,
    ) -> Handle[Any]:
        """Submit a task, and return its handle after the commit.

        The same `key` with the same request gives the same task, however often and from wherever it is sent. With
        `connection` (asyncpg, psycopg, SQLAlchemy; on SQLite apsw) the task becomes part of the caller's own transaction. `group`
        (a tenant, a service) is for fairness and limits; the handler may also name an argument for it. `webhook` is a URL that gets
        a signed POST when the task ends. `budget` limits what the task and its children may spend on models, in place of the agent's
        own budget. `after` is the id of an ended task of an agent: this task continues it, with its state and its conversation.
        `asker` names the caller for whom your program submits the task (`person:ID` or `key:ID`): approval rules keep it from deciding.

        With the handler itself (and not its name) type checkers know the input and the result. The input is the handler's one
        argument, or a mapping of its arguments by name. The result is JSON: of a dataclass or a pydantic model it is a dict.
        """
        more: dict[str, Any] = {"group": group, "budget": budget, "webhook": webhook, "askers": _askers(asker)}
        request = SubmitRequest(
            self.name_of(handler), input, key, priority, queue, deadline, delay, expires, labels, **more
        )
        if after is not None:
            request = await self.service.agent_states.after(after, request)
        (task_id,) = await self.service.submit([request], connection=connection)
        return Handle(self, task_id)

    # fmt: off
    # as for submit
    @overload
    async def submit_many(self, handler: str, inputs: Sequence[Any], **options: Unpack[SubmitManyOptions]) -> list[Handle[Any]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any], Awaitable[T]], inputs: Sequence[None], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any, InputT], Awaitable[T]], inputs: Sequence[InputT], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], inputs: Sequence[Mapping[str, Any]], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any], T], inputs: Sequence[None], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any, InputT], T], inputs: Sequence[InputT], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[Concatenate[Any, ...], T], inputs: Sequence[Mapping[str, Any]], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    # fmt: on
    async def submit_many(
        self, handler: Callable[..., Any] | str, inputs: Sequence[Any], **options: Any
    ) -> list[Handle[Any]]:
        """Submit one task for each input, in one commit: all or none. Options as for `submit`, except `key`."""
        name = self.name_of(handler)
        connection, options["askers"] = options.pop("connection", None), _askers(options.pop("asker", None))
        ids = await self.service.submit(
            [SubmitRequest(name, value, **options) for value in inputs], connection=connection
        )
        return [Handle(self, task_id) for task_id in ids]

    def handle(self, task_id: str) -> Handle[Any]:
        """A handle for a task by its id. Does not look the task up."""
        return Handle(self, task_id)

    async def state(self, task_id: str) -> AgentState:
        """The state of an agent's task as it is now. Raises NoState for a task that has none."""
        return await self.service.agent_states.get(task_id)

    async def cancel(self, task_id: str) -> Task:
        """Cancel the task and its children."""
        return await self.service.cancel(task_id)

    async def pause(self, task_id: str) -> Task:
        """Pause the task and its children until `resume`. After this returns no step of them begins; a running step runs to its
        end and is recorded."""
        return await self.service.pause(task_id)

    async def resume(self, task_id: str) -> Task:
        """Go on with a paused, failed, parked or quarantined task from the step where it stands."""
        return await self.service.resume(task_id)

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal to a task (`ctx.signal`). The store keeps it until the task waits for it. The same `id` sent twice counts once."""
        await self.service.messages.signal(task_id, name, value, id=id)

    async def asks(self, kind: str | None = None, *, limit: int = 1000, cursor: str | None = None) -> Page[Ask]:
        """Open questions and approvals: a list of at most `limit`, the oldest first. `next` of the list is the cursor for the next page
        (None at the end). The pages follow the order in which the tasks were submitted. The values of a page have 4 MB together, about;
        beyond that they are left out, and `left_out` of a question or an approval names them. `ask` returns it in full."""
        return await self.service.asks.list(kind, limit=limit, cursor=cursor)

    async def ask(self, ask_id: str) -> Ask:
        """A question or an approval in full, open or not. Raises NotFound."""
        return await self.service.asks.get(ask_id)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question (`ctx.ask`). Raises AlreadyDecided when it is answered already (AskExpired when its time is up), and
        Withdrawn when the task no longer waits for it."""
        await self.service.messages.answer(question_id, answer, caller=in_python())

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        by: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the name in every interface
        digest: str | None = None,
    ) -> bool:
        """Approve or deny (`ctx.approve`, an agent's tool call), once. `by` names the person; a denied agent reads the `reason`. Returns
        True; or False when this is a vote on an approval with a rule (`ApprovalRule`), and the rule needs more of them.

        For a tool call, `arguments` approves it with these arguments in place of its own, and `always` lets the tool run without
        an approval in this task from now on. With `digest` (`Ask.digest`) the decision counts only for the request that you saw;
        `hash` is a shorter form of it. Raises AlreadyDecided when it is decided already (AskExpired when its time is up),
        StaleDecision for another digest, Withdrawn when the task no longer waits for it, InvalidInput for arguments that the
        tool does not take, and NotApprover when a rule does not list `python:NAME` with the name `by`.
        """
        decided = await self.service.messages.decide(
            approval_id,
            decision,
            caller=in_python(by),
            by=by,
            reason=reason,
            arguments=arguments,
            always=always,
            hash=hash,
            digest=digest,
        )
        return decided.decided

    async def doubts(self, task_id: str) -> Doubts:
        """The effects of a task that are in doubt: it is unknown whether they happened."""
        return await self.service.messages.doubts(task_id)

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> None:
        """Resolve an effect in doubt: "happened" (with this result), "not_happened" or "undo"."""
        await self.service.messages.resolve(task_id, verdict, result, step=step, caller=in_python())

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Handle[Any]:  # noqa: A002
        """Submit a new task that begins with records 1…`at` of another and goes on from there; with another `input`, from the first
        record. It inherits the steps before that record and never undoes them; it runs the later steps (`fork_plan` lists
        them) again, under new effect keys. Raises CannotFork where a step, saga or branch is open at that record."""
        return Handle(self, await self.service.forks.fork(task_id, at, input=input))

    async def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        """What `fork` with the same arguments would do: `again` lists the steps that it would repeat, `approvals` the records of the
        approvals that it would ask for again. Submits nothing. Raises CannotFork as `fork` does."""
        return await self.service.forks.plan(task_id, at, input=input)

    async def budget(self, task_id: str) -> Spent:
        """The budget of a task, its own or the nearest above it, and how much of it is spent."""
        return await self.service.budgets.get(task_id)

    async def raise_budget(
        self,
        task_id: str,
        *,
        max_steps: int | None = None,
        max_wall_time: Duration | None = None,
        max_llm_tokens: int | None = None,
        max_cost_usd: float | None = None,
    ) -> Spent:
        """Set limits of that budget. They are absolute: a second equal call changes nothing. Tasks that wait for it go on."""
        return await self.service.budgets.raise_(
            task_id,
            max_steps=max_steps,
            max_wall_time=max_wall_time,
            max_llm_tokens=max_llm_tokens,
            max_cost_usd=max_cost_usd,
        )

    async def artifacts(self, task_id: str) -> Refs:
        """The artifacts of a task (`ctx.artifact`, large outputs of tools). Raises TaskNotFound."""
        return await self.service.artifacts.of(task_id)

    async def artifact(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes of an artifact of this task. Raises ArtifactNotFound."""
        return await self.service.artifacts.read(task_id, artifact_id)

    async def check(self, progress: Progress = show_no_progress, *, patience: Duration = HANDLER_TIMEOUT_S) -> Findings:
        """Return a finding for each unfinished task: whether the code of this app could go on with it. Runs no step and writes
        nothing. `patience` is the time for the code of one handler, which waits for nothing in a dry run."""
        return await self._checker(patience).check(progress)

    async def replay(self, task_id: str, *, patience: Duration = HANDLER_TIMEOUT_S) -> Replayed:
        """Run the code of this app over the journal of a task, without effects, and compare the two."""
        return await self._checker(patience).replay(task_id)

    def _checker(self, patience: Duration) -> Checker:
        return Checker(self.store, self.handlers, self.service.artifacts, seconds(patience, "patience"))

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        return await self.service.prioritize(task_id, priority)

    async def save_schedules(self) -> None:
        """Write the schedules that this app declares to the store, as a worker does when it starts. A changed schedule replaces
        the stored one; a schedule that is no longer declared stays until `remove_schedule`."""
        await self.service.save_schedules(list(self._schedule_specs.values()))

    async def schedules(self) -> Schedules:
        """All schedules in the store, by name."""
        return await self.service.schedules.list()

    async def pause_schedule(self, name: str) -> Schedule:
        """Stop the ticks of a schedule until `unpause_schedule`. Raises ScheduleNotFound."""
        return await self.service.schedules.pause(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        """Go on with the next tick from now."""
        return await self.service.schedules.unpause(name)

    async def remove_schedule(self, name: str) -> None:
        """Remove a schedule; its tasks stay. When the code still declares it, the next worker that starts writes it again."""
        await self.service.schedules.remove(name)

    async def trigger(self, name: str) -> Handle[Any]:
        """Submit the task of a schedule now, in addition to its ticks."""
        return Handle(self, await self.service.schedules.trigger(name))


class Handle(Generic[T_co]):
    """A submitted task."""

    def __init__(self, app: Onward, task_id: str) -> None:
        self._app = app
        self.id: str = task_id

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    @overload
    async def result(self: Handle[Untyped], timeout: Duration | None = None, *, partial: bool = False) -> Any: ...
    @overload
    async def result(
        self: Handle[JsonObject], timeout: Duration | None = None, *, partial: bool = False
    ) -> dict[str, Any]: ...
    @overload
    async def result(self, timeout: Duration | None = None, *, partial: bool = False) -> T_co: ...
    async def result(self, timeout: Duration | None = None, *, partial: bool = False) -> Any:
        """Wait for the result and return it. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on after a timeout.
        Raises TaskParked (a ResultTimeout) at once when the task waits for a person to resume it. With `partial`, a failed task
        gives its best result so far, where it has one: an agent that ran out of time."""
        timeout_s = None if timeout is None else seconds(timeout, "timeout")
        return await self._app.service.result(self.id, timeout_s, partial=partial)

    async def get(self) -> Task:
        """The task as it is now."""
        return await self._app.get(self.id)

    async def cancel(self) -> Task:
        """Cancel the task and its children."""
        return await self._app.service.cancel(self.id)

    def tail(self, after: int = 0) -> AsyncIterator[Record]:
        """The records of the task as they come, until it has ended."""
        return self._app.service.tail(self.id, after)


def _askers(asker: str | None) -> tuple[str, ...]:
    return () if asker is None else (named("asker", asker),)


def _master_keys(settings: Settings) -> MasterKeys | None:
    """The master keys of the settings; None when payloads are not encrypted."""
    if not settings.encryption_keys:
        return None
    return parse_encryption_keys(read_secret("encryption_keys", settings.encryption_keys))
