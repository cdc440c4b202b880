"""torch's linear map, by the faster of two libraries that torch brings for CPUs.

torch takes MKL for float32 matrices. On AMD's CPUs MKL is slower than oneDNN, which computes torch's convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_WORTHWHILE = 2**24
"""Products that a map needs before oneDNN's preparations pay."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What torch.nn.functional.linear computes.

    Args:
        x: (..., K).
        weight: (M, K).
        bias: (M,), or None.

    Returns:
        (..., M).
    """
    if _suits_onednn(x, weight):
        return _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        _ON_AMD
        and not torch.compiler.is_compiling()  # exporters know F.linear, and sizes may be open below
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= _WORTHWHILE
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


def _on_amd() -> bool:
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return available and "AMD" in str(torch.cpu.get_capabilities().get("cpu_name", ""))


_ON_AMD = _on_amd()


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        for_x = _OneDnnLinear.apply(gradient, weight.t(), None) if ctx.needs_input_grad[0] else None
        # MKL: oneDNN is no faster at this one
        for_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return for_x, for_weight, rows.sum(0) if ctx.needs_input_grad[2] else None
