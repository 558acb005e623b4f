"""What both stores have in common: the shared core verbs, and the ports that need nothing but a `Database`."""

from __future__ import annotations

from onward.core.clock import Clock
from onward.core.epoch import FIRST, Epoch
from onward.errors import EpochEnded, UsageError
from onward.store.migrate import EPOCHS, State
from onward.store.shared.approvals import Approvals
from onward.store.shared.budgets import Budgets
from onward.store.shared.data_keys import DataKeys
from onward.store.shared.database import Database
from onward.store.shared.documents import Documents
from onward.store.shared.intakes import Intakes
from onward.store.shared.keys import Keys
from onward.store.shared.listing import Listing
from onward.store.shared.locks import Locks
from onward.store.shared.minutes import Minutes
from onward.store.shared.overview import Overview
from onward.store.shared.pruning import Pruning
from onward.store.shared.queues import Queues
from onward.store.shared.quotas import Quotas
from onward.store.shared.sealing import Sealing
from onward.store.shared.sessions import Sessions
from onward.store.shared.tasks import CoreVerbs
from onward.store.shared.tenant_quotas import TenantQuotas
from onward.store.shared.workers import Handlers


class SharedStore(CoreVerbs):
    """The base of both stores. A store adds `health`, `outbox`, `schedules`, `tails` and `workers`."""

    where: str
    mirror: bool = False

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        super().__init__(database)
        self.approvals = Approvals(database, self.audit)
        self.budgets = Budgets(database, self.audit)
        self.data_keys = DataKeys(database, self.audit, clock)
        self.documents = Documents(database)
        self.handlers = Handlers(database)
        self.intakes = Intakes(database, self.audit)
        self.keys = Keys(database, self.audit)
        self.listing = Listing(database)
        self.locks = Locks(database, self.audit)
        self.minutes = Minutes(database)
        self.overview = Overview(database)
        self.pruning = Pruning(database)
        self.queues = Queues(database)
        self.quotas = Quotas(database)
        self.sealing = Sealing(database)
        self.sessions = Sessions(database, self.audit)
        self.tenant_quotas = TenantQuotas(database, self.audit)

    async def _enter_epoch(self, state: State) -> None:
        """Learn the epoch of the database. From now on this process writes in this epoch only."""
        rows = await self._db.fetch("epoch") if state.newest >= EPOCHS else []
        self.epoch = Epoch._make(rows[0])._replace(own_tables=bool(rows[0][4])) if rows else FIRST
        await self._db.enter(self.epoch.id)

    async def _check_epoch(self, state: State) -> None:
        """Raises EpochEnded where the database has another epoch than this process writes in."""
        if state.newest >= EPOCHS and self._db.epoch is not None:
            rows = await self._db.fetch("epoch_id")
            if (rows[0][0] if rows else FIRST.id) != self._db.epoch:
                raise EpochEnded(self.where)

    async def _check_mirror(self, *, marked: bool) -> None:
        """Raises UsageError where the tasks in the database belong to another engine than the caller expects. An own worker would claim the
        tasks of a mirror, and free those of workers that it does not know."""
        if marked and not self.mirror:
            raise UsageError(
                f"{self.where} is the mirror of tasks on another engine; give engine= (ONWARD_ENGINE) as its workers have it, or another db="
            )
        if self.mirror and not marked and not await self._db.write("mark_mirror"):
            raise UsageError(
                f"{self.where} has tasks of Onward's own engine; a mirror needs a database of its own (db=)"
            )
