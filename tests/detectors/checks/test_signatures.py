"""The rate of signatures' flags: what is found, at which chance, and what a second look costs."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.detectors.checks import signatures as checked
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks.signatures import BLOCKS, EXAMPLES, WARNS, rise, signature_rates, tally
from palomar.detectors.detector import View

SHARES = np.array([0.4, 0.3, 0.2, 0.1])
MIX = np.array([0.5, 1.0, 1.5, 2.0])


def cycles(seed: int, rate: float, apart: float, count: int, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Flagged and assessed of cycles, (count, 4), whose shares differ by a lognormal factor."""
    rng = np.random.default_rng(seed)
    factor = np.exp(apart * rng.standard_normal(count) - apart**2 / 2)
    assessed = rng.multinomial(n, SHARES, size=count).astype(float)
    share = np.clip(factor[:, None] * rate * MIX / (MIX @ SHARES), 0, 1)
    return rng.binomial(assessed.astype(int), share).astype(float), assessed


def example(name: str, folder: Path) -> View:
    return next(each for each in EXAMPLES if each.name == name).make(folder)


def test_a_rise_is_found_with_its_numbers(tmp_path: Path) -> None:
    report = signature_rates(example("twenty of sixty leave before tests fail", tmp_path))
    (finding,) = report.findings
    assert finding.statistic == "signature:early-exit"
    assert finding.severity == "blocks"
    assert (finding.before, finding.n) == (0.0, 60)
    assert finding.after == pytest.approx(20 / 60)
    assert finding.test is not None
    assert finding.test <= BLOCKS
    assert "0.0% -> 33.3%" in finding.sentence
    assert "n=60, reference 240 in 4 cycles" in finding.sentence
    assert finding.evidence.carrying == tuple(sorted(finding.evidence.carrying, key=finding.evidence.carrying.index))
    assert set(finding.evidence.carrying) <= {f"c4-{index:05d}" for index in range(20)}
    assert finding.evidence.counter[0] in {f"c4-{index:05d}" for index in range(20, 60)}
    assert len(finding.evidence.carrying) == checked.SHOWN
    assert finding.since == 4
    said = {each.what for each in report.unassessed}
    assert "leaked-answer" in said  # no calls are in these logs
    assert "smallest rises" in report.power


def test_the_exact_chance_is_that_of_the_hypergeometric() -> None:
    """One stratum, 3 flagged of 50 and none of 200 before: C(50, 3) / C(250, 3)."""
    risen = rise(np.zeros((4, 1)), np.full((4, 1), 50.0), np.array([3.0]), np.array([50.0]))
    assert risen is not None
    assert risen.p == pytest.approx(50 * 49 * 48 / (250 * 249 * 248))
    assert risen.p == pytest.approx(stats.fisher_exact([[3, 47], [0, 200]], "greater").pvalue)


def test_more_requests_of_a_kind_that_is_flagged_more_is_no_rise() -> None:
    """Shares of 5 % and 50 % as before, another mix: 7.25 % of interactions became 16.25 %."""
    before, after = np.array([380.0, 20.0]), np.array([300.0, 100.0])
    hits = np.tile(before * [0.05, 0.5], (8, 1))
    risen = rise(hits, np.tile(before, (8, 1)), after * [0.05, 0.5], after)
    assert risen is not None
    assert risen.before == pytest.approx(0.1625)
    assert risen.after == pytest.approx(0.1625)
    assert risen.p > 0.4


def test_kinds_that_the_reference_lacks_are_left_out() -> None:
    n0 = np.tile([100.0, 0.0], (4, 1))
    risen = rise(np.tile([10.0, 0.0], (4, 1)), n0, np.array([10.0, 90.0]), np.array([100.0, 100.0]))
    assert risen is not None
    assert (risen.n, risen.after) == (100, 0.1)
    assert rise(n0[:2] * 0, n0[:2], np.array([1.0, 0.0]), np.array([10.0, 0.0])) is None


def test_a_small_rise_needs_the_size_that_it_says() -> None:
    hits0, n0 = cycles(3, 0.1, 0.0, 8)
    plain = rise(hits0, n0, hits0[0], n0[0])
    assert plain is not None
    needed = (plain.before + plain.smallest(0.001)) * plain.n
    for count, found in ((np.ceil(needed) + 1, True), (np.floor(needed) - 1, False)):
        own = np.round(n0[0] * count / n0[0].sum())
        own[0] += count - own.sum()
        risen = rise(hits0, n0, own, n0[0])
        assert risen is not None
        assert (risen.p <= 0.001) == found


@pytest.mark.parametrize(("rate", "apart"), [(0.06, 0.0), (0.15, 0.1), (0.01, 0.5)])
def test_unchanged_cycles_are_out_no_more_often_than_said(rate: float, apart: float) -> None:
    """400 looks at a level of 5 %: at most 34 by chance (binomial, 99.9 %)."""
    out = 0
    for seed in range(400):
        hits, assessed = cycles(seed, rate, apart, 9)
        risen = rise(hits[:-1], assessed[:-1], hits[-1], assessed[-1])
        out += risen is not None and risen.p <= 0.05
    assert out <= stats.binom.isf(0.001, 400, 0.05)


def test_cycles_that_differ_much_make_a_rise_harder_to_see() -> None:
    n0 = np.full((8, 1), 400.0)
    even, uneven = np.full((8, 1), 40.0), np.array([[10.0], [70.0]] * 4)
    rises = [rise(each, n0, np.array([80.0]), np.array([400.0])) for each in (even, uneven)]
    assert all(each is not None for each in rises)
    calm, wild = (each.p for each in rises if each is not None)
    assert calm < 1e-3 < wild


def test_a_second_look_runs_no_signature_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = example("twenty of sixty leave before tests fail", tmp_path)
    first = signature_rates(made)
    monkeypatch.setattr(checked, "assess", lambda item: pytest.fail("assessed again"))
    assert signature_rates(made) == first


def test_of_very_many_interactions_a_fixed_sample_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = example("one of sixty leaves", tmp_path)
    monkeypatch.setattr(checked, "SAMPLE", 25)
    read = set(tally(made, 4)["interaction_id"].to_pylist())
    assert len(read) == 25
    assert read < {f"c4-{index:05d}" for index in range(60)}
    assert signature_rates(made).assessed > 0


def test_since_is_the_first_cycle_in_a_row(tmp_path: Path) -> None:
    made = example("twenty of sixty leave before tests fail", tmp_path)
    last = made.lake.interactions([f"c4-{index:05d}" for index in range(60)])
    for cycle in (5, 6):
        items = [{"interaction_id": f"c{cycle}-{each.interaction_id}", "cycle": cycle} for each in last]
        copies = [each.model_copy(update=changed) for each, changed in zip(last, items, strict=True)]
        made.lake.append_interactions(copies, cycle)
        made.lake.write_observations(rows(cycle, 60), cycle)
    (finding,) = signature_rates(View.of(made.lake, 6, reference=range(4))).findings
    assert finding.since == 4


def test_logs_outside_a_loop_are_not_compared(tmp_path: Path) -> None:
    report = signature_rates(View.of(example("one of sixty leaves", tmp_path).lake, None))
    assert not report.assessed
    assert report.unassessed[0].why == "there is no reference to compare with"


def test_blocking_is_the_rarer_of_the_two_levels() -> None:
    assert BLOCKS < WARNS
    assert 1 - (1 - BLOCKS) ** 30 < 0.01


def test_evidence_names_the_surest_flags_first() -> None:
    scores = [0.5, 0.9, 0.7, 0.0]
    said = pa.table(
        {
            "interaction_id": ["a", "b", "c", "d"],
            "signature": ["early-exit"] * 4,
            "status": ["flagged"] * 3 + ["clear"],
            "score": scores,
        }
    )
    with duckdb.connect() as connection:
        connection.register("verdicts", said)
        found = checked._evidence(connection, "early-exit")
    assert found.carrying == ("b", "c", "a")
    assert found.counter == ("d",)
    assert len(found.random) == 2
