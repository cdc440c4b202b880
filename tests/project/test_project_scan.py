"""Images and classes from folders and lists."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from autodial.errors import InputError
from autodial.project.scan import DomainImages, read_labelled_target, read_source, read_target, read_test

pytestmark = pytest.mark.usefixtures("here")


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def link(path: str, target: str) -> None:
    try:
        Path(path).symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("no symbolic links here")


def rows(domain: DomainImages) -> list[tuple[str, int | None]]:
    return [(Path(image.path).relative_to(Path.cwd().resolve()).as_posix(), image.label) for image in domain.images]


# --- the source


def test_class_folders_sorted_by_name_with_files_at_any_depth() -> None:
    touch("s/猫/b.JPG", "s/猫/deep/er/a.png", "s/a dog/x y.png", "s/Zebra/z.tiff")
    touch("s/.DS_Store", "s/猫/Thumbs.db", "s/猫/._b.JPG", "s/.git/c.png")
    classes, source = read_source(Path("s"))
    assert classes == ["Zebra", "a dog", "猫"]
    assert rows(source) == [("s/Zebra/z.tiff", 0), ("s/a dog/x y.png", 1), ("s/猫/b.JPG", 2), ("s/猫/deep/er/a.png", 2)]
    assert source.counts(3) == [1, 1, 2]
    assert source.ignored == 3 and source.notes == ()


def test_a_list_is_named_by_the_labels_beside_it() -> None:
    touch("data/a.png", "data/b 1.png")
    Path("data/list.txt").write_text("b 1.png 1\na.png 0\n", encoding="utf-8")
    classes, source = read_source(Path("data/list.txt"))
    assert classes == ["0", "1"] and "numbers are the names" in source.notes[0]
    assert rows(source) == [("data/b 1.png", 1), ("data/a.png", 0)]
    Path("data/labels.txt").write_text("Ä\nb\n", encoding="utf-8")
    assert read_source(Path("data/list.txt"))[0] == ["Ä", "b"]


def test_classes_of_a_list_that_have_one_name_are_told_apart() -> None:
    touch("data/a.png", "data/b.png", "test/crane_1/1.png", "other/crane/1.png")
    Path("data/list.txt").write_text("a.png 0\nb.png 1\n", encoding="utf-8")
    Path("data/labels.txt").write_text("crane\ncrane\n", encoding="utf-8")
    classes, source = read_source(Path("data/list.txt"))
    assert classes == ["crane_0", "crane_1"]
    assert source.notes == (
        f"Several classes in {Path('data/labels.txt')} have the same name (crane): their numbers are appended",
    )
    assert [image.label for image in read_test(Path("test"), classes).images] == [1]
    with pytest.raises(InputError, match=r'the folder crane is not a source class .did you mean "crane_'):
        read_test(Path("other"), classes)


def test_a_class_folder_whose_name_a_terminal_would_obey() -> None:
    touch("s/a/1.png", "s/\x1b[2J/1.png")
    with pytest.raises(InputError, match=r"s: the name of the class folder '\\x1b\[2J' has a control character"):
        read_source(Path("s"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["s/a/1.png", "s/b/notes.txt"], r"s[/\\]b: this class folder has no images"),
        (["s/1.png"], "s contains 1 image outside of class folders, such as 1.png"),
        (["s/a/1.png", "s/b/2.png", "s/3.png"], "s contains 1 image outside of class folders, such as 3.png"),
        (["s/notes.txt"], "s contains no class folders"),
        (["s/images/a/1.png", "s/images/b/1.png"], r"only one class folder, images, .* name s[/\\]images"),
        (["t/1.png"], "s: no such file or folder"),
    ],
)
def test_refuses_what_are_no_class_folders(files: list[str], message: str) -> None:
    touch(*files)
    with pytest.raises(InputError, match=message):
        read_source(Path("s"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png 0\na.png 2\n", "no image has label 1, but labels go up to 2"),
        ("a.png 1\na.png 2\n", "no image has label 0"),
        ("a.png -1\na.png 0\n", "s.txt:1: the label -1 is not a class"),
        ("a.png 0\na.png 0\n", "only one class"),
        ("a.png 0\nmissing.png 1\n", 's.txt:2: "missing.png" does not exist'),
        ("a.png\n", "s.txt:1: .*lacks a path or a label"),
    ],
)
def test_refuses_lists_that_number_no_classes(text: str, message: str) -> None:
    touch("a.png")
    Path("s.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_source(Path("s.txt"))


def test_one_name_in_two_unicode_forms_is_one_class() -> None:
    for form in ("NFC", "NFD"):
        touch(f"s/{unicodedata.normalize(form, 'café')}/{form}.png")
    touch("s/Cup/1.png", "s/cup/1.png")
    if len(list(Path("s").iterdir())) < 4:
        pytest.skip("this file system takes the names for the same")
    classes, source = read_source(Path("s"))
    assert classes == ["Cup", unicodedata.normalize("NFC", "café"), "cup"]
    assert source.counts(3) == [1, 2, 1]
    assert list(source.notes) == [
        "2 folders in s have the name café in different Unicode forms, and make one class",
        'The classes "Cup" and "cup" differ only in case or spaces, and stay two classes',
    ]


def test_numbers_in_a_list_beside_classes_that_are_called_by_numbers() -> None:
    """Folders 0 to 10 are sorted by name, and 1-based ones begin with 1; a list counts from 0."""
    touch("a.png")
    Path("l.txt").write_text("a.png 2\n", encoding="utf-8")
    for read in (read_test, read_labelled_target):
        told = read(Path("l.txt"), sorted(map(str, range(11)))).notes
        assert 'A number in l.txt is a place in labels.txt, from 0, and no name: 2 means class "10"' in told
        assert any('0 means class "1"' in note for note in read(Path("l.txt"), ["1", "2", "3"]).notes)
        for names in (["0", "1", "2"], ["cup", "jug", "mug"]):
            assert not any("A number in" in note for note in read(Path("l.txt"), names).notes)


@pytest.mark.parametrize("name", ["a\nb.png", b"\xe9.png"])
def test_refuses_names_that_no_list_can_hold(name: str | bytes) -> None:
    touch("s/a/1.png", "s/b/1.png")
    try:
        Path("s/b/1.png").rename(Path("s/b") / os.fsdecode(name))
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(InputError, match=r"'.*b/(a\\nb|\\udce9)\.png': the name (has a line break|is not UTF-8)"):
        read_source(Path("s"))


# --- links


def test_links_are_followed_once_and_bring_nothing_to_another_class() -> None:
    touch("s/a/1.png", "s/b/2.png", "elsewhere/3.png")
    link("s/a/loop", "..")
    link("s/a/other", "../b")
    link("s/a/up", "../..")
    link("s/b/elsewhere", "../../elsewhere")
    _, source = read_source(Path("s"))
    assert rows(source) == [("s/a/1.png", 0), ("s/b/2.png", 1), ("s/b/elsewhere/3.png", 1)]
    assert source.notes[0].startswith("3 links in s to folders that are read anyway")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", "c is a link to a folder that contains it"),
        ("..", "contains it"),
        ("b", "b and c are two names"),
    ],
)
def test_refuses_links_for_class_folders(target: str, message: str) -> None:
    touch("s/a/1.png", "s/b/2.png")
    link("s/c", target)
    with pytest.raises(InputError, match=message):
        read_source(Path("s"))


# --- the target


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["t/1.png", "t/2.png"], [("t/1.png", None), ("t/2.png", None)]),
        (["t/2024/1.png", "t/x.png"], [("t/2024/1.png", None), ("t/x.png", None)]),
        (["t/b/1.png", "t/a/2.png"], [("t/a/2.png", 0), ("t/b/1.png", 1)]),
    ],
)
def test_folders_of_the_target(files: list[str], expected: list[tuple[str, int | None]]) -> None:
    touch(*files)
    target = read_target(Path("t"), ["a", "b"], measured=False)
    assert rows(target) == expected
    assert target.labelled == (expected[0][1] is not None)


@pytest.mark.parametrize("text", ["t/1.png\nt/2 3.png 0\n", "1.png 7\n2 3.png\n", "\ufefft/1.png -1\r\n2 3.png 1\r\n"])
def test_lists_of_the_target_keep_no_labels(text: str) -> None:
    touch("t/1.png", "t/2 3.png", "t/2")
    Path("t/list.txt").write_text(text, encoding="utf-8")
    target = read_target(Path("t/list.txt"), ["a", "b"], measured=False)
    assert rows(target) == [("t/1.png", None), ("t/2 3.png", None)]


def test_a_class_without_target_images_is_noted() -> None:
    touch("t/b/1.png", "t/b/2.png", "t/a/notes.txt")
    target = read_target(Path("t"), ["a", "b"], measured=False)
    assert target.labelled
    assert target.notes == (
        "The target has no images of 1 of the 2 classes (a); AutoDIAL expects the same classes in both domains",
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["t/a/1.png", "t/bb/2.png"],
            r'contains the folder bb \(did you mean "b"\?\), which is not a source class',
        ),
        (["t/a/1.png", "t/2.png"], "also contains 2.png, which is not a source class"),
        (["t/B/1.png", "t/c/2.png"], r'a folder B \(did you mean "b"\?\): folder names must match'),
    ],
)
def test_class_folders_that_do_not_fit_matter_only_where_they_measure(files: list[str], message: str) -> None:
    touch(*files)
    with pytest.raises(InputError, match=message):
        read_target(Path("t"), ["a", "b"], measured=False)
    target = read_target(Path("t"), ["a", "b"], measured=True)
    assert not target.labelled and len(target.images) == 2


def test_refuses_a_target_without_images() -> None:
    touch("t/notes.txt", "empty.txt", "image.png")
    for name, message in (
        ("t", "t contains no images"),
        ("empty.txt", "empty.txt lists no images"),
        ("image.png", "image.png is an image: name a folder"),
        ("nowhere", "nowhere: no such file or folder"),
    ):
        with pytest.raises(InputError, match=message):
            read_target(Path(name), ["a", "b"], measured=False)


# --- the test set


def test_a_test_set_has_the_classes_of_the_source() -> None:
    touch("l/b/1.png")
    test = read_test(Path("l"), ["a", "b"])
    assert rows(test) == [("l/b/1.png", 1)] and test.notes == ("The test has no images of 1 of the 2 classes (a)",)
    touch("l/c/1.png")
    with pytest.raises(InputError, match="l: the folder c is not a source class"):
        read_test(Path("l"), ["a", "b"])
    Path("l.txt").write_text("l/b/1.png 1\nl/c/1.png 2\n")
    with pytest.raises(InputError, match=r"l.txt:2: the label 2 is not a class: labels go from 0 to 1"):
        read_test(Path("l.txt"), ["a", "b"])


def test_refuses_unlabelled_test_sets(tmp_path: Path) -> None:
    touch("l/1.png", "e/x/notes.txt")
    read: Callable[[str], DomainImages] = lambda name: read_test(Path(name), ["a", "b"])  # noqa: E731
    with pytest.raises(InputError, match="outside of class folders"):
        read("l")
    with pytest.raises(InputError, match="e has no images in folders named like the source's classes"):
        read("e")
