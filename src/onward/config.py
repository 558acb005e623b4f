"""Settings: default < file (`onward.toml` in the working directory) < environment < argument."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.core.durations import seconds
from onward.core.identity import parse_role_map
from onward.core.session import MIN_IDLE_S
from onward.core.tenant_quota import NAMES as QUOTA_NAMES
from onward.core.tenant_quota import TenantQuota
from onward.errors import BadSetting

FILE_NAME = "onward.toml"

DEFAULT_DB = "sqlite:///onward.db"
DEFAULT_CONNECTIONS = 8
RESERVED_CONNECTIONS = 2
"""Connections of the heartbeat and of the listener: the others are for statements."""

_QUOTA = TenantQuota()


MAX_ENVIRONMENT_CHARS = 40


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of Onward, with its default. `docs/settings.md` explains each."""

    db: str = dataclasses.field(default=DEFAULT_DB, repr=False)
    engine: str = ""
    artifacts: str = "database"
    secrets: str = "environment"
    coordinator: str = dataclasses.field(default="store", repr=False)
    lease_s: float = 10.0
    heartbeat_s: float = 2.0
    poll_s: float = 0.5
    queue_limit: int = 100_000
    slots: int = 100
    code: str = ""
    connections: int = DEFAULT_CONNECTIONS
    grace_s: float = 10.0
    prune_after_s: float = 0.0
    webhook_secret: str = dataclasses.field(default="", repr=False)
    webhook_allow_private: str = ""
    host: str = "127.0.0.1"
    port: int = 8765
    tls_cert: str = ""
    tls_key: str = ""
    hosts: str = ""
    origins: str = ""
    body_limit: int = 4_194_304
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    log: str = "text"
    environment: str = ""
    mcp_expose: str = ""
    streams: int = 1_000
    public_url: str = ""
    oidc_issuer: str = ""
    oidc_client_id: str = ""
    oidc_client_secret: str = dataclasses.field(default="", repr=False)
    oidc_scopes: str = "openid email profile"
    oidc_person_claim: str = "sub"
    oidc_roles_claim: str = "groups"
    oidc_roles: str = ""
    oidc_tenant_claim: str = ""
    oidc_no_tenant: str = ""
    session_idle_s: float = 28_800.0
    session_max_s: float = 86_400.0
    audit_key: str = dataclasses.field(default="", repr=False)
    audit_heads: str = dataclasses.field(default="", repr=False)
    audit_heads_s: float = 60.0
    encryption_keys: str = dataclasses.field(default="", repr=False)
    encryption_label: str = ""
    encryption_plain: str = "accept"
    brokers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    bell: str = ""
    cache: str = "memory"
    intake_keep_s: float = 604_800.0
    quota_requests: int = _QUOTA.requests
    quota_key_requests: int = _QUOTA.key_requests
    quota_streams: int = _QUOTA.streams
    quota_sessions: int = _QUOTA.sessions
    quota_queue_share: int = _QUOTA.queue_share
    quota_tasks: int = _QUOTA.tasks
    quota_queues: int = _QUOTA.queues
    quota_running: int = _QUOTA.running
    quota_messages: int = _QUOTA.messages
    quota_keys: int = _QUOTA.keys
    quota_subscriptions: int = _QUOTA.subscriptions
    quota_priority: int = _QUOTA.priority
    quota_refused: int = _QUOTA.refused

    def __post_init__(self) -> None:
        if self.heartbeat_s * 2 > self.lease_s:
            raise BadSetting("heartbeat_s", self.heartbeat_s, f"at most half of lease_s ({self.lease_s:g})")
        if self.slots < 1:
            raise BadSetting("slots", self.slots, "1 or more")
        if self.connections < RESERVED_CONNECTIONS + 2:
            raise BadSetting("connections", self.connections, f"{RESERVED_CONNECTIONS + 2} or more")
        if self.audit_heads_s <= 0:
            raise BadSetting("audit_heads_s", self.audit_heads_s, "more than 0")
        if self.encryption_plain not in {"accept", "refuse"}:
            raise BadSetting("encryption_plain", self.encryption_plain, "accept or refuse")
        if self.log not in {"text", "json"}:
            raise BadSetting("log", self.log, "text or json")
        if len(self.environment) > MAX_ENVIRONMENT_CHARS or not self.environment.isprintable():
            raise BadSetting(
                "environment", self.environment[:80], f"a name of {MAX_ENVIRONMENT_CHARS} characters at most"
            )
        if not 0 <= self.metrics_port < 65536:
            raise BadSetting("metrics_port", self.metrics_port, "a port, or 0 for none")
        if self.public_url and not is_own_url(self.public_url):
            raise BadSetting("public_url", self.public_url, "https://HOST, or http:// for localhost, without a query")
        if self.oidc_issuer:
            self._check_oidc()
        self.tenant_quota  # noqa: B018 -- a quota that is impossible is refused here

    def _check_oidc(self) -> None:
        if not is_own_url(self.oidc_issuer):
            raise BadSetting("oidc_issuer", self.oidc_issuer, "https://HOST, or http:// for localhost, without a query")
        for name in ("oidc_client_id", "public_url"):
            if not getattr(self, name):
                raise BadSetting(name, "", "set, because oidc_issuer is")
        if "openid" not in self.oidc_scopes.split():
            raise BadSetting("oidc_scopes", self.oidc_scopes, "scopes with spaces between them, openid among them")
        if self.oidc_no_tenant and not self.oidc_tenant_claim:
            raise BadSetting("oidc_no_tenant", self.oidc_no_tenant, "empty, because oidc_tenant_claim is")
        if self.session_idle_s < MIN_IDLE_S:
            raise BadSetting("session_idle_s", self.session_idle_s, f"{MIN_IDLE_S:g} s or more")
        if self.session_max_s < self.session_idle_s:
            raise BadSetting("session_max_s", self.session_max_s, f"session_idle_s ({self.session_idle_s:g} s) or more")
        parse_role_map(self.oidc_roles)

    @property
    def tenant_quota(self) -> TenantQuota:
        """The quotas of a tenant that has none of its own."""
        return TenantQuota(**{name: getattr(self, f"quota_{name}") for name in QUOTA_NAMES})


def load(
    arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """The settings in force. Arguments that are None count as not given."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    values |= _from_file((folder or Path()) / FILE_NAME)
    values |= {
        f.name: environment[name]
        for f in dataclasses.fields(Settings)
        if f.name != "brokers" and (name := variable(f.name)) in environment
    }
    values |= {name: value for name, value in arguments.items() if value is not None}
    if brokers := _from_variables(environment):
        values["brokers"] = {**brokers, **values.get("brokers", {})}
    if values.get("engine"):
        values.setdefault("db", "")  # without one there is no mirror
    if "db" in values:
        values["db"] = read_secret("db", str(values["db"]))
    known = {f.name: f for f in dataclasses.fields(Settings)}
    for name in values.keys() - known.keys():
        # Without its value: a misspelled name may have a password.
        raise BadSetting(f"setting {name}", "…", f"one of {', '.join(known)}")
    return Settings(**{name: _convert(name, known[name].default, value) for name, value in values.items()})


_BROKER_VARIABLE = "ONWARD_BROKER_"
_BROKER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


def _from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The brokers that the environment names."""
    return {
        name.removeprefix(_BROKER_VARIABLE).lower(): url
        for name, url in environment.items()
        if name.startswith(_BROKER_VARIABLE)
    }


def _check_brokers(brokers: Any) -> dict[str, str]:
    if not isinstance(brokers, Mapping):
        raise BadSetting("brokers", "…", "names with URLs, as in brokers={'orders': 'nats://HOST:4222'}")
    for name, url in brokers.items():
        if not isinstance(name, str) or not _BROKER_NAME.fullmatch(name):
            raise BadSetting("the name of a broker", name, "1 to 40 of a-z, 0-9, _ and -")
        if not isinstance(url, str) or "://" not in url:
            raise BadSetting(f"{_BROKER_VARIABLE}{name.upper()}", "…", "a URL, as in nats://HOST:4222")
    return dict(brokers)


def read_secret(name: str, value: str) -> str:
    """The value of a setting that holds a secret. `file:///PATH` names a file with it. Raises BadSetting."""
    if not value.startswith("file://"):
        return value
    path = value.removeprefix("file:///" if os.name == "nt" else "file://")  # file:///C:/PATH
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BadSetting(variable(name), value, f"a readable file ({error})") from None
    if not secret:
        raise BadSetting(variable(name), value, "a file that is not empty")
    return secret


def is_own_url(url: str) -> bool:
    """Whether an address is https, or plain HTTP to this machine, without a query, a fragment, or a name and password."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    local = parts.scheme == "http" and host in {"localhost", "127.0.0.1", "::1"}
    plain = not (parts.query or parts.fragment or "@" in parts.netloc) and url.isascii() and url.isprintable()
    return bool(host) and plain and (parts.scheme == "https" or local)


def variable(name: str) -> str:
    """The environment variable of a setting. Each broker has its own."""
    return f"{_BROKER_VARIABLE}NAME" if name == "brokers" else f"ONWARD_{name.upper()}"


def to_display(settings: Settings, where: str) -> dict[str, Any]:
    """All settings for display: values that may hold a secret are masked. `where` is the database, without its password."""
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    secret = {f.name: "***" if values[f.name] else "" for f in dataclasses.fields(settings) if not f.repr}
    return values | secret | {"db": where, "brokers": ", ".join(settings.brokers)}


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(str(path), str(error), "a readable TOML file") from None


def _convert(name: str, default: Any, value: Any) -> Any:
    if name == "brokers":
        return _check_brokers(value)
    if isinstance(default, float):
        return seconds(value, variable(name))
    if isinstance(default, int):
        try:
            return int(value)
        except (TypeError, ValueError):
            raise BadSetting(variable(name), value, "a whole number") from None
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
