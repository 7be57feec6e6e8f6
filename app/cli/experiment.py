"""`palomar experiment`: two checkpoints served to users drawn at random, and what their users got."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from palomar.app import experiments
from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.lake import Lake
from palomar.detectors.arms import arms_in
from palomar.detectors.experiment import Effect, ExperimentReport

WORSE = 1
UNKNOWN = 3


class _ReportUnlessNamed(TyperGroup):
    """``palomar experiment FILE`` is ``palomar experiment report FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["report", *args]
        return super().parse_args(ctx, args)


PlanFile = Annotated[Path, typer.Argument(help="The experiment's plan (docs/experiments.md).", metavar="FILE")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=_ReportUnlessNamed, help="Experiments: two checkpoints, users drawn at random.", no_args_is_help=True
    )
    group.command("report")(report)
    group.command("run")(run)
    group.command("list")(list_)
    group.command("plans")(plans)
    app.add_typer(group, name="experiment")


def report(plan_file: PlanFile, home: Home = None, as_json: Json = False) -> None:
    """What each arm's users got: metric, change, interval. May be asked at any time.

    Exits with 1 when a metric is significantly worse or the assignment is broken, 3 when a metric is not known yet.
    """
    plan = experiments.read_plan(plan_file)
    found = experiments.report_of(home or DEFAULT_HOME, plan)
    if found is None:
        why = f"nothing of {plan.name} was collected in {home or DEFAULT_HOME}"
        if as_json:
            print_json({"name": plan.name, "status": "no_data", "why": why})
        else:
            people.print(why, soft_wrap=True)
        raise typer.Exit(UNKNOWN)
    if as_json:
        print_json(experiments.plain(found))
    else:
        _print(found)
        if plan.before is not None:
            people.print("changes: what users were like in cycles {}..{} is taken out".format(*plan.before))
    if not found.valid or found.worse:
        raise typer.Exit(WORSE)
    if found.unknown or any(each.status == "unknown" for each in found.validity):
        raise typer.Exit(UNKNOWN)


def run(
    plan_file: PlanFile,
    cycles: Annotated[int, typer.Option(min=1, help="Cycles to serve, from the first one on.")] = 4,
    requests: Annotated[
        int | None, typer.Option(min=1, help="First requests a cycle, of all arms together.", show_default="the run's")
    ] = None,
    actor: Actor = None,
    reason: Annotated[str, typer.Option(help="For the audit log.")] = "serve the planned experiment",
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Serve it to the simulated users of the run in the home, then report. With more cycles it goes on."""
    plan = experiments.read_plan(plan_file)
    experiments.serve(
        home or DEFAULT_HOME,
        plan,
        cycles,
        actor=who(actor),
        reason=reason,
        store_url=store_url,
        requests=requests,
        watch=lambda cycle: notes.print(f"cycle {cycle} served"),
    )
    report(plan_file, home, as_json)


def list_(home: Home = None, as_json: Json = False) -> None:
    """The arms that interactions name, in the home's lake and in the experiments served here. Exits with 3 for none."""
    place = home or DEFAULT_HOME
    rows = [{"experiment": None, **row} for row in arms_in(Lake(place / "lake"))]
    for folder in sorted((place / experiments.FOLDER).glob("*/lake")):
        rows += [{"experiment": folder.parent.name, **row} for row in arms_in(Lake(folder))]
    if as_json:
        print_json({"arms": rows})
    elif rows:
        print_table(
            table(
                [name.replace("_", " ") for name in rows[0]], [[_shown(cell) for cell in row.values()] for row in rows]
            )
        )
    else:
        people.print(f"no interaction in {place} names an arm")
    if not rows:
        raise typer.Exit(UNKNOWN)


def plans(home: Home = None, as_json: Json = False) -> None:
    """The plans in the home's folder ``experiments``. Exits with 3 where there is none."""
    found = experiments.plans(home or DEFAULT_HOME)
    if as_json:
        print_json({"plans": [{**vars(each), "plan": each.plan and each.plan.model_dump()} for each in found]})
    elif found:
        rows = [
            (visible(each.name), visible(str(each.path)), "served here" if each.served else "", visible(each.problem))
            for each in found
        ]
        print_table(table(("experiment", "plan", "", "cannot be read"), rows))
    else:
        people.print(f"no plan in {(home or DEFAULT_HOME) / experiments.FOLDER}", soft_wrap=True)
    if not found:
        raise typer.Exit(UNKNOWN)


def _shown(value: object) -> object:
    return visible(value) if isinstance(value, str) else value


def _print(found: ExperimentReport) -> None:
    people.print(f"{found.name}, as of {found.as_of:%F %R} UTC", soft_wrap=True)
    for name, checkpoint in found.arms.items():
        people.print(f"  {visible(name)}: checkpoint {visible(checkpoint)}", soft_wrap=True)
    for control, treatment in dict.fromkeys((each.control, each.treatment) for each in found.effects):
        of_pair = [each for each in found.effects if (each.control, each.treatment) == (control, treatment)]
        columns = ("metric", control, treatment, "change", f"{1 - found.alpha:.0%} at any time", "users", "")
        rows = [
            (
                each.metric,
                (each.values or {}).get(control),
                (each.values or {}).get(treatment),
                *_change(each),
                f"{each.units[control]:,} / {each.units[treatment]:,}",
                _word(each, found),
            )
            for each in of_pair
        ]
        people.print()
        print_table(table([visible(name) for name in columns], rows, title=f"{treatment} against {control}"))
    people.print()
    for check in found.validity:
        if check.status != "pass":
            people.print(f"{check.status.upper()}  {check.name}: {visible(check.why)}", soft_wrap=True)
    failing = [check for check in found.validity if check.status == "fail"]
    if failing:
        people.print("The comparison is broken: no effect is shown, and none may be believed.")
    elif all(check.status == "pass" for check in found.validity):
        people.print(f"assignment: {len(found.validity)} checks pass")


def _change(effect: Effect) -> tuple[str | None, str | None]:
    """Relative change and its interval; in the metric's unit where the control is too near 0 for a relative one."""
    if effect.relative is not None and effect.relative_low is not None and effect.relative_high is not None:
        return f"{effect.relative:+.2%}", f"{effect.relative_low:+.2%} .. {effect.relative_high:+.2%}"
    if effect.effect is not None and effect.low is not None and effect.high is not None:
        return f"{effect.effect:+.4g}", f"{effect.low:+.4g} .. {effect.high:+.4g}"
    return None, None


def _word(effect: Effect, found: ExperimentReport) -> str:
    if effect.status != "known":
        return f"{effect.status.replace('_', ' ')}: {visible(effect.why)}"
    if effect in found.worse:
        return "WORSE"
    return "better" if effect in found.improved else ""
