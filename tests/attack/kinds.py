"""The kinds of damaged input: each damages a file of the project in a folder, and says which command then reads it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from damage import damaged_bytes, damaged_json, damaged_text
from layer_numbers import odd_net
from material import QUICK
from odd_files import (
    change_blob,
    change_dataset,
    change_datum,
    change_state,
    odd_image,
    odd_text,
    other_model,
)

Kind = Callable[[random.Random, Path], list[str]]
SECRET = "a line of a file that nothing names"
"""What a file beside the project holds; no output may have it."""

TEST = ["test", "--net", "net.prototxt", "--weights", "w.caffemodel", "-o", "scores.csv", *QUICK]
REPORT = ["report", "run", "--images", "8", *QUICK]
PREDICT = ["predict", "m.onnx", "target", "-o", "new.csv", "--batch-size", "4", "--device", "cpu"]
SHORT = [
    *("--set", "solver.max_iter=5", "--set", "solver.test_initialization=false", "--set", "solver.test_interval=100"),
    *("--set", "solver.iter_size=1", "--set", "solver.snapshot_prefix=new", *QUICK),
]
TIME = ["time", "--net", "net.prototxt", "--variant", "mine", "--iterations", "1", "--device", "cpu"]
RESUME = ["train", "--solver", "solver.prototxt", "--snapshot", "spots_iter_4.solverstate", *SHORT]
EXPORT = ["export", "--net", "net.prototxt", "--weights", "w.caffemodel", "-o", "new.onnx"]
TABLE = ["predict", "m.onnx", "target", "z.png", "-o", "out.csv", "--resume", "--batch-size", "4", "--device", "cpu"]


def _rewrite(path: Path, change: Callable[[random.Random, Any], bytes], rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(change(rng, data if change is damaged_bytes else data.decode()))


def scoring(net: str) -> list[str]:
    """The command that tests another net."""
    return [net if word == "net.prototxt" else word for word in TEST]


def nets(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(("net.prototxt", "plain.prototxt"))
    _rewrite(folder / name, damaged_text, rng)
    if name == "plain.prototxt":
        return ["dialize", name, "-o", "dialized.prototxt"]
    return rng.choice(
        (
            ["time", "--net", name, "--phase", "TRAIN", "--iterations", "1", "--device", "cpu"],
            ["upgrade", name, "new.prototxt"],
            TEST,
        )
    )


def solvers(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "solver.prototxt", damaged_text, rng)
    return rng.choice(
        (["upgrade", "solver.prototxt", "new.prototxt"], ["train", "--solver", "solver.prototxt", *SHORT])
    )


def settings(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "mine.settings", damaged_text, rng)
    return TIME


def lists(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "test.txt", damaged_text, rng)
    return TEST if rng.random() < 0.5 else ["predict", "m.onnx", "test.txt", "-o", "new.csv", "--device", "cpu"]


def labels(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "labels.txt", damaged_text, rng)
    return EXPORT


def caffemodels(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "w.caffemodel", damaged_bytes, rng)
    return TEST if rng.random() < 0.5 else ["upgrade", "w.caffemodel", rng.choice(("new.h5", "new.caffemodel"))]


def solverstates(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "spots_iter_4.solverstate", damaged_bytes, rng)
    return [*RESUME, "-o", "again"]


def means(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "mean.binaryproto", damaged_bytes, rng)
    return scoring("mean.prototxt")


def hdf5_files(rng: random.Random, folder: Path) -> list[str]:
    weights = rng.random() < 0.5
    path = folder / ("w.h5" if weights else "test.h5")
    if rng.random() < 0.5:
        _rewrite(path, damaged_bytes, rng)
    else:
        _lead_elsewhere(rng, path)
    return ["upgrade", "w.h5", "new.caffemodel"] if weights else scoring("hdf5.prototxt")


def _lead_elsewhere(rng: random.Random, path: Path) -> None:
    """Make a dataset of an HDF5 file one whose values lie in another file, or in none."""
    secret = path.with_name("secret.txt")
    secret.write_text(SECRET * 100)
    names: list[str] = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = rng.choice(names)
        shape = file[name].shape
        del file[name]
        match rng.randrange(5):
            case 0:
                size = 4 * int(np.prod(shape))
                file.create_dataset(name, shape, np.float32, external=[(str(secret), 0, size)])
            case 1:
                file[name] = h5py.ExternalLink(str(path.with_name("other.h5")), "/x")
            case 2:
                file[name] = h5py.SoftLink("/nowhere")
            case 3:
                layout = h5py.VirtualLayout(shape, np.float32)
                layout[...] = h5py.VirtualSource(str(path.with_name("other.h5")), "x", shape)
                file.create_virtual_dataset(name, layout)
            case _:
                file.create_dataset(name, (2**40,), np.float32, chunks=(2**20,))


def lmdbs(rng: random.Random, folder: Path) -> list[str]:
    _rewrite(folder / "test.lmdb/data.mdb", damaged_bytes, rng)
    return scoring("lmdb.prototxt")


def run_records(rng: random.Random, folder: Path) -> list[str]:
    path = folder / "run/run.json"
    path.write_bytes(damaged_json(rng, json.loads(path.read_text())))
    if rng.random() < 0.3:
        return [*RESUME, "-o", "run"]
    return REPORT


def run_logs(rng: random.Random, folder: Path) -> list[str]:
    path = folder / "run/log.jsonl"
    lines = path.read_bytes().splitlines()
    number = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            lines.insert(rng.randrange(len(lines)), lines[number])
        case 1:
            del lines[number]
        case _:
            lines[number] = damaged_json(rng, json.loads(lines[number]))
    path.write_bytes(b"\n".join(lines) + b"\n")
    return REPORT


def unfinished_tables(rng: random.Random, folder: Path) -> list[str]:
    if rng.random() < 0.2:
        _rewrite(folder / "out.csv.partial", damaged_bytes, rng)
    else:
        path = folder / "out.csv.partial.json"
        path.write_bytes(damaged_json(rng, json.loads(path.read_text())))
    return TABLE


def models(rng: random.Random, folder: Path) -> list[str]:
    import onnx

    path = folder / "m.onnx"
    if rng.random() < 0.3:
        _rewrite(path, damaged_bytes, rng)
        return PREDICT
    model = onnx.load(path)
    record = {entry.key: entry.value for entry in model.metadata_props}
    (key,) = (key for key in record if key == "autodial")
    record[key] = damaged_json(rng, json.loads(record[key])).decode("utf-8", "replace")
    onnx.helper.set_model_props(model, record)
    onnx.save(model, path)
    return PREDICT


def images(rng: random.Random, folder: Path) -> list[str]:
    for path in rng.sample(sorted((folder / "target").glob("*/*")), 4):
        _rewrite(path, damaged_bytes, rng)
    if rng.random() < 0.7:
        return PREDICT
    return ["init", "new", "--arch", "digits", "--source", "source", "--target", "target"]


def tables_of_images(rng: random.Random, folder: Path) -> list[str]:
    files = sorted((folder / "target").glob("*/*"))
    columns = {"bytes": [path.read_bytes() for path in files], "path": [path.name for path in files]}
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=5, compression=rng.choice(["none", "zstd"]))
    _rewrite(folder / "t.parquet", damaged_bytes, rng)
    return ["t.parquet" if word == "target" else word for word in PREDICT]


LETTERS = b"ab\x01\x1b[31m\n\r\t \"',;=\\\xff\xc3\x28%$*?<>|&\x7f"


def names(rng: random.Random, folder: Path) -> list[str]:
    """A folder with names of all bytes, links to itself, pipes, and images deep down."""
    image = (folder / "z.png").read_bytes() if rng.random() < 0.2 else (folder / "target/a/0.png").read_bytes()
    place = folder / "target"
    for _ in range(rng.randrange(1, 12)):
        stem = bytes(rng.choice(LETTERS) for _ in range(rng.choice((1, 9, 240))))
        path = place / os.fsdecode(stem + b".png")
        if os.path.lexists(path):
            continue
        match rng.randrange(6):
            case 0 | 1 | 2:
                path.write_bytes(image)
            case 3:
                path.symlink_to(rng.choice((".", "..", "/", path.name)))
            case 4:
                os.mkfifo(path)
            case _:
                deep = place.joinpath(*["d" * rng.choice((1, 60))] * rng.choice((3, 50)))
                deep.mkdir(parents=True, exist_ok=True)
                (deep / "x.png").write_bytes(image)
    more = rng.choice(([], ["--sort-into", "sorted"], ["--sort-into", "sorted", "--copy"], ["--drift", "drift.json"]))
    return PREDICT + more


# --- files that are whole, and odd


def layer_numbers(rng: random.Random, folder: Path) -> list[str]:
    (folder / "net.prototxt").write_text(odd_net(rng))
    phase = rng.choice(("TRAIN", "TEST"))
    return ["time", "--net", "net.prototxt", "--phase", phase, "--iterations", "1", "--device", "cpu"]


READERS: Mapping[str, list[str]] = {
    "net.prototxt": TEST,
    "plain.prototxt": ["dialize", "plain.prototxt", "-o", "dialized.prototxt"],
    "solver.prototxt": ["train", "--solver", "solver.prototxt", *SHORT],
    "mine.settings": TIME,
    "test.txt": TEST,
    "labels.txt": EXPORT,
    "h5.txt": scoring("hdf5.prototxt"),
    "run/run.json": REPORT,
    "run/log.jsonl": REPORT,
    "out.csv.partial.json": TABLE,
}
"""A command that reads a text file, by the file."""


def encodings(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(list(READERS))
    (folder / name).write_bytes(odd_text(rng, (folder / name).read_text()))
    return READERS[name]


def odd_images(rng: random.Random, folder: Path) -> list[str]:
    with (folder / "test.txt").open("a") as listed:
        for path in rng.sample(sorted((folder / "target").glob("*/*")), 3):
            suffix, data = odd_image(rng)
            odd = path.with_name(f"odd-{path.stem}{suffix}")
            odd.write_bytes(data)
            listed.write(f"{odd.relative_to(folder)} 1\n")
    init = ["init", "new", "--arch", "digits", "--source", "source", "--target", "target"]
    return rng.choice((PREDICT, PREDICT, [*PREDICT, "--drift", "drift.json"], TEST, init))


def odd_hdf5(rng: random.Random, folder: Path) -> list[str]:
    name = rng.choice(("w.h5", "test.h5"))
    change_dataset(rng, folder / name)
    return ["upgrade", "w.h5", "new.caffemodel"] if name == "w.h5" else scoring("hdf5.prototxt")


def odd_weights(rng: random.Random, folder: Path) -> list[str]:
    change_blob(rng, folder / "w.caffemodel")
    net = ["--net", "net.prototxt", "--weights", "w.caffemodel"]
    recalibrate = ["recalibrate", *net, "-o", "new.caffemodel", *QUICK]
    return rng.choice((TEST, EXPORT, ["upgrade", "w.caffemodel", "new.h5"], recalibrate))


def odd_states(rng: random.Random, folder: Path) -> list[str]:
    change_state(rng, folder / "spots_iter_4.solverstate")
    return [*RESUME, "-o", "again"]


def odd_entries(rng: random.Random, folder: Path) -> list[str]:
    change_datum(rng, folder / "test.lmdb")
    return scoring("lmdb.prototxt")


def other_models(rng: random.Random, folder: Path) -> list[str]:
    secret = folder / "secret.txt"
    secret.write_text(SECRET * 100)
    other_model(rng, folder / "m.onnx", secret)
    return PREDICT


KINDS: Mapping[str, Kind] = {
    "nets": nets,
    "solvers": solvers,
    "variants' settings": settings,
    "image lists": lists,
    "class names": labels,
    "caffemodels": caffemodels,
    "solverstates": solverstates,
    "mean images": means,
    "HDF5": hdf5_files,
    "LMDB": lmdbs,
    "run.json": run_records,
    "log.jsonl": run_logs,
    "unfinished tables": unfinished_tables,
    "ONNX models": models,
    "images": images,
    "tables of images": tables_of_images,
    "names of files": names,
    "numbers in layers": layer_numbers,
    "encodings": encodings,
    "odd images": odd_images,
    "odd HDF5": odd_hdf5,
    "odd weights": odd_weights,
    "odd solverstates": odd_states,
    "odd LMDB entries": odd_entries,
    "other programs' ONNX": other_models,
}
