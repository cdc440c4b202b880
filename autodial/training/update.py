"""How a solver changes the blobs by their gradients: one class per solver type."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from autodial.errors import InputError
from autodial.proto import messages as pb


class Learnable(Protocol):
    """A blob with its multipliers; `autodial.net.net.Param` is one."""

    lr_mult: float
    decay_mult: float

    @property
    def tensor(self) -> Tensor: ...


@dataclass(frozen=True)
class Group:
    """Blobs that share their multipliers, updated in one go.

    Attributes:
        blobs: the tensors to learn.
        history: per blob, the history tensors that the solver type keeps for it.
    """

    lr_mult: float
    decay_mult: float
    blobs: list[Tensor]
    history: list[tuple[Tensor, ...]]

    def gradients(self) -> list[Tensor]:
        """Each blob's gradient; zeros where the loss does not reach the blob, as weight decay and momentum go on."""
        for blob in self.blobs:
            if blob.grad is None:
                blob.grad = torch.zeros_like(blob)
        return [blob.grad for blob in self.blobs if blob.grad is not None]


class Update(ABC):
    """A solver type's step on torch tensors, in place (Caffe: SGDSolver::ApplyUpdate).

    A step clips the gradients by the global L2 norm of their sums over iter_size, divides them by iter_size, adds the
    weight decay's gradient and passes them to `apply`. Nothing waits for the device. Blobs with lr_mult 0 have a place
    in the history but never change. If they have a gradient, as with the net's force_backward, it counts in the norm.

    Args:
        param: SolverParameter; weight_decay, regularization_type, clip_gradients, iter_size and the type's own fields
            are read.
        params: every learnable blob of the net, in order.

    Attributes:
        history: tensors of the blobs' shapes in the order in which a .solverstate holds them.
    """

    history_per_blob: ClassVar[int] = 1

    @classmethod  # noqa: B027  (most types take every field)
    def check(cls, param: pb.SolverParameter) -> None:
        """Raise InputError for a field that this solver type can't take."""

    def __init__(self, param: pb.SolverParameter, params: Sequence[Learnable]) -> None:
        self.param = param
        tensors = [learnable.tensor for learnable in params]
        self.history = [torch.zeros_like(tensor) for _ in range(self.history_per_blob) for tensor in tensors]
        self._fixed = [learnable.tensor for learnable in params if not learnable.lr_mult]
        groups: dict[tuple[float, float], Group] = {}
        for i, learnable in enumerate(params):
            if not learnable.lr_mult:
                continue
            key = (learnable.lr_mult, learnable.decay_mult)
            group = groups.setdefault(key, Group(*key, [], []))
            group.blobs.append(tensors[i])
            group.history.append(tuple(self.history[i :: len(tensors)]))
        self.groups = list(groups.values())

    @torch.no_grad()
    def step(self, rate: float, iteration: int) -> None:
        """Change the blobs by their `.grad`, which is overwritten on the way.

        Args:
            rate: the iteration's learning rate.
            iteration: number of updates before this one.
        """
        gradients = [group.gradients() for group in self.groups]
        self._clip([gradient for some in gradients for gradient in some])
        for group, some in zip(self.groups, gradients, strict=True):
            if self.param.iter_size > 1:
                torch._foreach_mul_(some, 1 / self.param.iter_size)
            self._regularize(group, some)
            self.apply(group, some, rate * group.lr_mult, iteration)

    def _clip(self, gradients: list[Tensor]) -> None:
        limit = self.param.clip_gradients
        if limit >= 0 and gradients:
            fixed = [tensor.grad for tensor in self._fixed if tensor.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients + fixed)
            torch._foreach_mul_(gradients, torch.where(norm > limit, limit / norm, 1))

    def _regularize(self, group: Group, gradients: list[Tensor]) -> None:
        decay = self.param.weight_decay * group.decay_mult
        if decay:
            l1 = self.param.regularization_type == "L1"
            penalty = torch._foreach_sign(group.blobs) if l1 else group.blobs
            torch._foreach_add_(gradients, penalty, alpha=decay)

    @abstractmethod
    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        """Change the blobs and the history of a group.

        Args:
            gradients: one per blob, clipped, normalized and regularized; may be overwritten.
            rate: learning rate, lr_mult included.
            iteration: number of updates before this one.
        """


updates: dict[str, type[Update]] = {}
"""Solver types by Caffe's name (SolverParameter.type)."""

U = TypeVar("U", bound=type[Update])


def register(name: str) -> Callable[[U], U]:
    """Class decorator: the class implements the solver type `name`."""

    def add(cls: U) -> U:
        updates[name] = cls
        return cls

    return add


def update_class(name: str) -> type[Update]:
    """The class of a solver type; InputError, with the list of those that exist, for any other."""
    if name not in updates:
        raise InputError(f'type "{name}" is not supported; supported solver types: {", ".join(updates)}')
    return updates[name]


@register("SGD")
class SGD(Update):
    """v = momentum·v + rate·g; w -= v (Caffe: SGDSolver::ComputeUpdateValue).

    The rate is inside v, unlike in torch.optim.SGD, and the two differ as soon as the rate changes.
    """

    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        (velocities,) = _columns(group)
        torch._foreach_mul_(velocities, self.param.momentum)
        torch._foreach_add_(velocities, gradients, alpha=rate)
        torch._foreach_sub_(group.blobs, velocities)


@register("Nesterov")
class Nesterov(Update):
    """v' = momentum·v + rate·g; w -= (1 + momentum)·v' - momentum·v (Caffe: NesterovSolver)."""

    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        (velocities,) = _columns(group)
        momentum = self.param.momentum
        torch._foreach_add_(group.blobs, velocities, alpha=momentum)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, gradients, alpha=rate)
        torch._foreach_sub_(group.blobs, velocities, alpha=1 + momentum)


class _Scaled(Update):
    """Base of the types that divide the gradient by the root of a history of its squares, and know no momentum."""

    @classmethod
    def check(cls, param: pb.SolverParameter) -> None:
        if param.momentum:
            raise InputError(f"momentum can't be used with {param.type}; remove it")

    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        (squares,) = _columns(group)
        self.accumulate(squares, gradients)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, self.param.delta)
        torch._foreach_addcdiv_(group.blobs, gradients, scales, value=-rate)

    @abstractmethod
    def accumulate(self, squares: list[Tensor], gradients: list[Tensor]) -> None:
        """Add the squares of the gradients to the history."""


@register("AdaGrad")
class AdaGrad(_Scaled):
    """h += g²; w -= rate·g / (√h + delta) (Caffe: AdaGradSolver)."""

    def accumulate(self, squares: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_addcmul_(squares, gradients, gradients)


@register("RMSProp")
class RMSProp(_Scaled):
    """h = rms_decay·h + (1 - rms_decay)·g²; w -= rate·g / (√h + delta) (Caffe: RMSPropSolver)."""

    @classmethod
    def check(cls, param: pb.SolverParameter) -> None:
        super().check(param)
        if not 0 <= param.rms_decay < 1:
            raise InputError(f"rms_decay must lie in [0, 1), and is {param.rms_decay:g}")

    def accumulate(self, squares: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_mul_(squares, self.param.rms_decay)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.param.rms_decay)


@register("AdaDelta")
class AdaDelta(Update):
    """h = momentum·h + (1 - momentum)·g²; u = g·√((s + delta) / (h + delta)); s likewise of u²; w -= rate·u.

    Caffe: AdaDeltaSolver; the history holds every blob's h, then every blob's s.
    """

    history_per_blob = 2

    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        squares, steps = _columns(group)
        momentum, delta = self.param.momentum, self.param.delta
        torch._foreach_mul_(squares, momentum)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - momentum)
        scales = torch._foreach_add(steps, delta)
        torch._foreach_div_(scales, torch._foreach_add(squares, delta))
        torch._foreach_sqrt_(scales)
        torch._foreach_mul_(gradients, scales)
        torch._foreach_mul_(steps, momentum)
        torch._foreach_addcmul_(steps, gradients, gradients, value=1 - momentum)
        torch._foreach_sub_(group.blobs, gradients, alpha=rate)


@register("Adam")
class Adam(Update):
    """m and v, decaying means of g and g²; w -= rate·√(1 - momentum2ᵗ) / (1 - momentumᵗ)·m / (√v + delta).

    Caffe: AdamSolver, with momentum and momentum2 for the paper's beta1 and beta2 and t = iteration + 1; the history
    holds every blob's m, then every blob's v. delta is added to √v before the bias correction, unlike in torch's Adam.
    """

    history_per_blob = 2

    @classmethod
    def check(cls, param: pb.SolverParameter) -> None:
        for field in ("momentum", "momentum2"):
            if not 0 <= getattr(param, field) < 1:
                raise InputError(f"{field} must lie in [0, 1) for Adam, and is {getattr(param, field):g}")

    def apply(self, group: Group, gradients: list[Tensor], rate: float, iteration: int) -> None:
        means, squares = _columns(group)
        beta1, beta2 = self.param.momentum, self.param.momentum2
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, self.param.delta)
        correction = math.sqrt(1 - beta2 ** (iteration + 1)) / (1 - beta1 ** (iteration + 1))
        torch._foreach_addcdiv_(group.blobs, means, scales, value=-rate * correction)


def _columns(group: Group) -> list[list[Tensor]]:
    """The group's history tensors by kind, one per blob in each."""
    return [list(column) for column in zip(*group.history, strict=True)]
