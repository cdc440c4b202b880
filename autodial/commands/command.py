"""The class of every command, which keeps options from taking another option for their value."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from autodial.errors import InputError

_LIKE_AN_OPTION = re.compile(r"-[^\d.]")
"""How options begin. A value may be - alone, or a negative number."""


class Command(TyperCommand):
    """A command that refuses `--drift -o out.csv`, where --drift lacks its value, instead of taking -o for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does.

        Raises:
            InputError: an option's value begins with "-".
        """
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        options = {name for param in self.params for name in param.opts}
        for param in self.params:
            values = given.get(str(param.name)) if param.param_type_name == "option" else None
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, str) and _LIKE_AN_OPTION.match(value):
                    option = param.opts[-1]
                    if value not in options:
                        raise InputError(f'{option} {value}: no value begins with "-"; write ./{value} for a file')
                    out = "" if param.required else f", or leave {option} out"
                    missing = param.metavar or "its value"
                    raise InputError(f"{option} is followed by the option {value}: write {missing} after {option}{out}")
        return super().parse_args(ctx, args)
