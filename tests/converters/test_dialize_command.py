"""`autodial dialize` from files to files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from autodial.commands.dialize import dialize
from autodial.errors import AutodialError, InputError
from autodial.proto import LayerWeights, Weights, parse_net, read_net, read_weights, write_weights
from autodial.proto import messages as pb

NET = """
name: "net"
input: "data" input_dim: 1 input_dim: 1 input_dim: 4 input_dim: 4
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
BLOBS = {"conv": [(2, 1, 3, 3), (2,)], "bn": [(2,), (2,), (1,)], "fc": [(3, 8), (3,)], "old": [(1,)]}

app = typer.Typer()
app.command()(dialize)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.prototxt and net.caffemodel; the working directory is another one."""
    (tmp_path / "net").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "net" / "net.prototxt").write_text(NET)
    messages = {layer.name: layer for layer in parse_net(NET).layer}
    rng = np.random.default_rng(0)
    layers = [
        LayerWeights(
            messages.get(name, pb.LayerParameter(name=name)),
            [np.abs(rng.standard_normal(shape)).astype(np.float32) for shape in shapes],
        )
        for name, shapes in BLOBS.items()
    ]
    write_weights(Weights("net", layers), tmp_path / "net" / "net.caffemodel")
    return tmp_path


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, AutodialError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_writes_a_net_and_its_weights(project: Path) -> None:
    net, weights = project / "net" / "net.prototxt", project / "net" / "net.caffemodel"
    output = run(net, weights)
    for part in (
        "Wrote net_autodial.prototxt and net_autodial.caffemodel",
        "BatchNorm layers that became Dial layers: 1",
        "layers that the net lacks: 1 (old)",
        'Largest difference between these logits ("fc", in TEST) and the original',
        "Note: the net does not say what is subtracted",
    ):
        assert part in output
    made = project / "work" / "net_autodial.prototxt"
    text = made.read_text()
    assert text.startswith("# Made from net.prototxt and net.caffemodel by autodial dialize.\n# Every batch holds 32 ")
    assert {layer.name for layer in read_net(made).layer if layer.type == "Dial"} == {"bn-dial"}
    assert [layer.name for layer in read_weights(made.with_suffix(".caffemodel")).layers] == ["conv", "bn-dial", "fc"]


def test_options_reach_the_net(project: Path) -> None:
    output = run(
        project / "net" / "net.prototxt", "-o", "out.prototxt", "--classes", "7", "--after", "conv,fc", "--batch-size",
        "9", "--slice-point", "4", "--resize", "8x6", "--transform", "crop_size: 4 mirror: true mean_value: 100",
    )  # fmt: skip
    assert "New classifier fc-new replaces fc" in output and "New Dial and Scale layers behind fc\n" in output
    layers = {layer.name: layer for layer in read_net("out.prototxt").layer}
    source, target = layers["data-source"], layers["data-target"]
    assert (source.image_data_param.batch_size, target.image_data_param.batch_size) == (4, 5)
    assert (source.image_data_param.new_height, source.image_data_param.new_width) == (8, 6)
    assert (source.transform_param.crop_size, list(source.transform_param.mean_value)) == (4, [100])
    assert layers["fc-new"].inner_product_param.num_output == 7
    assert list(layers["fc-slice"].slice_param.slice_point) == [4]
    assert not Path("out.caffemodel").exists()


def test_a_mean_image_beside_the_original_is_found_from_the_result(project: Path) -> None:
    mean = pb.BlobProto(num=1, channels=1, height=4, width=4, data=[3.0] * 16)
    (project / "net" / "mean.binaryproto").write_bytes(mean.SerializeToString())
    (project / "elsewhere").mkdir()
    output = project / "elsewhere" / "out.prototxt"
    run(project / "net" / "net.prototxt", "-o", output, "--transform", 'mean_file: "mean.binaryproto"')
    assert {layer.transform_param.mean_file for layer in read_net(output).layer} == {"", "../net/mean.binaryproto"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "../net/net.prototxt"], "the same command reads this file"),
        (["-o", "missing/out.prototxt"], "there is no folder"),
        (["-o", "out"], r"ends in \.prototxt"),
        (["--resize", "8,6"], "--resize 8,6: write a number of pixels"),
        (["--transform", "crop: 3"], "--transform:1:1: .* no field"),
        (["--batch-size", "8", "--slice-point", "8"], "leaves no target images"),
        (["--slice-point", "8"], "state --batch-size, too"),
        (["--after", "ip,nothing"], r'net\.prototxt: --after nothing: no layer "nothing"'),
        (["gone.caffemodel"], "gone.caffemodel does not exist"),
    ],
)
def test_what_is_refused_writes_nothing(project: Path, words: list[str], message: str) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        run(project / "net" / "net.prototxt", *words)
    assert before == {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}


def test_the_weights_are_not_written_over(project: Path) -> None:
    (project / "net" / "other.prototxt").write_text(NET)
    with pytest.raises(InputError, match=r"net\.caffemodel: the same command reads this file"):
        run(project / "net" / "other.prototxt", "../net/net.caffemodel", "-o", "../net/net.prototxt")


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_a_kill_leaves_no_net_beside_weights_of_another(project: Path, killed: Callable[..., bool]) -> None:
    words = ("dialize", project / "net" / "net.prototxt", project / "net" / "net.caffemodel", "-o", "out.prototxt")
    run(*words[1:], "--after", "fc")
    moves = 0
    while killed(moves, *words):
        if Path("out.prototxt").exists():
            names = {layer.name for layer in read_net("out.prototxt").layer}
            assert {layer.name for layer in read_weights("out.caffemodel").layers} <= names
        moves += 1
    assert moves == 4
    assert sorted(path.name for path in Path().iterdir()) == ["out.caffemodel", "out.prototxt"]
