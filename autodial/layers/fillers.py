"""Caffe's fillers: how a FillerParameter initializes a blob."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autodial.layers.base import LayerError
from autodial.proto import messages as pb

TYPES = ("bilinear", "constant", "diagonal", "gaussian", "msra", "positive_unitball", "uniform", "unit", "xavier")


def fill(tensor: Tensor, filler: pb.FillerParameter, generator: torch.Generator) -> None:
    """Fill a blob in place as a FillerParameter says (filler.hpp).

    `unit`, the identity matrix, is Xlearn's, and `diagonal` FlowNet's.

    Args:
        tensor: a floating-point blob on the generator's device; axis 0 is the output axis of a weight.
        filler: a FillerParameter; an unset one fills with 0.
        generator: source of all randomness.

    Raises:
        LayerError: for an unknown type, an impossible range, or a shape that the type can't fill.
    """
    if filler.HasField("scale") and filler.scale != 1:
        raise LayerError("a filler's scale, which only other versions of Caffe have, is not supported here")
    if filler.sparse != -1 and filler.type != "gaussian":
        raise LayerError(f'a filler of type "{filler.type}" does not support sparse')
    if filler.diag_val and filler.type != "diagonal":
        raise LayerError(f'a filler of type "{filler.type}" has no diag_val')
    with torch.no_grad():
        if filler.type == "constant":
            tensor.fill_(filler.value)
        elif filler.type == "uniform":
            if filler.min > filler.max:
                raise LayerError(f"a uniform filler needs min <= max, not min {filler.min:g} and max {filler.max:g}")
            tensor.uniform_(filler.min, filler.max, generator=generator)
        elif filler.type == "gaussian":
            _gaussian(tensor, filler, generator)
        elif filler.type == "positive_unitball":
            rows = tensor.uniform_(0, 1, generator=generator).view(_num(tensor), -1)
            rows /= rows.sum(1, keepdim=True)
        elif filler.type == "xavier":
            bound = math.sqrt(3 / _fan(tensor, filler.variance_norm))
            tensor.uniform_(-bound, bound, generator=generator)
        elif filler.type == "msra":
            tensor.normal_(0, math.sqrt(2 / _fan(tensor, filler.variance_norm)), generator=generator)
        elif filler.type == "bilinear":
            _bilinear(tensor)
        elif filler.type == "diagonal":
            _diagonal(tensor, filler.diag_val)
        elif filler.type == "unit":
            if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1]:
                raise LayerError(f"a unit filler needs a square blob of 2 axes, not {tuple(tensor.shape)}")
            torch.nn.init.eye_(tensor)
        else:
            raise LayerError(f'filler type "{filler.type}" is not one of {", ".join(TYPES)}')


def _num(tensor: Tensor) -> int:
    """Blob::num(): the first axis, 1 for a scalar."""
    return tensor.shape[0] if tensor.ndim else 1


def _fan(tensor: Tensor, variance_norm: int) -> float:
    """The n of the xavier and msra formulas: inputs of an output, outputs of an input, or their average."""
    fan_in = tensor.numel() / _num(tensor)
    fan_out = tensor.numel() / (tensor.shape[1] if tensor.ndim > 1 else 1)
    if variance_norm == pb.FillerParameter.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if variance_norm == pb.FillerParameter.FAN_OUT else fan_in


def _gaussian(tensor: Tensor, filler: pb.FillerParameter, generator: torch.Generator) -> None:
    """Normal values; `sparse` keeps that many of an input's weights on average, and sets the others to 0."""
    if filler.std <= 0:
        raise LayerError(f"a gaussian filler needs a positive std, not {filler.std:g}")
    if filler.sparse < -1:
        raise LayerError(f"a gaussian filler needs sparse >= 0, not {filler.sparse}")
    tensor.normal_(filler.mean, filler.std, generator=generator)
    if filler.sparse >= 0:
        kept = filler.sparse / _num(tensor)
        if kept > 1:
            raise LayerError(f"a gaussian filler can't keep sparse {filler.sparse} of {_num(tensor)} outputs")
        tensor.mul_(torch.empty_like(tensor).bernoulli_(kept, generator=generator))


def _bilinear(tensor: Tensor) -> None:
    """The kernel of bilinear upsampling in every (output, input) plane."""
    if tensor.ndim != 4 or tensor.shape[2] != tensor.shape[3]:
        raise LayerError(f"a bilinear filler needs a square kernel of 4 axes, not {tuple(tensor.shape)}")
    size = tensor.shape[3]
    factor = math.ceil(size / 2)
    centre = (size - 1) / (2 * factor)
    line = 1 - (torch.arange(size, dtype=tensor.dtype, device=tensor.device) / factor - centre).abs()
    tensor.copy_(torch.outer(line, line).expand_as(tensor))


def _diagonal(tensor: Tensor, values: Sequence[float]) -> None:
    """A mean over the kernel from each channel to the output of the same number, times that output's value, or 1."""
    if tensor.ndim < 2:
        raise LayerError(f"a diagonal filler needs a blob of at least 2 axes, not {tuple(tensor.shape)}")
    tensor.zero_()
    area = math.prod(tensor.shape[2:])
    for i in range(min(tensor.shape[:2])):
        tensor[i, i] = (values[i] if i < len(values) else 1) / area
