"""Text files as editors of all systems save them."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodial.data.hdf5_data import HDF5Data
from autodial.data.image_list import ImageList
from autodial.data.labels import read_labels
from autodial.errors import InputError
from autodial.netparam.variants import apply_variants
from autodial.proto import messages as pb
from autodial.proto import parse_net, read_net


def read_hdf5_list(path: Path) -> Any:
    text = f'layer {{ name: "h" type: "HDF5Data" top: "x" hdf5_data_param {{ source: "{path}" batch_size: 1 }} }}'
    return HDF5Data(parse_net(text).layer[0], phase=pb.TEST, seed=0)


def read_settings(path: Path) -> Any:
    return apply_variants(parse_net('layer { name: "a" type: "ReLU" }'), [path.stem], path.parent)


READERS: list[tuple[Callable[[Path], Any], str, str]] = [
    (ImageList.read, "a.png 1\n", "an image list"),
    (read_labels, "cat\ndog\n", "a list of class names"),
    (read_settings, "a.relu_param.negative_slope=1\n", "a list of settings"),
    (read_hdf5_list, "a.h5\n", "a list of HDF5 files"),
    (read_net, 'name: "a"\n', "prototxt"),
]


@pytest.mark.parametrize(("read", "text", "what"), READERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused_in_one_sentence(
    read: Callable[[Path], Any], text: str, what: str, encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.settings"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(InputError) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    if what != "prototxt":
        assert f"is not {what}: it is binary, or text in UTF-16; save it as text in UTF-8" in str(error.value)


@pytest.mark.parametrize(("read", "text", "what"), READERS[:3])
def test_a_byte_order_mark_is_no_part_of_the_text(
    read: Callable[[Path], Any], text: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.settings"
    path.write_text(text)
    expected = read(path)
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert read(path) == expected
    path.write_bytes(text.encode() + "ä\n".encode("latin-1"))
    with pytest.raises(InputError, match=rf"x\.settings:\d: {what} must be text in UTF-8"):
        read(path)


def test_labels_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(codecs.BOM_UTF8 + b"cat\r\ndog\r\n")
    assert read_labels(tmp_path / "labels.txt") == ["cat", "dog"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices there")
@pytest.mark.parametrize(("read", "text", "what"), READERS)
def test_devices_are_not_read(read: Callable[[Path], Any], text: str, what: str, tmp_path: Path) -> None:
    """Some, like /dev/zero, never end."""
    path = tmp_path / "x.settings"
    path.symlink_to(os.devnull)
    with pytest.raises(InputError, match=rf"x\.settings is a device(: name a| and not) {what}"):
        read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes there")
@pytest.mark.parametrize(("read", "text", "what"), READERS[:4])
def test_pipes_are_not_waited_for(read: Callable[[Path], Any], text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.settings"
    os.mkfifo(path)
    with pytest.raises(InputError, match=rf"x\.settings is a pipe and not {what}: write its content to a file"):
        read(path)
