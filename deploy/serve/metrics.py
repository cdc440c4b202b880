"""What Prometheus may know of the service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from autodial import __version__
from autodial.deploy.drift import Drift
from autodial.deploy.serve.batching import BatchRecord, Outcome

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The service's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Info("autodial", "The service's version.", registry=self.registry).info({"version": __version__})
        self.requests = Counter(
            "autodial_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "autodial_request_seconds",
            "From a request's head to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.images = Counter(
            "autodial_images", "Images by what became of them.", ["model", "status"], registry=self.registry
        )
        self.batch_images = Histogram(
            "autodial_batch_images", "Images per batch.", ["model"], buckets=_SIZES, registry=self.registry
        )
        self.part_seconds = Histogram(
            "autodial_part_seconds",
            "Time of a request's images in each part of their way: decode, queue, run.",
            ["model", "part"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue = Gauge(
            "autodial_queue_images", "Images being decoded, waiting or running.", ["model"], registry=self.registry
        )
        self.connections = Gauge("autodial_connections", "Open connections.", registry=self.registry)
        self.loads = Counter(
            "autodial_model_loads", "Model files loaded, and refused.", ["model", "outcome"], registry=self.registry
        )
        self.drift = Gauge(
            "autodial_drift_distance",
            "Distance of the last images' statistics from those of the model's training list, from 0 to 1.",
            ["model", "figure"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """One model's part of the metrics."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics = metrics
        self._name = name
        self._images = {status: metrics.images.labels(name, status) for status in ("ok", "damaged", "error")}
        self._batch = metrics.batch_images.labels(name)
        self._parts = {part: metrics.part_seconds.labels(name, part) for part in ("decode", "queue", "run")}

    def follow(self, under_way: Callable[[], int]) -> None:
        """Read the queue's length from a function."""
        self._metrics.queue.labels(self._name).set_function(under_way)

    def answered(self, outcome: Outcome) -> None:
        """Count a request's images."""
        errors = sum(error is not None for error in outcome.errors)
        damaged = sum(map(bool, outcome.damage))
        for status, count in (("ok", len(outcome.errors) - errors - damaged), ("damaged", damaged), ("error", errors)):
            if count:
                self._images[status].inc(count)
        self._parts["decode"].observe(outcome.timing.decode)
        self._parts["queue"].observe(outcome.timing.queue)
        self._parts["run"].observe(outcome.timing.run)

    def ran(self, batch: BatchRecord) -> None:
        """Count a batch."""
        self._batch.observe(batch.images)

    def drifted(self, drift: Drift) -> None:
        """Show a comparison with the training list."""
        for statistic in drift.statistics:
            self._metrics.drift.labels(self._name, statistic.name).set(statistic.distance)
        if drift.classes is not None:
            self._metrics.drift.labels(self._name, "classes").set(drift.classes.distance)

    def loaded(self, outcome: str) -> None:
        """Count a file that was loaded ("ok") or refused ("refused")."""
        self._metrics.loads.labels(self._name, outcome).inc()
