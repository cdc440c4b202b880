"""The images of a net's domains from a program: what is opened, and which parameter messages name."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from autodial.errors import InputError
from autodial.evaluation.domain_lists import DomainLists, check_same_size
from autodial.proto import parse_net

NET = """
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "test.txt" batch_size: 2 } }
layer { name: "dial" type: "Dial" bottom: "data" top: "dial" dial_param { slice_point: 1 } }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images of 6 x 8 in the folder `images`, in the working directory, and test.txt with two of them."""
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for i in range(3):
        assert cv2.imwrite(f"images/{i}.png", np.full((6, 8, 3), 10 * i, np.uint8))
    Path("test.txt").write_text("images/0.png 0\nimages/1.png 1\n")
    return tmp_path


def lists() -> DomainLists:
    return DomainLists(parse_net(NET), base_dir=Path(), device=torch.device("cpu"))


def test_a_folder_and_a_list_without_labels_are_opened(folder: Path) -> None:
    Path("some.txt").write_text("images/2.png\nimages/1.png\n")
    with lists() as opened:
        source = opened.open("source", Path("images"))
        target = opened.open("target", Path("some.txt"), size=(3, 5))
        values = torch.cat([batch["data"] for batch in target])
        assert source.rows == 3 and source.shape[1:] == (3, 6, 8)
        assert values.shape == (2, 3, 3, 5) and values[:, 0, 0, 0].tolist() == [20, 10]
        assert opened.names == {"source": "images", "target": "some.txt"}
        with pytest.raises(InputError, match=r"the source's images as 3 x 6 x 8 .* and the target's as 3 x 3 x 5"):
            check_same_size(source, target)


def test_images_that_are_no_files_are_refused(folder: Path) -> None:
    Path("some.txt").write_text("images/2.png\ns3://bucket/1.png\n")
    with (
        lists() as opened,
        pytest.raises(InputError, match=r"s3://bucket/1.png in some.txt: images are read"),
    ):
        opened.open("target", Path("some.txt"))


def test_a_net_that_names_no_domains_asks_for_a_parameter(folder: Path) -> None:
    with lists() as opened, pytest.raises(InputError, match="name the target's images with `target`"):
        opened.open("target")
