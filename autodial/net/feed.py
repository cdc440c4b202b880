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
from autodial.net.workers import Workers, places
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
        brief: whether a batch need only last until the next one is asked for, which saves a copy on the CPU.

    Raises:
        InputError: the net has Input or MemoryData layers, which only Python can fill. Iterating: a batch can't be
            read; it names the file and the row.
        WorkError: the workers can't be started, or get no shared memory. Iterating: they die again and again
            (autodial.net.workers).
    """

    def __init__(
        self,
        net: Net,
        indexes: Iterable[int],
        *,
        device: torch.device,
        workers: int,
        ranks: Ranks | None = None,
        brief: bool = False,
    ) -> None:
        self._device = device
        self._brief = brief
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
        read = _Batches(list(zip(readers.values(), shares, strict=True)))
        self._workers: Workers[_Batch | _Failure] | None = None
        if workers:
            read.share(places(workers, _PREFETCH), self._image_format)
            pin = device.type == "cuda"
            start = partial(torch.cuda.set_device, device) if pin else lambda: None
            finish = partial(_pin, places=read.places) if pin else None
            self._workers = Workers(read.put, indexes, workers, ahead=_PREFETCH, finish=finish, start=start)
        self._places = read.places
        self._batches: Iterator[_Batch | _Failure] = self._workers or map(read.read, indexes)

    def __next__(self) -> dict[str, Tensor]:
        batch = next(self._batches)
        if isinstance(batch, _Failure):
            raise batch.kind(batch.message)
        for text in batch.damage:
            note_damage(text)
        tensors = batch.tensors
        if batch.place is not None:
            tensors = [self._taken(tensor) for tensor in batch.place.of(self._places)]
        return dict(zip(self._tops, map(self._to_device, tensors), strict=True))

    def _taken(self, tensor: Tensor) -> Tensor:
        """A tensor from a place, which another batch will use."""
        return tensor if self._brief and tensor.dim() == 4 else tensor.clone()

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


class _Place(NamedTuple):
    """Where a worker has put a batch: the number of the place, and the rows of each tensor, of which it may have more.

    A last batch may be shorter than the others.
    """

    number: int
    rows: list[int]

    def of(self, places: list[list[Tensor]]) -> list[Tensor]:
        return [tensor[:count] for tensor, count in zip(places[self.number], self.rows, strict=True)]


class _Batch(NamedTuple):
    """A batch as it was read, or where it is."""

    tensors: list[Tensor]
    place: _Place | None
    damage: list[str]
    """Sentences for `note_damage`, of the images that were found damaged."""


class _Batches:
    """Batches of several readers, the rows wanted of each, read here or put into memory that processes share.

    The memory is used again and again: new memory, of which the system clears each page, costs a worker as much time
    as the images' transforms.
    """

    def __init__(self, readers: list[tuple[Source, slice]]) -> None:
        self._readers = readers
        self.places: list[list[Tensor]] = []

    def share(self, count: int, image_format: torch.memory_format) -> None:
        """Make `count` places in shared memory, images in a format; WorkError if that can't be done."""
        shapes = [
            (len(range(reader.batch_size)[rows]), *shape[1:])
            for reader, rows in self._readers
            for shape in reader.top_shapes
        ]
        try:
            self.places = [[_shared(shape, image_format) for shape in shapes] for _ in range(count)]
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise WorkError(f"a batch can't be put into shared memory ({reason}): set `workers` to 0") from error

    def read(self, index: int) -> _Batch | _Failure:
        """Batch number `index`."""
        try:
            with collecting_damage() as damage:
                tops = [array for reader, rows in self._readers for array in reader.batch(index, rows)]
        except AutodialError as error:
            return _Failure(type(error), str(error))
        return _Batch(list(map(torch.from_numpy, tops)), None, damage)

    def put(self, index: int, place: int) -> _Batch | _Failure:
        """Put batch number `index` into a place."""
        batch = self.read(index)
        if isinstance(batch, _Failure):
            return batch
        where = _Place(place, [len(tensor) for tensor in batch.tensors])
        for shared, tensor in zip(where.of(self.places), batch.tensors, strict=True):
            shared.copy_(tensor)
        return _Batch([], where, batch.damage)


def _shared(shape: tuple[int, ...], image_format: torch.memory_format) -> Tensor:
    memory_format = image_format if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, memory_format=memory_format).share_memory_()  # type: ignore[no-untyped-call,no-any-return]


def _pin(batch: _Batch | _Failure, places: list[list[Tensor]]) -> _Batch | _Failure:
    """Move a batch to memory that a GPU reads by itself."""
    if isinstance(batch, _Failure) or batch.place is None:
        return batch
    return _Batch([tensor.pin_memory() for tensor in batch.place.of(places)], None, batch.damage)


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
        needed = batch_bytes * places(workers, _PREFETCH)
        _log.warning(
            "Reading with %d instead of %d workers: %s has %d MiB free and they need %d MiB (docker: --shm-size)",
            *(fit, workers, shared_memory, free >> 20, (needed >> 20) + 1),
        )
    return min(workers, fit)
