"""The only access to HDF5 files: it gives what lies in the file itself, and no more than the file can hold.

HDF5 lets a file borrow from others: links into another file, and datasets whose values lie in another file (any file,
such as one with passwords) or come from several files. It also lets a file of a few bytes declare terabytes. Caffe uses
neither: it writes plain datasets under hard links.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from autodial.errors import InputError
from autodial.system.files import existing_file

# What HDF5's C library and h5py raise for damage, and what follows from a group or type in a dataset's place or from an
# early end.
_DAMAGE = (
    OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, struct.error
)  # fmt: skip
_MOST_COMPRESSED = 1032  # bytes that one byte of deflated data can stand for, at most
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""Filters that come with HDF5 and h5py; any other filter would load a library."""


class Hdf5File:
    """An HDF5 file that is open for reading.

    Args:
        file: the h5py.File.
        path: its path, for messages.
    """

    def __init__(self, file: Any, path: Path) -> None:
        self._file = file
        self._path = path

    def names(self) -> list[str]:
        """The names in the root group, in alphabetical order."""
        return list(self._file)

    def dataset(self, name: str) -> Any:
        """The h5py.Dataset of a name, with "/" between groups; None where there is no dataset.

        Raises:
            InputError: the name leads out of the file, the values lie elsewhere or were never written, or they need a
                filter that does not come with HDF5.
            ValueError: the file is too small for what it declares.
        """
        item = self._find(name)
        return None if item is None or not hasattr(item, "dtype") or hasattr(item, "keys") else self._checked(item)

    def datasets(self, group: str) -> Iterator[tuple[str, Any]] | None:
        """Every dataset in a group and below it, with its name relative to the group, in alphabetical order.

        An empty group comes with None in a dataset's place.

        Returns:
            None if there is no such group.

        Raises:
            InputError: while iterating, as `dataset`; also for an object that has several names.
            ValueError: while iterating, as `dataset`, for all datasets together.
        """
        top = self._find(group)
        return self._walk(top) if hasattr(top, "keys") else None

    def _walk(self, top: Any) -> Iterator[tuple[str, Any]]:
        from h5py import h5o  # type: ignore[import-untyped]

        seen: dict[int, str] = {h5o.get_info(top.id).addr: top.name}
        stored, size = 0, self._path.stat().st_size
        pending: list[tuple[str, Any, Iterator[str]]] = [("", top, iter(top))]
        while pending:
            prefix, group, names = pending[-1]
            name = next(names, None)
            if name is None:
                pending.pop()
                continue
            item = self._member(group, name)
            place = h5o.get_info(item.id).addr
            if place in seen:
                # A group that contains itself would be read without end, and a dataset with many names many times.
                raise InputError(
                    f'{self._path}: "{_inside(group, name)}" is another name (a hard link) of "{seen[place][1:]}": '
                    "write its values a second time"
                )
            seen[place] = item.name
            if hasattr(item, "keys"):
                if len(item):
                    pending.append((f"{prefix}{name}/", item, iter(item)))
                else:
                    yield f"{prefix}{name}", None
                continue
            stored += self._checked(item).id.get_storage_size()
            if stored > size:
                raise ValueError(f"the datasets up to {item.name} have {stored} bytes, the file {size}")
            yield f"{prefix}{name}", item

    def _find(self, name: str) -> Any:
        """The object of a name; None where there is none."""
        item = self._file
        for part in name.split("/"):
            item = self._member(item, part) if hasattr(item, "keys") else None
            if item is None:
                return None
        return item

    def _member(self, group: Any, name: str) -> Any:
        """The object of a name in a group, which must be in this file; None where there is none."""
        import h5py

        link = group.get(name, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.HardLink):
            return group[name]
        target = f'"{link.path}"'
        if isinstance(link, h5py.ExternalLink):
            target += f' in the file "{link.filename}"'
        raise InputError(
            f'{self._path}: "{_inside(group, name)}" is a link to {target}, and links are not followed: write the '
            "target in its place"
        )

    def _checked(self, dataset: Any) -> Any:
        """The dataset, if its values can be read; raises as `dataset`."""
        from h5py import h5d

        properties = dataset.id.get_create_plist()
        what = f'{self._path}: dataset "{dataset.name[1:]}"'
        if count := properties.get_external_count():
            file = os.fsdecode(properties.get_external(0)[0])
            others = f" and {count - 1} more" if count > 1 else ""
            raise InputError(f'{what} has its values in another file, "{file}"{others}: write them into this one')
        if properties.get_layout() == h5d.VIRTUAL:
            raise InputError(f"{what} is a virtual one, put together from other datasets: write its values here")
        filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
        for number, *_, name in filters:
            if number not in _FILTERS:
                label = f'"{os.fsdecode(name)}"' if name else f"number {number}"
                raise InputError(f"{what} is stored with the filter {label}: write it with gzip or without a filter")
        if len({number for number, *_ in filters}) < len(filters):
            raise ValueError(f"{dataset.name} is filtered twice")
        if not dataset.nbytes:
            return dataset
        stored = dataset.id.get_storage_size()
        if not stored:
            raise InputError(f"{what} has the shape {dataset.shape}, but its values were never written")
        most = stored if dataset.chunks is None else stored * _MOST_COMPRESSED
        chunk = prod(dataset.chunks or ()) * dataset.dtype.itemsize  # memory that reading any row takes
        if stored > self._path.stat().st_size or max(dataset.nbytes, chunk) > most:
            raise ValueError(f"{dataset.name} has the shape {dataset.shape} and {stored} bytes")
        return dataset


@contextmanager
def reading(path: str | os.PathLike[str], kind: str, *, searched: int | None = None) -> Iterator[Hdf5File]:
    """An HDF5 file, open for reading until the block ends.

    Args:
        kind: the expected kind of file, for messages.
        searched: bytes from the file's start in which heaps are looked for and checked; None for all. The heap of the
            root group lies within the first few hundred.

    Raises:
        InputError: h5py is missing, or the file can't be read; also for errors that damage causes within the block.
    """
    h5py = import_h5py(path)
    path = existing_file(path, kind)
    try:
        _check_heaps(path, searched)
        with h5py.File(path, "r") as file:
            yield Hdf5File(file, path)
    except _DAMAGE as error:
        problem = "is cut short or damaged, or not what its name says: copy or download it again"
        raise InputError(f"{path} {problem}") from error


def import_h5py(path: str | os.PathLike[str]) -> Any:
    """The package h5py; raises an InputError that names the file if h5py is missing."""
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{path}: HDF5 needs the package h5py: pip install '.[train]' in AutoDIAL's checkout brings it"
        ) from error
    return h5py


def _check_heaps(path: Path, searched: int | None) -> None:
    """ValueError if a heap's list of free blocks is a ring, along which the HDF5 library would fill all memory.

    Caffe's files hold the names in a group in such heaps, and no checksum.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        for match in re.compile(rb"HEAP\0").finditer(data, 0, len(data) if searched is None else searched):
            size, block, start = struct.unpack_from("<QQQ", data, match.start() + 8)
            if start + size > len(data):
                continue  # no heap, or one that the library refuses
            most = size // 16  # each begins with the next one's place and its own length, 8 bytes each
            while block != 1 and block + 16 <= size:
                if (most := most - 1) < 0:
                    raise ValueError(f"the free blocks of the heap at {match.start()} form a ring")
                (block,) = struct.unpack_from("<Q", data, start + block)


def _inside(group: Any, name: str) -> str:
    """The name of a group's member from the root on, without a slash in front."""
    return f"{group.name}/{name}".lstrip("/")
