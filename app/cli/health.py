"""`palomar health`: can a cycle's data be believed?"""

from __future__ import annotations

from typing import Annotated

import typer

from palomar.app import health as service
from palomar.app.cli.acting import store_there
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.health import DataHealth
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError

CODES = {"pass": 0, "fail": 1, "no_data": 3}
NOTHING_TO_SHOW = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health")(health)


def health(
    cycle: Annotated[int | None, typer.Option(help="The cycle; without: the newest that has a ledger.")] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say where a cycle's samples went, how much feedback is in, and whether faults were found.

    Exits with 1 where the ledger does not add up or a fault of measurement was found, 3 where one of both is not known.
    """
    store_there(home, store_url, as_json)
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    found = None if run is None else service.health(observatory, run.run_id, cycle)
    if found is None:
        if run is not None and cycle is not None and service.health(observatory, run.run_id) is not None:
            raise StoreError(run.run_id, f"has no cycle {cycle}")
        why = "no cycle was distilled yet" if run is not None else f"no run in {observatory.home}"
        if as_json:
            print_json({"state": "no_data", "why": why})
        else:
            people.print(why, soft_wrap=True)
        raise typer.Exit(NOTHING_TO_SHOW)
    if as_json:
        print_json(service.plain(found))
    else:
        _print(found)
    raise typer.Exit(CODES[found.word])


def _print(found: DataHealth) -> None:
    people.print(f"cycle {found.cycle}: {found.word.replace('_', ' ').upper()}", soft_wrap=True)
    if found.sums is None:
        people.print("no ledger yet: it is written when the cycle was trained on")
    else:
        rows = [
            (each.name, each.received, *(each.counts.get(place, 0) for place in service.PLACES), each.off)
            for each in (found.sums.whole, *found.sums.strata)
        ]
        print_table(table(("stratum", "received", *service.PLACES, "difference"), rows))
        off = found.sums.off
        people.print("DOES NOT ADD UP" if off else "it adds up, in all and in each stratum")
    if found.losses:
        people.print()
        rows = [
            (
                visible(f"{each.place} {each.reason}".strip()),
                each.count,
                f"{100 * each.share:.2f} %",
                None if each.usual is None else f"{100 * each.usual:.2f} %",
                "UNUSUAL" if each.unusual else "",
            )
            for each in found.losses
        ]
        print_table(table(("not trained on", "samples", "share", f"median of {found.compared} before", ""), rows))
    people.print()
    for each in [each for each in found.ripeness if each.share is not None and each.share < 1][-service.LOOKED_UP :]:
        ready = "when is not known" if each.ready_at is None else f"in by {each.ready_at:%F %R} UTC"
        people.print(f"feedback of cycle {each.cycle}: {100 * (each.share or 0):.0f} %, all of it {ready}")
    if found.lag is not None and found.lag.by_age:
        ages = ", ".join(f"{count} samples {age} cycles old" for age, count in found.lag.by_age.items())
        people.print(f"trained on {ages}", soft_wrap=True)
    if not found.checked:
        people.print(f"not checked for faults: palomar check --cycle {found.cycle} --keep")
    elif not found.faults:
        people.print("no fault of measurement found")
    for fault in found.faults:
        people.print(f"FAULT  {fault.finding.detector}: {visible(fault.finding.sentence)}", soft_wrap=True)
    for kind, count in found.quarantined.items():
        people.print(f"in quarantine, of all ingestions: {visible(kind)} {count}")
