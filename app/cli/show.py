"""`palomar show`: one interaction, or one quarantined record's whereabouts, as text."""

from __future__ import annotations

from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory, Trajectory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.schema import Step


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show")(show)


def show(
    interaction_id: Annotated[str, typer.Argument(help="Id of an interaction; `palomar console` lists them.")],
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print one interaction: steps, tool calls, edits, reactions, reward by term."""
    found = Observatory(home or DEFAULT_HOME, store_url).trajectory(interaction_id)
    if as_json:
        print_json(
            {
                "interaction": found.interaction.model_dump(mode="json"),
                "late_feedback": [item.model_dump(mode="json") for item in found.feedback],
                "observation": found.observation,
                "sample": found.sample,
            }
        )
        return
    _print(found)


def _print(found: Trajectory) -> None:
    item = found.interaction
    people.print(f"{item.interaction_id}  {item.source}  checkpoint {item.checkpoint or '-'}  cycle {item.cycle}")
    for index, step in enumerate(item.steps):
        _step(index, step)
    if found.feedback:
        people.print("\nreactions")
    for event in found.feedback:
        label = f" (read as {event.label})" if event.label else ""
        people.print(f"  {event.at or ''} {event.author}: {event.kind}{label} {visible(event.text or '')}")
    terms = [
        (name.removeprefix("term:"), found.observation.get(name), found.observation.get(f"status:{name[5:]}"))
        for name in found.observation
        if name.startswith("term:")
    ]
    known = found.observation
    people.print(
        f"\nreward {known.get('reward')} ({known.get('reward_status') or 'not scored'}"
        f"{': ' + str(known['reward_reason']) if known.get('reward_reason') else ''})  "
        f"outcome {known.get('outcome')} ({known.get('outcome_status') or 'none defined'})"
    )
    if terms:
        print_table(table(("term", "value", "status"), terms))
    if found.sample:
        reason = found.sample.get("reason")
        people.print(
            f"trainer: advantage {found.sample.get('advantage')}, weight {found.sample.get('weight')}"
            + (f", left out: {reason}" if reason else "")
        )


def _step(index: int, step: Step) -> None:
    said = f" (as {step.role})" if step.role not in (step.author, "assistant") else ""
    people.print(f"\n[{index}] {step.author}{said}")
    if step.text:
        people.print(visible(step.text))
    for call in step.tool_calls:
        state = f"INVALID {call.invalidity}" if call.invalidity else call.outcome
        people.print(f"  call {visible(call.name or '?')} [{state}] {visible(call.arguments or '')}")
        if call.problem:
            people.print(f"    {visible(call.problem)}")
        if call.result:
            people.print(f"    -> {visible(call.result)}")
    for edit in step.edits:
        people.print(f"  edit {visible(edit.path or '?')} [{edit.form}, {edit.outcome}]")
        for hunk in edit.hunks:
            people.print("\n".join(f"    - {visible(line)}" for line in hunk.before.splitlines()))
            people.print("\n".join(f"    + {visible(line)}" for line in hunk.after.splitlines()))
        if edit.text is not None:
            people.print(visible(edit.text))
