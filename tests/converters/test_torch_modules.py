from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint

from autodial.converters.torch_modules import (
    AlignedBatchNorm,
    AlignedBatchNormAct,
    AutoDIAL,
    convert_batchnorm,
    parameter_groups,
)
from autodial.errors import InputError
from autodial.layers import DomainAlignment, EntropyLoss, LayerError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def used(module: nn.Module) -> nn.Module:
    """The module with statistics, weights and biases as training leaves them."""
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS):
            if layer.running_mean is not None and layer.running_var is not None:
                layer.running_mean.normal_(0, 0.3)
                layer.running_var.uniform_(0.5, 2)
            if layer.affine:
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias, 0, 0.3)
    return module


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 4)
    )


def images(count: int = 5, size: int = 5) -> Tensor:
    return torch.randn(count, 3, size, size)


class Other(nn.Module):
    """A module that returns what `answer` makes of its scores."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.net = convert_batchnorm(small())
        self.answer = answer

    def forward(self, x: Any) -> Any:
        return self.answer(self.net(x["image"] if isinstance(x, dict) else x))


# Conversion


@pytest.mark.parametrize(
    ("name", "size", "layers"),
    [
        ("resnet50", 64, 53),
        ("mobilenet_v3_small", 64, 34),
        ("densenet121", 64, 121),
        ("inception_v3", 128, 96),  # its auxiliary classifier's two among them
    ],
)
def test_networks_of_torchvision_give_in_eval_mode_what_they_gave(name: str, size: int, layers: int) -> None:
    more = {"init_weights": False} if name == "inception_v3" else {}
    module = used(torchvision.models.get_model(name, weights=None, **more)).eval()
    x = images(2, size)
    with torch.no_grad():
        expected = module(x)
        converted = convert_batchnorm(module)
        torch.testing.assert_close(converted(x), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert converted is module
    assert sum(type(layer) is AlignedBatchNorm for layer in module.modules()) == layers
    assert not any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (6, 4)),
        (nn.BatchNorm1d, (6, 4, 5)),
        (nn.BatchNorm2d, (6, 4, 3, 2)),
        (nn.BatchNorm3d, (6, 4, 3, 2, 2)),
        (nn.SyncBatchNorm, (6, 4, 3, 2)),
    ],
)
def test_every_kind_alone_gives_in_eval_mode_what_it_gave(
    kind: Any, shape: tuple[int, ...], tracked: bool, affine: bool
) -> None:
    norm = used(kind(4, eps=1e-2, affine=affine, track_running_stats=tracked)).eval().double()
    x = torch.randn(shape, dtype=torch.float64)
    expected = norm(x)
    converted = convert_batchnorm(norm)
    assert isinstance(converted, AlignedBatchNorm) and converted is not norm
    torch.testing.assert_close(converted(x), expected)


def test_names_parameters_modes_and_freezing_stay() -> None:
    module = nn.ModuleDict({"stem": small(), "head": nn.ModuleList([small(), nn.BatchNorm1d(4, affine=False)])})
    stem, head = module["stem"], module["head"]
    assert isinstance(stem, nn.Sequential) and isinstance(head, nn.ModuleList)
    stem.requires_grad_(False).eval()
    weight, bias = stem[1].weight, stem[1].bias
    before = dict(module.named_parameters())
    converted = convert_batchnorm(module)

    assert stem[1].weight is weight and stem[1].bias is bias
    after = dict(converted.named_parameters())
    added = {"stem.1.alpha", "head.0.1.alpha", "head.1.alpha"}
    assert after.keys() - before.keys() == added
    assert all(after[name] is value for name, value in before.items())
    state = ["alpha", "weight", "bias", "mean", "variance", "normalizer"]
    assert [name for name in converted.state_dict() if name.startswith("stem.1.")] == [f"stem.1.{x}" for x in state]
    # an alpha is frozen with its layer, and learned where the layer has nothing to learn
    assert {name for name in added if after[name].requires_grad} == {"head.0.1.alpha", "head.1.alpha"}
    assert not stem[1].training and head[1].training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_type_and_device_stay(dtype: torch.dtype) -> None:
    for device in ("cpu", "meta"):
        converted = convert_batchnorm(nn.BatchNorm2d(3, affine=False).to(device, dtype))
        types = {name: (value.device.type, value.dtype) for name, value in converted.state_dict().items()}
        assert types.pop("alpha") == (device, dtype)
        assert set(types.values()) == {(device, torch.promote_types(dtype, torch.float32))}  # statistics
    half = convert_batchnorm(used_norm().to(dtype))
    x = images().to(dtype)
    assert half(x).dtype == dtype
    expected = used_norm().double().eval()(x.double())
    precision = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        convert_batchnorm(used_norm().to(dtype)).eval()(x).double(), expected, rtol=precision, atol=precision
    )


def used_norm() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3)
    norm.load_state_dict({**norm.state_dict(), "weight": torch.tensor([0.5, 1, 2]), "running_var": torch.ones(3) * 2})
    return norm


def test_mixed_precision_keeps_the_type_of_what_passes_through() -> None:
    norm = convert_batchnorm(nn.BatchNorm2d(3))
    x = images().to(torch.bfloat16).requires_grad_()
    y = norm(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert norm.eval()(x).dtype == torch.bfloat16


def test_a_norm_that_is_used_twice_stays_one() -> None:
    norm = nn.BatchNorm1d(4)
    block = nn.Sequential(nn.Linear(4, 4), norm)
    module = convert_batchnorm(nn.Sequential(block, nn.ReLU(), norm, block))
    converted = module.get_submodule("2")
    assert isinstance(converted, AlignedBatchNorm)
    assert module.get_submodule("0.1") is module.get_submodule("3.1") is converted
    module(torch.randn(6, 4)).sum().backward()  # three passes through it in one
    fraction = 0.9
    assert converted.normalizer.item() == pytest.approx(fraction**3 + fraction**2 + fraction + 1)


def test_statistics_of_both_domains_start_from_the_stored_ones() -> None:
    norm = used(nn.BatchNorm2d(3, momentum=0.25, eps=1e-3))
    layer = convert_batchnorm(norm, slice_point=7)
    assert isinstance(layer, AlignedBatchNorm)
    for domain in (0, 1):
        assert torch.equal(layer.mean[domain], norm.running_mean)  # type: ignore[arg-type]
        assert torch.equal(layer.variance[domain], norm.running_var)  # type: ignore[arg-type]
    assert (layer.normalizer.item(), layer.alpha.item(), layer.eps, layer.slice_point) == (1, 1, 1e-3, 7)
    assert layer.moving_average_fraction == 0.75


def refused(module: nn.Module, message: str) -> None:
    kinds = [type(layer) for layer in module.modules()]
    with pytest.raises(InputError, match=message):
        convert_batchnorm(module)
    assert [type(layer) for layer in module.modules()] == kinds


class Activated(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class Renamed(nn.BatchNorm2d):
    pass


class NormAct(nn.BatchNorm2d):
    """A normalization with dropout and activation, as timm has them."""

    def __init__(self, channels: int, drop: nn.Module | None = None, act: nn.Module | None = None, **more: Any) -> None:
        super().__init__(channels, **more)
        self.drop = drop or nn.Identity()
        self.act = act or nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        own = self.training or not self.track_running_stats
        stored = (None, None) if own else (self.running_mean, self.running_var)
        y = F.batch_norm(x, *stored, self.weight, self.bias, own, eps=self.eps)
        return self.act(self.drop(y))


class Halved(NormAct):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class NoisyInTraining(NormAct):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + torch.randn_like(y) if self.training else y


class Flat(NormAct):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(2)


class Chosen(NormAct):
    """A layer that takes an argument more."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * mask


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_a_normalization_with_dropout_and_activation(tracked: bool, affine: bool) -> None:
    act = nn.PReLU(4)
    norm = NormAct(4, nn.Dropout(0.5), act, affine=affine, track_running_stats=tracked)
    module = used(nn.Sequential(nn.Conv2d(3, 4, 1), norm)).eval()
    x, names = images(), {name for name, _ in module.named_parameters()}
    before = [torch.random.get_rng_state(), module.state_dict()]
    expected = module(x)
    converted = convert_batchnorm(module)
    assert torch.equal(torch.random.get_rng_state(), before[0])  # type: ignore[arg-type]
    torch.testing.assert_close(converted(x), expected, rtol=0, atol=1e-6)
    assert {name for name, _ in converted.named_parameters()} - names == {"1.alpha"}
    layer = converted.get_submodule("1")
    assert isinstance(layer, AlignedBatchNormAct) and layer.act is act

    # in training: alignment, dropout, activation
    layer.train()
    plain = convert_batchnorm(nn.BatchNorm2d(4, affine=affine))
    plain.load_state_dict(layer.state_dict(), strict=False)
    torch.manual_seed(3)
    y = layer(x.mean(1, keepdim=True).expand(-1, 4, -1, -1))
    torch.manual_seed(3)
    torch.testing.assert_close(y, act(F.dropout(plain(x.mean(1, keepdim=True).expand(-1, 4, -1, -1)), 0.5)))
    assert 0.2 < (y == 0).float().mean() < 0.8


@pytest.mark.parametrize(
    ("name", "size", "layers"),
    [("efficientnet_b0", 64, 49), ("mobilenetv3_small_100", 64, 34), ("regnety_002", 64, 44), ("resnetrs50", 64, 56)],
)
def test_networks_of_timm_give_in_eval_mode_what_they_gave(name: str, size: int, layers: int) -> None:
    timm = pytest.importorskip("timm")
    module = used(timm.create_model(name, pretrained=False, num_classes=7)).eval()
    x = images(2, size)
    with torch.no_grad():
        expected = module(x)
        converted = convert_batchnorm(module)
        torch.testing.assert_close(converted(x), expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    assert sum(isinstance(layer, AlignedBatchNorm) for layer in converted.modules()) == layers
    source, target = AutoDIAL(converted)(images(2, size), images(3, size))
    assert (source.shape, target.shape) == ((2, 7), (3, 7))
    (source.sum() + target.sum()).backward()


def test_fixed_statistics_are_left_and_said_so() -> None:
    frozen = torchvision.ops.FrozenBatchNorm2d
    module = torchvision.models.resnet18(norm_layer=frozen)
    refused(module, r"only batch normalization with fixed statistics \(FrozenBatchNorm2d\)")
    half = nn.Sequential(frozen(3), nn.BatchNorm2d(3))
    assert [type(layer) for layer in convert_batchnorm(half)] == [frozen, AlignedBatchNorm]  # type: ignore[call-overload]
    refused(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), "Sequential has no batch normalization to")


def test_what_cannot_be_converted_is_refused_whole() -> None:
    refused(small().append(nn.LazyBatchNorm1d()), r'layer "5" \(LazyBatchNorm1d\) does not know its number of channels')
    refused(small().append(Activated(4)), r'layer "5" \(Activated\) .* forward pass of its own')
    for kind in (Halved, NoisyInTraining, Flat, Chosen):
        refused(small().append(kind(4)), rf'layer "5" \({kind.__name__}\) .* forward pass of its own')
    refused(small().append(NormAct(4).to("meta")), r'layer "5" \(NormAct\) .* forward pass of its own')
    refused(small().append(nn.BatchNorm1d(4, momentum=0)), r'layer "5" \(BatchNorm1d\) has momentum 0')
    refused(nn.BatchNorm1d(4, momentum=0), "this BatchNorm1d has momentum 0")
    refused(nn.Sequential(nn.Linear(2, 2)), "Sequential has no batch normalization")
    decayed = small()
    parametrizations.weight_norm(decayed[1])
    refused(decayed, r'layer "1" \(.*BatchNorm2d\) has a weight or bias that is computed from others')


def test_what_is_a_batch_norm_in_all_but_name_is_converted() -> None:
    assert isinstance(convert_batchnorm(Renamed(4)), AlignedBatchNorm)
    lazy = nn.Sequential(nn.LazyBatchNorm1d())
    lazy(torch.randn(3, 4))
    assert isinstance(convert_batchnorm(lazy)[0], AlignedBatchNorm)  # type: ignore[index]
    parametrized = small()
    parametrizations.weight_norm(parametrized[0])
    x = images()
    expected = parametrized.eval()(x)
    torch.testing.assert_close(convert_batchnorm(parametrized)(x), expected)
    assert convert_batchnorm(parametrized) is parametrized  # nothing is left to do


# Training


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 2)])
def test_alpha_one_half_and_equal_halves_train_as_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    norm = used(kind(4, affine=affine, momentum=None)).double()
    converted = convert_batchnorm(copy.deepcopy(norm))
    assert isinstance(converted, AlignedBatchNorm)
    converted.alpha.data.fill_(0.5)
    # torch's average over all batches, where the stored statistics stand for one
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.fill_(1)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64)
        grad = torch.randn(shape, dtype=torch.float64)
        results = []
        for layer in (norm, converted):
            layer.zero_grad()
            own = x.clone().requires_grad_()
            y = layer(own).relu_()  # in place, as torchvision's networks have it
            y.backward(grad)
            results.append((y.detach(), own.grad, *(p.grad for p in (layer.weight, layer.bias) if p is not None)))
        torch.testing.assert_close(results[1], results[0])
    for domain in (0, 1):
        assert norm.running_mean is not None and norm.running_var is not None
        torch.testing.assert_close(converted.mean[domain] / converted.normalizer[0], norm.running_mean)
        torch.testing.assert_close(converted.variance[domain] / converted.normalizer[0], norm.running_var)


def test_momentum_once_the_old_statistics_are_forgotten() -> None:
    norm = used(nn.BatchNorm2d(3, momentum=0.1)).double()
    converted = convert_batchnorm(copy.deepcopy(norm))
    assert isinstance(converted, AlignedBatchNorm)
    converted.alpha.data.fill_(0.5)
    for blob in (converted.mean, converted.variance, converted.normalizer):
        blob.mul_(10)  # the moving sum of ones ends at 1 / (1 - 0.9)
    for _ in range(4):
        x = images(6).double()
        norm(x)
        converted(x)
    norm.eval()
    converted.eval()
    torch.testing.assert_close(converted(x), norm(x))


def test_at_alpha_one_each_domain_has_a_batch_norm_of_its_own() -> None:
    module = nn.Sequential(nn.Linear(3, 4), used(nn.BatchNorm1d(4)), nn.Tanh(), nn.BatchNorm1d(4))
    source, target = torch.randn(7, 3), torch.randn(4, 3) * 2 + 1
    expected = copy.deepcopy(module)(source), copy.deepcopy(module)(target)
    torch.testing.assert_close(AutoDIAL(convert_batchnorm(module))(source, target), expected)


def test_a_pair_is_a_mixed_batch() -> None:
    pair, mixed = AutoDIAL(convert_batchnorm(used(small()))), convert_batchnorm(small(), slice_point=2)
    pair.module[1].alpha.data.fill_(0.8)  # type: ignore[index, union-attr]
    mixed.load_state_dict(pair.module.state_dict())
    source, target = images(2), images(3)
    expected = mixed(torch.cat([source, target]))
    torch.testing.assert_close(pair(source, target), (expected[:2], expected[2:]))
    assert mixed.state_dict().keys() == pair.module.state_dict().keys()
    torch.testing.assert_close(mixed.state_dict(), pair.module.state_dict())


def test_sizes_may_change_from_batch_to_batch() -> None:
    net = AutoDIAL(convert_batchnorm(small()))
    for source, target in ((4, 4), (1, 6), (5, 2)):
        outputs = net(images(source), images(target))
        assert [len(output) for output in outputs] == [source, target]


def test_mode_decides_what_is_taken() -> None:
    net = AutoDIAL(convert_batchnorm(small()))
    with pytest.raises(InputError, match=r"training mode needs both domains"):
        net(images())
    net.eval()
    assert net(images(1)).shape == (1, 4)
    with pytest.raises(InputError, match="in eval mode the domains go one at a time"):
        net(images(), images())


class Scores(NamedTuple):
    logits: Tensor
    details: dict[str, Any]


def test_trees_of_tensors_are_joined_and_taken_apart() -> None:
    net = AutoDIAL(Other(lambda y: Scores(y, {"twice": [2 * y], "loss": y.mean(), "layers": 1, "none": None})))
    source, target = {"image": images(2), "tag": "a"}, {"image": images(3), "tag": "a"}
    outputs = net(source, target)
    for output, count in zip(outputs, (2, 3), strict=True):
        assert isinstance(output, Scores) and output.logits.shape == (count, 4)
        torch.testing.assert_close(output.details["twice"], [2 * output.logits])
        assert output.details["loss"].shape == () and output.details["layers"] == 1 and output.details["none"] is None


def test_inceptions_auxiliary_scores() -> None:
    module = torchvision.models.googlenet(weights=None, init_weights=False, num_classes=5, aux_logits=True)
    outputs = AutoDIAL(convert_batchnorm(module))(images(1, 64), images(2, 64))
    for output, count in zip(outputs, (1, 2), strict=True):
        assert type(output).__name__ == "GoogLeNetOutputs"
        assert [scores.shape for scores in output] == [(count, 5)] * 3


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ({"image": images()}, images(), "not of the same structure"),
        (images(), images(size=6), r"shape \(5, 3, 5, 5\) and a target of shape \(5, 3, 6, 6\) can't be one batch"),
        (images(), images().double(), r"a source of torch.float32 on cpu and a target of torch.float64 on cpu can't"),
        (images(), images(0), r"the target must be tensors with one sample or more"),
        ({"image": images(), "b": images(4)}, {"image": images(), "b": images()}, "the source must be .* as many in"),
        (torch.tensor(1.0), torch.tensor(1.0), "the source must be tensors with one sample"),
        ("a", "b", "the source must be tensors .* found none"),
        ({"image": images(), "tag": 1}, {"image": images(), "tag": 2}, "different non-tensor values: 1 and 2"),
        ({"image": images(), "tag": 1}, {"image": images(), "tag": images()}, "different non-tensor values"),
    ],
)
def test_domains_that_do_not_fit_each_other(source: Any, target: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AutoDIAL(Other(lambda y: y))(source, target)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda y: y.mean(0), r"shape \(4,\) for 10 samples"),
        (lambda y: {"scores": y, "what": object()}, "returns a object, which can't be taken apart"),
    ],
)
def test_outputs_that_cannot_be_taken_apart(answer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AutoDIAL(Other(answer))(images(), images())


def test_a_module_where_domains_never_meet_is_refused() -> None:
    with pytest.raises(InputError, match="convert_batchnorm"):
        AutoDIAL(small())
    by_hand = AutoDIAL(nn.Sequential(nn.Linear(3, 4), DomainAlignment(4)))
    assert [len(output) for output in by_hand(torch.randn(2, 3), torch.randn(4, 3))] == [2, 4]


def test_samples_merged_with_another_axis_are_refused() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)

    net = AutoDIAL(convert_batchnorm(Frames()))
    with pytest.raises(LayerError, match="gets a batch of 20 where source and target together are 10"):
        net(torch.randn(4, 2, 3, 5, 5), torch.randn(6, 2, 3, 5, 5))
    assert net.eval()(torch.randn(4, 2, 3, 5, 5)).shape == (4, 4)


def test_the_source_can_be_asked_for() -> None:
    net = AutoDIAL(convert_batchnorm(nn.Sequential(nn.BatchNorm1d(2, momentum=1.0))))
    source, target = torch.randn(50, 2), torch.randn(70, 2) * 3 + 4
    net(source, target)
    net.eval()
    assert net(target).mean().abs() < 1e-5 < 1 < net(source).mean().abs()
    for layer in net.modules():
        if isinstance(layer, DomainAlignment):
            layer.test_stats = "source"
    assert net(source).mean().abs() < 1e-5


# What torch does with modules


def trained() -> AutoDIAL:
    net = AutoDIAL(convert_batchnorm(used(small())))
    net(images(2), images(3))
    return net


def test_copies_and_state() -> None:
    net = trained()
    x, pair = images(), (images(2), images(4))
    expected, both = net.eval()(x), copy.deepcopy(net).train()(*pair)
    fresh = AutoDIAL(convert_batchnorm(small()))
    fresh.load_state_dict(net.state_dict())
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), fresh):
        assert torch.equal(other.eval()(x), expected)
        torch.testing.assert_close(other.train()(*pair), both, rtol=0, atol=0)


def test_export_in_eval_mode_for_any_batch_size() -> None:
    net = trained().eval()
    program = torch.export.export(net, (images(2),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for count in (1, 2, 7):
        x = images(count)
        torch.testing.assert_close(program.module()(x), net(x))


def test_compiled_training_is_that_of_the_module() -> None:
    net = trained()
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager")
    for source, target in ((2, 3), (4, 4)):
        pair = images(source), images(target)
        torch.testing.assert_close(compiled(*pair), net(*pair))
    torch.testing.assert_close(list(compiled.state_dict().values()), list(net.state_dict().values()))


def test_recomputed_activations_give_the_same_gradients() -> None:
    class Recomputed(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.net, x, use_reentrant=False)

    plain = convert_batchnorm(used(small()))
    nets = AutoDIAL(plain), AutoDIAL(Recomputed(copy.deepcopy(plain)))
    source, target = images(2), images(3)
    gradients = []
    for net in nets:
        first, second = net(source, target)
        (first.square().sum() + second.sum()).backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


# Averaged weights and weight decay


def pairs(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(images(4), images(4) * 2 + 1) for _ in range(count)]


@pytest.mark.parametrize("wrapped", [True, False])
def test_update_bn_is_refused(wrapped: bool) -> None:
    net = trained()
    live = net if wrapped else net.module
    averaged = AveragedModel(live)
    averaged.update_parameters(live)
    state = copy.deepcopy(averaged.state_dict())
    for each in (averaged, live):
        with pytest.raises(
            InputError, match=r"update_bn can't compute the statistics of domain alignment, .* a target"
        ):
            update_bn([images()], each)
    torch.testing.assert_close(averaged.state_dict(), state)
    by_hand = AutoDIAL(nn.Sequential(nn.Linear(3, 4), DomainAlignment(4)))
    with pytest.raises(InputError, match="update_bn"):
        update_bn([torch.randn(4, 3)], by_hand)


def test_what_looks_for_batch_normalization_is_not_disturbed() -> None:
    net = trained()
    names = list(net.state_dict())
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # the name that such loops look for
            layer.eval()
            layer.weight.requires_grad = False
            layer.weight.data.fill_(1)
            layer.momentum = 0.01
            layer.reset_parameters()
    same = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(net))
    for each in (same, pickle.loads(pickle.dumps(net))):
        assert list(each.state_dict()) == names == list(net.state_dict())
        assert [type(layer) for layer in each.modules() if isinstance(layer, DomainAlignment)] == [AlignedBatchNorm]
    assert convert_batchnorm(net) is net and all(parameter.requires_grad for parameter in net.parameters())


def test_weight_decay_does_not_reach_alpha() -> None:
    def after(groups: Callable[[nn.Module], Any]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        net = AutoDIAL(convert_batchnorm(small()))
        optimizer = torch.optim.SGD(groups(net), lr=0.01, momentum=0.9, weight_decay=5e-4)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(3000):
            optimizer.step()
        return net.module[1].alpha, net.module[0].weight  # type: ignore[union-attr, index, return-value]

    alpha, weight = after(parameter_groups)
    decayed, same = after(lambda net: net.parameters())
    assert alpha.item() == 1 and decayed.item() == pytest.approx(0.86, abs=0.005)
    torch.testing.assert_close(weight, same)


def test_groups_hold_every_parameter_once() -> None:
    norm = nn.BatchNorm1d(4)
    net = AutoDIAL(convert_batchnorm(nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), norm, DomainAlignment(4))))
    others, alphas = parameter_groups(net)
    assert alphas["weight_decay"] == 0 and "weight_decay" not in others
    assert {id(p) for p in alphas["params"]} == {id(p) for name, p in net.named_parameters() if name.endswith("alpha")}
    assert len(alphas["params"]) == 2
    assert sorted(map(id, others["params"] + alphas["params"])) == sorted(map(id, net.parameters()))
    plain = nn.Linear(2, 2)
    assert parameter_groups(plain) == [{"params": list(plain.parameters())}]
    assert len(parameter_groups(DomainAlignment(4))) == 1


def test_the_example_in_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = text.split("## A PyTorch model")[1]
    example = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    given: dict[str, Any] = {
        "model": model.append(nn.Linear(4, 2)),
        "source_loader": [(images(4), torch.tensor([0, 1, 1, 0]))] * 2,
        "target_loader": [images(3)] * 2,
        "names": ["cat", "dog"],
    }
    exec(example, given)
    assert given["report"].output.resolve() == tmp_path / "target_predictor.onnx"
    assert [group["weight_decay"] for group in given["optimizer"].param_groups] == [5e-4, 0]


# The whole of it


def test_training_on_a_shifted_target() -> None:
    generator = torch.Generator().manual_seed(1)

    def domain(count: int, factor: float, offset: float) -> tuple[Tensor, Tensor]:
        labels = torch.randint(3, (count,), generator=generator)
        centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
        x = centres[labels] + 0.5 * torch.randn(count, 2, generator=generator)
        return x * factor + offset, labels

    (source, labels), (target, truth) = domain(600, 1, 0), domain(600, 0.5, 3)
    layers = [("norm", nn.BatchNorm1d(2)), ("fc1", nn.Linear(2, 16)), ("bn1", nn.BatchNorm1d(16)), ("relu", nn.ReLU())]
    module = nn.Sequential(OrderedDict([*layers, ("fc2", nn.Linear(16, 3))]))

    def accuracy(net: nn.Module) -> float:
        with torch.no_grad():
            return (net.eval()(target).argmax(1) == truth).float().mean().item()

    def train(net: nn.Module, loss: Any) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        net.train()
        for step in range(60):
            rows = torch.arange(step * 32, step * 32 + 32) % 600
            optimizer.zero_grad()
            loss(net, rows).backward()
            optimizer.step()

    plain = copy.deepcopy(module)
    train(plain, lambda net, rows: F.cross_entropy(net(source[rows]), labels[rows]))
    assert accuracy(plain) < 0.6

    net = AutoDIAL(convert_batchnorm(module))
    entropy = EntropyLoss()

    def both(net: nn.Module, rows: Tensor) -> Tensor:
        source_scores, target_scores = net(source[rows], target[rows[:20]])
        return F.cross_entropy(source_scores, labels[rows]) + 0.1 * entropy(target_scores)

    train(net, both)
    assert accuracy(net) > 0.95
    alphas = [layer.mixing for layer in net.modules() if isinstance(layer, DomainAlignment)]
    assert all(0.5 <= alpha <= 1 for alpha in alphas) and any(alpha < 0.999 for alpha in alphas)
