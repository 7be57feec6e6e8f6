"""Patches side by side: what each changes, whom it hurts, which way it pushes then, and the next cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pandas as pd
import streamlit as st

from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge
from palomar.app.console.tables import in_words, slice_words, title, unit
from palomar.app.console.telling import figure, utc, where
from palomar.app.lab import Lab
from palomar.data.store.records import Job, RewardProposal

ABREAST = 3
"""Proposals beside each other; more are in the list below."""
NAMED = 3
"""Targets and pressures that a line names."""
MOST_REFUSED = 20
SPELT_OUT = 1
"""Targets that a card says in words; the others are in its table."""


@dataclass(frozen=True)
class Search:
    """What came of a search that is done."""

    status: str
    why: str
    num_rows: int | None
    targets: tuple[Mapping[str, Any], ...]
    proposals: tuple[str, ...]
    """Ids, the best first."""
    refused: tuple[Mapping[str, Any], ...]
    unaimed: tuple[str, ...]
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> Search:
        """The result of a job of the kind ``patch``."""
        result = cast(Mapping[str, Any], job.result)
        return cls(
            status=result["status"],
            why=result["why"],
            num_rows=result["num_rows"],
            targets=tuple(result["targets"]),
            proposals=tuple(result["proposals"]),
            refused=tuple(result["refused"]),
            unaimed=tuple(result["unaimed"]),
            finished_at=job.finished_at,
        )


def cards(
    found: Lab,
    proposals: Sequence[tuple[RewardProposal, int | None]],
    search: Search | None,
    *,
    incident: int | None,
    finding: str | None,
) -> None:
    """What the search says, and the proposals that fit, the best first."""
    if search is not None:
        _searched(search)
        if search.unaimed and incident is None and finding is None:  # else it is said above
            st.caption(f"Not on the bench, and so not patched: {few(search.unaimed)}.")
        order = {each: place for place, each in enumerate(search.proposals)}
        proposals = sorted(proposals, key=lambda each: order.get(each[0].proposal_id, len(order)))
    if not proposals:
        if search is None:
            st.caption(
                "No proposal is kept for the reward in force. A search looks on the last cycles for the smallest "
                "change that turns the push round; the loop keeps some by itself in the mode `propose`."
            )
        return
    if search is None:
        st.caption(f"{len(proposals)} kept for the reward in force, made on cycle {proposals[0][0].cycle} or before.")
    about = {name: value for name, value in (("incident", incident), ("finding", finding)) if value is not None}
    for number, (column, (each, _)) in enumerate(
        zip(st.columns(min(ABREAST, max(2, len(proposals)))), proposals, strict=False), start=1
    ):
        with column, st.container(border=True):
            _card(number, each)
            link("Choose this one", "lab", ":material/arrow_downward:", patch=each.proposal_id, **about)
    if len(proposals) > ABREAST:
        st.caption(f"{len(proposals) - ABREAST} more are in the list below.")


def _searched(search: Search) -> None:
    rows = "" if search.num_rows is None else f" on {search.num_rows:,} interactions"
    asked = targets_in_words([(each["want"], each["statistic"], each["slice"]) for each in search.targets])
    if search.status == "proposed":
        count = len(search.proposals)
        st.markdown(
            f"{badge('pass', 'FOUND')} **{count} change{'' if count == 1 else 's'}**{rows} for: {asked}. "
            f"Searched at {utc(search.finished_at)}."
        )
    elif search.status == "infeasible":
        st.markdown(f"{badge('fail', 'INFEASIBLE')} **No change within the limits turns it round**{rows}: {asked}.")
    elif search.status == "nothing":
        st.markdown(f"{badge('pass', 'NOTHING TO PATCH')}{rows}")
        st.text(shown(search.why, 500)[0])
    else:
        st.markdown(f"{badge('no_data')} It cannot be told{rows}.")
        st.text(shown(search.why, 500)[0])
    if search.refused:
        _refused(search)


def targets_in_words(targets: Sequence[tuple[int, str, str]]) -> str:
    """What is to be turned round, as Markdown; of many the first few, and how many more."""
    told = [
        f"{'less' if want < 0 else 'more'} {_small(in_words(statistic))}{where(slice_)}"
        for want, statistic, slice_ in targets[:NAMED]
    ]
    more = f"; and {len(targets) - NAMED} more" if len(targets) > NAMED else ""
    return "; ".join(told) + more


def few(names: Sequence[str]) -> str:
    """The first few of what is only named, as Markdown, and how many more."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(map(plain, names[:NAMED])) + more


def _small(words: str) -> str:
    return words[:1].lower() + words[1:]


def _refused(search: Search) -> None:
    """What stands in the way, in the words of the programme."""
    with st.expander(
        f"What cannot be done, and what stands in the way ({len(search.refused)})",
        expanded=search.status == "infeasible",
    ):
        for each in search.refused[:MOST_REFUSED]:
            st.text(f"{shown(each['change'], 200)[0]} cannot: {shown(each['target'], 200)[0]}")
            if each["conflict"]:
                st.text("   together with: " + shown("; ".join(each["conflict"]), 600)[0])

        if len(search.refused) > MOST_REFUSED:
            st.caption(f"{len(search.refused) - MOST_REFUSED} more: `palomar patch --json` has all.")


def named(proposal: RewardProposal) -> str:
    """For a list to choose from, which reads Markdown in none of its entries."""
    return f"{proposal.title} ({proposal.proposal_id[:8]}, cycle {proposal.cycle})"


def _card(number: int, proposal: RewardProposal) -> None:
    detail = cast(Mapping[str, Any], proposal.detail)
    st.markdown(f"**{number}. {plain(proposal.title)}**")
    if "turned" in detail:
        turned, left = len(detail["turned"]), len(detail["unturned"])
        st.markdown(badge("warn" if left else "pass", f"TURNS {turned} OF {turned + left}"))
    else:
        st.markdown(f"{badge('no_data', 'NOT ASKED')} by hand, by {plain(proposal.actor)}: a replay says what it does")
    st.text("\n".join(detail.get("changes") or ["nothing that is paid"]))
    hurt, distance = detail.get("honest_hurt"), detail.get("distance")
    if "honest_hurt" in detail:
        harm = "not known" if hurt is None else f"**{100 * hurt:.1f} %**"
        st.markdown(f"Harm: {harm} of the pushed interactions with a good outcome are pushed no more.")
    if distance is not None:
        st.markdown(f"Size: the advantages change by **{100 * distance:.0f} %** of their size.")
    pressures, expected = detail.get("pressures") or [], detail.get("next_cycle") or []
    for row in pressures[:SPELT_OUT]:
        st.markdown(
            f"{in_words(row['statistic'])}{where(row['slice'])}: {_interval(row['old'])} → **{_interval(row['new'])}**"
            f"; users {_interval(row['outcome'])}"
        )
    _next_cycle(expected)
    if len(pressures) > SPELT_OUT:
        with st.expander(f"All {len(pressures)} targets"):
            _all_targets(pressures, expected, proposal.proposal_id)
    for words, which in (("Not turned", "unturned"), ("▲ Was right, and is not sure any more", "lost")):
        if told := detail.get(which):
            st.caption(f"{words}: {few(told)}.")
    less = detail.get("pushed_less") or []
    if less:
        told = ", ".join(
            f"{_behaviour(each)} {100 * each['before']:.0f} → {100 * each['after']:.0f} %" for each in less[:3]
        )
        st.caption(f"Pushed less: {told}.")
    with st.expander("Diff"):
        st.code(shown(str(detail.get("diff") or ""), 6_000)[0], language="diff")


def _all_targets(
    pressures: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], proposal_id: str
) -> None:
    """Each with what pushes it now and then, beside users' outcome, and the level that the next cycle is to have."""
    rows = {(each["reward"], each["statistic"], each["slice"]): each for each in expected}
    number = st.column_config.NumberColumn(format="%+.3g")

    def value(row: Mapping[str, Any] | None) -> float | None:
        return None if row is None else row["value"]

    st.dataframe(
        pd.DataFrame(
            {
                "statistic": [title(each["statistic"]) for each in pressures],
                "where": [slice_words(each["slice"]) for each in pressures],
                "push now": [value(each["old"]) for each in pressures],
                "then": [value(each["new"]) for each in pressures],
                "users": [value(each["outcome"]) for each in pressures],
                "next cycle now": [value(rows.get(("old", each["statistic"], each["slice"]))) for each in pressures],
                "next cycle then": [value(rows.get(("new", each["statistic"], each["slice"]))) for each in pressures],
            }
        ),
        hide_index=True,
        placeholder="–",
        key=f"targets-{proposal_id}",
        alt="Pressure on each target, now and under this change, beside users' outcome",
        column_config=dict.fromkeys(("push now", "then", "users"), number)
        | {f"next cycle {name}": st.column_config.NumberColumn(format="%.3g") for name in ("now", "then")},
    )


def _behaviour(row: Mapping[str, Any]) -> str:
    return plain(str(row["behaviour"]).replace("_", " "))


def _next_cycle(expected: Sequence[Mapping[str, Any]]) -> None:
    """What each target is expected to be, under the present reward and under this one."""
    rows = {(each["reward"], each["statistic"], each["slice"]): each for each in expected}
    cells = list(dict.fromkeys((each["statistic"], each["slice"]) for each in expected))
    for statistic, slice_ in cells[:SPELT_OUT]:
        old, new = rows["old", statistic, slice_], rows["new", statistic, slice_]
        level = "" if old["level"] is None else f" (now {figure(old['level'], unit(statistic))})"
        st.markdown(
            f"Next cycle, {in_words(statistic)}{where(slice_)}{level}: {_expected(old, statistic)} as it is paid, "
            f"**{_expected(new, statistic)}** with this"
        )
    if any(each["status"] == "no step size" for each in expected):
        st.caption("By how much is not known: no step of training was seen yet.")


def _expected(each: Mapping[str, Any], statistic: str) -> str:
    if each["value"] is None:
        return {1: "rises", -1: "falls"}.get(each["way"], "not sure")
    of = unit(statistic)
    return f"{figure(each['value'], of)} ({figure(each['low'], of)} to {figure(each['high'], of)})"


def _interval(row: Mapping[str, float | None] | None) -> str:
    if row is None or row["value"] is None:
        return "not known"
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:+.3g}"
    return f"{row['value']:+.3g} ({row['low']:+.3g} to {row['high']:+.3g})"
