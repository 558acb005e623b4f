"""A hostile MCP server over HTTP: `python -m tests.agent.hostile` prints its address. The path says how it attacks.

`/mcp/KIND` is a server of its own: it introduces itself, offers tools and answers calls in the way that `KIND` says.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import random
from typing import Any

MIB = 1 << 20
CATASTROPHE = "^(a+)+$"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"name": "work", "description": "Do it.", "inputSchema": SCHEMA}
EVIL = {**TOOL, "inputSchema": {**SCHEMA, "properties": {"text": {"type": "string", "pattern": CATASTROPHE}}}}
JUDGED = {**TOOL, "outputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": CATASTROPHE}}}}
TEXT = {"content": [{"type": "text", "text": "done"}], "isError": False}


@functools.cache
def bomb() -> bytes:
    """Few bytes that are 64 MiB when they are unpacked."""
    return gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":"' + b" " * (64 * MIB) + b'"}')


def offered(kind: str, cursor: str | None) -> dict[str, Any]:
    if kind == "endless pages":
        return {"tools": [TOOL], "nextCursor": str(int(cursor or 0) + 1)}
    if kind == "many tools":
        return {"tools": [{**TOOL, "name": f"work{number}"} for number in range(1_000)]}
    if kind == "a large schema":
        return {"tools": [{**TOOL, "inputSchema": {**SCHEMA, "description": "x" * 100_000}}]}
    if kind == "a deep schema":
        deep: dict[str, Any] = {}
        for _ in range(600):
            deep = {"items": deep}
        return {"tools": [{**TOOL, "inputSchema": {**SCHEMA, "properties": {"a": deep}}}]}
    if kind == "a pattern":
        return {"tools": [EVIL]}
    if kind == "a pattern of the output":
        return {"tools": [JUDGED]}
    return {"tools": [TOOL]}


def given(kind: str, rng: random.Random) -> dict[str, Any]:
    """The result of a call of its tool, for the kinds with valid JSON."""
    if kind == "a pattern of the output":
        return {**TEXT, "structuredContent": {"a": "a" * 40 + "!"}}
    if kind == "deep":
        deep: Any = []
        for _ in range(150):
            deep = [deep]
        return {"content": [], "structuredContent": {"a": deep}}
    if kind == "many parts":
        return {"content": [{"type": "text", "text": ""}] * 50_000}
    if kind == "broken":
        return rng.choice(
            [{"content": 7}, {"content": [{"type": "image", "data": "!", "mimeType": "x"}]}, {}, {"content": None}]
        )
    return TEXT


class Server:
    """Serves one connection after the other, and writes every answer as bytes."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                kind = path.removeprefix("/mcp/").replace("%20", " ")
                await self.answer(writer, method, kind, json.loads(body) if body else {})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter, method: str, kind: str, request: Any) -> None:
        called = request.get("method", "")
        if method != "POST":
            self._send(writer, b"", status="405 Method Not Allowed")
        elif "id" not in request:
            self._send(writer, b"", status="202 Accepted")
        elif called == "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "hostile", "version": "1"}
            self._result(
                writer, request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            )
        elif called == "tools/list":
            self._result(writer, request, offered(kind, (request.get("params") or {}).get("cursor")))
        elif called == "tools/call":
            await self._call(writer, kind, request)
        else:
            self._error(writer, request, -32601, "no such method")

    async def _call(self, writer: asyncio.StreamWriter, kind: str, request: Any) -> None:
        if kind == "a bomb":
            self._send(writer, bomb(), "Content-Encoding: gzip")
        elif kind == "endless":
            await self._endless(writer, b"application/json", b'{"jsonrpc":"2.0",' + b" " * 65_536)
        elif kind == "an endless stream":
            note = {
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": {"level": "info", "data": "x" * 1000},
            }
            await self._endless(
                writer, b"text/event-stream", b"event: message\ndata: " + json.dumps(note).encode() + b"\n\n"
            )
        elif kind == "an endless event":
            await self._endless(writer, b"text/event-stream", b"data: [[],[]," + b"[]," * 20_000)
        elif kind == "many values":
            self._send(writer, b'{"jsonrpc":"2.0","id":1,"result":[' + b"[]," * 600_000 + b"[]]}")
        elif kind == "digits":
            self._send(writer, b'{"jsonrpc":"2.0","id":1,"result":{"content":' + b"9" * MIB + b"}}")
        elif kind == "garbage":
            self._send(writer, self.rng.randbytes(self.rng.randint(0, 5_000)))
        elif kind == "elsewhere":
            self._send(writer, b"", "Location: /mcp/elsewhere", status="307 Temporary Redirect")
        elif kind == "silence":
            await asyncio.sleep(3600)
        elif kind == "an error":
            self._error(writer, request, -32000, "x" * MIB)
        else:
            self._result(writer, request, given(kind, self.rng))

    async def _endless(self, writer: asyncio.StreamWriter, media: bytes, piece: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + media + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
        while True:
            writer.write(chunk)
            await writer.drain()

    def _result(self, writer: asyncio.StreamWriter, request: Any, result: Any) -> None:
        self._send(writer, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    def _error(self, writer: asyncio.StreamWriter, request: Any, code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self._send(writer, json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode())

    def _send(self, writer: asyncio.StreamWriter, data: bytes, *more: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(data)}", *more]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)


async def main() -> None:
    server = await asyncio.start_server(Server().serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
