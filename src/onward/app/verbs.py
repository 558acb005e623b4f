"""Verbs of an app that submit tasks and control them, and the handle of a submitted task. Part of `Onward`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, TypeVar, Unpack, overload

from onward.app.queries import Queries
from onward.app.streams import Streams
from onward.core.budget import Budget
from onward.core.caller import in_python
from onward.core.doubts import Doubt, InDoubt
from onward.core.durations import Duration, seconds
from onward.core.journal.progress import Only, ProgressReader, Update, check_only
from onward.core.page import Page
from onward.core.record import Record
from onward.core.task import SAME, Task
from onward.core.views import Ask, Schedule, Spent, Timeline
from onward.engine.check.deploy_check import HANDLER_TIMEOUT_S, Checker, Finding, Progress, Replayed, show_no_progress
from onward.engine.context.options import refuse_unknown
from onward.engine.context.signatures import SubmitManyOptions, SubmitOptions, T_co
from onward.engine.handlers import Handler
from onward.service.audit import Entries
from onward.service.forks import ForkPlan
from onward.service.submission import ScheduleSpec, SubmitRequest, named
from onward.store.port.core import Store

if TYPE_CHECKING:
    from onward.core.state import AgentState, ArtifactRef

T = TypeVar("T")
InputT = TypeVar("InputT")

Refs = list["ArtifactRef"]
Doubts = list[Doubt]
Findings = list[Finding]
Schedules = list[Schedule]
"""Names for list types in a class whose method `list` hides the builtin."""


class Verbs(Queries, Streams):
    """The methods of `Onward` that submit tasks and control them."""

    handlers: dict[str, Handler]
    store: Store
    _schedule_specs: dict[str, ScheduleSpec]
    name_of: Callable[[Callable[..., Any] | str], str]

    async def audit(self, *, after: int = 0, limit: int = 100) -> Entries:
        """The entries of the audit log after a number, in order (`onward audit verify` checks that they are unchanged)."""
        return await self.service.audit.list(after, limit)

    # fmt: off
    # by name; without input; with the handler's one argument; with its arguments by name. Then the same for plain functions.
    @overload
    async def submit(self, handler: str, input: Any = None, **options: Unpack[SubmitOptions]) -> Handle[Any]: ...
    @overload
    async def submit(self, handler: Callable[[Any], Awaitable[T]], input: None = None, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], Awaitable[T]], input: InputT, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], input: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any], T], input: None = None, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[[Any, InputT], T], input: InputT, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(self, handler: Callable[Concatenate[Any, ...], T], input: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    # fmt: on
    async def submit(
        self,
        handler: Callable[..., Any] | str,
        input: Any = None,  # noqa: A002 -- the name in every interface
        *,
        key: str | None = None,
        priority: int = 0,
        queue: str | None = None,
        deadline: Duration | None = None,
        delay: Duration | None = None,
        expires: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        group: str | None = None,
        budget: Budget | None = None,
        after: str | None = None,
        webhook: str | None = None,
        asker: str | None = None,
        connection: Any = None,
        **unknown: Any,
    ) -> Handle[Any]:
        """Submit a task, and return its handle after the commit.

        The same `key` with the same request gives the same task, however often and from wherever it is sent. With
        `connection` (asyncpg, psycopg, SQLAlchemy; on SQLite apsw) the task becomes part of the caller's own transaction. `group`
        (a tenant, a service) is for fairness and limits; the handler may also name an argument for it. `webhook` is a URL that gets
        a signed POST when the task ends. `budget` limits what the task and its children may spend on models, in place of the agent's
        own budget. `after` is the id of an ended task of an agent: this task continues it, with its state and its conversation.
        `asker` names the caller for whom your program submits the task (`person:ID` or `key:ID`): approval rules keep it from deciding.

        With the handler itself (and not its name) type checkers know the input and the result. The input is the handler's one
        argument, or a dict of its arguments by name. A model or a dataclass is the one argument, also when its fields have such names.
        The result has the type that the handler's annotation names, where this app has the handler; elsewhere it is JSON.
        """
        refuse_unknown("app.submit", unknown, SubmitOptions.__optional_keys__)
        more: dict[str, Any] = {"group": group, "budget": budget, "webhook": webhook, "askers": _askers(asker)}
        request = SubmitRequest(
            self.name_of(handler), input, key, priority, queue, deadline, delay, expires, labels, **more
        )
        if after is not None:
            request = await self.service.agent_states.after(after, request)
        (task_id,) = await self.service.submit([request], connection=connection)
        return Handle(self, task_id, request.task)

    # fmt: off
    # as for submit
    @overload
    async def submit_many(self, handler: str, inputs: Sequence[Any], **options: Unpack[SubmitManyOptions]) -> list[Handle[Any]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any], Awaitable[T]], inputs: Sequence[None], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any, InputT], Awaitable[T]], inputs: Sequence[InputT], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[Concatenate[Any, ...], Awaitable[T]], inputs: Sequence[Mapping[str, Any]], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any], T], inputs: Sequence[None], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[[Any, InputT], T], inputs: Sequence[InputT], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    @overload
    async def submit_many(self, handler: Callable[Concatenate[Any, ...], T], inputs: Sequence[Mapping[str, Any]], **options: Unpack[SubmitManyOptions]) -> list[Handle[T]]: ...
    # fmt: on
    async def submit_many(
        self, handler: Callable[..., Any] | str, inputs: Sequence[Any], **options: Any
    ) -> list[Handle[Any]]:
        """Submit one task for each input, in one commit: all or none. Options as for `submit`, except `key`."""
        refuse_unknown("app.submit_many", options, SubmitManyOptions.__optional_keys__)
        name = self.name_of(handler)
        connection, options["askers"] = options.pop("connection", None), _askers(options.pop("asker", None))
        ids = await self.service.submit(
            [SubmitRequest(name, value, **options) for value in inputs], connection=connection
        )
        return [Handle(self, task_id, name) for task_id in ids]

    def handle(self, task_id: str) -> Handle[Any]:
        """A handle for a task by its id. Does not look the task up."""
        return Handle(self, task_id)

    async def state(self, task_id: str) -> AgentState:
        """The state of an agent's task as it is now. Raises NoState for a task that has none."""
        return await self.service.agent_states.get(task_id)

    async def timeline(self, task_id: str) -> Timeline:
        """The timeline of a task: bars for steps, attempts, waits and children, and marks. Raises TaskNotFound."""
        timeline = await self.service.timelines.timeline(task_id)
        while timeline.more:
            timeline = timeline.then(await self.service.timelines.timeline(task_id, timeline.seq))
        return timeline

    async def cancel(self, task_id: str) -> Task:
        """Cancel the task and its children."""
        return await self.service.cancel(task_id)

    async def pause(self, task_id: str) -> Task:
        """Pause the task and its children until `resume`. After this returns no step of them begins; a running step runs to its
        end and is recorded."""
        return await self.service.pause(task_id)

    async def resume(self, task_id: str) -> Task:
        """Go on with a paused, failed, parked or quarantined task from the step where it stands."""
        return await self.service.resume(task_id)

    async def signal(self, task_id: str, name: str, value: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        """Send a signal to a task (`ctx.signal`). The store keeps it until the task waits for it. The same `id` sent twice counts once."""
        await self.service.messages.signal(task_id, name, value, id=id)

    async def asks(self, kind: str | None = None, *, limit: int = 1000, cursor: str | None = None) -> Page[Ask]:
        """Open questions and approvals: a list of at most `limit`, the oldest first. `next` of the list is the cursor for the next page
        (None at the end). The pages follow the order in which the tasks were submitted. The values of a page have 4 MB together, about;
        beyond that they are left out, and `left_out` of a question or an approval names them. `ask` returns it in full."""
        return await self.service.asks.list(kind, limit=limit, cursor=cursor)

    async def ask(self, ask_id: str) -> Ask:
        """A question or an approval in full, open or not. Raises NotFound."""
        return await self.service.asks.get(ask_id)

    async def approvals(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Ask]:
        """Open approvals, as `asks("approval")`."""
        return await self.asks("approval", limit=limit, cursor=cursor)

    async def questions(self, *, limit: int = 1000, cursor: str | None = None) -> Page[Ask]:
        """Open questions, as `asks("question")`."""
        return await self.asks("question", limit=limit, cursor=cursor)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question (`ctx.ask`). Raises AlreadyDecided when it is answered already (AskExpired when its time is up), and
        Withdrawn when the task no longer waits for it."""
        await self.service.messages.answer(question_id, answer, caller=in_python())

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        reason: str = "",
        by: str = "",
        arguments: dict[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,  # noqa: A002 -- the name in every interface
        digest: str | None = None,
    ) -> bool:
        """Approve or deny (`ctx.approve`, an agent's tool call), once. `by` names the person; a denied agent reads the `reason`. Returns
        True; or False when this is a vote on an approval with a rule (`ApprovalRule`), and the rule needs more of them.

        For a tool call, `arguments` approves it with these arguments in place of its own, and `always` lets the tool run without
        an approval in this task from now on. With `digest` (`Ask.digest`) the decision counts only for the request that you saw;
        `hash` is a shorter form of it. Raises AlreadyDecided when it is decided already (AskExpired when its time is up),
        StaleDecision for another digest, Withdrawn when the task no longer waits for it, InvalidInput for arguments that the
        tool does not take, and NotApprover when a rule does not list `python:NAME` with the name `by`.
        """
        decided = await self.service.messages.decide(
            approval_id,
            decision,
            caller=in_python(by),
            by=by,
            reason=reason,
            arguments=arguments,
            always=always,
            hash=hash,
            digest=digest,
        )
        return decided.decided

    async def doubts(self, task_id: str) -> Doubts:
        """The effects of a task that are in doubt: it is unknown whether they happened."""
        return await self.service.messages.doubts(task_id)

    async def in_doubt(self, *, limit: int = 100, after: str = "") -> InDoubt:
        """The effects of all tasks that are in doubt, and the unfinished tasks that a restore took back: about `limit` of each, in the
        order of the tasks. `next` of the page is the `after` of the next one (None at the end)."""
        return await self.service.messages.in_doubt(limit, after)

    async def resolve(self, task_id: str, verdict: str, result: Any = None, *, step: str | None = None) -> None:
        """Resolve an effect in doubt: "happened" (with this result), "not_happened", "nothing_happened" (before a restore neither this
        nor any effect after it did) or "undo"."""
        await self.service.messages.resolve(task_id, verdict, result, step=step, caller=in_python())

    async def fork(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> Handle[Any]:  # noqa: A002
        """Submit a new task that begins with records 1…`at` of another and goes on from there; with another `input`, from the first
        record. It inherits the steps before that record and never undoes them; it runs the later steps (`fork_plan` lists
        them) again, under new effect keys. Raises CannotFork where a step, saga or branch is open at that record."""
        return Handle(self, await self.service.forks.fork(task_id, at, input=input))

    async def fork_plan(self, task_id: str, at: int | None = None, *, input: Any = SAME) -> ForkPlan:  # noqa: A002
        """What `fork` with the same arguments would do: `again` lists the steps that it would repeat, `approvals` the records of the
        approvals that it would ask for again. Submits nothing. Raises CannotFork as `fork` does."""
        return await self.service.forks.plan(task_id, at, input=input)

    async def budget(self, task_id: str) -> Spent:
        """The budget of a task, its own or the nearest above it, and how much of it is spent."""
        return await self.service.budgets.get(task_id)

    async def raise_budget(
        self,
        task_id: str,
        *,
        max_steps: int | None = None,
        max_wall_time: Duration | None = None,
        max_llm_tokens: int | None = None,
        max_cost_usd: float | None = None,
    ) -> Spent:
        """Set limits of that budget. They are absolute: a second equal call changes nothing. Tasks that wait for it go on."""
        return await self.service.budgets.raise_(
            task_id,
            max_steps=max_steps,
            max_wall_time=max_wall_time,
            max_llm_tokens=max_llm_tokens,
            max_cost_usd=max_cost_usd,
        )

    async def artifacts(self, task_id: str) -> Refs:
        """The artifacts of a task (`ctx.artifact`, large outputs of tools). Raises TaskNotFound."""
        return await self.service.artifacts.of(task_id)

    async def artifact(self, task_id: str, artifact_id: str) -> bytes:
        """The bytes of an artifact of this task. Raises ArtifactNotFound."""
        return await self.service.artifacts.read(task_id, artifact_id)

    async def check(self, progress: Progress = show_no_progress, *, patience: Duration = HANDLER_TIMEOUT_S) -> Findings:
        """Return a finding for each unfinished task: whether the code of this app could go on with it. Runs no step and writes
        nothing. `patience` is the time for the code of one handler, which waits for nothing in a dry run."""
        return await self._checker(patience).check(progress)

    async def replay(self, task_id: str, *, patience: Duration = HANDLER_TIMEOUT_S) -> Replayed:
        """Run the code of this app over the journal of a task, without effects, and compare the two."""
        return await self._checker(patience).replay(task_id)

    def _checker(self, patience: Duration) -> Checker:
        return Checker(self.store, self.handlers, self.service.artifacts, seconds(patience, "patience"))

    async def prioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a task; higher goes first."""
        return await self.service.prioritize(task_id, priority)

    async def save_schedules(self) -> None:
        """Write the schedules that this app declares to the store, as a worker does when it starts. A changed schedule replaces
        the stored one; a schedule that is no longer declared stays until `remove_schedule`."""
        await self.service.save_schedules(list(self._schedule_specs.values()))

    async def schedules(self) -> Schedules:
        """All schedules in the store, by name."""
        return await self.service.schedules.list()

    async def pause_schedule(self, name: str) -> Schedule:
        """Stop the ticks of a schedule until `unpause_schedule`. Raises ScheduleNotFound."""
        return await self.service.schedules.pause(name)

    async def unpause_schedule(self, name: str) -> Schedule:
        """Go on with the next tick from now."""
        return await self.service.schedules.unpause(name)

    async def remove_schedule(self, name: str) -> None:
        """Remove a schedule; its tasks stay. When the code still declares it, the next worker that starts writes it again."""
        await self.service.schedules.remove(name)

    async def trigger(self, name: str) -> Handle[Any]:
        """Submit the task of a schedule now, in addition to its ticks."""
        return Handle(self, await self.service.schedules.trigger(name))


class Handle(Generic[T_co]):
    """A submitted task."""

    def __init__(self, app: Verbs, task_id: str, task: str | None = None) -> None:
        self._app = app
        self.id: str = task_id
        self._task = task

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    async def result(self, timeout: Duration | None = None, *, partial: bool = False) -> T_co:
        """Wait for the result and return it. Raises TaskFailed, TaskCancelled or ResultTimeout; the task goes on after a timeout.
        Raises TaskParked (a ResultTimeout) at once when the task waits for a person to resume it. With `partial`, a failed task
        gives its best result so far, where it has one: an agent that ran out of time."""
        timeout_s = None if timeout is None else seconds(timeout, "timeout")
        result: T_co = await self._app.service.result(self.id, timeout_s, partial=partial)
        if not any(handler.result_type for handler in self._app.handlers.values()):
            return result
        if self._task is None or partial:
            task = await self._app.get(self.id)
            if task.state != "completed":
                return result  # the best result so far of a task that failed
            self._task = task.task
        handler = self._app.handlers.get(self._task)
        return result if handler is None else handler.load_result(result)

    async def get(self) -> Task:
        """The task as it is now."""
        return await self._app.get(self.id)

    async def cancel(self) -> Task:
        """Cancel the task and its children."""
        return await self._app.service.cancel(self.id)

    def tail(self, after: int = 0) -> AsyncIterator[Record]:
        """The records of the task as they come, until it has ended."""
        return self._app.service.tail(self.id, after)

    async def follow(self, after: int = 0, *, only: Only | None = None) -> AsyncIterator[Update]:
        """The progress of the task as it comes, until it has ended: after the update with this number (`Update.seq`). With
        `only="progress"`, what the handler gave to `ctx.progress`, and the end without the result or the error."""
        check_only(only)
        reader = ProgressReader(self.id, await self._app.store.tails.lead(self.id, after), again=after > 0, only=only)
        async for record in self._app.service.tail(self.id, after):
            if (update := reader.read(record)) is not None:
                yield update

    def sse(self, after: str | int | None = None, *, only: Only | None = None) -> AsyncGenerator[bytes, None]:
        """The progress of the task as server-sent events, for a streaming response (`text/event-stream`) of your own web application. It
        is the stream of `GET /api/progress`: updates and the live text of models, with a comment after ten seconds of silence.

        The updates carry results of steps, errors and the names of people who decided. With `only="progress"`, the client gets no more
        than what the handler gave to `ctx.progress`, and that the task has ended: for clients that may not see the journal.

        `after` is the header `Last-Event-ID` as the client sent it, or None: the client goes on there, and gets no update twice and
        misses none. The stream ends with the task, and early when the app is closed or its web server (uvicorn, gunicorn) stops: the
        client then connects again. It keeps little in memory for a slow client. Close it (`aclose`) when you leave it before its end;
        web frameworks do.

        Raises TooManyStreams at once when as many streams are open as the setting `streams` allows. An unknown task raises
        TaskNotFound at the first event, when the response has begun: look the task up first (`await handle.get()`).
        """
        return self._app._stream(self.id, after, only)


def _askers(asker: str | None) -> tuple[str, ...]:
    return () if asker is None else (named("asker", asker),)
