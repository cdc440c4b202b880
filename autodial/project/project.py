"""A project as a whole: images, a net and a solver become the files that `autodial train` needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from autodial.errors import InputError
from autodial.project.checks import (
    check_apart,
    check_enough,
    notes_on_copies,
    notes_on_strays,
    without_bad,
    without_trained,
)
from autodial.project.data import Data
from autodial.project.files import check_folder, list_text, write_files
from autodial.project.inspection import inspect_images
from autodial.project.net_template import LABELLED_LIST, TARGET_LIST, TEST_LIST, source_lists
from autodial.project.plan import LABELS, MOST_SOURCES, NET, SOLVER, START, Plan, plan
from autodial.project.recipe import fit_net, read_recipe
from autodial.project.scan import DomainImages, pooled, read_labelled_target, read_sources, read_target, read_test
from autodial.project.schedule import describe_epochs
from autodial.proto import Weights, to_text
from autodial.wording import counted

_MOST_EPOCHS = 100_000


@dataclass(frozen=True)
class Project:
    """A project that can be written.

    Attributes:
        folder: where to.
        arch: the net, as the user named it.
        data: the images.
        plan: the net and the solver for them.
        start: weights that the project holds to start from, as the user's had to be changed; None if they had not.
        weights: the files that training starts from, separated by commas; None for random weights.
        notes: sentences that the user should read; parameters are in backticks.
    """

    folder: Path
    arch: str
    data: Data
    plan: Plan
    start: Weights | None
    weights: str | None
    notes: tuple[str, ...]

    def write(self) -> None:
        """Write the files: all of them or, if one fails, none.

        Raises:
            WorkError: a file can't be written.
        """
        write_files(self.folder, self._contents())

    def _contents(self) -> dict[str, str | Weights]:
        """The files by name. The solver comes last, as nothing trains without it."""
        from autodial.converters.net_text import net_to_text

        data, split, labelled = self.data, self.plan.split, self.plan.labelled
        about_net = [
            f"{self.arch} for {len(data.classes)} classes, made by `autodial init`. A batch holds "
            f"{' + '.join(map(str, self.plan.sources))} source images,",
            f"then {split.target} target images. The lists lie beside this file; each label in target.txt is -1.",
        ]
        if labelled:
            about_net += [
                f"The first {labelled} target images have labels ({LABELLED_LIST}): Dial layers normalize them as the",
                "target's, and the losses on labels read them behind the source's images.",
            ]
        if self.plan.latent:
            about_net += [
                f"The source's images are treated as a mixture of {self.plan.latent} domains, which a side branch "
                "tells apart.",
                "BatchNorm layers normalize the target's images; TEST has these layers alone.",
            ]
        about_solver = [
            f"{describe_epochs(self.plan.epochs)} over {counted(len(data.source.images), 'source image')}, made by "
            "`autodial init`.",
            "Without a snapshot_prefix, snapshots (solver_iter_N) and logs (solver_run) lie beside this file.",
            *([f"Training starts from {real_paths(self.weights)}"] if self.weights else []),
        ]
        return {
            **{
                name: list_text(source, labels=True)
                for name, source in zip(source_lists(len(data.sources)), data.sources, strict=True)
            },
            TARGET_LIST: list_text(data.target, labels=False),
            **({LABELLED_LIST: list_text(data.labelled_target, labels=True)} if data.labelled_target else {}),
            **({TEST_LIST: list_text(data.test, labels=True)} if data.test else {}),
            LABELS: "".join(f"{name}\n" for name in data.classes),
            **({START: self.start} if self.start is not None else {}),
            NET: net_to_text(self.plan.net, header=about_net),
            SOLVER: "".join(f"# {line}\n" for line in about_solver) + to_text(self.plan.solver),
        }


def prepare(
    folder: Path,
    arch: str,
    source: Path | Sequence[Path],
    target: Path,
    *,
    test: Path | None = None,
    labelled_target: Path | None = None,
    latent: int | None = None,
    weights: str | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    halves: bool = False,
    target_labels: bool = False,
    skip: bool = False,
    warn: Callable[[str], None] = lambda warning: None,
    report: Callable[[float, float], None] = lambda done, total: None,
) -> Project:
    """Plan a project for a user's images. Every image is decoded; nothing is written.

    Args:
        folder: the folder to make; it may exist if it is empty.
        arch, weights: a net and what it starts from, as `read_recipe` takes them.
        source: the labelled images: a folder with a folder per class, or a list. Several of these are several sources,
            each of which is aligned with the target on its own.
        target: the unlabelled images: any folder, or a list.
        test: labelled target images that measure accuracy; None for the target's own, if it has class folders.
        labelled_target: target images whose labels are trained on, as `read_labelled_target` takes them. They stay
            among the unlabelled ones if they are there, and are left out of the test set. A note says how many are not
            there.
        latent: the number of domains to find among the images of all sources, at least 2
            (`autodial.project.latent_domains`); None: each source is a domain.
        epochs: passes over the source, above 0; None for the schedule of the net's solver.
        batch_size: images in a batch, at least 2 for each domain; None for the net's.
        halves: whether half of a batch is the sources', whatever the domains' sizes.
        target_labels: whether labelled target images are needed to measure accuracy.
        skip: whether images that can't be decoded are left out. Otherwise they are an error.
        warn: is told which images are left out or damaged.
        report: is told how many images are decoded, and of how many.

    Raises:
        InputError: the images, the net or the folder can't be used.
    """
    if epochs is not None and not 0 < epochs <= _MOST_EPOCHS:
        raise InputError(f"`epochs` {epochs:g}: choose a number above 0, up to {_MOST_EPOCHS:,}")
    if latent is not None and not 2 <= latent <= MOST_SOURCES:
        raise InputError(f"`latent` {latent}: choose a number of domains from 2 to {MOST_SOURCES}")
    origins = [source] if isinstance(source, Path) else list(source)
    if not 1 <= len(origins) <= MOST_SOURCES:
        raise InputError(f"there must be from 1 to {MOST_SOURCES} sources, not {len(origins)}")
    check_folder(folder, [*origins, *(origin for origin in (target, test, labelled_target) if origin is not None)])
    recipe = read_recipe(arch, weights)
    classes, sources = read_sources(origins)
    others = [read_target(target, classes, measured=test is not None)]
    if test is not None:
        others.append(read_test(test, classes))
    if target_labels and not others[-1].labelled:
        raise InputError(
            "`target_labels`: no labels of the target are known: name a target with the source's class folders, or "
            "labelled images with `test`"
        )
    few = None if labelled_target is None else read_labelled_target(labelled_target, classes)
    for number, each in enumerate(sources, 1):
        check_apart(each, [*sources[number:], *others, *([few] if few else [])])
    fitted = fit_net(recipe, arch, len(classes))
    data = _decoded(classes, sources, others, few, skip=skip, warn=warn, report=report)
    if latent is not None:
        data = replace(data, sources=(data.source,))
    data, left_out = without_trained(data)
    planned = plan(
        fitted.template,
        recipe.solver,
        data,
        epochs=recipe.epochs if epochs is None else epochs,
        batch_size=batch_size,
        weights=fitted.weights,
        latent=latent or 0,
        halves=halves,
    )
    notes = [note for domain in (*sources, *others, *([few] if few else [])) for note in domain.notes]
    notes += [*left_out, *recipe.notes, *fitted.notes, *notes_on_strays(data), *notes_on_copies(data)]
    notes += planned.notes
    start = fitted.weights if fitted.converted else None
    files = recipe.files if start is None else str(folder / START)
    return Project(folder, arch, data, planned, start, files, tuple(notes))


def real_paths(weights: str) -> str:
    """The files of weights, separated by commas, with absolute paths."""
    return ",".join(os.path.realpath(name) for name in weights.split(","))


def _decoded(
    classes: Sequence[str],
    sources: Sequence[DomainImages],
    others: Sequence[DomainImages],
    few: DomainImages | None,
    *,
    skip: bool,
    warn: Callable[[str], None],
    report: Callable[[float, float], None],
) -> Data:
    """Decode all images; `others` are the target and a test set, `few` the labelled target."""
    paths = [image.path for domain in (*sources, *others, *([few] if few else [])) for image in domain.images]
    number, total = count(1), len(set(paths))
    inspections = inspect_images(paths, lambda: report(next(number), total))
    sources = [without_bad(domain, inspections, skip=skip) for domain in sources]
    target, *rest = (without_bad(domain, inspections, skip=skip) for domain in others)
    few = few and without_bad(few, inspections, skip=skip)
    for inspection in inspections.values():
        if inspection.problem:
            warn(f"Left out: {inspection.problem}")
    for path, inspection in inspections.items():
        if inspection.damage:
            warn(f"Warning: {path} is damaged; the part that could be decoded is used: {inspection.damage}")
    tested = rest[0] if rest else target
    usable = {path: inspection for path, inspection in inspections.items() if not inspection.problem}
    measured = tested if tested.labelled else None
    data = Data(classes, pooled(sources), target, measured, usable, few, tuple(sources))
    check_enough(data)
    return data
