"""AutoDIAL, recalibration and export of torch modules with several sources."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autodial.converters import AutoDIAL, convert_batchnorm, export_module, recalibrate
from autodial.errors import InputError


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 2))


def images(count: int, shift: float = 0.0, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) * (1 + shift) + shift


A, B, TARGET = images(7), images(4, 2, 2), images(5, -1, 3)


def test_with_alpha_one_each_domain_is_normalized_alone() -> None:
    """As torch normalizes a batch of this domain only."""
    plain = module()
    net = AutoDIAL(convert_batchnorm(copy.deepcopy(plain), sources=2))
    (of_a, of_b), of_target = net([A, B], TARGET)
    for got, x in ((of_a, A), (of_b, B), (of_target, TARGET)):
        torch.testing.assert_close(got, plain(x))
    (of_a + of_b.sum() + of_target.sum()).sum().backward()
    assert net.module[1].alpha.grad is not None
    of_a *= 2  # a part of the batch's output, which may be changed in place all the same


def test_alpha_aligns_the_sources_with_each_other_too() -> None:
    net = AutoDIAL(convert_batchnorm(module(), sources=2))
    net.module[1].alpha.data.fill_(1 / 3)
    (of_a, of_b), of_target = net([A[:4], B], TARGET[:4])
    joint = torch.cat((A[:4], B, TARGET[:4]))
    torch.testing.assert_close(torch.cat((of_a, of_b, of_target)), module()(joint))


def test_a_list_is_several_sources_only_if_the_target_is_none() -> None:
    class Two(nn.Module):
        def __init__(self, sources: int) -> None:
            super().__init__()
            self.net = convert_batchnorm(module(), sources=sources)

        def forward(self, pair: list[Tensor]) -> dict[str, Tensor]:
            return {"scores": self.net(pair[0] + pair[1])}

    source, target = AutoDIAL(Two(1))([A, A], [TARGET, TARGET])
    assert (source["scores"].shape, target["scores"].shape) == ((7, 2), (5, 2))
    sources, target = AutoDIAL(Two(2))([[A, A], [B, B]], [TARGET, TARGET])
    assert [each["scores"].shape for each in (*sources, target)] == [(7, 2), (4, 2), (5, 2)]
    sources, target = AutoDIAL(convert_batchnorm(module()))([A], TARGET)
    assert [len(each) for each in (*sources, target)] == [7, 5]


def test_another_number_of_sources_is_refused() -> None:
    with pytest.raises(InputError, match=r"have statistics of 1 source, and there are 2: .*module, sources=2\)"):
        AutoDIAL(convert_batchnorm(module()))([A, B], TARGET)
    with pytest.raises(InputError, match="have statistics of 2 sources, and there are 1"):
        AutoDIAL(convert_batchnorm(module(), sources=2))(A, TARGET)
    with pytest.raises(InputError, match=r'"1" \(AlignedBatchNorm\) is aligned already, with 1 source and not 2'):
        convert_batchnorm(convert_batchnorm(module()), sources=2)
    with pytest.raises(InputError, match=r"a source of shape .* and a target of shape"):
        AutoDIAL(convert_batchnorm(module(), sources=2))([A, B[..., :4]], TARGET)


@pytest.mark.parametrize("memory", [2**40, 0])
def test_recalibration_mixes_the_images_of_all_domains(memory: int) -> None:
    net = AutoDIAL(convert_batchnorm(module(), sources=2))
    norm, alpha = net.module[1], 0.6
    norm.alpha.data.fill_(alpha)
    result = recalibrate(net, [[A[:3], A[3:]], [B]], [TARGET], memory=memory)
    assert (result.source_samples, result.target_samples) == (11, 5)
    values = [net.module[0](x).detach().double().transpose(0, 1).flatten(1) for x in (A, B, TARGET)]
    for row in range(3):
        weights = [alpha if other == row else (1 - alpha) / 2 for other in range(3)]
        mean = sum(weight * x.mean(1) for weight, x in zip(weights, values, strict=True))
        squares = [(x - mean.view(-1, 1)).square().mean(1) for x in values]
        variance = sum(weight * each for weight, each in zip(weights, squares, strict=True))
        torch.testing.assert_close(norm.mean[row], mean.float())
        torch.testing.assert_close(norm.variance[row], variance.float())
    with pytest.raises(InputError, match="`source` is a list of loaders, one for each of the net's 2 sources"):
        recalibrate(net, [[A]], [TARGET])


def test_the_exported_file_has_the_target_s_statistics(tmp_path: Path) -> None:
    net = AutoDIAL(convert_batchnorm(module(), sources=2))
    net([A, B], TARGET)
    export_module(net.module, tmp_path / "model.onnx", size=(5, 5))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 5, 3), dtype=np.uint8)
    logits, _ = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"image": pixels})
    norm = net.module[1]
    x = torch.from_numpy(pixels[..., ::-1].copy()).permute(0, 3, 1, 2) / 255
    mean, variance = norm.mean[2] / norm.normalizer, norm.variance[2] / norm.normalizer
    x = F.batch_norm(net.module[0](x), mean, variance, norm.weight, norm.bias, eps=norm.eps)
    np.testing.assert_allclose(logits, net.module[4](F.relu(x).flatten(1)).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="statistics of 2 sources, and a file has those of one domain: leave out"):
        export_module(net.module, tmp_path / "other.onnx", size=(5, 5), domain="source")
