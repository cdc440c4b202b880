"""pycaffe's NetSpec: nets written as Python expressions.

    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, 32, 32]))
    n.conv = L.Convolution(n.data, kernel_size=3, num_output=8, weight_filler=dict(type="xavier"))
    n.pool = L.Pooling(n.conv, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    message = n.to_proto()

`L` is `layers` and `P` is `params`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message

from autodial.proto import messages as pb


class Top:
    """An output of a layer, which other layers take as input.

    Attributes:
        fn: the layer.
        n: the output's number within the layer.
    """

    def __init__(self, fn: Function, n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> pb.NetParameter:
        """The NetParameter of all layers that this output needs."""
        return to_proto(self)


class Function:
    """A layer: its type, its inputs and its settings. `L.Convolution(...)` and the like make them.

    Args:
        type_name: Caffe's name of the layer's type.
        inputs: the tops that it reads.
        params: fields of the type's own message (`kernel_size=3` for a Convolution) or else of LayerParameter
            (`loss_weight=2`, `include=dict(phase=caffe.TEST)`, `loss_param=dict(...)`); ntop, the number of tops, by
            default 1; in_place, whether the tops have the names of the inputs.

    Attributes:
        type_name, inputs, params: as given, without ntop and in_place.
        tops: its outputs.

    Raises:
        TypeError: an input is not a Top.
    """

    def __init__(self, type_name: str, inputs: Iterable[Any], params: Mapping[str, Any]) -> None:
        self.type_name = type_name
        self.inputs: tuple[Top, ...] = tuple(inputs)
        for i, top in enumerate(self.inputs):
            if not isinstance(top, Top):
                raise TypeError(f"{type_name} input {i} is not a Top (type is {type(top)})")
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def to_proto(self) -> pb.NetParameter:
        """The NetParameter of this layer and of all layers that it needs."""
        return _net([self], {})


class NetSpec:
    """A net whose layers and blobs are named as the attributes that hold them.

    `n.conv = L.Convolution(n.data, ...)` names a blob and the layer that makes it; `n.data, n.label = L.Data(ntop=2,
    ...)` names the layer like its first blob; `n.silence = L.Silence(n.data, ntop=0)` names a layer without blobs.
    For names that are no Python identifiers, write `n["loss/aux"] = ...`.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "tops", OrderedDict())

    tops: OrderedDict[str, Top | Function]

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, (Top, Function)):
            raise TypeError(f"{name} must be what a layer returns, not {type(value)}")
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tops[name]
        except KeyError:
            raise AttributeError(f"the net has no {name!r}; it has {', '.join(self.tops)}") from None

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.__setattr__(name, value)

    def __getitem__(self, name: str) -> Any:
        return self.tops[name]

    def __delitem__(self, name: str) -> None:
        del self.tops[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tops

    def __iter__(self) -> Iterator[str]:
        return iter(self.tops)

    def keys(self) -> list[str]:
        """The names."""
        return list(self.tops)

    def vals(self) -> list[Top | Function]:
        """The tops and layers that have names."""
        return list(self.tops.values())

    def update(self, others: Mapping[str, Top | Function]) -> None:
        """Name several at once."""
        for name, value in others.items():
            self[name] = value

    def to_proto(self) -> pb.NetParameter:
        """The NetParameter, with the layers in the order in which they were named, each after those that it needs."""
        functions = [value.fn if isinstance(value, Top) else value for value in self.tops.values()]
        return _net(functions, {value: name for name, value in self.tops.items()})


class Layers:
    """Makes layers: any attribute is a function that returns a top, a tuple of tops, or with ntop=0 the layer."""

    def __getattr__(self, type_name: str) -> Callable[..., Any]:
        def make(*inputs: Top, **params: Any) -> Top | tuple[Top, ...] | Function:
            function = Function(type_name, inputs, params)
            if function.ntop == 0:
                return function
            return function.tops[0] if function.ntop == 1 else function.tops

        return make


class Parameters:
    """Caffe's enums: `params.Pooling.MAX` is PoolingParameter.MAX."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pb, f"{name}Parameter")


layers = Layers()
params = Parameters()


def to_proto(*tops: Top) -> pb.NetParameter:
    """The NetParameter of all layers that the tops need; names are types and numbers, such as Convolution1."""
    return _net([top.fn for top in tops], {})


def assign_proto(message: Message, name: str, value: Any) -> None:
    """Set a field of a protobuf message from a Python value.

    A dict sets the fields of a message; a list, tuple or single value is added to a repeated field.
    """
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise AttributeError(f"{message.DESCRIPTOR.name} has no field {name!r}")
    target = getattr(message, name)
    if _is_repeated(target):
        for item in value if isinstance(value, (list, tuple, np.ndarray)) else [value]:
            if isinstance(item, Mapping):
                _assign_fields(target.add(), item)
            elif field.message_type is not None:
                target.add().CopyFrom(item)
            else:
                target.append(_plain(item))
    elif isinstance(value, Mapping):
        target.SetInParent()
        _assign_fields(target, value)
    elif field.message_type is not None:
        target.CopyFrom(value)
    else:
        setattr(message, name, _plain(value))


def _assign_fields(message: Message, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        assign_proto(message, name, value)


def _is_repeated(target: Any) -> bool:
    return hasattr(target, "extend")


def _plain(value: Any) -> Any:
    """Convert a numpy number to a Python number for protobuf."""
    return value.item() if isinstance(value, np.generic) else value


_fields = {
    field.message_type.name.removesuffix("Parameter"): field.name
    for field in pb.LayerParameter.DESCRIPTOR.fields
    if field.message_type and field.name.endswith("_param")
}
"""The field of LayerParameter for each layer type with its own message."""


def _net(functions: Iterable[Function], names: Mapping[Top | Function, str]) -> pb.NetParameter:
    """The NetParameter of layers and of all layers that they need, in an order in which they can run."""
    writer = _Writer(names)
    for function in functions:
        writer.add(function)
    return writer.net


class _Writer:
    """Adds layers to a NetParameter, each once.

    Args:
        names: the user's names; other tops and layers are named by type and number.
    """

    def __init__(self, names: Mapping[Top | Function, str]) -> None:
        self.net = pb.NetParameter()
        self._names = dict(names)
        self._numbers: Counter[str] = Counter()
        self._tops: dict[Function, list[str]] = {}

    def add(self, function: Function) -> None:
        """Add a layer after the layers that it needs, without recursion: nets can be deeper than Python's stack."""
        waiting = [function]
        while waiting:
            last = waiting[-1]
            missing = [top.fn for top in last.inputs if top.fn not in self._tops]
            if missing:
                waiting.append(missing[0])
                continue
            waiting.pop()
            if last not in self._tops:
                self._write(last)

    def _write(self, function: Function) -> None:
        layer = self.net.layer.add(type=function.type_name)
        layer.bottom.extend(self._tops[top.fn][top.n] for top in function.inputs)
        # Tops get their numbers first: a layer without its own name is named after its first top.
        tops = [] if function.in_place else [self._name(top, function.type_name) for top in function.tops]
        layer.top.extend(list(layer.bottom) if function.in_place else tops)
        self._tops[function] = list(layer.top)
        layer.name = self._name(function.tops[0] if function.tops else function, function.type_name)
        own = _fields.get(function.type_name)
        for name, value in function.params.items():
            # As in pycaffe the type's own message goes before LayerParameter, except for *_param fields.
            owners = [getattr(layer, own)] if own and not name.endswith("param") else []
            owner = next((o for o in (*owners, layer) if name in o.DESCRIPTOR.fields_by_name), None)
            if owner is None:
                names = " nor ".join(o.DESCRIPTOR.name for o in (*owners, layer))
                raise AttributeError(f'layer "{layer.name}" ({layer.type}): {names} has no field {name!r}')
            assign_proto(owner, name, value)

    def _name(self, value: Top | Function, type_name: str) -> str:
        if value not in self._names:
            self._numbers[type_name] += 1
            self._names[value] = f"{type_name}{self._numbers[type_name]}"
        return self._names[value]
