"""Figures of large nets, of many classes, and of names that nobody expects."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from autodial.report import figures
from autodial.report.features import Channel, LayerFeatures
from autodial.report.run import Curve
from autodial.report.style import (
    NARROW,
    WIDE,
    Draw,
    LineLabel,
    figure_style,
    label_lines,
    new_figure,
    picture,
    shortened,
)

HOSTILE = ["<script>alert(1)</script>", "$\\frac{", "日本語", "a & b", "\x07bell", "x" * 300, "", "\udcff.png"]


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """Figures as the report has them, and no warning about a glyph or a layout that does not fit."""
    with figure_style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def curve(name: str, values: list[float | None], step: int = 1) -> Curve:
    return Curve(name, iterations=[i * step for i in range(len(values))], values=values)


def check(draw: Draw) -> None:
    """Draw a figure at both widths, and parse what comes out."""
    drawn = picture(draw)
    for svg in (drawn.svg, drawn.narrow):
        assert ET.fromstring(svg).tag.endswith("svg")


def axes_of(figure: Figure) -> Axes:
    return figure.axes[0]


def labels_of(axes: Axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


def test_69_layers_have_a_map_and_a_small_file() -> None:
    rng = np.random.default_rng(0)
    alphas = [curve(f"inception_{i}/double3x3b/dial", rng.uniform(0.5, 1, 5000).tolist(), 20) for i in range(69)]
    by_iteration = partial(figures.draw_alphas_by_iteration, alphas, [])
    mesh = axes_of(by_iteration()).collections[0]
    assert mesh.get_array().shape == (69, 300)  # type: ignore[union-attr]
    # each column is the mean of about 17 neighbours
    first = np.mean([alphas[0].values[:17]])
    assert mesh.get_array()[0, 0] == pytest.approx(first)  # type: ignore[union-attr, index]
    by_depth = partial(figures.draw_alphas_by_depth, alphas)
    last = axes_of(by_depth()).lines[1]
    assert last.get_ydata() == pytest.approx([a.values[-1] for a in alphas])
    for draw in (by_iteration, by_depth):
        drawn = picture(draw)
        assert max(len(drawn.svg), len(drawn.narrow)) < 300_000
        assert len(drawn.png) < 500_000


def test_lines_are_labelled_at_their_ends_without_overlapping() -> None:
    curves = [curve(f"loss{i}", [3.0, 1.0, 0.5 + 0.001 * i]) for i in range(10)]
    figure = figures.draw_curves(curves, [1], ylabel="loss")
    figure.draw_without_rendering()
    labels = [label for label in labels_of(axes_of(figure)) if label.get_text().startswith("loss")]
    assert {label.get_text() for label in labels} == {f"loss{i}" for i in range(10)}
    # in the order of the values; a Text's extent leaves the line that leads to it out
    boxes = [Text.get_window_extent(label) for label in sorted(labels, key=lambda label: label.get_text())]
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    # and beside the lines, not on them
    assert all(box.x0 > axes_of(figure).get_window_extent().x1 for box in boxes)


def test_labels_stay_at_their_heights_where_there_is_room() -> None:
    figure = new_figure(WIDE, 4)
    axes = figure.subplots()
    axes.set_ylim(0, 10)
    (line,) = axes.plot([])
    label_lines(axes, [LineLabel("a", 2, line), LineLabel("b", 8, line), LineLabel("c", float("nan"), line)])
    assert [(label.get_text(), label.xyann[1]) for label in labels_of(axes)] == [
        ("a", pytest.approx(0.2)),
        ("b", pytest.approx(0.8)),
    ]


def test_a_narrow_figure_names_its_lines_in_a_legend_under_the_axes() -> None:
    curves = [curve(f"loss{i}", [3.0, 1.0, 0.5]) for i in range(10)]
    figure = figures.draw_curves(curves, [], ylabel="loss", width=NARROW)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"loss{i}" for i in range(10)]
    extents = [text.get_window_extent() for text in legend.get_texts()]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in extents)
    assert max(box.y1 for box in extents) < axes_of(figure).get_tightbbox().y0  # type: ignore[union-attr]
    # letters are as large as in a wide figure
    assert {text.get_fontsize() for text in legend.get_texts()} == {8.33}
    assert labels_of(axes_of(figure)) == []


def test_values_that_are_not_finite_are_crosses() -> None:
    figure = figures.draw_curves([curve("loss", [1.0, None, 3.0, None])], [], ylabel="loss")
    line, crosses = axes_of(figure).lines
    np.testing.assert_array_equal(line.get_ydata(), [1, np.nan, 3, np.nan])
    assert crosses.get_marker() == "x"
    assert list(crosses.get_xdata()) == [1, 3]
    check(partial(figures.draw_curves, [curve("loss", [None])], [], ylabel="loss"))


def test_alphas_that_are_not_finite_are_drawn() -> None:
    """A map, as of a net with many Dial layers, whose weights became NaN before anything was displayed."""
    check(partial(figures.draw_alphas_by_iteration, [curve(f"dial{i}", [None, None]) for i in range(10)], []))


@pytest.mark.parametrize(
    ("joint", "values", "line", "bar"),
    [
        (1 / 2, [0.9, 0.55], ["joint 0.5", "0.6", "0.7"], ["0.5 joint", "0.6", "0.7"]),
        (1 / 3, [0.9, 0.55], ["joint 0.33", "0.4", "0.5"], ["0.33 joint", "0.4", "0.5"]),
        (1 / 3, [0.9, 0.15], ["0.2", "joint 0.33", "0.4"], ["0.33 joint", "0.4", "0.5"]),
        (1 / 10, [0.9, 0.2], ["joint 0.1", "0.2", "0.3"], ["0.1 joint", "0.2", "0.3"]),
    ],
)
def test_alpha_of_joint_statistics_depends_on_the_number_of_domains(
    joint: float, values: list[float | None], line: list[str], bar: list[str]
) -> None:
    """1 by their number: one source and a target, two and a target, nine and a target."""
    few, many = ([curve(f"dial{i}", values) for i in range(count)] for count in (2, 10))
    for draw, axes, lowest in (
        (partial(figures.draw_alphas_by_depth, few), 0, line),
        (partial(figures.draw_alphas_by_iteration, few, []), 0, line),
        (partial(figures.draw_alphas_by_iteration, many, []), 1, bar),
    ):
        labels = [label.get_text() for label in draw(joint=joint).axes[axes].get_yticklabels()]
        assert labels[:3] == lowest and labels[-1] in ("own 1", "1 own")


def test_hostile_names_are_drawn() -> None:
    check(partial(figures.draw_alphas_by_depth, [curve(name, [1.0, 0.7]) for name in HOSTILE]))
    check(partial(figures.draw_alphas_by_iteration, [curve(name, [1.0, 0.7]) for name in HOSTILE], []))
    check(partial(figures.draw_alphas_by_iteration, [curve(name, [1.0, 0.7]) for name in HOSTILE * 2], []))
    shares = {"source": np.full(8, 0.125), "target": np.linspace(0, 0.25, 8)}
    check(partial(figures.draw_class_shares, HOSTILE, shares))
    balance = figures.draw_class_shares(HOSTILE, shares)
    named = [label.get_text() for label in axes_of(balance).get_yticklabels()]
    # what the font lacks has its number, for the table to look it up in
    assert named[:5] == [*(shortened(name, 18) for name in HOSTILE[:2]), "class 2", "a & b", "class 4"]
    check(partial(figures.draw_confusion, HOSTILE, figures.shown_confusion(np.eye(8, dtype=np.int64))))
    layer = LayerFeatures(HOSTILE[2], 0.5, [Channel(0, (np.zeros(3), np.ones(3)), (np.ones(3), np.ones(3)))], 1, 2)
    check(partial(figures.draw_features, layer))


def test_many_classes_are_added_up() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(0.1, (120, 120)) + np.diag(rng.integers(0, 40, 120))
    shown = figures.shown_confusion(counts)
    assert shown.counts.shape == (20, 20)
    assert shown.counts.sum() == counts.sum()
    assert shown.classes[-1] is None
    kept = [i for i in shown.classes if i is not None]
    np.testing.assert_array_equal(shown.counts[:-1, :-1], counts[np.ix_(kept, kept)])
    others = [i for i in range(120) if i not in kept]
    np.testing.assert_array_equal(shown.counts[-1, :-1], counts[np.ix_(others, kept)].sum(0))
    errors = counts.sum(0) + counts.sum(1) - 2 * np.diag(counts)
    assert min(errors[kept]) >= max(errors[others])
    drawn = picture(partial(figures.draw_confusion, [f"a class of that name {i}" for i in range(120)], shown))
    assert max(len(drawn.svg), len(drawn.narrow)) < 300_000


def test_confusions_of_few_classes_are_shares_of_the_true_class() -> None:
    figure = figures.draw_confusion(["a", "b"], figures.shown_confusion(np.array([[3, 1], [0, 0]])))
    np.testing.assert_array_equal(axes_of(figure).images[0].get_array(), [[0.75, 0.25], [0, 0]])
    assert [text.get_text() for text in axes_of(figure).texts] == ["3", "1"]
    assert [label.get_text() for label in axes_of(figure).get_yticklabels()] == ["a (4)", "b (0)"]


def test_of_many_classes_those_are_shown_that_differ_most() -> None:
    source = np.full(100, 0.01)
    target = source.copy()
    target[40:70] += np.linspace(0.001, 0.002, 30)
    target[:40] -= 0.0001
    assert figures.classes_apart({"source": source, "target": target}) == list(range(40, 70))
    figure = figures.draw_class_shares([f"{i}" for i in range(100)], {"source": source, "target": target})
    assert [label.get_text() for label in axes_of(figure).get_yticklabels()] == [f"{i}" for i in range(40, 70)]


def test_histograms_are_densities_of_all_values() -> None:
    rng = np.random.default_rng(2)
    source, target = rng.normal(0, 1, 4000), rng.normal(2, 1, 2000)
    layer = LayerFeatures("fc/dial", 0.8, [Channel(3, (source, target), (source, target - 2))], 1.0, 0.1)
    before, after, *_ = figures.draw_features(layer).axes
    assert before.get_title() == "channel 3"
    for axes, values in ((before, (source, target)), (after, (source, target - 2))):
        for patch, sample in zip(axes.patches, values, strict=True):
            heights, edges, _ = patch.get_data()  # type: ignore[attr-defined]
            expected, _ = np.histogram(sample, edges, density=True)
            inside = np.mean((sample >= edges[0]) & (sample <= edges[-1]))
            np.testing.assert_allclose(heights, expected * inside, rtol=1e-9, atol=1e-12)
            assert inside > 0.97


def test_a_figure_is_the_same_file_each_time() -> None:
    first, second = (picture(partial(figures.draw_curves, [curve("a", [1.0, 2.0])], [], ylabel="y")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("name", "length", "short"), [("abcdefgh", 8, "abcdefgh"), ("abcdefghi", 8, "abc…fghi")])
def test_names_are_cut_in_their_middle(name: str, length: int, short: str) -> None:
    assert shortened(name, length) == short
