"""From an address on the command line to the images that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from autodial.data.folders import is_hidden, is_image
from autodial.data.image_list import paths_of
from autodial.deploy import addresses
from autodial.deploy.parquet_input import TABLE_SUFFIX, images_in_table
from autodial.deploy.sources import ImageFile, RemoteImage, named
from autodial.errors import InputError

LIST_SUFFIX = ".txt"


def names_tables(argument: str) -> bool:
    """Whether an argument names a table, a folder of tables, or a pattern of tables, by its suffix."""
    return has_suffix(argument, TABLE_SUFFIX)


def has_suffix(name: str, suffix: str) -> bool:
    """Whether a path or an address, without its query, ends in `suffix`, in lower or upper case."""
    name = addresses.name_of(name) if addresses.is_address(name) else name
    return name.rstrip("/").lower().endswith(suffix)


def expand_address(address: str, passed_over: Callable[[str], None], column: str | None) -> Iterator[ImageFile]:
    """The images that an address names: a file, a folder, a list, a table or a pattern.

    Args:
        address: the address.
        passed_over: is told of every file that is hidden or, by its name, no image.
        column: the column of tables that has the images.

    Raises:
        InputError: while iterating: nothing is there, or it can't be read.
        WorkError: a package that is needed is not installed.
    """
    shown = addresses.shown(address)
    try:
        there = addresses.look_at(address)
        if there is None and addresses.has_pattern(address):
            yield from _matching_addresses(address, passed_over, column)
            return
    except OSError as error:
        raise InputError(f"{shown} can't be read: {error.strerror}") from error
    if there is None:
        raise InputError(f"{shown}: no such file or folder")
    if there.is_folder:
        yield from _in_remote_folder(address, passed_over, column, tables=names_tables(address))
    elif has_suffix(address, LIST_SUFFIX):
        try:
            with addresses.opened(address) as file:
                for name in paths_of(file, shown):
                    yield named(name, addresses.parent(address))
        except OSError as error:
            raise InputError(f"{shown} can't be read: {addresses.shown(error.strerror or str(error))}") from error
    else:
        yield from _at(there, passed_over, column, every=True)


def _matching_addresses(pattern: str, passed_over: Callable[[str], None], column: str | None) -> Iterator[ImageFile]:
    hidden = "/." in pattern
    start = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    for entry in addresses.matching(pattern):
        if hidden or not any(part.startswith(".") for part in entry.address[len(start) :].split("/")):
            yield from _at(entry, passed_over, column, tables=names_tables(pattern), hidden=hidden)


def _in_remote_folder(
    folder: str, passed_over: Callable[[str], None], column: str | None, *, tables: bool
) -> Iterator[ImageFile]:
    try:
        entries = addresses.entries(folder)
    except OSError as error:
        yield ImageFile(addresses.shown(folder), error=f"can't list this folder: {error.strerror}")
        return
    for entry in entries:
        name = addresses.name_of(entry.address)
        if not entry.is_folder:
            if not (tables and name.startswith((".", "_"))):
                yield from _at(entry, passed_over, column, tables=tables)
        elif not is_hidden(name):
            yield from _in_remote_folder(entry.address, passed_over, column, tables=tables)


def _at(
    entry: addresses.Entry,
    passed_over: Callable[[str], None],
    column: str | None,
    *,
    tables: bool = False,
    every: bool = False,
    hidden: bool = False,
) -> Iterator[ImageFile]:
    """The image that a file is, or the images in it: with `every` of any file, else of those with the right suffix."""
    name = addresses.name_of(entry.address)
    is_table = has_suffix(name, TABLE_SUFFIX)
    if is_table and (tables or every):
        yield from images_in_table(entry.address, column)
    elif every or (not tables and is_image(name) and (hidden or not is_hidden(name))):
        yield RemoteImage(addresses.shown(entry.address), address=entry.address, known=entry.state)
    elif not tables:
        passed_over(entry.address)
