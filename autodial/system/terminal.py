"""The console of rich that commands print tables and progress on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from autodial.wording import printable


class Console(rich.console.Console):  # noqa: TID251
    """rich's Console, which shows control characters in text instead of obeying them.

    It writes to where standard output, or standard error, leads at the time of construction.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, **options: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(stderr=stderr, file=file or getattr(stream, "rich_proxied_file", stream), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, but="\n\t"), **options)

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, but="\n\t"))
