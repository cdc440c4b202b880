"""Writes a folded net as an ONNX model, and checks that it computes what the unfolded net computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autodial.converters.image_input import ImageInput
from autodial.converters.onnx_description import describe_model
from autodial.converters.onnx_weights import SMALL, weights_path, write_weights
from autodial.converters.precision import Precision, lower
from autodial.converters.prepared import Prepared, check_size, exceeds
from autodial.converters.runtime import cpu_session
from autodial.converters.verification import ExportReport, Runner, verify
from autodial.errors import WorkError
from autodial.model_file import OUTPUTS, check_written

OPSET = 18
"""The opset that torch's exporter is written in; any other goes through a version converter."""
IR_VERSION = 8
"""The IR version of ONNX 1.13, which introduced this opset; older runtimes such as ONNX Runtime 1.17 load it, too."""
_TRAINING_ONLY = ("Dropout", "BatchNormalization")


class Preprocess(nn.Module):
    """The TEST phase's transform, without the mirror, as a module: from decoded images to the net's input blob.

    Input: uint8 (N, height, width, C). Output: float32 (N, C, h, w), the centre crop, (x - mean) * scale, with RGB
    channels if the net reads RGB.
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
        # Channels are reordered while they are bytes, which is cheapest; the rest is in the net's order.
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
        preprocess: makes the input blob from images; None: the predictor takes the blob itself.
    """

    def __init__(self, net: nn.Module, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self.net = net
        self.preprocess = preprocess

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(image if self.preprocess is None else self.preprocess(image))
        return logits, logits.softmax(1)


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """An ONNX model of a predictor, which nothing was compared with yet.

    Attributes:
        proto: the model, without `weights`.
        weights: what a second file is to hold, by the names of the initializers; empty where one file holds all.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class VerifiedModel:
    """An ONNX model that agrees with the unfolded net.

    Attributes:
        proto: the model.
        data: the model's bytes; those of its first file if there are two.
        report: makes the report, given the output path and its files' sizes in bytes by name.
    """

    proto: onnx.ModelProto
    data: bytes
    report: Callable[[Path, dict[str, int]], ExportReport]


def make_verified(net: Prepared) -> VerifiedModel:
    """Export a predictor to one ONNX file in memory, and compare it with the unfolded net.

    Raises:
        WorkError: the exporter failed, or its model differs from the unfolded net.
        InputError: the weights don't fit into an ONNX file, or readers would refuse its metadata.
    """
    return verified(net, to_onnx(net, "one ONNX file holds at most 2 GiB"))


def to_onnx(net: Prepared, limit: str | None) -> ExportedModel:
    """Export a predictor to ONNX.

    Args:
        limit: as in `check_size`; None: weights above 2 GiB are kept apart, for a second file.

    Raises:
        WorkError: the exporter failed.
        InputError: the weights exceed the limit.
    """
    predictor = net.make_predictor()
    held = {tensor.data_ptr(): (name, tensor.nbytes) for name, tensor in predictor.state_dict().items()}  # tied: once
    sizes = dict(held.values())
    check_size(sizes, limit)
    try:
        program = torch.onnx.export(
            predictor.eval(),
            (torch.from_numpy(net.comparison.fed[:2]),),
            input_names=[net.input],
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
    weights = _taken_out(program) if exceeds(sizes) else {}
    model = program.model_proto
    _strip(model)
    model.ir_version = IR_VERSION  # the exporter's own is of what was stripped
    return ExportedModel(model, weights)


def verified(net: Prepared, exported: ExportedModel, path: Path | None = None) -> VerifiedModel:
    """Give a model its precision and its metadata, and compare it with the unfolded net.

    Args:
        exported: the net's, from `to_onnx`.
        path: where the model is written, in a folder for nothing else, before ONNX Runtime reads it; needed if the
            model has weights for a second file, which is written, too.

    Raises:
        WorkError: the model differs from the unfolded net.
        InputError: readers would refuse the metadata.
    """
    lowering, comparison, model = net.lowering, net.comparison, exported.proto
    precision: Precision = "float32" if lowering is None else lowering.precision
    metadata = {**net.metadata, "precision": precision}
    check_written(metadata)
    notes: list[str] = []
    if path is not None and exported.weights:
        second = weights_path(path)
        model.graph.initializer.extend(write_weights(exported.weights, second))
        notes.append(
            f"the weights take {second.stat().st_size / 2**30:.2f} GiB, and an ONNX file holds at most 2 GiB: they lie "
            f"in {second.name}, so keep both files together, under these names"
        )
    describe_model(model, metadata, net.license)
    file = _readable(model, path)
    _check(model, file, net.input, f"torch {torch.__version__}")
    found = verify(_onnx_runner(file), comparison, "ONNX Runtime")
    agreement, notes = None, [*found.notes, *notes]
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    if lowering is not None:
        model, agreement, more = lower(model, lowering, comparison.fed, comparison.words)
        notes += more
        describe_model(model, metadata, net.license)
        file = _readable(model, path)
        _check(model, file, net.input, runtime)
    if net.measure is not None:
        reference, more = net.measure(file)
        notes += more
        if reference is not None:
            metadata = {**metadata, "reference": reference.record()}
            describe_model(model, metadata, net.license)
            file = _readable(model, path)
    report = partial(
        net.report,
        runtime=f"{runtime} on the CPU",
        max_difference=found.difference,
        logits_range=found.spread,
        metadata=metadata,
        opset=OPSET,
        ir_version=model.ir_version,
        precision=precision,
        agreement=agreement,
        notes=notes,
    )
    return VerifiedModel(model, Path(file).read_bytes() if isinstance(file, str) else file, report)


def _taken_out(program: torch.onnx.ONNXProgram) -> dict[str, NDArray[np.generic]]:
    """The program's larger weights by name, which the program's graph still reads and no longer holds."""
    initializers = program.model.graph.initializers
    weights = {
        name: value.const_value.numpy()
        for name, value in initializers.items()
        if value.const_value is not None and value.const_value.nbytes > SMALL
    }
    for name in weights:
        del initializers[name]
    return weights


def _readable(model: onnx.ModelProto, path: Path | None) -> bytes | str:
    """The model as ONNX's checker and ONNX Runtime read it: its bytes or, once it is written there, its path."""
    data: bytes = model.SerializeToString()
    if path is None:
        return data
    path.write_bytes(data)
    return str(path)


def _strip(model: onnx.ModelProto) -> None:
    """Remove the exporter's debug notes: stack traces with this machine's paths, and class names."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _check(model: onnx.ModelProto, file: bytes | str, input_name: str, writer: str) -> None:
    """Raise WorkError if a model that `writer` made, and `file` holds, is not what its readers rely on."""
    try:
        onnx.checker.check_model(file, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise WorkError(f"{writer} wrote an ONNX graph that is not valid: {error}") from error
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets != {"": OPSET} or model.ir_version > IR_VERSION:
        raise WorkError(
            f"{writer} wrote opsets {opsets} and IR version {model.ir_version}; older ONNX Runtimes read "
            f"opset {OPSET} alone and IR version {IR_VERSION} at most"
        )
    training = [node.op_type for node in model.graph.node if node.op_type in _TRAINING_ONLY]
    if training:
        raise WorkError(f"{training[0]} is left in the exported graph, and belongs in training alone")
    ends = [("input", value) for value in model.graph.input] + [("output", value) for value in model.graph.output]
    if [value.name for _, value in ends] != [input_name, *OUTPUTS]:
        raise WorkError(f"{writer} named the graph's ends {', '.join(value.name for _, value in ends)}")
    for end, value in ends:
        if value.type.tensor_type.shape.dim[0].dim_param != "batch":
            raise WorkError(f'{end} "{value.name}" has a fixed batch size, as a layer does not take every batch')


def _onnx_runner(model: bytes | str) -> Runner:
    """Runs a serialized model, or the file at a path, in ONNX Runtime on the CPU."""
    try:
        session = cpu_session(model)
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise WorkError(f"nothing was written: ONNX Runtime can't load the exported net: {error}") from error
    name = session.get_inputs()[0].name
    return lambda fed: session.run(OUTPUTS, {name: fed})
