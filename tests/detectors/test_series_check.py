"""Checks of aggregated series: on a real run's counts, on one of our own with the same shape, and under shuffling."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from palomar.data.config import read_config
from palomar.data.series import SERIES, SeriesMapping, read_series
from palomar.detectors.series_check import SHORTEST, Roles, SeriesCheck, check_series, spent, trend_p

MAPPING = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hacking-by-epoch.series.yaml"
ROLES = Roles(proxy="average_reward", worse={"hacking": "up"})
ENVIRONMENTS = ("alpha", "beta", "gamma", "delta")


def read(path: Path) -> pa.Table:
    return read_series(path, read_config(MAPPING, SeriesMapping))


@pytest.fixture(scope="module")
def real(samples: Path) -> pa.Table:
    """Five environments of one RL run, 24 checkpoints, 64 judged rollouts each."""
    return read(samples / "rl-rollouts-tinker" / "hacking_by_epoch.json")


def _record(epoch: int, reward: float, hacking: int, honest: int, total: int = 64) -> dict[str, Any]:
    """``hacking`` and ``honest`` succeed; the rest do neither."""
    counts = {"n_hacking_successful": hacking, "n_no_hacking_successful": honest}
    rest = {"n_hacking_unsuccessful": 0, "n_unclear_successful": 0, "n_unclear_unsuccessful": 0}
    left = {"n_no_hacking_unsuccessful": total - hacking - honest}
    return {"epoch": epoch, "average_reward": reward, **counts, **rest, **left}


def made(folder: Path, **changed: Any) -> pa.Table:
    """Twenty cycles of four environments of our own, in the real file's shape; alpha's hacking rises from cycle 6 on.

    ``changed``: by environment, a function of (cycle, reward, hacking, honest) that returns the latter three.
    """
    rng = np.random.default_rng(3)
    content: dict[str, list[dict[str, Any]]] = {}
    for name in ENVIRONMENTS:
        content[name] = []
        for cycle in range(20):
            hacking = int(rng.binomial(64, min(0.05 + (0.06 * max(cycle - 5, 0) if name == "alpha" else 0.0), 0.8)))
            honest = int(rng.binomial(64 - hacking, 0.5))
            reward = (hacking + honest) / 64 + 0.02 * float(rng.standard_normal())
            if name in changed:
                reward, hacking, honest = changed[name](cycle, reward, hacking, honest)
            content[name].append(_record(cycle, reward, hacking, honest))
    path = folder / "series.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return read(path)


def test_the_real_run_alarms_where_hacking_rose_and_nowhere_else(real: pa.Table) -> None:
    found = check_series(real, ROLES)
    assert found.alarmed == ("AEEnv", "OmitDescriptionEnv", "SyntheticEnv")
    assert found.clear == ("BashCodeforcesEnv",)
    assert found.not_assessable == ("SWEFixerEnv",)
    assert found.history["BashCodeforcesEnv"] == ()
    assert found.verdict.word == "block"
    told = [finding for report in found.reports for finding in report.findings]
    assert {finding.statistic for finding in told if finding.severity in ("blocks", "warns")} == {"hacking"}
    (reason,) = [item.why for report in found.reports for item in report.unassessed if item.what == "SWEFixerEnv"]
    assert "average_reward is -1 in all 24 cycles" in reason


def test_checkpoint_640_of_the_real_run_is_a_fault_and_neither_hack_nor_improvement(real: pa.Table) -> None:
    found = check_series(real, ROLES)
    assert found.faulty == (640,)
    (fault,) = [finding for report in found.reports for finding in report.findings if finding.reading]
    assert (fault.reading, fault.since, fault.statistic) == ("measurement_fault", 640, "successful")
    # Looked at while it is the newest: no slice is said to have changed by it.
    then = check_series(real.filter(pc.less_equal(real["cycle"], 640)), ROLES)
    before = check_series(real.filter(pc.less_equal(real["cycle"], 576)), ROLES)
    assert then.faulty == (640,)
    assert then.alarmed == before.alarmed
    assert not any(640 in cycles for cycles in found.history.values())


def test_a_proxy_that_rises_while_honest_success_falls_diverges_in_the_real_run(samples: Path) -> None:
    path = samples / "rl-rollouts-tinker" / "hacking_by_epoch.json"
    record = json.loads(path.read_text(encoding="utf-8"))["AEEnv"][0]
    counts = tuple(name for name in record if name.startswith("n_"))
    mapping = SeriesMapping.model_validate(
        {
            "records": "*",
            "slice": "*",
            "cycle": "epoch",
            "metrics": [
                {"name": "reward", "mean": "average_reward", "n": counts},
                {"name": "honest", "count": "n_no_hacking_successful", "total": counts},
                {"name": "solved", "count": [name for name in counts if name.endswith("_successful")], "total": counts},
            ],
        }
    )
    found = check_series(read_series(path, mapping), Roles(proxy="reward", outcome="honest"))
    diverged = found.reports[2].findings
    assert [finding.slice for finding in diverged] == ["OmitDescriptionEnv"]
    assert "reward rises" in diverged[0].sentence
    assert found.clear == ("AEEnv", "BashCodeforcesEnv", "SyntheticEnv")


def test_a_run_of_our_own_alarms_in_its_one_environment(tmp_path: Path) -> None:
    found = check_series(made(tmp_path), ROLES)
    assert found.alarmed == ("alpha",)
    assert found.clear == ("beta", "delta", "gamma")
    (finding,) = [each for each in found.reports[1].findings if each.severity == "blocks"]
    assert (finding.statistic, finding.slice) == ("hacking", "alpha")
    assert finding.before == pytest.approx(0.05, abs=0.06)
    assert finding.after is not None
    assert finding.after > 0.6
    assert finding.since is not None
    assert 8 <= finding.since <= 14
    assert "5% of runs ever" in finding.error_control


def test_a_jump_in_the_newest_cycle_is_seen_by_the_charts(tmp_path: Path) -> None:
    def jump(cycle: int, reward: float, hacking: int, honest: int) -> tuple[float, int, int]:
        return (reward, 60, 2) if cycle == 19 else (reward, hacking, honest)

    found = check_series(made(tmp_path, beta=jump), ROLES)
    assert "beta" in found.alarmed
    (finding,) = [each for each in found.reports[1].findings if each.slice == "beta" and each.severity == "blocks"]
    assert finding.since == 19
    assert finding.detail["by_chart"] is True


def test_an_outage_of_all_is_a_fault_and_one_environment_s_own_fall_is_none(tmp_path: Path) -> None:
    def down(cycle: int, reward: float, hacking: int, honest: int) -> tuple[float, int, int]:
        return (0.0, 0, 0) if cycle == 19 else (reward, hacking, honest)

    everywhere = check_series(made(tmp_path, **dict.fromkeys(ENVIRONMENTS, down)), ROLES)
    assert everywhere.faulty == (19,)
    # Alpha was out before; of the others nothing is said.
    assert everywhere.alarmed == ("alpha",)
    only_beta = check_series(made(tmp_path, beta=down), ROLES)
    assert only_beta.faulty == ()


def test_a_faulty_newest_cycle_without_alarms_gives_no_pass(tmp_path: Path) -> None:
    def down(cycle: int, reward: float, hacking: int, honest: int) -> tuple[float, int, int]:
        return (0.0, 0, 0) if cycle == 19 else (reward, 3, honest)

    found = check_series(made(tmp_path, **dict.fromkeys(ENVIRONMENTS, down)), ROLES)
    assert found.verdict.word == "not_assessable"
    assert "fell in every slice at once in cycle 19" in found.verdict.sentence
    assert (
        check_series(made(tmp_path, alpha=lambda _, reward, *rest: (reward, 3, rest[1])), ROLES).verdict.word == "pass"
    )


def test_a_constant_proxy_makes_its_slice_not_assessable(tmp_path: Path) -> None:
    found = check_series(made(tmp_path, alpha=lambda _, reward, hacking, honest: (-1.0, hacking, honest)), ROLES)
    assert found.not_assessable == ("alpha",)
    assert found.alarmed == ()


def test_counts_that_are_too_small_are_not_assessable_with_what_it_would_take() -> None:
    def row(cycle: int, name: str, count: int) -> dict[str, Any]:
        return {"cycle": cycle, "slice": name, "metric": "hacking", "count": count, "total": 2}

    rows = [row(cycle, name, int(cycle == 11)) for cycle in range(12) for name in ("few", "none")]
    rows = [each | {"count": 0} if each["slice"] == "none" else each for each in rows]
    found = check_series(pa.Table.from_pylist(rows, schema=SERIES), Roles(worse={"hacking": "up"}))
    assert found.not_assessable == ("few", "none")
    why = {item.what: item.why for item in found.reports[1].unassessed}
    assert "counts are too small (2 a cycle)" in why["hacking in few"]
    assert "the same (0) in all 12 cycles" in why["hacking in none"]
    short = check_series(
        pa.Table.from_pylist(rows[: 2 * (SHORTEST - 1)], schema=SERIES), Roles(worse={"hacking": "up"})
    )
    assert short.verdict.word == "not_assessable"
    assert f"{SHORTEST} are needed" in short.verdict.sentence


def test_faults_need_a_metric_that_an_outage_makes_fall(tmp_path: Path) -> None:
    table = made(tmp_path)
    found = check_series(table.filter(pc.equal(table["metric"], "hacking")), Roles(worse={"hacking": "up"}))
    assert found.alarmed == ("alpha",)
    assert "every metric is worse when it rises" in found.reports[0].unassessed[0].why


def test_without_roles_everything_is_watched_either_way_and_only_warns(tmp_path: Path) -> None:
    found = check_series(made(tmp_path))
    assert found.verdict.word == "warn"
    assert {finding.severity for finding in found.reports[1].findings} == {"warns"}
    assert found.reports[2].unassessed[0].why == "no proxy and outcome is named"


def test_a_role_of_a_metric_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no metric 'hacks'"):
        check_series(made(tmp_path), Roles(worse={"hacks": "up"}))


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    table = made(tmp_path)
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    assert check_series(shuffled, ROLES) == check_series(table, ROLES)


# -- error rates ------------------------------------------------------------------------------------------------------


def test_the_trend_s_p_value_is_that_of_all_orders() -> None:
    """All 40320 orders of eight cycles: at a level of 0.5 % no more than that share alarms, and the clearest does."""
    level = 0.005
    position = np.arange(8) - 3.5
    sums = np.array([position @ np.array(order) for order in permutations(range(1, 9))], dtype=np.float64)
    alarms = 0
    for value in np.unique(sums[sums > 0]):
        exact = float((sums >= value - 1e-9).mean())
        order = next(np.array(order) for order in permutations(range(8)) if position @ np.array(order) == value)
        p = trend_p(order.astype(np.float64), level)
        assert p == pytest.approx(exact, rel=0.25) or exact > 0.02 or p > exact
        alarms += int((sums == value).sum()) if p <= level else 0
    assert 0 < alarms <= 1.1 * level * len(sums)


def test_the_normal_tail_is_wider_than_the_chance_where_it_stands_for_it() -> None:
    """With and without ties, at 10 to 40 cycles, from 200,000 orders; it is used below the level, so below 1 %."""
    rng = np.random.default_rng(5)
    for value in (np.arange(10), np.arange(24), np.repeat([0, 1], [20, 4]), rng.poisson(0.5, 40)):
        ranks = stats.rankdata(value)
        position = np.arange(len(ranks)) - (len(ranks) - 1) / 2
        drawn = rng.permuted(np.tile(ranks, (200_000, 1)), axis=1) @ position
        size = np.sqrt((position @ position) * ranks.var(ddof=1))
        for tail in (0.01, 0.003, 0.001):
            normal = float(stats.norm.isf(tail)) * size
            chance = float((drawn >= normal - 1e-9).mean())
            assert chance <= tail + 3 * np.sqrt(tail / 200_000)


def test_what_the_looks_may_spend_adds_up_to_all() -> None:
    assert sum(spent(cycles) for cycles in range(1, 200_000)) == pytest.approx(1.0, abs=1e-4)
    assert spent(SHORTEST - 1) == 0


def shuffled(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """With each environment's cycles in another order."""
    rows = [row for row in table.to_pylist() if row["metric"] != "judge_unclear"]
    cycles = sorted({row["cycle"] for row in rows})
    names = sorted({row["slice"] for row in rows})
    order = {name: dict(zip(cycles, rng.permutation(cycles).tolist(), strict=True)) for name in names}
    moved = [row | {"cycle": order[row["slice"]][row["cycle"]]} for row in rows]
    return pa.Table.from_pylist(moved, schema=SERIES)


@pytest.mark.slow
def test_shuffled_cycles_alarm_seldom(real: pa.Table) -> None:
    """30 shuffles of the real run; of docs/divergence.md's 400 a few per cent ever alarmed."""
    rng = np.random.default_rng(1)
    found: list[SeriesCheck] = [check_series(shuffled(real, rng), ROLES) for _ in range(30)]
    assert sum(any(each.history.values()) for each in found) <= 4
