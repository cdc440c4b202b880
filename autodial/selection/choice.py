"""Which candidate each criterion chooses, from what was measured of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import mean
from typing import Any

from autodial.selection.candidates import Candidate
from autodial.selection.criteria import accuracy_error
from autodial.selection.measures import Measures
from autodial.training.collapse import SHARE

DIVERSE = 0.5
"""The class-diversity guard: the share of the most diverse candidate's diversity that a candidate must keep.

Diversity is the entropy of the target's mean prediction relative to that of the source's labels. A target that really
has fewer or rarer classes shows so in every candidate, and what is lost from one candidate to the next is the
candidates' doing. Half of the entropy is as many classes as the square root: 3.2 of 10, 5.6 of 31. Below a share of 1/3
of the source's (autodial.training.collapse.SHARE), a candidate has collapsed whatever the others do.
"""
TRUSTED = 1 / 8
"""The share of the held-out images that the weighted ones must be worth for the weights to be trusted."""
APART = 0.95
"""The accuracy of the domain classifier from which on no source image is one of the target's, whatever its weight."""


@dataclass(frozen=True)
class Row:
    """A candidate, with the means over its folds of what was measured.

    Attributes:
        candidate: what was tried.
        folds: number of folds.
        measures: None if a fold failed.
        error: why, in one sentence.
        collapsed_at: the iteration of the last collapse alarm in the training of any fold.
    """

    candidate: Candidate
    folds: int
    measures: Measures | None
    error: str | None = None
    collapsed_at: int | None = None


@dataclass(frozen=True)
class Criterion:
    """A way to choose without labels of the target.

    Attributes:
        title: what it looks at.
        value: of a candidate's measures; the highest is chosen.
        error: the value's standard error; None if it is not known.
        guarded: whether the class-diversity guard stands before it.
    """

    title: str
    value: Callable[[Measures], float]
    error: Callable[[Measures], float] | None = None
    guarded: bool = True


@dataclass(frozen=True)
class Choice:
    """What a criterion chose.

    Attributes:
        criterion: its name.
        row: number of the row; None if none is eligible.
        tied: numbers of the other rows that it can't tell from the best: within a standard error, or equal.
        excluded: numbers of the rows that were not eligible: failed, not diverse, or with weights not to be trusted.
        cost: how much less target accuracy than the best candidate; None where it is not known.
    """

    criterion: str
    row: int | None
    tied: tuple[int, ...]
    excluded: tuple[int, ...]
    cost: float | None


def _source_error(measures: Measures) -> float:
    return accuracy_error(measures.source_accuracy, measures.held_out)


def _misalignment_error(measures: Measures) -> float:
    distance = 2 * accuracy_error(measures.domain_accuracy, measures.domain_samples)
    return math.hypot(_source_error(measures), distance)


CRITERIA: Mapping[str, Criterion] = {
    "source": Criterion("accuracy on held-out source", lambda m: m.source_accuracy, _source_error, guarded=False),
    "weighted": Criterion(
        "importance-weighted loss on held-out source", lambda m: -m.weighted_loss, lambda m: m.weighted_error
    ),
    "alignment": Criterion(
        "error on held-out source + distance of the domains", lambda m: -m.misalignment, _misalignment_error
    ),
    "entropy": Criterion("entropy of the target's predictions", lambda m: -m.entropy),
    "density": Criterion("soft-neighbourhood density of the target's predictions", lambda m: m.density),
}
"""By name; "alignment" decides unless another is asked for.

The paper chooses lambda by cross-validation on the source after the protocol of RTN, and says no more. Read literally,
that is "source", without a guard. It hardly sees what the entropy loss does to the target: accuracies differ by an
image or two, and the best is often the candidate without adaptation. Two ways look at the target, without its labels:

- "weighted", as in transfer cross-validation (Zhong et al., 2010): held-out source samples count by
  p_target(x) / p_source(x). Where the source's accuracy is near 1, it rests on the few images that are mistaken.
- "alignment": the error on the source plus the distance of the domains, which bounds the target's error but for a
  constant (Ben-David et al., 2010). It rests on all images. With lambda too small, the target's logits are undecided
  where the source's are not; too large, they are more decided than the source's; collapsed, they are something else
  altogether.

Entropy and density go on improving with lambda also when whole classes change places, which no guard on the number of
classes can see.
"""


def is_diverse(measures: Measures, highest: float) -> bool:
    """Whether a candidate passes the class-diversity guard, given the highest diversity of all candidates."""
    return measures.diversity >= max(SHARE, DIVERSE * min(1.0, highest))


def is_trusted(measures: Measures) -> bool:
    """Whether the domains overlap, and the importance weights are spread over enough images, to say anything."""
    return measures.effective >= TRUSTED * measures.held_out and measures.domain_accuracy < APART


def choose(rows: Sequence[Row]) -> dict[str, Choice]:
    """What every criterion chooses, by its name.

    The highest value is chosen, of equals the first.
    """
    highest = max((row.measures.diversity for row in rows if row.measures), default=0.0)
    best = max((a for row in rows if (a := _target_accuracy(row)) is not None), default=None)
    return {name: _choose(name, rows, highest, best) for name in CRITERIA}


def mean_measures(measures: Sequence[Measures]) -> Measures:
    """The mean of each measure over folds."""
    values: dict[str, Any] = {
        field.name: None
        if any(getattr(m, field.name) is None for m in measures)
        else mean(getattr(m, field.name) for m in measures)
        for field in fields(Measures)
    }
    return Measures(**values)


def _choose(name: str, rows: Sequence[Row], highest: float, best_accuracy: float | None) -> Choice:
    criterion = CRITERIA[name]
    eligible = {
        i: row.measures
        for i, row in enumerate(rows)
        if row.measures is not None
        and (not criterion.guarded or is_diverse(row.measures, highest))
        and (name != "weighted" or is_trusted(row.measures))
    }
    excluded = tuple(i for i in range(len(rows)) if i not in eligible)
    if not eligible:
        return Choice(name, None, (), excluded, None)
    values = {i: criterion.value(measures) for i, measures in eligible.items()}
    chosen = max(values, key=values.__getitem__)
    error = 0.0 if criterion.error is None else criterion.error(eligible[chosen]) / math.sqrt(rows[chosen].folds)
    tied = tuple(i for i, value in values.items() if i != chosen and value >= values[chosen] - error)
    accuracy = eligible[chosen].target_accuracy
    cost = None if accuracy is None or best_accuracy is None else best_accuracy - accuracy
    return Choice(name, chosen, tied, excluded, cost)


def _target_accuracy(row: Row) -> float | None:
    return None if row.measures is None else row.measures.target_accuracy
