"""`palomar gate`: may this checkpoint ship?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError

if TYPE_CHECKING:
    from palomar.app.gating import Answer, Question
    from palomar.trainer.promotion import Check, Outcome

CODES = {"promote": 0, "block": 1, "hold": 3}
"""Exit code of each verdict. An error is 2, so that a crash never reads as a pass."""
SAME, DIFFERS, NOT_KEPT = 0, 1, 3
_MARKS = {"pass": "pass   ", "fail": "FAIL   ", "unknown": "UNKNOWN"}
_PARTS = {"validity": "may the data be believed?", "block": "is anything shown to be worse?"}
_PARTS |= {"require": "is it shown that nothing is worse?", "success": "is anything shown to be better?"}


class _DefaultsToDecide(typer.core.TyperGroup):
    """`palomar gate CANDIDATE` is `palomar gate decide CANDIDATE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["decide", *args]
        return super().parse_args(ctx, args)


gate = typer.Typer(
    help="Say whether a checkpoint may ship: `palomar gate CANDIDATE`.", no_args_is_help=True, cls=_DefaultsToDecide
)
overrides = typer.Typer(help="Decide otherwise than the rule: one person asks, another approves.", no_args_is_help=True)
gate.add_typer(overrides, name="override")

Policy = Annotated[
    str, typer.Option("--policy", help="A YAML file, or demo or production (docs/gate.md).", show_default=True)
]
DecisionFile = Annotated[
    Path | None, typer.Option(help="Put the decision into this file for trainers that poll it, whole or not at all.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(gate, name="gate")


@gate.command("decide")
def decide(
    candidate: Annotated[str, typer.Argument(help="Checkpoint that is asked about.")],
    policy: Policy = "demo",
    experiment: Annotated[
        Path | None, typer.Option(help="Plan of the A/B test that the policy asks for (docs/experiments.md).")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="First check the candidate and the cycle that trained it, and keep both.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Decide anew though a decision stands.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Decide and store no decision; also of a checkpoint that is no candidate any more."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="While it is held, look again until the time is over.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="With --wait: seconds at most.")] = 3600.0,
    junit: Annotated[Path | None, typer.Option(help="Write the checks as JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write what did not pass as SARIF 2.1.0.")] = None,
    decision_file: DecisionFile = None,
    every: Annotated[bool, typer.Option("--all", help="Print the checks that passed too.")] = False,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say PROMOTE, HOLD or BLOCK, and why. Exits with 0, 3 or 1; with 2 on an error."""
    from palomar.app import gate_exports, gating
    from palomar.app.experiments import read_plan
    from palomar.trainer.gate_policy import read_policy

    if dry_run and (junit or sarif or decision_file or wait or again):
        raise typer.BadParameter(
            "--dry-run only prints: no --wait, --again, --junit, --sarif or --decision-file with it"
        )
    text = read_policy(policy)
    plan = None if experiment is None else read_plan(experiment)
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    question = gating.Question(candidate, text, who(actor), again=again, check=check, plan=plan)
    if dry_run:
        _would(observatory, question, every, as_json)
    answer = gating.wait(observatory, question, timeout) if wait else gating.ask(observatory, question)
    # The exports before the words: what a pipeline reads next must be there once it sees the exit code.
    if junit is not None:
        gate_exports.write_text(junit, gate_exports.junit(answer))
    if sarif is not None:
        gate_exports.write_text(
            sarif, json.dumps(gate_exports.sarif(answer, text), indent=1, ensure_ascii=False) + "\n"
        )
    _write(observatory, decision_file, answer)
    _show(answer, every, as_json)
    raise typer.Exit(CODES[answer.decision.verdict])


@gate.command("replay")
def replay(
    decision_id: Annotated[str, typer.Argument(help="As `palomar gate` prints it: RUN:NUMBER.")],
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Ask the rule again, of the frozen evidence. Exits with 1 when the answer is another, 3 when none was frozen."""
    from palomar.app import gating

    said = gating.replay(_store(home, store_url), decision_id)
    if isinstance(said, str):
        if as_json:
            print_json({"decision_id": decision_id, "same": None, "why": said})
        else:
            people.print(visible(said), soft_wrap=True)
        raise typer.Exit(NOT_KEPT)
    same = not said.differences
    if as_json:
        print_json(
            {
                "decision_id": decision_id,
                "same": same,
                "differences": said.differences,
                "verdict": said.decision.verdict,
                "now": said.outcome.model_dump(mode="json"),
            }
        )
    else:
        word = said.outcome.verdict.upper()
        people.print(f"{decision_id}: {word}, {'the same as then' if same else 'not as it was decided then'}")
        for difference in said.differences:
            people.print(f"  {visible(difference)}", soft_wrap=True)
    raise typer.Exit(SAME if same else DIFFERS)


@gate.command("list")
def listed(
    last: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 10,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List the run's checkpoints, newest first, and what stands of each. Exits with 3 where there is none."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    trained = [] if run is None else observatory.store.checkpoints.read(run.run_id)
    newest = sorted(trained, key=lambda each: (each.cycle is not None, each.cycle, each.created_at), reverse=True)[
        :last
    ]
    stands = {
        each.candidate: each
        for each in ([] if run is None else observatory.store.decisions.latest(run.run_id, count=max(1, len(trained))))
    }
    rows = [
        (
            each.checkpoint_id,
            each.cycle,
            each.status,
            decided.verdict if (decided := stands.get(each.checkpoint_id)) else "not decided",
            "" if decided is None else ", ".join(decided.reasons),
        )
        for each in newest
    ]
    columns = ("checkpoint", "cycle", "status", "gate", "reasons")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif rows:
        print_table(table(columns, rows))
    else:
        people.print("no checkpoint was trained here yet")
    raise typer.Exit(0 if rows else NOT_KEPT)


@gate.command("history")
def history(
    candidate: Annotated[str, typer.Argument(help="Checkpoint that was asked about.")],
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List all that was decided about a candidate, oldest first. Exits with 3 where nothing was."""
    from palomar.app.gate_exports import plain_decision

    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    found = [] if run is None else observatory.store.decisions.history(run.run_id, candidate)
    if as_json:
        print_json([plain_decision(each) for each in found])
    elif found:
        rows = [
            (
                each.decision_id,
                each.verdict,
                each.kind,
                f"{each.created_at:%F %R} UTC",
                visible(each.actor),
                each.policy,
            )
            for each in found
        ]
        print_table(table(("decision", "verdict", "kind", "at", "by", "policy"), rows))
    else:
        people.print(f"nothing was decided about {visible(candidate)}")
    raise typer.Exit(0 if found else NOT_KEPT)


@overrides.command("request")
def request(
    candidate: Annotated[str, typer.Argument(help="Checkpoint whose decision is to be overridden.")],
    to: Annotated[str, typer.Option(help="promote, hold or block.")],
    reason: Annotated[str, typer.Option(help="Why; kept for good.")],
    hours: Annotated[float, typer.Option(min=0.1, help="How long it is to stand once it is approved.")] = 5.0,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Ask for another decision than the rule's. Nothing changes until another person approves."""
    from palomar.app import gating

    if to not in CODES:
        raise typer.BadParameter(f"{to!r} is none of {', '.join(CODES)}")
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    asked = gating.request_override(
        observatory,
        candidate,
        verdict_=to,  # type: ignore[arg-type]
        reason=reason,
        hours=hours,
        actor=who(actor),
    )
    if as_json:
        print_json({**vars(asked), "requested_at": asked.requested_at.isoformat()})
    else:
        people.print(
            f"{asked.override_id}: {visible(asked.requested_by)} asks for {asked.verdict} in place of "
            f"{asked.decision_id}, for {asked.hours:g} hours\nanother person approves it: "
            f"palomar gate override approve {asked.override_id} --reason ...",
            soft_wrap=True,
        )


@overrides.command("approve")
def approve(
    override_id: Annotated[str, typer.Argument(help="As `request` prints it.")],
    reason: Annotated[str, typer.Option(help="What convinced you; kept for good.")],
    decision_file: DecisionFile = None,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Approve what another person asked for. Exits as the decision that comes of it."""
    from palomar.app import gating

    observatory = Observatory(home or DEFAULT_HOME, store_url)
    answer = gating.approve_override(observatory, override_id, reason=reason, actor=who(actor))
    _write(observatory, decision_file, answer)
    _show(answer, every=False, as_json=as_json)
    raise typer.Exit(CODES[answer.decision.verdict])


# -- printing ------------------------------------------------------------------------------------------------------


def _store(home: Path | None, store_url: str | None) -> Any:
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    if not observatory.has_store:
        raise StoreError(str(observatory.home), "there is no store here")
    return observatory.store


def _write(observatory: Observatory, path: Path | None, answer: Answer) -> None:
    from palomar.app.gate_exports import publish, write_decision_file

    publish(observatory.home, answer.decision)
    if path is not None and not write_decision_file(path, answer.decision):
        notes.print(
            f"{path} has decision {answer.decision.sequence} of the run already, or a later one", soft_wrap=True
        )


def _would(observatory: Observatory, question: Question, every: bool, as_json: bool) -> None:
    from palomar.app import gating
    from palomar.app.gate_exports import plain_outcome

    outcome = gating.would_say(observatory, question)
    if as_json:
        print_json({"stored": False, "policy": question.policy.policy.version, **plain_outcome(outcome)})
    else:
        people.print(
            f"{visible(question.candidate)}: the rule would say {_word(outcome.verdict, outcome.kind)}", soft_wrap=True
        )
        _print_outcome(outcome, every)
        people.print(f"\n{outcome.arithmetic}", soft_wrap=True)
        people.print(f"policy {question.policy.policy.version}; no decision was stored", soft_wrap=True)
    raise typer.Exit(CODES[outcome.verdict])


def _show(answer: Answer, every: bool, as_json: bool) -> None:
    from palomar.app.gate_exports import plain_answer

    decision, outcome = answer.decision, answer.outcome
    if as_json:
        print_json(plain_answer(answer))
        return
    people.print(f"{visible(decision.candidate)}: {_word(decision.verdict, decision.kind)}", soft_wrap=True)
    if decision.sentence:
        people.print(visible(decision.sentence), soft_wrap=True)
    if outcome is None:
        people.print(f"reasons: {visible(', '.join(decision.reasons)) or '-'}", soft_wrap=True)
    else:
        _print_outcome(outcome, every)
    if answer.rule_said is not None:
        rule = answer.rule_said
        people.print(f"the rule said {rule.verdict} ({rule.decision_id}): {visible(rule.sentence)}", soft_wrap=True)
    ends = "" if decision.expires_at is None else f", until {decision.expires_at:%F %R} UTC"
    people.print()
    if outcome is not None:
        people.print(outcome.arithmetic, soft_wrap=True)
    people.print(
        f"decision {decision.decision_id} by {visible(decision.actor)}, policy {decision.policy}{ends}; {answer.state}",
        soft_wrap=True,
    )


def _word(verdict: str, kind: str | None) -> str:
    return verdict.upper() + (f" ({kind})" if kind else "")


def _print_outcome(outcome: Outcome, every: bool) -> None:
    for part, title in _PARTS.items():
        checks = [check for check in outcome.checks if check.part == part]
        shown = checks if every else [check for check in checks if _matters(check, outcome)]
        if not checks:
            continue
        passed = sum(check.result == "pass" for check in checks)
        words = f"{passed} of {len(checks)} pass"
        if part == "block":
            words = f"{sum(check.result == 'fail' for check in checks)} of {len(checks)}"
        if part == "success":
            words = f"{passed} of {len(checks)} shown"
        people.print(f"\n{title} {words}")
        for check, alike in _together(shown, every):
            more = f"; and {alike} more like it" if alike else ""
            people.print(f"  {_MARKS[check.result]} {visible(check.sentence)}{more}", soft_wrap=True)
            if every:
                people.print(f"          {check.code}", soft_wrap=True)
    if outcome.needed:
        people.print("\nto go on:")
        for needed in outcome.needed:
            people.print(f"  - {visible(needed)}", soft_wrap=True)


def _together(checks: Sequence[Check], every: bool) -> list[tuple[Check, int]]:
    """Each check with the number of those like it that it stands for: findings of one statistic in other slices."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        finding = check.code.startswith("finding:") and not every
        where = check.sentence.split(":")[0]
        key = ":".join((where, *check.code.split(":")[:3])) if finding else check.code
        groups.setdefault(key, []).append(check)
    return [(group[0], len(group) - 1) for group in groups.values()]


def _matters(check: Check, outcome: Outcome) -> bool:
    """What did not pass; of a block what blocks; of successes those that were shown, or that were needed."""
    if check.part == "success":
        return (check.result == "pass" and outcome.verdict == "promote") or "neutral_budget_spent" in outcome.reasons
    if outcome.verdict == "block" and check.part == "require":
        return False
    return check.result != "pass"
