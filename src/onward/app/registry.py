"""What an app offers: its handlers, its agents, its schedules, and the limits of its queues. Said once, when the code is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onward.core.durations import Duration, seconds
from onward.core.event import Event, known_types
from onward.core.hook import Hook, hook
from onward.core.journal.checkpoint import Checkpoints, checkpoints
from onward.core.limit import Limit
from onward.core.retry import Retry
from onward.core.schedule import MISSED, Rhythm
from onward.core.secret import Secret
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import DEFAULT_RETRY, Handler
from onward.errors import BadSetting, UsageError
from onward.service.submission import HandlerSpec, ScheduleSpec, SubmitRequest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from onward.agent.mcp import McpServer
    from onward.agent.model import Model
    from onward.agent.models import LazyModel
    from onward.agent.policy import Policy
    from onward.agent.tools import Tool
    from onward.core.budget import Budget
    from onward.engine.context.context import Context

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """Everything that can be said before a database is opened."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self._offers: dict[str, HandlerSpec] = {}
        self._plans: dict[str, ScheduleSpec] = {}
        self._queue_limits: dict[str, Limit | None] = {}
        self._agents: dict[str, str] = {}
        """The agents, and what each is for."""
        self._models: list[LazyModel | McpServer] = []
        self.secrets = Secrets()
        self._listeners: dict[str, tuple[tuple[str, ...], Callable[[Event], Any]]] = {}
        """The functions that are called with events, and with which."""
        self.hooks: dict[str, Hook] = {}

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        deadline: Duration | None = None,
        queue: str = "default",
        group: str | None = None,
        limit: Limit | None = None,
        checkpoint: str | Checkpoints | None = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        deadline: Duration | None = None,
        queue: str = "default",
        group: str | None = None,
        limit: Limit | None = None,
        checkpoint: str | Checkpoints | None = None,
    ) -> Any:
        """Make a function the handler of tasks of its name.

        `retry` (a Retry, or a number of attempts; 4 by default) is for the task as a whole: finished steps are not run
        again. `deadline` is for the whole task, from its first start and across restarts. `group` names the argument whose
        value is the group of a task (a tenant, a service): groups of a queue get their turns one after the other. `limit`
        is for each group, or for all tasks of this name where they have none. `checkpoint` says when the results of reads
        are written, and which checkpoints are kept (see `Checkpoints`).
        """

        def register(function: F) -> F:
            title = name or function.__name__
            if title in self.handlers:
                raise UsageError(f"two handlers are named {title!r}; give one of them another name: @app.task(name=…)")
            policy = Retry(attempts=retry) if isinstance(retry, int) else retry or DEFAULT_RETRY
            allowed = None if deadline is None else seconds(deadline, "deadline")
            keep = checkpoints(checkpoint)
            handler = Handler(title, function, policy, allowed, queue, group, limit, keep, secrets=self.secrets.names)
            handler.takes  # noqa: B018 -- a handler without a context is refused here, not when its first task comes
            offer = HandlerSpec(
                handler.check, handler.queue, handler.deadline, handler.grouping, secrets=handler.secrets
            )
            self._offers[title] = dataclasses.replace(offer, registration=handler.said)
            self.handlers[title] = handler
            return function

        return register if function is None else register(function)

    def agent(
        self,
        name: str,
        *,
        model: str | Model,
        instructions: str = "",
        description: str = "",
        tools: Iterable[Tool | McpServer | Callable[..., Any] | str] = (),
        approve: Iterable[str] = (),
        approval_timeout: Duration | None = None,
        approval_default: str = "deny",
        budget: Budget | None = None,
        max_tokens: int | None = None,
        result: type[BaseModel] | None = None,
        compact: bool | str | Model = True,
        context_bytes: int | None = None,
        policy: Policy | None = None,
        shown_bytes: int | None = None,
        secrets: Iterable[Secret | str] = (),
        undo: bool = False,
        deadline: Duration | None = None,
        retry: Retry | int | None = None,
        queue: str = "default",
        checkpoint: str | Checkpoints | None = None,
    ) -> Callable[..., Any]:
        """An agent: the handler of tasks of this name, whose input is a goal and whose result is the model's answer. A whole AgentState is
        an input too: the agent begins with its plan, facts, questions, artifacts and flags, under the constraints and the budget of its own.

        `model` is "openai:NAME" (with OPENAI_API_KEY, or OPENAI_BASE_URL for any server that speaks the same), or a model of
        your own; `max_tokens` bounds one answer of it. `budget` is for a task and its children together; at its end the task
        waits for a raise (`app.raise_budget`, `onward budget`), or ends with what it has. Tools whose risk is one of
        `approve` wait for a person, for at most `approval_timeout`; when nobody has decided then, `approval_default` ("deny"
        or "approve") holds. With `result`, a pydantic model, the answer has that form, and is asked for again when it does not.

        Of an output of a tool the model is shown `shown_bytes` (4,000); what is longer is an artifact, of which it sees both
        ends and can read more. A conversation that outgrows `context_bytes` is summed up by the same model, by the one that
        `compact` names, or (False) shown as far as it fits.

        A `McpServer` among the tools (`onward.agents`) brings those of another program. An agent among them (what this returned, or its
        name) is called as a child task; `description` is what others are told of this one. `secrets` are those of the app that the
        model may name in arguments of its tools. With `undo`, a task that fails, is cancelled or passes its deadline takes back what its
        tools did: the `undo` of each finished call is run, the last first. Such a task has no checkpoints. `policy` decides what to do next instead of the usual one. `checkpoint` is "every_step",
        "every_iteration" or "on_state_change", and says what may have to be read again after a crash, or a `Checkpoints`,
        which also says which are kept.
        """
        from onward.agent.calls import MIN_SHOWN_BYTES, SHOWN_BYTES  # noqa: PLC0415 -- pydantic, which most programs do not need
        from onward.agent.checkpoint import signature_with_state  # noqa: PLC0415
        from onward.agent.loop import CONTEXT_BYTES, NO_LIMITS, Agent  # noqa: PLC0415
        from onward.agent.mcp import McpServer  # noqa: PLC0415
        from onward.agent.models import LazyModel  # noqa: PLC0415
        from onward.agent.policy import usual  # noqa: PLC0415
        from onward.agent.tools import check_default, check_list, risk_levels, tools_by_name  # noqa: PLC0415

        if shown_bytes is not None and shown_bytes < MIN_SHOWN_BYTES:
            raise BadSetting("shown_bytes", shown_bytes, f"{MIN_SHOWN_BYTES} or more")
        if budget is not None and not isinstance(budget, type(NO_LIMITS)):
            raise BadSetting("budget", budget, "a Budget, such as Budget(max_steps=20)")
        given = check_list("tools", tools)
        servers = tuple(one for one in given if isinstance(one, McpServer))
        known = [(one, self._agent_named(one)) for one in given if not isinstance(one, McpServer)]
        box = tools_by_name(one for one, named in known if named is None)
        asked = LazyModel(model)
        summing = None if compact is False else asked if compact is True else LazyModel(compact)
        self._models += {asked} if summing is None else {asked, summing}
        self._models += servers
        made = Agent(
            name,
            asked,
            instructions,
            box,
            risk_levels(approve, box, *(one.risks for one in servers)),
            budget or NO_LIMITS,
            result,
            CONTEXT_BYTES if context_bytes is None else context_bytes,
            max_tokens,
            summing,
            policy or usual,
            {named: self._agents.get(named, "") for _, named in known if named is not None},
            None if approval_timeout is None else seconds(approval_timeout, "approval_timeout"),
            check_default(approval_default),
            shown_bytes or SHOWN_BYTES,
            checkpoints(checkpoint).strategy,
            frozenset(self.secrets.known(one) for one in check_list("secrets", secrets)),
            servers,
            undo,
        )

        async def handler(ctx: Context, goal: str, after: str | None = None, depth: int = 0, **state: Any) -> Any:
            return await made.handler(ctx, goal, after, depth, **state)

        handler.__signature__ = taken = signature_with_state(handler)  # type: ignore[attr-defined]
        handler.__annotations__ = {one.name: one.annotation for one in taken.parameters.values()}
        self._agents[name] = description or instructions
        self.task(name=name, retry=retry, deadline=deadline, queue=queue, checkpoint=checkpoint)(handler)
        self.handlers[name] = agent = dataclasses.replace(self.handlers[name], agent=True, doc=description)
        checks = {one.name: one.check for one in made.tools.values()}
        self._offers[name] = dataclasses.replace(self._offers[name], tools=checks, agent=True, registration=agent.said)
        return handler

    def secret(self, name: str) -> Any:
        """Declare a secret, and name it: in an argument of a step, as the default of a parameter of a handler or a tool, or as
        `{"$secret": NAME}` in inputs. The value is put in by the worker right before the function is called, and is written
        nowhere: not to the journal, not to logs. Where it comes from is `Onward(secrets=…)`, by default the environment."""
        return self.secrets.declare(name)

    def hook(
        self, name: str, *, secret: str | Sequence[str], scheme: str = "standard", timeout: Duration = 10
    ) -> Callable[[F], F]:
        """Make a function the receiver of signed requests at `POST /api/hooks/NAME`: it gets an `Event` and submits a task or
        sends a signal, with `event.id` as key, so that a request that comes twice counts once.

            @app.hook("payments", secret=os.environ["PAYMENTS_SECRET"], scheme="stripe")
            async def paid(event):
                await app.signal(event.data["task_id"], "paid", event.data, id=event.id)

        `scheme` is how it is signed: "standard" (Standard Webhooks), "github" or "stripe". Several secrets count while one is
        being replaced by another.
        """

        def register(function: F) -> F:
            if name in self.hooks:
                raise UsageError(f"two hooks are named {name!r}; give one of them another name")
            self.hooks[name] = hook(name, function, secret, scheme, timeout)
            return function

        return register

    def _agent_named(self, tool: object) -> str | None:
        """The name of the agent that is meant; None for a tool of any other kind."""
        if isinstance(tool, str):
            return tool
        return next((name for name in self._agents if self.handlers[name].function is tool), None)

    def on(self, *types: str, name: str | None = None) -> Callable[[F], F]:
        """Have a function called with events of these types (`task.completed`, `tool.executed`, `task.*`, `*`; the list is in the
        guide) of all tasks, whoever does them: at least once, and those of one task in their order.

        A subscription of that name is in the store from the first start of a worker or relay on, and events wait there until a
        process that has the function is there. One that raises is called again later. The function may be async.
        """

        def register(function: F) -> F:
            title = name or function.__qualname__
            if not title.isascii() or not title.isprintable() or not 0 < len(title) <= 200:
                raise UsageError(
                    f"a name for events is 1 to 200 printable ASCII characters, not {title!r:.80}; give it one: name=…"
                )
            if title in self._listeners:
                raise UsageError(
                    f"two functions for events are named {title!r}; give one of them another name: @app.on(name=…)"
                )
            self._listeners[title] = (known_types(types), function)
            return function

        return register

    def limit_queue(self, name: str, *, concurrency: int | None) -> None:
        """At most so many tasks of a queue at once, over all workers; None lifts it. In force when a worker starts."""
        self._queue_limits[name] = None if concurrency is None else Limit(concurrency=concurrency)

    def name_of(self, handler: Callable[..., Any] | str) -> str:
        """The name under which a handler was registered."""
        if isinstance(handler, str):
            return handler
        for name, known in self.handlers.items():
            if known.function is handler:
                return name
        raise UsageError(
            f"{getattr(handler, '__name__', handler)!r} is not a handler of this app; decorate it with @app.task"
        )

    def schedule(
        self,
        name: str,
        handler: Callable[..., Any] | str,
        input: Any = None,  # noqa: A002 -- the word of the contract, at every door
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        missed: str = "skip",
        queue: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Have a task submitted by the clock: at `cron` in a time zone, or `every` so long (whole multiples since 1970).

        Workers write it to the store when they start, or `save_schedules` does; each tick then submits one task, however
        many workers there are. `missed` says what becomes of ticks at which there was no worker: "skip" them, "once" for
        all of them, or "all", one task for each. Options as for submit; a schedule passes the bound of a full queue.
        """
        if name in self._plans:
            raise UsageError(f"two schedules are named {name!r}; give one of them another name")
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise UsageError(f"the name of a schedule is a text of 1 to 200 printable characters, not {name!r:.80}")
        if missed not in MISSED:
            raise BadSetting("missed", missed, f"one of {', '.join(MISSED)}")
        rhythm = Rhythm(cron, None if every is None else seconds(every, "every"), timezone)
        rhythm.check()
        wish = SubmitRequest(self.name_of(handler), input, None, priority, queue, deadline, labels=labels)
        self._plans[name] = ScheduleSpec(name, wish, rhythm, missed)
