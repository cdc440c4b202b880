"""Triton's statistics of a model, as its clients read them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from autodial.deploy.serve.batching import BatchRecord, Timing
from autodial.deploy.serve.describe import VERSION

_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


class Statistics:
    """Counts of one model's requests and batches since the service began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(_PARTS, 0)
        self._nanoseconds: dict[str, int] = dict.fromkeys(_PARTS, 0)
        self._batches: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._images = self._executions = self._last = 0

    def succeeded(self, images: int, timing: Timing, output_seconds: float, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            self._images += images
            self._last = time.time_ns() // 10**6
            self._add("success", seconds)
            self._add("queue", timing.queue)
            self._add("compute_input", timing.decode)
            self._add("compute_infer", timing.run)
            self._add("compute_output", output_seconds)

    def failed(self, seconds: float) -> None:
        """Count a request that was refused."""
        with self._lock:
            self._add("fail", seconds)

    def ran(self, batch: BatchRecord) -> None:
        """Count a batch."""
        with self._lock:
            self._executions += 1
            of_size = self._batches[batch.images]
            of_size[0] += 1
            of_size[1] += int(batch.seconds * 1e9)

    def record(self, name: str) -> dict[str, object]:
        """An entry of Triton's `model_stats`."""
        nothing = {"count": 0, "ns": 0}
        with self._lock:
            return {
                "name": name,
                "version": VERSION,
                "last_inference": self._last,
                "inference_count": self._images,
                "execution_count": self._executions,
                "inference_stats": {
                    part: {"count": self._counts[part], "ns": self._nanoseconds[part]} for part in _PARTS
                },
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": size,
                        "compute_input": nothing,
                        "compute_infer": {"count": count, "ns": nanoseconds},
                        "compute_output": nothing,
                    }
                    for size, (count, nanoseconds) in sorted(self._batches.items())
                ],
                "memory_usage": [],
            }

    def _add(self, part: str, seconds: float) -> None:
        self._counts[part] += 1
        self._nanoseconds[part] += int(seconds * 1e9)
