"""The grid of candidates."""

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.selection.candidates import Candidate, grid


def test_every_combination_in_order() -> None:
    candidates = grid(["loss.loss_weight=0, 0.1", "*-dial.param[0].lr_mult=0,1"], [7])
    assert [candidate.settings for candidate in candidates] == [
        ("loss.loss_weight=0", "*-dial.param[0].lr_mult=0"),
        ("loss.loss_weight=0", "*-dial.param[0].lr_mult=1"),
        ("loss.loss_weight=0.1", "*-dial.param[0].lr_mult=0"),
        ("loss.loss_weight=0.1", "*-dial.param[0].lr_mult=1"),
    ]
    assert {candidate.seed for candidate in candidates} == {7}
    assert {candidate.variants for candidate in candidates} == {()}


def test_variants_and_restarts_multiply() -> None:
    candidates = grid(["variant=learned,fixed-alpha", "loss.loss_weight=0.1,0.4"], range(5, 7))
    assert [(c.settings, c.variants, c.seed) for c in candidates] == [
        (("loss.loss_weight=0.1",), (), 5),
        (("loss.loss_weight=0.1",), ("fixed-alpha",), 5),
        (("loss.loss_weight=0.4",), (), 5),
        (("loss.loss_weight=0.4",), ("fixed-alpha",), 5),
        (("loss.loss_weight=0.1",), (), 6),
        (("loss.loss_weight=0.1",), ("fixed-alpha",), 6),
        (("loss.loss_weight=0.4",), (), 6),
        (("loss.loss_weight=0.4",), ("fixed-alpha",), 6),
    ]
    assert candidates[1].name == "loss.loss_weight=0.1, variant=fixed-alpha, seed 5"
    assert candidates[1].choices == {"loss.loss_weight": "0.1", "variant": "fixed-alpha"}


def test_restarts_alone() -> None:
    assert [candidate.name for candidate in grid([], [0, 1])] == ["seed 0", "seed 1"]


def test_value_in_brackets_is_one() -> None:
    candidates = grid(["data.transform_param.mean_value=[1,2,3],[4,5,6]"], [1])
    assert [c.recipe for c in candidates] == [
        "data.transform_param.mean_value=[1,2,3]",
        "data.transform_param.mean_value=[4,5,6]",
    ]


def test_folders_are_distinct_and_do_not_depend_on_the_others() -> None:
    few, many = grid(["solver.base_lr=0.1,0.2"], [1]), grid(["solver.base_lr=0.3,0.2,0.1"], [1, 2])
    assert few[1].folder == many[1].folder
    assert len({candidate.folder for candidate in many}) == 6
    # names that only differ in what no file name may hold, and long ones
    assert Candidate(("a/b.c=1",), None, 0).folder != Candidate(("a*b.c=1",), None, 0).folder
    assert len(Candidate(("x" * 300 + ".y=1",), None, 0).folder) < 110
    assert Candidate(("inception_4a/dial.param[0].lr_mult=1",), None, 0).folder.count("/") == 1


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        (["lambda"], "must be LAYER.FIELD=VALUE,VALUE"),
        (["lambda=1,2"], "must be LAYER.FIELD=VALUE,VALUE"),
        (["a.b=1"], "leaves nothing to choose; state it with `overrides` a.b=1"),
        (["variant=adabn"], "leaves nothing to choose; state it with `variants` adabn"),
        (["a.b=1,2", "a.b=3,4"], "`tries` a.b is given twice"),
        (["a.b=1,2,1"], "a value is given twice"),
        ([], "one candidate leaves nothing to choose"),
    ],
)
def test_mistakes(tries: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        grid(tries, [1])
    assert message in str(raised.value)
