"""The grid of candidates."""

from __future__ import annotations

import pytest

from autodial.errors import InputError
from autodial.selection.candidates import Candidate, grid


def test_every_combination_in_order() -> None:
    candidates = grid(["loss.loss_weight=0, 0.1", "*-dial.param[0].lr_mult=0,1"])
    assert [candidate.settings for candidate in candidates] == [
        ("loss.loss_weight=0", "*-dial.param[0].lr_mult=0"),
        ("loss.loss_weight=0", "*-dial.param[0].lr_mult=1"),
        ("loss.loss_weight=0.1", "*-dial.param[0].lr_mult=0"),
        ("loss.loss_weight=0.1", "*-dial.param[0].lr_mult=1"),
    ]


def test_value_in_brackets_is_one() -> None:
    candidates = grid(["data.transform_param.mean_value=[1,2,3],[4,5,6]"])
    assert [c.name for c in candidates] == [
        "data.transform_param.mean_value=[1,2,3]",
        "data.transform_param.mean_value=[4,5,6]",
    ]


def test_folders_are_distinct_and_do_not_depend_on_the_others() -> None:
    few, many = grid(["solver.base_lr=0.1,0.2"]), grid(["solver.base_lr=0.3,0.2,0.1"])
    assert few[1].folder == many[1].folder
    assert len({candidate.folder for candidate in many}) == 3
    # names that only differ in what no file name may hold, and long ones
    assert Candidate(("a/b.c=1",)).folder != Candidate(("a*b.c=1",)).folder
    assert len(Candidate(("x" * 300 + ".y=1",)).folder) < 100
    assert "/" not in Candidate(("inception_4a/dial.param[0].lr_mult=1",)).folder


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        (["lambda"], "must be LAYER.FIELD=VALUE,VALUE"),
        (["lambda=1,2"], "must be LAYER.FIELD=VALUE,VALUE"),
        (["a.b=1"], "leaves nothing to choose; set it with --set a.b=1"),
        (["a.b=1,2", "a.b=3,4"], "--try a.b is given twice"),
        (["a.b=1,2,1"], "a value is given twice"),
    ],
)
def test_mistakes(tries: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        grid(tries)
    assert message in str(raised.value)
