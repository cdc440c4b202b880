"""Nets and solvers as text: the prototxt files."""

from __future__ import annotations

import codecs
import os
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]

from autodial.errors import InputError

from . import messages
from .files import is_binary, read_bytes, replacing
from .parser import Parser


def read_net(path: str | os.PathLike[str]) -> Any:
    """The NetParameter in a prototxt file.

    What Caffe's own reader refuses is an InputError with file, line, column, layer and field. Old formats are read as
    they stand (see refuse_old_format).
    """
    return parse_net(_read_text(path), str(path))


def read_solver(path: str | os.PathLike[str]) -> Any:
    """The SolverParameter in a prototxt file; errors as in read_net."""
    return parse_solver(_read_text(path), str(path))


def parse_net(text: str, name: str = "<string>") -> Any:
    """The NetParameter in `text`; errors, as in read_net, call it `name`."""
    return _parse(text, name, messages.NetParameter())


def parse_solver(text: str, name: str = "<string>") -> Any:
    """The SolverParameter in `text`; errors, as in read_net, call it `name`."""
    return _parse(text, name, messages.SolverParameter())


def to_text(message: Any) -> str:
    """`message` in the text format, one field a line, in the order of the field numbers."""
    text: str = text_format.MessageToString(message, as_utf8=True)
    return text


def write_text(message: Any, path: str | os.PathLike[str]) -> None:
    """Write to_text(message) as UTF-8, whole or not at all."""
    with replacing(path) as file:
        file.write(to_text(message).encode())


def _parse(text: str, name: str, message: Any) -> Any:
    Parser(text, name).parse_into(message)
    return message


def _read_text(path: str | os.PathLike[str]) -> str:
    data = read_bytes(path, "prototxt")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path} is UTF-16 text: save it as UTF-8")
    if is_binary(data):
        raise InputError(f"{path} is a binary file, like a caffemodel: name a prototxt, which is text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        message = f"{path}:{line}:{column}: the byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise InputError(message) from None
