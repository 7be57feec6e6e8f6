"""Jobs on a page: asking for one, following it, and saying what became of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from palomar.app import jobs
from palomar.app.console import acting, frame, options
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge
from palomar.data.schema import content_id
from palomar.data.store.jobs import UNDER_WAY
from palomar.data.store.records import Job

FOLLOW_S = 1.0
"""How often a job under way is looked at."""


def runner() -> jobs.Runner:
    """The worker of this console's home."""
    return jobs.runner_of(frame.observatory().home, os.environ.get(options.STORE_VARIABLE) or None)


def ask(kind: str, arguments: Mapping[str, Any], act: acting.Act) -> Job:
    """Asks for a job as a form was pressed: once, however often it is sent; with other arguments it is another one."""
    token = content_id(act.token, json.dumps(arguments, sort_keys=True))
    return frame.observatory().store.jobs.ask(kind, arguments, actor=act.actor, token=token)


def job_named(parameter: str) -> Job | None:
    """The job that the URL names, with its result; one that is not there is said."""
    wanted = st.query_params.get(parameter)
    if wanted is None:
        return None
    found = frame.observatory().store.jobs.get(wanted)
    if found is None:
        st.warning(
            f"There is no job {plain(wanted)}; `palomar jobs list` names those there are.", icon=":material/help:"
        )
    return found


@st.fragment(run_every=FOLLOW_S)
def following(job_id: str) -> None:
    """How far a job is; once it is over the whole page runs anew, and shows what came of it."""
    store = frame.observatory().store
    runner().look(store)
    job = next((each for each in store.jobs.read(states=UNDER_WAY) if each.job_id == job_id), None)
    if job is None:
        st.rerun()
    since = job.started_at or job.asked_at
    took = int((datetime.now(UTC) - since).total_seconds())
    st.progress(job.progress, f"{badge('pending', job.state.upper())} for {took} s; asked by {plain(job.actor)}")
    st.text(job.step)
    st.caption("It goes on if you leave this page; the address brings you back to it.")


def failed(job: Job) -> None:
    """Why it could not be done."""
    st.error(f"**Not done**: the job {plain(job.job_id)} failed. Ask again to try again.", icon=":material/error:")
    st.code(shown(job.error or "", 2_000)[0], language=None, wrap_lines=True)
