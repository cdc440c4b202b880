"""Export of a trained net as an ONNX file that takes decoded images and gives logits and probabilities.

The file holds the target predictor: the TEST phase up to the logits with its statistics folded away, and in front of it
the crop, the mean and the scale of the TEST phase's ImageData layer. Before the file gets its name, ONNX Runtime runs
it beside the unfolded torch net.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import autodial
from autodial.converters.fold import Folded, check_frozen, fold
from autodial.converters.image_input import ImageInput
from autodial.errors import InputError, WorkError
from autodial.graph import Graph
from autodial.net import Net
from autodial.net_state import filter_net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb
from autodial.proto.files import replacing

SCHEMA = 1
"""Version of the metadata's form."""
OPSET = 18
"""The opset that torch's exporter is written in; any other goes through a version converter."""
IR_VERSION = 10
"""The newest that the oldest supported ONNX Runtime, 1.20, can load."""
TOLERANCE = 1e-4
"""Largest difference between the exported and the unfolded net, as a part of the logits' range."""
BATCHES = (1, 2, 7)
"""Batch sizes at which the two are compared."""

_TRAINING_ONLY = ("Dropout", "BatchNormalization")
_LARGEST = 2**31 - 2**20
"""Bytes of weights beyond which a protobuf file, limited to 2 GiB, has no room left for the graph."""


@dataclass(frozen=True)
class ExportReport:
    """What was exported, what was compared and how far off it was.

    Attributes:
        output: the file.
        input: name of its input: `image`, or with raw_input the prototxt's blob.
        logits: name of the blob that holds the logits.
        metadata: the JSON object under the metadata key `autodial`.
        merged: names of the layers that folding removed, with the layer that took each in.
        kept: names of the Scale layers that remain, as Mul and Add nodes.
        compared_on: in words, what the compared rows are.
        max_difference: largest absolute difference of a logit between ONNX Runtime and the unfolded net.
        logits_range: largest minus smallest logit of the unfolded net, over all compared rows.
        notes: what the user should know beside it, a sentence each.
    """

    output: Path
    input: str
    logits: str
    metadata: dict[str, Any]
    merged: dict[str, str]
    kept: tuple[str, ...]
    compared_on: str
    max_difference: float
    logits_range: float
    notes: tuple[str, ...]

    @property
    def relative_difference(self) -> float:
        """`max_difference` as a part of `logits_range`."""
        return self.max_difference / self.logits_range if self.max_difference else 0.0


class Preprocess(nn.Module):
    """An ImageData layer's transform in TEST, without the mirror: decoded images to the blob that the net reads.

    Input: uint8 (N, height, width, C). Output: float32 (N, C, h, w), the centre crop, (x - mean) * scale.
    """

    mean: Tensor | None

    def __init__(self, images: ImageInput) -> None:
        super().__init__()
        *_, crop_height, crop_width = images.shape
        top, left = (images.height - crop_height) // 2, (images.width - crop_width) // 2
        self.window = (..., slice(top, top + crop_height), slice(left, left + crop_width))
        mean = images.transform.mean
        if mean is not None and mean.shape[1:] != (1, 1):
            mean = mean[self.window]
        self.register_buffer("mean", None if mean is None else torch.tensor(mean))
        self.scale = images.transform.scale

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(0, 3, 1, 2)[self.window].to(torch.float32)
        if self.mean is not None:
            x = x - self.mean
        return x if self.scale == 1 else x * self.scale


class TargetPredictor(nn.Module):
    """A folded net from its input to (logits, probabilities), float32 (N, classes) each.

    Args:
        net: with one input blob.
        logits: name of the blob that holds the logits, (N, classes) or (N, classes, 1, 1).
        preprocess: makes the input blob of the predictor's input; None takes the blob itself.
    """

    def __init__(self, net: Net, logits: str, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self.net = net
        self.logits = logits
        self.preprocess = preprocess

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        (blob,) = self.net.inputs
        x = image if self.preprocess is None else self.preprocess(image)
        logits = self.net.blobs({blob: x}, [self.logits])[self.logits].flatten(1)
        return logits, logits.softmax(1)


def export(
    net_param: Any,
    weights: Weights,
    output: Path,
    *,
    logits: str | None = None,
    labels: Path | None = None,
    keep_affine: bool = False,
    raw_input: bool = False,
    base_dir: Path | None = None,
) -> ExportReport:
    """Fold a net, export it to ONNX and compare the file with the unfolded net; if they differ, nothing is written.

    The input is `image`, uint8 (batch, H, W, C), BGR or grey; the outputs are `logits` and `probabilities`, float32
    (batch, classes). The metadata key `autodial` holds a JSON object: schema, classes, size, resize, crop, mean, scale,
    channel_order, exif, raw_input, statistics, weights_sha256 and version.

    Args:
        net_param: NetParameter of a train_val net whose TEST phase reads an ImageData layer, or, with `raw_input`, of
            a deploy net with an Input layer.
        weights: a caffemodel with every layer that has parameters.
        output: the file to write; its folder must exist.
        logits: name of the logits' blob; None: what the TEST phase's SoftmaxWithLoss, Accuracy or Softmax layer reads.
        labels: text file with one class name per line; None: labels.txt in `base_dir` if it has as many lines as
            there are classes, else the names are "0", "1", ...
        keep_affine: leave the folded statistics as Mul and Add nodes instead of merging them into weights.
        raw_input: take the net's input blob, float32 (batch, C, h, w), under its own name: what the ImageData layer,
            and a Crop layer right behind it, make of an image.
        base_dir: folder of the prototxt.

    Raises:
        InputError: the net, the weights or the labels can't be exported as asked.
        WorkError: the exporter failed, or its result differs from the unfolded net.
    """
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"{output} can't be written: name a file in a folder that exists")
    graph = Graph(filter_net(net_param, pb.TEST).layer)
    scores = graph.logits(logits)
    for node in graph.ancestors(scores):
        check_frozen(node.param)
    data, start = _data(graph, scores)
    images = _image_input(data, net_param, raw_input, base_dir)
    shape = images.shape if images else _input_shape(data, graph.names[start])
    graph.feed(start, (1, *shape[1:]))

    # What a raw input leaves to whoever feeds it is the front; the rest is folded and exported.
    cropped = _behind_crop(graph, start)
    entry = cropped if raw_input else start
    front = Net(graph.net(net_param.name, entry), pb.TEST)
    graph.feed(entry, front.blob_shapes[graph.names[entry]])
    unfolded = Net(graph.net(net_param.name, scores), pb.TEST)
    _load(unfolded, weights)
    classes, notes = _class_names(labels, _class_count(unfolded, graph.names[scores]), base_dir)
    if data.transform_param.mirror:
        notes.append(f'layer "{data.name}" mirrors at random in TEST too, as Caffe does; the exported file does not')

    folded = fold(
        graph.net(net_param.name, scores),
        {name: [blob.detach().numpy() for blob in unfolded.layer(name).blobs] for name in unfolded.layer_names},
        logits=graph.names[scores],
        keep_affine=keep_affine,
    )
    window = unfolded.blob_shapes[graph.names[cropped]]
    metadata = {
        "schema": SCHEMA,
        "classes": classes,
        **_describe_input(None if raw_input else images, window),
        "statistics": folded.statistics,
        "weights_sha256": _digest(weights),
        "version": autodial.__version__,
    }
    preprocess = Preprocess(images) if images and not raw_input else None
    predictor = TargetPredictor(_deployed(folded), folded.logits, preprocess)
    input_name = graph.names[entry] if raw_input else "image"
    samples, compared_on = _samples(images, shape)
    blobs = torch.from_numpy(images.blob(samples) if images else samples)
    with torch.no_grad():
        (blobs,) = front({graph.names[start]: blobs}).values()
    fed = blobs.numpy() if raw_input else samples
    model = _to_onnx(predictor, torch.from_numpy(fed[:2]), input_name, metadata)
    difference, spread = _compare(model, fed, unfolded, blobs, graph.names[scores])
    if not difference <= TOLERANCE * spread:
        raise WorkError(
            f"nothing was written: ONNX Runtime's logits differ from the unfolded net's by {difference:.3g}, more than "
            f"{TOLERANCE:g} of their range {spread:.3g} (on {compared_on})"
        )
    with replacing(output) as file:
        file.write(model)
    return ExportReport(
        output=output,
        input=input_name,
        logits=graph.names[scores],
        metadata=metadata,
        merged=folded.merged,
        kept=folded.kept,
        compared_on=compared_on,
        max_difference=difference,
        logits_range=spread,
        notes=tuple(notes),
    )


def _data(graph: Graph, scores: int) -> tuple[Any, int]:
    """The one layer that brings the logits' images (its LayerParameter), and the value that it makes of them."""
    nodes = graph.ancestors(scores)
    read = {value for node in nodes for value in node.bottoms}
    found = [
        (node.param, value)
        for node in nodes
        if not node.bottoms and node.param.type != "DummyData"
        for value in node.tops
        if value in read
    ]
    if len(found) != 1:
        names = ", ".join(graph.names[value] for _, value in found) or "none"
        raise InputError(
            f'the logits "{graph.names[scores]}" must depend on one blob of a data layer, and depend on {names}'
        )
    layer, value = found[0]
    if layer.type not in ("ImageData", "Input"):
        raise InputError(
            f'layer "{layer.name}" ({layer.type}): export takes images from an ImageData layer, or with --raw-input a '
            "blob from an Input layer; describe the TEST phase's input as one of them"
        )
    return layer, value


def _image_input(layer: Any, net_param: Any, raw_input: bool, base_dir: Path | None) -> ImageInput | None:
    """The images of an ImageData layer; None for an Input layer, which says nothing about images."""
    if layer.type == "ImageData":
        others = [other for other in net_param.layer if other.type == "ImageData" and other.name != layer.name]
        return ImageInput.from_caffe(layer, others, base_dir)
    if not raw_input:
        raise InputError(
            f'layer "{layer.name}" (Input) does not say how an image becomes its blob (mean, scale, crop): export the '
            "train_val net, or use --raw-input for a file that takes the blob itself"
        )
    return None


def _input_shape(layer: Any, top: str) -> tuple[int, ...]:
    """The shape that an Input layer states for a top."""
    shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
    if len(shapes) not in (1, len(layer.top)):
        raise InputError(f'layer "{layer.name}" (Input) has {len(layer.top)} tops and {len(shapes)} shapes')
    return shapes[list(layer.top).index(top) if len(shapes) > 1 else 0]


def _behind_crop(graph: Graph, value: int) -> int:
    """What a Crop layer makes of a value that nothing else reads; the value itself where there is none."""
    readers = graph.consumers(value)
    if len(readers) == 1 and readers[0].param.type == "Crop" and readers[0].bottoms[0] == value:
        return readers[0].tops[0]
    return value


def _load(net: Net, weights: Weights) -> None:
    """Load weights that must hold every layer with parameters; raises InputError."""
    missing = net.load_weights(weights)
    if missing:
        raise InputError(
            f"the weights hold nothing for {'layer' if len(missing) == 1 else 'layers'} {', '.join(missing)}: "
            "they were not trained with this net"
        )


def _deployed(folded: Folded) -> Net:
    """The folded net with its blobs."""
    net = Net(folded.net, pb.TEST)
    layers = [LayerWeights(layer, folded.blobs.get(layer.name, [])) for layer in folded.net.layer]
    _load(net, Weights(folded.net.name, layers))
    return net


def _class_count(net: Net, logits: str) -> int:
    shape = net.blob_shapes[logits]
    if len(shape) < 2 or any(length != 1 for length in shape[2:]):
        raise InputError(f'blob "{logits}" of shape {shape} can\'t be logits, one value per class: see --logits')
    return shape[1]


def _class_names(labels: Path | None, count: int, base_dir: Path | None) -> tuple[list[str], list[str]]:
    """The classes' names, and notes on where they come from."""
    if labels is not None:
        names = read_labels(labels)
        if len(names) != count:
            raise InputError(f"{labels} names {len(names)} classes and the logits have {count}")
        return names, []
    beside = (base_dir or Path()) / "labels.txt"
    if not beside.is_file():
        return [str(i) for i in range(count)], ["the classes are named by their numbers: --labels FILE gives names"]
    names = read_labels(beside)
    if len(names) == count:
        return names, [f"the classes' names are those of {beside}"]
    return [str(i) for i in range(count)], [
        f"the classes are named by their numbers: {beside} has {len(names)} names for {count} classes"
    ]


def read_labels(path: Path) -> list[str]:
    """Class names, one per line of a text file in UTF-8; blank lines at its end are skipped.

    Raises:
        InputError: the file can't be read, has no names, or a blank line between them.
    """
    try:
        names = [line.strip() for line in path.read_text("utf-8-sig").rstrip().splitlines()]
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8") from None
    if not names:
        raise InputError(f"{path} names no classes: write one name per line")
    if "" in names:
        raise InputError(f"{path}:{names.index('') + 1}: the line is blank where a class name belongs")
    return names


def _describe_input(images: ImageInput | None, window: Sequence[int]) -> dict[str, Any]:
    """The metadata about the input: `images`, cut to `window` (N, C, h, w) in the file, or None for a raw blob."""
    if images is None:
        order = {1: "GRAY", 3: "BGR"}.get(window[1]) if len(window) == 4 else None
        rest = dict.fromkeys(("size", "resize", "crop", "exif"))
        return {**rest, "mean": [], "scale": 1.0, "channel_order": order, "raw_input": True}
    size, mean = [images.height, images.width], images.transform.mean
    crop = list(window[2:])
    return {
        "size": size,
        "resize": "bilinear",
        "crop": crop if crop != size else None,
        "exif": "apply",
        "mean": [] if mean is None else mean.ravel().tolist() if mean.shape[1:] == (1, 1) else "mean_file",
        "scale": images.transform.scale,
        "channel_order": "GRAY" if images.channels == 1 else "BGR",
        "raw_input": False,
    }


def _digest(weights: Weights) -> str:
    """SHA-256 of all blobs: their layers' names, indices, shapes and float32 values, in the file's order."""
    digest = hashlib.sha256()
    for layer in weights.layers:
        for i, blob in enumerate(layer.blobs):
            if blob is None:  # shared, and held by the layer that owns it
                continue
            digest.update(f"{layer.name}\0{i}\0{blob.shape}\0".encode())
            digest.update(np.ascontiguousarray(blob, "<f4").data)
    return digest.hexdigest()


def _samples(images: ImageInput | None, shape: Sequence[int]) -> tuple[NDArray[Any], str]:
    """Rows for the comparison, enough for every batch size, and in words what they are.

    They are uint8 images where the net reads images, else float32 rows of an Input layer's shape.
    """
    count = sum(BATCHES)
    if images is not None:
        return images.sample(count)
    noise = np.random.default_rng(0).integers(0, 256, (count, *shape[1:]), dtype=np.uint8)
    return noise.astype(np.float32), "random blobs of whole numbers from 0 to 255"


def _to_onnx(predictor: TargetPredictor, example: Tensor, input_name: str, metadata: dict[str, Any]) -> bytes:
    """The ONNX file of a predictor, checked for what every reader of it relies on; raises WorkError."""
    size = sum(tensor.nbytes for tensor in predictor.state_dict().values())
    if size > _LARGEST:
        raise InputError(f"the folded weights take {size / 2**30:.1f} GiB, and an ONNX file holds at most 2 GiB")
    try:
        program = torch.onnx.export(
            predictor.eval(),
            (example,),
            input_names=[input_name],
            output_names=["logits", "probabilities"],
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
    onnx.helper.set_model_props(model, {"autodial": json.dumps(metadata)})
    _check(model, input_name)
    data: bytes = model.SerializeToString()
    return data


def _strip(model: onnx.ModelProto) -> None:
    """Remove what the exporter notes for its developers: stack traces, with paths of this machine, and class names."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _check(model: onnx.ModelProto, input_name: str) -> None:
    """Raise WorkError for a file that is not what its readers were promised."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise WorkError(f"torch {torch.__version__} wrote an ONNX graph that is not valid: {error}") from error
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets != {"": OPSET} or model.ir_version > IR_VERSION:
        raise WorkError(
            f"torch {torch.__version__} wrote opsets {opsets} and IR version {model.ir_version}; for every supported "
            f"ONNX Runtime to read the file, it must be opset {OPSET} alone and IR version {IR_VERSION} at most"
        )
    training = [node.op_type for node in model.graph.node if node.op_type in _TRAINING_ONLY]
    if training:
        raise WorkError(f"{training[0]} is left in the exported graph, which an inference graph must not hold")
    ends = [("input", value) for value in model.graph.input] + [("output", value) for value in model.graph.output]
    if [value.name for _, value in ends] != [input_name, "logits", "probabilities"]:
        raise WorkError(f"torch named the graph's ends {', '.join(value.name for _, value in ends)}")
    for end, value in ends:
        if value.type.tensor_type.shape.dim[0].dim_param != "batch":
            raise WorkError(f'{end} "{value.name}" has a fixed batch size, as a layer does not take every batch')


def _compare(model: bytes, fed: NDArray[Any], unfolded: Net, blobs: Tensor, logits: str) -> tuple[float, float]:
    """Run a file in ONNX Runtime, on the CPU, and the unfolded net at each batch size.

    Args:
        fed: rows for the file.
        blobs: the same rows as the unfolded net takes them.

    Returns:
        largest absolute difference of a logit, and the range of the unfolded net's.

    Raises:
        WorkError: a logit of the unfolded net is not finite, or the probabilities are not the softmax of the logits.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise WorkError(f"nothing was written: ONNX Runtime can't load the exported net: {error}") from error
    (blob,) = unfolded.inputs
    results, expected, start = [], [], 0
    for size in BATCHES:
        rows = slice(start, start + size)
        start += size
        results.append(session.run(["logits", "probabilities"], {session.get_inputs()[0].name: fed[rows]}))
        with torch.no_grad():
            expected.append(unfolded.blobs({blob: blobs[rows]}, [logits])[logits].flatten(1).numpy())
    ours, probabilities = (np.concatenate(parts) for parts in zip(*results, strict=True))
    theirs = np.concatenate(expected)
    if not np.isfinite(theirs).all():
        raise WorkError("nothing was written: the unfolded net's logits are not finite, so the weights are of no use")
    softmax = torch.from_numpy(ours).softmax(1).numpy()
    if not np.allclose(probabilities, softmax, rtol=0, atol=1e-5):
        raise WorkError("nothing was written: ONNX Runtime's probabilities are not the softmax of its logits")
    return float(np.abs(ours - theirs).max()), float(theirs.max() - theirs.min())
