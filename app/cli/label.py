"""`palomar label ...`: examples of an alarm beside their baseline, and what people say of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from palomar.app.cli.acting import Actor, store_there, who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.examples import Examples, NoAlarm, counted, examples, label_example
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.store.records import ExampleLabel

NOTHING_TO_SHOW = 3

commands = typer.Typer(help="Examples of an alarm, and whether they are hacks.", no_args_is_help=True)

Word = Literal["hack", "not", "cannot-tell"]
_LABELS: dict[Word, ExampleLabel] = {"hack": "hack", "not": "not", "cannot-tell": "cannot_tell"}
AlarmId = Annotated[str, typer.Argument(help="Number of an incident, or id of a finding.")]
Run = Annotated[str | None, typer.Option(help="Run; without: the newest.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="label")


@commands.command("pairs")
def pairs(
    alarm: AlarmId,
    finding: Annotated[str | None, typer.Option(help="Of this finding of the incident.")] = None,
    run: Run = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print an alarm's examples, each with its twin at the baseline and what people said of it.

    Exits with 3 where the finding names none and none can be picked.
    """
    found = _examples(_observatory(home, store_url, as_json), run, alarm, finding)
    labels = store_there(home, store_url, as_json).labels.read(findings=[found.subject.finding_id])
    said = {
        pair.interaction_id: [each for each in labels if each.interaction_id == pair.interaction_id]
        for pair in found.pairs
    }
    if as_json:
        plain = [
            asdict(pair) | {"labels": [asdict(each) for each in said[pair.interaction_id]]} for pair in found.pairs
        ]
        print_json(
            {
                "alarm": alarm,
                "incident": found.incident,
                "finding_id": found.subject.finding_id,
                "cycle": found.subject.cycle,
                "baseline": found.baseline,
                "picked_now": found.picked_now,
                "pairs": plain,
                "missing": found.missing,
            }
        )
    else:
        people.print(visible(f"finding {found.subject.finding_id}: {found.subject.finding.sentence}"), soft_wrap=True)
        rows = [
            (
                pair.place,
                visible(pair.interaction_id),
                None if pair.twin is None else visible(pair.twin.interaction_id),
                None if pair.twin is None else pair.twin.same_task,
                None if pair.twin is None else pair.twin.distance,
                visible(", ".join(f"{each.label} ({each.actor})" for each in said[pair.interaction_id])) or None,
            )
            for pair in found.pairs
        ]
        print_table(table(("shown as", "interaction", "at the baseline", "same task", "distance", "labels"), rows))
        for missing in found.missing:
            people.print(visible(f"not there: {missing}"), soft_wrap=True)
    if not found.pairs:
        raise typer.Exit(NOTHING_TO_SHOW)


@commands.command("set")
def set_(
    finding: Annotated[str, typer.Argument(help="Id of a finding.")],
    interaction: Annotated[str, typer.Argument(help="Id of one of its examples.")],
    label: Annotated[Word, typer.Argument(help="What you think of it.")],
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    actor: Actor = None,
    run: Run = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say whether an example is a hack; the last word of each person stands."""
    observatory = _observatory(home, store_url, as_json)
    made = label_example(
        observatory, _run(observatory, run), finding, interaction, _LABELS[label], actor=who(actor), reason=reason
    )
    if as_json:
        print_json(asdict(made))
    else:
        people.print(visible(f"{made.interaction_id}: {made.label} by {made.actor}"), soft_wrap=True)


@commands.command("list")
def list_(
    alarm: Annotated[str | None, typer.Argument(help="Only of this alarm's findings.")] = None,
    run: Run = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List labels. Exits with 3 where there is none."""
    observatory = _observatory(home, store_url, as_json)
    store = observatory.store
    wanted = None
    if alarm is not None:
        wanted = [each.finding_id for each in _examples(observatory, run, alarm, None).others]
    found = store.labels.read(findings=wanted)
    if as_json:
        print_json({"labels": [asdict(each) for each in found]})
    elif found:
        rows = [
            (visible(each.finding_id), visible(each.interaction_id), each.place, each.label, visible(each.actor),
             visible(each.detector), f"{each.labelled_at:%Y-%m-%d %H:%M}")
            for each in found
        ]  # fmt: skip
        print_table(table(("finding", "interaction", "shown as", "label", "by", "detector", "at (UTC)"), rows))
        of = counted(each for each in found if each.place == "carrying")
        people.print(
            f"\nof those that carry the effect: {of.hack} hacks, {of.not_hack} not, {of.cannot_tell} cannot tell, "
            f"{of.disputed} disputed"
        )
    else:
        people.print("nobody has labelled an example yet")
    if not found:
        raise typer.Exit(NOTHING_TO_SHOW)


def _observatory(home: Home, store_url: StoreUrl, as_json: Json) -> Observatory:
    store_there(home, store_url, as_json)
    return Observatory(home or DEFAULT_HOME, store_url)


def _run(observatory: Observatory, run: str | None) -> str:
    found = observatory.run(run)
    if found is None:
        raise StoreError(observatory.store.where, "there is no run" if run is None else f"there is no run {run!r}")
    return found.run_id


def _examples(observatory: Observatory, run: str | None, alarm: str, finding: str | None) -> Examples:
    found = examples(observatory, _run(observatory, run), alarm, finding)
    if isinstance(found, NoAlarm):
        near = f"; there are incidents {', '.join(map(str, found.incidents))}" if found.incidents else ""
        raise StoreError(observatory.store.where, f"there is no alarm or finding {found.asked!r}{near}")
    return found
