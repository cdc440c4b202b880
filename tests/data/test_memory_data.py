"""The MemoryData layer's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autodial.data.memory_data import MemoryData
from autodial.errors import InputError
from autodial.proto import parse_net

SIZES = "batch_size: 2 channels: 3 height: 4 width: 5"
DATA = np.random.default_rng(0).normal(size=(6, 3, 4, 5)).astype(np.float32)
LABELS = np.arange(6, dtype=np.float32)


def memory_data(options: str = SIZES, more: str = "") -> MemoryData:
    text = f'layer {{ name: "m" type: "MemoryData" memory_data_param {{ {options} }} {more} }}'
    return MemoryData(parse_net(text).layer[0])


def test_batches_are_read_round_and_round() -> None:
    layer = memory_data()
    assert layer.top_shapes == ((2, 3, 4, 5), (2,))
    layer.set(DATA, LABELS)
    for index in (0, 1, 2, 3, 7):
        data, labels = layer.batch(index)
        rows = [2 * index % 6, 2 * index % 6 + 1]
        np.testing.assert_array_equal(data, DATA[rows])
        np.testing.assert_array_equal(labels, rows)


def test_new_arrays_are_read_from_their_first_row() -> None:
    layer = memory_data()
    layer.set(DATA, LABELS)
    layer.batch(0)
    layer.set(DATA + 1, LABELS.reshape(6, 1, 1, 1) + 10)
    assert layer.batch(1)[1].tolist() == [10, 11]
    data, labels = layer.batch(2)
    np.testing.assert_array_equal(data, DATA[2:4] + 1)
    assert labels.tolist() == [12, 13]


def test_arrays_of_floats_are_not_copied() -> None:
    layer = memory_data()
    layer.set(DATA, LABELS)
    assert np.shares_memory(layer.batch(0)[0], DATA)


@pytest.mark.parametrize(
    ("data", "labels", "reason"),
    [
        (DATA[:5], LABELS[:5], r"shape \(5, 3, 4, 5\) and must be \(2, 3, 4, 5\), or a multiple of 2 rows"),
        (DATA[:0], LABELS[:0], r"shape \(0, 3, 4, 5\)"),
        (DATA[:, :2], LABELS, r"shape \(6, 2, 4, 5\)"),
        (DATA[0], LABELS, r"shape \(3, 4, 5\)"),
        (DATA, LABELS[:5], "6 rows of data came with 5 labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    data: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=rf'^layer "m" \(MemoryData\): .*{reason}'):
        memory_data().set(data, labels)


def test_there_is_no_batch_before_the_arrays() -> None:
    with pytest.raises(InputError, match=r'layer "m" \(MemoryData\): it has no data yet: call set_input_arrays first'):
        memory_data().batch(0)


@pytest.mark.parametrize("missing", ["batch_size", "channels", "height", "width"])
def test_every_size_must_be_stated(missing: str) -> None:
    options = " ".join(f"{name}: 1" for name in ("batch_size", "channels", "height", "width") if name != missing)
    with pytest.raises(InputError, match="must state batch_size, channels, height, width, each at least 1"):
        memory_data(options)


def test_a_transform_is_refused() -> None:
    with pytest.raises(InputError, match="arrays in memory are not transformed; remove transform_param"):
        memory_data(more="transform_param { scale: 2 }")
