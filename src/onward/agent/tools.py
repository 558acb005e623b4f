"""Tools: functions that a model may call, with their risk and their effect.

A tool that only reads may be repeated and run beside others. Any other tool has an effect. It declares that it is idempotent, how to
find out whether it happened (`reconcile`), or how to take it back (`undo`). A tool that declares none of these is announced before it
starts, and never repeated silently.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from onward.core import secret, wire
from onward.core.durations import Duration, seconds
from onward.core.result_types import check_result_type, result_type
from onward.core.retry import Retry
from onward.core.secret import check_name
from onward.core.state import StatePatch
from onward.engine.context.arguments import Arguments, with_placeholders
from onward.errors import BadSetting, InvalidInput, UsageError

F = TypeVar("F", bound=Callable[..., Any])

READ = "read"
RISKS = (READ, "write_local", "external_action")
"""The usual ones, from harmless to dangerous. A tool may have a word of its own."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of functions that providers accept."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that a model may call. Your code calls it like the function."""

    function: Callable[..., Any]
    name: str
    description: str
    risk: str = READ
    idempotent: bool = False
    undo: Callable[..., Any] | None = None
    reconcile: Callable[..., Any] | None = None
    timeout: float | None = None
    retry: Retry | int | None = None
    approve: bool | None = None
    """Whether a person has to approve a call; None leaves that to the agent's risk levels."""
    normalize: Callable[[Any], StatePatch | None] | None = None
    """A pure function from the output to a change of the state."""
    direct: bool = False
    """Whether it runs in the agent's handler instead of in a step: it waits or starts tasks, and those have records of their own."""
    approval_timeout: float | None = None
    approval_default: str | None = None
    """How long a person has, and the decision after that time; None leaves it to the agent."""
    makes: str | None = None
    """The name of the secret that it returns: the model sees only the name."""
    cache: float | None = None
    """Seconds for which an output may be used again for the same arguments, also by other tasks."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSetting("tool name", self.name, "up to 64 letters, digits, '_' and '-'")
        if not self.risk:
            raise BadSetting("risk", self.risk, f"a word such as {', '.join(RISKS)}")
        if self.approval_default is not None:
            check_default(self.approval_default)
        if self.makes is not None:
            self._check_makes_secret(check_name(self.makes))
        if self.cache is not None and (self.effect != "read" or self.makes is not None or self.wants_context):
            raise UsageError(
                f"tool {self.name!r} cannot be cached: only a tool that reads can be (risk='read'), without `makes`, and without `ctx`, "
                "which is another one in each task"
            )
        check_result_type(self.function, f"tool {self.name!r}")
        self.__dict__.update(__doc__=self.description, __name__=self.name, __wrapped__=self.function)

    def _check_makes_secret(self, name: str) -> None:
        if self.effect == "once" or self.undo is not None or self.reconcile is not None or self.normalize is not None:
            raise UsageError(
                f"tool {self.name!r} makes the secret {name!r}, which is not recorded: after a crash it is called again, so it "
                "has to be one that reads or is idempotent, without undo, reconcile and normalize"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def wants_context(self) -> bool:
        """Whether its first parameter is the context."""
        return next(iter(inspect.signature(self.function).parameters), "") == "ctx"

    @functools.cached_property
    def takes(self) -> Arguments:
        """Its arguments, without the context."""
        return Arguments(self.function, f"tool {self.name!r}", skipped=int(self.wants_context))

    @property
    def effect(self) -> str:
        """The `effect` of its step: whether a call whose end is unknown may be repeated."""
        if self.risk == READ:
            return "read"
        return "idempotent" if self.idempotent or self.reconcile is not None else "once"

    def observed(self, output: Any) -> Any:
        """An output, with the patch that `normalize` makes of it. A `normalize` that fails only sets a risk flag: the tool has
        already run."""
        if self.normalize is None:
            return self.dump(output)
        try:
            patch = self.normalize(output)
            return self.dump(output) if patch is None else (StatePatch.model_validate(patch), self.dump(output))
        except Exception as error:
            why = f"the output of {self.name} was not understood: {wire.error_value(error)['message']}"
            return StatePatch(flag_risks=(why,)), self.dump(output)

    def dump(self, output: Any) -> Any:
        """An output as JSON. A string and bytes stay as they are: the model is shown them, or an artifact keeps them."""
        declared = result_type(self.function)
        return output if declared is None or isinstance(output, str | bytes) else declared.dump(output)

    def load(self, value: Any) -> Any:
        """An output from its JSON, in the type that the function returns; the JSON itself where it does not fit."""
        declared = result_type(self.function)
        try:
            return value if declared is None else declared.load(value)
        except ValueError:
            return value

    def spec(self, secrets: Iterable[str] = ()) -> dict[str, Any]:
        """The description of the tool for a model, with the secrets that the model may name."""
        parameters = {name: value for name, value in self.takes.schema().items() if name != "description"}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": secret.offered(parameters, sorted(secrets)),
            },
        }

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments that a model wrote, parsed and checked. Raises InvalidInput with a sentence for the model."""
        return self.check(parse_arguments(text, self.name))

    def check(self, arguments: Any) -> dict[str, Any]:
        """The same arguments. Raises InvalidInput where they do not fit."""
        if not isinstance(arguments, dict):
            raise InvalidInput(f"the arguments of {self.name!r} are an object, not {type(arguments).__name__}")
        # This refuses lone surrogates, which no record can hold.
        data = wire.encode(arguments, f"what {self.name!r} was given")
        self.takes.by_name(with_placeholders(arguments) if secret.MARK in data else arguments)
        return arguments


def check_default(word: str) -> str:
    """The decision when no person decides in time. Raises BadSetting."""
    if word not in {"approve", "deny"}:
        raise BadSetting("approval_default", word, "'approve' or 'deny'")
    return word


def risk_levels(approve: Iterable[str], tools: Mapping[str, Tool], *others: Iterable[str]) -> frozenset[str]:
    """The risk levels that need approval. Raises BadSetting for a level that no tool can have: with a misspelt level all calls would
    run without approval."""
    known = {*RISKS, *(tool.risk for tool in tools.values()), *(risk for risks in others for risk in risks)}
    levels = frozenset(check_list("approve", approve))
    if unknown := sorted(str(level) for level in levels - known):
        raise BadSetting("approve", unknown[0], f"a risk level: one of {', '.join(sorted(known))}")
    return levels


def check_list(name: str, value: Any) -> list[Any]:
    """The value of a setting that is a list. Raises BadSetting for a single string or tool, an easy mistake: a string would count as
    a list of its letters."""
    if isinstance(value, str | Tool) or not isinstance(value, Iterable):
        raise BadSetting(name, value, f"a list, such as {name}=[{value!r:.80}]")
    return list(value)


def parse_arguments(text: str, name: str) -> dict[str, Any]:
    """The arguments of a call, from a string that is not trusted. Raises InvalidInput with a sentence for the model."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the arguments of {name!r} are not JSON ({error}); send one JSON object") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"the arguments of {name!r} must be a JSON object, not {type(value).__name__}")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@overload
def tool(function: F, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    risk: str = READ,
    idempotent: bool = False,
    undo: Callable[..., Any] | None = None,
    reconcile: Callable[..., Any] | None = None,
    timeout: Duration | None = None,
    retry: Retry | int | None = None,
    approve: bool | None = None,
    normalize: Callable[[Any], StatePatch | None] | None = None,
    approval_timeout: Duration | None = None,
    approval_default: str | None = None,
    makes: str | None = None,
    cache: Duration | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    risk: str = READ,
    idempotent: bool = False,
    undo: Callable[..., Any] | None = None,
    reconcile: Callable[..., Any] | None = None,
    timeout: Duration | None = None,
    retry: Retry | int | None = None,
    approve: bool | None = None,
    normalize: Callable[[Any], StatePatch | None] | None = None,
    approval_timeout: Duration | None = None,
    approval_default: str | None = None,
    makes: str | None = None,
    cache: Duration | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool. The model sees its name, docstring and annotations; a first parameter named `ctx` gets the context.

    `risk` is "read" (may be repeated, and run beside others), "write_local", "external_action" or a word of your own. A tool that does
    more than read declares what happens after a crash: `idempotent` repeats the call, `reconcile` finds out whether it happened. A tool
    with neither is announced before it starts, and never repeated silently. `undo` takes it back.

    `approve` says whether a person has to approve a call, whatever the agent says about its risk; `approval_timeout` and
    `approval_default` are as for `app.agent`. `normalize` makes a patch of the state from the output.

    A parameter with a secret as its default (`key: SecretStr = app.secret("STRIPE_KEY")`) is not shown to the model. `makes` says that
    the output is a secret, and names it: the model gets the name, and can pass it on to other tools.

    `cache` is for a tool that only reads: for so long its output is used again for the same arguments, by all tasks of the tenant
    (setting `cache`). The record of the call says where the output came from. Calls with secrets are not cached.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(
            function,
            name or str(getattr(function, "__name__", "")),
            inspect.getdoc(function) or "",
            risk=risk,
            idempotent=idempotent,
            undo=undo,
            reconcile=reconcile,
            timeout=None if timeout is None else seconds(timeout, "timeout"),
            retry=retry,
            approve=approve,
            normalize=normalize,
            approval_timeout=None if approval_timeout is None else seconds(approval_timeout, "approval_timeout"),
            approval_default=approval_default,
            makes=makes,
            cache=None if cache is None else seconds(cache, "cache"),
        )

    return make if function is None else make(function)


def tools_by_name(functions: Iterable[Tool | Callable[..., Any]]) -> Mapping[str, Tool]:
    """Tools by name; a plain function becomes a tool that only reads."""
    tools: dict[str, Tool] = {}
    for function in functions:
        if not callable(function):
            raise BadSetting("tools", function, "functions, agents, or the names of agents")
        made = function if isinstance(function, Tool) else tool(function)
        if made.name in tools:
            raise UsageError(f"two tools are named {made.name!r}; give one of them another name")
        tools[made.name] = made
    return tools
