"""The methods that can be compared, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from autodial.comparison import edits
from autodial.errors import InputError
from autodial.netparam.variants import apply_variant
from autodial.project.schedule import stretch
from autodial.proto import messages as pb
from autodial.wording import alternatives, counted


@dataclass(frozen=True)
class Method:
    """A net that is trained.

    Attributes:
        title: the method's name in tables.
        make: makes the method's net from an AutoDIAL net and the number of iterations.
        schedule: the learning rate's course in the solver that the method's authors released; None: the base net's.
    """

    title: str
    make: Callable[[pb.NetParameter, int], pb.NetParameter]
    schedule: pb.SolverParameter | None = None


@dataclass(frozen=True)
class Shallow:
    """An alignment of a trained net's features, with a linear classifier behind it.

    Attributes:
        title: the method's name in tables.
        net: name of the Method whose features are aligned.
    """

    title: str
    net: str


def _variant(name: str) -> Callable[[pb.NetParameter, int], pb.NetParameter]:
    return lambda net, iterations: apply_variant(net, name)


def _itself(net: pb.NetParameter, iterations: int) -> pb.NetParameter:
    return net


_inv = partial(pb.SolverParameter, lr_policy="inv", gamma=0.001, power=0.75)
_DAN = _inv(max_iter=20_000)

METHODS: Mapping[str, Method | Shallow] = {
    "source-only": Method("source only", _variant("source-only")),
    "entropy-only": Method("entropy only", _variant("entropy-only")),
    "adabn": Method("AdaBN", _variant("adabn")),
    "coral": Shallow("AdaBN + CORAL", "adabn"),
    "deep-coral": Method(
        "Deep CORAL",
        edits.deep_coral,
        pb.SolverParameter(lr_policy="step", gamma=0.1, stepsize=500, max_iter=2000),
    ),
    "ddc": Method("DDC", edits.ddc, _DAN),
    "dan": Method("DAN", edits.dan, _DAN),
    "reversegrad": Method("ReverseGrad", edits.reversegrad, _inv(max_iter=50_000)),
    "rtn": Method("RTN", edits.rtn, _inv(max_iter=20_000)),
    "jan": Method("JAN", edits.jan, _inv(max_iter=30_000)),
    "fixed-alpha": Method("AutoDIAL, alpha 1", _variant("fixed-alpha")),
    "autodial": Method("AutoDIAL", _itself),
    "sa": Shallow("SA", "source-only"),
    "tca": Shallow("TCA", "source-only"),
    "gfk": Shallow("GFK", "source-only"),
}
"""In the order of a table's rows."""

DEFAULT = (*("source-only", "adabn", "coral", "deep-coral", "ddc", "dan", "reversegrad", "rtn", "jan", "autodial"),)
"""Methods that are compared unless others are named."""


def check_methods(names: Sequence[str]) -> list[str]:
    """The names in the order of METHODS, each once.

    Raises:
        InputError: no name, or one of no method.
    """
    for name in names:
        if name not in METHODS:
            raise InputError(
                f'`methods`: there is no method "{name}"{alternatives(name, list(METHODS), most=len(METHODS))}'
            )
    if "sa" in names and find_spec("skada") is None:
        raise InputError(
            '`methods`: "sa" needs skada, which is not installed: pip install ".[shallow]" in AutoDIAL\'s checkout '
            "brings it"
        )
    if not names:
        raise InputError(f"`methods` names none; there are {', '.join(METHODS)}")
    return [name for name in METHODS if name in names]


def trained(names: Sequence[str]) -> list[str]:
    """Names of the nets that some methods need, in the order of METHODS."""
    needed = {method.net if isinstance(method := METHODS[name], Shallow) else name for name in names}
    return [name for name in METHODS if name in needed]


def about_nets(names: Sequence[str], seeds: int) -> str | None:
    """What is trained for methods that align another net's features, without a row of its own; None if nothing is."""
    hidden = [name for name in trained(names) if name not in names]
    if not hidden:
        return None
    users = [name for name in names if isinstance(method := METHODS[name], Shallow) and method.net in hidden]
    return (
        f"{', '.join(hidden)} {'is' if len(hidden) == 1 else 'are'} trained as well, "
        f"{counted(seeds * len(hidden), 'run')} without a row, as features are aligned by {', '.join(users)}"
    )


def solver_for(method: Method, base: pb.SolverParameter, *, same_schedule: bool) -> pb.SolverParameter:
    """A method's solver: the base net's, with the course of the learning rate that the method's authors released.

    The course is stretched to the base solver's number of iterations. The first learning rate, momentum and weight
    decay stay the base net's, whose weights they suit.

    Args:
        method: the method.
        base: the base net's solver; it is not changed.
        same_schedule: whether the course is the base net's, too.
    """
    solver = pb.SolverParameter()
    solver.CopyFrom(base)
    if method.schedule is not None and not same_schedule:
        released = pb.SolverParameter()
        released.CopyFrom(method.schedule)
        stretch(released, base.max_iter)
        released.ClearField("max_iter")
        for field in ("lr_policy", "gamma", "power", "stepsize", "stepvalue"):
            solver.ClearField(field)
        solver.MergeFrom(released)
    return solver
