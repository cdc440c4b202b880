"""Folding of a torch module: the affine functions of autodial.converters.fold, in a graph of torch operators.

In eval mode a batch normalization, or an instance normalization with stored statistics, is y = a * x + b per channel,
with a = weight / sqrt(variance + eps) and b = bias - a * mean. They are merged into the weight and bias
of a convolution or linear layer in front; otherwise one product and one sum remain. All of this is computed in float64
and rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from autodial.errors import InputError

_aten = torch.ops.aten
_CONVOLUTIONS = {
    _aten.conv1d.default,
    _aten.conv1d.padding,
    _aten.conv2d.default,
    _aten.conv2d.padding,
    _aten.conv3d.default,
    _aten.conv3d.padding,
}
_TRANSPOSED = {_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input}
_NORMALIZATIONS = {_aten.batch_norm.default, _aten.instance_norm.default}


def fold_graph(
    program: torch.export.ExportedProgram, name_of: Callable[[fx.Node], str]
) -> tuple[fx.GraphModule, dict[str, str], tuple[str, ...]]:
    """The graph of an exported program without its batch normalizations, its weights computed.

    Args:
        program: of a module in eval mode; it stays as it is.
        name_of: gives a node's name for results and errors.

    Returns:
        the graph as a module; names of the merged normalizations, with the layer that each was merged into; names of
        those that remain as a product and a sum. A normalization with computed statistics stays unchanged.

    Raises:
        InputError: a normalization (named) that uses the batch's own statistics.
    """
    module = program.module(check_guards=False)
    graph = module.graph
    _compute_weights(module)
    merged: dict[str, str] = {}
    kept: list[str] = []
    for node in [node for node in graph.nodes if node.target in _NORMALIZATIONS]:
        x, weight, bias, mean, variance, by_batch, _, eps, _ = node.args
        name = name_of(node)
        if by_batch:
            if node.target is _aten.instance_norm.default:  # it uses each image's own statistics
                continue
            raise batch_statistics_error(name)
        if not all(_is_constant(value) for value in (weight, bias, mean, variance)):
            continue
        values = [_constant(module, value) for value in (weight, bias, mean, variance)]
        factor = (values[3] + eps).rsqrt()
        if values[0] is not None:
            factor = factor * values[0]
        shift = -factor * values[2]
        if values[1] is not None:
            shift = shift + values[1]
        with graph.inserting_before(node):
            if _multiply_add(module, x, factor, shift):
                merged[name] = name_of(x)
                result = x
            else:
                kept.append(name)
                shape = (-1, *[1] * (node.meta["val"].dim() - 2))
                product = graph.call_function(
                    _aten.mul.Tensor, (x, _hold(module, f"{node.name}_factor", factor.view(shape)))
                )
                result = graph.call_function(
                    _aten.add.Tensor, (product, _hold(module, f"{node.name}_shift", shift.view(shape)))
                )
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    # The exported program's own module can't be put into eval mode.
    return fx.GraphModule(module, graph), merged, tuple(kept)


def _compute_weights(module: fx.GraphModule) -> None:
    """Replace weights that are computed from others, by weight standardization for example, by constants."""
    graph = module.graph
    weights = {
        argument: None  # a set in the graph's order
        for node in graph.nodes
        if node.target is _aten.linear.default or node.target in _CONVOLUTIONS or node.target in _TRANSPOSED
        for argument in node.args[1:3]
        if isinstance(argument, fx.Node)
    }
    normalized = [node for node in graph.nodes if node.target in _NORMALIZATIONS]
    for node in [*weights, *normalized]:
        if node.op == "call_function" and _is_constant(node):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_hold(module, f"{node.name}_computed", _evaluate(module, node).detach()))
    graph.eliminate_dead_code()


def batch_statistics_error(name: str) -> InputError:
    """The error for a layer that uses batch statistics in eval mode."""
    return InputError(
        f'layer "{name}" normalizes with the statistics of the batch in eval mode, too, so its output depends on the '
        "other images and it can't be folded: it needs stored statistics, and to be trained with them"
    )


def _multiply_add(module: fx.GraphModule, node: fx.Node, factor: Tensor, shift: Tensor) -> bool:
    """Multiply a layer's output channels by `factor` and add `shift`, (C,) each, if that is exact; else return False.

    It is for a convolution or linear layer whose output nothing else reads.
    """
    linear = node.target is _aten.linear.default
    transposed = node.target in _TRANSPOSED
    if not (linear or transposed or node.target in _CONVOLUTIONS) or len(node.users) != 1:
        return False
    if linear and node.meta["val"].dim() != 2:  # its output channels are the last axis, not axis 1
        return False
    if transposed and node.args[6:7] not in ((), (1,)):  # of groups, output channels are not one axis of the weight
        return False
    _, weight, bias = (*node.args, None)[:3]
    if not (_is_constant(weight) and _is_constant(bias)):
        return False
    values, before = _constant(module, weight), _constant(module, bias)
    assert values is not None
    axis = 1 if transposed else 0
    folded = values * factor.view([-1 if i == axis else 1 for i in range(values.dim())])
    with module.graph.inserting_before(node):
        weight = _hold(module, f"{node.name}_weight", folded)
        bias = _hold(module, f"{node.name}_bias", shift if before is None else before * factor + shift)
    node.args = (node.args[0], weight, bias, *node.args[3:])
    return True


def _is_constant(value: Any) -> bool:
    """Whether an argument depends on no input."""
    if not isinstance(value, fx.Node):
        return True
    return value.op == "get_attr" or (
        value.op == "call_function" and all(_is_constant(argument) for argument in value.all_input_nodes)
    )


def _constant(module: fx.GraphModule, value: Any) -> Tensor | None:
    """The tensor that an argument stands for, in float64: parameters, buffers and what is computed from them."""
    if value is None:
        return None
    tensor: Tensor = _evaluate(module, value)
    return tensor.detach().double()


def _evaluate(module: fx.GraphModule, node: fx.Node) -> Any:
    if node.op == "get_attr":
        owner, _, attribute = str(node.target).rpartition(".")
        return getattr(module.get_submodule(owner), attribute)
    function: Any = node.target
    arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda argument: _evaluate(module, argument))
    return function(*arguments, **keywords)


def _hold(module: fx.GraphModule, name: str, value: Tensor) -> fx.Node:
    """A node for a constant, which becomes a buffer of the module, in float32."""
    module.register_buffer(name, value.float())
    return module.graph.get_attr(name)
