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
        source, target: the domains; the source has the images of all sources.
        test: labelled images that measure accuracy; None if there are none.
        labelled_target: images of the target whose labels are trained on; None if there are none.
        inspections: what decoding found, by path.
        sources: the sources, if there are several; otherwise the source.
    """

    classes: Sequence[str]
    source: DomainImages
    target: DomainImages
    test: DomainImages | None
    inspections: Mapping[str, Inspection]
    labelled_target: DomainImages | None = None
    sources: tuple[DomainImages, ...] = ()

    def __post_init__(self) -> None:
        if not self.sources:
            object.__setattr__(self, "sources", (self.source,))

    @property
    def domains(self) -> list[DomainImages]:
        """Sources, target, the labelled target, and the test set unless it is the target."""
        others = (self.labelled_target, self.test if self.test is not self.target else None)
        return [*self.sources, self.target, *(domain for domain in others if domain is not None)]
