from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePath
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import torchvision
import torchvision.transforms.functional as TF
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from typer.testing import CliRunner

from autodial.cli import app
from autodial.commands.export import describe
from autodial.converters import AutoDIAL, convert_batchnorm, export_module, prepared, torch_export
from autodial.converters.destinations.triton import TritonModel
from autodial.converters.torch_fold import fold_graph
from autodial.deploy import Predictor
from autodial.errors import InputError, WorkError
from autodial.layers import DomainAlignment

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def used(module: nn.Module) -> nn.Module:
    """The module with statistics, weights and biases as training leaves them, different ones for each domain."""
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.5, 2)
        elif isinstance(layer, DomainAlignment):
            layer.normalizer.fill_(3)
            layer.mean.normal_(0, 0.5)
            layer.variance.uniform_(1.5, 6)
        else:
            continue
        if isinstance(getattr(layer, "weight", None), Tensor):
            nn.init.uniform_(layer.weight, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.normal_(layer.bias, 0, 0.3)  # type: ignore[arg-type]
    return module


def write_photos(folder: Path, count: int = 4) -> list[Path]:
    """Blurred noise in odd sizes, each with a colour of its own."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(count):
        pixels = rng.integers(0, 256, (40 + 9 * i, 75 - 8 * i, 3)) * 0.6 + rng.integers(0, 100, 3)
        paths.append(folder / f"{i}.png")
        cv2.imwrite(str(paths[-1]), cv2.blur(pixels.astype(np.uint8), (5, 5)))
    return paths


def by_torchvision(path: Path, size: tuple[int, int], crop: int) -> Tensor:
    """(3, crop, crop): what a torchvision user makes of a photo."""
    rgb = cv2.cvtColor(cv2.resize(cv2.imread(str(path)), size[::-1]), cv2.COLOR_BGR2RGB)
    return TF.normalize(TF.center_crop(TF.to_tensor(rgb), [crop, crop]), MEAN, STD)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A converted ResNet-18 with its report and four photos."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("resnet")
    module = used(convert_batchnorm(torchvision.models.resnet18(weights=None, num_classes=7)))
    module.train()
    report = export_module(
        module, folder / "model.onnx", size=(70, 66), crop=64, mean=MEAN, std=STD, classes=list("abcdefg")
    )
    return module, report, write_photos(folder)


def test_photos_get_from_the_file_what_they_get_from_torch(resnet: Any) -> None:
    module, report, photos = resnet
    assert module.training
    batch = torch.stack([by_torchvision(path, (70, 66), 64) for path in photos])
    module.eval()
    with torch.no_grad():
        expected = module(batch).numpy()
    module.train()
    logits, probabilities = Predictor(report.output, "cpu").predict(photos)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.ptp(expected))
    np.testing.assert_allclose(probabilities, torch.tensor(expected).softmax(1).numpy(), atol=1e-5)


def test_predict_labels_them(resnet: Any, tmp_path: Path) -> None:
    _, report, photos = resnet
    result = CliRunner().invoke(app, ["predict", str(report.output), *map(str, photos), "-o", str(tmp_path / "x.csv")])
    assert result.exit_code == 0, result.output
    logits, _ = Predictor(report.output, "cpu").predict(photos)
    for line, i in zip((tmp_path / "x.csv").read_text().splitlines()[1:], logits.argmax(1), strict=True):
        assert f",{'abcdefg'[i]}," in line


def test_nothing_of_a_normalization_is_left_behind_a_convolution(resnet: Any) -> None:
    _, report, _ = resnet
    graph = onnx.load(report.output).graph
    ops = Counter(node.op_type for node in graph.node)
    assert ops["Conv"] == len(report.merged) == 20 and report.kept == ()
    assert not {"BatchNormalization", "Div", "Sqrt", "Reciprocal", "Dropout"} & ops.keys()
    assert ops["Sub"] == 1  # the images' mean
    made = {name for node in graph.node if node.op_type == "Conv" for name in node.output}
    readers = Counter(node.op_type for node in graph.node for name in node.input if name in made)
    assert readers.keys() == {"Relu", "Add"}
    assert all(len(node.input) == 3 for node in graph.node if node.op_type == "Conv")
    assert report.merged["layer2.0.downsample.1"] == "layer2.0.downsample.0"


def test_report_and_metadata(resnet: Any) -> None:
    _, report, _ = resnet
    assert 0 < report.relative_difference < 1e-5
    assert report.compared_on == "random images"
    assert (report.logits, report.input, report.notes) == ("ResNet", "image", ())
    assert report.file_size == report.output.stat().st_size
    model = onnx.load(report.output)
    assert [(put.domain, put.version) for put in model.opset_import] == [("", report.opset)]
    assert model.ir_version == report.ir_version <= 8
    record = json.loads(json.dumps(report.record()))
    assert record["output"] == str(report.output) and record["metadata"] == report.metadata
    info = Predictor(report.output, "cpu").info
    assert (info.size, info.crop, info.channel_order, info.statistics) == ((70, 66), (64, 64), "BGR", "target")
    assert info.mean == pytest.approx([255 * value for value in MEAN[::-1]])
    assert info.scale == pytest.approx([1 / 255 / value for value in STD[::-1]])
    assert info.classes == tuple("abcdefg")
    text = describe(report)
    taken = "which takes BGR images of 70 x 66 pixels and scores 7 classes, with the target's statistics\n"
    assert taken in text and "Folded into other layers: 20" in text


def run(path: Path, images: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"image": images})[0]


def bytes_of(count: int, size: int, channels: int = 3) -> Any:
    return np.random.default_rng(3).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


class Awkward(nn.Module):
    """Normalizations in all kinds of places; in comments what folding must make of them."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(3)  # kept: no layer in front
        self.again = DomainAlignment(3)  # kept: neither here
        self.grouped = nn.Conv2d(3, 6, 3, groups=3, padding="same")
        self.norm1 = nn.BatchNorm2d(6, affine=False)  # merged
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.norm2 = nn.BatchNorm2d(5)  # merged
        self.forked = nn.Conv2d(5, 5, 1)
        self.norm3 = nn.BatchNorm2d(5)  # kept: the sum reads the convolution, too
        self.up2 = nn.ConvTranspose2d(5, 10, 2, groups=5)
        self.norm4 = nn.BatchNorm2d(10)  # kept: the weight's axes are groups and channels of a group
        self.decayed = parametrizations.weight_norm(nn.Conv2d(10, 4, 3, bias=False))
        self.norm5 = nn.BatchNorm2d(4)  # merged
        self.norm6 = nn.BatchNorm2d(4)  # merged behind norm5
        self.fc = nn.Linear(4, 6)
        self.norm7 = nn.BatchNorm1d(6)  # merged
        self.twice = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))  # merged at both its places
        self.align = DomainAlignment(6)  # merged

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.grouped(self.again(self.before(x)))).relu_()
        x = self.norm2(self.up(x)).relu()
        x = self.forked(x)
        x = x + self.norm3(x)
        x = self.norm5(self.decayed(self.norm4(self.up2(x))))
        x = self.norm6(x).sigmoid().mean((2, 3))
        x = self.norm7(self.fc(x)).tanh()
        return self.align(self.twice[0](self.twice(self.twice(x))))


@pytest.mark.parametrize("converted", [True, False])
def test_what_does_not_fit_stays_as_a_product_and_a_sum(converted: bool, tmp_path: Path) -> None:
    module = Awkward()
    module = used(convert_batchnorm(module) if converted else module)
    report = export_module(module, tmp_path / "model.onnx", size=(8, 8))
    assert report.kept == ("before", "again", "norm3", "norm4")
    expected = {"norm1": "grouped", "norm2": "up", "norm5": "decayed", "norm6": "decayed", "norm7": "fc"}
    assert report.merged == expected | {"twice.1": "twice.0", "align": "twice.0"}
    images = bytes_of(5, 8)
    x = torch.from_numpy(images[..., ::-1].transpose(0, 3, 1, 2).copy()).double() / 255
    with torch.no_grad():
        logits = module.double().eval()(x).numpy()
    np.testing.assert_allclose(run(report.output, images), logits, rtol=0, atol=1e-5 * np.ptp(logits))


def flat(channels: int = 3, size: int = 6, more: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 3), more or nn.Identity())


@pytest.mark.parametrize(
    ("order", "scale", "mean", "std"),
    [
        ("GRAY", 1 / 255, [0.5], [0.25]),
        ("BGR", 1.0, [104, 117, 123], []),
        ("RGB", 1 / 128, (), np.array([0.5, 1, 2])),
        ("RGB", 1 / 255, torch.tensor(MEAN), torch.tensor(STD)),
    ],
)
def test_what_is_done_to_the_images(order: Any, scale: float, mean: Any, std: Any, tmp_path: Path) -> None:
    channels = 1 if order == "GRAY" else 3
    module = flat(channels)
    options: dict[str, Any] = {"mean": mean, "std": std, "scale": scale, "channel_order": order}
    report = export_module(module, tmp_path / "model.onnx", size=(6, 6), **options)
    images = bytes_of(4, 6, channels)
    x = torch.from_numpy(images[..., :: -1 if order == "RGB" else 1].copy()).double() * scale
    x = x - torch.tensor([float(value) for value in mean] or 0, dtype=torch.float64)
    x = x / torch.tensor([float(value) for value in std] or 1, dtype=torch.float64)
    with torch.no_grad():
        logits = module.double()(x.permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(run(report.output, images), logits, rtol=0, atol=1e-5 * np.ptp(logits))
    assert report.metadata["channel_order"] == ("GRAY" if order == "GRAY" else "BGR")
    assert report.metadata["statistics"] is None


class Standardized(nn.Conv2d):
    """Weight standardization, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(weight, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class AddsNormalized(nn.Module):
    """A constant that is normalized, and no layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.batch_norm(self.values, None, None, training=True).mean(0)


def normalized(tracked: bool) -> nn.Module:
    norm = nn.InstanceNorm2d(6, affine=True, track_running_stats=tracked)
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


@pytest.mark.parametrize(
    ("layers", "merged"),
    [
        ([Standardized(3, 6, 3, padding=1)], {}),
        ([Standardized(3, 6, 3, padding=1), used(nn.BatchNorm2d(6))], {"0.1": "0.0"}),
        ([nn.Conv2d(3, 6, 3, padding=1), normalized(True)], {"0.1": "0.0"}),
        ([nn.Conv2d(3, 6, 3, padding=1), normalized(False)], {}),
        ([nn.Conv2d(3, 6, 3, padding=1), nn.Flatten(), nn.Linear(216, 5), AddsNormalized(), nn.Linear(5, 216)], {}),
        ([nn.Conv2d(3, 6, 3, padding=1), torchvision.ops.FrozenBatchNorm2d(6)], {}),
    ],
)
def test_other_normalizations(layers: list[nn.Module], merged: dict[str, str], tmp_path: Path) -> None:
    module = nn.Sequential(nn.Sequential(*layers), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3))
    report = export_module(module, tmp_path / "model.onnx", size=(6, 6))
    assert report.merged == merged and report.kept == ()
    images = bytes_of(4, 6)
    x = torch.from_numpy(images[..., ::-1].transpose(0, 3, 1, 2).copy()).double() / 255
    with torch.no_grad():
        logits = module.double().eval()(x).numpy()
    np.testing.assert_allclose(run(report.output, images), logits, rtol=0, atol=1e-5 * np.ptp(logits))
    weights = {tensor.name for tensor in onnx.load(report.output).graph.initializer}
    assert all(node.input[1] in weights for node in onnx.load(report.output).graph.node if node.op_type == "Conv")


def test_damaged_statistics_of_an_instance_normalization(tmp_path: Path) -> None:
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    norm.running_mean[1] = torch.nan  # type: ignore[index]
    with pytest.raises(InputError, match=r'layer "0" \(InstanceNorm2d\): channel 1 has the stored mean nan'):
        export_module(nn.Sequential(norm, flat()), tmp_path / "model.onnx", size=(6, 6))


def test_the_wrapper_another_domain_and_half_precision(tmp_path: Path) -> None:
    net = AutoDIAL(used(convert_batchnorm(flat(more=nn.BatchNorm1d(3)))))
    norm = net.module[2]  # type: ignore[index]
    norm.test_stats = "source"
    report = export_module(net.to(torch.bfloat16), tmp_path / "model.onnx", size=(6, 6))
    assert report.metadata["statistics"] == "source" and len(report.merged) == 1
    images = bytes_of(2, 6)
    x = torch.from_numpy(images[..., ::-1].transpose(0, 3, 1, 2).copy()).float() / 255
    with torch.no_grad():
        logits = net.float().eval()(x).numpy()
    np.testing.assert_allclose(run(report.output, images), logits, rtol=0, atol=1e-5 * np.ptp(logits))


def test_logits_of_one_by_one_pixel_and_names_that_repeat(tmp_path: Path) -> None:
    report = export_module(nn.Conv2d(3, 3, 6), tmp_path / "model.onnx", size=(6, 6), classes=["crane", "owl", "crane"])
    assert report.metadata["classes"] == ["crane_0", "owl", "crane_2"]
    assert report.notes == (
        'classes gives several classes one name, so their numbers are appended: "crane" (crane_0, crane_2)',
    )
    assert run(report.output, bytes_of(2, 6)).shape == (2, 3)


class Unstored(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)


def broken() -> nn.Module:
    module = used(convert_batchnorm(flat(more=nn.BatchNorm1d(3))))
    module[2].variance[1, 2] = -1  # type: ignore[index, operator]
    return module


def with_answer(answer: Any) -> nn.Module:
    class Answers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = flat()

        def forward(self, x: Tensor) -> Any:
            return answer(self.fc(x))

    return Answers()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (6,)}, r"height and width in pixels, not \(6,\)"),
        ({"size": (0, 6)}, "height and width in pixels"),
        ({"size": (8, 9), "crop": 9}, "images of 8 x 9 have no crop of 9 x 9"),
        ({"mean": [0.5]}, "`mean` needs 3 values, one per channel, and has 1"),
        ({"std": [1, 1, 0]}, "`scale` and `std` must be positive"),
        ({"std": [1, 1, 1], "channel_order": "GRAY"}, "`std` needs 1 value, one per channel, and has 3"),
        ({"scale": 0}, "`scale` and `std` must be positive"),
        (
            {"mean": [124, 116, 104]},
            "`mean` has 124, above 1, the value of white after `scale`: use that unit",
        ),
        ({"channel_order": "rgb"}, "not 'rgb'"),
        ({"classes": ["a", "b"]}, "`classes` names 2 classes and the logits have 3"),
        ({"size": (7, 7)}, r"Sequential can't run on a batch of shape \(1, 3, 7, 7\): mat1 and mat2"),
        ({"module": with_answer(lambda y: {"out": y})}, "Answers returns a dict in eval mode: wrap it"),
        ({"module": with_answer(lambda y: y[:, :, None, None].expand(-1, -1, 2, 2))}, r"shape \(1, 3, 2, 2\) for a"),
        ({"module": broken()}, r'layer "2" \(AlignedBatchNorm\): channel 2 has the stored mean .* variance -'),
        ({"module": flat(more=DomainAlignment(3))}, r'layer "2" \(DomainAlignment\): no statistics were ever stored'),
        (
            {"module": flat(more=DomainAlignment(3, use_global_stats=False))},
            'layer "2" normalizes with the statistics of the batch',
        ),
        (
            {"module": flat(more=nn.BatchNorm1d(3, track_running_stats=False))},
            'layer "2" normalizes with the statistics of the batch',
        ),
        (
            {"module": flat(more=convert_batchnorm(nn.BatchNorm1d(3, track_running_stats=False)))},
            'layer "2" normalizes with the statistics of the batch',
        ),
        (
            {"module": nn.Sequential(Unstored(), flat())},
            'layer "0" normalizes with the statistics of the batch',
        ),
    ],
)
def test_what_can_be_known_before_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"module": flat(), "size": (6, 6)} | options
    with pytest.raises(InputError, match=message):
        export_module(arguments.pop("module"), tmp_path / "model.onnx", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("more", "large"), [(-4, False), (0, False), (4, True)])
def test_weights_that_no_file_can_hold(more: int, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tied(nn.Module):
        """Two names for one weight, and a layer that the logits don't need."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.again, self.unused = nn.Linear(108, 108), nn.Linear(108, 108, bias=False), nn.Linear(99, 99)
            self.again.weight = self.fc.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.fc(x.flatten(1)))

    folded = []
    monkeypatch.setattr(torch_export, "fold_graph", lambda *given: folded.append(given) or fold_graph(*given))
    size = 4 * (108 * 108 + 108) + 4 * 3 + 8 * 3  # and the images' scale, and the order of their channels
    monkeypatch.setattr(prepared, "LARGEST", size - more)
    module, files = Tied(), tmp_path / "files"
    files.mkdir()
    if large:
        with pytest.raises(InputError, match=r"of them for (fc|again)\.weight, and one ONNX file holds at most 2 GiB"):
            export_module(module, TritonModel(tmp_path, "tied"), size=(6, 6))
        assert not folded and list(tmp_path.iterdir()) == [files]
    report = export_module(module, files / "model.onnx", size=(6, 6))
    assert list(report.files) == ["model.onnx", "model.onnx.data"][: 1 + large]
    assert report.files == {path.name: path.stat().st_size for path in files.iterdir()}
    image = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 3), dtype=np.uint8)
    logits = run(report.output, image)
    with torch.no_grad():
        expected = module(torch.from_numpy(image).flip(3).permute(0, 3, 1, 2) / 255).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_sizes_may_be_numpys(tmp_path: Path) -> None:
    report = export_module(flat(), tmp_path / "model.onnx", size=tuple(np.array([6, 6])))
    assert report.metadata["size"] == [6, 6]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        export_module(flat(), tmp_path / "missing" / "model.onnx", size=(6, 6))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda y: y if y.sum() > 0 else -y, "torch.export can't export the module"),
        (lambda y: y + torch.zeros(2, 3).sum(0, keepdim=True) if len(y) == 2 else y * 2, "torch.export can't"),
        (lambda y: torch.dropout(y, 0.5, True), "Dropout is left in the exported graph"),
        (lambda y: y / 0, "not finite"),
        (
            lambda y: F.batch_norm(y, *y.detach()[:1].expand(2, -1).square()),
            "BatchNormalization is left in the exported graph",
        ),
    ],
)
def test_what_fails_writes_nothing(answer: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=message):
        export_module(with_answer(answer), tmp_path / "model.onnx", size=(6, 6))
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_export.fold_graph

    def wrong(*arguments: Any) -> Any:
        module, merged, kept = right(*arguments)
        name, _ = next((name, value) for name, value in module.named_buffers() if name.endswith("_weight"))
        module.get_buffer(name).mul_(1.001)
        return module, merged, kept

    monkeypatch.setattr(torch_export, "fold_graph", wrong)
    with pytest.raises(WorkError, match=r"nothing was written: ONNX Runtime's logits differ from the unfolded net's"):
        export_module(used(flat(more=nn.BatchNorm1d(3))), tmp_path / "model.onnx", size=(6, 6))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("domain", "row"), [("source", 0), ("target", 1)])
def test_the_domain_that_is_asked_for(domain: Any, row: int, tmp_path: Path) -> None:
    module = used(flat(more=DomainAlignment(3, test_stats="target" if domain == "source" else "source")))
    report = export_module(module, tmp_path / "model.onnx", size=(6, 6), domain=domain)
    assert report.metadata["statistics"] == domain
    images = bytes_of(4, 6)
    x = torch.from_numpy(images[..., ::-1].transpose(0, 3, 1, 2).copy()).double() / 255
    _, fc, align = module.double()
    with torch.no_grad():
        statistics = align.mean[row] / align.normalizer, align.variance[row] / align.normalizer
        expected = F.batch_norm(fc(x.flatten(1)), *statistics, eps=1e-5).numpy()
    np.testing.assert_allclose(run(report.output, images), expected, rtol=0, atol=1e-5 * np.ptp(expected))
    assert align.test_stats != domain  # the module stays as it is


@pytest.mark.parametrize(
    ("domain", "message"),
    [("source", "Sequential has no DomainAlignment layer, so no source"), ("TARGET", '"source" or "target", not')],
)
def test_a_domain_that_there_is_not(domain: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        export_module(flat(more=nn.BatchNorm1d(3)), tmp_path / "model.onnx", size=(6, 6), domain=domain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "owl"}, "`classes` is a list of names, not one name, 'owl'"),
        ({"classes": ["a", "b\0", "c"]}, r"classes: the name of class 1, 'b\\x00', has a control character"),
        ({"mean": 0.5}, "`mean` is a list of 3 values, one per channel, not 0.5"),
        ({"std": "abc"}, "`std` is a list of 3 values, one per channel, not 'abc'"),
        ({"size": 6.0}, "`size` is the images' height and width in pixels, not 6.0"),
        ({"size": (6.5, 6)}, "`size` is the images' height and width in pixels"),
        ({"target_images": b"a.jpg"}, "`target_images` is a list of image files' names"),
        ({"target_images": np.zeros((6, 6, 3), np.uint8)}, "`target_images` is a list of image files' names"),
        ({"target_images": PurePath("a.jpg")}, "`target_images` is a list of image files, not one path"),
    ],
)
def test_one_value_where_a_list_is_wanted(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        export_module(nn.Conv2d(3, 3, 6), tmp_path / "model.onnx", **{"size": (6, 6)} | options)
    assert not list(tmp_path.iterdir())
