"""Keys: their form, how they are stored, and how the authenticator tells them apart."""

from __future__ import annotations

import asyncio
import operator
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import Onward
from onward.cli.commands.serve import _hosts
from onward.config import Settings
from onward.core import key as keys
from onward.core.caller import ANYBODY, SCOPES
from onward.errors import BadSetting, StoreUnavailable, Unauthorized, UsageError
from onward.server.access import auth
from onward.server.access.auth import CACHE_TTL_S, MAX_CACHED_KEYS, KeyAuthenticator, check_bind
from onward.server.live import pump
from onward.server.mcp import http as mcp_http
from onward.service.keys import Keys
from onward.store.port.core import Store
from tests.kit import HandClock, Through, Time, calm, eventually, sql

# ── the text of a key ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text())
def test_random_strings_are_no_keys_and_do_not_break_the_parser(text: str) -> None:
    assert keys.parse(text) is None


@given(st.text(alphabet="onw_live0123456789abcXYZ", max_size=90))
def test_strings_like_keys_are_no_keys(text: str) -> None:
    assert keys.parse(text) is None
    assert keys.parse(f"onw_live_{text}") is None


@given(st.integers(0, 200), st.characters())
def test_a_key_with_a_changed_character_is_refused(place: int, other: str) -> None:
    text = keys.new().text
    changed = text[: place % len(text)] + other + text[place % len(text) + 1 :]
    assert changed == text or keys.parse(changed) is None


def test_keys_have_a_prefix_and_are_unique() -> None:
    made = [keys.new() for _ in range(1000)]
    for token in made:
        assert re.fullmatch(r"onw_live_[0-9a-z]{12}_[0-9A-Za-z]{49}", token.text)
        assert keys.parse(token.text) == token
        assert token.id in token.text
    assert len({token.id for token in made}) == len({token.hash for token in made}) == 1000
    assert 62**43 > 2**255, "bits of the secret"
    assert keys.parse(made[0].text + "\n") is None
    assert keys.parse(keys.new("test").text) is not None


# ── how they are kept ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_only_the_hash_of_a_key_is_stored(app: Onward) -> None:
    made = await app.keys.create("ada", ["submit", "read"], tenant="acme", agent="fixer", expires="90d")
    secret = made.token.rpartition("_")[2]
    assert secret not in repr(made)
    for table in ("onward_keys", "onward_audit"):
        for row in await sql(app.store, f"SELECT * FROM {table}"):
            assert secret not in repr(row)
            assert secret[:43] not in repr(row)
    (listed,) = await app.keys.list()
    assert listed == made.key
    assert (listed.name, listed.tenant, listed.scopes, listed.agent) == ("ada", "acme", ("read", "submit"), "fixer")
    assert listed.expires_at is not None
    assert listed.expires_at - listed.created_at == pytest.approx(90 * 86400)
    assert listed.valid


async def test_invalid_keys_are_refused(app: Onward) -> None:
    with pytest.raises(BadSetting, match="one of read, submit, decide, admin"):
        await app.keys.create("ada", ["everything"])
    with pytest.raises(UsageError, match="a key without a scope opens nothing"):
        await app.keys.create("ada", [])
    with pytest.raises(UsageError, match="cannot have the scope admin"):
        await app.keys.create("ada", ["admin"], agent="fixer")
    for bad in ("", "a\nb", "x" * 513):
        with pytest.raises(UsageError, match="must be a string"):
            await app.keys.create(bad, ["read"])
        with pytest.raises(UsageError, match="must be a string"):
            await app.keys.create("ada", ["read"], tenant=bad)
    assert await app.keys.list() == []
    assert await app.audit() == []


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def statements() -> list[str]:
    """The statements that were needed."""
    return []


@pytest.fixture
def spied(store: Store, statements: list[str]) -> Any:
    def counted(name: str) -> Any:
        async def verb(*args: Any) -> Any:
            statements.append(name)
            return await operator.attrgetter(name)(store)(*args)

        return verb

    return Through(store, **{name: counted(name) for name in ("keys.get", "keys.exist", "keys.mark_used")})


@pytest.fixture
def gate(spied: Any, clock: HandClock) -> KeyAuthenticator:
    return KeyAuthenticator(Keys(spied), clock)


def bearer(token: str) -> str:
    return f"Bearer {token}"


async def refused(gate: KeyAuthenticator, header: str | None) -> str:
    with pytest.raises(Unauthorized) as refusal:
        await gate.caller(header)
    return str(refusal.value)


async def test_without_keys_all_callers_are_equal_until_the_first_key_in_every_process(
    store: Store, gate: KeyAuthenticator, spied: Any, clock: HandClock, time: Time, statements: list[str]
) -> None:
    other = KeyAuthenticator(Keys(spied), clock)  # as in another process
    for authenticator in (gate, other):
        assert await authenticator.caller(None) == ANYBODY
        assert await authenticator.still_valid(ANYBODY)
    assert await gate.caller(None) == ANYBODY
    assert statements == ["keys.exist", "keys.exist"], "once for each process, and not for each request"
    made = await Keys(store).create("ada", ["read"])
    time.move(CACHE_TTL_S)
    for authenticator in (gate, other):
        assert not await authenticator.still_valid(ANYBODY), "open streams end"
        await refused(authenticator, None)
        assert (await authenticator.caller(bearer(made.token))).name == "ada"
    await Keys(store).revoke(made.key.id)
    time.move(CACHE_TTL_S)
    for authenticator in (gate, other):
        await refused(authenticator, None)
        await refused(authenticator, bearer(made.token))
    assert statements.count("keys.exist") == 4, "once shut, it stays shut"


async def test_a_wrong_key_is_refused_also_by_a_keyless_server(gate: KeyAuthenticator) -> None:
    """A client with a key that reaches the wrong database gets an error, and not the rights of a keyless caller."""
    assert await gate.caller(None) == ANYBODY
    await refused(gate, bearer(keys.new().text))
    await refused(gate, "Basic YTpi")


async def test_a_key_names_its_caller(store: Store, gate: KeyAuthenticator, time: Time) -> None:
    made = await Keys(store).create("bot", ["decide", "read"], tenant="acme", agent="fixer")
    for header in (bearer(made.token), f"bearer {made.token}", f"BEARER   {made.token} "):
        caller = await gate.caller(header)
        assert (caller.tenant, caller.scopes, caller.key, caller.name, caller.agent) == (
            "acme",
            {"read", "decide"},
            made.key.id,
            "bot",
            "fixer",
        )


async def test_every_refusal_is_the_same_sentence(store: Store, gate: KeyAuthenticator, time: Time) -> None:
    made = await Keys(store).create("ada", SCOPES)
    short = await Keys(store).create("short", SCOPES, expires=1)
    gone = await Keys(store).create("gone", SCOPES)
    await Keys(store).revoke(gone.key.id)
    time.move(1)
    stranger = keys.new().text
    secret = stranger.rpartition("_")[2][:43]
    wrong = f"onw_live_{made.key.id}_{secret}"
    elsewhere = f"onw_test_{made.token.removeprefix('onw_live_')[:-6]}"
    shown = [
        None,
        "",
        "Bearer",
        "Bearer ",
        made.token,
        f"Basic {made.token}",
        bearer(made.token[:-1]),
        bearer(made.token + "x"),
        bearer(made.token.upper()),
        bearer(stranger),
        bearer(wrong + keys._checksum(wrong)),
        bearer(elsewhere + keys._checksum(elsewhere)),
        bearer(short.token),
        bearer(gone.token),
        bearer("onw_live_é"),
        "Bearer \x00",
    ]
    assert len({await refused(gate, header) for header in shown}) == 1
    assert (await gate.caller(bearer(made.token))).name == "ada"


async def test_a_wrong_secret_is_handled_like_an_unknown_key(
    store: Store, gate: KeyAuthenticator, time: Time, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same statements and one comparison of the same length, also for a cached key."""
    made = await Keys(store).create("ada", SCOPES)
    await gate.caller(bearer(made.token))
    await calm()
    compared: list[tuple[int, int]] = []
    real = auth.Keys.of.__globals__["hmac"].compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    wrong = f"onw_live_{made.key.id}_{keys.new().text.rpartition('_')[2][:43]}"
    ways = []
    for text in (wrong + keys._checksum(wrong), keys.new().text):
        statements.clear()
        compared.clear()
        for _ in range(2):
            await refused(gate, bearer(text))
        ways.append((list(statements), list(compared)))
    assert ways[0] == ways[1] == (["keys.get", "keys.get"], [(32, 32), (32, 32)])


async def test_a_request_costs_no_query_and_a_revocation_counts_within_two_seconds(
    store: Store, gate: KeyAuthenticator, time: Time, statements: list[str]
) -> None:
    made = await Keys(store).create("ada", SCOPES)
    caller = await gate.caller(bearer(made.token))
    await calm()
    statements.clear()
    for _ in range(100):
        assert await gate.caller(bearer(made.token)) == caller
        assert await gate.still_valid(caller)
    assert statements == []
    await Keys(store).revoke(made.key.id)
    time.move(CACHE_TTL_S)
    assert not await gate.still_valid(caller)
    await refused(gate, bearer(made.token))


def test_open_streams_end_within_two_seconds_of_a_revocation() -> None:
    """The server checks the key of an open stream now and then; its answer may be as old as any."""
    for pace in (pump.PACE.check, mcp_http.RECHECK_INTERVAL_S):
        assert CACHE_TTL_S + pace <= 2


async def test_open_streams_of_one_key_share_one_query(
    store: Store, gate: KeyAuthenticator, time: Time, statements: list[str]
) -> None:
    made = await Keys(store).create("ada", SCOPES)
    caller = await gate.caller(bearer(made.token))
    await calm()
    for _ in range(3):
        time.move(CACHE_TTL_S)
        statements.clear()
        for _ in range(50):
            assert await gate.still_valid(caller)
        assert statements == ["keys.get"]


async def test_a_key_expires_at_its_time_and_not_at_the_next_query(
    store: Store, gate: KeyAuthenticator, time: Time
) -> None:
    made = await Keys(store).create("ada", SCOPES, expires=10)
    time.move(9.5)
    assert (await gate.caller(bearer(made.token))).name == "ada"
    time.move(0.5)
    await refused(gate, bearer(made.token))


async def test_the_last_use_of_a_key_is_stored_in_the_background_once_a_minute(
    store: Store, gate: KeyAuthenticator, time: Time, statements: list[str]
) -> None:
    made = await Keys(store).create("ada", SCOPES)
    begun, noted = time.now, []

    async def written() -> bool:
        (key,) = await Keys(store).list()
        return key.last_used_at == time.now

    for _ in range(130):
        before = statements.count("keys.mark_used")
        await gate.caller(bearer(made.token))
        await asyncio.sleep(0)
        if statements.count("keys.mark_used") > before:
            assert await eventually(written)
            noted.append(time.now - begun)
        time.move(1)
    assert noted == [0, 60, 120]


async def test_the_cache_of_keys_is_bounded(store: Store, gate: KeyAuthenticator, time: Time) -> None:
    made = [await Keys(store).create(f"k{n}", ["read"]) for n in range(3)]
    for n in range(MAX_CACHED_KEYS + 10):
        gate._callers[str(n).encode()] = (0.0, ANYBODY)
        gate._valid[str(n)] = 0.0
    for made_key in made:
        await gate.caller(bearer(made_key.token))
    before = len(gate._callers)
    for _ in range(30):
        await refused(gate, bearer(keys.new().text))
    assert len(gate._callers) == before, "refused keys are not cached"


async def test_without_a_database_all_keys_are_refused(spied: Any, clock: HandClock, store: Store) -> None:
    made = await Keys(store).create("ada", SCOPES)

    async def away(*_args: Any) -> Any:
        raise StoreUnavailable("away")

    gate = KeyAuthenticator(Keys(Through(store, **{"keys.get": away, "keys.exist": away})), clock)
    for header in (None, bearer(made.token)):
        with pytest.raises(StoreUnavailable):
            await gate.caller(header)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.3.2.1"])
def test_a_server_of_this_machine_may_be_keyless(host: str) -> None:
    check_bind(host, has_keys=False)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "10.0.0.1", "example.org", "", "[::]", "localhost.evil"]
)
def test_a_server_for_other_machines_may_not_be_keyless(host: str) -> None:
    with pytest.raises(UsageError, match="onward keys create"):
        check_bind(host, has_keys=False)
    check_bind(host, has_keys=True)


def test_an_address_of_ipv6_is_a_host_in_brackets() -> None:
    hosts = _hosts("fd00::5", Settings(hosts="Example.com fd00::7 [fd00::8]", public_url="https://Onward.example.com"))
    assert hosts >= {
        "[fd00::5]",
        "onward.example.com",
        "example.com",
        "[fd00::7]",
        "[fd00::8]",
        "[::1]",
        "localhost",
        "127.0.0.1",
    }
