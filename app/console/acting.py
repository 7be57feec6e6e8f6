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
from typing import Any

import streamlit as st

from palomar.app.console.plain import plain, shown
from palomar.app.console.signing import ALSO, Role, SignIn, sign_in
from palomar.app.console.states import badge
from palomar.data.errors import PalomarError

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
        return any(each in ALSO[role] for each in self.roles)


@dataclass(frozen=True)
class Act:
    """What a form gave: who does it and why."""

    actor: str
    reason: str
    token: str
    """Id of the request; the store does the same request once."""


NOBODY = Person("", frozenset(), "")
"""Whoever has not signed in."""
MOST_NAME = 200


def person() -> Person:
    """Who it is, by the way of signing in that the console was started with; `NOBODY` where that does not say.

    Without a sign-in: the user who started the console, who may do everything.
    """
    how = sign_in()
    if how.mode == "oidc":
        return _by_provider(how)
    if how.mode == "proxy":
        return _by_proxy(how)
    name = getpass.getuser()
    said = (
        f"Local single-user mode: no sign-in; you act as {plain(name)}. Whoever reaches this port reads and decides "
        "everything in the home. All times are UTC."
    )
    return Person(name, ALL_ROLES, said)


def _by_provider(how: SignIn) -> Person:
    """Whom the OpenID Connect provider named. An address that it says is not verified is nobody's."""
    claims: dict[str, Any] = dict(st.user.to_dict())
    if claims.get("is_logged_in") is not True:
        return NOBODY
    if how.name_claim == "email" and claims.get("email_verified") is False:
        return NOBODY
    groups = claims.get(how.groups_claim) if how.groups_claim is not None else None
    told = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    return _known(how, claims.get(how.name_claim), [each for each in told if isinstance(each, str)], "signed in")


def _by_proxy(how: SignIn) -> Person:
    """Whom the proxy named in its header. The server has refused whatever did not come from it (`server.Guard`)."""
    headers = st.context.headers
    groups = "" if how.groups_header is None else headers.get(how.groups_header) or ""
    told = [each.strip() for each in groups.split(",") if each.strip()]
    return _known(how, headers.get(how.user_header or ""), told, "signed in at the proxy")


def _known(how: SignIn, name: object, groups: list[str], by: str) -> Person:
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME:
        return NOBODY
    who = name.strip()
    roles = how.roles.of(who, groups)
    may = ", ".join(sorted(roles)) or "none"
    return Person(who, roles, f"You are {plain(who)}, {by}; roles: {may}. All times are UTC.")


def admitted() -> bool:
    """Whether this person may look at the pages; says why not, and what to do, where they may not.

    The entry script asks before it makes a page, so that whoever has not signed in sees nothing else.
    """
    who = person()
    if who.may("read"):
        with st.sidebar:
            st.caption(who.said)
            if sign_in().mode == "oidc":
                st.button("Sign out", on_click=st.logout, key="sign-out")
        return True
    st.title("Palomar")
    if who.name:
        st.markdown(f"{badge('fail', 'NO ROLE')} You are {plain(who.name)}, and no role lets you look at this console.")
        st.caption("Whoever started it can name you in its file of roles.")
    elif sign_in().mode == "oidc":
        if st.user.to_dict().get("is_logged_in"):
            st.markdown(f"{badge('fail', 'NOT KNOWN')} The provider does not say who you are, or has not verified it.")
        st.button("Sign in", on_click=st.login, type="primary", key="sign-in")
        return False
    else:
        st.markdown(f"{badge('fail', 'NOT SIGNED IN')} The proxy in front of this console did not say who you are.")
    if sign_in().mode == "oidc":
        st.button("Sign out", on_click=st.logout, key="sign-out")
    return False


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
