"""Do confidence sequences hold while one looks all the time, how often equal arms alarm, and how many users it takes.

Coverage and false alarms are counted over simulated experiments that are looked at after every few users up to twice
the planned size (or, where users come back, after every cycle); an interval that ever leaves out the truth is a miss.
The last part takes the real path: made-up users in a lake, `palomar.detectors.arms.report` at every look.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import optimize, stats

from palomar.app.bench import Measure
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.detectors import confidence
from palomar.detectors.arms import report
from palomar.detectors.experiment import Plan
from palomar.detectors.sample_ratio import e_value

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

SEED = 11
ALPHA = 0.05
PLANNED = 1000
"""Users of both arms together for which the intervals are tuned."""
FLOOR = 50
"""Users of each arm before the first look: `Plan.min_units`."""
SHARES: dict[str, tuple[float, Draw]] = {
    "share of 80 %": (0.8, lambda rng, shape: (rng.random(shape) < 0.8).astype(np.float64)),
    "share of 10 %": (0.1, lambda rng, shape: (rng.random(shape) < 0.1).astype(np.float64)),
    "share of 2 %": (0.02, lambda rng, shape: (rng.random(shape) < 0.02).astype(np.float64)),
    "log-normal, sd of the log 0.8": (
        float(np.exp(0.32)),
        lambda rng, shape: rng.lognormal(0.0, 0.8, shape),
    ),
}
"""What one user's value may be, with its mean."""
EFFECTS = (
    ("edit persistence, 80 % and 2.28 % more", 0.8 * 0.2, 0.8 * 0.0228, 7_500, 18_000),
    ("dissatisfied follow-ups, 10 % and 3.13 % fewer", 0.1 * 0.9, 0.1 * 0.0313, 144_000, 346_000),
    ("log latency, sd 0.8 and 10.3 % less", 0.8**2, -float(np.log(1 - 0.103)), 850, 2_040),
)
"""Words, variance of a user's value, effect, and what GATE's size check has: users an arm, at one look and always."""


def measure(quick: bool) -> list[Measure]:
    """The benchmark; with `quick` a fifth of the simulated experiments."""
    runs = 400 if quick else 4000
    return [
        *_arms_coverage(runs),
        *_returning(runs),
        *_bounded(runs // 4),
        _quantiles(runs // 8),
        *_assignment(runs),
        *_power(),
        *_on_lakes(20 if quick else 200),
    ]


def _misses(name: str, misses: int, n: int, note: str = "", alpha: float = ALPHA) -> Measure:
    """A share of runs that must not exceed alpha; the aim allows for the chance of counting this many."""
    aim = float(stats.binom.ppf(0.999, n, alpha)) / n
    said = f"stated {alpha:.1%}, and what {n:,} runs add by chance"
    return Measure(name, misses / n, "share of runs", n, (SEED,), aim, note="; ".join(filter(None, (note, said))))


def _arms_coverage(runs: int) -> list[Measure]:
    """Two arms drawn alike; looked at after every 10 users from `FLOOR` an arm on."""
    rng = np.random.default_rng(SEED)
    looks = np.arange(FLOOR, PLANNED + 1, 5)  # users an arm: up to twice the planned size in all
    rho2, one = confidence.tuned(PLANNED, ALPHA), confidence.tuned(PLANNED, ALPHA, sides=1)
    wide = np.array([confidence.margin(2 * int(n), rho2, ALPHA) for n in looks]) * np.sqrt(2 * looks)
    half = np.array([confidence.margin(2 * int(n), one, ALPHA, sides=1) for n in looks]) * np.sqrt(2 * looks)
    measures = []
    for name, (mean, draw) in SHARES.items():
        missed = np.zeros(3, dtype=int)
        relative_missed = delta_missed = fixed_missed = 0
        for _ in range(0, runs, 200):
            sides = [_running(draw(rng, (200, PLANNED)), looks) for _ in range(2)]
            (old, old_error), (new, new_error) = sides
            error = np.hypot(old_error, new_error)
            known = error > 0
            away = np.divide(new - old, error, out=np.zeros_like(error), where=known)
            missed[0] += int((np.abs(away) > wide).any(axis=1).sum())
            missed[1] += int((away > half).any(axis=1).sum())
            missed[2] += int((away < -half).any(axis=1).sum())
            fixed_missed += int((np.abs(away) > stats.norm.isf(ALPHA / 2)).any(axis=1).sum())
            far = np.abs(old) > confidence.SMALLEST_CONTROL_Z * old_error
            ratio = np.divide(new, old, out=np.ones_like(old), where=far)
            spread = np.divide(np.hypot(new_error, ratio * old_error), old, out=np.ones_like(old), where=far)
            delta_missed += int(((np.abs(ratio - 1) > wide * spread) & far & known).any(axis=1).sum())
            # Fieller's leaves out a ratio of 1 where the difference leaves out 0, and the control is not near 0.
            told = np.abs(old) > wide * old_error
            relative_missed += int(((np.abs(away) > wide) & told).any(axis=1).sum())
        n = -(-runs // 200) * 200
        measures += [
            _misses(f"difference of arms, {name}: two-sided misses", int(missed[0]), n, f"users' mean {mean:.3g}"),
            _misses(f"difference of arms, {name}: lower bound misses", int(missed[1]), n),
            _misses(f"difference of arms, {name}: upper bound misses", int(missed[2]), n),
            _misses(f"relative effect, {name}: misses", relative_missed, n),
            Measure(f"relative by the delta method, {name}: misses", delta_missed / n, "share of runs", n, (SEED,)),
            Measure(f"fixed 95 % intervals, {name}: misses", fixed_missed / n, "share of runs", n, (SEED,)),
        ]
    return measures


def _running(values: Floats, looks: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and standard error after each look; (runs, users) -> (runs, looks) each."""
    total, squares = np.cumsum(values, axis=1)[:, looks - 1], np.cumsum(values**2, axis=1)[:, looks - 1]
    mean = total / looks
    variance = np.maximum(squares - looks * mean**2, 0.0) / (looks - 1)
    return mean, np.sqrt(variance / looks)


def _returning(runs: int) -> list[Measure]:
    """160 users who all come back every cycle, for 40 cycles: each look takes all they have done since.

    Nothing in the theory of the sequence is about such looks; here it is measured. A user's rate is drawn once, so that
    rows of one user are alike; per-row intervals at the same looks are for comparison.
    """
    rng = np.random.default_rng(SEED + 1)
    users, cycles, an_arm = 160, 40, 80
    rho2 = confidence.tuned(users, ALPHA)
    wide = confidence.margin(users, rho2, ALPHA) * users**0.5
    missed = rows_missed = 0
    for _ in range(runs):
        habit = rng.beta(1.0, 4.0, users)
        count = np.cumsum(rng.poisson(3.5, (cycles, users)), axis=0)
        hits = np.cumsum(rng.binomial(np.diff(count, axis=0, prepend=0), habit), axis=0)
        sides = []
        for arm in (slice(None, an_arm), slice(an_arm, None)):
            y, x = count[:, arm], hits[:, arm]
            ratio = x.sum(axis=1) / y.sum(axis=1)
            influence = (x - ratio[:, None] * y) / y.mean(axis=1, keepdims=True)
            sides.append((ratio, influence.var(axis=1, ddof=1) / an_arm, ratio * (1 - ratio) / y.sum(axis=1)))
        (old, old_v, old_rows), (new, new_v, new_rows) = sides
        missed += bool((np.abs(new - old) > wide * np.sqrt(old_v + new_v)).any())
        rows = count.sum(axis=1)
        per_row = np.array([confidence.margin(int(n), confidence.tuned(20_000, ALPHA), ALPHA) * n**0.5 for n in rows])
        rows_missed += bool((np.abs(new - old) > per_row * np.sqrt(old_rows + new_rows)).any())
    return [
        _misses("users who come back: misses", missed, runs, f"{users} users, {cycles} looks"),
        Measure("the same counted per interaction: misses", rows_missed / runs, "share of runs", runs, (SEED + 1,)),
    ]


def _bounded(runs: int) -> list[Measure]:
    """Bounded sequences from the first value on; the betting one on a coarser grid than usual, which widens it."""
    rng = np.random.default_rng(SEED + 2)
    mean, n = 0.1, 400
    misses = {"empirical Bernstein": 0, "betting": 0, "sub-Bernoulli mixture": 0}
    for _ in range(runs):
        x = (rng.random(n) < mean).astype(np.float64)
        for name, (low, high) in (
            ("empirical Bernstein", confidence.empirical_bernstein(x, ALPHA)),
            ("betting", confidence.betting(x, ALPHA, steps=100)),
        ):
            misses[name] += bool(((low > mean) | (high < mean)).any())
        for total, count in zip(np.cumsum(x)[9::10], np.arange(10, n + 1, 10), strict=True):
            low_, high_ = confidence.bernoulli_sequence(float(total), int(count), ALPHA, 200)
            if low_ > mean or high_ < mean:
                misses["sub-Bernoulli mixture"] += 1
                break
    return [_misses(f"mean of 10 %, {name}: misses", count, runs) for name, count in misses.items()]


def _quantiles(runs: int) -> Measure:
    rng = np.random.default_rng(SEED + 3)
    truth = float(np.exp(0.8 * stats.norm.ppf(0.95)))
    missed = 0
    for _ in range(runs):
        x = rng.lognormal(0.0, 0.8, 600)
        for n in range(50, 601, 25):
            low, high = confidence.quantile_sequence(x[:n], 0.95, ALPHA, 300)
            if not low <= truth <= high:
                missed += 1
                break
    return _misses("95 % quantile of independent values: misses", missed, runs)


def _assignment(runs: int) -> list[Measure]:
    """The e-value after each of 2,000 users: how often it fires on a sound assignment, and how soon on 53 to 47."""
    rng = np.random.default_rng(SEED + 4)
    shares = np.array([0.5, 0.5])
    sound, seen, when = 0, 0, []
    for _ in range(runs):
        arm = (rng.random(2000) < 0.5).astype(np.int64)
        sound += bool((e_value(np.eye(2, dtype=np.int64)[arm], shares) >= 1000).any())
        skewed = (rng.random(20_000) < 0.47).astype(np.int64)
        fired = np.flatnonzero(e_value(np.eye(2, dtype=np.int64)[skewed], shares) >= 1000)
        seen += len(fired) > 0
        when += [int(fired[0]) + 1] if len(fired) else []
    median = float(np.median(when)) if when else None
    return [
        _misses("sample ratio, sound assignment: alarms", sound, runs, alpha=0.001),
        Measure("sample ratio, 53 to 47: alarms within 20,000 users", seen / runs, "share of runs", runs, (SEED + 4,)),
        Measure("users until a ratio of 53 to 47 is seen, median", median, "users", seen, (SEED + 4,)),
    ]


def _power() -> list[Measure]:
    """Users an arm for 80 % power at 5 % two-sided: at one look by formula; always looking by simulation.

    GATE's figure for always looking makes the sequence as *narrow* as the fixed interval at the end (2.40 times the
    users); to *find* the effect in 80 % of experiments takes fewer, since many end before.
    """
    times = _times_for(0.8)
    measures = [Measure("users for 80 % power always looking, over one look", times, "times", 20_000, (SEED + 5,), 2.4)]
    for name, variance, effect, at_once, always in EFFECTS:
        fixed = confidence.units_needed(variance, effect, ALPHA, 0.8, sides=2)
        as_narrow = fixed * confidence.sequential_factor(ALPHA)
        measures += [
            Measure(f"{name}: users an arm, one look", fixed, "users", 1, note=f"GATE has {at_once:,}"),
            Measure(f"{name}: users an arm, always looking", fixed * times, "users", 1),
            Measure(f"{name}: users an arm, as narrow", as_narrow, "users", 1, note=f"GATE has {always:,}"),
        ]
    return measures


def _times_for(power: float) -> float:
    """How many times the users of one look (of the same power) find the effect while always looking."""
    an_arm = confidence.units_needed(1.0, 0.02, ALPHA, power, sides=2)

    def lacks(times: float) -> float:
        # The same random numbers at every size, so that it grows with the size.
        return _found(np.random.default_rng(SEED + 5), 1.0, 0.02, an_arm * times, 20_000) - power

    return float(optimize.brentq(lacks, 1.0, 3.0, xtol=0.01))


def _found(rng: np.random.Generator, variance: float, effect: float, an_arm: float, runs: int) -> float:
    """Share of experiments in which the two-sided sequence, looked at 100 times, leaves out 0 by ``an_arm`` users.

    The running sum of differences is a Brownian motion with drift at these sizes.
    """
    looks = np.ceil(np.linspace(0.05, 1.0, 100) * an_arm)
    steps = np.diff(looks, prepend=0.0)
    sums = np.cumsum(rng.normal(steps * effect, np.sqrt(2 * variance * steps), (runs, len(steps))), axis=1)
    rho2 = confidence.tuned(int(2 * an_arm), ALPHA)
    wide = np.array([confidence.margin(int(2 * n), rho2, ALPHA) * (2 * n) ** 0.5 for n in looks])
    return float((np.abs(sums / looks) > wide * np.sqrt(2 * variance / looks)).any(axis=1).mean())


def _on_lakes(runs: int) -> list[Measure]:
    """Equal arms, and arms of which one is worse, through `report`: 8 looks each, all metrics of the default plan."""
    rng = np.random.default_rng(SEED + 6)
    equal = [_lake_run(rng, 0.0) for _ in range(runs)]
    worse = [_lake_run(rng, 0.15) for _ in range(runs)]
    outside = Counter(metric for run in equal for metric in run.outside)
    metric, most = outside.most_common(1)[0] if outside else ("none", 0)
    return [
        _misses(
            "equal arms in a lake: a metric called worse", sum(run.worse for run in equal), runs, "at any of 8 looks"
        ),
        _misses("equal arms in a lake: the metric whose interval misses most", most, runs, metric),
        Measure(
            "equal arms in a lake: called broken",
            sum(run.broken for run in equal) / runs,
            "share of runs",
            runs,
            (SEED,),
        ),
        Measure(
            "15 points fewer lasting edits in a lake: called worse",
            sum(run.worse for run in worse) / runs,
            "share of runs",
            runs,
            (SEED,),
            0.8,
            "at_least",
            "400 users, 8 looks",
        ),
    ]


PLAN = Plan.model_validate(
    {
        "name": "bench",
        "planned_units": 400,
        "arms": {
            "champion": {"checkpoint": "old", "share": 0.5, "role": "control"},
            "candidate": {"checkpoint": "new", "share": 0.5, "role": "treatment"},
        },
    }
)


@dataclass(frozen=True)
class _LakeRun:
    worse: bool
    broken: bool
    outside: frozenset[str]
    """Metrics whose two-sided interval left out 0 at some look."""


def _lake_run(rng: np.random.Generator, loss: float) -> _LakeRun:
    """One experiment of 400 users over 8 cycles, looked at after each."""
    users = 400
    arm = rng.random(users) < 0.5
    tempers = rng.beta(2.0, 8.0, users)
    keeps = np.clip(rng.beta(8.0, 2.0, users) - loss * arm, 0.0, 1.0)
    worse = False
    outside: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        for cycle in range(8):
            who = rng.integers(0, users, 600)
            lake.write_observations(_cycle(rng, cycle, who, arm, tempers=tempers, keeps=keeps), cycle)
            found = report(lake, PLAN)
            assert found is not None
            if not found.valid:
                return _LakeRun(worse, True, frozenset(outside))
            worse = worse or bool(found.worse)
            outside |= {
                each.metric
                for each in found.effects
                if each.status == "known" and each.low is not None and each.high is not None
                if not each.low <= 0 <= each.high
            }
    return _LakeRun(worse, False, frozenset(outside))


def _cycle(
    rng: np.random.Generator,
    cycle: int,
    who: npt.NDArray[np.int64],
    arm: npt.NDArray[np.bool_],
    *,
    tempers: Floats,
    keeps: Floats,
) -> pa.Table:
    n = len(who)
    start = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=5 * cycle)
    edited = rng.random(n) < 0.8
    lost = edited & (rng.random(n) > keeps[who])
    dissatisfied = rng.random(n) < tempers[who]
    given = {
        "interaction_id": [f"c{cycle}-{index}" for index in range(n)],
        "source": ["bench"] * n,
        "user_id": [f"u{user}" for user in who],
        "checkpoint": np.where(arm[who], "new", "old"),
        "cycle": np.full(n, cycle),
        "arm": np.where(arm[who], "candidate", "champion"),
        "traffic": ["production"] * n,
        "organisation": [f"o{user % 4}" for user in who],
        "started_at": [start + timedelta(seconds=30 * index) for index in range(n)],
        "edited": edited,
        "edits": edited.astype(np.int64),
        "asked": ~edited,
        "agent_turns": rng.integers(1, 5, n),
        "invalid_malformed": rng.random(n) < 0.05,
        "functions_after": np.where(edited, 3, 0),
        "function_lines_after": np.where(edited, rng.integers(10, 60, n), 0),
        "latency_s": rng.lognormal(1.5, 0.4, n),
        "ambiguity": rng.random(n),
        "watched_s": np.full(n, 18_000.0),
        "edit_lost_s": pa.array(np.where(lost, rng.exponential(900.0, n), np.nan), from_pandas=True),
        "follow_up": pa.array(np.where(dissatisfied, "dissatisfied", "neutral")),
        "follow_up_s": rng.exponential(600.0, n),
        "outcome": np.where(edited & ~lost, 1.0, 0.0) - dissatisfied,
        "outcome_status": ["mature"] * n,
        "undone": np.zeros(n, bool),
        "answered": np.zeros(n, bool),
    }
    columns = []
    for field in OBSERVATIONS:
        values = given.get(field.name)
        if values is None:
            values = [None if field.nullable else 0] * n
        columns.append(
            pa.array(values).cast(field.type) if not isinstance(values, pa.Array) else values.cast(field.type)
        )
    return pa.table(columns, schema=OBSERVATIONS)
