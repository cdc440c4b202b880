"""Export of a trained net as plain Caffe: a deploy.prototxt and a caffemodel that need none of the AutoDIAL fork.

The pair holds the TEST phase from the net's own input to its probabilities, with its statistics folded away: what is
left of a Dial layer is in the weights of the layer before it, or a Scale layer. Before the files get their names, they
are read again and run beside the unfolded net.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autodial import __version__, proto
from autodial.converters.fold import Domain
from autodial.converters.net_text import net_to_text, write_net
from autodial.converters.onnx_export import Prepared, load, prepare
from autodial.converters.onnx_file import BATCHES, TOLERANCE, ExportReport, Runner, check_size, make_metadata, verify
from autodial.errors import InputError
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb
from autodial.system.files import replacing, replacing_files, was_interrupted
from autodial.system.outputs import check_output

DEPLOY = "deploy.prototxt"
LABELS = "labels.txt"
MEAN = "mean.binaryproto"

_LIMIT = "a caffemodel holds at most 2 GiB"
_NOT_IN_CAFFE = {
    "EntropyLoss": "it is a layer of the AutoDIAL fork, which BVLC Caffe lacks",
    "Python": "a caffemodel can't hold a Python class",
}
"""Layer types that can't be exported, and why."""
_FOR_TRAINING = ("weight_filler", "bias_filler", "filler", "engine")
"""Fields of layers' options that a trained net has no use for; `engine` is that of the machine it was trained on."""


def check_caffe_folder(
    folder: Path, net_param: Any, inputs: Iterable[str | Path] = (), *, domain: Domain | None = None
) -> None:
    """Find out whether `export_caffe` may write a net to a folder, before the work.

    Its files replace those of an earlier export for the same domain, and no others.

    Args:
        inputs: files that the same command reads.

    Raises:
        InputError: it is no folder, can't be made or written to, or holds files of those names that are something else.
    """
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise InputError(f"{folder} is not a folder: name one to write to, or to make")
        check_output(folder)
        return
    names = [DEPLOY, _weights_name(domain), LABELS]
    if any(layer.transform_param.HasField("mean_file") for layer in net_param.layer):
        names.append(MEAN)
    ours = _first_line(folder / DEPLOY) == f"# {_title(domain)}"
    interrupted = was_interrupted(folder) and not (folder / DEPLOY).exists()  # an earlier export, which was killed
    for path in (folder / name for name in names):
        check_output(path, inputs)
        if path.exists() and not ours and not interrupted:
            raise InputError(
                f"{path} exists, and is not of an earlier export of {_weights_name(domain)}: name another folder"
            )


def export_caffe(
    net_param: Any,
    weights: Weights,
    folder: Path,
    *,
    logits: str | None = None,
    labels: Path | None = None,
    keep_affine: bool = False,
    domain: Domain | None = None,
    base_dir: Path | None = None,
) -> ExportReport:
    """Fold a net, write it as plain Caffe and compare what was written with the unfolded net.

    The folder gets deploy.prototxt, target_predictor.caffemodel (source_predictor.caffemodel if `domain` is "source"),
    labels.txt with the classes' names, and mean.binaryproto where the net subtracts a mean image. The net takes float32
    (batch, C, h, w), the size of the crop; comments at the top of deploy.prototxt say how an image becomes that. Its
    last layer, a Softmax called `prob`, gives the probabilities. It is all written or, if the comparison fails, nothing
    is.

    Args:
        net_param: NetParameter of a train_val net whose TEST phase reads an ImageData layer, or of a deploy net with an
            Input layer, which does not say how an image becomes its blob.
        folder: to be made, in one that exists, or to write to: see `check_caffe_folder`.
        keep_affine: leave the folded statistics as Scale layers instead of merging them into weights.

    The other arguments are those of `autodial.converters.onnx_export.export`.

    Raises:
        InputError: the net, the weights or the labels can't be exported as asked, or there is no place for the files.
        WorkError: the files can't be written, or what was read of them differs from the unfolded net.
    """
    check_caffe_folder(folder, net_param, domain=domain)
    net = prepare(
        net_param,
        weights,
        limit=_LIMIT,
        refused=_NOT_IN_CAFFE,
        logits=logits,
        labels=labels,
        keep_affine=keep_affine,
        raw_input=True,
        domain=domain,
        base_dir=base_dir,
    )
    folded = {f'layer "{name}"': sum(blob.nbytes for blob in blobs) for name, blobs in net.folded.blobs.items()}
    check_size(folded, _LIMIT)
    deploy, blobs = _deploy(net)
    (probabilities,) = deploy.layer[-1].top
    text = net_to_text(deploy, header=list(_header(net, probabilities, domain)))
    mean = net.images.transform.mean if net.images else None
    with replacing_files(folder, last=DEPLOY) as aside:
        write_net(aside / DEPLOY, text)
        layers = [LayerWeights(layer, blobs.get(layer.name, [])) for layer in deploy.layer]
        proto.write_weights(Weights(deploy.name, layers), aside / _weights_name(domain))
        with replacing(aside / LABELS) as file:
            file.write("".join(f"{name}\n" for name in net.classes).encode())
        if mean is not None and mean.shape[1:] != (1, 1):
            with replacing(aside / MEAN) as file:
                file.write(proto.blob_from_array(mean[np.newaxis]).SerializeToString())
        runner = _runner(aside / DEPLOY, aside / _weights_name(domain), net.folded.logits, probabilities)
        difference, spread = verify(runner, net.comparison, "the written net")
        files = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
    preparation = _preparation(net)
    metadata = make_metadata(net.classes, net.images, net.window, net.folded.statistics, net.weights_sha256)
    return ExportReport(
        output=folder,
        files=files,
        opset=None,
        ir_version=None,
        input=net.input,
        logits=net.folded.logits,
        metadata={**metadata, "raw_input": True},
        merged=net.folded.merged,
        kept=net.folded.kept,
        compared_on=net.comparison.words,
        batches=BATCHES,
        runtime=f"autodial's Net, of the files as they were read again, on torch {torch.__version__} on the CPU",
        tolerance=TOLERANCE,
        max_difference=difference,
        logits_range=spread,
        precision="float32",
        agreement=None,
        notes=(*net.notes, *([f'"{net.input}" is an image {", ".join(preparation)}'] if preparation else ())),
    )


def _weights_name(domain: Domain | None) -> str:
    return f"{domain or 'target'}_predictor.caffemodel"


def _title(domain: Domain | None) -> str:
    """The first line of deploy.prototxt, by which an earlier export is known."""
    return f"The net of {_weights_name(domain)}, in plain Caffe layers, as `autodial export --caffe` writes it."


def _first_line(path: Path) -> str | None:
    """A text file's first line; None if there is no such file or it can't be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n")
    except OSError:
        return None


def _deploy(net: Prepared) -> tuple[Any, dict[str, list[NDArray[np.float32]]]]:
    """The folded net with a Softmax behind its logits, without what only training or the fork reads, and its blobs."""
    blobs = dict(net.folded.blobs)
    deploy = pb.NetParameter()
    deploy.CopyFrom(net.folded.net)
    names = {name for layer in deploy.layer for name in (layer.name, *layer.top)}
    if net.input not in {layer.name for layer in deploy.layer}:
        next(layer for layer in deploy.layer if net.input in layer.top).name = net.input  # as deploy files have it
    for layer in deploy.layer:
        layer.ClearField("phase")
        layer.ClearField("dial_param")
        for field, options in layer.ListFields():
            if field.message_type is not None and field.name.endswith("_param"):
                for name in _FOR_TRAINING:
                    if name in options.DESCRIPTOR.fields_by_name:
                        options.ClearField(name)
        if layer.inner_product_param.transpose and not layer.param:  # OpenCV overlooks it
            layer.inner_product_param.transpose = False
            blobs[layer.name] = [blobs[layer.name][0].T, *blobs[layer.name][1:]]
    probabilities = "prob"
    while probabilities in names:
        probabilities += "_"
    deploy.layer.add(name=probabilities, type="Softmax", bottom=[net.folded.logits], top=[probabilities])
    return deploy, blobs


def _preparation(net: Prepared) -> list[str]:
    """What a reader must do to an image, in order, a phrase each; nothing where the net does not say."""
    images = net.images
    if images is None or net.corner is None:
        return []
    phrases = [
        "turned as EXIF says, with transparent pixels laid over white",
        f"in 8 bits, {'its channels in the order blue, green, red' if images.channels == 3 else 'grey'}",
        f"resized to height {images.height} and width {images.width}, bilinear without antialiasing (cv2.resize)",
    ]
    (top, left), (height, width) = net.corner, net.window[2:]
    if (height, width) != (images.height, images.width):
        phrases.append(f"cut to rows {top} to {top + height - 1} and columns {left} to {left + width - 1}, from 0 on")
    mean, scale = images.transform.mean, images.transform.scale
    if mean is not None:
        phrases.append(f"minus {' '.join(map(_plain, mean.ravel())) if mean.shape[1:] == (1, 1) else f'{MEAN} there'}")
    if scale != 1:
        phrases.append(f"times {_plain(np.float32(scale))}")
    return phrases


def _plain(value: np.float32) -> str:
    return np.format_float_positional(value, trim="-")


def _header(net: Prepared, probabilities: str, domain: Domain | None) -> Iterator[str]:
    """The comments at the top of deploy.prototxt."""
    yield _title(domain)
    statistics = f", {net.folded.statistics} statistics folded in" if net.folded.statistics else ""
    yield f"autodial {__version__}{statistics}"
    preparation = _preparation(net)
    origin = ", an image" if preparation else "; the net, having an Input layer, does not say how it is made"
    yield f"{net.input}: float32 (N, {', '.join(map(str, net.window[1:]))}){origin}"
    yield from (f"- {phrase}" for phrase in preparation)
    yield f"{net.folded.logits}: the logits"
    yield f"{probabilities}: the probabilities of the classes, which {LABELS} lists in their order"


def _runner(deploy: Path, weights: Path, logits: str, probabilities: str) -> Runner:
    """The written pair, read again, on the CPU."""
    net = Net(proto.read_net(deploy), pb.TEST)
    load(net, proto.read_weights(weights))
    (blob,) = net.inputs

    def run(fed: NDArray[Any]) -> Sequence[NDArray[Any]]:
        with torch.no_grad():
            tops = net.blobs({blob: torch.from_numpy(fed)}, [logits, probabilities])
        return [tops[name].flatten(1).numpy() for name in (logits, probabilities)]

    return run
