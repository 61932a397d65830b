"""Figures for whoever collects them: the text format of Prometheus, and a server that gives it at `/metrics`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.errors import UsageError
from engine.protocol.addresses import given_address

ASKING_SECONDS = 5.0
"""Who has not asked by then is hung up on."""


Family = GaugeMetricFamily | CounterMetricFamily


class Figures(Collector):
    """Metrics whose names begin alike, each with all its samples."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._metrics: dict[str, Family] = {}

    def gauge(self, name: str, says: str, value: float, **labels: str) -> None:
        """A sample of what goes up and down."""
        self._add(GaugeMetricFamily, name, says, value, labels)

    def counter(self, name: str, says: str, value: float, **labels: str) -> None:
        """A sample of what only grows for as long as its process lives; `_total` is put behind the name."""
        self._add(CounterMetricFamily, name, says, value, labels)

    def _add(self, kind: type[Family], name: str, says: str, value: float, labels: dict[str, str]) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = kind(f"{self._prefix}_{name}", says, labels=list(labels))
        metric.add_metric(list(labels.values()), value)

    def collect(self) -> Iterable[Metric]:
        """As the library wants them."""
        return self._metrics.values()

    def text(self) -> str:
        """All of them in the text format of Prometheus, version 0.0.4."""
        return generate_latest(self).decode()


class MetricsServer(ThreadingTCPServer):
    """Gives a text to whoever asks for `/metrics`, or 503 while there is none.

    Each who asks has a thread, so that who is connected and says nothing, or reads slowly, keeps nobody waiting.
    (An `HTTPServer` asks a name service for its own name before it listens, and is told by nobody how long that takes.)
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, text: Callable[[], str | None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.text = text
        super().__init__((host, port), _Asked)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else host
        return f"http://{shown!s}:{port}/metrics"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Mostly, who asked has hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Asked(BaseHTTPRequestHandler):
    timeout = ASKING_SECONDS
    server: MetricsServer

    def do_GET(self) -> None:  # http.server names it so
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = self.server.text()
        if text is None:
            self.send_error(503, "there are no figures yet")
            return
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def metrics_server(listen: str, text: Callable[[], str | None]) -> MetricsServer:
    """A server at HOST:PORT (port 0: any), which is yet to serve. Raises UsageError if it cannot listen there."""
    try:
        host, port = given_address(listen)
        return MetricsServer(host, port, text)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    except OSError as error:
        raise UsageError(f"--listen {listen}: {error.strerror}; name another address") from error
