"""Experiments: may the comparison be believed, then what each arm's users got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app import experiments
from palomar.app.console import frame
from palomar.app.console.charts.forest import drawn, forest, relative, said
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import State, badge, words
from palomar.app.console.tables import title
from palomar.app.experiments import PlanFile
from palomar.data.store.records import Run
from palomar.detectors.experiment import Effect, ExperimentReport, Plan
from palomar.trainer.gate_policy import ExperimentPolicy, read_policy

VALIDITY: Mapping[str, tuple[State, str]] = {
    "pass": ("pass", "PASS"),
    "fail": ("fail", "FAIL"),
    "unknown": ("no_data", "UNKNOWN"),
}
STATUS: Mapping[str, tuple[State, str]] = {
    "immature": ("pending", "PENDING"),
    "too_few": ("pending", "PENDING: TOO FEW"),
    "invalid": ("fail", "INVALID"),
}
POLICY = "production"
"""Whose guardrails are shown beside the figures; the gate may be asked with another."""


def page() -> None:
    """The whole page."""
    with frame.panel("Experiments"):
        run = frame.run()
        home = frame.observatory().home
        found = experiments.plans(home)
        if not found:
            if run is None:
                frame.nothing_yet()
                return
            _none(run)
            return
        by_name = {each.name: each for each in found}
        name = frame.choice("Experiment", "plan", list(by_name), lambda key: _named(by_name[key]))
        chosen = by_name[name]
        if chosen.plan is None:
            st.error("**This plan cannot be read.**", icon=":material/error:")
            st.code(shown(chosen.problem, 1_000)[0], language=None, wrap_lines=True)
            frame.footer("experiments", same=["experiment", "plans"], plan=name)
            return
        with frame.panel("Report"):
            with st.spinner("Reading the experiment…"):
                report = experiments.report_at(home, chosen.plan)
            _report(chosen, chosen.plan, report)


def _named(listed: PlanFile) -> str:
    return listed.name + ("" if listed.plan is not None else " (cannot be read)")


def _none(run: Run) -> None:
    folder = frame.observatory().home / experiments.FOLDER
    st.info(
        "**No experiment is planned here.** An experiment serves two checkpoints to users drawn at random and says "
        "what each arm's users got. A plan is a YAML file (docs/experiments.md) in this folder:",
        icon=":material/science:",
    )
    st.code(str(folder), language=None)
    frame.footer("experiments", same=["experiment", "plans"], run=run.run_id)


def _report(listed: PlanFile, plan: Plan, found: ExperimentReport | None) -> None:
    if found is None:
        st.markdown(f"### {badge('pending')} Nothing of {plain(plan.name)} was collected yet")
        st.markdown("Serve it to simulated users, or log interactions whose arm is named in it:")
        st.code(f"palomar experiment run {listed.path} --cycles 4", language=None)
    else:
        st.markdown(f"### {verdict(found)}")
        st.caption(f"{_arms(plan, found)} As of {found.as_of:%Y-%m-%d %H:%M} UTC, by the log's clock.")
        with frame.panel("May it be believed?"):
            _validity(found)
        with frame.panel("What each arm's users got"):
            _effects(found)
    with st.expander("The plan"):
        st.code(shown(plan.model_dump_json(indent=1), 6_000)[0], language="json")
    treatments = [arm.checkpoint for arm in plan.arms.values() if arm.role == "treatment"]
    link("What the gate says of the candidate", "gate", ":material/traffic:", ckpt=treatments[0])
    frame.footer(
        "experiments",
        same=["experiment", "report", str(listed.path)],
        csv=None if found is None else lambda: effects_table(found, found.effects, None),
        plan=plan.name,
    )


def _arms(plan: Plan, found: ExperimentReport) -> str:
    arms = [
        f"{plain(name)} ({plan.arms[name].role}) serves {plain(checkpoint)}" for name, checkpoint in found.arms.items()
    ]
    return f"{'; '.join(arms)}."


def verdict(found: ExperimentReport) -> str:
    """What it comes to, in one line of Markdown."""
    if not found.valid:
        failing = sum(each.status == "fail" for each in found.validity)
        return f"{badge('fail', 'BROKEN')} {failing} conditions fail: no effect may be believed"
    if found.worse:
        names = ", ".join(plain(each.metric) for each in found.worse[:4])
        more = f" and {len(found.worse) - 4} more" if len(found.worse) > 4 else ""
        return f"{badge('fail', 'WORSE')} {len(found.worse)} of {len(found.judged)} metrics: {names}{more}"
    if found.unknown:
        return f"{badge('pending')} {len(found.unknown)} of {len(found.judged)} metrics are not known yet"
    if found.improved:
        names = ", ".join(plain(each.metric) for each in found.improved[:4])
        return f"{badge('pass', 'BETTER')} nothing is worse, and better: {names}"
    return f"{badge('pending', 'NOTHING SHOWN')} nothing is shown to be worse, and nothing to be better"


def _validity(found: ExperimentReport) -> None:
    st.subheader("May it be believed?")
    counts = {state: sum(each.status == state for each in found.validity) for state in VALIDITY}
    st.markdown(" · ".join(f"{badge(*VALIDITY[state])} {count}" for state, count in counts.items() if count))
    order = sorted(found.validity, key=lambda each: ("fail", "unknown", "pass").index(each.status))
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        pd.DataFrame(
            {
                "": [words(*VALIDITY[each.status]) for each in order],
                "condition": [shown(each.name, 200)[0] for each in order],
                "measured": [each.value for each in order],
                "fails from": [each.threshold for each in order],
                "why": [shown(each.why, 300)[0] for each in order],
            }
        ),
        hide_index=True,
        key="validity",
        placeholder="–",
        height=min(38 + 35 * len(order), 283),
        alt="Conditions without which no effect may be believed, failing ones first",
        column_config={"measured": number, "fails from": number, "why": {"width": "large"}},
    )


def _effects(found: ExperimentReport) -> None:
    st.subheader("What each arm's users got")
    pairs = list(dict.fromkeys((each.control, each.treatment) for each in found.effects))
    names = {f"{treatment} against {control}": (control, treatment) for control, treatment in pairs}
    chosen = next(iter(names))
    if len(names) > 1:
        chosen = frame.choice("Comparison", "pair", list(names))
    effects = [each for each in found.effects if (each.control, each.treatment) == names[chosen]]
    if not found.valid:
        st.markdown(f"{badge('fail', 'BROKEN')} No effect is shown, and none may be believed.")
    elif relative(effects):
        st.vega_lite_chart(
            drawn(found, effects),
            forest(found, effects, frame.theme()),
            key="forest",
            width="stretch",
            alt=said(effects),
        )
        st.caption(
            f"Intervals hold at {100 * (1 - found.alpha):g} % however often one looks. Square: worse; circle: better; "
            "diamond: neither is shown."
        )
    else:
        st.markdown(f"{badge('pending')} No metric is known yet; the table says what each waits for.")
    guards = read_policy(POLICY).policy.experiment
    st.dataframe(
        effects_table(found, effects, guards),
        hide_index=True,
        key="effects",
        placeholder="–",
        height=38 + 35 * len(effects),
        alt="Metrics by arm, with change and interval",
        column_config={
            name: st.column_config.NumberColumn(format="%.4g")
            for name in ("control", "treatment", "effect", "from", "to")
        }
        | {name: st.column_config.NumberColumn(format="percent") for name in ("change", "change from", "change to")},
    )
    st.caption(
        f"Guardrail: the loss that the gate's policy {plain(POLICY)} allows against the champion. What the gate makes "
        "of the figures is the gate's to say."
    )


def state_of(found: ExperimentReport, effect: Effect) -> str:
    """Shape and word for a cell."""
    if effect.status != "known":
        return words(*STATUS[effect.status])
    if effect in found.worse:
        return words("fail", "WORSE")
    if effect in found.improved:
        return words("pass", "BETTER")
    # Not significantly worse is not "not worse": with few users nothing ever is.
    return words("pending", "NOT SHOWN") if effect.better != "none" else words("no_data", "NOT JUDGED")


def effects_table(found: ExperimentReport, effects: Sequence[Effect], guards: ExperimentPolicy | None) -> pd.DataFrame:
    """One row per metric and comparison; what has no value has none, with why."""
    return pd.DataFrame(
        {
            "metric": [title(each.metric) for each in effects],
            "": [state_of(found, each) for each in effects],
            "control": [(each.values or {}).get(each.control) for each in effects],
            "treatment": [(each.values or {}).get(each.treatment) for each in effects],
            "change": [each.relative for each in effects],
            "change from": [each.relative_low for each in effects],
            "change to": [each.relative_high for each in effects],
            "effect": [each.effect for each in effects],
            "from": [each.low for each in effects],
            "to": [each.high for each in effects],
            "users": [" / ".join(f"{each.units[arm]:,}" for arm in (each.control, each.treatment)) for each in effects],
            "guardrail": [_margin(each.metric, guards) for each in effects],
            "why not": [shown(each.why, 300)[0] for each in effects],
            "against": [each.control for each in effects],
        }
    )


def _margin(metric: str, guards: ExperimentPolicy | None) -> str | None:
    if guards is None:
        return None
    margins = guards.guardrails.get(metric) or guards.two_way.get(metric)
    if margins is None or margins.champion is None:
        return None
    both = " either way" if metric in guards.two_way else ""
    return f"{margins.champion:.0%} of it{both}" if margins.relative else f"{margins.champion:g}{both}"


if __name__ == "__main__":
    st.title("Experiments")
    page()
