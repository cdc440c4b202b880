"""The models of a service: each a predictor, its batches and its counts; one is replaced as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autodial.data.image_statistics import Reference
from autodial.deploy.binding import Pixels
from autodial.deploy.drift import read_reference
from autodial.deploy.metadata import ModelInfo
from autodial.deploy.predictor import Predictor
from autodial.deploy.providers import CPU
from autodial.deploy.serve.batching import Batcher, BatchRecord, File, Outcome, Streams
from autodial.deploy.serve.describe import VERSION
from autodial.deploy.serve.drifting import DriftWindow
from autodial.deploy.serve.limits import Limits
from autodial.deploy.serve.metrics import Metrics, ModelMetrics
from autodial.deploy.serve.refusal import RefusalError
from autodial.deploy.serve.statistics import Statistics
from autodial.errors import InputError
from autodial.system.cpus import available_cpus
from autodial.wording import alternatives, printable, shortened

_NAME = re.compile(r"[^/\s\x00-\x1f%?#]+")
_RESERVED = ("stats",)
"""Names that a path of the protocol has taken."""


@dataclass(frozen=True)
class ModelOptions:
    """How a service runs its models."""

    device: str = "auto"
    """As for `Predictor`."""
    threads: int | None = None
    """CPUs that a model keeps busy; None for all."""
    batch_size: int = 32
    """Images that a model sees at once."""
    delay: float = 0.002
    """Seconds that an image waits for others at most, while the model is idle."""


def named_models(paths: Sequence[str | Path], names: Iterable[tuple[str, str | Path]]) -> dict[str, Path]:
    """Model files by name: `paths` by their files' names without suffix, and pairs of a name and a path.

    Raises:
        InputError: there is none, a name can't stand in an address, or two files have the same.
    """
    found: dict[str, Path] = {}
    for name, path in [*((Path(path).stem, path) for path in paths), *names]:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise InputError(f"{path}: {name!r} can't name a model in an address: give it another with `names`")
        if name in found:
            raise InputError(
                f"{path}: another model is named {name}, {found[name]}: give one another name with `names`"
            )
        found[name] = Path(path)
    if not found:
        raise InputError("there is no model to serve: name a file that `autodial export` wrote")
    return found


class LoadedModel(NamedTuple):
    """A model file, loaded."""

    predictor: Predictor
    streams: Streams | None
    """As for `Batcher`."""


class ServedModel:
    """One model file in service.

    Args:
        name: what clients call it.
        loaded: the file, loaded.
        options: how it is run.
        limits: how much of it may be under way.
        decoders: threads that decode.
        loop: where the requests wait.
        statistics: Triton's; they go on when the file is replaced.
        metrics: likewise.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        options: ModelOptions,
        limits: Limits,
        decoders: Executor,
        loop: asyncio.AbstractEventLoop,
        statistics: Statistics,
        metrics: ModelMetrics,
    ) -> None:
        self.name = name
        self.version = VERSION
        self.predictor = loaded.predictor
        self.info: ModelInfo = self.predictor.info
        self.statistics = statistics
        self.metrics = metrics
        self.reference: Reference | None = None
        self._window: DriftWindow | None = None
        if self.info.reference is not None:
            self.reference = read_reference(self.info, name)
            self._window = DriftWindow(self.reference, self.info.classes)
        self._seconds = limits.seconds
        self._batcher = Batcher(
            *loaded,
            decoders,
            loop,
            batch_size=options.batch_size,
            delay=options.delay,
            queue=limits.queue,
            on_batch=self._ran,
        )
        metrics.follow(lambda: self._batcher.under_way)

    async def run(self, images: Pixels | Sequence[File], *, measure: bool = False) -> Outcome:
        """As `Batcher.run`; the images are counted."""
        outcome = await self._batcher.run(images, measure=measure, seconds=self._seconds)
        self.metrics.answered(outcome)
        return outcome

    def note_drift(self) -> None:
        """Bring the drift in the metrics up to date."""
        if self._window is not None:
            self.metrics.drifted(self._window.drift())

    def close(self) -> None:
        """Take no more; what is under way gets its result."""
        self._batcher.close()

    def _ran(self, batch: BatchRecord) -> None:
        self.statistics.ran(batch)
        self.metrics.ran(batch)
        if self._window is not None:
            self._window.add(batch)


class Models:
    """All models of a service, by name.

    Args:
        paths: their files by name.
        options: how they are run.
        limits: of each.
        decoders: threads that decode, for all of them.
        metrics: the service's.
    """

    def __init__(
        self, paths: Mapping[str, Path], options: ModelOptions, limits: Limits, decoders: Executor, metrics: Metrics
    ) -> None:
        self.paths = dict(paths)
        self._options = options
        self._limits = limits
        self._decoders = decoders
        self._metrics = {name: ModelMetrics(metrics, name) for name in paths}
        self._statistics = {name: Statistics() for name in paths}
        self._loaded = {name: self.load(name) for name in paths}
        self._served: dict[str, ServedModel] = {}

    def load(self, name: str) -> LoadedModel:
        """The file of a model, loaded and tried; raises InputError or WorkError if it can't be served."""
        path, threads = self.paths[name], self._options.threads or available_cpus()
        predictor = Predictor(path, self._options.device, threads)
        if predictor.info.reference is not None:
            read_reference(predictor.info, path)
        streams = None
        if predictor.provider == CPU and threads > 1:
            streams = Streams(Predictor(path, "cpu", 1), threads)
        for each in [predictor] if streams is None else [predictor, streams.predictor]:
            each.run(np.zeros((1, *predictor.info.image_shape), np.uint8))
        return LoadedModel(predictor, streams)

    def start(self) -> None:
        """Begin to serve, in the event loop that runs."""
        for name, loaded in self._loaded.items():
            self.take_over(name, loaded)
        self._loaded.clear()

    def take_over(self, name: str, loaded: LoadedModel) -> None:
        """Serve a file, from the next request on, in the place of the one before it."""
        before = self._served.get(name)
        self._served[name] = ServedModel(
            name,
            loaded,
            self._options,
            self._limits,
            self._decoders,
            asyncio.get_running_loop(),
            self._statistics[name],
            self._metrics[name],
        )
        self._metrics[name].loaded("ok")
        if before is not None:
            before.close()

    def refused(self, name: str) -> None:
        """Count a file that can't be served."""
        self._metrics[name].loaded("refused")

    def close(self) -> None:
        """End all models' threads once they have done what is under way."""
        for model in self._served.values():
            model.close()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """The model of a name, and of a version where one is named; raises a RefusalError if there is none."""
        model = self._served.get(name)
        if model is None:
            raise RefusalError(
                404, f"unknown model: {shortened(printable(name), 80)}{alternatives(name, list(self._served))}"
            )
        if version is not None and version != model.version:
            raise RefusalError(404, f"the model {name} has the version {model.version} alone")
        return model
