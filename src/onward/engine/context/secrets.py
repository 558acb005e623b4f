"""Secrets: the names that an app declares, where their values come from, and the keyring with which a shift gets at them.

A value is asked for right before the function is called that needs it, and every time anew, so that a changed one is found. From
then on the masks know it, and the logs of this process are looked through as well.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onward.core import mask, secret
from onward.core.control import Control, Park
from onward.core.secret import Secret, SecretMissing, UnfitSecret, UnknownSecret, check_name, check_value
from onward.engine.context.arguments import is_async, lent
from onward.engine.context.host import Call, Host
from onward.engine.shift.scope import SCOPE
from onward.engine.shift.threads import Threads
from onward.errors import BadSetting, UsageError

ENVIRONMENT = "environment"
LARGEST = 65_536
"""Bytes of a file that holds a secret."""

Source = str | Path | Mapping[str, str] | Callable[[str], str | None]
"""Where values come from: "environment", a folder with a file for each name (as Docker and Kubernetes mount them), a mapping, or
a function that is given a name; None means that there is none."""


class Secrets:
    """What an app calls a secret."""

    quick = True
    """Whether asking costs next to nothing, so that it needs no thread."""
    _ask: Callable[[str], str | None]

    def __init__(self, source: Source = ENVIRONMENT) -> None:
        self.names: dict[str, Secret] = {}
        self.source(source)

    def source(self, source: Source) -> None:
        """Take values from here. Raises BadSetting."""
        self.quick = not callable(source)
        if source == ENVIRONMENT:
            self._ask, self._where = os.getenv, "the environment has no such variable"
        elif isinstance(source, Mapping):
            self._ask, self._where = source.get, "the mapping given to Onward(secrets=…) has no such key"
        elif isinstance(source, Path) or (isinstance(source, str) and "/" in source):
            self._ask, self._where = functools.partial(_read, Path(source)), f"there is no such file in {source}"
        elif callable(source):
            self._ask, self._where = source, "the function given to Onward(secrets=…) has none"
        else:
            raise BadSetting("secrets", source, "'environment', a folder (/PATH or ./PATH), a mapping or a function")

    def declare(self, name: str) -> Secret:
        """A secret of this name may be used from now on."""
        return self.names.setdefault(check_name(name), Secret(name, self.value))

    def like(self, other: Secrets, *, own: bool) -> Secrets:
        """The secrets of another app, with its values, or with those from here."""
        made = Secrets()
        made.names = other.names
        source = self if own else other
        made.quick, made._ask, made._where = source.quick, source._ask, source._where
        return made

    def known(self, one: Secret | str) -> str:
        """The name of one that was declared. Raises UnknownSecret."""
        name = str(getattr(one, "name", one))
        if name not in self.names:
            raise UnknownSecret(name, self.names)
        return name

    def value(self, name: str) -> str:
        """The value, which the masks know from then on. Raises UnknownSecret, SecretMissing and UnfitSecret."""
        found = self._ask(self.known(name))
        if found is None or not found:
            raise SecretMissing(name, self._where)
        learn(name, check_value(name, found), mask.RECENT)
        return found

    def learn(self) -> None:
        """Mask from now on what is there already, also when a function takes it from there by itself."""
        for name in self.names if self.quick else ():
            try:
                self.value(name)
            except (SecretMissing, UnfitSecret):  # whoever needs it is told
                pass


def _read(folder: Path, name: str) -> str | None:
    try:
        with (folder / name).open("rb") as file:
            data = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnfitSecret(name, f"cannot be read from {folder} ({error.strerror})") from None
    if len(data) > LARGEST:
        raise UnfitSecret(name, f"has more than {LARGEST:,} bytes in {folder}")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UnfitSecret(name, f"is not UTF-8 in {folder}") from None


class Keyring:
    """The secrets of one shift: those of its app, and those that its own steps made."""

    def __init__(self, secrets: Secrets, threads: Threads, end: Callable[[Control], Control]) -> None:
        self._secrets, self._threads, self._end = secrets, threads, end
        self._made: dict[str, str | None] = {}
        """What steps of this task made, by name; None for what was made in an earlier shift."""
        self._again: dict[str, Callable[[], Awaitable[Any]]] = {}
        """How to make it again."""

    async def value(self, name: str) -> str:
        """The value of a secret. A task whose secret is gone parks: no attempt could go better."""
        if name in self._made:
            if self._made[name] is None:
                await self._again[name]()
            return self._made[name] or ""
        try:
            if self._secrets.quick:
                return self._secrets.value(name)
            return str(await self._threads.run(self._secrets.value, name))
        except (SecretMissing, UnknownSecret) as missing:
            raise self._end(Park(str(missing))) from None

    async def given(self, value: Any) -> Any:
        """A JSON value from outside with a SecretStr in the place of each reference: only where a function takes one do its
        annotations let it in."""
        values = {name: lent(await self.value(name)) for name in set(secret.names(value))}
        return secret.replaced(value, lambda one: values.get(secret.name_in(one) or ""))

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with the value of each `Secret` among its arguments: as a SecretStr where its annotation says so,
        as a text otherwise."""
        args, kwargs = _bound(function, args, kwargs)
        values = {one: await self.value(one.name) for one in _objects([args, kwargs])}
        args, kwargs = secret.replaced(
            (args, kwargs),
            lambda one: (
                values.get(one) if type(one) is Secret else lent(values[one.inner]) if type(one) is _Boxed else None
            ),
        )
        if is_async(function):
            return await function(*args, **kwargs)
        answer = await self._threads.run(function, *args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    def revealing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, to be called with `Secret`s."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.call(function, *args, **kwargs)

        return call

    # ── secrets that steps make ──────────────────────────────────────────────────────────────────────────────────

    def making(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, whose result is a secret of this name: what comes back, and is recorded, is its name."""

        async def make(*args: Any, **kwargs: Any) -> dict[str, str]:
            self.made(name, await self.call(function, *args, **kwargs))
            return secret.reference(name)

        make.__name__ = getattr(function, "__name__", name)
        return make

    def made(self, name: str, value: Any) -> None:
        """A step made this."""
        if hasattr(value, "get_secret_value"):
            value = value.get_secret_value()
        learn(name, check_value(name, value))
        if (old := self._made.get(name)) is not None:
            mask.forget(name, old)
        self._made[name] = value

    def remember(self, name: str, key: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """A step of this name and key made it, and can make it again when somebody needs it and it is not here."""

        async def again() -> None:
            scope = SCOPE.get()
            running, scope.key = scope.key, key  # the effect key is that of the step which made it first
            try:
                await make()
            finally:
                scope.key = running

        self._made.setdefault(name, None)
        self._again[name] = again

    def held(self, name: str) -> str:
        """What a step made, while it is at hand. Raises UsageError."""
        if (found := self._made.get(name)) is None:
            raise UsageError(f"the secret {name!r} has to be made again for this; give it to a step, as an argument")
        return found

    def close(self) -> None:
        """Forget what was made for this shift."""
        for name, value in self._made.items():
            if value is not None:
                mask.forget(name, value)
        self._made.clear()

    def makes(self) -> set[str]:
        """The names of what steps of this task made."""
        return set(self._made)


def with_secrets(keyring: Keyring, call: Call) -> None:
    """A step with secrets among its arguments: they are put in right before each function of it is called."""
    if _objects([call.args, call.kwargs]) or by_default(call.function):
        call.function = keyring.revealing(call.function)
        call.undo = call.undo and keyring.revealing(call.undo)
        call.reconcile = call.reconcile and keyring.revealing(call.reconcile)


async def making(host: Host, call: Call, name: str) -> Secret:
    """Run a step whose result is a secret. Only its name is recorded."""
    keyring = host.keyring
    check_name(name)
    if call.effect == "once" or call.undo is not None or call.reconcile is not None:
        raise UsageError(
            f"step {call.name!r} makes a secret, which is not recorded: after a crash it is run again, so it cannot be "
            "effect='once', and has no undo and no reconcile"
        )
    call.function = make = keyring.making(call.function, name)
    await host.run(call)
    scope = SCOPE.get()
    keyring.remember(name, scope.prefix + scope.last_name, functools.partial(make, *call.args, **call.kwargs))
    return Secret(name, keyring.held)


class StandIns(Secrets):
    """Secrets where nothing is done: a rehearsal needs no value."""

    def value(self, name: str) -> str:  # noqa: ARG002 -- all alike
        return "(a secret, in a rehearsal)"


class _Boxed(NamedTuple):
    """A `Secret` for a parameter that is annotated as a SecretStr."""

    inner: Secret


def _objects(value: Any) -> set[Secret]:
    """The `Secret`s among arguments."""
    if type(value) is Secret:
        return {value}
    if type(value) is dict:
        value = value.values()
    elif type(value) not in {list, tuple, _Boxed}:
        return set()
    return {one for item in value for one in _objects(item)}


def by_default(function: Callable[..., Any]) -> bool:
    """Whether a parameter of the function has a secret as its default."""
    plain = inspect.unwrap(function)
    defaults = [*(getattr(plain, "__defaults__", None) or ()), *(getattr(plain, "__kwdefaults__", None) or {}).values()]
    return any(type(one) is Secret for one in defaults)


def _bound(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with the secrets that are defaults, and those in a box that want one."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature, or a call that does not fit and says so itself
        return args, kwargs
    for name, parameter in bound.signature.parameters.items():
        given = bound.arguments.get(name, parameter.default)
        if type(given) is Secret:
            bound.arguments[name] = _Boxed(given) if "SecretStr" in str(parameter.annotation) else given
    return bound.args, bound.kwargs


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_installed = False


def learn(name: str, value: str, recent: int | None = None) -> None:
    """From now on this value is masked, in all that is written and in the logs of this process."""
    global _installed  # noqa: PLW0603 -- one for the process
    mask.learn(name, value, recent)
    if not _installed:
        _installed = True
        _mask_logs()


def _mask_logs() -> None:
    """Look through log records at the one place that every one passes with all that was added to it, on its way to handlers
    that may come later."""
    handle = logging.Logger.callHandlers

    def masked(logger: logging.Logger, record: logging.LogRecord) -> None:
        if mask.on:
            _mask_record(record)
        handle(logger, record)

    logging.Logger.callHandlers = masked  # type: ignore[method-assign, assignment]


_FIXED = frozenset(
    {"name", "levelname", "pathname", "filename", "module", "funcName", "threadName", "processName", "args", "exc_info"}
)
"""What a record has of its own, and no secret is in."""


def _mask_record(record: logging.LogRecord) -> None:
    """A log record without values of secrets: its message, its traceback, and whatever else was put into it."""
    try:
        said = record.getMessage()
    except Exception:  # the handlers would say what is wrong with it, and print it for that
        said = f"{record.msg} {record.args}"
        record.msg, record.args = said, ()
    if _changed(said) or _changed(repr(record.args)):
        record.msg, record.args = mask.text(said), ()
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        if _changed(trace):
            record.exc_info, record.exc_text = None, mask.text(trace)
    for key, item in vars(record).items():
        if key not in _FIXED and isinstance(item, str | list | tuple | dict):
            vars(record)[key] = mask.value(item)


def _changed(said: str) -> bool:
    return mask.text(said) is not said
