"""Lists of workflows: search attributes for the name of a task, its labels, tenant and parent, and the queries for them.

The state needs no attribute: Temporal knows which workflows have completed, failed or were cancelled. A list is a superset: readers filter the copies
of the tasks again.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError

from onward.core.task import State
from onward.core.wire import decode
from onward.engines import wire
from onward.store.port.listing import Which

log = logging.getLogger("onward.temporal")

TASK, TENANT, PARENT, LABELS = "OnwardTaskName", "OnwardTenant", "OnwardParent", "OnwardLabels"
_KEYWORD, _LIST = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST
ATTRIBUTES = {TASK: _KEYWORD, TENANT: _KEYWORD, PARENT: _KEYWORD, LABELS: _LIST}

MAX_VALUE_LENGTH = 200
"""Characters of a label that is an attribute. A database of Temporal may take 255."""

MAX_IDS = 20_000
"""Workflows whose ids one list reads."""

_PLAIN = re.compile(r"[\w .:/@=+-]+")
"""Values that stand in a query as they are."""

_CLOSED = {State.COMPLETED: ("Completed",), State.FAILED: ("Failed",), State.CANCELLED: ("Canceled", "Completed")}
_OPEN = ("Running",)


class Visibility:
    """The workflows of one task queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._searchable: bool | None = None
        self._said = False

    async def register(self, client: Client) -> bool:
        """Add the search attributes that the namespace lacks; whether it has them."""
        if self._searchable is None:
            try:
                listed = await client.operator_service.list_search_attributes(
                    ListSearchAttributesRequest(namespace=client.namespace)
                )
                if missing := {name: kind for name, kind in ATTRIBUTES.items() if name not in listed.custom_attributes}:
                    await client.operator_service.add_search_attributes(
                        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
                    )
                self._searchable = True
            except RPCError as error:
                self.give_up(error.message)
        return bool(self._searchable)

    def give_up(self, why: str) -> None:
        """Use no search attributes: the namespace does not have them."""
        names = ", ".join(ATTRIBUTES)
        log.warning("lists are not filtered by Temporal, which refused the search attributes %s: %s", names, why)
        self._searchable = False

    def attributes(self, request: wire.Request) -> TypedSearchAttributes | None:
        """The search attributes of a new task; None where the namespace has none."""
        if not self._searchable:
            return None
        keyword, several = SearchAttributeKey.for_keyword, SearchAttributeKey.for_keyword_list
        pairs: list[SearchAttributePair[Any]] = [SearchAttributePair(keyword(TASK), request["task"])]
        if request["tenant"] is not None:
            pairs.append(SearchAttributePair(keyword(TENANT), request["tenant"]))
        if request["parent"] is not None:
            pairs.append(SearchAttributePair(keyword(PARENT), request["parent"]))
        labels = [_label(*item) for item in decode(request["options"].encode()).get("labels", {}).items()]
        if kept := [label for label in labels if len(label) <= MAX_VALUE_LENGTH]:
            pairs.append(SearchAttributePair(several(LABELS), kept))
        return TypedSearchAttributes(pairs)

    async def ids(self, client: Client, which: Which) -> list[str]:
        """The ids of tasks that may match, the newest first. Visibility may lag behind."""
        ids: dict[str, None] = {}
        query = self.query(which, searchable=await self.register(client))
        async for execution in client.list_workflows(query, limit=MAX_IDS + 1):
            ids[execution.id] = None
        if len(ids) > MAX_IDS and not self._said:
            self._said = True
            log.warning(
                "there are more than %d tasks in Temporal's list, and the oldest are left out; filter it, or use a mirror (db=)",
                MAX_IDS,
            )
        return list(ids)[:MAX_IDS]

    def query(self, which: Which, *, searchable: bool = True) -> str:
        """The query for these tasks. It leaves out what it cannot say."""
        parts = [f"WorkflowType = '{wire.WORKFLOW}'", f"TaskQueue = '{self._queue}'"]
        states, reasons = _several(which.get("state")), _several(which.get("reason"))
        if reasons:
            statuses: list[str] = list(_OPEN)
        elif states:
            statuses = [status for state in states for status in _CLOSED.get(State(state), _OPEN)]
        else:
            statuses = [*_OPEN, "Completed", "Failed", "Canceled", "Terminated", "TimedOut"]
        parts.append(_among("ExecutionStatus", statuses))
        if searchable:
            tenant, parent = which.get("whose"), which.get("parent")
            filters = {
                TASK: _several(which.get("task")),
                TENANT: [tenant] if tenant else [],
                PARENT: [parent] if parent else [],
                LABELS: _labels_in(which.get("label")),
            }
            parts += [
                _among(name, values)
                for name, values in filters.items()
                if values and all(map(_PLAIN.fullmatch, values))
            ]
        return " AND ".join(parts)


def _several(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else [str(item) for item in value]


def _among(name: str, values: list[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in dict.fromkeys(values))
    return f"{name} IN ({listed})"


def _label(name: str, value: str) -> str:
    return f"{name}={value}"


def _labels_in(label: bytes | None) -> list[str]:
    """The label of a filter of the store, as an attribute."""
    try:
        labels = {} if label is None else json.loads(b"{" + label + b"}")
    except ValueError:
        return []
    return [text for item in labels.items() if len(text := _label(*item)) <= MAX_VALUE_LENGTH]
