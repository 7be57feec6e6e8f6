"""The pressure matrix against pressures that are read one by one."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.detectors.matrix import USERS, matrix
from palomar.detectors.pressure import pressures
from palomar.reward.spec import bundled, version

NAIVE = {version(bundled("naive")): bundled("naive")}


@pytest.fixture(scope="module")
def rows(lake_with_holes: Lake) -> list[dict[str, Any]]:
    table = pressures(lake_with_holes, range(4), NAIVE).to_pylist()
    return [row for row in table if row["slice"] == ALL]


def row(**more: Any) -> dict[str, Any]:
    """A pressure of 0.1 that is sure, on a statistic of spread 0.5."""
    return {
        "statistic": "edit_rate", "slice": ALL, "kind": "reward", "value": 0.1, "low": 0.06, "high": 0.14, "z": 5.0,
        "spread": 0.5, "signal_spread": 1.0, "status": "ok", "verdict": "along_up", "needed_n": None, "clusters": 300,
        "rows": 1_000, "n": 900, "level": 0.4, **more,
    }  # fmt: skip


AGAINST = {"kind": "outcome", "value": -0.1, "low": -0.14, "high": -0.06, "z": -5.0, "verdict": "along_down"}
ALONG = {"kind": "outcome"}
UNKNOWN = {"kind": "outcome", "value": 0.01, "low": -0.3, "high": 0.3, "z": 0.1, "verdict": "unclear"}


def test_sizes_are_values_over_the_spread_and_terms_add_up_to_the_reward(rows: list[dict[str, Any]]) -> None:
    found = matrix(ALL, rows)
    known = {(each["statistic"], each["kind"]): each for each in rows}
    assert found.kinds[:2] == ("outcome", "reward")
    assert [kind.partition(":")[0] for kind in found.kinds[2:]] == ["term"] * 6 + ["rule"]
    added = 0
    for line in found.lines:
        for kind, cell in line.cells.items():
            at = known[line.statistic, kind]
            assert (cell.value, cell.low, cell.z) == (at["value"], at["low"], at["z"])
            if cell.size is not None:
                assert cell.size * at["spread"] == pytest.approx(at["value"])
        terms = [cell.size for kind, cell in line.cells.items() if kind.startswith("term:")]
        if line.cells["reward"].size is not None:
            added += 1
            assert sum(size or 0.0 for size in terms) == pytest.approx(line.cells["reward"].size, abs=1e-12)
    assert added > 5


def test_cells_survive_as_statsmodels_says(rows: list[dict[str, Any]]) -> None:
    found = matrix(ALL, rows)
    tested = [each for each in rows if each["z"] is not None]
    p = [2 * stats.t.sf(abs(each["z"]), each["clusters"] - 1) for each in tested]
    rejected = multipletests(p, alpha=0.05, method="fdr_bh")[0]
    expected = {(each["statistic"], each["kind"]) for each, there in zip(tested, rejected, strict=True) if there}
    assert {(line.statistic, kind) for line in found.lines for kind, cell in line.cells.items() if cell.survives} == (
        expected
    )
    assert 0 < len(expected) < len(tested) == found.tested


@pytest.mark.parametrize(
    ("outcome", "reading", "words"),
    [
        (AGAINST, "forewarning", "users' outcome is against"),
        (ALONG, "honest_learning", "goes along"),
        (UNKNOWN, "not_assessable", "too few rows to say what users want"),
        ({"kind": "outcome", "low": None, "high": None, "z": None, "status": "too few"}, "not_assessable", "not known"),
    ],
)
def test_a_line_without_drift_says_what_its_push_means(outcome: dict[str, Any], reading: str, words: str) -> None:
    (line,) = matrix(ALL, [row(), row(**outcome)]).lines
    assert (line.reading, line.drifted, line.direction) == (reading, False, 1)
    assert words in line.why


def test_what_the_reward_is_shown_not_to_push_and_what_is_not_known_are_told_apart() -> None:
    (none,) = matrix(ALL, [row(value=0.0, low=-0.001, high=0.001, z=0.0, verdict="none"), row(**ALONG)]).lines
    assert (none.reading, none.direction) == (None, None)
    assert "shown not to push" in none.why
    (wide,) = matrix(ALL, [row(value=0.0, low=-0.4, high=0.4, z=0.0, verdict="unclear"), row(**ALONG)]).lines
    assert (wide.reading, wide.direction) == (None, None)
    assert "too few rows" in wide.why


def test_what_the_check_read_stands_where_it_found_a_drift_in_the_same_slice() -> None:
    def found(**more: Any) -> Finding:
        said: dict[str, Any] = {"statistic": "edit_rate", "slice": ALL, "reading": "outside_change", **more}
        return Finding(said.pop("detector", "behaviour"), "warns", "it moved", **said)

    given = [row(), row(**AGAINST)]
    (line,) = matrix(ALL, given, [found()]).lines
    assert (line.reading, line.drifted, line.why) == ("outside_change", True, "it moved")
    others = [found(slice="ambiguity=clear"), found(reading="forewarning"), found(detector="drift"),
              found(statistic="other")]  # fmt: skip
    (line,) = matrix(ALL, given, others).lines
    assert (line.reading, line.drifted) == ("forewarning", False)


def test_lines_come_by_what_they_mean_and_users_outcome_first() -> None:
    rows = [
        *(row(statistic="good", z=9.0), row(statistic="good", **ALONG)),
        *(row(statistic="bad"), row(statistic="bad", **AGAINST)),
        row(statistic=USERS, value=-0.1, low=-0.2, high=-0.05, z=-4.0, verdict="along_down"),
    ]
    found = matrix(ALL, rows)
    assert [line.statistic for line in found.lines] == [USERS, "bad", "good"]
    assert (found.lines[0].reading, found.lines[0].why) == ("forewarning", "the reward pushes users' outcome down")
