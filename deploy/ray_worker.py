"""What a worker of a Ray cluster does: it labels the images that it is sent. Ray is not imported here."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from autodial.data.decoder_messages import watch_worker
from autodial.deploy.engine import LocalEngine, Work, versions
from autodial.deploy.predictor import Predictor
from autodial.deploy.rows import TableRow
from autodial.deploy.sources import FileState, ImageFile
from autodial.errors import AutodialError


@dataclass(frozen=True)
class Orders:
    """What every worker is told."""

    model: str
    """The name of the model's file, for messages."""
    work: Work
    device: str
    threads: int
    """CPUs that the model keeps busy, if it runs on the CPU."""
    decoders: int
    """Threads that decode."""
    folder: str
    """The working directory of whoever gives the orders, where relative paths start."""
    watched: bool
    """Whether decoders are listened to, as there (see `autodial.data.decoder_messages`)."""


class Started(NamedTuple):
    """How a worker started."""

    device: str
    provider: str
    reason: str
    cuda_failure: str | None
    versions: dict[str, str]
    host: str
    state: FileState | None
    """The state of the file that it looked at, if it was given one."""


class Done(NamedTuple):
    """Images that a worker labelled."""

    rows: list[TableRow]
    states: list[FileState]
    decoding: float
    """Seconds, divided by the number of threads."""
    running: float
    """Seconds."""


class Worker:
    """Labels images on one machine of a cluster."""

    def start(self, orders: Orders, model: bytes, seen: ImageFile | None) -> Started:
        """Load the model.

        Args:
            orders: what to do.
            model: the model's file.
            seen: an image to look for.

        Raises:
            InputError, WorkError: as `Predictor`.
        """
        with suppress(OSError):  # a machine without this folder sees that by the images
            os.chdir(orders.folder)
        if orders.watched:
            watch_worker()
        self._orders = orders
        with tempfile.TemporaryDirectory(prefix="autodial-", ignore_cleanup_errors=True) as folder:
            self._file = Path(folder) / "model.onnx"
            self._file.write_bytes(model)
            with self._naming_the_model():
                predictor = Predictor(self._file, orders.device, orders.threads)
        self._engine = LocalEngine(predictor, orders.work, orders.decoders)
        engine = self._engine
        return Started(
            *(engine.device, engine.provider, engine.reason, engine.cuda_failure, versions(), socket.gethostname()),
            state=None if seen is None else seen.look().state,
        )

    def label(self, images: Sequence[ImageFile]) -> Done:
        """Label images; raises as `LocalEngine.label`."""
        engine = self._engine
        engine.decoding = engine.running = 0.0
        rows: list[TableRow] = []
        states: list[FileState] = []
        with self._naming_the_model():
            for part in engine.label(iter(images)):
                rows += part.rows()
                states += part.states
        return Done(rows, states, engine.decoding, engine.running)

    @contextmanager
    def _naming_the_model(self) -> Iterator[None]:
        """Errors name the model as whoever gave the orders knows it."""
        try:
            yield
        except AutodialError as error:
            raise type(error)(str(error).replace(str(self._file), self._orders.model)) from None
