"""The ranks, the processes that torchrun starts for one training run, and their communication."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autodial.errors import AutodialError, InputError, WorkError

_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another, which may be reading a slow disk."""
_SIGNAL_INTERVAL = timedelta(seconds=1)
"""How long a single wait takes; signals are handled in between."""
_GRACE_PERIOD = 5.0
"""Seconds that the other ranks have to answer after SIGTERM; torchrun kills after 30."""
_POLL_INTERVAL = 0.0005
"""Seconds between checks whether the GPU is done."""
_REPORT_TIMEOUT = timedelta(seconds=2)
"""How long a rank that fails waits for rank 0 to report the same error."""


class LostRankError(WorkError):
    """Another rank is gone, or can't be reached any more."""


class Ranks:
    """The ranks of a torchrun run: tensors on the CPU travel by gloo, those on GPUs by NCCL.

    A method in which all ranks must take part says so, and raises LostRankError if one of them is gone.

    Attributes:
        rank: the number of this process, from 0 to size - 1. Rank 0 writes.
        size: how many there are.
        local_rank, local_size: the same on this machine alone; the local rank is also the number of the GPU to use.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self._beside: Any = None
        """The same ranks for sums that go on beside others, which need not wait for them then."""
        self._last_wait = math.inf
        self._parent = os.getppid()

    @classmethod
    def join(cls) -> Ranks | None:
        """Meet the other ranks; None if torchrun did not start this process, or started only this one.

        Raises:
            LostRankError: the other ranks did not come.
        """
        return cls.meet() if dist.is_torchelastic_launched() and os.environ["WORLD_SIZE"] != "1" else None

    @classmethod
    def meet(cls) -> Ranks:
        """`join` for a process that torchrun started, be it the only one."""
        # torch's watchdog would end the process, which could then write no snapshot
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_TIMEOUT)
            beside: Any = dist.new_group(timeout=_TIMEOUT)  # typed as if some ranks were left out
        except RuntimeError as error:
            raise LostRankError(f"the other ranks did not come ({_first_line(error)})") from error
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        ranks = cls(*(int(os.environ[name]) for name in names))
        ranks._beside = beside
        if ranks.rank:
            logging.getLogger("autodial").setLevel(logging.ERROR)  # rank 0 logs the warnings
        return ranks

    @property
    def abandoned(self) -> bool:
        """Whether torchrun is gone, which otherwise ends all ranks when one is lost or asked to stop."""
        return os.getppid() != self._parent

    def share(self, rows: int, rank: int | None = None) -> slice:
        """A rank's rows out of `rows` rows; the shares differ by at most one row. None means this rank."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which have one shape; may overwrite `tensor`. All ranks take part."""
        tensor = tensor.contiguous()
        self._reduce(tensor, dist.ReduceOp.SUM)
        return tensor

    def begin_sum(self, tensors: Sequence[Tensor]) -> BegunSum:
        """Begin to sum each of some tensors of one dtype over the ranks. All take part, in one order of such sums."""
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            work = dist.all_reduce(together, dist.ReduceOp.SUM, group=self._beside, async_op=True)
        except RuntimeError as error:
            raise _lost(error) from error
        return BegunSum(self, tensors, together, work)

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors, which have one shape, stacked as (size, ...). All ranks take part."""
        rows = tensor.new_zeros(self.size, *tensor.shape)
        rows[self.rank] = tensor
        return self.sum(rows)

    def any(self, here: bool) -> bool:
        """Whether `here` is true on any rank. All ranks take part."""
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
        """Wait until the device has finished its work, so that its sums have arrived. The CPU's sums already have.

        Signals are handled meanwhile, and later work on the device can rely on the sums.

        Raises:
            LostRankError: a sum on the GPU does not end, because another rank is gone.
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

    def limit_waits(self, seconds: float = _GRACE_PERIOD) -> None:
        """Wait only `seconds` longer for the other ranks; to be called when SIGTERM comes."""
        self._last_wait = time.monotonic() + seconds

    @staticmethod
    def should_report(error: AutodialError) -> bool:
        """Whether this process should report an error: if all ranks have the same error, rank 0 does."""
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
        except RuntimeError:  # rank 0 goes on, or torchrun is gone with the store
            return True

    @staticmethod
    def leave(error: AutodialError | None = None) -> None:
        """Leave the process group after the work or an error: gloo's threads abort a process that does not.

        Nothing is done if that could wait: for a lost rank, or after `error` for sums by NCCL.
        """
        if not dist.is_initialized() or isinstance(error, LostRankError):
            return
        if error is None or dist.get_backend() == "gloo":
            dist.destroy_process_group()

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        try:
            work = dist.all_reduce(tensor, operation, async_op=True)
        except RuntimeError as error:
            raise _lost(error) from error
        self.finish(work, tensor.device)

    def finish(self, work: Any, device: torch.device) -> None:
        """Wait for what torch does with all ranks' tensors; on a GPU, let the device wait, and not this process.

        Raises:
            LostRankError: another rank is gone.
        """
        try:
            if device.type != "cpu":
                work.wait()
                return
            while True:
                try:
                    work.wait(_SIGNAL_INTERVAL)
                    return
                except RuntimeError:
                    if work.is_completed():
                        raise
                if self._gives_up():
                    raise LostRankError("torchrun ended the run, and another rank can't be reached")
        except RuntimeError as error:
            raise _lost(error) from error

    def _gives_up(self) -> bool:
        """Whether the time that `limit_waits` set is over."""
        return time.monotonic() > self._last_wait


class BegunSum:
    """A sum over the ranks that goes on while this process does something else."""

    def __init__(self, ranks: Ranks, tensors: Sequence[Tensor], together: Tensor, work: Any) -> None:
        self._ranks, self._tensors, self._together, self._work = ranks, tensors, together, work

    def finish(self) -> None:
        """Wait for the sums and put them into the tensors; LostRankError if another rank is gone."""
        self._ranks.finish(self._work, self._together.device)
        parts = torch.split(self._together, [tensor.numel() for tensor in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _lost(error: RuntimeError) -> LostRankError:
    return LostRankError(f"another rank is gone, or can't be reached ({_first_line(error)})")


def _first_line(error: RuntimeError) -> str:
    """The first sentence of torch's message, without the place in its source."""
    return str(error).partition("\n")[0].rpartition("] ")[2].split(". ")[0].rstrip(".")
