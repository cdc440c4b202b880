"""Which damage is seen: images with one flipped bit, and images cut short, by format.

    python benchmarks/damaged_images.py [--images 300] [--seed 0]

The images are crops of scikit-learn's two sample photographs. "Visible" are those that are neither refused nor reported
and have more than 1% of their pixels off by more than 16 levels.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

from autodial.data.decoder_messages import watch_decoders
from autodial.data.transforms import DataError, read_image

SIDE = 128
FORMATS: dict[str, tuple[str, list[int]]] = {
    "JPEG": (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 90]),
    "JPEG, progressive": (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 90, cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
    "PNG": (".png", []),
    "WebP": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 90]),
    "WebP, lossless": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 101]),
    "TIFF, LZW": (".tif", [cv2.IMWRITE_TIFF_COMPRESSION, 5]),
    "TIFF, deflate": (".tif", [cv2.IMWRITE_TIFF_COMPRESSION, 8]),
    "TIFF, uncompressed": (".tif", [cv2.IMWRITE_TIFF_COMPRESSION, 1]),
    "BMP": (".bmp", []),
    "AVIF": (".avif", []),
    "JPEG 2000": (".jp2", []),
    "GIF": (".gif", []),
}


def crops(count: int, rng: np.random.Generator) -> list[NDArray[np.uint8]]:
    photos = [photo[:, :, ::-1] for photo in load_sample_images().images]
    places = rng.integers(0, (len(photos), *(side - SIDE for side in photos[0].shape[:2])), (count, 3))
    return [photos[k][y : y + SIDE, x : x + SIDE] for k, y, x in places]


def outcome(path: Path, whole: NDArray[np.uint8]) -> str:
    try:
        pixels, damage = read_image(path, color=True)
    except DataError:
        return "refused"
    if damage:
        return "reported"
    if pixels.shape != whole.shape:
        return "visible"
    off = np.abs(pixels.astype(int) - whole).max(axis=2)
    return "visible" if np.mean(off > 16) > 0.01 else "none"


def table(count: int, seed: int, folder: Path) -> None:
    print(f"{'':20}{'one flipped bit: ':>34}{'cut short:':>16}")
    print(
        f"{'format':20}{'refused':>9}{'reported':>9}{'visible':>9}{'other':>7}{'refused':>16}{'reported':>9}{'other':>7}"
    )
    for name, (suffix, parameters) in FORMATS.items():
        if not cv2.haveImageWriter(f"x{suffix}"):
            continue
        rng = np.random.default_rng(seed)
        flipped: Counter[str] = Counter()
        cut: Counter[str] = Counter()
        path = folder / f"image{suffix}"
        for crop in crops(count, rng):
            file = cv2.imencode(suffix, crop, parameters)[1]
            path.write_bytes(file.tobytes())
            whole, damage = read_image(path, color=True)
            assert not damage, damage
            bit = int(rng.integers(8 * len(file)))
            changed = file.copy()
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed.tobytes())
            flipped[outcome(path, whole)] += 1
            path.write_bytes(file[: int(rng.integers(1, len(file)))].tobytes())
            cut[outcome(path, whole)] += 1
        shares = [
            *(flipped[kind] for kind in ("refused", "reported", "visible", "none")),
            cut["refused"],
            cut["reported"],
        ]
        shares.append(cut["visible"] + cut["none"])
        print(
            f"{name:20}",
            *(f"{share / count:{width}.0%}" for share, width in zip(shares, (8, 8, 8, 6, 15, 8, 6), strict=True)),
        )


def cost(count: int, seed: int, folder: Path, rounds: int) -> None:
    """CPU seconds to decode undamaged JPEGs of 256 x 256, watched against unwatched."""
    rng = np.random.default_rng(seed)
    paths = []
    for i, crop in enumerate(crops(count, rng)):
        paths.append(folder / f"{i}.jpg")
        large = cv2.resize(crop, (256, 256))
        paths[-1].write_bytes(cv2.imencode(".jpg", large, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())

    def seconds() -> float:
        started = time.process_time()
        for path in paths:
            read_image(path, color=True)
        return time.process_time() - started

    ratios = []
    for _ in range(rounds):
        plain = seconds()
        with watch_decoders():
            read_image(paths[0], color=True)  # starts it
            ratios.append(seconds() / plain)
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"CPU time to decode, watched to unwatched: {middle:.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300, help="of each format")
    parser.add_argument("--rounds", type=int, default=31, help="of decoding undamaged images")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        with watch_decoders():
            table(arguments.images, arguments.seed, Path(folder))
        cost(arguments.images, arguments.seed, Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
