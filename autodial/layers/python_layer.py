"""Caffe's Python layer: a class that a user writes, found by the names of its module and of itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autodial.layers.base import Layer, LayerContext, LayerError, Shape, register
from autodial.layers.normalize import UnitRows
from autodial.layers.proposal import PROPOSAL_OPTIONS, Proposal, python_options
from autodial.layers.same_size import SameSize
from autodial.layers.shares import Rows
from autodial.layers.text_proposals import TEXT_PROPOSAL_OPTIONS, TextProposals
from autodial.layers.user_blobs import Blob, LayerBlobs, download, upload
from autodial.layers.user_layer import Layer as UserLayer
from autodial.proto import messages as pb


@dataclass(frozen=True)
class Published:
    """A published layer.

    Attributes:
        build: makes the layer.
        options: the names that its param_str may have; none where the class does not read it.
    """

    build: Callable[[LayerContext], Layer]
    options: tuple[str, ...] = ()


COMPUTED = {
    ("rpn.proposal_layer", "ProposalLayer"): Published(Proposal.from_python, PROPOSAL_OPTIONS),
    ("layers.text_proposal_layer", "ProposalLayer"): Published(TextProposals.from_python, TEXT_PROPOSAL_OPTIONS),
    ("triplet.l2norm_layer", "L2NormLayer"): Published(UnitRows.from_python),
    ("resize", "resize_to_same_size"): Published(SameSize.from_python),
}
"""Published layers, by module and class, that are computed here instead of run, and so need no such module."""


def published_as(module: str, layer: str) -> str | None:
    """The module by which COMPUTED knows a class of a module whose path ends alike; None if there is none.

    Copies of a repository lie in folders of their own, so that CTPN's module is CTPN.layers.text_proposal_layer there.
    """
    last = module.rpartition(".")[2]
    return next((known for known, name in COMPUTED if (known.rpartition(".")[2], name) == (last, layer)), None)


def refused_options(param: pb.PythonParameter) -> str | None:
    """Why the param_str of a layer that COMPUTED lists can't be honoured; None if it can, or is not read."""
    options = COMPUTED[param.module, param.layer].options
    try:
        if options:
            python_options(param.param_str, options)
    except LayerError as error:
        return str(error)
    return None


@register("Python")
class PythonLayer(Layer):
    """Runs a user's subclass of autodial.caffe.Layer, on the CPU wherever the net is (python_layer.hpp).

    What the user's code raises is passed on as it is. Published layers that COMPUTED lists are not run: the layers
    beside their names are built instead.

    Args:
        user: an object of that class, not yet set up.
        param: the layer's message.
        phase: TRAIN or TEST.
        bottom_shapes: one per bottom.
        num_tops: number of tops.

    Attributes:
        user: as given, with its param_str, phase and blobs.
        bottom, top: the blobs that it is called with.
    """

    bottoms = (0, None)
    tops = (0, None)
    full_precision = True  # numpy has no bfloat16
    rows = Rows.ALL_IN_ONE_PROCESS

    def __init__(
        self, user: UserLayer, param: pb.LayerParameter, phase: int, bottom_shapes: Sequence[Shape], num_tops: int
    ) -> None:
        super().__init__()
        self._names: list[str] = []
        self.bottom = [Blob(shape) for shape in bottom_shapes]
        in_place = [j < len(param.bottom) and param.bottom[j] == param.top[j] for j in range(num_tops)]
        self.top = [self.bottom[j] if same else Blob(()) for j, same in enumerate(in_place)]
        self.user = user
        user.param_str = param.python_param.param_str
        user.phase = phase
        user.blobs = LayerBlobs(self)
        user.setup(self.bottom, self.top)

    @classmethod
    def from_caffe(cls, context: LayerContext) -> Layer:
        param = context.param.python_param
        computed = COMPUTED.get((param.module, param.layer))
        if computed is not None:
            return computed.build(context)
        module = _import(param.module, context.base_dir)
        user_class = getattr(module, param.layer, None)
        if not (isinstance(user_class, type) and issubclass(user_class, UserLayer)):
            raise LayerError(
                f'python_param.layer: module "{param.module}" has no class "{param.layer}" derived from '
                "autodial.caffe.Layer"
            )
        # share_in_parallel is about several solvers, of which there is one.
        user = user_class(context.param)
        return cls(user, context.param, context.phase, context.bottom_shapes, context.num_tops)

    def add_blob(self, shape: Shape) -> None:
        """Add a parameter, of zeros."""
        self._names.append(f"blob_{len(self._names)}")
        self.register_parameter(self._names[-1], nn.Parameter(torch.zeros(shape)))

    @property
    def blobs(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in self._names)

    def top_shapes(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for blob, shape in zip(self.bottom, bottom_shapes, strict=True):
            blob.reshape(*shape)
        self.user.reshape(self.bottom, self.top)
        return [blob.shape for blob in self.top]

    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        # The parameters are arguments so that there is a backward pass where they alone need it.
        tops: tuple[Tensor, ...] = _Bridge.apply(self, len(bottoms), *bottoms, *self.blobs)
        return tops

    @contextmanager
    def blobs_on_host(self) -> Iterator[None]:
        """Let the user's code see its parameters and change them."""
        download(self.user.blobs)
        yield
        upload(self.user.blobs)


class _Bridge(torch.autograd.Function):
    """A Python layer between tensors. Its blobs hold what the backward pass needs, so it goes with the last forward."""

    @staticmethod
    def forward(ctx: Any, layer: PythonLayer, num_bottoms: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.layer, ctx.num_bottoms = layer, num_bottoms
        device = tensors[0].device if tensors else torch.device("cpu")
        for blob, tensor in zip(layer.bottom, tensors[:num_bottoms], strict=True):
            blob.values.set(tensor)
        with layer.blobs_on_host():
            layer.user.reshape(layer.bottom, layer.top)
            layer.user.forward(layer.bottom, layer.top)
        return tuple(torch.from_numpy(blob.data.copy()).to(device) for blob in layer.top)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer: PythonLayer = ctx.layer
        for blob, gradient in zip(layer.top, gradients, strict=True):
            blob.gradients.set(gradient)
        _, _, *needed = ctx.needs_input_grad
        propagate_down = needed[: ctx.num_bottoms]
        with layer.blobs_on_host():
            layer.user.backward(layer.top, propagate_down, layer.bottom)
        diffs = [
            torch.from_numpy(blob.diff.copy()).to(gradients[0].device) if wanted else None
            for blob, wanted in zip(layer.bottom, propagate_down, strict=True)
        ]
        # The user's code has added the parameters' gradients itself, as their diff.
        return (None, None, *diffs, *[None] * len(layer.blobs))


def _import(name: str, base_dir: Path | None) -> ModuleType:
    """The user's module: from Python's path, the working directory, or the prototxt's folder."""
    folders = [str(Path.cwd()), *([str(base_dir)] if base_dir is not None else [])]
    path = list(sys.path)
    sys.path += folders
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == "caffe":
            raise LayerError(
                f'module "{name}" imports caffe: write "import autodial.caffe as caffe" in it instead'
            ) from error
        if name != missing and not name.startswith(f"{missing}."):
            raise
        places = " or ".join(folders)
        raise LayerError(f'python_param.module: no module "{name}" is on Python\'s path or in {places}') from error
    finally:
        sys.path[:] = path
