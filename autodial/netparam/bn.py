"""The layer type BN, of which three versions are in use: what a layer's options say of it.

All of them normalize each channel, multiply and add. Which version a layer is of follows from the fields that it
states: `bn_mode` is SegNet's and ENet's; `slope_filler`, `bias_filler`, `momentum`, `eps` and `frozen` are those of
PSPNet and temporal segment networks; `var_eps`, `decay` and `moving_average` those of BVLC's pull request 1965.
`scale_filler` and `shift_filler` alone are SegNet's.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodial.proto import messages as pb

_PSPNET = ("slope_filler", "bias_filler", "momentum", "eps", "frozen", "engine")
_PULL_REQUEST = ("var_eps", "decay", "moving_average")
_SEGNET_EPS = 1e-9
"""As SegNet's code has it."""


@dataclass(frozen=True)
class BNOptions:
    """What a BN layer does.

    Attributes:
        fillers: fields with the fillers of the factors and of the summands.
        stores: whether it has a mean and a variance among its blobs, and a batch in TRAIN changes them.
        uses: in TRAIN and in TEST, the statistics that it normalizes with: the batch's, the stored ones, or none.
        eps: added to the variance.
        kept: how much of the stored statistics a new batch leaves, in [0, 1].
        learned: whether factors and summands are learned.
        foreign: fields that are stated, and that belong to another version.
    """

    fillers: tuple[str, str]
    stores: bool
    uses: dict[pb.Phase, str]
    eps: float
    kept: float
    learned: bool
    foreign: tuple[str, ...]


def read_bn(param: pb.BNParameter) -> BNOptions:
    """The options of a BN layer by its `bn_param`."""
    stated = [field.name for field, _ in param.ListFields()]
    segnet = ("scale_filler", "shift_filler")
    if "bn_mode" in stated or (set(stated) <= set(segnet) and stated):
        inference = param.bn_mode == pb.BNParameter.INFERENCE
        uses = dict.fromkeys((pb.TRAIN, pb.TEST), "none" if inference else "batch")
        return _options(segnet, stated, (*segnet, "bn_mode"), uses, _SEGNET_EPS, stores=False)
    if set(stated).intersection(_PULL_REQUEST):
        uses = {pb.TRAIN: "batch", pb.TEST: "stored" if param.moving_average else "batch"}
        known = (*segnet, *_PULL_REQUEST)
        return _options(segnet, stated, known, uses, param.var_eps, kept=1 - param.decay)
    uses = {pb.TRAIN: "stored" if param.frozen else "batch", pb.TEST: "stored"}
    fillers = ("slope_filler", "bias_filler")
    return _options(fillers, stated, _PSPNET, uses, param.eps, kept=param.momentum, learned=not param.frozen)


def _options(
    fillers: tuple[str, str],
    stated: list[str],
    known: tuple[str, ...],
    uses: dict[pb.Phase, str],
    eps: float,
    *,
    stores: bool = True,
    kept: float = 0,
    learned: bool = True,
) -> BNOptions:
    return BNOptions(fillers, stores, uses, eps, kept, learned, tuple(name for name in stated if name not in known))
