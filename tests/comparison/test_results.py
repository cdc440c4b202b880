"""Ranks without labels, from results made by hand."""

from __future__ import annotations

from autodial.comparison.results import Results, Run, about_choice, joined_table, table_of
from autodial.comparison.table import RANK
from autodial.selection.criteria import DEFAULT


def run(seed: int, value: float | None, error: str | None = None) -> Run:
    return Run(
        seed=seed,
        accuracy=None,
        values={DEFAULT: value},
        diversity=None,
        collapsed=False,
        collapsed_at=None,
        error=error,
    )


RESULTS = Results(
    schema=1,
    pair="a to b",
    conditions=[],
    methods={
        "source-only": [run(1, 0.5), run(2, 0.7), run(3, None, "no memory")],
        "autodial": [run(1, 0.9), run(2, 0.7)],
    },
    chosen={"method": "autodial", "seed": 1, "commands": {}},
)


def test_a_rank_is_a_place_among_all_runs() -> None:
    """0.9 is first, 0.7 second and third, 0.5 fourth; what failed has no place."""
    (column,) = table_of(RESULTS).columns
    assert column.title == RANK
    assert {name: values.values for name, values in column.cells.items()} == {
        "source-only": (4.0, 2.5),
        "autodial": (1.0, 2.5),
    }
    assert column.cells["source-only"].failed == 1
    assert (
        about_choice(RESULTS)
        == "Chosen without target labels: autodial, seed 1, the trained net with the best rank (1)"
    )


def test_ranks_of_several_pairs_are_each_pairs_own() -> None:
    table = joined_table({"first": RESULTS, "second": RESULTS})
    assert [column.cells["autodial"].values for column in table.columns] == [(1.0, 2.5)] * 2
    assert table.caption == "Rank without labels, among the runs of a pair: mean and deviation over the seeds"
