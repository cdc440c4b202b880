"""The last step of every export: a torch module becomes an ONNX file that has been seen to compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autodial import __version__
from autodial.converters.image_input import ImageInput
from autodial.converters.precision import Agreement, Lowering, Precision, lower
from autodial.converters.runtime import cpu_session
from autodial.converters.triton import TritonModel
from autodial.data.image_statistics import Reference
from autodial.data.labels import tell_apart
from autodial.errors import InputError, WorkError
from autodial.model_file import ALPHA, CHANNELS, EXIF, KEY, MEAN_FILE, OUTPUTS, RESIZE, SCHEMA, check_written, to_text
from autodial.system.files import replacing

OPSET = 18
"""The opset that torch's exporter is written in; any other goes through a version converter."""
IR_VERSION = 8
"""What this opset came with: older runtimes than ours, such as ONNX Runtime 1.17, load it too."""
TOLERANCE = 1e-4
"""Largest difference between the exported and the unfolded net, as a part of the logits' range."""
BATCHES = (1, 2, 7)
"""Batch sizes at which the two are compared."""

Runner = Callable[[NDArray[Any]], Sequence[NDArray[Any]]]
"""What gives (logits, probabilities), float32 (N, classes) each, for N rows."""

_ORDERS = {channels: order for order, channels in CHANNELS.items()}
_TRAINING_ONLY = ("Dropout", "BatchNormalization")
LARGEST = 2**31 - 2**20
"""Bytes of weights beyond which a protobuf file, limited to 2 GiB, has no room left for the graph."""
ONNX_LIMIT = "an ONNX file holds at most 2 GiB, and so does the float32 file that fp16 and int8 are made of"


@dataclass(frozen=True)
class ExportReport:
    """What was exported, what was compared and how far off it was.

    Attributes:
        output: the file, or the folder of a form that has several.
        files: the size in bytes of each file that was written, by its name; in a Triton model repository by its path in
            the model's folder, which is the output.
        opset, ir_version: of the ONNX file; None for plain Caffe.
        input: name of its input: `image`, or the prototxt's blob with raw_input and for plain Caffe.
        logits: name of the blob that holds the logits; of a torch module, its class.
        metadata: the JSON object under the metadata key `autodial`.
        merged: names of the layers that folding removed, with the layer that took each in.
        kept: names of the layers that remain of folding, as Mul and Add nodes; as Scale layers in plain Caffe.
        compared_on: in words, what the rows are on which the net was compared, in float32, with the unfolded one.
        batches: the sizes of the batches in which they were compared.
        runtime: in words, what ran it.
        tolerance: the largest `relative_difference` with which a file is written.
        max_difference: largest absolute difference of a logit between what was exported and the unfolded net.
        logits_range: largest minus smallest logit of the unfolded net, over all compared rows.
        precision: of the weights and the computation.
        agreement: of a file of lower precision with the float32 file; None for float32.
        notes: what the user should know beside it, a sentence each.
    """

    output: Path
    files: dict[str, int]
    opset: int | None
    ir_version: int | None
    input: str
    logits: str
    metadata: dict[str, Any]
    merged: dict[str, str]
    kept: tuple[str, ...]
    compared_on: str
    batches: tuple[int, ...]
    runtime: str
    tolerance: float
    max_difference: float
    logits_range: float
    precision: Precision
    agreement: Agreement | None
    notes: tuple[str, ...]

    @property
    def file_size(self) -> int:
        """Bytes of all files together."""
        return sum(self.files.values())

    @property
    def relative_difference(self) -> float:
        """`max_difference` as a part of `logits_range`."""
        return self.max_difference / self.logits_range if self.max_difference else 0.0

    def record(self) -> dict[str, Any]:
        """All of it as values that JSON knows."""
        return {
            **asdict(self),
            "output": str(self.output),
            "file_size": self.file_size,
            "relative_difference": self.relative_difference,
        }


class Preprocess(nn.Module):
    """The images' transform in TEST, without the mirror: decoded images to the blob that the net reads.

    Input: uint8 (N, height, width, C). Output: float32 (N, C, h, w), the centre crop, (x - mean) * scale, the channels
    turned to RGB where the net wants it.
    """

    mean: Tensor | None
    order: Tensor | None
    channel_scale: Tensor | None

    def __init__(self, images: ImageInput) -> None:
        super().__init__()
        *_, crop_height, crop_width = images.shape
        top, left = (images.height - crop_height) // 2, (images.width - crop_width) // 2
        self.window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
        mean, channel_scale = images.transform.mean, images.channel_scale
        if mean is not None and mean.shape[1:] != (1, 1):
            mean = mean[self.window]
        # The bytes' channels are turned, being the fewest, so that what follows is in the net's order.
        turn = slice(None, None, -1 if images.rgb else 1)
        self.register_buffer("order", torch.tensor([2, 1, 0]) if images.rgb else None)
        self.register_buffer("mean", None if mean is None else torch.tensor(mean[turn].copy()))
        self.register_buffer(
            "channel_scale", None if channel_scale is None else torch.tensor(channel_scale[turn].copy())
        )
        self.scale = images.transform.scale

    def forward(self, image: Tensor) -> Tensor:
        if self.order is not None:
            image = image.index_select(3, self.order)
        x = image.permute(0, 3, 1, 2)[self.window].to(torch.float32)
        if self.mean is not None:
            x = x - self.mean
        if self.scale != 1:
            x = x * self.scale
        return x if self.channel_scale is None else x * self.channel_scale


class TargetPredictor(nn.Module):
    """A net from images to (logits, probabilities), float32 (N, classes) each.

    Args:
        net: from its input blob to its logits.
        preprocess: makes the input blob of the predictor's input; None takes the blob itself.
    """

    def __init__(self, net: nn.Module, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self.net = net
        self.preprocess = preprocess

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(image if self.preprocess is None else self.preprocess(image))
        return logits, logits.softmax(1)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What an exported file is held against.

    Attributes:
        unfolded: the net as it was trained, from its input blob to its logits, (N, classes).
        blobs: rows for the unfolded net, enough for every batch size of BATCHES.
        fed: the same rows as the file takes them.
        words: what they are.
    """

    unfolded: nn.Module
    blobs: Tensor
    fed: NDArray[Any]
    words: str


def write_verified(
    output: Path | TritonModel,
    predictor: nn.Module,
    comparison: Comparison,
    *,
    input_name: str,
    logits: str,
    metadata: dict[str, Any],
    merged: dict[str, str],
    kept: Sequence[str],
    notes: Sequence[str],
    lowering: Lowering | None = None,
    measure: Callable[[bytes], tuple[Reference | None, list[str]]] | None = None,
) -> ExportReport:
    """Export a predictor to ONNX, compare the file with the unfolded net, and write it if they agree.

    Args:
        output: the file to write, or the model to add a version to.
        predictor: from its input to (logits, probabilities), folded.
        comparison: with the unfolded net.
        input_name: the name of the file's input.
        logits, metadata, merged, kept, notes: of the report.
        lowering: the precision to give the file once it agrees; None for float32.
        measure: what the metadata keeps of training images, by the file to write; and more notes.

    Raises:
        WorkError: the exporter failed, or its result differs from the unfolded net; nothing was written.
        InputError: the weights don't fit into an ONNX file, or readers would refuse its metadata.
    """
    precision: Precision = "float32" if lowering is None else lowering.precision
    metadata = {**metadata, "precision": precision}
    check_written(metadata)
    model = _to_onnx(predictor, torch.from_numpy(comparison.fed[:2]), input_name, metadata)
    data: bytes = model.SerializeToString()
    difference, spread = verify(_onnx_runner(data), comparison, "ONNX Runtime")
    agreement = None
    if lowering is not None:
        model, agreement, more = lower(model, lowering, comparison.fed, comparison.words)
        notes = [*notes, *more]
        _set_metadata(model, metadata)
        _check(model, input_name, f"ONNX Runtime {onnxruntime.__version__}")
        data = model.SerializeToString()
    if measure is not None:
        reference, more = measure(data)
        notes = [*notes, *more]
        if reference is not None:
            metadata = {**metadata, "reference": reference.record()}
            _set_metadata(model, metadata)
            data = model.SerializeToString()
    if isinstance(output, TritonModel):
        files = output.add(model)
    else:
        files = {output.name: len(data)}
        with replacing(output) as file:
            file.write(data)
    return ExportReport(
        output=output.folder if isinstance(output, TritonModel) else output,
        files=files,
        opset=OPSET,
        ir_version=model.ir_version,
        input=input_name,
        logits=logits,
        metadata=metadata,
        merged=merged,
        kept=tuple(kept),
        compared_on=comparison.words,
        batches=BATCHES,
        runtime=f"ONNX Runtime {onnxruntime.__version__} on the CPU",
        tolerance=TOLERANCE,
        max_difference=difference,
        logits_range=spread,
        precision=precision,
        agreement=agreement,
        notes=tuple(notes),
    )


def make_metadata(
    classes: Sequence[str],
    images: ImageInput | None,
    window: Sequence[int],
    statistics: str | None,
    weights_sha256: str,
) -> dict[str, Any]:
    """The JSON object of the metadata key `autodial`: see `autodial.model_file`.

    Args:
        classes: names, in the order of the logits.
        images: what the file takes; None for a raw blob.
        window: shape (N, C, h, w) of what the net itself sees of them.
        statistics: domain of the statistics that are folded in, "mixed" or None, as in `Folded`.
        weights_sha256: by `digest`.
    """
    return {
        "schema": SCHEMA,
        "classes": list(classes),
        **_describe_input(images, window),
        "statistics": statistics,
        "weights_sha256": weights_sha256,
        "version": __version__,
    }


def _describe_input(images: ImageInput | None, window: Sequence[int]) -> dict[str, Any]:
    """The metadata about the input: `images`, cut to `window` (N, C, h, w) in the file, or None for a raw blob."""
    if images is None:
        order = _ORDERS.get(window[1]) if len(window) == 4 else None
        rest = dict.fromkeys(("size", "resize", "crop", "exif", "alpha"))
        return {**rest, "mean": [], "scale": 1.0, "channel_order": order, "raw_input": True}
    size, mean = [images.height, images.width], images.transform.mean
    factors = images.channel_scale
    crop = list(window[2:])
    return {
        "size": size,
        "resize": RESIZE,
        "crop": crop if crop != size else None,
        "exif": EXIF,
        "alpha": ALPHA,
        "mean": [] if mean is None else mean.ravel().tolist() if mean.shape[1:] == (1, 1) else MEAN_FILE,
        "scale": images.transform.scale if factors is None else (images.transform.scale * factors).ravel().tolist(),
        "channel_order": _ORDERS[images.channels],
        "raw_input": False,
    }


def digest(weights: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """SHA-256, in hexadecimal digits, of named weights: names, shapes and float32 values, in their order."""
    sha = hashlib.sha256()
    for name, values in weights:
        sha.update(f"{name}\0{values.shape}\0".encode())
        sha.update(np.ascontiguousarray(values, "<f4").data)
    return sha.hexdigest()


def note_repeated(classes: Sequence[str], where: str) -> list[str]:
    """A note on classes that have one name, and so get their numbers behind it, where there are any."""
    of_name: dict[str, list[str]] = {}
    for name, told in zip(classes, tell_apart(classes), strict=True):
        of_name.setdefault(name, []).append(told)
    repeated = [f'"{name}" ({", ".join(told)})' for name, told in of_name.items() if len(told) > 1]
    return [f"{where} names several classes alike, which get their numbers: {', '.join(repeated)}"] if repeated else []


def check_size(sizes: Mapping[str, int], limit: str) -> None:
    """Raise InputError for more weights than one file can hold.

    Args:
        sizes: bytes of weights in float32, by the names of what they belong to.
        limit: what the file can hold, as a sentence's end.
    """
    size = sum(sizes.values())
    if size > LARGEST:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"the weights take {size / 2**30:.2f} GiB, {sizes[largest] / 2**30:.2f} of them for {largest}, and {limit}"
        )


def _to_onnx(predictor: nn.Module, example: Tensor, input_name: str, metadata: dict[str, Any]) -> onnx.ModelProto:
    """The ONNX file of a predictor, checked for what every reader of it relies on; raises WorkError."""
    held = {tensor.data_ptr(): (name, tensor.nbytes) for name, tensor in predictor.state_dict().items()}  # tied: once
    check_size(dict(held.values()), ONNX_LIMIT)
    try:
        program = torch.onnx.export(
            predictor.eval(),
            (example,),
            input_names=[input_name],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise WorkError(f"torch.onnx can't export the folded net: {reason}") from error
    assert program is not None, "dynamo=True returns a program"
    model = program.model_proto
    _strip(model)
    model.ir_version = IR_VERSION  # the exporter's own is of what was stripped
    _set_metadata(model, metadata)
    _check(model, input_name, f"torch {torch.__version__}")
    return model


def _set_metadata(model: onnx.ModelProto, metadata: dict[str, Any]) -> None:
    onnx.helper.set_model_props(model, {KEY: to_text(metadata)})


def _strip(model: onnx.ModelProto) -> None:
    """Remove what the exporter notes for its developers: stack traces, with paths of this machine, and class names."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _check(model: onnx.ModelProto, input_name: str, writer: str) -> None:
    """Raise WorkError for a file that is not what its readers were promised; `writer` made it."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise WorkError(f"{writer} wrote an ONNX graph that is not valid: {error}") from error
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets != {"": OPSET} or model.ir_version > IR_VERSION:
        raise WorkError(
            f"{writer} wrote opsets {opsets} and IR version {model.ir_version}; for older ONNX Runtimes to read the "
            f"file, too, it must be opset {OPSET} alone and IR version {IR_VERSION} at most"
        )
    training = [node.op_type for node in model.graph.node if node.op_type in _TRAINING_ONLY]
    if training:
        raise WorkError(f"{training[0]} is left in the exported graph, which an inference graph must not hold")
    ends = [("input", value) for value in model.graph.input] + [("output", value) for value in model.graph.output]
    if [value.name for _, value in ends] != [input_name, *OUTPUTS]:
        raise WorkError(f"{writer} named the graph's ends {', '.join(value.name for _, value in ends)}")
    for end, value in ends:
        if value.type.tensor_type.shape.dim[0].dim_param != "batch":
            raise WorkError(f'{end} "{value.name}" has a fixed batch size, as a layer does not take every batch')


def verify(run: Runner, comparison: Comparison, reader: str) -> tuple[float, float]:
    """Run what was exported and the unfolded net at each batch size.

    Args:
        run: gives (logits, probabilities), float32 (N, classes) each, for rows of `comparison.fed`.
        comparison: with the unfolded net.
        reader: what runs it, in words.

    Returns:
        largest absolute difference of a logit, and the range of the unfolded net's.

    Raises:
        WorkError: they differ by more than TOLERANCE of that range, a logit of the unfolded net is not finite, or the
            probabilities are not the softmax of the logits.
    """
    results, expected, start = [], [], 0
    for size in BATCHES:
        rows = slice(start, start + size)
        start += size
        results.append(run(comparison.fed[rows]))
        with torch.no_grad():
            expected.append(comparison.unfolded(comparison.blobs[rows]).numpy())
    ours, probabilities = (np.concatenate(parts) for parts in zip(*results, strict=True))
    theirs = np.concatenate(expected)
    if not np.isfinite(theirs).all():
        raise WorkError("nothing was written: the unfolded net's logits are not finite, so the weights are of no use")
    softmax = torch.from_numpy(ours).softmax(1).numpy()
    if not np.allclose(probabilities, softmax, rtol=0, atol=1e-5):
        raise WorkError(f"nothing was written: {reader}'s probabilities are not the softmax of its logits")
    difference, spread = float(np.abs(ours - theirs).max()), float(theirs.max() - theirs.min())
    if not difference <= TOLERANCE * spread:
        raise WorkError(
            f"nothing was written: {reader}'s logits differ from the unfolded net's by {difference:.3g}, more than "
            f"{TOLERANCE:g} of their range {spread:.3g} (on {comparison.words})"
        )
    return difference, spread


def _onnx_runner(model: bytes) -> Runner:
    """An ONNX file in ONNX Runtime, on the CPU."""
    try:
        session = cpu_session(model)
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise WorkError(f"nothing was written: ONNX Runtime can't load the exported net: {error}") from error
    name = session.get_inputs()[0].name
    return lambda fed: session.run(OUTPUTS, {name: fed})
