"""Scores of named entities, for the library `evaluate`: scripts load it by its name.

An entity counts as found if its first word, its last word and its kind are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate

_TAGS = datasets.Sequence(datasets.Value("string"))


class Seqeval(evaluate.Metric):
    """Compares tags: B- begins an entity, I- goes on with it, O is outside."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description="predictions and references, lists of tags",
            features=datasets.Features({"predictions": _TAGS, "references": _TAGS}),
        )

    def _compute(
        self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        found = given = wanted = right = tags = 0
        for guess, truth in zip(predictions, references, strict=True):
            guessed, true = _entities(guess), _entities(truth)
            found += len(guessed & true)
            given += len(guessed)
            wanted += len(true)
            right += sum(one == other for one, other in zip(guess, truth, strict=True))
            tags += len(truth)
        return {
            "overall_precision": found / given if given else 0.0,
            "overall_recall": found / wanted if wanted else 0.0,
            "overall_f1": 2 * found / (given + wanted) if given + wanted else 0.0,
            "overall_accuracy": right / tags if tags else 0.0,
        }


def _entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The first place, the place after the last, and the kind of each."""
    entities: set[tuple[int, int, str]] = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        goes_on = tag == f"I-{kind}"
        if kind and not goes_on:
            entities.add((start, place, kind))
            kind = ""
        if tag != "O" and not goes_on:
            start, kind = place, tag[2:]
    return entities
