"""Data health: can this cycle's data be believed? Ledger, losses, lag, feedback, faults and quarantine."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app import health
from palomar.app.console import frame
from palomar.app.console.charts.losses import (
    MOST_BARS,
    drawn_losses,
    drawn_ripeness,
    loss_bars,
    losses_said,
    reason_of,
    ripeness_points,
)
from palomar.app.console.links import address, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import State, badge
from palomar.app.console.tables import slice_words, title
from palomar.app.health import PLACES, DataHealth, Loss, Stratum
from palomar.data.store.records import QuarantineEntry, StoredFinding

STATES: dict[str, State] = {"pass": "pass", "fail": "fail", "no_data": "no_data"}
MOST_OFF = 5


def page() -> None:
    """The whole page."""
    with frame.panel("Data health"):
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        wanted = st.query_params.get("cycle")
        number = (
            int(wanted) if wanted is not None and wanted.isascii() and wanted.isdigit() and len(wanted) < 9 else None
        )
        newest = found = health.health(frame.observatory(), run.run_id, number)
        if found is None and number is not None:
            newest = health.health(frame.observatory(), run.run_id)
        if newest is None:
            st.info(
                "**No cycle yet.** The ledger of a cycle is written when it was trained on; feedback is counted from "
                "the first cycle that was distilled.",
                icon=":material/hourglass_top:",
            )
            frame.footer("health", same=["health"], run=run.run_id)
            return
        cycles = [str(each) for each in reversed(newest.cycles)]
        frame.choice("Cycle", "cycle", cycles, default=str(newest.cycle))
        _page(newest)


def _page(found: DataHealth) -> None:
    st.markdown(sentence(found))
    with frame.panel("Ledger"):
        _ledger(found)
    with frame.panel("Losses"):
        _losses(found)
    left, right = st.columns(2, gap="large")
    with left, frame.panel("Feedback"):
        _feedback(found)
    with right, frame.panel("Lag"):
        _lag(found)
    with frame.panel("Faults of the pipeline"):
        _faults(found)
    with frame.panel("Quarantine"):
        _quarantine(found)
    frame.footer(
        "health",
        same=["health", "--cycle", str(found.cycle)],
        csv=lambda: losses_table(found.losses),
        run=found.run_id,
        cycle=found.cycle,
    )


def sentence(found: DataHealth) -> str:
    """The answer to "can these data be believed?", as Markdown."""
    state = STATES[found.word]
    if state == "pass" and any(each.unusual for each in found.losses):
        state = "warn"
    told = []
    if found.sums is None:
        told.append("it has no ledger yet")
    elif found.sums.off:
        told.append("its ledger does not add up")
    else:
        told.append(f"all {found.sums.whole.received:,} samples are accounted for")
    if found.faults:
        told.append(f"faults of measurement were found: {len(found.faults)}")
    else:
        told.append("no fault was found" if found.checked else "it was not checked for faults")
    unusual = [each for each in found.losses if each.unusual]
    if unusual:
        losses = "1 loss is" if len(unusual) == 1 else f"{len(unusual)} losses are"
        told.append(f"{losses} outside all that was seen before")
    return f"### {badge(state)} Cycle {found.cycle}: {'; '.join(told)}"


# -- ledger and losses -----------------------------------------------------------------------------------------------


def _ledger(found: DataHealth) -> None:
    st.subheader("Ledger")
    if found.sums is None:
        st.info(
            "**NO DATA**: this cycle has no ledger. It is written when the cycle was trained on.",
            icon=":material/hourglass_top:",
        )
        return
    for each in found.sums.off[:MOST_OFF]:
        way = "more than were received" if each.off > 0 else "that went nowhere"
        st.markdown(f"{badge('fail', 'DOES NOT ADD UP')} {plain(each.name)}: {abs(each.off):,} samples {way}.")
    if not found.sums.off:
        st.markdown(
            f"{badge('pass', 'ADDS UP')} received = trained + excluded + quarantined + waiting, in all and in each of "
            f"{len(found.sums.strata)} strata."
        )
    st.dataframe(
        ledger_table((found.sums.whole, *found.sums.strata)),
        hide_index=True,
        key="ledger",
        alt="The sample ledger by stratum of predicted failure",
        column_config={
            name: st.column_config.NumberColumn(format="localized") for name in ("received", *PLACES, "difference")
        },
    )


def ledger_table(strata: Sequence[Stratum]) -> pd.DataFrame:
    """One row per stratum; a place without a row has none, which here is a 0."""
    counts: dict[str, list[int]] = {place: [each.counts.get(place, 0) for each in strata] for place in PLACES}
    return pd.DataFrame(
        {
            "stratum": [each.name for each in strata],
            "received": [each.received for each in strata],
            **counts,
            "difference": [each.off for each in strata],
            "": ["● ADDS UP" if not each.off else "■ DOES NOT ADD UP" for each in strata],
        }
    )


def _losses(found: DataHealth) -> None:
    st.subheader("What was not trained on")
    if found.sums is None:
        st.caption("NO DATA: without a ledger nobody knows.")
        return
    if not found.losses:
        st.markdown(f"{badge('pass', 'NO LOSS')} every sample that was received was trained on.")
        return
    first = found.losses[0]
    usual = "" if first.usual is None else f", usually {100 * first.usual:.3g} %"
    st.markdown(f"Most: {plain(reason_of(first))} **{100 * first.share:.3g} %** ({first.count:,} samples){usual}.")
    for each in [loss for loss in found.losses if loss.unusual][:MOST_OFF]:
        assert each.low is not None
        assert each.high is not None
        st.markdown(
            f"{badge('warn', 'UNUSUAL')} {plain(reason_of(each))} {100 * each.share:.3g} %, in the {found.compared} "
            f"cycles before {100 * each.low:.3g} to {100 * each.high:.3g} %."
        )
    st.vega_lite_chart(
        drawn_losses(found.losses),
        loss_bars(found.losses, frame.theme()),
        key="losses",
        width="stretch",
        alt=losses_said(found.losses),
    )
    if found.losses[0].usual is None:
        few = f"only {found.compared} cycles before it are like it, and {health.FEW} are needed"
        st.caption(f"No usual shares: {few}.")
    else:
        st.caption(f"Tick: the median of the {found.compared} cycles before. Line: all that was seen in them.")
    if len(found.losses) > MOST_BARS:
        st.caption(f"The largest {MOST_BARS} of {len(found.losses)}; the CSV has all.")


def losses_table(losses: Sequence[Loss]) -> pd.DataFrame:
    """One row per place and reason."""
    return pd.DataFrame([{**vars(each), "unusual": each.unusual} for each in losses])


# -- feedback, lag, faults, quarantine -------------------------------------------------------------------------------


def _feedback(found: DataHealth) -> None:
    st.subheader("Feedback that is in")
    known = [each for each in found.ripeness if each.share is not None]
    if not known:
        st.caption("NO DATA: no outcome is measured in this run, or none was distilled yet.")
        return
    coming = [each for each in known if each.share is not None and each.share < 1]
    if not coming:
        st.markdown(f"{badge('pass', 'ALL IN')} in all {len(known)} cycles.")
    for each in coming[-health.LOOKED_UP :]:
        assert each.share is not None
        ready = "when is not known" if each.ready_at is None else f"in by {each.ready_at:%Y-%m-%d %H:%M} UTC"
        st.markdown(f"{badge('pending')} cycle {each.cycle}: **{100 * each.share:.0f} %**, all of it {ready}")
    st.vega_lite_chart(
        drawn_ripeness(found.ripeness),
        ripeness_points(found.ripeness, frame.theme()),
        key="ripeness",
        width="stretch",
        alt=f"Share of the feedback that is in, by cycle; still coming in {len(coming)} of {len(known)} cycles",
    )
    st.caption(
        "Users' outcome, watched up to its horizon. Hollow diamonds: more is to come. Times are by the log's clock."
    )


def _lag(found: DataHealth) -> None:
    st.subheader("Lag")
    if found.lag is None:
        st.caption("NO DATA: the cycle was not trained on, or its trainer did not say how old its samples were.")
        return
    lag = found.lag
    total = sum(lag.by_age.values())
    if not total:
        st.markdown(f"{badge('no_data')} nothing was trained on, so no sample has an age.")
    for age, count in lag.by_age.items():
        words = "of this cycle's policy" if age == 0 else f"{age} cycle{'s' * (age != 1)} old"
        st.markdown(f"**{100 * count / total:.1f} %** {words} ({count:,} samples)")
    if lag.waiting is not None and lag.offered is not None:
        st.markdown(f"{lag.waiting:,} of {lag.offered:,} samples offered still waited for their reward.")
    if lag.as_of is not None:
        st.caption(f"What users had said by {lag.as_of:%Y-%m-%d %H:%M} UTC was known, by the log's clock.")


def _faults(found: DataHealth) -> None:
    st.subheader("Faults of the pipeline")
    if not found.checked:
        st.markdown(
            f"{badge('no_data', 'NOT CHECKED')} no detector looked at this cycle: "
            + plain(f"palomar check --cycle {found.cycle} --keep")
        )
    elif not found.faults:
        st.markdown(f"{badge('pass', 'NONE FOUND')} in cycle {found.cycle}.")
    else:
        st.markdown(f"{badge('fail', 'MEASUREMENT FAULT')} the numbers of cycle {found.cycle} cannot be relied on:")
        st.dataframe(
            faults_table(found.faults),
            hide_index=True,
            key="faults",
            alt="Faults of measurement found in the cycle",
            column_config={"what": {"width": "large"}, "open": st.column_config.LinkColumn(display_text="open")},
        )
    other = {cycle: count for cycle, count in sorted(found.faulty.items()) if cycle != found.cycle}
    if other:
        told = ", ".join(f"{cycle} ({count})" for cycle, count in list(other.items())[-10:])
        st.caption(f"Faults were also found in cycle {told}.")
    if found.faulty:
        link("Incidents", "incidents", ":material/local_fire_department:", state="all")


def faults_table(faults: Sequence[StoredFinding]) -> pd.DataFrame:
    """One row per finding."""
    return pd.DataFrame(
        {
            "detector": [each.finding.detector for each in faults],
            "statistic": [title(each.finding.statistic) if each.finding.statistic else None for each in faults],
            "slice": [slice_words(each.finding.slice) for each in faults],
            "what": [shown(each.finding.sentence, 500)[0] for each in faults],
            "open": [address("alarm", id=each.finding_id) for each in faults],
        }
    )


def _quarantine(found: DataHealth) -> None:
    st.subheader("Quarantine")
    if not found.quarantined:
        st.markdown(f"{badge('pass', 'EMPTY')} every record that was ingested could be read.")
        return
    total = sum(found.quarantined.values())
    kinds = ", ".join(f"{plain(kind)} {count:,}" for kind, count in found.quarantined.items())
    st.markdown(f"{badge('warn', 'QUARANTINE')} **{total:,}** records could not be read, of all ingestions: {kinds}.")
    st.dataframe(
        quarantine_table(found.records),
        hide_index=True,
        key="quarantine",
        placeholder="–",
        alt="The newest records that could not be read",
    )
    if total > len(found.records):
        st.caption(f"The newest {len(found.records)} of {total:,}; their bytes are in the home's folder of quarantine.")


def quarantine_table(records: Sequence[QuarantineEntry]) -> pd.DataFrame:
    """One row per record, the newest first."""
    return pd.DataFrame(
        {
            "last met (UTC)": [f"{each.last_seen_at:%Y-%m-%d %H:%M}" for each in records],
            "kind": [each.kind for each in records],
            "problem": [shown(each.problem, 300)[0] for each in records],
            "field": [each.field for each in records],
            "source": [shown(each.source, 200)[0] for each in records],
            "line": [each.line for each in records],
            "seen": [each.seen for each in records],
        }
    )


if __name__ == "__main__":
    st.title("Data health")
    page()
