"""Accuracies over several seeds, as tables in Markdown show them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean and the sample standard deviation, with a digit behind the point: "71.2 ± 0.5"; of one value, itself."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def seed_table(first: str, rows: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> list[str]:
    """The lines of a table with a row of accuracies in % for each title: mean and spread, then each seed's.

    Args:
        first: what stands above the titles.
        rows: by title, a value for each seed.
        seeds: the seeds.
    """
    return [
        f"| {first} | mean ± std | {' | '.join(f'seed {seed}' for seed in seeds)} |",
        f"|---|---|{'---|' * len(seeds)}",
        *(
            f"| {title} | {mean_and_spread(values)} | {' | '.join(f'{value:.1f}' for value in values)} |"
            for title, values in rows.items()
        ),
    ]
