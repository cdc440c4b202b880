"""Whether the scores in a test are finite: those of a training that diverged are not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from autodial.net.net import Net
from autodial.training.monitor import NotFinite
from autodial.wording import counted


class ScoreWatch:
    """Looks, while it is entered, at the scores that a net's losses, Accuracy and Softmax layers read.

    A row's scores are not finite if the highest of them is NaN or infinite. A lower score of -infinity is the logarithm
    of a probability of 0, and softmax turns it into a number. Each batch costs one pass over the scores. Only reading
    the counts waits for the device.

    Args:
        net: a net on the device where it stays.
    """

    def __init__(self, net: Net) -> None:
        self._net = net
        self._highest: dict[str, list[Tensor]] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> ScoreWatch:
        copied: dict[str, str] = {}
        for message, layer in zip(self._net.param.layer, self._net.layers.values(), strict=True):
            if message.type == "Split":
                copied.update(dict.fromkeys(message.top, message.bottom[0]))
            elif layer.is_loss or layer.reads_scores:
                blob = copied.get(message.bottom[0], message.bottom[0])
                if blob not in self._highest:
                    see = partial(self._see, self._highest.setdefault(blob, []))
                    self._hooks.append(layer.register_forward_pre_hook(see))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @staticmethod
    @torch.no_grad()
    def _see(highest: list[Tensor], layer: nn.Module, bottoms: tuple[Tensor, ...]) -> None:
        scores = bottoms[0]
        highest.append(scores.amax((*range(1, scores.ndim),)) if scores.ndim > 1 else scores.reshape(-1))

    def counts(self) -> dict[str, Tensor]:
        """By blob, in the net's order, int64 (2,): how many rows have scores that are not finite, and all rows."""
        device = next((param.tensor.device for param in self._net.params), torch.device("cpu"))
        counts = {}
        for blob, batches in self._highest.items():
            rows = torch.cat(batches) if batches else torch.empty(0, device=device)
            counts[blob] = torch.stack([(~rows.isfinite()).sum(), torch.tensor(len(rows), device=rows.device)])
        return counts


def not_finite(counts: Mapping[str, Tensor]) -> NotFinite:
    """The counts from `ScoreWatch.counts` as numbers, without the blobs whose scores are all finite."""
    pairs = {blob: tuple(count.tolist()) for blob, count in counts.items()}
    return {blob: (bad, rows) for blob, (bad, rows) in pairs.items() if bad}


def describe(found: NotFinite) -> str:
    """`the scores are not finite (NaN or infinite) in blob "fc" for 3 of 8 rows`."""
    parts = [f'in blob "{blob}" for {bad} of {counted(rows, "row")}' for blob, (bad, rows) in found.items()]
    return f"the scores are not finite (NaN or infinite) {' and '.join(parts)}"
