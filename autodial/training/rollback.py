"""Undoes what forward passes changed in a net when an iteration is cut short."""

from __future__ import annotations

import torch

from autodial.layers.base import Layer
from autodial.net.net import Net


class Rollback:
    """The moving statistics of a net, and its alphas, which a forward pass clips, as they were before an iteration.

    Args:
        net: a train net, on the device where it stays.
    """

    def __init__(self, net: Net) -> None:
        moving = [layer for layer in net.layers.values() if isinstance(layer, Layer) and layer.statistics]
        self._blobs = list({id(blob): blob for layer in moving for blob in layer.blobs}.values())
        self._kept = [torch.empty_like(blob) for blob in self._blobs]
        self._begun = False

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the statistics and alphas: an iteration begins."""
        if self._blobs:
            torch._foreach_copy_(self._kept, self._blobs)
        self._begun = True

    def forget(self) -> None:
        """Keep the changes: the iteration is done."""
        self._begun = False

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo the forward passes of the iteration that has begun, if one has."""
        if self._begun and self._blobs:
            torch._foreach_copy_(self._blobs, self._kept)
        self._begun = False
