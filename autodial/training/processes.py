"""Where a solver trains: in this process alone, or on several ranks that include this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.net.net import Net
from autodial.system.devices import choose_device
from autodial.system.ranks import Ranks
from autodial.training.data_parallel import DataParallel, check_test_net


class OneProcess:
    """Training in this process alone; `OnRanks` is the same for several processes.

    Attributes:
        writes: whether this process writes snapshots.
        checks_data: whether this process checks the images and labels of its machine.
        can_leave_test: whether this process can leave a test when it is asked to stop.
    """

    writes = True
    checks_data = True
    can_leave_test = True

    def choose_device(self, device: str, *, prefer_gpu: bool, index: int) -> torch.device:
        """The device for this process; the arguments are those of `autodial.system.devices.choose_device`."""
        return choose_device(device, prefer_gpu=prefer_gpu, index=index)

    def set_train_net(self, net: Net) -> None:
        """Prepare a train net; InputError, naming the layer, if it can't be trained here."""

    def check_test_net(self, net: Net) -> None:
        """Raise InputError, naming the layer, if a net can't be tested here."""

    def check_alike(self, fingerprint: Callable[[], str]) -> None:
        """Raise InputError unless all processes start from the same state, of which `fingerprint` makes a hash."""

    def any(self, here: bool) -> bool:
        """Whether something is true in any process."""
        return here

    def begin_last_pass(self) -> None:
        """Say that the next backward pass is the last before `sum`."""

    def sum(self, loss: Tensor, device: torch.device) -> Tensor:
        """Replace the train net's gradients by those of the whole batch, and return its loss, a scalar."""
        return loss

    def outputs(self, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The train net's output blobs for the whole batch."""
        return outputs

    def test_batches(self, count: int) -> range:
        """The numbers of the batches that this process tests, out of a test's `count` batches."""
        return range(count)

    def test_totals(self, totals: Mapping[str, Tensor], net: Net, device: torch.device) -> Mapping[str, Tensor]:
        """The sums of a test net's output blobs over all batches of a test, from those over this process's batches."""
        return totals

    def counts(self, counts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Counts over all batches of a test, from those over this process's batches."""
        return counts


class OnRanks(OneProcess):
    """Training on several ranks; every method but `choose_device` and `check_test_net` is called on all of them.

    They share out every training batch (see `DataParallel`) and the batches of a test. Rank 0 writes.

    Args:
        ranks: the ranks.
    """

    can_leave_test = False  # the other ranks wait for its sums

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._parallel: DataParallel | None = None
        self.writes = ranks.rank == 0
        self.checks_data = ranks.local_rank == 0  # one process of each machine

    def choose_device(self, device: str, *, prefer_gpu: bool, index: int) -> torch.device:
        """The CPU, or GPU number local_rank, whatever `index` says."""
        if device.startswith("cuda:"):
            raise InputError(f"device {device}: each process of a machine takes a GPU of its own: choose cuda or auto")
        chosen = super().choose_device(device, prefer_gpu=prefer_gpu, index=self._ranks.local_rank)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # for what torch puts on a GPU by itself
        return chosen

    def set_train_net(self, net: Net) -> None:
        self._parallel = DataParallel(net, self._ranks)

    def check_test_net(self, net: Net) -> None:
        check_test_net(net)

    def check_alike(self, fingerprint: Callable[[], str]) -> None:
        self._ranks.check_alike(fingerprint())

    def any(self, here: bool) -> bool:
        """Whether something is true on any rank, or torchrun is gone."""
        return self._ranks.any(here or self._ranks.abandoned)

    def begin_last_pass(self) -> None:
        assert self._parallel is not None
        self._parallel.begin_last_pass()

    def sum(self, loss: Tensor, device: torch.device) -> Tensor:
        assert self._parallel is not None
        return self._parallel.sum(loss, device)

    def outputs(self, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert self._parallel is not None
        return self._parallel.outputs(outputs)

    def test_batches(self, count: int) -> range:
        return range(self._ranks.rank, count, self._ranks.size)

    def test_totals(self, totals: Mapping[str, Tensor], net: Net, device: torch.device) -> Mapping[str, Tensor]:
        names = dict.fromkeys((*net.outputs, *net.loss_weights))
        # a rank may have tested no batch
        nothing = {name: torch.zeros(net.blob_shapes[name], device=device) for name in names}
        return {name: self._ranks.sum(totals.get(name, nothing[name])) for name in names}

    def counts(self, counts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: self._ranks.sum(count) for name, count in counts.items()}
