from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from autodial.data.folders import in_order
from autodial.deploy.inputs import ImageFile, PassedOver, expand
from autodial.errors import InputError


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/ with images, other files and hidden ones, as the working directory's only content."""
    monkeypatch.chdir(tmp_path)
    for name in ["b.png", "a.JPEG", "notes.txt", ".hidden.png", "z/1.tiff", "z/10.tiff", "z/2.tiff", ".cache/c.png"]:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def paths(*inputs: str | Path) -> list[str]:
    return [image.path.replace(os.sep, "/") for image in expand(inputs)]


def link(path: str, target: str) -> None:
    try:
        Path(path).symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("no symbolic links here")


FOUND = ["photos/a.JPEG", "photos/b.png", "photos/z/1.tiff", "photos/z/10.tiff", "photos/z/2.tiff"]


def test_folder_is_searched_in_sorted_order() -> None:
    assert paths("photos") == FOUND
    assert paths("photos/") == FOUND
    assert paths(Path("photos")) == FOUND
    assert paths(Path("photos").absolute()) == [str(Path(name).absolute()) for name in FOUND]
    assert paths(".") == FOUND


def test_links_to_folders_are_followed_once(tree: Path) -> None:
    link("photos/z/up", "..")
    link("photos/other", "../elsewhere")
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / "e.png").touch()
    link("elsewhere/back", "../photos")
    assert paths("photos") == [*FOUND[:2], "photos/other/e.png", *FOUND[2:]]


def test_globs() -> None:
    assert paths("photos/*") == FOUND[:2]
    assert paths("photos/**/*.tiff") == FOUND[2:]
    assert paths("photos/**") == FOUND
    assert paths("photos/[ab].*") == FOUND[:2]
    assert paths("photos/.*") == ["photos/.hidden.png"]


def test_files_that_are_passed_over_are_counted(tree: Path) -> None:
    for name in ("c.HEIC", "d.heic", "README", ".DS_Store"):
        (tree / "photos" / name).touch()
    passed_over = PassedOver()
    assert len(list(expand(["photos"], passed_over))) == len(FOUND)
    assert passed_over.kinds == {".heic": 2, "hidden": 2, ".txt": 1, "no suffix": 1}
    passed_over = PassedOver()
    assert len(list(expand(["photos/*", "photos/b.png"], passed_over))) == 3
    assert passed_over.kinds == {".heic": 2, ".txt": 1, "no suffix": 1}


def test_a_refusal_says_what_was_passed_over(tree: Path) -> None:
    (tree / "phone").mkdir()
    for name in ("1.heic", "2.HEIC", ".nomedia"):
        (tree / "phone" / name).touch()
    with pytest.raises(InputError, match=r"no image in this folder .*; passed over are 3 files: .heic \(2\), hidden"):
        expand(["phone"])
    with pytest.raises(InputError, match=r"no image matches this pattern .*; passed over are 2 files: .heic \(2\)$"):
        expand(["phone/*"])


def test_refuses_an_empty_input() -> None:
    with pytest.raises(InputError, match="an input is empty"):
        expand(["photos", ""])


def test_there_are_a_hundred_kinds_at_most() -> None:
    passed_over = PassedOver()
    for i in range(300):
        passed_over(f"scan.{i % 150}")
    assert len(passed_over.kinds) == 101
    assert passed_over.kinds["others"] == 100
    assert passed_over.kinds.total() == 300


def test_globs_survive_a_loop_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    link("photos/z/up", "..")
    assert paths("photos/**/*") == FOUND
    link("photos/z/here", ".")  # two of them make 2^40 ways
    looks = iter(range(1000))
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (next(looks), scan(path))[1])
    assert paths("photos/**/*") == FOUND
    assert paths("**/**/*.tiff") == FOUND[2:]


@pytest.mark.parametrize("above", ["..", "../..", os.sep])
def test_links_to_what_holds_them_are_not_followed(above: str, tree: Path) -> None:
    (tree / "beside.png").touch()
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / "e.png").touch()
    link("photos/up", above)
    link("photos/z/other", str(tree / "elsewhere"))
    link("elsewhere/back", above)
    passed_over = PassedOver()
    found = [image.path.replace(os.sep, "/") for image in expand(["photos"], passed_over)]
    assert found == [*FOUND, "photos/z/other/e.png"]
    assert passed_over.kinds == {"link": 2, ".txt": 1, "hidden": 1}
    assert paths("photos/**/*") == found


def test_a_file_is_an_image_whatever_its_name(tree: Path) -> None:
    (tree / "no suffix").touch()
    (tree / "photo[1].png").touch()
    (tree / "photo1.png").touch()
    assert paths("no suffix", "photos/.hidden.png", "photo[1].png") == [
        "no suffix",
        "photos/.hidden.png",
        "photo[1].png",
    ]


def test_lists(tree: Path) -> None:
    Path("photos/list.txt").write_text(
        "z/2.tiff\nmy photo.png 3\r\n\n  \nz/1.tiff -1\n/abs/x.png\nphoto 7.png\nmy photo.png 3\nb.png  \n猫.png 0",
        encoding="utf-8-sig",
    )
    folder = Path("photos")
    assert list(expand(["photos/list.txt"])) == [
        ImageFile(name, folder)
        for name in [
            "z/2.tiff",
            "my photo.png",
            "z/1.tiff",
            "/abs/x.png",
            "photo 7.png",
            "my photo.png",
            "b.png",
            "猫.png",
        ]
    ]


def test_a_list_keeps_names_in_another_encoding() -> None:
    Path("list.txt").write_bytes("é.png\n".encode("latin-1"))
    (image,) = expand(["list.txt"])
    assert os.fsencode(image.path) == b"\xe9.png"


def test_arguments_keep_their_order_and_their_repetitions() -> None:
    Path("list.txt").write_text("photos/b.png\n")
    assert paths("photos/z", "list.txt", "photos/b.png", "photos/?.*") == [
        *FOUND[2:],
        "photos/b.png",
        "photos/b.png",
        *FOUND[:2],
    ]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere", "nowhere: no such file or folder"),
        ("nowhere.txt", "nowhere.txt: no such file or folder"),
        ("empty", r"empty: no image in this folder or below it \(images are .avif, "),
        ("photos/*.gif", "no image matches this pattern"),
        ("photos/notes.txt", "this list names no images"),
        ("utf16.txt", "UTF-16"),
    ],
)
def test_refuses_inputs_without_images(argument: str, message: str) -> None:
    Path("empty").mkdir()
    Path("utf16.txt").write_text("photos/b.png\n", encoding="utf-16")
    with pytest.raises(InputError, match=message):
        expand(["photos", argument])


def close(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Let a folder be one that can't be listed: chmod would not keep root out."""
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if str(path).replace(os.sep, "/") == folder:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


def test_a_closed_folder_has_its_place_in_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("photos/z.png").touch()
    Path("photos/zz.png").touch()
    close(monkeypatch, "photos/z")
    images = list(expand(["photos"]))
    assert [image.path for image in images] == [
        *FOUND[:2],
        "photos/z.png",
        "photos/z".replace("/", os.sep),
        "photos/zz.png",
    ]
    assert [image.error for image in images] == [None, None, None, "can't list this folder: Permission denied", None]


def test_refuses_a_folder_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    close(monkeypatch, "photos")
    with pytest.raises(InputError, match="photos: can't list this folder: Permission denied"):
        expand(["photos"])


def test_names_that_only_bytes_can_spell(tree: Path) -> None:
    names = [b"photos/a\nb.png", b"photos/caf\xe9.png", b'photos/c,"d.png']
    try:
        for name in names:
            (tree / os.fsdecode(name)).touch()
    except OSError:
        pytest.skip("this file system takes other names only")
    found = [os.fsencode(path) for path in paths("photos")]
    assert set(names) < set(found) and len(found) == len(FOUND) + 3
    assert [os.fsdecode(name) for name in found] == sorted(map(os.fsdecode, found))


def test_links_to_themselves_are_images_that_cannot_be_read() -> None:
    link("photos/loop.png", "loop.png")
    link("photos/gone.png", "nowhere.png")
    assert paths("photos") == [*FOUND[:2], "photos/gone.png", "photos/loop.png", *FOUND[2:]]


def test_large_folders_are_sorted_piece_by_piece() -> None:
    names = [f"{(i * 7919) % 1000}.png" for i in range(1000)] + ["caf\udce9.png", "a\nb.png"]
    for held in (1, 3, 501, 1001, 1002, 1003):
        assert list(in_order(iter(names), held)) == sorted(names)
    assert list(in_order([])) == []


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """100,000 paths of a list go by, and a thousandth of their bytes is ever held."""
    Path("long.txt").write_text("".join(f"photos/{i:090}.png\n" for i in range(100_000)))
    images = expand(["long.txt"])
    tracemalloc.start()
    try:
        assert sum(1 for _ in images) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".jfif", ".JFIF", ".jpe", ".avif"])
def test_every_name_of_a_format_is_an_image(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / f"a{suffix}").touch()
    assert [image.path for image in expand([folder])] == [str(folder / f"a{suffix}")]
