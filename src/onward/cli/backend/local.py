"""The database as the backend of a command, with the rights of its owner."""

from __future__ import annotations

from typing import Any

from onward.app.application import Onward
from onward.cli.args.actor import cli_caller
from onward.core.task import Task
from onward.server.access.service import AuthorizedService
from onward.service.serialize import whole_record_json


class LocalBackend(AuthorizedService):
    """The verbs of `AuthorizedService` for the user of this machine. The audit log and the journals have the name of that user."""

    kind = "database"

    def __init__(self, app: Onward) -> None:
        super().__init__(app.service, cli_caller())
        self.where = app.store.where
        self._environment = app.settings.environment

    async def environment(self) -> str:
        """The name of this installation; empty without one."""
        return self._environment

    async def get_patiently(self, task_id: str) -> Task:
        """As `get`, for a command that waits for the task; over HTTP it goes on while the server restarts."""
        return await self.get(task_id)

    async def record_json(self, task_id: str, seq: int) -> dict[str, Any]:
        """One record with its input and output, as JSON; cut where it is too long. Raises NotFound."""
        return whole_record_json(await self.record(task_id, seq))
