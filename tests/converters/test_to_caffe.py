"""Torch modules as Caffe nets: the same outputs, from what the files hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autodial import proto
from autodial.converters import to_caffe
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import messages as pb


class SqueezeExcitation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))).sigmoid()
        return gate * x


class Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        y = torch.cat((first + second, first - 0.5 * second), dim=1)
        rows, channels, height, width = y.shape
        return y.view(rows, 2, channels // 2, height, width).transpose(1, 2).reshape(rows, channels, height, width)


class Residual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x * 0.5 + 0.25, inplace=True) + x[:, :, :, :]


class OneColour(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        red = torch.unsqueeze(x[:, 0], 1) * 0.9 - 0.1
        return torch.cat((red, x[:, 1:]), 1)


PARTS: dict[str, nn.Module] = {
    "grouped and dilated": nn.Conv2d(6, 8, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 1), groups=2),
    "without bias": nn.Conv2d(6, 4, 3, bias=False),
    "batch normalization": nn.BatchNorm2d(6, eps=1e-3),
    "without affine": nn.BatchNorm2d(6, affine=False),
    "activations": nn.Sequential(nn.ReLU6(), nn.PReLU(6), nn.LeakyReLU(0.1), nn.ELU(0.5), nn.Hardswish(), nn.Tanh()),
    "gates": nn.Sequential(nn.Hardsigmoid(), nn.SiLU(), nn.Sigmoid(), nn.PReLU(), nn.Softmax(1)),
    "limits": nn.Hardtanh(-0.5, 0.5),
    "max pooling": nn.MaxPool2d(3, 2, padding=1),
    "max pooling, rounded up": nn.MaxPool2d(3, 2, ceil_mode=True),
    "average pooling": nn.AvgPool2d(3, 2, padding=1),
    "adaptive pooling": nn.AdaptiveAvgPool2d((3, 5)),
    "global pooling and a classifier": nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, 4)
    ),
    "squeeze and excitation": SqueezeExcitation(),
    "channel shuffle": Shuffle(),
    "residual": Residual(),
    "colours one by one": OneColour(),
}


def randomized(module: nn.Module) -> nn.Module:
    """With statistics and scales as training would leave them."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None and part.running_var is not None
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return module.eval()


def reloaded(made: Any, folder: Path) -> Net:
    """The net from its files, as whoever gets these builds it."""
    proto.write_text(made.net, folder / "deploy.prototxt")
    proto.write_weights(made.weights, folder / "net.caffemodel")
    net = Net(proto.read_net(folder / "deploy.prototxt"), pb.TEST)
    assert net.load_weights(proto.read_weights(folder / "net.caffemodel")) == []
    return net.eval()


@pytest.mark.parametrize("name", PARTS)
def test_outputs_are_the_module_s(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = randomized(PARTS[name])
    made = to_caffe(module, torch.randn(2, 6, 9, 10), name=name)
    x = torch.randn(3, 6, 9, 10)  # another number of rows, too
    with torch.no_grad():
        expected, found = module(x), reloaded(made, tmp_path)({"data": x})
    assert list(found) == [made.output]
    torch.testing.assert_close(found[made.output], expected, rtol=1e-5, atol=1e-5)


def test_layers_are_named_like_submodules() -> None:
    module = nn.Sequential(nn.Conv2d(6, 2, 1), nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()))
    made = to_caffe(module, torch.randn(1, 6, 4, 4))
    assert [layer.name for layer in made.net.layer] == ["data", "0", "1.0", "1.0/scale", "1.1"]


def test_the_module_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Conv2d(6, 2, 1), nn.BatchNorm2d(2)).train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    to_caffe(module, torch.randn(2, 6, 4, 4))
    assert module.training and module[1].training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Conv2d(6, 2, 1), nn.GELU()), r'^"1" \(GELU\): no Caffe layer computes aten.gelu'),
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), "count_include_pad must be True"),
        (nn.MaxPool2d(3, dilation=2), "no Caffe layer computes a dilated pooling"),
        (nn.AdaptiveAvgPool2d(4), r"windows of several sizes pool \(9, 10\) to \(4, 4\)"),
        (nn.BatchNorm2d(6, track_running_stats=False), "depends on the batch"),
        (nn.Conv2d(6, 2, 3, padding="same"), 'padding must be numbers, not "same"'),
    ],
)
def test_a_part_that_caffe_lacks_is_named(module: nn.Module, said: str) -> None:
    with pytest.raises(InputError, match=said):
        to_caffe(module, torch.randn(2, 6, 9, 10))


class Strange(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


@pytest.mark.parametrize("module", [Strange(), nn.Sequential(nn.ReLU(), Strange())], ids=["whole", "part"])
def test_a_line_of_the_user_s_own_code_is_named(module: nn.Module) -> None:
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "torch.erf(x)" in text)
    name = "the module" if isinstance(module, Strange) else '"1"'
    said = re.escape(f"{name} (Strange, test_to_caffe.py line {line}): no Caffe layer computes aten.erf")
    with pytest.raises(InputError, match=f"^{said}"):
        to_caffe(module, torch.randn(2, 6, 9, 10))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "mobilenet_v3_large", "densenet121", "googlenet"),
        *(
            "inception_v3",
            "squeezenet1_1",
            "shufflenet_v2_x1_0",
            "regnet_y_400mf",
            "efficientnet_b0",
            "resnext50_32x4d",
        ),
    ],
)
def test_torchvision_s_networks(name: str, tmp_path: Path) -> None:
    from torchvision import models

    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = randomized(models.get_model(name, weights=None, **options))
    size = 299 if name == "inception_v3" else 224
    made = to_caffe(module, torch.randn(1, 3, size, size))
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected, found = module(x), reloaded(made, tmp_path)({"data": x})[made.output]
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
