"""Batches for a net's data layers, made by worker processes ahead of whoever runs the net."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from autodial.allocator import keep_freed_memory
from autodial.cpus import available_cpus
from autodial.data.decoder_messages import collecting_damage, note_damage
from autodial.data.image_data import init_worker
from autodial.data.source import ALL, Source
from autodial.errors import AutodialError, InputError, WorkError
from autodial.layers import Convolution
from autodial.layers.data_sources import SourceLayer
from autodial.net import Net
from autodial.ranks import Ranks

_log = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_PREFETCH = 2
"""Batches that each worker has ready or in the making."""
_HANDLER_DELAY = 5.0
"""Seconds by which torch has surely noticed that a worker is dead."""


def sources(net: Net) -> dict[str, Source]:
    """The readers behind a net's data layers, by layer name, in order."""
    return {name: layer.source for name, layer in net.data_layers.items() if isinstance(layer, SourceLayer)}


def default_workers(trainers: int = 1) -> int:
    """How many worker processes suit this machine: one less than the CPUs this process may use, 1 to 8.

    Args:
        trainers: processes on this machine, each with workers of its own, that these CPUs are for.
    """
    return min(8, max(1, available_cpus() // trainers - 1))


def image_format(net: Net, device: torch.device) -> torch.memory_format:
    """How (N, C, H, W) inputs of a net best lie in memory; its layers keep to it.

    On the CPU, torch's convolutions are much faster with the channels last.
    """
    convolves = any(isinstance(layer, Convolution) for layer in net.layers.values())
    return torch.channels_last if convolves and device.type == "cpu" else torch.contiguous_format


class Feed(Iterator[dict[str, Tensor]]):
    """An iterator over the inputs of a net: a float32 tensor on `device` per data top, by blob name, in `image_format`.

    Each worker reads whole batches, of all data layers, so the batches and their order are the same whatever the
    number of workers. Where /dev/shm, through which they travel, is too small for so many, there are fewer workers.

    Args:
        net: the net; it need not be on `device`.
        indexes: the batches to read, in order; it may be endless.
        device: where the tensors go.
        workers: processes to read with; 0 reads in this one, when a batch is asked for.
        ranks: read this rank's share of each data layer's rows; None for all of them.

    Raises:
        InputError: the net has Input or MemoryData layers, which only Python can fill. Iterating: a batch can't be
            read; it names the file and the row.
        WorkError: iterating: a worker process died; see `naming_dead_workers`.
    """

    def __init__(
        self, net: Net, indexes: Iterable[int], *, device: torch.device, workers: int, ranks: Ranks | None = None
    ) -> None:
        self._device = device
        self._image_format = image_format(net, device)
        readers = sources(net)
        for name, layer in net.data_layers.items():
            if name not in readers:
                raise InputError(
                    f'layer "{name}" ({layer.type_name}) gets its data from a Python program (autodial.caffe); '
                    "a net that is run from the command line reads its data itself, for example with ImageData"
                )
        self._tops = [top for name in readers for top in net.tops(name)]
        if isinstance(indexes, Sized):
            workers = min(workers, len(indexes))
        workers = _workers_that_fit(workers, readers.values()) if readers else 0
        shares = [ALL if ranks is None else ranks.share(reader.batch_size) for reader in readers.values()]
        loader = DataLoader(
            _Batches(list(zip(readers.values(), shares, strict=True))),
            batch_size=None,
            sampler=indexes,
            num_workers=workers,
            prefetch_factor=_PREFETCH if workers else None,
            pin_memory=device.type == "cuda",
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # so that the loader draws nothing from torch's global generator
        )
        self._batches: Iterator[Any] = iter(loader)

    def __next__(self) -> dict[str, Tensor]:
        with naming_dead_workers():
            batch = next(self._batches)
        if isinstance(batch, _Failure):
            raise batch.kind(batch.message)
        for text in batch.damage:
            note_damage(text)
        tensors = (self._to_device(tensor) for tensor in batch.tensors)
        return dict(zip(self._tops, tensors, strict=True))

    def _to_device(self, tensor: Tensor) -> Tensor:
        memory_format = self._image_format if tensor.dim() == 4 else torch.contiguous_format
        return tensor.to(self._device, non_blocking=True, memory_format=memory_format)

    def close(self) -> None:
        """Stop the workers; the feed can't be used after that."""
        self._batches = iter(())


@contextmanager
def naming_dead_workers() -> Iterator[None]:
    """Turn what torch raises when a worker process dies into a WorkError.

    It comes from a signal handler, so it may be raised wherever the program is while a Feed is open.
    """
    try:
        try:
            yield
        except (ConnectionResetError, EOFError):
            # it died while it handed over a batch; the handler, which knows why, interrupts the sleep
            time.sleep(_HANDLER_DELAY)
            raise
    except (RuntimeError, ConnectionResetError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise WorkError(
            f"a process that reads images died ({reason.rstrip('. ')}); too little memory, or shared memory in "
            "/dev/shm, is the usual cause: try fewer --workers, or --workers 0"
        ) from error


@dataclass(frozen=True)
class _Failure:
    """An error on its way from a worker, as a value: torch would wrap a raised one in the worker's traceback."""

    kind: type[AutodialError]
    message: str


class _Batch(NamedTuple):
    """A batch on its way from a worker."""

    tensors: list[Tensor]
    damage: list[str]
    """Sentences for `note_damage`, of the images that the worker found damaged."""


class _Batches(Dataset[_Batch | _Failure]):
    """Batch `index` of several readers, the rows wanted of each, as one item."""

    def __init__(self, readers: list[tuple[Source, slice]]) -> None:
        self._readers = readers

    def __getitem__(self, index: int) -> _Batch | _Failure:
        try:
            with collecting_damage() as damage:
                batch = [
                    torch.from_numpy(array) for reader, rows in self._readers for array in reader.batch(index, rows)
                ]
        except AutodialError as error:
            return _Failure(type(error), str(error))
        if get_worker_info() is None:
            return _Batch(batch, damage)
        try:
            # here and not when torch hands the batch over, in a thread whose errors nobody would hear of
            return _Batch([tensor.share_memory_() for tensor in batch], damage)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            return _Failure(WorkError, f"a batch can't be put into shared memory ({reason}): try --workers 0")


def _start_worker(worker: int) -> None:
    # An interrupt from the keyboard, the end of the terminal, and what torchrun or a cluster's scheduler ends jobs by
    # go to every process. The trainer decides when to stop, and needs its workers until then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):  # Windows has none
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":  # where it is told who sends a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_the_trainer_says_so, daemon=True).start()
    keep_freed_memory()  # a batch has the size of the one before
    init_worker(worker)


def _end_when_the_trainer_says_so() -> None:
    """Wait for a SIGTERM of the trainer's, which torch ends a worker with that is stuck; others' are ignored."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _workers_that_fit(workers: int, readers: Iterable[Source]) -> int:
    """As many workers as /dev/shm has room for, with what each has in flight and one batch in use."""
    if not workers or not _SHARED_MEMORY.is_dir():
        return workers
    batch_bytes = sum(4 * prod(shape) for reader in readers for shape in reader.top_shapes)
    free = shutil.disk_usage(_SHARED_MEMORY).free
    fit = max(0, (free // batch_bytes - 1) // _PREFETCH)
    if fit < workers:
        needed = batch_bytes * (1 + _PREFETCH * workers)
        _log.warning(
            "Reading with %d instead of %d workers: %s has %d MiB free and they need %d MiB (docker: --shm-size).",
            *(fit, workers, _SHARED_MEMORY, free >> 20, (needed >> 20) + 1),
        )
    return min(workers, fit)
