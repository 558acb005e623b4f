"""Sessions of the Claude Agent SDK in the database of an app: `pip install 'onward[claude]'`.

The documents, by the first part of their keys:

- `h` project, session: when the session was last written, and the summary that the SDK keeps of it
- `t` project, session, subpath, id: an entry of a transcript. The main transcript has an empty subpath. Ids are in the order of time
- `u` project, session, subpath, uuid: which entries are there, since the SDK sends a batch again when it is in doubt
"""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from onward.core.ids import Ids
from onward.integrations.bridge import App, Bridge
from onward.integrations.versions import check_version
from onward.store.shared.documents import Span, key, parts_of, span

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionStoreEntry, SessionStoreListEntry
    from claude_agent_sdk.types import SessionListSubkeysKey, SessionSummaryEntry

COLLECTION = "claude.sessions"

MAX_LOCKS = 1_000
"""Sessions whose writes wait for each other in this process. A session has one writer, so more are rare."""


class OnwardSessionStore:
    """A session store of the Claude Agent SDK. Give it to `ClaudeAgentOptions(session_store=…)`: the SDK copies the transcript of each
    session to the database, and `resume=` continues a session on any machine.

    Sessions of a `tenant` are apart from those of others. Payloads are encrypted where the app has keys. Raises UsageError for a version of the
    SDK that does not fit, and ImportError when the SDK is not installed."""

    def __init__(self, app: App, *, tenant: str | None = None) -> None:
        check_version("claude-agent-sdk", "0.2.180", "0.3", "claude")
        self._bridge = Bridge(app)
        self._documents = app.store.documents.of(COLLECTION, tenant)
        self._ids: Ids = app._ids
        self._locks: collections.OrderedDict[str, asyncio.Lock] = collections.OrderedDict()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries to a transcript. An entry whose uuid is there already is left out."""
        if entries:
            await self._bridge.run(self._append(_place(key), cast("Sequence[Mapping[str, Any]]", entries)))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries of a transcript, in order; None where there is none."""
        return await self._bridge.run(self._load(_place(key)))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, and when each was last written."""
        found = await self._bridge.run(self._heads(project_key))
        return [{"session_id": session, "mtime": head["mtime"]} for session, head in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries that the SDK keeps of the sessions of a project."""
        found = await self._bridge.run(self._heads(project_key))
        return [{"session_id": session, "mtime": head["mtime"], "data": head["data"]} for session, head in found]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session: the transcripts of its subagents."""
        return await self._bridge.run(self._subpaths(key["project_key"], key["session_id"]))

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with the transcripts of its subagents; or one of these."""
        await self._bridge.run(self._delete(_place(key)))

    # ── in the loop of the app ───────────────────────────────────────────────────────────────────────────────────

    async def _append(self, place: tuple[str, str, str], entries: Sequence[Mapping[str, Any]]) -> None:
        async with self._lock(place[:2]):
            marks = {key("u", *place, str(entry["uuid"])) for entry in entries if entry.get("uuid")}
            known = set(await self._documents.read(sorted(marks)))
            puts: dict[str, bytes] = {}
            added = []
            for entry in entries:
                if entry.get("uuid"):
                    mark = key("u", *place, str(entry["uuid"]))
                    if mark in known:
                        continue
                    known.add(mark)
                    puts[mark] = b""
                puts[key("t", *place, self._ids())] = json.dumps(entry, separators=(",", ":")).encode()
                added.append(entry)
            if added and not place[2]:
                puts[key("h", *place[:2])] = await self._folded(place[:2], added)
            await self._documents.write(puts)

    async def _folded(self, place: tuple[str, ...], entries: Sequence[Mapping[str, Any]]) -> bytes:
        """The head of a session after these entries. The SDK makes the summary; only it knows what is in it."""
        from claude_agent_sdk import fold_session_summary  # noqa: PLC0415 -- an extra

        head = key("h", *place)
        before = (await self._documents.read([head])).get(head)
        project, session = place
        previous = None if before is None else {"session_id": session, **json.loads(before)}
        fold = cast("Callable[..., Mapping[str, Any]]", fold_session_summary)
        summary = fold(previous, {"project_key": project, "session_id": session}, list(entries))
        written = int(self._bridge.app._clock.now() * 1000)
        return json.dumps({"mtime": written, "data": summary["data"]}).encode()

    async def _load(self, place: tuple[str, str, str]) -> list[SessionStoreEntry] | None:
        found: list[Any] = []
        seen: set[str] = set()
        async for _, data in self._documents.scan(span("t", *place)):
            entry = json.loads(data)
            uuid = entry.get("uuid")
            if not uuid or uuid not in seen:  # two processes may have added it at the same time
                found.append(entry)
                seen.add(uuid)
        return found or None

    async def _heads(self, project: str) -> list[tuple[str, dict[str, Any]]]:
        return [(parts_of(at)[2], json.loads(data)) async for at, data in self._documents.scan(span("h", project))]

    async def _subpaths(self, project: str, session: str) -> list[str]:
        found: list[str] = []
        start, stop = span("t", project, session)
        while keys := await self._documents.first_keys(Span(start, stop), 1):
            subpath = parts_of(keys[0])[3]
            found += [subpath] if subpath else []
            start = span("t", project, session, subpath).stop  # behind the other entries of this transcript
        return found

    async def _delete(self, place: tuple[str, str, str]) -> None:
        parts = place if place[2] else place[:2]
        if not place[2]:
            await self._documents.write({}, drops=[key("h", *parts)])
        await self._documents.drop(span("t", *parts), span("u", *parts))

    def _lock(self, place: tuple[str, ...]) -> asyncio.Lock:
        name = key(*place)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._locks.move_to_end(name)
        while len(self._locks) > MAX_LOCKS and not next(iter(self._locks.values())).locked():
            self._locks.popitem(last=False)
        return lock


def _place(key_: SessionKey) -> tuple[str, str, str]:
    return key_["project_key"], key_["session_id"], key_.get("subpath") or ""
