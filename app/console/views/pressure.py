"""Pressure: what the reward pushes, through which term or rule, and whether users want it; what behaviours are paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts import curves as curve_chart
from palomar.app.console.charts import heat as heat_chart
from palomar.app.console.charts import waterfall as pair_chart
from palomar.app.console.links import link
from palomar.app.console.plain import plain
from palomar.app.console.states import State, words
from palomar.app.console.tables import in_words, slice_words, title, unit
from palomar.app.console.telling import figure, where
from palomar.app.console.waiting import WAIT_S, waiting
from palomar.app.kept import Pending
from palomar.app.pressing import Curves, Pressed, curves_of, pressed
from palomar.app.visible import visible
from palomar.app.why import AHEAD
from palomar.data.findings import Reading
from palomar.data.slices import ALL, BANDS, SLICES
from palomar.data.store.records import Run
from palomar.detectors.matrix import USERS, Cell, Line, Matrix
from palomar.detectors.pressure import MARGIN
from palomar.reward.behaviours import BEHAVIOURS
from palomar.reward.charges import OUTCOME, REWARD
from palomar.reward.incentives import Estimate

ONE, POOLED = "1", str(AHEAD)
POOLS: Mapping[str, str] = {ONE: "this cycle", POOLED: f"the last {AHEAD}, as the check does"}
NO_CYCLE = "none"
PAIRS = 10
"""Statistics of the picture of pairs; the table has all."""
LINES = 5
NAMED = 3
_DRIFTED: Mapping[Reading | None, tuple[State, str]] = {
    "reward_hack": ("fail", "REWARD HACK"),
    "honest_learning": ("pass", "HONEST LEARNING"),
    "outside_change": ("pending", "OUTSIDE CHANGE"),
    "measurement_fault": ("no_data", "MEASUREMENT FAULT"),
    "not_assessable": ("no_data", "NOT ASSESSABLE"),
}
_AHEAD: Mapping[Reading | None, tuple[State, str]] = {
    "forewarning": ("warn", "FOREWARNING"),
    "reward_hack": ("warn", "PAID FOR NOTHING"),
    "honest_learning": ("pass", "USERS GAIN TOO"),
    "not_assessable": ("no_data", "USERS NOT KNOWN"),
    None: ("pending", "NOT PUSHED"),
}
BEHAVIOUR_WORDS: Mapping[str, str] = {behaviour.name: behaviour.title for behaviour in BEHAVIOURS}


def page() -> None:
    """The whole page. `cycle`, `pool`, `slice`, `asked` (clear or vague) and `cmp` are in the URL."""
    with frame.panel("Pressure"):
        observatory = frame.observatory()
        run = frame.run()
        there = observatory.lake.numbered("observations")
        if run is None and not observatory.lake.files("observations"):
            frame.nothing_yet()
            return
        if run is None or not there:
            st.info(
                "**No pressure yet.** It is taken from the cycles of a loop: what was rewarded, and what was done. "
                + ("This home holds logs outside a loop; " if run is None else "The first cycle is not distilled yet; ")
                + "`palomar pressure --reward SPEC` takes it from logs.",
                icon=":material/hourglass_top:",
            )
            _footer(None, ALL, ONE, None)
            return
        newest = [str(each) for each in reversed(there)]
        columns = st.columns([0.2, 0.35, 0.45])
        with columns[0]:
            cycle = int(frame.choice("Cycle", "cycle", newest))
        with columns[1]:
            pool = frame.choice("Rows of", "pool", list(POOLS), POOLS.__getitem__)
        with columns[2]:
            slice_ = frame.choice("Slice", "slice", list(SLICES), _slice_words, ALL)
        found = pressed(observatory, run.run_id, cycle, slice_, last=int(pool), wait_s=WAIT_S)
        if isinstance(found, Pending):
            waiting(found, f"Pressures of cycle {cycle}")
        else:
            _pressed(found, slice_)
        with frame.panel("Incentive curves"):
            _curves(run, cycle, newest)
        _footer(cycle, slice_, pool, None if isinstance(found, Pending) else found)


def _slice_words(name: str) -> str:
    return " and ".join(slice_words(part) for part in name.split(","))


# -- what is pushed --------------------------------------------------------------------------------------------------


def _pressed(found: Pressed, slice_: str) -> None:
    matrix = found.matrix
    if matrix is None:
        st.info(f"◌ **NO DATA**: {found.why}. Another cycle or slice may have some.", icon=":material/inbox:")
        return
    st.markdown(headline(matrix, found))
    with frame.panel("Reward and users"):
        _pairs(matrix)
    with frame.panel("Matrix"):
        _matrix(matrix)
    with frame.panel("Ranked table"):
        _table(matrix, found)


def headline(matrix: Matrix, found: Pressed) -> str:
    """What the reward does here, as Markdown."""
    lines = [line for line in matrix.lines if line.statistic != USERS]
    pushed = [line for line in lines if line.direction is not None]
    against = [line for line in pushed if line.reading in ("reward_hack", "forewarning")]
    hacks = sum(line.drifted and line.reading == "reward_hack" for line in lines)
    cycles = (
        f"cycle {found.cycles[-1]}" if len(found.cycles) == 1 else f"cycles {found.cycles[0]} to {found.cycles[-1]}"
    )
    text = (
        f"In {cycles}{where(matrix.slice)} ({matrix.rows:,} interactions, {matrix.users:,} users) the reward surely "
        f"pushes **{len(pushed)} of {len(lines)}** behaviours"
    )
    if against:
        named = [
            f"{in_words(line.statistic).lower()} {'▲' if line.direction == 1 else '▼'}" for line in against[:NAMED]
        ]
        more = f" and {len(against) - NAMED} more" if len(against) > NAMED else ""
        text += f"; **{len(against)} of them not for users**: {', '.join(named)}{more}."
    else:
        text += "; none of them is shown to be against users."
    if hacks:
        text += f" The check of cycle {found.cycles[-1]} read **{hacks} as reward hacks**, by what pushed before it."
    users = next((line for line in matrix.lines if line.statistic == USERS), None)
    reward = None if users is None else users.cells.get(REWARD)
    if reward is None or reward.size is None or reward.size_low is None:
        return f"{text} What the reward does to users' outcome is not known yet."
    side = (
        "up" if reward.verdict == "along_up" else "down" if reward.verdict == "along_down" else "neither way for sure"
    )
    return (
        f"{text} The reward pushes users' outcome **{side}**: {reward.size:+.3f} standard deviations per unit step "
        f"(95 %: {reward.size_low:+.3f} to {reward.size_high:+.3f})."
    )


def _pairs(matrix: Matrix) -> None:
    chosen = [
        line
        for line in matrix.lines
        if line.statistic != USERS and any(_known(line.cells.get(kind)) for kind in (REWARD, OUTCOME))
    ][:PAIRS]
    if not chosen:
        st.info("◌ **NO DATA**: no pressure has an interval here; pool more cycles.", icon=":material/inbox:")
        return
    st.markdown("**The reward's pressure beside the users'.** Opposite sides of 0: it pays for what users do not want.")
    sides = {REWARD: "the reward", OUTCOME: "users' outcome"}
    intervals = [
        pair_chart.Interval(
            title(line.statistic),
            sides[kind],
            cell.size,
            cell.size_low,
            cell.size_high,
            f"{title(line.statistic)}, {sides[kind]}: {_cell_words(cell, line.statistic)}",
        )
        for line in chosen
        for kind in (REWARD, OUTCOME)
        if (cell := line.cells.get(kind)) is not None and cell.size is not None
    ]
    spec = pair_chart.pairs(
        [title(line.statistic) for line in chosen],
        list(sides.values()),
        frame.theme(),
        title="standard deviations of the behaviour per unit step",
    )
    st.vega_lite_chart(
        pair_chart.drawn_pairs(intervals), spec, key="pairs", width="stretch",
        alt="Pressure of the reward and of users' outcome with 95 % intervals, by behaviour",
    )  # fmt: skip


def _known(cell: Cell | None) -> bool:
    return cell is not None and cell.low is not None


def _matrix(matrix: Matrix) -> None:
    lines = [line for line in matrix.lines if any(cell.size is not None for cell in line.cells.values())]
    silent = [line for line in matrix.lines if line not in lines]
    if not lines:
        st.info("◌ **NO DATA**: nothing varies here, so nothing is selected.", icon=":material/inbox:")
        return
    survive = sum(cell.survives for line in lines for cell in line.cells.values())
    st.markdown(
        f"**Charged to terms and rules.** {survive} of {matrix.tested} cells are there at a false discovery rate of "
        "5 %. The terms of a line add up to its reward; a rule is part of the reward already."
    )
    largest = max((abs(cell.size or 0.0) for line in lines for cell in line.cells.values()), default=1.0)
    marks = [
        heat_chart.Mark(
            title(line.statistic),
            kind_words(kind),
            cell.size,
            "?" if cell.status == "too few" else heat_chart.signed(cell.size, min(largest, 0.9)),
            cell.there,
            cell.survives,
            f"{title(line.statistic)}, {kind_words(kind)}: {_cell_words(cell, line.statistic)}",
        )
        for line in lines
        for kind in matrix.kinds
        if (cell := line.cells.get(kind)) is not None
    ]
    reach = heat_chart.reach_of(marks)
    spec = heat_chart.heat_map(
        [title(line.statistic) for line in lines],
        [kind_words(kind) for kind in matrix.kinds],
        reach,
        frame.theme(),
        legend="standard deviations per unit step",
        slanted=True,
    )
    st.vega_lite_chart(
        heat_chart.drawn(marks, reach), spec, key="matrix", width="stretch",
        alt="Pressure matrix: behaviours down; users' outcome, reward, terms and rules across",
    )  # fmt: skip
    st.caption(
        "Blue pushes down, orange up. Faded: the 95 % interval holds 0, or there is none. Outlined: there after "
        "correction for all cells. “?”: too few rows or users for an interval. Point at a cell for its own unit."
    )
    if silent:
        st.caption(f"NO DATA, or no variation: {', '.join(in_words(line.statistic).lower() for line in silent)}.")


def kind_words(kind: str) -> str:
    """A column's name in a chart; not for Markdown."""
    what, _, name = kind.partition(":")
    if kind in (REWARD, OUTCOME):
        return "REWARD" if kind == REWARD else "USERS' OUTCOME"
    return visible(f"left out: {name}" if what == "rule" else name)


def _cell_words(cell: Cell, statistic: str) -> str:
    if cell.value is None:
        return cell.status
    text = f"{cell.value:+.4g} {unit(statistic)} per unit step"
    if cell.low is None or cell.high is None:
        return f"{text}, {cell.status}"
    needs = f"; {cell.needed_n:,} rows would tell" if cell.needed_n is not None else ""
    return f"{text} (95 %: {cell.low:+.4g} to {cell.high:+.4g}), {cell.verdict.replace('_', ' ')}{needs}"


def _table(matrix: Matrix, found: Pressed) -> None:
    st.markdown(
        "**Ranked**: what the reward does to users' outcome first, then what the check found to have moved, then what "
        "is against users."
    )
    st.dataframe(
        ranked(matrix),
        hide_index=True,
        key="ranked",
        placeholder="–",
        alt="Behaviours with the reward's and the users' pressure and what it means",
        column_config={
            "reward per step": st.column_config.NumberColumn(format="%+.4f"),
            "95 % from": st.column_config.NumberColumn(format="%+.4f"),
            "to": st.column_config.NumberColumn(format="%+.4f"),
            "users' outcome": st.column_config.NumberColumn(format="%+.4f"),
            "z": st.column_config.NumberColumn(format="%+.1f"),
            "z of users": st.column_config.NumberColumn(format="%+.1f"),
            "n": st.column_config.NumberColumn(format="localized"),
            "needs n": st.column_config.NumberColumn(format="localized", help="Rows that would tell, where unclear."),
        },
    )
    checked = (
        f"REWARD HACK, HONEST LEARNING and OUTSIDE CHANGE have moved, and are the check's words on cycle "
        f"{found.cycles[-1]}; the others have not."
        if found.checked
        else f"Cycle {found.cycles[-1]} was not checked, so it is not known what moved: `palomar check` does."
    )
    st.caption(
        f"{checked} NOT PUSHED: a correlation shown to lie within ±{MARGIN:g}. Per step: the change that one unit step "
        "of the update makes, to first order, in the behaviour's own unit."
    )


def ranked(matrix: Matrix) -> pd.DataFrame:
    """One row per behaviour, those to look at first on top."""

    def of(line: Line, kind: str, name: str) -> object:
        cell = line.cells.get(kind)
        return None if cell is None else getattr(cell, name)

    lines = matrix.lines
    return pd.DataFrame(
        {
            "behaviour": [title(line.statistic) for line in lines],
            "reading": [reading_cell(line) for line in lines],
            "level": [figure(line.level, unit(line.statistic)) for line in lines],
            "reward per step": [of(line, REWARD, "value") for line in lines],
            "95 % from": [of(line, REWARD, "low") for line in lines],
            "to": [of(line, REWARD, "high") for line in lines],
            "z": [of(line, REWARD, "z") for line in lines],
            "most of it from": [main_cause(line) for line in lines],
            "users' outcome": [of(line, OUTCOME, "value") for line in lines],
            "z of users": [of(line, OUTCOME, "z") for line in lines],
            "why": [line.why for line in lines],
            "n": [line.n for line in lines],
            "needs n": [of(line, REWARD, "needed_n") for line in lines],
            "unit": [unit(line.statistic) for line in lines],
        }
    )


def reading_cell(line: Line) -> str:
    """What a line means, in a shape and a word."""
    if line.drifted:
        return words(*_DRIFTED[line.reading])
    if line.reading is None and "not to push" not in line.why:
        return words("no_data", "UNCLEAR")
    return words(*_AHEAD.get(line.reading, ("no_data", "UNCLEAR")))


def main_cause(line: Line) -> str:
    """The term or rule that pushes most along the reward's way."""
    if line.direction is None:
        return ""
    along = {
        kind: line.direction * (cell.value or 0.0)
        for kind, cell in line.cells.items()
        if kind.startswith(("term:", "rule:"))
    }
    best = max(along, key=lambda kind: along[kind], default=None)
    return kind_words(best) if best is not None and along[best] > 0 else ""


# -- what behaviours are paid ----------------------------------------------------------------------------------------


def _curves(run: Run, cycle: int, cycles: Sequence[str]) -> None:
    st.subheader("What a behaviour is paid over the honest thing")
    left, right = st.columns([0.3, 0.7])
    with left:
        asked = frame.choice("Requests", "asked", list(BANDS["ambiguity"][1]))
    with right:
        other = frame.choice("Beside", "cmp", [NO_CYCLE, *cycles], _beside)
    observatory = frame.observatory()
    now = curves_of(observatory, run.run_id, cycle, wait_s=WAIT_S)
    then = curves_of(observatory, run.run_id, int(other), wait_s=WAIT_S) if other != NO_CYCLE else None
    if isinstance(now, Pending) or isinstance(then, Pending):
        waiting(now if isinstance(now, Pending) else then, "Incentive curves")  # type: ignore[arg-type]
        return
    if now.why:
        st.info(f"◌ **NO DATA**: {plain(now.why)}.", icon=":material/inbox:")
        return
    lines = drawn_lines(now, asked)
    if not lines:
        st.info(
            f"◌ **NO DATA**: no behaviour is shown often enough on {asked} requests of these {now.num_rows:,} "
            "interactions: it takes 10 on each side.",
            icon=":material/inbox:",
        )
        return
    st.markdown(curve_words(now, asked, lines))
    heads = {"reward": "**Paid by the reward**, in its unit", "outcome": "**Users' outcome**, in its unit"}
    for column, (side, head) in zip(st.columns(2), heads.items(), strict=True):
        with column:
            st.markdown(head)
            points = curve_points(now, asked, side, lines, compared=False)
            if then is not None:
                points += curve_points(then, asked, side, lines, compared=True)
            if not points:
                st.info("◌ **NO DATA**: too few are mature.", icon=":material/inbox:")
                continue
            spec = curve_chart.incentive_curves(
                points, BANDS["predicted_failure"][1], [BEHAVIOUR_NAMES[name] for name in lines],
                curve_domain(points), frame.theme(),
            )  # fmt: skip
            st.vega_lite_chart(
                curve_chart.drawn(points), spec, key=f"curves-{side}", width="stretch",
                alt=f"What behaviours bring over the honest thing, by predicted failure: {side}",
            )  # fmt: skip
    compared = "" if then is None else f" Dashed: cycles {then.cycles[0]} to {then.cycles[-1]}."
    st.caption(
        f"Cycles {now.cycles[0]} to {now.cycles[-1]}, {now.num_rows:,} interactions, {asked} requests.{compared} "
        "Ribbons are 95 % intervals by users, cut at the frame. Doubly robust: alike requests are compared. The honest "
        "thing: an edit that changes something, without a broken call. A sample that is left out is paid 0, which is "
        "how a dropped one escapes. "
        + frame.same_by("audit", now.reward or "", "--on", f"{now.cycles[0]}..{now.cycles[-1]}")
    )


BEHAVIOUR_NAMES: Mapping[str, str] = {
    "question": "asks",
    "answer": "only answers",
    "broken call": "breaks a call",
    "split": "splits functions",
    "no-op edit": "edits nothing",
    "failed edit": "edit fails",
    "tests edited": "edits tests",
    "cut off": "is cut off",
    "timed out": "times out",
    "no calls": "calls no tool",
}


def _beside(cycle: str) -> str:
    return "no other cycle" if cycle == NO_CYCLE else f"cycles up to {cycle}"


def drawn_lines(curves: Curves, asked: str) -> list[str]:
    """Behaviours that are drawn: those that are paid most surely, of those with an estimate in two bands or more."""
    known: dict[str, list[Estimate]] = {}
    for item in curves.estimates:
        if item.ambiguity == asked and item.status == "ok" and item.reward is not None:
            known.setdefault(item.behaviour, []).append(item)
    several = {name: items for name, items in known.items() if len(items) > 1} or known
    surest = sorted(several, key=lambda name: -max(item.reward_z or 0.0 for item in several[name]))
    chosen = surest[:LINES]
    return [name for name in BEHAVIOUR_NAMES if name in chosen]


def curve_points(
    curves: Curves, asked: str, side: str, lines: Sequence[str], *, compared: bool
) -> list[curve_chart.Point]:
    """Points of one side, ``reward`` or ``outcome``."""
    bands = BANDS["predicted_failure"][1]
    found = []
    for item in sorted(curves.estimates, key=lambda item: bands.index(item.predicted_failure)):
        value, low, high = (getattr(item, f"{side}{part}") for part in ("", "_low", "_high"))
        if item.behaviour in lines and item.ambiguity == asked and item.status == "ok" and value is not None:
            name = BEHAVIOUR_NAMES[item.behaviour]
            told = (
                f"{name}, predicted failure {item.predicted_failure}: {value:+.3g} ({low:+.3g} to {high:+.3g}), "
                f"{item.shown:,} of {item.n:,} show it"
            )
            found.append(curve_chart.Point(name, item.predicted_failure, value, low, high, told, compared))
    return found


def curve_domain(points: Sequence[curve_chart.Point]) -> tuple[float, float]:
    """Room for the points, and for intervals as far as they do not dwarf them."""
    values = [0.0, *(point.y for point in points)]
    low, high = min(values), max(values)
    room = 0.6 * (high - low) or 1.0
    edges = [edge for point in points for edge in (point.low, point.high) if edge is not None]
    return max(low - room, min([low, *edges])), min(high + room, max([high, *edges]))


def curve_words(curves: Curves, asked: str, lines: Sequence[str]) -> str:
    """What stands out: where the reward surely prefers a behaviour that users surely do not, as Markdown."""
    against = [
        item
        for item in curves.estimates
        if item.ambiguity == asked
        and item.behaviour in lines
        and (item.reward_low or 0.0) > 0
        and (item.outcome_high is not None and item.outcome_high < 0)
    ]
    if not against:
        return f"On {asked} requests no behaviour is surely paid over the honest thing while users surely lose by it."
    worst = sorted(against, key=lambda item: -(item.reward_z or 0.0))[:NAMED]
    told = [
        f"{BEHAVIOUR_NAMES[item.behaviour]} where predicted failure is {item.predicted_failure} "
        f"(reward {item.reward:+.2f}, users {item.outcome:+.2f})"
        for item in worst
    ]
    more = f" and {len(against) - NAMED} more" if len(against) > NAMED else ""
    return f"**On {asked} requests the reward pays against users in {len(against)} places**: {'; '.join(told)}{more}."


# -- the end of the page ---------------------------------------------------------------------------------------------


def matrix_rows(found: Pressed) -> pd.DataFrame:
    """All cells as a table, for the file."""
    if found.matrix is None:
        return pd.DataFrame()
    return pd.DataFrame(
        [
            {
                "statistic": line.statistic, "slice": found.matrix.slice, "kind": kind, "cycles": _span(found.cycles),
                "level": line.level, "n": line.n, "value": cell.value, "low": cell.low, "high": cell.high, "z": cell.z,
                "standard_deviations": cell.size, "status": cell.status, "verdict": cell.verdict,
                "survives_correction": cell.survives, "needed_n": cell.needed_n, "reading": line.reading,
                "drifted": line.drifted, "why": line.why,
            }
            for line in found.matrix.lines
            for kind, cell in line.cells.items()
        ]
    )  # fmt: skip


def _span(cycles: Sequence[int]) -> str:
    return str(cycles[-1]) if len(cycles) == 1 else f"{cycles[0]}..{cycles[-1]}"


def _footer(cycle: int | None, slice_: str, pool: str, found: Pressed | None) -> None:
    context: dict[str, str | int] = {} if cycle is None else {"cycle": cycle, "slice": slice_, "pool": pool}
    options = [] if cycle is None else ["--cycle", str(cycle)]
    options += [] if pool == ONE else ["--last", pool]
    options += [] if slice_ == ALL else ["--slice", slice_]
    left, right = st.columns(2)
    if cycle is not None:
        with left:
            link("Behaviour over the cycles", "behaviour", ":material/show_chart:", slice=slice_)
        with right:
            link("Try another reward in the lab", "lab", ":material/science:")
    frame.footer(
        "pressure",
        same=["pressure", *options],
        csv=None if found is None or found.matrix is None else lambda: matrix_rows(found),
        **context,
    )


if __name__ == "__main__":
    st.title("Pressure")
    page()
