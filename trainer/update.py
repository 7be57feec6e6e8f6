"""One cycle's update of all weights: on-policy policy gradient with a clipped importance ratio.

For a token with log-probability l' now and l when it was sampled, and the advantage A of its interaction:

    loss = - mean over tokens of  min(rho A, clip(rho, 1 - c, 1 + c) A),   rho = exp(l' - l)
           + kl_coefficient * KL(policy || base) - entropy_coefficient * entropy

(the clipped surrogate of Schulman et al. 2017, "PPO", at sampling-time log-probabilities).
The mean runs over all sampled tokens of a step's samples together, so that an interaction weighs by the sum of its
tokens' gradients, which is the gradient of its log-probability. KL and entropy are exact sums over the vocabulary, in
nats a token. The samples are shuffled into ``steps`` parts, each used for one Adam step; gradients add up over
micro-batches of samples of like length.

Everything used is recorded, one row per sample offered (`SAMPLES`), also for those that were not trained on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from palomar.data.errors import StaleDataError
from palomar.data.observations import SAMPLES
from palomar.trainer.batch import Sample, TrainingBatch
from palomar.trainer.config import UpdateConfig
from palomar.trainer.hf import Accelerator, torch
from palomar.trainer.policy import Policy
from palomar.trainer.tensors import Tokens, log_softmax, micro_batches, target_logp, to_tensors

Tensor = torch.Tensor
UpdateStatus = Literal["updated", "empty", "all_excluded", "no_spread", "not_finite"]


@dataclass(frozen=True)
class UpdateReport:
    """What one update did. KLs are in nats an interaction; None = not measured."""

    status: UpdateStatus
    """``updated``, or why the weights are as they were."""
    offered: int
    trained: int
    not_trained: dict[str, int]
    """Samples that were not trained on, by reason."""
    tokens: int
    """Sampled tokens that were trained on."""
    steps: int
    policy_lag: dict[int, int]
    """Samples trained on, by policy lag in cycles."""
    reward_mean: float | None = None
    """Of the samples trained on."""
    loss: float | None = None
    entropy: float | None = None
    """Of the policy at the sampled tokens, nats a token, before each step."""
    gradient_norm: float | None = None
    """Before clipping, mean over steps."""
    clip_share: float | None = None
    """Share of tokens whose gradient the clip removed."""
    kl_sampler: float | None = None
    """KL(sampler || new policy) after the update, sampled at trained tokens (Schulman 2020, "k3": never negative)."""
    kl_base: float | None = None
    """KL(new policy || base) at the same tokens, exact over the vocabulary, after the update."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Updated:
    """Result of `update`."""

    report: UpdateReport
    samples: pa.Table
    """Schema `SAMPLES`, one row per sample offered, in the batch's order."""
    optimizer_state: dict[str, Tensor]
    """Adam's state, to be kept with the candidate and handed to the next update."""


@dataclass
class _Use:
    """What one trained sample met when it was used."""

    step: int
    ratio: float
    clipped: float
    kl_sampler: float


@dataclass
class _Learner:
    """The loss, and a record of what went into it, summed over the tokens of all steps."""

    model: Any
    base: Policy | None
    pad_id: int
    config: UpdateConfig
    uses: dict[str, _Use] = field(default_factory=dict)
    gradient_norms: list[float] = field(default_factory=list)
    loss_sum: float = 0.0
    entropy_sum: float = 0.0
    clipped: float = 0.0
    tokens: int = 0

    def loss(self, samples: Sequence[Sample], step: int) -> Tensor:
        """Sum of the loss over the sampled tokens of a micro-batch, to be divided by the tokens of the whole step."""
        device = next(self.model.parameters()).device
        tokens = to_tensors(samples, self.pad_id, device)
        logp = log_softmax(self.model, tokens)
        advantage = torch.tensor([sample.advantage for sample in samples], dtype=torch.float32, device=device)[:, None]
        change = _change(logp, tokens)  # (N, K)
        ratio = change.exp()
        low, high = 1 - self.config.clip, 1 + self.config.clip
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        entropy = -(logp.exp() * logp).sum(-1)  # (N, K)
        loss = -(surrogate * tokens.mask).sum()
        if self.config.entropy_coefficient:
            loss = loss - self.config.entropy_coefficient * (entropy * tokens.mask).sum()
        if self.config.kl_coefficient and self.base is not None:
            loss = loss + self.config.kl_coefficient * (_kl_to(self.base, tokens, logp) * tokens.mask).sum()

        with torch.no_grad():
            cut = (((ratio > high) & (advantage > 0)) | ((ratio < low) & (advantage < 0))) * tokens.mask
            counts = tokens.mask.sum(1)
            self.loss_sum += float(loss)
            self.entropy_sum += float((entropy * tokens.mask).sum())
            self.clipped += float(cut.sum())
            self.tokens += int(counts.sum())
            rows = zip(
                samples,
                ((ratio * tokens.mask).sum(1) / counts).tolist(),
                (cut.sum(1) / counts).tolist(),
                _k3(change).sum(1).tolist(),
                strict=True,
            )
            for sample, mean_ratio, share_cut, kl in rows:
                self.uses[sample.interaction_id] = _Use(step, mean_ratio, share_cut, kl)
        return loss


def update(
    policy: Policy,
    base: Policy | None,
    batch: TrainingBatch,
    config: UpdateConfig,
    *,
    seed: int,
    optimizer_state: dict[str, Tensor] | None = None,
) -> Updated:
    """Trains `policy` in place on `batch`; the same inputs and seed give the same weights.

    `base` is what KL is measured to; None = not measured (then ``kl_coefficient`` must be 0). A batch with nothing to
    learn from, or a gradient that is not finite, leaves the weights as they are and says so in the report's status.
    Raises StaleDataError where a sample to be trained on is older than the batch's lag, or from a later cycle.
    """
    _refuse_stale(batch)
    if base is None and config.kl_coefficient > 0:
        raise ValueError("kl_coefficient is set, but there is no base policy to stay close to")
    if batch.status != "ok":
        return Updated(_report(batch, batch.status), _table(batch, {}), optimizer_state or {})

    accelerator = Accelerator(cpu=policy.device.type == "cpu")
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=config.learning_rate, betas=config.betas)
    if optimizer_state:
        restore_optimizer(optimizer, policy.model, optimizer_state)
    before = {name: value.detach().clone() for name, value in policy.model.state_dict().items()}
    model, optimizer = accelerator.prepare(policy.model, optimizer)
    learner = _Learner(model, base, policy.pad_id, config)
    model.train()
    for step, part in enumerate(_parts(batch.trained, config.steps, seed)):
        optimizer.zero_grad()
        tokens = sum(sample.sampled_tokens for sample in part)
        for micro in micro_batches(part, config.micro_batch):
            accelerator.backward(learner.loss(micro, step) / tokens)
        norm = float(accelerator.clip_grad_norm_(model.parameters(), config.gradient_clip))
        if not math.isfinite(norm):
            policy.model.load_state_dict(before)
            policy.model.eval()
            return Updated(_report(batch, "not_finite"), _table(batch, {}), optimizer_state or {})
        learner.gradient_norms.append(norm)
        optimizer.step()
    policy.model.eval()
    measured = batch.trained[:: max(1, len(batch.trained) // config.report_samples)]
    distances = kl_distances(policy, base, measured, config.micro_batch)
    state = collect_optimizer(optimizer, policy.model)
    return Updated(_report(batch, "updated", learner, distances), _table(batch, learner.uses), state)


def _refuse_stale(batch: TrainingBatch) -> None:
    for sample in batch.trained:
        if sample.policy_lag is None or not 0 <= sample.policy_lag <= batch.max_lag:
            raise StaleDataError(
                f"cycle {batch.cycle}: {sample.interaction_id} was sampled in cycle {sample.sampled_cycle}; "
                f"at most {batch.max_lag} cycles back are trained on"
            )


def _parts(samples: Sequence[Sample], steps: int, seed: int) -> Iterator[list[Sample]]:
    """The samples, shuffled, in up to `steps` parts of nearly equal size."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
    for step in range(steps):
        part = [samples[index] for index in order[step::steps]]
        if part:
            yield part


def _change(logp: Tensor, tokens: Tokens) -> Tensor:
    """l' - l of each sampled token, 0 elsewhere: (N, K)."""
    return (target_logp(logp, tokens) - tokens.sampler_logp) * tokens.mask


def _kl_to(base: Policy, tokens: Tokens, logp: Tensor) -> Tensor:
    """KL(policy || base) at each of the K places, exact over the vocabulary: (N, K)."""
    with torch.no_grad():
        base_logp = log_softmax(base.model, tokens)
    return (logp.exp() * (logp - base_logp)).sum(-1)


def _k3(change: Tensor) -> Tensor:
    """KL(sampler || policy) of a sampled token from l' - l: exp(l' - l) - 1 - (l' - l)."""
    return torch.expm1(change) - change


@torch.no_grad()
def kl_distances(
    policy: Policy, base: Policy | None, samples: Sequence[Sample], micro_batch: int
) -> tuple[float, float | None]:
    """KL(sampler || policy), sampled, and KL(policy || base), exact, in nats an interaction, at the samples' tokens."""
    to_sampler, to_base = 0.0, 0.0
    for micro in micro_batches(samples, micro_batch):
        tokens = to_tensors(micro, policy.pad_id, policy.device)
        logp = log_softmax(policy.model, tokens)
        to_sampler += float(_k3(_change(logp, tokens)).sum())
        if base is not None:
            to_base += float((_kl_to(base, tokens, logp) * tokens.mask).sum())
    return to_sampler / len(samples), None if base is None else to_base / len(samples)


def _report(
    batch: TrainingBatch,
    status: UpdateStatus,
    learner: _Learner | None = None,
    distances: tuple[float, float | None] | None = None,
) -> UpdateReport:
    if learner is None or distances is None:
        reasons = Counter(sample.reason or f"update_{status}" for sample in batch.samples)
        return UpdateReport(status, len(batch.samples), 0, dict(sorted(reasons.items())), 0, 0, {})
    trained = batch.trained
    return UpdateReport(
        status=status,
        offered=len(batch.samples),
        trained=len(trained),
        not_trained=dict(sorted(Counter(str(s.reason) for s in batch.samples if s.weight == 0).items())),
        tokens=learner.tokens,
        steps=len(learner.gradient_norms),
        policy_lag=dict(sorted(Counter(s.policy_lag for s in trained if s.policy_lag is not None).items())),
        reward_mean=sum(s.reward for s in trained if s.reward is not None) / len(trained),
        loss=learner.loss_sum / learner.tokens,
        entropy=learner.entropy_sum / learner.tokens,
        gradient_norm=sum(learner.gradient_norms) / len(learner.gradient_norms),
        clip_share=learner.clipped / learner.tokens,
        kl_sampler=distances[0],
        kl_base=distances[1],
    )


def _table(batch: TrainingBatch, uses: dict[str, _Use]) -> pa.Table:
    rows = []
    for sample in batch.samples:
        use = uses.get(sample.interaction_id)
        rows.append(
            {
                "interaction_id": sample.interaction_id,
                "cycle": batch.cycle,
                "sampled_cycle": sample.sampled_cycle,
                "checkpoint": sample.checkpoint,
                "policy_lag": sample.policy_lag,
                "reward": sample.reward,
                "baseline": sample.baseline,
                "advantage": sample.advantage,
                "weight": sample.weight,
                "trained": use is not None,
                "reason": sample.reason,
                "step": use and use.step,
                "tokens": sample.sampled_tokens,
                "ratio": use and use.ratio,
                "clipped": use and use.clipped,
                "kl_sampler": use and use.kl_sampler,
            }
        )
    return pa.Table.from_pylist(rows, schema=SAMPLES)


def collect_optimizer(optimizer: Any, model: Any) -> dict[str, Tensor]:
    """Adam's state as named tensors (``<parameter>/<part>``), fit for safetensors."""
    state = optimizer.state_dict()["state"]
    names = [name for name, _ in model.named_parameters()]
    return {
        f"{name}/{part}": value.detach().cpu().contiguous()
        for index, name in enumerate(names)
        for part, value in state.get(index, {}).items()
    }


def restore_optimizer(optimizer: Any, model: Any, saved: dict[str, Tensor]) -> None:
    """Puts what `collect_optimizer` gave back. Raises KeyError where it is another model's."""
    state: dict[int, dict[str, Tensor]] = {}
    for index, (name, parameter) in enumerate(model.named_parameters()):
        parts = {part: saved[f"{name}/{part}"] for part in ("step", "exp_avg", "exp_avg_sq")}
        state[index] = {
            part: value.clone().to(parameter.device if part != "step" else "cpu") for part, value in parts.items()
        }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
