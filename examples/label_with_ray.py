"""Label a folder of images on a Ray cluster; MODEL.onnx has to be there for every worker."""

from __future__ import annotations

import argparse

import ray

from autodial.deploy import BatchLabeller
from autodial.errors import AutodialError


def main(model: str, folder: str, output: str, workers: int, threads: int) -> None:
    images = ray.data.read_binary_files(folder, include_paths=True)
    labels = images.map_batches(
        Labels,
        fn_constructor_args=[model, threads],
        batch_size=256,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=threads,
    )
    labels.write_parquet(output)


class Labels:
    """Replaces the images by their labels; each of Ray's workers makes one."""

    def __init__(self, model: str, threads: int) -> None:
        self.labeller = BatchLabeller(model, threads)

    def __call__(self, batch: dict) -> dict:
        return {"path": batch["path"], **self.labeller({"bytes": batch["bytes"]})}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("output", metavar="OUTPUT", help="the folder of Parquet files to write")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
