"""Label a folder of images with Spark; MODEL.onnx has to be there for every worker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession

from autodial.deploy import BatchLabeller
from autodial.errors import AutodialError

SCHEMA = "path string, status string, label_1 string, probability_1 float, error string"


def main(model: str, folder: str, output: str, threads: int) -> None:
    labeller = BatchLabeller(model, threads)

    def label(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.DataFrame({"path": batch["path"], **labeller({"bytes": batch["content"]})})

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python, else what PATH has first
    spark = SparkSession.builder.appName("label").getOrCreate()
    # A record holds a whole image: fewer of them make a batch than Spark's 10,000.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "256")
    images = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(folder)
    images.select("path", "content").mapInPandas(label, SCHEMA).write.parquet(output)
    spark.stop()


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
