"""Region proposals as a layer of its own type (Intel's forks, and OpenCV as it reads them)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "proposal",
    {
        "proposal_param": ("Proposal",),
    },
)
