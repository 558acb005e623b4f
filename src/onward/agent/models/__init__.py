"""Models, one file each; `model_of` returns the model of a name."""

from __future__ import annotations

import importlib.util
import inspect

from onward.agent.model import Model
from onward.errors import BadSetting, UsageError


def model_of(model: str | Model) -> Model:
    """The model of a name (`openai:NAME`); a model is returned as it is."""
    if not isinstance(model, str):
        return model
    name = model.partition(":")[2]
    from onward.agent.models.openai import OpenAIModel  # noqa: PLC0415 -- an extra, and slow to load

    return OpenAIModel(name)


def _check(model: str | Model) -> str | Model:
    """Raise BadSetting for a value that cannot be a model: when the agent is declared, and not when its first task runs."""
    if isinstance(model, str):
        fits = model.startswith("openai:") and model != "openai:"
    else:
        fits = not inspect.isclass(model) and callable(getattr(model, "ask", None)) and hasattr(model, "name")
    if not fits:
        raise BadSetting("model", model, '"openai:NAME", or an object with a name and `ask`')
    return model


class LazyModel:
    """The model of an agent, made once, when it is first needed: a program that only submits tasks needs no key."""

    def __init__(self, model: str | Model) -> None:
        self._choice = _check(model)
        self._made = None if isinstance(model, str) else model

    def __call__(self) -> Model:
        """The model."""
        if self._made is None:
            self._made = model_of(self._choice)
        return self._made

    def check(self) -> None:
        """Raises UsageError where the model needs an extra that is not installed."""
        if isinstance(self._choice, str) and importlib.util.find_spec("openai") is None:
            raise UsageError(
                f"the model {self._choice!r} needs an extra that is not installed: pip install 'onward[openai]'"
            )

    async def close(self) -> None:
        """Close the model, if it was made and has a `close`. It may be used again."""
        close = getattr(self._made, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing
