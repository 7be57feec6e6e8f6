from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from palomar.data.errors import CheckpointError
from palomar.data.store import Store
from palomar.trainer.config import PolicyConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.registry import CheckpointFolder, register

CONFIG = PolicyConfig(max_new_tokens=6, device="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def test_what_is_saved_is_what_is_loaded(folder: CheckpointFolder, policy: Policy) -> None:
    state = {"lm_head.weight/exp_avg": torch.arange(6.0).reshape(2, 3)}
    saved = folder.save(policy, state, parent="p", cycle=4)
    assert policy.checkpoint == saved.checkpoint_id
    again = folder.load(saved.checkpoint_id, CONFIG)
    assert again.checkpoint == saved.checkpoint_id
    assert again.respond(["go left"], 1) == policy.respond(["go left"], 1)
    kept = folder.optimizer_state(saved.checkpoint_id)
    assert kept is not None
    assert torch.equal(kept["lm_head.weight/exp_avg"], state["lm_head.weight/exp_avg"])
    assert folder.verify(saved.checkpoint_id)["parent"] == "p"


def test_a_base_has_no_optimizer_state(folder: CheckpointFolder, policy: Policy) -> None:
    saved = folder.save(policy, parent=None, cycle=None)
    assert folder.optimizer_state(saved.checkpoint_id) is None


def test_equal_content_has_one_id_and_other_content_parent_or_cycle_another(
    folder: CheckpointFolder, policy: Policy
) -> None:
    first = folder.save(policy, parent="p", cycle=1)
    assert folder.save(policy, parent="p", cycle=1) == first
    others = {folder.save(policy, parent="q", cycle=1), folder.save(policy, parent="p", cycle=2)}
    with torch.no_grad():
        policy.model.lm_head.weight[3, 3] += 1e-3
    others.add(folder.save(policy, parent="p", cycle=1))
    assert len({saved.checkpoint_id for saved in others} | {first.checkpoint_id}) == 4
    assert sorted(path.name for path in folder.root.iterdir()) == sorted(
        {saved.checkpoint_id for saved in others} | {first.checkpoint_id}
    )


def test_the_id_does_not_depend_on_where_it_lies(tmp_path: Path, policy: Policy) -> None:
    ids = {CheckpointFolder(tmp_path / name).save(policy, parent=None, cycle=0).checkpoint_id for name in ("a", "bb")}
    loaded = CheckpointFolder(tmp_path / "a").load(next(iter(ids)), CONFIG)
    ids.add(CheckpointFolder(tmp_path / "c").save(loaded, parent=None, cycle=0).checkpoint_id)
    assert len(ids) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_refused_by_name(folder: CheckpointFolder, policy: Policy, damage: str) -> None:
    saved = folder.save(policy, parent=None, cycle=0)
    weights, manifest = saved.path / "model.safetensors", saved.path / "manifest.json"
    content = bytearray(weights.read_bytes())
    match damage:
        case "flip":
            content[-1] ^= 1
            weights.write_bytes(content)
        case "cut":
            weights.write_bytes(content[:-4])
        case "remove":
            weights.unlink()
        case "add":
            (saved.path / "pytorch_model.bin").write_bytes(b"")
        case "manifest":
            manifest.write_text(manifest.read_text().replace('"cycle": 0', '"cycle": 1'))
        case "no manifest":
            manifest.unlink()
    with pytest.raises(CheckpointError, match=saved.checkpoint_id):
        folder.load(saved.checkpoint_id, CONFIG)


def test_a_writer_that_is_killed_leaves_nothing_that_is_read_and_the_next_one_cleans_up(
    folder: CheckpointFolder, policy: Policy
) -> None:
    def die_before_the_rename() -> None:
        Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign,return-value]
        folder.save(policy, parent=None, cycle=0)

    writer = multiprocessing.get_context("fork").Process(target=die_before_the_rename)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    (left,) = folder.root.iterdir()
    assert (left / "model.safetensors").exists()
    with pytest.raises(CheckpointError):
        folder.load(left.name, CONFIG)
    saved = folder.save(policy, parent=None, cycle=0)
    assert [path.name for path in folder.root.iterdir()] == [saved.checkpoint_id]


def test_a_checkpoint_is_registered_once_as_a_candidate(
    folder: CheckpointFolder, policy: Policy, tmp_path: Path
) -> None:
    with Store.open(None, tmp_path) as store:
        store.runs.add("run", name="run", seed=0, config={})
        saved = folder.save(policy, parent=None, cycle=None)
        row = register(store, "run", saved, parent=None, cycle=None)
        assert register(store, "run", saved, parent=None, cycle=None) == row
        assert (row.status, row.sha256, row.path) == ("candidate", saved.sha256, saved.checkpoint_id)
