"""What pycaffe sets for a whole process: CPU or GPU, the random seed, and what is logged."""

from __future__ import annotations

import logging
import os
import sys

import torch

from autodial.errors import InputError
from autodial.system.devices import choose_device
from autodial.system.seeding import derive_seed

_log = logging.getLogger(__name__)


class _Mode:
    """The settings, in one place.

    Attributes:
        gpu: whether nets go to a GPU.
        index: the GPU's number.
        warned: whether it has been said that there is none.
        seed: what `set_random_seed` was given, 0 at first.
        drawn: seeds drawn since.
        seedings: calls of `set_random_seed`.
        level: the least severity that is logged, as in glog.
    """

    def __init__(self) -> None:
        self.gpu = False
        self.index = 0
        self.warned = False
        self.seed = 0
        self.drawn = 0
        self.seedings = 0
        level = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112 - glog's name
        self.level = int(level) if level.isdecimal() else 0


_mode = _Mode()


def set_mode_cpu() -> None:
    """Nets and solvers made from now on run on the CPU, as they do at first."""
    _mode.gpu = False


def set_mode_gpu() -> None:
    """Nets and solvers made from now on run on the GPU; where there is none, on the CPU, which is said once."""
    _mode.gpu = True
    if not torch.cuda.device_count() and not _mode.warned:
        _mode.warned = True
        _log.warning("No GPU here: nets run on the CPU.")


def set_device(device_id: int) -> None:
    """Choose the GPU, by number, that `set_mode_gpu` means."""
    _mode.index = device_id


def device() -> torch.device:
    """The device for a net made now.

    Raises:
        WorkError: there are GPUs, and none of that number.
    """
    if not _mode.gpu or not torch.cuda.device_count():
        return torch.device("cpu")
    return choose_device(f"cuda:{_mode.index}")


def set_random_seed(seed: int) -> None:
    """Restart all that is random in nets: fillers of those made from now on, dropout masks and dummy data of all.

    Without a call it is as if the seed were 0. A solver's random_seed goes before it.
    """
    _mode.seed = seed
    _mode.drawn = 0
    _mode.seedings += 1


def seed() -> int:
    """What `set_random_seed` was given last."""
    return _mode.seed


def seedings() -> int:
    """How often `set_random_seed` was called."""
    return _mode.seedings


def draw_seed() -> int:
    """A seed that depends on the random seed and on how many were drawn since it was set."""
    _mode.drawn += 1
    return derive_seed(_mode.seed, "net", _mode.drawn)


def init_log(level: int = 0) -> None:
    """Set what `log` and the solvers write to stderr: 0 all of it, 1 and more nothing (glog's minloglevel)."""
    _mode.level = level


def log(message: str) -> None:
    """Write a line to stderr, unless GLOG_minloglevel in the environment or `init_log` say otherwise."""
    if _mode.level <= 0:
        print(message, file=sys.stderr)


def solver_count() -> int:
    """Number of solvers that train one net together: 1."""
    return 1


def set_solver_count(count: int) -> None:
    """Accept 1; InputError for more, as a net is trained by one process here."""
    if count != 1:
        raise InputError(f"{count} solvers are asked for, and a net is trained by one process on one device here")


def solver_rank() -> int:
    """Number of this process among those that train the net: 0."""
    return 0


def set_solver_rank(rank: int) -> None:
    """Accept 0; InputError for another, as a net is trained by one process here."""
    if rank:
        raise InputError(f"solver {rank} is asked for, and a net is trained by one process, number 0, here")


def set_multiprocess(multiprocess: bool) -> None:
    """Accept False; InputError for True, as a net is trained by one process here."""
    if multiprocess:
        raise InputError("multiprocess is asked for, and a net is trained by one process on one device here")


def has_nccl() -> bool:
    """Whether several GPUs can train together: they can't."""
    return False
