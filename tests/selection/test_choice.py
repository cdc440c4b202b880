"""What the criteria choose from tables made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodial.selection.candidates import Candidate
from autodial.selection.choice import Choice, Row, choose, is_diverse, mean_measures
from autodial.selection.measures import Measures

PLAIN = Measures(
    held_out=400,
    source_accuracy=0.95,
    weighted_loss=0.3,
    weighted_error=0.01,
    effective=200,
    domain_accuracy=0.7,
    domain_samples=2000,
    entropy=0.5,
    density=5.0,
    diversity=1.0,
)


def table(*changes: dict[str, Any] | None, folds: int = 1) -> list[Row]:
    """A row per argument: what differs from PLAIN, or None for a candidate that failed."""
    return [
        Row(
            Candidate((f"loss.loss_weight={i}",)),
            folds,
            None if change is None else replace(PLAIN, **change),
            "it diverged" if change is None else None,
        )
        for i, change in enumerate(changes)
    ]


def chosen(rows: list[Row]) -> dict[str, int | None]:
    return {name: choice.row for name, choice in choose(rows).items()}


def test_each_criterion_looks_at_its_own_measure() -> None:
    rows = table(
        {"source_accuracy": 0.99},
        {"weighted_loss": 0.1},
        {"domain_accuracy": 0.55},
        {"entropy": 0.1},
        {"density": 6.0},
    )
    assert chosen(rows) == {"source": 0, "weighted": 1, "alignment": 2, "entropy": 3, "density": 4}


def test_collapsed_candidate_is_chosen_by_the_source_alone() -> None:
    collapsed = {
        **{"source_accuracy": 0.96, "weighted_loss": 0.01, "domain_accuracy": 0.5, "entropy": 0.0, "density": 7.0},
        "diversity": 0.1,
    }
    rows = table({}, collapsed, {"entropy": 0.4, "density": 5.5, "domain_accuracy": 0.6, "weighted_loss": 0.2})
    assert chosen(rows) == {"source": 1, "weighted": 2, "alignment": 2, "entropy": 2, "density": 2}
    assert choose(rows)["entropy"].excluded == (1,)


def test_guard_is_relative_to_the_most_diverse() -> None:
    # a target with 90% in one of two classes: 0.47 of log 2, in every candidate that sees it
    imbalanced = replace(PLAIN, diversity=0.47)
    assert is_diverse(imbalanced, highest=0.5)
    assert is_diverse(imbalanced, highest=0.9)
    # the same diversity where other candidates find all classes
    assert not is_diverse(replace(PLAIN, diversity=0.47), highest=1.0)
    # diversity above the source's is not asked of anyone
    assert is_diverse(replace(PLAIN, diversity=0.55), highest=1.4)
    # all have collapsed
    assert not is_diverse(replace(PLAIN, diversity=0.2), highest=0.2)


def test_weights_on_few_images_are_not_trusted() -> None:
    rows = table({}, {"weighted_loss": 0.01, "effective": 49}, {"weighted_loss": 0.2, "effective": 50})
    choice = choose(rows)["weighted"]
    assert (choice.row, choice.excluded) == (2, (1,))
    apart = table({}, {"weighted_loss": 0.01, "domain_accuracy": 0.99})
    assert choose(apart)["weighted"].row == 0


def test_alignment_adds_the_sources_error_and_the_domains_distance() -> None:
    # 0.05 + 0.4 for PLAIN
    rows = table({}, {"source_accuracy": 0.60, "domain_accuracy": 0.55}, {"domain_accuracy": 0.69})
    assert [row.measures.misalignment for row in rows if row.measures] == pytest.approx([0.45, 0.5, 0.43])
    # logits that tell nothing, of neither domain, are no alignment
    assert chosen(rows)["alignment"] == 2
    # a classifier of the domains that does worse than chance tells nothing, too
    assert replace(PLAIN, domain_accuracy=0.48).misalignment == pytest.approx(0.05)


def test_failed_candidates_are_never_chosen() -> None:
    rows = table(None, {}, None)
    assert set(chosen(rows).values()) == {1}
    assert choose(rows)["source"].excluded == (0, 2)
    assert set(chosen(table(None, None)).values()) == {None}


def test_of_equals_the_first_is_chosen_and_the_tie_told() -> None:
    rows = table({}, {}, {"entropy": 0.6})
    assert choose(rows)["entropy"] == Choice("entropy", 0, (1,), (), None)


def test_tied_is_what_lies_within_a_standard_error() -> None:
    # of 400 images, 0.99 has an error of 0.005
    rows = table({"source_accuracy": 0.99}, {"source_accuracy": 0.986}, {"source_accuracy": 0.98})
    assert choose(rows)["source"].tied == (1,)
    rows = table({"weighted_loss": 0.200}, {"weighted_loss": 0.209}, {"weighted_loss": 0.211})
    assert choose(rows)["weighted"].tied == (1,)
    # of a distance found on 2,000 images 0.02, of an accuracy of 0.95 on 400 images 0.011; together 0.023
    rows = table({"domain_accuracy": 0.600}, {"domain_accuracy": 0.610}, {"domain_accuracy": 0.613})
    assert choose(rows)["alignment"].tied == (1,)
    # four folds halve it
    rows = table({"weighted_loss": 0.200}, {"weighted_loss": 0.209}, {"weighted_loss": 0.204}, folds=4)
    assert choose(rows)["weighted"].tied == (2,)


def test_cost_is_against_the_best_candidate() -> None:
    rows = table(
        {"target_accuracy": 0.5, "source_accuracy": 0.99},
        {"target_accuracy": 0.8, "entropy": 0.4},
        {"target_accuracy": 0.7, "weighted_loss": 0.1},
    )
    choices = choose(rows)
    assert choices["source"].cost == pytest.approx(0.3)
    assert choices["entropy"].cost == 0
    assert choices["weighted"].cost == pytest.approx(0.1)
    assert choose(table({}, {}))["source"].cost is None


def test_measures_of_folds_are_averaged() -> None:
    first, second = replace(PLAIN, entropy=0.2, target_accuracy=0.5), replace(PLAIN, entropy=0.4, target_accuracy=0.7)
    mean = mean_measures([first, second])
    assert (mean.entropy, mean.target_accuracy) == (pytest.approx(0.3), pytest.approx(0.6))
    assert mean.density == PLAIN.density
    assert mean_measures([PLAIN, second]).target_accuracy is None
