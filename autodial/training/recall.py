"""Recall per class and balanced accuracy over a whole test, however its batches were cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from autodial.data.labels import labels_beside
from autodial.layers import Accuracy
from autodial.layers.base import canonical_axis
from autodial.net.net import Net
from autodial.training.monitor import Recalls


class RecallWatch:
    """Counts, while it is entered, how many labels of each class a net predicts.

    The counts are for the scores of every Accuracy layer, or of every loss that reads labels if there is no Accuracy
    layer. A prediction is the highest score, with the rules of `Accuracy` for equal scores and NaN. Labels that the
    layer ignores don't count. Only reading the counts waits for the device.

    Args:
        net: a net on the device where it stays.
    """

    def __init__(self, net: Net) -> None:
        self._net = net
        self._counts: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> RecallWatch:
        device = next((param.tensor.device for param in self._net.params), torch.device("cpu"))
        copied: dict[str, str] = {}
        readers: list[tuple[Any, str]] = []
        for message, layer in zip(self._net.param.layer, self._net.layers.values(), strict=True):
            if message.type == "Split":
                copied.update(dict.fromkeys(message.top, message.bottom[0]))
            elif layer.reads_labels:
                readers.append((layer, copied.get(message.bottom[0], message.bottom[0])))
        accuracies = [reader for reader in readers if isinstance(reader[0], Accuracy)]
        for layer, blob in accuracies or readers:
            if blob in self._counts:
                continue
            shape = self._net.blob_shapes[blob]
            counter = Accuracy(axis=layer.axis, ignore_label=layer.ignore_label)
            counts = torch.zeros(shape[canonical_axis(counter.axis, len(shape))], 2, dtype=torch.int64, device=device)
            self._counts[blob] = counts
            self._hooks.append(layer.register_forward_pre_hook(partial(_count, counter, counts)))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def counts(self) -> dict[str, Tensor]:
        """By blob of scores, in the net's order, int64 (classes, 2): labels predicted, and all labels."""
        return dict(self._counts)


@torch.no_grad()
def _count(counter: Accuracy, counts: Tensor, layer: nn.Module, bottoms: tuple[Tensor, ...]) -> None:
    counts += torch.stack(counter.class_counts(*bottoms[:2]), 1)


def recalls(counts: Mapping[str, Tensor]) -> Recalls:
    """What `RecallWatch.counts` gave as shares in [0, 1], per class; NaN for a class without labels."""
    return {
        blob: tuple(hits / labels if labels else math.nan for hits, labels in count.tolist())
        for blob, count in counts.items()
    }


def balanced_accuracy(recall: Sequence[float]) -> float:
    """The mean of the recalls of all classes that have labels, as scikit-learn defines it; NaN if no class has any."""
    return fmean(known) if (known := [value for value in recall if not math.isnan(value)]) else math.nan


def describe_recall(blob: str, recall: Sequence[float], folder: Path | None = None, *, shown: int = 12) -> str:
    """`balanced accuracy of fc = 0.9, recall by class = [0.8, 1]`; of many classes, the lowest recalls with numbers.

    Args:
        folder: whose labels.txt names the classes, as in `[cat: 0.8, dog: 1]`; None, or without such a file, or with
            one of another number of names: nothing does.
        shown: the most classes whose recalls are all shown.
    """
    names = None if folder is None else labels_beside(folder, len(recall))
    balanced = f"balanced accuracy of {blob} = {balanced_accuracy(recall):.6g}"
    if len(recall) <= shown:
        named = (f"{value:.4g}" if names is None else f"{names[k]}: {value:.4g}" for k, value in enumerate(recall))
        return f"{balanced}, recall by class = [{', '.join(named)}]"
    lowest = sorted((value, k) for k, value in enumerate(recall) if not math.isnan(value))[: shown // 2]
    named = (f"{value:.4g} ({f'class {k}' if names is None else names[k]})" for value, k in lowest)
    return f"{balanced}, lowest recalls: {', '.join(named)}"
