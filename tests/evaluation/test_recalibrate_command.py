"""`autodial recalibrate` as a user runs it: on lists, folders, LMDBs and HDF5 files, against sums over the pixels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import onnxruntime
import pytest
import torch
import typer
from numpy.typing import NDArray
from originals import shared
from typer.testing import CliRunner

from autodial import proto
from autodial.commands.export import export
from autodial.errors import InputError
from autodial.evaluation.domains import data_in_test, data_in_train, without_augmentation
from autodial.net.net import Net
from autodial.proto import messages as pb

ALPHA = 0.8

# as the released nets have it: random crops and flips in TRAIN, a Crop layer in TEST
NET = """
name: "patches"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  transform_param { crop_size: 6 mirror: true mean_value: 100 mean_value: 110 mean_value: 120 }
  image_data_param { source: "source.txt" batch_size: 4 shuffle: true rand_skip: 3 } }
layer { name: "target" type: "ImageData" top: "target" top: "target-label" include { phase: TRAIN }
  transform_param { crop_size: 6 mirror: true mean_value: 100 mean_value: 110 mean_value: 120 }
  image_data_param { source: "target.txt" batch_size: 3 shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "target-label" include { phase: TRAIN } }
layer { name: "join" type: "Concat" bottom: "source" bottom: "target" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "whole" top: "label" include { phase: TEST }
  transform_param { mean_value: 100 mean_value: 110 mean_value: 120 }
  image_data_param { source: "test.txt" batch_size: 4 shuffle: true } }
layer { name: "reference" type: "DummyData" top: "reference" include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: 6 dim: 6 } } }
layer { name: "crop" type: "Crop" bottom: "whole" bottom: "reference" top: "data" include { phase: TEST }
  crop_param { offset: 1 } }
layer { name: "dial" type: "Dial" bottom: "data" top: "dial"
  dial_param { slice_point: 4 weight_filler { type: "constant" value: 0.8 } } }
layer { name: "fc" type: "InnerProduct" bottom: "dial" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "fc/dial" type: "Dial" bottom: "fc" top: "fc"
  dial_param { slice_point: 4 weight_filler { type: "constant" value: 0.8 } } }
layer { name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "entropy" type: "EntropyLoss" bottom: "fc-target" top: "entropy" include { phase: TRAIN } }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""

Pictures = NDArray[np.uint8]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Pictures]:
    """Nine source and six target images, in lists in the working directory, with net.prototxt and w.caffemodel."""
    rng = np.random.default_rng(0)
    made = {
        "source": rng.integers(0, 200, (9, 8, 8, 3), dtype=np.uint8),
        "target": rng.integers(90, 250, (6, 8, 8, 3), dtype=np.uint8),
    }
    for domain, images in made.items():
        write_folder(tmp_path / domain, images)
        lines = [f"{domain}/image {i}.png {i % 3}\n" for i in range(len(images))]
        (tmp_path / f"{domain}.txt").write_text("".join(lines))
        (tmp_path / "test.txt").write_text("".join(lines))
    (tmp_path / "net.prototxt").write_text(NET)
    monkeypatch.chdir(tmp_path)
    train("net.prototxt")
    return made


def write_folder(folder: Path, images: Sequence[Pictures]) -> None:
    folder.mkdir(parents=True)
    for i, image in enumerate(images):
        assert cv2.imwrite(str(folder / f"image {i}.png"), image)


def train(net: str, alpha: float = ALPHA) -> None:
    """Write w.caffemodel, with the statistics of a training pass."""
    built = Net(proto.read_net(net), pb.TRAIN)
    for name in built.alphas():
        built.layer(name).blobs[0].data.fill_(alpha)
    generator = np.random.default_rng(1)
    fed = {
        name: torch.from_numpy(generator.normal(20, 30, built.blob_shapes[name]).astype(np.float32))
        if "label" not in name
        else torch.zeros(built.blob_shapes[name])
        for name in built.inputs
    }
    for _ in range(2):
        built(fed)
    proto.write_weights(built.weights(), "w.caffemodel")


@pytest.fixture
def autodial(pictures: dict[str, Pictures], autodial: Run) -> Run:
    """`autodial(arguments...)` runs recalibrate to out.caffemodel: exit status, standard output, standard error."""

    def run(*arguments: str, output: str = "out.caffemodel") -> tuple[int, str, str]:
        options = ["--net", "net.prototxt", "--weights", "w.caffemodel", "--device", "cpu", "--workers", "0"]
        return autodial("recalibrate", *options, "-o", output, *arguments)

    return run


def blobs(path: str, layer: str) -> list[NDArray[np.float32]]:
    found = next(saved for saved in proto.read_weights(path).layers if saved.name == layer)
    return [np.asarray(blob) for blob in found.blobs]


def prepared(images: Pictures) -> NDArray[np.float64]:
    """(values, 3): the pixels that the TEST phase's crop leaves, minus the mean."""
    return (images[:, 1:7, 1:7].astype(np.float64) - [100, 110, 120]).reshape(-1, 3)


def mixed(source: NDArray[np.float64], target: NDArray[np.float64], alpha: float) -> list[NDArray[np.float64]]:
    """Means and variances of both predictors, (2, C) each, from weighted sums over all values."""
    means, variances = [], []
    for a in (alpha, 1 - alpha):
        mean = a * source.mean(0) + (1 - a) * target.mean(0)
        means.append(mean)
        variances.append(a * ((source - mean) ** 2).mean(0) + (1 - a) * ((target - mean) ** 2).mean(0))
    return [np.stack(means), np.stack(variances)]


def assert_statistics(path: str, layer: str, expected: Sequence[NDArray[np.float64]]) -> None:
    _, mean, variance, normalizer = blobs(path, layer)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-5)
    assert normalizer.tolist() == [1]


@pytest.mark.parametrize("batch_size", [(), ("--batch-size", "1"), ("--batch-size", "5", "--workers", "2")])
def test_every_image_of_both_lists_once_and_without_augmentation(
    autodial: Run, pictures: dict[str, Pictures], batch_size: tuple[str, ...]
) -> None:
    status, out, _ = autodial(*batch_size)
    assert status == 0
    source, target = prepared(pictures["source"]), prepared(pictures["target"])
    means, variances = mixed(source, target, ALPHA)
    assert_statistics("out.caffemodel", "dial", (means, variances))

    # each domain reaches the second layer through its own predictor of the first
    weight, bias = (blob.astype(np.float64) for blob in blobs("w.caffemodel", "fc"))
    scores = []
    for row, values in enumerate((source, target)):
        normalized = (values - means[row]) / np.sqrt(variances[row] + 1e-5)
        maps = normalized.reshape(-1, 6, 6, 3).transpose(0, 3, 1, 2)
        scores.append(maps.reshape(len(maps), -1) @ weight.T + bias)
    assert_statistics("out.caffemodel", "fc/dial", mixed(*scores, ALPHA))

    assert out.startswith("2 Dial layers over 9 source images (source.txt) and 6 target images (target.txt): 3 passes")
    row = next(line.split() for line in out.splitlines() if line.startswith("dial "))
    assert row[:4] == ["dial", "0.8000", "324", "216"]


def test_nothing_but_the_statistics_differs(autodial: Run) -> None:
    assert autodial()[0] == 0
    before, after = (proto.read_weights(path).layers for path in ("w.caffemodel", "out.caffemodel"))
    assert [layer.param for layer in after] == [layer.param for layer in before]  # layers of TRAIN alone, too
    for old, new in zip(before, after, strict=True):
        for i, (ours, theirs) in enumerate(zip(old.blobs, new.blobs, strict=True)):
            assert np.array_equal(ours, theirs) == (old.type != "Dial" or i == 0)


def test_json(autodial: Run) -> None:
    status, out, _ = autodial("--json")
    assert status == 0
    record = json.loads(out)
    assert (record["source"], record["source_samples"], record["target_samples"]) == ("source.txt", 9, 6)
    assert [layer["name"] for layer in record["layers"]] == ["dial", "fc/dial"]
    assert record["layers"][0]["moved_target"].keys() == {"mean", "worst", "channel"}
    assert 0 <= record["changed"] <= 1


def in_lmdb(net: str, pictures: dict[str, Pictures]) -> str:
    """The net on databases of the same pixels."""
    for domain, images in pictures.items():
        with lmdb.open(domain + "_db", map_size=2**22, lock=False) as environment, environment.begin(write=True) as txn:
            for i, image in enumerate(images):
                datum = pb.Datum(channels=3, height=8, width=8, label=0, data=image.transpose(2, 0, 1).tobytes())
                txn.put(b"%04d" % i, datum.SerializeToString())
    for domain in ("source", "target", "test"):
        options = (
            f'data_param {{ source: "{"target" if domain == "test" else domain}_db" backend: LMDB batch_size: 4 }} }}'
        )
        net = replaced(net, domain, "Data", options)
    return net


def in_hdf5(net: str, pictures: dict[str, Pictures]) -> str:
    """The net on HDF5 files of the same pixels, minus the mean."""
    for name, images in {**pictures, "test": pictures["target"]}.items():
        maps = (images - np.array([100, 110, 120], np.float32)).transpose(0, 3, 1, 2)
        tops = {"source": ("source", "label"), "target": ("target", "target-label"), "test": ("whole", "label")}[name]
        with h5py.File(f"{name}.h5", "w") as file:
            file[tops[0]] = maps
            file[tops[1]] = np.zeros(len(maps), np.float32)
        Path(f"{name}_files.txt").write_text(f"{name}.h5\n")
        net = replaced(net, name, "HDF5Data", f'hdf5_data_param {{ source: "{name}_files.txt" batch_size: 4 }} }}')
        start = net.index(f'layer {{ name: "{name}"')
        begin, end = net.index("  transform_param", start), net.index("  hdf5_data_param", start)
        net = net[:begin] + net[end:]
    return net


def replaced(net: str, name: str, kind: str, options: str) -> str:
    """The net with another type and options for one of its data layers."""
    start = net.index(f'layer {{ name: "{name}"')
    begin = net.index("image_data_param", start)
    end = net.index("} }\n", begin) + len("} }")
    head = net[start:begin].replace("ImageData", kind)
    return net[:start] + head + options + net[end:]


@pytest.mark.parametrize("convert", [in_lmdb, in_hdf5])
def test_databases_and_hdf5_files(
    autodial: Run, pictures: dict[str, Pictures], convert: Callable[[str, dict[str, Pictures]], str]
) -> None:
    assert autodial()[0] == 0
    Path("net.prototxt").write_text(convert(NET, pictures))
    assert autodial(output="other.caffemodel")[0] == 0
    for name in ("dial", "fc/dial"):
        for ours, theirs in zip(blobs("other.caffemodel", name), blobs("out.caffemodel", name), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_another_database_for_the_target(autodial: Run, pictures: dict[str, Pictures]) -> None:
    Path("net.prototxt").write_text(in_lmdb(NET, pictures))
    assert autodial("--target", "source_db")[0] == 0
    values = prepared(pictures["source"])
    assert_statistics("out.caffemodel", "dial", mixed(values, values, ALPHA))


def new_target() -> NDArray[np.float64]:
    """A folder "new" of six images of other sizes, and what the net makes of them."""
    rng = np.random.default_rng(5)
    images = [rng.integers(0, 255, (9 + i, 7 + 3 * i, 3), dtype=np.uint8) for i in range(6)]
    write_folder(Path("new/a"), images[:2])
    write_folder(Path("new/b/c"), images[2:])
    return prepared(np.stack([cv2.resize(image, (8, 8), interpolation=cv2.INTER_LINEAR) for image in images]))


def test_a_new_target_with_alpha_below_1_takes_the_source_along(autodial: Run, pictures: dict[str, Pictures]) -> None:
    target = new_target()
    assert autodial("--target", "new")[0] == 0
    assert_statistics("out.caffemodel", "dial", mixed(prepared(pictures["source"]), target, ALPHA))


@pytest.mark.parametrize("given", ["new", "new.txt", "labelled.txt"])
def test_a_new_target_alone(autodial: Run, given: str) -> None:
    target = new_target()
    paths = [*sorted(Path("new/a").iterdir()), *sorted(Path("new/b/c").iterdir())]
    Path("new.txt").write_text("".join(f"{path}\n" for path in paths))
    Path("labelled.txt").write_text("".join(f"{path} 7\n" for path in paths))
    train("net.prototxt", alpha=1)
    Path("source.txt").unlink()
    status, out, _ = autodial("--target", given)
    assert status == 0
    assert "source's images were not needed" in out
    _, mean, variance, total = blobs("w.caffemodel", "dial")
    expected = np.stack([mean[0] / total, target.mean(0)]), np.stack([variance[0] / total, target.var(0)])
    assert_statistics("out.caffemodel", "dial", expected)


def test_source_and_target_for_a_net_that_names_none(autodial: Run, pictures: dict[str, Pictures]) -> None:
    start, end = NET.index('layer { name: "source"'), NET.index('layer { name: "test"')
    only_test = NET[:start] + NET[end : NET.index('layer { name: "slice"')]
    Path("net.prototxt").write_text(only_test)
    status, _, err = autodial("--target", "target")
    assert status == 2
    assert "name the source's images with --source" in err
    assert autodial("--source", "source.txt", "--target", "target")[0] == 0
    assert_statistics("out.caffemodel", "dial", mixed(*map(prepared, pictures.values()), ALPHA))


def test_statistics_that_were_never_stored(autodial: Run, caplog: pytest.LogCaptureFixture) -> None:
    proto.write_weights(Net(proto.read_net("net.prototxt"), pb.TEST).weights(), "w.caffemodel")
    status, out, _ = autodial()
    assert status == 0
    assert "dial, fc/dial had no statistics stored" in caplog.text
    assert "most probable class changed" not in out


def test_export_recalibrates_first(autodial: Run, pictures: dict[str, Pictures]) -> None:
    """To the file of an export after `recalibrate`, while the weights' file stays; the table shows what moved."""
    before = Path("w.caffemodel").read_bytes()
    _, shown, _ = autodial()
    app = typer.Typer()
    app.command()(export)
    words = ["--net", "net.prototxt", "--weights"]
    for weights, more in (("out.caffemodel", ["-o", "a.onnx"]), ("w.caffemodel", ["--recalibrate", "-o", "b.onnx"])):
        result = CliRunner().invoke(app, [*words, weights, *more], catch_exceptions=False)
        assert result.exit_code == 0
    table = [line for line in shown.splitlines() if line.startswith(("layer ", "dial ", "fc/dial "))]
    assert len(table) == 3 and all(line in result.stdout.splitlines() for line in table)
    assert Path("w.caffemodel").read_bytes() == before
    sessions = [onnxruntime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"]) for name in "ab"]
    assert len({session.get_modelmeta().custom_metadata_map["autodial"] for session in sessions}) == 1
    logits = [session.run(["logits"], {"image": pictures["target"]})[0] for session in sessions]
    np.testing.assert_array_equal(*logits)
    result = CliRunner().invoke(app, [*words, "w.caffemodel", "--recalibrate", "--json"], catch_exceptions=False)
    (moved,) = json.loads(result.stdout)["recalibration"]
    assert [layer["name"] for layer in moved["layers"]] == ["dial", "fc/dial"] and moved["target_samples"] == 6


def test_export_says_how_to_name_other_images(autodial: Run, pictures: dict[str, Pictures]) -> None:
    start, end = NET.index('layer { name: "source"'), NET.index('layer { name: "test"')
    Path("net.prototxt").write_text(NET[:start] + NET[end : NET.index('layer { name: "slice"')])
    app = typer.Typer()
    app.command()(export)
    words = ["--net", "net.prototxt", "--weights", "w.caffemodel", "--recalibrate"]
    with pytest.raises(InputError, match="name the target's images with `autodial recalibrate --target`"):
        CliRunner().invoke(app, words, catch_exceptions=False)


RESIZED = ("--set", "target.image_data_param.new_height=10")


def damage(*_: object) -> None:
    Path("source/image 4.png").write_bytes(Path("source/image 4.png").read_bytes()[:60])


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        (damage, (), "source.txt:5: source/image 4.png is not an image that OpenCV can read"),
        (damage, ("--source", "source"), "error: /"),  # the image's absolute path, and no list
        (damage, ("--source", "source"), "; repair such images, or take them out of source\n"),
        (lambda: Path("target/a.png").write_text("text"), ("--target", "target"), "; repair such images, or take them"),
        (lambda: Path("u.txt").write_text("a.png\n"), ("--target", "u.txt"), "images, or take them out of u.txt"),
        (lambda: Path("source/image 4.png").unlink(), (), 'source.txt:5: "source/image 4.png" does not exist'),
        (lambda: Path("source.txt").unlink(), (), '"source.txt" does not exist'),
        (lambda: Path("target.txt").unlink(), (), "; --target names other images"),
        (lambda: Path("empty").mkdir(), ("--target", "empty"), "empty: no image in this folder"),
        (lambda: None, ("--target", "target/image 1.png"), "target/image 1.png: a single image has no statistics"),
        (lambda: None, ("--source", "source/image 1.png"), "source/image 1.png: a single image has no statistics"),
        (lambda: None, ("--target", "nowhere"), "nowhere: no such file or folder"),
        (lambda: Path("u.txt").write_text("a.png\n"), ("--target", "u.txt"), 'u.txt: "a.png" does not exist'),
        (lambda: None, ("--weights", "w2.caffemodel"), "w2.caffemodel does not exist"),
        (lambda: None, ("-o", "w.caffemodel"), "w.caffemodel: the same command reads this file"),
        (lambda: None, ("-o", "source.txt"), "source.txt: the same command reads this file"),
        (lambda: None, (*RESIZED, "--set", "target.image_data_param.new_width=9"),
         "source's images as 3 x 8 x 8 (channels x height x width) and the target's as 3 x 10 x 9"),
        (lambda: None, ("--set", "*dial.type=Split"), "net.prototxt: the net has no Dial layer"),
        (lambda: None, ("--set", "fc.name=fc9"), "w.caffemodel has nothing for fc9"),
        (lambda: None, ("--device", "cuda:9"), "device cuda:9"),
    ],
)  # fmt: skip
def test_bad_input(autodial: Run, prepare: Callable[[], object], arguments: tuple[str, ...], message: str) -> None:
    prepare()
    before = sorted(Path().iterdir())
    status, out, err = autodial(*arguments)
    assert status == (1 if "cuda" in message else 2)
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("autodial: error: ")]) == 1
    assert "/autodial-" not in err  # the list that a folder becomes
    assert not out
    assert sorted(Path().iterdir()) == before


def test_an_interrupted_run_writes_nothing(autodial: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Net, "run_layer", interrupt)
    status, _, err = autodial()
    assert status == 130
    assert err.endswith("Interrupted: nothing was written\n")
    assert not Path("out.caffemodel").exists()


@pytest.mark.parametrize(
    ("file", "tops"),
    [
        ("alexnet_train_val", ("data-source", "data-target", "data-test")),
        ("inception_train_val", ("data/source", "data/target", "data/test")),
    ],
)
def test_the_released_nets_data_layers(file: str, tops: tuple[str, ...]) -> None:
    net = proto.read_net(shared(f"reference/autodial/{file}.prototxt"))
    test, trained = data_in_test(net), data_in_train(net)
    assert trained is not None
    assert tuple(data.blob for data in (*trained.sources, trained.target, test)) == tops
    layer = without_augmentation(trained.sources[0], test).layer
    assert layer.image_data_param.source == "train_source.txt"
    assert not layer.image_data_param.shuffle and not layer.transform_param.mirror
    assert layer.transform_param.crop_size == 0  # the TEST phase's Crop layer sees to that
    assert list(layer.transform_param.mean_value) == [104, 117, 123]
    assert layer.image_data_param.batch_size == test.layer.image_data_param.batch_size
