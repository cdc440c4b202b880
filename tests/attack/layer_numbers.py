"""Nets of a layer each, whose numeric options have values that nobody would give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from test_every_option import CASES, Case

from autodial.proto import messages as pb

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_WHOLE = (-1, 0, 2**31 - 1, 2**31, 2**32, 2**62, 2**64, -(2**31))
_FLOATS = (*map(float, _WHOLE), float("nan"), float("inf"), 1e308, -1e308, 1e38, 1e-45)


def odd_net(rng: random.Random) -> str:
    """A layer of any type with the bottoms that it wants, in which one or two numbers, or a bottom's size, are odd."""
    kind = rng.choice(sorted(CASES))
    case = rng.choice(CASES[kind])
    net = pb.NetParameter()
    text_format.Parse("".join(_input(i, shape) for i, shape in enumerate(case.bottoms)) + _layer(kind, case), net)
    if case.bottoms and rng.random() < 0.15:
        dims = rng.choice(net.layer[:-1]).input_param.shape[0].dim
        dims[rng.randrange(len(dims))] = rng.choice((2**31 - 1, 2**31, 2**40, 2**62, -1, 0))
    layer = net.layer[-1]
    set_before = [field for field, _ in layer.ListFields() if field.message_type is not None]
    own = [f for f in layer.DESCRIPTOR.fields if f.name.replace("_", "") == f"{kind.lower()}param" or f in set_before]
    numbers = [path for field in own for path in _numbers([field])]
    for _ in range(rng.choice((1, 1, 2)) if numbers else 0):
        _put(rng, layer, rng.choice(numbers))
    return text_format.MessageToString(net)


def _input(number: int, shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "in{number}" type: "Input" top: "b{number}" input_param {{ shape {{ {dims} }} }} }}\n'


def _layer(kind: str, case: Case) -> str:
    blobs = [f'bottom: "b{i}"' for i in range(len(case.bottoms))] + [f'top: "t{i}"' for i in range(case.tops)]
    return f'layer {{ name: "x" type: "{kind}" {" ".join(blobs)} {case.body} }}'


def _numbers(path: list[Any]) -> Iterator[list[Any]]:
    """The ways from a message's field to the numbers in it."""
    last = path[-1]
    if last.message_type is not None:
        for field in last.message_type.fields:
            if len(path) < 4:
                yield from _numbers([*path, field])
    elif last.cpp_type in (*_RANGES, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        yield path


def _put(rng: random.Random, message: Any, path: list[Any]) -> None:
    for field in path[:-1]:
        if field.has_presence:
            message = getattr(message, field.name)
        else:
            items = getattr(message, field.name)
            message = rng.choice(list(items)) if len(items) else items.add()
    last = path[-1]
    if last.cpp_type in _RANGES:
        low, high = _RANGES[last.cpp_type]
        value: float = min(max(rng.choice(_WHOLE), low), high)
    else:
        value = rng.choice(_FLOATS)
    if last.has_presence:
        setattr(message, last.name, value)
    else:
        getattr(message, last.name).extend([value] * rng.choice((1, 1, 2, 70)))
