"""`palomar audit`: is there a way to be paid by a reward that no user would want?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.cli.specs import chosen_cycles, known_specs, spec_of, why_none
from palomar.app.probing import FOLDER
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.detectors.detector import load
from palomar.reward.behaviours import Logged
from palomar.reward.incentives import Incentives, incentives
from palomar.reward.probes.cases import read_probes
from palomar.reward.probes.judgement import Probed
from palomar.reward.probes.probe import PROBES
from palomar.reward.spec import RewardSpec
from palomar.reward.static_audit import StaticAudit, static_audit

FLAGGED = 1
NOTHING_TO_SHOW = 3
_WORDS = {"flagged": "flags", "undecided": "undecided", "small": "notes"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    spec: Annotated[str, typer.Argument(help="A name, a YAML file, or a stored version.")],
    on: Annotated[
        str | None, typer.Option("--on", help="Audit it on logged interactions too: cycle 7, 0..7, or all.")
    ] = None,
    probes: Annotated[
        bool, typer.Option("--probes", help="Play it by scripted probes in the simulated production too.")
    ] = False,
    requests: Annotated[int, typer.Option(min=100, help="With --probes: requests that each is given.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="With --probes: which requests.")] = 0,
    files: Annotated[
        list[Path] | None, typer.Option("--load", help="A Python file with probes or terms of your own; repeatable.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Look for ways to be paid that no user would want.

    Exits with 1 when one is flagged; with 3 when `--on` has no rows, or a probe is preferred and nobody can say whether
    users want it.
    """
    for path in files or ():
        load(path)
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    parsed, text = spec_of(observatory, spec)
    without = static_audit(text, source=spec)
    played = _played(parsed, observatory, requests, seed) if probes else None
    curves, asked = None, on is not None
    if on is not None:
        chosen = chosen_cycles(observatory, None if on == "all" else on)
        logged = Logged.read(observatory.lake, chosen) if chosen else None
        if logged is not None and len(logged):
            curves = incentives(logged, parsed, known=known_specs(observatory))
    if as_json:
        print_json(
            {
                "static": asdict(without),
                "probes": None if played is None else played.to_dict(),
                "incentives": None if curves is None else curves.to_dict(),
            }
        )
    else:
        _print_static(without)
        if played is not None:
            _print_probed(played)
        if curves is not None:
            _print_incentives(curves)
        elif asked:
            people.print(f"\nincentives could not be assessed: {why_none(observatory, on)}")
    if without.flagged or (played is not None and played.flagged) or (curves is not None and curves.flags):
        raise typer.Exit(FLAGGED)
    if (asked and (curves is None or not curves.assessed)) or (played is not None and not played.settled):
        raise typer.Exit(NOTHING_TO_SHOW)


def _played(spec: RewardSpec, observatory: Observatory, requests: int, seed: int) -> Probed:
    from palomar.reward.probes import library  # noqa: F401  (registers the probes)
    from palomar.reward.probes.judgement import judge
    from palomar.reward.probes.rollout import roll_out

    mine = read_probes(observatory.home / FOLDER)
    notes.print(f"playing {len(PROBES) + len(mine)} probes on {requests:,} requests ...")
    return judge(roll_out([*PROBES.values(), *mine], requests=requests, seed=seed), spec)


def _print_static(found: StaticAudit) -> None:
    if found.flaws:
        body = [(each.severity, each.line, each.check, each.key) for each in found.flaws]
        print_table(table(("", "line", "check", "key"), body, title=f"{found.name}, without data"))
        people.print()
        for each in found.flaws:
            people.print(f"{each.severity} {each.check}: {visible(each.sentence)}")
    else:
        people.print(f"{found.name}, without data: nothing to say")
    if found.unpaid:
        people.print(f"not compared, since the spec gives them no reward: {', '.join(found.unpaid)}")


def _print_probed(found: Probed) -> None:
    body = []
    for each in found.results:
        most = each.worst
        where = (None,) * 7 if most is None else (most.slice, most.n, most.reward, most.reward_low, most.outcome,
                                                  most.outcome_low, most.outcome_high)  # fmt: skip
        body.append((each.probe, each.word, f"{each.acted:.0%}", *where))
    columns = ("probe", "", "acts", "slice", "n", "reward", "95 % from", "outcome", "95 % from", "to")
    people.print()
    title = f"what a probe is paid over the honest one, where most ({found.requests:,} requests)"
    print_table(table(columns, body, title=title))
    people.print()
    for each in found.results:
        if each.word in ("flagged", "undecided", "small"):
            people.print(f"{_WORDS[each.word]} {each.probe}: {visible(each.sentence)}")
    if not found.flagged:
        people.print("no probe is paid for what users do not want")
    if found.outcome_of != found.name:
        people.print(f"the spec has no outcome: that of {found.outcome_of!r} refereed")


def _print_incentives(found: Incentives) -> None:
    body = [
        (each.behaviour, each.stratum, each.n, each.reward, each.reward_low, each.reward_high, each.outcome,
         each.outcome_low, each.outcome_high)
        for each in found.estimates
        if each.status == "ok"
    ]  # fmt: skip
    columns = ("behaviour", "stratum", "n", "reward", "95 % from", "to", "outcome", "95 % from", "to")
    people.print()
    print_table(table(columns, body, title="what a behaviour is paid over the honest thing"))
    people.print()
    for flag in found.flags:
        people.print(f"flags {flag.check}: {visible(flag.sentence)}")
    if not found.flags:
        people.print("no incentive against the users was found" if found.assessed else "nothing could be assessed")
    for behaviour, why in found.unassessed:
        people.print(f"not assessed: {behaviour}: {why}")
