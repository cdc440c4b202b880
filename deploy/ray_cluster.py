"""Labels images by the workers of a Ray cluster.

This process lists the images and writes the table, as it does without a cluster; workers read, decode and label. They
get consecutive images in whole batches, and their rows are put in order here, so that the table is the same. The images
of a worker that dies are sent to another one; a row is written once, when it has come back.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

from autodial.data.decoder_messages import is_watching
from autodial.deploy.engine import Labelled, Work, versions
from autodial.deploy.ray_worker import Done, Orders, Started, Worker
from autodial.deploy.sources import ImageFile
from autodial.deploy.weights_file import weights_file
from autodial.errors import TERMINATED, AutodialError, InputError, WorkError
from autodial.system.cpus import available_cpus
from autodial.wording import counted, shortened

LOCAL = "local"
"""The address that starts Ray on this machine alone."""

_BATCHES = 4
"""Batches that a worker is sent together."""
_BYTES = 2**24
"""Bytes of image files beyond which it is sent fewer."""
_AHEAD = 2
"""Such parts that a worker has before it, so that it never waits for the next."""
_TRIES = 3
"""Workers that may die of the same images, or one after the other as they start."""
_PATIENCE = 30.0
"""Seconds without any worker after which a warning says so."""
_ANSWERED = 10.0
"""Seconds in which the head of a cluster answers."""
_FORWARDED = ("OPENCV_IO_MAX_IMAGE_PIXELS", "OPENCV_IO_MAX_IMAGE_WIDTH", "OPENCV_IO_MAX_IMAGE_HEIGHT")
"""Variables that decide which images are decoded."""

_log = logging.getLogger(__name__)


@dataclass
class _Part:
    """Consecutive images."""

    number: int
    images: list[ImageFile]
    deaths: int = 0
    """Workers that died of it."""


@dataclass
class _Hand:
    """A worker of the cluster, and what it has been sent, in this order."""

    actor: Any
    starting: Any
    """Ray's reference to a `Started`; None when it has started."""
    sent: deque[tuple[Any, _Part]] = field(default_factory=deque)

    def next_answer(self) -> Any:
        """Ray's reference to what this worker answers next; None if it has nothing to do."""
        if self.starting is not None:
            return self.starting
        return self.sent[0][0] if self.sent else None


class Cluster:
    """The workers of a Ray cluster, as an engine; a context manager, which lets them go in the end.

    Args:
        address: "auto" for the cluster that this machine belongs to, or that RAY_ADDRESS names; `LOCAL`; HOST:PORT; or
            ray://HOST:PORT. Where this process has called `ray.init`, its cluster is taken.
        model: the model's file, which is sent to the workers.
        work: what to do.
        device: "auto" (GPUs if the cluster has any), "cpu" or "cuda".
        workers: how many; None for as many as there is room for.
        threads: CPUs of each worker.
        fetching: threads of each worker that decode, at least.

    Raises:
        InputError: no cluster is there, it has no room for a worker, `device` names one GPU, or the model has its
            weights in a second file.
        WorkError: Ray is not installed.
    """

    def __init__(
        self,
        address: str,
        model: Path,
        work: Work,
        *,
        device: str,
        workers: int | None,
        threads: int,
        fetching: int,
    ) -> None:
        if device.startswith("cuda:"):
            raise InputError(f"device {device}: Ray chooses each worker's GPU: write cuda")
        if (second := weights_file(model)) is not None:
            raise InputError(
                f"{model} has its weights in a second file, {second.name}, and `ray` sends workers one file: leave out "
                "`ray`"
            )
        try:
            import ray
        except ModuleNotFoundError as error:
            raise WorkError(
                '`ray` needs Ray, which is not installed: pip install ".[ray]" in AutoDIAL\'s checkout brings it'
            ) from error
        self._ray = ray
        self._address = address
        self._workers = workers
        self._threads = threads
        decoders = max(threads, fetching)
        self._orders = Orders(str(model), work, device, threads, decoders, os.getcwd(), is_watching())  # noqa: PTH109
        self._model_file = model
        self._model: Any = None
        self._hands: list[_Hand] = []
        self._again: list[_Part] = []
        self._failed_starts = 0
        self._hosts: set[str] = set()
        self._seen: ImageFile | None = None
        self._closing = ExitStack()
        self._options: dict[str, Any] = {}
        self._room = 0
        self.device = self.provider = self._reason = ""
        self.cuda_failure: str | None = None
        self.decoding = self.running = 0.0

    @property
    def reason(self) -> str:
        """Why it runs where it runs, and how many workers there are."""
        where = f"on {counted(len(self._hosts), 'machine')}"
        return f"{self._reason}; {counted(len(self._hands), 'worker')} of Ray {where}"

    def __enter__(self) -> Cluster:
        if sys.stderr is not None:
            # a thread of Ray's prints what happens to workers, where a table or JSON may be wanted
            self._closing.enter_context(redirect_stdout(sys.stderr))
        try:
            if not self._ray.is_initialized():
                self._connect()
            self._plan()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hand in self._hands:
            self._let_go(hand)
        self._closing.close()

    # --- the cluster

    def _connect(self) -> None:
        self._check_answers()
        before = signal.getsignal(signal.SIGTERM)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"num_cpus": max(available_cpus(), self._threads), "include_dashboard": False}
        try:
            self._ray.init(self._address, **options)
        except Exception as error:  # of many kinds
            why = shortened(" ".join(str(error).split()), 200)
            raise InputError(
                f"`ray` {self._address}: there is no Ray cluster that this machine can use ({why}): start one with "
                f"`ray start --head`, name another address, write {LOCAL}, or set RAY_AUTH_MODE=token if it has tokens"
            ) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _end)  # Ray's own handler ends with another status
            self._closing.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL if before is None else before)
        self._closing.callback(self._ray.shutdown)

    def _check_answers(self) -> None:
        """Raise InputError if the address names a port where nothing answers: Ray would try it for minutes."""
        address = os.environ.get("RAY_ADDRESS", "") if self._address == "auto" else self._address
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not (host and port.isdecimal()):
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWERED).close()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"`ray` {address}: nothing answers there ({why}): check the address, and whether the cluster runs"
            ) from error

    def _plan(self) -> None:
        """Decide what a worker needs of a machine, and how many workers there are."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        device = self._orders.device
        gpu = device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes))
        for node in nodes:
            fitting = int(node.get("CPU", 0) // self._threads)
            self._room += min(fitting, int(node.get("GPU", 0))) if gpu else fitting
        if not self._room:
            what = counted(self._threads, "CPU") + (" and a GPU" if gpu else "")
            most = int(max((node.get("CPU", 0) for node in nodes), default=0))
            raise InputError(
                f"`ray` {self._address}: no machine of the cluster has {what} for a worker, and the largest has "
                f"{counted(most, 'CPU')}: choose other `threads` or another `device`"
            )
        self._options = {
            "num_cpus": self._threads,
            "num_gpus": int(gpu),
            "max_restarts": 0,
            "runtime_env": {"env_vars": {name: os.environ[name] for name in _FORWARDED if name in os.environ}},
        }
        self._model = self._ray.put(self._model_file.read_bytes())

    # --- workers

    def start(self, images: Iterator[ImageFile]) -> Iterator[ImageFile]:
        """Start the workers and wait for the first; every worker looks for the first image.

        Returns:
            the images.

        Raises:
            InputError, WorkError: the model can't be used there, a worker doesn't see the image's file as this process
                does, or it has other versions.
        """
        first = next(images, None)
        if first is not None and type(first) is ImageFile:
            self._seen = first
        for _ in range(self._workers or self._room):
            self._hire()
        asked = time.monotonic()
        warned = False
        while all(hand.starting is not None for hand in self._hands):
            self._attend()
            if not warned and time.monotonic() - asked > _PATIENCE:
                warned = True
                _log.warning("Ray has started no worker yet: other work may fill the cluster; this waits for it")
        return images if first is None else chain([first], images)

    def _hire(self) -> None:
        actor = self._ray.remote(Worker).options(**self._options).remote()
        self._hands.append(_Hand(actor, actor.start.remote(self._orders, self._model, self._seen)))

    def _let_go(self, hand: _Hand) -> None:
        try:
            self._ray.kill(hand.actor)
        except Exception:  # it is gone, and so may Ray be
            _log.debug("a worker can't be let go", exc_info=True)

    def _attend(self) -> list[tuple[_Part, Done]]:
        """Wait up to a second for workers' answers, and return what they have done."""
        answers = {answer: hand for hand in self._hands if (answer := hand.next_answer()) is not None}
        ready = self._ray.wait(list(answers), num_returns=1, timeout=1.0)[0] if answers else []
        found: list[tuple[_Part, Done]] = []
        for answer in ready:
            hand = answers[answer]
            try:
                result = self._ray.get(answer)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, AutodialError):
                    raise type(error.cause)(str(error.cause)) from error
                raise
            except self._ray.exceptions.RayError as error:
                self._replace(hand, error)
                continue
            if hand.starting is not None:
                hand.starting = None
                self._welcome(result)
            else:
                found.append((hand.sent.popleft()[1], result))
        return found

    def _welcome(self, started: Started) -> None:
        self._failed_starts = 0
        own = versions()
        if started.versions != own:
            other = ", ".join(
                f"{name} {version} (here {own[name]})"
                for name, version in started.versions.items()
                if version != own[name]
            )
            raise InputError(f"the Ray worker on {started.host} has {other}: install the same versions everywhere")
        if self._seen is not None and started.state != self._seen.look().state:
            raise InputError(
                f"the Ray worker on {started.host} doesn't see {self._seen.path} as this machine does: put the images "
                "on a file system that all machines have under the same name, or name them by addresses"
            )
        if self.provider and started.provider != self.provider:
            raise WorkError(
                f"the Ray worker on {started.host} runs the model by {started.provider}, another one by "
                f"{self.provider}: choose `device` cpu or cuda"
            )
        self._hosts.add(started.host)
        self.device, self.provider = started.device, started.provider
        self._reason, self.cuda_failure = started.reason, started.cuda_failure

    def _replace(self, hand: _Hand, error: Exception) -> None:
        """Let another worker do what one that died has been sent."""
        why = shortened(" ".join(str(error).split()), 300)
        self._hands.remove(hand)
        self._let_go(hand)
        if hand.starting is not None:
            self._failed_starts += 1
            if "No module named 'autodial'" in str(error):
                raise InputError("a Ray worker has no AutoDIAL: install it on every machine of the cluster, as here")
            if self._failed_starts >= _TRIES:
                raise WorkError(f"Ray's workers die as they start: {why}")
        else:
            if hand.sent:
                first = hand.sent[0][1]
                first.deaths += 1  # it was at work on these images, and on no others
                if first.deaths >= _TRIES:
                    raise WorkError(
                        f"{first.deaths} of Ray's workers died of the {counted(len(first.images), 'image')} from "
                        f"{first.images[0].path} to {first.images[-1].path}: label these alone to find the cause "
                        f"({why})"
                    )
            _log.warning("A worker of Ray died: another one labels its images")
        # the earliest last, as it is taken first
        self._again = sorted([*self._again, *(part for _, part in hand.sent)], key=lambda part: -part.number)
        self._hire()

    # --- work

    def label(self, images: Iterator[ImageFile]) -> Generator[Labelled, None, None]:
        """Label images; a bounded number of them, and of their rows, is in memory."""
        parts = self._cut(images)
        most = 2 * _AHEAD * len(self._hands)
        done: dict[int, tuple[_Part, Done]] = {}
        written = taken = 0
        no_more = False

        def next_part() -> _Part | None:
            nonlocal taken, no_more
            if self._again:
                return self._again.pop()
            if no_more or taken - written >= most:
                return None
            part = next(parts, None)
            no_more = part is None
            taken += not no_more
            return part

        while not no_more or written < taken:
            self._send(next_part)
            for part, result in self._attend():
                done[part.number] = part, result
            while written in done:
                part, (rows, states, decoding, running) = done.pop(written)
                self.decoding += decoding / len(self._hands)
                self.running += running / len(self._hands)
                written += 1
                yield Labelled(part.images, states, lambda rows=rows: rows)  # type: ignore[misc]

    def _send(self, next_part: Any) -> None:
        """Send parts to workers that have few, a part at a time, so that all have as many."""
        for many in range(1, _AHEAD + 1):
            for hand in self._hands:
                if hand.starting is None and len(hand.sent) < many:
                    part = next_part()
                    if part is None:
                        return
                    hand.sent.append((hand.actor.label.remote(part.images), part))

    def _cut(self, images: Iterator[ImageFile]) -> Iterator[_Part]:
        """Whole batches, several together unless they are large."""
        size, number = self._orders.work.batch_size, 0
        while True:
            part: list[ImageFile] = []
            for _ in range(_BATCHES):
                batch = list(islice(images, size))
                part += batch
                if len(batch) < size or sum(image.size for image in part) >= _BYTES:
                    break
            if not part:
                return
            yield _Part(number, part)
            number += 1


def _end(number: int, frame: object) -> None:
    """Let everything be closed after SIGTERM."""
    sys.exit(TERMINATED)
