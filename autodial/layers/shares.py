"""How the rows of a batch are shared out over several processes, and what a layer needs to treat them as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor

N = TypeVar("N", int, Tensor)


class Rows(Enum):
    """What a layer does with the rows of its batch, which decides how several processes share it out."""

    MADE = auto()
    """The layer reads or makes a batch, so that each process can make its share."""
    INDEPENDENT = auto()
    """Each row of the tops depends on the same row of the bottoms alone, unless the layer's `axis` is the batch's."""
    PASSED_ON = auto()
    """The layer computes nothing, so that a bottom may hold rows or a sum over rows."""
    STATISTICS = auto()
    """The layer takes statistics over all rows, and gets those of the other processes by way of `Layer.shares`."""
    SUMMED = auto()
    """Each top is a sum over rows, divided by a count that belongs to the whole batch (`Layer.whole`)."""
    SUMMED_FIRST = auto()
    """As SUMMED for the first top; the second, if there is one, has a row for each row."""
    NONE = auto()
    """The top has no rows: it belongs to the batch as a whole. Such a net trains in one process."""
    ALL_IN_ONE_PROCESS = auto()
    """The layer may keep or write something of every batch. Such a net trains and is tested in one process."""


class Group(Protocol):
    """The processes; `autodial.system.ranks.Ranks` is one."""

    rank: int
    size: int

    def share(self, rows: int, rank: int | None = None) -> slice: ...

    def sum(self, tensor: Tensor) -> Tensor: ...

    def gather(self, tensor: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Shares:
    """The rows of a batch, of which each process has some of every part.

    Attributes:
        group: the processes.
        parts: rows of each part of the whole batch, in order: one data layer's batch each, a source's and a target's
            for example. A process's rows are its share of the first part, then of the second, and so on.
    """

    group: Group
    parts: tuple[int, ...]

    @cached_property
    def rows(self) -> int:
        """Rows of the whole batch."""
        return sum(self.parts)

    @cached_property
    def here(self) -> int:
        """How many of the rows this process has."""
        return self.before(self.rows)

    def before(self, row: int, rank: int | None = None) -> int:
        """How many of a process's rows lie before row number `row` of the whole batch; None means this process.

        Raises:
            ValueError: the row is not the first of a part.
        """
        start = count = 0
        for part in self.parts:
            if start >= row:
                break
            share = self.group.share(part, rank)
            start, count = start + part, count + share.stop - share.start
        if start != row:
            raise ValueError(f"row {row} is inside one of the batch's parts {self.parts}")
        return count

    def whole(self, count: N) -> N:
        """A count for the whole batch, from this process's count.

        Args:
            count: for this process's rows. A number must be a multiple of the rows; a tensor may be anything that adds
                up over the processes, which then all take part.
        """
        if isinstance(count, Tensor):
            return self.group.sum(count)
        assert count % self.here == 0, "a number of values per row"
        return count // self.here * self.rows

    def take(self, whole: Tensor) -> Tensor:
        """This process's rows of a tensor (rows, ...)."""
        return torch.cat([part[self.group.share(len(part))] for part in torch.split(whole, list(self.parts))])

    def gather(self, rows: Tensor) -> Tensor:
        """The whole batch (rows, ...) of tensors that hold the processes' rows; all take part."""
        whole = rows.new_zeros(self.rows, *rows.shape[1:])
        starts = [self.group.share(part) for part in self.parts]
        mine = torch.split(rows, [share.stop - share.start for share in starts])
        for part, share, values in zip(torch.split(whole, list(self.parts)), starts, mine, strict=True):
            part[share] = values
        return self.group.sum(whole)

    def merge(self, moments: Tensor, points: Sequence[int] = ()) -> Tensor:
        """Means and biased variances of whole domains from those of the processes' rows; all take part.

        The variance around the common mean is taken from the means' differences, in double precision, so that it is as
        good as one process's at any offset.

        Args:
            moments: (domains, 2, C), mean and variance per channel.
            points: the whole batch's rows at which the second and later domains begin.

        Returns:
            the same for the whole batch, of moments' dtype.
        """
        ends = (*points, self.rows)
        counts = torch.tensor(
            [[self.before(end, rank) for end in ends] for rank in range(self.group.size)], dtype=torch.float64
        ).diff(dim=1, prepend=torch.zeros(self.group.size, 1, dtype=torch.float64))
        weights = (counts / counts.sum(0)).to(moments.device).unsqueeze(2)  # (processes, domains, 1)
        means, variances = self.group.gather(moments).double().unbind(2)
        mean = (weights * means).sum(0)
        variance = (weights * (variances + (means - mean).square())).sum(0)
        return torch.stack((mean, variance), 1).to(moments.dtype)
