"""The console of rich that commands print tables and progress on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from autodial.wording import printable


class Console(rich.console.Console):  # noqa: TID251
    """rich's Console, on which control characters in text are shown: rich obeys them."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, but="\n\t"), **options)

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, but="\n\t"))
