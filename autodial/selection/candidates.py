"""The candidates of a selection: every combination of the values, variants and seeds to try."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from autodial.errors import InputError

LEARNED = "learned"
"""The name that stands for the net as it is among the variants to try."""
_VARIANT = "variant"
_SEPARATOR = re.compile(r",(?![^\[]*\])")
"""A comma outside the brackets of a list."""
_UNSAFE = re.compile(r"[^\w.=+-]+")
_NAME_LENGTH = 80


@dataclass(frozen=True)
class Candidate:
    """One training.

    Attributes:
        settings: a `LAYER.FIELD=VALUE` for each field tried, as in `autodial train --set`.
        variant: a name for `autodial.netparam.variants.apply_variants`, or LEARNED for the net as it is; None if no
            variants are tried.
        seed: seed of the training.
    """

    settings: tuple[str, ...]
    variant: str | None
    seed: int

    @property
    def variants(self) -> tuple[str, ...]:
        """The names for `apply_variants`."""
        return () if self.variant in (None, LEARNED) else (self.variant,)

    @property
    def choices(self) -> dict[str, str]:
        """The value of each field tried, and the variant."""
        variant = {} if self.variant is None else {_VARIANT: self.variant}
        return {**{path: value for path, _, value in (s.partition("=") for s in self.settings)}, **variant}

    @property
    def recipe(self) -> str:
        """The values and the variant in words, without the seed."""
        return ", ".join(f"{path}={value}" for path, value in self.choices.items())

    @property
    def name(self) -> str:
        """The candidate's name in messages."""
        return ", ".join(filter(None, (self.recipe, f"seed {self.seed}")))

    @property
    def folder(self) -> str:
        """A relative path for its results, which does not depend on the other candidates."""
        readable = _UNSAFE.sub("_", self.recipe.replace(", ", "_"))[:_NAME_LENGTH] or "net"
        return f"{readable}-{hashlib.sha256(self.recipe.encode()).hexdigest()[:8]}/seed_{self.seed}"


def grid(tries: Sequence[str], seeds: Iterable[int]) -> list[Candidate]:
    """All combinations of settings and variants with the first seed, then all with the second seed, and so on.

    Args:
        tries: `LAYER.FIELD=VALUE,VALUE,...`, with lists in brackets, such as [104,117,123]; and `variant=NAME,NAME`.
        seeds: the restarts' seeds.

    Raises:
        InputError: a text has another form, a field is named twice or has fewer than two different values, or there is
            only one candidate.
    """
    choices: dict[str, list[str]] = {}
    for text in tries:
        path, equals, values = (part.strip() for part in text.partition("="))
        if not equals or ("." not in path and path != _VARIANT):
            raise InputError(
                f"`tries` {text}: must be LAYER.FIELD=VALUE,VALUE,... or solver.FIELD=VALUE,VALUE,... or "
                "variant=NAME,NAME,..."
            )
        if path in choices:
            raise InputError(f"`tries` {path} is given twice: give all its values in one, separated by commas")
        choices[path] = [value.strip() for value in _SEPARATOR.split(values)]
        if len(set(choices[path])) < len(choices[path]):
            raise InputError(f"`tries` {text}: a value is given twice")
        if len(choices[path]) < 2:
            instead = f"`variants` {choices[path][0]}" if path == _VARIANT else f"`overrides` {text}"
            raise InputError(f"`tries` {text}: one value leaves nothing to choose; state it with {instead}")
    variants: list[str | None] = list(choices.pop(_VARIANT, ())) or [None]
    settings = [[f"{path}={value}" for value in values] for path, values in choices.items()]
    candidates = [
        Candidate(combination, variant, seed)
        for seed in seeds
        for *chosen, variant in product(*settings, variants)
        for combination in (tuple(map(str, chosen)),)
    ]
    if len(candidates) < 2:
        raise InputError(
            "one candidate leaves nothing to choose: give values with `tries`, or more than one `restarts`"
        )
    return candidates
