"""Where relative paths are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from autodial.data.paths import find
from autodial.errors import InputError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A working directory and another folder, both empty."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    return here, there


def test_the_working_directory_comes_before_the_folder_of_the_naming_file(folders: tuple[Path, Path]) -> None:
    here, there = folders
    (there / "a.txt").write_text("there")
    assert find("a.txt", there).read_text() == "there"
    (here / "a.txt").write_text("here")
    assert find("a.txt", there).read_text() == "here"


def test_an_absolute_path_is_taken_as_it_stands(folders: tuple[Path, Path]) -> None:
    here, there = folders
    (there / "a.txt").touch()
    assert find(there / "a.txt", here) == there / "a.txt"
    with pytest.raises(InputError, match=r'b.txt" does not exist$'):
        find(there / "b.txt", here)


def test_an_error_lists_both_places(folders: tuple[Path, Path]) -> None:
    here, there = folders
    with pytest.raises(InputError) as error:
        find("lists/a.txt", there)
    assert str(here / "lists" / "a.txt") in str(error.value)
    assert str(there / "lists" / "a.txt") in str(error.value)


def test_one_place_is_listed_once(folders: tuple[Path, Path]) -> None:
    here, _ = folders
    for base_dir in (here, Path(), None):
        with pytest.raises(InputError) as error:
            find("a.txt", base_dir)
        assert str(error.value).count(str(here)) == 1


def test_a_path_that_the_system_refuses_is_an_error_of_ours(folders: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match=r"can't be looked up|does not exist"):
        find("a" * 5000, None)
