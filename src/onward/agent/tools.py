"""Tools: functions that a model may call, and what they are to the world.

A tool says how risky it is. What only reads may be repeated and run beside others. Anything else is an effect: it says that
it is idempotent, how to learn whether it happened (`reconcile`), how to take it back (`undo`), or none of these, and then it
is announced before it starts and never repeated silently.
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
from onward.core.retry import Retry
from onward.core.secret import check_name
from onward.core.state import StatePatch
from onward.engine.context.arguments import Arguments, standing_in
from onward.errors import BadSetting, InvalidInput, UsageError

F = TypeVar("F", bound=Callable[..., Any])

READ = "read"
RISKS = (READ, "write_local", "external_action")
"""The usual ones, from harmless to not. A tool may have a word of its own."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers take for the name of a function."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that a model may call. Call it yourself as before."""

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
    """Whether a person has to approve it; None leaves that to the agent's risk levels."""
    normalize: Callable[[Any], StatePatch | None] | None = None
    """How its output changes the state; pure."""
    direct: bool = False
    """Whether it runs in the agent's own line instead of in a step: it waits or starts tasks, and those are recorded."""
    approval_timeout: float | None = None
    approval_default: str | None = None
    """How long a person has, and what holds after that; None leaves it to the agent."""
    makes: str | None = None
    """The name of the secret that it returns: the model sees this and no more."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSetting("tool name", self.name, "up to 64 letters, digits, '_' and '-'")
        if not self.risk:
            raise BadSetting("risk", self.risk, f"a word such as {', '.join(RISKS)}")
        if self.approval_default is not None:
            check_default(self.approval_default)
        if self.makes is not None:
            self._check_maker(check_name(self.makes))
        self.__dict__.update(__doc__=self.description, __name__=self.name, __wrapped__=self.function)

    def _check_maker(self, name: str) -> None:
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
        """Its arguments, but for the context."""
        return Arguments(self.function, f"tool {self.name!r}", skipped=int(self.wants_context))

    @property
    def effect(self) -> str:
        """What `ctx.step` has to know: whether it may be repeated when nobody knows how it ended."""
        if self.risk == READ:
            return "read"
        return "idempotent" if self.idempotent or self.reconcile is not None else "once"

    def observed(self, output: Any) -> Any:
        """An output, with the patch that its normaliser makes of it. A normaliser that fails is flagged and no more: what the
        tool did is done."""
        if self.normalize is None:
            return output
        try:
            patch = self.normalize(output)
            return output if patch is None else (StatePatch.model_validate(patch), output)
        except Exception as error:
            why = f"the output of {self.name} was not understood: {wire.error_value(error)['message']}"
            return StatePatch(flag_risks=(why,)), output

    def spec(self, secrets: Iterable[str] = ()) -> dict[str, Any]:
        """As a model is told of it, and of the secrets that it may name."""
        parameters = {name: part for name, part in self.takes.schema().items() if name != "description"}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": secret.offered(parameters, sorted(secrets)),
            },
        }

    def arguments(self, text: str) -> dict[str, Any]:
        """What a model wrote as arguments, as an object that fits; raises InvalidInput with what to do better."""
        return self.check(parsed(text, self.name))

    def check(self, arguments: Any) -> dict[str, Any]:
        """The same arguments, where they fit; raises InvalidInput where not."""
        if not isinstance(arguments, dict):
            raise InvalidInput(f"the arguments of {self.name!r} are an object, not {type(arguments).__name__}")
        data = wire.encode(arguments, f"what {self.name!r} was given")  # half a character, which no record can hold
        self.takes.by_name(standing_in(arguments) if secret.MARK in data else arguments)
        return arguments


def check_default(word: str) -> str:
    """What holds when nobody decides. Raises BadSetting."""
    if word not in {"approve", "deny"}:
        raise BadSetting("approval_default", word, "'approve' or 'deny'")
    return word


def risk_levels(approve: Iterable[str], tools: Mapping[str, Tool], *others: Iterable[str]) -> frozenset[str]:
    """The risk levels that need a person's yes. Raises BadSetting for one that no tool can have: a slip of the pen there would let
    everything through."""
    known = {*RISKS, *(one.risk for one in tools.values()), *(risk for risks in others for risk in risks)}
    levels = frozenset(listed("approve", approve))
    if unknown := sorted(str(one) for one in levels - known):
        raise BadSetting("approve", unknown[0], f"a risk level: one of {', '.join(sorted(known))}")
    return levels


def listed(name: str, given: Any) -> list[Any]:
    """A list of things, where one thing is an easy mistake: a text would be taken for its letters. Raises BadSetting."""
    if isinstance(given, str | Tool) or not isinstance(given, Iterable):
        raise BadSetting(name, given, f"a list, such as {name}=[{given!r:.80}]")
    return list(given)


def parsed(text: str, name: str) -> dict[str, Any]:
    """The arguments of a call, which are untrusted text: a JSON object, or a sentence that a model can read."""
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
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool. Its name, docstring and annotations are what the model is told; `ctx`, as its first parameter,
    gets the context.

    `risk` is "read" (may be repeated, and run beside others), "write_local", "external_action" or a word of your own. What does
    more than read says how it bears a crash: `idempotent`, `reconcile` (asked whether it happened), or neither: then it is
    announced first, and never repeated silently. `undo` takes it back.

    `approve` says whether a person has to allow it, whatever the agent says of its risk; `approval_timeout` and
    `approval_default` are as for `app.agent`. `normalize` makes a patch of the state of what it returns.

    A parameter with a secret as its default (`key: SecretStr = app.secret("STRIPE_KEY")`) is not shown to the model. `makes` says
    that what it returns is a secret, and names it: the model gets the name, and can pass that on to other tools.
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
        )

    return make if function is None else make(function)


def toolbox(tools: Iterable[Tool | Callable[..., Any]]) -> Mapping[str, Tool]:
    """Tools by name; a plain function among them is one that only reads."""
    box: dict[str, Tool] = {}
    for one in tools:
        if not callable(one):
            raise BadSetting("tools", one, "functions, agents, or the names of agents")
        made = one if isinstance(one, Tool) else tool(one)
        if made.name in box:
            raise UsageError(f"two tools are named {made.name!r}; give one of them another name")
        box[made.name] = made
    return box
