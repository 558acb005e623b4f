"""An agent of the Claude Agent SDK inside a task.

The program `claude` runs in stretches. Each stretch is a step: it ends when the agent is done, or when it wants to call a tool that needs a
permission. Then the task waits for a person, without a slot and without a process, and the next stretch continues the session with the
decision. The session is in the session store, so a stretch that was killed continues on any machine.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import TYPE_CHECKING, Any

from onward.core.durations import Duration
from onward.errors import Denied, Fatal, UsageError

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions

    from onward.engine.context.context import Context

MAX_DECISIONS = 200
"""Decisions of people in one run. An agent that asks more often does not get on."""

MAX_SHOWN = 2_000
"""Characters of a call that a person sees in the text of an approval. Its data has the whole call."""

WAIT = "A person has to decide about this call. Stop here; you are told the decision."
GO_ON = "You were interrupted. Go on where you stopped."


class ClaudeFailed(Exception):
    """The program `claude` reported an error. The step is tried again by its retry rule."""


async def run_claude(
    ctx: Context,
    prompt: str,
    options: ClaudeAgentOptions,
    *,
    approval_timeout: Duration | None = None,
    approval_default: str = "deny",
) -> str:
    """Run an agent of the Claude Agent SDK in a handler, and return its result.

    `options` needs a session store: `ClaudeAgentOptions(session_store=OnwardSessionStore(app), …)`. Each call of a tool for which the SDK
    would ask for permission becomes an approval of the task (`allowed_tools` and `permission_mode` say which do not). Without a decision
    within `approval_timeout`, `approval_default` decides. A tool that ran in a stretch that was killed may run again, as the agent sees fit.
    Raises UsageError for options without a session store, or with `can_use_tool`, `resume` or `continue_conversation`.
    """
    _check(options)
    session = await ctx.step(lambda: str(uuid.uuid4()), name="claude.session")
    decisions: dict[str, str | None] = {}
    text = prompt
    for number in range(1, MAX_DECISIONS + 2):
        stretch = _Stretch(session, text, dict(decisions), options)
        end: dict[str, Any] = await ctx.step(stretch.run, name="claude.run")
        call = end["asks"]
        if call is None:
            return str(end["result"])
        shown = f"{call['tool']}({json.dumps(call['input'], ensure_ascii=False)})"[:MAX_SHOWN]
        try:
            await ctx.approve(
                shown, risk="external_action", data=call, timeout=approval_timeout, default=approval_default
            )
            decisions[_call_key(**call)] = None
            text = (
                f"Decision {number}: your call of {call['tool']} is approved. Make exactly this call again, and go on."
            )
        except Denied as denied:
            decisions[_call_key(**call)] = denied.reason or "no reason was given"
            text = f"Decision {number}: your call of {call['tool']} is denied: {decisions[_call_key(**call)]}. Go on without it."
    raise Fatal(
        f"the agent wanted more than {MAX_DECISIONS} decisions of people in one run; allow more tools in `allowed_tools`"
    )


def _check(options: ClaudeAgentOptions) -> None:
    if options.session_store is None:
        raise UsageError(
            "run_claude needs a session store: ClaudeAgentOptions(session_store=OnwardSessionStore(app), …)"
        )
    taken = [name for name in ("can_use_tool", "resume", "continue_conversation") if getattr(options, name)]
    if taken:
        raise UsageError(f"run_claude sets {' and '.join(taken)} itself: leave it out of the options")


def _call_key(tool: str, input: dict[str, Any]) -> str:  # noqa: A002 -- the name in the SDK
    return json.dumps([tool, input], sort_keys=True)


@dataclasses.dataclass
class _Stretch:
    """One stretch of a session: from a prompt to the result, or to a call that needs a decision."""

    session: str
    text: str
    decisions: dict[str, str | None]
    """The calls about which a person has decided; the reason of those that are denied."""
    options: ClaudeAgentOptions
    asks: dict[str, Any] | None = None

    async def run(self) -> dict[str, Any]:
        from claude_agent_sdk import ClaudeSDKClient, ResultMessage  # noqa: PLC0415 -- an extra

        known, heard = await self._look()
        options = dataclasses.replace(
            self.options,
            can_use_tool=self._may,
            resume=self.session if known else None,
            session_id=None if known else self.session,
            session_store_flush="eager",
        )
        async with ClaudeSDKClient(options) as client:
            await client.query(GO_ON if heard else self.text)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    if message.is_error and self.asks is None:
                        raise ClaudeFailed(message.result or message.subtype)
                    usage = message.usage or {}
                    return {
                        "asks": self.asks,
                        "result": message.result,
                        "turns": message.num_turns,
                        "cost": message.total_cost_usd,
                        "usage": {"input": usage.get("input_tokens", 0), "output": usage.get("output_tokens", 0)},
                    }
        if self.asks is None:
            raise ClaudeFailed("the program ended without a result")
        return {"asks": self.asks, "result": None, "turns": None, "cost": None, "usage": {}}

    async def _may(self, tool: str, input: dict[str, Any], context: Any) -> Any:  # noqa: A002 -- as the SDK calls it
        from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny  # noqa: PLC0415 -- an extra

        call = _call_key(tool, input)
        if call not in self.decisions:
            self.asks = self.asks or {"tool": tool, "input": input}
            return PermissionResultDeny(message=WAIT, interrupt=True)
        reason = self.decisions[call]
        return PermissionResultAllow() if reason is None else PermissionResultDeny(message=f"denied: {reason}")

    async def _look(self) -> tuple[bool, bool]:
        """Whether the session store has this session, and whether the session has heard this prompt."""
        from claude_agent_sdk import project_key_for_directory  # noqa: PLC0415 -- an extra

        store = self.options.session_store
        assert store is not None
        project = project_key_for_directory(self.options.cwd)
        entries = await store.load({"project_key": project, "session_id": self.session})
        heard = any(entry["type"] == "user" and self.text in _texts(entry) for entry in entries or ())
        return entries is not None, heard


def _texts(entry: Any) -> list[str]:
    content = (entry.get("message") or {}).get("content")
    if isinstance(content, str):
        return [content]
    return [str(part.get("text")) for part in content or () if isinstance(part, dict) and part.get("type") == "text"]
