"""For TRL and every other trainer on transformers' ``Trainer``: stop, save, or change ``reward_weights``.

hook = PalomarCallback(Watch([DecisionFile("decision.json", run_id="demo")], candidates=["c12"]))
trainer = GRPOTrainer(..., callbacks=[hook])
hook.attach(trainer)       # only needed to change reward weights
trainer.train()
if hook.stopped is not None:
    sys.exit(f"stopped: {hook.stopped.sentence}")
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from palomar.trainer.hooks.decisions import Reading
from palomar.trainer.hooks.ranks import agreed
from palomar.trainer.hooks.watching import Watch
from palomar.trainer.hooks.weights import Weights, WeightsFile, placed

_LOG = logging.getLogger("palomar.hooks")


class PalomarCallback(TrainerCallback):  # type: ignore[misc]
    """Does after each update step what the watch says, on all ranks alike.

    ``name_of`` gives the id under which the checkpoint of a step is registered with Palomar: what is decided about it
    counts from then on. ``weights``: where weights are read; `attach` the trainer then. ``called``: what the trainer
    calls a term of the reward, where it has another name. ``cycle_of``: the cycle in which a step is; weights of a
    later cycle wait for it. Without, weights are taken as soon as they are read.

    transformers looks at the wish to stop after a step, so a training that is started though its candidate is blocked
    makes one update. The wish ends `train`; it raises nothing, so look at `stopped` before anything is shipped.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        name_of: Callable[[int], str] | None = None,
        weights: WeightsFile | None = None,
        called: Mapping[str, str] | None = None,
        cycle_of: Callable[[int], int] | None = None,
    ) -> None:
        self._watch = watch
        self._name_of = name_of
        self._weights = weights
        self._called = dict(called or {})
        self._cycle_of = cycle_of
        self._trainer: Any = None
        self._problem: str | None = None
        self.stopped: Reading | None = None
        """What it stopped for; None while it did not."""
        self.reward_version: str | None = None
        """Version of the reward whose weights are in use; None while they are those of the trainer's own config."""

    def attach(self, trainer: Any) -> None:
        """The trainer whose ``reward_weights`` are changed. Raises ValueError for one that has none."""
        if not hasattr(trainer, "reward_weights") or not hasattr(trainer, "reward_func_names"):
            raise ValueError(f"{type(trainer).__name__} has no reward_weights and reward_func_names to change")
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Looks before the first step."""
        if self._weights is not None and self._trainer is None:
            raise ValueError("weights are given, and no trainer: call attach(trainer) first")
        self.stopped = None
        self._act(state.global_step, control, saving=False)  # nothing was learnt yet that could be saved

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Looks after an update."""
        self._act(state.global_step, control, saving=True)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remembers what was saved."""
        if self._name_of is not None:
            self._watch.also(self._name_of(state.global_step))

    def _act(self, step: int, control: Any, *, saving: bool) -> None:
        deed = self._watch.look(step)
        if deed.save and saving:
            control.should_save = True
        if deed.stop:
            control.should_training_stop = True
            self.stopped = deed.reading
        if self._weights is not None:
            self._reweight(agreed(self._weights.read), step)

    def _reweight(self, found: Weights | str, step: int) -> None:
        if isinstance(found, Weights):
            if found.reward_version == self.reward_version:
                self._problem = None
                return
            if self._cycle_of is not None and self._cycle_of(step) < found.from_cycle:
                return
            now = self._trainer.reward_weights
            put = placed(found, self._trainer.reward_func_names, now.tolist(), self._called)
            if not isinstance(put, str):
                # A new tensor: what was computed with the old one keeps it.
                self._trainer.reward_weights = now.new_tensor(put)
                self.reward_version, self._problem = found.reward_version, None
                _LOG.warning("reward %s in use from step %d on: weights %s", found.reward_version, step, put)
                return
            found = put
        if found != self._problem:
            _LOG.warning("the reward weights stay as they are: %s", found)
        self._problem = found
