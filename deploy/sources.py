"""Where an image that is to be labelled comes from: a file of this machine, an address, or a row of a table."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from autodial.data.paths import find
from autodial.data.transforms import LARGEST, DataError, Decoded, read_encoded, read_image
from autodial.deploy import addresses
from autodial.errors import InputError

FileState: TypeAlias = tuple[int, int]
"""A file's size in bytes and its time of modification in nanoseconds, by which a change is noticed.

At an address, and in a table, a digest may stand for the time.
"""
NO_FILE: FileState = (-1, 0)
"""Where there is no file."""


class Look(NamedTuple):
    """What a look for an image's file found."""

    state: FileState
    """NO_FILE where there is none."""
    read: Callable[[bool], Decoded]
    """Reads and decodes it, in colour or grey; raises ValueError or OSError with a sentence that names it."""
    error: str | None = None
    """Why there is nothing to read."""


@dataclass(frozen=True)
class ImageFile:
    """One image to label: a row of the table. This one is a file of this machine; the classes below are others."""

    path: str
    """As the user wrote it, or as it was found below a folder that the user named; an address without credentials."""
    base_dir: Path | None = None
    """Where a relative `path` that isn't in the working directory may be: the folder of the list that names it."""
    error: str | None = None
    """Why `path` is known to be no image: it is a folder that can't be listed."""

    @property
    def size(self) -> int:
        """Bytes that are kept here in memory."""
        return 0

    def file(self) -> str | Path:
        """The file to open; InputError if a list's relative path leads nowhere."""
        settled = self.base_dir is None or os.path.isabs(self.path)  # noqa: PTH117 - a str, and there are millions
        return self.path if settled else find(self.path, self.base_dir)

    def look(self) -> Look:
        """Look for the file once, links followed."""
        if self.error is not None:
            return _nothing(self.error)
        try:
            file = self.file()
        except InputError as error:
            return _nothing(str(error))
        try:
            status = os.stat(file)  # noqa: PTH116 - as above
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = error.strerror if isinstance(error, OSError) else str(error)
            return _nothing(f"{file} can't be read: {why}")
        return Look((status.st_size, status.st_mtime_ns), partial(read_image, file))


@dataclass(frozen=True)
class RemoteImage(ImageFile):
    """An image at an address."""

    address: str = field(default="", repr=False)
    """The address, with the credentials that it may have."""
    known: FileState | None = None
    """The file's state, where the listing of its folder gave it: asking for each file once more takes its time."""

    def look(self) -> Look:
        if self.known is not None:
            return Look(self.known, self._read)
        try:
            there = addresses.look_at(self.address)
        except InputError as error:  # a name with ::
            return _nothing(str(error))
        except OSError as error:
            return _nothing(f"{self.path} can't be read: {error.strerror}")
        if there is None:
            return _nothing(f'"{self.path}" does not exist')
        if there.is_folder:
            return _nothing(f"{self.path} is a folder")
        return Look(there.state, partial(self._read, size=there.state[0]))

    def _read(self, color: bool, size: int = 0) -> Decoded:
        size = max(size, self.known[0] if self.known else 0)
        if size > LARGEST:
            raise DataError(f"{self.path} is larger than 2 GiB, OpenCV's limit")
        try:
            # of a file whose size is not stated, nobody knows where it ends
            data = addresses.read(self.address, None if size else LARGEST + 1)
        except FileNotFoundError:
            raise DataError(f'"{self.path}" does not exist') from None
        except OSError as error:
            raise DataError(f"{self.path} can't be read: {error.strerror}") from None
        return _decoded(self.path, data, color)


@dataclass(frozen=True)
class TableImage(ImageFile):
    """An image whose file is a value in a table."""

    data: bytes | None = field(default=None, repr=False)
    """The whole file; None where the table has no value."""

    @property
    def size(self) -> int:
        return len(self.data or b"")

    def look(self) -> Look:
        if self.data is None:
            return _nothing("there is no image in this row")
        digest = hashlib.blake2b(self.data, digest_size=8).digest()
        return Look(
            (len(self.data), int.from_bytes(digest, "little", signed=True)), partial(_decoded, self.path, self.data)
        )


def named(name: str, base: Path | str | None) -> ImageFile:
    """The image that a list or a table calls `name`: a path or an address.

    Args:
        base: folder of the list or table that a relative path may start from; an address's is a text.

    Raises:
        InputError, WorkError: addresses of this kind can't be used here.
    """
    name = addresses.local_path(name)
    if not addresses.is_address(name):
        if not isinstance(base, str) or os.path.isabs(name):  # noqa: PTH117
            return ImageFile(name, base if isinstance(base, Path) else None)
        return RemoteImage(name, address=addresses.join(base, name))
    addresses.check_protocol(name)
    return RemoteImage(addresses.shown(name), address=name)


def named_in_stream(name: str, base: Path | str | None) -> ImageFile:
    """As `named`, but an address that can't be used is an error of its image: others may be labelled already.

    Raises:
        WorkError: a package that its protocol needs is not installed.
    """
    try:
        return named(name, base)
    except InputError as error:
        return ImageFile(addresses.shown(name), error=str(error))


def _nothing(why: str) -> Look:
    def read(color: bool) -> Decoded:
        raise DataError(why)

    return Look(NO_FILE, read, why)


def _decoded(path: str, data: bytes, color: bool) -> Decoded:
    try:
        return read_encoded(data, color)
    except DataError as error:
        raise DataError(f"{path} {error}") from None
