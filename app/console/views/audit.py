"""The audit log: who did what, when and why, and whether the log of it is whole."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app import audit_trail
from palomar.app.audit_trail import Filter, Verified
from palomar.app.console import frame
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge
from palomar.data.store import Store
from palomar.data.store.audit_log import parse_head
from palomar.data.store.records import AuditEntry, AuditHead

PAGE_SIZE = 50
ANY = "(any)"


def page() -> None:
    """The whole page."""
    with frame.panel("Audit log"):
        observatory = frame.observatory()
        if not observatory.has_store:
            frame.nothing_yet()
            return
        store = observatory.store
        which = _filters(store, audit_trail.head(store))
        first = audit_trail.read(store, which, size=PAGE_SIZE, page=1)
        with frame.panel("Verification"):
            _verification(store, audit_trail.last_verified(store, first.head), first.head)
        pages = max(1, -(-first.total // PAGE_SIZE))
        at = frame.pager("page", "Page", pages)
        found = first if at == 1 else audit_trail.read(store, which, size=PAGE_SIZE, page=at)
        if found.entries:
            _entries(found.entries, found.total)
        else:
            _nothing(store, which)
        _exports(store, which)
        options = {name: value for name, value in vars(which).items() if value is not None}
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        frame.footer(
            "audit",
            same=["audit-log", "show", *flags],
            csv=lambda: pd.DataFrame(audit_trail.rows(store.audit_log.read(**vars(which)))),
            page=at,
            **options,
        )


def _filters(store: Store, head: AuditHead | None) -> Filter:
    """What is asked for, as it stands in the URL."""
    actors, actions = audit_trail.names(store, head)
    left, middle, right = st.columns(3)
    with left:
        actor = frame.choice("Actor", "actor", [ANY, *actors])
    with middle:
        action = frame.choice(
            "Action", "action", [ANY, *actions], lambda name: f"{name}*" if name.endswith(".") else name
        )
    subject = st.query_params.get("subject", "")
    key = f"subject-{subject}"

    def changed() -> None:
        words = st.session_state[key].strip()
        if words:
            st.query_params["subject"] = words
        else:
            st.query_params.pop("subject", None)
        st.query_params.pop("page", None)

    with right:
        st.text_input(
            "Subject", subject, key=key, on_change=changed, placeholder="incident:12, candidate:…", max_chars=600
        )
    return Filter(
        subject=subject.strip() or None,
        actor=None if actor == ANY else actor,
        action=None if action == ANY else action,
    )


# -- verification ----------------------------------------------------------------------------------------------------


def _verification(store: Store, found: Verified | None, head: AuditHead | None) -> None:
    if found is None:
        entries = 0 if head is None else head.entries
        st.markdown(
            f"{badge('pending', 'NOT VERIFIED')} {entries:,} entries; reading all of them takes some seconds, so it is "
            "done when you ask for it."
        )
    else:
        st.markdown(told(found))
        if found.problem is not None:
            st.text(shown(found.problem.why, 1_000)[0])
        elif head is not None and found.head is not None and head.entries > found.head.entries:
            st.caption(f"{head.entries - found.head.entries:,} entries were written since, and are not verified yet.")
    left, right = st.columns([0.2, 0.8], vertical_alignment="center")
    if left.button("Verify now", key="verify", icon=":material/verified:"):
        audit_trail.verify(store)
        st.rerun()
    if head is not None:
        right.caption("The head, to be kept where those who may write to the database may not write:")
        st.code(str(head), language=None)
    with st.expander("Check against a head that was kept"):
        words = st.text_input("A head from before, ENTRIES:HASH", key="pinned", max_chars=100)
        if st.button("Check", key="check-pinned"):
            _pinned(store, words)


def told(found: Verified) -> str:
    """What a verification came to, as Markdown."""
    at = f"{found.at:%Y-%m-%d %H:%M:%S} UTC"
    if found.problem is None:
        return (
            f"{badge('pass')} **{found.whole.entries:,} entries, each follows the one before**; verified at {at}. An "
            "entry that was changed, removed or moved would show here."
        )
    about = "the log" if found.problem.number is None else f"entry {found.problem.number}"
    return (
        f"{badge('fail')} **The log is broken at {about}** ({found.problem.kind}); the first "
        f"{found.whole.entries:,} entries follow each other. Verified at {at}."
    )


def _pinned(store: Store, words: str) -> None:
    head = parse_head(words)
    if head is None:
        st.warning(f"{plain(words)} is not of the form ENTRIES:HASH.", icon=":material/help:")
        return
    found = audit_trail.verify(store, head)
    if found.problem is None:
        st.markdown(f"{badge('pass')} The log leads through the head after entry {head.entries:,}.")
    else:
        st.markdown(told(found))
        st.text(shown(found.problem.why, 1_000)[0])


# -- entries ---------------------------------------------------------------------------------------------------------


def _entries(found: Sequence[AuditEntry], total: int) -> None:
    st.markdown(
        f"**{total:,} entries**, newest first; on this page are {len(found)}, from entry {found[0].number:,} down to "
        f"{found[-1].number:,}."
    )
    st.dataframe(
        table(found),
        hide_index=True,
        key="entries",
        placeholder="–",
        height=min(38 + 35 * len(found), 560),
        alt="Entries of the audit log, newest first",
        column_config={"reason": st.column_config.TextColumn(width="large")},
    )
    numbers = [str(entry.number) for entry in found]
    chosen = st.selectbox(
        "One entry in full", numbers, index=None, placeholder="Number of an entry above", key=f"entry-{numbers[0]}"
    )
    if chosen is not None:
        _one(next(entry for entry in found if str(entry.number) == chosen))


def table(entries: Sequence[AuditEntry]) -> pd.DataFrame:
    """One row per entry, in the order given."""
    return pd.DataFrame(
        {
            "entry": [entry.number for entry in entries],
            "at (UTC)": [shown(entry.at[:19].replace("T", " "), 30)[0] for entry in entries],
            "by": [shown(entry.actor, 100)[0] for entry in entries],
            "action": [shown(entry.action, 100)[0] for entry in entries],
            "of": [shown(entry.subject, 200)[0] for entry in entries],
            "reason": [" ".join(shown(entry.reason, 500)[0].split()) for entry in entries],
        }
    )


def _one(entry: AuditEntry) -> None:
    with st.container(border=True):
        st.markdown(
            f"**Entry {entry.number:,}** by {plain(entry.actor)}: {plain(entry.action)} of {plain(entry.subject)}"
        )
        if entry.reason:
            st.text(shown(entry.reason, 4_000)[0])
        st.code(
            shown(audit_trail.json_lines([entry]).decode(errors="replace"), 6_000)[0], language="json", wrap_lines=True
        )
        kind, _, of = entry.subject.partition(":")
        if kind == "incident" and of.isdigit():
            link(f"Incident {of}", "incidents", ":material/arrow_forward:", id=of)
        if kind == "candidate":
            link("What the gate says of it", "gate", ":material/arrow_forward:", ckpt=of)


def _nothing(store: Store, which: Filter) -> None:
    if which == Filter():
        st.info(
            "**Nothing was written yet.** Every decision, patch, override, acknowledgement and token leaves an entry "
            "here, with who did it and why.",
            icon=":material/hourglass_top:",
        )
        return
    st.info("**No entry is like that.** Choose other filters.", icon=":material/filter_alt:")
    if which.subject is not None and store.audit_log.count(subject=which.subject) == 0:
        near = audit_trail.near(store, which.subject)
        st.markdown(f"Nothing is about {plain(which.subject)}" + ("; the nearest:" if near else "."))
        for each in near:
            link(plain(each), "audit", ":material/arrow_forward:", subject=each)


def _exports(store: Store, which: Filter) -> None:
    st.download_button(
        "JSON lines (all rows)",
        lambda: audit_trail.json_lines(store.audit_log.read(**vars(which))),
        "audit.jsonl",
        "application/x-ndjson",
        key="jsonl",
        on_click="ignore",
        help="With the hashes, so that the chain can be checked without Palomar (docs/incidents.md).",
    )


if __name__ == "__main__":
    st.title("Audit")
    page()
