"""Networks of torchvision and timm as Caffe nets that take images as Caffe reads them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autodial.converters.torch_to_caffe import INPUT, to_caffe
from autodial.errors import InputError
from autodial.proto import Weights
from autodial.proto import messages as pb
from autodial.wording import alternatives

if TYPE_CHECKING:
    from types import ModuleType

_FILES = (".pth", ".pt", ".safetensors")
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of colours, red first, in [0, 1]; what networks take that do not say."""


@dataclass(frozen=True)
class Architecture:
    """A network as a Caffe net for BGR images.

    Attributes:
        net: a deploy net.
        logits: name of the blob that the network returns.
        weights: its parameters.
        size: height and width to which images are resized.
        transform: what follows: the crop, mirroring, the mean of the colours and the scale.
        notes: what the user should know, a sentence each.
    """

    net: pb.NetParameter
    logits: str
    weights: Weights
    size: tuple[int, int]
    transform: pb.TransformationParameter
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Network:
    """A network with the images that it takes: their size before and after the crop, mean and deviation, red first."""

    module: nn.Module
    resize: int
    crop: int
    mean: Sequence[float]
    std: Sequence[float]


def read_architecture(arch: str, weights: str | None) -> Architecture:
    """Build a network and convert it.

    The mean and the scale of 1/255 become the data layers'. The deviations, and the order of colours, which is blue
    first in Caffe, go into the first convolution's weights.

    Args:
        arch: "torchvision:NAME" or "timm:NAME".
        weights: a .pth, .pt or .safetensors file with the network's state_dict; or the name of weights that the library
            fetches, such as IMAGENET1K_V2 (torchvision), a tag such as a1_in1k (timm), or DEFAULT; None: random ones.

    Raises:
        InputError: the library is not installed, or it has no such network or weights; weights that can't be fetched or
            don't fit; or a part that Caffe has no layer for.
    """
    library, _, name = arch.partition(":")
    if not name:
        raise InputError(f"{arch} names no network: write {arch}resnet18, for example")
    network = (_torchvision if library == "torchvision" else _timm)(name, weights)
    module, mean, std = network.module, network.mean, network.std
    if getattr(module, "transform_input", False):
        # From ImageNet's mean and deviation to 0.5 and 0.5: the data layers can do it at once.
        module.transform_input = False  # type: ignore[assignment]
        mean = std = (0.5, 0.5, 0.5)
    try:
        made = to_caffe(module, torch.zeros(1, 3, network.crop, network.crop).normal_(), name=name)
    except InputError as error:
        raise InputError(f"{arch}: {error}") from error
    _take_bgr(made.net, made.weights, std, arch)
    transform = pb.TransformationParameter(mirror=True, scale=1 / 255, mean_value=[255 * value for value in mean[::-1]])
    if network.crop < network.resize:
        transform.crop_size = network.crop
    notes = () if weights else (f"{arch} starts from random weights; `weights` names weights to start from",)
    return Architecture(made.net, made.output, made.weights, (network.resize, network.resize), transform, notes)


def _take_bgr(net: pb.NetParameter, weights: Weights, std: Sequence[float], arch: str) -> None:
    """Divide the first convolution's weights by the deviations, and reverse its colours."""
    readers = [layer for layer in net.layer if INPUT in layer.bottom]
    if len(readers) != 1 or readers[0].type != "Convolution" or readers[0].convolution_param.group != 1:
        raise InputError(f"{arch}: the image must go into one convolution, and goes into {_listed(readers)}")
    (saved,) = (layer for layer in weights.layers if layer.name == readers[0].name)
    kernels = saved.blobs[0]
    assert kernels is not None
    scaled = kernels / torch.tensor(std).view(1, 3, 1, 1).numpy()
    saved.blobs = [scaled[:, ::-1].copy(), *saved.blobs[1:]]


def _listed(layers: Sequence[pb.LayerParameter]) -> str:
    return ", ".join(f'"{layer.name}" ({layer.type})' for layer in layers)


# --- the libraries


def _torchvision(name: str, weights: str | None) -> _Network:
    from torchvision import models

    known = list(models.list_models(module=models))
    if name not in known:
        raise InputError(f"torchvision has no classification network {name}{alternatives(name, known)}")
    enum = models.get_model_weights(name)
    file = _file(weights)
    chosen = None
    if weights is not None and file is None:
        if weights not in enum.__members__:
            raise InputError(f"`weights`: torchvision has no {weights} of {name}, only {', '.join(enum.__members__)}")
        chosen = enum[weights]
    preset = (chosen or enum.DEFAULT).transforms()
    builder = models.get_model_builder(name)
    # GoogLeNet and Inception have classifiers for training alone, and start slowly.
    options: dict[str, Any] = {"aux_logits": False, "init_weights": False}
    options = {key: value for key, value in options.items() if key in inspect.signature(builder).parameters}
    if chosen is not None:
        module = _fetched(lambda: builder(weights=chosen), f"torchvision's {weights} of {name}")
    else:
        module = _built(lambda **sizes: builder(weights=None, **options, **sizes), file)
    return _Network(module, preset.resize_size[0], preset.crop_size[0], preset.mean, preset.std)


def _timm(name: str, weights: str | None) -> _Network:
    timm = _import_timm()
    plain = name.partition(".")[0]
    if not timm.is_model(plain):
        raise InputError(f"timm has no network {name}{alternatives(plain, timm.list_models())}")
    file = _file(weights)
    if weights is None or file is not None:
        module = _built(lambda **sizes: timm.create_model(name, pretrained=False, **sizes), file)
    else:
        tagged = name if weights == "DEFAULT" else f"{plain}.{weights}"
        if tagged != plain and tagged not in timm.list_pretrained(f"{plain}*"):
            tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{plain}.*")]
            raise InputError(f"`weights`: timm has no {weights} of {plain}, only {', '.join(tags) or 'random weights'}")
        module = _fetched(lambda: timm.create_model(tagged, pretrained=True), f"timm's {tagged}")
    config: Mapping[str, Any] = module.pretrained_cfg  # type: ignore[assignment]
    crop = config["input_size"][1]
    resize = round(crop / config.get("crop_pct", 0.875))
    mean, std = (config.get(key, default) for key, default in zip(("mean", "std"), _IMAGENET, strict=True))
    return _Network(module, resize, crop, mean, std)


def _import_timm() -> ModuleType:
    try:
        import timm
    except ImportError:
        raise InputError("timm is not installed: run pip install timm") from None
    return timm  # type: ignore[no-any-return,unused-ignore]


# --- weights


def _file(weights: str | None) -> Path | None:
    """The file that `weights` names; None if it is the name of weights."""
    if weights is None or not weights.endswith(_FILES):
        if weights is not None and (weights.endswith(".caffemodel") or Path(weights).exists() or "/" in weights):
            raise InputError(f"`weights`: {weights} is not a {', '.join(_FILES[:-1])} or {_FILES[-1]} file")
        return None
    path = Path(weights)
    if not path.is_file():
        raise InputError(f"`weights`: there is no file {path}")
    return path


def _fetched(build: Any, what: str) -> nn.Module:
    try:
        module: nn.Module = build()
    except Exception as error:  # each library fetches in its own way
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"`weights`: {what} can't be fetched: {reason}. Without a network, copy the file here and name it"
        ) from error
    return module


def _built(build: Any, file: Path | None) -> nn.Module:
    """A network with random weights, or with those of a file, which may have another number of classes."""
    if file is None:
        module: nn.Module = build()
        return module
    state = _read_state(file)
    module = build()
    own = module.state_dict()
    heads = [key for key, value in own.items() if key in state and key.endswith("weight") and value.dim() > 1]
    if heads and state[heads[-1]].shape[0] != own[heads[-1]].shape[0]:
        module = build(num_classes=state[heads[-1]].shape[0])
        own = module.state_dict()
    lacking = [key for key in own if key not in state]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InputError(f"`weights`: {file} lacks {lacking[0]}{more} of the network's parameters")
    wrong = next((key for key, value in own.items() if value.shape != state[key].shape), None)
    if wrong is not None:
        raise InputError(
            f"`weights`: {wrong} has the shape {tuple(state[wrong].shape)} in {file} and {tuple(own[wrong].shape)} in "
            "the network"
        )
    module.load_state_dict({key: state[key] for key in own})
    return module


def _read_state(file: Path) -> dict[str, Tensor]:
    """A state_dict from a file, out of the dictionaries that training programs put around it."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: dict[str, Tensor] = load_file(file)
            return tensors
        state = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError:
        raise InputError("safetensors is not installed: run pip install safetensors") from None
    except Exception as error:  # pickle, zip and safetensors each have their own
        raise InputError(f"`weights`: {file} is not a file of tensors; save the module's state_dict") from error
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"`weights`: {file} holds no state_dict; save the module's with torch.save")
    return {str(key).removeprefix("module."): value for key, value in state.items()}
