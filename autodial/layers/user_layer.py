"""pycaffe's Layer: the base of layers that users write in Python."""

from __future__ import annotations

from collections.abc import Sequence

from autodial.layers.user_blobs import Blob, LayerBlobs
from autodial.proto import messages as pb


class Layer:
    """Base of the classes that `layer { type: "Python" python_param { module: "m" layer: "C" } }` names.

    A net calls `setup` and `reshape` when it is built, `reshape` and `forward` in each forward pass, and `backward` in
    each backward pass. `bottom` and `top` are lists of blobs with `data`, `diff`, `shape` and `reshape`. What the
    methods raise comes out of the net as it is.

    Args:
        param: the layer's message.

    Attributes:
        param_str: python_param.param_str of the prototxt.
        phase: caffe.TRAIN or caffe.TEST.
        blobs: the layer's parameters, none until `setup` adds them with `blobs.add_blob(*shape)`.
    """

    param_str: str
    phase: int
    blobs: LayerBlobs

    def __init__(self, param: pb.LayerParameter) -> None:
        self.param = param

    @property
    def type(self) -> str:
        """The layer's Caffe type."""
        return "Python"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Check the number and shapes of the blobs, read `param_str`, add parameters; once."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give the tops the shapes that follow from the bottoms': `top[0].reshape(*bottom[0].shape)`."""
        raise NotImplementedError(f"{type(self).__name__} must have a method reshape(self, bottom, top)")

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Write to the tops' `data`."""
        raise NotImplementedError(f"{type(self).__name__} must have a method forward(self, bottom, top)")

    def backward(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Write to the `diff` of the bottoms for which `propagate_down` is true; add to the `diff` of the blobs."""
        raise NotImplementedError(
            f"{type(self).__name__} must have a method backward(self, top, propagate_down, bottom): a gradient has to "
            "pass through the layer"
        )
