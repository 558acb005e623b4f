"""The methods of an app for agents of other frameworks. Each framework is an extra, and imported at its first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onward.app.registry import Registry
from onward.core.durations import Duration
from onward.core.retry import Retry
from onward.errors import UsageError

if TYPE_CHECKING:
    from agents import Agent, RunConfig
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph import StateGraph
    from langgraph.pregel import Pregel
    from pydantic_ai.agent.abstract import AbstractAgent
    from pydantic_ai.usage import UsageLimits

    from onward.core.budget import Budget
    from onward.engine.context.context import Context


class Frameworks(Registry):
    """The registry, with the agents of other frameworks."""

    def pydantic_ai(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        name: str | None = None,
        budget: Budget | None = None,
        max_tokens: int | None = None,
        approve: Iterable[str] = (),
        approval_timeout: Duration | None = None,
        approval_default: str = "deny",
        deps: Callable[[Context], Any] | None = None,
        usage_limits: UsageLimits | None = None,
        deadline: Duration | None = None,
        retry: Retry | int | None = None,
        queue: str = "default",
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Register a Pydantic AI agent: the handler of tasks of its name, whose input is a prompt and whose result is the agent's output.
        Its model requests and tool calls are recorded steps. `pip install 'onward[pydantic-ai]'` brings the framework.

        `budget`, `max_tokens`, `approve`, `approval_timeout` and `approval_default` are as for `app.agent`; a tool has its risk in
        `metadata={"onward": {"risk": "external_action"}}`. `deps` makes the dependencies of a run. `usage_limits` are the framework's
        own limits, for each run."""
        try:
            from onward.integrations.pydantic_ai.handler import agent_handler, tool_checks  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'onward[pydantic-ai]'") from None
        handler = agent_handler(
            agent,
            budget=budget,
            max_tokens=max_tokens,
            approve=approve,
            approval_timeout=approval_timeout,
            approval_default=approval_default,
            deps=deps,
            usage_limits=usage_limits,
        )
        return self._register_agent(
            "pydantic-ai", name or str(agent.name), handler, tool_checks(agent), retry, deadline, queue
        )

    def openai_agent(
        self,
        agent: Agent[Any],
        *,
        name: str | None = None,
        budget: Budget | None = None,
        max_tokens: int | None = None,
        approve: Iterable[str] = (),
        approval_timeout: Duration | None = None,
        approval_default: str = "deny",
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        context: Callable[[Context], Any] | None = None,
        run_config: RunConfig | None = None,
        max_turns: int = 10,
        live: bool = False,
        deadline: Duration | None = None,
        retry: Retry | int | None = None,
        queue: str = "default",
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Register an agent of the OpenAI Agents SDK: the handler of tasks of its name, whose input is a prompt and whose result is the
        agent's final output. Its model requests and tool calls are recorded steps. `pip install 'onward[openai-agents]'` brings the SDK.

        `tools` has the rules of tools by their names: `{"pay": {"risk": "external_action"}}`; a tool without rules reads. `budget`,
        `max_tokens`, `approve`, `approval_timeout` and `approval_default` are as for `app.agent`. `context` makes the context of a run,
        and `run_config` and `max_turns` are those of the SDK. With `live`, requests are streamed, so that people see the text of a reply as it
        comes; a budget needs a provider that reports the usage of streams (`ModelSettings(include_usage=True)`)."""
        try:
            from onward.integrations.openai_agents.handler import agent_handler, tool_checks  # noqa: PLC0415 -- an extra
            from onward.integrations.tool_rules import Approvals  # noqa: PLC0415 -- as above
        except ImportError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'onward[openai-agents]'") from None
        handler = agent_handler(
            agent,
            budget=budget,
            max_tokens=max_tokens,
            approvals=Approvals(approve, approval_timeout, approval_default),
            tools=tools or {},
            context=context,
            run_config=run_config,
            max_turns=max_turns,
            live=live,
        )
        return self._register_agent(
            "openai-agents", name or agent.name, handler, tool_checks(agent), retry, deadline, queue
        )

    def langgraph(
        self,
        name: str,
        graph: StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any],
        *,
        config: RunnableConfig | None = None,
        node_retry: Retry | int | None = None,
        answer_timeout: Duration | None = None,
        approval_default: str = "deny",
        deadline: Duration | None = None,
        retry: Retry | int | None = None,
        queue: str = "default",
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Register a graph of LangGraph: the handler of tasks of this name, whose input is the graph's input and whose result is its
        output. Each node is a recorded step, each interrupt a question to a person, and each review of tool calls an approval.
        `pip install 'onward[langgraph]'` brings the framework.

        The graph has no checkpointer of its own: the journal takes its place. `config` is given to the graph. `node_retry` is the retry rule
        of its nodes. `answer_timeout` and `approval_default` are as for `ctx.ask` and `ctx.approve`."""
        try:
            from onward.integrations.langgraph.flow import graph_handler  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'onward[langgraph]'") from None
        handler = graph_handler(
            graph,
            config=config,
            node_retry=node_retry,
            answer_timeout=answer_timeout,
            approval_default=approval_default,
        )
        self.task(name=name, retry=retry, deadline=deadline, queue=queue)(handler)
        return handler

    def _register_agent(
        self,
        framework: str,
        name: str,
        handler: Callable[..., Coroutine[Any, Any, Any]],
        tools: Mapping[str, Callable[[dict[str, Any]], Any]],
        retry: Retry | int | None,
        deadline: Duration | None,
        queue: str,
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Register the handler of an agent of another framework: it is listed as an agent."""
        self.task(name=name, retry=retry, deadline=deadline, queue=queue)(handler)
        self.handlers[name] = registered = dataclasses.replace(self.handlers[name], framework=framework)
        self._handler_specs[name] = dataclasses.replace(
            self._handler_specs[name], tools=tools, agent=True, registration=registered.registration
        )
        return handler
