"""Tables of figures with headings for people, which several pages show."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app.console.plain import plain
from palomar.app.service import definition
from palomar.data.slices import BANDS
from palomar.data.store.records import Statistic

_OUR_WORD = re.compile("[a-z]+(_[a-z]+)*")
"""What may stand in Markdown as it is: in a store that others write to, a name may be anything."""


def points_table(points: Sequence[Statistic], *, key: str, cycles: bool = False) -> None:
    """Points as a table; statistics that have no data are named in one line below, not row by row."""
    known = points if cycles else [point for point in points if point.value is not None]
    frame = pd.DataFrame(
        {
            **({"cycle": [point.cycle for point in known]} if cycles else {}),
            **({} if cycles else {"statistic": [title(point.statistic) for point in known]}),
            "value": [point.value for point in known],
            "95 % from": [point.low for point in known],
            "to": [point.high for point in known],
            "unit": [unit(point.statistic) for point in known],
            "n": [point.n for point in known],
            "status": [point.status for point in known],
            "feedback in": [point.maturity for point in known],
        }
    )
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        frame,
        hide_index=True,
        key=key,
        placeholder="–",
        alt="Statistics with their 95 % intervals",
        column_config={
            "value": number,
            "95 % from": number,
            "to": number,
            "n": st.column_config.NumberColumn(format="localized"),
            "feedback in": st.column_config.NumberColumn(
                format="percent", help="Share of the rows watched long enough; empty where nothing is waited for."
            ),
        },
    )
    if not cycles:
        without_data([point for point in points if point.value is None])


def without_data(points: Sequence[Statistic]) -> None:
    """One line that names statistics without a value, by what they lack."""
    for status in sorted({point.status for point in points}):
        names = [in_words(point.statistic) for point in points if point.status == status]
        st.caption(f"{status.upper()}: {', '.join(names)}.")


def title(name: str) -> str:
    """What a statistic is called in a table or chart (not in Markdown)."""
    statistic = definition(name)
    return name if statistic is None else statistic.title


def in_words(name: str) -> str:
    """The same in Markdown; names that a reward spec or a foreign series gave are marked as not ours."""
    kind, _, of = name.partition(":")
    if of and _OUR_WORD.fullmatch(kind):
        return f"{'reward term' if kind == 'term' else kind} {plain(of)}"
    return plain(name) if definition(name) is None else title(name)


def unit(name: str) -> str:
    """Unit of a statistic; empty for a foreign series, which does not say."""
    statistic = definition(name)
    return "" if statistic is None else statistic.unit


def slice_in_words(name: str) -> str:
    """A slice in words, as Markdown; a value that came from a log is marked as not ours."""
    dimension, equals, value = name.partition("=")
    if not _OUR_WORD.fullmatch(dimension):
        return plain(name)
    if not equals or (dimension in BANDS and _OUR_WORD.fullmatch(value)):
        return slice_words(name)
    return f"{dimension.replace('_', ' ')} is {plain(value)}"


def slice_words(name: str) -> str:
    """A slice in words: ``predicted_failure=high`` is "predicted failure is high"; not for Markdown."""
    dimension, equals, value = name.partition("=")
    return f"{dimension.replace('_', ' ')} is {value}" if equals else f"{dimension} interactions"
