"""Engines of others in an app: opens the engine that the settings name, and makes its worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

from onward.config import Settings
from onward.core.approval import ApprovalRule
from onward.core.clock import Clock
from onward.core.ids import Ids
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import Handler
from onward.errors import UsageError
from onward.service.engine import AwaitEnd
from onward.service.service import Service
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.agent.models import LazyModel
    from onward.engines.cadence.client import CadenceEngine
    from onward.engines.cadence.worker import CadenceWorker
    from onward.engines.mirror import MirroredWorker
    from onward.engines.temporal.client import TemporalEngine
    from onward.engines.temporal.worker import TemporalWorker


class RunningWorker(Protocol):
    """A worker in this process, of any engine."""

    id: str
    slots: int
    finished: int
    """How many shifts it has done."""

    @property
    def running(self) -> int:
        """How many tasks it does now."""
        ...

    async def start(self) -> None:
        """Begin to work."""
        ...

    async def stop(self, grace: float = 10.0) -> None:
        """Hand running tasks back: at their next step, or when the grace (in seconds) is over."""
        ...


def store_url(settings: Settings) -> str:
    """The database of the settings. With another engine and no `db` it is a copy for readers, in memory. Raises UsageError."""
    if settings.db and _is_cadence(settings):
        raise UsageError("db= beside engine= is not there yet: tasks on Cadence are read by queries; leave db out")
    return settings.db if settings.db or not settings.engine else "sqlite://:memory:"


def open_engine(
    settings: Settings, copy: Store, clock: Clock, *, encrypted: bool
) -> TemporalEngine | CadenceEngine | None:
    """The engine that the settings name, not connected yet; None for Onward's own. `copy` is the store for readers."""
    if not settings.engine:
        return None
    if _is_cadence(settings):
        return _open_cadence(settings, copy, clock, encrypted=encrypted)
    try:
        from onward.engines.temporal.client import TemporalEngine  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[temporal]'") from None
    if encrypted:
        raise UsageError("payloads on Temporal are encrypted by a payload codec of its SDK; leave encryption_keys out")
    mirror = bool(settings.db) and not settings.db.endswith(":memory:")
    return TemporalEngine(settings.engine, copy, clock, settings.lease_s, mirror=mirror)


def _open_cadence(settings: Settings, copy: Store, clock: Clock, *, encrypted: bool) -> CadenceEngine:
    try:
        from onward.engines.cadence.client import CadenceEngine  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[cadence]'") from None
    if encrypted:
        raise UsageError(
            "payloads on Cadence are not encrypted; leave encryption_keys out, or run the app on Onward's own engine"
        )
    return CadenceEngine(settings.engine, copy, clock, settings.lease_s)


def _is_cadence(settings: Settings) -> bool:
    return settings.engine.startswith("cadence:")


def _title(settings: Settings) -> str:
    return "Cadence" if _is_cadence(settings) else "Temporal"


class OtherEngines:
    """The part of an app that another engine needs."""

    settings: Settings
    store: Store
    service: Service
    _make_relay: Any
    _pruning: Callable[[], Callable[[], Coroutine[Any, Any, None]]]
    _version: str
    handlers: dict[str, Handler]
    _models: list[LazyModel]
    secrets: Secrets
    approval_rules: tuple[ApprovalRule, ...]
    _clock: Clock
    _rng: random.Random
    _ids: Ids
    _engine: TemporalEngine | CadenceEngine | None
    _schedule_specs: dict[str, Any]
    _queue_limits: dict[str, Any]
    _listeners: dict[str, Any]
    _intakes: dict[str, Any]

    def _check_handlers(self) -> None:
        if not self.handlers:
            raise UsageError("this app has no handlers: nothing for a worker to do; decorate a function with @app.task")
        for model in self._models:
            model.check()

    def _make_foreign_worker(self, slots: int | None = None) -> TemporalWorker | CadenceWorker | None:
        """A worker of the engine that the settings name, not started yet; None for Onward's own."""
        if self._engine is None:
            return None
        from onward.engines.session import SharedServices, worker_lease_s  # noqa: PLC0415 -- only with another engine

        self._check_handlers()
        self._refuse_features()
        settings = self.settings
        shared = SharedServices(
            clock=self._clock,
            rng=self._rng,
            lease_s=worker_lease_s(settings.lease_s, settings.heartbeat_s),
            artifacts=self.service.artifacts,
            secrets=self.secrets,
            approval_rules=self.approval_rules,
            submit=self.service.child,
        )
        options: dict[str, Any] = {
            "slots": settings.slots if slots is None else slots,
            "heartbeat_s": settings.heartbeat_s,
            "ids": self._ids,
        }
        if _is_cadence(settings):
            from onward.engines.cadence.worker import CadenceWorker  # noqa: PLC0415 -- an extra

            return CadenceWorker(cast("CadenceEngine", self._engine), self.handlers, shared, **options)
        from onward.engines.temporal.worker import TemporalWorker  # noqa: PLC0415 -- an extra

        temporal = cast("TemporalEngine", self._engine)
        return TemporalWorker(temporal, self.handlers, shared, mirrored=self._make_mirrored_worker(), **options)

    @property
    def _temporal(self) -> TemporalEngine | None:
        """The engine, where it is Temporal."""
        return None if _is_cadence(self.settings) else cast("TemporalEngine | None", self._engine)

    def _await_end(self) -> AwaitEnd | None:
        """Waits for the end of a task without reads of its journal; None where the engine has no such call, and with a mirror, where reads are cheap."""
        return None if self._temporal is None or self._temporal.mirror else self._temporal.end

    def _make_mirrored_worker(self) -> MirroredWorker | None:
        if self._temporal is None or not self._temporal.mirror:
            return None
        from onward.engines.mirror import MirroredWorker  # noqa: PLC0415 -- as the engine

        return MirroredWorker(
            self.store,
            self.handlers,
            self._make_relay(),
            self._clock,
            lease_s=self.settings.lease_s,
            version=self._version,
            prune=self._pruning(),
        )

    async def _close_engine(self) -> None:
        """Close the connection to the engine, where its client has to be told."""
        if self._engine is not None and _is_cadence(self.settings):
            await cast("CadenceEngine", self._engine).close()

    def _refuse_features(self) -> None:
        """Raises UsageError where this app declares what its engine does not do: a worker that ignored it would break a promise."""
        limited = [handler.name for handler in self.handlers.values() if handler.limit is not None]
        declared = {
            "schedules": self._schedule_specs,
            "limits": [*limited, *self._queue_limits],
            "event functions": () if self._temporal is not None and self._temporal.mirror else self._listeners,
            "intakes": self._intakes,
            "approval rules": self.approval_rules,
        }
        if names := [name for name, items in declared.items() if items]:
            raise UsageError(
                f"this app has {', '.join(names)}, which are not there on {_title(self.settings)}; leave them out, or run it on Onward's own engine"
            )
