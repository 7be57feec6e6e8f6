"""Classes users' follow-up messages: dissatisfied, satisfied, neutral, or unclear where there is nothing to judge.

The message alone is read, not the conversation before it. "Add a test" straight after an undo may be a complaint; that
undo, like a person's refusal of a tool, reaches the reward as a signal of its own, not through this classifier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palomar.data.errors import CheckpointError
from palomar.data.followups.encoder import Encoder, TransformerEncoder
from palomar.data.followups.head import DEFAULT_HEAD, LABELS, load_head
from palomar.data.followups.prose import prose
from palomar.data.schema import Feedback, FollowUpLabel

MEMO_SIZE = 200_000
"""Distinct messages whose reading is remembered; "continue" and "thanks" come by the thousand."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What one message was read as."""

    label: FollowUpLabel
    """``dissatisfied`` from a probability of `DISSATISFIED_FROM` on, else the likelier of the other two; ``unclear`` if
    the message is empty or holds code and not a word."""
    probabilities: tuple[float, float, float] | None
    """Of dissatisfied, satisfied, neutral (`LABELS`), adding up to 1; None where nothing could be judged."""

    @property
    def p(self) -> float | None:
        """Probability of `label`, 0.3125 to 1; None where nothing could be judged, which is not 0."""
        return None if self.probabilities is None else self.probabilities[LABELS.index(self.label)]


UNCLEAR = FollowUp(label="unclear", probabilities=None)


class FollowUpClassifier:
    """A sentence encoder with a trained head. Load once, then call with batches: the encoder is the slow part."""

    def __init__(self, encoder: Encoder | None = None, head_path: Path = DEFAULT_HEAD) -> None:
        self._head = load_head(head_path)
        self._encoder = TransformerEncoder() if encoder is None else encoder
        if self._encoder.fingerprint != self._head.encoder:
            raise CheckpointError(
                f"follow-up head: {head_path}: trained for encoder {self._head.encoder}, but the encoder given is "
                f"{self._encoder.fingerprint}; train a head for it with train_head"
            )
        self._memo: dict[bytes, FollowUp] = {}

    @property
    def label_by(self) -> str:
        """What ``Feedback.label_by`` says of a label given here."""
        return f"classifier:{self._head.hash}"

    def classify(self, texts: Sequence[str]) -> list[FollowUp]:
        """One reading per text, in order; equal texts are read once."""
        keys = [_key(text) for text in texts]
        unread = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._memo}
        read = dict(zip(unread, self._read(list(unread.values())), strict=True))
        result = [read[key] if key in read else self._memo[key] for key in keys]
        if len(self._memo) + len(read) > MEMO_SIZE:
            self._memo.clear()
        self._memo.update(read)
        return result

    def label(self, feedback: Sequence[tuple[str, Feedback]]) -> list[tuple[str, Feedback]]:
        """The reactions, by interaction, in their order; follow-ups get the label of their text."""
        said = [(row, item.text or "") for row, (_, item) in enumerate(feedback) if item.kind == "follow_up"]
        labelled = list(feedback)
        for (row, _), reading in zip(said, self.classify([text for _, text in said]), strict=True):
            owner, item = feedback[row]
            label = {"label": reading.label, "label_by": self.label_by, "label_probability": reading.p}
            labelled[row] = owner, item.model_copy(update=label)
        return labelled

    def _read(self, texts: list[str]) -> list[FollowUp]:
        readings = [UNCLEAR] * len(texts)
        words = {index: kept for index, text in enumerate(texts) if (kept := prose(text))}
        if words:
            judged = list(words.values())
            rows = self._head.probabilities(self._encoder.encode(judged), judged)
            for index, label, row in zip(words, self._head.labels(rows), rows, strict=True):
                dissatisfied, satisfied, neutral = (float(p) for p in row)
                readings[index] = FollowUp(label, (dissatisfied, satisfied, neutral))
        return readings


def _key(text: str) -> bytes:
    """Digest that stands for the text in the memo, so that a megabyte of log is not kept; lone surrogates may occur."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
