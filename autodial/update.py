"""What a solver does to the blobs once their gradients are there, one class per solver type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from autodial.errors import InputError


class Learnable(Protocol):
    """A blob with its multipliers; `autodial.net.Param` is one."""

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
    weight decay's gradient and hands them to `apply`. Nothing waits for the device. Blobs with lr_mult 0 take no part:
    they keep their place in the history, and stay as they are whatever it holds for them.

    Args:
        param: SolverParameter; momentum, weight_decay, regularization_type, clip_gradients and iter_size are read.
        params: every learnable blob of the net, in order.

    Attributes:
        history: tensors of the blobs' shapes in the order in which a .solverstate holds them.
    """

    history_per_blob: ClassVar[int] = 1

    def __init__(self, param: Any, params: Sequence[Learnable]) -> None:
        self.param = param
        tensors = [learnable.tensor for learnable in params]
        self.history = [torch.zeros_like(tensor) for _ in range(self.history_per_blob) for tensor in tensors]
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
    def step(self, rate: float) -> None:
        """Change the blobs by their `.grad`, which is overwritten on the way.

        Args:
            rate: the iteration's learning rate.
        """
        gradients = [group.gradients() for group in self.groups]
        self._clip([gradient for some in gradients for gradient in some])
        for group, some in zip(self.groups, gradients, strict=True):
            if self.param.iter_size > 1:
                torch._foreach_mul_(some, 1 / self.param.iter_size)
            self._regularize(group, some)
            self.apply(group, some, rate * group.lr_mult)

    def _clip(self, gradients: list[Tensor]) -> None:
        limit = self.param.clip_gradients
        if limit >= 0 and gradients:
            norm = torch.nn.utils.get_total_norm(gradients)
            torch._foreach_mul_(gradients, (limit / norm).clamp(max=1))

    def _regularize(self, group: Group, gradients: list[Tensor]) -> None:
        decay = self.param.weight_decay * group.decay_mult
        if decay:
            l1 = self.param.regularization_type == "L1"
            penalty = torch._foreach_sign(group.blobs) if l1 else group.blobs
            torch._foreach_add_(gradients, penalty, alpha=decay)

    @abstractmethod
    def apply(self, group: Group, gradients: list[Tensor], rate: float) -> None:
        """Change the blobs and the history of a group.

        Args:
            gradients: one per blob, clipped, normalized and regularized; may be overwritten.
            rate: learning rate, lr_mult included.
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

    def apply(self, group: Group, gradients: list[Tensor], rate: float) -> None:
        velocities = [velocity for (velocity,) in group.history]
        torch._foreach_mul_(velocities, self.param.momentum)
        torch._foreach_add_(velocities, gradients, alpha=rate)
        torch._foreach_sub_(group.blobs, velocities)
