"""Numbers and names as the report writes them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime

from autodial.report.predictions import Predictions
from autodial.report.run import Curve
from autodial.training.run_record import Start


def number(value: float | None, form: str = ".6g") -> str:
    """A logged number; None is one that was not finite."""
    return "not finite" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """A logged share, with one decimal; None is one that was not finite."""
    return "not finite" if value is None else f"{value:.1%}"


def spread(values: Sequence[float], form: str = ".4g", unit: str = "", scale: float = 1.0) -> str:
    """Mean, sample standard deviation and range: `81.2 ± 2.3 (78.0 to 83.9)`; one value stands alone, none is empty.

    Args:
        form: the numbers' format.
        unit: what stands behind a number, such as "%".
        scale: what the values are multiplied by.
    """
    shown = [scale * value for value in values]
    if not shown:
        return ""
    if len(shown) == 1:
        return f"{shown[0]:{form}}{unit}"
    mean, deviation = statistics.mean(shown), statistics.stdev(shown)
    return f"{mean:{form}} \N{PLUS-MINUS SIGN} {deviation:{form}}{unit} ({min(shown):{form}} to {max(shown):{form}})"


def date(record: Start) -> str:
    """When a start was."""
    return datetime.fromisoformat(record["started"]).strftime("%Y-%m-%d %H:%M %Z")


def curve_label(curve: Curve) -> str:
    """What a curve of losses or accuracies is called."""
    kind = "test: " if curve.kind == "test" else ""
    weight = "" if curve.weight is None or curve.weight == 1 else f" (weight {curve.weight:.3g})"
    return f"{kind}{curve.name}{weight}"


def scope(predictions: Predictions) -> str:
    """Which images were predicted."""
    count, total = len(predictions.rows) + predictions.lost, predictions.total
    lost = f", without {predictions.lost:,} whose scores are not finite" if predictions.lost else ""
    if count == total:
        return f"all {total:,} images of {predictions.name}{lost}"
    return f"{count:,} of the {total:,} images of {predictions.name}, evenly spaced{lost}"
