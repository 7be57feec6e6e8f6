"""`palomar why`: in which slices a figure moved, through which reward terms, and what it did to the mean reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory, definition
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.slices import ALL
from palomar.detectors.cube import DIMENSIONS
from palomar.detectors.excess import REQUESTS

NOTHING_TO_SHOW = 3
PARTS = 5
"""Slices that are listed without ``--all``."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("why")(why)


def why(
    alarm: Annotated[str | None, typer.Argument(help="Number of an incident, or id of a finding.")] = None,
    stat: Annotated[str | None, typer.Option("--stat", help="A statistic, in place of an alarm.")] = None,
    slice_: Annotated[
        str | None, typer.Option("--slice", help="Where pressures and persistence are looked at.")
    ] = None,
    before: Annotated[
        list[int] | None,
        typer.Option("--from", help="Cycle to compare with; may be given again. Without: the baseline in force."),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", help="Cycle in question. Without: the alarm's, or the newest.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help=f"What makes the slices: {', '.join(DIMENSIONS)}; may be given again."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All slices.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print why a figure moved: slices by share, what pushes it, the mean reward's change. Exits with 3 for nothing."""
    from palomar.app import why as service

    if (alarm is None) == (stat is None):
        raise typer.BadParameter("name an alarm or a statistic, one of them", param_hint="ALARM or --stat")
    if by and set(by) - set(DIMENSIONS):
        raise typer.BadParameter(f"there are {', '.join(DIMENSIONS)}", param_hint="--by")
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    if run is None:
        raise _nothing("there is no run in this home", as_json)
    subject = None if alarm is None else service.subject_of(observatory, run.run_id, alarm)
    if alarm is not None and subject is None:
        raise _nothing(f"no incident or finding {alarm!r} in run {run.name!r}", as_json)
    statistic = stat or (subject.finding.statistic if subject is not None else None)
    there = observatory.lake.numbered("observations")
    cycle = after if after is not None else subject.cycle if subject is not None else there[-1] if there else None
    if statistic is None or cycle is None:
        raise _nothing("it is about no statistic" if statistic is None else "nothing was distilled yet", as_json)
    if definition(statistic) is None:
        raise _nothing(f"there is no statistic {visible(statistic)!r}", as_json)
    if cycle not in there:
        raise _nothing(f"cycle {cycle} is not in the lake; there are {_cycles(there)}", as_json)
    where = slice_ or (subject.finding.slice if subject is not None else ALL)
    slices = service.slices_of(observatory, run.run_id, statistic, cycle, by=by or REQUESTS, reference=before or ())
    terms = service.terms_of(observatory, run.run_id, statistic, where, cycle)
    reward = service.reward_between(observatory, run.run_id, slices.reference, cycle)
    assert isinstance(terms, service.TermsOf)  # it waits
    if as_json:
        heat = service.heat_of(observatory, run.run_id, statistic, cycle, reference=before or ())
        print_json(
            {
                "run": run.run_id,
                "subject": None if subject is None else asdict(subject),
                "statistic": statistic,
                "slice": where,
                "cycle": cycle,
                "reference": slices.reference,
                "slices": asdict(slices),
                "heat": asdict(heat),
                "terms": asdict(terms),
                "reward": asdict(reward),
                "persistence": _persistence(observatory, slices.reference, cycle, where),
            }
        )
    else:
        if subject is not None:
            people.print(visible(f"{subject.name}: {subject.finding.sentence}"), soft_wrap=True)
        _print_slices(slices, everything)
        _print_terms(terms)
        _print_reward(reward)
    if slices.excess is None and terms.reward is None and reward.change is None:
        raise typer.Exit(NOTHING_TO_SHOW)


def _nothing(text: str, as_json: bool) -> typer.Exit:
    if as_json:
        print_json({"why": text})
    else:
        people.print(f"nothing to show: {text}", soft_wrap=True)
    return typer.Exit(NOTHING_TO_SHOW)


def _persistence(
    observatory: Observatory, before: Sequence[int], cycle: int, slice_: str
) -> list[dict[str, Any]] | None:
    """None for a slice that is no band of the request."""
    from palomar.app.why import persistence_of

    try:
        return [asdict(persistence_of(observatory, cycles, slice_)) for cycles in (before, [cycle])]
    except ValueError:
        return None


def _print_slices(found: Any, everything: bool) -> None:
    people.print()
    if found.excess is None:
        people.print(f"{found.statistic}, cycle {found.cycle}: not split by slices: {found.why}", soft_wrap=True)
        return
    excess = found.excess
    shown = excess.slices if everything else excess.slices[:PARTS]
    rows = [
        (visible(item.slice), item.before, item.after, item.n_before, item.n_after, item.part, _percent(item.share))
        for item in shown
    ]
    rows.append(("other requests (mix)", None, None, None, None, excess.mix, _percent(excess.mix_share)))
    rows.append(("all", excess.before, excess.after, None, None, excess.total, _percent(1.0)))
    title = f"{found.statistic}, cycle {found.cycle} against {_cycles(found.reference)}"
    print_table(table(("slice", "before", "after", "n before", "n after", "part", "share"), rows, title=title))
    if len(shown) < len(excess.slices):
        people.print(f"further slices: {len(excess.slices) - len(shown)}; --all shows them")


def _print_terms(found: Any) -> None:
    people.print()
    if found.reward is None:
        people.print(f"what pushes {found.statistic} is not known: {found.why}", soft_wrap=True)
        return
    pushes = [each for each in (found.reward, found.outcome, *found.terms, *found.rules) if each is not None]
    rows = [
        (each.name, each.value, each.low, each.high, each.verdict.replace("_", " "), each.status) for each in pushes
    ]
    title = f"pressure on {found.statistic} in {visible(found.slice)}, cycles {_cycles(found.cycles)}, n={found.n:,}"
    print_table(table(("of", "per step", "95 % from", "to", "verdict", "status"), rows, title=title))


def _print_reward(found: Any) -> None:
    people.print()
    if found.change is None:
        people.print(f"the mean reward is not split: {found.why}", soft_wrap=True)
        return
    change = found.change
    rows: list[tuple[str, float, str]] = [(item.name, item.part, item.note) for item in change.terms]
    rows += [
        (f"left out: {item.reason}", item.part, f"n {item.n_before} -> {item.n_after}") for item in change.left_out
    ]
    rows.append(("other requests (mix)", change.mix, ""))
    rows.append(("training reward", change.total, f"{change.before:.4g} -> {change.after:.4g}"))
    title = f"mean reward of what is trained on, cycle {found.after} less {_cycles(found.before)}"
    print_table(table(("from", "change", ""), rows, title=title))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _cycles(cycles: Sequence[int]) -> str:
    """``0 to 7`` where they follow one another."""
    if len(cycles) > 2 and list(cycles) == list(range(cycles[0], cycles[-1] + 1)):
        return f"{cycles[0]} to {cycles[-1]}"
    return ", ".join(map(str, cycles)) or "none"
