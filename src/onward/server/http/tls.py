"""TLS for the server and for the metrics port: a certificate and its key, from two PEM files, TLS 1.2 or later.

The files are looked at now and then. When they have changed, as after a renewal, new connections get the new certificate; open ones keep
theirs. A pair that cannot be used is reported in the log, and the old one stays.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from pathlib import Path

from onward.core.clock import Clock, SystemClock
from onward.errors import BadSetting

log = logging.getLogger("onward.http")

LOOK_EVERY_S = 10.0
"""Seconds between two looks at the files."""

HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds in which a client must finish the handshake."""

MISMATCH = "KEY_VALUES_MISMATCH"

Stamp = tuple[int, int, int]


class Certificate:
    """A certificate with its key, and the context of the connections that use it."""

    def __init__(self, cert: str, key: str, clock: Clock) -> None:
        """Raises BadSetting where the files cannot be used."""
        self._cert, self._key, self._clock = cert, key, clock
        self._stamps = self._read_stamps()
        self.context: ssl.SSLContext = _context()
        _load(self.context, cert, key)
        warn_of_mode(key)
        self._look_at = self._clock.monotonic() + LOOK_EVERY_S

    def renew(self) -> None:
        """Load the files again if they have changed, at most every `LOOK_EVERY_S` seconds."""
        if self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + LOOK_EVERY_S
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        try:
            _load(_context(), self._cert, self._key)  # a try: a pair that does not match would spoil the context in use
            _load(self.context, self._cert, self._key)
        except BadSetting as error:  # they may be written one after the other: the next look tries again
            log.warning("the TLS certificate has changed and cannot be used; the old one stays: %s", error)
            return
        self._stamps = stamps
        log.info("the TLS certificate was loaded again from %s", self._cert)

    def _read_stamps(self) -> tuple[Stamp, Stamp] | None:
        try:
            return _stamp(self._cert), _stamp(self._key)
        except OSError:
            return None


def certificate(cert: str, key: str, clock: Clock | None = None) -> Certificate | None:
    """The certificate that the settings name; None where they name none. Raises BadSetting."""
    if not cert and not key:
        return None
    if not cert or not key:
        missing, given = ("ONWARD_TLS_CERT", "ONWARD_TLS_KEY") if not cert else ("ONWARD_TLS_KEY", "ONWARD_TLS_CERT")
        raise BadSetting(missing, "", f"the path of a PEM file, because {given} is set: TLS needs both")
    return Certificate(cert, key, clock or SystemClock())


def warn_of_mode(key: str) -> None:
    """Log a warning when all users of this machine can read the key."""
    mode = stat.S_IMODE(Path(key).stat().st_mode)
    if os.name == "posix" and mode & stat.S_IRWXO:
        log.warning(
            "every user of this machine can read or change the TLS key %s (mode %o): chmod o= %s", key, mode, key
        )


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _stamp(path: str) -> Stamp:
    status = Path(path).stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load(context: ssl.SSLContext, cert: str, key: str) -> None:
    for name, path in (("ONWARD_TLS_CERT", cert), ("ONWARD_TLS_KEY", key)):
        try:
            Path(path).open("rb").close()  # says which of the two files cannot be read
        except OSError as error:
            raise BadSetting(name, path, f"a readable PEM file ({error.strerror})") from None
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _Encrypted:
        raise BadSetting(
            "ONWARD_TLS_KEY", key, "a key without a passphrase (openssl pkey -in KEY -out PLAIN)"
        ) from None
    except ssl.SSLError as error:
        if error.reason == MISMATCH:
            raise BadSetting(
                "ONWARD_TLS_KEY", key, f"the key of the certificate {cert}, and belongs to another"
            ) from None
        raise BadSetting(
            "ONWARD_TLS_CERT", cert, f"a certificate in PEM, with its key in {key} ({error.reason})"
        ) from None


class _Encrypted(Exception):
    """The key has a passphrase."""


def _no_password() -> bytes:
    raise _Encrypted  # without this, OpenSSL would ask for it at the terminal
