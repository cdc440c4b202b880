"""`autodial time` and what it measures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
import torch
import typer
from torch import Tensor
from typer.testing import CliRunner, Result

from autodial.commands import time as time_command
from autodial.errors import InputError
from autodial.evaluation.timing import replace_missing_data, time_layers
from autodial.net.net import Net
from autodial.netparam.net_state import filter_net
from autodial.proto import messages as pb
from autodial.proto import parse_net

NET = """
name: "two branches"
layer { name: "data" type: "ImageData" top: "data" top: "label" transform_param { crop_size: 6 }
  image_data_param { source: "list.txt" batch_size: 4 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 0 } param { lr_mult: 0 }
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "fixed" type: "InnerProduct" bottom: "conv2" top: "fixed" param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "side" type: "InnerProduct" bottom: "conv2" top: "side"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "fixed" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fixed" bottom: "label" top: "loss" }
"""
CPU = torch.device("cpu")


def write_images(folder: Path) -> None:
    for i in range(3):
        assert cv2.imwrite(str(folder / f"{i}.png"), np.full((8, 8, 3), 50 * i, dtype=np.uint8))
    (folder / "list.txt").write_text("".join(f"{i}.png {i}\n" for i in range(3)))


def build(text: str = NET, phase: int = 0, folder: Path | None = None) -> Net:
    param, _ = replace_missing_data(filter_net(parse_net(text), phase), folder)
    return Net(param, phase, base_dir=folder)


class Slow(torch.autograd.Function):
    """Passes values through and takes 100 ms for it, and 200 ms for their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(0.1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(0.2)
        return gradient


def test_each_layer_gets_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build()
    relu = net.layer("relu2")
    forward = relu.forward
    monkeypatch.setattr(relu, "forward", lambda x: Slow.apply(forward(x)))
    times = {row.name: row for row in time_layers(net, CPU, range(2))}
    slow = times.pop("relu2")
    assert 100 <= slow.forward_ms < 200 <= (slow.backward_ms or 0.0) < 300
    assert all(row.forward_ms + (row.backward_ms or 0.0) < 100 for row in times.values())


def test_layers_are_in_the_nets_order_with_its_splits() -> None:
    net = build()
    times = time_layers(net, CPU, range(1))
    assert [row.name for row in times] == net.layer_names
    assert [row.type for row in times] == [net.layer(name).type_name for name in net.layer_names]
    assert {"label_data_1_split", "conv2_relu2_0_split", "fixed_fixed_0_split"} < {row.name for row in times}


def test_the_backward_pass_goes_where_the_nets_goes() -> None:
    times = {row.name: row for row in time_layers(build(), CPU, range(1))}
    run = {name for name, row in times.items() if row.backward_ms is not None}
    # not conv1 and relu1, before which nothing learns; not side, which no loss depends on
    assert run == {"conv2", "relu2", "conv2_relu2_0_split", "fixed", "fixed_fixed_0_split", "loss"}
    assert {name for name, row in times.items() if row.frozen} == {"conv1", "fixed"}


def test_without_a_loss_there_is_no_backward_pass() -> None:
    times = time_layers(build(NET[: NET.index('layer { name: "accuracy"')]), CPU, range(1))
    assert all(row.backward_ms is None for row in times)


def test_what_is_timed_is_the_work_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same gradients reach the same layers."""
    net = build()
    seen: dict[str, list[Tensor]] = {"conv2": [], "relu2": [], "fixed": []}

    def hooked(forward: Callable[[Tensor], Tensor], kept: list[Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            y = forward(x)
            y.register_hook(kept.append)
            return y

        return run

    for name, kept in seen.items():
        layer = net.layer(name)
        monkeypatch.setattr(layer, "forward", hooked(layer.forward, kept))
    torch.manual_seed(0)
    time_layers(net, CPU, range(1))
    torch.manual_seed(0)
    inputs = {name: torch.rand(net.blob_shapes[name]) for name in net.inputs}
    net.loss(net(inputs)).backward()
    for warm_up, timed, trained in seen.values():
        torch.testing.assert_close(timed, trained)
        torch.testing.assert_close(warm_up, trained)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_devices_work_is_measured() -> None:
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8192 dim: 8192 } } }'
    text += 'layer { name: "big" type: "InnerProduct" bottom: "x" top: "big" inner_product_param { num_output: 8192 } }'
    text += 'layer { name: "small" type: "InnerProduct" bottom: "big" top: "y" inner_product_param { num_output: 1 } }'
    net = build(text).to("cuda")
    times = {row.name: row for row in time_layers(net, torch.device("cuda", 0), range(5))}
    # 1.1 Tflop, which no device does in 1 ms in float32; to start it takes microseconds
    assert times["big"].forward_ms > 1 > times["small"].forward_ms


# --- what stands in for missing files


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (
            'type: "ImageData" image_data_param { batch_size: 7 new_height: 9 new_width: 8 source: "no" }',
            [(7, 3, 9, 8), (7,)],
        ),
        (
            'type: "ImageData" image_data_param { batch_size: 7 new_height: 9 new_width: 9 is_color: false '
            'source: "no" } transform_param { crop_size: 5 }',
            [(7, 1, 5, 5), (7,)],
        ),
        (
            'type: "Data" data_param { batch_size: 2 source: "no" } transform_param { crop_size: 5 }',
            [(2, 3, 5, 5), (2,)],
        ),
        (
            'type: "Data" data_param { batch_size: 2 source: "no" }'
            "transform_param { crop_size: 5 force_gray: true mean_file: 'none' }",
            [(2, 1, 5, 5), (2,)],
        ),
    ],
)
def test_missing_files_are_replaced_by_the_size_that_is_stated(
    tmp_path: Path, layer: str, shapes: list[tuple[int, ...]]
) -> None:
    param = parse_net(f'layer {{ name: "d" top: "x" top: "y" {layer} }}')
    replaced, sizes = replace_missing_data(filter_net(param, pb.TRAIN), tmp_path)
    assert sizes == {"d": shapes}
    net = Net(replaced, pb.TRAIN)
    assert [net.blob_shapes[top] for top in ("x", "y")] == shapes


def test_files_that_are_there_are_read(tmp_path: Path) -> None:
    write_images(tmp_path)
    param = filter_net(parse_net(NET), pb.TRAIN)
    assert replace_missing_data(param, tmp_path) == (param, {})
    net = build(folder=tmp_path)
    read = []
    source: Any = net.layer("data").source
    batch = source.batch
    source.batch = lambda index: read.append(index) or batch(index)  # type: ignore[func-returns-value]
    time_layers(net, CPU, range(3))
    assert read == [0, 0, 1, 2]


@pytest.mark.parametrize(
    "layer",
    [
        'type: "ImageData" image_data_param { batch_size: 7 source: "no" }',
        'type: "Data" data_param { batch_size: 7 source: "no" }',
        'type: "HDF5Data" hdf5_data_param { batch_size: 7 source: "no" } transform_param { crop_size: 5 }',
    ],
)
def test_missing_files_of_unknown_size_are_an_error(layer: str) -> None:
    param = filter_net(parse_net(f'layer {{ name: "d" top: "x" top: "y" {layer} }}'), pb.TRAIN)
    said = r'layer "d" \(\w+\): "no" does not exist .*nothing states the size of its data'
    with pytest.raises(InputError, match=said):
        replace_missing_data(param, None)


# --- the command


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """`run(arguments...)` runs the command on NET in a folder without its list."""
    (tmp_path / "net.prototxt").write_text(NET)
    app = typer.Typer()
    app.command()(time_command.time)

    def invoke(*arguments: str) -> Result:
        words = ["--net", str(tmp_path / "net.prototxt"), "--device", "cpu", "--iterations", "2", *arguments]
        return CliRunner().invoke(app, words)

    return invoke


def test_the_table_has_a_line_per_layer_and_the_sums(run: Any) -> None:
    result = run()
    assert result.exit_code == 0
    assert result.stderr == 'layer "data": its data is missing; random numbers are used instead: 4 x 3 x 6 x 6, 4\n'
    title, header, *rows, sums = (line.split() for line in result.stdout.splitlines())
    assert title[-6:] == ["on", "cpu:", "mean", "of", "2", "iterations"]
    assert header == ["layer", "type", "forward", "ms", "backward", "ms"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["data"][::2] == ["Input", "-"]
    assert cells["conv1"][::2] == ["Convolution", "frozen"]
    assert cells["side"][-1] == "-"
    assert float(cells["fixed"][-1]) > 0
    forward = sum(float(row[2]) for row in rows)
    backward = sum(float(row[3]) for row in rows if row[3] not in ("-", "frozen"))
    assert [float(sums[i]) for i in (1, 3, 4)] == pytest.approx([forward + backward, forward, backward], abs=0.02)


def test_json_is_all_that_is_printed(run: Any, tmp_path: Path) -> None:
    write_images(tmp_path)
    result = run("--json", "--phase", "test", "--set", "data.image_data_param.batch_size=2")
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert (record["name"], record["phase"], record["iterations"]) == ("two branches", "TEST", 2)
    assert (record["device"], record["synthetic"]) == ("cpu", [])
    assert record["inputs"] == {"data": [2, 3, 6, 6], "label": [2]}
    assert record["settings"] == ["data.image_data_param.batch_size=2"]
    assert record["versions"]["torch"] == torch.__version__
    layers = {layer["name"]: layer for layer in record["layers"]}
    assert layers["conv1"]["frozen"] and layers["conv1"]["backward_ms"] is None
    assert record["total_ms"] == pytest.approx(
        sum(layer["forward_ms"] + (layer["backward_ms"] or 0) for layer in layers.values())
    )


def test_level_and_stages_choose_layers_as_caffe_s_flags_do(run: Any, tmp_path: Path) -> None:
    rules = "include { stage: 'fast' not_stage: 'small' } include { min_level: 2 }"
    text = 'state { level: 2 stage: "other" }' + NET.replace('name: "side"', f'name: "side" {rules}')
    (tmp_path / "net.prototxt").write_text(text)

    def has_side(*arguments: str) -> bool:
        result = run(*arguments)
        assert result.exit_code == 0
        return "side" in result.stdout

    assert not has_side() and not has_side("--level", "1") and not has_side("--stage", "small,fast")
    assert has_side("--level", "2") and has_side("--stage", "fast") and has_side("--stage", "x", "--stage", "fast")
    record = json.loads(run("--json", "--stage", "fast").stdout)
    assert (record["level"], record["stages"]) == (0, ["fast", "other"])  # caffe sets the level, and adds stages


def test_weights_are_loaded(run: Any) -> None:
    result = run("--weights", "nowhere.caffemodel")
    assert isinstance(result.exception, InputError) and "nowhere.caffemodel" in str(result.exception)


def test_an_error_names_the_net_and_the_phase(run: Any, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET.replace("transform_param { crop_size: 6 }", ""))
    result = run()
    assert isinstance(result.exception, InputError)
    assert 'net.prototxt, TRAIN phase: layer "data" (ImageData): "list.txt" does not exist' in str(result.exception)


def test_a_database_is_read(run: Any, tmp_path: Path) -> None:
    with (
        lmdb.open(str(tmp_path / "db"), map_size=2**22, lock=False) as environment,
        environment.begin(write=True) as txn,
    ):
        datum = pb.Datum(channels=3, height=6, width=6, data=bytes(108), label=1)
        txn.put(b"0", datum.SerializeToString())
    text = NET.replace("ImageData", "Data").replace("image_data_param", "data_param")
    (tmp_path / "net.prototxt").write_text(text.replace('"list.txt"', '"db" backend: LMDB'))
    result = run("--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["layers"][0]["type"] == "Data"
