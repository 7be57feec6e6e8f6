"""Why a figure moved, against sums that are made row by row in Python."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palomar.app import why
from palomar.app.kept import Kept, Pending
from palomar.app.service import Observatory
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.detectors.pressure import pressures
from palomar.reward.spec import bundled, bundled_text, version
from palomar.reward.versions import register

NAIVE = version(bundled("naive"))
CYCLES = 4


@pytest.fixture
def home(tmp_path: Path, lake_with_holes: Lake) -> Observatory:
    """A run whose four cycles have been distilled."""
    shutil.copytree(lake_with_holes.root, tmp_path / "lake")
    with Store.open(None, tmp_path) as store:
        register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", NAIVE, from_cycle=0)
        for cycle in range(CYCLES):
            store.cycles.start("run", cycle, reward_version=NAIVE)
    return Observatory(tmp_path)


def observed(home: Observatory, *cycles: int) -> list[dict[str, Any]]:
    """Rows as the lake has them."""
    with home.lake.connect(["observations"], list(cycles)) as connection:
        rows: list[dict[str, Any]] = connection.execute("SELECT * FROM observations").to_arrow_table().to_pylist()
    return rows


def cell(row: Mapping[str, Any]) -> str:
    failure = row["predicted_failure"]
    hard = "low" if failure < 0.4 else "mid" if failure < 0.6 else "high"
    return f"predicted_failure={hard},ambiguity={'clear' if row['ambiguity'] < 0.5 else 'vague'}"


# -- slices ----------------------------------------------------------------------------------------------------------


def test_shares_of_slices_are_those_of_a_sum_over_rows_and_add_up_with_the_mix(home: Observatory) -> None:
    found = why.slices_of(home, "run", "clarification_rate", 3, reference=(0, 1))
    assert found.excess is not None
    before, after = observed(home, 0, 1), observed(home, 3)

    def rates(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
        """Share of the rows, and of these the share that ask."""
        by: dict[str, list[bool]] = {}
        for row in rows:
            by.setdefault(cell(row), []).append(row["asked"])
        return {name: (len(asked) / len(rows), sum(asked) / len(asked)) for name, asked in by.items()}

    old, new = rates(before), rates(after)
    total = sum(row["asked"] for row in after) / len(after) - sum(row["asked"] for row in before) / len(before)
    assert found.excess.total == pytest.approx(total)
    for item in found.excess.slices:
        (p, a), (q, b) = old[item.slice], new[item.slice]
        assert (item.before, item.after) == pytest.approx((a, b))
        assert item.part == pytest.approx((p + q) / 2 * (b - a))
        assert item.share == pytest.approx(item.part / total)
        assert item.n_after == sum(cell(row) == item.slice for row in after)
        assert item.n_before == sum(cell(row) == item.slice for row in before)
    assert {item.slice for item in found.excess.slices} == set(new)
    mix = sum((new[name][0] - old[name][0]) * (old[name][1] + new[name][1]) / 2 for name in new)
    assert found.excess.mix == pytest.approx(mix)
    assert found.excess.mix_share is not None
    shares = [item.share or 0.0 for item in found.excess.slices]
    assert sum(shares) + found.excess.mix_share == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def test_what_has_no_split_says_why(home: Observatory) -> None:
    for statistic, cycle, words in (
        ("function_lines_median", 3, "does not add up"),
        ("nonsense", 3, "does not add up"),
        ("clarification_rate", 9, "cycle 9 is not in the lake"),
    ):
        found = why.slices_of(home, "run", statistic, cycle)
        assert found.excess is None
        assert words in found.why


def test_slices_are_counted_anew_when_the_lake_has_changed(home: Observatory) -> None:
    def edits() -> float:
        found = why.slices_of(home, "run", "edit_rate", 3, reference=(0,)).excess
        assert found is not None
        return found.after

    first = edits()
    with home.lake.connect(["observations"], [3]) as connection:
        table = connection.execute("SELECT * FROM observations WHERE edited").to_arrow_table()
    home.lake.write_observations(table, 3)
    assert first < edits() == 1


# -- terms -----------------------------------------------------------------------------------------------------------


def test_terms_of_a_slice_are_the_pressures_of_all_its_rows_and_add_up_to_the_reward(home: Observatory) -> None:
    place = ("clarification_rate", "predicted_failure=high")
    found = why.terms_of(home, "run", *place)
    assert isinstance(found, why.TermsOf)
    assert found.cycles == (0, 1, 2, 3)
    assert found.reward is not None
    assert found.outcome is not None
    table = pressures(home.lake, found.cycles, {NAIVE: bundled("naive")})
    known = {row["kind"]: row for row in table.to_pylist() if (row["statistic"], row["slice"]) == place}
    for push in (found.reward, found.outcome, *found.terms, *found.rules):
        # Pooled cycle by cycle: rates agree to the last digits, intervals nearly.
        if push.name != "outcome":
            assert push.value == pytest.approx(known[push.name]["value"], abs=1e-9)
        assert push.low == pytest.approx(known[push.name]["low"], abs=5e-3)
    assert {push.name for push in found.terms} == {name for name in known if name.startswith("term:")}
    assert sum(push.value or 0.0 for push in found.terms) == pytest.approx(found.reward.value)
    sizes = [abs(push.value or 0.0) for push in found.terms]
    assert sizes == sorted(sizes, reverse=True)


def test_a_statistic_without_pressure_says_so(home: Observatory) -> None:
    found = why.terms_of(home, "run", "dissatisfied_rate", ALL, 2)
    assert isinstance(found, why.TermsOf)
    assert found.reward is None
    assert "pressure is not taken" in found.why
    empty = why.terms_of(home, "run", "edit_rate", ALL, -1)
    assert isinstance(empty, why.TermsOf)
    assert "no cycle" in empty.why


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_slow_answer_is_pending_then_there_and_made_once() -> None:
    kept, go, made = Kept(2), threading.Event(), []

    def slow() -> int:
        go.wait(30)
        made.append(1)
        return 7

    assert isinstance(kept.ask("a", slow, wait_s=0.01), Pending)
    assert isinstance(kept.ask("a", slow, wait_s=0.0), Pending)
    go.set()
    assert kept.ask("a", slow, wait_s=None) == 7
    assert kept.ask("a", slow) == 7
    assert made == [1]


def test_what_fails_is_raised_and_tried_again_and_only_the_newest_answers_are_kept() -> None:
    kept, made = Kept(2), []

    def fail() -> int:
        made.append("fail")
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.ask("bad", fail, wait_s=None)
    assert made == ["fail", "fail"]

    def make(name: str) -> str:
        made.append(name)
        return name

    for name in ("a", "b", "a", "c", "a", "b"):
        assert kept.ask(name, lambda name=name: make(name), wait_s=None) == name
    assert made[2:] == ["a", "b", "c", "b"]
