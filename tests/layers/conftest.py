"""Fixtures of the layer tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autodial import proto
from autodial.layers import Layer, LayerContext, layer_class
from autodial.layers.base import TEST, TRAIN


@pytest.fixture
def build() -> Callable[..., Layer]:
    """build(text, *bottom_shapes, phase=TRAIN, tops=1): the layer that the body of a `layer { }` describes."""

    def build(text: str, *bottom_shapes: tuple[int, ...], phase: int = TRAIN, tops: int = 1) -> Layer:
        param = proto.parse_net(f'layer {{ name: "l" {text} }}').layer[0]
        context = LayerContext(param, phase, bottom_shapes, tops, torch.Generator().manual_seed(0))
        layer = layer_class(param.type).from_caffe(context)
        layer.train(phase != TEST)
        layer.top_shapes(bottom_shapes)
        return layer

    return build
