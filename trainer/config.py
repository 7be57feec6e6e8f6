"""Settings of the trainer, apart from the code they steer: reading them loads neither torch nor transformers.

Values are checked where they are given; an unknown key or a value out of range is an error, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid")

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]

Baseline = Literal["batch", "group", "context"]


@dataclass(frozen=True, config=_STRICT)
class PolicyConfig:
    """Where and how the policy runs."""

    max_new_tokens: AtLeastOne = 48
    """Longest answer, in tokens; a longer one is cut."""
    sampling_batch: AtLeastOne = 512
    """Prompts decoded at once."""
    device: Literal["auto", "cpu"] = "auto"
    """``auto``: the accelerator that `accelerate` finds, else the CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in memory."""
    threads: AtLeastOne = 1
    """OpenMP threads of this process. Two on a loaded two-core machine cost 20x in a trial (they spin)."""


@dataclass(frozen=True, config=_STRICT)
class AdvantageConfig:
    """How rewards become advantages; see ``palomar.trainer.advantages``."""

    baseline: Baseline = "batch"
    """What is subtracted from a reward: the mean of the batch, of its group, or of its context."""
    scale: bool = True
    """Divide by the standard deviation over the batch, so that the step does not depend on the reward's unit."""
    context_edges: tuple[Share, ...] = (1 / 3, 2 / 3)
    """Edges, on both predicted failure and ambiguity, of the strata of the ``context`` baseline."""
    max_lag: Annotated[int, Field(ge=0)] = 1
    """Oldest policy, in cycles back, whose samples are still trained on. 1 lets late feedback in."""


@dataclass(frozen=True, config=_STRICT)
class UpdateConfig:
    """One cycle's policy-gradient update; see ``palomar.trainer.update``."""

    learning_rate: Positive = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.95)
    """Adam's decay of the mean and of the mean square of the gradient."""
    steps: Annotated[int, Field(ge=1, le=4)] = 4
    """Optimiser steps a cycle; each sample is used in one of them. Beyond 4 the clip suppresses rare good tokens."""
    clip: Share = 0.2
    """Importance ratios count up to 1 +- this."""
    kl_coefficient: NotNegative = 0.0
    """Weight of KL(policy || base), in nats a token."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy, in nats a token."""
    gradient_clip: Positive = 1.0
    """Largest norm of the gradient."""
    micro_batch: AtLeastOne = 64
    """Samples in memory at once; gradients add up over micro-batches."""
    report_samples: AtLeastOne = 256
    """Samples on which the distance to base and sampler is measured after the update."""


@dataclass(frozen=True, config=_STRICT)
class CloneConfig:
    """How the base policy is cloned; see ``palomar.trainer.clone``."""

    demonstrations: AtLeastOne = 12_000
    epochs: AtLeastOne = 4
    batch: AtLeastOne = 128
    learning_rate: Positive = 3e-3


@dataclass(frozen=True, config=_STRICT)
class GateConfig:
    """When `palomar.trainer.gate.EvaluationGate` lets a candidate through."""

    alpha: Share = 0.002
    """Chance to block a candidate that is no worse than the champion, over all suites and metrics together: one wrong
    block in twenty runs of 24 cycles."""
    min_tasks: AtLeastOne = 50
    """Tasks that must have been measured on both sides; with fewer a comparison says nothing."""
    metrics: tuple[str, ...] = ("solved",)
    """Metrics of the suites that must not get worse."""


@dataclass(frozen=True, config=_STRICT)
class EvaluationConfig:
    """What a candidate and its champion are measured on before the gate decides."""

    suites: tuple[str, ...] = ("held-out-tasks",)
    """Names of suites in ``trainer/suites/``."""
    tasks: AtLeastOne = 256
    """Tasks of each suite; the same ones for all checkpoints of a run."""


@dataclass(frozen=True, config=_STRICT)
class ResponseConfig:
    """What the loop may do about a reward hack without a person; see ``palomar.trainer.response``."""

    mode: Literal["observe", "propose", "apply"] = "observe"
    """``observe``: nothing. ``propose``: a candidate that a hack taught is blocked, and patches are proposed.
    ``apply``: the best patch within what follows is in force from the next cycle on, and taken back where it made
    things worse."""
    from_cycle: Annotated[int, Field(ge=0)] = 0
    """First cycle after which anything is done."""
    errors: Positive = 3.0
    """Standard errors by which a patch must turn a pressure round."""
    largest_change: Positive = 1.0
    """Largest change of the advantages by a patch, as a share of their size."""
    largest_weight_change: Positive = 3.0
    """Largest relative change of a weight: 3 = up to 4 times what it is, or what the library gives a new term."""
    most_hurt: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Largest share of the interactions with a good outcome that may be pushed no more."""
    terms: tuple[str, ...] | None = None
    """Names of terms and rules that a patch may change, add or take away; none given: all."""
    cool_down: Annotated[int, Field(ge=0)] = 2
    """Cycles that a new reward is trained on before the next patch."""
    most_patches: AtLeastOne = 4
    """Patches within ``window`` cycles."""
    window: AtLeastOne = 12
    """Cycles over which patches are counted, and in which a patch that made things worse is taken back."""
