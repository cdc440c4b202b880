"""pycaffe's settings for the whole process: CPU or GPU, the random seed, and logging."""

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
    """The settings.

    Attributes:
        gpu: whether nets are put on a GPU.
        index: the GPU's number.
        warned: whether the lack of a GPU has been reported.
        seed: the argument of the last `set_random_seed`, initially 0.
        drawn: number of seeds drawn since then.
        seedings: number of calls of `set_random_seed`.
        level: the lowest severity that is logged, as in glog.
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
    """Nets and solvers made from now on run on the CPU, which is the default."""
    _mode.gpu = _mode.warned = False


def set_mode_gpu() -> None:
    """Nets and solvers made from now on run on the GPU. Without a GPU they run on the CPU, and one warning says so."""
    _mode.gpu = True
    if not torch.cuda.device_count() and not _mode.warned:
        _mode.warned = True
        _log.warning("No GPU here: nets run on the CPU")


def set_device(device_id: int) -> None:
    """Choose the number of the GPU that `set_mode_gpu` uses."""
    _mode.index = device_id


def device() -> torch.device:
    """The device for a net made now.

    Raises:
        WorkError: there are GPUs, but none with the chosen number.
    """
    if not _mode.gpu or not torch.cuda.device_count():
        return torch.device("cpu")
    return choose_device(f"cuda:{_mode.index}")


def set_random_seed(seed: int) -> None:
    """Restart the random numbers: fillers of nets made from now on, dropout masks and dummy data of all nets.

    Without a call the seed is 0. A solver's random_seed takes precedence.
    """
    _mode.seed = seed
    _mode.drawn = 0
    _mode.seedings += 1


def seed() -> int:
    """The argument of the last `set_random_seed`."""
    return _mode.seed


def seedings() -> int:
    """The number of calls of `set_random_seed`."""
    return _mode.seedings


def draw_seed() -> int:
    """A seed that depends on the random seed and on the number of seeds drawn since it was set."""
    _mode.drawn += 1
    return derive_seed(_mode.seed, "net", _mode.drawn)


def init_log(level: int = 0) -> None:
    """Set what `log` and the solvers write to stderr: everything for 0, nothing from 1 on (glog's minloglevel)."""
    _mode.level = level


def log(message: str) -> None:
    """Write a line to stderr, unless `init_log` or GLOG_minloglevel in the environment turns logging off."""
    if _mode.level <= 0:
        print(message, file=sys.stderr)


def solver_count() -> int:
    """The number of solvers that train one net together: 1."""
    return 1


def set_solver_count(count: int) -> None:
    """Accept 1; raise InputError for more, as one process trains a net."""
    if count != 1:
        raise InputError(f"set_solver_count({count}): here one process trains a net, on one device")


def solver_rank() -> int:
    """The number of this process among those that train the net: 0."""
    return 0


def set_solver_rank(rank: int) -> None:
    """Accept 0; raise InputError for other numbers, as one process trains a net."""
    if rank:
        raise InputError(f"set_solver_rank({rank}): here one process, number 0, trains a net")


def set_multiprocess(multiprocess: bool) -> None:
    """Accept False; raise InputError for True, as one process trains a net."""
    if multiprocess:
        raise InputError("set_multiprocess(True): here one process trains a net, on one device")


def has_nccl() -> bool:
    """Whether several GPUs can train together: always False."""
    return False
