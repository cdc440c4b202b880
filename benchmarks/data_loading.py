"""Images per second that ImageData and Data layers deliver, by number of worker processes.

Writes JPEG files of photo-like content to a temporary folder, and LMDBs with the same images as pixels and as JPEG, and
reads batches from them as training does: cropped at random, mirrored, mean subtracted, and the files shuffled. All is
in the page cache, so that decoding is measured, not the disk.

    python benchmarks/data_loading.py
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import lmdb
import numpy as np
import torch

from autodial.data.transforms import decode
from autodial.net.feed import Feed, sources
from autodial.net.net import Net
from autodial.proto import messages as pb
from autodial.proto import parse_net

LAYER = """
layer {{
  name: "data" type: "{kind}" top: "data" top: "label"
  transform_param {{ mirror: true crop_size: 227 mean_value: 104 mean_value: 117 mean_value: 123 }}
  {parameter} {{ source: "{source}" batch_size: {batch_size} {choice} }}
}}
"""


def write_images(folder: Path, count: int, size: int) -> None:
    """Write `count` JPEG files and their list."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(count):
        # Structure at several scales, so that a file is as large, and decodes as slowly, as a photo's.
        image = np.full((size, size, 3), 128.0)
        for cells, contrast in ((4, 80), (16, 40), (64, 20), (size, 8)):
            image += cv2.resize(rng.uniform(-contrast, contrast, (cells, cells, 3)), (size, size))
        image = image.clip(0, 255).astype(np.uint8)
        cv2.imwrite(str(folder / f"{i}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        lines.append(f"{folder / f'{i}.jpg'} {i % 31}\n")
    (folder / "list.txt").write_text("".join(lines), encoding="utf-8")


def write_databases(folder: Path) -> None:
    """Write LMDBs of the listed files: `raw`, their pixels, and `encoded`, the files as they are."""
    for name in ("raw", "encoded"):
        with lmdb.open(str(folder / name), map_size=2**33) as environment, environment.begin(write=True) as txn:
            for i, path in enumerate(sorted(folder.glob("*.jpg"))):
                if name == "encoded":
                    datum = pb.Datum(encoded=True, data=path.read_bytes())
                else:
                    planes = decode(path, color=True).transpose(2, 0, 1)
                    channels, height, width = planes.shape
                    datum = pb.Datum(channels=channels, height=height, width=width, data=planes.tobytes())
                txn.put(f"{i:08}".encode(), datum.SerializeToString())


def measure(name: str, net: Net, batches: int, workers: Sequence[int]) -> None:
    """Print the images per second of a net's data layer."""
    for count in workers:
        feed = Feed(net, range(batches), device=torch.device("cpu"), workers=count)
        next(feed)  # starting the workers is not counted
        start = time.perf_counter()
        images = sum(len(tops["data"]) for tops in feed)
        print(f"{name}, {count} workers: {images / (time.perf_counter() - start):.0f} images/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--size", type=int, default=256, help="height and width of the files, in pixels")
    arguments = parser.parse_args()

    print(f"{platform.machine()}, {os.cpu_count()} CPUs, OpenCV {cv2.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), arguments.images, arguments.size)
        file_size = sum(path.stat().st_size for path in Path(folder).glob("*.jpg")) / arguments.images
        print(f"JPEG files of {arguments.size} x {arguments.size} pixels, {file_size / 1024:.0f} KiB on average")
        write_databases(Path(folder))

        def net(kind: str, parameter: str, source: str, choice: str) -> Net:
            fields = {"kind": kind, "parameter": parameter, "source": f"{Path(folder).as_posix()}/{source}"}
            return Net(parse_net(LAYER.format(**fields, choice=choice, batch_size=arguments.batch_size)), pb.TRAIN)

        files = net("ImageData", "image_data_param", "list.txt", "shuffle: true")
        (reader,) = sources(files).values()
        start = time.perf_counter()
        reader.check()
        print(f"check: {arguments.images / (time.perf_counter() - start):.0f} files/s")
        measure("files", files, arguments.batches, arguments.workers)
        for name in ("encoded", "raw"):
            database = net("Data", "data_param", name, "backend: LMDB")
            measure(f"LMDB, {name}", database, arguments.batches, arguments.workers)


if __name__ == "__main__":
    main()
