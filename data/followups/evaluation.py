"""Measures the classifier on real follow-ups that it was not trained on, beside the keyword baseline.

The labels name messages by reference (folder, file, place, SHA-256); the texts stay where they were published. Two
kinds of reference are known: chats of RealHumanEval (a CSV of Python literals) and aider's chat histories (Markdown).

Only labels of high confidence count. Recall is over all messages with the label, precision over all messages given it,
so a message read as ``unclear`` costs recall and no precision.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scipy.stats import binomtest
from sklearn.metrics import average_precision_score

from palomar.data.errors import IngestError
from palomar.data.followups.classifier import FollowUp, FollowUpClassifier
from palomar.data.followups.head import LABELS
from palomar.data.followups.keywords import classify_by_keywords
from palomar.data.schema import FollowUpLabel

AIDER_SESSION = "# aider chat started at"


@dataclass(frozen=True)
class LabelledFollowUp:
    """A real follow-up with the label a reader gave it."""

    source: str
    """``realhumaneval`` or ``aider-chat``."""
    text: str
    label: str
    confidence: str
    """``high`` or ``low``."""


def evaluate(
    labels_path: Path, samples_root: Path, classifier: FollowUpClassifier | None = None
) -> list[dict[str, object]]:
    """Precision, recall and F1 of the classifier and of the keywords, by source and label.

    One record for each classifier, source (``both`` too) and label: ``labelled`` and ``predicted`` count messages,
    ``correct`` both at once; precision and recall come with 95 % Wilson intervals; None stands for a fraction of
    nothing.
    ``average_precision`` (the classifier's only) is over all thresholds of the label's probability.
    """
    classifier = FollowUpClassifier() if classifier is None else classifier
    items = [item for item in load_labelled(labels_path, samples_root) if item.confidence == "high"]
    texts = [item.text for item in items]
    readings = classifier.classify(texts)
    by_name: dict[str, list[str]] = {
        "encoder": [reading.label for reading in readings],
        "keywords": list(classify_by_keywords(texts)),
    }
    sources = sorted({item.source for item in items})
    records: list[dict[str, object]] = []
    for name, predicted in by_name.items():
        for source in [*sources, "both"]:
            chosen = [index for index, item in enumerate(items) if source in (item.source, "both")]
            truth = [items[index].label for index in chosen]
            for label in LABELS:
                record = {"classifier": name, "source": source, "label": label, "messages": len(chosen)}
                record |= _score(label, truth, [predicted[index] for index in chosen])
                if name == "encoder":
                    record["average_precision"] = _average_precision(label, truth, [readings[i] for i in chosen])
                records.append(record)
    return records


def _score(label: str, truth: Sequence[str], predicted: Sequence[str]) -> dict[str, object]:
    labelled = sum(t == label for t in truth)
    given = sum(p == label for p in predicted)
    correct = sum(t == p == label for t, p in zip(truth, predicted, strict=True))
    return {
        "labelled": labelled,
        "predicted": given,
        "correct": correct,
        **_fraction("precision", correct, given),
        **_fraction("recall", correct, labelled),
        "f1": 2 * correct / (given + labelled) if given + labelled else None,
    }


def _average_precision(label: FollowUpLabel, truth: Sequence[str], readings: Sequence[FollowUp]) -> float | None:
    if label not in truth:
        return None
    # What was not judged ranks last: no threshold would ever give it the label.
    p = [0.0 if reading.probabilities is None else reading.probabilities[LABELS.index(label)] for reading in readings]
    return float(average_precision_score([t == label for t in truth], p))


def _fraction(name: str, part: int, whole: int) -> dict[str, float | None]:
    if whole == 0:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    interval = binomtest(part, whole).proportion_ci(0.95, method="wilson")
    return {name: part / whole, f"{name}_low": float(interval.low), f"{name}_high": float(interval.high)}


def load_labelled(labels_path: Path, samples_root: Path) -> list[LabelledFollowUp]:
    """Every labelled follow-up with its text; a text that is not what its reference hashes is an error."""
    texts = _Texts(samples_root)
    items = []
    with labels_path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                text = texts.find(entry["source"], entry["ref"])
                items.append(LabelledFollowUp(entry["source"], text, entry["label"], entry["confidence"]))
            except (LookupError, ValueError, SyntaxError) as exc:
                raise IngestError(labels_path.name, number, "ref", f"cannot be resolved: {exc!r}") from exc
            if hashlib.sha256(text.encode()).hexdigest()[:12] != entry["ref"]["text_sha256_12"]:
                raise IngestError(labels_path.name, number, "ref", "the text found has another SHA-256")
    return items


class _Texts:
    """Finds texts by reference; each file is parsed once."""

    def __init__(self, samples_root: Path) -> None:
        self._root = samples_root
        self._rows = cache(_csv_rows)
        self._turns = cache(aider_turns)
        self._by_source: dict[str, Callable[[Path, Mapping[str, Any]], str]] = {
            "realhumaneval": self._realhumaneval,
            "aider-chat": self._aider,
        }

    def find(self, source: str, ref: Mapping[str, Any]) -> str:
        return self._by_source[source](self._root / source / ref["file"], ref)

    def _realhumaneval(self, path: Path, ref: Mapping[str, Any]) -> str:
        row = self._rows(path)[ref["row"]]
        if row["programmer_id"] != ref["programmer_id"]:
            raise ValueError(f"row {ref['row']} is of programmer {row['programmer_id']}")
        messages = ast.literal_eval(row["request"])
        message = messages[ref["message"]]
        if message["role"] != "user" or all(earlier["role"] != "assistant" for earlier in messages[: ref["message"]]):
            raise ValueError(f"message {ref['message']} is not a follow-up of the user")
        return str(message["content"]).strip()

    def _aider(self, path: Path, ref: Mapping[str, Any]) -> str:
        return self._turns(path)[ref["session"], ref["turn"]]


def _csv_rows(path: Path) -> list[dict[str, str]]:
    csv.field_size_limit(sys.maxsize)  # a request holds a whole chat
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def aider_turns(path: Path) -> dict[tuple[int, int], str]:
    """The user's turns of a chat history by (session, turn), both from 1: unbroken runs of ``####`` lines."""
    lines = path.read_text(encoding="utf-8").split("\n")
    session = 0 if any(line.startswith(AIDER_SESSION) for line in lines) else 1
    runs: dict[tuple[int, int], list[str]] = {}
    turn, in_run = 0, False
    for line in lines:
        if line.startswith(AIDER_SESSION):
            session, turn, in_run = session + 1, 0, False
        elif line == "####" or line.startswith("#### "):
            turn += not in_run
            in_run = True
            runs.setdefault((session, turn), []).append(line[4:].strip())
        else:
            in_run = False
    return {key: _joined(run) for key, run in runs.items()}


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines).strip()
