"""For verl: ends a training, or waits for the gate, when a checkpoint was saved.

    python -m verl.trainer.main_ppo ... trainer.save_freq=20 \\
      trainer.checkpoint_callback_class=palomar.trainer.hooks.verl.PalomarCheckpointCallback \\
      +palomar.decision_file=/shared/decision.json +palomar.run_id=demo +palomar.candidate=c12

verl calls it on its driver only, after each save, so nothing has to be agreed between ranks. It sees nothing between
two saves: ``trainer.save_freq`` is how often it looks.
"""

from __future__ import annotations

import logging
import os
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from palomar.trainer.hooks.decisions import DAY_S, DecisionApi, DecisionFile, Reading, Source
from palomar.trainer.hooks.watching import Action, Actions, Watch

_LOG = logging.getLogger("palomar.hooks")
TOKEN = "PALOMAR_TOKEN"
"""Environment variable with the API's token: verl writes its config to logs and trackers."""


class StoppedByGateError(RuntimeError):
    """Raised where ``end`` is ``raise``; verl lets it end the training."""


@dataclass(frozen=True)
class Options:
    """The config's node ``palomar``."""

    run_id: str
    candidate: str
    """Id of the checkpoint that the training starts from."""
    decision_file: str | None = None
    api_url: str | None = None
    """Asked where the file knows nothing; its token is in the environment variable `TOKEN`."""
    candidate_format: str | None = None
    """Id of a saved checkpoint, ``{step}`` in it: ``c12-{step}``. Without, saved ones are not asked about."""
    max_age_s: float = DAY_S
    wait_s: float = 0.0
    """After a save: how long to wait for what the gate decides of it. Needs ``candidate_format``."""
    poll_s: float = 10.0
    on_block: Action = "stop"
    on_hold: Action = "go_on"
    on_promote: Action = "go_on"
    end: Literal["steps", "raise"] = "steps"
    """``steps``: the step under way is the last one, and verl ends as it does then; ``raise``: `StoppedByGateError`."""

    def __post_init__(self) -> None:
        if self.decision_file is None and self.api_url is None:
            raise ValueError("palomar: give decision_file or api_url")
        if self.wait_s and self.candidate_format is None:
            raise ValueError("palomar.wait_s needs palomar.candidate_format: there is nothing to wait for")
        if self.candidate_format is not None and "{step}" not in self.candidate_format:
            raise ValueError("palomar.candidate_format: expected {step} in it")
        if self.end not in ("steps", "raise"):
            raise ValueError("palomar.end: expected steps or raise")


class PalomarCheckpointCallback(CheckpointCallback):  # type: ignore[misc]
    """Does after each save what the gate's decisions ask for; the checkpoint is written already."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config=config)
        self._options = options = _options(config)
        sources: list[Source] = []
        if options.decision_file is not None:
            sources.append(DecisionFile(options.decision_file, options.run_id, max_age_s=options.max_age_s))
        if options.api_url is not None:
            token = os.environ.get(TOKEN)
            if not token:
                raise ValueError(f"palomar.api_url needs a token in the environment variable {TOKEN}")
            sources.append(DecisionApi(options.api_url, token, options.run_id, max_age_s=options.max_age_s))
        actions = Actions(options.on_block, options.on_hold, options.on_promote)
        self._watch = Watch(sources, [options.candidate], actions)
        self.stopped: Reading | None = None

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """Looks, and ends the training where that is what to do. (``save`` is done already.)"""
        options = self._options
        if options.candidate_format is not None:
            candidate = options.candidate_format.replace("{step}", str(global_step))
            self._watch.also(candidate)
            # A checkpoint that is still being written cannot be judged yet: do not wait for it.
            if options.wait_s and not async_save:
                self._watch.wait(candidate, timeout_s=options.wait_s, poll_s=options.poll_s)
        deed = self._watch.look(global_step)
        if not deed.stop:
            return
        self.stopped = deed.reading
        said = f"{deed.reading.word} of {deed.reading.candidate}: {deed.reading.sentence}"
        if options.end == "raise":
            raise StoppedByGateError(said)
        # The loop goes on while global_steps <= total_training_steps.
        trainer.total_training_steps = global_step
        _LOG.warning("step %d is the last one: %s", global_step, said)


def _options(config: Any) -> Options:
    node = None if config is None else config.get("palomar")
    if node is None:
        raise ValueError("the config has no node palomar: +palomar.run_id=... +palomar.candidate=...")
    given = {str(key): node[key] for key in node}
    known = {field.name: field for field in fields(Options)}
    if wrong := [key for key in given if key not in known]:
        raise ValueError(f"palomar: unknown {', '.join(wrong)}; there are {', '.join(known)}")
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in given]:
        raise ValueError(f"palomar: {', '.join(missing)} must be given")
    return Options(**given)
