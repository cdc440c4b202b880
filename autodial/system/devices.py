"""The device that a run uses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autodial.errors import InputError, WorkError

_log = logging.getLogger(__name__)

_FULL = (
    "the memory is full: lower batch_size in the data layers, and with it slice_point in Dial and Slice layers, or "
    "read images with fewer worker processes"
)


def describe_device(device: torch.device) -> str:
    """`cpu`, or a GPU with its name, for records: `cuda:0 (NVIDIA H200)`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def choose_device(device: str, *, prefer_gpu: bool = True, index: int = 0) -> torch.device:
    """The torch device that `device` means. On CUDA, TF32 is switched off for matrix products and convolutions.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N". With `prefer_gpu`, "auto" means GPU number `index`, or the CPU if
            there is no GPU (`warn_of_cpu` says so); otherwise the CPU.
        prefer_gpu: whether the solver's solver_mode is GPU.
        index: the solver's device_id.

    Raises:
        InputError: for any other text.
        WorkError: the GPU that was asked for is not there.
    """
    kind, _, number = device.partition(":")
    if device not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise InputError(f'device "{device}" does not exist; it is auto, cpu, cuda or cuda:N')
    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and not (prefer_gpu and count)):
        return torch.device("cpu")
    chosen = int(number) if number else index
    if not count:
        raise WorkError(f"device {device}: torch {torch.__version__} finds no GPU here: choose cpu or auto")
    if chosen >= count:
        raise WorkError(f"GPU {chosen} does not exist: this machine has {count}, numbered from 0")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", chosen)


def warn_of_cpu(device: str, chosen: torch.device, *, prefer_gpu: bool = True) -> None:
    """Warn if `choose_device` has chosen the CPU for lack of a GPU.

    This is for the moment when everything is checked and the work begins: an error about an input should stand alone.
    """
    if device == "auto" and prefer_gpu and chosen.type == "cpu":
        _log.warning("No GPU here: running on the CPU")


@contextmanager
def full_memory_errors() -> Iterator[None]:
    """Turn errors about full memory into a WorkError; torch's error for a GPU is a page of text."""
    try:
        yield
    except MemoryError as error:
        raise WorkError(_FULL) from error
    except torch.OutOfMemoryError as error:
        raise WorkError(
            "the GPU's memory is full: lower batch_size in the data layers, and with it slice_point in Dial and Slice "
            "layers, or use a GPU with more memory, or the CPU"
        ) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch has no type for it on the CPU
            raise
        raise WorkError(_FULL) from error
