"""Caffe's layers that need no files: Input and DummyData."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, check_size, register
from autodial.layers.fillers import fill
from autodial.layers.shares import Rows
from autodial.proto import messages as pb
from autodial.wording import counted

V = TypeVar("V")


@register("Input")
class Input(Layer):
    """Blobs that the caller feeds (input_layer.cpp).

    Args:
        shapes: one per top.
    """

    bottoms = (0, 0)
    tops = (1, None)
    is_data = True
    rows = Rows.MADE

    def __init__(self, shapes: Sequence[Shape]) -> None:
        super().__init__()
        self.shapes = list(shapes)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Input:
        shapes = [tuple(shape.dim) for shape in context.param.input_param.shape]
        for shape in shapes:
            if min(shape, default=1) < 1:
                raise LayerError(f"input_param.shape must be positive, not {shape}")
        return cls(_one_per_top(shapes, "input_param.shape", context.num_tops))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return self.shapes


@register("DummyData")
class DummyData(Layer):
    """Blobs made by fillers (dummy_data_layer.cpp): constant ones once, the others in every pass.

    Args:
        shapes: one per top.
        fillers: a FillerParameter per top.
    """

    bottoms = (0, 0)
    tops = (1, None)
    is_random = True
    rows = Rows.MADE

    def __init__(self, shapes: Sequence[Shape], fillers: Sequence[pb.FillerParameter]) -> None:
        super().__init__()
        self.fillers = list(fillers)
        # The fillers run on the CPU, so that a seed gives the same data on every device.
        self._generator = torch.Generator()
        for i, (shape, filler) in enumerate(zip(shapes, self.fillers, strict=True)):
            data = torch.empty(check_size(f"top {i}", shape))
            fill(data, filler, self._generator)
            self.register_buffer(f"data_{i}", data, persistent=False)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> DummyData:
        param = context.param.dummy_data_param
        legacy = ("num", "channels", "height", "width")
        if any(len(getattr(param, field)) for field in legacy):
            if len(param.shape):
                raise LayerError("dummy_data_param sets both shape and num, channels, height, width: keep shape")
            sizes = [
                _one_per_top(list(getattr(param, field)), f"dummy_data_param.{field}", context.num_tops)
                for field in legacy
            ]
            shapes: list[Shape] = list(zip(*sizes, strict=True))
        else:
            given = [tuple(shape.dim) for shape in param.shape]
            shapes = _one_per_top(given, "dummy_data_param.shape", context.num_tops)
        fillers = list(param.data_filler) or [pb.FillerParameter(type="constant")]
        return cls(shapes, _one_per_top(fillers, "dummy_data_param.data_filler", context.num_tops))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [tuple(data.shape) for data in self.buffers()]

    def reseed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def forward(self) -> tuple[Tensor, ...]:
        tops = (
            data if filler.type == "constant" else self._refill(data, filler)
            for data, filler in zip(self.buffers(), self.fillers, strict=True)
        )
        if self.shares is None:
            return tuple(tops)
        return tuple(top[self.shares.group.share(len(top))] for top in tops)

    def _refill(self, like: Tensor, filler: pb.FillerParameter) -> Tensor:
        data = torch.empty(like.shape, dtype=like.dtype)
        fill(data, filler, self._generator)
        return data.to(like.device)


def _one_per_top(values: list[V], field: str, num_tops: int) -> list[V]:
    """A value per top from a repeated field, which holds one value for all tops or one each, as in Caffe."""
    if len(values) not in (1, num_tops):
        wanted = "1" if num_tops == 1 else f"1 or {num_tops}"
        raise LayerError(f"{counted(num_tops, 'top')} must have {wanted} of {field}, not {len(values)}")
    return values * num_tops if len(values) == 1 else values
