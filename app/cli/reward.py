"""`palomar replay` and `palomar reward log|diff|revert`: the bench on which a reward is changed."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from palomar.app import patching
from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.cli.specs import SHOWN_HASH, Cycles, chosen_cycles, known_specs, spec_of, version_of, why_none
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.slices import ALL
from palomar.data.store.records import Run
from palomar.reward.replay import ANY, Replay, replay, spec_changes
from palomar.reward.spec import version
from palomar.reward.versions import stored_spec

NOTHING_TO_SHOW = 3
WIDEST = 100
"""Letters of a reason in a table; `--json` has all of it."""

versions = typer.Typer(help="The reward versions of a home.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("replay")(replay_command)
    app.add_typer(versions, name="reward")


# -- replay --------------------------------------------------------------------------------------------------------


def replay_command(
    old: Annotated[str, typer.Option("--from", help="Present reward: a name, a YAML file, or a stored version.")],
    new: Annotated[str, typer.Option("--to", help="Changed reward: the same.")],
    cycles: Cycles = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say what another reward would have paid for the logged interactions. Exits with 3 when there are none."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    (before, _), (after, _) = (spec_of(observatory, name) for name in (old, new))
    chosen = chosen_cycles(observatory, cycles)
    found = replay(observatory.lake, chosen, before, after, known=known_specs(observatory)) if chosen else None
    if found is None or not found.num_rows:
        if as_json:
            print_json({"cycles": chosen, "num_rows": 0})
        else:
            people.print(f"nothing to replay: {why_none(observatory, cycles)}")
        raise typer.Exit(NOTHING_TO_SHOW)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_replay(found)


def _print_replay(found: Replay) -> None:
    people.print(
        f"{found.num_rows:,} interactions, {found.compared:,} with a reward under both "
        f"({found.old[:SHOWN_HASH]} -> {found.new[:SHOWN_HASH]})"
    )
    for change in found.spec_changes:
        people.print(f"  {visible(change)}")
    rows = [each for each in found.changes if each.slice == ALL]
    columns = ("behaviour", "n", "old reward", "new", "old advantage", "new", "pushed before", "after")
    body = [
        (each.behaviour, each.n, each.old, each.new, each.old_advantage, each.new_advantage, _percent(each.old_pushed),
         _percent(each.new_pushed))
        for each in rows
    ]  # fmt: skip
    people.print()
    print_table(table(columns, body, title="what it would have paid, and whom training would have pushed"))
    terms = [(each.term, each.old, each.new) for each in found.terms if (each.slice, each.behaviour) == (ALL, ANY)]
    people.print()
    print_table(table(("term", "old", "new"), terms, title="mean contribution"))
    people.print()
    sources = [(each.term, each.stored, each.recomputed, each.invalid, each.waiting, visible(each.why or ""))
               for each in found.coverage]  # fmt: skip
    print_table(table(("term", "stored", "recomputed", "invalid", "waiting", "mostly because"), sources, "coverage"))
    if found.flips is not None:
        people.print(
            f"\nof pairs within a {found.flips.within}, {_percent(found.flips.flipped)} change their order "
            f"(Kendall's tau {'-' if found.flips.tau is None else format(found.flips.tau, '.2f')}); "
            f"the advantages move by {_percent(found.distance)} of their size"
        )
    moved = [each for each in found.inclusion if each.before != each.after]
    for each in moved:
        pay = "" if each.reward is None else f", paid {each.reward:+.3g} on average"
        people.print(f"{each.n:,} interactions go from {visible(each.before)} to {visible(each.after)}{pay}")
    _print_pressures(found)


def _print_pressures(found: Replay) -> None:
    cells = {(row.statistic, row.slice, row.kind): row for row in found.pressures}
    body = []
    for statistic, slice_ in dict.fromkeys((row.statistic, row.slice) for row in found.pressures):
        sides = [cells.get((statistic, slice_, kind)) for kind in ("old", "new", "outcome")]
        signs = [0 if row is None or row.low is None or row.high is None else (row.low > 0) - (row.high < 0)
                 for row in sides]  # fmt: skip
        if signs[0] != signs[1]:
            body.append((statistic, slice_, *(None if row is None else row.value for row in sides),
                         *(None if row is None else row.z for row in sides)))  # fmt: skip
    people.print()
    if body:
        columns = ("statistic", "slice", "old", "new", "outcome", "z old", "z new", "z outcome")
        print_table(table(columns, body, title=f"pressures that change their side ({found.pressure_rows:,} rows)"))
    else:
        people.print("no pressure changes its side")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


# -- versions ------------------------------------------------------------------------------------------------------


@versions.command("log")
def log(home: Home = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """List the stored versions, newest first, and how the run changed its reward. Exits with 3 without any."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    stored = observatory.store.rewards.read() if observatory.has_store else []
    run = observatory.run()
    scheduled = observatory.store.rewards.scheduled(run.run_id) if run is not None else []
    changes = observatory.store.rewards.changes(run.run_id) if run is not None else []
    since: dict[str, list[int]] = {}
    for each in scheduled:
        since.setdefault(each.version, []).append(each.from_cycle)
    if as_json:
        print_json(
            {
                "run": None if run is None else run.run_id,
                "versions": [{**asdict(each), "from_cycles": since.get(each.version, [])} for each in reversed(stored)],
                "changes": [asdict(each) for each in changes],
            }
        )
    elif stored:
        body = [
            (each.version[:SHOWN_HASH], stored_spec(each).name, each.created_at.strftime("%Y-%m-%d %H:%M"),
             None if each.parent is None else each.parent[:SHOWN_HASH],
             ", ".join(map(str, since.get(each.version, []))) or None, visible(each.actor), _brief(each.reason))
            for each in reversed(stored)
        ]  # fmt: skip
        print_table(table(("version", "name", "written", "parent", "from cycle", "by", "because"), body))
        if changes:
            rows = [
                (each.from_cycle, each.action, None if each.instead_of is None else each.instead_of[:SHOWN_HASH],
                 each.version[:SHOWN_HASH], None if each.proposal_id is None else each.proposal_id[:SHOWN_HASH],
                 visible(each.actor), _brief(each.reason))
                for each in reversed(changes)
            ]  # fmt: skip
            people.print()
            print_table(table(("from cycle", "what", "from", "to", "proposal", "by", "because"), rows, "changes"))
    else:
        people.print(f"no reward version in {observatory.home}")
    if not stored:
        raise typer.Exit(NOTHING_TO_SHOW)


@versions.command("diff")
def diff(
    old: Annotated[str, typer.Argument(help="A name, a YAML file, or a stored version.")],
    new: Annotated[str, typer.Argument(help="The same.")],
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say what differs between two rewards, in words and as text."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    (first, first_text), (second, second_text) = (spec_of(observatory, name) for name in (old, new))
    said = spec_changes(first, second)
    lines = list(difflib.unified_diff(first_text.splitlines(), second_text.splitlines(), old, new, lineterm=""))
    if as_json:
        print_json({"old": version(first), "new": version(second), "changes": said, "diff": "\n".join(lines)})
        return
    for change in said:
        people.print(visible(change))
    if not said:
        people.print("the same reward" + (", in other words" if lines else ""))
    if lines:
        people.print()
    for line in lines:
        people.print(visible(line))


@versions.command("propose")
def propose(
    spec: Annotated[str, typer.Argument(help="A YAML file (or a name, or a stored version).")],
    title: Annotated[str, typer.Option(help="What it is, in a few words.")] = "by hand",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Keep a reward of your own as a proposal for the run; `palomar patch --apply` puts it in force."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    if run is None:
        raise StoreError(str(observatory.home), "there is no run, and so no reward in force")
    _, text = spec_of(observatory, spec)
    kept = patching.propose_own(observatory.store, run, text, title=title, actor=who(actor))
    if as_json:
        print_json(asdict(kept))
        return
    for change in kept.detail["changes"]:  # type: ignore[attr-defined]
        people.print(visible(str(change)))
    people.print(f'put it in force: palomar patch --apply {kept.proposal_id[:SHOWN_HASH]} --reason "..."')


@versions.command("revert")
def revert(
    to: Annotated[str, typer.Argument(help="A stored version (or the start of its hash).")],
    reason: Annotated[str, typer.Option(help="Why; kept with the change.")],
    actor: Actor = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Of this run; without: the newest.")] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Let the run use an older reward again, from the next cycle on. The version itself is not changed."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = _run(observatory, run_id)
    record = version_of(observatory.store, to)
    change = patching.revert(observatory.store, run, record.version, reason=reason, actor=who(actor))
    if as_json:
        print_json(
            {
                "run": run.run_id,
                "version": record.version,
                "changed": change is not None,
                "change": None if change is None else asdict(change),
            }
        )
    elif change is None:
        people.print(f"{record.version[:SHOWN_HASH]} is in force already; nothing was changed")
    else:
        before = "nothing" if change.instead_of is None else change.instead_of[:SHOWN_HASH]
        people.print(f"from cycle {change.from_cycle} on: {change.version[:SHOWN_HASH]} in place of {before}")


@versions.command("weights")
def weights(
    file: Annotated[
        Path | None, typer.Option("--file", help="Put them there, whole or not at all, for trainers (docs/hooks.md).")
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Of this run; without: the newest.")] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say what each term weighs in the reward in force."""
    from palomar.app.gate_exports import write_text
    from palomar.app.reward_weights import plain_weights

    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = _run(observatory, run_id)
    said = plain_weights(observatory.store, run)
    if file is not None:
        write_text(file, json.dumps(said, indent=1) + "\n")
    if as_json:
        print_json(said)
        return
    people.print(
        f"reward {said['reward_version'][:SHOWN_HASH]} of run {run.run_id}, from cycle {said['from_cycle']} on"
    )
    print_table(table(("term", "weight"), list(said["weights"].items())))


def _run(observatory: Observatory, run_id: str | None) -> Run:
    """The run of that id, else the newest. Raises StoreError where it is not there."""
    run = observatory.run(run_id)
    if run is None:
        raise StoreError(f"run {run_id!r}" if run_id else str(observatory.home), "there is no such run")
    return run


def _brief(reason: str) -> str:
    return visible(shorten(reason, WIDEST, placeholder=" ..."))
