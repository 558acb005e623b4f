"""The HTTP server of a metrics port: a thread for each request, with TLS where there is a certificate."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from onward.server.http.tls import Certificate

log = logging.getLogger("onward.http")


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """A small HTTP server with a thread for each request. Its thread makes the TLS handshake, so a silent client holds up no other."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: Any, timeout_s: float, tls: Certificate | None) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family, self._timeout_s, self._tls = family, timeout_s, tls
        super().__init__((str(address[0]), int(address[1])), _QuietHandler)
        self.set_app(app)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        client, address = super().get_request()
        client.settimeout(self._timeout_s)
        if self._tls is None:
            return client, address
        self._tls.renew()
        return self._tls.context.wrap_socket(client, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 -- the names in the base class
        """A client that breaks off, or fails the handshake, is no error of this process."""
        log.debug("a request for metrics from %s failed: %s", client_address, sys.exception())


class _QuietHandler(WSGIRequestHandler):
    """A handler that logs no request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name in the base class
        """Log nothing."""
