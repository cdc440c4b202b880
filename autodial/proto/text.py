"""Nets and solvers as text: the prototxt files."""

from __future__ import annotations

import codecs
import os
import re

from google.protobuf import text_encoding, text_format
from google.protobuf.message import Message

from autodial.errors import InputError
from autodial.proto import messages as pb
from autodial.proto.parser import Parser, top_level_names
from autodial.proto.upgrade import upgrade_net, upgrade_solver
from autodial.system.files import is_binary, read_bytes, replacing, stand_in

_FOREIGN = re.compile(r'^( *)foreign_text: "((?:[^"\\\n]|\\.)*)"\n', re.MULTILINE)
"""A message of a layer of a type that no fork here has, as text within text."""


def read_net(path: str | os.PathLike[str], *, keep_unknown: bool = False) -> pb.NetParameter:
    """The NetParameter in a prototxt file, brought up to date (see upgrade_net).

    Args:
        path: the file.
        keep_unknown: whether a layer may have fields that no fork here has. The layer's `foreign_text` then names the
            first one, and the caller must not compute the layer.

    Raises:
        InputError: Caffe's own reader would refuse the text; names file, line, column, layer and field.
    """
    return parse_net(_read_text(path), str(path), keep_unknown=keep_unknown)


def read_solver(path: str | os.PathLike[str]) -> pb.SolverParameter:
    """The SolverParameter in a prototxt file, brought up to date (see upgrade_solver); raises as read_net."""
    return parse_solver(_read_text(path), str(path))


def parse_net(text: str, name: str = "<string>", *, keep_unknown: bool = False) -> pb.NetParameter:
    """The NetParameter in `text`, brought up to date; as read_net, with `name` in the file's place."""
    return _parse_net(text, name, keep_unknown=keep_unknown)[0]


def parse_solver(text: str, name: str = "<string>") -> pb.SolverParameter:
    """The SolverParameter in `text`, brought up to date; raises as read_net, with `name` in the file's place."""
    return _parse_solver(text, name)[0]


def read_old_text(path: str | os.PathLike[str]) -> tuple[pb.NetParameter | pb.SolverParameter, list[str]]:
    """The net or solver in a prototxt file, as from read_net or read_solver, and phrases for what was old in it."""
    text = _read_text(path)
    return (_parse_solver if _is_solver(text) else _parse_net)(text, str(path))


def to_text(message: Message) -> str:
    """`message` in the text format, one field a line, in the order of the field numbers."""
    text: str = text_format.MessageToString(message, as_utf8=True)
    return _FOREIGN.sub(lambda match: f"{match[1]}{text_encoding.CUnescape(match[2]).decode()}\n", text)


def write_text(message: Message, path: str | os.PathLike[str]) -> None:
    """Write to_text(message) as UTF-8, whole or not at all."""
    with replacing(path) as file:
        file.write(to_text(message).encode())


def _parse_net(text: str, name: str, *, keep_unknown: bool = False) -> tuple[pb.NetParameter, list[str]]:
    net = pb.NetParameter()
    Parser(text, name, keep_unknown=keep_unknown).parse_into(net)
    return net, upgrade_net(net, name)


def _parse_solver(text: str, name: str) -> tuple[pb.SolverParameter, list[str]]:
    solver = pb.SolverParameter()
    Parser(text, name).parse_into(solver)
    return solver, upgrade_solver(solver, name)


def _is_solver(text: str) -> bool:
    """Whether the text is a solver: the first field that nets and solvers do not share decides."""
    net, solver = (message.DESCRIPTOR.fields_by_name for message in (pb.NetParameter, pb.SolverParameter))
    return next((name in solver for name in top_level_names(text) if (name in net) != (name in solver)), False)


def _read_text(path: str | os.PathLike[str]) -> str:
    data = read_bytes(path, "prototxt")
    if problem := stand_in(data):
        raise InputError(f"{path}{problem}")
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
