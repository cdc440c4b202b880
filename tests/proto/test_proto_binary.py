"""Binary files, held against the recorded ones, protobuf's own classes and bytes written by hand."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import RSS_UNIT
from originals import RECORDS
from refusals import is_refused_in_one_sentence

from autodial.errors import InputError, WorkError
from autodial.proto import (
    LayerWeights,
    State,
    Weights,
    array_from_blob,
    blob_from_array,
    messages,
    read_blob,
    read_net,
    read_state,
    read_weights,
    write_state,
    write_weights,
)

RUN = RECORDS / "solvers" / "sgd_step_snapshot"
SNAPSHOTS = sorted(RECORDS.glob("solvers/*/*.caffemodel"))
STATES = sorted(RECORDS.glob("solvers/*/*.solverstate"))


def store(message: Any, path: Path) -> Path:
    path.write_bytes(message.SerializeToString())
    return path


def one_layer(*blobs: Any) -> Any:
    """A net with one layer of these BlobProtos."""
    return messages.NetParameter(
        name="net", layer=[messages.LayerParameter(name="fc", type="InnerProduct", blobs=blobs)]
    )


def ramp(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


def test_recorded_weights_are_the_recorded_arrays() -> None:
    trace = np.load(RUN / "trace.npz")
    weights = read_weights(RUN / "init.caffemodel")
    read = {f"init/{layer.name}/{i}": blob for layer in weights.layers for i, blob in enumerate(layer.blobs)}
    expected = {name: trace[name] for name in trace.files if name.startswith("init/")}
    assert expected
    assert read.keys() == expected.keys()
    for name, blob in read.items():
        assert blob.dtype == np.float32
        np.testing.assert_array_equal(blob, expected[name])


def test_recorded_layers_have_the_nets_fields() -> None:
    weights = read_weights(RUN / "snap_iter_20.caffemodel")
    assert weights.name == "golden_autodial"
    dial = weights.layers[3]
    assert (dial.name, dial.type, dial.bottom, dial.top) == ("conv1/dial", "Dial", ["conv1"], ["conv1"])
    assert isinstance(dial.param, messages.LayerParameter)
    assert dial.param.dial_param.slice_point == 7
    assert not dial.param.blobs


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_weights_written_again_are_the_same_file(path: Path, tmp_path: Path) -> None:
    write_weights(read_weights(path), tmp_path / path.name)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", STATES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_states_written_again_are_the_same_file(path: Path, tmp_path: Path) -> None:
    write_state(read_state(path), tmp_path / path.name)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_recorded_state() -> None:
    state = read_state(RUN / "snap_iter_20.solverstate")
    assert (state.iter, state.current_step, state.learned_net) == (20, 1, "snap_iter_20.caffemodel")
    assert [array.shape for array in state.history[:4]] == [(4, 2, 3, 3), (4,), (1,), (2, 4)]


def test_recorded_mean_image() -> None:
    path = RECORDS / "images" / "mean.binaryproto"
    message = messages.BlobProto.FromString(path.read_bytes())
    expected = np.array(list(message.data), np.float32).reshape(1, 3, 32, 36)
    np.testing.assert_array_equal(read_blob(path), expected)


def test_other_protobuf_implementation_reads_and_writes_the_same(tmp_path: Path) -> None:
    code = """
import sys
from google.protobuf.internal import api_implementation
from autodial.proto import read_weights, write_weights
assert api_implementation.Type() == "python"
write_weights(read_weights(sys.argv[1]), sys.argv[2])
"""
    original, copy = RUN / "snap_iter_20.caffemodel", tmp_path / "copy.caffemodel"
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    subprocess.run([sys.executable, "-c", code, str(original), str(copy)], check=True, env=environment)
    assert copy.read_bytes() == original.read_bytes()


def test_written_weights_are_what_protobufs_classes_read(tmp_path: Path) -> None:
    param = messages.LayerParameter(name="fc", type="InnerProduct", bottom=["x"], top=["y"], phase=messages.TRAIN)
    blobs = [ramp(3, 4), ramp(3), np.float32(2.5).reshape(())]
    path = tmp_path / "w.caffemodel"
    write_weights(
        Weights("net", [LayerWeights(messages.LayerParameter(name="data"), []), LayerWeights(param, blobs)]), path
    )
    net = messages.NetParameter.FromString(path.read_bytes())
    assert (net.name, [layer.name for layer in net.layer]) == ("net", ["data", "fc"])
    assert [tuple(blob.shape.dim) for blob in net.layer[1].blobs] == [(3, 4), (3,), ()]
    assert list(net.layer[1].blobs[0].data) == blobs[0].ravel().tolist()
    del net.layer[1].blobs[:]
    assert net.layer[1] == param
    assert read_weights(path).layers[1].blobs[2] == np.float32(2.5)
    assert list(tmp_path.iterdir()) == [path]


def test_blobs_are_stored_in_c_order_and_single_precision(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    write_state(State(3, 0, "x.caffemodel", [array]), tmp_path / "s.solverstate")
    message = messages.SolverState.FromString((tmp_path / "s.solverstate").read_bytes())
    assert list(message.history[0].data) == [0, 1, 2, 3, 4, 5]
    assert message.HasField("current_step")


def test_read_arrays_can_be_written_to(tmp_path: Path) -> None:
    path = store(one_layer(messages.BlobProto(shape={"dim": [2]}, data=[1, 2])), tmp_path / "w.caffemodel")
    blob = read_weights(path).layers[0].blobs[0]
    blob += 1
    assert blob.tolist() == [2, 3]


def test_legacy_shape_is_four_dimensional_and_comes_before_shape(tmp_path: Path) -> None:
    legacy = messages.BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    both = messages.BlobProto(num=1, channels=1, height=2, width=3, shape={"dim": [6]}, data=range(6))
    new = messages.BlobProto(shape={"dim": [1, 1, 2, 3]}, data=range(6))
    (layer,) = read_weights(store(one_layer(legacy, both, new), tmp_path / "w.caffemodel")).layers
    assert [np.shape(blob) for blob in layer.blobs] == [(1, 1, 2, 3)] * 3
    assert layer.legacy == {0, 1}


def test_legacy_shapes_fit_behind_leading_ones_and_others_only_exactly() -> None:
    layer = LayerWeights(messages.LayerParameter(name="fc"), [ramp(1, 1, 5, 36), ramp(1, 1, 5, 36)], frozenset({0}))
    for shape in ((1, 1, 5, 36), (1, 5, 36), (5, 36)):
        assert layer.fits(0, shape)
        assert layer.fits(1, shape) == (shape == (1, 1, 5, 36))
    for shape in ((180,), (36, 5), (5, 36, 1, 1), (1, 1, 1, 5, 36), (5, 6, 6)):
        assert not layer.fits(0, shape)


def test_double_data(tmp_path: Path) -> None:
    blob = messages.BlobProto(shape={"dim": [3]}, double_data=[0.1, 2, -3])
    (read,) = read_weights(store(one_layer(blob), tmp_path / "w.caffemodel")).layers[0].blobs
    assert read.dtype == np.float32
    assert read.tolist() == np.array([0.1, 2, -3], np.float32).tolist()


def test_doubles_beyond_single_precision_become_infinite(recwarn: pytest.WarningsRecorder) -> None:
    assert array_from_blob(messages.BlobProto(shape={"dim": [2]}, double_data=[1e300, -1e300])).tolist() == [
        float("inf"),
        -float("inf"),
    ]
    assert not recwarn.list


def test_arrays_and_blobs() -> None:
    blob = blob_from_array(np.arange(6.0).reshape(2, 3))
    assert blob == messages.BlobProto(shape={"dim": [2, 3]}, data=range(6))
    array = array_from_blob(messages.BlobProto(num=1, channels=1, height=2, width=3, data=range(6)))
    assert array.dtype == np.float32
    assert array.tolist() == [[[[0, 1, 2], [3, 4, 5]]]]
    with pytest.raises(InputError, match=r"the blob has the shape \(4,\) and 3 values"):
        array_from_blob(messages.BlobProto(shape={"dim": [4]}, data=range(3)))


FIVE_VALUES = [0.5, -1.0, 2.0, 3.25, -4.0]
SHAPE_OF_FIVE = bytes([7 << 3 | 2, 3, 1 << 3 | 2, 1, 5])


def packed(*values: float) -> bytes:
    return bytes([5 << 3 | 2, 4 * len(values)]) + struct.pack(f"<{len(values)}f", *values)


def unpacked(*values: float) -> bytes:
    return b"".join(bytes([5 << 3 | 5]) + struct.pack("<f", value) for value in values)


@pytest.mark.parametrize(
    "data",
    [
        packed(*FIVE_VALUES),
        unpacked(*FIVE_VALUES),
        packed(*FIVE_VALUES[:2]) + packed(*FIVE_VALUES[2:]),
        packed(*FIVE_VALUES[:2]) + unpacked(*FIVE_VALUES[2:]),
        unpacked(*FIVE_VALUES[:2]) + packed(*FIVE_VALUES[2:]),
    ],
    ids=["packed", "unpacked", "two packed runs", "packed then unpacked", "unpacked then packed"],
)
def test_every_way_to_store_floats(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(SHAPE_OF_FIVE + data)
    assert read_blob(path).tolist() == FIVE_VALUES


def test_model_of_160_mb(tmp_path: Path) -> None:
    # Twice protobuf's former limit of 64 MB, in blobs of various sizes.
    rng = np.random.default_rng(0)
    blobs = [rng.random((count, 10_000), dtype=np.float32) for count in (2500, 1, 1499)]
    path = tmp_path / "w.caffemodel"
    write_weights(Weights("large", [LayerWeights(messages.LayerParameter(name="fc"), [blob]) for blob in blobs]), path)
    assert path.stat().st_size > 160_000_000
    read = read_weights(path)
    for layer, blob in zip(read.layers, blobs, strict=True):
        np.testing.assert_array_equal(layer.blobs[0], blob)


def test_reading_makes_no_python_object_per_value(tmp_path: Path) -> None:
    # A Python float per value takes 32 bytes for the file's 4; the limit is three copies of the file.
    count = 10_000_000
    path = tmp_path / "w.caffemodel"
    write_weights(Weights("n", [LayerWeights(messages.LayerParameter(name="fc"), [np.zeros(count, np.float32)])]), path)
    code = """
import resource, sys
from autodial.proto import read_weights
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_weights(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    pytest.importorskip("resource", reason="needs a Unix system")
    result = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert int(result.stdout) * RSS_UNIT < 3 * 4 * count * 1.1


def test_more_than_2_gib_is_refused_with_hdf5_named(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: takes no space
    with pytest.raises(InputError, match=r"w.caffemodel has 2.0 GiB: .* HDF5"):
        read_weights(path)
    path.unlink()
    blob = np.broadcast_to(np.float32(0), (2**29,))
    with pytest.raises(WorkError, match=r"w.caffemodel would take 2.0 GiB: .* HDF5"):
        write_weights(Weights("n", [LayerWeights(messages.LayerParameter(name="fc"), [blob])]), path)
    with pytest.raises(WorkError, match=r"w.solverstate would take 2.0 GiB: .* HDF5"):
        write_state(State(1, 0, "", [blob]), tmp_path / "w.solverstate")
    assert list(tmp_path.iterdir()) == []


def test_failed_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    path.write_bytes(b"old")
    bad = [
        LayerWeights(messages.LayerParameter(name="a"), [ramp(3)]),
        LayerWeights(messages.LayerParameter(), [object()]),
    ]
    with pytest.raises(TypeError):
        write_weights(Weights("n", bad), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(WorkError, match="can't be written: No such file or directory"):
        write_state(State(1, 0, "", []), tmp_path / "no" / "s.solverstate")


def test_cut_or_damaged_files_give_one_sentence(tmp_path: Path) -> None:
    weights = Weights(
        "n", [LayerWeights(messages.LayerParameter(name=f"fc{i}", type="X"), [ramp(3, 4)]) for i in range(3)]
    )
    write_weights(weights, tmp_path / "w.caffemodel")
    write_state(State(5, 1, "w.caffemodel", [ramp(3, 4), ramp(2)]), tmp_path / "s.solverstate")
    rng = random.Random(0)
    # A cut between two layers, or two fields of a state, leaves a valid message, and a flipped weight is a weight.
    for name, read, valid_cuts in (("w.caffemodel", read_weights, 2), ("s.solverstate", read_state, 4)):
        path = tmp_path / name
        original = path.read_bytes()
        cuts = [original[:end] for end in range(len(original))]
        assert sum(is_refused_in_one_sentence(read, path, data) for data in cuts) == len(cuts) - valid_cuts
        for _ in range(200):
            damaged = bytearray(original)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            is_refused_in_one_sentence(read, path, bytes(damaged))


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_of_pytorch_are_called_so(zipped: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "resnet.pth"
    torch.save({"fc.weight": torch.zeros(2, 3)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        InputError, match=r"resnet\.pth holds weights of PyTorch, and a caffemodel is needed: `autodial"
    ):
        read_weights(path)


@pytest.mark.parametrize(
    ("read", "name", "content", "error"),
    [
        (read_weights, "w.caffemodel", b"", ": it has no layers with names, so it is no caffemodel"),
        (
            read_weights,
            "w.caffemodel",
            b"\x0a\x80\x01",
            " is cut short or damaged, or not what its name says: copy",
        ),
        (read_weights, "w.caffemodel", b'name: "net"\n', " is a text file: name a binary caffemodel"),
        (
            read_weights,
            "w.caffemodel",
            b"version https://git-lfs.github.com/spec/v1\n",
            ' is a pointer of Git LFS, not the file itself: run "git lfs pull" in',
        ),
        (read_weights, "w.caffemodel", b"\n<!DOCTYPE html>\n<html>", " is a web page, not the file itself: download"),
        (read_weights, "w.onnx", b"\x08\x08\x12", " is an ONNX model, and a caffemodel is needed"),
        (
            read_net,
            "n.prototxt",
            b"version https://git-lfs.github.com/spec/v1\n",
            ' is a pointer of Git LFS, not the file itself: run "git lfs pull" in',
        ),
        (read_net, "n.prototxt", b"<html>\n<body>", " is a web page, not the file itself: download"),
        (
            read_weights,
            "s.solverstate",
            messages.SolverState(iter=3, learned_net="w.caffemodel").SerializeToString(),
            " is a solverstate: name a caffemodel",
        ),
        (
            read_weights,
            "s.solverstate",
            messages.SolverState(iter=3, current_step=0, history=[{"data": [1]}]).SerializeToString(),
            " is a solverstate: name a caffemodel",
        ),
        (
            read_state,
            "w.caffemodel",
            messages.NetParameter(name="n", layer=[{"name": "a"}]).SerializeToString(),
            " is a caffemodel: name a solverstate",
        ),
        (
            read_weights,
            "w.caffemodel",
            one_layer(messages.BlobProto(shape={"dim": [2, 3]}, data=[1] * 5)).SerializeToString(),
            ': layer "fc", blob 0 has the shape (2, 3) and 5 values, so the file is probably damaged',
        ),
        (
            read_weights,
            "w.caffemodel",
            one_layer(messages.BlobProto(shape={"dim": [-2, -3]}, data=[1] * 6)).SerializeToString(),
            ': layer "fc", blob 0 has the shape (-2, -3) and 6 values',
        ),
        (read_blob, "mean.binaryproto", b"", ": the blob has the shape () and 0 values"),
        (read_weights, "w.caffemodel", b"\xa2\x06\x04\x0a\x02\xff\xfe", ""),  # a layer whose name is not UTF-8
    ],
)
def test_errors(read: Callable[[Path], object], name: str, content: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{error}")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: check the name of the caffemodel file"):
        read_weights(tmp_path / "w.caffemodel")
    with pytest.raises(InputError, match="is a folder: name the solverstate file itself"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ([0, 2**62], "has 2 axes, the longest of 4611686018427387904"),
        ([1] * 65, "has 65 axes, the longest of 1"),
        ([0] * 33, "has 33 axes, the longest of 0"),
        ([2**62, 4], "has 2 axes"),
    ],
)
def test_shapes_that_no_blob_of_caffe_has(dims: list[int], reason: str, tmp_path: Path) -> None:
    blob = messages.BlobProto(shape={"dim": dims}, data=[1.0] if dims == [1] * 65 else [])
    net = messages.NetParameter(layer=[messages.LayerParameter(name="fc", blobs=[blob])])
    for name, message in (("x.caffemodel", net), ("x.solverstate", messages.SolverState(iter=1, history=[blob]))):
        (tmp_path / name).write_bytes(message.SerializeToString())
        with pytest.raises(InputError) as error:
            read_weights(tmp_path / name) if message is net else read_state(tmp_path / name)
        assert reason in str(error.value)
    with pytest.raises(InputError, match=reason):
        array_from_blob(blob)


@pytest.mark.parametrize("unit", [b"\xa2\x06\0", b"\xa2\x06\x03\x0a\x01a", b"\x12\0", b"\x0b", b"\xff", b"\0"])
def test_reading_takes_no_longer_than_the_file_is_long(unit: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.caffemodel"
    path.write_bytes(b"\xa2\x06\x03\x0a\x01a" + unit * (100_000 // len(unit)))
    begun = time.process_time()
    with suppress(InputError):
        read_weights(path)
    assert time.process_time() - begun < 10
