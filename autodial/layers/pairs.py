"""How many samples of a training batch each domain has, for one forward pass and for what is recomputed of it.

Before a pair's backward pass, a module may be run on pairs of other sizes, or by several threads at once. And
`torch.utils.checkpoint` runs parts of it again in the backward pass. So the sizes are no state of the layers: a thread
has those of the pass that it is in, and the pass leaves them on the nodes of its autograd graph. A recomputation is
asked for by such a node, which has them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

_KEY = "autodial.pair"
"""The key of the mark in a node's metadata."""
_running = threading.local()  # no ContextVar, which torch.compile can't set
_numbers = itertools.count()


Pair: TypeAlias = tuple[int, ...]
"""Samples in a training batch of each source, in order from its head, and of the target, which is the last."""


class _Mark(NamedTuple):
    """What a pass leaves on the nodes of its graph."""

    number: int
    """Later passes have higher numbers."""
    pair: Pair


@contextmanager
def running(pair: Pair) -> Iterator[None]:
    """Tell this thread's layers the pair that they are run on. Passes may be nested."""
    before = getattr(_running, "pair", None), getattr(_running, "node", None)
    _running.pair, _running.node = pair, evaluated()
    try:
        yield
    finally:
        _running.pair, _running.node = before


def current() -> Pair | None:
    """The pair that this thread runs a layer on, in a forward pass or in a recomputed part of one; None outside."""
    pair: Pair | None = getattr(_running, "pair", None)
    node = evaluated()
    if node is None or node is getattr(_running, "node", None):
        return pair
    # A backward pass has begun since, or there is no forward pass but that of a recomputation.
    if _KEY not in node.metadata:
        found = [mark for mark in _marks_before(node) if mark is not None]
        node.metadata[_KEY] = max(found, default=None)  # a node's inputs are of its own pass or of earlier ones
    mark: _Mark | None = node.metadata[_KEY]
    return None if mark is None else mark.pair


def evaluated() -> Any:
    """The node of an autograd graph whose backward pass this thread is in; None if it is in none."""
    # A compiled graph is recomputed as a whole, without its layers.
    return None if torch.compiler.is_compiling() else torch._C._current_autograd_node()


def leave(pair: Pair, outputs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
    """Mark the nodes of an autograd graph between a pass's inputs and outputs; those of a nested pass have its mark."""
    if torch.compiler.is_compiling():
        return
    mark = _Mark(next(_numbers), pair)
    seen = {tensor.grad_fn for tensor in inputs}
    waiting = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        node.metadata.setdefault(_KEY, mark)
        waiting.extend(before for before, _ in node.next_functions)


def _marks_before(node: Any) -> Iterator[_Mark | None]:
    """The nearest marks on all ways from a node to the inputs of its graph."""
    seen, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if _KEY in node.metadata:
            yield node.metadata[_KEY]
        else:
            waiting.extend(before for before, _ in node.next_functions)
