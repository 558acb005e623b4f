"""The registry of an app: its handlers, agents, schedules, event functions, and the limits of its queues, declared when the code is loaded."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onward.core.durations import Duration, seconds
from onward.core.event import Event, known_types
from onward.core.hook import Event as HookEvent
from onward.core.hook import Hook, hook
from onward.core.journal.checkpoint import Checkpoints, checkpoints
from onward.core.limit import Limit
from onward.core.result_types import check_result_type
from onward.core.retry import Retry, as_retry
from onward.core.schedule import MISSED, Rhythm
from onward.core.secret import Secret
from onward.engine.context.options import refuse_unknown
from onward.engine.context.secrets import Secrets
from onward.engine.handlers import DEFAULT_RETRY, Handler
from onward.errors import BadSetting, UsageError
from onward.service.submission import HandlerSpec, ScheduleSpec, SubmitRequest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from onward.agent.cache import ToolCache
    from onward.agent.mcp import McpServer
    from onward.agent.model import Model
    from onward.agent.models import LazyModel
    from onward.agent.policy import Policy
    from onward.agent.tools import Tool
    from onward.brokers.intake import IntakeSpec
    from onward.core.budget import Budget
    from onward.engine.context.context import Context

F = TypeVar("F", bound=Callable[..., Any])
EventF = TypeVar("EventF", bound=Callable[[Event], Any])
HookF = TypeVar("HookF", bound=Callable[[HookEvent], Any])

MAX_PLACE_CHARS = 255
"""Characters of `BROKER/PLACE`."""


def refuse_second(kind: str, name: str, declared: Container[str], how: str = "") -> None:
    """Raise UsageError for a second declaration of a name. In a notebook and at a Python prompt the second one takes the place of the
    first, so that a cell can be run again."""
    if name in declared and not hasattr(sys, "ps1"):
        raise UsageError(f"two {kind} are named {name!r}; give one of them another name{how}")


class Registry:
    """The declarations of an app, which need no database."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self._handler_specs: dict[str, HandlerSpec] = {}
        self._schedule_specs: dict[str, ScheduleSpec] = {}
        self._queue_limits: dict[str, Limit | None] = {}
        self._agents: dict[str, str] = {}
        """The agents by name, with their descriptions."""
        self._models: list[LazyModel] = []
        self._tool_servers: list[McpServer] = []
        self.secrets: Secrets = Secrets()
        self._listeners: dict[str, tuple[tuple[str, ...], Callable[[Event], Any]]] = {}
        """The event functions by name, with the event types that each gets."""
        self.hooks: dict[str, Hook] = {}
        self._tool_cache: Callable[[], ToolCache] | None = None
        self._intakes: dict[str, IntakeSpec] = {}
        self._publications: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The places that events are published to by name, with the event types that each gets."""

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
        **unknown: Any,
    ) -> Any:
        """Register a function as the handler of tasks of its name. The function itself is returned unchanged.

        `retry` (a Retry, or a number of attempts; 4 by default) is for the task as a whole: finished steps are not run
        again. `deadline` is for the whole task, from its first start and across restarts. `group` names the argument whose
        value is the group of a task (a tenant, a service): groups of a queue get their turns one after the other. `limit`
        is for each group, or for all tasks of this name where they have none. `checkpoint` sets when the results of reads
        are written, and which checkpoints are kept (see `Checkpoints`).
        """
        refuse_unknown("app.task", unknown, _TASK_OPTIONS)

        def register(function: F) -> F:
            task_name = name or function.__name__
            refuse_second("handlers", task_name, self.handlers, ": @app.task(name=…)")
            policy = DEFAULT_RETRY if retry is None else as_retry(retry)
            deadline_s = None if deadline is None else seconds(deadline, "deadline")
            checkpointing = checkpoints(checkpoint)
            handler = Handler(
                task_name,
                function,
                policy,
                deadline_s,
                queue,
                group,
                limit,
                checkpointing,
                secrets=self.secrets.names,
                siblings=self.handlers,
            )
            handler.takes  # noqa: B018 -- refuses a handler without a context here, and not at its first task
            check_result_type(function, f"the handler {task_name!r}")
            spec = HandlerSpec(
                handler.check,
                handler.queue,
                handler.deadline,
                handler.grouping,
                secrets=handler.secrets,
                whole=handler.takes.whole,
            )
            self._handler_specs[task_name] = dataclasses.replace(spec, registration=handler.registration)
            self.handlers[task_name] = handler
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
        group: str | None = None,
        limit: Limit | None = None,
        checkpoint: str | Checkpoints | None = None,
        **unknown: Any,
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Register an agent: the handler of tasks of this name, whose input is a goal and whose result is the model's answer. The input
        can also be a whole AgentState: the agent begins with its plan, facts, questions, artifacts and flags, and keeps its own
        constraints and budget.

        `model` is "openai:NAME" (with OPENAI_API_KEY, or OPENAI_BASE_URL for any server with the same API), or a model of
        your own; `max_tokens` bounds one answer of it. `budget` is for a task and its children together; when it is used up, the
        task waits for a raise (`app.raise_budget`, `onward budget`), or ends with its best result. Tools whose risk is one of
        `approve` wait for a person, for at most `approval_timeout`; without a decision by then, `approval_default` ("deny"
        or "approve") decides. With `result`, a pydantic model, the answer has that form; the agent asks the model again when it does not.

        The model sees `shown_bytes` (4,000) of each output of a tool; a longer output becomes an artifact, of which the model sees
        both ends and can read more. A conversation that outgrows `context_bytes` is summarised by the same model, by the model that
        `compact` names, or (False) cut to what fits.

        A `McpServer` among the tools (`onward.agents`) adds the tools of another program. An agent among the tools (the returned handler,
        or its name) is called as a child task; other agents see the `description` of this one. `secrets` are the secrets of the app that
        the model may name in arguments of its tools. With `undo`, a task that fails, is cancelled or passes its deadline runs the `undo`
        of each finished tool call, the last first; such a task has no checkpoints. `policy` replaces the default policy, which decides
        the next action. `checkpoint` is "every_step", "every_iteration" or "on_state_change", and sets which reads may be repeated after
        a crash, or a `Checkpoints`, which also sets which checkpoints are kept. `group` and `limit` are as for `app.task`.
        """
        refuse_unknown("app.agent", unknown, _AGENT_OPTIONS)
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
        items = check_list("tools", tools)
        servers = tuple(item for item in items if isinstance(item, McpServer))
        named = [(item, self._agent_named(item)) for item in items if not isinstance(item, McpServer)]
        box = tools_by_name(item for item, agent_name in named if agent_name is None)
        main_model = LazyModel(model)
        summary_model = None if compact is False else main_model if compact is True else LazyModel(compact)
        self._models += {main_model} if summary_model is None else {main_model, summary_model}
        self._tool_servers += servers
        agent = Agent(
            name,
            main_model,
            instructions,
            box,
            risk_levels(approve, box, *(server.risks for server in servers)),
            budget or NO_LIMITS,
            result,
            CONTEXT_BYTES if context_bytes is None else context_bytes,
            max_tokens,
            summary_model,
            policy or usual,
            {agent_name: self._agents.get(agent_name, "") for _, agent_name in named if agent_name is not None},
            None if approval_timeout is None else seconds(approval_timeout, "approval_timeout"),
            check_default(approval_default),
            shown_bytes or SHOWN_BYTES,
            checkpoints(checkpoint).strategy,
            frozenset(self.secrets.known(declared) for declared in check_list("secrets", secrets)),
            servers,
            undo,
            self._tool_cache,
        )

        async def handler(ctx: Context, goal: str, after: str | None = None, depth: int = 0, **state: Any) -> Any:
            return await agent.handler(ctx, goal, after, depth, **state)

        handler.__signature__ = signature = signature_with_state(handler)  # type: ignore[attr-defined]
        handler.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
        if result is not None:  # a string is the best result so far of an agent whose budget is spent
            handler.__annotations__["return"] = result | str
        self._agents[name] = description or instructions
        options: dict[str, Any] = {"queue": queue, "group": group, "limit": limit, "checkpoint": checkpoint}
        self.task(name=name, retry=retry, deadline=deadline, **options)(handler)
        self.handlers[name] = registered = dataclasses.replace(self.handlers[name], agent=True, doc=description)
        checks = {tool.name: tool.check for tool in agent.tools.values()}
        self._handler_specs[name] = dataclasses.replace(
            self._handler_specs[name], tools=checks, agent=True, registration=registered.registration
        )
        return handler

    def secret(self, name: str, *, per_tenant: bool = False) -> Any:
        """Declare a secret. Use the returned object as an argument of a step, or as the default of a parameter of a handler or a
        tool; inputs name it as `{"$secret": NAME}`. The worker inserts the value right before it calls the function, and writes it
        nowhere: not to the journal, not to logs. `Onward(secrets=…)` is the source of the value, by default the environment.

        With `per_tenant`, each tenant has a value of its own, which the source has under `NAME__TENANT`. A task gets the value of
        its tenant, and a task without a tenant the one under `NAME`; there is no way to the value of another."""
        return self.secrets.declare(name, per_tenant=per_tenant)

    def hook(
        self, name: str, *, secret: str | Sequence[str], scheme: str = "standard", timeout: Duration = 10
    ) -> Callable[[HookF], HookF]:
        """Register a function that receives signed requests at `POST /api/hooks/NAME`: it gets an `Event` and submits a task or
        sends a signal, with `event.id` as key, so that a request that comes twice counts once.

            @app.hook("payments", secret=os.environ["PAYMENTS_SECRET"], scheme="stripe")
            async def paid(event):
                await app.signal(event.data["task_id"], "paid", event.data, id=event.id)

        `scheme` is the kind of signature: "standard" (Standard Webhooks), "github" or "stripe". With several secrets, a signature
        by any of them is accepted, for the time in which you replace one by another.
        """

        def register(function: HookF) -> HookF:
            refuse_second("hooks", name, self.hooks)
            self.hooks[name] = hook(name, function, secret, scheme, timeout)
            return function

        return register

    def _agent_named(self, tool: object) -> str | None:
        """The name of the agent, when the tool is one; else None."""
        if isinstance(tool, str):
            return tool
        return next((name for name in self._agents if self.handlers[name].function is tool), None)

    def on(self, *types: str, name: str | None = None) -> Callable[[EventF], EventF]:
        """Register a function that is called with events of these types (`task.completed`, `tool.executed`, `task.*`, `*`; the list
        is in the guide) of all tasks, of all workers: at least once, and in order for each task.

        The first start of a worker or relay writes a subscription of this name to the store, and the store keeps the events until a
        process with the function runs. A function that raises is called again later. The function may be async.
        """

        def register(function: EventF) -> EventF:
            listener = name or function.__qualname__
            if not listener.isascii() or not listener.isprintable() or not 0 < len(listener) <= 200:
                raise UsageError(
                    f"a name for events is 1 to 200 printable ASCII characters, not {listener!r:.80}; give it one: name=…"
                )
            refuse_second("functions for events", listener, self._listeners, ": @app.on(name=…)")
            self._listeners[listener] = (known_types(types), function)
            return function

        return register

    def publish(self, name: str, *, to: str, types: Iterable[str]) -> None:
        """Publish events of these types (as for `on`) of all tasks to a broker: at least once, in order for each task, and with the same id
        at every repeat. `to` is `BROKER/PLACE`: the name of one of the app's brokers, and a stream (Redis), a subject (NATS), a topic
        (Kafka), or a queue or `EXCHANGE/ROUTING KEY` (RabbitMQ).

        The first start of a worker or relay writes a subscription of this name to the store. From then on the store keeps the events until
        the broker has them, however long it is away.
        """
        if not name.isascii() or not name.isprintable() or not 0 < len(name) <= 100:
            raise UsageError(f"the name of a publication is 1 to 100 printable ASCII characters, not {name!r:.80}")
        refuse_second("publications", name, self._publications)
        broker, _, place = to.partition("/")
        if not broker or not place or not to.isprintable() or len(to) > MAX_PLACE_CHARS:
            raise BadSetting("to", to, "BROKER/PLACE, as in events/onward.tasks")
        self._publications[name] = (to, known_types(types))

    def limit_queue(self, name: str, *, concurrency: int | None) -> None:
        """Limit the tasks of a queue that run at once, over all workers; None removes the limit. A worker applies it when it starts."""
        self._queue_limits[name] = None if concurrency is None else Limit(concurrency=concurrency)

    def name_of(self, handler: Callable[..., Any] | str) -> str:
        """The name under which a handler was registered."""
        if isinstance(handler, str):
            return handler
        for name, registered in self.handlers.items():
            if registered.function is handler:
                return name
        raise UsageError(
            f"{getattr(handler, '__name__', handler)!r} is not a handler of this app; decorate it with @app.task"
        )

    def schedule(
        self,
        name: str,
        handler: Callable[..., Any] | str,
        input: Any = None,  # noqa: A002 -- the name in every interface
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
        """Declare a schedule, which submits tasks: at the times of `cron` in a time zone, or `every` duration (whole multiples
        since 1970).

        Workers write it to the store when they start, or `save_schedules` does; each tick then submits one task, however
        many workers there are. `missed` is for ticks at which no worker ran: "skip" them, "once" submits one task for all of
        them, "all" submits one task for each. Options as for submit; a schedule submits also when its queue is full.
        """
        refuse_second("schedules", name, self._schedule_specs)
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise UsageError(f"the name of a schedule is a string of 1 to 200 printable characters, not {name!r:.80}")
        if missed not in MISSED:
            raise BadSetting("missed", missed, f"one of {', '.join(MISSED)}")
        rhythm = Rhythm(cron, None if every is None else seconds(every, "every"), timezone)
        rhythm.check()
        request = SubmitRequest(self.name_of(handler), input, None, priority, queue, deadline, labels=labels)
        self._schedule_specs[name] = ScheduleSpec(name, request, rhythm, missed)


_TASK_OPTIONS = frozenset(inspect.signature(Registry.task).parameters) - {"self", "function", "unknown"}
_AGENT_OPTIONS = frozenset(inspect.signature(Registry.agent).parameters) - {"self", "name", "unknown"}
