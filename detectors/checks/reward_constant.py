"""Flags cycles in which there is nothing to learn from: one constant reward, groups without variance, nothing trained.

For: a scorer that returns one number for all, a filter that leaves nothing, a batch whose groups are all right or all
wrong. Each makes an update of noise or none, and no error is raised anywhere.

Fires where

- **reward**: all of at least `MANY` valid rewards of the cycle are equal (the same for a term, if the cycle before had
  other values in `VARIED` of its rows or more, so that a behaviour that dies out is no fault);
- **groups**: of the groups with two rewards or more, the share without any difference is above the reference's
  significantly and by `MARGIN`, or at least `NEARLY_ALL`;
- **nothing trained**: the trainer was offered samples with valid rewards and trained on none; cycles that are only
  watched (reason ``baseline``) are left out.

Errors: the equalities are no tests. The share of groups is held against the reference at `RATE` false alarms per cycle
(Student t with overdispersion).

Blind to: rewards that differ by noise alone; groups in logs without group ids.

Source: TRL's `frac_reward_zero_std`; INTEGRATIONS.md section 4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from palomar.data.derived import derived
from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.schema import content_id
from palomar.detectors.checks._examples import rows, samples
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import RATE, before_cycle, evidence, percent, quoted, step
from palomar.detectors.detector import Example, View, detector
from palomar.reward.charges import BASELINE, WAITING

NAME = "reward-constant"
MANY = 30
"""Rows that must be equal."""
VARIED = 0.05
"""Share of rows that must have differed from the most frequent value one cycle before, for a term."""
MARGIN = 0.1
"""Smallest rise of the share of groups without variance that is told."""
NEARLY_ALL = 0.9
"""Share of groups without variance that is told whatever the reference was."""
FEWEST_GROUPS = 10


def _grouped(cycle: int, equal: float) -> pa.Table:
    """A cycle of groups of four, of which a share has equal rewards."""
    rng = np.random.default_rng(cycle + 2)
    alike = np.repeat(rng.random(100) < equal, 4)
    reward = np.where(alike, np.repeat(rng.integers(0, 2, 100), 4), rng.random(400))
    return rows(cycle, group_id=[f"g{cycle}-{index // 4}" for index in range(400)], reward=reward.astype(float))


def _untrained(folder: Path, reason: str) -> View:
    made = example_view(folder, [*map(rows, range(4)), rows(4)])
    table = rows(4)
    made.lake.append_samples(
        samples(table, 4, trained=False, weight=0.0, advantage=None, baseline=None, reason=reason), 4
    )
    return made


EXAMPLES = [
    Example(
        "the scorer returns 0 for all",
        lambda folder: example_view(folder, [*map(rows, range(4)), rows(4, reward=0.0)]),
        "fires",
    ),
    Example(
        "most groups have nothing to tell",
        lambda folder: example_view(folder, [*(_grouped(cycle, 0.1) for cycle in range(4)), _grouped(4, 0.8)]),
        "fires",
    ),
    Example("everything was filtered", lambda folder: _untrained(folder, "no_spread"), "fires"),
    Example(
        "rewards are low, and differ",
        lambda folder: example_view(
            folder, [*(_grouped(cycle, 0.1) for cycle in range(4)), _grouped(4, 0.1)],
        ),
        "clear",
    ),
    Example("a cycle that is only watched", lambda folder: _untrained(folder, BASELINE), "clear"),
    Example(
        "nothing was scored",
        lambda folder: example_view(folder, [rows(cycle, reward=None, reward_status=None) for cycle in range(5)]),
        "not_assessable",
    ),
]  # fmt: skip


@detector(NAME, examples=EXAMPLES)
def reward_constant(view: View) -> Report:
    """One finding per constant, one for groups, one where nothing was trained on."""
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    assessed = 0
    power = ""
    constants = _constants(view)
    if "reward" not in constants:
        unassessed.append(Unassessed("reward", f"it takes {MANY} valid rewards in the cycle"))
    for column, (value, n) in constants.items():
        assessed += 1
        if value is None:
            continue
        before = _varied(view, column)
        if column == "reward" or (before is not None and before >= VARIED):
            findings.append(_constant(view, column, value, n, before))
    grouped = _groups(view, view.cycle)
    if grouped[1] < FEWEST_GROUPS:
        unassessed.append(
            Unassessed("groups", f"{grouped[1]} groups with two rewards or more; it takes {FEWEST_GROUPS}")
        )
    else:
        assessed += 1
        base = np.array([_groups(view, cycle) for cycle in before_cycle(view)], dtype=np.float64).reshape(-1, 2)
        seen = step(base[:, 0], base[:, 1], float(grouped[0]), float(grouped[1]), RATE)
        share = grouped[0] / grouped[1]
        grown = seen is not None and seen.effect >= MARGIN and seen.z >= seen.threshold
        if grown or share >= NEARLY_ALL:
            findings.append(
                Finding(
                    detector=NAME,
                    severity="warns",
                    sentence=(
                        f"groups whose rewards are all equal: {'' if seen is None else percent(seen.before) + ' -> '}"
                        f"{percent(share)} of {grouped[1]:,} groups; nothing is learnt from them"
                    ),
                    statistic="groups without variance",
                    unit="share of groups",
                    before=None if seen is None else seen.before,
                    after=share,
                    effect=None if seen is None else seen.effect,
                    low=None if seen is None else seen.low,
                    high=None if seen is None else seen.high,
                    test=None if seen is None else seen.z,
                    threshold=None if seen is None else seen.threshold,
                    error_control=f"{RATE:g} false alarms per cycle, Student t with overdispersion; told from "
                    f"{percent(NEARLY_ALL)} on without a test",
                    n=grouped[1],
                    smallest=None if seen is None else max(seen.smallest, MARGIN),
                    since=view.cycle,
                )
            )
        if seen is not None:
            power = f"a rise of the share of groups without variance of {percent(max(seen.smallest, MARGIN))}"
    offered = _offered(view)
    if offered is None:
        unassessed.append(Unassessed("nothing trained", "the trainer logged no sample of this cycle"))
    else:
        assessed += 1
        trained, usable, reasons = offered
        if usable >= MANY and not trained:
            findings.append(
                Finding(
                    detector=NAME,
                    severity="warns",
                    sentence=f"nothing was trained on: {usable:,} samples with a reward were offered, and all were "
                    f"left out ({reasons})",
                    statistic="samples trained on",
                    after=0.0,
                    error_control="no test",
                    n=usable,
                    since=view.cycle,
                    reading="measurement_fault",
                    detail={"hold": True},
                )
            )
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power)


def _constants(view: View) -> dict[str, tuple[float | None, int]]:
    """Of the columns with rows enough: the one value that all rows have (None where they differ), and how many."""
    names = ["reward", *sorted(name for name in view.columns() if name.startswith("term:"))]
    listed = ", ".join(
        f"count({quoted(name)}) AS n{index}, min({quoted(name)}) AS a{index}, max({quoted(name)}) AS b{index}"
        for index, name in enumerate(names)
    )
    row = view.query(f"SELECT {listed} FROM observations").to_pylist()[0]
    found: dict[str, tuple[float | None, int]] = {}
    for index, name in enumerate(names):
        n, least, most = row[f"n{index}"], row[f"a{index}"], row[f"b{index}"]
        if n >= MANY:
            found[name] = (least if least == most else None, n)
    return found


def _varied(view: View, column: str) -> float | None:
    """Share of the rows of the cycle before that differ from its most frequent value; None where there are none."""
    earlier = [cycle for cycle in view.history if cycle != view.cycle]
    if not earlier or column not in view.columns(cycles=[earlier[-1]]):
        return None
    c = quoted(column)
    sql = f"SELECT max(n) / sum(n) AS most FROM (SELECT count({c}) AS n FROM observations GROUP BY {c})"
    most = view.query(sql, [earlier[-1]]).to_pylist()[0]["most"]
    return None if most is None else 1 - float(most)


def _constant(view: View, column: str, value: float, n: int, before: float | None) -> Finding:
    was = "" if before is None else f"; one cycle before {percent(before)} of the rows differed from the usual value"
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{column} is {value:g} in all {n:,} rows of the cycle{was}; nothing can be learnt from it",
        statistic=column,
        unit="reward",
        after=value,
        error_control="no test: all values are equal",
        n=n,
        since=view.cycle,
        reading="measurement_fault",
        evidence=evidence(view, f"{quoted(column)} IS NOT NULL"),
        detail={"hold": column == "reward"},
    )


_GROUPS = pa.schema([pa.field("equal", pa.int64(), nullable=False), pa.field("groups", pa.int64(), nullable=False)])


def _groups(view: View, cycle: int | None) -> tuple[int, int]:
    """Groups whose valid rewards are all equal, and groups with two or more."""
    sql = """
        SELECT count(CASE WHEN least = most THEN 1 END) AS equal, count(*) AS groups FROM (
            SELECT min(reward) AS least, max(reward) AS most FROM observations
            WHERE group_id IS NOT NULL AND reward_status = 'valid' GROUP BY group_id HAVING count(reward) >= 2
        )
    """
    table = derived(
        view.lake,
        NAME,
        cycle,
        version=content_id("groups/1", sql),
        parts=[("observations", [cycle])],
        make=lambda: view.query(sql, [cycle]).cast(_GROUPS),
    )
    row = table.to_pylist()[0]
    return row["equal"], row["groups"]


def _offered(view: View) -> tuple[int, int, str] | None:
    """Samples that the cycle's update trained on, those that had a reward, and the reasons why others were left out."""
    if view.cycle is None or view.cycle not in view.lake.cycles("samples"):
        return None
    rows_ = view.lake.query(
        "SELECT coalesce(reason, 'no reason') AS reason, count_if(trained) AS trained, count(reward) AS n FROM offered "
        "GROUP BY ALL ORDER BY n DESC, reason",
        offered=view.lake.scan("samples", ("reason", "trained", "reward"), cycles=[view.cycle]),
    ).to_pylist()
    watched = any(row["reason"] == BASELINE for row in rows_)
    usable = 0 if watched else sum(row["n"] for row in rows_ if row["reason"] != WAITING)
    reasons = ", ".join(f"{row['reason']}: {row['n']:,}" for row in rows_ if row["n"])
    return int(sum(row["trained"] for row in rows_)), int(usable), reasons
