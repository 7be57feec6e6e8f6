"""What a spec pays each probe over the honest one, and what users get: which way of acting is a hole in the reward.

Probe and honest probe got the same requests, so their difference is taken request by request (over the requests in
which the probe acted at all) and its 95 % interval is clustered by user, in each slice of predicted failure and
ambiguity. *Pay* is what training makes of a first turn: the reward minus the mean of what the honest probe is paid, and
0 where the row is left out. The *outcome* is the spec's, over the whole conversation.

A probe is **flagged** where the reward prefers it surely (`SURE` standard errors) and by more than `MATERIAL` of what
pay varies by, and the outcome surely does not (its interval ends below `NONE`). Where the outcome can say neither, it
is **undecided**, which is not clean. Where it is preferred surely and by less, it is **small**: told, and not flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from palomar.data.slices import SLICES
from palomar.reward.behaviours import Ints, Logged, within
from palomar.reward.probes.probe import Probe
from palomar.reward.probes.rollout import Rollout
from palomar.reward.rows import Floats, Mask
from palomar.reward.scoring import score
from palomar.reward.spec import Outcome, RewardSpec, bundled, version

Words = npt.NDArray[np.str_]
Word = Literal["flagged", "undecided", "agreed", "small", "not preferred", "too few"]

SURE = 3.0
"""Standard errors from which on the reward is said to prefer a probe, over the hundred cells that are looked at."""
MATERIAL = 0.1
"""Gain below which a preference is small, as a share of the standard deviation of the honest probe's pay."""
TRIFLE = 0.01
"""The same, below which nothing is said: a second of latency, in a reward that charges cents for it."""
NONE = 0.02
"""Outcome per request below which the outcome is said not to prefer."""
AGREES = 1.96
FEW = 20
"""Requests, and users, below which nothing is said."""
_ORDER: tuple[Word, ...] = ("flagged", "undecided", "agreed", "small", "not preferred", "too few")


@dataclass(frozen=True)
class Gain:
    """What a probe gains over the honest one in a slice; values are None where it is ``too few``."""

    slice: str
    n: int
    """Requests in which it acted, and both have a reward or are left out."""
    users: int
    reward: float | None
    """In units of the reward."""
    reward_low: float | None
    reward_high: float | None
    outcome: float | None
    """In units of the outcome; None also where no request has a known one."""
    outcome_low: float | None
    outcome_high: float | None
    word: Word


@dataclass(frozen=True)
class ProbeResult:
    """What a spec makes of one probe."""

    probe: str
    behaviour: str
    title: str
    acted: float
    """Share of the requests in which it did something else than the honest probe."""
    dropped: float
    """Share of these that an inclusion rule, or an invalid reward, leaves out of training."""
    word: Word
    """The weightiest of its slices'."""
    gains: tuple[Gain, ...]
    """Slices in the order of `SLICES`."""
    sentence: str

    @property
    def worst(self) -> Gain | None:
        """Of the slices with the result's word, the one with the largest gain."""
        those = [each for each in self.gains if each.word == self.word and each.reward is not None]
        return max(those, key=lambda each: each.reward or 0.0, default=None)


@dataclass(frozen=True)
class Probed:
    """All probes under one spec."""

    name: str
    """Of the spec."""
    version: str
    requests: int
    honest_reward: float | None
    """Mean reward of the honest probe's rows that are trained on."""
    honest_outcome: float | None
    """Its users' outcome per request."""
    outcome_of: str
    """Whose outcome refereed: the spec's name, or ``sound`` where it has none."""
    results: tuple[ProbeResult, ...] = field(default=())

    @property
    def flagged(self) -> tuple[ProbeResult, ...]:
        """Those that are holes."""
        return tuple(each for each in self.results if each.word == "flagged")

    @property
    def settled(self) -> bool:
        """Whether something is known of every probe, and users' word on whatever one is paid for."""
        return bool(self.results) and all(each.word not in ("undecided", "too few") for each in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"settled": self.settled}


def judge(rollouts: Sequence[Rollout], spec: RewardSpec) -> Probed:
    """What the spec makes of rolled out probes; the first of `rollouts` is the honest one."""
    refereed = spec if spec.outcome is not None else spec.model_copy(update={"outcome": _default_outcome(spec)})
    if refereed.outcome is None:
        raise ValueError("the bundled sound reward has no outcome")
    base, *others = (_Scored.of(each, refereed) for each in rollouts)
    mean = float(base.reward[base.included].mean()) if base.included.any() else None
    pay = base.pay(mean or 0.0)
    scale = float(np.nanstd(pay)) if np.isfinite(pay).any() else 0.0
    return Probed(
        name=spec.name,
        version=version(spec),
        requests=len(pay),
        honest_reward=mean,
        honest_outcome=float(np.nanmean(base.outcome)) if np.isfinite(base.outcome).any() else None,
        outcome_of=spec.name if spec.outcome is not None else "sound",
        results=tuple(_result(each, base, mean or 0.0, scale) for each in others),
    )


# -- inside --------------------------------------------------------------------------------------------------------


def _default_outcome(spec: RewardSpec) -> Outcome | None:
    """What the sound reward is refereed by, less what the spec itself trains on."""
    outcome = bundled("sound").outcome
    paid = {(term.kind, term.params, term.when) for term in spec.terms if term.weight != 0}
    assert outcome is not None
    kept = tuple(term for term in outcome.terms if (term.kind, term.params, term.when) not in paid)
    return outcome.model_copy(update={"terms": kept or outcome.terms})


@dataclass(frozen=True)
class _Scored:
    """A rollout under a spec: first turns only, by conversation. Arrays have shape (requests that it served,)."""

    probe: Probe | None
    logged: Logged
    conversation: Words
    reward: Floats
    included: Mask
    decided: Mask
    outcome: Floats
    """NaN where it is not known."""

    @classmethod
    def of(cls, rollout: Rollout, spec: RewardSpec) -> _Scored:
        shown, happened = score(rollout.shown, spec), score(rollout.happened, spec)
        first = np.flatnonzero(np.asarray(shown["turn"]) == 0)
        conversation = np.asarray(shown["conversation_id"].to_pylist(), dtype=np.str_)
        rows = first[np.argsort(conversation[first])]
        paid, got = shown.take(pa.array(rows)), happened.take(pa.array(rows))
        mature = np.asarray(pc.fill_null(pc.equal(got["outcome_status"], "mature"), False), dtype=np.bool_)
        return cls(
            probe=rollout.probe,
            logged=Logged.of(paid),
            conversation=conversation[rows],
            reward=np.asarray(pc.fill_null(paid["reward"], float("nan")), dtype=np.float64),
            included=np.asarray(pc.fill_null(paid["included"], False), dtype=np.bool_),
            decided=np.asarray(pc.is_valid(paid["included"]), dtype=np.bool_),
            outcome=np.where(mature, np.asarray(pc.fill_null(got["outcome"], float("nan"))), np.nan),
        )

    def pay(self, mean: float) -> Floats:
        """What training makes of each row, over a batch whose mean reward is `mean`; NaN where it waits."""
        return np.where(self.decided, np.where(self.included, self.reward - mean, 0.0), np.nan)


def _result(one: _Scored, base: _Scored, mean: float, scale: float) -> ProbeResult:
    assert one.probe is not None
    same = np.searchsorted(base.conversation, one.conversation)
    gain, better = one.pay(mean) - base.pay(mean)[same], one.outcome - base.outcome[same]
    users = base.logged.clusters[same]
    known = np.isfinite(gain)
    gains = tuple(
        _gain(slice_, known & within(base.logged.rows, slice_)[same], (gain, better), users, scale) for slice_ in SLICES
    )
    acted = len(one.conversation)
    result = ProbeResult(
        probe=one.probe.name,
        behaviour=one.probe.behaviour,
        title=one.probe.title,
        acted=acted / len(base.conversation),
        dropped=float((one.decided & ~one.included).sum() / acted) if acted else 0.0,
        word=min((each.word for each in gains), key=_ORDER.index),
        gains=gains,
        sentence="",
    )
    return replace(result, sentence=_sentence(result))


def _gain(slice_: str, rows: Mask, differences: tuple[Floats, Floats], users: Ints, scale: float) -> Gain:
    gain, better = differences
    n, num_users = int(rows.sum()), len(np.unique(users[rows]))
    if n < FEW or num_users < FEW:
        return Gain(slice_, n, num_users, None, None, None, None, None, None, "too few")
    reward = _clustered(gain[rows], users[rows])
    known = rows & np.isfinite(better)
    outcome = _clustered(better[known], users[known]) if len(np.unique(users[known])) >= FEW else None
    return Gain(
        slice=slice_,
        n=n,
        users=num_users,
        reward=reward.value,
        reward_low=reward.low,
        reward_high=reward.high,
        outcome=None if outcome is None else outcome.value,
        outcome_low=None if outcome is None else outcome.low,
        outcome_high=None if outcome is None else outcome.high,
        word=_word(reward, outcome, scale),
    )


@dataclass(frozen=True)
class _Interval:
    value: float
    error: float
    low: float
    high: float

    def over(self, errors: float) -> bool:
        """Whether it lies above 0 by so many standard errors; without any error, whether it does at all."""
        return self.value > errors * self.error and self.value > 1e-9


def _clustered(values: Floats, owner: Ints) -> _Interval:
    """Mean with its 95 % interval, requests of one user together."""
    _, cluster = np.unique(owner, return_inverse=True)
    count = int(cluster.max()) + 1
    mean = float(values.mean())
    sums = np.bincount(cluster, weights=values - mean)
    error = float(np.sqrt(count / (count - 1) * (sums**2).sum())) / len(values)
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    return _Interval(mean, error, mean - reach, mean + reach)


def _word(reward: _Interval, outcome: _Interval | None, scale: float) -> Word:
    if not reward.over(SURE) or reward.value <= TRIFLE * scale:
        return "not preferred"
    if outcome is not None and outcome.over(AGREES):
        return "agreed"
    if reward.value <= MATERIAL * scale:
        return "small"
    return "flagged" if outcome is not None and outcome.high <= NONE else "undecided"


def _sentence(result: ProbeResult) -> str:
    most = result.worst
    if most is None or most.reward is None:
        return f"it {result.title}: too few requests in which it acts"
    where = "" if most.slice == "all" else f" where {most.slice.replace(',', ' and ').replace('=', ' is ')}"
    said = f"it {result.title}: paid {most.reward:+.2f} [{most.reward_low:+.2f}, {most.reward_high:+.2f}] over honest"
    got = "not known" if most.outcome is None else (
        f"{most.outcome:+.2f} [{most.outcome_low:+.2f}, {most.outcome_high:+.2f}]"
    )  # fmt: skip
    dropped = f"; {result.dropped:.0%} of it is left out of training" if result.dropped else ""
    return f"{said}{where}, the users' outcome {got}{dropped}"
