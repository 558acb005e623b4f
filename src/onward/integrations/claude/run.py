"""An agent of the Claude Agent SDK inside a task.

The program `claude` runs in stretches. Each stretch is a step: it ends when the agent is done, or when it wants to call a tool that needs a
permission. Then the task waits for a person, without a slot and without a process, and the next stretch continues the session with the
decision. The session is in the session store, so a stretch that was killed continues on any machine.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onward.agent.live import LiveText
from onward.agent.loop import NO_LIMITS
from onward.agent.model import Message, Reply, ToolCall, Usage
from onward.core.durations import Duration
from onward.core.journal.turns import is_call
from onward.errors import Denied, Fatal, UsageError
from onward.integrations.model_steps import Content, model_steps

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
    would ask for permission becomes an approval of the task (`allowed_tools` and `permission_mode` say which do not). An approval is for one
    call. Without a decision within `approval_timeout`, `approval_default` decides. A tool that needs no permission, and ran in a stretch that
    was killed, may run again, as the agent sees fit.
    Raises UsageError for options without a session store, or with `can_use_tool`, `resume` or `continue_conversation`.
    """
    _check(options)
    session = await ctx.step(lambda: str(uuid.uuid4()), name="claude.session")
    decisions: dict[str, str | None] = {}
    text = prompt
    for number in range(1, MAX_DECISIONS + 2):
        stretch = _Stretch(ctx, session, text, dict(decisions), options)
        end: dict[str, Any] = await ctx.step(stretch.run, name="claude.run")
        if is_call(end):
            await model_steps(ctx).close_observed(end)
        for used in end.get("used", ()):
            decisions.pop(used, None)
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

    ctx: Context
    session: str
    text: str
    decisions: dict[str, str | None]
    """The calls about which a person has decided; the reason of those that are denied."""
    options: ClaudeAgentOptions
    asks: dict[str, Any] | None = None
    used: list[str] = dataclasses.field(default_factory=list)
    """The approved calls that the agent has made."""

    async def run(self) -> dict[str, Any]:
        """Run the program, within the budget of the task."""
        if self.ctx._model_steps is None and not self.ctx.spending(NO_LIMITS):
            return await self._run()
        call, account, ended = self.ctx.key, model_steps(self.ctx).account, False
        reserved = await account.begin(call)
        try:
            end = await self._run()
            ended = True
            return end
        finally:
            await account.end(call, reserved, ended)

    async def _run(self) -> dict[str, Any]:
        from claude_agent_sdk import AssistantMessage, ClaudeSDKClient, ResultMessage, TextBlock  # noqa: PLC0415 -- an extra

        entries = await self._load()
        heard = self._heard(entries or ())
        options = dataclasses.replace(
            self.options,
            can_use_tool=self._may,
            resume=None if entries is None else self.session,
            session_id=self.session if entries is None else None,
            session_store_flush="eager",
        )
        turn, model = model_steps(self.ctx).next_turn(), "claude"
        live = LiveText(self.ctx, turn)
        ended: Any = None
        try:
            async with ClaudeSDKClient(options) as client:
                await client.query(GO_ON if heard else self.text)
                async for message in client.receive_response():
                    if isinstance(message, AssistantMessage):
                        model = message.model or model
                        for block in message.content:
                            if isinstance(block, TextBlock):
                                live(block.text)
                    elif isinstance(message, ResultMessage):
                        ended = message
            if ended is None and self.asks is None:
                raise ClaudeFailed("the program ended without a result")
            if ended is not None and ended.is_error and self.asks is None:
                raise ClaudeFailed(ended.result or ended.subtype)
        except Exception:
            live.withdraw()
            raise
        return {
            "asks": self.asks,
            "used": self.used,
            "result": None if ended is None else ended.result,
            "turns": None if ended is None else ended.num_turns,
            **await self._turn(turn, model, ended),
        }

    async def _turn(self, turn: int, model: str, ended: Any) -> dict[str, Any]:
        """The fields of the record that make this stretch a turn of the conversation, with its usage and its cost."""
        messages = [form for entry in await self._load() or () for form in _messages(entry)]
        last = max((number for number, form in enumerate(messages) if form["role"] == "assistant"), default=-1)
        answer: Message = messages[last] if last >= 0 else {"content": ""}
        content = Content(messages[: max(last, 0)], lambda form: [form], lambda: ())
        used = (None if ended is None else ended.usage) or {}
        cached = used.get("cache_read_input_tokens", 0)
        usage = Usage(
            used.get("input_tokens", 0) + used.get("cache_creation_input_tokens", 0) + cached if used else None,
            used.get("output_tokens"),
            cached,
        )
        calls = (ToolCall(call["id"], **call["function"]) for call in answer.get("tool_calls", ()))
        reply = Reply(answer["content"], tuple(calls), usage, "stop" if self.asks is None else "tool_calls")
        return {
            **model_steps(self.ctx).observed(turn, content, model, reply),
            "call": self.ctx.key,
            "calls": 1 if ended is None else ended.num_turns,
            "usage": dataclasses.asdict(usage),
            "cost": None if ended is None else ended.total_cost_usd,
        }

    async def _may(self, tool: str, input: dict[str, Any], context: Any) -> Any:  # noqa: A002 -- as the SDK calls it
        from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny  # noqa: PLC0415 -- an extra

        call = _call_key(tool, input)
        if call not in self.decisions:
            self.asks = self.asks or {"tool": tool, "input": input}
            return PermissionResultDeny(message=WAIT, interrupt=True)
        reason = self.decisions[call]
        if reason is not None:
            return PermissionResultDeny(message=f"denied: {reason}")
        self._use(call)
        return PermissionResultAllow()

    def _use(self, call: str) -> None:
        """An approval is for one call: the next one like it is asked about."""
        del self.decisions[call]
        self.used.append(call)

    async def _load(self) -> Sequence[Any] | None:
        """The entries of the session; None when the session store does not have it."""
        from claude_agent_sdk import project_key_for_directory  # noqa: PLC0415 -- an extra

        store = self.options.session_store
        assert store is not None
        project = project_key_for_directory(self.options.cwd)
        entries: Sequence[Any] | None = await store.load({"project_key": project, "session_id": self.session})
        return entries

    def _heard(self, entries: Sequence[Any]) -> bool:
        """Whether the session has heard this prompt: an earlier worker died in this stretch. The approved calls that the agent began there
        may have happened."""
        heard = False
        for entry in entries:
            heard = heard or (entry["type"] == "user" and self.text in _texts(entry))
            for part in _parts(entry, "tool_use") if heard and entry["type"] == "assistant" else ():
                call = _call_key(part["name"], part["input"])
                if call in self.decisions and self.decisions[call] is None:
                    self._use(call)
        return heard


def _content(entry: Any) -> Any:
    return (entry.get("message") or {}).get("content")


def _parts(entry: Any, kind: str) -> list[Any]:
    content = _content(entry)
    return (
        [part for part in content if isinstance(part, dict) and part.get("type") == kind]
        if isinstance(content, list)
        else []
    )


def _texts(entry: Any) -> list[str]:
    content = _content(entry)
    return [content] if isinstance(content, str) else [str(part.get("text")) for part in _parts(entry, "text")]


def _messages(entry: Any) -> list[Message]:
    """An entry of a transcript as messages of chat completions; none for an entry that the model does not see."""
    if entry["type"] not in {"user", "assistant"}:
        return []
    text = "\n".join(_texts(entry))
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": part["tool_use_id"], "content": _text_of(part.get("content"))}
        for part in _parts(entry, "tool_result")
    ]
    calls = [
        {
            "id": part["id"],
            "type": "function",
            "function": {"name": part["name"], "arguments": json.dumps(part["input"])},
        }
        for part in _parts(entry, "tool_use")
    ]
    if calls:
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
    elif text:
        messages.append({"role": entry["type"], "content": text})
    return messages


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", f"({part.get('type')})")) for part in content or () if isinstance(part, dict))
