"""Label a folder of images with Dask."""

from __future__ import annotations

import argparse
from pathlib import Path

import dask.dataframe as dd
import pandas as pd

from autodial.deploy import BatchLabeller
from autodial.errors import AutodialError


def main(model: str, folder: str, output: str, parts: int, threads: int) -> None:
    labeller = BatchLabeller(model, threads)
    paths = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    images = dd.from_pandas(pd.DataFrame({"path": paths}), npartitions=parts)
    kinds = {"path": "string", "status": "string", "label_1": "string", "probability_1": "float32", "error": "string"}

    def label(part: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"path": part["path"], **labeller(part)}, index=part.index).astype(kinds)

    images.map_partitions(label, meta=kinds).to_parquet(output, write_index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("output", metavar="OUTPUT", help="the folder of Parquet files to write")
    parser.add_argument("--parts", type=int, default=4, help="that Dask works on at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
