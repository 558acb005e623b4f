"""Tools of other MCP servers, for an agent.

    app.agent("devops", model=…, tools=[check_disk, McpServer("github", "https://mcp.example.com/mcp", risk={"get_*": "read"})])

What a server offers (names, descriptions, schemas) is asked once, when a task begins, and kept with the task: a replay, a crash and a
new worker see the same tools. A call is a recorded step like that of any other tool, with the risk that *you* give it: what a server
says of its own tools is not believed. A tool that is not what it was when the task began is refused, with the reason.

The SDK (`onward[mcp]`) is imported when a server is first asked.
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

from onward.agent import schemas
from onward.agent.tools import RISKS, Tool
from onward.core import secret, wire
from onward.core.durations import Duration, seconds
from onward.core.retry import Retry
from onward.engine.background import spawn
from onward.engine.context.context import Context
from onward.errors import BadSetting, Fatal, InvalidInput, OnwardError, UsageError

T = TypeVar("T")

FRESH = 10.0
"""Seconds for which we believe that a server still offers what it offered."""

CONNECT = 30.0
"""Seconds until a server has introduced itself."""

PAGES, TOOLS = 20, 500
"""Pages on which a server may tell what it offers, and tools that an agent may use of one server."""

LONGEST_NAME, LARGEST, ALL = 128, 65_536, 1 << 20
"""Characters of the name of a tool, and bytes of what a server says of one tool, and of all that are used."""

MOST, LINE = 4 << 20, 4 << 20
"""Bytes of one answer over HTTP, and of one line that a command writes."""

OPENED = 10_000
"""Lists and objects in one answer: the SDK takes its time with each of them, and a worker does nothing else meanwhile."""

AGAIN = 1.0
"""Seconds between two requests to go on with a stream that was cut."""

PATIENCE = Retry(attempts=4, first=1.0, cap=20.0)
"""For a server that cannot be reached when a task begins."""

EXTERNAL = RISKS[-1]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


class ServerAway(OnwardError):
    """An MCP server could not be reached, and nothing was asked of it."""

    code = "mcp_away"


class ToolChanged(Fatal):
    """A tool of an MCP server is not the one that the task began with."""

    code = "mcp_changed"


class ToolSaidNo(Fatal):
    """A tool of an MCP server has run, and come to an error."""

    code = "mcp_error"


class OffersTooMuch(Fatal):
    """An MCP server offers more than an agent can be told of."""

    code = "mcp_too_much"


@dataclasses.dataclass(frozen=True)
class RemoteTool(Tool):
    """A tool whose schema somebody else wrote."""

    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def takes(self) -> Any:
        """Its arguments, all by name."""
        return _ByName()

    def spec(self, secrets: Iterable[str] = ()) -> dict[str, Any]:  # noqa: ARG002 -- it takes none
        """As a model is told of it."""
        about = {"name": self.name, "description": self.description, "parameters": dict(self.schema)}
        return {"type": "function", "function": about}

    def check(self, arguments: Any) -> dict[str, Any]:
        """The same arguments, where they fit the schema; raises InvalidInput where not."""
        checked = super().check(arguments)
        if any(secret.names(checked)):
            raise InvalidInput(
                f"{self.name!r} is a tool of another program, and is given no secrets; leave {{'$secret': …}} out"
            )
        if wrong := schemas.misfit(self.schema, checked):
            raise InvalidInput(f"the arguments of {self.name!r} do not fit: {wrong}")
        return checked


class McpServer:
    """An MCP server whose tools an agent may use: at a URL, or started as a command.

    `risk` is that of all its tools, or by name (`{"get_*": "read", "*": "external_action"}`, the first that fits); what is not named
    is an "external_action". `only` names the tools that are used at all, `idempotent` those that may be repeated after a crash. With
    `pin`, a server that offers anything else than what had this hash is not used. `headers` (a key, as in
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
        self.name, self._pin = name, pin
        self._risks = {"*": risk} if isinstance(risk, str) else dict(risk)
        self._only, self._idempotent = tuple(only), tuple(idempotent)
        self._timeout = seconds(timeout, "timeout")
        self._link = _Link(functools.partial(_client, target, headers, env))
        self._offered: tuple[float, Any, dict[str, Any]] = (0.0, None, {})
        """When it was asked, over which connection, and what it said."""

    @property
    def risks(self) -> frozenset[str]:
        """All risks that its tools may have."""
        return frozenset({*self._risks.values(), EXTERNAL})

    async def close(self) -> None:
        """Hang up, where it was used. It may be used again."""
        await self._link.close()

    # ── what it offers ───────────────────────────────────────────────────────────────────────────────────────────

    async def manifest(self) -> list[dict[str, Any]]:
        """What it offers now, by name. Raises ServerAway, and ToolChanged where it is not what was pinned."""
        offered = await self._link.use(self._ask_offered)
        found = [offered[name] for name in sorted(offered) if _fits(name, self._only)]
        if self._pin is not None and (now := wire.fingerprint(found)) != self._pin:
            raise ToolChanged(
                f"the MCP server {self.name!r} offers something else than what was pinned: its hash is {now}, and not {self._pin}; "
                "look at what it offers, then pin that"
            )
        return found

    async def _ask_offered(self, client: Any) -> dict[str, Any]:
        at, over, offered = self._offered
        if over is client and asyncio.get_running_loop().time() - at < FRESH:
            return offered
        try:
            async with asyncio.timeout(self._timeout):
                offered = await self._pages(client)
        except OffersTooMuch:
            raise
        except Exception as error:
            raise ServerAway(
                f"the MCP server {self.name!r} does not say what it offers: {_innermost(error)}"
            ) from error
        self._offered = asyncio.get_running_loop().time(), client, offered
        return offered

    async def _pages(self, client: Any) -> dict[str, Any]:
        """What it offers of what is used, page after page. Raises OffersTooMuch."""
        offered: dict[str, Any] = {}
        cursor, size = None, 0
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            for tool in page.tools:
                if len(tool.name) > LONGEST_NAME or not _fits(tool.name, self._only):
                    continue
                one = {"name": tool.name, "description": tool.description or "", "schema": tool.input_schema}
                length = self._measured(one)
                size += length
                offered[tool.name] = one
                if len(offered) > TOOLS or size > ALL:
                    raise self._too_much(
                        f"more than {TOOLS} tools, or {ALL:,} bytes of names, descriptions and schemas"
                    )
            if (cursor := page.next_cursor) is None:
                return offered
        raise self._too_much(f"more than {PAGES} pages")

    def _measured(self, offered: dict[str, Any]) -> int:
        try:
            return len(wire.encode(offered, "a tool", most=LARGEST))
        except InvalidInput as error:
            raise self._too_much(f"a tool {offered['name']!r:.80} that cannot be told to a model: {error}") from None

    def _too_much(self, what: str) -> OffersTooMuch:
        return OffersTooMuch(f"the MCP server {self.name!r} offers {what}; name those that you need with only=[…]")

    def tools(self, manifest: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
        """The tools that a manifest tells of, as an agent calls them."""
        made = [self._tool(offered) for offered in manifest]
        return {tool.name: tool for tool in made}

    def _tool(self, offered: Mapping[str, Any]) -> Tool:
        own = str(offered["name"])

        async def call(ctx: Context, /, **arguments: Any) -> Any:
            return await self._call(offered, arguments, ctx.key)

        return RemoteTool(
            call,
            f"{self.name}_{_NOT_IN_A_NAME.sub('_', own)}"[:64],
            str(offered["description"]),
            risk=next((risk for names, risk in self._risks.items() if fnmatch.fnmatchcase(own, names)), EXTERNAL),
            idempotent=_fits(own, self._idempotent),
            timeout=self._timeout,
            schema=offered["schema"],
        )

    # ── calling it ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, offered: Mapping[str, Any], arguments: dict[str, Any], key: str) -> Any:
        name = offered["name"]

        async def ask(client: Any) -> Any:
            now = (await self._ask_offered(client)).get(name)
            if now != offered:
                gone = "is no longer there" if now is None else "has another description or other arguments now"
                raise ToolChanged(
                    f"the tool {name!r} of the MCP server {self.name!r} {gone} than when this task began, so it was not called; "
                    "tasks that are submitted from now on see what it is now"
                )
            return await _asked(lambda: client.call_tool(name, arguments, meta={"onward/key": key}))

        return _output(await self._link.use(ask))


async def learn(
    ctx: Context, servers: Sequence[McpServer], tools: dict[str, Tool], restored: Mapping[str, Any] | None
) -> dict[str, str]:
    """Add to `tools` those of these servers, as this task knows them; the names under which it keeps what they offered. At the beginning
    of a task they are asked; a checkpoint (`restored`) has the names, and nobody is asked again. A task that began before an agent had
    a server goes on without it."""
    names: dict[str, str] = {} if restored is None else dict(restored.get("servers", {}))
    for server in servers:
        if restored is None and await ctx.version(f"mcp {server.name}"):
            work = functools.partial(_kept_manifest, ctx, server)
            told = await ctx.step(work, name=f"tools of {server.name}", effect="read", retry=PATIENCE)
            names[server.name] = told["id"]
        if (name := names.get(server.name)) is None:
            continue
        await asyncio.to_thread(_load)
        (data,) = await ctx.kept(name)
        found = server.tools(wire.decode(data))
        if twice := sorted(found.keys() & tools.keys()):
            raise UsageError(f"two tools are named {twice[0]!r}; give the MCP server another name")
        tools.update(found)
    return names


async def _kept_manifest(ctx: Context, server: McpServer) -> dict[str, Any]:
    found = await server.manifest()
    name = ctx.keep(wire.encode(found, f"what the MCP server {server.name!r} offers"))
    return {"id": name, "hash": wire.fingerprint(found), "tools": len(found)}


# ── the connection ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Line:
    """One connection under way: a task of its own holds it, because what the SDK opens in one task it wants closed in the same."""

    holder: asyncio.Task[None]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client: asyncio.Future[Any] = loop.create_future()
        self.over = asyncio.Event()
        self.users, self.lost = 0, False

    async def hold(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Any]]) -> None:
        """Keep it open until it is over."""
        try:
            async with asyncio.timeout(CONNECT) as introduced, connect() as client:
                introduced.reschedule(None)
                if not self.client.done():
                    self.client.set_result(client)
                await self.over.wait()
        except Exception as error:
            if not self.client.done():
                self.client.set_exception(error)
                self.client.exception()  # whoever waits is told; nobody else has to be


class _Link:
    """One connection, opened when it is first needed, and again when it was lost. A call that fails does not hang up on those
    that are under way beside it: their answers would be lost, and their effects in doubt."""

    def __init__(self, connect: Callable[[], contextlib.AbstractAsyncContextManager[Any]]) -> None:
        self._connect = connect
        self._line: _Line | None = None

    async def use(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """The answer of whoever is at the other end. Raises ServerAway when nobody is."""
        line = self._opened()
        line.users += 1
        try:
            return await ask(await _client_of(line))
        except Exception as error:
            if isinstance(error, ServerAway) or not isinstance(error, OnwardError):
                line.lost = True
                self._line = None if self._line is line else self._line
            raise
        finally:
            line.users -= 1
            if line.lost and not line.users:
                line.over.set()

    def _opened(self) -> _Line:
        loop, line = asyncio.get_running_loop(), self._line
        if line is None or line.client.get_loop() is not loop or line.holder.done():
            self._line = line = _Line(loop)
            line.holder = spawn(line.hold(self._connect), "onward-mcp-client")
        return line

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None and line.client.get_loop() is asyncio.get_running_loop():
            line.over.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(line.holder, 5)


async def _client_of(line: _Line) -> Any:
    try:
        return await asyncio.shield(line.client)
    except UsageError:
        raise
    except Exception as error:
        raise ServerAway(f"the MCP server cannot be reached: {_innermost(error)}") from error


@contextlib.asynccontextmanager
async def _client(target: str | Sequence[str], headers: Mapping[str, Any] | None, env: Mapping[str, Any] | None) -> Any:
    await asyncio.to_thread(_load)
    import httpx2  # noqa: PLC0415 -- an extra
    from mcp import Client, StdioServerParameters  # noqa: PLC0415 -- an extra
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 -- an extra

    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target, str) and target.startswith(("http://", "https://")):
            from onward.agent import http_limits as bounded  # noqa: PLC0415 -- an extra

            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers={**bounded.HEADERS, **_revealed(headers)},
                    timeout=httpx2.Timeout(30, read=300),
                    event_hooks=bounded.hooks(MOST, opened=OPENED, again=AGAIN),
                )
            )
            reached: Any = streamable_http_client(target, http_client=http)
        else:
            words = shlex.split(target) if isinstance(target, str) else list(target)
            reached = StdioServerParameters(command=words[0], args=words[1:], env=_revealed(env) or None)
            _bound_lines()
        client = await stack.enter_async_context(Client(reached))
        # The SDK would judge what a tool gives by the schema that its server wrote, with Python's `re`, in this loop.
        setattr(client.session, "validate_tool_result", _not_judged)  # noqa: B010 -- for mypy it is a method
        yield client


async def _not_judged(_name: str, _result: Any) -> None:
    """A tool's output is text for a model, which judges it."""


def _bound_lines() -> None:
    """The SDK keeps what a command has written until a line ends, however long that takes: let it be lost when it is too much."""
    import anyio  # noqa: PLC0415 -- an extra
    from anyio.streams.text import TextReceiveStream  # noqa: PLC0415 -- an extra
    from mcp.client import stdio  # noqa: PLC0415 -- an extra

    class Lines(TextReceiveStream):
        length = marks = 0

        async def receive(self) -> str:
            chunk = await super().receive()
            tail = chunk.rpartition("\n")[2]
            if len(tail) < len(chunk):
                self.length = self.marks = 0
            self.length += len(tail)
            self.marks += sum(map(tail.count, "[{,"))
            if self.length > LINE or self.marks > 2 * wire.MAX_VALUES:
                raise anyio.BrokenResourceError
            return chunk

    setattr(stdio, "TextReceiveStream", Lines)  # noqa: B010 -- it is theirs


def _revealed(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Texts as they are, and secrets by what they are now."""
    return {
        name: value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
        for name, value in (given or {}).items()
    }


def _load() -> None:
    """Import what takes a second or more: in a thread, so that the loop of a worker, and its heartbeat, go on."""
    try:
        for module in ("mcp.client.streamable_http", "httpx2"):
            importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; pip install 'onward[mcp]'") from None


async def _asked(call: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to a call. What leaves open whether the tool ran is a lost connection: the step is then in doubt, if it may not be
    repeated."""
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
    """What a tool gave, as the output of any other: text, bytes, or JSON."""
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
    """The bytes of a picture, a sound, or a resource."""
    if part.type in {"image", "audio"}:
        return base64.b64decode(part.data)
    resource = getattr(part, "resource", None)
    if resource is None:
        return None
    return resource.text.encode() if hasattr(resource, "text") else base64.b64decode(resource.blob)


class _ByName:
    """Arguments that go on as they came."""

    secrets: frozenset[str] = frozenset()

    def by_name(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """All by name."""
        return [], values


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in patterns)


def _innermost(error: BaseException) -> str:
    """The reason at the bottom of what task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
