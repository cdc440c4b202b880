"""AutoDIAL for any torch module: alignment in place of batch normalization, and batches of a source and a target.

from autodial.converters import AutoDIAL, convert_batchnorm, parameter_groups
from autodial.layers import EntropyLoss

net = AutoDIAL(convert_batchnorm(torchvision.models.resnet50(weights="DEFAULT")))
optimizer = torch.optim.SGD(parameter_groups(net), lr=1e-3, momentum=0.9, weight_decay=5e-4)
entropy = EntropyLoss()
for (source, labels), target in zip(source_loader, target_loader):
    source_scores, target_scores = net(source, target)
    loss = F.cross_entropy(source_scores, labels) + 0.1 * entropy(target_scores)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
target_scores = net.eval()(target)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils import _pytree as pytree

from autodial.errors import InputError
from autodial.layers import DomainAlignment, pairs
from autodial.layers.pairs import Pair
from autodial.wording import counted

if TYPE_CHECKING:
    from typing import Self, TypeGuard

_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


class StatisticsOfPairs(_BatchNorm):
    """Makes torch.optim.swa_utils.update_bn fail on a net with domain alignment.

    update_bn looks for torch's batch normalization, and silently skips a net without it; averaged weights would keep
    other weights' statistics. This module takes no part in a forward pass, and all layers share one. It is no
    BatchNorm1d, 2d, 3d or SyncBatchNorm, and has no parameters or buffers: other code that looks for batch
    normalization finds one of 0 channels without statistics, whose weight and bias are empty tensors.
    """

    def __init__(self) -> None:
        super().__init__(0, affine=False, track_running_stats=False)
        self._parameters.clear()
        for name in ("weight", "bias"):
            setattr(self, name, torch.empty(0))

    def reset_parameters(self) -> None:
        """Do nothing, as there are none."""

    def reset_running_stats(self) -> None:
        """Raise InputError."""
        raise InputError(
            "update_bn can't compute the statistics of domain alignment, which come from a source and a target: call "
            "autodial.converters.recalibrate(net, source, target) instead"
        )

    def extra_repr(self) -> str:
        return ""


_STATISTICS_OF_PAIRS = StatisticsOfPairs()
_SAME_FOR_BOTH = (type(None), bool, int, float, str)
"""What a module may return in addition to tensors: it has no samples, so each domain gets it."""


class AlignedBatchNorm(DomainAlignment):
    """Batch normalization of domains: a DomainAlignment layer, times `weight`, plus `bias`, per channel.

    `convert_batchnorm` replaces BatchNorm by this layer. In training mode a batch holds the source's samples
    first and the target's behind them, and normalizes each with statistics mixed by alpha (paper, section 3.1); in
    eval mode it is a BatchNorm with the stored statistics of one domain, the target's unless `test_stats` says another.

    Input and output: (N, C, ...) float tensors.

    Args:
        num_features: C.
        affine: whether there are a weight, which starts at 1, and a bias, which starts at 0.
        track_running_stats: False: normalize with the batch's own statistics in eval mode, as torch's BatchNorm does.
        slice_point, sources, eps, moving_average_fraction: as DomainAlignment's.

    State: DomainAlignment's, and `weight` and `bias` (C,), None if not `affine`.

    Raises:
        LayerError: as DomainAlignment.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        *,
        affine: bool = True,
        track_running_stats: bool = True,
        slice_point: int | None = None,
        sources: int = 1,
        eps: float = 1e-5,
        moving_average_fraction: float = 0.9,
    ) -> None:
        super().__init__(
            num_features,
            slice_point=slice_point,
            sources=sources,
            eps=eps,
            moving_average_fraction=moving_average_fraction,
        )
        self.track_running_stats = track_running_stats
        self.statistics_of_pairs = _STATISTICS_OF_PAIRS
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None

    @classmethod
    def from_batch_norm(cls, norm: _BatchNorm, slice_point: int | None = None, sources: int = 1) -> Self:
        """The layer that takes over from a torch BatchNorm, with its weight and bias themselves and its statistics."""
        layer = cls(
            norm.num_features,
            affine=norm.affine,
            track_running_stats=norm.track_running_stats,
            slice_point=slice_point,
            sources=sources,
            eps=norm.eps,
            # torch keeps 1 - momentum of what it had; without a momentum it averages over all batches
            moving_average_fraction=1.0 if norm.momentum is None else 1 - norm.momentum,
        )
        held = next(chain(norm.parameters(), (b for b in norm.buffers() if b.is_floating_point())), None)
        if held is not None:
            layer.to(held.device, held.dtype)
        layer.weight, layer.bias = norm.weight, norm.bias
        if norm.affine:
            layer.alpha.requires_grad_(norm.weight.requires_grad or norm.bias.requires_grad)
        if norm.running_mean is not None and norm.running_var is not None:
            layer.mean.copy_(norm.running_mean)
            layer.variance.copy_(norm.running_var)
            layer.normalizer.fill_(1)
        return layer.train(norm.training)

    def extra_repr(self) -> str:
        affine, tracked = self.weight is not None, self.track_running_stats
        return f"{super().extra_repr()}, affine={affine}, track_running_stats={tracked}"

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training or self.track_running_stats):
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        if self.uses_stored:
            return self.scaled(x, self.weight, self.bias)
        # With a scale alignment keeps its input for the backward pass, not its output, which a ReLU(inplace=True)
        # behind would spoil.
        scale = torch.ones_like(self.mean[0]) if self.weight is None else self.weight
        return self.scaled(x, scale, self.bias)


class AlignedBatchNormAct(AlignedBatchNorm):
    """An AlignedBatchNorm, a dropout and an activation in one layer, as timm's BatchNormAct2d has them.

    Input, output, arguments, state and errors: AlignedBatchNorm's, and `drop` and `act`, any modules, Identity until
    they are set.
    """

    def __init__(self, num_features: int, **options: Any) -> None:
        super().__init__(num_features, **options)
        self.drop: nn.Module = nn.Identity()
        self.act: nn.Module = nn.Identity()

    @classmethod
    def from_batch_norm(cls, norm: _BatchNorm, slice_point: int | None = None, sources: int = 1) -> Self:
        layer = super().from_batch_norm(norm, slice_point, sources)
        layer.drop, layer.act = norm.get_submodule("drop"), norm.get_submodule("act")
        return layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(x)))
        return y


def convert_batchnorm(module: nn.Module, *, slice_point: int | None = None, sources: int = 1) -> nn.Module:
    """Put an AlignedBatchNorm in the place of every BatchNorm1d, 2d, 3d and SyncBatchNorm of a module, in place.

    Weights and biases stay the same Parameters, so that an optimizer of the module goes on working; it learns alphas
    if it is made after the conversion. An alpha starts at 1, and is learned unless its layer's weight and bias are
    frozen. In eval mode the result gives what the module gave. Stored statistics become those of every domain and
    weigh as much as one batch of the training to come (normalizer 1). torch's momentum is 1 - moving_average_fraction,
    and its momentum None, an average over all batches, is a fraction of 1. A BatchNorm's `running_var` is of unbiased
    variances, a factor of m / (m - 1) for batches of m values per channel; new ones get it, too, with m the values of
    both domains together. SyncBatchNorm's exchange between processes is not kept: each has statistics of its own.

    A BatchNorm with a dropout `drop` and an activation `act` of its own, such as timm's BatchNormAct2d, becomes an
    AlignedBatchNormAct with both. A trial on random numbers shows first whether `drop` and `act`, in this order, are
    all that it does besides. Normalization with fixed statistics, such as torchvision's FrozenBatchNorm2d, stays.

    In state dicts, `weight` and `bias` keep their names; `alpha`, `mean`, `variance` and `normalizer` take the place of
    `running_mean`, `running_var` and `num_batches_tracked`. So load a checkpoint of the original module before.

    Args:
        module: any module; `copy.deepcopy(module)` before, to keep it as it is.
        slice_point: number of source samples at the head of each training batch; None: half of the batch, rounded
            down. Not needed in an `AutoDIAL`, which says it for each pair.
        sources: number of sources, each of which gets statistics of its own.

    Returns:
        the module; where it is a BatchNorm itself, what stands for it.

    Raises:
        InputError: the module has neither batch normalization nor a DomainAlignment layer already, or a layer can't be
            converted, or was, for another number of sources: the sentence names it. The module is unchanged.
    """
    layers = module.named_modules(remove_duplicate=False)
    found = [(name, norm) for name, norm in layers if is_batch_norm(norm)]
    if not found and not any(isinstance(layer, DomainAlignment) for layer in module.modules()):
        frozen = next((layer for layer in module.modules() if _is_frozen(layer)), None)
        if frozen is not None:
            raise InputError(
                f"{type(module).__name__} has only batch normalization with fixed statistics "
                f"({type(frozen).__name__}), which training does not move towards the target's: build it with "
                "BatchNorm2d (in torchvision, norm_layer=torch.nn.BatchNorm2d), and load the same weights"
            )
        raise InputError(
            f"{type(module).__name__} has no batch normalization to convert: put autodial.layers.DomainAlignment "
            "behind its layers with weights, as the paper does in AlexNet"
        )
    for name, norm in found:
        _check_convertible(name, norm)
    for name, layer in module.named_modules():
        if isinstance(layer, DomainAlignment) and layer.sources != sources:
            raise InputError(
                f'layer "{name}" ({type(layer).__name__}) is aligned already, with {counted(layer.sources, "source")} '
                f"and not {sources}: convert the module as it was before"
            )
    made: dict[_BatchNorm, AlignedBatchNorm] = {}
    for name, norm in found:
        if norm not in made:
            kind = AlignedBatchNorm if _is_plain(norm) else AlignedBatchNormAct
            made[norm] = kind.from_batch_norm(norm, slice_point, sources)
        if name:
            module.set_submodule(name, made[norm])
        else:
            module = made[norm]
    return module


def _check_convertible(name: str, norm: _BatchNorm) -> None:
    """Raise InputError for a BatchNorm whose place an AlignedBatchNorm can't take."""
    where = f'layer "{name}" ({type(norm).__name__})' if name else f"this {type(norm).__name__}"
    if isinstance(norm, nn.modules.lazy.LazyModuleMixin):
        raise InputError(f"{where} does not know its number of channels yet: run the module on one batch first")
    if any(value is not None and not isinstance(value, nn.Parameter) for value in (norm.weight, norm.bias)):
        raise InputError(
            f"{where} has a weight or bias that is computed from others (parametrized, normalized or pruned): make it "
            "a plain parameter first, with torch.nn.utils.parametrize.remove_parametrizations or its like"
        )
    if norm.momentum == 0:
        raise InputError(
            f"{where} has momentum 0, so that its statistics would never become the target's: set another, such as 0.1"
        )
    if not (_is_plain(norm) or _has_parts(norm)):
        raise InputError(
            f"{where} is a batch normalization with a forward pass of its own, which conversion would lose: replace "
            "it by a plain BatchNorm and a module for the rest"
        )


def is_batch_norm(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    """Whether a layer is one of torch's batch normalizations, or of a class derived from them."""
    return isinstance(layer, _BatchNorm) and not isinstance(layer, StatisticsOfPairs)


def _is_plain(norm: _BatchNorm) -> bool:
    return type(norm).forward in _FORWARDS


def _is_frozen(layer: nn.Module) -> bool:
    """Whether a layer is a batch normalization with fixed statistics, as in torchvision, timm and Detectron2."""
    return (
        not isinstance(layer, _NormBase)
        and {"running_mean", "running_var"} <= dict(layer.named_buffers(recurse=False)).keys()
    )


@torch.no_grad()
def _has_parts(norm: _BatchNorm) -> bool:
    """Whether a layer computes batch normalization, its dropout `drop`, its activation `act`; tried in both modes."""
    if not all(isinstance(getattr(norm, name, None), nn.Module) for name in ("drop", "act")):
        return False
    trial: Any = copy.deepcopy(norm)
    held = next(chain(trial.parameters(), (b for b in trial.buffers() if b.is_floating_point())), torch.empty(0))
    if held.is_meta:
        return False
    devices = [held.device] if held.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        x = torch.randn(4, norm.num_features, 3, 3).to(held.device, held.dtype)
        # torch's SyncBatchNorm trains on GPUs alone, and would wait for other processes
        for training in (False,) if isinstance(norm, nn.SyncBatchNorm) else (False, True):
            trial.train(training)
            by_batch = training or trial.running_mean is None
            mean, variance = (None, None) if by_batch else (trial.running_mean, trial.running_var)
            torch.manual_seed(1)
            expected = F.batch_norm(x, mean, variance, trial.weight, trial.bias, training=by_batch, eps=norm.eps)
            expected = trial.act(trial.drop(expected))
            torch.manual_seed(1)
            try:
                result = trial(x.clone())
            except Exception:  # a user's class may raise anything
                return False
            if not isinstance(result, Tensor) or result.shape != expected.shape:
                return False
            if not torch.allclose(result, expected, rtol=1e-3, atol=1e-3, equal_nan=True):
                return False
    return True


class AutoDIAL(nn.Module):
    """A module with DomainAlignment layers that takes source and target as a pair.

    In training mode, `net(source, target)` joins both to one batch, tells every DomainAlignment layer where it is to be
    sliced, runs the module once - the two domains meet in every layer - and returns the pair (source's output,
    target's output). Sizes may differ, and change from batch to batch. In eval mode, `net(x)` is the module itself:
    domains go one at a time, normalized by the stored statistics (the target's; a layer's `test_stats` says which).

    `net([images_a, images_b], target)` takes several sources, in the order that the layers keep statistics for
    (`convert_batchnorm(module, sources=2)`), and returns ([output of a, output of b], target's output). The list holds
    a batch of each source, and each batch has the target's structure.

    `source` and `target` are what the module takes: a tensor, or dicts, lists, tuples of tensors of one structure, in
    any depth, with samples along the first axis. So is the output; a number, a tensor without axes or None in it goes
    to both. The samples must stay along the first axis at every DomainAlignment layer.

    A pass keeps its pair's sizes to itself, so that several pairs, of other sizes too, may come before one backward
    pass, in several threads, with `torch.utils.checkpoint` inside (reentrant checkpoints not inside of others) and with
    torch.compile. Where activations are recomputed, a pass's statistics count once more, as in torch's BatchNorm.

    Averaged weights (torch.optim.swa_utils.AveragedModel) come with the statistics of the last weights that were
    averaged, and need their own: `recalibrate(averaged, source_loader, target_loader)` computes them. torch's
    update_bn, which knows only one domain, raises InputError.

    Wrap this in DistributedDataParallel or DataParallel, not the module inside, so that each replica gets a pair, and
    has statistics of its own. The module is `net.module`, to save and to export.

    Raises:
        InputError: at construction, a module without DomainAlignment layers; at a forward pass, a source without
            target in training mode or with one in eval mode, domains that do not fit each other, another number of
            sources than the layers have statistics of, or an output that can't be taken apart.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if not any(isinstance(layer, DomainAlignment) for layer in module.modules()):
            raise InputError(
                f"{type(module).__name__} has no DomainAlignment layer, so that source and target would never meet: "
                "convert_batchnorm(module) puts them in the place of its batch normalization"
            )
        self.module = module
        self.statistics_of_pairs = _STATISTICS_OF_PAIRS

    def forward(self, source: Any, target: Any = None) -> Any:
        if not self.training:
            if target is not None:
                raise InputError("in eval mode the domains go one at a time: net(target), not net(source, target)")
            return self.module(source)
        if target is None:
            raise InputError("training mode needs both domains: net(source, target)")
        several = _are_several(source, target)
        batch, pair = _join([*source, target] if several else [source, target])
        for layer in self.module.modules():
            if isinstance(layer, DomainAlignment):
                if layer.sources != len(pair) - 1:
                    raise InputError(
                        f"the module's layers have statistics of {counted(layer.sources, 'source')}, and there are "
                        f"{len(pair) - 1}: convert_batchnorm(module, sources={len(pair) - 1}) makes layers for them"
                    )
                layer.paired = True
                layer.clip_alpha()
        with pairs.running(pair):
            output = self.module(batch)
        pairs.leave(pair, _tensors(output), _tensors(batch))
        *sources, of_target = _part(output, pair)
        return sources if several else sources[0], of_target


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """A module's parameters in groups for a torch optimizer, without weight decay for alphas.

    Decay would pull an alpha from 1 (a domain's own statistics) to 0.5 (shared statistics). Caffe's nets prevent this
    by `decay_mult: 0`.

        optimizer = torch.optim.SGD(parameter_groups(net), lr=1e-3, momentum=0.9, weight_decay=5e-4)

    Args:
        module: with or without DomainAlignment layers, an AutoDIAL for example.

    Returns:
        groups with all that `module.parameters()` has, each once: {"params": [...]} and, for the alphas,
        {"params": [...], "weight_decay": 0.0}. Further options may be set in either.
    """
    alphas = {layer.alpha: None for layer in module.modules() if isinstance(layer, DomainAlignment)}
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in module.parameters() if parameter not in alphas]},
        {"params": list(alphas), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _are_several(source: Any, target: Any) -> bool:
    """Whether `source` is a list of batches of the target's structure, and not itself such a batch."""
    if type(source) not in (list, tuple) or not source:
        return False
    structure = pytree.tree_structure(target)
    return pytree.tree_structure(source) != structure and all(
        pytree.tree_structure(each) == structure for each in source
    )


def _join(batches: Sequence[Any]) -> tuple[Any, Pair]:
    """The domains' tensors joined in one tree, the target's samples last, and each domain's number of samples."""
    flat, structures = zip(*map(pytree.tree_flatten, batches), strict=True)
    *sources, target = flat
    if structures[0] != structures[-1]:
        raise InputError(f"source and target are not of the same structure: {structures[0]} and {structures[-1]}")
    sizes = (*(_batch_size("source", leaves) for leaves in sources), _batch_size("target", target))
    joined = []
    for column in zip(*flat, strict=True):
        *leaves, other = column
        for leaf in leaves:
            _check_joinable(leaf, other)
        joined.append(torch.cat(column) if isinstance(other, Tensor) else other)
    return pytree.tree_unflatten(joined, structures[-1]), sizes


def _check_joinable(leaf: Any, other: Any) -> None:
    """Raise InputError unless a source's part of a batch can stand beside the target's."""
    if isinstance(leaf, Tensor) and isinstance(other, Tensor):
        if leaf.shape[1:] != other.shape[1:]:
            raise InputError(
                f"a source of {_shape(leaf.shape)} and a target of {_shape(other.shape)} can't be one batch: only "
                "the first axis may differ"
            )
        if (leaf.dtype, leaf.device) != (other.dtype, other.device):
            raise InputError(
                f"a source of {leaf.dtype} on {leaf.device} and a target of {other.dtype} on {other.device} can't "
                "be one batch: bring them to one dtype and device"
            )
    elif isinstance(leaf, Tensor) or isinstance(other, Tensor) or leaf != other:
        raise InputError(f"source and target hold different non-tensor values: {leaf!r} and {other!r}")


def join_batches(batches: Sequence[Any]) -> Any:
    """Batches of one structure as one batch, in their order; InputError if they can't be one batch."""
    (first, structure), *others = map(pytree.tree_flatten, batches)
    for _, other in others:
        if other != structure:
            raise InputError(f"batches are not of the same structure: {structure} and {other}")
    columns = list(zip(first, *(leaves for leaves, _ in others), strict=True))
    joined = []
    for column in columns:
        tensors = [leaf for leaf in column if isinstance(leaf, Tensor)]
        if not tensors and all(leaf == column[0] for leaf in column):
            joined.append(column[0])
        elif len(tensors) == len(column) and len({(leaf.shape[1:], leaf.dtype) for leaf in tensors}) == 1:
            joined.append(torch.cat(tensors))
        else:
            raise InputError("batches hold tensors of different shapes or types, or different other values")
    return pytree.tree_unflatten(joined, structure)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _batch_size(domain: str, leaves: list[Any]) -> int:
    """The number of samples in a domain's tensors."""
    sizes = {len(leaf) if leaf.dim() else None for leaf in leaves if isinstance(leaf, Tensor)}
    size = next(iter(sizes), None)
    if len(sizes) != 1 or not size:
        found = ", ".join(_shape(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)) or "none"
        raise InputError(
            f"the {domain} must be tensors with one sample or more along the first axis, as many in each: found {found}"
        )
    return size


def _part(output: Any, sizes: Pair) -> list[Any]:
    """Splits a tree of tensors with all domains' samples into one tree for each domain."""
    leaves, structure = pytree.tree_flatten(output)
    parts: list[Sequence[Any]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim():
            if len(leaf) != sum(sizes):
                raise InputError(
                    f"the module returns a tensor of {_shape(leaf.shape)} for {sum(sizes)} samples: "
                    "source and target can't be separated; samples must be along the first axis"
                )
            # not split, whose parts autograd lets nobody change in place
            parts.append([leaf[start:end] for start, end in pairwise(accumulate(sizes, initial=0))])
        elif isinstance(leaf, (Tensor, *_SAME_FOR_BOTH)):
            parts.append([leaf] * len(sizes))
        else:
            raise InputError(
                f"the module returns a {type(leaf).__name__}, which can't be taken apart into source and target: "
                "return tensors, or dicts, lists and tuples of them"
            )
    return [pytree.tree_unflatten([part[domain] for part in parts], structure) for domain in range(len(sizes))]


def _shape(shape: torch.Size) -> str:
    return f"shape {tuple(shape)}"
