"""Export of torch modules as `target_predictor.onnx`, through the same door as Caffe nets."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from autodial.converters.class_names import note_repeated
from autodial.converters.destinations import Destination, ExportOptions, as_destination
from autodial.converters.image_input import ImageInput
from autodial.converters.metadata import digest, make_metadata
from autodial.converters.onnx_file import Preprocess, TargetPredictor
from autodial.converters.precision import Precision, plan_lowering
from autodial.converters.prepared import Prepared, check_size
from autodial.converters.reference import TrainingImages, measure
from autodial.converters.torch_fold import batch_statistics_error, fold_graph
from autodial.converters.torch_modules import is_batch_norm
from autodial.converters.torch_recalibrate import warn_of_averaged
from autodial.converters.verification import BATCHES, Comparison, ExportReport
from autodial.data.labels import check_class_names, tell_apart
from autodial.data.sequences import is_one_name
from autodial.data.transforms import Transform
from autodial.errors import InputError, WorkError
from autodial.layers import DomainAlignment
from autodial.model_file import INPUT, Domain
from autodial.wording import counted


class ModuleLogits(nn.Module):
    """A torch classifier with its logits as (N, classes), float32, also where it gives (N, classes, 1, 1)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        return logits.flatten(1)


def export_module(
    module: nn.Module,
    output: str | Path | Destination,
    *,
    size: tuple[int, int],
    crop: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    scale: float = 1 / 255,
    channel_order: Literal["RGB", "BGR", "GRAY"] = "RGB",
    classes: Sequence[str] | None = None,
    domain: Domain | None = None,
    target_images: Iterable[str | Path] = (),
    precision: Precision = "float32",
    calibration: str | Path | None = None,
    min_agreement: float | None = None,
    license: str | None = None,
) -> ExportReport:
    """Fold a torch classifier in eval mode, export it, and compare the file with the module before it is written.

    The file is what `autodial predict` and any ONNX runtime take, as autodial.converters.net_export.export writes it
    for Caffe nets: input `image`, uint8 `(batch, *size, 3)` in BGR order or `(batch, *size, 1)`; outputs `logits` and
    `probabilities`, float32 (batch, classes); the metadata key `autodial`, and ONNX's own metadata of images. The graph
    does what torchvision's ToTensor and Normalize do: `(image * scale - mean) / std`. All batch normalizations are
    folded.
    `autodial predict` stretches an image to `size`, bilinear without antialiasing; train on images made likewise.

    Args:
        module: from float32 (N, C, h, w) to logits, (N, classes). It is copied; its mode and device don't matter.
        output: the ONNX file to write, or another destination, such as a `TritonModel`.
        size: height and width of the images that the file takes, in pixels.
        crop: side of the square that is cut out of their centre; None for the whole image.
        mean, std: per channel, in the module's channel order and in the unit of the module's input, in which white is
            255 * scale; empty for 0 and 1.
        scale: factor of the pixels' values, 0 to 255, before mean and std.
        channel_order: of the module's input.
        classes: their names, in the order of the logits; None for "0", "1", ...
        domain: whose stored statistics every DomainAlignment layer normalizes with; None: what each one's test_stats
            says, the target unless the module says otherwise.
        target_images: image files of the target that the module was trained on, with which `autodial predict --drift`
            compares others; up to 2,000 of them, evenly spread, are measured.
        precision: of the file's weights and computation, "float32", "fp16" or "int8"; inputs and outputs are the same.
        calibration: a folder of images, or a list of them, to calibrate int8 on and to compare a lower precision with
            float32 on; None: target_images. int8 needs either.
        min_agreement: share of these images that must keep their most probable class, in [0, 1]; None: 0.99.
        license: an SPDX license expression, such as "Apache-2.0", that the file names; None for none.

    Raises:
        InputError: the file can't be written there, an argument makes no sense, the module can't run on such images or
            gives no logits, or a layer's statistics are of no use.
        WorkError: the module can't be exported, the file's logits differ from the module's, or a lower precision agrees
            with float32 on too few images.
    """
    options = ExportOptions(
        domain=domain,
        precision=precision,
        calibration=None if calibration is None else Path(calibration),
        min_agreement=min_agreement,
        license=license,
    )
    destination = as_destination(output)
    destination.check(options)
    images = _image_input(size, crop, mean, std, scale, channel_order)
    warn_of_averaged(module)
    copied = copy.deepcopy(module).cpu().float().eval()
    if domain is not None:
        _choose_statistics(copied, domain)
    statistics = _statistics(copied)
    unfolded = ModuleLogits(copied)
    samples, words = images.sample(sum(BATCHES))
    blobs = torch.from_numpy(images.blob(samples))
    training = TrainingImages.of_files(target_images)
    lowering = plan_lowering(
        options, images=images, training=training if training.files else None, statistics=statistics
    )
    count = _class_count(copied, blobs[:1])
    names, notes = _class_names(classes, count)

    predictor = TargetPredictor(unfolded, Preprocess(images)).eval()
    program = _exported(predictor, torch.from_numpy(samples[:2]))
    check_size(_sizes(program), destination.limit(precision))
    folded, merged, kept = fold_graph(program, _name)
    weights = ((name, value.detach().numpy()) for name, value in copied.state_dict().items())
    prepared = Prepared(
        make_predictor=lambda: folded,
        comparison=Comparison(unfolded, blobs, samples, words),
        input=INPUT,
        logits=type(module).__name__,
        classes=names,
        metadata=make_metadata(names, images, blobs.shape, statistics, digest(weights)),
        merged=merged,
        kept=tuple(kept),
        notes=tuple(notes),
        lowering=lowering,
        measure=partial(measure, training=training, images=images) if training.files else None,
        license=options.license,
    )
    return destination.write(prepared)


def _image_input(
    size: tuple[int, int],
    crop: int | None,
    mean: Sequence[float],
    std: Sequence[float],
    scale: float,
    channel_order: str,
) -> ImageInput:
    """The images in BGR order, and (image * scale - mean) / std as (image - mean / scale) * (scale / std)."""
    if channel_order not in ("RGB", "BGR", "GRAY"):
        raise InputError(f'`channel_order` is "RGB", "BGR" or "GRAY", not {channel_order!r}')
    channels = 1 if channel_order == "GRAY" else 3
    if np.shape(size) != (2,) or not all(isinstance(side, (int, np.integer)) and side >= 1 for side in size):
        raise InputError(f"`size` is the images' height and width in pixels, not {size!r}")
    if crop is not None and not 1 <= crop <= min(size):
        raise InputError(f"images of {size[0]} x {size[1]} have no crop of {crop} x {crop}")
    for name, values in (("mean", mean), ("std", std)):
        if is_one_name(values) or np.ndim(values) != 1:
            raise InputError(f"`{name}` is a list of {counted(channels, 'value')}, one per channel, not {values!r}")
        if len(values) not in (0, channels):
            raise InputError(f"`{name}` needs {counted(channels, 'value')}, one per channel, and has {len(values)}")
    if scale <= 0 or not all(value > 0 for value in std):
        raise InputError("`scale` and `std` must be positive")
    if len(mean) and max(mean) > 255 * scale:
        raise InputError(
            f"`mean` has {max(mean):g}, above {255 * scale:g}, the value of white after `scale`: use that unit"
        )
    means = np.array([float(value) for value in mean] or [0.0] * channels) / scale
    factors = scale / np.array([float(value) for value in std] or [1.0] * channels)
    if channel_order == "RGB":
        means, factors = means[::-1], factors[::-1]
    return ImageInput(
        int(size[0]),
        int(size[1]),
        channels,
        Transform(crop_size=crop or 0, mean=means.astype(np.float32).reshape(-1, 1, 1) if len(mean) else None),
        channel_scale=factors.astype(np.float32).reshape(-1, 1, 1),
        rgb=channel_order == "RGB",
    )


def _choose_statistics(module: nn.Module, domain: Domain) -> None:
    """Make all DomainAlignment layers normalize with one domain's statistics; InputError where there are none."""
    if domain not in ("source", "target"):
        raise InputError(f'`domain` is "source" or "target", not {domain!r}')
    layers = [layer for layer in module.modules() if isinstance(layer, DomainAlignment)]
    if not layers:
        raise InputError(
            f"{type(module).__name__} has no DomainAlignment layer, so no {domain} statistics: leave out `domain`"
        )
    several = max(layer.sources for layer in layers)
    if domain == "source" and several > 1:
        raise InputError(
            f"{type(module).__name__} has statistics of {several} sources, and a file has those of one domain: leave "
            "out `domain`"
        )
    for layer in layers:
        layer.test_stats = domain


def _statistics(module: nn.Module) -> str | None:
    """The domain of the DomainAlignment layers' statistics, as in `Folded`; InputError if statistics are unusable."""
    domains = set()
    for name, layer in module.named_modules():
        if isinstance(layer, DomainAlignment):
            if layer.use_global_stats is False or not getattr(layer, "track_running_stats", True):
                raise batch_statistics_error(name)
            if layer.normalizer.item() == 0:
                raise InputError(
                    f'layer "{name}" ({type(layer).__name__}): no statistics were ever stored (its normalizer is 0): '
                    "train the module first"
                )
            domains.add(layer.test_stats.partition(" ")[0])
            mean, variance = layer.stored()
        elif is_batch_norm(layer) or isinstance(layer, _InstanceNorm):
            if layer.running_mean is None or layer.running_var is None:
                if isinstance(layer, _InstanceNorm):  # by each image's own statistics
                    continue
                raise batch_statistics_error(name)
            mean, variance = layer.running_mean, layer.running_var
        else:
            continue
        broken = (~(mean.isfinite() & variance.isfinite() & (variance >= 0))).nonzero().flatten()
        if len(broken):
            channel = int(broken[0])
            raise InputError(
                f'layer "{name}" ({type(layer).__name__}): channel {channel} has the stored mean {mean[channel]:g} and '
                f"variance {variance[channel]:g}: the weights are damaged, or the training diverged"
            )
    return None if not domains else domains.pop() if len(domains) == 1 else "mixed"


def _class_count(module: nn.Module, blob: Tensor) -> int:
    """The number of classes, which is the number of logits for one image."""
    shape = f"(1, {', '.join(map(str, blob.shape[1:]))})"
    try:
        with torch.no_grad():
            logits = module(blob)
    except Exception as error:  # a user's module may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{type(module).__name__} can't run on a batch of shape {shape}: {reason[0]}") from error
    if not isinstance(logits, Tensor):
        raise InputError(
            f"{type(module).__name__} returns a {type(logits).__name__} in eval mode: wrap it in a module that returns "
            "its logits alone, a tensor (N, classes)"
        )
    if logits.dim() < 2 or len(logits) != 1 or any(length != 1 for length in logits.shape[2:]):
        raise InputError(
            f"{type(module).__name__} returns a tensor of shape {tuple(logits.shape)} for a batch of shape {shape}, "
            "and logits have one value per class, (N, classes)"
        )
    return logits.shape[1]


def _class_names(classes: Sequence[str] | None, count: int) -> tuple[list[str], list[str]]:
    """The classes' names, and notes on them."""
    if classes is None:
        return [str(i) for i in range(count)], ["the classes are named by their numbers: name them in `classes`"]
    if is_one_name(classes):
        raise InputError(f"`classes` is a list of names, not one name, {classes!r}")
    names = [str(name) for name in classes]
    if len(names) != count:
        raise InputError(f"`classes` names {counted(len(names), 'class', 'classes')} and the logits have {count}")
    check_class_names(names, "classes")
    return list(tell_apart(names)), note_repeated(names, "classes")


def _exported(predictor: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The predictor as a graph for any batch size."""
    try:
        return torch.export.export(predictor, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # torch.export raises what the user's module raises, and much more
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkError(f"torch.export can't export the module: {reason[0]}") from error


def _sizes(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Bytes of the parameters and buffers that the program reads, by the user's names; tied tensors count once."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    read = [names[node.name] for node in program.graph.nodes if node.name in names and node.users]
    held = {name: program.state_dict[name] for name in read if name in program.state_dict}
    first = {tensor.data_ptr(): name for name, tensor in reversed(held.items())}
    return {name.removeprefix("net.module."): held[name].nbytes for name in first.values()}


def _name(node: fx.Node) -> str:
    """The name of the user's layer that a node comes from; the node's own name if there is no such layer."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return stack[-1].removeprefix("net.module").removeprefix(".") if stack else node.name
