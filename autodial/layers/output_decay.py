"""OutputDecay, which pulls a blob towards zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.shares import Rows


@register("OutputDecay")
class OutputDecay(Layer):
    """The identity, with a decay of the blob itself in the gradient (output_decay_layer.cpp of yi94code/HRSOD).

    The gradient of the bottom is the top's, plus decay * x for "L2" or decay * sign(x) for "L1".

    Args:
        decay: the factor.
        kind: "L1" or "L2".
    """

    rows = Rows.INDEPENDENT
    backward_reads_bottoms = True

    def __init__(self, decay: float = 1.0, kind: str = "L2") -> None:
        super().__init__()
        if kind not in ("L1", "L2"):
            raise LayerError(f"output_decay_param.regularization_type must be L1 or L2, not {kind}")
        self.decay, self.kind = decay, kind

    @classmethod
    def from_caffe(cls, context: LayerContext) -> OutputDecay:
        param = context.param.output_decay_param
        return cls(param.output_decay, param.regularization_type)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return list(bottom_shapes)

    def forward(self, bottom: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return bottom
        top: Tensor = _Decayed.apply(bottom, self.decay, self.kind == "L1")
        return top


class _Decayed(torch.autograd.Function):
    """The identity with OutputDecay's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: float, by_sign: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.decay, ctx.by_sign = decay, by_sign
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] + ctx.decay * (x.sign() if ctx.by_sign else x), None, None
