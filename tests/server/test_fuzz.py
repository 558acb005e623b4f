"""The OpenAPI document against the running server: every answer is in the document, and none is an error of the server.

Schemathesis draws requests from the document (valid requests, and requests with one fault), follows its links with real ids, and
checks every answer against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward import Onward
from onward.server.http import uvicorn as heads
from rig.processes import Child
from tests.kit import not_memory, only_memory
from tests.server.conftest import serving

ROOT = Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance"
)


def serve(url: str, *more: str) -> tuple[Child, str]:
    """A server of its own process, and its address."""
    child = Child.module("onward", "--db", url, "serve", "tests.server.shop:app", "--port", "0", *more, cwd=ROOT)
    line = child.wait_for("ready", 60)
    match = re.search(r"http://[\d.]+:\d+", line)
    assert match, line
    return child, match[0]


def fuzz(address: str, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    """Schemathesis against a server, with the names of tasks that it knows."""
    document = httpx2.get(f"{address}/openapi.json").json()
    document["components"]["schemas"]["NewTask"]["properties"]["task"] = {"enum": ["echo", "waits", "asks", "helper"]}
    (folder / "openapi.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(folder / "openapi.json"), "--url", address]
    command += ["--checks", CHECKS, "-n", str(examples), "--continue-on-failure", "--generation-deterministic"]
    command += ["--exclude-path", "/api/tasks/{id}/result", "--no-color", "--warnings", "off"]
    command += ["--exclude-path", "/api/progress"]  # the stream of all tasks never ends
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=folder)


@pytest.mark.slow
@not_memory
def test_the_server_answers_as_its_document_says(
    url: str, tmp_path: Path, prove: bool, request: pytest.FixtureRequest
) -> None:
    if url.startswith("postgres"):
        request.getfixturevalue("at_length")
    child, address = serve(url)
    with child:
        report = fuzz(address, tmp_path, 100 if prove else 3)
        assert report.returncode == 0, report.stdout[-8000:]
        match = re.search(r"(\d+) generated", report.stdout)
        assert match, report.stdout[-2000:]
        assert int(match[1]) > (500 if prove else 250)
        assert child.running
        assert httpx2.get(f"{address}/readyz").status_code == 200
    assert not [line for line in child.errors if "Traceback" in line], child.errors[-40:]


@pytest.mark.slow
def test_the_test_finds_an_undocumented_answer(tmp_path: Path) -> None:
    """Proves that the test above can fail."""
    child, address = serve(f"sqlite:///{tmp_path / 'onward.db'}")
    with child:
        document = httpx2.get(f"{address}/openapi.json").json()
        del document["paths"]["/api/tasks/{id}"]["get"]["responses"]["404"]
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(tmp_path / "openapi.json"), "--url", address]
        command += [
            "--checks",
            CHECKS,
            "-n",
            "3",
            "--include-path",
            "/api/tasks/{id}",
            "--no-color",
            "--phases",
            "fuzzing",
        ]
        report = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert report.returncode == 1
    assert "Undocumented" in report.stdout


# ── a corpus of inputs that break other servers ─────────────────────────────────────────────────────────────────────

DEEP = b'{"task":"echo","input":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
BODIES: dict[str, tuple[bytes, set[int]]] = {
    "nothing": (b"", {422}),
    "half an object": (b'{"task":', {400}),
    "two documents": (b'{"task":"echo"}{"task":"echo"}', {400}),
    "a name twice": (b'{"task":"echo","task":"waits"}', {400}),
    "a name twice, deep": (b'{"task":"echo","input":{"a":[{"b":1,"b":2}]}}', {400}),
    "a byte order mark": (b'\xef\xbb\xbf{"task":"echo"}', {400}),
    "UTF-16": ('{"task":"echo"}'.encode("utf-16"), {400}),
    "not UTF-8": (b'{"task":"echo","input":"\xff\xfe"}', {400}),
    "a lone surrogate": (b'{"task":"echo","input":"\\ud800"}', {400, 422}),
    "a lone surrogate as a name": (b'{"task":"\\ud800"}', {400, 404, 422}),
    "a lone surrogate as a key": (b'{"task":"echo","labels":{"\\udfff":"x"}}', {400, 422}),
    "NaN": (b'{"task":"echo","input":NaN}', {400}),
    "Infinity": (b'{"task":"echo","input":[-Infinity]}', {400}),
    "ten thousand levels": (DEEP, {400}),
    "a number of 5,000 digits": (b'{"task":"echo","input":' + b"9" * 5_000 + b"}", {400}),
    "a float too large": (b'{"task":"echo","input":1e999}', {400, 422}),
    "a priority too large": (b'{"task":"echo","priority":9007199254740993}', {422}),
    "a priority that is a truth": (b'{"task":"echo","priority":true}', {422}),
    "a list": (b"[]", {422}),
    "null": (b"null", {422}),
    "a NUL in the name": (b'{"task":"ec\\u0000ho"}', {400, 404, 422}),
    "a NUL in the queue": (b'{"task":"echo","queue":"a\\u0000"}', {400, 422}),
    "no name": (b'{"task":""}', {422}),
    "a deadline before now": (b'{"task":"echo","deadline_s":-1}', {422}),
    "a delay of for ever": (b'{"task":"echo","delay_s":1e300}', {422}),
    "labels that are numbers": (b'{"task":"echo","labels":{"a":1}}', {422}),
    "comments": (b'{"task":"echo" /* hello */}', {400}),
}
INJECTIONS = (
    "'; DROP TABLE onward_tasks; --",
    '" OR 1=1 --',
    "1' UNION SELECT id, task, queue FROM onward_tasks --",
    "$1",
    ":id",
    "%s%s%s",
    "{columns}",
    "\\'; SELECT pg_sleep(9); --",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e",
    "CON",
    "\u202e\u2066",
    "a\u0000b",
    "/etc/passwd",
    "\\\\host\\share",
    "😀" * 200,
)
IDS = (
    "/api/tasks/{}", "/api/tasks/{}/events", "/api/tasks/{}/result", "/api/tasks/{}/state", "/api/tasks/{}/artifacts",
    "/api/tasks/{}/budget", "/api/tasks/{}/doubts", "/api/artifacts/{}", "/api/artifacts/{}.{}",
)  # fmt: skip


@not_memory
async def test_broken_bodies_are_refused_and_nothing_is_written(url: str) -> None:
    app = Onward(url)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    async with app, serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        for name, (body, wanted) in BODIES.items():
            answer = await client.post("/api/tasks", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in wanted, (name, answer.status_code, answer.text)
            assert answer.headers["content-type"] == "application/problem+json", name
        assert (await client.get("/api/tasks")).json() == {"tasks": [], "next": None}
        whole = await client.post(
            "/api/tasks",
            content='{"task":"echo","input":"ü\\u0000😀"}'.encode(),
            headers={"Content-Type": "application/json"},
        )
        assert whole.status_code == 202, whole.text


@pytest.mark.slow
@not_memory
async def test_strings_are_data_wherever_they_stand(url: str) -> None:
    app = Onward(url)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    async with app, serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        before = (await client.post("/api/tasks", json={"task": "echo", "input": "safe"})).json()["task_id"]
        made = 1
        for text in INJECTIONS:
            for path in IDS:
                quoted = path.format(*[httpx2.URL("", params={"x": text}).query.decode()[2:]] * path.count("{}"))
                answer = await client.get(quoted)
                assert answer.status_code in {400, 404}, (path, text, answer.text)
                assert "root:" not in answer.text
            for name in ("task", "queue", "cursor", "state", text):
                answer = await client.get("/api/tasks", params={name: text})
                assert answer.status_code in {200, 400, 422}, (name, text, answer.text)
            response = await client.post("/api/tasks", json={"task": "echo", "input": text, "labels": {text: text}})
            assert response.status_code == 202, (text, response.text)
            made += 1
            assert (await client.get(f"/api/tasks/{response.json()['task_id']}")).json()["labels"] == {text: text}
            headers = [(b"Idempotency-Key", text.replace("\0", "").encode())]
            keyed = await client.post("/api/tasks", json={"task": "echo"}, headers=headers)
            assert keyed.status_code in {202, 400}, (text, keyed.text)
            made += keyed.status_code == 202
        assert (await client.get(f"/api/tasks/{before}")).json()["input"] == "safe"
        assert len((await client.get("/api/tasks", params={"limit": 1000})).json()["tasks"]) == made


BEYOND = (
    ("GET", "/api/tasks/{}/events?after=9007199254740992", None, {200}),
    ("POST", "/api/approvals/{}.999999999999999", {"decision": "approve"}, {404}),
    ("POST", "/api/questions/{}.3000000000", {"answer": "x"}, {404}),
    ("GET", "/api/subscriptions?cursor=%00", None, {422}),
    ("GET", "/api/tasks?q=%5C", None, {200}),
    ("GET", "/api/tasks/count?q=a%25%5C", None, {200}),
    ("GET", "/api/tasks?tenant=%00", None, {422}),
    ("GET", "/api/tasks/count?tenant=a%00", None, {422}),
    ("POST", "/api/tasks/actions", {"action": "pause", "count": 0, "filter": {"tenant": "\0"}}, {422}),
    ("GET", "/api/deliveries?task=%00", None, {422}),
    ("GET", "/api/deliveries?subscription=%00", None, {422}),
    ("DELETE", "/api/subscriptions/%00", None, {404}),
    ("POST", "/api/tasks/{}/signals/%00", {"value": 1}, {404}),
    ("POST", "/api/tasks/{}/signals/x", {"value": 1, "id": "\0"}, {422}),
    ("POST", "/api/tasks/{}/message", {"text": "hello", "id": "\0"}, {422}),
)
"""What a database cannot take: numbers that are larger than any record's, and the one character that no text there has."""


@not_memory
async def test_values_that_the_database_cannot_store_are_refused(url: str) -> None:
    app = Onward(url)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    async with app, serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        task_id = (await client.post("/api/tasks", json={"task": "echo"})).json()["task_id"]
        for method, path, body, wanted in BEYOND:
            answer = await client.request(method, path.format(task_id), json=body)
            assert answer.status_code in wanted, (method, path, answer.text)


@only_memory
async def test_a_name_may_have_a_slash_in_it(app: Onward) -> None:
    @app.task
    async def waits(ctx: Any) -> Any:
        return await ctx.signal("order/7")

    async with serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client, app.worker():
        task_id = (await client.post("/api/tasks", json={"task": "waits"})).json()["task_id"]
        sent = await client.post(f"/api/tasks/{task_id}/signals/order%2F7", json={"value": "go"})
        assert sent.status_code == 200, sent.text
        done = await client.get(f"/api/tasks/{task_id}/result", params={"timeout_s": 20})
        assert done.json()["result"] == "go"
        paused = await client.post("/api/queues/team%2Fa/pause")
        assert (paused.status_code, paused.json()["name"]) == (200, "team/a")


async def _raw(address: str, *parts: bytes) -> bytes:
    """The bytes that the server sends until it closes the connection, for bytes that no client would send; each part is sent
    after an answer to the part before."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    try:
        for number, part in enumerate(parts):
            if number:
                received += await asyncio.wait_for(reader.read(65536), 60)
            writer.write(part)
            await writer.drain()
        return received + await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return received
    finally:
        writer.close()


async def test_large_and_packed_bodies_are_refused_without_being_kept(tmp_path: Path) -> None:
    app = Onward(f"sqlite:///{tmp_path / 'onward.db'}", body_limit=1000)

    @app.task
    async def echo(ctx: Any, value: Any = None) -> Any:
        return value

    async def endless() -> Any:
        while True:
            yield b" " * 500

    headers = {"Content-Type": "application/json"}
    async with app, serving(app) as address, httpx2.AsyncClient(base_url=address, timeout=60) as client:
        response = await client.post("/api/tasks", content=b" " * 1001, headers=headers)
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        with contextlib.suppress(
            httpx2.TransportError
        ):  # a client that never stops sending is cut off, and may not read the reason
            assert (await client.post("/api/tasks", content=endless(), headers=headers)).status_code == 413
        packed = await client.post("/api/tasks", content=b"\x1f\x8b", headers={**headers, "Content-Encoding": "gzip"})
        assert (packed.status_code, packed.json()["code"]) == (415, "encoded_body")
        for request in (
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"POST /api/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"POST /api/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
            b"GET /api/tasks HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
            b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            received = await _raw(address, request)
            assert received == b"" or int(received.split(b" ", 2)[1]) >= 400, received[:200]
        assert (await client.get("/api/tasks")).json() == {"tasks": [], "next": None}


async def test_a_head_that_never_ends_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Onward(f"sqlite:///{tmp_path / 'onward.db'}")
    async with app, serving(app) as address:
        large = await _raw(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000)
        assert large == b"" or b" 431 " in large, large[:200]
        monkeypatch.setattr(heads, "HEADER_TIMEOUT_S", 0.1)
        slow = await _raw(address, b"GET /healthz HTTP/1.1\r\nHost")
        assert b" 408 " in slow, slow[:200]
        again = await _raw(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /health")
        assert b" 200 " in again
        assert b" 408 " in again, again
