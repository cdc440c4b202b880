"""The processes that torchrun starts for one training run, the ranks, and what they tell one another."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autodial.errors import AutodialError, InputError, WorkError

_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another, which may be reading a slow disk."""
_SIGNAL_INTERVAL = timedelta(seconds=1)
"""How long it waits at a stretch: signals are seen in between."""
_GRACE_PERIOD = 5.0
"""Seconds that the others have to answer after SIGTERM; torchrun kills after 30."""
_POLL_INTERVAL = 0.0005
"""Seconds between two looks at whether the GPU is done."""
_BUCKET_BYTES = 25 * 2**20
"""Bytes that are summed in one go."""
_REPORT_TIMEOUT = timedelta(seconds=2)
"""How long a rank that fails waits for rank 0 to report the same error."""


class LostRankError(WorkError):
    """Another rank is gone, or can't be reached any more."""


class Ranks:
    """The ranks of a torchrun run: tensors on the CPU travel by gloo, those on GPUs by NCCL.

    What all ranks must take part in says so; it raises LostRankError where one of them is gone.

    Attributes:
        rank: the number of this process, from 0 to size - 1. Rank 0 writes.
        size: how many there are.
        local_rank, local_size: the same on this machine alone; the local rank is also the number of the GPU to use.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self._limited_at: float | None = None
        self._parent = os.getppid()

    @classmethod
    def join(cls) -> Ranks | None:
        """Meet the other ranks; None where torchrun did not start this process, or started no other.

        Raises:
            LostRankError: they did not come.
        """
        if not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
            return None
        # torch's watchdog would end the process, and with it the chance to write a snapshot
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_TIMEOUT)
        except RuntimeError as error:
            raise LostRankError(f"the other ranks did not come ({_first_line(error)})") from error
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        ranks = cls(*(int(os.environ[name]) for name in names))
        if ranks.rank:
            logging.getLogger("autodial").setLevel(logging.ERROR)  # rank 0 warns
        return ranks

    @property
    def abandoned(self) -> bool:
        """Whether torchrun is gone, which would otherwise end the ranks when one is lost or told to stop."""
        return os.getppid() != self._parent

    def share(self, rows: int, rank: int | None = None) -> slice:
        """The rows, of so many, that a rank takes; shares differ by one row at most. None means this rank."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors of one shape; `tensor` itself may hold it afterwards. All ranks take part."""
        tensor = tensor.contiguous()
        self._reduce(tensor, dist.ReduceOp.SUM)
        return tensor

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor, all of one dtype, by the sum of the ranks'. All ranks take part."""
        for bucket in _buckets(tensors):
            sums = self.sum(torch.cat([tensor.reshape(-1) for tensor in bucket]))
            parts = torch.split(sums, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors of one shape, (size, ...). All ranks take part."""
        rows = tensor.new_zeros(self.size, *tensor.shape)
        rows[self.rank] = tensor
        return self.sum(rows)

    def any(self, here: bool) -> bool:
        """Whether it is true for any rank. All ranks take part."""
        flag = torch.tensor(int(here))
        self._reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def check_alike(self, fingerprint: str) -> None:
        """Raise InputError unless all ranks have the same fingerprint. All ranks take part."""
        theirs: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(theirs, fingerprint)
        except RuntimeError as error:
            raise _lost(error) from error
        for rank, other in enumerate(theirs):
            if other != theirs[0]:
                raise InputError(
                    f"rank {rank} has another solver, net, list or weights than rank 0: all machines need the same "
                    "files and options"
                )

    def settle(self, device: torch.device) -> None:
        """Wait until the device has done what it was given, so that sums on it are there. The CPU has none left.

        Signals are seen meanwhile, and what is given to the device afterwards builds on sums that did come.

        Raises:
            LostRankError: a sum on the GPU does not end, as another rank is gone.
        """
        if device.type != "cuda":
            return
        done = torch.cuda.current_stream(device).record_event()
        deadline = time.monotonic() + _TIMEOUT.total_seconds()
        while not done.query():
            if time.monotonic() > deadline or self._gives_up():
                dist.distributed_c10d._abort_process_group()  # frees the GPU, which waits for the lost rank
                raise LostRankError("another rank is gone, or can't be reached")
            time.sleep(_POLL_INTERVAL)

    def limit_waits(self) -> None:
        """Wait for the others for some seconds more, and no longer; to be called when SIGTERM comes."""
        self._limited_at = time.monotonic()

    @staticmethod
    def should_report(error: AutodialError) -> bool:
        """Whether this process is to report an error: where all ranks have the same one, rank 0 does."""
        if not dist.is_initialized():
            return True
        store = dist.distributed_c10d._get_default_store()
        try:
            if dist.get_rank() == 0:
                store.set("error", str(error))
                return True
            if isinstance(error, LostRankError):
                return False
            store.wait(["error"], _REPORT_TIMEOUT)
            return bool(store.get("error").decode() != str(error))
        except RuntimeError:  # rank 0 goes on, or the store is gone with torchrun
            return True

    @staticmethod
    def leave(error: AutodialError | None = None) -> None:
        """Part from the others when all is done, or ends with `error`: gloo's threads abort a process that does not.

        Nothing is done where it could mean to wait: for a rank that is lost, or with `error` for sums by NCCL.
        """
        if not dist.is_initialized() or isinstance(error, LostRankError):
            return
        if error is None or dist.get_backend() == "gloo":
            dist.destroy_process_group()

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        try:
            work = dist.all_reduce(tensor, operation, async_op=True)
            assert work is not None
            if tensor.device.type != "cpu":
                work.wait()  # lets the device wait, not this process
                return
            self._finish(work)
        except RuntimeError as error:
            raise _lost(error) from error

    def _finish(self, work: Any) -> None:
        """Wait for a sum on the CPU."""
        while True:
            try:
                work.wait(_SIGNAL_INTERVAL)
                return
            except RuntimeError:
                if work.is_completed():
                    raise
            if self._gives_up():
                raise LostRankError("torchrun ended the run, and another rank can't be reached")

    def _gives_up(self) -> bool:
        """Whether the grace period after `limit_waits` is over."""
        return self._limited_at is not None and time.monotonic() - self._limited_at > _GRACE_PERIOD


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors, in order, as lists of about _BUCKET_BYTES bytes."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.nbytes
        if size >= _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _lost(error: RuntimeError) -> LostRankError:
    return LostRankError(f"another rank is gone, or can't be reached ({_first_line(error)})")


def _first_line(error: RuntimeError) -> str:
    """What torch says, without the place in its source that it begins with."""
    return str(error).partition("\n")[0].rpartition("] ")[2].split(". ")[0].rstrip(".")
