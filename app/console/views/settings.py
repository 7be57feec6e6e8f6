"""Settings as read: what this run and this installation were told, versions, and where things lie. Nothing is changed
here."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app import configuration
from palomar.app.configuration import Configuration, DetectorFile, Setting
from palomar.app.console import acting, frame
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge, words

ALL, SET = "all", "set"
CHOICES = {ALL: "all", SET: "only those that are no default"}


def page() -> None:
    """The whole page."""
    with frame.panel("Settings"):
        run = frame.run()
        if run is None and not frame.observatory().sources():
            frame.nothing_yet()
        found = configuration.configuration(frame.observatory(), run)
        st.markdown(acting.person().said)
        with frame.panel("Settings of the run"):
            _settings(found)
        with frame.panel("Versions"):
            _versions(found)
        with frame.panel("Detectors"):
            _detectors(found)
        left, right = st.columns([0.62, 0.38], gap="large")
        with left, frame.panel("Places"):
            _places(found)
        with right, frame.panel("Libraries"):
            _libraries(found)
        frame.footer(
            "settings",
            same=["settings"],
            csv=lambda: settings_table(found.settings),
            **({} if found.run_id is None else {"run": found.run_id}),
        )


def _settings(found: Configuration) -> None:
    st.subheader("Settings of the run")
    if found.run_id is None:
        st.caption("NO DATA: no run was started in this home. Settings are read from `palomar.yaml` when one is.")
        return
    if not found.settings:
        st.caption("NO DATA: this run kept no settings.")
        return
    which = frame.choice("Show", "show", list(CHOICES), lambda key: CHOICES[key], ALL)
    own = [each for each in found.settings if each.default is False]
    st.markdown(
        f"{len(found.settings)} settings as they were read when the run began; **{len(own)}** differ from what stands "
        "without them. Passwords, tokens and keys are masked."
    )
    listed = own if which == SET else list(found.settings)
    if not listed:
        st.caption("None: everything is as it stands without settings.")
        return
    st.dataframe(
        settings_table(listed),
        hide_index=True,
        key="settings",
        height=min(38 + 35 * len(listed), 388),
        alt="Settings of the run, with defaults marked",
        column_config={"value": {"width": "large"}},
    )


def settings_table(settings: Sequence[Setting]) -> pd.DataFrame:
    """One row per setting."""
    said = {True: "default", False: "▲ SET", None: "no default"}
    return pd.DataFrame(
        {
            "setting": [each.name for each in settings],
            "value": [shown(each.value, 500)[0] for each in settings],
            "": [said[each.default] for each in settings],
        }
    )


def _versions(found: Configuration) -> None:
    st.subheader("Reward and policy")
    if found.rewards:
        newest = found.rewards[-1]
        st.markdown(f"In force: reward {plain(newest.version[:12])}, from cycle **{newest.from_cycle}** on.")
        st.dataframe(
            pd.DataFrame(
                {
                    "reward": [each.version[:12] for each in found.rewards],
                    "from cycle": [each.from_cycle for each in found.rewards],
                    "by": [shown(each.actor, 100)[0] for each in found.rewards],
                    "reason": [shown(each.reason, 300)[0] for each in found.rewards],
                }
            ),
            hide_index=True,
            key="rewards",
            alt="Reward versions by the cycle from which they are in force",
        )
        link("The reward lab", "lab", ":material/science:")
    else:
        st.caption("NO DATA: no reward version is in force here.")
    st.dataframe(
        pd.DataFrame(
            {
                "gate's policy": [shown(each.name, 200)[0] for each in found.policies],
                "version": [shown(each.version, 200)[0] for each in found.policies],
                "": ["● newest decision" if each.used else "" for each in found.policies],
            }
        ),
        hide_index=True,
        key="policies",
        alt="Policies of the gate",
    )


def _detectors(found: Configuration) -> None:
    st.subheader("Detectors")
    own = sum(each.source != "built in" for each in found.detectors)
    st.markdown(f"{len(found.detectors) - own} built in, {own} from files of your own.")
    for each in found.unreadable:
        st.markdown(f"{badge('fail', 'CANNOT BE READ')} {plain(each, 400)}")
    st.dataframe(
        detectors_table(found.detectors),
        hide_index=True,
        key="detectors",
        height=388,
        alt="Detectors, where they come from, and how their errors are controlled",
        column_config={"errors": {"width": "large"}, "about": {"width": "medium"}},
    )
    link("How often each was right", "alarms", ":material/notifications:")


def detectors_table(detectors: Sequence[DetectorFile]) -> pd.DataFrame:
    """One row per detector."""
    return pd.DataFrame(
        {
            "detector": [each.name for each in detectors],
            "from": [shown(each.source, 200)[0] for each in detectors],
            "runs": ["checks: all" if each.costly else "always" for each in detectors],
            "errors": [shown(each.errors, 600)[0] or words("no_data", "DOES NOT SAY") for each in detectors],
            "about": [shown(each.about, 300)[0] for each in detectors],
        }
    )


def _places(found: Configuration) -> None:
    st.subheader("Where things lie")
    st.dataframe(
        pd.DataFrame(
            {
                "what": [each.what for each in found.places],
                "size": [None if each.size is None else each.size for each in found.places],
                "where": [shown(each.where, 500)[0] for each in found.places],
            }
        ),
        hide_index=True,
        key="places",
        placeholder="–",
        alt="Folders and files with their sizes",
        column_config={"size": st.column_config.NumberColumn(format="bytes"), "where": {"width": "large"}},
    )
    st.caption(f"Schema of the store: {plain(found.schema or 'not known')}")


def _libraries(found: Configuration) -> None:
    st.subheader("Versions of libraries")
    st.dataframe(
        pd.DataFrame({"library": list(found.libraries), "version": list(found.libraries.values())}),
        hide_index=True,
        key="libraries",
        height=388,
        alt="Versions of installed libraries",
    )


if __name__ == "__main__":
    st.title("Settings")
    page()
