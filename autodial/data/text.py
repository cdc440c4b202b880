"""Small text files that people write: lists, class names, settings."""

from __future__ import annotations

import codecs
from os import PathLike
from pathlib import Path

from autodial.errors import InputError


def check_regular(path: str | PathLike[str], what: str) -> None:
    """Raise InputError for a device or a pipe: /dev/zero never ends, and a pipe may wait for a writer forever.

    Args:
        what: what the file should be, with its article, for the message: "an image list".
    """
    file = Path(path)
    if file.is_char_device() or file.is_block_device():
        raise InputError(f"{path} is a device and not {what}: name a file")
    if file.is_fifo() or file.is_socket():
        raise InputError(f"{path} is a pipe and not {what}: write its content to a file, and name that")


def read_text(path: str | PathLike[str], what: str) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Args:
        what: what the file should be, with its article, for messages: "an image list".

    Raises:
        InputError: the file can't be read, is no regular file, is binary, or is text in another encoding.
    """
    check_regular(path, what)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    save = "save it as text in UTF-8"
    if Path(path).suffix.lower() == ".csv":
        save += ', which spreadsheets call "CSV UTF-8"'
    if b"\0" in data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path} is not {what}: it is binary, or text in UTF-16; {save}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: {what} must be text in UTF-8, and the byte 0x{data[error.start]:02x} is not, as in "
            f"Windows-1252 and other encodings: {save}"
        ) from None
