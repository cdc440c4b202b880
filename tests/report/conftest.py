"""A tiny AutoDIAL project on images that the tests draw, and a reader of the pages that are made of its run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_net import small_net
from typer.testing import CliRunner

from autodial.cli import app
from autodial.report import writer
from autodial.report.style import Picture

CLASSES = ["<b>cats & dogs</b>", "$x_1$", "日本語"]
NET = small_net(
    "spots & <stripes>",
    (4, 3, 5),
    scaling="mean_value: 90 mean_value: 100 mean_value: 110 scale: 0.01",
    augmented=True,
    filters=6,
    alphas=(0.9, 0.8),
    fraction=0.8,
)
SOLVER = """
net: "net.prototxt"
base_lr: 0.05 lr_policy: "step" gamma: 0.5 stepsize: 4 momentum: 0.9 weight_decay: 0.001
max_iter: 8 display: 2 test_iter: 3 test_interval: 4 snapshot: 4 snapshot_prefix: "spots" random_seed: 5
solver_mode: CPU
"""

Autodial = Callable[..., tuple[int, str, str]]


def write_project(folder: Path) -> None:
    """A net, its solver, 20 images of the source and 14 of the target, their lists, and names of the classes."""
    rng = np.random.default_rng(0)
    for domain, count in (("source", 20), ("target", 14)):
        (folder / domain).mkdir()
        lines = []
        for i in range(count):
            label = i * i % 7 % 3
            image = rng.integers(0, 60, (10, 10, 3), dtype=np.uint8)
            image[:, :, label] += 100 if domain == "source" else 12
            assert cv2.imwrite(str(folder / domain / f"{i}.png"), image)
            lines.append(f"{domain}/{i}.png {label}\n")
        unlabelled = [f"{line.split()[0]} 0\n" for line in lines]
        (folder / f"{domain}.txt").write_text("".join(lines if domain == "source" else unlabelled))
        if domain == "target":
            (folder / "test.txt").write_text("".join(lines))
    (folder / "labels.txt").write_text("\n".join(CLASSES), encoding="utf-8")
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose run `run` is finished; it is not to be changed."""
    from autodial.commands.train import train

    folder = tmp_path_factory.mktemp("spots")
    write_project(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        train(solver=Path("solver.prototxt"), device="cpu", workers=0, output=Path("run"))
    finally:
        os.chdir(before)
    return folder


def copied(trained: Path, folder: Path) -> Path:
    """A copy of the trained project, in which nothing leads to the original."""
    shutil.copytree(trained, folder)
    for name in ("run.json", "log.jsonl"):
        path = folder / "run" / name
        path.write_text(path.read_text().replace(str(trained), str(folder)))
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trained project, made the working directory."""
    folder = copied(trained, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def reported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Another copy with a report of its run, not to be changed; what `autodial report run` said."""
    folder = copied(trained, tmp_path_factory.mktemp("reported") / "project")
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(app, ["report", "run", "--workers", "0", "--device", "cpu"])
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return folder, result.stdout


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at a page's words: its figures are empty, as drawing them takes two seconds a page."""
    monkeypatch.setattr(writer, "picture", lambda draw: Picture(b"", b"", b""))


@dataclass
class ReadPage(HTMLParser):
    """A page taken apart. Elements that are not closed, or closed in another order, raise an AssertionError.

    Attributes:
        tables: by caption, or summary, rows of cells with the header first.
        facts: of the definition list, by term.
        links: all values of src and href.
        alts: texts for images.
        text: everything that is written.
        headings: of the second level.
    """

    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)
    text: str = ""
    headings: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _cell: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def read(cls, path: Path) -> ReadPage:
        page = cls()
        page.feed(path.read_bytes().decode("utf-8"))
        page.close()
        assert page._open == []
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.links += [value for name, value in named.items() if name in ("src", "href", "action", "data", "srcset")]
        assert not any(name.startswith("on") for name in named)
        assert tag not in ("script", "link", "iframe", "object", "base")
        if tag == "img":
            self.alts.append(named["alt"])
        if tag not in ("meta", "img", "source", "br"):
            self._open.append(tag)
        if tag == "table":
            self._rows: list[list[str]] = []
        if tag == "tr":
            self._rows.append([])
        self._cell = []

    def handle_data(self, data: str) -> None:
        self._cell.append(data)
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        words = "".join(self._cell)
        if tag in ("caption", "summary"):
            self._title = words
        elif tag in ("th", "td"):
            self._rows[-1].append(words)
        elif tag == "table":
            self.tables[self._title] = self._rows
        elif tag == "dt":
            self._term = words
        elif tag == "dd":
            self.facts[self._term] = words
        elif tag == "h2":
            self.headings.append(words)


@pytest.fixture
def read_page() -> Callable[[Path], ReadPage]:
    """Takes the page in a file apart."""
    return ReadPage.read


@pytest.fixture
def class_names() -> list[str]:
    """The project's classes."""
    return CLASSES
