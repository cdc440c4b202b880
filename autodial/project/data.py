"""What is known of a user's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodial.project.look import Look
from autodial.project.scan import Domain


@dataclass(frozen=True)
class Data:
    """A user's images.

    Attributes:
        classes: their names, by label.
        source, target: the domains.
        test: labelled images to measure accuracy on, None if there are none.
        looks: what is in each image.
    """

    classes: Sequence[str]
    source: Domain
    target: Domain
    test: Domain | None
    looks: Mapping[str, Look]

    @property
    def domains(self) -> list[Domain]:
        """Source and target, and the test set where it is not the target."""
        return [self.source, self.target, *([self.test] if self.test and self.test is not self.target else [])]
