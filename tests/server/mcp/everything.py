"""The server that the official conformance suite is run against: the product's own, with the tools that the suite calls by name.

    python -m tests.server.mcp.everything DATABASE      prints the URL, and serves until it is killed

The MCP tasks of the suite are handlers of an Onward app, offered as tools and stored by it. The fixtures for the other parts of the
protocol (content kinds, prompts, sampling …) are beside them; they go through the product's authentication,
middleware and transport.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import warnings
from typing import Annotated, Any

import mcp_types as t
from mcp.server.mcpserver import Context, MCPServer, require_client_extension
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from pydantic import Field
from starlette.applications import Starlette
from starlette.routing import Route

from onward import Onward
from onward.server.http.uvicorn import Server
from onward.server.mcp.common import TASKS
from onward.server.mcp.http import Endpoint
from onward.server.mcp.tasks import pointer
from onward.service.submission import SubmitRequest

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
Ctx = Context[Any, Any]


# ── long calls: handlers ───────────────────────────────────────────────────────────────────────────────────────────


def handlers(app: Onward) -> None:
    @app.task
    async def slow_compute(ctx: Any, seconds: float = 0, label: str = "") -> str:
        """Take so long, then answer."""
        await ctx.sleep(seconds)
        return f"computed {label}"

    @app.task(retry=1)
    async def failing_job(ctx: Any) -> str:
        """Fail after a second."""
        await ctx.sleep(1)
        raise ValueError("this job always fails")

    @app.task(deadline=0.3)
    async def protocol_error_job(ctx: Any) -> str:
        """Never come to an answer in time."""
        await ctx.sleep(60)
        return "never"

    @app.task
    async def confirm_delete(ctx: Any, filename: str) -> str:
        """Delete a file after a confirmation."""
        await ctx.approve(f"Delete {filename}?", risk="write_local")
        return f"deleted {filename}"

    @app.task
    async def multi_input(ctx: Any) -> str:
        """Ask for two things at once."""
        await ctx.gather(ctx.approve("The first?"), ctx.approve("The second?"))
        return "both"

    @app.task
    async def greet_later(ctx: Any, name: str) -> str:
        """Greet a person, in a task."""
        return f"Hello, {name}!"


TASKLIKE = ("slow_compute", "protocol_error_job", "confirm_delete", "multi_input")
ONLY_AS_TASKS = ("failing_job",)


# ── the rest of the protocol ─────────────────────────────────────────────────────────────────────────────────────────


def text(content: str) -> t.TextContent:
    return t.TextContent(type="text", text=content)


def picture() -> t.ImageContent:
    return t.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri: str, content: str, mime: str = "text/plain") -> t.EmbeddedResource:
    return t.EmbeddedResource(type="resource", resource=t.TextResourceContents(uri=uri, text=content, mime_type=mime))


def form(message: str, **properties: Any) -> t.ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=message, requested_schema=schema))


STRING = {"type": "string"}


def asking(state: str | None = None, **requests: Any) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=requests, request_state=state)


def sampling(question: str, most: int = 100) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=text(question))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[message], max_tokens=most))


def content_of(ctx: Ctx, key: str) -> dict[str, Any] | None:
    answer = (ctx.input_responses or {}).get(key)
    return dict(answer.content or {}) if isinstance(answer, t.ElicitResult) and answer.action == "accept" else None


def contents(server: MCPServer[Any]) -> None:
    tool = server.tool

    @tool(structured_output=False)
    def greet(name: str) -> str:
        """Greet a person."""
        return f"Hello, {name}!"

    @tool(structured_output=False)
    def test_simple_text() -> str:
        """Text."""
        return "This is a simple text response for testing."

    @tool(structured_output=False)
    def test_image_content() -> list[Any]:
        """A picture."""
        return [picture()]

    @tool(structured_output=False)
    def test_audio_content() -> list[Any]:
        """A sound."""
        return [t.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]

    @tool(structured_output=False)
    def test_embedded_resource() -> list[Any]:
        """A resource."""
        return [embedded("test://embedded-resource", "This is an embedded resource content.")]

    @tool(structured_output=False)
    def test_multiple_content_types() -> list[Any]:
        """Several."""
        data = json.dumps({"test": "data", "value": 123})
        mixed = embedded("test://mixed-content-resource", data, "application/json")
        return [text("Multiple content types test:"), picture(), mixed]

    @tool(structured_output=False)
    def test_error_handling() -> str:
        """An error."""
        raise ValueError("This tool intentionally returns an error for testing")

    @tool(structured_output=False)
    def test_custom_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """A parameter that is also a header."""
        return region

    @tool(structured_output=False)
    async def test_tool_with_logging(ctx: Ctx) -> str:
        """Log lines."""
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(line)
            await asyncio.sleep(0.05)
        return "logged"

    @tool(structured_output=False)
    async def test_logging_tool(ctx: Ctx) -> str:
        """A log line, for a client that asked for logs."""
        await ctx.info("a line")
        return "logged"

    @tool(structured_output=False)
    async def test_tool_with_progress(ctx: Ctx) -> str:
        """Progress."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
            await asyncio.sleep(0.05)
        return "done"

    @tool(structured_output=False)
    async def test_missing_capability(ctx: Ctx) -> str:
        """Needs sampling."""
        capabilities = ctx.request_context.session.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            data = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, "sampling is needed", data)
        return "there"

    @tool(structured_output=False)
    async def test_trigger_tool_change(ctx: Ctx) -> str:
        """Tell listeners of other tools."""
        await ctx.notify_tools_changed()
        return "told"

    @tool(structured_output=False)
    async def test_trigger_prompt_change(ctx: Ctx) -> str:
        """Tell listeners of other prompts."""
        await ctx.notify_prompts_changed()
        return "told"

    server._tool_manager._tools["json_schema_2020_12_tool"] = Tool(
        fn=lambda: "",
        name="json_schema_2020_12_tool",
        description="Tool with JSON Schema 2020-12 features",
        parameters=SCHEMA_2020_12,
        fn_metadata=func_metadata(lambda: "", structured_output=False),
        is_async=False,
    )


SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": STRING, "city": STRING}}},
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def questions(server: MCPServer[Any]) -> None:
    """Requests to older clients in the middle of a call."""
    tool = server.tool

    @tool(structured_output=False)
    async def test_sampling(ctx: Ctx, prompt: str) -> str:
        """Ask the client's model."""
        message = t.SamplingMessage(role="user", content=text(prompt))
        session, request = ctx.request_context.session, ctx.request_context.request_id
        answer = await session.create_message([message], max_tokens=100, related_request_id=request)
        return f"LLM response: {answer.content.text if isinstance(answer.content, t.TextContent) else ''}"

    async def ask(ctx: Ctx, message: str, schema: dict[str, Any]) -> t.ElicitResult:
        request = ctx.request_context
        return await request.session.elicit_form(message, schema, related_request_id=request.request_id)

    @tool(structured_output=False)
    async def test_elicitation(ctx: Ctx, message: str) -> str:
        """Ask the person."""
        properties = {"username": {**STRING, "description": "User's response"}, "email": STRING}
        schema = {"type": "object", "properties": properties, "required": ["username", "email"]}
        answer = await ask(ctx, message, schema)
        return f"User response: action={answer.action}, content={json.dumps(answer.content)}"

    @tool(structured_output=False)
    async def test_streaming_elicitation(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask the person, without a request of the server's own."""
        return "asked" if content_of(ctx, "name") else asking(name=form("Who?", name=STRING))

    @tool(structured_output=False)
    async def test_elicitation_sep1034_defaults(ctx: Ctx) -> str:
        """Ask with defaults."""
        properties = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        answer = await ask(ctx, "Please review", {"type": "object", "properties": properties, "required": []})
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"

    @tool(structured_output=False)
    async def test_elicitation_sep1330_enums(ctx: Ctx) -> str:
        """Ask with choices."""
        plain = ["option1", "option2", "option3"]
        titled = [
            {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
        ]
        properties = {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        answer = await ask(ctx, "Please choose", {"type": "object", "properties": properties, "required": []})
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


def rounds(server: MCPServer[Any]) -> None:
    """Requests to newer clients before a call is done."""
    tool = server.tool

    @tool(structured_output=False)
    async def test_input_required_result_elicitation(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask for a name."""
        reply = content_of(ctx, "user_name")
        return f"Hello, {reply['name']}!" if reply else asking(user_name=form("What is your name?", name=STRING))

    @tool(structured_output=False)
    async def test_input_required_result_sampling(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask the client's model."""
        answer = (ctx.input_responses or {}).get("capital_question")
        if isinstance(answer, t.CreateMessageResult) and isinstance(answer.content, t.TextContent):
            return answer.content.text
        return asking(capital_question=sampling("What is the capital of France?"))

    @tool(structured_output=False)
    async def test_input_required_result_list_roots(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask for the roots."""
        answer = (ctx.input_responses or {}).get("client_roots")
        if isinstance(answer, t.ListRootsResult):
            return ", ".join(str(root.uri) for root in answer.roots)
        return asking(client_roots=t.ListRootsRequest())

    @tool(structured_output=False)
    async def test_input_required_result_request_state(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask, and remember."""
        if content_of(ctx, "confirm") and ctx.request_state == "remembered":
            return "state-ok"
        return asking("remembered", confirm=form("Please confirm", ok={"type": "boolean"}))

    @tool(structured_output=False)
    async def test_input_required_result_tampered_state(ctx: Ctx) -> str | t.InputRequiredResult:
        """Asks for input, and refuses a state that was changed."""
        if content_of(ctx, "confirm") and ctx.request_state == "sealed":
            return "state-ok"
        return asking("sealed", confirm=form("Please confirm", ok={"type": "boolean"}))

    @tool(structured_output=False)
    async def test_input_required_result_multiple_inputs(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask three things."""
        if len(ctx.input_responses or {}) >= 3:
            return "all there"
        return asking(
            "three",
            user_name=form("What is your name?", name=STRING),
            greeting=sampling("Generate a greeting", 50),
            client_roots=t.ListRootsRequest(),
        )

    @tool(structured_output=False)
    async def test_input_required_result_multi_round(ctx: Ctx) -> str | t.InputRequiredResult:
        """Ask twice."""
        if content_of(ctx, "step2"):
            return "both rounds done"
        if content_of(ctx, "step1"):
            return asking("round 2", step2=form("Step 2: What is your favorite color?", color=STRING))
        return asking("round 1", step1=form("Step 1: What is your name?", name=STRING))

    @tool(structured_output=False)
    async def test_input_required_result_capabilities(ctx: Ctx) -> str | t.InputRequiredResult:
        """Asks only for input that the client can give."""
        capabilities = ctx.request_context.session.client_capabilities or t.ClientCapabilities()
        requests: dict[str, Any] = {}
        if capabilities.sampling is not None:
            requests["question"] = sampling("What?")
        if capabilities.elicitation is not None:
            requests["name"] = form("Who?", name=STRING)
        return asking(**requests) if requests and not ctx.input_responses else "nothing to ask"

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Ctx) -> list[UserMessage] | t.InputRequiredResult:
        """Ask before a prompt."""
        reply = content_of(ctx, "user_context")
        if not reply:
            return asking(user_context=form("What context should the prompt use?", context=STRING))
        return [UserMessage(f"With {reply['context']}")]


def prompts(server: MCPServer[Any]) -> None:
    @server.prompt()
    def test_simple_prompt() -> str:
        """Simple."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """With arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803
        """With a resource."""
        there = embedded(resourceUri, "Embedded resource content for testing.")
        return [UserMessage(there), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """With a picture."""
        return [UserMessage(picture()), UserMessage("Please analyze the image above.")]

    @server.completion()
    async def complete(_ref: Any, argument: t.CompletionArgument, _context: Any) -> t.Completion:
        values = [word for word in ("paris", "park", "party") if word.startswith(argument.value)]
        return t.Completion(values=values, total=len(values), has_more=False)


def resources(server: MCPServer[Any]) -> None:
    @server.resource("test://static-text", mime_type="text/plain", description="Text.")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png", description="A picture.")
    def static_binary() -> bytes:
        import base64

        return base64.b64decode(PIXEL)

    @server.resource("test://template/{id}/data", mime_type="application/json", description="A template.")
    def template(id: str) -> str:  # noqa: A002
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.resource("test://watched-resource", description="Watched.")
    def watched() -> str:
        return "watched"


def composed(server: MCPServer[Any], app: Onward) -> None:
    @server.tool(structured_output=False)
    async def test_tool_with_task(ctx: Ctx) -> t.CallToolResult | t.InputRequiredResult:
        """Ask for a name first, then take time."""
        require_client_extension(ctx.request_context, TASKS)
        reply = content_of(ctx, "user_name")
        if not reply:
            return asking(user_name=form("What is your name?", name=STRING))
        (task_id,) = await app.service.submit([SubmitRequest("greet_later", {"name": reply["name"]})])
        return pointer(await app.get(task_id))


def logging(server: MCPServer[Any]) -> None:
    async def set_level(_ctx: Any, _params: t.SetLevelRequestParams) -> t.EmptyResult:
        return t.EmptyResult()

    server._lowlevel_server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, set_level)


def everything(app: Onward) -> MCPServer[Any]:
    handlers(app)
    server: MCPServer[Any] = app.mcp(expose=TASKLIKE, only_as_tasks=ONLY_AS_TASKS, local=None)
    for add in (contents, questions, rounds, prompts, resources, logging):
        add(server)
    composed(server, app)
    return server


async def main(db: str) -> None:
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    app = Onward(db, lease_s=2.0, heartbeat_s=0.3, poll_s=0.05)
    server = everything(app)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    async with app, app.worker():
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]"})
        edge = app.asgi(hosts=hosts, keyless=True).state.server
        served = Starlette(routes=[Route("/mcp", endpoint=Endpoint(edge, server))])
        served.state.server = edge
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
        await Server(served, grace=1, ready=lambda: print(url, flush=True)).serve([bound])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
