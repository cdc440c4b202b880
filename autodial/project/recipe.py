"""The net that a project is made from, with a solver for it and the weights that training starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autodial import proto
from autodial.data.paths import find
from autodial.errors import InputError
from autodial.netparam.shipped import shipped_names, shipped_net, shipped_solver
from autodial.project.net_template import NetTemplate
from autodial.project.schedule import EPOCHS
from autodial.proto import Weights
from autodial.proto import messages as pb

_DEFAULT_SCHEDULE = "alexnet"
"""The shipped net whose solver is used for nets that have none."""


@dataclass(frozen=True)
class Recipe:
    """A net that a project can be made from, and its solver.

    Attributes:
        path: the file of the net.
        net: the net; an AutoDIAL net or a plain Caffe net.
        solver: a solver with a schedule.
        epochs: passes over the source in that schedule; None if it is made for a number of iterations.
        notes: sentences that the user should read.
        weights: the weights that training starts from; None for random ones.
        files: the files or the name of these weights, as `read_recipe` takes them.
        size: height and width to which images are resized; None if the net says it, or the images do.
        transform: the transform_param of the data layers; None if the net has one.
        logits: the blob with the scores of classes; None if the net's layers show it.
    """

    path: Path
    net: pb.NetParameter
    solver: pb.SolverParameter
    epochs: float | None
    notes: tuple[str, ...]
    weights: Weights | None
    files: str | None
    size: tuple[int, int] | None = None
    transform: pb.TransformationParameter | None = None
    logits: str | None = None


@dataclass(frozen=True)
class FittedNet:
    """A recipe's net as a template.

    Attributes:
        template: the net.
        weights: the weights that training starts from; None for random ones.
        converted: whether these are not the recipe's own, since a plain net was dialized with them.
        notes: sentences that the user should read; parameters of `dialize` are in backticks.
    """

    template: NetTemplate
    weights: Weights | None
    converted: bool
    notes: tuple[str, ...]


def read_recipe(arch: str, weights: str | None) -> Recipe:
    """Read the net that `arch` names, its solver and weights.

    Args:
        arch: the name of a net that comes with AutoDIAL, a prototxt with its solver.prototxt in the same folder, or
            "torchvision:NAME" or "timm:NAME".
        weights: caffemodels, separated by commas; for torchvision and timm what `read_architecture` takes; None for
            those that the solver names or, if it names none, random ones.

    Raises:
        InputError: a file doesn't exist or is none of these, an AutoDIAL net lacks what a template needs, or as
            `read_architecture`.
    """
    if arch.startswith(("torchvision:", "timm:")):
        return _read_library(arch, weights)
    notes = []
    epochs: float | None
    if arch in shipped_names():
        path, solver_path, epochs = shipped_net(arch), shipped_solver(arch), EPOCHS.get(arch)
    else:
        path = Path(arch)
        if not path.is_file():
            names = ", ".join(shipped_names())
            raise InputError(
                f"`arch` {arch}: no such file, and no net that comes with AutoDIAL ({names}); networks of torchvision "
                "and timm are named like torchvision:resnet18 and timm:resnet18d"
            )
        solver_path, epochs = path.with_name("solver.prototxt"), None
        if solver_path.is_file():
            notes.append(f"The learning rate and its steps come from {solver_path}")
        else:
            solver_path, epochs = shipped_solver(_DEFAULT_SCHEDULE), EPOCHS[_DEFAULT_SCHEDULE]
            notes.append(
                f"There is no solver.prototxt beside {arch}: the learning rate and its steps are those of the paper's "
                "AlexNet"
            )
    net, solver = proto.read_net(path), proto.read_solver(solver_path)
    if not weights and solver.weights:
        weights = _own_weights(solver, solver_path)
        notes.append(f"{solver_path} names the weights to start from, {weights}; `weights` would name others")
    start = proto.merge_weights([proto.read_weights(name) for name in weights.split(",")]) if weights else None
    return Recipe(path, net, solver, epochs, tuple(notes), start, weights)


def _own_weights(solver: pb.SolverParameter, path: Path) -> str:
    """The files that a solver names, separated by commas."""
    names = [name.strip() for names in solver.weights for name in names.split(",")]
    try:
        return ",".join(str(find(name, path.parent)) for name in names)
    except InputError as error:
        raise InputError(f"{path}: weights: {error}") from error


def _read_library(arch: str, weights: str | None) -> Recipe:
    from autodial.project.architectures import read_architecture

    made = read_architecture(arch, weights)
    return Recipe(
        Path(arch),
        made.net,
        proto.read_solver(shipped_solver(_DEFAULT_SCHEDULE)),
        EPOCHS[_DEFAULT_SCHEDULE],
        (*made.notes, "The learning rate and its steps are those of the paper's AlexNet"),
        made.weights,
        weights,
        made.size,
        made.transform,
        made.logits,
    )


def fit_net(recipe: Recipe, name: str, classes: int) -> FittedNet:
    """A recipe's net as a template; a plain net is dialized, with its weights.

    Args:
        name: what messages call the net.
        classes: the number of classes.

    Raises:
        InputError: the net is not one that a project can be made from.
    """
    if any(layer.type == "Dial" for layer in recipe.net.layer):
        return FittedNet(NetTemplate(recipe.net, name, recipe.path.parent), recipe.weights, False, ())
    from autodial.converters.dialize import dialize

    types = {layer.type for layer in recipe.net.layer}
    try:
        made = dialize(
            recipe.net,
            recipe.weights,
            # a network without layers that say where, such as SqueezeNet
            after=None if {"BatchNorm", "InnerProduct"}.intersection(types) or recipe.logits is None else ["conv"],
            classes=classes,
            size=recipe.size,
            transform=recipe.transform,
            logits=recipe.logits,
            base_dir=recipe.path.parent,
        )
    except InputError as error:
        raise InputError(
            f"{recipe.path}: {error} (run `autodial dialize`, which has options for such nets, and give its result as "
            "`arch`)"
        ) from error
    became, inserted = len(made.report.replaced), len(made.report.inserted)
    done = [f"{became} BatchNorm layers became Dial layers"] if became else []
    done += [f"Dial layers were inserted after {inserted} layers"] if inserted else []
    notes = (
        f"{recipe.path} is a plain net: {' and '.join(done)} (`autodial dialize` offers choices)",
        *(f"{recipe.path}: {note}" for note in made.report.notes),
    )
    template = NetTemplate(made.net, str(recipe.path), recipe.path.parent)
    return FittedNet(template, made.weights or recipe.weights, made.weights is not None, notes)
