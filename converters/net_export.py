"""Export of a trained Caffe net: folded, written to a destination, and compared with the unfolded net.

An ONNX file holds the target predictor: the TEST phase up to the logits with its statistics folded away, and in front
of it the crop, the mean and the scale of the TEST phase's ImageData layer. Before the file gets its name, ONNX Runtime
runs it beside the unfolded torch net.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autodial.converters.class_names import read_class_names
from autodial.converters.destinations import Destination, ExportOptions, as_destination
from autodial.converters.fold import Folded, check_frozen, fold
from autodial.converters.image_input import ImageInput
from autodial.converters.metadata import make_metadata, weights_digest
from autodial.converters.onnx_file import Preprocess, TargetPredictor
from autodial.converters.precision import Precision, plan_lowering
from autodial.converters.prepared import FoldedNet, Prepared, check_size, load
from autodial.converters.reference import Progress, TrainingImages, measure
from autodial.converters.verification import BATCHES, Comparison, ExportReport
from autodial.errors import InputError
from autodial.evaluation.domains import has_target_batch_norm
from autodial.model_file import INPUT, Domain
from autodial.net.net import Net
from autodial.netparam.graph import Graph, Node
from autodial.netparam.layer_types import NO_IMAGES
from autodial.netparam.net_state import filter_net
from autodial.netparam.variants import warn_of_lost_alignment
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb
from autodial.wording import counted


class NetLogits(nn.Module):
    """A net from its one input blob to its logits, float32 (N, classes).

    Args:
        net: with one input blob.
        logits: name of the blob that holds the logits, (N, classes) or (N, classes, 1, 1).
    """

    def __init__(self, net: Net, logits: str) -> None:
        super().__init__()
        self.net = net
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        (blob,) = self.net.inputs
        return self.net.blobs({blob: x}, [self.logits])[self.logits].flatten(1)


class MeanLogits(nn.Module):
    """An ensemble: logits whose softmax is the mean of the members' probabilities.

    The logits are the log of the mean probability, which the log of a sum of exponentials gives without underflow.

    Args:
        members: from the same input to logits, float32 (N, classes).
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        logs = torch.stack([member(x).log_softmax(1) for member in self.members])
        return logs.logsumexp(0) - log(len(self.members))


def export(
    net_param: pb.NetParameter,
    weights: Weights | Sequence[Weights],
    output: str | Path | Destination,
    *,
    logits: str | None = None,
    labels: Path | None = None,
    keep_affine: bool = False,
    raw_input: bool = False,
    domain: Domain | None = None,
    precision: Precision = "float32",
    calibration: Path | None = None,
    min_agreement: float | None = None,
    transform: pb.TransformationParameter | None = None,
    size: tuple[int, int] | None = None,
    license: str | None = None,
    base_dir: Path | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Fold a net, compare its exported form with the unfolded net, and write it if they agree.

    An ONNX file takes and gives what `autodial.model_file` says: `image`, uint8 (batch, H, W, C), BGR or grey; `logits`
    and `probabilities`, float32 (batch, classes).

    Args:
        net_param: NetParameter of a train_val net whose TEST phase reads an ImageData layer, or, with `raw_input`, of
            a deploy net with an Input layer. With `transform` or `size` a deploy net's file takes images, too.
        weights: a caffemodel with every layer that has parameters; several caffemodels make an ensemble, a file that
            averages the probabilities of the net with each. Its logits are the log of the mean probabilities.
        output: the ONNX file to write, whose folder must exist, or another destination.
        logits, labels, keep_affine, raw_input, domain, precision, calibration, min_agreement, transform, size, license,
            base_dir: see `autodial.converters.destinations.ExportOptions`.
        progress: called while training images are measured, which domain shifts are detected with.

    Raises:
        InputError: the net, the weights or the labels can't be exported as asked.
        WorkError: the exporter failed, its result differs from the unfolded net, or a lower precision agrees with
            float32 on too few images.
    """
    destination = as_destination(output)
    members = [weights] if isinstance(weights, Weights) else weights
    options = ExportOptions(
        ensemble=len(members) > 1,
        logits=logits,
        labels=labels,
        keep_affine=keep_affine,
        raw_input=raw_input,
        domain=domain,
        precision=precision,
        calibration=calibration,
        min_agreement=min_agreement,
        transform=transform,
        size=size,
        license=license,
        base_dir=base_dir,
    )
    destination.check(options, net_param)
    return export_checked(net_param, members, destination, options, progress)


def export_checked(
    net_param: pb.NetParameter,
    weights: Sequence[Weights],
    destination: Destination,
    options: ExportOptions,
    progress: Progress | None = None,
    *,
    net_name: str = "the net",
    weights_names: Sequence[str] | None = None,
) -> ExportReport:
    """`export` for a net and options that the destination's `check` has accepted.

    Args:
        net_name, weights_names: the files of the net and of each of the weights, for messages.
    """
    names = ["the weights"] * len(weights) if weights_names is None else weights_names
    prepared = prepare(net_param, weights, destination, options, progress, net_name=net_name, weights_names=names)
    return destination.write(prepared)


def prepare(
    net_param: pb.NetParameter,
    weights: Sequence[Weights],
    destination: Destination,
    options: ExportOptions,
    progress: Progress | None = None,
    *,
    net_name: str,
    weights_names: Sequence[str],
) -> Prepared:
    """Fold a net with each of the weights, and prepare the comparison of its exported form.

    Args:
        net_name, weights_names: as in `export_checked`.

    Raises:
        InputError, WorkError: as `export`.
    """
    if not weights:
        raise InputError("`weights` holds no caffemodel")
    raw_input, base_dir = options.raw_input or destination.takes_blobs, options.base_dir
    graph = Graph(filter_net(net_param, pb.TEST).layer)
    scores = graph.logits(options.logits)
    for node in graph.ancestors(scores):
        _check_exportable(node.param, destination.refused)
    needed = {node.param.name for node in graph.ancestors(scores)}
    check_size(
        {
            f'layer "{layer.name}"{member}': sum(4 * blob.size for blob in layer.blobs if blob is not None)
            for member, one in _named_members(weights)
            for layer in one.layers
            if layer.name in needed
        },
        destination.limit(options.precision),
    )
    if options.domain is not None:
        _choose_statistics(graph.ancestors(scores), options.domain)
    data, start = _data(graph, scores)
    images = _image_input(data, graph.names[start], net_param, options, raw_input)
    shape = images.shape if images else _input_shape(data, graph.names[start])
    graph.feed(start, (1, *shape[1:]))

    # What a raw input leaves to whoever feeds it is the front; the rest is folded and exported.
    cropped = _behind_crop(graph, start)
    entry = cropped if raw_input else start
    front = Net(graph.net(net_param.name, entry), pb.TEST)
    graph.feed(entry, front.blob_shapes[graph.names[entry]])
    nets, foldings = [], []
    for (member, one), name in zip(_named_members(weights), weights_names, strict=True):
        param = graph.net(net_param.name, scores)
        try:
            net = Net(param, pb.TEST)
            load(net, one, net_name, name)
            folding = _fold(param, net, graph.names[scores], options.keep_affine)
        except InputError as error:
            raise InputError(f"{error}{member}") from error
        warn_of_lost_alignment(one, net_param)
        nets.append(net)
        foldings.append(folding)
    unfolded, folded = nets[0], foldings[0]
    # what `init --latent` makes has Dial layers in no phase, and the target's BatchNorm layers in TEST
    statistics = "target" if has_target_batch_norm(net_param) else folded.statistics
    classes, notes = read_class_names(options.labels, _class_count(unfolded, graph.names[scores]), base_dir)
    if data.transform_param.mirror:
        notes.append(f'layer "{data.name}" mirrors at random in TEST too, as Caffe does; the exported file does not')
    if len(nets) > 1:
        times = "twice" if len(nets) == 2 else f"{len(nets)} times"
        notes.append(
            f"the file averages the probabilities of {len(nets)} nets, so that it needs {times} as long as one net"
        )
    samples, compared_on = _samples(images, shape)
    blobs = torch.from_numpy(images.blob(samples) if images else samples)
    with torch.no_grad():
        (blobs,) = front({graph.names[start]: blobs}).values()
    fed = blobs.numpy() if raw_input else samples
    window = unfolded.blob_shapes[graph.names[cropped]]
    pictures = None if raw_input else images
    training = measured = None
    if pictures:
        try:
            training = TrainingImages.of_caffe(net_param, statistics, base_dir)
            measured = partial(measure, training=training, images=pictures, progress=progress)
        except InputError as error:
            notes.append(f"the file can't detect a domain shift, as no training images could be measured ({error})")
    return Prepared(
        make_predictor=lambda: TargetPredictor(
            _averaged([NetLogits(_deployed(folded), folded.logits) for folded in foldings]),
            Preprocess(pictures) if pictures else None,
        ),
        comparison=Comparison(
            _averaged([NetLogits(net, graph.names[scores]) for net in nets]), blobs, fed, compared_on
        ),
        input=graph.names[entry] if raw_input else INPUT,
        logits=graph.names[scores],
        classes=classes,
        metadata=make_metadata(classes, pictures, window, statistics, weights_digest(*weights)),
        merged=folded.merged,
        kept=tuple(folded.kept),
        notes=tuple(notes),
        lowering=plan_lowering(options, images=pictures, training=training, statistics=statistics),
        measure=measured,
        caffe=FoldedNet(
            folded,
            images,
            window,
            corner=_corner(images, front, graph.names[start]) if images else None,
            domain=options.domain,
        )
        if len(nets) == 1
        else None,
        license=options.license,
    )


def _named_members(weights: Sequence[Weights]) -> Iterator[tuple[str, Weights]]:
    """Each net's weights, with the end of a sentence that says which one of an ensemble's they are."""
    for number, one in enumerate(weights, 1):
        yield f" (in weights {number} of {len(weights)})" if len(weights) > 1 else "", one


def _fold(param: pb.NetParameter, net: Net, logits: str, keep_affine: bool) -> Folded:
    """The net up to the logits, with the weights of `net`, folded."""
    blobs = {name: [blob.detach().numpy() for blob in net.layer(name).blobs] for name in net.layer_names}
    return fold(param, blobs, outputs=[logits], keep_affine=keep_affine)


def _averaged(members: Sequence[nn.Module]) -> nn.Module:
    """The one member itself, or the ensemble of several."""
    return members[0] if len(members) == 1 else MeanLogits(members)


def _check_exportable(layer: pb.LayerParameter, refused: Mapping[str, str]) -> None:
    """Raise InputError, naming the layer, if a file of constants and operators can't represent it."""
    check_frozen(layer)
    reason = refused.get(layer.type)
    if layer.type == "DummyData" and any(filler.type != "constant" for filler in layer.dummy_data_param.data_filler):
        reason = "its data_filler draws new numbers in every pass, and a file can only hold constants"
    if reason is not None:
        raise InputError(
            f'layer "{layer.name}" ({layer.type}) can\'t be exported, and the logits depend on it: {reason}'
        )


def _choose_statistics(nodes: Sequence[Node], domain: Domain) -> None:
    """Make all Dial layers normalize with one domain's statistics; InputError if there are none."""
    dials = [node.param for node in nodes if node.param.type == "Dial"]
    if not dials:
        raise InputError(f"no Dial layer leads to the logits, so there are no {domain} statistics: leave out `domain`")
    for layer in dials:
        layer.dial_param.test_stats = pb.DialParameter.SOURCE if domain == "source" else pb.DialParameter.TARGET


def _data(graph: Graph, scores: int) -> tuple[pb.LayerParameter, int]:
    """The one data layer that the logits depend on, and the value that it makes."""
    nodes = graph.ancestors(scores)
    read = {value for node in nodes for value in node.bottoms}
    found = [
        (node.param, value)
        for node in nodes
        if not node.bottoms and node.param.type not in NO_IMAGES
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
            f'layer "{layer.name}" ({layer.type}): export takes images from an ImageData layer, or with `raw_input` '
            "a blob from an Input layer: describe the TEST phase's input as one of them"
        )
    return layer, value


def _image_input(
    layer: pb.LayerParameter, blob: str, net_param: pb.NetParameter, options: ExportOptions, raw_input: bool
) -> ImageInput | None:
    """The images of the data layer; None if nothing describes them."""
    stated = options.transform is not None or options.size is not None
    if layer.type == "ImageData":
        if stated:
            raise InputError(
                f'layer "{layer.name}" (ImageData) says how an image becomes its blob: `transform` and `size` are for '
                "nets with an Input layer"
            )
        others = [other for other in net_param.layer if other.type == "ImageData" and other.name != layer.name]
        return ImageInput.from_caffe(layer, others, options.base_dir)
    if stated:
        return ImageInput.for_blob(_input_shape(layer, blob), options.transform, options.size, options.base_dir)
    if not raw_input:
        raise InputError(
            f'layer "{layer.name}" (Input) does not say how an image becomes its blob (mean, scale, crop): state it in '
            "`transform` and `size`, export the train_val net, or use `raw_input` for a file that takes the blob itself"
        )
    return None


def _input_shape(layer: pb.LayerParameter, top: str) -> tuple[int, ...]:
    """The shape that an Input layer states for a top."""
    shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
    if len(shapes) not in (1, len(layer.top)):
        tops, stated = counted(len(layer.top), "top"), counted(len(shapes), "shape")
        raise InputError(f'layer "{layer.name}" (Input) has {tops} and {stated}')
    return shapes[list(layer.top).index(top) if len(shapes) > 1 else 0]


def _behind_crop(graph: Graph, value: int) -> int:
    """The top of a Crop layer that alone reads a value; the value itself without such a layer."""
    readers = graph.consumers(value)
    if len(readers) == 1 and readers[0].param.type == "Crop" and readers[0].bottoms[0] == value:
        return readers[0].tops[0]
    return value


def _corner(images: ImageInput, front: Net, blob: str) -> tuple[int, int]:
    """Row and column, in the resized image, of the first pixel that the front keeps."""
    _, channels, height, width = images.shape
    # The front tells when it is given the numbers of rows and columns in place of pixels.
    numbers = torch.from_numpy(np.indices((height, width), np.float32))[:, None].expand(2, channels, height, width)
    with torch.no_grad():
        (left,) = front({blob: numbers}).values()
    row, column = left[:, 0, 0, 0].int().tolist()
    return (images.height - height) // 2 + row, (images.width - width) // 2 + column


def _deployed(folded: Folded) -> Net:
    """The folded net with its blobs."""
    net = Net(folded.net, pb.TEST)
    layers = [LayerWeights(layer, folded.blobs.get(layer.name, [])) for layer in folded.net.layer]
    load(net, Weights(folded.net.name, layers))
    return net


def _class_count(net: Net, logits: str) -> int:
    shape = net.blob_shapes[logits]
    if len(shape) < 2 or any(length != 1 for length in shape[2:]):
        raise InputError(
            f'blob "{logits}" of shape {shape} can\'t be logits, one value per class: name others in `logits`'
        )
    return shape[1]


def _samples(images: ImageInput | None, shape: Sequence[int]) -> tuple[NDArray[Any], str]:
    """Rows for the comparison, enough for every batch size, and in words what they are.

    They are uint8 images where the net reads images, else float32 rows of an Input layer's shape.
    """
    count = sum(BATCHES)
    if images is not None:
        return images.sample(count)
    noise = np.random.default_rng(0).integers(0, 256, (count, *shape[1:]), dtype=np.uint8)
    return noise.astype(np.float32), "random blobs of whole numbers from 0 to 255"
