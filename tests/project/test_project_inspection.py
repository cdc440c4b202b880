"""Images that can't be used, and copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from autodial.errors import InputError
from autodial.project.checks import check_apart, without_bad
from autodial.project.inspection import inspect_images, same_bytes
from autodial.project.scan import DomainImages, LabelledImage

pytestmark = pytest.mark.usefixtures("here")


def domain(role: str, paths: list[str]) -> DomainImages:
    return DomainImages(role, Path(role), tuple(LabelledImage(path, None) for path in paths))


def test_every_kind_of_bad_file_is_told(images: Any) -> None:
    good = images("s", 2, suffix=".jpg") + images("s", 2)
    Path("s/short.jpg").write_bytes(Path(good[0]).read_bytes()[:-200])
    Path("s/short.png").write_bytes(Path(good[2]).read_bytes()[:-200])
    Path("s/empty.png").touch()
    Path("s/text.jpg").write_text("no image")
    Path("s/folder.png").mkdir()
    bad = [f"s/{name}" for name in ("short.jpg", "short.png", "empty.png", "text.jpg", "folder.png", "missing.png")]
    if hasattr(os, "mkfifo"):
        os.mkfifo("s/pipe.png")  # to open it would wait for ever
        bad.append("s/pipe.png")
    counted: list[None] = []
    inspections = inspect_images([*good, *bad, *bad], lambda: counted.append(None))
    assert len(counted) == len(inspections) == len(good) + len(bad)
    assert [path for path, inspection in inspections.items() if inspection.problem] == bad
    assert all(path in inspections[path].problem for path in bad)

    mixed = domain("source", [*bad, *good])
    with pytest.raises(
        InputError, match=rf"{len(bad)} of the {len(bad) + 4} images .*; and {len(bad) - 3} more: repair"
    ):
        without_bad(mixed, inspections, skip=False)
    assert [image.path for image in without_bad(mixed, inspections, skip=True).images] == good


def test_size_and_colour(images: Any) -> None:
    (color,) = images("c", 1, size=40)
    (grey,) = images("g", 1, color=False, suffix=".bmp", size=8)
    inspections = inspect_images([color, grey])
    assert (inspections[color].height, inspections[color].width, inspections[color].grey) == (40, 40, False)
    assert (inspections[grey].height, inspections[grey].width, inspections[grey].grey) == (8, 8, True)
    assert inspections[grey].size == Path(grey).stat().st_size


def test_copies_are_found_by_their_bytes(images: Any) -> None:
    source = images("s", 3, suffix=".bmp", size=10)  # all of one size in bytes
    target = images("t", 3, suffix=".bmp", size=10)
    shutil.copy(source[2], "t/copy.bmp")
    target.append("t/copy.bmp")
    assert same_bytes(target, source, inspect_images([*source, *target])) == [("t/copy.bmp", source[2])]


def test_domains_must_not_share_files(images: Any) -> None:
    source = images("s", 2)
    target = images("t", 2)
    check_apart(domain("source", source), [domain("target", target)])
    try:
        Path("t/link.png").symlink_to(source[1])
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(InputError, match=r"1 of the 3 images in the target .* also in the source .*link\.png"):
        check_apart(domain("source", source), [domain("target", [*target, "t/link.png"])])
