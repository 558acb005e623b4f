"""Ids of messages that are the same in every replay of a graph.

LangGraph's `add_messages` gives a message without an id a random one. A node may name that id in its outcome, to remove or replace the
message, and the journal has the outcome. So the ids of a durable graph come from the task and from the place of the message.
"""

from __future__ import annotations

import copy
import functools
import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import convert_to_messages
from langgraph.channels import BinaryOperatorAggregate
from langgraph.graph.message import add_messages

from onward.engine.context.context import current


def with_stable_ids(channels: Mapping[str, Any]) -> dict[str, Any]:
    """The channels of a graph, with stable ids in those that add messages."""
    return {name: _stable(name, channel) if _adds_messages(channel) else channel for name, channel in channels.items()}


def _adds_messages(channel: Any) -> bool:
    operator = getattr(channel, "operator", None) if isinstance(channel, BinaryOperatorAggregate) else None
    return operator is add_messages or (isinstance(operator, functools.partial) and operator.func is add_messages)


def _stable(name: str, channel: Any) -> Any:
    clone = copy.copy(channel)
    clone.operator = functools.partial(_add, channel.operator, name)
    return clone


def _add(add: Any, channel: str, before: Any, added: Any) -> Any:
    """Add messages as LangGraph does, after those without an id got one."""
    messages = convert_to_messages(added if isinstance(added, list) else [added])
    last = before[-1].id if isinstance(before, list) and before and hasattr(before[-1], "id") else ""
    place = f"{current().task_id}/{channel}/{len(before)}/{last}"
    for number, message in enumerate(messages):
        if message.id is None:
            message.id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{place}/{number}/{message.type}/{message.content!r}"))
    return add(before, messages)
