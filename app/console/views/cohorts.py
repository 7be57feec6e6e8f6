"""Cohorts: interactions that share something; how many there are over time, and how they differ from others."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pandas as pd
import streamlit as st

from palomar.app.cohorts import (
    NUMBERS,
    RECENT,
    WORDS,
    Choices,
    Cohort,
    CohortError,
    beside,
    choices,
    compared_cycles,
    over_time,
    parse,
    words_of,
)
from palomar.app.console import frame
from palomar.app.console.charts.control import MOST_CYCLES, Panel, control_series, drawn, said
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.tables import in_words, title, unit
from palomar.app.console.waiting import waiting
from palomar.app.kept import Pending
from palomar.app.visible import visible
from palomar.data.store.records import Statistic
from palomar.detectors.cohort import Comparison, Difference, Size

NOT_KNOWN = "(not known)"
NAMED = 5
"""Statistics that are named in a sentence."""
TITLES = {
    "organisation": "Organisation",
    "work_kind": "Kind of work",
    "language": "Language",
    "did": "What the agent did",
    "invalid_call": "Made an invalid call",
    "follow_up": "Follow-up",
    "reward_status": "Reward status",
    "exclusion": "Left out of training by",
    "checkpoint": "Checkpoint",
    "traffic": "Traffic",
    "predicted_failure": "Predicted failure",
    "ambiguity": "Ambiguity",
}


def page() -> None:
    """The whole page. `id` in the URL is the cohort itself, `with` another one to set beside it."""
    with frame.panel("Cohorts"):
        frame.run()  # says so where the URL names an unknown one
        if not frame.observatory().lake.files("observations"):
            frame.nothing_yet()
            return
        there = choices(frame.observatory())
        cohort = _asked("id", "The cohort") or Cohort()
        other = _asked("with", "The other cohort")
        _define(cohort, other, there)
        if cohort.everything and other is None:
            st.info(
                "**Everything**: a cohort of all interactions, and nothing to set beside it. Choose above what its "
                "interactions share; the address then names the cohort, and can be sent.",
                icon=":material/groups:",
            )
        with frame.panel("Size"):
            _size(cohort)
        if not (cohort.everything and other is None):
            with frame.panel("Figures"):
                _figures(cohort, other)
        _footer(cohort, other)


def _asked(parameter: str, what: str) -> Cohort | None:
    """The cohort that the URL names; None where it names none, or none that can be read, which is said."""
    text = st.query_params.get(parameter)
    if text is None:
        return None
    try:
        return parse(text)
    except CohortError as exc:
        st.warning(f"**{what} cannot be read**: {plain(text, 120)}. Everything is shown.", icon=":material/help:")
        st.code(shown(str(exc), 500)[0], language=None, wrap_lines=True)
        return None


# -- to define one ---------------------------------------------------------------------------------------------------


def _define(cohort: Cohort, other: Cohort | None, there: Choices) -> None:
    """Both cohorts as forms; what is chosen goes into the URL."""
    left, right = st.columns(2)
    with left.popover("Define the cohort", icon=":material/filter_alt:", width="stretch"):
        _form("id", cohort, there)
    label = "Beside: the rest" if other is None else "Beside: another cohort"
    with right.popover(label, icon=":material/compare:", width="stretch"):
        st.caption("With nothing chosen here, the cohort stands beside all other interactions of the same cycles.")
        _form("with", other or Cohort(), there)


def _form(parameter: str, now: Cohort, there: Choices) -> None:
    # Keys of its own for each cohort: a link that names another one is not overruled by what was chosen before.
    key = f"{parameter}-{sha256(now.id.encode(errors='replace')).hexdigest()[:8]}"
    with st.form(key, border=False):
        columns = st.columns(2)
        for place, name in enumerate(WORDS):
            chosen = [_option(word) for word in now.words.get(name, ())]
            options = sorted({*(_option(word) for word in there.words[name]), *chosen} - {NOT_KNOWN})
            with columns[place % 2]:
                st.multiselect(TITLES[name], [*options, NOT_KNOWN], chosen, key=f"{key}-{name}", placeholder="any")
        for place, name in enumerate(NUMBERS):
            with columns[place % 2]:
                low, high = now.ranges.get(name, (None, None))
                pair = st.columns(2)
                pair[0].number_input(f"{TITLES[name]} from", 0.0, 1.0, low, 0.05, key=f"{key}-{name}-low")
                pair[1].number_input("to", 0.0, 1.0, high, 0.05, key=f"{key}-{name}-high")
        if parameter == "id" and there.cycles:
            pair = st.columns(2)
            first, last = now.cycles
            most = max(there.cycles[-1], last or 0, first or 0)
            pair[0].number_input("Cycles from", 0, most, first, key=f"{key}-first")
            pair[1].number_input("to cycle", 0, most, last, key=f"{key}-last")
        st.form_submit_button("Show", on_click=_choose, args=(parameter, key, there, now))


def _option(word: str | None) -> str:
    return NOT_KNOWN if word is None else visible(word)


def _choose(parameter: str, key: str, there: Choices, now: Cohort) -> None:
    """Writes what a form holds into the URL."""
    state = st.session_state
    words: dict[str, tuple[str | None, ...]] = {}
    for name in WORDS:
        # By what is shown: control characters look otherwise there than in the log.
        by_option = {_option(word): word for word in (*there.words[name], *now.words.get(name, ()))}
        picked = [None if option == NOT_KNOWN else by_option[option] for option in state[f"{key}-{name}"]]
        if picked:
            words[name] = tuple(picked)
    ranges = {
        name: limits
        for name in NUMBERS
        if (limits := (state[f"{key}-{name}-low"], state[f"{key}-{name}-high"])) != (None, None)
    }
    cycles = (state.get(f"{key}-first"), state.get(f"{key}-last"))
    text = Cohort(words, ranges, cycles).id
    if text:
        st.query_params[parameter] = text
    else:
        st.query_params.pop(parameter, None)


# -- what it is ------------------------------------------------------------------------------------------------------


def cohort_words(cohort: Cohort) -> str:
    """A cohort in a line of Markdown; words of the log stand in code spans."""
    if cohort.everything:
        return "all interactions"
    return " and ".join(f"{name} {plain(value, 120)}" for name, value in words_of(cohort))


def cycle_words(cycles: Sequence[int | None]) -> str:
    """Cycles that figures are of."""
    known = [cycle for cycle in cycles if cycle is not None]
    if not known:
        return "logs outside a loop"
    return f"cycle {known[0]}" if len(known) == 1 else f"cycles {known[0]} to {known[-1]}"


def _size(cohort: Cohort) -> None:
    found = over_time(frame.observatory(), cohort)
    if isinstance(found, Pending):
        waiting(found, "The sizes")
        return
    looped = [each for each in found if each.cycle is not None]
    n, of = sum(each.n for each in found), sum(each.of for each in found)
    if cohort.everything:
        st.markdown(f"**{of:,} interactions** in {cycle_words([each.cycle for each in found])}.")
        return
    st.markdown(f"**{n:,} of {of:,} interactions** are of the cohort: {cohort_words(cohort)}.{_trend(looped)}")
    if not n:
        st.caption(
            "None fits in any cycle: a word may be spelt otherwise in the log, or two clauses exclude each other."
        )
        return
    if len(looped) < 2:
        return
    points = size_points(looped)
    panel = Panel("Share of the interactions", "share of interactions", points)
    spec = control_series(panel, frame.theme(), first_cycle=looped[0].cycle, last_cycle=looped[-1].cycle, height=150)  # type: ignore[arg-type]
    st.vega_lite_chart(drawn(points), spec, key="size", width="stretch", alt=said(panel))
    older = f" Only the last {MOST_CYCLES} cycles are drawn." if len(looped) > MOST_CYCLES else ""
    st.caption(f"Share of each cycle's interactions, by cycle, with its 95 % interval (Wilson).{older}")


def _trend(looped: Sequence[Size]) -> str:
    if len(looped) < 2:
        return ""
    first, last = looped[0], looped[-1]
    return (
        f" Their share went from {100 * first.share:.1f} % in cycle {first.cycle} to {100 * last.share:.1f} % in cycle "
        f"{last.cycle} ({100 * last.low:.1f} to {100 * last.high:.1f} %, {last.n:,} of {last.of:,})."
    )


def size_points(found: Sequence[Size]) -> list[Statistic]:
    """The sizes as points of a chart."""
    return [
        Statistic(each.cycle, "all", "share", each.share, each.low, each.high, each.of, "ok", None)  # type: ignore[arg-type]
        for each in found
    ]


def _figures(cohort: Cohort, other: Cohort | None) -> None:
    observatory = frame.observatory()
    cycles = compared_cycles(observatory, cohort)
    st.subheader("Beside the rest" if other is None else "Beside another cohort")
    if not cycles:
        st.info(
            f"**NO DATA**: the lake has no interactions in the cycles that the cohort names "
            f"({cohort.cycles[0] if cohort.cycles[0] is not None else 'the first'} to "
            f"{cohort.cycles[1] if cohort.cycles[1] is not None else 'the last'}).",
            icon=":material/search_off:",
        )
        return
    found = beside(observatory, cohort, other)
    if isinstance(found, Pending):
        waiting(found, "The figures")
        return
    whose = "the rest" if other is None else cohort_words(other)
    st.markdown(comparison_words(found, cycles, whose))
    if cohort.cycles == (None, None) and cycles[0] is not None:
        st.caption(f"No cycles were named: these are the newest {RECENT}.")
    if not found.n or not found.other_n:
        st.info("**NO DATA**: one of the two has no interaction in these cycles.", icon=":material/search_off:")
        return
    table = differences_table(found.differences)
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        table,
        hide_index=True,
        key="differences",
        placeholder="–",
        height=440,
        alt="Statistics of the cohort and of the other, and their difference",
        column_config={
            **dict.fromkeys(("cohort", "other", "difference", "95 % from", "to"), number),
            "p (Holm)": st.column_config.NumberColumn(format="%.2g"),
            **{name: st.column_config.NumberColumn(format="localized") for name in ("n", "n other")},
        },
    )
    lacking = [each for each in found.differences if each.value is None]
    if lacking:
        with st.expander(f"◌ NO DATA: {len(lacking)} statistics that cannot be compared, and why"):
            st.text("\n".join(visible(f"{title(each.statistic)}: {each.why}") for each in lacking))
    st.caption(
        "Differences are the cohort less the other, with 95 % intervals each by itself, clustered by user (else "
        "conversation). “Told apart” takes all that are compared into account (Holm, 5 %). A difference of cohorts "
        "is no effect: nobody drew who is in which."
    )
    _links(cohort, cycles)


def comparison_words(found: Comparison, cycles: Sequence[int | None], whose: str) -> str:
    """How many statistics differ, and which most. `whose`: Markdown."""
    compared = [each for each in found.differences if each.value is not None]
    clear = sorted((each for each in compared if each.clear), key=_strength)
    named = [f"{in_words(each.statistic)} ({each.value:+.3g})" for each in clear[:NAMED]]
    more = f", and {len(clear) - NAMED} more" if len(clear) > NAMED else ""
    both = f" {found.both:,} interactions are in both." if found.both else ""
    return (
        f"**{len(clear)} of {len(compared)} statistics are told apart** from {whose} in {cycle_words(cycles)}"
        + (f": {', '.join(named)}{more}." if named else ".")
        + f" {found.n:,} interactions of {found.units:,} users beside {found.other_n:,} of {found.other_units:,}.{both}"
    )


def _strength(each: Difference) -> tuple[float, float]:
    """The surest first."""
    width = (each.high or 0.0) - (each.low or 0.0)
    return (1.0 if each.p is None else each.p, -abs(each.value or 0.0) / width if width else 0.0)


def differences_table(differences: Sequence[Difference]) -> pd.DataFrame:
    """One row per statistic that can be compared, the surest difference first."""
    rows = sorted((each for each in differences if each.value is not None), key=_strength)
    return pd.DataFrame(
        {
            "told apart": [_state(each) for each in rows],
            "statistic": [visible(title(each.statistic)) for each in rows],
            "cohort": [None if each.own is None else each.own.value for each in rows],
            "other": [None if each.other is None else each.other.value for each in rows],
            "difference": [each.value for each in rows],
            "95 % from": [each.low for each in rows],
            "to": [each.high for each in rows],
            "p (Holm)": [each.p for each in rows],
            "n": [None if each.own is None else each.own.n for each in rows],
            "n other": [None if each.other is None else each.other.n for each in rows],
            "unit": [unit(each.statistic) for each in rows],
        }
    )


def _state(each: Difference) -> str:
    if not each.clear:
        return "○ no"
    return "▲ higher" if (each.value or 0.0) > 0 else "▼ lower"


def _links(cohort: Cohort, cycles: Sequence[int | None]) -> None:
    newest = next((cycle for cycle in reversed(cycles) if cycle is not None), None)
    if newest is not None:
        link(f"Interactions of cycle {newest}", "trajectory", ":material/article:", cycle=newest)


def _footer(cohort: Cohort, other: Cohort | None) -> None:
    """The link names the cycles that were shown, so that it says the same tomorrow."""
    cycles = [cycle for cycle in compared_cycles(frame.observatory(), cohort) if cycle is not None]
    fixed = cohort
    if cohort.cycles == (None, None) and cycles:
        fixed = Cohort(cohort.words, cohort.ranges, (cycles[0], cycles[-1]))
    context = {"id": fixed.id, **({} if other is None else {"with": other.id})}
    frame.footer(
        "cohorts",
        same=["cohort", fixed.id or "", *([] if other is None else ["--with", other.id])],
        csv=None if cohort.everything and other is None else lambda: _csv(cohort, other),
        **context,
    )


def _csv(cohort: Cohort, other: Cohort | None) -> pd.DataFrame:
    found = beside(frame.observatory(), cohort, other, wait_s=None)
    assert not isinstance(found, Pending)
    return csv_table(found.differences)


def csv_table(differences: Sequence[Difference]) -> pd.DataFrame:
    """All statistics, those that cannot be compared too."""
    return pd.DataFrame(
        [
            {
                "statistic": visible(each.statistic),
                **{
                    f"{side} {name}": None if point is None else getattr(point, name)
                    for side, point in (("cohort", each.own), ("other", each.other))
                    for name in ("value", "low", "high", "n", "status")
                },
                "difference": each.value,
                "low": each.low,
                "high": each.high,
                "p (Holm)": each.p,
                "why not": each.why,
            }
            for each in differences
        ]
    )


if __name__ == "__main__":
    st.title("Cohorts")
    page()
