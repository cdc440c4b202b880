"""Label a folder of images with Daft."""

from __future__ import annotations

import argparse
from pathlib import Path

import daft

from autodial.deploy import BatchLabeller
from autodial.errors import AutodialError


def main(model: str, folder: str, output: str, threads: int) -> None:
    text, number = daft.DataType.string(), daft.DataType.float32()
    answer = daft.DataType.struct({"status": text, "label_1": text, "probability_1": number, "error": text})
    labeller = BatchLabeller(model, threads)

    @daft.func.batch(return_dtype=answer, batch_size=256)
    def label(images: daft.Series) -> list[dict]:
        columns = labeller({"bytes": images.to_pylist()})
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    images = daft.from_glob_path(str(Path(folder) / "**")).select("path")
    labels = images.with_column("found", label(daft.col("path").download(on_error="null")))
    labels.select("path", daft.col("found").unnest()).write_parquet(output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("output", metavar="OUTPUT", help="the folder of Parquet files to write")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
