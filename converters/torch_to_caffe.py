"""A torch CNN as a deploy prototxt and a caffemodel with the same outputs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from autodial.errors import InputError, WorkError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb

TOLERANCE = 1e-4
"""Largest difference of an output from the module's, as a fraction of the largest magnitude."""
INPUT = "data"
"""Name of the blob that the net reads."""

_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
"""A place in a stack trace."""
_TORCH = Path(torch.__file__).parent

Shape = tuple[int, ...]
Operation = Callable[["_Builder", fx.Node], "str | list[str]"]

_operations: dict[str, Operation] = {}
"""What makes Caffe layers of an ATen operation, by its name without overload and trailing underscore."""


@dataclass(frozen=True)
class CaffeNet:
    """A module as Caffe has it.

    Attributes:
        net: the deploy net, whose Input layer has the example's shape.
        weights: every layer's parameters, float32.
        output: name of the blob that the module returns.
        difference: largest absolute difference of that blob from the module's output for the example.
    """

    net: pb.NetParameter
    weights: Weights
    output: str
    difference: float


def to_caffe(module: nn.Module, example: Tensor, *, name: str = "net") -> CaffeNet:
    """Turn a convolutional network into Caffe layers, and compare the two on the example.

    Convolutions, also grouped and dilated ones, batch normalization, ReLU, ReLU6, leaky ReLU, PReLU, ELU, SiLU (Swish),
    hard sigmoid, hard swish, sigmoid, tanh, softmax, max and average pooling in both roundings, adaptive average
    pooling whose windows have one size, linear layers, sums and products (squeeze and excitation among them),
    concatenation, splitting, reshaping, transposing, dropout.

    Args:
        module: in float32, with one tensor as input and one as output; it is taken in eval mode and stays as it is.
        Layers
            are named like its submodules.
        example: an input (N, C, ...), float32, on the CPU.
        name: of the net.

    Raises:
        InputError: a part that no Caffe layer computes; it names the submodule.
        WorkError: the Caffe net's output differs from the module's by more than 1e-4 of the largest magnitude.
    """
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad():
            expected = module(example)
        if not isinstance(expected, Tensor):
            raise InputError(
                f"the module must return one tensor, not {type(expected).__name__}: wrap it in one that does"
            )
        try:
            program = torch.export.export(module, (example,))
        except Exception as error:  # whatever a module's forward does that no graph can hold
            first = str(error).strip().partition("\n")[0]
            raise InputError(f"torch.export can't trace the module: {first}") from error
    finally:
        for part, mode in training.items():
            part.training = mode
    builder = _Builder(program, name, example)
    output = builder.run()
    weights = Weights(name, [LayerWeights(layer, builder.blobs.get(layer.name, [])) for layer in builder.net.layer])
    net = Net(builder.net, pb.TEST)
    net.load_weights(weights)
    with torch.no_grad():
        found = net.eval()({INPUT: example})[output]
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE * max(float(expected.abs().max()), 1e-30):
        raise WorkError(
            f"the Caffe net's output differs from the module's by {difference:.3g}, where the largest is "
            f"{float(expected.abs().max()):.3g}: this is a fault of the conversion"
        )
    return CaffeNet(builder.net, weights, output, difference)


def _operation(*names: str) -> Callable[[Operation], Operation]:
    def add(function: Operation) -> Operation:
        _operations.update(dict.fromkeys(names, function))
        return function

    return add


@dataclass
class _Builder:
    """The net as far as it is built."""

    program: Any
    name: str
    example: Tensor
    net: pb.NetParameter = field(default_factory=pb.NetParameter)
    blobs: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    """Parameters by the layer's name."""
    values: dict[str, Any] = field(default_factory=dict)
    """What nodes are: a blob's name, a list of them, or a parameter's tensor."""
    names: set[str] = field(default_factory=set)

    def run(self) -> str:
        self.net.name = self.name
        layer = self.net.layer.add(name=INPUT, type="Input", top=[INPUT])
        layer.input_param.shape.add(dim=self.example.shape)
        self.names.add(INPUT)
        state = {**self.program.state_dict, **self.program.constants}
        signature = self.program.graph_signature
        kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        kept |= signature.inputs_to_lifted_tensor_constants
        output = ""
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node.name] = state[kept[node.name]] if node.name in kept else INPUT
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                (output,) = (self.values[value.name] for value in node.args[0] if value is not None)
        self._silence(output)
        return output

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            self.values[node.name] = self.values[source.name][index]
            return
        packet = getattr(node.target, "overloadpacket", node.target)
        operation = str(packet).removeprefix("aten.")
        plain = operation.rstrip("_")
        if operation.startswith("_assert") or (not node.users and plain not in _operations):
            return
        if plain not in _operations:
            raise InputError(f"{self.where(node)}: no Caffe layer computes {packet}")
        value = _operations[plain](self, node)
        self.values[node.name] = value
        if operation != plain:  # in place: whoever reads the input from here on reads the result
            assert isinstance(node.args[0], fx.Node)
            self.values[node.args[0].name] = value

    def _silence(self, output: str) -> None:
        """Put tops that nobody reads into a Silence layer, so that the module's output is the only one."""
        made = [top for layer in self.net.layer for top in layer.top]
        read = {bottom for layer in self.net.layer for bottom in layer.bottom} | {output}
        unread = [top for top in made if top not in read]
        if unread:
            self.net.layer.add(name="unread", type="Silence", bottom=unread)

    def where(self, node: fx.Node) -> str:
        """A node's submodule, for messages: its path, its class and, outside of torch, the line of code."""
        stack = node.meta.get("nn_module_stack") or {}
        path, kind = next(reversed(stack.values()), ("", ""))
        words = [str(getattr(kind, "__name__", kind)).rpartition(".")[2]]
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        if frames and not Path(frames[-1][0]).is_relative_to(_TORCH):
            file, line = frames[-1]
            words.append(f"{Path(file).name} line {line}")
        name = f'"{_path(path)}"' if _path(path) else "the module"
        return f"{name} ({', '.join(filter(None, words))})"

    def refuse(self, node: fx.Node, why: str) -> InputError:
        return InputError(f"{self.where(node)}: {why}")

    def blob(self, node: Any) -> str:
        """The blob that a node is."""
        value = self.values[node.name]
        if not isinstance(value, str):
            raise InputError(f"{self.where(node)}: computes with a parameter in a way that no Caffe layer does")
        return value

    def tensor(self, node: Any) -> Tensor:
        """The parameter that a node is."""
        value = self.values[node.name] if isinstance(node, fx.Node) else None
        if not isinstance(value, Tensor):
            raise InputError(f"{self.where(node)}: weights must be parameters, not computed")
        return value

    def is_blob(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and isinstance(self.values[node.name], str)

    def add(
        self,
        node: fx.Node,
        kind: str,
        bottoms: Sequence[str],
        *blobs: Tensor,
        suffix: str = "",
        tops: int = 1,
    ) -> pb.LayerParameter:
        """A new layer with the name of the node's submodule."""
        stack = node.meta.get("nn_module_stack") or {}
        path = _path(next(reversed(stack.values()), ("", ""))[0]) or node.name
        name, base, number = f"{path}{suffix}", f"{path}{suffix}", 2
        while name in self.names:
            name, number = f"{base}_{number}", number + 1
        self.names.add(name)
        names = [name] if tops == 1 else [f"{name}_{i}" for i in range(tops)]
        layer = self.net.layer.add(name=name, type=kind, bottom=bottoms, top=names)
        arrays = [np.array(blob.detach().float().cpu().numpy(), order="C") for blob in blobs]
        if arrays:
            self.blobs[name] = arrays
        return layer


def _path(path: str) -> str:
    """A submodule's path, from torch.export's `L['self'].features.0` or `features.0`."""
    return path.replace("L['self']", "").replace("L__self___", "").strip(".")


def _arguments(node: fx.Node) -> dict[str, Any]:
    """All of an operation's arguments by name, defaults included."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def _shape(node: Any) -> Shape:
    return tuple(node.meta["val"].shape)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    first, last = values[0], values[-1]
    return first, last


def _top(layer: pb.LayerParameter) -> str:
    return str(layer.top[0])


# --- layers with parameters


@_operation("conv2d", "conv1d", "conv3d")
def _conv(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    weight = builder.tensor(given["weight"])
    blobs = [weight] if given["bias"] is None else [weight, builder.tensor(given["bias"])]
    if isinstance(given["padding"], str):
        raise builder.refuse(node, f'padding must be numbers, not "{given["padding"]}"')
    axes = weight.dim() - 2
    layer = builder.add(node, "Convolution", [builder.blob(given["input"])], *blobs)
    param = layer.convolution_param
    param.num_output, param.bias_term = weight.shape[0], len(blobs) == 2
    param.kernel_size.extend(weight.shape[2:])
    for values, option in ((param.stride, "stride"), (param.pad, "padding"), (param.dilation, "dilation")):
        values.extend(_every(given[option], axes))
    if given["groups"] != 1:
        param.group = given["groups"]
    param.weight_filler.type = "msra"
    return _top(layer)


def _every(value: int | Sequence[int], axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


@_operation("linear")
def _linear(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    weight = builder.tensor(given["weight"])
    blobs = [weight] if given["bias"] is None else [weight, builder.tensor(given["bias"])]
    layer = builder.add(node, "InnerProduct", [builder.blob(given["input"])], *blobs)
    param = layer.inner_product_param
    param.num_output, param.bias_term = weight.shape[0], len(blobs) == 2
    param.weight_filler.type = "xavier"
    if len(_shape(given["input"])) != 2:
        param.axis = len(_shape(given["input"])) - 1
    return _top(layer)


@_operation("batch_norm")
def _batch_norm(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    if given["running_mean"] is None:
        raise builder.refuse(node, "a batch normalization without running statistics depends on the batch")
    mean, variance = builder.tensor(given["running_mean"]), builder.tensor(given["running_var"])
    layer = builder.add(node, "BatchNorm", [builder.blob(given["input"])], mean, variance, torch.ones(1))
    layer.batch_norm_param.eps = given["eps"]
    if given["weight"] is None:
        return _top(layer)
    return _scale(builder, node, _top(layer), builder.tensor(given["weight"]), given["bias"])


def _scale(builder: _Builder, node: fx.Node, bottom: str, weight: Tensor, bias: fx.Node | None) -> str:
    blobs = [weight] if bias is None else [weight, builder.tensor(bias)]
    layer = builder.add(node, "Scale", [bottom], *blobs, suffix="/scale")
    layer.scale_param.bias_term = len(blobs) == 2
    return _top(layer)


@_operation("prelu")
def _prelu(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    weight = builder.tensor(given["weight"])
    shared = weight.numel() == 1 and _shape(given["self"])[1] != 1
    layer = builder.add(node, "PReLU", [builder.blob(given["self"])], weight.reshape(()) if shared else weight)
    layer.prelu_param.channel_shared = shared
    return _top(layer)


# --- element by element


@_operation("relu", "sigmoid", "tanh", "abs", "relu6")
def _plain(builder: _Builder, node: fx.Node) -> str:
    kinds = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "TanH", "abs": "AbsVal", "relu6": "ReLU6"}
    kind = kinds[str(node.target.overloadpacket).removeprefix("aten.").rstrip("_")]  # type: ignore[union-attr]
    return _top(builder.add(node, kind, [builder.blob(node.args[0])]))


@_operation("leaky_relu")
def _leaky_relu(builder: _Builder, node: fx.Node) -> str:
    layer = builder.add(node, "ReLU", [builder.blob(node.args[0])])
    layer.relu_param.negative_slope = _arguments(node)["negative_slope"]
    return _top(layer)


@_operation("elu")
def _elu(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    if (given["scale"], given["input_scale"]) != (1, 1):
        raise builder.refuse(node, "no Caffe layer computes a scaled ELU")
    layer = builder.add(node, "ELU", [builder.blob(node.args[0])])
    layer.elu_param.alpha = given["alpha"]
    return _top(layer)


@_operation("hardtanh", "clamp")
def _clip(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    least, most = given.get("min_val", given.get("min")), given.get("max_val", given.get("max"))
    bottom = builder.blob(node.args[0])
    if (least, most) == (0, 6):
        return _top(builder.add(node, "ReLU6", [bottom]))
    if least is None or most is None:
        raise builder.refuse(node, "clamp needs both limits")
    layer = builder.add(node, "Clip", [bottom])
    layer.clip_param.min, layer.clip_param.max = least, most
    return _top(layer)


@_operation("silu")
def _silu(builder: _Builder, node: fx.Node) -> str:
    return _top(builder.add(node, "Swish", [builder.blob(node.args[0])]))


@_operation("hardsigmoid")
def _hardsigmoid(builder: _Builder, node: fx.Node) -> str:
    return _hard(builder, node, builder.blob(node.args[0]))


def _hard(builder: _Builder, node: fx.Node, bottom: str) -> str:
    """min(max(x + 3, 0), 6) / 6"""
    shifted = _power(builder, node, bottom, shift=3, suffix="/shift")
    clipped = _top(builder.add(node, "ReLU6", [shifted], suffix="/relu6"))
    return _power(builder, node, clipped, scale=1 / 6, suffix="/sixth")


@_operation("hardswish")
def _hardswish(builder: _Builder, node: fx.Node) -> str:
    bottom = builder.blob(node.args[0])
    factor = _hard(builder, node, bottom)
    return _eltwise(builder, node, [bottom, factor], pb.EltwiseParameter.PROD)


def _power(builder: _Builder, node: fx.Node, bottom: str, scale: float = 1, shift: float = 0, suffix: str = "") -> str:
    layer = builder.add(node, "Power", [bottom], suffix=suffix)
    layer.power_param.scale, layer.power_param.shift = scale, shift
    return _top(layer)


@_operation("softmax")
def _softmax(builder: _Builder, node: fx.Node) -> str:
    layer = builder.add(node, "Softmax", [builder.blob(node.args[0])])
    layer.softmax_param.axis = _arguments(node)["dim"]
    return _top(layer)


@_operation("dropout", "feature_dropout")
def _dropout(builder: _Builder, node: fx.Node) -> str:
    layer = builder.add(node, "Dropout", [builder.blob(node.args[0])])
    layer.dropout_param.dropout_ratio = _arguments(node)["p"]
    return _top(layer)


@_operation("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as")
def _same(builder: _Builder, node: fx.Node) -> str:
    return builder.blob(node.args[0])


# --- sums and products


@_operation("add", "sub")
def _sum(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    first, second = given["self"], given["other"]
    sign = -1 if "sub" in str(node.target) else 1
    factor = sign * given.get("alpha", 1)
    if not isinstance(second, fx.Node):
        return _power(builder, node, builder.blob(first), shift=factor * second)
    if not (builder.is_blob(first) and builder.is_blob(second)) or _shape(first) != _shape(second):
        raise builder.refuse(node, f"no Caffe layer adds {_shape(first)} and {_shape(second)}")
    bottoms = [builder.blob(first), builder.blob(second)]
    return _eltwise(builder, node, bottoms, pb.EltwiseParameter.SUM, factor)


@_operation("mul", "div")
def _product(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    first, second = given["self"], given["other"]
    divides = "div" in str(node.target)
    if not isinstance(second, fx.Node):
        return _power(builder, node, builder.blob(first), scale=1 / second if divides else second)
    if divides:
        raise builder.refuse(node, "no Caffe layer divides one blob by another")
    if builder.is_blob(second) and not builder.is_blob(first):
        first, second = second, first
    if not builder.is_blob(second):
        weight = builder.tensor(second)
        channels = _shape(first)[1]
        if weight.numel() != channels or weight.dim() < 3 or weight.shape[-3] != channels:
            raise builder.refuse(node, f"no Caffe layer multiplies {_shape(first)} by weights {tuple(weight.shape)}")
        return _scale(builder, node, builder.blob(first), weight.reshape(-1), None)
    shapes = _shape(first), _shape(second)
    if shapes[0] == shapes[1]:
        return _eltwise(builder, node, [builder.blob(first), builder.blob(second)], pb.EltwiseParameter.PROD)
    if np.prod(shapes[0]) < np.prod(shapes[1]):
        first, second, shapes = second, first, shapes[::-1]
    whole, part = shapes
    kept = len(part) - next((i for i, length in enumerate(reversed(part)) if length != 1), len(part))
    if len(whole) != len(part) or whole[:kept] != part[:kept]:
        raise builder.refuse(node, f"no Caffe layer multiplies {whole} by {part}")
    rows = builder.blob(second)
    if kept < len(part):  # the gates of squeeze and excitation, (N, C, 1, 1)
        rows = _reshape(builder, node, rows, part, part[:kept], suffix="/gates")
    layer = builder.add(node, "Scale", [builder.blob(first), rows])
    layer.scale_param.axis = 0
    return _top(layer)


def _eltwise(
    builder: _Builder,
    node: fx.Node,
    bottoms: Sequence[str],
    operation: pb.EltwiseParameter.EltwiseOp,
    factor: float = 1,
) -> str:
    layer = builder.add(node, "Eltwise", bottoms)
    layer.eltwise_param.operation = operation
    if factor != 1:
        layer.eltwise_param.coeff.extend([1, factor])
    return _top(layer)


# --- pooling


@_operation("max_pool2d")
def _max_pool(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    if set(_pair(given["dilation"])) != {1}:
        raise builder.refuse(node, "no Caffe layer computes a dilated pooling")
    return _pool(builder, node, given, pb.PoolingParameter.MAX)


@_operation("avg_pool2d")
def _average_pool(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    if given["divisor_override"] is not None:
        raise builder.refuse(node, "divisor_override must be None")
    if any(_pair(given["padding"])) and not given["count_include_pad"]:
        raise builder.refuse(node, "Caffe's average pooling counts the padding: count_include_pad must be True")
    return _pool(builder, node, given, pb.PoolingParameter.AVE)


def _pool(builder: _Builder, node: fx.Node, given: dict[str, Any], method: pb.PoolingParameter.PoolMethod) -> str:
    layer = builder.add(node, "Pooling", [builder.blob(node.args[0])])
    param = layer.pooling_param
    param.pool = method
    param.kernel_h, param.kernel_w = _pair(given["kernel_size"])
    param.stride_h, param.stride_w = _pair(given["stride"] or given["kernel_size"])
    param.pad_h, param.pad_w = _pair(given["padding"])
    if not given["ceil_mode"]:
        param.ceil_mode = False
    return _top(layer)


@_operation("adaptive_avg_pool2d")
def _adaptive_pool(builder: _Builder, node: fx.Node) -> str:
    sizes = _pair(_arguments(node)["output_size"])
    source = node.args[0]
    if sizes == (1, 1):
        return _global_pool(builder, node)
    windows = [_windows(length, size) for length, size in zip(_shape(source)[2:], sizes, strict=True)]
    if None in windows:
        raise builder.refuse(node, f"windows of several sizes pool {_shape(source)[2:]} to {sizes}")
    (kernel_h, stride_h), (kernel_w, stride_w) = (window for window in windows if window is not None)
    if (kernel_h, kernel_w, stride_h, stride_w) == (1, 1, 1, 1):
        return builder.blob(source)
    layer = builder.add(node, "Pooling", [builder.blob(source)])
    param = layer.pooling_param
    param.pool = pb.PoolingParameter.AVE
    param.kernel_h, param.kernel_w, param.stride_h, param.stride_w = kernel_h, kernel_w, stride_h, stride_w
    param.ceil_mode = False
    return _top(layer)


def _windows(length: int, size: int) -> tuple[int, int] | None:
    """Kernel and stride of adaptive pooling from `length` to `size`; None if windows have several sizes."""
    starts = [i * length // size for i in range(size)]
    ends = [-(-(i + 1) * length // size) for i in range(size)]
    kernels = {end - start for start, end in zip(starts, ends, strict=True)}
    strides = {b - a for a, b in pairwise(starts)} or {1}
    return (kernels.pop(), strides.pop()) if len(kernels) == 1 and len(strides) == 1 else None


@_operation("mean")
def _mean(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    shape = _shape(node.args[0])
    if sorted(axis % len(shape) for axis in given["dim"] or range(len(shape))) != [2, 3] or len(shape) != 4:
        raise builder.refuse(node, "a mean must be over height and width")
    pooled = _global_pool(builder, node)
    return pooled if given["keepdim"] else _reshape(builder, node, pooled, (*shape[:2], 1, 1), shape[:2])


def _global_pool(builder: _Builder, node: fx.Node) -> str:
    layer = builder.add(node, "Pooling", [builder.blob(node.args[0])])
    layer.pooling_param.pool = pb.PoolingParameter.AVE
    layer.pooling_param.global_pooling = True
    return _top(layer)


# --- shapes


@_operation("cat")
def _concat(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    layer = builder.add(node, "Concat", [builder.blob(tensor) for tensor in given["tensors"]])
    layer.concat_param.axis = given["dim"] % len(_shape(node))
    return _top(layer)


@_operation("chunk", "split", "split_with_sizes")
def _split(builder: _Builder, node: fx.Node) -> list[str]:
    given = _arguments(node)
    axis = given["dim"] % len(_shape(node.args[0]))
    lengths = [part.shape[axis] for part in node.meta["val"]]
    if len(lengths) == 1:
        return [builder.blob(node.args[0])]
    return _slice(builder, node, axis, np.cumsum(lengths)[:-1].tolist())


@_operation("slice")
def _cut(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    shape = _shape(node.args[0])
    axis = given["dim"] % len(shape)
    length, step = _shape(node)[axis], given["step"]
    if step != 1:
        raise builder.refuse(node, "no Caffe layer takes every second row")
    start = min(max((given["start"] or 0) + (shape[axis] if (given["start"] or 0) < 0 else 0), 0), shape[axis])
    points = [point for point in (start, start + length) if 0 < point < shape[axis]]
    if not points:
        return builder.blob(node.args[0])
    return _slice(builder, node, axis, points)[1 if start else 0]


@_operation("select")
def _select(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    shape = _shape(node.args[0])
    axis, index = given["dim"] % len(shape), given["index"] % shape[given["dim"]]
    points = [point for point in (index, index + 1) if 0 < point < shape[axis]]
    part = _slice(builder, node, axis, points)[1 if index else 0] if points else builder.blob(node.args[0])
    return _reshape(builder, node, part, (*shape[:axis], 1, *shape[axis + 1 :]), _shape(node))


def _slice(builder: _Builder, node: fx.Node, axis: int, points: Sequence[int]) -> list[str]:
    layer = builder.add(node, "Slice", [builder.blob(node.args[0])], tops=len(points) + 1)
    layer.slice_param.axis = axis
    layer.slice_param.slice_point.extend(points)
    return list(layer.top)


@_operation("view", "reshape", "flatten", "unsqueeze", "squeeze", "_unsafe_view")
def _new_shape(builder: _Builder, node: fx.Node) -> str:
    return _reshape(builder, node, builder.blob(node.args[0]), _shape(node.args[0]), _shape(node))


def _reshape(builder: _Builder, node: fx.Node, bottom: str, before: Shape, after: Shape, suffix: str = "") -> str:
    """A Flatten or Reshape layer that holds for any number of rows."""
    if before == after:
        return bottom
    if not after or before[0] != after[0]:
        raise builder.refuse(node, f"the batch axis must stay, where {before} becomes {after}")
    if len(after) == 2 and len(before) > 2:
        return _top(builder.add(node, "Flatten", [bottom], suffix=suffix or "/flatten"))
    layer = builder.add(node, "Reshape", [bottom], suffix=suffix or "/reshape")
    layer.reshape_param.shape.dim.extend([0, *after[1:]])
    return _top(layer)


@_operation("transpose", "permute")
def _permute(builder: _Builder, node: fx.Node) -> str:
    given = _arguments(node)
    order = list(range(len(_shape(node))))
    if "dims" in given:
        order = [axis % len(order) for axis in given["dims"]]
    else:
        first, second = given["dim0"], given["dim1"]
        order[first], order[second] = order[second], order[first]
    layer = builder.add(node, "Permute", [builder.blob(node.args[0])], suffix="/permute")
    layer.permute_param.order.extend(order)
    return _top(layer)
