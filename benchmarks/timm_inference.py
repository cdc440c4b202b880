"""`autodial predict` beside what timm's inference script does, on the same network and the same images.

    pip install timm
    python benchmarks/timm_inference.py [NAME ...] [--images 500] [--repeats 3] [--batch-size 32] [--quick]

NAME is a model of timm's, with random weights. timm's way: its dataset and loader with two worker processes, the model
in evaluation mode, the softmax's five largest in a table. Ours: `export_module`, then `predict_folder` with five labels
a row. Both read the same JPEGs of 256 x 256 pixels and take turns; seconds are of the clock, the loader's start and the
session's included, the export and the imports not.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import timm
import torch
from measuring import describe
from predict_folder import write_images
from timm.data import create_dataset, create_loader, resolve_data_config

from autodial.converters import export_module
from autodial.deploy import PredictOptions, predict_folder
from autodial.system.cpus import available_cpus

CLASSES = 1000
TOP_K = 5


def by_timm(model: Any, config: dict[str, Any], folder: Path, output: Path, batch_size: int) -> int:
    """Label a folder as timm's script does; returns the number of rows."""
    loader = create_loader(
        create_dataset("", root=str(folder)),
        batch_size=batch_size,
        use_prefetcher=False,
        num_workers=2,
        device=torch.device("cpu"),
        **config,
    )
    names = loader.dataset.filenames(basename=True)
    indices, probabilities = [], []
    with torch.inference_mode():
        for images, _ in loader:
            values, best = model(images).softmax(-1).topk(TOP_K)
            indices.append(best)
            probabilities.append(values)
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        for name, best, values in zip(
            names, torch.cat(indices).tolist(), torch.cat(probabilities).tolist(), strict=True
        ):
            writer.writerow([name, *best, *values])
    return len(names)


def measure(name: str, folder: Path, options: argparse.Namespace) -> None:
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES).eval()
    config = resolve_data_config({}, model=model)
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct")
    _, *side = config["input_size"]
    exported = folder.parent / f"{name}.onnx"
    export_module(model, exported, size=tuple(side), mean=config["mean"], std=config["std"])
    table = folder.parent / "out.csv"
    rates: dict[str, list[float]] = {"timm": [], "ours": []}
    for _ in range(options.repeats):
        started = time.perf_counter()
        count = by_timm(model, {key: config[key] for key in keys}, folder, table, options.batch_size)
        rates["timm"].append(count / (time.perf_counter() - started))
        started = time.perf_counter()
        predict_folder(
            exported, [folder], table, PredictOptions(batch_size=options.batch_size, top_k=TOP_K, device="cpu")
        )
        rates["ours"].append(count / (time.perf_counter() - started))
    for way, values in rates.items():
        print(f"  {name:20} {way} {statistics.median(values):8.1f} images/s ({min(values):.1f} to {max(values):.1f})")
    ratios = [a / b for a, b in zip(rates["ours"], rates["timm"], strict=True)]
    print(f"  {name:20} ours/timm x{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "mobilenetv3_large_100"])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="40 images once, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.images, options.repeats = 40, 1
    print(f"timm {timm.__version__}, {describe(torch.device('cpu'))}, {available_cpus()} CPUs")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "images"
        folder.mkdir()
        write_images(folder, options.images)
        for name in options.models:
            measure(name, folder, options)


if __name__ == "__main__":
    main()
