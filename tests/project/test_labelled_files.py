"""Lists and tables that people fill in."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from autodial.errors import InputError
from autodial.project.labelled_files import read_labelled_files

pytestmark = pytest.mark.usefixtures("here")

CLASSES = ["cup", "red cup", "2 m", "círculo", "7"]


def read(name: str, text: str | bytes) -> tuple[list[tuple[str, int, int]], int]:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    found, skipped = read_labelled_files(Path(name), CLASSES)
    return [tuple(one) for one in found], skipped


def test_a_list_has_names_or_numbers() -> None:
    text = "\ufeffa b.png 0\r\n\nc.png cup\nd.png red cup \ne.png 2 m\nf 1.png círculo\ng.png 4\n"
    found, skipped = read("list.txt", text)
    assert skipped == 0
    assert found == [
        ("a b.png", 0, 1),
        ("c.png", 0, 3),
        ("d.png", 1, 4),
        ("e.png", 2, 5),
        ("f 1.png", 3, 6),
        ("g.png", 4, 7),
    ]


def test_a_name_may_be_spelled_as_a_mac_spells_it() -> None:
    name = unicodedata.normalize("NFD", "círculo")
    assert name != "círculo"
    assert read("list.txt", f"a.png {name}\n")[0] == [("a.png", 3, 1)]
    assert read("table.csv", f"path,label\na.png,{name}\n")[0] == [("a.png", 3, 2)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_as_spreadsheets_save_it(delimiter: str) -> None:
    lines = [
        ["path", "label", "label_1", "probability_1"],
        ["a b.png", "cup", "7", "0.4"],
        ['"c, ""d"".png"', " red cup ", "7", "0.4"],
        ["e.png", "", "7", "0.4"],
        ["f.png", "3", "7", "0.4"],
        ["g.png", "7", "7", "0.4"],
    ]
    found, skipped = read("table.CSV", "\ufeff" + "\r\n".join(delimiter.join(line) for line in lines))
    assert skipped == 1
    # a name comes before a number
    assert found == [("a b.png", 0, 2), ('c, "d".png', 1, 3), ("f.png", 3, 5), ("g.png", 4, 6)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list.txt", "a.png cup\nb.png cap\n", 'list.txt:2: the label "cap" is not a class: did you mean "cup"'),
        ("list.txt", "a.png Cup\n", 'list.txt:1: the label "Cup" is not a class: did you mean "cup"'),
        ("list.txt", "a b.png RED CUB\n", 'list.txt:1: the label "RED CUB" is not a class: did you mean "red cup"'),
        (
            "list.txt",
            "a.png cub\nb.png cup\nc.png 9\n",
            'list.txt:1: the label "cub" is not a class, nor is that in line 3: did you mean "cup"',
        ),
        (
            "table.csv",
            "path,label\n" + "a.png,cap\n" * 7,
            'table.csv:2: the label "cap" is not a class, nor are 6 others, in lines 3, 4, 5, 6, 7, ...: did you',
        ),
        ("list.txt", "a.png 5\n", r'list.txt:1: the label "5" is not a class: write .*\(cup, .*0 to 4'),
        ("list.txt", "a.png -1\n", 'list.txt:1: the label "-1" is not a class'),
        ("list.txt", "a.png\n", 'list.txt:1: "a.png" lacks a path or a label'),
        ("list.txt", " \n", "list.txt lists no images"),
        ("table.csv", "path,label_1\na.png,cup\n", "table.csv has no column label: its first line must name"),
        ("table.csv", "", "table.csv has no column path"),
        ("table.csv", "path,label\na.png,\n", "table.csv has no label: write the name of a class"),
        ("table.csv", "path,label\n,cup\n", "table.csv:2: the row has a label and no path"),
        ("table.csv", "path,label\na.png,Red cup\n", 'table.csv:2: the label "Red cup" is .*did you mean "red cup"'),
        (
            "table.csv",
            b"path,label\n\xe9.png,cup\n",
            "table.csv:2: a list or table of labels must be text in UTF-8, and the byte 0xe9 is not",
        ),
        ("table.csv", "path,label\na.png,cup\n".encode("utf-16"), 'text in UTF-16; save it .*"CSV UTF-8"$'),
    ],
)
def test_what_cannot_be_read(name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(name, text)
