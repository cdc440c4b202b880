"""A report while it is being written: its page and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autodial import __version__
from autodial.report.evaluation import Absent
from autodial.report.page import Page
from autodial.report.style import Draw, Picture, picture
from autodial.system.files import replacing_files


@dataclass(frozen=True)
class Report:
    """A page, and its figures by name."""

    html: bytes
    figures: Mapping[str, Picture]

    def save(self, page: Path) -> None:
        """Write the page and, in its folder, a PNG per figure, called PAGE-FIGURE.png: all the files, or none of them.

        Raises:
            WorkError: a file can't be written.
        """
        with replacing_files(page.parent, last=page.name) as folder:
            for name, figure in self.figures.items():
                (folder / f"{page.stem}-{name}.png").write_bytes(figure.png)
            (folder / page.name).write_bytes(self.html)


class Writer:
    """Writes a page from top to bottom.

    Attributes:
        page: the page.
        figures: by name.
    """

    def __init__(self, title: str) -> None:
        self.page = Page(title)
        self.figures: dict[str, Picture] = {}

    def figure(self, name: str, draw: Draw, alt: str, caption: str) -> None:
        """Draw a figure; `alt` says what it shows to readers who can't see it."""
        drawn = self.figures[name] = picture(draw)
        self.page.figure(drawn.svg, drawn.narrow, alt, caption)

    def absent(self, what: str, why: Absent) -> None:
        """Say why a part is missing."""
        self.page.paragraph(f"{what}: {why.reason}.", "note")

    def report(self, trained_by: str) -> Report:
        """What was written; `trained_by` says which version trained."""
        return Report(self.page.html(f"Written by AutoDIAL {__version__}; {trained_by}."), self.figures)
