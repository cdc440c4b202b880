"""The lists of images and labels."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from autodial.data.image_list import Entry, ImageList
from autodial.errors import InputError


def read(folder: Path, content: str | bytes) -> ImageList:
    path = folder / "list.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ImageList.read(path)


def test_lines_are_split_at_their_last_space(tmp_path: Path) -> None:
    images = read(tmp_path, "a.png 3\nmy photos/b 1.png 0\n  c.png -1\nd.png +4")
    assert list(images) == [
        Entry("a.png", 3, 1),
        Entry("my photos/b 1.png", 0, 2),
        Entry("  c.png", -1, 3),
        Entry("d.png", 4, 4),
    ]
    assert len(images) == 4
    assert images.path == tmp_path / "list.txt"


@pytest.mark.parametrize(
    "content",
    [
        "写真/é.png 1\r\n카메라.png 2\r\n".encode(),
        codecs.BOM_UTF8 + "写真/é.png 1\n카메라.png 2\n".encode(),
        "写真/é.png 1\n카메라.png 2 \t\n".encode(),
    ],
    ids=["windows line ends", "byte order mark", "white space at the end"],
)
def test_utf8_in_the_forms_that_editors_save(tmp_path: Path, content: bytes) -> None:
    assert list(read(tmp_path, content)) == [Entry("写真/é.png", 1, 1), Entry("카메라.png", 2, 2)]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    assert list(read(tmp_path, "\na.png 1\n \r\n\nb.png 2\n\n")) == [Entry("a.png", 1, 2), Entry("b.png", 2, 5)]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    assert list(read(tmp_path, "a\u2028b\x0cc.png 1\n")) == [Entry("a\u2028b\x0cc.png", 1, 1)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("b.png", "lacks a path or a label"),
        ("b.png\t1", "lacks a path or a label"),
        (" 1", "lacks a path or a label"),
        ("my photo.png", 'the label "photo.png" is not an integer'),
        ("b.png 1.0", 'the label "1.0" is not an integer'),
        ("b.png 1_0", 'the label "1_0" is not an integer'),
        ("b.png ٣", 'the label "٣" is not an integer'),
        ("b.png 0x1", 'the label "0x1" is not an integer'),
        ("b.png -", 'the label "-" is not an integer'),
        ("b.png 16777217", 'the label "16777217" is not an integer within 2^24'),
        ("b.png -" + "9" * 5000, "is not an integer within 2^24"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, f"a.png 1\n{line}\nc.png x\n")
    assert str(error.value).startswith(f"{tmp_path / 'list.txt'}:2: ")
    assert reason in str(error.value)


def test_the_largest_labels_survive_float32(tmp_path: Path) -> None:
    assert [entry.label for entry in read(tmp_path, "a 16777216\nb -16777216")] == [16777216, -16777216]


@pytest.mark.parametrize("content", ["", "\n \n\r\n", codecs.BOM_UTF8])
def test_a_list_without_images_is_refused(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(InputError, match=r"list.txt lists no images"):
        read(tmp_path, content)


def test_a_binary_list_is_refused(tmp_path: Path) -> None:
    for content in (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a.png 1\n".encode("utf-16")):
        with pytest.raises(InputError, match=r"list.txt is not an image list.*UTF-8"):
            read(tmp_path, content)


def test_another_encoding_is_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"list.txt:2: .*UTF-8"):
        read(tmp_path, b"a.png 1\n" + "é.png 1\n".encode("latin-1"))


def test_a_list_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.txt can't be read: No such file"):
        ImageList.read(tmp_path / "none.txt")
    with pytest.raises(InputError, match="can't be read"):
        ImageList.read(tmp_path)
