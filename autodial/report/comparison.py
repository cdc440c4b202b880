"""What the report on several runs says: their scores with the spread over seeds, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autodial.evaluation.domains import sources_of
from autodial.netparam.differences import Difference, differences
from autodial.report.comparison_figures import (
    DRAWN_RUNS,
    Series,
    draw_confusions,
    draw_overlaid,
    draw_overlaid_alphas,
    draw_scores,
)
from autodial.report.evaluation import Absent, Evaluation
from autodial.report.figures import CONFUSION_CLASSES, shown_confusion_of
from autodial.report.predictions import Predictions, recalls
from autodial.report.run import Curve, Run
from autodial.report.settings import Group, groups_of, run_names, settings_of
from autodial.report.style import figure_style, shortened
from autodial.report.words import curve_label, date, number, percent, scope, spread
from autodial.report.writer import Report, Writer
from autodial.wording import counted

_CURVES = 12
"""Figures of curves at most."""
_MATRICES = 8
"""Confusion matrices at most."""
_OPEN_ROWS = 12
"""Rows of the longest table that is not folded."""


class _Compared(NamedTuple):
    """A run among others."""

    name: str
    run: Run
    evaluation: Evaluation

    @property
    def predictions(self) -> Predictions | None:
        found = self.evaluation.predictions
        return None if isinstance(found, Absent) else found

    @property
    def accuracy(self) -> float | None:
        return None if self.predictions is None else self.predictions.accuracy

    @property
    def balanced_accuracy(self) -> float | None:
        return None if self.predictions is None else self.predictions.balanced_accuracy

    @property
    def diversity(self) -> float | None:
        return None if self.predictions is None else self.predictions.diversity

    @property
    def last_alphas(self) -> list[float]:
        return [curve.last for curve in self.run.alphas() if curve.last is not None]


def write_comparison(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> Report:
    """The report on several runs.

    Args:
        runs: two or more.
        evaluations: one per run.
    """
    writer = _ComparisonWriter(runs, evaluations)
    with figure_style():
        writer.head()
        writer.scores()
        writer.settings()
        writer.alphas()
        writer.curves()
        writer.confusions()
        writer.recalls()
    versions = {run.record["versions"].get("autodial", "an unknown version") for run in runs}
    return writer.report(f"trained by {', '.join(sorted(versions))}")


class _ComparisonWriter(Writer):
    """Writes the sections, in order."""

    def __init__(self, runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> None:
        super().__init__(f"AutoDIAL: {counted(len(runs), 'run')} compared")
        names = run_names([run.folder for run in runs])
        self.runs = [_Compared(*one) for one in zip(names, runs, evaluations, strict=True)]
        self._settings = [settings_of(run) for run in runs]
        self.groups = groups_of(runs, self._settings)

    def _members(self, group: Group) -> list[_Compared]:
        return [self.runs[number] for number in group.runs]

    @cached_property
    def _looks(self) -> list[tuple[int, str]]:
        """The number and the name of each run's colour: the group's, or the run's own if there is one group."""
        if len(self.groups) == 1:
            return [(number, one.name) for number, one in enumerate(self.runs)]
        looks = {number: (i, group.name) for i, group in enumerate(self.groups) for number in group.runs}
        return [looks[number] for number in range(len(self.runs))]

    # --- sections

    def head(self) -> None:
        groups = counted(len(self.groups), "setting")
        self.page.paragraph(
            f"{counted(len(self.runs), 'run')} of {groups}; runs of one setting differ by their seed", "under"
        )
        for one in self.runs:
            for kind, note in self._notes(one):
                self.page.paragraph(f"{one.name}: {note}", "warning" if kind else "note")
        scored = {scope(one.predictions) for one in self.runs if one.predictions is not None}
        if len(scored) > 1:
            self.page.paragraph(
                f"The runs were scored on different images, so don't compare accuracies: {'; '.join(sorted(scored))}.",
                "warning",
            )

    def _notes(self, one: _Compared) -> list[tuple[bool, str]]:
        run, predictions = one.run, one.evaluation.predictions
        notes = []
        if not run.finished:
            notes.append((False, f"the log ends at iteration {run.reached:,} of {run.solver.max_iter:,}."))
        if isinstance(predictions, Absent):
            snapshot = one.evaluation.snapshot
            why = snapshot.reason if isinstance(snapshot, Absent) else predictions.reason
            notes.append((False, f"no predictions: {why}."))
        elif predictions.unlabelled is not None:
            notes.append((False, f"no target labels to compare with: {predictions.unlabelled}."))
        if run.collapses:
            iteration = run.collapses[-1]["iteration"]
            notes.append((True, f"at iteration {iteration:,}, the target's predictions had collapsed."))
        if run.broken_tests:
            notes.append((True, f"the scores of {counted(len(run.broken_tests), 'test')} were not finite."))
        return notes

    def scores(self) -> None:
        self.page.section("Scores")
        accuracies = {
            group.name: [one.accuracy for one in self._members(group) if one.accuracy is not None]
            for group in self.groups
        }
        if any(accuracies.values()):
            shown = {name: values for name, values in accuracies.items() if values}
            self.figure(
                "scores",
                partial(draw_scores, shown, xlabel="accuracy on labelled target images"),
                "Accuracy on labelled target images, a row per setting. The table below has every number.",
                "Accuracy on labelled target images: a dot per run, a bar at the mean.",
            )
        self.page.table(
            "By setting: mean \N{PLUS-MINUS SIGN} standard deviation over seeds (lowest to highest)",
            ["setting", "runs", "accuracy", "balanced accuracy", "prediction entropy", "last loss"],
            [
                [
                    group.name,
                    str(len(group.runs)),
                    self._spread(group, lambda one: one.accuracy),
                    self._spread(group, lambda one: one.balanced_accuracy),
                    self._spread(group, lambda one: one.diversity),
                    spread([loss for one in self._members(group) if (loss := _last_loss(one.run)) is not None]),
                ]
                for group in self.groups
            ],
        )
        self.page.table(
            "Every run",
            ["run", "setting", "seed", "iterations", "accuracy", "balanced accuracy", "prediction entropy", "last loss",
             "alpha", "started", "device"],
            [
                [
                    one.name,
                    group.letter,
                    str(one.run.record["seed"]),
                    f"{one.run.reached:,} of {one.run.solver.max_iter:,}",
                    _share(one.accuracy),
                    _share(one.balanced_accuracy),
                    _share(one.diversity),
                    number(loss, ".4g") if (loss := _last_loss(one.run)) is not None else "",
                    f"{min(one.last_alphas):.3f} to {max(one.last_alphas):.3f}" if one.last_alphas else "",
                    date(one.run.starts[0]),
                    one.run.record["device"],
                ]
                for group in self.groups
                for one in self._members(group)
            ],
            folded=len(self.runs) > _OPEN_ROWS,
        )  # fmt: skip
        self.page.paragraph(
            "Accuracies are those of each run's newest snapshot. Balanced accuracy is the mean recall of the classes. "
            "Prediction entropy is the entropy of the mean prediction on the target, divided by log(classes): near 0, "
            "all images get the same class. Target labels serve to score alone."
        )

    def _spread(self, group: Group, value: Callable[[_Compared], float | None]) -> str:
        found = [share for one in self._members(group) if (share := value(one)) is not None]
        return spread(found, ".1f", unit="%", scale=100)

    def settings(self) -> None:
        self.page.section("What differs between the settings")
        if len(self.groups) == 1:
            self.page.paragraph("Nothing: the runs differ by their seed alone.")
        else:
            found = differences([self._settings[group.runs[0]] for group in self.groups], shortening=shortened)
            self._differences("Settings", found, [group.letter for group in self.groups])
        around = [{"device": one.run.record["device"]} | dict(one.run.record["versions"]) for one in self.runs]
        names = dict.fromkeys(name for of_one in around for name in of_one)
        rows = [Difference(name, tuple(of_one.get(name, "") for of_one in around)) for name in names]
        rows = [row for row in rows if len(set(row.values)) > 1]
        if rows:
            self._differences("Devices and versions", rows, [one.name for one in self.runs])

    def _differences(self, caption: str, rows: Sequence[Difference], columns: Sequence[str]) -> None:
        self.page.table(
            caption, ["", *columns], [[row.name, *row.values] for row in rows], folded=len(rows) > _OPEN_ROWS
        )

    def alphas(self) -> None:
        self.page.section("Alpha by depth")
        found = [(one.run, one.run.alphas(), look) for one, look in zip(self.runs, self._looks, strict=True)]
        found = [(run, curves, look) for run, curves, look in found if curves][:DRAWN_RUNS]
        if not found:
            self.absent("No alphas", Absent("no run has logged any"))
            return
        series, looks = [curves for _, curves, _ in found], [look for _, _, look in found]
        joints = {1 / (1 + sources_of(run.train_net)) for run, _, _ in found}
        joint = joints.pop() if len(joints) == 1 else None
        at = "1 by the number of domains" if joint is None else f"{joint:.3g}"
        self.figure(
            "alphas",
            partial(draw_overlaid_alphas, series, looks, joint=joint),
            "The last alpha of each Dial layer by depth, a line per run. The table below has means.",
            "The last logged alpha of each Dial layer. At 1 each domain is normalized with statistics of its own, at "
            f"{at} all with joint ones.",
        )
        layers = dict.fromkeys(curve.name for curves in series for curve in curves)
        self.page.table(
            "Alpha of each Dial layer: mean \N{PLUS-MINUS SIGN} standard deviation over seeds (lowest to highest)",
            ["layer", *(group.name for group in self.groups)],
            [[layer, *(self._alphas_of(group, layer) for group in self.groups)] for layer in layers],
            folded=len(layers) > _OPEN_ROWS,
        )

    def _alphas_of(self, group: Group, layer: str) -> str:
        curves = [curve for one in self._members(group) for curve in one.run.alphas() if curve.name == layer]
        return spread([curve.last for curve in curves if curve.last is not None], ".3f")

    def curves(self) -> None:
        self.page.section("Losses and accuracies")
        found: dict[str, list[Series]] = {}
        shares: set[str] = set()
        for one, look in zip(self.runs[:DRAWN_RUNS], self._looks, strict=False):
            run = one.run
            loss = run.loss()
            if loss.values:
                found.setdefault("loss: the weighted sum", []).append(Series(*look, loss))
            accuracies = [*run.accuracies(), *run.balanced_accuracies()]
            shares.update(_title(curve) for curve in accuracies)
            for curve in (*accuracies, *run.losses()):
                found.setdefault(_title(curve), []).append(Series(*look, curve))
            for curve in run.diversity():
                title = f"diversity of the target's predictions, {curve.name}"
                found.setdefault(title, []).append(Series(*look, curve))
        shown = [(title, series) for title, series in found.items() if any(one.curve.values for one in series)]
        if not shown:
            self.absent("No curves", Absent("nothing was logged yet"))
            return
        for place, (title, series) in enumerate(shown[:_CURVES], start=1):
            self.page.heading(title)
            self.figure(
                f"curves-{place}",
                partial(draw_overlaid, series, ylabel="accuracy" if title in shares else "", percent=title in shares),
                f"{title} by iteration, a line per run. {_ends(series)}",
                f"{title} by iteration, a line per run.",
            )
        if len(shown) > _CURVES:
            self.page.paragraph(
                f"{len(shown) - _CURVES:,} more outputs were logged; the reports on single runs show them."
            )

    def _confusion(self, runs: Sequence[_Compared]) -> NDArray[np.int64] | None:
        """The images of several runs by true and predicted class; None without labels, or of other classes."""
        counts = [
            one.predictions.confusion()
            for one in runs
            if one.predictions is not None and one.evaluation.classes == self._classes
        ]
        total = sum(counts, np.zeros((len(self._classes),) * 2, np.int64))
        return total if total.any() else None

    @cached_property
    def _classes(self) -> Sequence[str]:
        return next((one.evaluation.classes for one in self.runs if one.predictions is not None), ())

    @cached_property
    def _confusions(self) -> dict[str, NDArray[np.int64]]:
        """Confusion matrices of the groups, or of the runs where there is one group alone, by title."""
        if len(self.groups) == 1:
            found = {one.name: self._confusion([one]) for one in self.runs}
        else:
            found = {group.name: self._confusion(self._members(group)) for group in self.groups}
        return {title: counts for title, counts in found.items() if counts is not None}

    def confusions(self) -> None:
        self.page.section("Confusion matrices of the target")
        found = self._confusions
        if not found:
            self.absent("No confusion matrices", Absent("no run was scored on labelled target images"))
            return
        shown = dict(zip(found, shown_confusion_of(list(found.values())), strict=True))
        limited = (
            f" Of {len(self._classes):,} classes, the {CONFUSION_CLASSES - 1} with the most errors have a row; the "
            "last row and column are all others together."
            if len(self._classes) > CONFUSION_CLASSES
            else ""
        )
        more = f" The first {_MATRICES} of {len(shown)}." if len(shown) > _MATRICES else ""
        added = "" if len(self.groups) == 1 else " The images of all runs of a setting are added up."
        self.figure(
            "confusions",
            partial(draw_confusions, self._classes, dict(list(shown.items())[:_MATRICES])),
            f"Confusion matrices of {counted(len(shown), 'setting or run', 'settings or runs')}, side by side.",
            "Rows are true classes, columns predicted ones, numbers images, colours shares of the row."
            f"{added}{limited}{more}",
        )

    def recalls(self) -> None:
        self.page.section("Recall by class")
        if not self._confusions:
            self.absent("No recalls", Absent("no run was scored on labelled target images"))
            return
        by_group = {
            group.name: [
                recalls(counts) for one in self._members(group) if (counts := self._confusion([one])) is not None
            ]
            for group in self.groups
        }
        rows = []
        for label, name in enumerate(self._classes):
            values = [[float(one[label]) for one in found if np.isfinite(one[label])] for found in by_group.values()]
            rows.append([name, *(spread(shares, ".1f", unit="%", scale=100) for shares in values)])
        self.page.table(
            "Recall of each class: mean \N{PLUS-MINUS SIGN} standard deviation over seeds (lowest to highest)",
            ["class", *by_group],
            rows,
            folded=len(rows) > 3 * _OPEN_ROWS,
        )


def _last_loss(run: Run) -> float | None:
    loss = run.loss()
    return loss.last if loss.values else None


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _title(curve: Curve) -> str:
    """What a curve is called in every run, whatever weight it has there."""
    return curve_label(Curve(curve.name, curve.kind))


def _ends(series: Sequence[Series]) -> str:
    """The last values by label, for alternative texts."""
    ends: dict[str, list[float]] = {}
    for one in series:
        if one.curve.values and one.curve.last is not None:
            ends.setdefault(one.name, []).append(one.curve.last)
    return " ".join(f"{name}: {spread(values)} at the end." for name, values in ends.items())
