"""Secrets by name: which tasks may name a secret, where its value comes from and goes to, and what happens to a task whose
secret is missing."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from onward import Onward, Retry, State
from onward.core import mask
from onward.core.clock import SystemClock
from onward.errors import (
    BadSetting,
    BadWebhook,
    InvalidInput,
    SecretMissing,
    StepFailed,
    UnfitSecret,
    UnknownSecret,
    UsageError,
)
from onward.service.submission import SubmitRequest
from onward.sinks import signature
from onward.sinks.webhook import Webhooks
from onward.testing import crashes, drain, memory_app
from tests.kit import eventually, not_memory, only_memory
from tests.secrecy.kit import VALUE

REF = {"$secret": "STRIPE_KEY"}


@pytest.fixture(autouse=True)
def _value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIPE_KEY", VALUE)
    monkeypatch.setenv("NOT_DECLARED", "this-is-nobody's-business")


class Login(BaseModel):
    user: str
    password: SecretStr


async def reason(app: Onward, task_id: str) -> str:
    return str((await app.service.journal(task_id))[-1].value.get("reason"))


async def parked(app: Onward, task_id: str) -> str:
    async def look() -> bool:
        return (await app.get(task_id)).reason == "parked"

    await eventually(look)
    return await reason(app, task_id)


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reference_becomes_a_secretstr_or_the_annotated_type(app: Onward) -> None:
    key, seen = app.secret("STRIPE_KEY"), {}

    async def charge(amount: int, bare: Any, text: str, boxed: SecretStr, headers: dict[str, str]) -> str:
        seen["step"] = [bare, text, boxed.get_secret_value(), headers["X"], type(boxed).__name__]
        return f"charged {amount} with {text}"

    def plainly(key: str = key) -> str:  # a plain function, in a thread, that asks for it by itself
        seen["default"] = key
        return key

    @app.task
    async def pay(
        ctx: Any, token: SecretStr, login: Login, anything: Any, fixed: SecretStr = key, clear: str = key
    ) -> Any:
        seen["handler"] = [secret.get_secret_value() for secret in (token, login.password, anything, fixed)] + [clear]
        done = await ctx.step(charge, 5, key, key, boxed=key, headers={"X": key})
        return [done, await ctx.step(plainly), token, login, key]

    async with app.worker():
        task = await app.submit(pay, {"token": REF, "login": {"user": "me", "password": REF}, "anything": REF})
        result = await task.result("60s")
    assert seen["handler"] == [VALUE] * 5
    assert seen["step"] == [VALUE] * 4 + ["SecretStr"]
    assert seen["default"] == VALUE
    assert result == [
        "charged 5 with [secret STRIPE_KEY]",
        "[secret STRIPE_KEY]",
        REF,
        {"user": "me", "password": REF},
        REF,
    ]
    assert (await task.get()).input["token"] == REF


async def test_a_sync_handler_and_a_transaction_get_secrets_too(app: Onward) -> None:
    key, seen = app.secret("STRIPE_KEY"), []

    async def write(connection: Any, value: str) -> int:
        seen.append(value)
        return len(value)

    @app.task
    def plain(ctx: Any, token: SecretStr, fixed: str = key) -> Any:
        seen.extend([token.get_secret_value(), fixed])
        return ctx.transaction(write, key)

    async with app.worker():
        assert await (await app.submit(plain, REF)).result("60s") == len(VALUE)
    assert seen == [VALUE] * 3


@only_memory
async def test_undo_and_reconcile_get_secrets(app: Onward) -> None:
    key, seen = app.secret("STRIPE_KEY"), []

    def order(token: str) -> str:
        return "ordered"

    def take_back(token: str, result: str) -> None:
        seen.append((token, result))

    @app.task(retry=1)
    async def saga(ctx: Any) -> None:
        async with ctx.saga():
            await ctx.step(order, key, undo=take_back)
            raise ValueError("no more")

    async with app.worker():
        task = await app.submit(saga)
        await app.service.wait(task.id, 20)
    assert seen == [(VALUE, "ordered")]


@only_memory
async def test_a_model_with_a_secret_comes_back_from_a_step_as_it_was(app: Onward) -> None:
    app.secret("STRIPE_KEY")

    async def login(password: SecretStr) -> Login:
        return Login(user="me", password=password)

    @app.task
    async def enter(ctx: Any, password: SecretStr) -> str:
        made = await ctx.step(login, password)
        assert isinstance(made, Login)
        return "same" if made.password.get_secret_value() == VALUE else "other"

    async with app.worker():
        task = await app.submit(enter, REF)
        assert await task.result("60s") == "same"
    assert [r.value["result"] async for r in task.tail() if r.kind == "step.completed"] == [
        {"user": "me", "password": REF}
    ]


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Deep(BaseModel):
    logins: dict[str, list[Login | None]] = {}
    token: SecretStr | None = None


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "clear text": ({"token": "in-clear-text"}, InvalidInput, r'"token"|\'token\'.*\{"\$secret": "NAME"\}'),
    "stars": ({"token": "**********"}, InvalidInput, "clear text"),
    "the mask": ({"token": "[secret STRIPE_KEY]"}, InvalidInput, "clear text"),
    "deep": (
        {"token": REF, "deep": {"logins": {"a": [{"user": "u", "password": "in-clear-text"}]}}},
        InvalidInput,
        "clear text",
    ),
    "perhaps": ({"token": REF, "deep": {"token": "in-clear-text"}}, InvalidInput, "clear text"),
    "a SecretStr of one's own": ({"token": SecretStr("in-clear-text")}, InvalidInput, "never written"),
    "in a text": ({"token": REF, "note": f"the key is {VALUE}"}, InvalidInput, "'STRIPE_KEY' in clear text"),
    "not declared": ({"token": {"$secret": "NOT_DECLARED"}}, UnknownSecret, r"declared: STRIPE_KEY"),
    "a path": ({"token": {"$secret": "../../etc/passwd"}}, UnknownSecret, "declared"),
    "where it is not taken": ({"token": REF, "note": REF}, InvalidInput, "valid string"),
}


@pytest.mark.parametrize("which", REFUSED)
@pytest.mark.parametrize("near", ["with the code", "from afar"])
async def test_secrets_refused_at_submit_are_written_nowhere(app: Onward, which: str, near: str) -> None:
    value, kind, words = REFUSED[which]
    app.secret("STRIPE_KEY")

    @app.task
    async def pay(ctx: Any, token: SecretStr, deep: Deep | None = None, note: str = "") -> None: ...

    app.secrets.learn()  # as an app does when it is opened
    target = app
    if near == "from afar":
        if (
            which in {"where it is not taken", "a SecretStr of one's own", "in a text"}
            or app.store.where == "SQLite in memory"
        ):
            pytest.skip("the worker judges that, or there is no other process")
        async with app.worker():
            pass
        target = Onward(app.settings.db)
    async with target:
        with pytest.raises(kind, match=words) as raised:
            await target.submit("pay", value)
        assert "in-clear-text" not in str(raised.value)
        assert VALUE not in str(raised.value)
        assert (await target.list())[0] == []


@only_memory
async def test_a_secret_is_refused_as_a_name(app: Onward) -> None:
    app.secret("STRIPE_KEY").get_secret_value()

    @app.task
    async def work(ctx: Any) -> None: ...

    for option in ({"key": f"pay {VALUE}"}, {"group": VALUE}, {"queue": VALUE}):
        with pytest.raises(UsageError, match=r"\[secret STRIPE_KEY\]"):
            await app.submit(work, **option)
    webhooks = Webhooks(f"whsec_{'A' * 44}", "true", SystemClock())
    with pytest.raises(BadWebhook, match=r"value of a secret"):
        webhooks.check(f"http://127.0.0.1:1/{urllib.parse.quote(VALUE)}?key={urllib.parse.quote(VALUE)}", own=False)
    task = await app.submit(work, labels={"who": VALUE})
    assert (await task.get()).labels == {"who": "[secret STRIPE_KEY]"}


@only_memory
async def test_a_parameter_with_a_default_secret_takes_no_other(app: Onward) -> None:
    key = app.secret("STRIPE_KEY")

    @app.task
    async def pay(ctx: Any, amount: int, key: str = key) -> None: ...

    assert "key" not in app.handlers["pay"].registration()["input"]["properties"]
    for other in ("another", REF, {"$secret": "NOT_DECLARED"}):
        with pytest.raises((InvalidInput, UnknownSecret)):
            await app.submit(pay, {"amount": 1, "key": other})


@only_memory
async def test_data_that_looks_like_a_reference_stays_data(app: Onward) -> None:
    app.secret("STRIPE_KEY")

    async def same(value: Any) -> Any:
        return value

    @app.task
    async def work(ctx: Any, value: dict[str, Any]) -> Any:
        # Data from elsewhere names no secret: only `app.secret` in the code does, and the submitted input.
        return [await ctx.step(same, value), await ctx.step(same, {"$secret": "STRIPE_KEY"})]

    async with app.worker():
        odd = {"$secret": "STRIPE_KEY", "and": "more"}
        assert await (await app.submit(work, {"value": odd})).result("60s") == [odd, REF]


# ── where values come from ───────────────────────────────────────────────────────────────────────────────────────────


@only_memory
async def test_sources(app: Onward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "K").write_text("from-a-file\n", encoding="utf-8")
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe" * 20)
    (tmp_path / "HUGE").write_bytes(b"x" * 100_000)
    folder = Onward("sqlite://:memory:", secrets=tmp_path)
    assert folder.secret("K").get_secret_value() == "from-a-file"
    for name, why in {"BINARY": "not UTF-8", "HUGE": "more than 65,536"}.items():
        with pytest.raises(UnfitSecret, match=why):
            folder.secret(name).get_secret_value()
    monkeypatch.setenv("ONWARD_SECRETS", str(tmp_path))
    assert Onward("sqlite://:memory:").secret("K").get_secret_value() == "from-a-file"
    names: list[str] = []
    own = Onward("sqlite://:memory:", secrets=lambda name: names.append(name) or "from-a-function")  # type: ignore[func-returns-value]
    assert own.secret("ANY").get_secret_value() == "from-a-function"
    assert names == ["ANY"]
    assert (
        Onward("sqlite://:memory:", secrets={"K": "from-a-mapping"}).secret("K").get_secret_value() == "from-a-mapping"
    )
    with pytest.raises(BadSetting, match="a folder"):
        Onward("sqlite://:memory:", secrets="vault")
    for bad in ("", "../K", "a b", 5, ".hidden"):
        with pytest.raises(UsageError, match="named by up to 128"):
            app.secret(bad)  # type: ignore[arg-type]
    with pytest.raises(UnfitSecret, match="fewer than 8"):
        Onward("sqlite://:memory:", secrets={"K": "short"}).secret("K").get_secret_value()
    assert "from-a" not in repr([own.secret("ANY"), str(own.secret("ANY"))])


@only_memory
async def test_a_source_that_fails_is_a_failure_like_any_other(url: str) -> None:
    calls: list[str] = []

    def vault(name: str) -> str:
        calls.append(name)
        if len(calls) < 3:
            raise ConnectionError("the vault is sealed")
        return VALUE

    app = Onward(url, poll_s=0.05, secrets=vault)
    key = app.secret("STRIPE_KEY")

    async def use(token: str) -> int:
        return len(token)

    @app.task
    async def work(ctx: Any) -> int:
        return int(await ctx.step(use, key, retry=Retry(attempts=5, first="10ms")))

    async with app, app.worker():
        assert await (await app.submit(work)).result("60s") == len(VALUE)
    assert len(calls) == 3


@pytest.mark.parametrize("where", ["input", "default", "step"])
async def test_a_secret_that_is_gone_parks_the_task_until_it_is_back(
    app: Onward, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    key = app.secret("STRIPE_KEY")
    monkeypatch.delenv("STRIPE_KEY")

    async def use(token: str) -> int:
        return len(token)

    async def work(ctx: Any, token: SecretStr | None = None) -> int:
        return int(await ctx.step(use, key if where == "step" else "x" * len(VALUE)))

    async def with_default(ctx: Any, token: str = key) -> int:
        return len(token)

    app.task(name="work")(with_default if where == "default" else work)
    async with app.worker():
        task = await app.submit("work", {"token": REF} if where == "input" else None)
        assert "'STRIPE_KEY' is not there (the environment has no such variable)" in await parked(app, task.id)
        monkeypatch.setenv("STRIPE_KEY", VALUE)
        await app.resume(task.id)
        assert await task.result("60s") == len(VALUE)


@only_memory
async def test_a_secret_that_the_worker_does_not_declare_parks_the_task(url: str) -> None:
    app = Onward(url, poll_s=0.05)

    @app.task
    async def work(ctx: Any, token: SecretStr) -> None: ...

    async with app, app.worker():
        app.secret("GONE")
        task = await app.submit(work, {"token": {"$secret": "GONE"}}, delay="200ms")
        del app.secrets.names["GONE"]  # the code that runs it is older than the code that submitted it
        assert "no secret is named 'GONE'" in await parked(app, task.id)


async def test_the_next_shift_reads_a_changed_secret(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    key, seen = app.secret("STRIPE_KEY"), []

    async def use(token: str) -> str:
        seen.append(token)
        return f"used {token}"

    @app.task
    async def work(ctx: Any, token: SecretStr) -> Any:
        first = await ctx.step(use, token.get_secret_value(), name=f"use {token.get_secret_value()}")
        await ctx.signal("go")
        return [first, await ctx.step(use, key, name="again"), token.get_secret_value()]

    async with app.worker():
        task = await app.submit(work, REF)
        await eventually(lambda: _waits(app, task.id))
        monkeypatch.setenv("STRIPE_KEY", "another-value-altogether")
        await app.signal(task.id, "go")
        assert await task.result("60s") == [
            "used [secret STRIPE_KEY]",
            "used [secret STRIPE_KEY]",
            "[secret STRIPE_KEY]",
        ]
    assert seen == [VALUE, "another-value-altogether"]


async def _waits(app: Onward, task_id: str) -> bool:
    return (await app.get(task_id)).state is State.WAITING


# ── secrets that steps make ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_secret_made_by_a_step_is_not_recorded_and_made_again_when_needed(app: Onward) -> None:
    logins: list[str] = []
    used: list[str] = []

    async def login(ctx: Any) -> str:
        logins.append(f"{ctx.key} session-{len(logins):08}")
        return f"session-{len(logins) - 1:08}"

    def call(token: str, what: str) -> str:
        used.append(token)
        return f"{what} with {token}"

    @app.task
    async def work(ctx: Any) -> Any:
        session = await ctx.step(lambda: login(ctx), name="login", makes="SESSION")
        first = await ctx.step(call, session, "first")
        await ctx.sleep("1.2s")  # the worker releases the task and the secrets that it had in memory
        second = await ctx.step(call, session, "second")
        third = await ctx.step(call, session, "third")
        return [first, second, third, session, str(session)]

    async with app.worker():
        task = await app.submit(work)
        result = await task.result("60s")
    assert result == [
        *[f"{n} with [secret SESSION]" for n in ("first", "second", "third")],
        {"$secret": "SESSION"},
        "[secret SESSION]",
    ]
    assert used == ["session-00000000", "session-00000001", "session-00000001"]
    assert {line.split()[0] for line in logins} == {f"{task.id}:login"}, "the same effect key"
    assert not mask.on, "a secret made in a shift is forgotten with the shift"
    assert b"session-0000" not in b"".join([r.data async for r in task.tail()])


@only_memory
async def test_a_step_that_makes_a_secret_is_repeatable_and_the_value_long_enough(app: Onward) -> None:
    @app.task(retry=1)
    async def work(ctx: Any, how: str) -> Any:
        options: dict[str, Any] = {"once": {"effect": "once"}, "undo": {"undo": print}}.get(how, {})
        try:
            return str(await ctx.step(lambda: "short" if how == "short" else 5, makes="SESSION", name="s", **options))
        except (StepFailed, UsageError) as error:
            return str(error)

    async with app.worker():
        results = {
            how: await (await app.submit(work, how)).result("60s") for how in ("once", "undo", "short", "number")
        }
    assert "cannot be effect='once'" in results["once"]
    assert "no undo" in results["undo"]
    assert "fewer than 8 characters" in results["short"]
    assert "must be a string" in results["number"]


async def test_killed_at_every_point_a_task_with_secrets_comes_to_the_same_end() -> None:
    app = Onward("sqlite://:memory:", secrets={"STRIPE_KEY": VALUE})
    key = app.secret("STRIPE_KEY")

    async def login(with_key: str) -> str:
        assert with_key == VALUE
        return "session-of-somebody"

    def use(token: str) -> str:
        assert token == "session-of-somebody"
        return f"done with {token}"

    @app.task
    async def work(ctx: Any, token: SecretStr) -> Any:
        session = await ctx.step(login, key, makes="SESSION")
        return [await ctx.step(use, session), await ctx.step(use, session), token.get_secret_value()]

    ends = []
    async for run in crashes(app):
        task = await run.submit(work, REF)
        assert await drain(run) == []
        ends.append(await task.result())
    assert len(ends) > 4
    assert all(end == [*["done with [secret SESSION]"] * 2, "[secret STRIPE_KEY]"] for end in ends)


async def test_tests_set_their_own_values() -> None:
    app = Onward("sqlite://:memory:")
    app.secret("STRIPE_KEY")

    @app.task
    async def work(ctx: Any, token: SecretStr) -> bool:
        return token.get_secret_value() == "for-tests"

    run = memory_app(app, secrets={"STRIPE_KEY": "for-tests"})
    async with run:
        task = await run.submit(work, REF)
        await drain(run)
        assert await task.result() is True


# ── settings are secrets too ─────────────────────────────────────────────────────────────────────────────────────────


def test_settings_do_not_show_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Onward("postgresql://me:hunter2-hunter2@127.0.0.1:1/x")
    assert "hunter2" not in repr(app.settings) + repr(app.store.where) + str(app.settings)
    (tmp_path / "onward.toml").write_text('dbb = "postgresql://me:hunter2-hunter2@h/x"', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting) as raised:
        Onward()
    assert "hunter2" not in str(raised.value)
    with pytest.raises(BadSetting) as raised:
        signature.parse("hunter2-hunter2-hunter2-hunter2")
    assert "hunter2" not in str(raised.value)


@only_memory
async def test_constraints_are_checked_by_the_worker(app: Onward) -> None:
    app.secret("STRIPE_KEY")

    @app.task(retry=1)
    async def work(ctx: Any, token: Annotated[SecretStr, Field(min_length=20, max_length=30)]) -> int:
        return len(token.get_secret_value())

    async with app.worker():
        assert await (await app.submit(work, {"token": REF})).result("60s") == len(VALUE)


@not_memory
async def test_a_value_that_code_reads_from_the_environment_is_masked(url: str) -> None:
    app = Onward(url, poll_s=0.05)
    app.secret("STRIPE_KEY")

    @app.task
    async def work(ctx: Any) -> str:
        return f"key={os.environ['STRIPE_KEY']}"

    async with app, app.worker():
        assert await (await app.submit(work)).result("60s") == "key=[secret STRIPE_KEY]"


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────

OWN = {tenant: f"sk_live_of_{tenant}_0123456789" for tenant in ("acme", "globex")}


def _sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The values of two tenants, and one for tasks without a tenant, in every kind of source."""
    values = {f"PAY_KEY__{tenant}": value for tenant, value in OWN.items()} | {"PAY_KEY": VALUE}
    for name, value in values.items():
        (tmp_path / name).write_text(value)
        monkeypatch.setenv(name, value)
    return {"environment": "environment", "folder": tmp_path, "mapping": values, "function": values.get}


@pytest.mark.parametrize("kind_of_source", ["environment", "folder", "mapping", "function"])
@only_memory
async def test_a_task_gets_the_value_of_its_tenant_and_no_other(
    kind_of_source: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Onward(url, secrets=_sources(tmp_path, monkeypatch)[kind_of_source], poll_s=0.05)
    key = app.secret("PAY_KEY", per_tenant=True)
    seen: list[tuple[str, str]] = []

    def charge(amount: int, key: str) -> str:
        seen.append(("step", key))
        return f"charged {amount} with {key}"

    def login() -> Login:
        return Login(user="me", password=SecretStr(seen[-1][1]))

    @app.task
    async def pay(ctx: Any, token: SecretStr) -> str:
        seen.append(("input", token.get_secret_value()))
        charged = await ctx.step(charge, 5, key)
        again: Login = await ctx.step(login)  # recorded by its name, and read again for the same tenant
        seen.append(("result", again.password.get_secret_value()))
        return str(charged)

    async with app, app.worker():
        for tenant, value in (*OWN.items(), (None, VALUE)):
            seen.clear()
            request = SubmitRequest("pay", {"token": {"$secret": "PAY_KEY"}}, tenant=tenant)
            (task_id,) = await app.service.submit([request])
            task = await app.service.wait(task_id, 30)
            assert (task.result, task.error) == ("charged 5 with [secret PAY_KEY]", None), "one name for all tenants"
            assert {value_seen for _, value_seen in seen} == {value}
            assert {where for where, _ in seen} == {"step", "input", "result"}
        (task_id,) = await app.service.submit(
            [SubmitRequest("pay", {"token": {"$secret": "PAY_KEY"}}, tenant="initech")]
        )
        why = await parked(app, task_id)
        assert "'PAY_KEY' is not there" in why
        assert "PAY_KEY__initech" in why
        assert not any(value in why for value in OWN.values())
        for odd in ("../acme", "a/b", "acme\n", "\u00e9"):
            with pytest.raises(SecretMissing):
                app.secrets.value_for("PAY_KEY", odd)
        for name in ("PAY_KEY__acme", "PAY_KEY__globex"):  # by its full name there is no way to it
            with pytest.raises(UnknownSecret):
                await app.submit("pay", {"token": {"$secret": name}})
        with pytest.raises(UsageError, match="each tenant has its own"):
            key.get_secret_value()


@only_memory
async def test_the_values_of_all_tenants_are_masked_from_the_start(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"PAY_KEY__t{number}": f"value-of-tenant-{number:04}" for number in range(mask.RECENT + 20)}
    for source in _sources(tmp_path, monkeypatch)["folder"], many:
        app = Onward(url, secrets=source)
        app.secret("PAY_KEY", per_tenant=True)
        async with app:
            values = OWN.values() if source is not many else many.values()
            assert {mask.text(value) for value in values} == {"[secret PAY_KEY]"}
        mask.clear()


def test_no_other_name_reaches_the_secret_of_a_tenant() -> None:
    app = Onward("sqlite://:memory:")
    app.secret("PAY_KEY", per_tenant=True)
    with pytest.raises(UsageError, match="the value of 'PAY_KEY' for a tenant"):
        app.secret("PAY_KEY__acme")
    with pytest.raises(UsageError, match="declared twice"):
        app.secret("PAY_KEY")
    app.secret("OTHER__acme")
    with pytest.raises(UsageError, match="the value of 'OTHER' for a tenant"):
        app.secret("OTHER", per_tenant=True)
    for name in ("A__B", "A_"):
        with pytest.raises(UsageError, match="its own name has no"):
            app.secret(name, per_tenant=True)
    assert app.secret("PAY_KEY", per_tenant=True).name == "PAY_KEY"
