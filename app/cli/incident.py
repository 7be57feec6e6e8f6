"""`palomar incident ...`: what went wrong, who has it in hand, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from palomar.app.cli.acting import Actor, store_there, who
from palomar.app.cli.check import READINGS
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.incidents import (
    Evidence,
    IncidentView,
    detector_precision,
    ending,
    hand_over,
    plain_view,
    post_mortem,
    told_of,
    view,
)
from palomar.app.probing import keep_of_patched
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import Incident, IncidentState, Resolution, Scope, Vote
from palomar.detectors.grouping import opens

SOME_OPEN = 1
NOTHING_TO_SHOW = 3
SHOWN = 12
"""Findings and entries that `show` prints without ``--all``."""

commands = typer.Typer(help="Incidents: from alarm to cause to cure to closed.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(help="Number of the incident, as `palomar incident list` shows it.")]
Reason = Annotated[str, typer.Option(help="Why.")]

Ending = Literal["patched", "rolled-back", "accepted", "false-alarm"]
Rating = Literal["useful", "not-useful"]
_ENDINGS: dict[Ending, Resolution] = {
    "patched": "patched",
    "rolled-back": "rolled_back",
    "accepted": "accepted",
    "false-alarm": "false_alarm",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="incident")


# -- reading -------------------------------------------------------------------------------------------------------


@commands.command("list")
def list_command(
    every: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
    state: Annotated[IncidentState | None, typer.Option(help="Only in this state.")] = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    fail_on_open: Annotated[
        bool, typer.Option("--fail-on-open", help="Exit with 1 when one is listed that is not resolved.")
    ] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List incidents that are not resolved. Exits with 0, also when there are some; with 3 where there is no store."""
    store = store_there(home, store_url, as_json)
    states: Sequence[IncidentState] | None = (state,) if state else (None if every else ACTIVE)
    found = store.incidents.read(run, states=states)
    if as_json:
        print_json({"incidents": [asdict(each) for each in found]})
    elif found:
        columns = ("", "state", "what", "cycles", "owner", "run", "opened (UTC)")
        print_table(table(columns, [_row(each) for each in reversed(found)]))
    else:
        people.print(_none(store, run, every or bool(state)), soft_wrap=True)
    if fail_on_open and any(each.state in ACTIVE for each in found):
        raise typer.Exit(SOME_OPEN)


@commands.command("show")
def show(
    number: Number,
    every: Annotated[bool, typer.Option("--all", help="Every finding and the whole timeline.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print an incident: what happened, its evidence then and now, what it is charged to, and who did what."""
    found = _view(store_there(home, store_url, as_json), number)
    if as_json:
        print_json(plain_view(found))
    else:
        _print(found, every)


@commands.command("export")
def export(
    number: Number,
    html: Annotated[bool, typer.Option("--html/--markdown", help="A page, or Markdown.")] = False,
    to: Annotated[Path | None, typer.Option(help="Write it to this file; without: to standard output.")] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Write the post-mortem, made from the incident's trail."""
    document = post_mortem(_view(store_there(home, store_url, as_json), number), "html" if html else "markdown")
    document = document.encode(errors="replace").decode()
    if to is not None:
        to.write_text(document, encoding="utf-8")
    if as_json:
        print_json({"incident": number, "form": "html" if html else "markdown", "path": to, "document": document})
    elif to is None:
        typer.echo(document, nl=False)
    else:
        people.print(f"written to {to}", soft_wrap=True)


@commands.command("hand-over")
def hand_over_command(number: Number, home: Home = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """Print what the next person on duty needs, made from the incident's trail."""
    text = hand_over(_view(store_there(home, store_url, as_json), number))
    if as_json:
        print_json({"incident": number, "text": text})
    else:
        typer.echo(text.encode(errors="replace").decode(), nl=False)


@commands.command("precision")
def precision(home: Home = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """Say how often each detector's alarms were useful, by the votes of `rate`; beside it, what `label` says."""
    found = detector_precision(store_there(home, store_url, as_json))
    if as_json:
        print_json({"detectors": [asdict(each) for each in found]})
    elif found:
        rows = [
            (
                visible(each.detector),
                each.alarms,
                each.rated,
                each.useful,
                "unknown" if each.value is None else f"{100 * each.value:.0f} %",
                "-" if each.low is None or each.high is None else f"{100 * each.low:.0f} to {100 * each.high:.0f} %",
                f"{each.hacks} of {each.labelled}" if each.labelled else "-",
            )
            for each in found
        ]
        print_table(
            table(
                ("detector", "alarms", "rated", "useful", "precision", "95 % (Wilson)", "examples that are hacks"), rows
            )
        )
    else:
        people.print("no detector has spoken in an incident yet")


# -- writing -------------------------------------------------------------------------------------------------------


@commands.command("ack")
def ack(
    number: Number,
    reason: Reason = "",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say that you look into it."""
    store = store_there(home, store_url, as_json)
    _done(store, store.incidents.acknowledge(number, actor=who(actor), reason=reason), as_json)


@commands.command("assign")
def assign(
    number: Number,
    to: Annotated[str, typer.Argument(help="Who has it from now on.")],
    reason: Reason = "",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Give it to someone."""
    store = store_there(home, store_url, as_json)
    _done(store, store.incidents.assign(number, actor=who(actor), to=to, reason=reason), as_json)


@commands.command("comment")
def comment(
    number: Number,
    words: Annotated[str, typer.Argument(help="What to say.")],
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Add words to the timeline."""
    store = store_there(home, store_url, as_json)
    _done(store, store.incidents.comment(number, actor=who(actor), words=words), as_json)


@commands.command("act")
def act(
    number: Number,
    what: Annotated[str, typer.Argument(help="What was done or decided.")],
    mitigates: Annotated[bool, typer.Option("--mitigates", help="The harm is stopped by it.")] = False,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Note an action taken or a decision."""
    store = store_there(home, store_url, as_json)
    _done(store, store.incidents.act(number, actor=who(actor), what=what, mitigates=mitigates), as_json)


@commands.command("cause")
def cause(
    number: Number,
    words: Annotated[str, typer.Argument(help="The root cause, in words.")],
    term: Annotated[str | None, typer.Option(help="Reward term or rule that it came from.")] = None,
    slice_: Annotated[str | None, typer.Option("--slice", help="Where it came from.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward version that it came with.")] = None,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Name the root cause."""
    store = store_there(home, store_url, as_json)
    changed = store.incidents.explain(number, actor=who(actor), words=words, term=term, slice_=slice_, reward=reward)
    _done(store, changed, as_json)


@commands.command("resolve")
def resolve(
    number: Number,
    ending_: Annotated[Ending, typer.Option("--as", help="How it ended.")],
    reason: Reason,
    cycle: Annotated[
        int | None, typer.Option(help="Last cycle that this speaks of; later ones may reopen it. Without: the newest.")
    ] = None,
    until_cycle: Annotated[int | None, typer.Option(help="With --as accepted: last cycle in which it is.")] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="With --as accepted: cycles that begin later are not. UTC."
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="With --as accepted: STATISTIC, STATISTIC@SLICE or @SLICE; without: what is pinned."),
    ] = None,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """End it. A finding of a later cycle reopens it, unless it is accepted or was a false alarm."""
    store = store_there(home, store_url, as_json)
    changed = store.incidents.resolve(
        number,
        _ENDINGS[ending_],
        actor=who(actor),
        reason=reason,
        cycle=cycle,
        until_cycle=until_cycle,
        until=None if until is None else until.replace(tzinfo=UTC),
        scope=[_scope(each) for each in scope or ()],
    )
    kept = keep_of_patched(Observatory(home or DEFAULT_HOME, store_url), changed, actor=who(actor))
    if isinstance(kept, str):
        notes.print(f"no probe is kept: {visible(kept)}", soft_wrap=True)
    elif kept is not None:
        notes.print(f"kept as a probe, so that no later reward pays for it again: {kept.path}", soft_wrap=True)
    _done(store, changed, as_json)


@commands.command("reopen")
def reopen(
    number: Number,
    reason: Reason,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Open a resolved one again."""
    store = store_there(home, store_url, as_json)
    _done(store, store.incidents.reopen(number, actor=who(actor), reason=reason), as_json)


@commands.command("rate")
def rate(
    number: Number,
    rating: Annotated[Rating, typer.Argument(help="Whether it was right to be called.")],
    detector: Annotated[
        list[str] | None, typer.Option("--detector", help="Only of this detector; may be given again.")
    ] = None,
    reason: Reason = "",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say whether its alarms were useful; `palomar incident precision` adds the votes up."""
    store = store_there(home, store_url, as_json)
    vote: Vote = "useful" if rating == "useful" else "not_useful"
    changed = store.incidents.vote(number, vote, actor=who(actor), detectors=detector or (), reason=reason)
    _done(store, changed, as_json)


# -- helpers -------------------------------------------------------------------------------------------------------


def _view(store: Store, number: int) -> IncidentView:
    found = view(store, number)
    if found is None:
        newest = store.incidents.read(newest=1)
        there = f"the newest is {newest[0].number}" if newest else "there is none yet"
        raise StoreError(store.where, f"there is no incident {number}; {there}")
    return found


def _scope(words: str) -> Scope:
    statistic, _, slice_ = words.partition("@")
    return Scope(statistic or None, slice_ or None)


def _done(store: Store, incident: Incident, as_json: bool) -> None:
    """Prints what the incident is now, and the last thing that was done to it."""
    if as_json:
        print_json(asdict(incident))
        return
    last = store.audit_log.read(subject=f"incident:{incident.number}", newest=1)[0]
    people.print(f"incident {incident.number}: {_state(incident)}, {_owner(incident)}", soft_wrap=True)
    people.print(
        visible(f"last: {told_of(last)} by {last.actor} at {last.at[:16].replace('T', ' ')} UTC"), soft_wrap=True
    )


def _state(incident: Incident) -> str:
    word: str = incident.state
    if incident.resolution is not None:
        word += f" ({ending(incident)})"
    return word + (
        f", reopened {incident.reopened} times" if incident.reopened > 1 else ", reopened once" * incident.reopened
    )


def _owner(incident: Incident) -> str:
    return "nobody has it" if incident.assignee is None else f"{visible(incident.assignee)} has it"


def _row(incident: Incident) -> tuple[object, ...]:
    what = incident.title + ("" if incident.blocks else " (holds, does not block)")
    cycles = f"{incident.opened_cycle}..{incident.seen_cycle}"
    opened = f"{incident.opened_at:%F %R}"
    words = (_state(incident), visible(what), cycles, incident.assignee and visible(incident.assignee))
    return (incident.number, *words, visible(incident.run_id), opened)


def _none(store: Store, run: str | None, every: bool) -> str:
    runs = [each.run_id for each in store.runs.read() if run in (None, each.run_id)]
    checked = [each.cycle for run_id in runs for each in store.verdicts.read(run_id)]
    what = "no incidents" if every else "no incident is open"
    if not checked:
        return f"{what}; no cycle was checked yet"
    return f"{what}; {len(checked)} cycles were checked, the newest is {max(checked)}"


def _print(found: IncidentView, every: bool) -> None:
    incident = found.incident
    people.print(f"incident {incident.number}  {_state(incident).upper()}  {visible(incident.title)}", soft_wrap=True)
    checked = "" if found.checked is None else f"; newest checked cycle: {found.checked}"
    people.print(
        f"run {visible(incident.run_id)}, opened in cycle {incident.opened_cycle} at {incident.opened_at:%F %R} UTC, "
        f"last seen in cycle {incident.seen_cycle}{checked}; {_owner(incident)}",
        soft_wrap=True,
    )
    lead = found.lead.finding
    reading = f"; reading: {READINGS[lead.reading]}" if lead.reading else ""
    people.print(f"\n{visible(lead.sentence)}{reading}\n", soft_wrap=True)
    for name, words in _facts(found):
        people.print(f"{name:<11}{visible(words)}", soft_wrap=True)
    _print_evidence(found, every)
    _print_timeline(found, every)
    if incident.state != "resolved":
        people.print(f"\nnext: {_next(found)}", soft_wrap=True)


def _facts(found: IncidentView) -> list[tuple[str, str]]:
    lead, incident = found.evidence[0], found.incident
    facts = []
    if lead.latest is not None and lead.latest.cycle > lead.pin.cycle:
        facts.append(("now", f"in cycle {lead.latest.cycle}: {lead.latest.finding.sentence}"))
    if found.quiet:
        facts.append(("quiet", f"not seen since cycle {incident.seen_cycle}"))
    if found.charges:
        told = [f"{each.name} ({each.findings} of {found.findings})" for each in found.charges[:3]]
        facts.append(("charged to", ", ".join(told)))
    if incident.cause is not None:
        facts.append(("root cause", str(incident.cause["words"])))
    span = f"cycles {incident.opened_cycle} to {incident.seen_cycle}"
    doubt = ", ".join(map(str, found.faults))
    facts.append(
        ("data", f"IN DOUBT: faults of measurement in cycle {doubt}" if doubt else f"no fault found in {span}")
    )
    since = "before it, no cycle passed" if found.good is None else f"since cycle {found.good}, the last that passed"
    facts.append(("changed", f"{'; '.join(found.changes) or 'neither reward, checkpoint nor baseline'} ({since})"))
    evidence = found.lead.finding.evidence
    places = {"look at": evidence.carrying, "usual": evidence.random, "against": evidence.counter}
    facts += [(name, ", ".join(ids[:5])) for name, ids in places.items() if ids]
    return facts


def _print_evidence(found: IncidentView, every: bool) -> None:
    keeping = [each for each in found.evidence if opens(each.pin.finding)]
    shown = list(found.evidence) if every else keeping[:SHOWN]
    columns = ("statistic", "slice", "cycle", "before", "after", "effect", "from", "to", "n", "severity", "newest")
    people.print()
    title = "evidence as it was when it joined, and the newest figure"
    print_table(table(columns, [_evidence_row(each) for each in shown], title=title))
    if len(shown) < len(found.evidence):
        warn = len(found.evidence) - len(keeping)
        rest = [f"{len(keeping) - len(shown)} more that keep a cycle from passing"] * (len(keeping) > len(shown))
        rest += [f"{warn} warning{'s' * (warn != 1)}"] * bool(warn)
        people.print(f"and {' and '.join(rest)}; --all shows them")
    if not all(each.intact for each in found.evidence):
        people.print("CHANGED: evidence is not what the audit log has the hash of", soft_wrap=True)


def _evidence_row(each: Evidence) -> tuple[object, ...]:
    finding, latest = each.pin.finding, each.latest
    now = "no longer kept"
    if latest is not None:
        value = latest.finding.after if latest.finding.after is not None else latest.finding.before
        now = f"{'not known' if value is None else f'{value:.4g}'} (cycle {latest.cycle})"
    numbers = (finding.before, finding.after, finding.effect, finding.low, finding.high)
    severity = finding.severity if each.intact else f"{finding.severity} CHANGED"
    about = visible(finding.statistic or finding.detector)
    return (about, visible(finding.slice), each.pin.cycle, *numbers, finding.n, severity, now)


def _print_timeline(found: IncidentView, every: bool) -> None:
    entries = list(found.timeline)
    shown = entries if every or len(entries) <= SHOWN else [entries[0], *entries[-(SHOWN - 1) :]]
    people.print("\ntimeline (UTC)")
    for entry in shown:
        reason = f": {' '.join(entry.reason.split())}" if entry.reason else ""
        if not every and len(reason) > 160:
            reason = f"{reason[:157]}..."
        what = f"{entry.at[:16].replace('T', ' ')}  {entry.actor}  {told_of(entry)}{reason}"
        people.print(visible(what), soft_wrap=True)
    if len(shown) < len(entries):
        people.print(f"{len(entries) - len(shown)} entries after the first are left out; --all shows them")


def _next(found: IncidentView) -> str:
    number = found.incident.number
    if found.incident.state == "open":
        return f"palomar incident ack {number}"
    if found.incident.cause is None:
        return f"palomar incident cause {number} WORDS"
    if found.incident.state == "acknowledged":
        return f"palomar incident act {number} WORDS --mitigates"
    return f"palomar incident resolve {number} --as patched --reason WHY"
