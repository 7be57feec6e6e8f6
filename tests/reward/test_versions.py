"""A reward version is written once, with its reason; a run pays each cycle by the one in force."""

import pytest

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.reward.spec import bundled, to_yaml, version
from palomar.reward.versions import effective, register, stored_spec

NAIVE, SOUND = bundled("naive"), bundled("sound")


@pytest.fixture
def store(tmp_path):
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("demo", name="demo", seed=7, config={})
        opened.checkpoints.add("demo", "base", cycle=None, parent_id=None, path="base", sha256="00")
        yield opened


def test_a_version_is_written_once_and_keeps_its_first_words(store) -> None:
    commented = "# mine\n" + to_yaml(NAIVE)
    first = register(store, NAIVE, reason="the start", actor="ann", text=commented)
    again = register(store, NAIVE, reason="something else", actor="bob")
    assert first == again
    assert (first.version, first.text, first.reason, first.parent) == (version(NAIVE), commented, "the start", None)
    assert stored_spec(first) == NAIVE


def test_a_cycle_is_paid_by_the_version_in_force(store) -> None:
    naive = register(store, NAIVE, reason="the start", actor="ann")
    sound = register(store, SOUND, reason="three hacks", actor="ann", parent=naive.version)
    store.rewards.schedule("demo", naive.version, from_cycle=0)
    store.rewards.schedule("demo", sound.version, from_cycle=5)
    assert [effective(store, "demo", cycle).name for cycle in (0, 4, 5, 9)] == ["naive", "naive", "sound", "sound"]


def test_a_cycle_before_any_schedule_has_no_reward(store) -> None:
    with pytest.raises(StoreError, match="no reward for cycle 0"):
        effective(store, "demo", 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"reason": " ", "actor": "ann"}, "needs a reason and an actor"),
        ({"reason": "r", "actor": "ann", "text": to_yaml(SOUND)}, "says something else"),
        ({"reason": "r", "actor": "ann", "parent": version(NAIVE)}, "its own parent"),
        ({"reason": "r", "actor": "ann", "parent": "0" * 20}, "does not hold"),
    ],
)
def test_a_version_without_a_reason_or_a_true_text_or_parent_is_refused(store, arguments, problem) -> None:
    with pytest.raises(StoreError, match=problem):
        register(store, NAIVE, **arguments)
    assert store.rewards.read() == []


def test_a_stored_text_that_no_longer_has_its_hash_is_refused(store) -> None:
    record = register(store, NAIVE, reason="the start", actor="ann")
    changed = type(record)(**{**vars(record), "text": to_yaml(SOUND)})
    with pytest.raises(StoreError, match="was changed in the store"):
        stored_spec(changed)
