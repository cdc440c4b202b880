"""A request that isn't answered as it was meant."""

from __future__ import annotations

from collections.abc import Mapping

from autodial.wording import shortened

RETRY_AFTER = "1"
"""Seconds after which a busy service may be asked once more."""
_LONGEST = 1000
"""Characters of a refusal: it repeats no request."""


class RefusalError(Exception):
    """An answer with another status than 200; its text goes into `{"error": text}`.

    Args:
        status: HTTP's.
        text: one sentence for the client.
        headers: more headers of the answer.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = shortened(text, _LONGEST)
        self.headers = dict(headers or {})


def invalid(text: str) -> RefusalError:
    """The refusal of a request that is not as it has to be."""
    return RefusalError(400, text)


def too_large(text: str) -> RefusalError:
    """The refusal of a request beyond a limit that will not change."""
    return RefusalError(413, text)


def busy(text: str) -> RefusalError:
    """The refusal of a request that may be repeated."""
    return RefusalError(503, text, {"Retry-After": RETRY_AFTER})
