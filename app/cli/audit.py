"""`palomar audit`: is there a way to be paid by a reward that no user would want?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.cli.specs import chosen_cycles, known_specs, spec_of, why_none
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.reward.behaviours import Logged
from palomar.reward.incentives import Incentives, incentives
from palomar.reward.static_audit import StaticAudit, static_audit

FLAGGED = 1
NOTHING_TO_SHOW = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    spec: Annotated[str, typer.Argument(help="A name, a YAML file, or a stored version.")],
    on: Annotated[
        str | None, typer.Option("--on", help="Audit it on logged interactions too: cycle 7, 0..7, or all.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Look for ways to be paid that no user would want: exits with 1 when one is flagged, 3 when `--on` has no rows."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    parsed, text = spec_of(observatory, spec)
    without = static_audit(text, source=spec)
    curves, asked = None, on is not None
    if on is not None:
        chosen = chosen_cycles(observatory, None if on == "all" else on)
        logged = Logged.read(observatory.lake, chosen) if chosen else None
        if logged is not None and len(logged):
            curves = incentives(logged, parsed, known=known_specs(observatory))
    if as_json:
        print_json({"static": asdict(without), "incentives": None if curves is None else curves.to_dict()})
    else:
        _print_static(without)
        if curves is not None:
            _print_incentives(curves)
        elif asked:
            people.print(f"\nincentives could not be assessed: {why_none(observatory, on)}")
    if without.flagged or (curves is not None and curves.flags):
        raise typer.Exit(FLAGGED)
    if asked and (curves is None or not curves.assessed):
        raise typer.Exit(NOTHING_TO_SHOW)


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
