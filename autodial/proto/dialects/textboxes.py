"""TextBoxes++ (MhLiao/TextBoxes_plusplus), on top of SSD."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect("textboxes", {})
