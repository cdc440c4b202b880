"""Writes a net as text that reads as if written by hand: short messages on one line, sections, comments.

protobuf's text_format has one field per line or the whole message on one line, and no comments.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autodial.proto import messages as pb
from autodial.system.files import replacing

WIDTH = 120
"""Characters in the longest line, but for single values that are longer."""

_WHOLE = re.compile(r'("(?:[^"\\]|\\.)*")|(: -?\d+)\.0(?=[ }]|$)')
"""A string, or a whole float, whose ".0" is left out."""


def net_to_text(net: pb.NetParameter, *, header: Sequence[str] = (), sections: Mapping[str, str] | None = None) -> str:
    """A net in the text format, laid out for reading.

    A message is on one line if it fits. Otherwise each field has its own lines, and plain values of a ParamSpec or a
    *_param share a line.

    Args:
        header: lines of the comment at the top, without "#".
        sections: comments by the name of the layer that each precedes.
    """
    titles = dict(sections or {})
    lines = [f"# {line}" for text in header for line in text.splitlines()]
    for field, value in _values(net):
        if field.name == "layer" and value.name in titles:
            lines += ["", f"# {titles.pop(value.name)}"]
        lines += _laid_out(field, value, "")
    return "\n".join(lines) + "\n"


def write_net(path: str | os.PathLike[str], text: str) -> None:
    """Write a net's text as UTF-8; WorkError, and the old file stays, if it can't be written."""
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))  # file names need not be UTF-8


def _values(message: Message) -> Iterable[tuple[FieldDescriptor, Any]]:
    """Each value of each set field, in the order of the field numbers."""
    for field, value in message.ListFields():
        # in proto2 every singular field tells presence
        for item in [value] if field.has_presence else value:
            yield field, item


def _laid_out(field: FieldDescriptor, value: Any, indent: str) -> list[str]:
    line = indent + _one_line(field, value)
    whole_layers = ("convolution_param", "inner_product_param")
    is_block = field.name == "layer" and any(value.HasField(name) for name in whole_layers)
    if field.message_type is None or (len(line) <= WIDTH and not is_block):
        return [line]
    inner = indent + "  "
    lines = [f"{indent}{field.name} {{"]
    plain: list[str] = []
    for child, item in _values(value):
        # a layer's name, type and blobs are easiest to read on lines of their own
        if child.message_type is None and field.name != "layer":
            plain.append(_one_line(child, item))
        else:
            lines += [*_filled(plain, inner), *_laid_out(child, item, inner)]
            plain = []
    return [*lines, *_filled(plain, inner), f"{indent}}}"]


def _one_line(field: FieldDescriptor, value: Any) -> str:
    out = io.StringIO()
    text_format.PrintField(field, value, out, as_utf8=True, as_one_line=True)
    return _WHOLE.sub(lambda match: match[1] or match[2], out.getvalue().rstrip())


def _filled(values: Iterable[str], indent: str) -> list[str]:
    """Values side by side, on as many lines as they need."""
    lines: list[str] = []
    for value in values:
        if lines and len(lines[-1]) + 1 + len(value) <= WIDTH:
            lines[-1] += f" {value}"
        else:
            lines.append(indent + value)
    return lines
