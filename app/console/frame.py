"""What every page has: the observatory, the run, the strip at the top, and the words for empty and failed states."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import streamlit as st

from palomar.app.console import options
from palomar.app.console.charts.base import Theme
from palomar.app.console.links import Page, address, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge
from palomar.app.console.telling import gate_badge, incident_words, span
from palomar.app.now import Now
from palomar.app.now import standing as how_it_stands
from palomar.app.service import CycleView, Observatory
from palomar.data.errors import PalomarError, StoreError
from palomar.data.store.records import Run

REFRESH_S = 3
"""How often a page looks for news while a run is going on."""

SYMBOLS = {"promote": "● PROMOTED", "hold": "◐ HELD", "block": "■ BLOCKED", "pending": "○ PENDING"}
"""State in a word and a shape, never by colour alone."""

RECENT = 5
"""Cycles from which it is told how long a stage takes."""

QUIET = timedelta(minutes=5)
"""A run that is going on and has finished no stage for so long, and for five times its longest, is called quiet."""


@st.cache_resource(max_entries=4)
def _observatory(home: str, store_url: str | None) -> Observatory:
    return Observatory(Path(home), store_url)


def observatory() -> Observatory:
    """The home that the console was started on."""
    return _observatory(
        os.environ.get(options.HOME_VARIABLE, ".palomar"), os.environ.get(options.STORE_VARIABLE) or None
    )


def theme() -> Theme:
    """Which theme the reader has."""
    return "dark" if st.context.theme.type == "dark" else "light"


@contextmanager
def panel(title: str) -> Iterator[None]:
    """A part of a page that may fail without taking the others with it. `title` is our own words."""
    try:
        yield
    except PalomarError as exc:
        now = datetime.now(UTC)
        if isinstance(exc, StoreError):
            observatory().reopen()
            st.error(
                f"**{title}**: the store does not answer ({now:%Y-%m-%d %H:%M:%S} UTC).", icon=":material/warning:"
            )
            hint = "Nothing old is shown in its place. Is the database up, and `--store` or `PALOMAR_STORE` right?"
        else:
            st.error(f"**{title}**: could not be read ({now:%Y-%m-%d %H:%M:%S} UTC).", icon=":material/warning:")
            hint = "Nothing else on this page is affected."
        st.code(shown(str(exc), 1_000)[0], language=None, wrap_lines=True)
        st.caption(f"{hint} Reload the page to try again; the overview tries by itself.")


def run() -> Run | None:
    """The run that `run` in the URL names, else the newest; None where there is none. An unknown one is said."""
    wanted = st.query_params.get("run")
    if wanted is not None:
        found = observatory().run(wanted)
        if found is not None:
            return found
        newest = observatory().run()
        st.warning(
            f"There is no run {plain(wanted)} in this home"
            + ("." if newest is None else f"; this is {plain(newest.name)}."),
            icon=":material/help:",
        )
        return newest
    return observatory().run()


def footer(
    page: Page, /, *, same: Sequence[str], csv: Callable[[], pd.DataFrame] | None = None, **context: str | int
) -> None:
    """What ends every page: the link to send, all rows as CSV, and how the command line says the same.

    ``context`` names what the page shows by absolute ids, so that the link says the same tomorrow. ``csv`` is called
    only once somebody asks for the file.
    """
    left, middle, right = st.columns([0.16, 0.16, 0.68], vertical_alignment="center")
    with left.popover("Link", icon=":material/link:"):
        root = (st.context.url or "").split("?")[0].rpartition("/")[0]
        st.code(f"{root}/{address(page, **context)}", language=None)
    if csv is not None:
        middle.download_button(
            "CSV (all rows)",
            lambda: as_csv(csv()),
            f"{page}.csv",
            "text/csv",
            key=f"{page}-csv",
            on_click="ignore",
        )
    right.caption(same_by(*same))


def as_csv(table: pd.DataFrame) -> bytes:
    """A table as CSV. Texts that a spreadsheet would take for a formula get an apostrophe in front."""

    def cell(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

    return table.map(cell).to_csv(index=False).encode(errors="backslashreplace")


def nothing_yet() -> None:
    """What an empty home says."""
    st.info(
        "**Nothing here yet.** This home holds no run and no logs. In a terminal:\n\n"
        "- `palomar demo` trains a small policy on simulated users, here, in a few minutes;\n"
        "- `palomar ingest PATH` reads logs that you have;\n"
        "- `palomar init`, then `palomar run`, starts a loop of your own.\n\n"
        "This page looks for news every few seconds.",
        icon=":material/travel_explore:",
    )
    st.caption(f"Home: {plain(str(observatory().home))}")


def same_by(*words: str) -> str:
    """How the command line says the same, as Markdown; quoted, since it is there to be copied into a shell."""
    home = observatory().home
    near = home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home
    # Behind all words: a group of commands takes no options of its own.
    command = shlex.join(["palomar", *words, *([] if near == Path(".palomar") else ["--home", str(near)])])
    return f"The same on the command line: {plain(command, 1_000)}"


def choice(
    label: str, parameter: str, choices: Sequence[str], words: Callable[[str], str] = str, default: str | None = None
) -> str:
    """A select box that stands in the URL as `parameter`; a value that is not among `choices` is said to be unknown."""
    usual = default if default is not None else choices[0]
    wanted = st.query_params.get(parameter, usual)
    if wanted not in choices:
        st.warning(
            f"There is no {label.lower()} {plain(wanted)} here; this is {plain(words(usual))}.", icon=":material/help:"
        )
        wanted = usual
    # A key of its own for each value: a link that names another one is not overruled by what was chosen before.
    key = f"{parameter}-{wanted}"

    def changed() -> None:
        st.query_params[parameter] = st.session_state[key]
        st.query_params.pop("page", None)

    st.selectbox(label, choices, index=list(choices).index(wanted), format_func=words, key=key, on_change=changed)
    return wanted


def whole_number(parameter: str, last: int) -> int:
    """A number from 1 to `last` in the URL; says so where it is none, and takes the nearest."""
    given = st.query_params.get(parameter, "1")
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 9 else 0
    if not 1 <= number <= last:
        number = min(max(number, 1), last)
        st.warning(f"There is no {parameter} {plain(given)} (1 to {last}); this is {number}.", icon=":material/help:")
    return number


def pager(parameter: str, label: str, last: int) -> int:
    """A number input that stands in the URL; nothing where there is one page only."""
    at = whole_number(parameter, last)
    if last == 1:
        return at
    key = f"{parameter}-{at}"

    def changed() -> None:
        st.query_params[parameter] = str(st.session_state[key])

    st.number_input(f"{label} (of {last})", 1, last, at, key=key, on_change=changed)
    return at


@st.fragment(run_every=REFRESH_S)
def strip() -> None:
    """What every page says first: how far the run is, the worst open alarm, the gate's word, the age of the data."""
    try:
        found = run()
        views = [] if found is None else observatory().cycles(found.run_id, newest=RECENT, figures=())
        now = None if found is None else how_it_stands(observatory().store, found)
    except PalomarError:
        observatory().reopen()
        st.markdown(":red-badge[■ STORE NOT REACHABLE]")
        return
    if found is None or now is None:
        st.markdown(":gray-badge[○ NO RUN]")
        return
    at = datetime.now(UTC)
    with st.container(key="strip", gap=None):
        if now.alarms:
            left, right = st.columns([0.64, 0.36], vertical_alignment="center")
            left.markdown(standing(found, views, at))
            worst = now.alarms[0]
            with right:
                link(f"Alarm {worst.number}: {incident_words(worst)}", "alarm", id=worst.number)
        else:
            st.markdown(standing(found, views, at))
        st.markdown(watch_line(now, at))
    if now.data.stale(at):
        st.warning(stale_words(now, at), icon=":material/hourglass_disabled:")


def watch_line(now: Now, at: datetime) -> str:
    """One line of Markdown: open alarms, the gate's word on the newest candidate, and the age of the data."""
    if now.alarms:
        unseen = sum(each.state == "open" for each in now.alarms)
        count = f"{len(now.alarms)} ALARM{'S' if len(now.alarms) > 1 else ''}"
        blocks = any(each.blocks for each in now.alarms)
        parts = [badge("fail" if blocks else "warn", count), f"{unseen} not acknowledged"]
    elif now.verdict is None:
        parts = [badge("no_data", "NOT CHECKED")]
    else:
        parts = [badge("pass", "NO ALARM"), f"checked up to cycle {now.verdict.cycle}"]
    if now.silences:
        parts.append(f"{len(now.silences)} silence{'s' if len(now.silences) > 1 else ''}")
    if now.candidate is None:
        parts.append(badge("no_data", "GATE: NO CANDIDATE"))
    elif now.decision is None and now.data.stale(at):
        parts.append(badge("no_data", "GATE: NO DATA"))
    else:
        parts.append(f"{gate_badge(now.decision)} {plain(now.candidate.checkpoint_id, 12)}")
    age = now.data.age(at)
    if age is None:
        parts.append(badge("no_data", "NO DATA YET"))
    else:
        parts.append(f"data of cycle {now.data.cycle}, {span(age)} old")
    return " · ".join(parts)


def stale_words(now: Now, at: datetime) -> str:
    """What is said while no data come though more are due."""
    age, cycle_s = now.data.age(at), now.data.cycle_s
    assert age is not None
    assert cycle_s is not None
    took = span(timedelta(seconds=cycle_s)) if cycle_s >= 60 else f"{cycle_s:.0f} s"
    return (
        f"**Stale: no data for {span(age)}**, and a cycle takes {took}. All figures are those of cycle "
        f"{now.data.cycle} and before. Is the run still going, and its source? `palomar run --resume` goes on."
    )


def standing(run: Run, views: Sequence[CycleView], now: datetime) -> str:
    """One line of Markdown on how far a run is and whether it goes on."""
    stages = [stage for view in views for stage in view.record.stages]
    newest = max((stage.finished_at for stage in stages), default=run.created_at)
    longest = timedelta(seconds=max((stage.elapsed_s for stage in stages), default=0))
    last = views[-1] if views else None
    age = now - newest
    parts = []
    if last is not None and last.record.status == "stopped":
        parts.append(f":red-badge[■ STOPPED] in cycle {last.record.cycle}: {plain(last.record.problem or '', 300)}")
    elif run.status == "complete":
        parts.append(":green-badge[● COMPLETE]")
    elif age > max(QUIET, 5 * longest):
        parts.append(f":orange-badge[◌ QUIET] for {span(age)}; if it was interrupted, `--resume` goes on")
    else:
        parts.append(":blue-badge[◔ RUNNING]")
    parts.append(f"run {plain(run.name)}")
    complete = 0 if last is None else last.record.cycle + (last.record.status == "complete")
    parts.append(f"{complete} cycle{'' if complete == 1 else 's'} done")
    if run.status != "complete" and last is not None and last.stage is not None:
        parts.append(f"cycle {last.record.cycle} is at **{last.stage}**")
    parts.append(f"last news {newest:%Y-%m-%d %H:%M:%S} UTC")
    return " · ".join(parts)
