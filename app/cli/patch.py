"""`palomar patch`: the smallest change of the reward that takes a hack's incentive away, and putting it in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from palomar.app import patching
from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.cli.specs import SHOWN_HASH, chosen_cycles, spec_of, why_none
from palomar.app.patching import Asked, Patching, details, plain_patching
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.slices import ALL
from palomar.data.store.records import RewardChange, RewardVersion, Run
from palomar.reward.behaviours import Logged
from palomar.reward.patch import Limits
from palomar.reward.spec import RewardSpec
from palomar.reward.versions import stored_spec

NAMED = 4
"""Behaviours that are named on a line; the rest is counted, or listed by ``--all``."""
CODES: Mapping[patching.Status, int] = {"nothing": 0, "proposed": 1, "infeasible": 3, "not_assessable": 3}
"""Exit code of what was found."""
_APPLIED_BY_NUMBER = 3
"""Digits of a number of a proposal at most; a longer word is the start of an id."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("patch")(patch)


def patch(
    finding: Annotated[str | None, typer.Option(help="Answer this finding: the start of its key or id.")] = None,
    incident: Annotated[int | None, typer.Option(help="Answer the findings of this incident.")] = None,
    statistic: Annotated[str | None, typer.Option(help="Turn this statistic round.")] = None,
    slice_: Annotated[str, typer.Option("--slice", help="With --statistic: where.")] = ALL,
    less: Annotated[
        bool, typer.Option("--less", help="With --statistic: less of it, whatever the outcome says.")
    ] = False,
    more: Annotated[bool, typer.Option("--more", help="With --statistic: more of it.")] = False,
    cycles: Annotated[
        str | None, typer.Option("--cycles", help="Rows to rest on: 7 or 0..7; without: the last 8 cycles.")
    ] = None,
    freeze: Annotated[list[str] | None, typer.Option(help="Leave this term's weight; may be given again.")] = None,
    largest: Annotated[float, typer.Option(min=0, help="Largest relative change of a weight.")] = Limits().largest,
    reward: Annotated[
        str | None, typer.Option(help="For logs without a run: a name, a YAML file, or a stored version.")
    ] = None,
    apply: Annotated[
        str | None, typer.Option("--apply", help="Put this proposal in force: its number here, or its id.")
    ] = None,
    reason: Annotated[str, typer.Option(help="With --apply: why.")] = "",
    actor: Actor = None,
    every: Annotated[bool, typer.Option("--all", help="All proposals in full; without: the first.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Propose changes of the reward that take a hack's incentive away. Exits with 1 when there are some."""
    if apply is not None and not reason.strip():
        raise typer.BadParameter("a reward is changed for a reason: --reason")
    if sum(each is not None for each in (finding, incident, statistic)) > 1 or (less and more):
        raise typer.BadParameter(
            "--finding, --incident and --statistic exclude each other, and so do --less and --more"
        )
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    person = who(actor)
    if apply is not None and not _is_number(apply):
        if run is None:
            raise StoreError(str(observatory.home), "there is no run, and so no reward in force")
        done = patching.apply_stored(observatory.store, run, apply, reason=reason, actor=person, incident=incident)
        _changed(run, done, as_json)
        return
    present = _present(observatory, run, reward)
    chosen = chosen_cycles(observatory, cycles)
    chosen = chosen if cycles is not None else chosen[-patching.AHEAD :]
    logged = Logged.read(observatory.lake, chosen) if chosen else None
    if logged is None or not len(logged):
        _nothing_there(why_none(observatory, cycles), as_json)
        return
    want: Literal[-1, 1] | None = -1 if less else 1 if more else None
    asked = _asked(observatory, run, finding, incident)
    if statistic is not None:
        spec = present[0] if isinstance(present, tuple) else stored_spec(present)
        asked = patching.asked_by_person(statistic, slice_, want, logged, spec)
    limits = Limits(largest=largest, frozen=tuple(freeze or ()))
    found = patching.look(observatory, run, present, asked, logged=logged, cycles=chosen, actor=person, limits=limits)
    if apply is not None:
        if run is None:
            raise StoreError(str(observatory.home), "there is no run, and so nothing to put a reward in force for")
        chosen_id = _numbered(run, found, int(apply), as_json)
        done = patching.apply_stored(observatory.store, run, chosen_id, reason=reason, actor=person, incident=incident)
        _changed(run, done, as_json)
        return
    if as_json:
        print_json(plain_patching(run, found))
    else:
        _print(run, found, every)
    raise typer.Exit(CODES[found.status])


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= _APPLIED_BY_NUMBER


def _present(observatory: Observatory, run: Run | None, reward: str | None) -> RewardVersion | tuple[RewardSpec, str]:
    if run is None:
        if reward is None:
            raise StoreError(str(observatory.home), "there is no run, and so no reward in force: --reward names one")
        return spec_of(observatory, reward)
    if reward is not None:
        raise typer.BadParameter(f"--reward is for logs without a run, and {observatory.home} has the run {run.name}")
    return patching.in_force(observatory.store, run)[0]


def _asked(observatory: Observatory, run: Run | None, finding: str | None, incident: int | None) -> Asked:
    if finding is None and incident is None:
        return Asked(None, "a search") if run is None else patching.asked_by_check(observatory.store, run)
    if run is None:
        raise StoreError(str(observatory.home), "there is no run, and so no finding")
    if incident is not None:
        return patching.asked_by_incident(observatory.store, run, incident)
    assert finding is not None
    return patching.asked_by_finding(observatory.store, run, finding)


def _nothing_there(why: str, as_json: bool) -> None:
    if as_json:
        print_json({"status": "not_assessable", "why": why})
    else:
        people.print(f"nothing to patch from: {why}", soft_wrap=True)
    raise typer.Exit(CODES["not_assessable"])


# -- applying ------------------------------------------------------------------------------------------------------


def _numbered(run: Run, found: Patching, number: int, as_json: bool) -> str:
    """Id of a proposal by its number; ends the command where there is nothing to patch. StoreError: no such number."""
    if found.status == "nothing":
        if as_json:
            print_json({"run": run.run_id, "changed": False, "change": None, "why": found.why})
        else:
            people.print(f"nothing to patch: {found.why}", soft_wrap=True)
        raise typer.Exit(CODES["nothing"])
    if not 1 <= number <= len(found.proposals):
        raise StoreError(f"run {run.run_id!r}", f"has {len(found.proposals)} proposals, and none is number {number}")
    return found.proposals[number - 1].proposal_id


def _changed(run: Run, change: RewardChange | None, as_json: bool) -> None:
    if as_json:
        print_json(
            {"run": run.run_id, "changed": change is not None, "change": None if change is None else vars(change)}
        )
    elif change is None:
        people.print("it is in force already; nothing was changed")
    else:
        before = "nothing" if change.instead_of is None else change.instead_of[:SHOWN_HASH]
        people.print(
            f"from cycle {change.from_cycle} on: {change.version[:SHOWN_HASH]} in place of {before}; "
            f"palomar reward revert {before} takes it back",
            soft_wrap=True,
        )


# -- showing -------------------------------------------------------------------------------------------------------


def _print(run: Run | None, found: Patching, every: bool) -> None:
    patch_ = found.patch
    where = "" if run is None else f" of run {run.name}"
    rows = 0 if patch_ is None else patch_.num_rows
    people.print(
        f"reward {found.base[:SHOWN_HASH]}{where}, {rows:,} interactions; asked by {visible(found.asked.source)}",
        soft_wrap=True,
    )
    if found.asked.unaimed:
        unaimed = _named(list(map(visible, found.asked.unaimed)), every)
        people.print(f"not on the bench, and so not patched: {unaimed}", soft_wrap=True)
    if found.why:
        people.print(f"\n{found.status.replace('_', ' ')}: {visible(found.why)}", soft_wrap=True)
    if patch_ is not None and found.status in ("proposed", "infeasible"):
        people.print(f"to turn round: {_named(list(map(str, patch_.targets)), every)}", soft_wrap=True)
    told = details(found)
    for number, each in enumerate(told):
        _print_proposal(each, full=every or number == 0, every=every)
    if len(told) > 1 and not every:
        people.print("\nall in full: --all")
    if patch_ is not None and found.status == "infeasible":
        for refused in patch_.refused:
            people.print(f"{visible(refused.change)} cannot: {refused.target}", soft_wrap=True)
            if refused.conflict:
                people.print(f"  together with: {', '.join(map(visible, refused.conflict))}", soft_wrap=True)
    if found.proposals:
        people.print('\nput one in force: palomar patch --apply 1 --reason "..."')


def _named(names: Sequence[str], every: bool) -> str:
    """The first few, and how many more; all with ``--all``."""
    shown = names if every else names[:NAMED]
    return "; ".join(shown) + (f"; and {len(names) - len(shown)} more" if len(shown) < len(names) else "")


def _print_proposal(each: Mapping[str, Any], *, full: bool, every: bool) -> None:
    hurt = "not known" if each["honest_hurt"] is None else f"{100 * each['honest_hurt']:.1f} %"
    name = "" if each["id"] is None else f" [{each['id'][:SHOWN_HASH]}]"
    people.print(f"\n{each['number']}. {visible(each['title'])}{name}", soft_wrap=True)
    for change in each["changes"]:
        people.print(f"   {visible(change)}", soft_wrap=True)
    turned, left = len(each["turned"]), len(each["unturned"])
    people.print(
        f"   turns {turned} of {turned + left}; advantages change by {100 * each['distance']:.0f} % of their size"
    )
    if each["unturned"]:
        people.print(f"   not turned: {_named(each['unturned'], every)}", soft_wrap=True)
    if each["lost"]:
        people.print(f"   no longer sure, and was right: {_named(each['lost'], every)}", soft_wrap=True)
    people.print(f"   hurt: {hurt} of the interactions with a good outcome are pushed no more", soft_wrap=True)
    if not full:
        return
    for less in each["pushed_less"][:3]:
        people.print(
            f"   {less['behaviour']}: pushed in {100 * less['before']:.0f} % of n={less['n']:,} before, "
            f"{100 * less['after']:.0f} % after",
            soft_wrap=True,
        )
    body = [
        (row["statistic"], row["slice"], _interval(row["old"]), _interval(row["new"]), _interval(row["outcome"]))
        for row in each["pressures"]
    ]
    people.print()
    print_table(table(("pressure on", "where", "before (95 %)", "after", "users' outcome"), body))
    _print_next(each["next_cycle"])
    people.print()
    for line in each["diff"].splitlines():
        people.print(f"   {visible(line)}", soft_wrap=True)


def _print_next(expected: list[Mapping[str, Any]]) -> None:
    if not expected:
        return
    rows = {(each["reward"], each["statistic"], each["slice"]): each for each in expected}
    cells = dict.fromkeys((each["statistic"], each["slice"]) for each in expected)
    body = [
        (*cell, rows["old", *cell]["level"], _next(rows["old", *cell]), _next(rows["new", *cell])) for cell in cells
    ]
    people.print()
    print_table(table(("next cycle", "where", "now", "as it is paid (90 %)", "patched"), body))
    if any(each["status"] == "no step size" for each in expected):
        people.print("   by how much is not known: no step of training was seen yet")


def _next(each: Mapping[str, Any]) -> str:
    if each["value"] is None:
        return {1: "rises", -1: "falls"}.get(each["way"], "not sure")
    return f"{each['value']:.3g} [{each['low']:.3g}, {each['high']:.3g}]"


def _interval(row: Mapping[str, float | None] | None) -> str:
    if row is None or row["value"] is None:
        return "not known"
    if row["low"] is None:
        return f"{row['value']:+.3g}"
    return f"{row['value']:+.3g} [{row['low']:+.3g}, {row['high']:+.3g}]"
