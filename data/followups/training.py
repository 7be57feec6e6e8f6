"""Trains the head on messages of our own writing, ``messages.jsonl`` beside this file.

Every line there was written for this purpose. None was copied from a log, and the follow-ups the classifier is tested
on were not read while it was built: what `evaluation` measures is new to it.

The regularisation, the layers of the encoder, the weight of the character runs and the threshold were chosen by the
cross-validation below, which holds out whole *topics* (say, every complaint about an ignored instruction), since a
random split would reward remembering how one author phrases one thing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, precision_recall_fscore_support
from sklearn.model_selection import StratifiedGroupKFold

from palomar.data.errors import IngestError
from palomar.data.followups.encoder import Encoder, TransformerEncoder
from palomar.data.followups.head import DEFAULT_HEAD, LABELS, RUN_BUCKETS, Head
from palomar.data.followups.prose import prose

MESSAGES = Path(__file__).with_name("messages.jsonl")
INVERSE_REGULARISATION = 2.0
"""``C`` of the logistic regression; from 1 to 10 the cross-validated F1 changes by less than 0.01."""
FOLDS = 5
SEED = 0


@dataclass(frozen=True)
class Message:
    """One message to train on."""

    text: str
    label: str
    """One of `LABELS`, or ``unclear``: those are not trained on, a rule decides them, and the tests check it."""
    language: str
    """ISO 639-1."""
    topic: str
    """What it is about; messages of a topic stay in the same fold."""


@dataclass(frozen=True)
class Report:
    """What a training gave. F1 and the like are fractions, higher is better."""

    head: str
    """Hash of the head."""
    encoder: str
    """Fingerprint of the encoder."""
    messages: Mapping[str, int]
    """Messages trained on, by label."""
    languages: Mapping[str, int]
    """Messages trained on, by language."""
    cross_validated: Mapping[str, Mapping[str, float]]
    """Precision, recall and F1 by label on held-out topics of our own messages."""
    f1_by_language: Mapping[str, float]
    """Mean F1 of the three labels within each language, from the same cross-validation."""


def load_messages(path: Path = MESSAGES) -> list[Message]:
    """Every message of the file, in order."""
    messages = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                message = Message(**json.loads(line))
            except (ValueError, TypeError) as exc:
                raise IngestError(path.name, number, None, f"not a message: {exc}") from exc
            if message.label not in (*LABELS, "unclear"):
                raise IngestError(path.name, number, "label", f"expected one of {LABELS} or unclear")
            messages.append(message)
    return messages


def train_head(out_path: Path = DEFAULT_HEAD, encoder: Encoder | None = None, messages_path: Path = MESSAGES) -> Report:
    """Train a head for `encoder` (the bundled one by default), write it to `out_path`, and say how good it is.

    Deterministic: the same messages and encoder give the same coefficients. About half a minute on one core.
    """
    encoder = TransformerEncoder() if encoder is None else encoder
    messages = [message for message in load_messages(messages_path) if message.label != "unclear"]
    texts = [prose(message.text) or message.text for message in messages]
    vectors_ND = encoder.encode(texts)
    labels = [message.label for message in messages]
    head = fit(encoder.fingerprint, vectors_ND, texts, labels)
    head.save(out_path)
    predicted = _cross_validate(vectors_ND, texts, labels, [message.topic for message in messages])
    languages = [message.language for message in messages]
    return Report(
        head=head.hash,
        encoder=head.encoder,
        messages=Counter(labels),
        languages=Counter(languages),
        cross_validated=_by_label(labels, predicted),
        f1_by_language={
            language: _mean_f1(language, languages, labels, predicted) for language in sorted(set(languages))
        },
    )


def fit(encoder: str, vectors_ND: NDArray[np.float64], texts: Sequence[str], labels: Sequence[str]) -> Head:
    """The head that fits these messages; `encoder` is the fingerprint of what made the vectors."""
    centre = vectors_ND.mean(axis=0)
    scale = float(np.sqrt(((vectors_ND - centre) ** 2).sum(axis=1).mean()))
    blank = np.zeros((len(LABELS), vectors_ND.shape[1] + RUN_BUCKETS))
    untrained = Head(encoder, centre, scale, blank, np.zeros(len(LABELS)))
    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=3000)
    model.fit(untrained.features(vectors_ND, texts), labels)
    rows = [list(model.classes_).index(label) for label in LABELS]
    # Rounded to 32 bits: half the file, and the last bits differ between machines anyway.
    coefficients = model.coef_[rows].astype(np.float32).astype(np.float64)
    return Head(encoder, centre, scale, coefficients, model.intercept_[rows])


def _cross_validate(
    vectors_ND: NDArray[np.float64], texts: Sequence[str], labels: Sequence[str], topics: Sequence[str]
) -> list[str]:
    """The label that each message gets from a head that saw none of its topic."""
    truth = np.array(labels)
    predicted = np.empty_like(truth)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=SEED)
    for train, test in folds.split(vectors_ND, truth, groups=topics):
        head = fit("cross-validation", vectors_ND[train], [texts[index] for index in train], truth[train].tolist())
        rows = head.probabilities(vectors_ND[test], [texts[index] for index in test])
        predicted[test] = head.labels(rows)
    return [str(label) for label in predicted]


def _mean_f1(language: str, languages: Sequence[str], truth: Sequence[str], predicted: Sequence[str]) -> float:
    chosen = [index for index, spoken in enumerate(languages) if spoken == language]
    return float(f1_score([truth[index] for index in chosen], [predicted[index] for index in chosen], average="macro"))


def _by_label(truth: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    precision, recall, f1, _ = precision_recall_fscore_support(truth, predicted, labels=list(LABELS), zero_division=0.0)
    return {
        label: {"precision": float(precision[row]), "recall": float(recall[row]), "f1": float(f1[row])}
        for row, label in enumerate(LABELS)
    }
