"""Reads the workflow of a task from a Cadence server, for the failures of tests."""

from __future__ import annotations

import datetime
from typing import Any

from onward import Onward
from onward.errors import StoreUnavailable

CALL_TIMEOUT_S = 30.0

SHOWN_CHARS = 400
"""Characters of one event: payloads are left out."""


async def last_events(app: Onward, task_id: str, most: int) -> list[str]:
    """The activities of the task that are open, and the last events of its run, each as a line; or why they cannot be read."""
    from cadence.api.v1.common_pb2 import WorkflowExecution
    from cadence.api.v1.service_workflow_pb2 import DescribeWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
    from cadence.error import CadenceRpcError

    assert app._engine is not None
    which = {"domain": app._engine.address.domain, "workflow_execution": WorkflowExecution(workflow_id=task_id)}
    events: list[Any] = []
    token = b""
    try:
        stub = (await app._engine.client()).workflow_stub
        described = await stub.DescribeWorkflowExecution(
            DescribeWorkflowExecutionRequest(**which), timeout=CALL_TIMEOUT_S
        )
        while True:
            request = GetWorkflowExecutionHistoryRequest(**which, next_page_token=token, page_size=1000)
            page = await stub.GetWorkflowExecutionHistory(request, timeout=CALL_TIMEOUT_S)
            events += page.history.events
            if not (token := page.next_page_token):
                break
    except (CadenceRpcError, StoreUnavailable) as error:
        return [f"its history cannot be read: {error}"]
    open_ = [f"open: {_one_line(activity)}" for activity in described.pending_activities]
    return [*open_, *map(_line, events[-most:])]


def _line(event: Any) -> str:
    kind = event.WhichOneof("attributes")
    attributes = type(getattr(event, kind))()
    attributes.CopyFrom(getattr(event, kind))
    for payload in {"input", "result", "details", "header"} & {field.name for field in attributes.DESCRIPTOR.fields}:
        attributes.ClearField(payload)
    at = event.event_time.ToDatetime(tzinfo=datetime.UTC)
    return f"{event.event_id:5} {at:%H:%M:%S.%f} {kind.removesuffix('_event_attributes')} {_one_line(attributes)}"


def _one_line(message: Any) -> str:
    return " ".join(str(message).split())[:SHOWN_CHARS]
