"""What a model says about a number of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autodial.deploy.binding import Scores

OK, DAMAGED, ERROR = "ok", "damaged", "error"
"""What an image's status may be: it has labels, it has labels though its file is damaged, or it has none."""
STATUSES = (OK, DAMAGED, ERROR)


class Label(NamedTuple):
    """One of an image's labels."""

    name: str
    probability: float


class Predictions(tuple[Scores, Scores]):
    """The pair (logits, probabilities) for n images, and what there is to say about each image.

    It unpacks as the pair that it is: `logits, probabilities = predictor.predict(images)`. Both are float32
    (n, classes), the rows of the second sum to 1, and both rows of an image without labels are NaN.
    """

    classes: tuple[str, ...]
    """Names of the classes, in the order of the columns."""
    errors: Sequence[str | None]
    """Per image: why it has no labels, or None."""
    damage: Sequence[str]
    """Per image: what shows that its file is damaged; empty where nothing does."""

    def __new__(
        cls,
        logits: Scores,
        probabilities: Scores,
        classes: tuple[str, ...],
        errors: Sequence[str | None],
        damage: Sequence[str],
    ) -> Predictions:
        made = super().__new__(cls, (logits, probabilities))
        made.classes, made.errors, made.damage = classes, errors, damage
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return *self, self.classes, self.errors, self.damage

    @property
    def logits(self) -> Scores:
        """float32 (n, classes)."""
        return self[0]

    @property
    def probabilities(self) -> Scores:
        """float32 (n, classes)."""
        return self[1]

    @property
    def statuses(self) -> list[str]:
        """Per image: "ok", "damaged" (it has labels, and some pixels may be wrong) or "error" (it has none)."""
        return [
            ERROR if error is not None else DAMAGED if damage else OK
            for error, damage in zip(self.errors, self.damage, strict=True)
        ]

    @property
    def labels(self) -> list[str | None]:
        """Per image: the name of the most probable class, or None."""
        return [best[0].name if best else None for best in self.top(1)]

    def top(self, k: int) -> list[list[Label]]:
        """Per image: its k most probable classes, the best first, equal ones in their order; none after an error."""
        if not len(self.errors):
            return []
        if k == 1:
            best = np.argmax(self.probabilities, axis=1, keepdims=True)
        else:
            best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        values = np.take_along_axis(self.probabilities, best, axis=1).tolist()
        return [
            [Label(self.classes[i], p) for i, p in zip(row, of_row, strict=True)] if error is None else []
            for row, of_row, error in zip(best.tolist(), values, self.errors, strict=True)
        ]
