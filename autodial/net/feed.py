"""Batches for a net's data layers, made by worker processes ahead of whoever runs the net."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from autodial.data.decoder_messages import collecting_damage, note_damage
from autodial.data.source import ALL, Source
from autodial.errors import AutodialError, InputError, WorkError
from autodial.layers import Convolution
from autodial.layers.data_sources import SourceLayer
from autodial.net.net import Net
from autodial.net.workers import Workers
from autodial.system.cpus import available_cpus
from autodial.system.ranks import Ranks

_log = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_PREFETCH = 2
"""Batches that each worker has ready or in the making."""


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
        ranks: read this rank's share of each data layer's rows; None for all rows.

    Raises:
        InputError: the net has Input or MemoryData layers, which only Python can fill. Iterating: a batch can't be
            read; it names the file and the row.
        WorkError: the workers can't be started. Iterating: they die again and again (autodial.net.workers).
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
        workers = workers_that_fit(workers, readers.values()) if readers else 0
        shares = [ALL if ranks is None else ranks.share(reader.batch_size) for reader in readers.values()]
        read = _Batches(list(zip(readers.values(), shares, strict=True)), shared=workers > 0)
        pin = _pin if device.type == "cuda" else None
        self._workers: Workers[_Batch | _Failure] | None = None
        if workers:
            start = partial(torch.cuda.set_device, device) if pin else lambda: None
            self._workers = Workers(read, indexes, workers, ahead=_PREFETCH, finish=pin, start=start)
        self._batches: Iterator[_Batch | _Failure] = self._workers or map(read, indexes)

    def __next__(self) -> dict[str, Tensor]:
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
        if self._workers is not None:
            self._workers.close()


@dataclass(frozen=True)
class _Failure:
    """An error on its way from a worker, as a value: a raised one would bring the worker's traceback along."""

    kind: type[AutodialError]
    message: str


class _Batch(NamedTuple):
    """A batch on its way from a worker."""

    tensors: list[Tensor]
    damage: list[str]
    """Sentences for `note_damage`, of the images that the worker found damaged."""


class _Batches:
    """Batch `index` of several readers, the rows wanted of each, as one item; `shared` with other processes."""

    def __init__(self, readers: list[tuple[Source, slice]], *, shared: bool) -> None:
        self._readers = readers
        self._shared = shared

    def __call__(self, index: int) -> _Batch | _Failure:
        try:
            with collecting_damage() as damage:
                batch = [
                    torch.from_numpy(array) for reader, rows in self._readers for array in reader.batch(index, rows)
                ]
        except AutodialError as error:
            return _Failure(type(error), str(error))
        if not self._shared:
            return _Batch(batch, damage)
        try:
            return _Batch([tensor.share_memory_() for tensor in batch], damage)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            return _Failure(WorkError, f"a batch can't be put into shared memory ({reason}): set `workers` to 0")


def _pin(batch: _Batch | _Failure) -> _Batch | _Failure:
    """Move a batch to memory that a GPU reads by itself."""
    if isinstance(batch, _Failure):
        return batch
    return batch._replace(tensors=[tensor.pin_memory() for tensor in batch.tensors])


def workers_that_fit(workers: int, readers: Iterable[Source], shared_memory: Path = _SHARED_MEMORY) -> int:
    """The number of workers, at most `workers`, whose batches in flight and one in use fit into shared memory.

    Args:
        workers: how many are wanted.
        readers: the readers of a batch's data.
        shared_memory: the folder of the file system that batches travel through; all workers fit if it does not exist.
    """
    if not workers or not shared_memory.is_dir():
        return workers
    batch_bytes = sum(4 * prod(shape) for reader in readers for shape in reader.top_shapes)
    free = shutil.disk_usage(shared_memory).free
    fit = max(0, (free // batch_bytes - 1) // _PREFETCH)
    if fit < workers:
        needed = batch_bytes * (1 + _PREFETCH * workers)
        _log.warning(
            "Reading with %d instead of %d workers: %s has %d MiB free and they need %d MiB (docker: --shm-size)",
            *(fit, workers, shared_memory, free >> 20, (needed >> 20) + 1),
        )
    return min(workers, fit)
