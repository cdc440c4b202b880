"""Whose EntropyLoss a net means: AutoDIAL's reads scores, Xlearn's reads probabilities, and both have one type name."""

from __future__ import annotations

from autodial.errors import InputError
from autodial.proto import messages as pb

_PASS_ON = frozenset({"Concat", "Flatten", "GradientScaler", "Reshape", "Slice", "Split"})
"""Types whose tops hold the values of their bottoms."""


def settle_entropies(net: pb.NetParameter) -> list[str]:
    """Give each EntropyLoss that must be Xlearn's an `entropy_param`, which tells it from AutoDIAL's.

    A layer with `entropy_param` is Xlearn's, one with `softmax_param` or `loss_param` is AutoDIAL's. One with none of
    these is Xlearn's if its values come from a Softmax layer, as the entropy of a softmax of probabilities is hardly
    meant.

    Args:
        net: a net of one phase, in the order of its layers; it is changed.

    Returns:
        the names of the layers that were given an `entropy_param`.

    Raises:
        InputError: a layer with options of both.
    """
    settled = []
    probabilities: set[str] = set()
    for layer in net.layer:
        if layer.type == "EntropyLoss":
            scores = layer.HasField("softmax_param") or layer.HasField("loss_param")
            if layer.HasField("entropy_param"):
                if scores:
                    raise InputError(
                        f'layer "{layer.name}" (EntropyLoss): entropy_param is for probabilities, softmax_param and '
                        "loss_param are for scores: remove one of them"
                    )
            elif not scores and layer.bottom and layer.bottom[0] in probabilities:
                layer.entropy_param.SetInParent()
                settled.append(layer.name)
        passed_on = layer.type in _PASS_ON and not probabilities.isdisjoint(layer.bottom)
        if layer.type == "Softmax" or passed_on:
            probabilities.update(layer.top)
        else:
            probabilities.difference_update(layer.top)
    return settled
