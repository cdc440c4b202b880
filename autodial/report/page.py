"""One HTML page that needs nothing beside it: headings, figures, tables and images as data URIs."""

from __future__ import annotations

import base64
import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem 1.2rem 4rem; color: #1a1a1a; background: #fff;
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 0.2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 0.6rem; padding-top: 0.8rem; border-top: 1px solid #d5d5d5; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 0.4rem; overflow-wrap: anywhere; }
p { max-width: 46rem; margin: 0.5rem 0; }
.under { color: #4a4a4a; margin-top: 0; }
.keys { display: flex; flex-wrap: wrap; gap: 0.8rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.keys li { flex: 1 1 9rem; padding: 0.7rem 0.9rem; border: 1px solid #d5d5d5; border-radius: 0.4rem; }
.keys b { display: block; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.keys span { color: #4a4a4a; font-size: 0.88rem; }
.note { border-left: 4px solid #767676; background: #f4f4f4; padding: 0.5rem 0.8rem; overflow-wrap: anywhere; }
.warning { border-left: 4px solid #d55e00; background: #fdf3ec; padding: 0.5rem 0.8rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: 0.2rem 1.2rem; margin: 1rem 0; }
dt { color: #4a4a4a; }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; }
figcaption { color: #333; font-size: 0.92rem; max-width: 46rem; margin-top: 0.3rem; }
.wide { overflow-x: auto; }
.wide > img { display: block; min-width: 28rem; max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #e3e3e3; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; max-width: 22rem; overflow: hidden; text-overflow: ellipsis; }
thead th { border-bottom: 2px solid #8a8a8a; }
caption { text-align: left; color: #4a4a4a; padding: 0.3rem 0; }
details { margin: 0.6rem 0; }
summary { cursor: pointer; color: #00548a; }
pre { overflow-x: auto; background: #f4f4f4; padding: 0.7rem; font-size: 0.82rem; }
.images { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.6rem, 1fr)); gap: 1rem; padding: 0;
  list-style: none; }
.images li { font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere; }
.images img { display: block; width: 100%; height: 8.6rem; object-fit: contain; background: #f0f0f0; }
.pixels img { image-rendering: pixelated; }
.path { color: #4a4a4a; font-size: 0.78rem; }
footer { margin-top: 3rem; color: #4a4a4a; font-size: 0.85rem; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .wide { overflow: visible; }
  .wide > img { min-width: 0; } figure, .images li, table { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""


_TURNING = frozenset(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
"""Characters that turn the direction of what follows, also beyond the name that they stand in."""


def text(value: object) -> str:
    """A value as HTML text or attribute: control characters, and bytes of file names in no encoding, are replaced."""
    return html.escape("".join("\N{REPLACEMENT CHARACTER}" if _is_hostile(c) else c for c in str(value)))


def _is_hostile(character: str) -> bool:
    return (unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t") or character in _TURNING


def data_uri(data: bytes, media_type: str) -> str:
    """A file as an address that holds it."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def short_path(path: str) -> str:
    """An absolute path's file with the folder that it is in, which often is its class; others as they stand."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if Path(path).is_absolute() and len(parts) > 3 else path


class ShownImage(NamedTuple):
    """An image of a page.

    Attributes:
        source: a data URI.
        alt: the text in its place for those who can't see it.
        lines: to write under it.
        path: its file's, of which a tooltip has the whole.
    """

    source: str
    alt: str
    lines: Sequence[str]
    path: str


def _wide(content: str) -> str:
    """Content that may be wider than a small screen: it scrolls, with the keyboard too."""
    return f'<div class="wide" tabindex="0">{content}</div>'


@dataclass
class Page:
    """A page that is written from top to bottom.

    Args:
        title: plain text, as are all arguments of its methods.
    """

    title: str
    _parts: list[str] = field(default_factory=list)
    _open: bool = False

    def section(self, heading: str) -> None:
        """Begin a section, and end the one before."""
        self._parts.append(f"{'</section>' if self._open else ''}\n<section>\n<h2>{text(heading)}</h2>")
        self._open = True

    def heading(self, words: str) -> None:
        """Begin a part of a section."""
        self._parts.append(f"<h3>{text(words)}</h3>")

    def paragraph(self, words: str, kind: str = "") -> None:
        """A paragraph; `kind` is "note", "warning", "under" or nothing."""
        self._parts.append(f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{text(words)}</p>")

    def key_numbers(self, numbers: Iterable[tuple[str, str]]) -> None:
        """Large numbers and what they are."""
        items = "".join(f"<li><b>{text(number)}</b><span>{text(what)}</span></li>" for number, what in numbers)
        self._parts.append(f'<ul class="keys">{items}</ul>')

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Names and what they are set to."""
        items = "\n".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts)
        self._parts.append(f"<dl>\n{items}\n</dl>")

    def figure(self, svg: bytes, alt: str, caption: str) -> None:
        """A drawing; `alt` says what it shows to those who can't see it."""
        image = f'<img alt="{text(alt)}" src="{data_uri(svg, "image/svg+xml")}">'
        self._parts.append(f"<figure>\n{_wide(image)}\n<figcaption>{text(caption)}</figcaption>\n</figure>")

    def table(
        self, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, folded: bool = False
    ) -> None:
        """A table, the first cell of each row being its heading; a folded one is seen on request."""
        head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
        body = "\n".join(
            f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
            for row in rows
        )
        title = "" if folded else f"<caption>{text(caption)}</caption>"
        table = _wide(f"<table>{title}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>")
        self._parts.append(f"<details><summary>{text(caption)}</summary>{table}</details>" if folded else table)

    def preformatted(self, caption: str, words: str) -> None:
        """Text as it stands, folded."""
        self._parts.append(f"<details><summary>{text(caption)}</summary><pre>{text(words)}</pre></details>")

    def images(self, images: Iterable[ShownImage], *, pixels: bool) -> None:
        """Images side by side; `pixels` keeps pixels apart."""
        items = "\n".join(
            f'<li><img alt="{text(image.alt)}" src="{image.source}">'
            f"{''.join(f'<div>{text(line)}</div>' for line in image.lines)}"
            f'<div class="path" title="{text(image.path)}">{text(short_path(image.path))}</div></li>'
            for image in images
        )
        self._parts.append(f'<ul class="images{" pixels" if pixels else ""}">\n{items}\n</ul>')

    def html(self, footer: str) -> bytes:
        """The whole page in UTF-8."""
        end = "</section>" if self._open else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{text(self.title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{text(self.title)}</h1>\n" + "\n".join(self._parts) + f"\n{end}\n</main>\n"
            f"<footer>{text(footer)}</footer>\n</body>\n</html>\n"
        ).encode()
