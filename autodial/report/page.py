"""One HTML page that needs no other file: headings, figures, tables and images as data URIs."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
from markupsafe import Markup

_HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, characters that turn the direction of the text behind them, and bytes that are not UTF-8."""


Look = Literal["", "note", "warning", "under"]
"""How a paragraph looks; "under" is for a line under the title."""


class ShownImage(NamedTuple):
    """An image on a page.

    Attributes:
        source: a data URI.
        alt: the text for readers who can't see the image.
        lines: text under the image.
        path: the image's file; the page shows its end, and the whole in a tooltip.
    """

    source: str
    alt: str
    lines: Sequence[str]
    path: str


class ShownPair(NamedTuple):
    """Two images that belong together, under a title; `right` is a text where there is no second image."""

    title: str
    left: ShownImage
    right: ShownImage | str


class _Section(NamedTuple):
    """A heading, None above the first one, and what stands under it: keyword arguments of the template's macros."""

    heading: str | None
    parts: list[dict[str, Any]]


@dataclass
class Page:
    """A page that is written from top to bottom.

    Args:
        title: plain text, as are all arguments of the methods.
    """

    title: str
    _sections: list[_Section] = field(default_factory=lambda: [_Section(None, [])])

    def section(self, heading: str) -> None:
        """Begin a section, and end the one before."""
        self._sections.append(_Section(heading, []))

    def heading(self, words: str) -> None:
        """Begin a part of a section."""
        self._add("heading", words=words)

    def paragraph(self, words: str, look: Look = "") -> None:
        """A paragraph, or a note, a warning, or a line under the title."""
        self._add("paragraph", words=words, look=look)

    def key_numbers(self, numbers: Iterable[tuple[str, str]]) -> None:
        """Large numbers and what they are."""
        self._add("key_numbers", numbers=list(numbers))

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Names and values."""
        self._add("facts", facts=list(facts))

    def figure(self, wide: bytes, narrow: bytes, alt: str, caption: str) -> None:
        """A drawing as two SVG files: one for a desk's screen and for paper, one for a phone's width."""
        svg = "image/svg+xml"
        self._add("figure", wide=data_uri(wide, svg), narrow=data_uri(narrow, svg), alt=alt, caption=caption)

    def table(
        self, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, folded: bool = False
    ) -> None:
        """A table whose rows begin with their heading; a folded one is seen on request."""
        self._add("table", caption=caption, header=header, rows=list(rows), folded=folded)

    def preformatted(self, caption: str, words: str) -> None:
        """Text as it stands, folded."""
        self._add("preformatted", caption=caption, words=words)

    def images(self, images: Iterable[ShownImage], *, pixels: bool) -> None:
        """Images side by side; `pixels` shows enlarged pixels with hard edges."""
        self._add("images", images=list(images), pixels=pixels)

    def pairs(self, pairs: Iterable[ShownPair], *, pixels: bool) -> None:
        """Pairs of images, each side by side; `pixels` as in `images`."""
        self._add("pairs", pairs=list(pairs), pixels=pixels)

    def _add(self, kind: str, **values: object) -> None:
        self._sections[-1].parts.append({"kind": kind, **values})

    def html(self, footer: str) -> bytes:
        """The whole page in UTF-8."""
        template = _environment().get_template("page.html.jinja")
        return template.render(title=self.title, sections=self._sections, footer=footer).encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autodial.report", package_path=""),
        autoescape=True,
        finalize=_without_hostile,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["short_path"] = short_path
    return environment


def _without_hostile(value: object) -> object:
    """What the page shows of a value: markup as it is, text without the characters that could disturb the page."""
    return value if isinstance(value, Markup) else _HOSTILE.sub("\N{REPLACEMENT CHARACTER}", str(value))


def data_uri(data: bytes, media_type: str) -> Markup:
    """A file as an address that holds it."""
    return Markup(f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}")


def short_path(path: str) -> str:
    """The file name and folder of an absolute path; the folder often is the class. Other paths stay whole."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if Path(path).is_absolute() and len(parts) > 3 else path
