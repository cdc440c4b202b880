"""HDF5 files, held against what h5py and the HDF5 library find in them and files laid out as Caffe does."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from originals import UPGRADE
from refusals import is_refused_in_one_sentence

from autodial.errors import InputError, WorkError
from autodial.proto import (
    LayerWeights,
    State,
    Weights,
    messages,
    read_state,
    read_weights,
    write_state,
    write_weights,
)

h5py = pytest.importorskip("h5py")


def ramp(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


def layer(name: str, *blobs: Any, params: tuple[str, ...] = (), **more: Any) -> LayerWeights:
    """A layer with these blobs and, in their `param`s, names."""
    specs = [messages.ParamSpec(name=param) for param in params]
    return LayerWeights(messages.LayerParameter(name=name, param=specs, **more), list(blobs))


def contents(path: Path) -> dict[str, Any]:
    """Every dataset of a file by its path, groups as None."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()] if isinstance(item, h5py.Dataset) else None}))
    return found


def caffes_string(file: Any, name: str, text: bytes) -> None:
    """A dataset as H5LTmake_dataset_string makes it: a scalar C string with its terminating zero."""
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(text) + 1)
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, space)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(text, f"S{len(text) + 1}"), mtype=kind)


# --- weights


def test_layout_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel.h5"
    write_weights(Weights("net", [layer("data"), layer("fc", ramp(3, 4), ramp(3)), layer("bn", ramp(1))]), path)
    found = contents(path)
    assert found.keys() == {"data", "data/data", "data/fc", "data/fc/0", "data/fc/1", "data/bn", "data/bn/0"}
    np.testing.assert_array_equal(found["data/fc/0"], ramp(3, 4))
    assert found["data/fc/1"].dtype == np.dtype("<f4")
    assert list(tmp_path.iterdir()) == [path]


def test_weights_come_back(tmp_path: Path) -> None:
    layers = [layer("b", ramp(2, 3, 4, 5), ramp(2)), layer("a"), layer("c", np.float32(2.5).reshape(()))]
    write_weights(Weights("net", layers), tmp_path / "w.h5")
    read = {layer.name: layer.blobs for layer in read_weights(tmp_path / "w.h5").layers}
    assert read.keys() == {"a", "b", "c"}
    for original in layers:
        assert len(read[original.name]) == len(original.blobs)
        for blob, expected in zip(read[original.name], original.blobs, strict=True):
            assert blob is not None and blob.dtype == np.float32 and blob.flags.writeable
            np.testing.assert_array_equal(blob, expected)


def test_content_tells_the_format(tmp_path: Path) -> None:
    write_weights(Weights("", [layer("fc", ramp(3))]), tmp_path / "w.h5")
    (tmp_path / "w.h5").rename(tmp_path / "w.caffemodel")
    assert [layer.name for layer in read_weights(tmp_path / "w.caffemodel").layers] == ["fc"]


def test_more_than_ten_blobs_and_missing_ones_are_in_order(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for index in (0, 2, 11):
            file[f"data/fc/{index}"] = np.full(2, index, np.float32)
    (read,) = read_weights(tmp_path / "w.h5").layers
    assert [None if blob is None else blob.tolist() for blob in read.blobs] == [
        [0, 0], None, [2, 2], *[None] * 8, [11, 11]
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i4", "u1"])
def test_other_number_types_and_compression(dtype: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("data/fc/0", data=np.arange(2000).reshape(2, 1000) % 7, dtype=dtype, compression="gzip")
        file["diff/fc/0"] = np.zeros(3)
    (read,) = read_weights(tmp_path / "w.h5").layers
    (blob,) = read.blobs
    assert blob is not None and blob.dtype == np.float32
    np.testing.assert_array_equal(blob, np.arange(2000).reshape(2, 1000) % 7)


def test_shared_blobs_are_written_with_the_first_layer_only(tmp_path: Path) -> None:
    weight, bias = ramp(3, 3), ramp(3)
    layers = [
        layer("a", weight, bias, params=("w",)),
        layer("b", weight, bias + 1, params=("w",)),
        layer("c", weight, params=("w",)),
        layer("d", ramp(2), bias, params=("", "own")),
    ]
    write_weights(Weights("", layers), tmp_path / "w.h5")
    datasets = {name for name, value in contents(tmp_path / "w.h5").items() if value is not None}
    assert datasets == {"data/a/0", "data/a/1", "data/b/1", "data/d/0", "data/d/1"}
    read = {layer.name: layer for layer in read_weights(tmp_path / "w.h5").layers}
    assert read["b"].blobs[0] is None
    assert read["b"].fits(0, (3, 3)) and read["b"].fits(1, (3,)) and not read["b"].fits(1, (4,))
    assert read["c"].blobs == [] and read["c"].fits(0, (3, 3))
    with pytest.raises(InputError, match='layer "b" shares blobs with another layer'):
        write_weights(read_weights(tmp_path / "w.h5"), tmp_path / "w.caffemodel")
    assert not (tmp_path / "w.caffemodel").exists()


def test_slashes_in_names(tmp_path: Path) -> None:
    layers = [layer("c", ramp(2), ramp(1)), layer("c/dial", ramp(3)), layer("i/j/k", ramp(4)), layer("i/j")]
    write_weights(Weights("", layers), tmp_path / "w.h5")
    read = {layer.name: [np.shape(blob) for blob in layer.blobs] for layer in read_weights(tmp_path / "w.h5").layers}
    assert read == {"c": [(2,), (1,)], "c/dial": [(3,)], "i/j/k": [(4,)]}


@pytest.mark.parametrize("names", [["/c"], ["c/"], ["c//d"], ["."], [""], ["a/./b"], ["c", "c/0"], ["c/0", "c"]])
def test_names_that_hdf5_cannot_hold(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f'layer "{names[-1]}": HDF5 can\'t hold its name, or another layer takes it'):
        write_weights(Weights("", [layer(name, ramp(2)) for name in names]), tmp_path / "w.h5")
    assert list(tmp_path.iterdir()) == []


def test_old_shapes_become_true_ones(tmp_path: Path) -> None:
    write_weights(read_weights(UPGRADE / "v1_weights.caffemodel"), tmp_path / "w.h5")
    expected = np.load(UPGRADE / "v1_expected.npz")
    found = contents(tmp_path / "w.h5")
    for name in ("conv1/0", "conv1/1", "fc/0", "fc/1"):
        np.testing.assert_array_equal(found[f"data/{name}"], expected[f"param/{name}"])


@pytest.mark.parametrize(("kind", "shape"), [("PReLU", (1, 1, 1, 3)), ("InnerProduct", (1, 2, 3, 4))])
def test_old_shapes_that_may_be_anything_are_refused(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    old = LayerWeights(messages.LayerParameter(name="l", type=kind), [ramp(*shape)], frozenset({0}))
    with pytest.raises(InputError, match='layer "l", blob 0 has the old four-dimensional shape'):
        write_weights(Weights("", [old]), tmp_path / "w.h5")
    assert list(tmp_path.iterdir()) == []


# --- states


def test_layout_of_states(tmp_path: Path) -> None:
    path = tmp_path / "s.solverstate.h5"
    write_state(State(2**31 - 1, 3, "é.caffemodel.h5", [ramp(3, 4), ramp(2)]), path)
    found = contents(path)
    assert found.keys() == {"iter", "current_step", "learned_net", "history", "history/0", "history/1"}
    assert (found["iter"].tolist(), found["iter"].dtype, found["current_step"].tolist()) == ([2**31 - 1], "<i4", [3])
    np.testing.assert_array_equal(found["history/0"], ramp(3, 4))
    with h5py.File(path) as file:
        name = file["learned_net"].id
        text = "é.caffemodel.h5".encode()
        # As a C program finds it: bytes of which a zero is the last.
        assert name.get_type().get_size() == len(text) + 1
        raw = np.zeros((), f"V{len(text) + 1}")
        name.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=name.get_type())
        assert raw.tobytes() == text + b"\0"


def test_states_of_caffe(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w", libver=("earliest", "v108")) as file:
        file["iter"], file["current_step"] = np.array([20], np.int32), np.array([1], np.int32)
        caffes_string(file, "learned_net", b"snap_iter_20.caffemodel.h5")
        for index in range(12):
            file[f"history/{index}"] = np.full((2, 1), index, np.float32)
    state = read_state(tmp_path / "s.h5")
    assert (state.iter, state.current_step, state.learned_net) == (20, 1, "snap_iter_20.caffemodel.h5")
    assert [array.tolist() for array in state.history] == [[[index]] * 2 for index in range(12)]


def test_states_come_back(tmp_path: Path) -> None:
    for name in ("w.caffemodel.h5", ""):
        write_state(State(7, 2, name, [ramp(3, 4)]), tmp_path / "s.h5")
        state = read_state(tmp_path / "s.h5")
        assert (state.iter, state.current_step, state.learned_net) == (7, 2, name)
        np.testing.assert_array_equal(state.history[0], ramp(3, 4))
        assert len(state.history) == 1


# --- what goes wrong


def test_missing_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights(Weights("", [layer("fc", ramp(3))]), tmp_path / "w.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    message = "HDF5 needs the package h5py: pip install '.\\[train\\]' in AutoDIAL's checkout brings it"
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path / "w.h5")
    with pytest.raises(InputError, match=message):
        write_weights(Weights("", []), tmp_path / "x.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["w.h5"]


def test_reading_and_writing_of_binary_files_does_without_h5py() -> None:
    code = "import sys, autodial.proto; assert 'h5py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def write_h5(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name.replace("__", "/")] = value
    return path


@pytest.mark.parametrize(
    ("read", "datasets", "error"),
    [
        (read_weights, {"iter": [1], "history__0": [1.0]}, " is a solverstate: name a caffemodel"),
        (read_state, {"data__fc__0": [1.0]}, " is a caffemodel: name a solverstate"),
        (read_weights, {"label": [1]}, ': it has no group "data"'),
        (read_state, {"label": [1]}, ': it has no group "history"'),
        (read_weights, {"data__fc__weight": [1.0]}, ': the dataset "data/fc/weight" is no blob of a layer'),
        (read_weights, {"data__fc__1000": [1.0]}, ': the dataset "data/fc/1000" is no blob of a layer'),
        (read_weights, {"data__0": [1.0]}, ': the dataset "data/0" is no blob of a layer'),
        (read_weights, {"data": [1.0]}, ': it has no group "data"'),
        (read_weights, {"data__fc__0": b"text"}, " is cut short or damaged"),
        (read_state, {"iter": [1], "history__0": [1.0]}, " is cut short or damaged"),
        (read_state, {"iter": [1], "current_step": [0], "history__1": [1.0]}, " is cut short or damaged"),
    ],
)
def test_files_of_other_contents(
    read: Callable[[Path], object], datasets: dict[str, Any], error: str, tmp_path: Path
) -> None:
    path = write_h5(tmp_path / "x.h5", **datasets)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{error}")


@pytest.mark.parametrize("content", [b"", b"name: 'net'", messages.NetParameter(name="n").SerializeToString()])
def test_files_that_only_their_name_makes_hdf5(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.h5").write_bytes(content)
    with pytest.raises(InputError, match="is cut short or damaged, or not what its name says"):
        read_weights(tmp_path / "w.h5")


@pytest.mark.parametrize("options", [{}, {"chunks": (1024, 1024)}, {"chunks": (1024, 1024), "compression": "gzip"}])
def test_claimed_sizes_take_no_memory(options: dict[str, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("data/fc/0", (2**20, 2**20), np.float32, **options)
    assert (tmp_path / "w.h5").stat().st_size < 10_000
    with pytest.raises(InputError, match=r'"data/fc/0" has the shape \(1048576, 1048576\), but its values were never'):
        read_weights(tmp_path / "w.h5")
    if options:  # now with one chunk of the million
        with h5py.File(tmp_path / "w.h5", "a") as file:
            file["data/fc/0"][0, :2] = 1
        with pytest.raises(InputError, match="is cut short or damaged"):
            read_weights(tmp_path / "w.h5")


def test_a_row_of_a_gigantic_chunk_takes_no_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("data/fc/0", (1, 8), np.float32, maxshape=(None, 8), chunks=(2**14, 8), compression="gzip")
        file["data/fc/0"][0] = 1
    assert len(read_weights(tmp_path / "w.h5").layers) == 1
    content = (tmp_path / "w.h5").read_bytes()
    (tmp_path / "w.h5").write_bytes(content.replace((2**14).to_bytes(4, "little"), (2**26).to_bytes(4, "little")))
    with pytest.raises(InputError, match="is cut short or damaged"):
        read_weights(tmp_path / "w.h5")


def test_datasets_that_lie_in_the_same_bytes_take_no_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w", libver=("earliest", "v108")) as file:
        file["data/fc0/0"] = np.full(10_000, 1, np.float32)
        for i in range(1, 9):
            file[f"data/fc{i}/0"] = np.full(11, i + 1, np.float32)
    content = (tmp_path / "w.h5").read_bytes()
    first, *others = (content.index(np.full(4, i + 1, np.float32).tobytes()) for i in range(9))
    for place in others:
        content = content.replace(struct.pack("<QQ", place, 44), struct.pack("<QQ", first, 40_000))
    (tmp_path / "w.h5").write_bytes(content.replace(struct.pack("<Q", 11), struct.pack("<Q", 10_000)))
    assert [values[0] for values in contents(tmp_path / "w.h5").values() if values is not None] == [1] * 9
    with pytest.raises(InputError, match="is cut short or damaged"):
        read_weights(tmp_path / "w.h5")


def borrow_link(file: Any, name: str, secret: Path) -> None:
    file[name] = h5py.ExternalLink(str(secret), "/data/fc/0")


def borrow_values(file: Any, name: str, secret: Path) -> None:
    file.create_dataset(name, (4,), "u1", external=[(str(secret), 0, 4)])


def borrow_virtually(file: Any, name: str, secret: Path) -> None:
    layout = h5py.VirtualLayout((4,), np.float32)
    layout[:] = h5py.VirtualSource(str(secret), "data/fc/0", (4,))
    file.create_virtual_dataset(name, layout)


def borrow_softly(file: Any, name: str, secret: Path) -> None:
    file["values"] = ramp(4)
    file[name] = h5py.SoftLink("/values")


def borrow_a_name(file: Any, name: str, secret: Path) -> None:
    file[f"{name.rpartition('/')[0]}/9"] = ramp(4)
    file[name] = file[f"{name.rpartition('/')[0]}/9"]


def borrow_a_group(file: Any, name: str, secret: Path) -> None:
    file[name.partition("/")[0] + "/loop"] = file.require_group(name.partition("/")[0])


BORROWED = {
    borrow_link: 'is a link to "/data/fc/0" in the file "',
    borrow_values: 'has its values in another file, "',
    borrow_virtually: "is a virtual one",
    borrow_softly: 'is a link to "/values"',
    borrow_a_name: "is another name",
    borrow_a_group: "is another name",
}


@pytest.mark.parametrize("borrow", BORROWED)
@pytest.mark.parametrize("kind", ["weights", "state"])
def test_what_lies_elsewhere_is_refused_by_name(kind: str, borrow: Any, tmp_path: Path) -> None:
    secret = write_h5(tmp_path / "secret.h5", data__fc__0=ramp(4))
    name, read = ("data/fc/0", read_weights) if kind == "weights" else ("history/0", read_state)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["iter"] = file["current_step"] = np.array([3], np.int32)
        borrow(file, name, secret)
    with pytest.raises(InputError) as caught:
        read(tmp_path / "x.h5")
    assert f'"{"history/" if kind == "state" else "data/"}' in str(caught.value)
    assert BORROWED[borrow] in str(caught.value)


def test_a_link_in_place_of_the_weights_themselves_is_refused(tmp_path: Path) -> None:
    secret = write_h5(tmp_path / "secret.h5", data__fc__0=ramp(4))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"] = h5py.ExternalLink(str(secret), "/data")
    with pytest.raises(InputError, match=r'"data" is a link to "/data" in the file ".*secret\.h5"'):
        read_weights(tmp_path / "x.h5")


def test_unknown_filters_are_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4,))
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)
        group = file.create_group("data/fc")
        dataset = h5py.h5d.create(group.id, b"0", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((4,)), properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, ramp(4))
    with pytest.raises(InputError, match=r'"data/fc/0" is stored with the filter (number 32015|")'):
        read_weights(tmp_path / "x.h5")


def test_upgrade_lets_no_other_file_into_a_caffemodel(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0")
    with h5py.File(tmp_path / "x.caffemodel.h5", "w") as file:
        file.create_dataset("data/fc/0", (10,), "u1", external=[(str(tmp_path / "secret"), 0, 10)])
    command = ["upgrade", str(tmp_path / "x.caffemodel.h5"), str(tmp_path / "y.caffemodel")]
    done = subprocess.run([sys.executable, "-m", "autodial", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not (tmp_path / "y.caffemodel").exists()
    assert 'dataset "data/fc/0" has its values in another file' in " ".join(done.stderr.split())


@pytest.mark.parametrize("libver", ["earliest", "v108"])
@pytest.mark.parametrize("kind", ["weights", "state"])
def test_cut_or_damaged_files_give_one_sentence(kind: str, libver: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    read: Callable[[Path], object] = read_state if kind == "state" else read_weights
    with h5py.File(path, "w", libver=(libver, "v108")) as file:
        file["iter"] = file["current_step"] = np.array([3], np.int32)
        caffes_string(file, "learned_net", b"w.caffemodel")
        for index in range(3):
            file[f"history/{index}"] = ramp(3, 4)
            file[f"data/fc{index}/0"] = ramp(3, 4)
    original = path.read_bytes()
    read(path)
    rng = random.Random(0)
    for _ in range(100):
        assert is_refused_in_one_sentence(read, path, original[: rng.randrange(len(original))])
    for _ in range(300):
        damaged = bytearray(original)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        is_refused_in_one_sentence(read, path, bytes(damaged))


def test_ring_in_a_heap_is_refused_at_once(tmp_path: Path) -> None:
    # A flipped bit that makes the HDF5 library itself take memory until there is none.
    path = tmp_path / "s.h5"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        for name in "abcd":
            file[f"data/{name}"] = ramp(3)
    data = bytearray(path.read_bytes())
    heap = data.rindex(b"HEAP")
    assert data[heap + 16] == 40  # where the first free block is in the heap's data; 8 bytes for each name before it
    data[heap + 16] = 8
    start = int.from_bytes(data[heap + 24 : heap + 32], "little")
    assert data[start + 8 : start + 10] == b"a\0"
    data[start + 8] = 8
    path.write_bytes(data)
    with pytest.raises(InputError, match="is cut short or damaged"):
        read_weights(path)


def test_failed_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    path.write_bytes(b"old")
    with pytest.raises(ValueError):
        write_weights(Weights("", [layer("a", ramp(3)), layer("b", "no number")]), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(WorkError, match="can't be written: No such file or directory"):
        write_state(State(1, 0, "", []), tmp_path / "no" / "s.h5")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize(("room", "size"), [(100_000, 1_000_000), (1000, 100)])
def test_full_disk(tmp_path: Path, room: int, size: int) -> None:
    """What is small is written as the file is closed."""
    code = """
import resource, signal, sys
import numpy as np
from autodial.errors import WorkError
from autodial.proto import State, write_state
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
room, size = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    write_state(State(1, 0, "", [np.ones(size, np.float32)]), sys.argv[1])
except WorkError as error:
    print(error)
"""
    path = tmp_path / "s.h5"
    result = subprocess.run(
        [sys.executable, "-c", code, str(path), str(room), str(size)], check=True, capture_output=True, text=True
    )
    assert result.stdout == f"{path} can't be written: File too large\n"
    assert list(tmp_path.iterdir()) == []
