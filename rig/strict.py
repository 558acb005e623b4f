"""A door in front of an OpenAI-compatible server, as strict as the strictest provider.

    with Strict(mock.url) as door:
        openai.AsyncOpenAI(base_url=door.url, api_key="x")
        door.say(Answer(429, headers={"Retry-After": "7"}))     # the next request gets this; those after it go through
        door.seen           # every request, as it came
        door.refused        # why some of them were refused

A request whose history no strict provider takes (a tool call without its result, a result without its call, a name or an id
that is no name or id, arguments that are no JSON) is answered with 400, in their words, and never reaches the server. The rules are
written here from what providers document, and on purpose not with the code that they judge.
"""

from __future__ import annotations

import collections
import dataclasses
import http.client
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID_LENGTH = 40


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the door says by itself. `cut`: the connection ends in the middle of it."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cut: bool = False

    @property
    def data(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps({"error": {"message": "not now"}} if self.body is None else self.body).encode()


def events(*chunks: Any, done: bool = True) -> Answer:
    """A stream of these chunks: each a value, or a text that is sent as it is."""
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    body = "".join(lines) + ("data: [DONE]\n\n" if done else "")
    return Answer(200, body.encode(), {"Content-Type": "text/event-stream"})


def fault(request: Mapping[str, Any]) -> str:
    """Why a strict provider refuses this request; empty when it does not."""
    messages: Sequence[Any] = request.get("messages") or []
    if not messages:
        return "'messages' is too short"
    owed: list[str] = []
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in owed:
                return f"{where}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            owed.remove(message["tool_call_id"])
            continue
        if owed:
            return f"{where}: 'tool_calls' must be followed by tool messages responding to each 'tool_call_id': {owed}"
        if role not in {"system", "developer", "user", "assistant"}:
            return f"{where}: there is no role {role!r}"
        if wrong := _wrong_calls(message, where):
            return wrong
        owed = [call["id"] for call in message.get("tool_calls") or []]
    return f"the last calls have no results: {owed}" if owed else ""


def _wrong_calls(message: Mapping[str, Any], where: str) -> str:
    if "tool_calls" not in message:
        return "" if isinstance(message.get("content"), str | list) else f"{where}: there is no content"
    calls = message["tool_calls"]
    if not calls or message["role"] != "assistant":
        return f"{where}: 'tool_calls' is empty, or not the assistant's"
    if len({call.get("id") for call in calls}) < len(calls):
        return f"{where}: two calls have one id"
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if not call.get("id") or len(call["id"]) > ID_LENGTH:
            return f"{where}: {call.get('id')!r} is no id"
        if not NAME.fullmatch(name):
            return f"{where}: {name!r} does not match the pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        try:
            json.loads(arguments)
        except ValueError:
            return f"{where}: the arguments of {name} are not JSON"
    return ""


class Strict:
    """One door, in threads of this process."""

    def __init__(self, behind: str = "") -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        """The headers of each request, with names in lower case."""
        self.refused: list[str] = []
        self.rule: Callable[[dict[str, Any]], Answer | None] = lambda _: None
        """Asked for every request: an answer, or None to let it through."""
        self._next: collections.deque[Answer] = collections.deque()
        self._behind = urllib.parse.urlsplit(behind)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def say(self, *answers: Answer) -> None:
        """What the next requests are answered with."""
        self._next.extend(answers)

    def forget(self) -> None:
        """Nothing was asked, and nothing is to be said."""
        self.seen.clear()
        self.headers.clear()
        self.refused.clear()
        self._next.clear()
        self.rule = lambda _: None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _judge(self, request: dict[str, Any]) -> Answer | None:
        self.seen.append(request)
        if why := fault(request):
            self.refused.append(why)
            return Answer(400, {"error": {"message": why, "type": "invalid_request_error"}})
        return self._next.popleft() if self._next else self.rule(request)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                door.headers.append({name.lower(): value for name, value in self.headers.items()})
                said = door._judge(json.loads(body))
                if said is None:
                    self._pass_on(body)
                else:
                    self._say(said)

            def _say(self, said: Answer) -> None:
                self.send_response(said.status)
                for name, value in {"Content-Type": "application/json", **said.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said.data) + (1 if said.cut else 0)))
                self.end_headers()
                self.wfile.write(said.data)
                self.close_connection = said.cut

            def _pass_on(self, body: bytes) -> None:
                there = http.client.HTTPConnection(door._behind.hostname or "", door._behind.port, timeout=60)
                try:
                    there.request("POST", self.path, body, {"Content-Type": "application/json"})
                    answer = there.getresponse()
                    self.send_response(answer.status)
                    for name in ("Content-Type", "Retry-After"):
                        if value := answer.getheader(name):
                            self.send_header(name, value)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                except (OSError, http.client.HTTPException):  # it broke off there, so it breaks off here
                    self.close_connection = True
                finally:
                    there.close()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
