"""Brokers of an app: messages become tasks, or calls of a function; a bell; the cache of tools. Part of `Onward`."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onward.app.registry import refuse_second
from onward.brokers.check import check_brokers
from onward.brokers.connect import open_cache, open_source, split_place
from onward.brokers.intake import Intake, IntakeSpec
from onward.brokers.intakes import Intakes
from onward.brokers.message import Message
from onward.config import Settings
from onward.core.clock import Clock
from onward.core.durations import Duration
from onward.core.ids import Ids
from onward.core.views import Check
from onward.engine.background import Spawn, spawn
from onward.errors import BadSetting, UsageError
from onward.service.service import Service
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.agent.cache import ToolCache
    from onward.brokers.port import Source

IntakeF = TypeVar("IntakeF", bound=Callable[[Message], Any])

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MAX_BATCH = 1000
"""Messages that an intake may take at once."""


class IntakeMethods:
    """The methods of `Onward` for messages that come in."""

    store: Store
    service: Service
    settings: Settings
    name_of: Callable[[Callable[..., Any] | str], str]
    _clock: Clock
    _ids: Ids
    _intakes: dict[str, IntakeSpec]
    __aenter__: Any
    __aexit__: Any

    # fmt: off
    # with a task, or with tasks by the type of the message; as a decorator of a function.
    @overload
    def intake(self, name: str, *, from_: str, task: Callable[..., Any] | str | Mapping[str, Callable[..., Any] | str], id: Callable[[Message], str] | None = None, tenant: str | None = None, queue: str | None = None, priority: int = 0, deadline: Duration | None = None, labels: Mapping[str, str] | None = None, batch: int = 200) -> None: ...
    @overload
    def intake(self, name: str, *, from_: str, task: None = None, id: Callable[[Message], str] | None = None, attempts: int = 5, batch: int = 200) -> Callable[[IntakeF], IntakeF]: ...
    # fmt: on
    def intake(
        self,
        name: str,
        *,
        from_: str,
        task: Callable[..., Any] | str | Mapping[str, Callable[..., Any] | str] | None = None,
        id: Callable[[Message], str] | None = None,  # noqa: A002 -- the name in every interface
        tenant: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        batch: int = 200,
        attempts: int = 5,
    ) -> Callable[[IntakeF], IntakeF] | None:
        """Receive the messages of a stream, queue, topic or subject. `from_` is `BROKER/PLACE`, with a broker of `Onward(brokers=…)`.

            app.intake("orders", from_="events/ORDERS", task=ship)

            @app.intake("mail", from_="events/mail")
            async def mail(message):
                await app.signal(message.data["order"], "mail", message.data, id=message.id)

        Each message becomes one task, whose input is the JSON of the message or the data of its CloudEvent. With a mapping, `task` names the
        task for each type of CloudEvent ("*" for all other types). Every acknowledged message is one task or one dead letter (`onward
        dead`); a message that comes again finds its task. A function is called at least once for each message, at most `attempts` times.
        `id` finds the identity of a message that is no CloudEvent. Tenant, queue and priority come from here, never from the message.
        Workers receive messages, and `onward serve` and `onward intake` do.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"the name of an intake is 1 to 100 of letters, digits, _ . and -, not {name!r:.80}")
        refuse_second("intakes", name, self._intakes)
        if not 1 <= batch <= MAX_BATCH:
            raise BadSetting("batch", batch, f"1 to {MAX_BATCH}")
        if not 1 <= attempts <= 100:
            raise BadSetting("attempts", attempts, "1 to 100")
        broker, place = split_place(from_, self.settings.brokers)

        def declare(tasks: Mapping[str, str], function: Callable[[Message], Any] | None) -> None:
            self._intakes[name] = IntakeSpec(
                name,
                broker,
                place,
                tasks,
                function,
                tenant=tenant,
                id=id,
                queue=queue,
                priority=priority,
                deadline=deadline,
                labels=labels,
                batch=batch,
                attempts=attempts,
            )

        if task is not None:
            by_type = task if isinstance(task, Mapping) else {"*": task}
            if not by_type:
                raise UsageError(f"intake {name!r} has no task")
            declare({kind: self.name_of(handler) for kind, handler in by_type.items()}, None)
            return None

        def register(function: IntakeF) -> IntakeF:
            declare({}, function)
            return function

        return register

    @contextlib.asynccontextmanager
    async def intakes(self) -> AsyncIterator[Intakes]:
        """Receive messages in this process while the block lasts. Every worker receives messages too."""
        async with self:
            running = self._make_intakes()
            running.start()
            try:
                yield running
            finally:
                await running.stop()

    def _make_intakes(self, spawn: Spawn = spawn) -> Intakes:
        """The intakes, not started yet. Raises UsageError when the client of a broker is not installed."""
        made = []
        for spec in self._intakes.values():
            self._source(spec)  # a missing client is reported here, and not in the background
            source = functools.partial(self._source, spec)
            made.append(Intake(spec, source, self.service, self.store, self._clock, self._ids))
        return Intakes(made, self._clock, spawn)

    def _source(self, spec: IntakeSpec) -> Source:
        url = self.settings.brokers[spec.broker]
        return open_source(spec.broker, url, spec.place, f"onward-{spec.name}", self._ids(), self._clock)

    async def _check_brokers(self) -> Sequence[Check]:
        """The checks of the brokers of this app: at the places of its own intakes, and of those that other processes report."""
        brokers = self.settings.brokers
        if not brokers:
            return ()
        sources = {spec.source for spec in self._intakes.values()}
        sources |= {*await self.store.intakes.sources()}
        places: dict[str, set[str]] = {}
        for source in sources:
            broker, _, place = source.partition("/")
            places.setdefault(broker, set()).add(place)

        def open_(broker: str, place: str) -> Source:
            return open_source(broker, brokers[broker], place, "onward-doctor", self._ids(), self._clock)

        return await check_brokers(list(brokers), {name: sorted(found) for name, found in places.items()}, open_)

    # ── bell and cache ───────────────────────────────────────────────────────────────────────────────────────────

    def _hang_bell(self, store: Store) -> None:
        """Let a broker carry the nudges of the store, where a setting says so. SQLite needs none."""
        if self.settings.bell and not store.one_machine:
            from onward.brokers.bell import make_bell  # noqa: PLC0415 -- most programs have none

            store.bell = make_bell(self.settings.bell, self.settings.brokers, self._clock)

    @functools.cached_property
    def _cache(self) -> ToolCache:
        from onward.agent.cache import MemoryCache, ToolCache  # noqa: PLC0415 -- agents alone have one

        broker = self.settings.cache
        if broker == "memory":
            return ToolCache(MemoryCache(self._clock), self._clock)
        return ToolCache(open_cache(broker, self.settings.brokers), self._clock)

    def _open_tool_cache(self) -> ToolCache:
        """The cache of tools. Raises BadSetting for a broker that cannot be one."""
        return self._cache

    async def _close_cache(self) -> None:
        if "_cache" in self.__dict__:
            await self._cache.close()
            del self._cache
