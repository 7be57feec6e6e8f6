"""The reward lab: what is paid now, what could be changed, what that would have paid, and putting it in force."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app import lab as bench
from palomar.app import patching
from palomar.app.console import acting, frame, working
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.tables import slice_words, title
from palomar.app.console.telling import finding_words, incident_words, state_badge, utc
from palomar.app.console.views import lab_hand, lab_proposals, lab_replay
from palomar.app.console.views.lab_hand import OWN, Change
from palomar.app.lab import Lab
from palomar.app.patching import AHEAD, Asked
from palomar.data.errors import StoreError
from palomar.data.slices import SLICES
from palomar.data.store.jobs import UNDER_WAY
from palomar.data.store.records import RewardProposal
from palomar.reward.patch import WATCHED
from palomar.reward.versions import stored_spec

HASH = 10
"""Digits of a version that are shown."""
CHECK = "check"
"""Nothing that a person names: what the newest check found."""


def page() -> None:
    """The whole page."""
    acting.told()
    with frame.panel("Reward lab"):
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        try:
            found = bench.lab(frame.observatory(), run)
        except StoreError as exc:
            if "has no reward in force" not in str(exc):
                raise
            st.info(
                "**No reward yet.** This run says nothing of what it pays, so there is nothing to change here. A loop "
                "schedules its reward before its first cycle; logs can be replayed by `palomar replay`.",
                icon=":material/hourglass_top:",
            )
            frame.footer("lab", same=["reward", "log"], run=run.run_id)
            return
        _present(found)
        incident, finding = _whole("incident"), st.query_params.get("finding")
        _page(found, incident, finding)


def _page(found: Lab, incident: int | None, finding: str | None) -> None:
    store = frame.observatory().store
    asked: Asked | str | None = None
    if incident is not None or finding is not None:
        with frame.panel("What asks for it"):
            asked = bench.asked(store, found.run, incident, finding)
            _asked(asked, incident, finding)
    st.subheader("Proposals")
    proposals = bench.answering(found.proposals, asked if isinstance(asked, Asked) else None)
    with frame.panel("Proposals"):
        search = _search(found, asked, incident, finding)
        if proposals or not isinstance(search, str):
            done = None if isinstance(search, str) else search
            lab_proposals.cards(found, proposals, done, incident=incident, finding=finding)
    st.subheader("One change")
    change: Change | None = None
    with frame.panel("One change"):
        change = _chosen(found, [each for each, _ in proposals])
    if change is not None:
        with frame.panel("Replay"):
            lab_replay.replay(found, change, _cycles(found, "replay"), incident)
        with frame.panel("Apply"):
            _apply(found, change, incident)
    st.subheader("Versions and changes")
    with frame.panel("Versions and changes"):
        _history(found)
    about = {name: st.query_params[name] for name in ("incident", "finding", "patch") if name in st.query_params}
    frame.footer(
        "lab",
        same=["reward", "log"] if incident is None else ["patch", "--incident", str(incident)],
        csv=lambda: versions_table(found),
        **{"run": found.run.run_id, "base": found.present.version, **about},
    )


# -- what is there -------------------------------------------------------------------------------------------------


def _present(found: Lab) -> None:
    terms = sum(term.weight != 0 for term in found.spec.terms)
    rules = len(found.spec.inclusion)
    since = "from the beginning" if found.since == 0 else f"since cycle {found.since}"
    last = found.last
    by = "" if last is None else f", by {plain(last.actor)} ({last.action})"
    st.markdown(
        f"**Reward {plain(found.spec.name)} {plain(found.present.version[:HASH])} is in force {since}**{by}: {terms} "
        f"terms are paid, {rules} rule{'' if rules == 1 else 's'} leave{'s' if rules == 1 else ''} "
        f"samples out. A change that is made now is in force "
        f"from cycle {found.from_cycle} on; the cycle that is running is not touched."
    )
    wanted = st.query_params.get("base")
    if wanted is not None and not any(each.version.startswith(wanted) for each in found.versions):
        st.warning(f"There is no version {plain(wanted)}; this is the reward in force.", icon=":material/help:")


def _asked(asked: Asked | str | None, incident: int | None, finding: str | None) -> None:
    """The incident or the finding, and what it asks of the reward."""
    store = frame.observatory().store
    if incident is not None and (there := store.incidents.get(incident)) is not None:
        st.markdown(f"{state_badge(there)} **Incident {incident}**: {incident_words(there)}")
        pins = store.incidents.pinned(incident)
        if pins:
            st.markdown(f"Leading finding: {finding_words(pins[0].finding)}.")
        link(f"Back to incident {incident}", "incidents", ":material/arrow_back:", id=incident)
    if isinstance(asked, str):
        st.warning("**A patch answers nothing here.**", icon=":material/help:")
        st.code(shown(asked, 1_000)[0], language=None, wrap_lines=True)
    elif asked is not None and asked.targets is not None:
        targets = lab_proposals.targets_in_words([(each.want, *each.cell) for each in asked.targets])
        st.markdown(f"It asks for **{targets}**.")
        if asked.unaimed:
            st.caption(f"Not on the bench, and so not patched: {lab_proposals.few(asked.unaimed)}.")


# -- searching -----------------------------------------------------------------------------------------------------


def _search(
    found: Lab, asked: Asked | str | None, incident: int | None, finding: str | None
) -> lab_proposals.Search | str | None:
    """The search that fits what is asked: what came of it, that it is under way, or None and a button to begin it."""
    store = frame.observatory().store
    if isinstance(asked, str):
        return None
    if not found.cycles:
        st.info("**No interactions yet**: a patch is found on logged ones.", icon=":material/hourglass_top:")
        return None
    arguments: dict[str, object] = {"run": found.run.run_id, "cycles": list(found.cycles[-AHEAD:])}
    if incident is not None:
        arguments["incident"] = incident
    elif finding is not None:
        arguments["finding"] = finding
    else:
        left, right = st.columns(2)
        with left:
            statistic = frame.choice("Turn round", "stat", [CHECK, *WATCHED], _named)
        if statistic != CHECK:
            with right:
                slice_ = frame.choice("Where", "slice", list(SLICES), slice_words)
            arguments |= {"statistic": statistic, "slice": slice_}
    job = bench.newest_job(store, "patch", {**arguments, "base": found.present.version})
    if job is not None and job.state in UNDER_WAY:
        working.following(job.job_id)
        return "under way"
    if job is not None and job.state == "failed":
        working.failed(job)
    cycles = found.cycles[-AHEAD:]
    label = "Search for patches" if job is None or job.state == "failed" else "Search again"
    act = acting.form("search", f"{label} (cycles {cycles[0]} to {cycles[-1]})", reason=None, shortcut="p")
    if act is not None:
        with acting.doing("search", "Asked. What is found is shown here."):
            working.ask("patch", {**arguments, "base": found.present.version}, act)
    done = None if job is None or job.state != "done" else store.jobs.get(job.job_id)
    return None if done is None or done.result is None else lab_proposals.Search.of(done)


def _named(statistic: str) -> str:
    return "what the newest check blocks or forewarns" if statistic == CHECK else title(statistic)


# -- one change ----------------------------------------------------------------------------------------------------


def _chosen(found: Lab, proposals: Sequence[RewardProposal]) -> Change | None:
    """The change that is replayed and applied: a proposal, or one by hand."""
    by_id = {each.proposal_id: each for each in proposals}
    wanted = st.query_params.get("patch", "")
    matching = [name for name in by_id if wanted and wanted != OWN and name.startswith(wanted)]
    if len(matching) == 1 and matching[0] != wanted:
        st.query_params["patch"] = matching[0]
    elif wanted and wanted != OWN and not matching:
        stale = [
            each for each in frame.observatory().store.rewards.proposals(found.run.run_id)
            if each.proposal_id.startswith(wanted)
        ]  # fmt: skip
        if stale:
            st.warning(
                f"The proposal {plain(wanted)} changes the reward {plain(stale[0].base[:HASH])}, which is not in force "
                "any more: it is stale.",
                icon=":material/help:",
            )
            st.query_params.pop("patch")
    if "job" in st.query_params and "patch" not in st.query_params:
        st.query_params["patch"] = OWN
    names = [*by_id, OWN]
    chosen = frame.choice(
        "Change", "patch", names, lambda name: "by hand" if name == OWN else lab_proposals.named(by_id[name])
    )
    if chosen == OWN:
        return lab_hand.change(found)
    proposal = by_id[chosen]
    return Change(proposal.text, str(proposal.detail.get("diff") or ""), proposal)


def _cycles(found: Lab, key: str) -> tuple[int, ...]:
    """The cycles that a replay rests on, from the URL; the newest where it does not say."""
    if not found.cycles:
        return ()
    first, last = found.cycles[-AHEAD:][0], found.cycles[-1]
    low, high = _whole("from"), _whole("to")
    low, high = first if low is None else low, last if high is None else high
    left, right, _ = st.columns([0.2, 0.2, 0.6])
    least, most = found.cycles[0], found.cycles[-1]
    if not least <= low <= high <= most:
        st.warning(f"There are cycles {least} to {most}; these are {first} to {last}.", icon=":material/help:")
        low, high = first, last

    def changed() -> None:
        for name in ("from", "to"):
            st.query_params[name] = str(int(st.session_state[f"{key}-{name}-{low}-{high}"]))

    left.number_input("Replay from cycle", least, most, low, key=f"{key}-from-{low}-{high}", on_change=changed)
    right.number_input("to cycle", least, most, high, key=f"{key}-to-{low}-{high}", on_change=changed)
    return tuple(each for each in found.cycles if low <= each <= high)


def _apply(found: Lab, change: Change, incident: int | None) -> None:
    """Reason and button; the proposal is kept first where it was made by hand."""
    st.markdown("#### Apply")
    store = frame.observatory().store
    about = "" if incident is None else f" It is noted on incident {incident}, which it mitigates."
    st.caption(
        f"A new version is written, with {plain(found.present.version[:HASH])} as its parent, your reason and "
        f"your name. It is in force from the next cycle that begins; one click takes it back.{about}"
    )
    if change.proposal is None:
        words = st.text_input("What it is, in a few words", key="own-title", max_chars=120)
        kept = acting.form("keep", "Keep it as a proposal", reason=None)
        if kept is not None:
            with acting.doing("keep", "Kept as a proposal. Nothing is in force yet."):
                made = patching.propose_own(store, found.run, change.text, title=words, actor=kept.actor)
                st.query_params["patch"] = made.proposal_id
                st.query_params.pop("job", None)
    act = acting.form("apply", "Put it in force", reason="Reason")
    if act is not None:
        with acting.doing("apply", "It was in force already; nothing was changed.") as outcome:
            proposal = change.proposal or patching.propose_own(
                store, found.run, change.text, title=words, actor=act.actor
            )
            done = patching.apply_stored(
                store, found.run, proposal.proposal_id, reason=act.reason, actor=act.actor, incident=incident
            )
            for name in ("patch", "base", "job"):
                st.query_params.pop(name, None)
            if done is not None:
                outcome.said = (
                    f"Reward {plain(done.version[:HASH])} is in force from cycle {done.from_cycle} on, in place of "
                    f"{plain((done.instead_of or 'none')[:HASH])}. The audit log has it, with your reason."
                )


# -- what was ------------------------------------------------------------------------------------------------------


def _history(found: Lab) -> None:
    st.dataframe(
        versions_table(found),
        hide_index=True,
        placeholder="–",
        key="versions",
        alt="Versions of the reward, the newest first",
        column_config={"written": st.column_config.DatetimeColumn("written (UTC)", format="YYYY-MM-DD HH:mm")},
    )
    if found.changes:
        newest = found.changes[-1]
        st.markdown(
            f"Last change: from cycle {newest.from_cycle} on {plain(newest.version[:HASH])} in place of "
            f"{plain((newest.instead_of or 'none')[:HASH])} ({newest.action}), by {plain(newest.actor)} at "
            f"{utc(newest.changed_at)}, because:"
        )
        st.text(shown(newest.reason, 500)[0])
        left, right, _ = st.columns([0.25, 0.25, 0.5])
        with left:
            link("In the audit log", "audit", ":material/arrow_forward:", subject=f"reward:{newest.version}")
        with right:
            link("Incidents", "incidents", ":material/arrow_forward:")
    _revert(found)


def _revert(found: Lab) -> None:
    others = [each.version for each in reversed(found.versions) if each.version != found.present.version]
    if not others:
        st.caption("There is no other version to go back to.")
        return
    before = found.last.instead_of if found.last is not None else None
    usual = before if before in others else others[0]
    store = frame.observatory().store
    names = {each.version: stored_spec(each).name for each in found.versions}
    with st.expander("Go back to an older version"):
        to = st.selectbox(
            "Version",
            others,
            index=others.index(usual),
            format_func=lambda each: f"{each[:HASH]} ({names[each]})",
            key=f"revert-to-{found.present.version}",
        )
        act = acting.form("revert", "Go back to it", reason="Reason to go back")
        if act is not None:
            with acting.doing("revert", "It was in force already; nothing was changed.") as outcome:
                done = patching.revert(store, found.run, to, reason=act.reason, actor=act.actor)
                if done is not None:
                    outcome.said = (
                        f"Reward {plain(done.version[:HASH])} is in force again from cycle {done.from_cycle} on. "
                        "The audit log has it, with your reason."
                    )


def versions_table(found: Lab) -> pd.DataFrame:
    """All versions, the newest first."""
    since: dict[str, list[int]] = {}
    for each in found.schedule:
        since.setdefault(each.version, []).append(each.from_cycle)
    rows = list(reversed(found.versions))
    return pd.DataFrame(
        {
            "version": [each.version[:HASH] for each in rows],
            "name": [stored_spec(each).name for each in rows],
            "in force from cycle": [", ".join(map(str, since.get(each.version, []))) or None for each in rows],
            "parent": [None if each.parent is None else each.parent[:HASH] for each in rows],
            "by": [each.actor for each in rows],
            "because": [each.reason for each in rows],
            "written": [each.created_at for each in rows],
        }
    )


def _whole(name: str) -> int | None:
    """A number in the URL; None where it is none, which is said."""
    given = st.query_params.get(name)
    if given is None:
        return None
    if given.isascii() and given.isdigit() and len(given) < 10:
        return int(given)
    st.warning(f"There is no {name} {plain(given)}: it is no number.", icon=":material/help:")
    return None


if __name__ == "__main__":
    st.title("Reward lab")
    page()
