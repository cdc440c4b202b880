"""What an exported model says about itself: the JSON object under its metadata key `autodial`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autodial.errors import InputError
from autodial.wording import counted

KEY = "autodial"
SCHEMA = 1

INPUT = "image"
OUTPUTS = ("logits", "probabilities")

# What this reader does to every image, as training does: a file is stretched to the model's size, turned as its EXIF
# orientation says, and laid over white where it is transparent.
_RESIZE = "bilinear"
_EXIF = "apply"
_ALPHA = "white"


@dataclass(frozen=True)
class ModelInfo:
    """The facts that `autodial export` recorded in the file.

    Crop, mean and scale are part of the graph and stand here for the reader's information; `size`, `channel_order` and
    `classes` are what a caller needs to feed the graph and to read its answer.
    """

    classes: tuple[str, ...]
    """Names of the classes, in the order of the logits."""
    size: tuple[int, int]
    """Height and width in pixels of the images that the graph takes."""
    channel_order: str
    """"BGR" (3 channels, blue first) or "GRAY" (1 channel)."""
    crop: tuple[int, int] | None
    """Height and width of the centre crop that the graph takes, if any."""
    mean: tuple[float, ...] | str
    """Subtracted by the graph: a value per channel (empty: none), or "mean_file" for a whole mean image."""
    scale: float | tuple[float, ...]
    """Multiplied by the graph, after the mean: one factor, or one per channel."""
    statistics: str | None
    """Domain whose statistics are folded in: "target", "source", or None for a net without alignment layers."""
    weights_sha256: str
    """SHA-256 of the weights that were exported, in hexadecimal digits."""
    version: str
    """Version of AutoDIAL that made the file."""
    reference: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the file keeps of its training images, as autodial.drift.Reference has it; None where it keeps nothing."""

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey."""
        return 3 if self.channel_order == "BGR" else 1

    @property
    def color(self) -> bool:
        """Whether the graph takes colour images."""
        return self.channel_order == "BGR"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image of the batch."""
        return (*self.size, self.channels)

    @classmethod
    def of_session(cls, session: Any, path: Path) -> ModelInfo:
        """Read the metadata of an onnxruntime.InferenceSession and hold the graph's input and outputs against it.

        Raises:
            InputError: as `parse`, and where the graph isn't the one that the metadata describes.
        """
        info = cls.parse(session.get_modelmeta().custom_metadata_map, path)
        taken = [(put.name, put.type, tuple(put.shape[1:])) for put in session.get_inputs()]
        if taken != [(INPUT, "tensor(uint8)", info.image_shape)]:
            raise InputError(
                f"{path}: the graph takes {taken}, and its metadata promises a uint8 batch {INPUT!r} of "
                f"{info.image_shape}: export the model again."
            )
        given = {put.name: put.shape[-1] for put in session.get_outputs()}
        # A size that the graph leaves open is a name there.
        if any(given.get(name) != len(info.classes) and not isinstance(given.get(name), str) for name in OUTPUTS):
            raise InputError(
                f"{path}: the graph gives {given}, and its metadata promises {' and '.join(OUTPUTS)} of "
                f"{counted(len(info.classes), 'class', 'classes')}: export the model again."
            )
        return info

    @classmethod
    def parse(cls, metadata: Mapping[str, str], path: Path) -> ModelInfo:
        """Read the metadata properties of the ONNX file at `path` (named in errors only).

        Raises:
            InputError: the file was not made by `autodial export`, by a newer one, with `--raw-input`, or says
                something that this reader doesn't know.
        """
        if KEY not in metadata:
            raise InputError(
                f"{path} is an ONNX file that AutoDIAL didn't make: it has no metadata named {KEY!r}. "
                "Make one with `autodial export`."
            )
        try:
            record = json.loads(metadata[KEY])
            schema = record["schema"]
            if schema > SCHEMA:
                raise InputError(
                    f"{path} was made by a newer AutoDIAL ({record.get('version', 'unknown version')}, metadata schema "
                    f"{schema}; this one reads {SCHEMA}): upgrade autodial."
                )
            if record.get("raw_input"):
                raise InputError(
                    f"{path} was exported with --raw-input and takes preprocessed blobs, not images: "
                    "export it again without --raw-input."
                )
            return cls._from_record(record, path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"can't be read ({error})"
            raise InputError(f"{path}: the metadata {KEY!r} {what}; export the model again.") from error

    @classmethod
    def _from_record(cls, record: Mapping[str, Any], path: Path) -> ModelInfo:
        stated = {"alpha": _ALPHA} | dict(record)  # the first files did not say
        for entry, known in {
            "channel_order": ("BGR", "GRAY"),
            "resize": (_RESIZE,),
            "exif": (_EXIF,),
            "alpha": (_ALPHA,),
        }.items():
            if stated[entry] not in known:
                raise InputError(
                    f"{path}: the metadata asks for {entry} {stated[entry]!r}, and this AutoDIAL "
                    f"knows {' and '.join(map(repr, known))} only: upgrade autodial or export again."
                )
        height, width = record["size"]
        crop, mean, scale = record["crop"], record["mean"], record["scale"]
        return cls(
            classes=tuple(str(name) for name in record["classes"]),
            size=(int(height), int(width)),
            channel_order=record["channel_order"],
            crop=None if crop is None else (int(crop[0]), int(crop[1])),
            mean=mean if isinstance(mean, str) else tuple(float(value) for value in mean),
            scale=tuple(float(value) for value in scale) if isinstance(scale, list) else float(scale),
            statistics=record["statistics"],
            weights_sha256=record["weights_sha256"],
            version=record["version"],
            reference=record.get("reference"),
        )
