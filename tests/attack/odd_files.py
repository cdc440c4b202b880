"""Files that are whole as their formats have it, and odd: what other programs, or no sane one, would write."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import lmdb
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autodial.proto import messages as pb

SIZES = (0, 1, 2, 7, 60_000, 65_535, 65_536, 2**20, 2**28, 2**31 - 1, 2**31, 2**32 - 1)
COUNTS = (0, 1, -1, 2**31 - 1, -(2**31))
NUMBERS = (float("nan"), float("inf"), 3e38)
DIMS = (0, 1, -1, 2**31 - 1, -(2**31), 2**62, -(2**63))
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "utf-7", "cp1252", "shift_jis", "cp500")
LINE_ENDS = ("\r\n", "\r", "\x85", "\u2028", "\n\0")


def odd_text(rng: random.Random, text: str) -> bytes:
    """A text in another encoding, with other ends of lines, or with more than one byte order mark."""
    text = text.replace("a", rng.choice("aé猫\u0130"), 1)
    match rng.randrange(4):
        case 0:
            return text.replace("\n", rng.choice(LINE_ENDS)).encode()
        case 1:
            return ("\ufeff" * rng.randrange(1, 3) + text).encode()
        case _:
            return text.encode(rng.choice(ENCODINGS), "replace")


# --- images


def _png(width: int, height: int, depth: int, color: int) -> bytes:
    rows = bytes(min((width * 3 + 1) * height, 2_000_000))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pnm(rng: random.Random, width: int, height: int) -> bytes:
    return (
        f"P{rng.choice('123456')}\n{width} {height}\n{rng.choice((255, 1, 0, 65_535, 2**31, -1))}\n".encode()
        + bytes(300)
    )


_PLACES = {".bmp": ("<I", 18, 22), ".webp": ("<H", 26, 28), ".ras": (">I", 4, 8), ".gif": ("<H", 6, 8)}
"""Of width and height in a file of that kind."""


def _claiming(kind: str, width: int, height: int) -> bytes:
    """An image of 8x8 pixels whose header claims another size."""
    data = bytearray(cv2.imencode(kind, np.full((8, 8, 3), 99, np.uint8))[1].tobytes())
    if kind == ".jpg":
        form, across, down = ">H", data.find(b"\xff\xc0") + 7, data.find(b"\xff\xc0") + 5
    else:
        form, across, down = _PLACES[kind]
    for place, value in ((across, width), (down, height)):
        struct.pack_into(form, data, place, value % 2 ** (8 * struct.calcsize(form)))
    return bytes(data)


def odd_image(rng: random.Random) -> tuple[str, bytes]:
    """The suffix and the bytes of an image of one row or column, of no pixels, or that claims to have billions."""
    sizes = [rng.choice(SIZES), rng.choice((0, 1, 1, 2, *SIZES[-5:]))]
    width, height = rng.sample(sizes, 2)
    kind = rng.choice((".png", ".pgm", ".jpg", *_PLACES))
    if kind == ".png":
        return kind, _png(width, height, rng.choice((1, 2, 4, 8, 8, 16)), rng.choice((0, 2, 2, 3, 4, 6)))
    if kind == ".pgm":
        return kind, _pnm(rng, width, height)
    return kind, _claiming(kind, width, height)


# --- HDF5


def _no_dataset(rng: random.Random, file: Any, name: str, data: Any) -> None:
    file[name] = rng.choice((file["/"], np.dtype("f4"), h5py.SoftLink(name)))


def _unknown_filter(rng: random.Random, file: Any, name: str, data: Any) -> None:
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_chunk(data.shape)
    how.set_filter(305, h5py.h5z.FLAG_OPTIONAL, ())
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple(data.shape), dcpl=how)


_DATASETS: tuple[Callable[[random.Random, Any, str, Any], Any], ...] = (
    _no_dataset,
    _unknown_filter,
    lambda rng, file, name, data: file.create_dataset(name, data=np.zeros(data.shape, [("a", "f4"), ("b", "i8")])),
    lambda rng, file, name, data: file.create_dataset(
        name, data.shape, rng.choice((h5py.string_dtype(), h5py.vlen_dtype(np.float32), h5py.ref_dtype))
    ),
    lambda rng, file, name, data: file.create_dataset(
        name, data=data.astype(rng.choice(("f2", "f8", "i8", "u1", "c8", "?", "S4", "f16", ">f4")))
    ),
    lambda rng, file, name, data: file.create_dataset(
        name, data=data, compression=rng.choice(("gzip", "lzf")), shuffle=True, fletcher32=True
    ),
    lambda rng, file, name, data: file.create_dataset(name, (2**20, 2**20), "f4", chunks=(2**14, 2**14)),
    lambda rng, file, name, data: file.create_dataset(name, (2**31,), "f4", chunks=(2**26,), compression="gzip"),
    lambda rng, file, name, data: file.create_dataset(name, data=rng.choice((np.float32(3), h5py.Empty("f4")))),
    lambda rng, file, name, data: file.create_dataset(name, (0, *data.shape[1:]), "f4"),
    lambda rng, file, name, data: file.create_dataset(name, data=np.full(data.shape, rng.choice(NUMBERS), "f4")),
    lambda rng, file, name, data: file.create_dataset(
        name, data=data.reshape(rng.choice(((1,) * 20 + data.shape, -1)))
    ),
    lambda rng, file, name, data: file.create_group("/".join(["g"] * rng.choice((1, 100, 1000)))),
)


def change_dataset(rng: random.Random, path: Path) -> None:
    """Put something else, or of another type, shape or layout, in the place of an HDF5 file's dataset."""
    names: list[str] = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = rng.choice(names)
        data = file[name][...]
        del file[name]
        rng.choice(_DATASETS)(rng, file, name, data)


# --- messages of protobuf


def change_blob(rng: random.Random, path: Path) -> None:
    """Change what a caffemodel says of a blob, or its numbers."""
    weights = pb.NetParameter.FromString(path.read_bytes())
    blob = rng.choice([blob for layer in weights.layer for blob in layer.blobs])
    match rng.randrange(6):
        case 0:
            blob.shape.dim[:] = [rng.choice(DIMS) for _ in range(rng.choice((0, 1, 2, 4, 40)))]
        case 1:
            blob.ClearField("shape")
            blob.num, blob.channels, blob.height, blob.width = (rng.choice(COUNTS) for _ in range(4))
        case 2:
            del blob.data[:]
        case 3:
            blob.data[:] = [rng.choice(NUMBERS)] * len(blob.data)
        case 4:
            blob.double_data.extend(blob.data)
        case _:
            weights.layer.extend(list(weights.layer))  # itself would be extended without end
    path.write_bytes(weights.SerializeToString())


def change_state(rng: random.Random, path: Path) -> None:
    """Change the counts, the path or the history of a solverstate."""
    state = pb.SolverState.FromString(path.read_bytes())
    history = rng.choice(state.history)
    match rng.randrange(5):
        case 0:
            state.iter, state.current_step = rng.choice(COUNTS), rng.choice(COUNTS)
        case 1:
            state.learned_net = rng.choice(("", "/etc/passwd", "../x", "a" * 100_000, "\x1b[31m", "/dev/zero", "."))
        case 2:
            history.shape.dim[:] = [rng.choice(DIMS) for _ in range(rng.choice((0, 1, 2, 40)))]
        case 3:
            history.data[:] = [rng.choice(NUMBERS)] * len(history.data)
        case _:
            del state.history[rng.randrange(len(state.history)) :]
    path.write_bytes(state.SerializeToString())


def change_datum(rng: random.Random, folder: Path) -> None:
    """Change one entry of an LMDB."""
    with lmdb.open(str(folder), map_size=1 << 24) as database, database.begin(write=True) as transaction:
        key = f"{rng.randrange(24):04}".encode()
        datum = pb.Datum.FromString(transaction.get(key))
        match rng.randrange(6):
            case 0:
                datum.channels, datum.height = rng.choice(COUNTS), rng.choice((8, *COUNTS))
            case 1:
                datum.label = rng.choice(COUNTS)
            case 2:
                datum.data = b""
            case 3:
                datum.ClearField("data")
                datum.float_data.extend([rng.choice(NUMBERS)] * 192)
            case 4:
                datum.encoded, datum.data = True, odd_image(rng)[1]
            case _:
                transaction.put(key, rng.choice((b"", b"x" * 100, b"\xff" * 100)))
                return
        transaction.put(key, datum.SerializeToString())


# --- ONNX


def _mostly(rng: random.Random, right: Any, *others: Any) -> Any:
    return right if rng.random() < 0.8 else rng.choice(others)


def other_model(rng: random.Random, path: Path, secret: Path) -> None:
    """An ONNX file of another program, with the metadata of the one that was there, other metadata, or none."""
    name = _mostly(rng, "image", "input.1", "x" * 100_000, "\x1b[31m\u202e")
    dims = _mostly(rng, ["b", 8, 8, 3], ["b", 3, 8, 8], [1, 8, 8, 3], ["n", "h", "w", "c"], [], ["b"], None)
    element = _mostly(rng, TensorProto.UINT8, TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING)
    inputs = [helper.make_tensor_value_info(name, element, dims)]
    outputs = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["b", 3]) for end in ("logits", "probabilities")]
    weights = numpy_helper.from_array(np.ones((192, 3), np.float32) * np.float32(_mostly(rng, 0.01, *NUMBERS)), "w")
    nodes = [
        helper.make_node("Cast", [name], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["float"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["logits"]),
        helper.make_node(_mostly(rng, "Softmax", "Log", "Unknown"), ["logits"], ["probabilities"]),
    ]
    match rng.randrange(9):
        case 0:
            inputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
        case 1:
            del outputs[1]
        case 2:
            weights.ClearField("raw_data")
            weights.data_location = TensorProto.EXTERNAL
            weights.external_data.add(key="location", value=rng.choice((str(secret), secret.name, "none.bin", ".")))
        case _:
            pass
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _mostly(rng, 13, 7, 99))])
    model.ir_version = _mostly(rng, 8, 3, 99)
    record = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    helper.set_model_props(model, _mostly(rng, record, {}, {"autodial": "[]"}))
    path.write_bytes(model.SerializeToString())
