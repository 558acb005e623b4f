"""Tool calls of the OpenAI Agents SDK as steps, and the approvals that they need."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from agents import FunctionTool
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from onward.agent.calls import SHOWN_BYTES
from onward.agent.conversation import excerpt, result_message
from onward.core import wire
from onward.core.result_types import ResultType, result_type
from onward.engine.context.context import Context, current
from onward.integrations.model_steps import model_steps
from onward.integrations.openai_agents.errors import run_step
from onward.integrations.tool_rules import ONCE, Approvals, Decision, ToolRules

MAX_RECORD_BYTES = 64_000
"""A larger output of a tool is stored as contents, beside the journal."""

Content = ToolOutputText | ToolOutputImage | ToolOutputFileContent
CONTENT: TypeAdapter[Any] = TypeAdapter(Content | list[Content])  # type: ignore[valid-type]  # the SDK is no dependency of the checker
"""Images and files, which the SDK sends to the model as such."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunRules:
    """The rules of the tools of a run, by their names, and the approvals that they need."""

    tools: Mapping[str, ToolRules]
    approvals: Approvals
    changed: dict[str, str] = dataclasses.field(default_factory=dict)
    """The arguments of calls that a person approved with other arguments, by the ids of the calls."""

    def of(self, name: str) -> ToolRules:
        """The rules of a tool."""
        return self.tools.get(name) or ToolRules()

    async def decide(self, task: Context, state: Any, items: list[Any]) -> None:
        """Ask people to approve the open calls, and tell the state of the run."""

        async def ask(item: Any) -> Decision:
            raw, name = item.raw_item, str(item.tool_name)
            if name in model_steps(task).always_allowed:
                return Decision(approved=True)
            arguments = json.loads(raw.arguments or "{}")
            tools = [tool for tool in item.agent.tools if isinstance(tool, FunctionTool) and tool.name == name]
            description = tools[0].description if tools else None
            return await self.approvals.ask(task, name, raw.call_id, arguments, self.of(name), description=description)

        requests = [ask(item) for item in items]
        decisions = await task.gather(*requests) if len(requests) > 1 else [await request for request in requests]
        for item, decision in zip(items, decisions, strict=True):
            if not decision.approved:
                state.reject(item, rejection_message=decision.message)
                continue
            state.approve(item)
            if decision.arguments is not None:
                self.changed[item.raw_item.call_id] = json.dumps(decision.arguments)


RULES: ContextVar[RunRules | None] = ContextVar("onward_openai_agents", default=None)
"""The rules of the handler that runs now."""


def rules() -> RunRules:
    """The rules of this run."""
    return RULES.get() or RunRules({}, Approvals((), None, "deny"))


@dataclasses.dataclass(frozen=True, slots=True)
class Invocation:
    """The output of a tool, and whether the SDK wrote it because the tool failed."""

    output: Any
    is_sdk_generated_error: bool = False


class ToolStep:
    """One call of a tool."""

    def __init__(self, tool: FunctionTool, context: Any, arguments: str, invoke: Any) -> None:
        self._tool, self._context, self._invoke = tool, context, invoke
        self._rules = rules()
        self._changed = self._rules.changed.get(context.tool_call_id)
        self._arguments = self._changed or arguments
        self._declared = _declared(tool)

    async def run(self) -> Any:
        """The output of the tool: from the journal, or of a call that is made now. It is the same in both cases. Raises the error of the
        tool, with its type."""
        task, options = current(), self._rules.of(self._tool.name).options
        if self._rules.of(self._tool.name).retry is None:
            options["retry"] = ONCE  # the SDK and the model decide about an error
        recorded = await run_step(self._work, self._tool.name, **options)
        return await self._decode(task, recorded)

    async def _work(self) -> dict[str, Any]:
        result = await self._invoke(function_tool=self._tool, context=self._context, arguments=self._arguments)
        kind, output = self._encode(result.output)
        data = wire.encode(output, f"the result of {self._tool.name}")
        text = output if isinstance(output, str) else data.decode()
        ctx = current()
        message = wire.encode(result_message(self._context.tool_call_id, excerpt(text, SHOWN_BYTES)))
        value = {"native": ctx.keep(data)} if len(data) > MAX_RECORD_BYTES else {"output": output}
        notes: dict[str, Any] = {"kind": kind} if kind else {}
        notes |= {"failed": True} if result.is_sdk_generated_error else {}
        return {"id": ctx.keep(message), "bytes": len(message), **value, **notes}

    def _encode(self, output: Any) -> tuple[str, Any]:
        if self._declared is not None and not isinstance(output, str):
            return "declared", self._declared.dump(output)
        if isinstance(output, Content) or (isinstance(output, list) and output and isinstance(output[0], Content)):
            return "content", CONTENT.dump_python(output, mode="json")
        plain = to_jsonable_python(output, fallback=str)
        return ("", plain) if repr(plain) == repr(output) else ("", str(output))

    async def _decode(self, task: Context, recorded: Any) -> Any:
        if not isinstance(recorded, dict) or len(recorded.keys() & {"native", "output"}) != 1:
            return Invocation("it happened; its result is not known" if recorded is None else recorded)
        if "native" in recorded:
            (data,) = await task.kept(recorded["native"])
            output = wire.decode(data)
        else:
            output = recorded["output"]
        match recorded.get("kind"):
            case "declared" if self._declared is not None:
                output = self._declared.load(output)
            case "content":
                output = CONTENT.validate_python(output)
        if self._changed is not None:
            output = f"(a person approved this with other arguments, {self._changed})\n{output}"
        return Invocation(output, recorded.get("failed", False))


def _declared(tool: FunctionTool) -> ResultType | None:
    """The type that the function of a tool returns, where JSON does not keep its values as they are."""
    function = getattr(tool, "__wrapped__", None)
    return None if function is None else result_type(function)
