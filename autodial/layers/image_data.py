"""ImageData: the batches that autodial.data reads from an image list, as a layer."""

from __future__ import annotations

from collections.abc import Sequence

from autodial.data.image_data import ImageData
from autodial.layers.base import Layer, LayerContext, Shape, register


@register("ImageData")
class ImageDataLayer(Layer):
    """Caffe's ImageData: tops are images (N, C, H, W) and labels (N,), both float32.

    `source` holds the list and makes batches; whoever runs the net feeds them to it.
    """

    bottoms = (0, 0)
    tops = (2, 2)
    is_data = True

    def __init__(self, source: ImageData) -> None:
        super().__init__()
        self.source = source

    @classmethod
    def from_caffe(cls, context: LayerContext) -> ImageDataLayer:
        return cls(ImageData(context.param, phase=context.phase, seed=context.seed, base_dir=context.base_dir))

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return list(self.source.top_shapes)
