"""Tools of MCP servers, for an agent.

    app.agent("devops", model=…, tools=[check_disk, McpServer("github", "https://mcp.example.com/mcp", risk={"get_*": "read"})])

A task lists the tools of a server (names, descriptions, schemas) once, when it begins, and keeps the list: after a crash, another
worker sees the same tools. A call is a recorded step like that of any other tool, with the risk that *you* give it: the server's own
claims about its tools are ignored. A call of a tool that has changed since the task began is refused, with the reason.

The SDK (`onward[mcp]`) is imported when a server is first used.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import fnmatch
import functools
import importlib
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from onward import certificates
from onward.agent import schemas
from onward.agent.tools import RISKS, Tool
from onward.core import secret, wire
from onward.core.durations import Duration, seconds
from onward.core.retry import Retry
from onward.engine.background import spawn
from onward.engine.context.context import Context
from onward.errors import BadSetting, Fatal, InvalidInput, OnwardError, UsageError

T = TypeVar("T")

LIST_MAX_AGE_S = 10.0
"""Seconds for which a list of tools counts as current."""

CONNECT_TIMEOUT_S = 30.0
"""For the connection and the handshake."""

CLOSE_TIMEOUT_S = 5.0

MAX_PAGES, MAX_TOOLS = 20, 500
"""Pages of a server's list of tools, and tools that an agent may use of one server."""

MAX_NAME_CHARS, MAX_TOOL_BYTES, MAX_LIST_BYTES = 128, 65_536, 1 << 20
"""The size of a tool's name; of the name, description and schema of one tool; and of all tools that are used."""

MAX_RESPONSE_BYTES, MAX_LINE_CHARS = 4 << 20, 4 << 20
"""The size of one response over HTTP, and of one line that a command writes."""

MAX_CONTAINERS = 10_000
"""Lists and objects in one response: the SDK is slow with each of them, and blocks the event loop of the worker."""

RECONNECT_INTERVAL_S = 1.0
"""Between two requests that reconnect to a stream that was cut."""

LIST_RETRY = Retry(attempts=4, first=1.0, cap=20.0)
"""For a server that cannot be reached when a task begins."""

EXTERNAL = RISKS[-1]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


class ServerAway(OnwardError):
    """An MCP server could not be reached. No tool was called."""

    code = "mcp_away"


class ToolChanged(Fatal):
    """A tool of an MCP server is not the one that the task began with."""

    code = "mcp_changed"


class ToolSaidNo(Fatal):
    """A tool of an MCP server has run, and returned an error."""

    code = "mcp_error"


class OffersTooMuch(Fatal):
    """An MCP server offers more tools than an agent can use."""

    code = "mcp_too_much"


@dataclasses.dataclass(frozen=True)
class RemoteTool(Tool):
    """A tool of an MCP server, with the schema that the server gave it."""

    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def takes(self) -> Any:
        """Its arguments, all by name."""
        return _NamedArguments()

    def spec(self, secrets: Iterable[str] = ()) -> dict[str, Any]:  # noqa: ARG002 -- it takes none
        """The description of the tool for a model."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.schema)}
        return {"type": "function", "function": about}

    def check(self, arguments: Any) -> dict[str, Any]:
        """The same arguments. Raises InvalidInput where they do not fit the schema."""
        checked = super().check(arguments)
        if any(secret.names(checked)):
            raise InvalidInput(
                f"{self.name!r} is a tool of another program, and is given no secrets; leave {{'$secret': …}} out"
            )
        if errors := schemas.schema_errors(self.schema, checked):
            raise InvalidInput(f"the arguments of {self.name!r} do not fit: {errors}")
        return checked


class McpServer:
    """An MCP server whose tools an agent may use: at a URL, or started as a command.

    `risk` is that of all its tools, or by name (`{"get_*": "read", "*": "external_action"}`, the first match counts); a tool without a
    match is an "external_action". `only` names the tools that the agent may use, `idempotent` those that may be repeated after a crash.
    With `pin`, the agent refuses the server unless its tools have this hash. `headers` (a key, as in
    `{"Authorization": "Bearer …"}`) and `env` are never recorded; a value may be a secret of the app (`app.secret(…)`).
    """

    def __init__(
        self,
        name: str,
        target: str | Sequence[str],
        *,
        risk: str | Mapping[str, str] = EXTERNAL,
        only: Iterable[str] = ("*",),
        idempotent: Iterable[str] = (),
        timeout: Duration = 60,
        pin: str | None = None,
        headers: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadSetting(
                "name", name, "up to 32 letters, digits, '_' and '-': it is put before the names of the tools"
            )
        if not target:
            raise BadSetting("target", target, "a URL, or a command")
        self.name: str = name
        self._pin = pin
        self._risks = {"*": risk} if isinstance(risk, str) else dict(risk)
        self._only, self._idempotent = tuple(only), tuple(idempotent)
        self._timeout = seconds(timeout, "timeout")
        self._link = _Link(functools.partial(_open_client, target, headers, env))
        self._listed: tuple[float, Any, dict[str, Any]] = (0.0, None, {})
        """The last list of tools: its time, its connection, and the tools by name."""

    @property
    def risks(self) -> frozenset[str]:
        """All risks that its tools may have."""
        return frozenset({*self._risks.values(), EXTERNAL})

    async def close(self) -> None:
        """Close the connection. The server may be used again."""
        await self._link.close()

    # ── listing tools ────────────────────────────────────────────────────────────────────────────────────────────

    async def manifest(self) -> list[dict[str, Any]]:
        """The tools that it offers now, in the order of their names. Raises ServerAway, and ToolChanged where they do not have the
        pinned hash."""
        by_name = await self._link.use(self._list_tools)
        tools = [by_name[name] for name in sorted(by_name) if _matches(name, self._only)]
        if self._pin is not None and (now := wire.fingerprint(tools)) != self._pin:
            raise ToolChanged(
                f"the MCP server {self.name!r} offers something else than what was pinned: its hash is {now}, and not {self._pin}; "
                "look at what it offers, then pin that"
            )
        return tools

    async def _list_tools(self, client: Any) -> dict[str, Any]:
        listed_at, listed_by, tools = self._listed
        if listed_by is client and asyncio.get_running_loop().time() - listed_at < LIST_MAX_AGE_S:
            return tools
        try:
            async with asyncio.timeout(self._timeout):
                tools = await self._read_pages(client)
        except OffersTooMuch:
            raise
        except Exception as error:
            raise ServerAway(
                f"the MCP server {self.name!r} does not say what it offers: {_innermost(error)}"
            ) from error
        self._listed = asyncio.get_running_loop().time(), client, tools
        return tools

    async def _read_pages(self, client: Any) -> dict[str, Any]:
        """The tools that `only` names, by name, from all pages of the list. Raises OffersTooMuch."""
        tools: dict[str, Any] = {}
        cursor, size = None, 0
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            for listed in page.tools:
                if len(listed.name) > MAX_NAME_CHARS or not _matches(listed.name, self._only):
                    continue
                tool = {"name": listed.name, "description": listed.description or "", "schema": listed.input_schema}
                size += self._size(tool)
                tools[listed.name] = tool
                if len(tools) > MAX_TOOLS or size > MAX_LIST_BYTES:
                    raise self._too_much(
                        f"more than {MAX_TOOLS} tools, or {MAX_LIST_BYTES:,} bytes of names, descriptions and schemas"
                    )
            if (cursor := page.next_cursor) is None:
                return tools
        raise self._too_much(f"more than {MAX_PAGES} pages")

    def _size(self, tool: dict[str, Any]) -> int:
        try:
            return len(wire.encode(tool, "a tool", most=MAX_TOOL_BYTES))
        except InvalidInput as error:
            raise self._too_much(f"a tool {tool['name']!r:.80} that cannot be shown to a model: {error}") from None

    def _too_much(self, what: str) -> OffersTooMuch:
        return OffersTooMuch(f"the MCP server {self.name!r} offers {what}; name those that you need with only=[…]")

    def tools(self, manifest: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
        """The tools of a manifest, by the names under which the agent calls them."""
        made = [self._make_tool(listed) for listed in manifest]
        return {tool.name: tool for tool in made}

    def _make_tool(self, listed: Mapping[str, Any]) -> Tool:
        name = str(listed["name"])

        async def call(ctx: Context, /, **arguments: Any) -> Any:
            return await self._call(listed, arguments, ctx.key)

        return RemoteTool(
            call,
            f"{self.name}_{_NOT_IN_A_NAME.sub('_', name)}"[:64],
            str(listed["description"]),
            risk=next((risk for names, risk in self._risks.items() if fnmatch.fnmatchcase(name, names)), EXTERNAL),
            idempotent=_matches(name, self._idempotent),
            timeout=self._timeout,
            schema=listed["schema"],
        )

    # ── calling a tool ───────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, listed: Mapping[str, Any], arguments: dict[str, Any], key: str) -> Any:
        name = listed["name"]

        async def call(client: Any) -> Any:
            now = (await self._list_tools(client)).get(name)
            if now != listed:
                gone = "is no longer there" if now is None else "has another description or other arguments now"
                raise ToolChanged(
                    f"the tool {name!r} of the MCP server {self.name!r} {gone} than when this task began, so it was not called; "
                    "tasks that are submitted from now on see what it is now"
                )
            return await _translate_errors(lambda: client.call_tool(name, arguments, meta={"onward/key": key}))

        return _output(await self._link.use(call))


async def add_server_tools(
    ctx: Context, servers: Sequence[McpServer], tools: dict[str, Tool], restored: Mapping[str, Any] | None
) -> dict[str, str]:
    """Add the tools of these servers to `tools`, as this task knows them; return the name under which the task keeps each server's list.
    A task lists the tools when it begins; a checkpoint (`restored`) has the names of the lists. A task that began before the agent had a
    server goes on without it."""
    names: dict[str, str] = {} if restored is None else dict(restored.get("servers", {}))
    for server in servers:
        if restored is None and await ctx.version(f"mcp {server.name}"):
            work = functools.partial(_keep_manifest, ctx, server)
            kept = await ctx.step(work, name=f"tools of {server.name}", effect="read", retry=LIST_RETRY)
            names[server.name] = kept["id"]
        if (name := names.get(server.name)) is None:
            continue
        await asyncio.to_thread(_load)
        (data,) = await ctx.kept(name)
        server_tools = server.tools(wire.decode(data))
        if twice := sorted(server_tools.keys() & tools.keys()):
            raise UsageError(f"two tools are named {twice[0]!r}; give the MCP server another name")
        tools.update(server_tools)
    return names


async def _keep_manifest(ctx: Context, server: McpServer) -> dict[str, Any]:
    manifest = await server.manifest()
    name = ctx.keep(wire.encode(manifest, f"what the MCP server {server.name!r} offers"))
    return {"id": name, "hash": wire.fingerprint(manifest), "tools": len(manifest)}


# ── the connection ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Connection:
    """One open connection. A task of its own holds it, because the SDK wants a connection closed in the task that opened it."""

    holder: asyncio.Task[None]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client: asyncio.Future[Any] = loop.create_future()
        self.closing = asyncio.Event()
        self.users, self.lost = 0, False

    async def hold(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Any]]) -> None:
        """Keep the connection open until `closing` is set."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S) as connect_timeout, connect() as client:
                connect_timeout.reschedule(None)
                if not self.client.done():
                    self.client.set_result(client)
                await self.closing.wait()
        except Exception as error:
            if not self.client.done():
                self.client.set_exception(error)
                self.client.exception()  # so that asyncio logs no warning when nothing awaits the future


class _Link:
    """The connection to a server: opened when it is first needed, and again after it was lost. A call that fails does not close it under
    the calls beside it: their results would be lost, and their effects in doubt."""

    def __init__(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Any]]) -> None:
        self._connect = connect
        self._connection: _Connection | None = None

    async def use(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Call a function with the client of the connection. Raises ServerAway when the server cannot be reached."""
        connection = self._open()
        connection.users += 1
        try:
            return await call(await _client_of(connection))
        except Exception as error:
            if isinstance(error, ServerAway) or not isinstance(error, OnwardError):
                connection.lost = True
                self._connection = None if self._connection is connection else self._connection
            raise
        finally:
            connection.users -= 1
            if connection.lost and not connection.users:
                connection.closing.set()

    def _open(self) -> _Connection:
        loop, connection = asyncio.get_running_loop(), self._connection
        if connection is None or connection.client.get_loop() is not loop or connection.holder.done():
            self._connection = connection = _Connection(loop)
            connection.holder = spawn(connection.hold(self._connect), "onward-mcp-client")
        return connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.client.get_loop() is asyncio.get_running_loop():
            connection.closing.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.holder, CLOSE_TIMEOUT_S)


async def _client_of(connection: _Connection) -> Any:
    try:
        return await asyncio.shield(connection.client)
    except UsageError:
        raise
    except Exception as error:
        raise ServerAway(f"the MCP server cannot be reached: {_innermost(error)}") from error


@contextlib.asynccontextmanager
async def _open_client(
    target: str | Sequence[str], headers: Mapping[str, Any] | None, env: Mapping[str, Any] | None
) -> Any:
    await asyncio.to_thread(_load)
    import httpx2  # noqa: PLC0415 -- an extra
    from mcp import Client, StdioServerParameters  # noqa: PLC0415 -- an extra
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 -- an extra

    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target, str) and target.startswith(("http://", "https://")):
            from onward.agent import http_limits  # noqa: PLC0415 -- an extra

            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers={**http_limits.HEADERS, **_reveal(headers)},
                    timeout=httpx2.Timeout(30, read=300),
                    verify=await certificates.trusted(),
                    event_hooks=http_limits.hooks(
                        MAX_RESPONSE_BYTES, max_containers=MAX_CONTAINERS, get_interval_s=RECONNECT_INTERVAL_S
                    ),
                )
            )
            transport: Any = streamable_http_client(target, http_client=http)
        else:
            words = shlex.split(target) if isinstance(target, str) else list(target)
            transport = StdioServerParameters(command=words[0], args=words[1:], env=_reveal(env) or None)
            _limit_lines()
        client = await stack.enter_async_context(Client(transport))
        # The SDK would validate results by the schema of the server, with Python's `re`, in this event loop.
        setattr(client.session, "validate_tool_result", _accept_result)  # noqa: B010 -- for mypy it is a method
        yield client


async def _accept_result(_name: str, _result: Any) -> None:
    """Accept any result: the model reads it and judges it."""


def _limit_lines() -> None:
    """Limit the lines that a command writes: the SDK would buffer a line of any length. A line that is too long ends the connection."""
    import anyio  # noqa: PLC0415 -- an extra
    from anyio.streams.text import TextReceiveStream  # noqa: PLC0415 -- an extra
    from mcp.client import stdio  # noqa: PLC0415 -- an extra

    class LimitedLines(TextReceiveStream):
        chars = values = 0

        async def receive(self) -> str:
            chunk = await super().receive()
            tail = chunk.rpartition("\n")[2]
            if len(tail) < len(chunk):
                self.chars = self.values = 0
            self.chars += len(tail)
            self.values += sum(map(tail.count, "[{,"))
            if self.chars > MAX_LINE_CHARS or self.values > 2 * wire.MAX_VALUES:
                raise anyio.BrokenResourceError
            return chunk

    setattr(stdio, "TextReceiveStream", LimitedLines)  # noqa: B010 -- a name of the SDK


def _reveal(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Strings as they are, and the current values of secrets."""
    return {
        name: value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
        for name, value in (values or {}).items()
    }


def _load() -> None:
    """Import the SDK, which takes a second or more. Callers do so in a thread, so that the worker's event loop and heartbeat go on."""
    try:
        for module in ("mcp.client.streamable_http", "httpx2"):
            importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[mcp]'") from None


async def _translate_errors(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a call. Raises ToolSaidNo where the tool refused, and ConnectionError where it is open whether the tool ran: a step
    that may not be repeated is then in doubt."""
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415 -- an extra
    from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT  # noqa: PLC0415 -- an extra

    try:
        return await call()
    except MCPError as error:
        if error.code in {CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT}:
            raise ConnectionError(f"the answer was lost: {error}") from error
        raise ToolSaidNo(str(error)) from error
    except OnwardError:
        raise
    except Exception as error:
        raise ConnectionError(f"the answer was lost: {_innermost(error)}") from error


def _output(result: Any) -> Any:
    """The output of a tool, from the SDK's result: a string, bytes, or JSON."""
    texts = [part.text for part in result.content if part.type == "text"]
    others = [part for part in result.content if part.type != "text"]
    if result.is_error:
        raise ToolSaidNo("\n".join(texts) or "the tool came to an error, and did not say which")
    if not texts and not others:
        return result.structured_content or ""
    if not texts and len(others) == 1 and (data := _data(others[0])) is not None:
        return data
    notes = [f"({part.type}, not shown)" for part in others]
    return "\n".join([*texts, *notes])


def _data(part: Any) -> bytes | None:
    """The bytes of an image, a sound, or a resource."""
    if part.type in {"image", "audio"}:
        return base64.b64decode(part.data)
    resource = getattr(part, "resource", None)
    if resource is None:
        return None
    return resource.text.encode() if hasattr(resource, "text") else base64.b64decode(resource.blob)


class _NamedArguments:
    """Arguments that are passed on as they are."""

    secrets: frozenset[str] = frozenset()

    def by_name(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """All arguments by name, none by position."""
        return [], values


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _innermost(error: BaseException) -> str:
    """The first error inside the exception groups of task groups, as a string."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
