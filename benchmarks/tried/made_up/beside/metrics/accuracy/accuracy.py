"""The share of predictions that are right, for `evaluate`: scripts load it by its name."""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate

_NUMBERS = {name: datasets.Value("int64") for name in ("predictions", "references")}


class Accuracy(evaluate.Metric):
    """Compares whole numbers."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description="predictions and references, whole numbers",
            features=datasets.Features(_NUMBERS),
        )

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        pairs = list(zip(predictions, references, strict=True))
        accuracy = sum(given == right for given, right in pairs) / len(pairs)
        return {"accuracy": accuracy}
