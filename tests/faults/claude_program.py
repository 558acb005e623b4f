"""Plays the program `claude` for fault tests: it speaks the same protocol with the SDK, and its model and tools note what they do.

As the real program does, it sends each entry of the transcript to the SDK, asks the SDK for permission, continues a transcript with
`--resume=`, and asks its model again about a call that has no result. It uses the standard library alone, because it starts often.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path

PLACES = ("hall", "yard", "roof")
ANSWER = "nothing in the hall, nothing in the yard, nothing in the roof, paid 7"
BUSY_S = 0.03
"""The longest pause in a model request or a tool."""
PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the worker is killed, and this program with it
    if "-v" in sys.argv:
        print("2.1.0 (Claude Code)")
        return
    options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
    program = Program(options.get("resume") or options["session-id"], resumed="resume" in options)
    for line in sys.stdin:
        frame = json.loads(line)
        if frame["type"] == "control_request":
            response = {"subtype": "success", "request_id": frame["request_id"], "response": {}}
            emit({"type": "control_response", "response": response})
        elif frame["type"] == "user":
            program.run(frame["message"]["content"])


def emit(frame: dict) -> None:
    print(json.dumps(frame), flush=True)


class Program:
    """One process of the program: a session from a prompt to its result."""

    def __init__(self, session: str, *, resumed: bool) -> None:
        self._session = session
        self._path = Path(os.environ["CLAUDE_CONFIG_DIR"], "projects", os.environ["CLERK_PROJECT"], f"{session}.jsonl")
        self._entries = [json.loads(line) for line in self._path.read_text().splitlines()] if resumed else []

    def run(self, prompt: str) -> None:
        self._drop_open_calls()
        self._write("user", {"role": "user", "content": prompt})
        while True:
            calls = self._ask_model()
            if not calls:
                self._end(ANSWER)
                return
            for call, name, given in calls:
                if name == "Pay" and not self._may(name, given):
                    self._result(call, "a person has to decide", is_error=True)
                    self._end(None)
                    return
                self._result(call, self._call(name, given))

    def _drop_open_calls(self) -> None:
        """Calls without a result were cut off: the model is told so."""
        answered = {part["tool_use_id"] for part in self._parts("tool_result")}
        for part in self._parts("tool_use"):
            if part["id"] not in answered:
                self._result(part["id"], "interrupted", is_error=True)

    def _ask_model(self) -> list[tuple[str, str, dict]]:
        """The calls that the model wants next; none when it is done."""
        turn = sum(entry["type"] == "assistant" for entry in self._entries)
        self._note("asked", f"turn {turn}")
        done = {part["content"] for part in self._parts("tool_result")}
        wanted = [("Look", {"place": place}) for place in PLACES if f"nothing in the {place}" not in done]
        if not wanted and "paid 7" not in done:
            wanted = [("Pay", {"cents": 7})]
        calls = [(f"{turn}.{number}", name, given) for number, (name, given) in enumerate(wanted)]
        parts = [{"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in calls]
        content = parts or [{"type": "text", "text": ANSWER}]
        self._write("assistant", {"role": "assistant", "content": content}, f"turn {turn}")
        return calls

    def _call(self, name: str, given: dict) -> str:
        if name == "Look":
            self._note("looked", f"look {given['place']}")
            return f"nothing in the {given['place']}"
        if not self._has_paid():
            self._note("paid", "pay")
        return f"paid {given['cents']}"

    def _has_paid(self) -> bool:
        """The outside service knows a payment that it has seen. The transcript need not have it when the worker was killed."""
        with open(os.environ["CLERK_LEDGER"]) as ledger:
            return any(json.loads(line)[:2] == ["paid", os.environ["CLERK_TASK"]] for line in ledger)

    def _may(self, name: str, given: dict) -> bool:
        request = {"subtype": "can_use_tool", "tool_name": name, "input": given, "permission_suggestions": []}
        emit({"type": "control_request", "request_id": str(uuid.uuid4()), "request": request})
        line = sys.stdin.readline()
        if not line:
            os._exit(1)  # the worker was killed
        answer = json.loads(line)
        return answer["response"]["response"]["behavior"] == "allow"

    def _result(self, call: str, text: str, *, is_error: bool = False) -> None:
        part = {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": is_error}
        self._write("user", {"role": "user", "content": [part]}, "" if is_error else f"result of {text}")

    def _write(self, kind: str, message: dict, done: str = "") -> None:
        entry = {"type": kind, "uuid": str(uuid.uuid4()), "sessionId": self._session, "message": message}
        entry |= {"timestamp": "2026-01-01T00:00:00.000Z", "done": done, "task": os.environ["CLERK_TASK"]}
        self._entries.append(entry)
        emit({"type": "transcript_mirror", "filePath": str(self._path), "entries": [entry]})

    def _parts(self, kind: str) -> list[dict]:
        contents = [entry["message"]["content"] for entry in self._entries]
        return [part for content in contents if isinstance(content, list) for part in content if part["type"] == kind]

    def _end(self, result: str | None) -> None:
        emit(
            {
                "type": "result",
                "subtype": "success" if result else "error_during_execution",
                "is_error": result is None,
                "duration_ms": 1,
                "duration_api_ms": 1,
                "num_turns": 1,
                "session_id": self._session,
                "result": result,
                "total_cost_usd": 0.0,
                "usage": {"input_tokens": 10, "output_tokens": 5},
            }
        )

    @staticmethod
    def _note(event: str, what: str) -> None:
        time.sleep(random.uniform(0, BUSY_S))
        line = json.dumps([event, os.environ["CLERK_TASK"], what, False, ""]) + "\n"
        with open(os.environ["CLERK_LEDGER"], "a") as ledger:
            ledger.write(line)
        time.sleep(random.uniform(0, BUSY_S))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(
            1
        )  # the worker was killed just now: without a word, since a traceback would count as a bug of the worker
