"""Secrets: the names that an app declares, the sources of their values, and the keyring through which a shift reads them.

The keyring reads a value right before each call of a function that needs it, so that a changed value is used. From then on the
value is masked in records and in the logs of this process.
"""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import os
import re
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onward.core import mask, secret
from onward.core.annotations import secret_str
from onward.core.control import Control, Park
from onward.core.secret import Secret, check_name, check_value
from onward.engine.context.arguments import is_async
from onward.engine.context.call import Call
from onward.engine.shift.scope import SCOPE
from onward.engine.shift.threads import Threads
from onward.errors import BadSetting, SecretMissing, UnfitSecret, UnknownSecret, UsageError

ENVIRONMENT = "environment"
MAX_FILE_BYTES = 65_536
"""The most bytes that a file with a secret may have."""

TENANT_MARK = "__"
"""Between the name of a secret and the tenant whose value it is, in the source: `STRIPE_KEY__acme`."""

_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,128}")

Source = str | Path | Mapping[str, str] | Callable[[str], str | None]
"""The source of values: "environment", a folder with a file for each name (as Docker and Kubernetes mount them), a mapping, or
a function of the name that returns None when there is no such secret."""


class Secrets:
    """The secrets that an app declares, and the source of their values."""

    quick: bool = True
    """Whether reading a value takes next to no time, so that it needs no thread."""
    _read_value: Callable[[str], str | None]
    _list_names: Callable[[], Iterable[str]]

    def __init__(self, source: Source = ENVIRONMENT) -> None:
        self.names: dict[str, Secret] = {}
        self.per_tenant: set[str] = set()
        """The names of which each tenant has a value of its own."""
        self._learned: dict[str, collections.deque[str]] = {}
        """The last values of each tenant, by their names in the source. They have one name in the masks."""
        self._lock = threading.Lock()
        self.source(source)

    def source(self, source: Source) -> None:
        """Read values from this source. Raises BadSetting."""
        self.quick = not callable(source)
        self._list_names = tuple
        if source == ENVIRONMENT:
            self._list_names = os.environ.keys
            self._read_value, self._missing = os.getenv, "the environment has no such variable"
        elif isinstance(source, Mapping):
            self._list_names = source.keys
            self._read_value, self._missing = source.get, "the mapping given to Onward(secrets=…) has no such key"
        elif isinstance(source, Path) or (isinstance(source, str) and "/" in source):
            self._list_names = functools.partial(_file_names, Path(source))
            self._read_value, self._missing = (
                functools.partial(_read_file, Path(source)),
                f"there is no such file in {source}",
            )
        elif callable(source):
            self._read_value, self._missing = source, "the function given to Onward(secrets=…) has none"
        else:
            raise BadSetting("secrets", source, "'environment', a folder (/PATH or ./PATH), a mapping or a function")

    def declare(self, name: str, *, per_tenant: bool = False) -> Secret:
        """Declare a secret of this name and return it. Raises UsageError for a name that could be read as the secret of a tenant."""
        check_name(name)
        if per_tenant and (TENANT_MARK in name or name.endswith("_")):
            raise UsageError(
                f"the secret {name!r} has a value for each tenant, named {name}{TENANT_MARK}TENANT: its own name has no {TENANT_MARK!r} "
                "and ends with no '_'"
            )
        if name in self.names and per_tenant != (name in self.per_tenant):
            raise UsageError(f"the secret {name!r} is declared twice, with and without per_tenant=True; decide on one")
        bound = {*self.per_tenant, *([name] if per_tenant else ())}
        for other in {*self.names, name}:
            if (owner := other.partition(TENANT_MARK)[0]) != other and owner in bound:
                raise UsageError(
                    f"the secret {other!r} would be the value of {owner!r} for a tenant, which every task could read; give it another name"
                )
        if per_tenant:
            self.per_tenant.add(name)
        return self.names.setdefault(name, Secret(name, self.value))

    def like(self, other: Secrets, *, own: bool) -> Secrets:
        """The names of another app, with the values of that app or (`own`) with the values of this one."""
        copy = Secrets()
        copy.names, copy.per_tenant = other.names, other.per_tenant
        source = self if own else other
        copy.quick, copy._read_value, copy._missing = source.quick, source._read_value, source._missing
        copy._list_names = source._list_names
        return copy

    def known(self, declared: Secret | str) -> str:
        """The name of a declared secret. Raises UnknownSecret."""
        name = str(getattr(declared, "name", declared))
        if name not in self.names:
            raise UnknownSecret(name, self.names)
        return name

    def value(self, name: str) -> str:
        """The value, which is masked from then on. Raises UnknownSecret, SecretMissing and UnfitSecret; UsageError for a secret of
        which each tenant has its own."""
        if self.known(name) in self.per_tenant:
            raise UsageError(
                f"each tenant has its own value of the secret {name!r}, and here no task says whose; give it to a step or a tool"
            )
        value = self._read_value(name)
        if value is None or not value:
            raise SecretMissing(name, self._missing)
        learn(name, check_value(name, value), mask.RECENT)
        return value

    def value_for(self, name: str, tenant: str | None) -> str:
        """The value for a task of this tenant. Raises as `value` does, and SecretMissing where this tenant has none of its own."""
        if self.known(name) not in self.per_tenant:
            return self.value(name)
        if tenant is not None and not _TENANT.fullmatch(tenant):
            raise SecretMissing(name, "the name of the task's tenant has characters that no secret's name has")
        own = name if tenant is None else f"{name}{TENANT_MARK}{tenant}"
        value = self._read_value(own)
        if value is None or not value:
            raise SecretMissing(name, f"{self._missing}: {own}")
        self._learn_own(name, {own: check_value(name, value)})
        return value

    def _learn_own(self, name: str, values: Mapping[str, str]) -> None:
        """Mask values of tenants: the last ones of each tenant."""
        with self._lock:
            new = {
                own: value
                for own, value in values.items()
                if value not in self._learned.setdefault(own, collections.deque())
            }
            if new:
                learn_all(name, new.values())
            for own, value in new.items():
                self._learned[own].append(value)
                if len(self._learned[own]) > mask.RECENT:
                    mask.forget(name, self._learned[own].popleft())

    def learn_values(self, name: str) -> None:
        """Mask the value of a secret, or the values of all tenants that the source lists. Raises SecretMissing and UnfitSecret."""
        if name not in self.per_tenant:
            self.value(name)
            return
        own_names = [own for own in (*self._list_names(),) if own == name or own.startswith(f"{name}{TENANT_MARK}")]
        values = {own: check_value(name, value) for own in own_names if (value := self._read_value(own))}
        if not values:
            raise SecretMissing(name, f"the source lists no name that begins with {name}{TENANT_MARK}")
        self._learn_own(name, values)

    def learn(self) -> None:
        """Mask the values that exist already, because a function may read them from the source by itself."""
        for name in self.names if self.quick else ():
            try:
                self.learn_values(name)
            except (SecretMissing, UnfitSecret):  # the task that needs it gets the error
                pass


def _file_names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _read_file(folder: Path, name: str) -> str | None:
    try:
        with (folder / name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnfitSecret(name, f"cannot be read from {folder} ({error.strerror})") from None
    if len(data) > MAX_FILE_BYTES:
        raise UnfitSecret(name, f"has more than {MAX_FILE_BYTES:,} bytes in {folder}")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UnfitSecret(name, f"is not UTF-8 in {folder}") from None


class Keyring:
    """The secrets of one shift: those of its app, and those that steps of its task made (`makes=`)."""

    def __init__(
        self, secrets: Secrets, threads: Threads, end: Callable[[Control], Control], tenant: str | None
    ) -> None:
        self._secrets, self._threads, self._end = secrets, threads, end
        self.tenant: str | None = tenant
        self._made: dict[str, str | None] = {}
        """The values that steps of this task made, by name; None for a value from an earlier shift."""
        self._remake: dict[str, Callable[[], Awaitable[Any]]] = {}
        """Functions that make a value again, by name."""

    async def value(self, name: str) -> str:
        """The value of a secret. Parks a task whose secret is missing, because no other attempt could succeed."""
        if name in self._made:
            if self._made[name] is None:
                await self._remake[name]()
            return self._made[name] or ""
        try:
            if self._secrets.quick:
                return self.declared_value(name)
            return str(await self._threads.run(self.declared_value, name))
        except (SecretMissing, UnknownSecret) as missing:
            raise self._end(Park(str(missing))) from None

    def declared_value(self, name: str) -> str:
        """The value of a secret of the app, for the tenant of this task. Raises SecretMissing."""
        return self._secrets.value_for(name, self.tenant)

    async def given(self, value: Any) -> Any:
        """A JSON value with a SecretStr in place of each reference. The check of a function's annotations then refuses it where
        the function does not take a secret."""
        values = {name: secret_str(await self.value(name)) for name in set(secret.names(value))}
        return secret.replaced(value, lambda item: values.get(secret.name_in(item) or ""))

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with the value of each `Secret` among its arguments: as a SecretStr where its annotation says so,
        as a string otherwise."""
        args, kwargs = _bind(function, args, kwargs)
        values = {item: await self.value(item.name) for item in _secrets_in([args, kwargs])}

        def resolve(item: Any) -> Any:
            if type(item) is Secret:
                return values.get(item)
            return secret_str(values[item.secret]) if type(item) is _AsSecretStr else None

        args, kwargs = secret.replaced((args, kwargs), resolve)
        if is_async(function):
            return await function(*args, **kwargs)
        result = await self._threads.run(function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def resolving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, wrapped so that it can be called with `Secret`s."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.call(function, *args, **kwargs)

        return call

    # ── secrets that steps make ──────────────────────────────────────────────────────────────────────────────────

    def making(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, wrapped so that its result becomes the secret of this name. The wrapper returns a reference, which is recorded."""

        async def make(*args: Any, **kwargs: Any) -> dict[str, str]:
            self.made(name, await self.call(function, *args, **kwargs))
            return secret.reference(name)

        make.__name__ = getattr(function, "__name__", name)
        return make

    def made(self, name: str, value: Any) -> None:
        """Keep the value of a secret that a step made, and mask it."""
        if hasattr(value, "get_secret_value"):
            value = value.get_secret_value()
        learn(name, check_value(name, value))
        if (old := self._made.get(name)) is not None:
            mask.forget(name, old)
        self._made[name] = value

    def remember(self, name: str, key: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Remember how to make a secret again: `make`, under the key of the step that made it first."""

        async def remake() -> None:
            scope = SCOPE.get()
            running, scope.key = scope.key, key  # the effect key of the step that made it first
            try:
                await make()
            finally:
                scope.key = running

        self._made.setdefault(name, None)
        self._remake[name] = remake

    def held(self, name: str) -> str:
        """The value that a step made in this shift. Raises UsageError."""
        if (value := self._made.get(name)) is None:
            raise UsageError(f"the secret {name!r} has to be made again for this; give it to a step, as an argument")
        return value

    def close(self) -> None:
        """Forget the secrets that steps made in this shift."""
        for name, value in self._made.items():
            if value is not None:
                mask.forget(name, value)
        self._made.clear()

    def makes(self) -> set[str]:
        """The names of the secrets that steps of this task made."""
        return set(self._made)


def resolve_secrets(keyring: Keyring, call: Call) -> None:
    """Have the secrets among the arguments of a step resolved right before each call of its functions."""
    if _secrets_in([call.args, call.kwargs]) or has_secret_default(call.function):
        call.function = keyring.resolving(call.function)
        call.undo = call.undo and keyring.resolving(call.undo)
        call.reconcile = call.reconcile and keyring.resolving(call.reconcile)


async def make_secret(keyring: Keyring, call: Call, name: str, run: Callable[[Call], Awaitable[Any]]) -> Secret:
    """Run a step whose result is a secret. Only the name of the secret is recorded."""
    check_name(name)
    if call.effect == "once" or call.undo is not None or call.reconcile is not None:
        raise UsageError(
            f"step {call.name!r} makes a secret, which is not recorded: after a crash it is run again, so it cannot be "
            "effect='once', and has no undo and no reconcile"
        )
    call.function = make = keyring.making(call.function, name)
    await run(call)
    scope = SCOPE.get()
    keyring.remember(name, scope.prefix + scope.last_name, functools.partial(make, *call.args, **call.kwargs))
    return Secret(name, keyring.held)


class PlaceholderSecrets(Secrets):
    """Secrets for a dry run, which calls no function and needs no value."""

    def value(self, name: str) -> str:  # noqa: ARG002 -- the same for all names
        return "(a secret, in a dry run)"

    def value_for(self, name: str, tenant: str | None) -> str:  # noqa: ARG002 -- the same for all
        return "(a secret, in a dry run)"


class _AsSecretStr(NamedTuple):
    """A `Secret` for a parameter that is annotated as a SecretStr."""

    secret: Secret


def _secrets_in(value: Any) -> set[Secret]:
    """The `Secret`s among arguments."""
    if type(value) is Secret:
        return {value}
    if type(value) is dict:
        value = value.values()
    elif type(value) not in {list, tuple, _AsSecretStr}:
        return set()
    return {used for item in value for used in _secrets_in(item)}


def has_secret_default(function: Callable[..., Any]) -> bool:
    """Whether a parameter of the function has a secret as its default."""
    plain = inspect.unwrap(function)
    defaults = [*(getattr(plain, "__defaults__", None) or ()), *(getattr(plain, "__kwdefaults__", None) or {}).values()]
    return any(type(default) is Secret for default in defaults)


def _bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with the secrets that are defaults. A secret for a SecretStr parameter is wrapped in `_AsSecretStr`."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature, or arguments that do not fit: the call itself raises
        return args, kwargs
    for name, parameter in bound.signature.parameters.items():
        argument = bound.arguments.get(name, parameter.default)
        if type(argument) is Secret:
            bound.arguments[name] = _AsSecretStr(argument) if "SecretStr" in str(parameter.annotation) else argument
    return bound.args, bound.kwargs


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_installed = False


def learn(name: str, value: str, recent: int | None = None) -> None:
    """Mask this value from now on, in records and in the logs of this process."""
    learn_all(name, [value], recent)


def learn_all(name: str, values: Iterable[str], recent: int | None = None) -> None:
    """Mask these values of one name from now on, as `learn` does."""
    global _installed  # noqa: PLW0603 -- one for the process
    mask.learn_all(name, values, recent)
    if not _installed:
        _installed = True
        _mask_logs()


def _mask_logs() -> None:
    """Mask log records in `Logger.callHandlers`: every record passes it complete, also for log handlers that are added later."""
    call_handlers = logging.Logger.callHandlers

    def masked(logger: logging.Logger, record: logging.LogRecord) -> None:
        if mask.on:
            _mask_record(record)
        call_handlers(logger, record)

    logging.Logger.callHandlers = masked  # type: ignore[method-assign, assignment]


_FIXED = frozenset(
    {"name", "levelname", "pathname", "filename", "module", "funcName", "threadName", "processName", "args", "exc_info"}
)
"""Attributes of every log record that never hold a secret, or are masked by other means."""


def _mask_record(record: logging.LogRecord) -> None:
    """Mask the values of secrets in a log record: in its message, its traceback and its extra attributes."""
    try:
        message = record.getMessage()
    except Exception:  # a log handler would report the error, and print the arguments with it
        message = f"{record.msg} {record.args}"
        record.msg, record.args = message, ()
    if _has_secret(message) or _has_secret(repr(record.args)):
        record.msg, record.args = mask.text(message), ()
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        if _has_secret(trace):
            record.exc_info, record.exc_text = None, mask.text(trace)
    for key, item in vars(record).items():
        if key not in _FIXED and isinstance(item, str | list | tuple | dict):
            vars(record)[key] = mask.value(item)


def _has_secret(text: str) -> bool:
    return mask.text(text) is not text
