"""Cadence as the engine of the service: it starts workflows, sends signals, and reads journals by queries."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import urllib.parse
from typing import Any

from cadence.api.v1.common_pb2 import WorkflowExecution
from cadence.api.v1.query_pb2 import WorkflowQuery
from cadence.api.v1.service_visibility_pb2 import (
    ListClosedWorkflowExecutionsRequest,
    ListOpenWorkflowExecutionsRequest,
)
from cadence.api.v1.service_visibility_pb2_grpc import VisibilityAPIStub
from cadence.api.v1.service_workflow_pb2 import QueryWorkflowRequest
from cadence.api.v1.visibility_pb2 import StartTimeFilter, WorkflowTypeFilter
from cadence.api.v1.workflow_pb2 import (
    WORKFLOW_EXECUTION_CLOSE_STATUS_CONTINUED_AS_NEW,
    WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
    WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
)
from cadence.client import Client
from cadence.error import (
    CadenceRpcError,
    CancellationAlreadyRequestedError,
    EntityNotExistsError,
    QueryFailedError,
    WorkflowExecutionAlreadyCompletedError,
    WorkflowExecutionAlreadyStartedError,
)
from grpc import StatusCode

from onward.core.clock import Clock
from onward.engines import wire
from onward.engines.client import NotFound, WorkflowEngine
from onward.errors import BadSetting, StoreUnavailable
from onward.store.port.core import Store
from onward.store.port.listing import Which

log = logging.getLogger("onward.cadence")

CALL_TIMEOUT_S = 30.0
"""Seconds within which the server must answer; the client of Cadence tries again within them."""

QUERY_TIMEOUT_S = 20.0
"""Seconds within which a worker must answer a query. After the death of a worker the server may wait for its answer in vain."""

QUERY_ATTEMPT_S = 5.0
"""Seconds of one attempt of a query: each attempt asks any worker."""

QUERY_PAUSE_S = 0.05
"""Seconds until a query that failed is sent again: the workflow may be about to make its first decision."""

TASK_TIMEOUT = datetime.timedelta(seconds=5)
"""The time in which a worker must make a decision; then another worker gets it."""

RUN_TIMEOUT = datetime.timedelta(days=3650)
"""Cadence asks for an end of every run: a task may wait for long."""

MAX_EVENTS = 600
"""Events of the history of one run. The client of Cadence has no cache of workflows: it replays the whole history at every decision."""

MAX_ANSWER_BYTES = 64 << 20
"""Bytes of one answer of the server: a page of a history has the results of many steps. The default of gRPC is 4 MB."""

MAX_LISTED = 1_000
"""Workflows that are read before a list of tasks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """`cadence://HOST:PORT/DOMAIN?tasklist=NAME`."""

    target: str
    domain: str
    queue: str

    def __str__(self) -> str:
        return f"Cadence {self.target}/{self.domain}, task list {self.queue}"

    @property
    def workflow(self) -> str:
        """The type of its workflows. It names the task list, because the visibility of Cadence on SQL can filter by nothing else."""
        return f"{wire.WORKFLOW}@{self.queue}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """The parts of an address. Raises BadSetting."""
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qs(parts.query)
        if parts.scheme != "cadence" or not parts.hostname or query.keys() - {"tasklist"} or "@" in parts.netloc:
            raise BadSetting("engine", f"{parts.scheme}://…", "cadence://HOST:PORT/DOMAIN?tasklist=NAME")
        queue = query.get("tasklist", ["onward"])[0]
        return cls(f"{parts.hostname}:{parts.port or 7833}", parts.path.strip("/") or "default", queue)


class CadenceEngine(WorkflowEngine):
    """The tasks of one domain and task list."""

    title = "Cadence"

    def __init__(self, url: str, copy: Store, clock: Clock, lease_s: float) -> None:
        self.address = Address.parse(url)
        super().__init__(str(self.address), copy, clock, lease_s, MAX_EVENTS)
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """The client, connected. Raises StoreUnavailable."""
        async with self._connecting:
            if self._client is None:
                client = Client(
                    target=self.address.target,
                    domain=self.address.domain,
                    channel_arguments={"grpc.max_receive_message_length": MAX_ANSWER_BYTES},
                )
                try:
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        await client.ready()
                except TimeoutError as error:
                    await client.close()
                    raise StoreUnavailable(
                        f"Cadence {self.address.target} cannot be reached within {CALL_TIMEOUT_S:g} s; check that it runs, and ONWARD_ENGINE"
                    ) from error
                self._client = client
        return self._client

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # ── the calls to the server ──────────────────────────────────────────────────────────────────────────────────

    async def _start(self, start: wire.Start, *, again: bool) -> bool:
        client = await self.client()
        reuse = WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE if again else WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
        call = client.start_workflow(
            self.address.workflow,
            start,
            workflow_id=start["request"]["id"],
            task_list=self.address.queue,
            workflow_id_reuse_policy=reuse,
            execution_start_to_close_timeout=RUN_TIMEOUT,
            task_start_to_close_timeout=TASK_TIMEOUT,
        )
        try:
            await _rpc(call)
        except WorkflowExecutionAlreadyStartedError:
            return False
        except NotFound as error:
            raise StoreUnavailable(
                f"Cadence has no domain {self.address.domain}; register it with `cadence domain register`, or name another one in the engine"
            ) from error
        return True

    async def _signal(self, task_id: str, name: str, argument: Any) -> None:
        await _rpc((await self.client()).signal_workflow(task_id, "", name, argument))

    async def _request_cancel(self, task_id: str) -> None:
        await _rpc((await self.client()).cancel_workflow(task_id, ""))

    async def _query(self, task_id: str, name: str, *args: Any) -> Any:
        client = await self.client()
        query = WorkflowQuery(query_type=name, query_args=client.data_converter.to_data(list(args)))
        request = QueryWorkflowRequest(
            domain=self.address.domain, workflow_execution=WorkflowExecution(workflow_id=task_id), query=query
        )
        end = self._clock.monotonic() + QUERY_TIMEOUT_S
        while True:
            try:
                answer = await _rpc(client.workflow_stub.QueryWorkflow(request, timeout=QUERY_ATTEMPT_S))
            except (QueryFailedError, StoreUnavailable) as error:
                if isinstance(error, StoreUnavailable) and not _is_late(error.__cause__):
                    raise
                if self._clock.monotonic() >= end:
                    raise StoreUnavailable(
                        f"no worker of {self.address} answered about task {task_id} within {QUERY_TIMEOUT_S:g} s; check that one runs "
                        f"(`onward worker`): {error}"
                    ) from error
                await self._clock.sleep(QUERY_PAUSE_S)
            else:
                return client.data_converter.from_data(answer.query_result, [Any])[0]

    async def _list(self, which: Which) -> list[str]:  # noqa: ARG002 -- Cadence on SQL can filter by nothing of it
        """The ids of the newest tasks, by Cadence's visibility, which may lag behind."""
        client = await self.client()
        stub = VisibilityAPIStub(client._channel)
        times = StartTimeFilter()
        times.earliest_time.FromSeconds(0)
        times.latest_time.FromSeconds(int(self._clock.now()) + 60)
        filters: dict[str, Any] = {
            "domain": self.address.domain,
            "page_size": MAX_LISTED,
            "start_time_filter": times,
            "type_filter": WorkflowTypeFilter(name=self.address.workflow),
        }
        open_ = await _rpc(stub.ListOpenWorkflowExecutions(ListOpenWorkflowExecutionsRequest(**filters)))
        closed = await _rpc(stub.ListClosedWorkflowExecutions(ListClosedWorkflowExecutionsRequest(**filters)))
        executions = [
            execution
            for execution in (*open_.executions, *closed.executions)
            if execution.close_status != WORKFLOW_EXECUTION_CLOSE_STATUS_CONTINUED_AS_NEW
        ]
        executions.sort(key=lambda execution: execution.start_time.ToNanoseconds(), reverse=True)
        return list(dict.fromkeys(execution.workflow_execution.workflow_id for execution in executions[:MAX_LISTED]))


async def _rpc(call: Any) -> Any:
    """The answer of a call. Raises NotFound, StoreUnavailable, and the errors that its callers expect."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call
    except (EntityNotExistsError, WorkflowExecutionAlreadyCompletedError) as error:
        raise NotFound from error
    except CancellationAlreadyRequestedError:
        return None
    except (WorkflowExecutionAlreadyStartedError, QueryFailedError):
        raise
    except (CadenceRpcError, TimeoutError) as error:
        raise StoreUnavailable(f"Cadence does not answer: {error}") from error


def _is_late(error: BaseException | None) -> bool:
    """Whether an answer did not come within its time."""
    return isinstance(error, TimeoutError) or (
        isinstance(error, CadenceRpcError) and error.code is StatusCode.DEADLINE_EXCEEDED
    )
