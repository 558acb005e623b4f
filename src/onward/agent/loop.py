"""The agent's loop: an ordinary handler, with no privilege over other handlers.

    slice ─► model (a step) ─► policy ─► its calls (steps, approvals, questions, agents) ─► patch ─► … until it answers

The journal and the kept contents of the task hold everything that the loop needs to go on: after a crash it replays its records. Every
few turns a checkpoint replaces all records before it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from onward.agent import compaction
from onward.agent.account import Account
from onward.agent.builtin import ASK_USER, builtin_tools
from onward.agent.cache import ToolCache
from onward.agent.calls import MIN_SHOWN_BYTES, SHOWN_BYTES, Approvals, CallResult, Calls
from onward.agent.checkpoint import checkpoint_value, state_of_checkpoint
from onward.agent.conversation import Conversation, Ref, Turn, decode_page, encode_page, excerpt, result_message
from onward.agent.delegation import UNFINISHED, agents_as_tools, inherit, state_reader
from onward.agent.live import LiveText
from onward.agent.mcp import McpServer, add_server_tools
from onward.agent.model import Emit, Message, Model, Reply, Request, ToolCall, quota_of
from onward.agent.partial_result import PartialResult
from onward.agent.policy import Answer, Ask, Do, Policy, Say, Seen, Stop, usual
from onward.agent.tools import Tool
from onward.core import usage, wire
from onward.core.budget import Budget
from onward.core.journal.checkpoint import EVERY_ITERATION, EVERY_STEP
from onward.core.retry import Retry
from onward.core.slice import cut, state_slice
from onward.core.state import BUDGET_PRESSURE, AgentState, ArtifactRef, Constraints, HumanInTheLoop, StatePatch
from onward.engine.context.context import Context, save_artifact
from onward.engine.shift.environment import HURRY_SHARE, LAST_ANSWER_SHARE
from onward.engine.shift.quota import within_quota
from onward.errors import BadSetting, BudgetSpent, InvalidInput, NoAnswer, StepFailed, TimeUp, UsageError

NO_LIMITS = Budget()
CHECKPOINT_EVERY_TURNS = 20

STATE_BYTES = 8_000
CONTEXT_BYTES = 100_000
"""Bytes of the state, and of the conversation, in one request to a model."""

MIN_CONTEXT_BYTES = 2_000
"""The least value of `context_bytes`: with less there is no room for a summary beside new turns."""

MAX_CONCURRENT_CALLS = 8
MODEL_RETRY = Retry(attempts=6, first=1.0, cap=60.0)
"""For a provider that is busy or away. A time that the provider names takes precedence."""

HURRY_MESSAGE = "Your {resource} is nearly over: finish what is open, and come to an answer with what you have."
NO_INSTRUCTIONS = "You are {name}, an agent that works towards a goal with its tools."
STATE_HEADING = "(The runtime adds the state of your task to the end of each request:)"
LAST_MESSAGE = (
    "Your time is over. This is the last question, and you have no tools any more: answer now, with what you have."
)


@dataclasses.dataclass(frozen=True)
class Agent:
    """The declaration of an agent. Its `handler` does tasks whose input is a goal."""

    name: str
    model: Callable[[], Model]
    instructions: str = ""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    approve: frozenset[str] = frozenset()
    budget: Budget = NO_LIMITS
    result: type[BaseModel] | None = None
    context_bytes: int = CONTEXT_BYTES
    max_tokens: int | None = None
    """The most tokens of one reply."""
    compact: Callable[[], Model] | None = None
    """The model that sums up turns that no longer fit; with None they are left out."""
    policy: Policy = usual
    agents: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other agents that are tools of this one, with the purpose of each."""
    approval_timeout: float | None = None
    approval_default: str = "deny"
    shown_bytes: int = SHOWN_BYTES
    checkpoint: str = EVERY_STEP
    """When the results of tools that only read are written."""
    secrets: frozenset[str] = frozenset()
    """The secrets that its model may name."""
    servers: tuple[McpServer, ...] = ()
    """MCP servers whose tools it may use."""
    undo: bool = False
    """Whether its finished calls are undone when it fails, is cancelled or runs out of time."""
    cache: Callable[[], ToolCache] | None = None
    """The cache of tools that have one."""

    def __post_init__(self) -> None:
        if self.context_bytes < MIN_CONTEXT_BYTES:
            raise BadSetting("context_bytes", self.context_bytes, f"{MIN_CONTEXT_BYTES:,} or more")
        if twice := sorted(agents_as_tools(self.agents).keys() & self.tools.keys()):
            raise UsageError(f"a tool and an agent are both named {twice[0]!r}; give one of them another name")

    async def handler(self, ctx: Context, goal: str, after: str | None = None, depth: int = 0, **state: Any) -> Any:
        """Work towards the goal; the answer is the task's result. `state` has the other fields of an AgentState."""
        run = _Run(self, ctx, after, depth)
        if not self.undo:
            return await self._work(run, ctx, goal, state)
        async with ctx.host.saga("run", whole=True):
            answer = await self._work(run, ctx, goal, state)
            # A result that cannot be stored fails the task, so it must fail inside the saga.
            wire.encode(answer, "the result of the task")
            return answer

    async def _work(self, run: _Run, ctx: Context, goal: str, state: Mapping[str, Any]) -> Any:
        await run.begin(goal, state)
        while True:
            action = self.policy(run.seen())
            if run.last and not isinstance(action, Answer | Stop):
                await run.account.settle()
                raise TimeUp("the last question brought no answer that can be used")
            match action:
                case Ask():
                    try:
                        await run.call_model()
                    except StepFailed as failed:
                        if failed.kind != BudgetSpent.__name__ or self.result is not None:
                            raise
                        return await run.partial_answer(failed.message)
                case Say(text):
                    run.add_message(text)
                case Do(calls):
                    await run.run_calls(calls)
                case Answer(value):
                    if not await run.read_messages(last=True):
                        await ctx.patch()
                        await run.account.settle()
                        return value
                case Stop(why):
                    await run.account.settle()
                    raise NoAnswer(why)
            await run.save_progress()

    def parse_answer(self, text: str) -> tuple[Any, str]:
        """The answer in the form of `result`, or a message for the model about its errors."""
        if self.result is None:
            return text, ""
        try:
            return self.result.model_validate_json(text).model_dump(mode="json"), ""
        except ValidationError as error:
            return None, f"Your answer does not fit: {error}. Answer again, with nothing but JSON of that form."


class _Run:
    """One task of an agent."""

    def __init__(self, agent: Agent, ctx: Context, after: str | None, depth: int) -> None:
        self._agent, self._ctx, self._after, self._delegated = agent, ctx, after, depth > 0
        self.account = Account(ctx, agent.budget, agent.max_tokens)
        self._budget = self.account.spending.budget  # that of the submit, if it has one
        self._artifact_bytes = self._budget.max_artifact_bytes_in_context
        shown_bytes = (
            agent.shown_bytes if self._artifact_bytes is None else min(agent.shown_bytes, self._artifact_bytes)
        )
        shown_bytes = max(shown_bytes, MIN_SHOWN_BYTES)
        builtin = {**builtin_tools(ctx, shown_bytes), ASK_USER.name: ASK_USER}
        self._tools = {**agent.tools, **agents_as_tools(agent.agents, depth), **builtin}
        if agent.agents or after or depth:
            self._tools["read_state"] = state_reader(ctx, after)
        self._specs: list[dict[str, Any]] = []
        approvals = Approvals(agent.approve, agent.approval_timeout, agent.approval_default)
        brief = self._artifact_bytes is not None
        self._calls = Calls(
            ctx,
            self._tools,
            approvals,
            self._write,
            shown_bytes,
            brief=brief,
            secrets=agent.secrets,
            undoes=agent.undo,
            cache=agent.cache,
        )
        self._server_lists: dict[str, str] = {}
        """The name under which the task keeps the list of tools of each MCP server."""
        self._conversation = Conversation()
        self._pages: list[list[Any]] = []
        """The pages with the turns before the last checkpoint: the name of each, and its number of turns and bytes."""
        self._unread_turns = 0
        """Turns on pages that were not read, because a request has no room for them."""
        self._steps = self._saved_turns = 0
        self._turns_since_checkpoint = 0
        """Also counts turns that a summary has replaced since."""
        self._reply: Reply | None = None
        """The model's last reply, until an action has dealt with it."""
        self._useless = self._repeated = self._compact_at = 0
        self._last_calls = ""
        """The fingerprint of the calls of the last turn."""
        self._unstored: dict[str, bytes] = {}
        """Contents that were written since the last record, and may not be in the store yet."""
        self.last = False
        """Whether the last reply answers the last request that the task's time allows."""
        self._partial = PartialResult()

    # ── beginning and checkpoints ────────────────────────────────────────────────────────────────────────────────

    async def begin(self, goal: str, state: Mapping[str, Any]) -> None:
        """Begin with the goal, or go on from the last checkpoint."""
        restored = self._ctx.restored
        if servers := self._agent.servers:
            self._server_lists = await add_server_tools(self._ctx, servers, self._tools, restored)
        if restored is None:
            await self._ctx.patch(await self._first_state(goal, state))
            self._add({"role": "user", "content": goal})
            return
        await self._ctx.patch(state_of_checkpoint(restored))
        self._pages, self._steps = restored["pages"], restored["steps"]
        self._useless, self._repeated, self._last_calls, self._compact_at = restored["counts"]
        always = self._calls.inherited_always if self._ctx.host.forked else self._calls.always_allowed
        always.update(restored["always"])
        self._calls.remember_secrets(restored.get("made", {}))
        await self._read_pages()
        if partial := restored.get("best"):
            self._partial = PartialResult.decode(*await self._ctx.kept(partial))
            self._ctx.host.partial = self._partial.text

    async def _first_state(self, goal: str, state: Mapping[str, Any]) -> AgentState:
        """The state of the input, or that of the task `after`; with the goal, the approvals and the budget of this task."""
        agent, first = self._agent, AgentState(goal=goal, **state)
        if self._after is not None and first != AgentState(goal=goal):
            raise InvalidInput(
                "an agent begins with the state of its input or with that of the task `after`, not with both"
            )
        if self._after is not None:
            work = functools.partial(inherit, self._ctx, self._after, agent.context_bytes, delegated=self._delegated)
            inherited = await self._ctx.step(work, name="inherit")
            (page,) = await self._ctx.kept(inherited["page"])
            self._conversation.turns, first = decode_page(page), AgentState.model_validate(inherited["state"])
        approvals = HumanInTheLoop(required_for_risk_levels=tuple(sorted(agent.approve)))
        own = {"goal": goal, "constraints": Constraints(human_in_the_loop=approvals), "budget": self._budget.limits}
        return first.model_copy(update=own).patched(StatePatch(unflag_risks=(BUDGET_PRESSURE,)))

    async def _read_pages(self) -> None:
        """Read the pages with the latest turns, as many as one request has room for."""
        turns: list[Turn] = []
        size, unread = 0, list(self._pages)
        while unread and size <= self._agent.context_bytes:
            name, _, page_bytes = unread.pop()
            (data,) = await self._ctx.kept(name)
            turns, size = decode_page(data) + turns, size + page_bytes
        self._conversation.turns, self._saved_turns = turns, len(turns)
        self._unread_turns = sum(count for _, count, _ in unread)

    async def save_progress(self) -> None:
        """At the end of an iteration: write its records, and every few turns, when nothing is open, a checkpoint."""
        if self._agent.checkpoint == EVERY_ITERATION:
            await self._ctx.flush()
        new = self._conversation.turns[self._saved_turns :]
        if self._agent.undo:  # a checkpoint would replace the records of calls that may have to be undone
            return
        if self._reply is not None or self._turns_since_checkpoint < CHECKPOINT_EVERY_TURNS:
            return
        await self.account.settle()  # a replay does not see the calls before a checkpoint
        page = [self._ctx.keep(encode_page(new)), len(new), sum(turn.bytes for turn in new)]
        self._pages, self._saved_turns = [*self._pages, page], len(self._conversation.turns)
        self._turns_since_checkpoint = 0
        parts = {
            "pages": self._pages,
            "steps": self._steps,
            "counts": [self._useless, self._repeated, self._last_calls, self._compact_at],
            "always": sorted(self._calls.always_allowed),
        }
        parts |= {"servers": self._server_lists} if self._server_lists else {}
        parts["usage"] = usage.saved(self.account.usage, self._ctx.task_id)
        parts |= {"made": self._calls.made_secrets} if self._calls.made_secrets else {}
        parts |= {"best": self._ctx.keep(self._partial.encode())} if self._partial.text else {}
        await self._ctx.checkpoint(checkpoint_value(self._state, **parts))
        await self._ctx.patch(self._state)

    @property
    def _state(self) -> AgentState:
        assert self._ctx.state is not None
        return self._ctx.state

    def _tool_specs(self) -> list[dict[str, Any]]:
        made = {tool.makes for tool in self._tools.values() if tool.makes is not None}
        return [tool.spec({*self._agent.secrets, *made}) for tool in self._tools.values()]

    def seen(self) -> Seen:
        """The facts for the policy."""
        reply = self._reply
        answer, wrong = (None, "") if reply is None or reply.calls else self._agent.parse_answer(reply.text)
        return Seen(self._state, self._steps, reply, answer, wrong, self._useless, self._repeated)

    # ── messages and model calls ─────────────────────────────────────────────────────────────────────────────────

    def add_message(self, text: str) -> None:
        """Add a message of the policy for the model. This drops the last reply, if it was not used."""
        if self._reply is not None:
            self._close_calls("not done")
            self._useless, self._reply = self._useless + 1, None
        self._repeated, self._turns_since_checkpoint = 0, self._turns_since_checkpoint + 1
        self._add({"role": "user", "content": text})

    async def read_messages(self, *, last: bool = False) -> bool:
        """Add the messages that people have sent to the task; return whether there were any. Called when no call is open, so that no
        call is separated from its result. An answer that the model had given does not end the task then."""
        messages = await self._ctx.messages(last=last)
        for text in messages:
            self._add({"role": "user", "content": text if isinstance(text, str) else wire.encode(text).decode()})
        if messages:
            self._reply, self._useless, self._repeated = None, 0, 0
            self._turns_since_checkpoint += 1
            self.last = False
        return bool(messages)

    def _add(self, message: Message) -> None:
        self._conversation.add(self._write(message))

    def _write(self, message: Message) -> Ref:
        data = wire.encode(dict(message))
        name = self._ctx.keep(data)
        self._unstored[name] = data
        return Ref(name, len(data))

    async def call_model(self) -> None:
        """Get the model's next reply, in a step. Before it, take in new messages and patches of people."""
        await self.read_messages()
        await self._ctx.patch()
        await self._make_room()
        self._steps += 1
        shown, left_out = self._conversation.shown(self._agent.context_bytes, self._artifact_bytes)
        work = functools.partial(self._request_action, shown, left_out + self._unread_turns)
        result = await self._ctx.step(work, name="model", effect="read", retry=MODEL_RETRY)
        await self._ctx.flush()  # a model call may be repeated, but not once its reply is there and paid for
        await self.account.close(result)
        await self._flag_pressure(result.get("pressed"))
        self._unstored.clear()
        (data,) = await self._ctx.kept(result["id"])
        self.last = result.get("last", False)
        self._add_reply(_reply(wire.decode(data), result), Ref(result["id"], result["bytes"]))

    def _add_reply(self, reply: Reply, message: Ref) -> None:
        if not reply.calls and not reply.text.strip():  # some providers refuse an empty message
            message = self._write({"role": "assistant", "content": "(nothing)"})
        self._conversation.add(message, reply.calls)
        self._reply = reply
        if reply.text.strip():
            self._partial.add_reply(reply.text, final=not reply.calls)
            self._ctx.host.partial = self._partial.text
        if self.last and reply.calls and reply.text.strip():  # the last request offers no tools
            self._close_calls("not done")
            self._reply = dataclasses.replace(reply, calls=())
        if reply.text:
            self._ctx.progress(reply.text[:500], self._steps, turn=self._steps)

    async def _request_action(self, shown: Sequence[Ref], left_out: int) -> dict[str, Any]:
        """Inside a step: request the next action from the agent's model."""
        hurried, last = (self._ctx.host.time_left(part) <= 0 for part in (HURRY_SHARE, LAST_ANSWER_SHARE))
        state = _state_text(self._state, left_out, hurried=hurried, last=last)
        stored_state = self._write({"role": "system", "content": state.strip()})
        instructions = self._agent.instructions.strip() or NO_INSTRUCTIONS.format(name=self._agent.name)
        system = self._write({"role": "system", "content": instructions})
        self._specs = self._specs or self._tool_specs()
        messages, tools = await self._messages([system, *shown]), () if last else self._specs
        request = Request.with_state(messages, state, tools=tools, result=self._agent.result)
        asked = {"system": system.id, "shown": [ref.id for ref in shown], "state": stored_state.id}
        live = LiveText(self._ctx, self._steps)
        try:
            _, result = await self._send(self._agent.model, request, asked, live)
            return {**result, "last": True} if last else result
        except Exception:
            live.withdraw()
            raise

    async def _send(
        self, make_model: Callable[[], Model], request: Request, asked: Mapping[str, Any], emit: Emit
    ) -> tuple[Reply, dict[str, Any]]:
        """Send a request to a model; return its reply, and the result that the step records. Only this method calls a model and pays."""
        model = make_model()
        reply, payment = await within_quota(self._ctx, quota_of(model), lambda: self.account.ask(model, request, emit))
        message = wire.encode(reply.message)
        return reply, {
            "turn": self._steps,
            "asked": {**asked, "model": model.name},
            "id": self._ctx.keep(message),
            "bytes": len(message),
            "finish": reply.finish,
            **payment,
        }

    async def _flag_pressure(self, pressed: bool | None) -> None:
        """Flag in the state that most of the budget is gone, so that the model can finish. `pressed` comes from the record of the model
        call: the spending itself is different in a replay."""
        if pressed and BUDGET_PRESSURE not in self._state.risk_flags:
            await self._ctx.patch(StatePatch(flag_risks=(BUDGET_PRESSURE,)))
        elif pressed is False and BUDGET_PRESSURE in self._state.risk_flags:
            await self._ctx.patch(StatePatch(unflag_risks=(BUDGET_PRESSURE,)))

    async def partial_answer(self, why: str) -> str:
        """The partial result as the answer, for an agent that ends when its budget is spent."""
        await self.account.settle()
        return f"{self._partial.text or ''}\n\n(This is not finished: {why}.)".strip()

    async def _messages(self, refs: Sequence[Ref]) -> list[Message]:
        stored = [ref.id for ref in refs if ref.id not in self._unstored]
        contents = self._unstored | dict(zip(stored, await self._ctx.kept(*stored), strict=True))
        return [wire.decode(contents[ref.id]) for ref in refs]

    # ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _make_room(self) -> None:
        """Replace the older turns by a summary when the conversation no longer fits. Where that fails they are left out of requests,
        which say so."""
        agent, conversation = self._agent, self._conversation
        if agent.compact is None or conversation.bytes <= agent.context_bytes or self._steps < self._compact_at:
            return
        latest = conversation.count_fitting(agent.context_bytes // 2)
        if latest == len(conversation.turns):
            return
        self._steps += 1
        work = functools.partial(self._summarise, agent.compact, conversation.turns[:-latest], latest)
        try:
            result = await self._ctx.step(work, name="compact", retry=MODEL_RETRY)
            await self.account.close(result)
        except StepFailed:
            result = {"replaced": None}
        self._unstored.clear()
        if result["replaced"] is None:
            self._compact_at = self._steps + compaction.RETRY_AFTER_TURNS
        else:
            await self._replace_older(**result["replaced"])

    async def _replace_older(self, latest: int, summary: list[Any], artifact: dict[str, Any], **_: Any) -> None:
        await self._ctx.patch(StatePatch(add_artifacts=(ArtifactRef.model_validate(artifact),)))
        self._conversation.replace_older(latest, Ref(*summary))
        self._pages, self._saved_turns, self._unread_turns = [], 0, 0

    async def _summarise(self, make_model: Callable[[], Model], old: Sequence[Turn], latest: int) -> dict[str, Any]:
        """Inside a step: request a summary of these turns. The turns themselves stay as a page, and as a transcript that the model can
        read."""
        max_bytes = self._agent.context_bytes
        text = compaction.transcript(await self._messages([ref for turn in old for ref in turn.messages]))
        artifact = await save_artifact(self._ctx, text, {"type": "transcript", "summary": f"{len(old)} earlier turns"})
        goal = f"{compaction.SUMMARISE}\n\nThe goal: {cut(self._state.goal, STATE_BYTES)}"
        transcript = {"role": "user", "content": excerpt(text, max_bytes)}  # both ends of it, where it is too long
        system, shown = self._write({"role": "system", "content": goal}), self._write(transcript)
        request, asked = Request(await self._messages([system, shown])), {"system": system.id, "shown": [shown.id]}
        reply, result = await self._send(make_model, request, asked, lambda _piece: None)
        if not reply.text.strip():
            return {**result, "replaced": None}
        summary = self._write(compaction.summary_message(reply.text, max_bytes // 4, len(old), artifact.artifact_id))
        replaced = {
            "latest": latest,
            "summary": [summary.id, summary.bytes],
            "artifact": artifact.model_dump(mode="json"),
            "page": self._ctx.keep(encode_page(old)),
            "pages": self._pages,
        }
        return {**result, "replaced": replaced}

    # ── tool calls ───────────────────────────────────────────────────────────────────────────────────────────────

    async def run_calls(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one turn: at once if all of them only read, else one after the other. All approvals of the turn are requested
        at once, before the first call runs."""
        if self._reply is None:  # calls of the policy's own
            self._conversation.add(self._write(Reply("", tuple(calls)).message), calls)
        names = [call.name for call in calls]
        self._ctx.progress(", ".join(names), self._steps, turn=self._steps, tools=names)
        allowed = await self._calls.allow([self._calls.check(call) for call in calls])
        pairs = list(zip(calls, allowed, strict=True))
        if len(pairs) > 1 and self._calls.may_run_at_once(allowed):
            results = await self._ctx.gather(*[self._calls.run(*pair) for pair in pairs], limit=MAX_CONCURRENT_CALLS)
        else:
            results = [await self._calls.run(*pair) for pair in pairs]
        await self._add_results(results)
        self._close_calls("not done")
        self._reply, self._useless, self._turns_since_checkpoint = None, 0, self._turns_since_checkpoint + 1
        fingerprint = wire.fingerprint([[call.name, call.arguments] for call in calls])
        self._repeated = self._repeated + 1 if fingerprint == self._last_calls else 1
        self._last_calls = fingerprint

    async def _add_results(self, results: Sequence[CallResult]) -> None:
        for result in results:
            self._conversation.add_result(result.call.id, result.result)
            if result.call.name in self._agent.agents:
                await self._add_partial(result)
            if result.patch:
                await self._ctx.patch(result.patch)

    async def _add_partial(self, result: CallResult) -> None:
        """Add the answer of another agent to the partial result."""
        (message,) = await self._messages([result.result])
        text = str(message["content"])
        if not text.startswith(("error:", "denied:")) or UNFINISHED in text:
            self._partial.add_answer(result.call.name, text)
            self._ctx.host.partial = self._partial.text

    def _close_calls(self, why: str) -> None:
        """Give each open call of the last turn, which will not run, a result that says so."""
        for call in self._conversation.turns[-1].open:
            self._conversation.add_result(call, self._write(result_message(call, why)))


def _state_text(state: AgentState, left_out: int, *, hurried: bool, last: bool) -> str:
    """The end of the last message of a request. What changes from turn to turn stands here, so that all messages before it are the same as
    in the request before."""
    note = f"\n({left_out} earlier turns of this conversation are not shown.)" if left_out else ""
    resource = "budget" if BUDGET_PRESSURE in state.risk_flags else "time" if hurried else ""
    hurry = f"\n{LAST_MESSAGE}" if last else f"\n{HURRY_MESSAGE.format(resource=resource)}" if resource else ""
    text = state_slice(state, STATE_BYTES, step=_step(state)).text
    return f"\n\n{STATE_HEADING}\n{text}{note}{hurry}"


def _step(state: AgentState) -> str | None:
    """The step that left the last artifact: the slice shows its artifacts first."""
    return state.artifacts[-1].step if state.artifacts else None


def _reply(message: Mapping[str, Any], result: Mapping[str, Any]) -> Reply:
    """A reply, from its stored message and the recorded result of the model call."""
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Reply(message.get("content") or "", calls, finish=result["finish"])
