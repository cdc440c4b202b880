"""Labels for images from an exported `target_predictor.onnx`, by ONNX Runtime; torch is not needed.

    from autodial.deploy import Predictor

    predictor = Predictor("target_predictor.onnx")
    logits, probabilities = predictor.predict(["a.jpg", "b.jpg"])

`predict_folder` does the same for any number of files and writes a table: CSV, JSON Lines or Parquet. `BatchLabeller`
labels columns, for tables on clusters. `choose_to_label` chooses among image files what a person should label, and
`worth_labelling` by any model's probabilities. `autodial.deploy.serve` is the service. Names load when they are first
used, so that importing this package brings neither ONNX Runtime nor OpenCV.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodial.deploy.batch_labeller import BatchLabeller
    from autodial.deploy.metadata import ModelInfo
    from autodial.deploy.options import PredictOptions
    from autodial.deploy.predictions import Predictions
    from autodial.deploy.predictor import Predictor
    from autodial.deploy.runner import Summary, predict_folder
    from autodial.deploy.to_label import ToLabel, choose_to_label, worth_labelling

__all__ = [
    "BatchLabeller",
    "ModelInfo",
    "PredictOptions",
    "Predictions",
    "Predictor",
    "Summary",
    "ToLabel",
    "choose_to_label",
    "predict_folder",
    "worth_labelling",
]

_HOME = {
    "BatchLabeller": "batch_labeller",
    "ModelInfo": "metadata",
    "PredictOptions": "options",
    "Predictions": "predictions",
    "Predictor": "predictor",
    "Summary": "runner",
    "ToLabel": "to_label",
    "choose_to_label": "to_label",
    "predict_folder": "runner",
    "worth_labelling": "to_label",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
