"""Images per second of `autodial predict` by number of decoding threads.

    python benchmarks/predict_folder.py [--model target_predictor.onnx] [--images 2000] [--workers 1 2 4] [--repeats 3]

The images are generated JPEGs of 256 x 256 pixels, about as smooth as photographs. Without --model, a model that
averages its pixels runs, which costs next to nothing: the figures are then those of reading, batching and writing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import cv2
import numpy as np

from autodial.deploy import Predictor, predict_folder

SIDE = 256


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
        "statistics": None,
        "weights_sha256": "",
        "version": "",
    }
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"autodial": json.dumps(record)})
    onnx.save(model, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a file that `autodial export` wrote")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "images").mkdir()
        size = write_images(work / "images", options.images)
        model = options.model or write_averaging_model(work / "averaging.onnx")
        print(
            f"{options.images} JPEGs of {size} bytes, batches of {options.batch_size}, "
            f"{options.model or 'averaging model'} on {Predictor(model, options.device).provider}"
        )
        print("threads  images/s: median (least to most)")
        for workers in options.workers:
            rates = [
                predict_folder(
                    model,
                    [work / "images"],
                    work / "out.csv",
                    batch_size=options.batch_size,
                    device=options.device,
                    workers=workers,
                ).images_per_second
                for _ in range(options.repeats)
            ]
            print(f"{workers:7}  {statistics.median(rates):8.0f} ({min(rates):.0f} to {max(rates):.0f})", flush=True)


if __name__ == "__main__":
    main()
