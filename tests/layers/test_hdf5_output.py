"""HDF5Output, read back with h5py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from autodial.layers import LayerError

h5py = pytest.importorskip("h5py")


def test_passes_append_their_rows(build, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("out.h5")
    path.write_text("from an earlier run")
    layer = build('type: "HDF5Output" hdf5_output_param { file_name: "out.h5" }', (2, 3), (2,), tops=0)
    assert layer.top_shapes([(2, 3), (2,)]) == []
    assert path.read_text() == "from an earlier run"  # a net that isn't run leaves it alone
    data, label = torch.arange(15.0).view(5, 3), torch.arange(5.0)
    assert layer(data[:2].requires_grad_(), label[:2]) == ()
    layer(data[2:], label[2:])
    with h5py.File(path) as file:
        assert set(file) == {"data", "label"}
        assert file["data"].dtype == file["label"].dtype == np.float32
        np.testing.assert_array_equal(file["data"], data.detach().view(5, 3, 1, 1))
        np.testing.assert_array_equal(file["label"], label.view(5, 1, 1, 1))


def test_refused(build, tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="needs file_name"):
        build('type: "HDF5Output"', (2, 3), (2,), tops=0)
    text = f'type: "HDF5Output" hdf5_output_param {{ file_name: "{tmp_path}/no/out.h5" }}'
    with pytest.raises(LayerError, match=r"data \(2, 3\) and label \(3,\) must have the same number of rows"):
        build(text, (2, 3), (3,), tops=0)
    with pytest.raises(LayerError, match="1 to 4 axes"):
        build(text, (2, 3, 1, 1, 1), (2,), tops=0)
    with pytest.raises(LayerError, match=r"can't write .*out.h5"):
        build(text, (2, 3), (2,), tops=0)(torch.zeros(2, 3), torch.zeros(2))
