"""Images per second that an ImageData layer delivers, by number of worker processes.

Writes JPEG files of photo-like content to a temporary folder and reads batches from them as training does: shuffled,
cropped at random, mirrored, mean subtracted. Files are in the page cache, so that decoding is measured, not the disk.

    python benchmarks/data_loading.py
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from autodial.data.image_data import ImageData, init_worker
from autodial.proto import parse_net

LAYER = """
layer {{
  name: "data" type: "ImageData" top: "data" top: "label"
  transform_param {{ mirror: true crop_size: 227 mean_value: 104 mean_value: 117 mean_value: 123 }}
  image_data_param {{ source: "{source}" batch_size: {batch_size} shuffle: true }}
}}
"""


class Batches(Dataset[tuple[NDArray[np.float32], NDArray[np.float32]]]):
    """The first `count` batches of an ImageData."""

    def __init__(self, data: ImageData, count: int) -> None:
        self.data, self.count = data, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.data.batch(index)


def write_images(folder: Path, count: int, size: int) -> Path:
    """Write `count` JPEG files and their list; the list's path."""
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
    path = folder / "list.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


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
        source = write_images(Path(folder), arguments.images, arguments.size)
        file_size = sum(path.stat().st_size for path in Path(folder).glob("*.jpg")) / arguments.images
        print(f"JPEG files of {arguments.size} x {arguments.size} pixels, {file_size / 1024:.0f} KiB on average")
        text = LAYER.format(source=source.as_posix(), batch_size=arguments.batch_size)
        data = ImageData(parse_net(text).layer[0], phase=0, seed=0)
        start = time.perf_counter()
        data.check()
        print(f"check: {arguments.images / (time.perf_counter() - start):.0f} files/s")
        for workers in arguments.workers:
            loader = DataLoader(
                Batches(data, arguments.batches), batch_size=None, num_workers=workers, worker_init_fn=init_worker
            )
            batches = iter(loader)
            next(batches)  # starting the workers is not counted
            start = time.perf_counter()
            count = sum(len(labels) for _, labels in batches)
            print(f"{workers} workers: {count / (time.perf_counter() - start):.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
