"""Flags a rule that keeps samples out of training depending on what they would have been paid: a hole, found or not.

For: a sample that leaves the batch takes its reward with it. If what is dropped would have been paid less than what
stays, being dropped pays, and a policy that can bring it about will learn to. This is so before any policy has: the
base model breaks a few calls by accident, and what those were paid is in the log.

Looks at every reason for which rows were left out (inclusion rules, invalid rewards, what a trainer logged), pooled
over the reference cycles so far, and afterwards over the last `POOL` cycles. Two questions to each:

- **reward**: were the dropped paid less (or more) than those kept in the same context (cycle, predicted failure,
  ambiguity)? In standard deviations of the kept rewards; told from `SMALLEST_REWARD` on.
- **difficulty**: is the drop rate on requests likely to fail another than on those likely to succeed? Told from
  `SMALLEST_RATE` on, and from a quarter of the rule's rate.

Reading: forewarning where the dropped were paid less, or are dropped more where failure is likely. Else it is left
open: such a rule bends the data, but gives nothing to whoever is dropped.

Errors: `RATE` false alarms per look over all rules and both questions (Student t, Bonferroni). Standard errors are
clustered by user, and count that the baseline is estimated. Looks at pooled cycles overlap, so that one false alarm may
last for some cycles.

Blind to: rows that never reach the log (`rows-wrong` looks for those), rules that dropped fewer than `FEWEST` rows or
rows of fewer than `FEWEST_USERS` users, what a rule does in one organisation alone, and confounding by what the context
does not hold.

Source: DESIGN.md section 1 (invalid-call dodge) and section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from palomar.data.derived import Part, derived
from palomar.data.findings import Cause, Evidence, Finding, Report, Unassessed
from palomar.data.schema import content_id
from palomar.data.slices import ALL, BANDS
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import exact_sum, percent
from palomar.detectors.detector import Example, View, detector
from palomar.reward.charges import BASELINE, NO_REASON, NOT_UPDATED, WAITING

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NAME = "selection"
RATE = 0.001
"""Chance of a false alarm per look, over all rules and both questions."""
POOL = 8
"""Cycles that are looked at together."""
SMALLEST_REWARD = 0.2
"""Smallest difference of rewards that is told, in standard deviations of the kept ones."""
SMALLEST_RATE = 0.01
"""Smallest difference of drop rates that is told."""
OF_RATE = 0.25
"""The same, as a share of the rule's drop rate."""
FEWEST, FEWEST_USERS = 20, 10
"""Dropped rows, and users with one, that a test needs."""
NEUTRAL = (BASELINE, NOT_UPDATED, WAITING)
"""Reasons that are nobody's choice about a sample: the cycle did not train, or the sample's turn is still to come."""
KEPT = ""
"""Reason of the rows that were kept, in the kept tables."""

_CELLS = pa.schema(
    [
        pa.field("user", pa.uint64(), nullable=False),
        pa.field("failure", pa.int64(), nullable=False),  # band of predicted failure; -1 = not known
        pa.field("vague", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("paid", pa.int64(), nullable=False),  # rows with a valid reward
        pa.field("total", pa.float64(), nullable=False),  # of those rewards
        pa.field("squares", pa.float64(), nullable=False),
    ]
)


def _dropped(cycle: int, *, how: str) -> pa.Table:
    """A cycle in which a rule drops about a tenth of the rows."""
    table = rows(cycle, 600)
    rng = np.random.default_rng(cycle + 50)
    reward = np.asarray(table["reward"]).copy()
    hard = np.asarray(table["predicted_failure"])
    if how == "random":
        hit = rng.random(600) < 0.1
    elif how == "broken":  # such rows fail, and are paid for it
        hit = rng.random(600) < 0.1
        reward[hit] = -1.5
    elif how == "hard":
        hit = rng.random(600) < 0.2 * hard
    else:
        raise ValueError(how)
    reason = pa.array(["broken_call"] * 600, mask=~hit)
    return rows(cycle, 600, reward=reward, included=~hit, exclusion=reason)


def _lake(folder: Path, how: str) -> View:
    return example_view(folder, [_dropped(cycle, how=how) for cycle in range(5)])


EXAMPLES = [
    Example("rows that failed are dropped", lambda folder: _lake(folder, "broken"), "fires"),
    Example("hard requests are dropped more often", lambda folder: _lake(folder, "hard"), "fires"),
    Example("a tenth is dropped by lot", lambda folder: _lake(folder, "random"), "clear"),
    Example("nothing was dropped", lambda folder: example_view(folder, [*map(rows, range(5))]), "not_assessable"),
]


@detector(NAME, examples=EXAMPLES)
def selection(view: View) -> Report:
    """One finding per reason that depends on reward or difficulty."""
    cycles = _pooled(view)
    cells = [_cells(view, cycle) for cycle in cycles]
    data = _Data.of(cells)
    if not data.reasons:
        why = f"no sample was excluded in {_named(cycles)}" if data.decided else (
            "nothing says what was trained on: it takes inclusion rules, or samples that a trainer logged"
        )  # fmt: skip
        return Report(NAME, unassessed=(Unassessed("who is kept out of training", why),))
    alpha = RATE / (2 * len(data.reasons))
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    assessed, power = 0, []
    for reason in data.reasons:
        reward, difficulty = data.reward(reason, alpha), data.difficulty(reason, alpha)
        for what, test in (("reward", reward), ("difficulty", difficulty)):
            if isinstance(test, str):
                unassessed.append(Unassessed(f"rule:{reason} by {what}", test))
            else:
                assessed += 1
                power.append(f"rule:{reason} by {what}: {test.smallest:.3g} {test.unit}")
        found = _finding(view, reason, data, (reward, difficulty), cycles)
        if found is not None:
            findings.append(found)
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), "; ".join(power))


def _pooled(view: View) -> tuple[int | None, ...]:
    if view.cycle is None:
        return (None,)
    if view.cycle in view.reference:
        return tuple(cycle for cycle in view.reference if cycle in view.history)
    return view.history[-POOL:]


def _named(cycles: tuple[int | None, ...]) -> str:
    if cycles == (None,):
        return "the log"
    return f"cycles {cycles[0]}-{cycles[-1]}" if len(cycles) > 1 else f"cycle {cycles[0]}"


# -- what is kept of a cycle -------------------------------------------------------------------------------------


def _cells(view: View, cycle: int | None) -> pa.Table:
    """Sums over the decided rows of a cycle, by user, context and reason (`KEPT` for those trained on)."""
    offered = [each for each in view.lake.cycles("samples") if cycle is not None and each in (cycle, cycle + 1)]
    neutral = ", ".join(f"'{reason}'" for reason in NEUTRAL)
    sql = f"""
        WITH decided AS (
            SELECT hash(coalesce(user_id, conversation_id, interaction_id)) AS user,
                {_band("predicted_failure")} AS failure, {_band("ambiguity")} AS vague,
                CASE
                    WHEN included IS FALSE THEN coalesce(exclusion, '{NO_REASON}')
                    WHEN told_trained THEN '{KEPT}'
                    WHEN told NOT IN ({neutral}) THEN told
                    WHEN included THEN '{KEPT}'
                END AS reason,
                CASE WHEN reward_status = 'valid' AND isfinite(reward) THEN reward END AS paid
            FROM joined
        )
        SELECT "user", failure, vague, reason, count(*) AS n, count(paid) AS paid,
            coalesce({exact_sum("paid")}, 0.0) AS total, coalesce({exact_sum("paid * paid")}, 0.0) AS squares
        FROM decided WHERE reason IS NOT NULL GROUP BY ALL ORDER BY ALL
    """
    with_samples = """
        CREATE TEMP VIEW joined AS SELECT observations.*, told_trained, told FROM observations LEFT JOIN (
            SELECT interaction_id, bool_or(trained) AS told_trained, arg_max(reason, cycle) AS told
            FROM samples GROUP BY interaction_id
        ) USING (interaction_id)
    """
    without = (
        "CREATE TEMP VIEW joined AS SELECT *, NULL::BOOLEAN AS told_trained, NULL::VARCHAR AS told FROM observations"
    )
    parts: list[Part] = [("observations", [cycle]), ("samples", offered)]

    def make() -> pa.Table:
        with view.lake.connect(["observations"], [cycle]) as connection:
            samples = view.lake.scan("samples", _OFFERED, cycles=offered)
            # Where the rules have said it all, the trainer's word is not needed, and a join of all rows saved.
            reasons = set(samples["reason"].unique().to_pylist()) - {None, *NEUTRAL}
            ruled = connection.execute("SELECT DISTINCT exclusion FROM observations").fetchall()
            silent = connection.execute("SELECT count(*) FROM observations WHERE included IS NULL").fetchall()[0][0]
            if silent or reasons - {reason for (reason,) in ruled}:
                connection.register("samples", samples)
                connection.execute(with_samples)
            else:
                connection.execute(without)
            return connection.execute(sql).to_arrow_table().cast(_CELLS)

    version = content_id("selection/2", sql, with_samples)
    return derived(view.lake, NAME, cycle, version=version, parts=parts, make=make)


_OFFERED = ("interaction_id", "cycle", "trained", "reason")


def _band(column: str) -> str:
    edges = BANDS[column][0]
    cases = " ".join(f"WHEN {column} < {edge} THEN {index}" for index, edge in enumerate(edges))
    return f"CASE {cases} WHEN {column} IS NOT NULL THEN {len(edges)} ELSE -1 END"


# -- the two questions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """A difference between two means, clustered by user."""

    before: float
    after: float
    low: float
    high: float
    t: float
    threshold: float
    n: int
    """Rows it rests on."""
    smallest: float
    unit: str

    @property
    def effect(self) -> float:
        return self.after - self.before

    @property
    def significant(self) -> bool:
        return abs(self.t) >= self.threshold


@dataclass(frozen=True)
class _Data:
    """Cells of the pooled cycles, G of them; arrays have shape (G,)."""

    reasons: tuple[str, ...]
    """Of dropped rows."""
    decided: int
    """Rows that were kept or dropped."""
    user: Ints
    """From 0."""
    cycle: Ints
    context: Ints
    """Cycle, predicted failure and ambiguity."""
    failure: Ints
    codes: Mapping[str, int]
    """Number of each reason, `KEPT` among them."""
    code: Ints
    n: Floats
    paid: Floats
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, tables: list[pa.Table]) -> _Data:
        """The cells of some cycles, in their order."""
        table = pa.concat_tables(tables)
        cycle = np.repeat(np.arange(len(tables)), [each.num_rows for each in tables])
        column = {name: table[name].to_numpy() for name in table.column_names if name != "reason"}
        # One number per cycle, band of failure and band of ambiguity; -1 stands for "not known".
        context = (cycle * 16 + column["failure"] + 1) * 16 + column["vague"] + 1
        words = table["reason"].combine_chunks().dictionary_encode()
        names = words.dictionary.to_pylist()
        return cls(
            reasons=tuple(sorted(set(names) - {KEPT})),
            decided=int(column["n"].sum()),
            user=np.unique(column["user"], return_inverse=True)[1].reshape(-1),
            cycle=cycle,
            context=np.unique(context, return_inverse=True)[1].reshape(-1),
            failure=column["failure"],
            codes={name: index for index, name in enumerate(names)},
            code=np.asarray(words.indices, dtype=np.int64),
            **{name: column[name].astype(np.float64) for name in ("n", "paid", "total", "squares")},
        )

    def of_reason(self, reason: str) -> Mask:
        """Cells of one reason."""
        found: Mask = self.code == self.codes.get(reason, -1)
        return found

    @property
    def spread(self) -> float:
        """Standard deviation of the kept rewards about their cycle's mean."""
        kept = self.of_reason(KEPT)
        count, total, squares = (
            _sums(self.cycle, np.where(kept, x, 0.0)) for x in (self.paid, self.total, self.squares)
        )
        with np.errstate(invalid="ignore"):
            left = squares - np.where(count > 0, total**2 / np.maximum(count, 1), 0.0)
        return float(np.sqrt(max(left.sum(), 0.0) / max(count.sum(), 1.0)))

    def rate(self, reason: str, band: int | None = None) -> tuple[float, float]:
        """Rows dropped for a reason and all rows, in a band of predicted failure or in all."""
        here = np.ones(len(self.n), dtype=bool) if band is None else self.failure == band
        return float(self.n[here & self.of_reason(reason)].sum()), float(self.n[here].sum())

    def reward(self, reason: str, alpha: float) -> _Test | str:
        """Dropped against kept in the same context; or why that cannot be told."""
        dropped, kept = self.of_reason(reason) & (self.paid > 0), self.of_reason(KEPT) & (self.paid > 0)
        # Only contexts that have both say anything.
        both = (_sums(self.context, self.paid * dropped) > 0) & (_sums(self.context, self.paid * kept) > 0)
        dropped, kept = dropped & both[self.context], kept & both[self.context]
        count = float(self.paid[dropped].sum())
        users = len(np.unique(self.user[dropped]))
        if count < FEWEST or users < FEWEST_USERS:
            return (
                f"{int(count)} dropped rows of {users} users have a reward and someone kept to compare with; it takes "
                f"{FEWEST} of {FEWEST_USERS}"
            )
        if self.spread == 0:
            return "the kept rewards do not differ, which leaves no unit"
        weight = _sums(self.context, self.paid * dropped) / count  # of each context
        kept_n = np.maximum(_sums(self.context, self.paid * kept), 1)
        base = _sums(self.context, self.total * kept) / kept_n
        centred = self.total - self.paid * base[self.context]
        effect = float(centred[dropped].sum() / count)
        influence = np.where(dropped, (centred - self.paid * effect) / count, 0.0)
        influence -= np.where(kept, weight[self.context] * centred / kept_n[self.context], 0.0)
        before = float((base * weight).sum())
        return self._test(
            (before, before + effect), influence, users, alpha=alpha, n=int(count), unit="in units of the reward"
        )

    def difficulty(self, reason: str, alpha: float) -> _Test | str:
        """Drop rate where failure is likely against where it is not; or why that cannot be told."""
        low, high = self.failure == 0, self.failure == len(BANDS["predicted_failure"][0])
        dropped = self.of_reason(reason)
        count, users = float(self.n[dropped & (low | high)].sum()), len(np.unique(self.user[dropped & (low | high)]))
        if min(self.n[low].sum(), self.n[high].sum()) < FEWEST:
            return "too few rows with a predicted failure below 0.4, or from 0.6 on"
        if count < FEWEST or users < FEWEST_USERS:
            return f"{int(count)} dropped rows of {users} users tell it; it takes {FEWEST} of {FEWEST_USERS}"
        rates, influence = {}, np.zeros(len(self.n))
        for sign, here in ((-1, low), (1, high)):
            total = float(self.n[here].sum())
            rates[sign] = float(self.n[here & dropped].sum() / total)
            influence += sign * np.where(here, self.n * (dropped - rates[sign]) / total, 0.0)
        return self._test((rates[-1], rates[1]), influence, users, alpha=alpha, n=int(count), unit="of drop rate")

    def _test(
        self, means: tuple[float, float], influence: Floats, users: int, *, alpha: float, n: int, unit: str
    ) -> _Test:
        before, after = means
        sums = _sums(self.user, influence)
        active = max(int(np.count_nonzero(sums)), 2)
        error = float(np.sqrt((sums**2).sum() * active / (active - 1)))
        threshold = float(stats.t.isf(alpha / 2, users - 1))
        t = (after - before) / error if error > 0 else 0.0
        reach = threshold * error
        return _Test(before, after, after - before - reach, after - before + reach, t, threshold, n, reach, unit)


def _sums(groups: Ints, values: Floats) -> Floats:
    return np.bincount(groups, weights=values).astype(np.float64)


# -- findings ----------------------------------------------------------------------------------------------------


def _finding(
    view: View,
    reason: str,
    data: _Data,
    tests: tuple[_Test | str, _Test | str],
    cycles: tuple[int | None, ...],
) -> Finding | None:
    reward, difficulty = tests
    dropped, decided = data.rate(reason)
    rate = dropped / decided
    parts, detail = [], {}
    shields = by_reward = by_difficulty = False
    if isinstance(reward, _Test):
        apart = reward.effect / data.spread
        detail["reward"] = {
            "kept": reward.before, "dropped": reward.after, "low": reward.low, "high": reward.high, "in_sd": apart,
        }  # fmt: skip
        if reward.significant and abs(apart) >= SMALLEST_REWARD:
            by_reward, shields = True, reward.effect < 0
            parts.append(
                f"they were paid {reward.after:.2f} where the kept ones of the same difficulty were paid "
                f"{reward.before:.2f} ({_signed(reward.effect)}, {_signed(reward.low)} to {_signed(reward.high)}; "
                f"{abs(apart):.1f} standard deviations {'less' if shields else 'more'})"
            )
    if isinstance(difficulty, _Test):
        detail["drop_rate"] = {"low": difficulty.before, "high": difficulty.after}
        needed = max(SMALLEST_RATE, OF_RATE * rate)
        if difficulty.significant and abs(difficulty.effect) >= needed:
            by_difficulty = True
            shields = shields or (difficulty.effect > 0 and not by_reward)
            parts.append(
                f"it drops {percent(difficulty.before)} of the requests likely to succeed and "
                f"{percent(difficulty.after)} of those likely to fail"
            )
    if not parts:
        return None
    main = reward if by_reward and isinstance(reward, _Test) else difficulty
    assert isinstance(main, _Test)
    tail = "being dropped pays" if shields else "training sees another mix than was served"
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"rule {reason} keeps {percent(rate)} of the samples out of training ({int(dropped):,} of "
            f"{int(decided):,} in {_named(cycles)}), and not by lot: {'; '.join(parts)}; {tail}"
        ),
        statistic=f"rule:{reason}",
        slice=ALL if by_reward else "predicted_failure=high",
        unit="reward" if by_reward else "share of interactions",
        before=main.before,
        after=main.after,
        effect=main.effect,
        low=main.low,
        high=main.high,
        test=main.t,
        threshold=main.threshold,
        error_control=f"{RATE:g} false alarms per look over {len(data.reasons)} rules and two questions, Student t "
        "with errors clustered by user, Bonferroni",
        n=main.n,
        smallest=main.smallest,
        since=cycles[0],
        reading="forewarning" if shields else None,
        causes=(Cause(f"rule:{reason}", ALL, main.effect, 1.0),),
        evidence=_evidence(view, reason),
        detail={**detail, "rate": rate, "by_reward": by_reward, "by_difficulty": by_difficulty, "cycles": list(cycles)},
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _evidence(view: View, reason: str) -> Evidence:
    """The dropped rows of the cycle that were paid least, two at random, and the dropped one that was paid most."""

    def ids(where: str, order: str, count: int, *parameters: str) -> tuple[str, ...]:
        sql = f"SELECT interaction_id FROM observations WHERE {where} ORDER BY {order}, interaction_id LIMIT {count}"
        return tuple(view.query(sql, parameters=parameters)["interaction_id"].to_pylist())

    return Evidence(
        ids("exclusion = ?", "reward NULLS LAST", 5, reason),
        ids("true", "hash(interaction_id)", 2),
        ids("exclusion = ?", "reward DESC NULLS LAST", 1, reason),
    )
