"""The head: a multinomial logistic regression over what the encoder says and over short runs of characters.

The runs (1 to 4 characters within a word, hashed) are there for languages the encoder knows badly: its vocabulary is
English, and much of Chinese or Korean is one unknown token to it. English gains nothing from them and loses nothing.

A head on disk is an ``.npz`` of plain arrays, read with pickle off. It names the encoder it was trained for, and works
with no other.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from scipy.special import softmax
from sklearn.feature_extraction.text import HashingVectorizer

from palomar.data.errors import CheckpointError
from palomar.data.followups.encoder import both_ends
from palomar.data.schema import FollowUpLabel

LABELS: tuple[FollowUpLabel, ...] = tuple(label for label in get_args(FollowUpLabel) if label != "unclear")
"""What the head tells apart, in the order of its columns: dissatisfied, satisfied, neutral."""
RUN_BUCKETS = 2**13
RUN_WEIGHT = 2.0
"""Length of a vector of character runs, where the encoder's is 1 on average; cross-validated on our own messages."""
RUN_CHARS_PER_END = 1_000
"""Characters of a long message, from either end, whose runs are counted."""
DISSATISFIED_FROM = 0.375
"""A message is dissatisfied from this probability on, even where neutral has more: half the best F1 (0.75) that any
threshold reaches in cross-validation on our own messages, which is the threshold that maximises F1 (Lipton, Elkan and
Naryanaswamy 2014, "Optimal thresholding of classifiers to maximize F1 measure")."""
DEFAULT_HEAD = Path(__file__).with_name("head.npz")


def character_runs(texts: Sequence[str]) -> csr_array:
    """Hashed counts of runs of 1 to 4 characters, each row of length `RUN_WEIGHT`; ``(N, RUN_BUCKETS)``."""
    hashing = HashingVectorizer(
        analyzer="char_wb", ngram_range=(1, 4), n_features=RUN_BUCKETS, alternate_sign=False, norm="l2"
    )
    return csr_array(hashing.transform([both_ends(text, RUN_CHARS_PER_END) for text in texts])) * RUN_WEIGHT


@dataclass(frozen=True, eq=False)
class Head:
    """Coefficients of the three labels, with the encoder they belong to. Immutable; compare by `hash`."""

    encoder: str
    """Fingerprint of the encoder it was trained for."""
    centre: NDArray[np.float64]
    """Mean vector of the training messages, ``(D,)``, taken off first: sentence vectors share a large common part."""
    scale: float
    """Root mean square length of the centred training vectors, which become 1 long on average."""
    coefficients: NDArray[np.float64]
    """``(3, D + RUN_BUCKETS)``, rows as in `LABELS`."""
    intercept: NDArray[np.float64]
    """``(3,)``, rows as in `LABELS`."""

    def features(self, vectors_ND: NDArray[np.float64], texts: Sequence[str]) -> csr_array:
        """Centred encoder vectors beside character runs, ``(N, D + RUN_BUCKETS)``."""
        return csr_array(hstack([csr_array((vectors_ND - self.centre) / self.scale), character_runs(texts)]))

    def probabilities(self, vectors_ND: NDArray[np.float64], texts: Sequence[str]) -> NDArray[np.float64]:
        """Probability of each label, ``(N, 3)``, columns as in `LABELS`; rows add up to 1."""
        scores: NDArray[np.float64] = self.features(vectors_ND, texts) @ self.coefficients.T + self.intercept
        result: NDArray[np.float64] = softmax(scores, axis=1)
        return result

    def labels(self, probabilities_N3: NDArray[np.float64]) -> list[FollowUpLabel]:
        """The label of each row: dissatisfied from `DISSATISFIED_FROM` on, else the likelier of the other two."""
        dissatisfied_N = probabilities_N3[:, 0] >= DISSATISFIED_FROM
        columns_N = np.where(dissatisfied_N, 0, 1 + probabilities_N3[:, 1:].argmax(axis=1))
        return [LABELS[column] for column in columns_N]

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 over every array: what ``label_by`` names."""
        digest = hashlib.sha256(self.encoder.encode())
        for array in self._arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Write the head to `path` (``.npz``); the same head gives the same bytes."""
        with path.open("wb") as stream:
            np.savez_compressed(stream, **self._arrays(), labels=np.array(LABELS), encoder=np.array(self.encoder))

    def _arrays(self) -> dict[str, Any]:
        return {
            "centre": self.centre,
            "scale": np.array(self.scale),
            "coefficients": self.coefficients,
            "intercept": self.intercept,
        }


def load_head(path: Path = DEFAULT_HEAD) -> Head:
    """The head at `path`; raises `CheckpointError` if it is missing, torn or of another shape."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        head = Head(
            encoder=str(arrays["encoder"]),
            centre=arrays["centre"],
            scale=float(arrays["scale"]),
            coefficients=arrays["coefficients"],
            intercept=arrays["intercept"],
        )
        labels = tuple(str(label) for label in arrays["labels"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise CheckpointError(f"follow-up head: {path}: not a readable head ({exc})") from exc
    expected = (len(LABELS), len(head.centre) + RUN_BUCKETS)
    if labels != LABELS or head.coefficients.shape != expected:
        raise CheckpointError(
            f"follow-up head: {path}: labels {labels}, coefficients {head.coefficients.shape}; "
            f"expected {LABELS} and {expected}. Train it again."
        )
    return head
