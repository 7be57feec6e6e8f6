"""Checkpoints on disk: whole or not there at all, and what their hash says.

    <root>/<id>/manifest.json          parent, cycle, and the SHA-256 of every other file
    <root>/<id>/model.safetensors, config.json, tokenizer.json, ...
    <root>/<id>/optimizer.safetensors  Adam's state, where there is one

The SHA-256 of the manifest stands for all of it; the id is its beginning, so that equal content from an equal parent in
the same cycle has the same id, and a cycle that is run again writes the same checkpoint. A checkpoint is written beside
its place, synced and renamed: a killed writer leaves a folder that nobody reads and the next writer removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from palomar.data.errors import CheckpointError
from palomar.data.store import Store
from palomar.data.store.records import Checkpoint
from palomar.trainer.config import PolicyConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy

_MANIFEST = "manifest.json"
_OPTIMIZER = "optimizer.safetensors"
_ID_DIGITS = 16
_TEMPORARY = ".writing-"


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk."""

    checkpoint_id: str
    path: Path
    sha256: str
    """Of the manifest, and so of everything in it."""


class CheckpointFolder:
    """All checkpoints of a home, each in a folder named by its id."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(
        self,
        policy: Policy,
        optimizer_state: dict[str, torch.Tensor] | None = None,
        *,
        parent: str | None,
        cycle: int | None,
    ) -> Saved:
        """Writes weights, tokenizer and Adam's state; sets `policy.checkpoint` to the new id. One writer at a time."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left_over in self.root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left_over)
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        policy.save(work)
        if optimizer_state:
            save_file(optimizer_state, work / _OPTIMIZER)
        files = {path.name: _sha256(path.read_bytes()) for path in sorted(work.iterdir())}
        manifest = json.dumps({"cycle": cycle, "files": files, "parent": parent}, indent=1, sort_keys=True).encode()
        (work / _MANIFEST).write_bytes(manifest)
        for path in [*work.iterdir(), work]:
            _sync(path)
        digest = _sha256(manifest)
        saved = Saved(digest[:_ID_DIGITS], self.root / digest[:_ID_DIGITS], digest)
        if saved.path.exists():
            # Written before; a torn one cannot be there, since it is renamed only when it is whole.
            shutil.rmtree(work)
        else:
            work.rename(saved.path)
        _sync(self.root)
        policy.checkpoint = saved.checkpoint_id
        return saved

    def verify(self, checkpoint_id: str) -> dict[str, Any]:
        """The manifest, after every file was compared with it. Raises CheckpointError, naming the file."""
        folder = self.root / checkpoint_id
        try:
            content = (folder / _MANIFEST).read_bytes()
        except OSError as exc:
            raise CheckpointError(f"{folder}: no such checkpoint: {exc.strerror}") from exc
        if _sha256(content)[:_ID_DIGITS] != checkpoint_id:
            raise CheckpointError(f"{folder / _MANIFEST}: damaged: its hash is not the checkpoint's id")
        manifest: dict[str, Any] = json.loads(content)
        found = {path.name for path in folder.iterdir()} - {_MANIFEST}
        for name in sorted(found ^ manifest["files"].keys()):
            raise CheckpointError(f"{folder / name}: {'not in the manifest' if name in found else 'missing'}")
        for name, digest in manifest["files"].items():
            if _sha256((folder / name).read_bytes()) != digest:
                raise CheckpointError(f"{folder / name}: damaged: its hash is not the one in the manifest")
        return manifest

    def load(self, checkpoint_id: str, config: PolicyConfig) -> Policy:
        """The policy, verified. Raises CheckpointError."""
        self.verify(checkpoint_id)
        return Policy.load(self.root / checkpoint_id, config, checkpoint=checkpoint_id)

    def optimizer_state(self, checkpoint_id: str) -> dict[str, torch.Tensor] | None:
        """Adam's state, verified; None where the checkpoint was saved without one. Raises CheckpointError."""
        if _OPTIMIZER not in self.verify(checkpoint_id)["files"]:
            return None
        state: dict[str, torch.Tensor] = load_file(self.root / checkpoint_id / _OPTIMIZER)
        return state


def register(store: Store, run_id: str, saved: Saved, *, parent: str | None, cycle: int | None) -> Checkpoint:
    """The checkpoint's row in the store, a candidate if it is new; its path is kept relative to the folder of all."""
    return store.checkpoints.add(
        run_id, saved.checkpoint_id, cycle=cycle, parent_id=parent, path=saved.path.name, sha256=saved.sha256
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
