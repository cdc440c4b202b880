"""A folded net that can be written to any destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from autodial.converters.fold import Folded
from autodial.converters.image_input import ImageInput
from autodial.converters.precision import Agreement, Lowering, Precision
from autodial.converters.verification import BATCHES, TOLERANCE, Comparison, ExportReport
from autodial.data.image_statistics import Reference
from autodial.errors import InputError
from autodial.model_file import Domain
from autodial.net.net import Net, of_another_net
from autodial.proto import Weights

LARGEST = 2**31 - 2**20
"""Bytes of weights beyond which a protobuf file, limited to 2 GiB, has no room left for the graph."""


@dataclass(frozen=True, eq=False)
class FoldedNet:
    """A folded Caffe net, for destinations that write Caffe files.

    Attributes:
        folded: from the input blob to the logits.
        images: what the TEST phase reads; None if nothing describes them.
        window: shape (1, C, h, w) of the part of an image that reaches the net.
        corner: row and column of the resized image at which the input blob begins; None without `images`.
        domain: whose statistics were asked for; None if the net's test_stats decide.
    """

    folded: Folded
    images: ImageInput | None
    window: tuple[int, ...]
    corner: tuple[int, int] | None
    domain: Domain | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A folded net, and what it is compared with.

    Attributes:
        make_predictor: makes the folded net as a torch module, from the input to (logits, probabilities).
        comparison: with the unfolded net.
        input: name of the input.
        logits: name of the blob that holds the logits; of a torch module, its class.
        classes: their names, in the order of the logits.
        metadata: as `make_metadata` gives it.
        merged, kept, notes: of the report.
        lowering: the precision that an ONNX file gets after the float32 file agreed; None for float32.
        measure: computes from the ONNX file the training images' statistics that its metadata keeps, and notes; None if
            there are no training images.
        caffe: the Caffe net; None for a torch module and for an ensemble.
        license: as in ExportOptions.
    """

    make_predictor: Callable[[], nn.Module]
    comparison: Comparison
    input: str
    logits: str
    classes: list[str]
    metadata: dict[str, Any]
    merged: dict[str, str]
    kept: tuple[str, ...]
    notes: tuple[str, ...]
    lowering: Lowering | None = None
    measure: Callable[[bytes | str], tuple[Reference | None, list[str]]] | None = None
    caffe: FoldedNet | None = None
    license: str | None = None

    def report(
        self,
        output: Path,
        files: dict[str, int],
        *,
        runtime: str,
        max_difference: float,
        logits_range: float,
        logits: str | None = None,
        metadata: dict[str, Any] | None = None,
        opset: int | None = None,
        ir_version: int | None = None,
        precision: Precision = "float32",
        agreement: Agreement | None = None,
        notes: Sequence[str] = (),
    ) -> ExportReport:
        """The report of a written file; its notes follow the net's notes."""
        return ExportReport(
            output=output,
            files=files,
            opset=opset,
            ir_version=ir_version,
            input=self.input,
            logits=self.logits if logits is None else logits,
            metadata=self.metadata if metadata is None else metadata,
            merged=self.merged,
            kept=self.kept,
            compared_on=self.comparison.words,
            batches=BATCHES,
            runtime=runtime,
            tolerance=TOLERANCE,
            max_difference=max_difference,
            logits_range=logits_range,
            precision=precision,
            agreement=agreement,
            license=self.license,
            notes=(*self.notes, *notes),
        )


def exceeds(sizes: Mapping[str, int]) -> bool:
    """Whether weights of these bytes, by layer or tensor name, are more than one protobuf file can hold."""
    return sum(sizes.values()) > LARGEST


def check_size(sizes: Mapping[str, int], limit: str | None) -> None:
    """Raise InputError if the weights exceed what one file can hold.

    Args:
        sizes: bytes of float32 weights by layer or tensor name.
        limit: what the file can hold, as the end of a sentence; None if weights of any size can be written.
    """
    if limit is not None and exceeds(sizes):
        size = sum(sizes.values())
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"the weights take {size / 2**30:.2f} GiB, {sizes[largest] / 2**30:.2f} of them for {largest}, and {limit}"
        )


def load(net: Net, weights: Weights, net_name: str = "the net", weights_name: str = "the weights") -> None:
    """Load weights; InputError if they lack a layer with parameters, or have one of another shape.

    Args:
        net_name, weights_name: their files, for messages.
    """
    advice = of_another_net(net_name)
    missing = net.load_weights(weights, weights_name, advice=advice)
    if missing:
        layers = f"{'layer' if len(missing) == 1 else 'layers'} {', '.join(missing)}"
        raise InputError(f"there is nothing for {layers} in {weights_name}; {advice}")
