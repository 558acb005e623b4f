"""The class `Onward`: the only place that names the concrete parts and joins them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Self

from onward.app.connect import open_shelf, open_store
from onward.app.engines import OtherEngines, RunningWorker, open_engine, store_url
from onward.app.events import Events
from onward.app.frameworks import Frameworks
from onward.app.intakes import IntakeMethods
from onward.app.locks import Coordination
from onward.app.mcp import Mcp
from onward.app.sign_in import make_sign_in
from onward.app.sync import SyncOnward
from onward.app.threads import running_loop
from onward.app.verbs import Verbs
from onward.artifacts.keeper import Artifacts
from onward.config import Settings, load, read_secret, to_display
from onward.coordinate.connect import open_coordinator
from onward.coordinate.tasks import TaskLocks
from onward.core.approval import ApprovalRule, check_rule
from onward.core.audit import parse_keys
from onward.core.caller import KEYLESS
from onward.core.clock import Clock, SystemClock
from onward.core.encryption import MasterKeys
from onward.core.encryption import parse_keys as parse_encryption_keys
from onward.core.ids import Ids
from onward.core.limit import LimitRow
from onward.engine import background
from onward.engine.background import Spawn
from onward.engine.context.secrets import Source
from onward.engine.worker.code import code_version
from onward.engine.worker.ticker import Ticker
from onward.engine.worker.worker import Worker
from onward.errors import UsageError
from onward.server.http.metrics import exposed
from onward.service.intakes import DeadLetters
from onward.service.keys import Keys
from onward.service.service import Service
from onward.store.port.core import Store

VERSION = "0.1.0"


class Onward(Events, IntakeMethods, Mcp, Frameworks, Verbs, Coordination, OtherEngines):
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
        self._ids, self._users, self._kept_open = Ids(self._clock.now, self._rng), 0, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
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
        if self._users or self._kept_open:
            raise UsageError("an app that is open cannot move to another database; close it first")
        self.settings = dataclasses.replace(self.settings, db=read_secret("db", db))
        self._join(open_store(store_url(self.settings), self._clock, self.settings.connections))

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, migrate: bool | None = None) -> None:
        """Connect to the database, and stay open until `close`: for notebooks. `async with app:` does both for you."""
        if self._loop is not asyncio.get_running_loop():
            await self._open(migrate)
        self._kept_open = True

    async def close(self) -> None:
        """Close the connections to the database and those of the models of agents. Inside of `async with app:` the end of the block does it."""
        self._kept_open = False
        if self._users == 0:
            await self._close()

    async def _open(self, migrate: bool | None = None) -> None:
        self.secrets.learn()
        await self.store.open(migrate=migrate)
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()

    async def _close(self) -> None:
        self._loop = None
        await self._close_streams()
        for model in self._models:
            await model.close()
        for server in self._tool_servers:
            await server.close()
        await self._close_cache()
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._close_engine()
        await self.store.close()

    async def __aenter__(self) -> Self:
        if self._users == 0 and self._loop is not asyncio.get_running_loop():
            await self._open()
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._users == 0 and not self._kept_open:
            await self._close()

    @functools.cached_property
    def sync(self) -> SyncOnward:
        """The verbs as blocking calls, for any thread of a program without an event loop: `app.sync.submit(…).result()`."""
        return SyncOnward(self)

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
            version=f"{VERSION}+{self.settings.code or code_version(self.handlers)}",
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


def _master_keys(settings: Settings) -> MasterKeys | None:
    """The master keys of the settings; None when payloads are not encrypted."""
    if not settings.encryption_keys:
        return None
    return parse_encryption_keys(read_secret("encryption_keys", settings.encryption_keys))
