"""The agent's loop: an ordinary handler, with no privilege over any other.

    slice ─► model (a step) ─► policy ─► its calls (steps, approvals, questions, agents) ─► patch ─► … until it answers

Everything it needs to go on is in the journal and in what the task keeps: after a crash the loop runs over its records and
is where it was. Every few turns a checkpoint stands for all that came before it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from onward.agent import compaction
from onward.agent.account import Account
from onward.agent.builtin import ASK_USER, builtin
from onward.agent.calls import SHOWN, SMALLEST, Approvals, Calls, Done
from onward.agent.checkpoint import saved, saved_state
from onward.agent.conversation import Conversation, Ref, Turn, page_of, result_message, turns_on
from onward.agent.delegation import UNFINISHED, agents_as_tools, inherit, state_reader
from onward.agent.live import Live
from onward.agent.mcp import McpServer, learn
from onward.agent.model import Emit, Message, Model, Reply, Request, ToolCall, quota_of
from onward.agent.partial_result import Best
from onward.agent.policy import Answer, Ask, Do, Policy, Say, Seen, Stop, usual
from onward.agent.tools import Tool
from onward.core import usage, wire
from onward.core.budget import Budget
from onward.core.journal.checkpoint import EVERY_ITERATION, EVERY_STEP
from onward.core.retry import Retry
from onward.core.slice import cut, state_slice
from onward.core.state import BUDGET_PRESSURE, AgentState, ArtifactRef, Constraints, HumanInTheLoop, StatePatch
from onward.engine.context.artifacts import leave
from onward.engine.context.context import Context
from onward.engine.shift.environment import HURRY_SHARE, LAST_ANSWER_SHARE
from onward.engine.shift.quota import within_quota
from onward.errors import BadSetting, BudgetSpent, InvalidInput, NoAnswer, StepFailed, TimeUp, UsageError

NO_LIMITS = Budget()
EVERY = 20
"""Turns between two checkpoints."""

STATE_BYTES = 8_000
CONTEXT_BYTES = 100_000
"""Bytes of the state, and of the conversation, that a model call is shown."""

LEAST_BYTES = 2_000
"""Of a conversation; in less there is no room for a summary beside what is new."""

MOST_AT_ONCE = 8
PATIENCE = Retry(attempts=6, first=1.0, cap=60.0)
"""For a provider that is busy or away. What it says about when to come back is obeyed."""

HURRY = "Your {what} is nearly over: finish what is open, and come to an answer with what you have."
LAST_WORDS = (
    "Your time is over. This is the last question, and you have no tools any more: answer now, with what you have."
)


@dataclasses.dataclass(frozen=True)
class Agent:
    """What was said about an agent. Its `handler` does tasks whose input is a goal."""

    name: str
    model: Callable[[], Model]
    instructions: str = ""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    approve: frozenset[str] = frozenset()
    budget: Budget = NO_LIMITS
    result: type[BaseModel] | None = None
    context_bytes: int = CONTEXT_BYTES
    max_tokens: int | None = None
    """What one answer may have at most."""
    compact: Callable[[], Model] | None = None
    """The model that sums up what no longer fits; None leaves it out."""
    policy: Policy = usual
    agents: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other agents that are tools of this one, and what each is for."""
    approval_timeout: float | None = None
    approval_default: str = "deny"
    shown_bytes: int = SHOWN
    checkpoint: str = EVERY_STEP
    """When the results of tools that only read are written."""
    secrets: frozenset[str] = frozenset()
    """The secrets that its model may name."""
    servers: tuple[McpServer, ...] = ()
    """MCP servers whose tools it may use."""
    undo: bool = False
    """Whether its finished calls are undone when it fails, is cancelled or runs out of time."""

    def __post_init__(self) -> None:
        if self.context_bytes < LEAST_BYTES:
            raise BadSetting("context_bytes", self.context_bytes, f"{LEAST_BYTES:,} or more")
        if twice := sorted(agents_as_tools(self.agents).keys() & self.tools.keys()):
            raise UsageError(f"a tool and an agent are both named {twice[0]!r}; give one of them another name")

    async def handler(self, ctx: Context, goal: str, after: str | None = None, depth: int = 0, **state: Any) -> Any:
        """Work towards the goal; the answer is the task's result. `state` is what else an AgentState says."""
        run = _Run(self, ctx, after, depth)
        if not self.undo:
            return await self._worked(run, ctx, goal, state)
        async with ctx.host.saga("run", whole=True):
            answer = await self._worked(run, ctx, goal, state)
            # A result that cannot be kept is a failure, and undone like one.
            wire.encode(answer, "the result of the task")
            return answer

    async def _worked(self, run: _Run, ctx: Context, goal: str, state: Mapping[str, Any]) -> Any:
        await run.begin(goal, state)
        while True:
            action = self.policy(run.seen())
            if run.last and not isinstance(action, Answer | Stop):
                await run.account.settle()
                raise TimeUp("the last question brought no answer that can be used")
            match action:
                case Ask():
                    try:
                        await run.ask()
                    except StepFailed as failed:
                        if failed.kind != BudgetSpent.__name__ or self.result is not None:
                            raise
                        return await run.best(failed.message)
                case Say(text):
                    run.tell(text)
                case Do(calls):
                    await run.do(calls)
                case Answer(value):
                    if not await run.listen(last=True):
                        await ctx.patch()
                        await run.account.settle()
                        return value
                case Stop(why):
                    await run.account.settle()
                    raise NoAnswer(why)
            await run.rest()

    def checked(self, text: str) -> tuple[Any, str]:
        """The answer in the form that was promised, or what to say about it."""
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
        self._budget = self.account.spending.budget  # the one of the submit, where there is one
        self._artifact_bytes = self._budget.max_artifact_bytes_in_context
        most = agent.shown_bytes if self._artifact_bytes is None else min(agent.shown_bytes, self._artifact_bytes)
        most = max(most, SMALLEST)
        own = {**builtin(ctx, most), ASK_USER.name: ASK_USER}
        self._tools = {**agent.tools, **agents_as_tools(agent.agents, depth), **own}
        if agent.agents or after or depth:
            self._tools["read_state"] = state_reader(ctx, after)
        self._specs: list[dict[str, Any]] = []
        people = Approvals(agent.approve, agent.approval_timeout, agent.approval_default)
        brief = self._artifact_bytes is not None
        self._calls = Calls(
            ctx, self._tools, people, self._write, most, brief=brief, secrets=agent.secrets, undoes=agent.undo
        )
        self._kept_servers: dict[str, str] = {}
        """Under which names it keeps what MCP servers offered when it began."""
        self._talk = Conversation()
        self._pages: list[list[Any]] = []
        """Of the turns before the last checkpoint: the name of each page, and how many turns and bytes are on it."""
        self._before = 0
        """Turns that are on pages which were not read, because they cannot be shown anyway."""
        self._steps = self._saved = 0
        self._moves = 0
        """Turns since the last checkpoint, also those that were summed up meanwhile."""
        self._reply: Reply | None = None
        """What the model said last, as long as nothing was done about it."""
        self._useless = self._repeated = self._pause = 0
        self._last_calls = ""
        self._fresh: dict[str, bytes] = {}
        """What was written since the last record, and may not be in the store yet."""
        self.last = False
        """Whether what the model said last is its answer to the last question of the task's time."""
        self._best = Best()

    # ── where it is ──────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, goal: str, state: Mapping[str, Any]) -> None:
        """At the beginning, or where the last checkpoint was."""
        restored = self._ctx.restored
        if servers := self._agent.servers:
            self._kept_servers = await learn(self._ctx, servers, self._tools, restored)
        if restored is None:
            await self._ctx.patch(await self._first_state(goal, state))
            self._say({"role": "user", "content": goal})
            return
        await self._ctx.patch(saved_state(restored))
        self._pages, self._steps = restored["pages"], restored["steps"]
        self._useless, self._repeated, self._last_calls, self._pause = restored["counts"]
        (self._calls.lent if self._ctx.host.forked else self._calls.always).update(restored["always"])
        self._calls.remember(restored.get("made", {}))
        await self._read_pages()
        if best := restored.get("best"):
            self._best = Best.read(*await self._ctx.kept(best))
            self._ctx.host.partial = self._best.text

    async def _first_state(self, goal: str, state: Mapping[str, Any]) -> AgentState:
        """A state with nothing but a goal in it, what the input says, or what an earlier task knew."""
        agent, known = self._agent, AgentState(goal=goal, **state)
        if self._after is not None and known != AgentState(goal=goal):
            raise InvalidInput(
                "an agent begins with the state of its input or with that of the task `after`, not with both"
            )
        if self._after is not None:
            work = functools.partial(inherit, self._ctx, self._after, agent.context_bytes, delegated=self._delegated)
            told = await self._ctx.step(work, name="inherit")
            (page,) = await self._ctx.kept(told["page"])
            self._talk.turns, known = turns_on(page), AgentState.model_validate(told["state"])
        people = HumanInTheLoop(required_for_risk_levels=tuple(sorted(agent.approve)))
        own = {"goal": goal, "constraints": Constraints(human_in_the_loop=people), "budget": self._budget.limits}
        return known.model_copy(update=own).patched(StatePatch(unflag_risks=(BUDGET_PRESSURE,)))

    async def _read_pages(self) -> None:
        """The latest turns, as many as could be shown."""
        turns: list[Turn] = []
        size, unread = 0, list(self._pages)
        while unread and size <= self._agent.context_bytes:
            name, _, more = unread.pop()
            (data,) = await self._ctx.kept(name)
            turns, size = turns_on(data) + turns, size + more
        self._talk.turns, self._saved = turns, len(turns)
        self._before = sum(count for _, count, _ in unread)

    async def rest(self) -> None:
        """Now and then, when nothing is open: what came before is in a checkpoint."""
        if self._agent.checkpoint == EVERY_ITERATION:
            await self._ctx.flush()
        new = self._talk.turns[self._saved :]
        if self._agent.undo:  # a checkpoint would stand for what may have to be undone
            return
        if self._reply is not None or self._moves < EVERY:
            return
        await self.account.settle()  # a replay does not come past what is behind a checkpoint
        page = [self._ctx.keep(page_of(new)), len(new), sum(turn.bytes for turn in new)]
        self._pages, self._saved, self._moves = [*self._pages, page], len(self._talk.turns), 0
        counts = [self._useless, self._repeated, self._last_calls, self._pause]
        told = {"pages": self._pages, "steps": self._steps, "counts": counts, "always": sorted(self._calls.always)}
        told |= {"servers": self._kept_servers} if self._kept_servers else {}
        told["usage"] = usage.saved(self.account.usage, self._ctx.task_id)
        told |= {"made": self._calls.made} if self._calls.made else {}
        told |= {"best": self._ctx.keep(self._best.written)} if self._best.text else {}
        await self._ctx.checkpoint(saved(self._state, **told))
        await self._ctx.patch(self._state)

    @property
    def _state(self) -> AgentState:
        assert self._ctx.state is not None
        return self._ctx.state

    def _told_of_tools(self) -> list[dict[str, Any]]:
        made = {tool.makes for tool in self._tools.values() if tool.makes is not None}
        return [tool.spec({*self._agent.secrets, *made}) for tool in self._tools.values()]

    def seen(self) -> Seen:
        """What the policy decides on."""
        reply = self._reply
        answer, wrong = (None, "") if reply is None or reply.calls else self._agent.checked(reply.text)
        return Seen(self._state, self._steps, reply, answer, wrong, self._useless, self._repeated)

    # ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, text: str) -> None:
        """Tell the model something. A reply that was not used is over with it."""
        if self._reply is not None:
            self._close("not done")
            self._useless, self._reply = self._useless + 1, None
        self._repeated, self._moves = 0, self._moves + 1
        self._say({"role": "user", "content": text})

    async def listen(self, *, last: bool = False) -> bool:
        """Take in what people said meanwhile: when nothing is open, so that no call is parted from its result. An answer that
        the model had given is only something it said before."""
        said = await self._ctx.messages(last=last)
        for text in said:
            self._say({"role": "user", "content": text if isinstance(text, str) else wire.encode(text).decode()})
        if said:
            self._reply, self._useless, self._repeated, self._moves = None, 0, 0, self._moves + 1
            self.last = False
        return bool(said)

    def _say(self, message: Message) -> None:
        self._talk.say(self._write(message))

    def _write(self, message: Message) -> Ref:
        data = wire.encode(dict(message))
        name = self._ctx.keep(data)
        self._fresh[name] = data
        return Ref(name, len(data))

    async def ask(self) -> None:
        """The model's next words, asked for once, with what others have said, and changed in the state, meanwhile."""
        await self.listen()
        await self._ctx.patch()
        await self._make_room()
        self._steps += 1
        shown, left_out = self._talk.shown(self._agent.context_bytes, self._artifact_bytes)
        work = functools.partial(self._next, shown, left_out + self._before)
        told = await self._ctx.step(work, name="model", effect="read", retry=PATIENCE)
        await self._ctx.flush()  # it may be asked again, but not when its answer was paid for and is there
        await self.account.close(told)
        await self._press(told.get("pressed"))
        self._fresh.clear()
        (data,) = await self._ctx.kept(told["id"])
        self.last = told.get("last", False)
        self._hear(_reply(wire.decode(data), told), Ref(told["id"], told["bytes"]))

    def _hear(self, reply: Reply, said: Ref) -> None:
        if not reply.calls and not reply.text.strip():  # a message with nothing in it is refused by some providers
            said = self._write({"role": "assistant", "content": "(nothing)"})
        self._talk.say(said, reply.calls)
        self._reply = reply
        if reply.text.strip():
            self._best.say(reply.text, final=not reply.calls)
            self._ctx.host.partial = self._best.text
        if self.last and reply.calls and reply.text.strip():  # it was offered no tools
            self._close("not done")
            self._reply = dataclasses.replace(reply, calls=())
        if reply.text:
            self._ctx.progress(reply.text[:500], self._steps, turn=self._steps)

    async def _next(self, shown: Sequence[Ref], left_out: int) -> dict[str, Any]:
        """Ask for the next action."""
        hurried, last = (self._ctx.host.time_left(part) <= 0 for part in (HURRY_SHARE, LAST_ANSWER_SHARE))
        system = _system(self._agent.instructions, self._state, left_out, hurried=hurried, last=last)
        whole = [self._write({"role": "system", "content": system}), *shown]
        self._specs = self._specs or self._told_of_tools()
        request = Request(await self._messages(whole), () if last else self._specs, result=self._agent.result)
        live = Live(self._ctx, self._steps)
        try:
            _, told = await self._asked(self._agent.model, request, whole, live)
            return {**told, "last": True} if last else told
        except Exception:
            live.withdraw()
            raise

    async def _asked(
        self, make: Callable[[], Model], request: Request, shown: Sequence[Ref], emit: Emit
    ) -> tuple[Reply, dict[str, Any]]:
        """What a model replies, and the record of it: the one place where a model is called, and paid."""
        model = make()
        reply, paid = await within_quota(self._ctx, quota_of(model), lambda: self.account.ask(model, request, emit))
        said = wire.encode(reply.message)
        return reply, {
            "turn": self._steps,
            "asked": {"system": shown[0].id, "shown": [ref.id for ref in shown[1:]], "model": model.name},
            "id": self._ctx.keep(said),
            "bytes": len(said),
            "finish": reply.finish,
            **paid,
        }

    async def _press(self, pressed: bool | None) -> None:
        """The state says when most of the budget is gone, so that the model can wrap up. All of it is in the record: what a
        task spends from now, or whether anything is spent at all, is another thing in a replay."""
        if pressed and BUDGET_PRESSURE not in self._state.risk_flags:
            await self._ctx.patch(StatePatch(flag_risks=(BUDGET_PRESSURE,)))
        elif pressed is False and BUDGET_PRESSURE in self._state.risk_flags:
            await self._ctx.patch(StatePatch(unflag_risks=(BUDGET_PRESSURE,)))

    async def best(self, why: str) -> str:
        """What there is, when the budget is spent and the agent was to end with that."""
        await self.account.settle()
        return f"{self._best.text or ''}\n\n(This is not finished: {why}.)".strip()

    async def _messages(self, refs: Sequence[Ref]) -> list[Message]:
        there = [ref.id for ref in refs if ref.id not in self._fresh]
        texts = self._fresh | dict(zip(there, await self._ctx.kept(*there), strict=True))
        return [wire.decode(texts[ref.id]) for ref in refs]

    # ── what no longer fits ──────────────────────────────────────────────────────────────────────────────────────

    async def _make_room(self) -> None:
        """Sum up the older turns when all of them no longer fit. Where that fails they are left out, and the model is told."""
        agent, talk = self._agent, self._talk
        if agent.compact is None or talk.bytes <= agent.context_bytes or self._steps < self._pause:
            return
        latest = talk.lately(agent.context_bytes // 2)
        if latest == len(talk.turns):
            return
        self._steps += 1
        work = functools.partial(self._summed_up, agent.compact, talk.turns[:-latest], latest)
        try:
            told = await self._ctx.step(work, name="compact", retry=PATIENCE)
            await self.account.close(told)
        except StepFailed:
            told = {"replaced": None}
        self._fresh.clear()
        if told["replaced"] is None:
            self._pause = self._steps + compaction.PAUSE
        else:
            await self._sum_up(**told["replaced"])

    async def _sum_up(self, latest: int, summary: list[Any], artifact: dict[str, Any], **_: Any) -> None:
        await self._ctx.patch(StatePatch(add_artifacts=(ArtifactRef.model_validate(artifact),)))
        self._talk.sum_up(latest, Ref(*summary))
        self._pages, self._saved, self._before = [], 0, 0

    async def _summed_up(self, make: Callable[[], Model], old: Sequence[Turn], latest: int) -> dict[str, Any]:
        """Ask for a summary of these turns. What it replaces stays: as a page, and as a transcript that the model can read."""
        most = self._agent.context_bytes
        text = compaction.transcript(await self._messages([ref for turn in old for ref in turn.messages]))
        artifact = await leave(self._ctx, text, {"type": "transcript", "summary": f"{len(old)} earlier turns"})
        goal = f"{compaction.SUMMARISE}\n\nThe goal: {cut(self._state.goal, STATE_BYTES)}"
        asked = [self._write({"role": "system", "content": goal}), self._write(compaction.question(text, most))]
        reply, told = await self._asked(make, Request(await self._messages(asked)), asked, _silent)
        if not reply.text.strip():
            return {**told, "replaced": None}
        summary = self._write(compaction.summary(reply.text, most // 4, len(old), artifact.artifact_id))
        told_of = artifact.model_dump(mode="json")
        replaced = {"latest": latest, "summary": [summary.id, summary.bytes], "artifact": told_of}
        return {**told, "replaced": {**replaced, "page": self._ctx.keep(page_of(old)), "pages": self._pages}}

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────

    async def do(self, calls: Sequence[ToolCall]) -> None:
        """Calls of one turn: at once where they only read, one after the other where they do not. What a person has to
        approve is asked for before the first of them runs, all at once."""
        if self._reply is None:  # an idea of the policy's own
            self._talk.say(self._write(Reply("", tuple(calls)).message), calls)
        names = [call.name for call in calls]
        self._ctx.progress(", ".join(names), self._steps, turn=self._steps, tools=names)
        allowed = await self._calls.allowed([self._calls.check(call) for call in calls])
        pairs = list(zip(calls, allowed, strict=True))
        if len(pairs) > 1 and self._calls.together(allowed):
            done = await self._ctx.gather(*[self._calls.do(*pair) for pair in pairs], limit=MOST_AT_ONCE)
        else:
            done = [await self._calls.do(*pair) for pair in pairs]
        await self._take(done)
        self._close("not done")
        self._reply, self._useless, self._moves = None, 0, self._moves + 1
        asked = wire.fingerprint([[call.name, call.arguments] for call in calls])
        self._repeated = self._repeated + 1 if asked == self._last_calls else 1
        self._last_calls = asked

    async def _take(self, done: Sequence[Done]) -> None:
        for one in done:
            self._talk.answer(one.call.id, one.result)
            if one.call.name in self._agent.agents:
                await self._remember(one)
            if one.patch:
                await self._ctx.patch(one.patch)

    async def _remember(self, done: Done) -> None:
        """What another agent answered is part of the best result so far."""
        (message,) = await self._messages([done.result])
        text = str(message["content"])
        if not text.startswith(("error:", "denied:")) or UNFINISHED in text:
            self._best.hear(done.call.name, text)
            self._ctx.host.partial = self._best.text

    def _close(self, why: str) -> None:
        """Calls that nobody does get a result that says so."""
        for call in self._talk.turns[-1].open:
            self._talk.answer(call, self._write(result_message(call, why)))


def _system(instructions: str, state: AgentState, left_out: int, *, hurried: bool, last: bool) -> str:
    note = f"\n({left_out} earlier turns of this conversation are not shown.)" if left_out else ""
    over = "budget" if BUDGET_PRESSURE in state.risk_flags else "time" if hurried else ""
    hurry = f"\n{LAST_WORDS}" if last else f"\n{HURRY.format(what=over)}" if over else ""
    return f"{instructions}\n\n{state_slice(state, STATE_BYTES, step=_step(state)).text}{note}{hurry}".strip()


def _step(state: AgentState) -> str | None:
    """The step that left something behind last: its artifacts come first."""
    return state.artifacts[-1].step if state.artifacts else None


def _reply(message: Mapping[str, Any], told: Mapping[str, Any]) -> Reply:
    calls = tuple(
        ToolCall(one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls", ())
    )
    return Reply(message.get("content") or "", calls, finish=told["finish"])


def _silent(_: str) -> None:
    """Nobody listens."""
