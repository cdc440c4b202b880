"""The candidate that each criterion chooses, given the outputs of all candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autodial.selection.candidates import Candidate
from autodial.selection.criteria import CRITERIA, diversity, ensemble, softmax
from autodial.selection.outputs import Outputs
from autodial.selection.process_job import ProcessJob
from autodial.training.collapse import SHARE

DIVERSE = 0.5
"""The class-diversity guard: the share of the most diverse candidate's diversity that a candidate must keep.

Diversity is the entropy of the mean prediction for the target, relative to that for the source. A target that really
has fewer or rarer classes shows so in every candidate, and what is lost from one candidate to the next is the
candidates' doing. Half of the entropy is as many classes as the square root: 3.2 of 10, 5.6 of 31. Below a share of 1/3
of the source's (autodial.training.collapse.SHARE), a candidate has collapsed whatever the others do.
"""


@dataclass(frozen=True)
class Trial:
    """A candidate and the result of its training.

    Attributes:
        candidate: the candidate.
        outputs: the trained net's outputs; None if the training failed.
        error: why the training failed, in one sentence.
        collapsed_at: the iteration of the last collapse alarm in the training.
    """

    candidate: Candidate
    outputs: Outputs | None
    error: str | None = None
    collapsed_at: int | None = None

    @classmethod
    def of(cls, candidate: Candidate, job: ProcessJob, failure: str) -> Trial:
        """A candidate with the result of its job.

        Args:
            candidate: the candidate.
            job: what trained it.
            failure: why the job has no result, for one that has none.

        Raises:
            InputError: a damaged result.
        """
        result = job.result()
        if result is None:
            return cls(candidate, None, failure)
        outputs = None if result["error"] is not None else Outputs.read(job.outputs)
        return cls(candidate, outputs, result["error"], result["collapsed_at"])


@dataclass(frozen=True)
class Choice:
    """A criterion's choice among trials. Trials are numbered from 0.

    Attributes:
        criterion: the criterion's name.
        trial: number of the chosen trial; None if no trial is eligible.
        values: the value of each trial, as in `Ranking`; None for trials that are not eligible.
        tied: numbers of the other trials that are equal to the chosen one, or within a standard error.
        cost: the best trial's target accuracy minus the chosen one's; None if labels were not looked at.
    """

    criterion: str
    trial: int | None
    values: tuple[float | None, ...]
    tied: tuple[int, ...]
    cost: float | None

    @property
    def excluded(self) -> tuple[int, ...]:
        """Numbers of the trials that are not eligible: they failed, are not diverse, or can't be judged."""
        return tuple(number for number, value in enumerate(self.values) if value is None)


@dataclass(frozen=True)
class Ensemble:
    """The average of the candidates' probabilities.

    Attributes:
        trials: numbers of the members.
        agreement: the mean share of target images for which a member predicts the same class as the average.
        accuracy: target accuracy of the average; None if labels were not looked at.
    """

    trials: tuple[int, ...]
    agreement: float
    accuracy: float | None


def diversities(trials: Sequence[Trial]) -> list[float | None]:
    """The diversity of each trial's target predictions, relative to the most diverse trial's source predictions.

    Diversity is the entropy of the mean prediction. None for a failed trial, or if the source has one class.
    """
    target = [None if t.outputs is None else diversity(softmax(t.outputs.target_logits)) for t in trials]
    source = _source_diversity(trials)
    return [None if value is None or not source else value / source for value in target]


def is_diverse(share: float, highest: float) -> bool:
    """Whether a candidate passes the class-diversity guard, given the highest diversity of all candidates."""
    return share >= max(SHARE, DIVERSE * min(1.0, highest))


def diverse(trials: Sequence[Trial]) -> list[int]:
    """Numbers of the trials that pass the class-diversity guard; failed trials don't."""
    shares = diversities(trials)
    highest = max((share for share in shares if share is not None), default=0.0)
    return [number for number, share in enumerate(shares) if share is not None and is_diverse(share, highest)]


def collapsed(trials: Sequence[Trial]) -> list[int]:
    """Numbers of the trials whose predictions for the target have collapsed; failed trials are not among them.

    They fail the class-diversity guard, or their most probable classes have less than SHARE of the source's diversity.
    A net whose features died gives every image the same probabilities. Where these are spread over the classes, the
    guard sees nothing, but all images get one class.
    """
    shares, kept, source = diversities(trials), diverse(trials), _source_diversity(trials)
    return [
        number
        for number, share in enumerate(shares)
        if share is not None and (number not in kept or _class_diversity(trials[number]) < SHARE * source)
    ]


def choose(trials: Sequence[Trial]) -> dict[str, Choice]:
    """Every criterion's choice, by the criterion's name; of equal trials, the first is chosen.

    Criteria that need held-out source images are left out if there are none.
    """
    finished = [number for number, trial in enumerate(trials) if trial.outputs is not None]
    guarded = diverse(trials)
    held_out = all(len(_outputs(trials[number]).held_out_labels) for number in finished)
    return {
        name: _choose(name, trials, guarded if criterion.guarded else finished)
        for name, criterion in CRITERIA.items()
        if held_out or not criterion.needs_held_out
    }


def accuracy(trial: Trial) -> float | None:
    """A trial's accuracy on the TEST phase's labelled images, in [0, 1]; None if labels were not looked at."""
    if trial.outputs is None or not len(trial.outputs.test_labels):
        return None
    return _accuracy(trial.outputs.test_probabilities, trial.outputs.test_labels)


def average(trials: Sequence[Trial]) -> Ensemble | None:
    """The ensemble of the diverse candidates; None if there are fewer than two."""
    members = diverse(trials)
    if len(members) < 2:
        return None
    outputs = [_outputs(trials[number]) for number in members]
    labels = ensemble(softmax(o.target_logits) for o in outputs).argmax(axis=1)
    agreement = float(np.mean([(o.target_logits.argmax(axis=1) == labels).mean() for o in outputs]))
    truth = outputs[0].test_labels
    right = _accuracy(ensemble(o.test_probabilities for o in outputs), truth) if len(truth) else None
    return Ensemble(tuple(members), agreement, right)


def _choose(name: str, trials: Sequence[Trial], eligible: Sequence[int]) -> Choice:
    values: list[float | None] = [None] * len(trials)
    ranking = CRITERIA[name].rank([_outputs(trials[number]) for number in eligible]) if eligible else None
    if ranking is None or np.isnan(ranking.values).all():
        return Choice(name, None, tuple(values), (), None)
    for number, value in zip(eligible, ranking.values, strict=True):
        values[number] = None if math.isnan(value) else float(value)
    best = int(np.nanargmax(ranking.values))
    errors = np.zeros(len(eligible)) if ranking.errors is None else ranking.errors
    close = ranking.values >= ranking.values[best] - errors
    tied = tuple(number for i, number in enumerate(eligible) if i != best and close[i])
    chosen = eligible[best]
    found = accuracy(trials[chosen])
    cost = None if found is None else max(a for t in trials if (a := accuracy(t)) is not None) - found
    return Choice(name, chosen, tuple(values), tied, cost)


def _source_diversity(trials: Sequence[Trial]) -> float:
    """The highest diversity of all trials' source predictions; 0 if all failed."""
    return max((diversity(softmax(t.outputs.source_logits)) for t in trials if t.outputs), default=0.0)


def _class_diversity(trial: Trial) -> float:
    """The entropy of how often each class is the most probable one of a target image."""
    logits = _outputs(trial).target_logits
    return diversity(np.eye(logits.shape[1])[logits.argmax(axis=1)])


def _outputs(trial: Trial) -> Outputs:
    assert trial.outputs is not None, "failed trials are not judged"
    return trial.outputs


def _accuracy(probabilities: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    return float((probabilities.argmax(axis=1) == labels).mean())
