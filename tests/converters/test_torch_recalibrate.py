"""Statistics of torch modules over all images against statistics computed by hand, in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from autodial.converters import AlignedBatchNorm, AutoDIAL, convert_batchnorm, export_module, recalibrate
from autodial.errors import InputError, WorkError
from autodial.layers import DomainAlignment

Array = NDArray[np.float64]
HUGE, NONE = 2**40, 0
"""Memory for everything, and for nothing."""


def images(rows: int, shift: float, seed: int = 0) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) * (1 + shift) + shift


def batches(x: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """With labels, as a DataLoader of a labelled data set gives them."""
    return [(part, torch.zeros(len(part))) for part in x.split(size)]


def module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 5), nn.BatchNorm1d(5))
    for norm in (net[1], net[4]):
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias, 0, 0.3)
    return net


def aligned(alphas: tuple[float, float] = (0.7, 0.9)) -> AutoDIAL:
    net = AutoDIAL(convert_batchnorm(module()))
    for layer, alpha in zip((net.module[1], net.module[4]), alphas, strict=True):
        layer.alpha.data.fill_(alpha)
    return net


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def mixed(own: Array, other: Array, alpha: float) -> tuple[Array, Array]:
    """The paper's mixed mean and variance (appendix A)."""
    mean = alpha * own.mean(0) + (1 - alpha) * other.mean(0)
    variance = alpha * ((own - mean) ** 2).mean(0) + (1 - alpha) * ((other - mean) ** 2).mean(0)
    return mean, variance


def expected(net: nn.Sequential, source: Tensor, target: Tensor) -> list[list[tuple[Array, Array]]]:
    """By layer and domain: mean and variance, each layer's from what its predecessors give with theirs."""
    values = [array(source), array(target)]
    result = []
    for linear, norm in ((net[0], net[1]), (net[3], net[4])):
        values = [x @ array(linear.weight).T + array(linear.bias) for x in values]
        alpha = norm.alpha.item()
        statistics = [mixed(values[0], values[1], alpha), mixed(values[1], values[0], alpha)]
        result.append(statistics)
        values = [
            (x - mean) / np.sqrt(variance + norm.eps) * array(norm.weight) + array(norm.bias)
            for x, (mean, variance) in zip(values, statistics, strict=True)
        ]
        values = [np.maximum(x, 0) for x in values]
    return result


def assert_statistics(net: nn.Sequential, wanted: list[list[tuple[Array, Array]]]) -> None:
    for norm, statistics in zip((net[1], net[4]), wanted, strict=True):
        assert norm.normalizer == 1
        for row, (mean, variance) in enumerate(statistics):
            np.testing.assert_allclose(array(norm.mean[row]), mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(array(norm.variance[row]), variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("memory", "passes"), [(HUGE, 1), (NONE, 2)])
def test_statistics_of_both_domains(memory: int, passes: int) -> None:
    """Each image counts once, whatever the batches; the domains have different numbers of images."""
    net = aligned()
    source, target = images(23, 0.0), images(10, 1.5, seed=1)
    parameters = [parameter.clone() for parameter in net.parameters()]
    result = recalibrate(net, batches(source, 7), batches(target, 4), memory=memory)
    assert_statistics(net.module, expected(net.module, source, target))
    assert (result.passes, result.source_samples, result.target_samples) == (passes, 23, 10)
    assert [layer.name for layer in result.layers] == ["module.1", "module.4"]
    assert [layer.alpha for layer in result.layers] == pytest.approx([0.7, 0.9])
    assert net.training and all(map(torch.equal, net.parameters(), parameters))
    assert {layer.test_stats for layer in net.modules() if isinstance(layer, DomainAlignment)} == {"target"}
    recalibrate(net, [source[torch.randperm(23)]], target.split(1), memory=memory)
    assert_statistics(net.module, expected(net.module, source, target))


def test_domains_leave_aligned_layers_as_their_alphas_say() -> None:
    result = recalibrate(aligned((1.0, 0.5)), [images(30, 0.0)], [images(30, 2.0)])
    first, second = result.layers
    assert first.apart is not None and first.aligned is not None and first.apart.mean > 0.1
    assert first.aligned.mean == pytest.approx(0, abs=1e-6)
    assert second.apart is not None and second.aligned is not None
    assert second.aligned.mean == pytest.approx(second.apart.mean)
    assert first.moved_target is not None and first.moved_target.mean > 0


@pytest.mark.parametrize("memory", [HUGE, NONE])
def test_batch_norm_gets_the_statistics_of_all_images(memory: int) -> None:
    """update_bn's means over batches of 7 and 2 are other numbers."""
    net, x = module().eval(), images(9, 1.0)
    result = recalibrate(net, None, batches(x, 7), memory=memory)
    hidden = array(x) @ array(net[0].weight).T + array(net[0].bias)
    np.testing.assert_allclose(array(net[1].running_mean), hidden.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(array(net[1].running_var), hidden.var(0), rtol=1e-5)
    normalized = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + net[1].eps)
    hidden = np.maximum(normalized * array(net[1].weight) + array(net[1].bias), 0)
    hidden = hidden @ array(net[3].weight).T + array(net[3].bias)
    np.testing.assert_allclose(array(net[4].running_var), hidden.var(0), rtol=1e-5)
    assert result.batch_norms == ("1", "4") and result.layers == () and result.source_samples is None
    assert net[1].num_batches_tracked == 1 and not net.training


def test_batch_norm_beside_alignment_gets_both_domains() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), AlignedBatchNorm(3))
    source, target = images(20, 0.0), images(5, 3.0)
    result = recalibrate(net, [source], [target])
    both = array(torch.cat([source, target]))
    np.testing.assert_allclose(array(net[0].running_var), both.var(0), rtol=1e-5)
    assert result.batch_norms == ("0",) and [layer.name for layer in result.layers] == ["1"]


def test_a_new_target_needs_no_source_if_every_alpha_is_1() -> None:
    net, source, target = aligned((1.0, 1.0)), images(20, 0.0), images(9, 2.0)
    recalibrate(net, [source], [images(20, 1.0)])
    before = net.module[1].mean[0].clone()
    recalibrate(net, None, [target])
    assert torch.equal(net.module[1].mean[0], before)
    wanted = expected(net.module, source, target)
    np.testing.assert_allclose(array(net.module[4].variance[1]), wanted[1][1][1], rtol=1e-5)
    net.module[4].alpha.data.fill_(0.9)
    with pytest.raises(InputError, match=r'layer "module\.4" has alpha 0\.9.* `source`'):
        recalibrate(net, None, [target])


@pytest.mark.parametrize("memory", [HUGE, NONE])
@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: net.module])
def test_averaged_weights_get_their_own_statistics(wrap: Callable[[AutoDIAL], nn.Module], memory: int) -> None:
    net, source, target = aligned(), images(23, 0.0), images(10, 1.5, seed=1)
    averaged = AveragedModel(wrap(net))
    for seed in (1, 2, 3):
        with torch.no_grad():
            for parameter in net.module[0].parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        net(source, target)
        averaged.update_parameters(wrap(net))
    recalibrate(averaged, batches(source, 7), batches(target, 4), memory=memory)
    inner = next(child for child in averaged.modules() if isinstance(child, nn.Sequential))
    assert_statistics(inner, expected(inner, source, target))


class Classifier(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3), AlignedBatchNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )


def test_an_export_warns_of_averages_with_other_statistics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net, x = AutoDIAL(Classifier()), torch.rand(8, 3, 8, 8)
    net(x, x + 1)
    averaged = AveragedModel(net)
    for _ in range(2):
        averaged.update_parameters(net)
    export_module(averaged, tmp_path / "x.onnx", size=(8, 8))
    assert "the normalization statistics are those of the last weights that were averaged: call " in caplog.text
    caplog.clear()
    recalibrate(averaged, [x], [x + 1])
    export_module(averaged, tmp_path / "x.onnx", size=(8, 8))
    assert "averages" not in caplog.text
    averaged.update_parameters(net)
    export_module(copy.deepcopy(averaged), tmp_path / "x.onnx", size=(8, 8))
    assert "averages" in caplog.text


def test_images_of_several_sizes_take_a_pass_per_layer() -> None:
    x = torch.rand(4, 3, 8, 8)
    result = recalibrate(Classifier(), [x, x[:, :, :6]], [x, x])
    assert (result.passes, result.source_samples) == (1, 8)
    values = np.concatenate([array(part).transpose(1, 0, 2, 3).reshape(3, -1) for part in (x, x[:, :, :6])], 1)
    net = nn.Sequential(AlignedBatchNorm(3), nn.AdaptiveAvgPool2d(1))
    recalibrate(net, [x, x[:, :, :6]], [x, x])
    np.testing.assert_allclose(array(net[0].mean[0]), values.mean(1), rtol=1e-5)


class Folding(nn.Module):
    """Frames of a video as samples of their own, which no layer can tell apart by domain along the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = AlignedBatchNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return y


def test_layers_without_a_row_per_image_are_recalibrated_too() -> None:
    net, source, target = Folding(), torch.rand(6, 2, 3), torch.rand(4, 2, 3) + 1
    recalibrate(net, source.split(4), [target])
    np.testing.assert_allclose(array(net.norm.mean[1]), array(target).reshape(-1, 3).mean(0), rtol=1e-5)


class Centred(nn.Sequential):
    """Changes its input in place, as users' code does now and then."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.sub_(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("memory", [HUGE, 10_000, NONE])
def test_a_net_that_changes_its_input_in_place(memory: int) -> None:
    """Every pass sees the images as they were, kept in memory or not."""
    net, source, target = Centred(*aligned().module), images(23, 0.0), images(10, 1.5, seed=1)
    before = source.clone()
    recalibrate(net, source.split(7), [target], memory=memory)
    assert torch.equal(source, before)
    assert_statistics(net, expected(net, source - 1, target - 1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.norm(x) + 1)
        return y


X = [images(4, 0.0)]


@pytest.mark.parametrize(
    ("net", "source", "target", "message"),
    [
        (nn.Linear(3, 2), X, X, "Linear has no normalization layer with stored statistics"),
        (nn.BatchNorm1d(3, track_running_stats=False), X, X, "no normalization layer with stored statistics"),
        (nn.Sequential(nn.LazyBatchNorm1d()), X, X, 'layer "0" does not know its number of channels yet'),
        (nn.Sequential(DomainAlignment(3, use_global_stats=False)), X, X, 'layer "0" has use_global_stats=False'),
        (Twice(), X, X, 'layer "norm" runs more than once in a forward pass'),
        (nn.BatchNorm1d(3), X, iter(X), "`target` can be iterated only once: give a DataLoader, or a list of batches"),
        (nn.BatchNorm1d(3), [], X, "`source` has no images"),
        (nn.BatchNorm1d(3), None, [3], "a batch of `target` must hold tensors"),
        (AlignedBatchNorm(3), None, X, "has never stored statistics"),
    ],
)
def test_what_is_refused(net: nn.Module, source: Any, target: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recalibrate(net, source, target)


@pytest.mark.parametrize("memory", [HUGE, NONE])
def test_nothing_changes_after_an_error(memory: int) -> None:
    net = aligned()
    net.module[3].weight.data[0, 0] = math.nan
    net.module[1].eval()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(WorkError, match=r'values that are not finite reach layer "module\.4"'):
        recalibrate(net, X, X, memory=memory)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    assert net.training and not net.module[1].training
    assert "forward" not in vars(net.module[1]) and not net.module[1]._forward_pre_hooks


def test_loaders_of_torch_and_layers_that_eval_mode_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.auxiliary = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.auxiliary(x) if self.training else self.used(x)
            return y

    net, x = Auxiliary(), images(9, 1.0)
    loader = DataLoader(TensorDataset(x, torch.zeros(9)), batch_size=4, shuffle=True)
    assert recalibrate(net, None, loader).batch_norms == ("used",)
    np.testing.assert_allclose(array(net.used.running_mean), array(x).mean(0), rtol=1e-5)
    assert "Eval mode does not run auxiliary, whose statistics stay as they were" in caplog.text
    recalibrate(net, None, DataLoader(TensorDataset(x), batch_size=4, drop_last=True))
    assert "`target` has drop_last=True, which leaves out some images" in caplog.text


def test_a_compiled_module() -> None:
    """A compiled graph knows nothing of hooks that come later; a stand-in for the compiler shows it, too."""
    net = module().eval()
    compiled = torch.compile(net, backend="eager")
    x = images(9, 1.0)
    compiled(x)
    assert recalibrate(compiled, None, [x]).batch_norms == ("_orig_mod.1", "_orig_mod.4")
    hidden = array(x) @ array(net[0].weight).T + array(net[0].bias)
    np.testing.assert_allclose(array(net[1].running_mean), hidden.mean(0), rtol=1e-5, atol=1e-6)
