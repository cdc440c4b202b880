"""Networks of torchvision as nets for `init`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import models

from autodial.data.transforms import Transform
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.project.architectures import read_architecture
from autodial.proto import messages as pb


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    torch.manual_seed(0)
    module = models.squeezenet1_1(weights=None, num_classes=7).eval()
    path = tmp_path_factory.mktemp("weights") / "squeezenet.pth"
    torch.save({"state_dict": {f"module.{key}": value for key, value in module.state_dict().items()}}, path)
    return module, path


def test_an_image_of_caffe_gives_what_the_module_gives(squeezenet: tuple[torch.nn.Module, Path]) -> None:
    module, path = squeezenet
    made = read_architecture("torchvision:squeezenet1_1", str(path))
    assert (made.size, made.transform.crop_size, made.notes) == ((256, 256), 224, ())
    bgr = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    transform = Transform.from_caffe(made.transform, phase=pb.TEST, channels=3)
    blob = np.empty((1, 3, 224, 224), np.float32)
    transform(bgr, np.zeros(3), blob[0])
    net = Net(made.net, pb.TEST).eval()
    net.load_weights(made.weights)

    # torchvision's own preparation: the middle of the picture, red first, less the mean, over the deviation
    rgb = torch.from_numpy(bgr[16:240, 16:240, ::-1].copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(of).view(3, 1, 1) for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    image = (rgb / 255 - mean) / std
    with torch.no_grad():
        expected = module(image.unsqueeze(0))
        (found,) = net({"data": torch.from_numpy(blob)}).values()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "weights", "said"),
    [
        ("torchvision:resnet", None, "torchvision has no classification network resnet"),
        (
            "torchvision:resnet18",
            "IMAGENET1K_V9",
            r"`weights`: torchvision has no IMAGENET1K_V9 .* only IMAGENET1K_V1, DEFAULT",
        ),
        ("torchvision:resnet18", "missing.pth", "`weights`: there is no file missing.pth"),
        ("torchvision:resnet18", "old.caffemodel", "old.caffemodel is not a .pth, .pt or .safetensors file"),
    ],
)
def test_what_is_not_there_is_named(arch: str, weights: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_architecture(arch, weights)


def test_files_that_do_not_fit(squeezenet: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    module, _ = squeezenet
    (tmp_path / "text.pth").write_text("no tensors")
    with pytest.raises(InputError, match=r"text.pth is not a file of tensors"):
        read_architecture("torchvision:squeezenet1_1", str(tmp_path / "text.pth"))
    state = module.state_dict()
    del state["features.0.bias"]
    torch.save(state, tmp_path / "short.pth")
    with pytest.raises(InputError, match=r"short.pth lacks features.0.bias of the network's parameters"):
        read_architecture("torchvision:squeezenet1_1", str(tmp_path / "short.pth"))
