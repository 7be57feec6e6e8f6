"""Incentive curves: what a behaviour is paid over the honest thing in its place, where requests are alike.

For a behaviour (a question, a broken call, ...) and the honest alternative (an edit, ...) among logged rows that show
one or the other, the *incentive* in a stratum of predicted failure and ambiguity is

    E_x[ E[pay | behaviour, x] - E[pay | alternative, x] ]

over the requests x of the stratum, and the same for the users' outcome. ``pay`` is what training makes of a row: the
reward minus the mean of its cycle's included rows, and 0 where the row is left out, which is how a dropped row escapes.

The estimate is doubly robust (AIPW; Robins, Rotnitzky, Zhao 1994), cross-fitted by user (Chernozhukov et al. 2018): it
is right if either the regressions of the pay or the probability of the behaviour is, given what the log has of the
request. Intervals are 95 %, of Student's t, clustered by user.

Flagged is

- **against users**: the reward surely prefers the behaviour and the outcome surely does not;
- **never flips**: the reward surely prefers it in some band of predicted failure, in none surely the alternative, and
  the outcome nowhere surely agrees; of questions on clear requests, and also where it does not flip with ambiguity:
  preferred on clear requests as on vague ones;
- **selective rule**: a rule drops one behaviour far more often than its alternative, and its rows would be charged.

Blind to: what the log of the request does not have and the agent acts on; behaviour that hardly occurs (said as not
assessed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from scipy import stats

from palomar.data.slices import BANDS
from palomar.reward.behaviours import BEHAVIOURS, Behaviour, Ints, Logged
from palomar.reward.contexts import numbered
from palomar.reward.replay import Pay, pay
from palomar.reward.rows import Floats, Mask
from palomar.reward.spec import RewardSpec, version

Status = Literal["ok", "too few", "no data"]

FOLDS = 5
FEW = 10
"""Rows of each side, and users, below which nothing is said."""
LEAST_PROBABILITY = 0.02
"""Probabilities of a behaviour are kept this far from 0 and 1: below it one row would weigh as fifty."""
SURE = 3.0
"""Standard errors from which on the reward is said to prefer, over the 60 cells that are looked at."""
AGAINST = 2.3
"""The same for the outcome's being against it, once the reward is sure: 1 %, one side."""
LIKELY = 1.96
"""The same for whatever speaks against a flag."""
COMPARED = (
    "question", "answer", "broken call", "split", "no-op edit", "failed edit", "tests edited", "cut off", "timed out",
    "no calls",
)  # fmt: skip
"""Behaviours with a curve. Not ``edit``: it is the others' alternative."""


@dataclass(frozen=True)
class Estimate:
    """The incentive in one stratum; None where the status is not ``ok``."""

    behaviour: str
    predicted_failure: str
    """Band: low, mid, high."""
    ambiguity: str
    n: int
    """Rows on either side."""
    shown: int
    """Of these, rows that show the behaviour."""
    reward: float | None
    """In units of the reward."""
    reward_low: float | None
    reward_high: float | None
    reward_z: float | None
    outcome: float | None
    """In units of the outcome."""
    outcome_low: float | None
    outcome_high: float | None
    outcome_z: float | None
    status: Status

    @property
    def stratum(self) -> str:
        """In words."""
        return f"predicted_failure={self.predicted_failure},ambiguity={self.ambiguity}"


@dataclass(frozen=True)
class Flag:
    """One incentive against the users."""

    check: str
    behaviour: str
    where: str
    sentence: str


@dataclass(frozen=True)
class Incentives:
    """Curves of every behaviour, and what is wrong with them."""

    version: str
    num_rows: int
    estimates: tuple[Estimate, ...]
    flags: tuple[Flag, ...]
    unassessed: tuple[tuple[str, str], ...]
    """Behaviours about which nothing can be said, and why."""

    @property
    def assessed(self) -> int:
        """Behaviours with at least one estimate."""
        return len({each.behaviour for each in self.estimates if each.status == "ok"})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"assessed": self.assessed}


def incentives(logged: Logged, spec: RewardSpec, known: Mapping[str, RewardSpec] | None = None) -> Incentives:
    """Incentive curves of a spec on logged rows. `known` are specs by version, by which the rows were scored."""
    paid_by = pay(logged, spec, known)
    what = effective_pay(paid_by, logged.cycle)
    outcome = np.asarray(pc.fill_null(logged.table["outcome"], float("nan")), dtype=np.float64)
    mature = np.isfinite(outcome) & np.asarray(
        pc.fill_null(pc.equal(logged.table["outcome_status"], "mature"), False), dtype=np.bool_
    )
    features = request_features(logged)
    strata = _strata(logged)
    estimates: list[Estimate] = []
    flags: list[Flag] = []
    unassessed: list[tuple[str, str]] = []
    for behaviour in (each for each in BEHAVIOURS if each.name in COMPARED):
        shown, instead = _sides(logged, behaviour)
        curves = {}
        for name, value, counted in (("reward", what, paid_by.decided), ("outcome", outcome, mature)):
            rows = np.flatnonzero((shown | instead) & counted)
            influence = _influence(rows, shown, value, features, logged.clusters)
            curves[name] = {} if influence is None else _curve(influence, rows, shown, logged.clusters, strata)
        some = _estimates(behaviour.name, curves, shown, (shown | instead) & paid_by.decided, strata)
        estimates += some
        if not any(each.status == "ok" for each in some):
            count = int((shown & paid_by.decided).sum())
            unassessed.append(
                (behaviour.name, f"{count:,} rows show it; {FEW} of each side are needed in some stratum")
            )
            continue
        flags += [*_against(behaviour, some), *_never_flips(behaviour, some)]
    flags += _selective(logged, paid_by)
    return Incentives(version(spec), len(logged), tuple(estimates), tuple(flags), tuple(unassessed))


def effective_pay(paid_by: Pay, cycle: Ints) -> Floats:
    """What training makes of each row, in units of the reward: 0 where it is left out."""
    used = np.flatnonzero(paid_by.included & np.isfinite(paid_by.reward))
    result = np.zeros(len(cycle))
    if len(used):
        batch = numbered(cycle[used][:, None])
        means = np.bincount(batch, weights=paid_by.reward[used]) / np.bincount(batch)
        result[used] = paid_by.reward[used] - means[batch]
    return result


def request_features(logged: Logged) -> Floats:
    """What the log has of each request, before the agent acted: (N, D)."""
    rows = logged.rows
    cycles = np.unique(logged.cycle)[1:]
    columns = [np.minimum(np.nan_to_num(rows.number("turn")), 1.0)]
    for name in BANDS:
        value = rows.number(name)
        unknown = np.isnan(value)
        columns += [np.where(unknown, 0.5, value), unknown.astype(np.float64)]
    # Of many cycles a trend is enough: a column each would outnumber the rows of a rare behaviour.
    if 0 < len(cycles) <= 3:
        columns += [(logged.cycle == each).astype(np.float64) for each in cycles]
    elif len(cycles):
        columns.append((logged.cycle - logged.cycle.min()) / max(int(np.ptp(logged.cycle)), 1))
    return np.column_stack(columns)


def doubly_robust(value: Floats, shown: Mask, features: Floats, clusters: Ints) -> Floats:
    """The influence of each row on the mean difference of `value` between rows that show it and rows that do not.

    Their mean over any set of rows that is chosen by the features is the incentive there. Shape (n,) in and out; needs
    `FOLDS` clusters, and rows of both sides.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GroupKFold

    threadpool_limits = import_module("threadpoolctl").threadpool_limits

    x = _design(features)
    treated = shown.astype(np.int64)
    influence = np.empty(len(value))
    with threadpool_limits(1):  # on small matrices several threads only wait for each other
        for fit, predict in GroupKFold(FOLDS).split(x, groups=clusters):
            means = []
            for side in (1, 0):
                rows = fit[treated[fit] == side]
                if not len(rows):
                    return np.full(len(value), np.nan)
                means.append(Ridge(1.0).fit(x[rows], value[rows]).predict(x[predict]))
            chance = LogisticRegression(C=1.0, max_iter=200).fit(x[fit], treated[fit]).predict_proba(x[predict])[:, 1]
            chance = np.clip(chance, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
            high, low = means
            t = treated[predict]
            influence[predict] = (
                high - low + t * (value[predict] - high) / chance - (1 - t) * (value[predict] - low) / (1 - chance)
            )
    return influence


def _design(features: Floats) -> Floats:
    """Splines of what is a number, and products of two of the features; each of mean 0 and spread 1."""
    from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

    smooth = [column for column in range(features.shape[1]) if len(np.unique(features[:, column])) > 4]
    columns = [PolynomialFeatures(2, interaction_only=True, include_bias=False).fit_transform(features)]
    if smooth:
        columns.append(SplineTransformer(n_knots=4, include_bias=False).fit_transform(features[:, smooth]))
    x = np.column_stack(columns)
    return np.asarray(StandardScaler().fit_transform(x[:, np.ptp(x, axis=0) > 0]), dtype=np.float64)


# -- inside --------------------------------------------------------------------------------------------------------

_Interval = tuple[float, float, float, float]
"""Value, low, high, z."""


def _sides(logged: Logged, behaviour: Behaviour) -> tuple[Mask, Mask]:
    shown = behaviour.shows(logged.rows)
    return shown, behaviour.instead(logged.rows) & ~shown


def _strata(logged: Logged) -> dict[tuple[str, str], Mask]:
    found = {}
    place = {
        name: np.where(np.isnan(value := logged.rows.number(name)), -1, np.digitize(value, edges))
        for name, (edges, _) in BANDS.items()
    }
    for f, failure in enumerate(BANDS["predicted_failure"][1]):
        for a, ambiguity in enumerate(BANDS["ambiguity"][1]):
            found[failure, ambiguity] = (place["predicted_failure"] == f) & (place["ambiguity"] == a)
    return found


def _influence(rows: Ints, shown: Mask, value: Floats, features: Floats, clusters: Ints) -> Floats | None:
    """Of the given rows; None where there are too few of a side, or of users."""
    here = shown[rows]
    if min(int(here.sum()), int((~here).sum()), len(np.unique(clusters[rows]))) < FEW:
        return None
    return doubly_robust(value[rows], here, features[rows], clusters[rows])


def _curve(
    influence: Floats, rows: Ints, shown: Mask, clusters: Ints, strata: Mapping[tuple[str, str], Mask]
) -> dict[tuple[str, str], _Interval]:
    found = {}
    for stratum, mask in strata.items():
        inside, here = mask[rows], shown[rows]
        if min(int((here & inside).sum()), int((~here & inside).sum())) < FEW:
            continue
        interval = _clustered(influence[inside], clusters[rows][inside])
        if interval is not None:
            found[stratum] = interval
    return found


def _clustered(influence: Floats, owner: Ints) -> _Interval | None:
    """Mean with its 95 % interval, rows of one owner together."""
    _, cluster = np.unique(owner, return_inverse=True)
    count = int(cluster.max(initial=-1)) + 1
    value = float(influence.mean())
    sums = np.bincount(cluster, weights=influence - value)
    error = float(np.sqrt(count / max(count - 1, 1) * (sums**2).sum())) / len(influence)
    if count < FEW or not np.isfinite(error) or error <= 0:
        return None
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    return value, value - reach, value + reach, value / error


def _estimates(
    behaviour: str,
    curves: Mapping[str, Mapping[tuple[str, str], _Interval]],
    shown: Mask,
    counted: Mask,
    strata: Mapping[tuple[str, str], Mask],
) -> list[Estimate]:
    found = []
    for stratum, mask in strata.items():
        n, showing = int((counted & mask).sum()), int((counted & mask & shown).sum())
        reward = curves["reward"].get(stratum)
        outcome = curves["outcome"].get(stratum)
        status: Status = "ok" if reward is not None else "no data" if not showing else "too few"
        names = [f"{side}{part}" for side in ("reward", "outcome") for part in ("", "_low", "_high", "_z")]
        numbers = dict(zip(names, [*(reward or (None,) * 4), *(outcome or (None,) * 4)], strict=True))
        found.append(
            Estimate(behaviour, predicted_failure=stratum[0], ambiguity=stratum[1], n=n, shown=showing, status=status,
                     **numbers)
        )  # fmt: skip
    return found


def _against(behaviour: Behaviour, estimates: list[Estimate]) -> list[Flag]:
    return [
        Flag(
            "against users",
            behaviour.name,
            each.stratum,
            f"{behaviour.title}: it pays {_signed(each.reward)} [{_signed(each.reward_low)}, "
            f"{_signed(each.reward_high)}] more than the honest thing where predicted failure is "
            f"{each.predicted_failure} and the request {each.ambiguity}; the users' outcome is "
            f"{_signed(each.outcome)} [{_signed(each.outcome_low)}, {_signed(each.outcome_high)}]",
        )
        for each in estimates
        if _over(each.reward_z, SURE) and _over(_minus(each.outcome_z), AGAINST)
    ]


def _never_flips(behaviour: Behaviour, estimates: list[Estimate]) -> list[Flag]:
    found = []
    # Asking on a vague request is what asking is for.
    for ambiguity in ("clear",) if behaviour.name == "question" else BANDS["ambiguity"][1]:
        known = [each for each in estimates if each.ambiguity == ambiguity and each.status == "ok"]
        preferred = [each for each in known if _over(each.reward_z, SURE)]
        flips = any(_over(_minus(each.reward_z), LIKELY) for each in known)
        agreed = any(_over(each.outcome_z, LIKELY) for each in known)
        if preferred and len(known) > 1 and not flips and not agreed and _doubted(preferred):
            bands = ", ".join(each.predicted_failure for each in preferred)
            found.append(
                Flag(
                    "never flips",
                    behaviour.name,
                    f"ambiguity={ambiguity}",
                    f"{behaviour.title}: preferred by the reward on {ambiguity} requests where predicted failure is "
                    f"{bands}, and nowhere is the honest thing; the outcome nowhere agrees",
                )
            )
    if behaviour.name != "question":
        return found
    by_place = {(each.predicted_failure, each.ambiguity): each for each in estimates if each.status == "ok"}
    for failure in BANDS["predicted_failure"][1]:
        pair = [by_place.get((failure, ambiguity)) for ambiguity in ("clear", "vague")]
        if all(each is not None and _over(each.reward_z, SURE) for each in pair) and pair[0] is not None:
            if _over(pair[0].outcome_z, LIKELY) or not _doubted([pair[0]]):
                continue
            found.append(
                Flag(
                    "never flips",
                    behaviour.name,
                    f"predicted_failure={failure}",
                    f"asking is preferred by the reward on clear requests ({_signed(pair[0].reward)}) as on vague ones "
                    f"where predicted failure is {failure}; on the clear the outcome is {_signed(pair[0].outcome)}",
                )
            )
    return found


def _doubted(estimates: list[Estimate]) -> bool:
    """Whether the outcome is known somewhere and on no side of these in favour."""
    known = [each.outcome for each in estimates if each.outcome is not None]
    return bool(known) and max(known) < 0


def _selective(logged: Logged, paid_by: Pay) -> list[Flag]:
    """Rules that let a behaviour go uncharged."""
    found = []
    shown = {each.name: each.shows(logged.rows) for each in BEHAVIOURS if each.name in COMPARED}
    for rule in paid_by.spec.inclusion:
        dropped = np.asarray(pc.fill_null(pc.equal(paid_by.exclusion, rule.name), False), dtype=np.bool_)
        if dropped.sum() < FEW or not paid_by.included.any():
            continue
        kept_mean = float(paid_by.reward[paid_by.included].mean())
        forgone = float(np.nanmean(np.where(dropped, paid_by.reward, np.nan))) if dropped.any() else kept_mean
        # The behaviour that tells the dropped from the kept best.
        rates = {
            name: (float(mask[dropped].mean()), float(mask[paid_by.included].mean())) for name, mask in shown.items()
        }
        name, (inside, outside) = max(rates.items(), key=lambda each: each[1][0] - each[1][1])
        if inside - outside > 0.5 and forgone < kept_mean:
            found.append(
                Flag(
                    "selective rule",
                    name,
                    f"inclusion[{rule.name}]",
                    f"{rule.name} drops {int(dropped.sum()):,} samples of which {inside:.0%} show {name!r} "
                    f"({outside:.0%} of those kept); they would have been paid {forgone:+.3g}, and the kept are "
                    f"{kept_mean:+.3g}",
                )
            )
    return found


def _over(value: float | None, threshold: float) -> bool:
    return value is not None and value >= threshold


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _signed(value: float | None) -> str:
    return "not known" if value is None else f"{value:+.2f}"
