"""What the criteria choose, and what it costs, from nets whose predictions are made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autodial.selection.candidates import Candidate
from autodial.selection.choice import Trial, accuracy, average, choose, collapsed, diversities, is_diverse
from autodial.selection.criteria import CRITERIA
from autodial.selection.outputs import Outputs

CLASSES = 4
EVEN = [0, 1, 2, 3] * 10


def trial(
    classes: Sequence[int] | None, *, sure: float = 0.9, truth: Sequence[int] = (), held_out: Sequence[int] = ()
) -> Trial:
    """A candidate that predicts these classes for the target, and 0 for what is held out; None: one that failed."""
    candidate = Candidate((), None, 0)
    if classes is None:
        return Trial(candidate, None, "it diverged")

    def logits(predicted: Sequence[int]) -> Any:
        rest = (1 - sure) / (CLASSES - 1)
        return np.log(np.full((len(predicted), CLASSES), rest) + (sure - rest) * np.eye(CLASSES)[list(predicted)])

    target = logits(classes).astype(np.float32)
    return Trial(
        candidate,
        Outputs(
            target_logits=target,
            features=np.exp(target),
            feature_rows=np.arange(len(target)),
            source_logits=logits(EVEN).astype(np.float32),
            held_out_logits=logits([0] * len(held_out)).astype(np.float32),
            held_out_labels=np.array(held_out, np.int64),
            test_probabilities=np.exp(target)[: len(truth)],
            test_labels=np.array(truth, np.int64),
        ),
    )


def changed(*images: int) -> list[int]:
    """EVEN with the classes of some images moved to the next."""
    return [(c + 1) % CLASSES if i in images else c for i, c in enumerate(EVEN)]


def test_agreement_takes_the_one_in_the_middle() -> None:
    """Two nets are wrong about different images, so that the average is right about all."""
    choice = choose([trial(changed(0, 1, 2)), trial(changed(36, 37, 38, 39)), trial(changed(20))])["agreement"]
    assert choice.trial == 2
    assert choice.values == pytest.approx((37 / 40, 36 / 40, 39 / 40))


def test_a_candidate_that_has_collapsed_is_passed_over() -> None:
    trials = [trial([0] * 40, sure=0.999), trial(EVEN), trial(changed(0, 1, 2))]
    choices = choose(trials)
    assert choices["entropy"].excluded == (0,)
    assert choices["entropy"].trial == 1
    assert choices["agreement"].excluded == (0,)
    # 1 of 4 classes is none of the entropy; 4 of 4, all but for what the other classes get of each prediction
    assert diversities(trials) == pytest.approx([0.01 / np.log(4), 1, 1], abs=0.02)


def test_one_class_for_all_images_is_a_collapse_however_unsure() -> None:
    """Equal probabilities of all classes have the most diverse mean, and class 0 is the first of equals.

    In `uneven`, 39 of 40 images get one of four classes: an entropy of 0.08 * log 4, although the mean is spread.
    """
    uneven = trial([0] * 39 + [1], sure=0.4)
    trials = [trial(EVEN), trial(EVEN, sure=1 / CLASSES), trial(None), uneven, trial([0] * 40, sure=0.999)]
    assert diversities(trials)[1] == pytest.approx(1, abs=0.01)
    assert collapsed(trials) == [1, 3, 4]
    assert collapsed([trial(EVEN), trial([0, 0, 0, 1] * 10, sure=0.7)]) == []


def test_guard_is_relative_to_the_most_diverse() -> None:
    # a target with 90% in one of two classes: 0.47 of log 2, in every candidate that sees it
    assert is_diverse(0.47, highest=0.5)
    assert is_diverse(0.47, highest=0.9)
    # the same diversity where other candidates find all classes
    assert not is_diverse(0.47, highest=1.0)
    # diversity above the source's is not asked of anyone
    assert is_diverse(0.55, highest=1.4)
    # all have collapsed
    assert not is_diverse(0.2, highest=0.2)


def test_failed_candidates_are_never_chosen() -> None:
    choices = choose([trial(None), trial(EVEN), trial(None)])
    assert {choice.trial for choice in choices.values()} == {1}
    assert choices["agreement"].excluded == (0, 2)
    assert {choice.trial for choice in choose([trial(None), trial(None)]).values()} == {None}
    assert diversities([trial(None)]) == [None]


def test_of_equals_the_first_is_chosen_and_the_tie_told() -> None:
    choice = choose([trial(EVEN), trial(EVEN), trial(EVEN, sure=0.5)])["nuclear-norm"]
    assert (choice.trial, choice.tied) == (0, (1,))


def test_tied_is_what_lies_within_a_standard_error() -> None:
    """Of 40 images, the first is alone about 1, the second about 2 others, and the third about 8."""
    trials = [trial(changed(0)), trial(changed(38, 39)), trial(changed(*range(10, 18)))]
    choice = choose(trials)["agreement"]
    # 1 of 40 is less than the deviation of 1, -1, -1 and 37 times 0, over the root of 40; 7 of 40 is more
    assert (choice.trial, choice.tied) == (0, (1,))


def test_held_out_source_decides_where_there_is_some() -> None:
    held_out = [0] * 30 + [1] * 10
    trials = [trial(changed(*range(9)), held_out=[0] * 40), trial(EVEN, held_out=held_out)]
    choices = choose(trials)
    assert set(choices) == set(CRITERIA)
    assert choices["source"].trial == 0
    assert choices["source"].values == (1, 0.75)
    assert set(choose([trial(EVEN), trial(EVEN)])) == {
        name for name, criterion in CRITERIA.items() if not criterion.needs_held_out
    }


def test_cost_is_against_the_best_candidate() -> None:
    trials = [
        trial(changed(0, 1, 2, 3), truth=EVEN),
        trial(EVEN, sure=0.5, truth=EVEN),
        trial(changed(0, 1), truth=EVEN),
    ]
    choices = choose(trials)
    assert [accuracy(t) for t in trials] == pytest.approx([0.9, 1, 0.95])
    assert choices["agreement"].trial == 2  # which outvotes the unsure one
    assert choices["agreement"].cost == pytest.approx(0.05)
    assert choose([trial(EVEN), trial(EVEN)])["agreement"].cost is None


def test_ensemble_averages_what_has_not_collapsed() -> None:
    trials = [
        trial(changed(0, 1, 2), truth=EVEN),
        trial([0] * 40, sure=0.999, truth=EVEN),
        trial(changed(38, 39), truth=EVEN),
        trial(None),
        trial(changed(0), truth=EVEN),
    ]
    ensemble = average(trials)
    assert ensemble is not None
    assert ensemble.trials == (0, 2, 4)
    # the first image is moved by two of three
    assert ensemble.accuracy == pytest.approx(39 / 40)
    assert ensemble.agreement == pytest.approx((38 / 40 + 37 / 40 + 1) / 3)
    assert average(trials[:2]) is None
