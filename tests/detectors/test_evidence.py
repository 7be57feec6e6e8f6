"""Which interactions are shown for a rise or fall: small lakes, of which the answer can be worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.errors import LakeError
from palomar.data.findings import Evidence
from palomar.data.lake import Lake
from palomar.data.slices import ALL, SLICES
from palomar.detectors.checks._examples import rows, samples
from palomar.detectors.evidence import evidence
from palomar.detectors.statistics import STATISTICS, Statistic

HARD = {"predicted_failure": "high"}


def lake_of(folder: Path, table: pa.Table, sampled: pa.Table | None = None) -> Lake:
    lake = Lake(folder)
    lake.write_observations(table, 0)
    if sampled is not None:
        lake.append_samples(sampled, 0)
    return lake


def named(found: tuple[str, ...]) -> list[int]:
    """Positions of rows by their ids."""
    return [int(name.removeprefix("c0-")) for name in found]


def seen(
    lake: Lake,
    statistic: str = "clarification_rate",
    direction: Literal[1, -1] = 1,
    bands: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Evidence:
    return evidence(lake, 0, STATISTICS[statistic], bands or {}, direction, seed=seed)


ASKED = [True, True, True, True, False, False, False, False]
REWARD = [0.1, 0.9, -0.5, 0.4, 0.2, 1.0, -1.0, 0.3]


# --- what carries an effect


def test_rise_of_a_rate_is_carried_by_rows_that_show_it_the_best_paid_first(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 8, asked=ASKED, reward=REWARD))
    assert named(seen(lake, direction=1).carrying) == [1, 3, 0, 2]
    assert named(seen(lake, direction=-1).carrying) == [5, 7, 4, 6]


def test_at_most_five_are_shown(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 8, asked=True, reward=REWARD))
    found = seen(lake)
    assert named(found.carrying) == [5, 1, 3, 7, 4]
    assert len(found.random) == 2
    assert found.counter == ()
    assert seen(lake, direction=-1).carrying == ()  # nobody did not ask


def test_sample_that_a_rule_dropped_counts_as_paid_nothing(tmp_path: Path) -> None:
    """The dodge: mean reward of the included is 0, so what was dropped fares better than the two below it."""
    broken = [1, 1, 1, 0, 0, 0]
    table = rows(
        0, 6, invalid_malformed=broken, agent_turns=1, reward=[-2.0, -2.2, -0.2, 0.8, 0.8, 0.8],
        included=[False, True, True, True, True, True], exclusion=["invalid_call"] + [None] * 5,
    )  # fmt: skip
    assert named(seen(lake_of(tmp_path, table), "invalid_call_rate").carrying) == [0, 2, 1]


def test_logged_advantages_are_taken_before_rewards(tmp_path: Path) -> None:
    table = rows(0, 8, asked=ASKED, reward=REWARD, included=[True, True, True, False] + [True] * 4)
    logged = samples(table, 0, advantage=[0.5, -1.0, 2.0, None, 0.0, -3.0, 0.0, 0.0])
    assert named(seen(lake_of(tmp_path, table, logged)).carrying) == [2, 0, 3, 1]


def test_weight_counts_with_the_advantage(tmp_path: Path) -> None:
    table = rows(0, 8, asked=ASKED, reward=REWARD)
    logged = samples(table, 0, advantage=[1.0, 2.0, 3.0, 4.0] + [0.0] * 4, weight=[5.0, 2.0, 1.0, 0.5] + [1.0] * 4)
    assert named(seen(lake_of(tmp_path, table, logged)).carrying) == [0, 1, 2, 3]


def test_sample_that_waits_for_its_reward_comes_last(tmp_path: Path) -> None:
    table = rows(0, 8, asked=ASKED, reward=REWARD)
    waits = [False, True, False, False] + [False] * 4
    logged = samples(
        table, 0, advantage=[-0.5, None, -2.0, -1.0] + [0.0] * 4, trained=[not each for each in waits],
        reason=["reward_waiting" if each else None for each in waits],
    )  # fmt: skip
    assert named(seen(lake_of(tmp_path, table, logged)).carrying) == [0, 3, 2, 1]


def test_cycle_that_was_only_watched_goes_by_its_rewards(tmp_path: Path) -> None:
    table = rows(0, 8, asked=ASKED, reward=REWARD)
    watched = samples(table, 0, advantage=None, weight=0.0, trained=False, reason="baseline")
    assert named(seen(lake_of(tmp_path, table, watched)).carrying) == [1, 3, 0, 2]


def test_rise_of_a_mean_is_carried_by_part_times_pay(tmp_path: Path) -> None:
    """Mean 20, mean reward 0. Parts -10, -10, 0, 0, 10, 10, 20, -20 times pay:"""
    tokens = [10, 10, 20, 20, 30, 30, 40, 0]
    reward = [2.0, -0.8, 1.0, -1.2, 1.5, -2.5, 0.5, -0.5]
    lake = lake_of(tmp_path, rows(0, 8, tokens_out=tokens, reward=reward))
    # 4: 15, 6: 10; 5 was paid less than nothing. Row 2 lies at the mean and has no part.
    assert named(seen(lake, "tokens_out_mean").carrying) == [4, 6, 5]
    # 0: 20; of the others 7 was paid better (-0.5 against -0.8), though its part is twice as large.
    assert named(seen(lake, "tokens_out_mean", -1).carrying) == [0, 7, 1]


def test_part_in_a_ratio_weighs_by_its_denominator(tmp_path: Path) -> None:
    """40 lines over 8 functions: R = 5. Parts x - 5 y: 5, 5, -10, 0, null; equally paid, so the largest first."""
    table = rows(0, 5, function_lines_after=[10, 20, 0, 10, None], functions_after=[1, 3, 2, 2, 2], reward=1.0)
    lake = lake_of(tmp_path, table)
    assert sorted(named(seen(lake, "function_lines_mean").carrying)) == [0, 1]
    assert named(seen(lake, "function_lines_mean", -1).carrying) == [2]
    assert set(named(seen(lake, "function_lines_mean").random)) <= {0, 1, 2, 3}
    paid_unlike = table.set_column(table.column_names.index("reward"), "reward", pa.array([1.0, 2.0, 0.0, 0.0, 9.0]))
    assert named(seen(lake_of(tmp_path / "paid", paid_unlike), "function_lines_mean").carrying) == [1, 0]


def test_without_rewards_the_largest_part_comes_first(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 5, tokens_out=[1, 5, 50, 9, 35], reward=None, reward_status=None))
    assert named(seen(lake, "tokens_out_mean").carrying) == [2, 4]


def test_where_all_rows_are_alike_none_carries_a_mean(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 7, latency_s=0.1))
    for direction in (1, -1):
        assert seen(lake, "latency_mean", direction).carrying == ()


def test_quantile_goes_by_the_side_that_a_row_lies_on(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 5, latency_s=[1.0, 2.0, 3.0, 4.0, 90.0], reward=[5.0, 4.0, 0.0, 2.0, 0.1]))
    # Median 3, mean reward 2.22; 3 and 4 were paid less than that, 3 the least so.
    assert named(seen(lake, "latency_p50").carrying) == [3, 4]
    assert named(seen(lake, "latency_p50", -1).carrying) == [0, 1]


def test_fall_of_persistence_is_carried_by_edits_that_were_lost_in_time(tmp_path: Path) -> None:
    """Horizon 90 min = 5,400 s: row 2 was lost later, row 3 was not watched for so long."""
    table = rows(
        0, 5, edited=True, edit_lost_s=[60.0, 5400.0, 9000.0, None, None], watched_s=[1e6, 1e6, 1e6, 60.0, 1e6],
        reward=[0.0, 1.0, 2.0, 3.0, 1.0],
    )  # fmt: skip
    lake = lake_of(tmp_path, table)
    assert named(seen(lake, "edit_persistence_90m", -1).carrying) == [1, 0]
    assert named(seen(lake, "edit_persistence_90m", 1).carrying) == [2, 4]


def test_carrying_rows_are_the_top_of_a_plain_count(tmp_path: Path) -> None:
    """Against NumPy, on 400 rows with samples of which 40 were dropped."""
    dropped = np.arange(400) % 10 == 0
    exclusion = pa.array(np.where(dropped, "rule", ""), mask=~dropped)
    table = rows(0, 400, included=~dropped, exclusion=exclusion)
    logged = samples(table, 0)
    lake = lake_of(tmp_path, table, logged)
    advantage = np.nan_to_num(logged["advantage"].to_numpy())
    x, y = table["invalid_malformed"].to_numpy(), table["agent_turns"].to_numpy()
    for statistic, part in (
        ("invalid_call_rate", x - x.sum() / y.sum() * y),
        ("tokens_out_mean", table["tokens_out"].to_numpy() - table["tokens_out"].to_numpy().mean()),
    ):
        for direction in (1, -1):
            side = np.flatnonzero(direction * part > 0)
            share = np.maximum(direction * part * advantage, 0)[side]
            # By share of the pressure, then by pay: of the broken calls nearly all were paid below the mean.
            top = side[np.lexsort((-advantage[side], -share))][:5].tolist()
            assert named(seen(lake, statistic, direction).carrying) == top


# --- where


def test_only_rows_of_the_slice_are_shown(tmp_path: Path) -> None:
    hard = [0.6, 0.59, 0.9, 0.2, None, 0.7, 0.8, 0.1]
    lake = lake_of(tmp_path, rows(0, 8, asked=ASKED, reward=REWARD, predicted_failure=hard, outcome=1.0))
    found = seen(lake, bands=HARD)
    assert named(found.carrying) == [0, 2]
    assert set(named(found.random)) <= {0, 2, 5, 6}
    assert named(found.counter)[0] in {5, 6}
    assert named(seen(lake, bands={"predicted_failure": "mid"}).carrying) == [1]
    assert named(seen(lake, bands={"predicted_failure": "low"}).carrying) == [3]
    assert named(seen(lake, direction=-1, bands={"predicted_failure": "unknown"}).carrying) == [4]


def test_slices_meet_and_may_be_of_any_dimension(tmp_path: Path) -> None:
    table = rows(
        0, 8, asked=ASKED, reward=REWARD, organisation=["a'b", "a'b", "c", None] * 2, predicted_failure=[0.9, 0.1] * 4
    )
    lake = lake_of(tmp_path, table)
    assert named(seen(lake, bands={"organisation": "a'b"}).carrying) == [1, 0]
    assert named(seen(lake, bands={"organisation": "a'b", **HARD}).carrying) == [0]
    assert named(seen(lake, bands={"organisation": "unknown"}).carrying) == [3]
    with pytest.raises(ValueError, match="no slices by 'user_id'"):
        seen(lake, bands={"user_id": "u1"})
    with pytest.raises(ValueError, match="has no band 'extreme'; it has low, mid, high"):
        seen(lake, bands={"predicted_failure": "extreme"})


def test_rows_that_the_statistic_is_not_about_are_not_shown(tmp_path: Path) -> None:
    vague = [0.9] * 4 + [0.1] * 4
    lake = lake_of(tmp_path, rows(0, 8, asked=[True, None] * 4, reward=REWARD, ambiguity=vague))
    found = seen(lake, "clarification_rate_clear")
    assert named(found.carrying) == [4, 6]
    assert set(named(found.random)) == {4, 6}


def test_nothing_is_shown_of_nothing(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 8, predicted_failure=0.1, edited=False))
    assert evidence(lake, 5, STATISTICS["clarification_rate"], {}, 1, seed=0) == Evidence()
    assert evidence(Lake(tmp_path / "new"), None, STATISTICS["clarification_rate"], {}, 1, seed=0) == Evidence()
    assert seen(lake, bands=HARD) == Evidence()
    assert seen(lake, "functions_per_edit") == Evidence()  # nobody edited


def test_ratio_without_a_denominator_has_no_level_and_nothing_carries_it(tmp_path: Path) -> None:
    found = seen(
        lake_of(tmp_path, rows(0, 4, function_lines_after=[3, 0, 1, 0], functions_after=0)), "function_lines_mean"
    )
    assert (found.carrying, found.counter, len(found.random)) == ((), (), 2)


def test_column_that_the_cycle_lacks_is_named(tmp_path: Path) -> None:
    odd = Statistic("odd", "Odd", "1", "mean", '"term:gone"', "up", "Of a term that is not there.")
    with pytest.raises(LakeError, match=r"evidence on odd: .*term:gone"):
        evidence(lake_of(tmp_path, rows(0, 8)), 0, odd, {}, 1, seed=0)


# --- what is usual, and what speaks against it


def test_random_rows_are_drawn_by_seed_and_each_as_often_as_any(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 10))
    drawn = Counter(row for seed in range(400) for row in named(seen(lake, seed=seed).random))
    assert seen(lake, seed=3) == seen(lake, seed=3)
    assert all(len(set(seen(lake, seed=seed).random)) == 2 for seed in range(20))
    # 80 expected of each, with a standard deviation of 8.
    assert len(drawn) == 10
    assert all(80 - 24 <= count <= 80 + 24 for count in drawn.values()), drawn


def test_counter_example_did_the_opposite_and_its_user_fared_best(tmp_path: Path) -> None:
    outcome = [2.0, 0.0, 0.0, 1.0, 0.5, 0.9, -1.0, 3.0]
    status = ["mature"] * 7 + ["immature"]
    lake = lake_of(tmp_path, rows(0, 8, asked=ASKED, reward=REWARD, outcome=outcome, outcome_status=status))
    for seed in range(6):  # of the others above the mean, 0.49, a draw would find 4 and 3 as often
        assert named(seen(lake, direction=1, seed=seed).counter) == [5]
        assert named(seen(lake, direction=-1, seed=seed).counter) == [0]


def test_no_counter_example_where_the_others_served_users_worse(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, rows(0, 8, asked=ASKED, outcome=[0.0] * 4 + [-1.0] * 4))
    assert seen(lake, direction=1).counter == ()
    assert named(seen(lake, direction=-1).counter)[0] < 4
    alike = lake_of(tmp_path / "alike", rows(0, 8, asked=ASKED, outcome=0.1))
    assert named(seen(alike, direction=1).counter)[0] >= 4


# --- for every statistic


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Lake]:
    """The same rows and samples, in two orders."""
    table = rows(0, 400)
    logged = samples(table, 0)
    turned = np.random.default_rng(1).permutation(400)
    return (
        lake_of(tmp_path_factory.mktemp("lake"), table, logged),
        lake_of(tmp_path_factory.mktemp("turned"), table.take(turned), logged.take(turned[::-1].copy())),
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_every_statistic_has_evidence_whatever_the_order_of_rows(name: str, twice: tuple[Lake, Lake]) -> None:
    ordinary, turned = twice
    some = 0
    for bands in (SLICES[ALL], SLICES["predicted_failure=high,ambiguity=clear"]):
        for direction in (1, -1):
            found: Any = seen(ordinary, name, direction, bands)
            assert seen(turned, name, direction, bands) == found
            assert not {*found.carrying} & {*found.counter}
            assert len(found.carrying) <= 5
            some += len(found.carrying)
    nothing_varies = {
        "truncated_rate", "failed_edit_rate", "failed_call_rate", "timed_out_call_rate", "refused_call_rate",
        "function_growth", "complexity_mean", "excluded_rate", "logged_reward_mean",
        *(f"invalid_{kind}_rate" for kind in ("unparsed", "unknown_tool", "schema", "rejected")),
    }  # fmt: skip
    if name not in nothing_varies:
        assert some > 0
