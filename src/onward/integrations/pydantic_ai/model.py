"""One model request of a Pydantic AI agent, as Onward's account and quotas see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import exceptions
from pydantic_ai.messages import ModelResponse
from pydantic_core import to_jsonable_python

from onward.agent.model import Emit, ModelBusy, ModelUnavailable, Request, Usage
from onward.agent.prices import Prices
from onward.errors import Fatal
from onward.integrations.model_steps import NativeReply
from onward.integrations.pydantic_ai.messages import FINISH, reply_text, tool_calls

RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)

BUSY = (exceptions.ModelRateLimitError, exceptions.ModelQuotaExceededError)
PASSING = (exceptions.ModelUnavailableError, exceptions.ModelServerError, exceptions.ModelConnectionError)
"""Errors that another attempt may heal."""

Send = Callable[[int | None, Emit], Awaitable[ModelResponse]]
"""Sends the request, with the most tokens of its reply, and calls the emitter with each piece of text."""


class RequestedModel:
    """The model of one request."""

    def __init__(self, name: str, model: object, send: Send, prices: Prices | None, max_tokens: int | None) -> None:
        self.name: str = name
        self.base_url: str = _base_url(model)
        self.quota: str = f"{getattr(model, 'system', '')}:{name}"
        self.prices = prices
        self.max_tokens = max_tokens
        self._send = send

    async def ask(self, request: Request, emit: Emit) -> NativeReply:
        """The reply of the model. Raises ModelBusy and ModelUnavailable, for which the step waits, and the errors of the framework."""
        try:
            response = await self._send(request.max_tokens, emit)
        except BUSY as error:
            busy = ModelBusy(self.name, _why(error), error.retry_after, quota=error.retry_after is None)
            busy.began = error.in_stream
            raise busy from error
        except PASSING as error:
            away = ModelUnavailable(self.name, _why(error))
            away.began = error.in_stream
            raise away from error
        except exceptions.UserError as error:
            raise Fatal(str(error)) from error
        usage = response.usage
        known = usage.has_values()
        return NativeReply(
            reply_text(response),
            tool_calls(response),
            Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) if known else Usage(),
            FINISH.get(response.finish_reason or "", "stop"),
            response.model_name or self.name,
            native=RESPONSE.dump_json(response),
        )

    def encode_error(self, error: Exception) -> Any:
        """A final error of the provider. The framework may go another way because of it, so that a replay must raise it again."""
        if not isinstance(error, exceptions.ModelAPIError):
            return None
        category = next((kind.__name__ for kind in type(error).__mro__ if kind in _CATEGORIES), None)
        fields = {
            "category": category,
            "status": getattr(error, "status_code", None),
            "model": error.model_name,
            "message": _why(error),
            "body": to_jsonable_python(error.body, serialize_unknown=True),
            "code": error.provider_error_code,
            "type": error.provider_error_type,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def decode_error(self, recorded: Any) -> exceptions.ModelAPIError:
        """The error of which `encode_error` made this."""
        return decode_error(recorded)


def decode_error(recorded: dict[str, Any]) -> exceptions.ModelAPIError:
    """An error of a provider, from its record."""
    known = {kind.__name__: kind for kind in _CATEGORIES}
    category: Any = known.get(recorded.get("category", ""))
    more: dict[str, Any] = {
        "body": recorded.get("body"),
        "provider_error_code": recorded.get("code"),
        "provider_error_type": recorded.get("type"),
    }
    if "status" in recorded:
        return exceptions.ModelHTTPError.for_category(
            category, status_code=recorded["status"], model_name=recorded["model"], **more
        )
    return (category or exceptions.ModelAPIError)(recorded["model"], recorded["message"], **more)


_CATEGORIES = (
    exceptions.ModelAuthenticationError,
    exceptions.ModelNotFoundError,
    exceptions.ModelContextWindowExceededError,
    exceptions.ModelRequestRejectedError,
)
"""The categories of errors that no other attempt heals, the narrower first."""


def _why(error: exceptions.ModelAPIError) -> str:
    return str(error)[:500]


def _base_url(model: object) -> str:
    return str(getattr(model, "base_url", None) or "")
