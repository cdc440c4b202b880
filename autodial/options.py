"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        # the names are those of autodial.variants, which takes too long to import for a help text
        help="Another method, from the same net: source-only, entropy-only, adabn, fixed-alpha, or X for X.settings "
        "beside the net. --set applies after it; may be repeated.",
        show_default="the net as it is",
    ),
]
"""Names for `autodial.variants.apply_variants`."""
