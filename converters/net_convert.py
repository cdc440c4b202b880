"""Any Caffe net as an ONNX file that computes the same: its own inputs and outputs, under their own names.

Unlike `autodial.converters.net_export`, which makes predictors of images, this keeps the net as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from autodial import __version__
from autodial.converters.crop_offsets import aligned_offsets, describe_offsets
from autodial.converters.fold import Folded, fold, is_of_batch
from autodial.converters.net_comparison import (
    Empty,
    NetRunner,
    OutputComparison,
    compare,
    describe_difference,
)
from autodial.converters.net_graph import NetGraph, write_graph
from autodial.converters.net_inputs import Arrays, NetInputs, Samples, feed_inputs
from autodial.converters.net_outputs import (
    chosen_outputs,
    describe_left_out,
    earlier_versions,
    made_by,
    readable,
    take_known_python_layers,
)
from autodial.converters.net_shapes import known_shapes, takes
from autodial.converters.onnx_file import IR_VERSION, OPSET
from autodial.converters.onnx_model import write_model
from autodial.converters.onnx_weights import remove_unused, written_weights
from autodial.converters.region_notes import describe_regions
from autodial.converters.runtime import cpu_session
from autodial.converters.verification import TOLERANCE
from autodial.errors import InputError, WorkError
from autodial.layers import DomainAlignment, Shape
from autodial.layers.augmentation import DataAugmentation
from autodial.layers.batch_norm import StoredStatistics
from autodial.layers.bn import BN
from autodial.net.net import Net, of_another_net
from autodial.netparam.graph import Graph
from autodial.netparam.net_state import filter_net
from autodial.proto import LayerWeights, Weights
from autodial.proto import messages as pb
from autodial.system.files import replacing_files
from autodial.system.outputs import check_output
from autodial.wording import counted

Dynamic = Literal["batch", "spatial", "none"]
"""Which lengths of the inputs are left open: the batch; the batch, heights and widths; none."""

_RESIZED = ((32, 64), (96, 160), (256, 512))
"""Rows and columns more, with which the net is asked whether it takes images of other sizes."""
_FINDS_BOXES = ("DetectionOutput", "Proposal", "ProposalLayer", "YoloDetectionOutput", "Yolov3DetectionOutput")
"""Types of layers, or classes of Python layers, whose rows are boxes; two that are equally good may change places."""
_PROBABILITIES = ("Sigmoid", "Softmax")
"""Types of layers whose tops are between 0 and 1."""
_BATCHES = (1, 2, 3)
"""Batches with which the net is asked whether it takes any."""


@dataclass(frozen=True)
class ConvertReport:
    """What was converted, what was compared and how far off it was.

    Attributes:
        output: the ONNX file.
        files: sizes in bytes by name: of the file, and of the file with its weights where they are above 2 GiB.
        opset, ir_version: of the file.
        inputs, outputs: shapes by name, None for lengths that are left open.
        merged: names of the layers that folding removed, with the layer that each was merged into.
        compared: each output's comparison.
        compared_on: in words, the inputs of the comparison.
        compared_shapes: the inputs' shapes in each pass.
        runtime: in words, what ran the file.
        tolerance: largest difference, as a fraction of an output's range.
        verified: whether every output was compared and agrees, and no weights are missing.
        unverified: why it is not verified, a sentence for each reason; empty if it is.
        notes: further sentences for the user.
    """

    output: Path
    files: dict[str, int]
    opset: int
    ir_version: int
    inputs: dict[str, tuple[int | None, ...]]
    outputs: dict[str, tuple[int | None, ...]]
    merged: dict[str, str]
    compared: dict[str, OutputComparison]
    compared_on: str
    compared_shapes: tuple[dict[str, Shape], ...]
    runtime: str
    tolerance: float
    verified: bool
    unverified: tuple[str, ...]
    notes: tuple[str, ...]

    def record(self) -> dict[str, object]:
        """The report as a JSON object."""
        return {**asdict(self), "output": str(self.output)}


def convert(
    net_param: pb.NetParameter,
    weights: Weights | None,
    output: str | Path,
    *,
    outputs: Sequence[str] | None = None,
    phase: pb.Phase = pb.TEST,
    dynamic: Dynamic = "batch",
    samples: Samples | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    align_crops: bool = False,
    base_dir: Path | None = None,
    inputs: Collection[str | Path] = (),
    net_name: str = "the net",
    weights_name: str = "the weights",
) -> ConvertReport:
    """Write a net as an ONNX file, after comparing the file with the net.

    BatchNorm, Dial and Scale layers are folded. Inputs and outputs are float32 and have the blobs' names. A train_val
    net's data layers become inputs; its losses and Accuracy layers are left out, and what they score are outputs.

    Args:
        net_param: a deploy or train_val net.
        weights: the net's weights; layers that they lack keep what their fillers give, and the report says so.
        output: the file; an existing one is replaced. Weights above 2 GiB go to a second file, of the same name and
            `.data`; where a smaller model replaces one with such a file, that file is removed.
        outputs: names of blobs; None: those that no layer reads.
        phase: whose layers are converted.
        dynamic: which lengths of the inputs are left open, if the net allows it: "batch" where the net takes any
            number of rows; "spatial" also for heights and widths, which the net must allow; or "none".
        samples: inputs of the comparison: arrays in the shape of an input or with another number of rows, or files, see
            `autodial.converters.net_inputs.Samples`; missing inputs are made.
        shapes: by input, its shape with the batch first; None: what the net states, or what its data files hold.
        align_crops: whether Crop layers without a `crop_param` cut where the Caffe of HED cuts, see
            `autodial.converters.crop_offsets`, and not at 0.
        base_dir: the prototxt's folder.
        inputs: files that must not be overwritten.
        net_name, weights_name: the files of the net and its weights, for messages.

    Raises:
        InputError: the net can't be built, an output or an input does not exist, an input's shape is not known, a layer
            (named) has no form in ONNX, or the weights are another net's.
        WorkError: the file differs from the net, and by more than four times what the net's own result moves by when
            its input moves by 1e-7; or it can't be written.
    """
    path = Path(output)
    check_output(path, inputs, suffixes=(".onnx",))
    graph = Graph(readable(filter_net(net_param, phase).layer, outputs, net_param.layer))
    taken = take_known_python_layers(graph)
    ends = chosen_outputs(graph, outputs)
    left_out = describe_left_out(graph) if outputs is None else []
    fed = feed_inputs(graph, list(ends.values()), base_dir, shapes or {})
    kept = graph.net(net_param.name, *ends.values())
    net, fed = _built(kept, fed, phase, base_dir, whole_batch=dynamic == "none")
    offsets = aligned_offsets(net)
    if align_crops and offsets:
        for layer in kept.layer:
            if layer.type == "Crop" and layer.top[0] in offsets:
                layer.crop_param.offset[:] = offsets[layer.top[0]]
        net = Net(kept, phase, base_dir=base_dir)
    missing = _load(net, weights, weights_name, _advice(net_name, shapes))
    folded = fold(
        kept,
        {name: [blob.detach().numpy() for blob in net.layer(name).blobs] for name in net.layer_names},
        outputs=list(ends),
        keep_of_batch=True,
    )
    deployed = _deployed(folded, phase, base_dir)
    cases, tried, notes = _cases(net, fed, dynamic)
    notes += [taken[layer.name] for layer in kept.layer if layer.name in taken]
    notes += [*left_out, *earlier_versions(graph, ends), *fed.notes, *describe_regions(graph, ends, net)]
    if offsets and not align_crops:
        notes.append(describe_offsets(net, offsets))
    elif align_crops and not offsets:
        notes.append("`align_crops` changed nothing: no Crop layer without an offset would cut elsewhere")
    of_batch = [layer.name for layer in folded.net.layer if is_of_batch(layer)]
    if of_batch:
        notes.append(
            f"as the prototxt says, {counted(len(of_batch), 'layer')} ({_first(of_batch)}) will normalize with the "
            "statistics of the batch, so that a row's result depends on the other rows"
        )
    written = write_graph(
        deployed,
        known_shapes(deployed, cases),
        _open_shapes(cases),
        dict(zip(ends, folded.outputs, strict=True)),
    )
    given = fed.read(samples or {})
    passes = _passes(fed, tried, _open_shapes(cases), given)
    names = dict(zip([value.name for value in written.outputs], ends, strict=True))
    notes += [
        f'the output "{end}" is called "{name}" in the file, where "{end}" is an input'
        for name, end in names.items()
        if name != end
    ]
    second = written_weights(path)
    with replacing_files(path.parent, last=path.name) as aside:
        files = write_model(written, aside / path.name, f"autodial {__version__}")
        compared = compare(
            _runner(aside / path.name, written),
            NetRunner(net, names),
            passes,
            "ONNX Runtime",
            exact=fed.indices,
            unordered=made_by(graph, ends, _FINDS_BOXES),
            probabilities=made_by(graph, ends, _PROBABILITIES),
        )
    remove_unused(second, files)
    unverified = _warnings(compared, sampled=bool(samples))
    if missing:
        unverified.insert(0, _note_missing(missing, weights, net))
    return ConvertReport(
        output=path,
        files=files,
        opset=OPSET,
        ir_version=IR_VERSION,
        inputs={value.name: value.shape for value in written.inputs},
        outputs={value.name: value.shape for value in written.outputs},
        merged=folded.merged,
        compared=compared,
        compared_on=_words(fed, given),
        compared_shapes=tuple({name: array.shape for name, array in arrays.items()} for arrays in passes),
        runtime=f"ONNX Runtime {onnxruntime.__version__} on the CPU",
        tolerance=TOLERANCE,
        verified=not unverified,
        unverified=tuple(unverified),
        notes=tuple(notes),
    )


def _built(
    kept: pb.NetParameter, fed: NetInputs, phase: pb.Phase, base_dir: Path | None, *, whole_batch: bool
) -> tuple[Net, NetInputs]:
    """The net, with one row of its data layers' images if it takes one, else with their batch; `kept` is changed.

    Args:
        whole_batch: whether one row is not tried.
    """
    if fed.with_rows != fed.shapes:
        if not whole_batch:
            try:
                return Net(kept, phase, base_dir=base_dir), fed
            except InputError:
                pass
        fed = replace(fed, shapes=fed.with_rows)
        for layer in kept.layer:
            if layer.type == "Input":
                layer.input_param.shape[0].dim[:] = fed.shapes[layer.top[0]]
    return Net(kept, phase, base_dir=base_dir), fed


def _load(net: Net, weights: Weights | None, weights_name: str, advice: str) -> list[str]:
    """Load weights; the names of layers that they lack. Missing statistics become a mean of 0 and a variance of 1."""
    if weights is not None:
        missing = net.load_weights(weights, weights_name, advice=advice)
        if missing and missing == net.with_blobs():
            raise InputError(f"no layer in {weights_name} has the name of a layer of the net; {advice}")
    else:
        missing = net.with_blobs()
    with torch.no_grad():
        for name in missing:
            layer = net.layer(name)
            if isinstance(layer, StoredStatistics | DomainAlignment):
                layer.variance.fill_(1)
                layer.normalizer.fill_(1)
            elif isinstance(layer, BN) and layer.variance is not None:
                layer.variance.fill_(1)
            elif isinstance(layer, DataAugmentation):
                layer.count.fill_(layer.recompute_mean)
    return missing


def _advice(net_name: str, shapes: Mapping[str, Sequence[int]] | None) -> str:
    """What to do about weights that don't fit."""
    advice = of_another_net(net_name)
    return f"{advice}; or else `shapes` are not those of its inputs" if shapes else advice


def _first(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _note_missing(missing: Sequence[str], weights: Weights | None, net: Net) -> str:
    if weights is None:
        return "no weights were given, so the file holds what the layers' fillers give"
    note = f"the weights lack {counted(len(missing), 'layer')} ({_first(missing)}), which keep what their fillers give"
    unused = [layer.name for layer in weights.layers if layer.blobs and layer.name not in net.layer_names]
    if unused:
        note += f"; they have {counted(len(unused), 'layer')} that the net lacks ({_first(unused)})"
    return note


def _deployed(folded: Folded, phase: pb.Phase, base_dir: Path | None) -> Net:
    """The folded net with its blobs."""
    net = Net(folded.net, phase, base_dir=base_dir)
    held = [layer for layer in folded.net.layer if layer.name in folded.blobs]
    net.load_weights(Weights(folded.net.name, [LayerWeights(layer, folded.blobs[layer.name]) for layer in held]))
    return net


def _cases(
    net: Net, fed: NetInputs, dynamic: Dynamic
) -> tuple[list[dict[str, Shape]], list[dict[str, Shape]], list[str]]:
    """The inputs' shapes that show which lengths are open; those to compare the file on; and notes."""
    if dynamic not in ("batch", "spatial", "none"):
        raise InputError(f'`dynamic` is "batch", "spatial" or "none", not {dynamic!r}')
    if dynamic == "none":
        return [fed.shapes], [fed.shapes] * 2, []
    batches = [fed.batched(batch) for batch in _BATCHES]
    problem = next((why for shapes in batches if (why := takes(net, shapes)) is not None), None)
    notes = [] if problem is None else [f"the file takes the net's own number of rows alone. With another, {problem}"]
    cases = [fed.shapes] if problem is not None else batches
    if dynamic == "batch":
        return cases, cases[:2] if len(cases) > 1 else cases * 2, notes
    resized = [fed.resized(more) for more in _RESIZED]
    problem = next((why for shapes in resized if (why := takes(net, shapes)) is not None), None)
    if problem is not None:
        raise InputError(f"the net takes images of no other size: {problem}; leave out `dynamic`")
    return [*cases, *resized], [*cases[:2], resized[0]], notes


def _open_shapes(cases: Sequence[Mapping[str, Shape]]) -> dict[str, tuple[int | None, ...]]:
    """The inputs' shapes, with None where the cases differ."""
    first, *others = cases
    return {
        name: tuple(
            length if all(other[name][axis] == length for other in others) else None
            for axis, length in enumerate(shape)
        )
        for name, shape in first.items()
    }


def _passes(
    fed: NetInputs,
    tried: Sequence[dict[str, Shape]],
    open_shapes: Mapping[str, tuple[int | None, ...]],
    rows: Arrays,
) -> list[Arrays]:
    """Inputs for the passes of the comparison."""
    if not rows:
        return [fed.made(shapes, seed) for seed, shapes in enumerate(tried)]
    for name, array in rows.items():
        lengths = open_shapes[name]
        if array.ndim != len(lengths) or any(
            length not in (None, given) for length, given in zip(lengths, array.shape, strict=True)
        ):
            wanted = ", ".join("any" if length is None else str(length) for length in lengths)
            raise InputError(f'the sample for "{name}" has the shape {array.shape}, and the file takes ({wanted})')
    shapes = {name: array.shape for name, array in rows.items()}
    batch = next(iter(shapes.values()))[0]
    whole = {**fed.batched(batch), **shapes}
    passes = [{**fed.made(whole, 0), **rows}]
    if batch > 1 and open_shapes[next(iter(shapes))][0] is None and not fed.indices:
        passes.append({name: array[:1] if len(array) == batch else array for name, array in passes[0].items()})
    return passes


def _words(fed: NetInputs, given: Arrays) -> str:
    if not given:
        return fed.words()
    return "the samples" if given.keys() == fed.shapes.keys() else f"the samples and {fed.words()}"


def _runner(path: Path, written: NetGraph) -> Any:
    """Runs the file in ONNX Runtime."""
    try:
        session = cpu_session(str(path))
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise WorkError(f"nothing was written: ONNX Runtime can't load the converted net: {error}") from error
    names = [value.name for value in written.outputs]

    def run(inputs: Arrays) -> dict[str, NDArray[np.float32]]:
        try:
            results = session.run(names, inputs)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise WorkError(f"nothing was written: ONNX Runtime can't run the converted net: {reason[0]}") from error
        return dict(zip(names, results, strict=True))

    return run


def _warnings(compared: Mapping[str, OutputComparison], *, sampled: bool) -> list[str]:
    """What keeps the comparison from being a success, a sentence each."""
    notes = []
    for reason in Empty:
        if names := ", ".join(f'"{name}"' for name, one in compared.items() if one.empty is reason):
            notes.append(
                f"the net gives {reason.value} for {names}: the comparison proves nothing about that, so give "
                f"{'other ' if sampled else ''}`samples`, or trained weights"
            )
    notes += [describe_difference(name, one) for name, one in compared.items() if one.own_change is not None]
    notes += [
        f'{one.unmatched} of {counted(one.rows, "row")} of "{name}" have no counterpart: where boxes of nearly equal '
        "scores keep each other out, rounding decides which one stays"
        for name, one in compared.items()
        if one.unmatched
    ]
    return notes
