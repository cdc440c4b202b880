"""What the C library does with memory that torch gives back."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt, from malloc.h."""


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory in this process for later requests, from now on.

    By default, glibc requests every large block from the system and returns it afterwards. A training step allocates
    gigabytes in such blocks, and the system clears each page every time, which takes a fifth of a step of AlexNet on
    the CPU. In exchange, the process stays as large as it once was, and fragmentation makes its heap grow over the
    first steps: by 3% for Inception-BN, by 30% for AlexNet.

    Returns:
        whether this process uses glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
