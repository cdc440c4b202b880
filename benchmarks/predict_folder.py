"""How near `autodial predict` comes to the speed of the machine, and what its start takes.

    python benchmarks/predict_folder.py [--model target_predictor.onnx ...] [--images 2000] [--repeats 3]

The images are generated JPEGs of 256 x 256 pixels, about as smooth as photographs. For each model the benchmark takes

- decode: reading, decoding and resizing alone, on all CPUs;
- run: the model alone, on the same CPUs or the GPU;
- predict: all of it. Where decoding and running share the CPUs, 1 / (1 / decode + 1 / run) images/s is what they leave;
  where a GPU runs the model, the slower of the two;
- loop: what one would write without this package, one image after the other with ONNX Runtime's defaults;
- the start: the time until one image is labelled, in a process of its own, and its parts.

The four are measured in turn, `--repeats` times; medians are printed, with the least and the most. Without --model, a
model that averages its pixels runs, which costs next to nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

from autodial.deploy import PredictOptions, Predictor, predict_folder
from autodial.deploy.inputs import expand
from autodial.deploy.reader import read_batches
from autodial.system.cpus import available_cpus

SIDE = 256

START = """
import time
parts = [("Python", time.time() - float(__import__("sys").argv[4]))]
def done(part):
    global last
    parts.append((part, time.perf_counter() - last))
    last = time.perf_counter()
last = time.perf_counter()
from autodial.cli import main
done("command line")
import numpy, cv2
done("numpy and OpenCV")
import onnxruntime
done("ONNX Runtime")
from autodial.deploy import Predictor
import sys, json
predictor = Predictor(sys.argv[1], sys.argv[3])
done("model")
predictor.predict([sys.argv[2]])
done("image")
print(json.dumps(parts))
"""


def write_images(folder: Path, count: int) -> int:
    """Write `count` JPEGs and return their mean size in bytes."""
    rng = np.random.default_rng(0)
    size = 0
    for i in range(count):
        coarse = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        smooth = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        image = cv2.add(smooth, rng.integers(0, 24, smooth.shape, dtype=np.uint8))
        encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
        (folder / f"{i:06}.jpg").write_bytes(encoded.tobytes())
        size += len(encoded)
    return size // count


def write_averaging_model(path: Path) -> Path:
    """A model in the exported form whose logits are the channels' means."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["pixels", "axes"], ["logits"], keepdims=0),
            helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        ],
        "averaging",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in ("logits", "probabilities")],
        [helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])],
    )
    record = {
        "schema": 1,
        "classes": ["blue", "green", "red"],
        "size": [SIDE, SIDE],
        "resize": "bilinear",
        "crop": None,
        "mean": [],
        "scale": 1.0,
        "channel_order": "BGR",
        "exif": "apply",
        "alpha": "white",
        "statistics": None,
        "weights_sha256": "",
        "version": "",
    }
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"autodial": json.dumps(record)})
    onnx.save(model, path)
    return path


class Measurement:
    """One model on one folder of images; each method returns images per second."""

    def __init__(self, model: Path, folder: Path, count: int, options: argparse.Namespace) -> None:
        self.model = model
        self.predictor = Predictor(model, options.device)
        self.files = sorted(map(str, folder.iterdir()))[:count]
        self.list = folder.parent / "list.txt"
        self.list.write_text("".join(f"{file}\n" for file in self.files))
        self.table = folder.parent / "out.csv"
        self.workers = options.workers or available_cpus()
        self.batch_size: int = options.batch_size
        self.device: str = options.device

    def decode(self) -> float:
        started = time.perf_counter()
        for _ in read_batches(self.predictor, expand([self.list]), self.batch_size, self.workers):
            pass
        return len(self.files) / (time.perf_counter() - started)

    def run(self) -> float:
        shape = (self.batch_size, *self.predictor.info.image_shape)
        batch = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        self.predictor.run(batch)
        started = time.perf_counter()
        for _ in range(len(self.files) // self.batch_size):
            self.predictor.run(batch)
        return len(self.files) // self.batch_size * self.batch_size / (time.perf_counter() - started)

    def predict(self) -> float:
        summary = predict_folder(
            self.model,
            [self.list],
            self.table,
            PredictOptions(batch_size=self.batch_size, device=self.device, workers=self.workers),
        )
        return summary.images_per_second

    def loop(self) -> float:
        files = self.files[: max(1, len(self.files) // 4)]
        session = onnxruntime.InferenceSession(self.model, providers=[self.predictor.provider])
        height, width = self.predictor.info.size
        flag = cv2.IMREAD_COLOR if self.predictor.info.color else cv2.IMREAD_GRAYSCALE
        started = time.perf_counter()
        with self.table.open("w", newline="") as file:
            writer = csv.writer(file)
            for path in files:
                image = cv2.resize(cv2.imread(path, flag), (width, height)).reshape(1, height, width, -1)
                probabilities = session.run(["probabilities"], {"image": image})[0][0]
                best = int(probabilities.argmax())
                writer.writerow([path, self.predictor.info.classes[best], float(probabilities[best])])
        return len(files) / (time.perf_counter() - started)

    def start(self) -> list[tuple[str, float]]:
        """Seconds that each part of labelling one image takes, in a new process."""
        arguments = [str(self.model), self.files[0], self.device, repr(time.time())]
        result = subprocess.run([sys.executable, "-c", START, *arguments], capture_output=True, text=True, check=True)
        return [tuple(part) for part in json.loads(result.stdout)]

    def command(self) -> float:
        """Seconds that `autodial predict` takes for one image."""
        arguments = ["predict", str(self.model), self.files[0], "-o", str(self.table), "--device", self.device]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "autodial", *arguments], capture_output=True, check=True)
        return time.perf_counter() - started


def measure(measurement: Measurement, repeats: int) -> None:
    steps: dict[str, Callable[[], float]] = {
        "decode": measurement.decode,
        "run": measurement.run,
        "predict": measurement.predict,
        "loop": measurement.loop,
    }
    rates: dict[str, list[float]] = {name: [] for name in steps}
    shares = []
    starts: list[dict[str, float]] = []
    commands: list[float] = []
    on_cpu = measurement.predictor.provider == "CPUExecutionProvider"
    for _ in range(repeats):
        for name, step in steps.items():
            rates[name].append(step())
        decode, run, predict = (rates[name][-1] for name in ("decode", "run", "predict"))
        shares.append(predict / (1 / (1 / decode + 1 / run) if on_cpu else min(decode, run)))
        starts.append(dict(measurement.start()))
        commands.append(measurement.command())
    for name, values in rates.items():
        print(f"  {name:8} {statistics.median(values):8.0f} images/s ({min(values):.0f} to {max(values):.0f})")
    bound = "1 / (1 / decode + 1 / run)" if on_cpu else "min(decode, run)"
    print(f"  predict reaches {statistics.median(shares):.2f} of {bound} ({min(shares):.2f} to {max(shares):.2f})")
    parts = {part: statistics.median(start[part] for start in starts) for part in starts[0]}
    spelled = ", ".join(f"{part} {1000 * seconds:.0f}" for part, seconds in parts.items())
    print(f"  autodial predict on one image: {1000 * statistics.median(commands):.0f} ms", flush=True)
    print(f"  of which, in ms: {spelled}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", help="files that `autodial export` wrote")
    parser.add_argument("--images", type=int, nargs="+", default=[2000], help="how many, for each model or for all")
    parser.add_argument("--workers", type=int, help="threads that decode (one per CPU)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "images").mkdir()
        size = write_images(work / "images", max(options.images))
        models = options.model or [write_averaging_model(work / "averaging.onnx")]
        counts = options.images if len(options.images) == len(models) else options.images[:1] * len(models)
        print(f"JPEGs of {size} bytes, batches of {options.batch_size}, {available_cpus()} of {os.cpu_count()} CPUs")
        for model, count in zip(models, counts, strict=True):
            measurement = Measurement(model, work / "images", count, options)
            print(f"{model.name}, {count} images, on {measurement.predictor.provider}")
            measure(measurement, options.repeats)


if __name__ == "__main__":
    main()
