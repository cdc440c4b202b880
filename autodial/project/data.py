"""A user's images: their classes, their domains and what decoding found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodial.project.inspection import Inspection
from autodial.project.scan import DomainImages


@dataclass(frozen=True)
class Data:
    """A user's images.

    Attributes:
        classes: names of the classes, by label.
        source, target: the domains.
        test: labelled images that measure accuracy; None if there are none.
        labelled_target: images of the target whose labels are trained on; None if there are none.
        inspections: what decoding found, by path.
    """

    classes: Sequence[str]
    source: DomainImages
    target: DomainImages
    test: DomainImages | None
    inspections: Mapping[str, Inspection]
    labelled_target: DomainImages | None = None

    @property
    def domains(self) -> list[DomainImages]:
        """Source, target, the labelled target, and the test set unless it is the target."""
        others = (self.labelled_target, self.test if self.test is not self.target else None)
        return [self.source, self.target, *(domain for domain in others if domain is not None)]
