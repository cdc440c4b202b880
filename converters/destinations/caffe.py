"""Export of a trained net as plain Caffe: a deploy.prototxt and a caffemodel that run without the AutoDIAL fork.

The pair holds the TEST phase from the net's own input to its probabilities, with its statistics folded away: what is
left of a Dial layer is in the weights of the layer before it, or a Scale layer. Before the files get their names, they
are read again and run beside the unfolded net.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from autodial import __version__, proto
from autodial.converters.destinations import Destination, ExportOptions
from autodial.converters.fold import Folded
from autodial.converters.metadata import make_metadata
from autodial.converters.net_text import net_to_text, write_net
from autodial.converters.precision import Precision
from autodial.converters.prepared import FoldedNet, Prepared, check_size, load
from autodial.converters.verification import ExportReport, Runner, verify
from autodial.errors import InputError
from autodial.model_file import Domain
from autodial.net.net import Net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb
from autodial.system.files import replacing, replacing_files, was_interrupted
from autodial.system.outputs import check_output

DEPLOY = "deploy.prototxt"
LABELS = "labels.txt"
MEAN = "mean.binaryproto"

_FOR_TRAINING = ("weight_filler", "bias_filler", "filler", "engine")
"""Fields that a trained net does not need; `engine` names a library of the training machine."""


@dataclass(frozen=True)
class CaffeFolder(Destination):
    """A folder, to be made in one that exists, or to write to.

    It gets deploy.prototxt, target_predictor.caffemodel (source_predictor.caffemodel if `domain` is "source"),
    labels.txt with the classes' names, and mean.binaryproto where the net subtracts a mean image. The net takes float32
    (batch, C, h, w), the size of the crop; comments at the top of deploy.prototxt say how an image becomes that, unless
    the net has an Input layer, which does not say it. The last layer, a Softmax called `prob`, gives the probabilities.

    Attributes:
        path: of the folder.
    """

    path: Path

    refused: ClassVar[Mapping[str, str]] = {
        "EntropyLoss": "it is a layer of the AutoDIAL fork, which BVLC Caffe lacks",
        "MultiModalBatchNorm": "BVLC Caffe lacks it, and weights that differ from image to image can't be folded",
        "Python": "a caffemodel can't hold a Python class",
    }
    takes_blobs: ClassVar[bool] = True

    def limit(self, precision: Precision) -> str | None:
        return "a caffemodel holds at most 2 GiB"

    @classmethod
    def at(cls, place: Path, net: str, options: ExportOptions, name: str | None = None) -> CaffeFolder:
        return cls(place)

    def check(
        self, options: ExportOptions, net: pb.NetParameter | None = None, inputs: Iterable[str | Path] = ()
    ) -> None:
        """Raise InputError for what plain Caffe lacks, and for a folder that can't be written to.

        The files replace those of an earlier export for the same domain, and no others.
        """
        if net is None:
            raise InputError("plain Caffe holds Caffe nets, and a torch module is none: export it as an ONNX file")
        if options.precision != "float32" or options.calibration or options.min_agreement is not None:
            raise InputError("`precision` is for ONNX files, also in Triton's repository: plain Caffe is float32")
        if options.ensemble:
            raise InputError(
                "plain Caffe holds one net, and `ensemble` averages several: export each net alone, or an ONNX file"
            )
        if options.raw_input:
            raise InputError(
                "`raw_input` is for ONNX files: plain Caffe always takes the net's input blob, so leave it out"
            )
        folder = self.path
        if not folder.is_dir():
            if folder.exists() or folder.is_symlink():
                raise InputError(f"{folder} is not a folder: name one to write to, or to make")
            check_output(folder)
            return
        weights = _weights_name(options.domain)
        names = [DEPLOY, weights, LABELS]
        if any(layer.transform_param.HasField("mean_file") for layer in net.layer):
            names.append(MEAN)
        ours = _first_line(folder / DEPLOY) == f"# {_title(options.domain)}"
        interrupted = was_interrupted(folder) and not (folder / DEPLOY).exists()  # an earlier export, which was killed
        for path in (folder / name for name in names):
            check_output(path, inputs)
            if path.exists() and not ours and not interrupted:
                raise InputError(f"{path} exists, and is not of an earlier export of {weights}: name another folder")

    def write(self, prepared: Prepared) -> ExportReport:
        net = prepared.caffe
        assert net is not None, "check() has refused torch modules and ensembles"
        domain = net.domain
        folded = {f'layer "{name}"': sum(blob.nbytes for blob in blobs) for name, blobs in net.folded.blobs.items()}
        check_size(folded, self.limit("float32"))
        deploy, blobs = _deploy(net.folded, prepared.input)
        (probabilities,) = deploy.layer[-1].top
        text = net_to_text(deploy, header=list(_header(prepared, net, probabilities)))
        mean = net.images.transform.mean if net.images else None
        with replacing_files(self.path, last=DEPLOY) as aside:
            write_net(aside / DEPLOY, text)
            layers = [LayerWeights(layer, blobs.get(layer.name, [])) for layer in deploy.layer]
            proto.write_weights(Weights(deploy.name, layers), aside / _weights_name(domain))
            with replacing(aside / LABELS) as file:
                file.write("".join(f"{name}\n" for name in prepared.classes).encode())
            if mean is not None and mean.shape[1:] != (1, 1):
                with replacing(aside / MEAN) as file:
                    file.write(proto.blob_from_array(mean[np.newaxis]).SerializeToString())
            runner = _runner(aside / DEPLOY, aside / _weights_name(domain), net.folded.logits, probabilities)
            verified = verify(runner, prepared.comparison, "the written net")
            files = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
        preparation = _preparation(net)
        sha = prepared.metadata["weights_sha256"]
        metadata = make_metadata(prepared.classes, net.images, net.window, net.folded.statistics, sha)
        return prepared.report(
            self.path,
            files,
            runtime=f"autodial's Net, of the files as they were read again, on torch {torch.__version__} on the CPU",
            max_difference=verified.difference,
            logits_range=verified.spread,
            logits=net.folded.logits,
            metadata={**metadata, "raw_input": True},
            notes=[
                *verified.notes,
                *([f'"{prepared.input}" is an image {", ".join(preparation)}'] if preparation else ()),
            ],
        )


def _weights_name(domain: Domain | None) -> str:
    return f"{domain or 'target'}_predictor.caffemodel"


def _title(domain: Domain | None) -> str:
    """The first line of deploy.prototxt, which tells that an earlier export wrote it."""
    return f"The net of {_weights_name(domain)}, in plain Caffe layers, as `autodial export --caffe` writes it."


def _first_line(path: Path) -> str | None:
    """A text file's first line; None if there is no such file or it can't be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\n")
    except OSError:
        return None


def _deploy(folded: Folded, blob: str) -> tuple[pb.NetParameter, dict[str, list[NDArray[np.float32]]]]:
    """The folded net with a Softmax behind its logits, without fields that only training or the fork reads; its blobs.

    Args:
        blob: name of the input.
    """
    blobs = dict(folded.blobs)
    deploy = pb.NetParameter()
    deploy.CopyFrom(folded.net)
    names = {name for layer in deploy.layer for name in (layer.name, *layer.top)}
    if blob not in {layer.name for layer in deploy.layer}:
        next(layer for layer in deploy.layer if blob in layer.top).name = blob  # as deploy files have it
    for layer in deploy.layer:
        layer.ClearField("phase")
        layer.ClearField("dial_param")
        for field, options in layer.ListFields():
            if field.message_type is not None and field.name.endswith("_param"):
                for message in [options] if field.has_presence else options:
                    for name in _FOR_TRAINING:
                        if name in message.DESCRIPTOR.fields_by_name:
                            message.ClearField(name)
        if layer.inner_product_param.transpose and not layer.param:  # OpenCV overlooks it
            layer.inner_product_param.transpose = False
            blobs[layer.name] = [blobs[layer.name][0].T, *blobs[layer.name][1:]]
    probabilities = "prob"
    while probabilities in names:
        probabilities += "_"
    deploy.layer.add(name=probabilities, type="Softmax", bottom=[folded.logits], top=[probabilities])
    return deploy, blobs


def _preparation(net: FoldedNet) -> list[str]:
    """The steps that prepare an image, in order, a phrase each; empty if the net does not say."""
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


def _header(prepared: Prepared, net: FoldedNet, probabilities: str) -> Iterator[str]:
    """The comments at the top of deploy.prototxt."""
    blob = prepared.input
    yield _title(net.domain)
    statistics = f", {net.folded.statistics} statistics folded in" if net.folded.statistics else ""
    yield f"autodial {__version__}{statistics}"
    if prepared.license is not None:
        yield f"SPDX-License-Identifier: {prepared.license}"
    preparation = _preparation(net)
    origin = ", an image" if preparation else "; the net, having an Input layer, does not say how it is made"
    yield f"{blob}: float32 (N, {', '.join(map(str, net.window[1:]))}){origin}"
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
