"""What an exported ONNX file says about itself: to AutoDIAL, to other programs, and to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from autodial import __version__
from autodial.model_file import IMAGE, IMAGE_AXES, KEY, LICENSE, image_properties, to_text
from autodial.wording import counted

_PRODUCER = "autodial"
_DOMAINS = ("source", "target")


def describe_model(model: onnx.ModelProto, metadata: Mapping[str, Any], license: str | None) -> None:
    """Write a model's metadata properties, producer, description and denotations; nothing of the graph changes.

    Args:
        model: with its one input.
        metadata: the JSON object of the metadata key `autodial`.
        license: an SPDX license expression; None for a file that names none.
    """
    properties = {KEY: to_text(metadata)}
    if not metadata["raw_input"]:
        properties |= image_properties(metadata["channel_order"])
        (taken,) = model.graph.input
        taken.type.denotation = IMAGE
        for axis, denotation in zip(taken.type.tensor_type.shape.dim, IMAGE_AXES, strict=True):
            axis.denotation = denotation
    if license is not None:
        properties[LICENSE] = license
    onnx.helper.set_model_props(model, properties)
    model.producer_name, model.producer_version = _PRODUCER, __version__
    model.doc_string = _paragraph(model.graph.input[0].name, metadata)


def _paragraph(taken: str, metadata: Mapping[str, Any]) -> str:
    """What the file is, for people who find it."""
    classes = counted(len(metadata["classes"]), "class", "classes")
    statistics = metadata["statistics"]
    folded = f" The {statistics} domain's statistics are folded into its weights." if statistics in _DOMAINS else ""
    # of a net without alignment layers, nothing says who trained it
    made = "exported with AutoDIAL" if statistics is None else "trained and exported with AutoDIAL"
    return (
        f"A classifier of {'input blobs' if metadata['raw_input'] else 'images'} into {classes}, {made} (automatic "
        f"domain alignment layers).{folded} {_input(taken, metadata)} Outputs: logits and "
        f'probabilities, float32 (batch, classes). The metadata property "{KEY}" has the names of the classes and how '
        "images are prepared, as JSON."
    )


def _input(taken: str, metadata: Mapping[str, Any]) -> str:
    if metadata["raw_input"]:
        return f"Input: {taken}, the net's own input blob, float32."
    height, width = metadata["size"]
    order = "BGR" if metadata["channel_order"] == "BGR" else "grey"
    return (
        f"Input: {taken}, uint8 (batch, {height}, {width}, channels), {order}, decoded and resized; crop, mean and "
        "scale are part of the graph."
    )
