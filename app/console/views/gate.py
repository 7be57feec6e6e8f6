"""The gate: may this candidate ship, what decides, what is still needed, and deciding otherwise by two people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from palomar.app import gate_exports, gate_view, gating
from palomar.app.console import acting, frame
from palomar.app.console.links import Page, address, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import OF_GATE, State, badge, words
from palomar.app.gate_view import GateView
from palomar.app.plain import plain_json
from palomar.data.errors import PalomarError
from palomar.data.store.records import Checkpoint, Decision, Override, Run, Verdict
from palomar.trainer.gate_policy import read_policy
from palomar.trainer.promotion import Check

POLICIES = ("demo", "production")
PARTS = {
    "validity": "may the data be believed?",
    "block": "is anything shown to be worse?",
    "require": "is it shown that nothing is worse?",
    "success": "is anything shown to be better?",
}
WORDS: Mapping[Verdict, str] = {"promote": "PROMOTE", "hold": "HOLD", "block": "BLOCK"}
MEANING = {"promote": "It may ship.", "hold": "It may not ship yet.", "block": "It must not ship."}
MOST_LINKS = 6


def page() -> None:
    """The whole page."""
    acting.told()
    with frame.panel("Gate"):
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        known = gate_view.candidates(frame.observatory().store, run.run_id)
        if not known:
            st.info(
                "**No candidate yet.** The gate decides about checkpoints that a cycle trained; this run has trained "
                "none so far. The first comes after the baseline cycles.",
                icon=":material/hourglass_top:",
            )
            frame.footer("gate", same=["gate", "history", "CANDIDATE"], run=run.run_id)
            return
        by_id = {each.checkpoint_id: each for each in known}
        chosen = by_id[frame.choice("Candidate", "ckpt", list(by_id), lambda name: _named(by_id[name]))]
        wanted = st.query_params.get("decision")
        found = gate_view.view(frame.observatory().store, run.run_id, chosen, wanted)
        if wanted is not None and (found.answer is None or found.answer.decision.decision_id != wanted):
            st.warning(
                f"There is no decision {plain(wanted)} about this candidate; this is what stands. All that was decided "
                "about it is below.",
                icon=":material/help:",
            )
        _page(run, found)


def _named(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.checkpoint_id} (cycle {checkpoint.cycle}, {checkpoint.status.replace('_', ' ')})"


def _page(run: Run, found: GateView) -> None:
    candidate = found.checkpoint.checkpoint_id
    with frame.panel("Verdict"):
        if found.answer is None:
            _pending(run, found)
        else:
            _verdict(found)
    if found.answer is not None:
        with frame.panel("Checks"):
            _checks(found)
        left, right = st.columns(2, gap="large")
        with left, frame.panel("Override"):
            _override(run, found)
        with right, frame.panel("Ask and replay"):
            _again(run, found)
        with frame.panel("History"):
            _history(found)
    decision = {} if found.answer is None else {"decision": found.answer.decision.decision_id}
    frame.footer(
        "gate",
        same=["gate", "history" if found.answer is None else "decide", candidate],
        csv=lambda: checks_table(found.checks),
        run=run.run_id,
        ckpt=candidate,
        **decision,
    )


# -- the verdict -----------------------------------------------------------------------------------------------------


def _pending(run: Run, found: GateView) -> None:
    candidate = found.checkpoint.checkpoint_id
    st.markdown(f"### {badge('pending')} Nothing was decided about {plain(candidate)}")
    st.markdown(
        "Until the gate has answered, it may not ship. Asked now, it decides by what the store holds: suites that were "
        "run, checks that were kept, the cycle's ledger. What was never measured holds it."
    )
    _ask(run, candidate, again=False)


def _verdict(found: GateView) -> None:
    answer = found.answer
    assert answer is not None
    decision = answer.decision
    state = OF_GATE[decision.verdict]
    kind = "" if decision.kind is None else f" · {decision.kind}"
    st.markdown(
        f"### {badge(state, WORDS[decision.verdict])} {plain(decision.candidate)}{kind}  \n"
        f"{MEANING[decision.verdict]} {_standing(found)}"
    )
    if decision.sentence:
        st.text(shown(decision.sentence, 2_000)[0])
    elif decision.reasons:
        st.text(shown(", ".join(decision.reasons).replace("_", " "), 2_000)[0])
    if answer.rule_said is not None:
        rule = answer.rule_said
        st.markdown(f"The rule said {badge(OF_GATE[rule.verdict], WORDS[rule.verdict])} ({plain(rule.decision_id)}):")
        st.text(shown(rule.sentence, 2_000)[0])
    if found.rule is not None:
        st.caption(f"How it follows: {plain(found.rule.arithmetic, 400)}")
        if found.rule.needed and decision.verdict == "hold":
            st.markdown("**Still needed:**")
            st.text("\n".join(f"– {shown(each, 500)[0]}" for each in found.rule.needed))
    by = f"Decision {plain(decision.decision_id)} by {plain(decision.actor)} at {_utc(decision.created_at)}"
    st.caption(f"{by}; policy {plain(decision.policy)}.")


def _standing(found: GateView) -> str:
    """Whether it stands, and until when, in our own words."""
    assert found.answer is not None
    decision = found.answer.decision
    if found.standing is None or decision.decision_id != found.standing.decision_id:
        stands = "" if found.standing is None else f"; {plain(found.standing.decision_id)} does"
        return f"**It stands no more**{stands}."
    until = decision.expires_at
    if until is not None and found.over:
        return f"**It expired at {_utc(until)}: ask the gate again.**"
    if found.stands is None:
        return "**The champion that it was compared with serves no more: ask the gate again.**"
    left = "" if until is None else f" until {_utc(until)} ({_left(until)} from now)"
    return f"It stands since {_utc(decision.created_at)}{left}."


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _left(until: datetime) -> str:
    minutes = int((until - datetime.now(UTC)).total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


# -- the checks ------------------------------------------------------------------------------------------------------


def result_of(check: Check) -> tuple[State, str]:
    """State and word of a check: a success that is not shown is no fault."""
    if check.part == "success" and check.result != "pass":
        return "pending", "NOT SHOWN"
    if check.result == "unknown":
        # Numbers that settle nothing are not the same as none.
        return ("no_data", "NO DATA") if check.benefit is None and not check.evidence else ("no_data", "UNKNOWN")
    return ("pass", "PASS") if check.result == "pass" else ("fail", "FAIL")


def _checks(found: GateView) -> None:
    if not found.checks:
        st.info(
            "**This decision kept no checks**: another gate than the rule made it. What it kept is below; ask the gate "
            "again for the rule's answer.",
            icon=":material/help:",
        )
        if found.answer is not None and found.answer.decision.evidence:
            with st.expander("What it kept"):
                st.json(dict(found.answer.decision.evidence), expanded=2)
        return
    by_code = {f"{check.part}:{check.code}": check for check in found.checks}
    decided = gate_view.decided_by(found)
    counts = {result: sum(result_of(check)[1] == result for check in found.checks) for result in RESULTS}
    st.subheader("What decides" if decided is not None else "Checks")
    if decided is None:
        st.markdown("No single check decided: nothing is worse, and nothing is shown to be better.")
    first = next(iter(by_code))
    code = frame.choice("Check", "check", list(by_code), lambda key: _choice_words(by_code[key]), first)
    _card(found, by_code[code])
    st.markdown(
        "**All checks**: "
        + " · ".join(f"{badge(RESULTS[word], word)} {count}" for word, count in counts.items() if count)
    )
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        checks_table(found.checks),
        hide_index=True,
        key="checks",
        placeholder="–",
        height=min(38 + 35 * len(found.checks), 420),
        alt="All checks with their numbers; what decided comes first, then what failed",
        column_config={
            "check": st.column_config.TextColumn(width="large"),
            "benefit": st.column_config.NumberColumn(
                format="%.4g", help="Positive is better; of a two-way metric, candidate less the other."
            ),
            "from": number,
            "to": number,
            "margin": number,
            "error": number,
            "p": st.column_config.NumberColumn(format="%.2g"),
            "n": st.column_config.NumberColumn(format="localized"),
            "evidence": st.column_config.LinkColumn(display_text="open"),
        },
    )


RESULTS: dict[str, State] = {
    "FAIL": "fail",
    "UNKNOWN": "no_data",
    "NO DATA": "no_data",
    "PASS": "pass",
    "NOT SHOWN": "pending",
}


def _choice_words(check: Check) -> str:
    state, word = result_of(check)
    return f"{words(state, word)}  {check.code}"


def _card(found: GateView, check: Check) -> None:
    """One check with its arithmetic, its evidence, and what would settle it."""
    with st.container(border=True):
        state, word = result_of(check)
        st.markdown(f"{badge(state, word)} {PARTS[check.part]}")
        st.text(shown(check.sentence, 2_000)[0])
        facts = arithmetic(check)
        if facts:
            st.caption(" · ".join(facts))
        if check.needed:
            st.markdown("Would settle it:")
            st.text(shown(check.needed, 500)[0])
        places = [place for each in check.evidence if (place := evidence_at(each)) is not None]
        if places:
            with st.container(horizontal=True):
                for label, target, context in places[:MOST_LINKS]:
                    link(label, target, ":material/arrow_forward:", **context)
            if len(places) > MOST_LINKS:
                st.caption(f"and {len(places) - MOST_LINKS} more; all of them are in the JSON below")
        rest = [each for each in check.evidence if evidence_at(each) is None]
        if rest:
            more = f" and {len(rest) - MOST_LINKS} more" if len(rest) > MOST_LINKS else ""
            st.caption(f"Evidence: {', '.join(plain(each) for each in rest[:MOST_LINKS])}{more}")
        if check.rule:
            policy = found.answer.decision.policy if found.answer is not None else ""
            st.caption(f"Asked for by {plain('.'.join(check.rule))} of {plain(policy)}")


def arithmetic(check: Check) -> list[str]:
    """The numbers of a check in our own words, as parts of one line of Markdown."""
    facts = []
    if check.benefit is not None:
        interval = ""
        if check.low is not None and check.high is not None:
            interval = f" ({check.low:+.4g} to {check.high:+.4g})"
        facts.append(f"benefit **{check.benefit:+.4g}**{interval}")
    if check.margin is not None:
        facts.append(f"margin {check.margin:.4g}")
    if check.alpha is not None:
        facts.append(f"one-sided error {check.alpha:.3g}")
    if check.p is not None:
        facts.append(f"p {check.p:.2g}")
    if check.n is not None:
        families = "" if check.clusters is None else f" of {check.clusters} families"
        facts.append(f"n {check.n:,} {check.unit or ''}{families}")
    if check.smallest is not None:
        facts.append(f"a margin of {check.smallest:.3g} would have been shown four times of five")
    if check.more is not None:
        facts.append(f"{check.more:,} more {check.unit or 'units'} would show it if the difference stays")
    return facts


def evidence_at(evidence: str) -> tuple[str, Page, dict[str, str]] | None:
    """Label, page and ids of a piece of evidence that has a page of its own; None where it has none."""
    kind, _, of = evidence.partition(":")
    if kind == "incident" and of.isdigit():
        return f"Incident {of}", "incidents", {"id": of}
    if kind == "experiment" and of:
        return "The experiment", "experiments", {"plan": of}
    if not of and "@" not in evidence:
        return "The finding", "alarm", {"id": evidence}
    return None


def checks_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check, in the order given."""
    places = [next((place for each in check.evidence if (place := evidence_at(each))), None) for check in checks]
    return pd.DataFrame(
        {
            "result": [words(*result_of(check)) for check in checks],
            "question": [PARTS[check.part] for check in checks],
            "check": [shown(check.sentence, 500)[0] for check in checks],
            "benefit": [check.benefit for check in checks],
            "from": [check.low for check in checks],
            "to": [check.high for check in checks],
            "margin": [check.margin for check in checks],
            "error": [check.alpha for check in checks],
            "p": [check.p for check in checks],
            "n": [check.n for check in checks],
            "would settle it": [check.needed for check in checks],
            "evidence": [None if place is None else address(place[1], **place[2]) for place in places],
            "code": [check.code for check in checks],
        }
    )


# -- asking, replaying, overriding -----------------------------------------------------------------------------------


def _ours(run: Run) -> bool:
    """Whether the gate of this home may be asked about the run: it decides about the newest one."""
    newest = frame.observatory().run()
    if newest is not None and newest.run_id == run.run_id:
        return True
    st.caption("The gate is asked about the newest run of this home only; this is an earlier one.")
    return False


def _ask(run: Run, candidate: str, *, again: bool) -> None:
    if not _ours(run):
        return
    policy = st.selectbox("Policy", POLICIES, key="policy", help="Others by file: palomar gate CANDIDATE --policy FILE")
    st.caption(
        "The candidate and its cycle are checked by the command line, since that takes a while: "
        + plain(f"palomar gate {candidate} --check")
    )
    act = acting.form("ask", "Ask again" if again else "Ask the gate", reason=None)
    if act is not None:
        with acting.doing("ask", "The gate has answered."):
            gating.ask(frame.observatory(), gating.Question(candidate, read_policy(policy), act.actor, again=again))
            st.query_params.pop("decision", None)
            st.query_params.pop("check", None)


def _again(run: Run, found: GateView) -> None:
    answer = found.answer
    assert answer is not None
    decision = answer.decision
    st.subheader("Ask and replay")
    st.download_button(
        "This decision as JSON",
        lambda: plain_json(gate_exports.plain_answer(answer)) + b"\n",
        f"decision-{decision.sequence}.json",
        "application/json",
        key="json",
        on_click="ignore",
        help="The same as `palomar gate CANDIDATE --json`.",
    )
    st.download_button(
        "As JUnit XML",
        lambda: gate_exports.junit(answer).encode(),
        f"decision-{decision.sequence}.xml",
        "application/xml",
        key="junit",
        on_click="ignore",
    )
    if st.button("Ask the rule again, from what was frozen", key="replay"):
        _replay(decision)
    _ask(run, decision.candidate, again=True)
    if decision.policy_text is not None:
        with st.expander("The policy, word for word"):
            st.caption(f"{plain(decision.policy)}: {_risks(found)}")
            st.code(shown(decision.policy_text, 20_000)[0], language="yaml")


def _risks(found: GateView) -> str:
    if found.rule is None:
        return "it kept no checks."
    told = [f"{what}: {100 * rate:.3g} %" for what, rate in found.rule.risks.items()]
    return f"what one candidate risks: {plain('; '.join(told), 500)}."


def _replay(decision: Decision) -> None:
    """What the rule says today of the evidence of then."""
    try:
        said = gating.replay(frame.observatory().store, decision.decision_id)
    except PalomarError as exc:
        st.error("**It could not be replayed.**", icon=":material/error:")
        st.code(shown(str(exc), 1_000)[0], language=None, wrap_lines=True)
        return
    if isinstance(said, str):
        st.markdown(f"{badge('no_data', 'NOT KEPT')} It cannot be asked again:")
        st.text(shown(said, 500)[0])
    elif not said.differences:
        st.markdown(f"{badge('pass', 'THE SAME')} The rule gives the same answer from the same evidence.")
    else:
        st.markdown(f"{badge('fail', 'DIFFERS')} The rule has changed since, or somebody changed the store:")
        st.text("\n".join(shown(each, 300)[0] for each in said.differences[:20]))


def _override(run: Run, found: GateView) -> None:
    st.subheader("Decide otherwise")
    standing = found.standing
    assert standing is not None
    st.caption(
        "An override is a decision of two people: one asks, another approves. It ends by itself, and both stand in the "
        "audit log."
    )
    waiting = [each for each in found.overrides if each.made is None]
    for each in waiting:
        _request(found, each)
    if not _ours(run):
        return
    with st.container(border=True):
        st.markdown("**Ask for another decision**")
        other = [word for word in WORDS if word != standing.verdict]
        # Nothing is chosen beforehand: what a hurried click would do must not be a promotion.
        to = st.radio(
            "Decide instead", other, index=None, format_func=lambda word: WORDS[word], key="to", horizontal=True
        )
        longest = found.longest_override_h
        hours = st.number_input(
            f"For how many hours (at most {longest:g}, by the policy)",
            min_value=0.1,
            max_value=float(longest),
            value=float(min(5.0, longest)),
            key="hours",
        )
        act = acting.form("override", "Ask for the override")
        if act is not None and to is None:
            st.warning("Ask for the override: say first what is to be decided instead.", icon=":material/edit_note:")
        elif act is not None and to is not None:
            with acting.doing("override", "Asked for. Nothing changes until another person approves."):
                gating.request_override(
                    frame.observatory(),
                    standing.candidate,
                    verdict_=to,
                    reason=act.reason,
                    hours=float(hours),
                    actor=act.actor,
                )


def _request(found: GateView, asked: Override) -> None:
    """An override that waits for a second person."""
    assert found.standing is not None
    with st.container(border=True):
        st.markdown(
            f"{badge('pending', 'WAITS FOR A SECOND PERSON')} {plain(asked.requested_by)} asks for "
            f"**{WORDS[asked.verdict]}** for {asked.hours:g} hours, since {_utc(asked.requested_at)}:"
        )
        st.text(shown(asked.reason, 1_000)[0])
        if asked.decision_id != found.standing.decision_id:
            st.caption(
                f"It was to take the place of {plain(asked.decision_id)}, which stands no more: it must be asked for "
                "again."
            )
            return
        if acting.person().name == asked.requested_by:
            st.caption("You asked for it: another person must approve it, and the store refuses you.")
        key = f"approve-{asked.number}"
        act = acting.form(key, "Approve", reason="What convinced you")
        if act is not None:
            with acting.doing(key, "Approved: the override stands."):
                gating.approve_override(frame.observatory(), asked.override_id, reason=act.reason, actor=act.actor)
                st.query_params.pop("decision", None)


def _history(found: GateView) -> None:
    st.subheader("All that was decided about it")
    standing = None if found.standing is None else found.standing.decision_id
    run = found.checkpoint.run_id
    st.dataframe(
        pd.DataFrame(
            {
                "": ["stands" if each.decision_id == standing else "" for each in found.history],
                "verdict": [words(OF_GATE[each.verdict], WORDS[each.verdict]) for each in found.history],
                "kind": [each.kind for each in found.history],
                "at (UTC)": [f"{each.created_at:%Y-%m-%d %H:%M}" for each in found.history],
                "until (UTC)": [
                    None if each.expires_at is None else f"{each.expires_at:%Y-%m-%d %H:%M}" for each in found.history
                ],
                "by": [each.actor for each in found.history],
                "policy": [each.policy for each in found.history],
                "why": [each.sentence or ", ".join(each.reasons) for each in found.history],
                "open": [
                    address("gate", run=run, ckpt=each.candidate, decision=each.decision_id) for each in found.history
                ],
            }
        ),
        hide_index=True,
        key="history",
        placeholder="–",
        alt="Decisions about this candidate, newest first",
        column_config={"open": st.column_config.LinkColumn(display_text="open"), "why": {"width": "large"}},
    )
    link("Who did what, in the audit log", "audit", subject=f"candidate:{found.checkpoint.checkpoint_id}")


if __name__ == "__main__":
    st.title("Gate")
    page()
