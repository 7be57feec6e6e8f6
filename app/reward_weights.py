"""The weights of the reward in force, as trainers poll them (`palomar.trainer.hooks.weights`)."""

from __future__ import annotations

from typing import Any

from palomar.app.patching import in_force
from palomar.data.store import Store
from palomar.data.store.records import Run
from palomar.reward.versions import stored_spec
from palomar.trainer.hooks.weights import WEIGHTS_FORMAT


def plain_weights(store: Store, run: Run) -> dict[str, Any]:
    """The file's content: the reward that the next cycle is paid by, and since which cycle. StoreError without one."""
    record, cycle = in_force(store, run)
    since = max(each.from_cycle for each in store.rewards.scheduled(run.run_id) if each.from_cycle <= cycle)
    return {
        "format": WEIGHTS_FORMAT,
        "run_id": run.run_id,
        "from_cycle": since,
        "reward_version": record.version,
        "weights": {term.name: term.weight for term in stored_spec(record).terms},
    }
