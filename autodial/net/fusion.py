"""Layers of a net that are run as one: Dial, the Scale behind it, and the ReLU behind that."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from autodial.layers import DomainAlignment, Layer, ReLU, Scale
from autodial.proto import messages as pb


def fusible(messages: Sequence[pb.LayerParameter], layers: Sequence[Layer], first: int) -> int:
    """How many layers from number `first` on `run_fused` can run: 1 where there is nothing to fuse, else 2 or 3.

    These are a Dial, a Scale with a learned factor and perhaps a bias per channel, and a ReLU without a negative slope,
    each the next layer and the only reader of the blob before it.

    Args:
        messages, layers: the net's LayerParameters, with splits, and its layers.
    """
    dial, *behind = layers[first : first + 3]
    if type(dial) is not DomainAlignment:  # a subclass may do something else
        return 1
    count = 1
    for kind, layer in zip((_is_scale_per_channel, _is_plain_relu), behind, strict=False):
        message, before = messages[first + count], messages[first + count - 1]
        reads = len(message.bottom) == 1 and message.bottom[0] == before.top[0]
        if not reads or not all(message.propagate_down) or not kind(layer, dial):
            break
        count += 1
    return count


def is_watched(layer: Layer) -> bool:
    """Whether somebody has a hook on a layer, which must then be run by itself."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def run_fused(layers: Sequence[Layer], bottom: Tensor) -> Tensor:
    """The last layer's top, for as many layers as `fusible` says."""
    dial, scale, *relu = layers
    assert isinstance(dial, DomainAlignment) and isinstance(scale, Scale)
    return dial.scaled(bottom, scale.scale, scale.bias, relu=bool(relu))


def _is_scale_per_channel(layer: Layer, dial: DomainAlignment) -> bool:
    per_channel = isinstance(layer, Scale) and layer.shape == (dial.num_features,) and layer.axis == 1
    return per_channel and layer.scale is not None


def _is_plain_relu(layer: Layer, dial: DomainAlignment) -> bool:
    return isinstance(layer, ReLU) and layer.negative_slope == 0
