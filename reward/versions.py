"""Reward versions: immutable specs with a hash, a parent, a reason and an actor, and since when a run uses each.

A version is written once and never changed; to change a reward is to write another version with this one as its
parent. Samples keep the version they were paid under.
"""

from __future__ import annotations

from functools import lru_cache

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import RewardVersion
from palomar.reward.spec import RewardSpec, parse_spec, to_yaml, version


def register(
    store: Store, spec: RewardSpec, *, reason: str, actor: str, parent: str | None = None, text: str | None = None
) -> RewardVersion:
    """The stored version of `spec`, written if its hash is new; else the one that is there, as it was first written.

    `text` is the YAML as its author wrote it, comments and all; without it the spec is written out.
    Raises StoreError where `text` is another spec, where `parent` is not in the store, or without reason and actor.
    """
    name = version(spec)
    where = f"reward version {name}"
    if not reason.strip() or not actor.strip():
        raise StoreError(where, "needs a reason and an actor, for those who ask later why the reward was changed")
    if text is None:
        text = to_yaml(spec)
    elif (written := version(parse_spec(text))) != name:
        raise StoreError(where, f"the text to be kept for it says something else ({written})")
    if parent == name:
        raise StoreError(where, "cannot be its own parent: nothing was changed")
    return store.rewards.add(name, text=text, parent=parent, reason=reason, actor=actor)


def stored_spec(record: RewardVersion) -> RewardSpec:
    """The spec of a stored version. Raises StoreError where its text no longer has its hash."""
    return _checked_spec(record.version, record.text)


@lru_cache(maxsize=64)
def _checked_spec(name: str, text: str) -> RewardSpec:
    spec = parse_spec(text, source=f"reward version {name}")
    if (found := version(spec)) != name:
        raise StoreError(f"reward version {name}", f"was changed in the store: its text is now {found}")
    return spec


def effective(store: Store, run_id: str, cycle: int) -> RewardSpec:
    """The spec by which a run pays the samples of `cycle`. Raises StoreError where none was scheduled by then."""
    record = store.rewards.effective(run_id, cycle)
    if record is None:
        raise StoreError(f"run {run_id!r}", f"has no reward for cycle {cycle}")
    return stored_spec(record)
