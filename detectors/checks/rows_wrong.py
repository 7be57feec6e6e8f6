"""Flags cycles whose rows are not the rows of that cycle: repeated, evaluation, or silently thrown away.

For: a dump that overwrites another, an index that stands still, a sampler that drops its buffer. The numbers look like
those of any cycle.

Fires where

- **repeated**: half (`REPEATED`) of the rows or more are, value by value, rows of an earlier cycle, though rows are as
  good as unique within a cycle (so that equality is no accident); or of rows in the cycle itself, and more than in the
  reference, by `MARGIN`;
- **evaluation**: the trainer trained on evaluation traffic; or its share of the cycle's rows rose against the
  reference, significantly and by `MARGIN`;
- **thrown away**: `LOST` or more of the rows that were included and have a reward were never offered to a trainer that
  logged the cycle; or of the interactions stored for the cycle have no row.

Errors: shares against the reference at `RATE` false alarms per cycle (Student t with overdispersion, Bonferroni); what
was trained on and what was lost are counts, no tests. Rows of other cycles are compared by a sketch of the `SKETCH`
smallest hashes (Broder 1997), exact below that many rows, else within 5 points at 99.9 %.

Blind to: repetition in logs whose rows hardly differ, evaluation that the log does not mark, and what was thrown away
before it was logged anywhere.

Source: huggingface/trl#6613, rllm-org/rllm#920.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.derived import derived
from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.schema import content_id
from palomar.detectors.checks._examples import rows, samples
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import FEWEST_ROWS, RATE, Sign, before_cycle, evidence, percent, shares, step
from palomar.detectors.detector import Example, View, detector

NAME = "rows-wrong"
REPEATED = 0.5
"""Share of rows that another cycle has as well."""
UNIQUE = 0.95
"""Share of distinct rows within a cycle from which equality says that rows are the same."""
MARGIN = 0.05
"""Smallest rise of a share that is told."""
LOST = 0.01
"""Share of rows thrown away that is told."""
SKETCH = 4096
CONTENT = (
    "user_id", "task_id", "predicted_failure", "ambiguity", "agent_turns", "tool_calls", "edits", "tokens_in",
    "tokens_out", "latency_s", "function_lines_after", "tests_passed", "tests_run", "logged_reward", "reward",
)  # fmt: skip
"""What makes rows the same; no ids of rows, which a second dump would number anew."""
EVALUATION = Sign("traffic = 'evaluation'")

_HASHES = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),  # of the cycle
        pa.field("distinct", pa.int64(), nullable=False),
    ]
)


def _copied(cycle: int, of: int, share: float) -> pa.Table:
    """A cycle whose first rows are those of another one, under new ids."""
    table, other = rows(cycle), rows(of)
    first = int(share * table.num_rows)
    columns = {
        name: pa.concat_arrays([other[name].combine_chunks()[:first], table[name].combine_chunks()[first:]])
        for name in CONTENT
    }
    return rows(cycle, **columns)


def _offered(folder: Path, share: float) -> View:
    """Three reference cycles and one of which a share was offered to the trainer."""
    made = example_view(folder, [*map(rows, range(4))], reference=range(3))
    made.lake.append_samples(samples(rows(3), 3).slice(0, int(400 * share)), 3)
    return made


def _after_four(folder: Path, table: pa.Table) -> View:
    return example_view(folder, [*map(rows, range(4)), table])


def _evaluated(cycle: int) -> pa.Table:
    return rows(cycle, traffic=["evaluation"] * 200 + ["production"] * 200)


EXAMPLES = [
    Example("the dump of another cycle", lambda folder: _after_four(folder, _copied(4, 2, 1.0)), "fires"),
    Example("evaluation overwrote training", lambda folder: _after_four(folder, _evaluated(4)), "fires"),
    Example("batches were thrown away", lambda folder: _offered(folder, 0.8), "fires"),
    Example("all was offered", lambda folder: _offered(folder, 1.0), "clear"),
    Example("some requests come again", lambda folder: _after_four(folder, _copied(4, 2, 0.2)), "clear"),
    Example(
        "evaluation in every cycle",
        lambda folder: example_view(folder, [_evaluated(cycle) for cycle in range(5)]),
        "clear",
    ),
    Example("a handful of rows", lambda folder: example_view(folder, [rows(0, 10)]), "not_assessable"),
]


@detector(NAME, examples=EXAMPLES)
def rows_wrong(view: View) -> Report:
    """One finding for each of the three that is so."""
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    assessed = 0
    for what, look in (
        ("repeated rows", _repeated),
        ("evaluation traffic", _evaluation),
        ("evaluation trained on", _evaluation_trained),
        ("rows that were not offered to the trainer", _not_offered),
        ("interactions without a row", _not_scored),
    ):
        found = look(view)
        if isinstance(found, str):
            unassessed.append(Unassessed(what, found))
            continue
        assessed += 1
        findings += [] if found is None else [found]
    power = f"{percent(REPEATED)} of the rows repeated, {percent(LOST)} thrown away"
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power if assessed else "")


# -- repeated ----------------------------------------------------------------------------------------------------


def _repeated(view: View) -> Finding | str | None:
    """The earlier cycle that shares most rows with this one; or why that cannot be told."""
    mine, n, distinct = _sketch(view, view.cycle)
    if n < FEWEST_ROWS:
        return f"{n} rows; it takes {FEWEST_ROWS}"
    others = [(cycle, *_sketch(view, cycle)) for cycle in view.history if cycle != view.cycle]
    usual = [known / total for _, _, total, known in others if total >= FEWEST_ROWS]
    if distinct < UNIQUE * n:
        if usual and min(usual) >= UNIQUE:
            return _within(view, 1 - distinct / n, float(np.mean(usual)), n)
        return (
            f"{percent(distinct / n)} of the rows are distinct in what makes rows the same; it takes {percent(UNIQUE)}"
        )
    if not others:
        return "there is no earlier cycle"
    cycle, shared = max(((cycle, _contained(mine, theirs)) for cycle, theirs, _, _ in others), key=lambda pair: pair[1])
    if shared < REPEATED:
        return None
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{percent(shared)} of the {n:,} rows are, value by value, rows of cycle {cycle}",
        statistic="repeated rows",
        unit="share of rows",
        after=shared,
        threshold=REPEATED,
        error_control=f"no test: rows are unique in {percent(distinct / n)} of cases",
        n=n,
        since=view.cycle,
        reading="measurement_fault",
        detail={"hold": True, "of": cycle},
    )


def _within(view: View, share: float, usual: float, n: int) -> Finding | None:
    if share < MARGIN + 1 - usual:
        return None
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{percent(share)} of the {n:,} rows repeat another row of the cycle, value by value; "
        f"{percent(1 - usual)} in earlier cycles",
        statistic="repeated rows",
        unit="share of rows",
        before=1 - usual,
        after=share,
        effect=share + usual - 1,
        error_control=f"no test: rows were unique in {percent(usual)} of cases before",
        n=n,
        since=view.cycle,
        reading="measurement_fault",
        detail={"hold": True},
    )


def _sketch(view: View, cycle: int | None) -> tuple[npt.NDArray[np.uint64], int, int]:
    """The smallest distinct hashes of a cycle's rows, and how many rows and distinct ones there are."""
    sql = f"""
        WITH hashed AS (SELECT DISTINCT hash({", ".join(CONTENT)}) AS hash FROM observations)
        SELECT hash, (SELECT count(*) FROM observations) AS rows, (SELECT count(*) FROM hashed) AS distinct
        FROM hashed ORDER BY hash LIMIT {SKETCH}
    """.replace("AS distinct", 'AS "distinct"')

    def make() -> pa.Table:
        return view.query(sql, [cycle]).cast(_HASHES)

    table = derived(
        view.lake, NAME, cycle, version=content_id("rows/1", sql), parts=[("observations", [cycle])], make=make
    )
    if not table.num_rows:
        return np.zeros(0, dtype=np.uint64), 0, 0
    return table["hash"].to_numpy(), table["rows"][0].as_py(), table["distinct"][0].as_py()


def _contained(mine: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> float:
    """Share of my rows that they have, from the hashes below the smaller sketch's end."""
    ends = [each[-1] for each in (mine, theirs) if len(each) == SKETCH]
    end = min(ends) if ends else np.iinfo(np.uint64).max
    here = mine[mine <= end]
    return float(np.isin(here, theirs).mean()) if len(here) else 0.0


# -- evaluation --------------------------------------------------------------------------------------------------


def _evaluation(view: View) -> Finding | str | None:
    base = before_cycle(view)
    counted = shares(view, "rows-wrong-traffic", {"evaluation": EVALUATION}, [*base, view.cycle])
    x, n = counted.x["evaluation"][:, 0], counted.n["evaluation"][:, 0]
    seen = step(x[:-1], n[:-1], x[-1], n[-1], RATE) if n[-1] >= FEWEST_ROWS else None
    if seen is None:
        return "it takes three earlier cycles to compare with"
    if seen.effect < MARGIN or seen.z < seen.threshold:
        return None
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=f"evaluation traffic: {percent(seen.before)} -> {percent(seen.after)} of the rows, n={seen.n:,}; the "
        "cycle's own rows may have been overwritten",
        statistic="evaluation traffic",
        unit="share of rows",
        error_control=f"{RATE:g} false alarms per cycle, Student t with overdispersion",
        since=view.cycle,
        reading="measurement_fault",
        evidence=evidence(view, EVALUATION.holds),
        detail={"hold": True},
    )
    return seen.told(found, least=MARGIN)


def _evaluation_trained(view: View) -> Finding | str | None:
    marked = view.query(f"SELECT count_if({EVALUATION.holds}) AS n FROM observations")["n"][0].as_py()
    if not marked and view.cycle in view.lake.cycles("samples"):
        return None
    found = _joined(
        view,
        "SELECT count_if(trained) AS n, count_if(trained AND traffic = 'evaluation') AS x FROM observations "
        "JOIN offered USING (interaction_id)",
    )
    if found is None:
        return "the trainer logged no sample of this cycle"
    if not found["x"]:
        return None
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{found['x']:,} of {found['n']:,} samples trained on are evaluation traffic",
        statistic="evaluation trained on",
        unit="share of samples trained on",
        after=found["x"] / found["n"],
        error_control="no test: a count",
        n=found["n"],
        since=view.cycle,
        evidence=evidence(view, EVALUATION.holds),
    )


# -- thrown away -------------------------------------------------------------------------------------------------


def _not_offered(view: View) -> Finding | str | None:
    found = _joined(
        view,
        "SELECT count(*) AS n, count_if(told.interaction_id IS NULL) AS x FROM observations LEFT JOIN "
        "(SELECT DISTINCT interaction_id FROM offered) AS told USING (interaction_id) "
        "WHERE included IS NOT FALSE AND reward_status = 'valid'",
    )
    if found is None:
        return "the trainer logged no sample of this cycle"
    return _thrown(view, found["x"], found["n"], "rows with a reward were never offered to the trainer")


def _not_scored(view: View) -> Finding | str | None:
    if view.cycle not in view.lake.cycles("interactions"):
        return "the lake has no interactions of this cycle, only their rows"
    stored = view.lake.scan("interactions", ("interaction_id",), cycles=[view.cycle])
    known = view.scan(["interaction_id"])
    lost = view.lake.query(
        "SELECT count(*) AS x FROM (SELECT DISTINCT interaction_id FROM stored) ANTI JOIN known USING (interaction_id)",
        stored=stored,
        known=known,
    )["x"][0].as_py()
    return _thrown(view, lost, stored.num_rows, "interactions of the cycle have no row")


def _thrown(view: View, lost: int, n: int, what: str) -> Finding | str | None:
    if n < FEWEST_ROWS:
        return f"{n} of them; it takes {FEWEST_ROWS}"
    if lost < LOST * n:
        return None
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{lost:,} of {n:,} {what} ({percent(lost / n)}), and nothing says why",
        statistic=what,
        unit="share of rows",
        after=lost / n,
        threshold=LOST,
        error_control="no test: a count",
        n=n,
        since=view.cycle,
        reading="measurement_fault",
        detail={"hold": True},
    )


def _joined(view: View, sql: str) -> dict[str, int] | None:
    """The answer to a query over the cycle's rows and what was offered to the trainer in it and the next one."""
    logged = view.lake.cycles("samples")
    if view.cycle is None or view.cycle not in logged:
        return None
    offered = view.lake.scan(
        "samples",
        ("interaction_id", "trained"),
        cycles=[each for each in (view.cycle, view.cycle + 1) if each in logged],
    )
    with view.lake.connect(["observations"], [view.cycle]) as connection:
        connection.register("offered", offered)
        row = connection.execute(sql).to_arrow_table().to_pylist()[0]
    return {name: int(value or 0) for name, value in row.items()}
