"""What the app counts of itself, as Prometheus reads it; several worker processes are added up.

Labels are names the program knows (statuses, routes, methods), never anything a client sent.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["CONTENT_TYPE", "FOLDER_VARIABLE", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where worker processes keep their numbers; read by the client library when it is imported."""
_ROLLOUT_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_REQUEST_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 100)


class Metrics:
    """One app's numbers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._rollouts = Counter("task_app_rollouts", "Rollouts by how they ended", ["status"], registry=registry)
        self._decisions = Counter("task_app_decisions", "Decisions of rollouts that ended", registry=registry)
        self._seconds = Histogram(
            "task_app_rollout_seconds", "From arrival to answer", buckets=_ROLLOUT_SECONDS, registry=registry
        )
        self._running = Gauge(
            "task_app_rollouts_running", "Rollouts that play now", multiprocess_mode="livesum", registry=registry
        )
        self._refusals = Counter("task_app_refused", "Rollouts not begun, by reason", ["reason"], registry=registry)
        self._requests = Histogram(
            "task_app_request_seconds",
            "HTTP requests",
            ["route", "method", "status"],
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )

    def began(self) -> None:
        """A rollout plays."""
        self._running.inc()

    def ended(self, status: str, decisions: int, seconds: float) -> None:
        """A rollout that had begun has ended; `seconds` since its request arrived."""
        self._running.dec()
        self._rollouts.labels(status).inc()
        self._decisions.inc(decisions)
        self._seconds.observe(seconds)

    def refused(self, reason: str) -> None:
        """A rollout was not begun."""
        self._refusals.labels(reason).inc()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered; `route` is the route's pattern, not its address."""
        self._requests.labels(route, method, str(status)).observe(seconds)

    def text(self) -> bytes:
        """All numbers, those of other workers included."""
        if not os.environ.get(FOLDER_VARIABLE):
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)
