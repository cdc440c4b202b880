"""Layers written in Python, as a user's module has them."""

from __future__ import annotations

from typing import Any

import autodial.caffe as caffe


class Times(caffe.Layer):
    """Multiplies by param_str, and counts its passes in a blob of its own."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.factor = float(self.param_str)
        self.blobs.add_blob(1)

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom: Any, top: Any) -> None:
        self.blobs[0].data[0] += 1
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self.blobs[0].diff[0] += 1
        bottom[0].diff[...] = self.factor * top[0].diff


class Broken(Times):
    def forward(self, bottom: Any, top: Any) -> None:
        raise KeyError("a mistake of the user's")
