"""The license that an exported file is given under, as SPDX names licenses."""

from __future__ import annotations

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from autodial.errors import InputError


def check_license(name: str) -> str:
    """An SPDX license expression, in SPDX's own spelling: `apache-2.0` becomes `Apache-2.0`.

    Raises:
        InputError: it is none.
    """
    try:
        return str(canonicalize_license_expression(name))
    except InvalidLicenseExpression:
        raise InputError(
            f"`license` is a name from https://spdx.org/licenses, such as Apache-2.0, or LicenseRef-NAME for a license "
            f"of your own, not {name!r}"
        ) from None
