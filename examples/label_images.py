"""Label images in a program of your own, without PyTorch: label_images.py MODEL.onnx IMAGE..."""

from __future__ import annotations

import sys

from autodial.deploy import Predictor


def main(model: str, *images: str) -> None:
    predictor = Predictor(model)
    _, probabilities = predictor.predict(images)
    for image, row in zip(images, probabilities, strict=True):
        best = row.argmax()
        print(f"{image}: {predictor.info.classes[best]} ({row[best]:.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:])
