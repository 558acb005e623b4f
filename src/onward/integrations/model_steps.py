"""Model requests of agents that belong to another framework: each is a recorded step, of the same shape as that of an agent of Onward.

So usage, cost, budgets, quotas, live text and the conversation in the console are the same for all agents. The record has two forms of the
reply: a message of the conversation (`id`), which people read, and the reply as the framework has it (`native`), which a replay returns to
the framework byte for byte.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onward.agent.account import Account
from onward.agent.live import LiveText
from onward.agent.loop import MODEL_RETRY, NO_LIMITS
from onward.agent.model import Message, Model, ModelRefused, Reply, Request, quota_of
from onward.core import mask, wire
from onward.core.budget import Budget
from onward.core.retry import Retry
from onward.engine.context.context import CURRENT, Context
from onward.engine.shift.quota import within_quota
from onward.engine.shift.scope import IN_STEP
from onward.errors import StepFailed

NO_SYSTEM: Message = {"role": "system", "content": ""}


@dataclasses.dataclass(frozen=True, slots=True)
class NativeReply(Reply):
    """A reply, and the same reply as the framework encodes it."""

    native: bytes = b""


class _Refused(ModelRefused):
    """A final error of a provider, which a replay raises again as an error of the framework."""

    def __init__(self, model: str, why: str, details: Any) -> None:
        super().__init__(model, why)
        self.step_details = details


class NativeModel(Model, Protocol):
    """A model of another framework. Its `ask` returns a NativeReply."""

    def encode_error(self, error: Exception) -> Any:
        """A final error of the provider as JSON, which the record of the failed step has; None for any other error."""
        ...

    def decode_error(self, recorded: Any) -> Exception:
        """The error of which `encode_error` made this."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """The content of a request, in the framework's form. It is converted only when the request is made, and not in a replay."""

    messages: Sequence[Any]
    convert: Callable[[Any], Iterable[Message]]
    """Makes the messages of the conversation from one message of the framework."""
    tools: Callable[[], Sequence[Mapping[str, Any]]]


class _Stored(NamedTuple):
    message: Any
    forms: list[Message]
    names: list[str]


_NOTHING = _Stored(object(), [], [])
"""In the place of a message that the last request did not have."""


class ModelSteps:
    """The model requests of one task, from all agents of other frameworks that run in it."""

    def __init__(self, ctx: Context, budget: Budget = NO_LIMITS, max_tokens: int | None = None) -> None:
        self._ctx = ctx
        self.account = Account(ctx, budget, max_tokens)
        self.always_allowed: set[str] = set()
        """Tools that need no approval in this task any more, because a person decided "always"."""
        self.reads_messages = False
        """Whether the agent reads the messages of people to the task."""
        self._runs: dict[str, int] = {}
        self._turns = 0
        self._stored: list[_Stored] = []
        """The messages of the last request. Requests grow at their end, so most messages of the next one are these."""

    def next_run(self, place: str) -> int:
        """The number of the next run of an agent in this place of the handler: the same in every replay."""
        self._runs[place] = number = self._runs.get(place, 0) + 1
        return number

    async def ask(self, model: NativeModel, content: Content, retry: Retry = MODEL_RETRY, name: str = "model") -> bytes:
        """The reply of the model as the framework encodes it: from the journal, or of a request that is made now."""
        made: list[bytes] = []

        async def work() -> dict[str, Any]:
            record, native = await self._request(model, content)
            made.append(native)
            return record

        try:
            result = await self._ctx.step(work, name=name, effect="read", retry=retry)
        except StepFailed as failed:
            if failed.details is None:
                raise
            raise model.decode_error(failed.details) from failed
        await self._ctx.flush()  # a request may be repeated, but not once its reply is there and paid for
        self._turns = max(self._turns, result["turn"])
        await self.account.close(result)
        return made[-1] if made else (await self._ctx.kept(result["native"]))[0]

    async def _request(self, model: NativeModel, content: Content) -> tuple[dict[str, Any], bytes]:
        """Inside the step: make the request, and return its record, and the reply as the framework encodes it."""
        turn = self.next_turn()
        conversation, names = self._store(content)
        request = Request(conversation, content.tools())
        live = LiveText(self._ctx, turn)
        try:
            reply, payment = await within_quota(
                self._ctx, quota_of(model), lambda: self.account.ask(model, request, live)
            )
        except Exception as error:
            live.withdraw()
            if (details := model.encode_error(error)) is None:
                raise
            raise _Refused(model.name, str(error), details) from error
        assert isinstance(reply, NativeReply)
        native = mask.data(reply.native)
        record = {**self._turn(turn, names, model.name, reply), "native": self._ctx.keep(native), **payment}
        return record, native

    def next_turn(self) -> int:
        """The number of the next request."""
        self._turns += 1
        return self._turns

    def observed(self, turn: int, content: Content, model: str, reply: Reply) -> dict[str, Any]:
        """Inside a step whose code has called a model by itself: the fields of the step's record that make it a turn of the conversation,
        without the payment."""
        return self._turn(turn, self._store(content)[1], model, reply)

    async def close_observed(self, record: Mapping[str, Any]) -> None:
        """Account for the calls in the record of such a step."""
        self._turns = max(self._turns, record["turn"])
        await self.account.close(record)

    def _turn(self, turn: int, names: Sequence[str], model: str, reply: Reply) -> dict[str, Any]:
        message = wire.encode(reply.message)
        if reply.text:
            self._ctx.progress(reply.text[:500], turn, turn=turn)
        return {
            "turn": turn,
            "asked": {"system": names[0], "shown": names[1:], "model": model},
            "id": self._ctx.keep(message),
            "bytes": len(message),
            "finish": reply.finish,
        }

    def _store(self, content: Content) -> tuple[list[Message], list[str]]:
        """The conversation of a request, and the names of its messages, each of which is stored once. The first name is that of the
        instructions, which may be empty."""
        stored: list[_Stored] = []
        known = itertools.chain(self._stored, itertools.repeat(_NOTHING))
        for before, message in zip(known, content.messages, strict=False):
            if (
                before.message is message or before.message == message
            ):  # some frameworks copy the messages for each request
                stored.append(before)
            else:
                forms = list(content.convert(message))
                stored.append(_Stored(message, forms, [self._ctx.keep(wire.encode(dict(form))) for form in forms]))
        self._stored = stored
        conversation = [form for item in stored for form in item.forms]
        names = [name for item in stored for name in item.names]
        if not conversation or conversation[0]["role"] != "system":
            names.insert(0, self._ctx.keep(wire.encode(NO_SYSTEM)))
        return conversation, names


def in_handler() -> bool:
    """Whether this code runs in the handler of a task, and not in one of its steps."""
    return CURRENT.get() is not None and not IN_STEP.get()


def model_steps(ctx: Context) -> ModelSteps:
    """The model requests of the task of this context."""
    if ctx._model_steps is None:
        ctx._model_steps = ModelSteps(ctx)
    steps: ModelSteps = ctx._model_steps
    return steps


def begin(ctx: Context, budget: Budget | None, max_tokens: int | None = None) -> ModelSteps:
    """The same, with a budget, before the first request of the task."""
    ctx._model_steps = steps = ModelSteps(ctx, budget or NO_LIMITS, max_tokens)
    return steps
