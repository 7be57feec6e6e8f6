"""An experiment's report from observations: who was in which arm, what each arm's users got, and what differs.

    observations of the arms  --(DuckDB)-->  sums per unit  -->  figure and influence per arm  -->  effects

Each metric is a figure of an arm's units with the *influence* of each unit, so that means, ratios, quantiles and
Kaplan-Meier shares are compared in one way: the variance of the influences over the units is the figure's, whatever one
unit's rows have in common. Ratios are linearised over units (delta method), quantiles have the clustered variance of
Deng, Knoblich and Lu (2018), lasting edits that of `palomar.detectors.survival`.

Units that were served by more than one arm are left out, and counted. Users who come back are looked at again with all
they have done since; `palomar bench experiment` measures that intervals hold then too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.clock import HORIZONS, Horizon
from palomar.data.lake import Lake
from palomar.detectors.confidence import Arm, Contrast, cuped, difference, relative_sequence, sequence, tuned
from palomar.detectors.cube import sums_of
from palomar.detectors.experiment import Better, Effect, ExperimentReport, Plan, Validity
from palomar.detectors.sample_ratio import e_value
from palomar.detectors.statistics import STATISTICS, Statistic
from palomar.detectors.survival import lasting

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ASSIGNMENT_ALPHA = 0.001
"""Error of each check of the assignment, however often one looks."""
MULTIPLE_EXPOSURE = 0.01
"""Share of units in more than one arm from which on the arms are mixed."""
MIN_EVENTS = 10
"""Units of both arms together in which something must have been counted: fewer have no normal mean."""
_Z = 1.959963984540054

OWN = (
    Statistic(
        name="edits_per_request",
        title="Edits per request",
        unit="edits per interaction",
        kind="mean",
        numerator="edits",
        good="up",
        description="Edits tried per request. It falls when edits are put off.",
    ),
    Statistic(
        name="latency_p95",
        title="Latency, 95 %",
        unit="s",
        kind="quantile",
        numerator="latency_s",
        quantile=0.95,
        good="down",
        description="95 % of requests waited at most this long.",
    ),
)
"""Metrics that are shown for arms only."""

_UNITS = {"user": "user_id", "organisation": "organisation", "conversation": "conversation_id"}
_BETTER: Mapping[str, Better] = {"up": "up", "down": "down", "neither": "none"}
_SEGMENTS = ("organisation", "work_kind")


def metrics_of(plan: Plan) -> tuple[Statistic, ...]:
    """The metrics of a plan. Raises ValueError for a name that no statistic has."""
    known = {**STATISTICS, **{each.name: each for each in (*OWN, *map(_lasting_edits, HORIZONS))}}
    names = plan.metrics or (
        f"edit_persistence_{plan.horizon}",
        f"lasting_edit_rate_{plan.horizon}",
        "dissatisfied_rate",
        "latency_p50",
        "latency_p95",
        "invalid_call_rate",
        "clarification_rate",
        "clarification_rate_clear",
        "edits_per_request",
        "function_lines_mean",
        "outcome_mean",
    )
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no metric {unknown[0]!r}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names)


def _lasting_edits(horizon: Horizon) -> Statistic:
    return Statistic(
        name=f"lasting_edit_rate_{horizon.name}",
        title=f"Requests with an edit that lasts {horizon.name}",
        unit="share of interactions",
        kind="survival",
        numerator="CASE WHEN edited THEN edit_lost_s ELSE 0 END",
        denominator="watched_s",
        horizon=horizon,
        good="up",
        description="As edit persistence, and a request without an edit has none that lasts. Persistence rises for who "
        "edits only where it is easy; this does not.",
    )


def report(lake: Lake, plan: Plan, before: Lake | None = None) -> ExperimentReport | None:
    """The experiment as the lake has it now; None where no row of it is there.

    ``before``: lake that holds the plan's time before, where it is another one.
    """
    metrics = metrics_of(plan)
    with lake.connect(["observations"]) as connection:
        _prepare(connection, plan)
        ((rows, as_of),) = connection.execute("SELECT count(*), max(as_of) FROM served").fetchall()
        if not rows:
            return None
        validity = _validity(connection, plan)
        figures = {metric.name: figures_by_arm(connection, metric) for metric in metrics}
        names = dict(connection.execute("SELECT number, unit FROM units").fetchall())
    earlier = _earlier(before or lake, plan, metrics, names) if plan.before is not None else {}
    broken = next((each for each in validity if each.status == "fail"), None)
    effects = [
        _effect(plan, metric, pair, figures[metric.name], before=earlier.get(metric.name), broken=broken)
        for pair in plan.comparisons
        for metric in metrics
    ]
    return ExperimentReport(
        name=plan.name,
        arms={name: arm.checkpoint for name, arm in plan.arms.items()},
        effects=tuple(effects),
        validity=validity,
        as_of=as_of.astimezone(UTC) if isinstance(as_of, datetime) else datetime.now(UTC),
        alpha=plan.alpha,
    )


def arms_in(lake: Lake) -> list[dict[str, object]]:
    """The arms that interactions name: each with its checkpoint, traffic, cycles, users and number of interactions."""
    with lake.connect(["observations"]) as connection:
        table = connection.execute(
            "SELECT arm, checkpoint, traffic, min(cycle) AS first_cycle, max(cycle) AS last_cycle, "
            "count(DISTINCT user_id) AS users, count(*) AS interactions "
            "FROM observations WHERE arm IS NOT NULL GROUP BY arm, checkpoint, traffic ORDER BY first_cycle, arm"
        ).to_arrow_table()
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def _prepare(connection: duckdb.DuckDBPyConnection, plan: Plan) -> None:
    """Makes ``served`` (rows of the experiment), ``units`` (one row each, numbered) and ``mine`` (rows of one arm)."""
    arms, traffic = (", ".join(_text(each) for each in names) for names in (plan.arms, plan.traffic))
    conditions = [f"arm IN ({arms})", f"traffic IN ({traffic})"]
    if plan.first_cycle is not None:
        conditions.append(f"cycle >= {plan.first_cycle}")
    if plan.last_cycle is not None:
        conditions.append(f"cycle <= {plan.last_cycle}")
    unit = _UNITS[plan.unit]
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW served AS SELECT *, {unit} AS unit FROM observations "
        f"WHERE {' AND '.join(conditions)}"
    )
    first = ", ".join(f"arg_min({name}, moment) AS {name}" for name in ("arm", *_SEGMENTS))
    watched = f"watched_s >= {plan.lasting.seconds}"
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE units AS SELECT row_number() OVER (ORDER BY began, unit) - 1 AS number, * FROM ("
        f"SELECT unit, {first}, min(moment) AS began, count(DISTINCT arm) AS arms, bool_or({watched}) AS matured FROM "
        "(SELECT *, coalesce(epoch_us(started_at), cycle, 0) AS moment FROM served WHERE unit IS NOT NULL) "
        "GROUP BY unit)"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW mine AS SELECT served.*, units.number FROM served JOIN units USING (unit) "
        "WHERE units.arms = 1"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# -- may it be believed? ---------------------------------------------------------------------------------------------


def _validity(connection: duckdb.DuckDBPyConnection, plan: Plan) -> tuple[Validity, ...]:
    units = connection.execute("SELECT arm, arms, matured, organisation, work_kind FROM units ORDER BY number")
    table = units.to_arrow_table()
    code = {name: index for index, name in enumerate(plan.arms)}
    arm = np.array([code[name] for name in table["arm"].to_pylist()], dtype=np.int64)
    ((rows, nameless, wrong),) = connection.execute(
        "SELECT count(*), count_if(unit IS NULL), count_if(checkpoint IS DISTINCT FROM CASE arm "
        + " ".join(f"WHEN {_text(name)} THEN {_text(each.checkpoint)}" for name, each in plan.arms.items())
        + " END) FROM served"
    ).fetchall()
    matured = np.array(table["matured"].fill_null(False).to_pylist(), dtype=bool)
    segments = {
        f"{name}={value}": np.array([each == value for each in column])
        for name in _SEGMENTS
        for column in [table[name].to_pylist()]
        for value in sorted({each for each in column if each is not None})
    }
    return (
        _ratio_check("assignment", "drawn into the arms", {"all": np.ones(len(arm), bool)}, arm, plan),
        _ratio_check("assignment by segment", "drawn into the arms", segments, arm, plan),
        _ratio_check("assignment of the mature", f"watched for {plan.horizon}", {"all": matured}, arm, plan),
        _share_check(
            "multiple exposure",
            (int((table["arms"].to_numpy() > 1).sum()), table.num_rows),
            MULTIPLE_EXPOSURE,
            "units were served by more than one arm",
        ),
        _share_check("units without a name", (nameless, rows), MULTIPLE_EXPOSURE, f"interactions name no {plan.unit}"),
        _share_check("checkpoint of the arm", (wrong, rows), 0.0, "interactions are of another checkpoint"),
    )


def _ratio_check(name: str, what: str, groups: Mapping[str, npt.NDArray[np.bool_]], arm: Ints, plan: Plan) -> Validity:
    """The largest e-value over all looks, one after each unit; of several groups the largest, over their number."""
    threshold = 1 / ASSIGNMENT_ALPHA
    shares = np.array([each.share for each in plan.arms.values()])
    one_hot = np.eye(len(shares), dtype=np.int64)[arm]
    found: dict[str, float] = {}
    for group, inside in groups.items():
        if inside.any():
            with np.errstate(over="ignore"):
                found[group] = float(min(e_value(one_hot[inside], shares).max(), 1e300)) / len(groups)
    if not found:
        return Validity(name, "unknown", None, threshold, f"no unit was {what} so far")
    worst = max(found, key=lambda group: found[group])
    value = found[worst]
    if value < threshold:
        return Validity(name, "pass", value, threshold, "")
    counts = one_hot[groups[worst]].sum(axis=0)
    seen = ", ".join(f"{share / counts.sum():.1%} of {each}" for each, share in zip(plan.arms, counts, strict=True))
    wanted = ", ".join(f"{share:.1%}" for share in shares)
    where = "" if worst == "all" else f" in {worst}"
    return Validity(name, "fail", value, threshold, f"units {what}{where}: {seen}; planned are {wanted}")


def _share_check(name: str, counts: tuple[int, int], threshold: float, what: str) -> Validity:
    """Fails from ``threshold`` on; at a threshold of 0, with the first one."""
    count, among = counts
    if not among:
        return Validity(name, "unknown", None, threshold, "there is nothing to count")
    share = count / among
    fails = count > 0 and share >= threshold
    return Validity(name, "fail" if fails else "pass", share, threshold, f"{count:,} {what}" if fails else "")


# -- what each arm's users got ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One metric of one group of units."""

    value: float
    units: Ints
    """Numbers of the units that count."""
    influence: Floats
    """(units,), mean 0: value + the mean of these over other units is what those would have."""
    events: int
    """Units in which something was counted (and, of a share, something was not)."""
    at_risk: int | None = None
    """Of lasting edits."""


@dataclass(frozen=True)
class NoFigure:
    """Why one metric of one group has no figure."""

    status: str
    """As an effect's."""
    why: str


def figures_by_arm(connection: duckdb.DuckDBPyConnection, metric: Statistic) -> dict[str, Figure | NoFigure]:
    """By arm; one without rows is missing. Asks the connection's ``mine``: observations with ``arm`` and ``number``."""
    if metric.kind in ("survival", "quantile"):
        columns, conditions = _row_columns(metric)
        query = f"SELECT arm, number, {columns} FROM mine WHERE {conditions} ORDER BY number"
        of: Callable[..., Figure | NoFigure] = _lasting if metric.kind == "survival" else _quantile
    else:
        query = f"SELECT arm, number, {_sum_columns(metric)} FROM mine GROUP BY arm, number ORDER BY number"
        of = _ratio
    table = connection.execute(query).to_arrow_table()
    arms = table["arm"].combine_chunks().dictionary_encode()
    code = np.asarray(arms.indices)
    columns_ = [table.column(index).to_numpy().astype(np.float64) for index in range(2, table.num_columns)]
    number = table["number"].to_numpy()
    return {
        name: of(metric, number[code == index], *(column[code == index] for column in columns_))
        for index, name in enumerate(arms.dictionary.to_pylist())
    }


def _sum_columns(metric: Statistic) -> str:
    roles = sums_of(metric)
    unripe = roles.get("unripe", "0")
    return ", ".join(f"coalesce(({sql})::DOUBLE, 0)" for sql in (roles["x"], roles.get("y", roles["n"]), unripe))


def _row_columns(metric: Statistic) -> tuple[str, str]:
    where = f"({metric.where})"
    if metric.kind == "quantile":
        return f"({metric.numerator})::DOUBLE", f"{where} AND ({metric.numerator}) IS NOT NULL"
    lost, watched = f"({metric.numerator})", f"({metric.denominator})"
    return (
        f"coalesce({lost}, {watched})::DOUBLE, ({lost} IS NOT NULL)::DOUBLE",
        f"{where} AND coalesce({lost}, {watched}) IS NOT NULL",
    )


def _ratio(metric: Statistic, number: Ints, x: Floats, y: Floats, unripe: Floats) -> Figure | NoFigure:
    counts = y > 0
    if not counts.any():
        if unripe.any():
            return NoFigure("immature", f"{int(unripe.sum()):,} interactions wait for their reaction")
        return NoFigure("too_few", "nothing to count")
    x, y = x[counts], y[counts]
    value = x.sum() / y.sum()
    some = int((x != 0).sum())
    events = min(some, int((x != y).sum())) if metric.kind == "rate" else some
    return Figure(float(value), number[counts], (x - value * y) / y.mean(), events)


def _quantile(metric: Statistic, number: Ints, values: Floats) -> Figure | NoFigure:
    units, place = np.unique(number, return_inverse=True)
    ordered, n = np.sort(values), len(values)
    value = ordered[int(np.ceil(n * metric.quantile)) - 1]
    rows, below = np.bincount(place), np.bincount(place, weights=values <= value)
    moved: Floats = (metric.quantile * rows - below) / rows.mean()  # of the share below, by each unit; mean about 0
    error = float(np.sqrt(moved.var(ddof=1) / len(units))) if len(units) > 1 else 0.0
    # The share's interval, read off the values, is the quantile's; its width is what one unit of share is worth.
    low, high = (int(np.round(n * (metric.quantile + sign * _Z * error))) for sign in (-1, 1))
    if error == 0 or low < 1 or high > n - 1:
        return NoFigure("too_few", f"too few values around {metric.quantile:.0%}")
    width = (ordered[high] - ordered[low - 1]) / (2 * _Z)
    if width <= 0:
        return NoFigure("too_few", f"values are tied at {metric.quantile:.0%}")
    influence: Floats = (moved - moved.mean()).astype(np.float64) * (width / error)
    return Figure(float(value), units, influence, len(units))


def _lasting(metric: Statistic, number: Ints, durations: Floats, lost: Floats) -> Figure | NoFigure:
    assert metric.horizon is not None
    found = lasting(durations, lost > 0, metric.horizon.seconds)
    if found is None:
        return NoFigure("immature", f"no edit was watched for {metric.horizon.name} yet")
    units, place = np.unique(number, return_inverse=True)
    influence = (np.bincount(place, weights=found.influence) * len(units)).astype(np.float64)
    return Figure(found.share, units, influence, len(np.unique(place[lost > 0])), found.at_risk)


# -- what was known before -------------------------------------------------------------------------------------------


def _earlier(lake: Lake, plan: Plan, metrics: Sequence[Statistic], units: Mapping[int, str]) -> dict[str, Floats]:
    """By metric: what each unit's rows before the experiment moved it, (units,), 0 for a unit without; one group."""
    assert plan.before is not None
    first, last = plan.before
    found: dict[str, Floats] = {}
    cycles = [cycle for cycle in lake.numbered("observations") if first <= cycle <= last]
    if not cycles:
        return found
    with lake.connect(["observations"], cycles) as connection:
        connection.register("numbered", pa.table({"number": list(units), "unit": list(units.values())}))
        connection.execute(
            "CREATE OR REPLACE TEMP VIEW mine AS SELECT * EXCLUDE (arm), 'before' AS arm FROM observations "
            f"JOIN numbered ON numbered.unit = observations.{_UNITS[plan.unit]}"
        )
        for metric in metrics:
            figure = figures_by_arm(connection, metric).get("before")
            if isinstance(figure, Figure):
                values = np.zeros(len(units))
                values[figure.units] = figure.influence
                found[metric.name] = values
    return found


# -- what differs ----------------------------------------------------------------------------------------------------


def _effect(
    plan: Plan,
    metric: Statistic,
    pair: tuple[str, str],
    figures: Mapping[str, Figure | NoFigure],
    *,
    before: Floats | None,
    broken: Validity | None,
) -> Effect:
    control, treatment = pair
    sides = [figures.get(name, NoFigure("too_few", f"no interactions of {name} that count")) for name in pair]
    units = {name: len(side.units) if isinstance(side, Figure) else 0 for name, side in zip(pair, sides, strict=True)}
    nothing = Effect(
        metric=metric.name,
        better=_BETTER[metric.good],
        control=control,
        treatment=treatment,
        effect=None,
        low=None,
        high=None,
        relative=None,
        relative_low=None,
        relative_high=None,
        units=units,
        alpha=plan.alpha,
        status="invalid",
        why="" if broken is None else f"{broken.name}: {broken.why}",
        planned=plan.planned_units,
    )
    if broken is not None:
        return nothing
    for name, side in zip(pair, sides, strict=True):
        if isinstance(side, NoFigure):
            return replace(nothing, status=side.status, why=f"{name}: {side.why}")  # type: ignore[arg-type]
    known = [side for side in sides if isinstance(side, Figure)]
    few = min(units, key=lambda name: units[name])
    if units[few] < 2:
        return replace(nothing, status="too_few", why=f"{few}: {units[few]} units")
    arms = _adjusted(known[0], known[1], before)
    contrast = difference(*arms)
    said = replace(
        nothing,
        values={name: side.value for name, side in zip(pair, known, strict=True)},
        effect=contrast.value,
        error=contrast.error,
        status="known",
    )
    if contrast.error > 0:
        said = _with_limits(said, plan, arms, contrast)
    if units[few] < plan.min_units:
        return replace(said, status="too_few", why=f"{few}: {units[few]} units of {plan.min_units}")
    events = sum(side.events for side in known)
    if events < MIN_EVENTS or contrast.error == 0:
        return replace(said, status="too_few", why=f"counted in {events} units; {MIN_EVENTS} are needed")
    for name, side in zip(pair, known, strict=True):
        if side.at_risk is not None and side.at_risk < plan.min_at_risk:
            why = f"{name}: {side.at_risk} edits of {plan.min_at_risk} are watched at {plan.horizon}"
            return replace(said, status="immature", why=why)
    return said


def _with_limits(said: Effect, plan: Plan, arms: tuple[Arm, Arm], contrast: Contrast) -> Effect:
    rho2 = tuned(plan.planned_units, plan.alpha)
    low, high = sequence(contrast, rho2, plan.alpha)
    said = replace(said, low=low, high=high)
    ratio = relative_sequence(*arms, rho2, plan.alpha)
    if ratio is None:
        return said
    return replace(said, relative=ratio[0], relative_low=ratio[1], relative_high=ratio[2])


def _adjusted(control: Figure, treatment: Figure, before: Floats | None) -> tuple[Arm, Arm]:
    """Both arms; with what their units did before, where that is known, taken out (`confidence.cuped`)."""
    values = [side.value + side.influence for side in (control, treatment)]
    if before is None:
        return Arm.of(values[0]), Arm.of(values[1])
    return cuped((before[control.units], values[0]), (before[treatment.units], values[1]))
