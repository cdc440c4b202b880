"""The statistics and the decision of `--drift`, on distributions that are known."""

from __future__ import annotations

import json
from typing import Any

import cv2
import numpy as np
import pytest

from autodial.commands.predict import describe_drift
from autodial.data.image_statistics import Reference, all_statistics, entropies, image_statistics, statistic_names
from autodial.deploy.drift import Counts, Drift, Verdict, read_reference
from autodial.deploy.metadata import ModelInfo
from autodial.errors import InputError

NAMES = statistic_names(1)
CLASSES = ("cat", "dog", "owl", "fish")
BALANCE = (0.4, 0.3, 0.2, 0.1)


def domain(
    rng: np.random.Generator, count: int, balance: Any = BALANCE, apart: float = 3, **moved: float
) -> tuple[Any, Any]:
    """Classes of images, and statistics that depend on them, normally distributed; `moved` adds to one of these."""
    classes = rng.choice(len(balance), count, p=balance)
    values = rng.standard_normal((count, len(NAMES))) + apart * classes[:, np.newaxis]
    for name, by in moved.items():
        values[:, NAMES.index(name)] += by
    return classes, values


def reference(count: int = 2000, seed: int = 0, apart: float = 3) -> Reference:
    classes, values = domain(np.random.default_rng(seed), count, apart=apart)
    return Reference.measured("target", "target.txt", 3 * count, classes, NAMES, values)


def compare(kept: Reference, classes: Any, values: Any) -> Drift:
    counts = Counts(kept, CLASSES)
    for start in range(0, len(values), 10_000):
        counts.add(values[start : start + 10_000])
    return counts.compare(dict(enumerate(np.bincount(classes).tolist())))


def test_statistics_of_an_image_by_hand() -> None:
    image = np.zeros((4, 5, 1), np.uint8)
    image[1, 2] = 100
    grey = image[..., 0].astype(float)
    around = np.pad(grey, 1, mode="reflect")
    laplacian = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * grey
    expected = [grey.mean(), grey.std(), np.sqrt((laplacian**2).mean())]
    np.testing.assert_allclose(image_statistics(image)[:3], expected)

    # at a quarter of the size: 50 in one of 2 x 2 pixels, whose neighbours are reflected
    image = np.zeros((8, 8, 1), np.uint8)
    image[:4, :4] = 50
    laplacian = np.array([-200, 100, 100, 0])
    assert image_statistics(image)[3] == pytest.approx(np.abs(laplacian).mean() / np.sqrt((laplacian**2).mean()))
    assert image_statistics(np.full((1, 1, 1), 9, np.uint8)) == [9, 0, 0, 0]

    photo = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    grey = cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY).astype(float)
    brightness, contrast, sharpness, _, blue, red = image_statistics(photo)
    assert (brightness, contrast) == pytest.approx((grey.mean(), grey.std()))
    assert (blue, red) == pytest.approx((photo[..., 0].mean() - grey.mean(), photo[..., 2].mean() - grey.mean()))
    assert sharpness == pytest.approx(np.sqrt((cv2.Laplacian(grey, cv2.CV_64F) ** 2).mean()))
    assert len(statistic_names(3)) == 2 + len(image_statistics(photo))


def test_statistics_of_an_answer() -> None:
    probabilities = np.float32([[0.5, 0.5, 0], [1, 0, 0]])
    np.testing.assert_allclose(entropies(probabilities), [np.log(2), 0])
    np.testing.assert_allclose(all_statistics(probabilities, np.ones((2, 3)))[:, :2], [[np.log(2), 0.5], [0, 1]])


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    ours, theirs = rng.standard_normal((800, 6)), rng.normal(0.7, 1.5, (500, 6))
    kept = Reference.measured("target", "t", 800, np.zeros(800, np.intp), NAMES, ours)
    compared = compare(kept, np.zeros(500, np.intp), theirs)
    for statistic, mine, other in zip(compared.statistics, ours.T, theirs.T, strict=True):
        whole = stats.ks_2samp(mine, other).statistic
        assert whole - 0.05 <= statistic.distance <= whole
        assert statistic.below == pytest.approx((other < statistic.edge).mean())
        assert statistic.reference_below == pytest.approx((mine < statistic.edge).mean())
        assert (statistic.mean, statistic.reference_mean) == pytest.approx((other.mean(), mine.mean()))


@pytest.mark.parametrize("count", [1, 3, 30, 200, 2000])
def test_no_false_alarm_whatever_the_number_of_images(count: int) -> None:
    rng = np.random.default_rng(count)
    for seed in range(40):
        kept = reference((20, 300, 2000)[seed % 3], seed)
        verdict = compare(kept, *domain(rng, count)).verdict
        assert verdict in (Verdict.ALIKE, Verdict.TOO_FEW)
        assert verdict is Verdict.TOO_FEW or count >= 30
        if count >= 200 and seed % 3:
            assert verdict is Verdict.ALIKE


@pytest.mark.parametrize(
    ("name", "by", "verdict"),
    [
        # Two normal distributions d apart have a distance of 2 Phi(d / 2) - 1: 0.08, 0.27, 0.27, 0.5
        ("brightness", 0.2, Verdict.ALIKE),
        ("brightness", 0.7, Verdict.SHIFTED),
        ("entropy", 0.7, Verdict.ALIKE),
        ("entropy", 1.35, Verdict.SHIFTED),
    ],
)
def test_of_a_million_images_the_size_of_the_difference_decides(name: str, by: float, verdict: Verdict) -> None:
    images = domain(np.random.default_rng(3), 1_000_000, apart=0, **{name: by})
    compared = compare(reference(apart=0), *images)
    assert compared.verdict is verdict
    if verdict is Verdict.SHIFTED:
        assert [statistic.name for statistic in compared.statistics if statistic.shifted] == [name]


def test_another_balance_of_classes_is_called_that() -> None:
    rng = np.random.default_rng(4)
    other = (0.05, 0.05, 0.1, 0.8)
    mixed = compare(reference(), *domain(rng, 2000, other))
    assert mixed.verdict is Verdict.CLASSES
    # although all statistics, taken together, are far off
    assert min(statistic.mean - statistic.reference_mean for statistic in mixed.statistics) > 4
    assert mixed.classes is not None and mixed.classes.distance == pytest.approx(0.7, abs=0.03)
    assert [name for name, _, _ in mixed.classes.moved()] == ["fish", "cat", "dog", "owl"]
    (line,) = describe_drift(mixed)
    assert "label shift" in line and "fish 8" in line and "(not " in line

    both = compare(reference(), *domain(rng, 2000, other, sharpness=2))
    assert both.verdict is Verdict.SHIFTED
    warning, statistic, balance = describe_drift(both)
    assert warning.startswith("Warning: the images don't look like the target's")
    assert statistic.startswith("  sharpness: ") and "label shift" in balance


def test_a_class_that_the_list_lacks_is_no_shift_of_the_images() -> None:
    kept = Reference.measured("target", "t", 500, np.zeros(500, np.intp), NAMES, np.zeros((500, 6)))
    assert compare(kept, np.full(500, 3), np.zeros((500, 6))).verdict is Verdict.CLASSES


def test_what_is_equal_but_for_the_last_place_has_not_moved() -> None:
    """A model that is certain of nearly everything: entropies of 0, confidences of 1, and a new machine."""
    values = np.tile([0.0, 1.0, 120.0, 40.0, 9.0, 0.5], (300, 1))
    kept = Reference.measured("target", "t", 300, np.zeros(300, np.intp), NAMES, values)
    none = np.zeros(300, np.intp)
    noise = np.random.default_rng(0).normal(0, 1e-6, values.shape)
    assert [statistic.distance for statistic in compare(kept, none, values + noise).statistics] == pytest.approx(
        [0] * 6
    )
    for by in (-0.2, 0.2):
        assert [statistic.distance for statistic in compare(kept, none, values + by).statistics] == pytest.approx(
            [1] * 6
        )


def test_counts_go_on_from_their_state() -> None:
    rng = np.random.default_rng(5)
    kept = reference()
    _, values = domain(rng, 100)
    whole, first, second = (Counts(kept, CLASSES) for _ in range(3))
    for part in (values[:60], values[60:]):
        whole.add(part)
    first.add(values[:60])
    second.restore(json.loads(json.dumps(first.state())))
    second.add(values[60:])
    second.add([])
    assert second.state() == whole.state()
    assert Counts(kept, CLASSES).compare({}).verdict is Verdict.TOO_FEW


def info(record: Any, **changes: Any) -> ModelInfo:
    fields = {"classes": CLASSES, "size": (2, 2), "channel_order": "GRAY", "crop": None, "mean": (), "scale": 1.0}
    rest = {"statistics": "target", "weights_sha256": "", "version": ""}
    return ModelInfo(**{**fields, **rest, "reference": record, **changes})


def test_a_reference_survives_json() -> None:
    kept = reference(50)
    read = read_reference(info(json.loads(json.dumps(kept.record()))), "m.onnx")
    classes, values = domain(np.random.default_rng(6), 40)
    assert compare(read, classes, values).record() == compare(kept, classes, values).record()
    # a large list takes no more room than this
    assert len(json.dumps(reference(2000).record())) < 30_000


def test_what_can_not_be_compared_is_said() -> None:
    with pytest.raises(InputError, match=r"m\.onnx keeps nothing of .* so `drift` has nothing .*: export it again"):
        read_reference(info(None), "m.onnx")
    with pytest.raises(InputError, match=r"keeps entropy, .* and this AutoDIAL compares .*, blue, red: export"):
        read_reference(info(reference(50).record(), channel_order="BGR"), "m.onnx")
    for change, why in [
        ({"classes": "7 " * 50}, "classes that the model doesn't have"),
        ({"classes": "0 1"}, "more images of one statistic than of another"),
        ({"classes": ""}, "or none"),
        ({"classes": "x"}, "no whole numbers"),
        ({"figures": None}, '"figures" must be an object, not null'),
    ]:
        with pytest.raises(InputError, match=rf"m\.onnx: what it keeps of its training list can't be read .*{why}"):
            read_reference(info({**reference(50).record(), **change}), "m.onnx")
    lost = reference(50).record()
    lost["figures"]["entropy"]["edges"] = [1.0]
    with pytest.raises(InputError, match="bins without edges"):
        read_reference(info(lost), "m.onnx")
    del lost["domain"]
    with pytest.raises(InputError, match=r"must be an object with|bins without"):
        read_reference(info(lost), "m.onnx")


def values_of_every_kind() -> list[Any]:
    return [None, True, -1, 2**70, 1.5, "x", "9" * 30, "\ud800", [], {}, [[]], {"entropy": 1}, [1, 1], [2, 1]]


@pytest.mark.parametrize("key", ["domain", "list", "listed", "classes", "figures"])
@pytest.mark.parametrize("inside", [None, "mean", "edges", "bins"])
def test_what_is_kept_of_a_list_may_be_of_any_kind(key: str, inside: str | None) -> None:
    """What can't be a reference is refused in a sentence; what can is read."""
    kept = reference(count=20).record()
    for value in values_of_every_kind():
        record: dict[str, Any] = json.loads(json.dumps(kept))
        if inside is None:
            record[key] = value
        else:
            record["figures"]["entropy"][inside] = value
        info = ModelInfo(CLASSES, (6, 9), "GRAY", None, (), 1.0, "target", "", "", record)
        try:
            read_reference(info, "m.onnx")
        except InputError as error:
            assert str(error).startswith("m.onnx") and "\n" not in str(error)
        else:
            assert (inside or key) in ("domain", "list", "listed", "mean")
