"""Data health: sums, usual shares, feedback and faults, against numbers that were counted another way."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.health import health
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import LedgerRow, Place, QuarantinedRow, Statistic

RUN = "demo"
LOW = "predicted failure 0-0.2"


def rows(cycle: int, *, trained: int, broken: int, waiting: int = 0, collected: int | None = None) -> list[LedgerRow]:
    """A ledger in which all samples are of one stratum."""
    total = trained + broken + waiting if collected is None else collected
    counts: list[tuple[Place, str, int]] = [
        ("collected", "", total),
        ("trained", "", trained),
        ("excluded", "invalid_tool_call", broken),
        ("waiting", "", waiting),
    ]
    return [
        LedgerRow(cycle, stratum, place, reason, count)
        for stratum in (ALL, LOW)
        for place, reason, count in counts
        if count
    ]


def ripe(cycle: int, share: float | None) -> Statistic:
    value = None if share is None else 0.1
    return Statistic(cycle, ALL, "outcome_mean", value, value, value, 100, "ok" if value else "no_data", share)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Eight cycles: two of baseline, in which nothing is trained on, then 5, 10, 15, 20, 25 and 60 broken of 100."""
    with Store.open(None, tmp_path) as store:
        store.runs.add(RUN, name=RUN, seed=7, config={})
        for cycle in range(8):
            store.cycles.start(RUN, cycle)
            broken = [5, 10, 15, 20, 25, 60][cycle - 2]
            made = (
                [
                    LedgerRow(cycle, stratum, place, reason, 100)
                    for stratum in (ALL, LOW)
                    for place, reason in (("collected", ""), ("excluded", "baseline"))
                ]
                if cycle < 2
                else rows(cycle, trained=100 - broken, broken=broken)
            )
            store.ledger.write(RUN, made)  # type: ignore[arg-type]
            store.statistics.write(RUN, [ripe(cycle, 1.0 if cycle < 7 else 0.7)])
        checked(store, 7)
    return tmp_path


def checked(store: Store, cycle: int, *findings: Finding) -> None:
    store.findings.write(RUN, cycle, findings)
    told: dict[str, Any] = {"reasons": [], "sentence": "", "findings": {}, "budget": "", "as_of": None}
    store.verdicts.write(RUN, cycle, verdict="pass", **told)


def fault() -> Finding:
    return Finding("outage", severity="warns", sentence="tools were down", reading="measurement_fault")


def test_the_usual_share_is_the_median_of_cycles_that_trained_too(home: Path) -> None:
    found = health(Observatory(home), RUN)
    assert found is not None
    assert found.cycle == 7
    assert found.compared == 5  # not the two of the baseline
    (loss,) = found.losses
    assert (loss.place, loss.reason, loss.count) == ("excluded", "invalid_tool_call", 60)
    assert (loss.share, loss.usual, loss.low, loss.high) == (0.6, 0.15, 0.05, 0.25)
    assert loss.unusual
    assert found.word == "pass"


def test_with_few_cycles_before_it_nothing_is_usual(home: Path) -> None:
    found = health(Observatory(home), RUN, 4)
    assert found is not None
    (loss,) = found.losses
    assert (loss.share, loss.usual, loss.unusual) == (0.15, None, False)


def test_a_reason_that_did_not_occur_is_there_with_its_usual_share(home: Path) -> None:
    with Store.open(None, home) as store:
        store.cycles.start(RUN, 8)
        store.ledger.write(RUN, rows(8, trained=90, broken=0, waiting=10))
    found = health(Observatory(home), RUN)
    assert found is not None
    assert [(each.place, each.share, each.usual) for each in found.losses] == [
        ("waiting", 0.1, 0.0),
        ("excluded", 0.0, 0.175),
    ]


@pytest.mark.parametrize(("collected", "off"), [(101, -1), (97, 3)])
def test_a_ledger_that_does_not_add_up_is_said_and_fails(home: Path, collected: int, off: int) -> None:
    with Store.open(None, home) as store:
        store.ledger.write(RUN, rows(7, trained=40, broken=60, collected=collected))
    found = health(Observatory(home), RUN)
    assert found is not None
    assert found.sums is not None
    assert [(each.name, each.off) for each in found.sums.off] == [(ALL, off), (LOW, off)]
    assert found.word == "fail"


def test_one_stratum_that_does_not_add_up_is_enough(home: Path) -> None:
    with Store.open(None, home) as store:
        made = [row for row in rows(7, trained=40, broken=60) if not (row.stratum == LOW and row.place == "excluded")]
        store.ledger.write(RUN, made)
    found = health(Observatory(home), RUN)
    assert found is not None
    assert found.sums is not None
    assert [(each.name, each.off) for each in found.sums.off] == [(LOW, -60)]
    assert found.word == "fail"


def test_a_fault_of_measurement_fails_its_cycle_and_no_other(home: Path) -> None:
    with Store.open(None, home) as store:
        checked(store, 6, fault())
    observatory = Observatory(home)
    found, after = health(observatory, RUN, 6), health(observatory, RUN, 7)
    assert found is not None
    assert after is not None
    assert (found.word, [each.finding.detector for each in found.faults]) == ("fail", ["outage"])
    assert (after.word, after.faults, dict(after.faulty)) == ("pass", (), {6: 1})


def test_what_is_not_known_is_no_clearance(home: Path) -> None:
    observatory = Observatory(home)
    unchecked = health(observatory, RUN, 5)
    assert unchecked is not None
    assert unchecked.word == "no_data"
    observatory.store.cycles.start(RUN, 8)
    observatory.store.statistics.write(RUN, [ripe(8, None)])
    unwritten = health(observatory, RUN, 8)
    assert unwritten is not None
    assert (unwritten.sums, unwritten.losses, unwritten.word) == (None, (), "no_data")
    assert unwritten.ripeness[-1].share is None
    assert health(observatory, RUN, 99) is None
    assert health(observatory, "nothing", None) is None


def test_when_feedback_is_in_is_the_last_interaction_and_the_longest_horizon(tmp_path: Path, recorded: Path) -> None:
    observatory = Observatory(recorded)
    run = observatory.run()
    assert run is not None
    found = health(observatory, run.run_id)
    assert found is not None
    last = found.ripeness[-1]
    assert last.share is not None
    assert last.share < 1
    table = observatory.lake.scan("observations", ("as_of", "watched_s", "outcome_status"), cycles=[last.cycle])
    ended = [row["as_of"] - timedelta(seconds=row["watched_s"]) for row in table.to_pylist()]
    # The naive reward's outcome looks 90 minutes ahead (reward/specs/naive.yaml).
    assert last.ready_at == max(ended) + timedelta(minutes=90)
    assert last.ready_at > datetime(2026, 1, 5, tzinfo=UTC)
    assert all(each.ready_at is None for each in found.ripeness if each.share == 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cycle of interactions that ended half an hour before the cycle was distilled, in a run of their own."""
    from palomar.data.facts import facts
    from palomar.data.lake import Lake
    from palomar.data.schema import Feedback, Interaction, Step
    from palomar.detectors.measure import measure
    from palomar.reward.scoring import score
    from palomar.reward.spec import bundled_text, parse_spec, version

    home = tmp_path_factory.mktemp("recorded")
    start = datetime(2026, 1, 5, tzinfo=UTC)
    spec = parse_spec(bundled_text("naive"), source="naive")
    lake = Lake(home / "lake", threads=1)
    items = [
        Interaction(
            interaction_id=f"i{number}",
            source="palomar",
            origin="test",
            conversation_id=f"c{number}",
            cycle=0,
            started_at=start + timedelta(minutes=number),
            ended_at=start + timedelta(minutes=number, seconds=30),
            steps=(Step(author="person", role="user", text="x"), Step(author="agent", role="assistant", text="y")),
            feedback=(Feedback(kind="follow_up", at=start + timedelta(minutes=number + 3), text="z", label="neutral"),),
        )
        for number in range(120)
    ]
    lake.append_interactions(items, 0)
    as_of = start + timedelta(minutes=150)
    lake.write_observations(score(facts(lake, 0, as_of), spec, as_of), 0)
    with Store.open(None, home) as store:
        store.runs.add(RUN, name=RUN, seed=7, config={})
        store.rewards.add(version(spec), text=bundled_text("naive"), parent=None, reason="first", actor="test")
        store.rewards.schedule(RUN, version(spec), from_cycle=0)
        store.cycles.start(RUN, 0, reward_version=version(spec))
        store.statistics.write(RUN, measure(lake, [0]))
    return home


def test_the_command_says_the_same_and_exits_by_it(home: Path) -> None:
    run = CliRunner()
    done = run.invoke(app, ["health", "--home", str(home)])
    assert done.exit_code == 0
    assert "invalid_tool_call" in done.stdout
    assert "UNUSUAL" in done.stdout
    told = json.loads(run.invoke(app, ["health", "--json", "--home", str(home)]).stdout)
    assert (told["state"], told["sums"]["adds_up"], told["losses"][0]["usual"]) == ("pass", True, 0.15)
    assert run.invoke(app, ["health", "--cycle", "5", "--home", str(home)]).exit_code == 3  # never checked
    with Store.open(None, home) as store:
        checked(store, 7, fault())
        store.quarantine.record(
            [QuarantinedRow("1" * 20, "log.jsonl", 3, None, "damaged", "\x1b")], at=datetime.now(UTC)
        )
    done = run.invoke(app, ["health", "--home", str(home)])
    assert done.exit_code == 1
    assert "FAULT  outage: tools were down" in done.stdout
    assert "damaged 1" in done.stdout


def test_the_command_says_where_there_is_nothing(tmp_path: Path, home: Path) -> None:
    run = CliRunner()
    empty = tmp_path / "nothing"
    assert run.invoke(app, ["health", "--home", str(empty)]).exit_code == 3
    assert not empty.exists()
    unknown = run.invoke(app, ["health", "--cycle", "99", "--home", str(home)])
    assert unknown.exception is not None
    assert "has no cycle 99" in str(unknown.exception)
