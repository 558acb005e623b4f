"""How the tools of other frameworks are called, and which of their calls a person has to approve."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from onward.agent.calls import about_tool, format_arguments
from onward.agent.tools import READ, check_default, check_list
from onward.core import wire
from onward.core.durations import Duration, seconds
from onward.core.retry import Retry, as_retry
from onward.engine.context.approvals import ask_approval
from onward.engine.context.context import Context
from onward.errors import BadSetting, Denied, TimeUp
from onward.integrations.model_steps import model_steps

EXTERNAL = "external_action"
READ_RETRY = Retry(attempts=3)
ONCE = Retry(attempts=1)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolRules:
    """How a tool is called: its risk decides whether a call whose end is unknown may be repeated, and who has to approve it."""

    risk: str = READ
    idempotent: bool = False
    retry: Retry | None = None
    timeout: float | None = None
    approve: bool | None = None

    @classmethod
    def of(cls, rules: Any, name: str, default: str = READ) -> ToolRules:
        """The rules that the author of a tool gave, as a dict. Raises BadSetting for unknown words: a misspelt one would let an effect be
        repeated."""
        given = rules or {}
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(given, Mapping) or given.keys() - known:
            raise BadSetting(
                f"rules of tool {name!r}", given, f'a dict such as {{"risk": "read"}}, of {", ".join(sorted(known))}'
            )
        options = dict(given)
        if options.get("retry") is not None:
            options["retry"] = as_retry(options["retry"])
        return cls(**{"risk": default, **options})

    @property
    def effect(self) -> str:
        """The `effect` of the step."""
        return "read" if self.risk == READ else "idempotent" if self.idempotent else "once"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the step."""
        retry = self.retry or (ONCE if self.effect == "once" else READ_RETRY)
        return {"effect": self.effect, "retry": retry, "timeout": self.timeout}


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a call."""

    approved: bool
    message: str = ""
    """For the model, when the call is denied."""
    arguments: dict[str, Any] | None = None
    """Other arguments than those of the model."""


class Approvals:
    """The risks that need a person's approval, the time that the person has, and the decision after that time."""

    def __init__(self, risks: Iterable[str], timeout: Duration | None, default: str) -> None:
        self.risks: frozenset[str] = frozenset(check_list("approve", risks))
        self._timeout = None if timeout is None else seconds(timeout, "approval_timeout")
        self._default = check_default(default)

    def needs(self, rules: ToolRules) -> bool:
        """Whether a person has to approve a call of a tool with these rules."""
        return rules.risk in self.risks if rules.approve is None else rules.approve

    async def ask(
        self,
        task: Context,
        tool: str,
        call_id: str,
        arguments: dict[str, Any],
        rules: ToolRules,
        *,
        description: str | None = None,
        **more: Any,
    ) -> Decision:
        """Ask a person to approve exactly this call. Waits without a slot."""
        try:
            decision: Mapping[str, Any] = await ask_approval(
                task.host,
                f"{tool}({format_arguments(arguments)})",
                risk=rules.risk,
                data={"tool": tool, "call": call_id, "arguments": arguments, **more},
                timeout=self._timeout,
                default=self._default,
                about=about_tool(rules.effect, description),
            )
        except Denied as denied:
            return Decision(approved=False, message=f"denied: {denied.reason or 'a person said no'}")
        except TimeUp as error:
            return Decision(approved=False, message=f"it was not done, because no person decided in time; {error}")
        if decision.get("always"):
            model_steps(task).always_allowed.add(tool)
        changed = decision.get("arguments", arguments)
        same = wire.fingerprint(changed) == wire.fingerprint(arguments)
        return Decision(approved=True, arguments=None if same else changed)
