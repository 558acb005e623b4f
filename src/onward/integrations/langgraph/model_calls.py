"""The calls of models in a node of a graph: the record of the node has their usage, their cost and the conversation.

The code of a node calls models by itself, so a call is no step of its own. A callback of LangChain sees each call. A node that called a model
is a turn of the conversation: that of its last call, with the usage of all calls. A budget is asked before the node runs, and charged with
the real usage after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config

from onward.agent.live import LiveText
from onward.agent.loop import NO_LIMITS
from onward.agent.model import Message, Reply, ToolCall, Usage
from onward.agent.prices import cost, max_cost
from onward.engine.context.context import Context
from onward.errors import Fatal
from onward.integrations.model_steps import Content, ModelSteps, model_steps

FINISH = {"tool_calls": "tool_calls", "tool_use": "tool_calls", "length": "length", "max_tokens": "length"}
"""Onward's word for the providers' words."""


@dataclasses.dataclass(slots=True)
class _Call:
    model: str
    messages: Sequence[BaseMessage]
    live: LiveText
    reply: Reply | None = None


class ModelCalls(BaseCallbackHandler):
    """Sees the calls of models in one run of a node."""

    raise_error = True
    run_inline = True
    ignore_chain = ignore_agent = ignore_retriever = True

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._key = ctx, ctx.key
        self._turn = 0
        self._thread = threading.get_ident()
        self._calls: dict[UUID, _Call] = {}

    @contextlib.asynccontextmanager
    async def seen(self, config: RunnableConfig) -> AsyncIterator[RunnableConfig]:
        """While the node runs, with this configuration: models that it calls are seen, also where its code passes no configuration on. The
        budget of the task must have room for a call."""
        observed = merge_configs(config, {"callbacks": [self]})
        token = var_child_runnable_config.set(observed)
        try:
            async with self._paid():
                yield observed
        finally:
            var_child_runnable_config.reset(token)

    @contextlib.asynccontextmanager
    async def _paid(self) -> AsyncIterator[None]:
        if self._ctx._model_steps is None and not self._ctx.spending(NO_LIMITS):
            yield  # most graphs have no budget, and some call no model at all
            return
        account = self._steps.account
        reserved = await account.begin(self._key)
        try:
            yield
        finally:
            await account.end(self._key, reserved, bool(self._ended()))

    def record(self) -> dict[str, Any]:
        """The fields of the node's record about its calls; empty when there were none."""
        if not (calls := self._ended()):
            return {}
        last = calls[-1]
        assert last.reply is not None
        content = Content(last.messages, _convert, lambda: ())
        usages = [call.reply.usage for call in calls if call.reply is not None]
        costs = [cost(call.model, call.reply.usage) for call in calls if call.reply is not None]
        return {
            **self._steps.observed(self._turn, content, last.model, last.reply),
            "call": self._key,
            "calls": len(calls),
            "usage": {
                "input": _sum([usage.input for usage in usages]),
                "output": _sum([usage.output for usage in usages]),
                "cached": _sum([usage.cached for usage in usages]),
            },
            "cost": _sum(costs),
        }

    @property
    def _steps(self) -> ModelSteps:
        return model_steps(self._ctx)

    def _ended(self) -> list[_Call]:
        return [call for call in self._calls.values() if call.reply is not None]

    # ── LangChain calls these ────────────────────────────────────────────────────────────────────────────────────

    def on_chat_model_start(
        self,
        serialized: Mapping[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is called."""
        self._begin(run_id, messages[0] if messages else [], metadata or {})

    def on_llm_start(
        self,
        serialized: Mapping[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model that completes texts is called."""
        self._begin(run_id, [HumanMessage(prompt) for prompt in prompts], metadata or {})

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A piece of the reply has come. A node that runs in a thread reports no live text."""
        if isinstance(token, str) and threading.get_ident() == self._thread and (call := self._calls.get(run_id)):
            call.live(token)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A call has ended."""
        call = self._calls.get(run_id)
        if call is None or not response.generations or not response.generations[0]:
            return
        generation = response.generations[0][0]
        message = getattr(generation, "message", None)
        call.reply = _reply(message) if isinstance(message, AIMessage) else Reply(generation.text)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A call has failed."""
        call = self._calls.pop(run_id, None)
        if call is not None and threading.get_ident() == self._thread:
            call.live.withdraw()

    def _begin(self, run_id: UUID, messages: Sequence[BaseMessage], metadata: Mapping[str, Any]) -> None:
        model = str(metadata.get("ls_model_name") or "model")
        if provider := metadata.get("ls_provider"):
            model = f"{provider}:{model}"
        if self._steps.account.spending.counts_money and max_cost(model, 1, 1) is None:
            raise Fatal(
                f"the price of the model {model} is not known, so max_cost_usd cannot be kept; install 'onward[prices]', or leave "
                "that limit out"
            )
        self._turn = self._turn or self._steps.next_turn()
        self._calls[run_id] = _Call(model, messages, LiveText(self._ctx, self._turn))


def _reply(message: AIMessage) -> Reply:
    used = message.usage_metadata
    cached = (used.get("input_token_details") or {}).get("cache_read") if used else None
    usage = Usage(used["input_tokens"], used["output_tokens"], cached) if used else Usage()
    form = _form(message)
    calls = tuple(
        ToolCall(str(call["id"]), call["function"]["name"], call["function"]["arguments"])
        for call in form.get("tool_calls", ())
    )
    metadata = message.response_metadata
    finish = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "")
    return Reply(form["content"], calls, usage, FINISH.get(finish, "tool_calls" if calls else "stop"))


def _convert(message: BaseMessage) -> list[Message]:
    return [_form(message)]


def _form(message: BaseMessage) -> dict[str, Any]:
    """A message as one of chat completions, with text alone."""
    form: Any = convert_to_openai_messages(message, text_format="string")
    content = form.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(str(part.get("text") or f"({part.get('type')})") for part in content)
    return {**form, "content": content}


def _sum(figures: Sequence[Any]) -> Any:
    """The sum; None where one is unknown."""
    return None if None in figures else sum(figures)
