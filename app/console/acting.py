"""Who sits at the console, what they may do, and how something is done: with a reason, once, and said when it fails.

A page never writes: it calls the function of the service that does, with the actor and the reason that `form` gave. The
role is asked here again when the form comes back, since a disabled button is no lock.
"""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import streamlit as st

from palomar.app.console.plain import plain, shown
from palomar.data.errors import PalomarError

Role = Literal["read", "decide", "admin"]
"""``read`` looks; ``decide`` acknowledges, labels, patches and asks the gate; ``admin`` may do all of it."""
ALL_ROLES: frozenset[Role] = frozenset(("read", "decide", "admin"))


@dataclass(frozen=True)
class Person:
    """Whoever looks at this page."""

    name: str
    """The actor of all that they do."""
    roles: frozenset[Role]
    said: str
    """How we know them, as Markdown."""

    def may(self, role: Role) -> bool:
        """Whether they have the role, or one that holds it."""
        return role in self.roles or "admin" in self.roles


@dataclass(frozen=True)
class Act:
    """What a form gave: who does it and why."""

    actor: str
    reason: str
    token: str
    """Id of the request; the store does the same request once."""


def person() -> Person:
    """Who it is. Without a sign-in: the user who started the console, who may do everything."""
    name = getpass.getuser()
    said = (
        f"Local single-user mode: no sign-in; you act as {plain(name)}. Whoever reaches this port reads and decides "
        "everything in the home. All times are UTC."
    )
    return Person(name, ALL_ROLES, said)


def form(
    key: str, label: str, *, role: Role = "decide", reason: str | None = "Reason", shortcut: str | None = None
) -> Act | None:
    """A reason and a button; what it gave in the run in which the button was pressed, else None.

    ``reason`` heads the box (None: no reason is asked). ``shortcut``: a key for what can be taken back. Widgets of the
    caller belong above it, with keys of their own. `done` must be called once it is done.
    """
    who = person()
    if not who.may(role):
        st.caption(f"{label}: needs the role {role}, which {plain(who.name)} has not.")
        return None
    with st.container(key=f"act-{key}"):
        words = "" if reason is None else st.text_input(reason, key=f"reason-{key}", max_chars=2_000)
        pressed = st.button(label, key=f"do-{key}", shortcut=shortcut, type="secondary")
    if not pressed:
        return None
    if reason is not None and not words.strip():
        st.warning(f"{label}: say why first; it goes into the audit log.", icon=":material/edit_note:")
        return None
    token: str = st.session_state.setdefault(f"token-{key}", uuid.uuid4().hex)
    return Act(who.name, words.strip(), token)


@dataclass
class Outcome:
    """What is said once it is done."""

    said: str


@contextmanager
def doing(key: str, said: str) -> Iterator[Outcome]:
    """Round the write that a form asked for: says what was done (`said`, our words), or why it could not be.

    What is known only afterwards may be put in the place of `said`. What could not be done may be tried again under the
    same token; what was done gets a new one.
    """
    outcome = Outcome(said)
    try:
        yield outcome
    except PalomarError as exc:
        st.error("**Not done.** Nothing was changed.", icon=":material/error:")
        st.code(shown(str(exc), 1_000)[0], language=None, wrap_lines=True)
    else:
        st.session_state.pop(f"token-{key}", None)
        st.session_state["done"] = outcome.said
        st.rerun()


def told() -> None:
    """At the top of a page that acts: what was done last, once."""
    said = st.session_state.pop("done", None)
    if said:
        st.success(said, icon=":material/check:")
