"""Outputs that would write over what a command reads, or can't be written, are refused before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autodial.errors import InputError
from autodial.netparam.data_files import files_of
from autodial.proto import parse_net
from autodial.system.outputs import check_folder, check_output


def test_an_input_is_no_output_under_any_of_its_names(tmp_path: Path) -> None:
    weights = tmp_path / "w.caffemodel"
    weights.touch()
    (tmp_path / "link").symlink_to(weights)
    for name in (weights, tmp_path / "link", tmp_path / "." / "w.caffemodel"):
        with pytest.raises(InputError, match="the same command reads this file"):
            check_output(name, [weights])
    assert check_output(tmp_path / "other", [weights]) == tmp_path / "other"


def test_what_is_no_file_or_has_no_folder(tmp_path: Path) -> None:
    for name, message in (
        (tmp_path, "not a regular file"),
        (Path(os.devnull), "not a regular file"),
        (tmp_path / "no" / "x.csv", "there is no folder"),
    ):
        with pytest.raises(InputError, match=message):
            check_output(name)


def test_a_link_to_itself_is_a_name_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert check_output(tmp_path / "loop", [tmp_path / "x"]) == tmp_path / "loop"
    with pytest.raises(InputError, match="the same command reads this file"):
        check_output(tmp_path / "loop", [tmp_path / "loop"])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that is closed to root, too: /proc")
def test_a_place_that_even_root_can_not_write_to() -> None:
    for check, name in ((check_output, "/proc/x.csv"), (check_folder, "/proc/x/y")):
        with pytest.raises(InputError, match=rf"^{name}: can't write to the folder /proc \(.+\): choose another one"):
            check(name)


def test_the_files_that_a_net_names(tmp_path: Path) -> None:
    net = parse_net("""
        layer { name: "a" type: "ImageData" image_data_param { source: "list.txt" } transform_param { mean_file: "m" } }
        layer { name: "b" type: "HDF5Data" hdf5_data_param { source: "h.txt" } }
    """)
    assert set(files_of(net, tmp_path)) == {f / n for f in (Path(), tmp_path) for n in ("list.txt", "m", "h.txt")}


def test_a_dash_is_no_file_where_nothing_goes_to_standard_output() -> None:
    with pytest.raises(InputError, match="-: this command writes a file, not standard output"):
        check_output("-")


def test_a_folder_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "inside")
    assert not (tmp_path / "new").exists()
    for name, message in (
        (tmp_path / "file", "file is not a folder"),
        (tmp_path / "file" / "inside", "file is not a folder"),
        ("-", "-: this command writes a folder"),
    ):
        with pytest.raises(InputError, match=message):
            check_folder(name)
