"""`palomar check`: the verdict on a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from palomar.app.cli.acting import who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.incidents import keep_check
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.config import read_config
from palomar.data.errors import StoreError
from palomar.data.findings import Finding, Report, Severity
from palomar.data.series import SeriesMapping, read_series
from palomar.data.store.records import Incident
from palomar.detectors.check import Checked
from palomar.detectors.detector import detectors, load
from palomar.detectors.series_check import Roles, check_series
from palomar.detectors.verdict import Word, verdict

CODES: dict[Word, int] = {"pass": 0, "warn": 0, "block": 1, "not_assessable": 3}
"""Exit code of each verdict. A warning is for people; a pipeline goes on."""
_MARKS: dict[Severity, str] = {"blocks": "BLOCKS", "warns": "warns ", "notes": "notes "}
READINGS = {
    "reward_hack": "reward hack",
    "honest_learning": "honest learning",
    "outside_change": "outside change",
    "forewarning": "forewarning",
    "measurement_fault": "measurement fault",
    "not_assessable": "not assessable yet",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    cycle: Annotated[int | None, typer.Option("--cycle", help="Without: the newest.")] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Compare this checkpoint with its champion and the base, beside its cycle.")
    ] = None,
    detector: Annotated[
        list[str] | None, typer.Option("--detector", help="Only this detector; may be given again.")
    ] = None,
    extension: Annotated[
        list[Path] | None, typer.Option("--extension", help="A Python file with detectors or statistics of your own.")
    ] = None,
    series: Annotated[
        Path | None, typer.Option(help="Check this table of aggregated figures instead (docs/series.md).")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="With --series: the mapping of a JSON of another shape.")] = None,
    proxy: Annotated[str | None, typer.Option(help="With --series: the metric that is trained on.")] = None,
    outcome: Annotated[str | None, typer.Option(help="With --series: the metric of what users get.")] = None,
    worse: Annotated[
        list[str] | None, typer.Option(help="With --series: METRIC=up or METRIC=down, the way it is worse.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Notes too, and what each detector assessed.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep it in the store in place of the cycle's last check; opens incidents.")
    ] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say what changed in a cycle and what it means. Exits with 1 when something blocks, 3 when it cannot tell."""
    for path in extension or ():
        load(path)
    if unknown := sorted(set(detector or ()) - set(detectors())):
        raise typer.BadParameter(f"no detector {', '.join(unknown)}; there are: {', '.join(detectors())}")
    if keep and (series is not None or candidate is not None or detector):
        raise typer.BadParameter("only a check of a cycle by all detectors is kept", param_hint="--keep")
    if series is not None:
        _series(series, mapping, Roles(proxy, outcome, dict(map(_direction, worse or ()))), every, as_json)
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    checked = observatory.check(cycle, names=detector) if candidate is None else _candidate(observatory, candidate)
    if checked is None:
        asked = "any cycle" if cycle is None else f"cycle {cycle}"
        why = f"nothing to check: no interactions of {asked} in {observatory.home}"
        if as_json:
            print_json({"verdict": "not_assessable", "why": why})
        else:
            people.print(why, soft_wrap=True)
        raise typer.Exit(CODES["not_assessable"])
    incidents = _keep(observatory, checked) if keep else []
    if as_json:
        print_json(_plain(checked) | ({"incidents": [incident.number for incident in incidents]} if keep else {}))
    else:
        _print(checked, every)
        for incident in incidents:
            people.print(f"incident {incident.number} ({incident.state}): {visible(incident.title)}", soft_wrap=True)
    raise typer.Exit(CODES[checked.verdict.word])


def _keep(observatory: Observatory, checked: Checked) -> list[Incident]:
    run = observatory.run()
    if run is None or checked.cycle is None:
        raise StoreError(str(observatory.home), "only checks of a run's cycles are kept, and there is no run")
    return keep_check(observatory.store, run.run_id, checked, actor=who(None))


def _candidate(observatory: Observatory, checkpoint: str) -> Checked:
    """The check of the cycle that trained a candidate, and of the candidate beside its champion and the base."""
    from palomar.trainer.candidate import candidate_report, others

    run = observatory.run()
    if run is None:
        raise StoreError(str(observatory.home), "there is no run, and so no candidate")
    chosen, compared = others(observatory.store, run.run_id, checkpoint)
    beside = None if chosen.cycle is None else observatory.check(chosen.cycle)
    view = None if chosen.cycle is None else observatory.view(chosen.cycle)
    report = candidate_report(view, observatory.home, chosen, compared)
    reports = (report, *(beside.reports if beside is not None else ()))
    return Checked(chosen.cycle, verdict(reports), reports)


def _series(path: Path, mapping: Path | None, roles: Roles, every: bool, as_json: bool) -> NoReturn:
    """Checks a series, prints what it says, and exits."""
    table_ = read_series(path, None if mapping is None else read_config(mapping, SeriesMapping))
    try:
        said = check_series(table_, roles)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    checked = Checked(None, said.verdict, said.reports)
    slices = {"alarmed": said.alarmed, "clear": said.clear, "not assessable": said.not_assessable}
    if as_json:
        print_json(_plain(checked) | {"slices": slices, "faulty_cycles": said.faulty, "history": dict(said.history)})
    else:
        _print(checked, every, where=path.name)
        for word, names in slices.items():
            people.print(f"{word}: {', '.join(map(visible, names)) or '-'}", soft_wrap=True)
        if said.faulty:
            people.print(f"measurement faults, left out: cycle {', '.join(map(str, said.faulty))}", soft_wrap=True)
    raise typer.Exit(CODES[checked.verdict.word])


def _direction(text: str) -> tuple[str, Literal["up", "down"]]:
    metric, _, word = text.rpartition("=")
    if not metric or word not in ("up", "down"):
        raise typer.BadParameter(f"{text!r} is not METRIC=up or METRIC=down")
    return metric, "up" if word == "up" else "down"


def _plain(checked: Checked) -> dict[str, Any]:
    return {
        "cycle": checked.cycle,
        "verdict": checked.verdict.word,
        "reasons": checked.verdict.reasons,
        "sentence": checked.verdict.sentence,
        "findings": [asdict(finding) | {"key": finding.key} for finding in checked.findings],
        "detectors": [
            {
                "detector": report.detector,
                "assessed": report.assessed,
                "unassessed": [asdict(item) for item in report.unassessed],
                "power": report.power,
            }
            for report in checked.reports
        ],
    }


def _print(checked: Checked, every: bool, where: str | None = None) -> None:
    if where is None:
        where = "logs outside a loop" if checked.cycle is None else f"cycle {checked.cycle}"
    people.print(f"{where}: {checked.verdict.word.replace('_', ' ').upper()}", soft_wrap=True)
    shown = [finding for finding in checked.findings if every or finding.severity != "notes"]
    for first, *others in _together(shown):
        _print_finding(first, others, full=every or first.severity == "blocks")
    hidden = len(checked.findings) - len(shown)
    if not shown:
        people.print(f"\n{checked.verdict.sentence}", soft_wrap=True)
    _print_detectors(checked.reports, every)
    if hidden:
        people.print(f"\n{hidden} notes; --all shows them")


def _together(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one detector about one statistic, read alike and on one side; the worst of each group first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        side = (finding.effect or 0.0) > 0
        about = finding.statistic or finding.key
        groups.setdefault((finding.detector, about, finding.reading, finding.severity, side), []).append(finding)
    return list(groups.values())


def _print_finding(finding: Finding, others: Sequence[Finding], *, full: bool) -> None:
    """A finding and those of other slices that say the same; `full`: with causes and interactions to look at."""
    reading = f"; reading: {READINGS[finding.reading]}" if finding.reading else ""
    people.print(f"\n{_MARKS[finding.severity]} {visible(finding.sentence)}{reading}", soft_wrap=True)
    if not full:
        if others:
            people.print(f"       and in {len(others)} more slices", soft_wrap=True)
        return
    if finding.causes:
        causes = ", ".join(f"{cause.name} in {cause.slice} ({100 * cause.share:.0f} %)" for cause in finding.causes[:3])
        people.print(f"       charged to {visible(causes)}", soft_wrap=True)
    if others:
        slices = "; ".join(visible(other.slice) for other in others)
        people.print(f"       and in {len(others)} more: {slices}", soft_wrap=True)
    places = {
        "look at": finding.evidence.carrying,
        "usual": finding.evidence.random,
        "against": finding.evidence.counter,
    }
    listed = "; ".join(f"{name} {', '.join(map(visible, ids[:3]))}" for name, ids in places.items() if ids)
    if listed:
        people.print(f"       {listed}", soft_wrap=True)


def _print_detectors(reports: Sequence[Report], every: bool) -> None:
    rows = [
        (report.detector, report.assessed, len(report.findings), len(report.unassessed), _why(report))
        for report in reports
    ]
    people.print()
    print_table(table(("detector", "assessed", "found", "not assessed", "mostly because"), rows))
    if every:
        for report in reports:
            if report.power:
                people.print(f"\n{report.detector}: {report.power}", soft_wrap=True)


def _why(report: Report) -> str | None:
    """The commonest reason for not assessing; the first among equals."""
    reasons = [item.why for item in report.unassessed]
    return visible(max(reasons, key=reasons.count)) if reasons else None
