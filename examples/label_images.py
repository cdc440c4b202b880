"""Label images with a model that AutoDIAL exported, without PyTorch."""

from __future__ import annotations

import argparse

from autodial.deploy import Predictor
from autodial.errors import AutodialError


def main(model: str, images: list[str]) -> None:
    predictor = Predictor(model)
    _, probabilities = predictor.predict(images)
    for image, row in zip(images, probabilities, strict=True):
        best = row.argmax()
        print(f"{image}: {predictor.info.classes[best]} ({row[best]:.1%})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("images", metavar="IMAGE", nargs="+")
    try:
        main(**vars(parser.parse_args()))
    except AutodialError as error:
        parser.error(str(error))
