"""Models, one file each; `model_of` finds the one that a name means."""

from __future__ import annotations

from onward.agent.model import Model
from onward.errors import BadSetting


def model_of(model: str | Model) -> Model:
    """`openai:NAME`, or a model as it is."""
    if not isinstance(model, str):
        return model
    provider, _, name = model.partition(":")
    if provider != "openai" or not name:
        raise BadSetting("model", model, '"openai:NAME", or an object with a name and `ask`')
    from onward.agent.models.openai import OpenAIModel  # noqa: PLC0415 -- an extra, and slow to load

    return OpenAIModel(name)
