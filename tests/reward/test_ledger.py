"""No sample disappears: what was collected is trained on, excluded, quarantined or waiting, in every stratum."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.errors import LedgerError
from palomar.data.slices import ALL
from palomar.reward.ledger import STRATA, UNKNOWN, Ledger, ledger

COLLECTED = pa.schema([("interaction_id", pa.string()), ("predicted_failure", pa.float64())])
OBSERVED = pa.schema([*COLLECTED, ("reward_status", pa.string()), ("included", pa.bool_()), ("exclusion", pa.string())])
SAMPLES = pa.schema(
    [
        ("interaction_id", pa.string()), ("cycle", pa.int32()), ("sampled_cycle", pa.int32()),
        ("trained", pa.bool_()), ("reason", pa.string()),
    ]
)  # fmt: skip

VALID = {"reward_status": "valid", "included": True, "exclusion": None}
WAITS = {"reward_status": "waiting", "included": None, "exclusion": None}
DROPPED = {"reward_status": "valid", "included": False, "exclusion": "broken"}


def collected(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=COLLECTED)


def observed(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=OBSERVED)


def offered(*rows: tuple[str, int, bool, str | None]) -> pa.Table:
    """(interaction, cycle that was offered it, trained, reason); all collected in cycle 3."""
    keys = ("interaction_id", "cycle", "trained", "reason")
    return pa.Table.from_pylist(
        [dict(zip(keys, row, strict=True)) | {"sampled_cycle": 3} for row in rows], schema=SAMPLES
    )


def sample(name: str, failure: float | None = 0.5) -> dict[str, Any]:
    return {"interaction_id": name, "predicted_failure": failure}


def taken(observations: pa.Table, samples: pa.Table, **more: Any) -> Ledger:
    return ledger(3, observations.select(COLLECTED.names), observations, samples, more.pop("quarantined", {}), **more)


def parts(book: Ledger, stratum: str = ALL) -> dict[str, int]:
    return {
        f"{row.place}:{row.reason}" if row.reason else row.place: row.count
        for row in book.rows
        if row.stratum == stratum
    }


def test_every_place_is_counted_by_reason() -> None:
    rows = observed(
        sample("trained") | VALID, sample("stale") | VALID, sample("waits") | WAITS, sample("dropped") | DROPPED
    )
    samples = offered(
        ("trained", 3, True, None), ("stale", 3, False, "stale"), ("waits", 3, False, "reward_waiting"),
        ("dropped", 3, False, "broken"),
    )  # fmt: skip
    book = taken(rows, samples, quarantined={"damaged": 2}, received=6)
    book.check()
    assert parts(book) == {
        "collected": 6, "trained": 1, "excluded:stale": 1, "excluded:broken": 1, "waiting": 1, "quarantined:damaged": 2,
    }  # fmt: skip


def test_strata_hold_their_lower_edge_and_what_is_not_known_has_its_own() -> None:
    rows = observed(*(sample(f"s{i}", f) | VALID for i, f in enumerate([0.0, 0.2, 0.19, 0.8, 1.0, None])))
    samples = offered(*((f"s{i}", 3, True, None) for i in range(6)))
    book = taken(rows, samples, quarantined={"schema": 1})
    book.check()
    assert {stratum: parts(book, stratum).get("collected", 0) for stratum in STRATA} == {
        "predicted failure 0-0.2": 2, "predicted failure 0.2-0.4": 1, "predicted failure 0.4-0.6": 0,
        "predicted failure 0.6-0.8": 0, "predicted failure 0.8-1": 2, UNKNOWN: 2,
    }  # fmt: skip


# A sample that waits belongs to the cycle that collected it --------------------------------------------------------


def test_a_sample_that_waited_moves_from_waiting_to_trained_in_its_own_ledger() -> None:
    before = taken(observed(sample("late") | WAITS), offered(("late", 3, False, "reward_waiting")))
    after = taken(
        observed(sample("late") | VALID), offered(("late", 3, False, "reward_waiting"), ("late", 4, True, None))
    )
    assert (parts(before), parts(after)) == ({"collected": 1, "waiting": 1}, {"collected": 1, "trained": 1})
    after.check()


def test_a_sample_of_another_cycle_is_not_in_this_ledger() -> None:
    samples = pa.Table.from_pylist(
        [{"interaction_id": "old", "cycle": 3, "sampled_cycle": 2, "trained": True}], schema=SAMPLES
    )
    book = taken(observed(sample("new") | WAITS), samples)
    book.check()
    assert parts(book) == {"collected": 1, "waiting": 1}


def test_a_sample_that_waited_too_long_is_excluded_as_stale() -> None:
    samples = offered(("late", 5, False, "stale"), ("late", 3, False, "reward_waiting"))
    assert parts(taken(observed(sample("late") | VALID), samples)) == {"collected": 1, "excluded:stale": 1}


def test_a_sample_whose_feedback_came_but_that_was_not_offered_again_still_waits() -> None:
    book = taken(observed(sample("late") | VALID), offered(("late", 3, False, "reward_waiting")))
    assert parts(book) == {"collected": 1, "waiting": 1}


def test_what_the_trainer_did_outlasts_a_later_scoring() -> None:
    book = taken(observed(sample("once") | DROPPED), offered(("once", 3, True, None)))
    assert parts(book) == {"collected": 1, "trained": 1}


def test_a_sample_dropped_without_a_word_is_shown_as_that() -> None:
    assert parts(taken(observed(sample("a") | VALID), offered(("a", 3, False, None)))) == {
        "collected": 1, "excluded:no_reason": 1,
    }  # fmt: skip


# What does not add up ---------------------------------------------------------------------------------------------


def test_an_included_sample_that_the_trainer_never_saw_stops_the_cycle() -> None:
    book = taken(observed(sample("a", 0.7) | VALID, sample("lost", 0.7) | VALID), offered(("a", 3, True, None)))
    with pytest.raises(LedgerError) as caught:
        book.check()
    assert str(caught.value) == ("cycle 3, predicted failure 0.6-0.8: 2 samples were collected, but trained 1 = 1")


def test_an_interaction_without_an_observation_stops_the_cycle() -> None:
    book = ledger(3, collected(sample("a"), sample("lost")), observed(sample("a") | WAITS), offered(), {})
    with pytest.raises(LedgerError, match="2 samples were collected, but waiting 1 = 1"):
        book.check()


def test_a_sample_trained_on_twice_stops_the_cycle() -> None:
    with pytest.raises(LedgerError, match="1 samples were collected, but trained 2 = 2"):
        taken(observed(sample("a") | VALID), offered(("a", 3, True, None), ("a", 4, True, None))).check()


def test_a_sample_that_was_never_collected_stops_the_cycle() -> None:
    with pytest.raises(LedgerError, match="not known: 0 samples were collected, but trained 1 = 1"):
        taken(observed(), offered(("ghost", 3, True, None))).check()


def test_two_mistakes_in_different_strata_do_not_cancel() -> None:
    rows = observed(sample("a", 0.1) | VALID, sample("b", 0.9) | VALID)
    book = taken(rows, offered(("a", 3, True, None), ("a", 4, True, None)))
    assert sum(count for place, count in parts(book).items() if place != "collected") == 2
    with pytest.raises(LedgerError, match=r"failure 0-0.2"):
        book.check()


def test_a_record_that_the_source_handed_over_and_nobody_has_stops_the_cycle() -> None:
    book = taken(observed(sample("a") | WAITS), offered(), quarantined={"damaged": 1}, received=3)
    with pytest.raises(LedgerError, match=r"all: 3 samples were collected, but waiting 1 . quarantined:damaged 1 = 2"):
        book.check()


def test_an_empty_cycle_adds_up() -> None:
    book = taken(observed(), offered())
    book.check()
    assert book.rows == ()


# Laws -------------------------------------------------------------------------------------------------------------

failures = st.one_of(st.none(), st.floats(0, 1))
fates = st.sampled_from(
    ["trained", "trained later", "stale", "barred", "waits", "waits unseen", "dropped", "unseen drop"]
)
PLACE_OF = {
    "trained": "trained", "trained later": "trained", "stale": "excluded:stale", "barred": "excluded:no_logprobs",
    "waits": "waiting", "waits unseen": "waiting", "dropped": "excluded:broken", "unseen drop": "excluded:broken",
}  # fmt: skip


def history(population: list[tuple[float | None, str]]) -> tuple[pa.Table, pa.Table]:
    rows, samples = [], []
    for index, (failure, fate) in enumerate(population):
        name = f"s{index}"
        state = WAITS if "waits" in fate else DROPPED if "drop" in fate else VALID
        rows.append(sample(name, failure) | state)
        if fate == "trained":
            samples.append((name, 3, True, None))
        if fate in ("trained later", "waits", "stale"):
            samples.append((name, 3, False, "reward_waiting"))
        if fate == "trained later":
            samples.append((name, 4, True, None))
        if fate == "stale":
            samples.append((name, 5, False, "stale"))
        if fate == "barred":
            samples.append((name, 3, False, "no_logprobs"))
        if fate == "dropped":
            samples.append((name, 3, False, "broken"))
    return observed(*rows), offered(*samples)


@given(st.lists(st.tuples(failures, fates), max_size=40), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_history_adds_up_and_is_counted_as_by_hand(population, damaged) -> None:
    rows, samples = history(population)
    book = taken(rows, samples, quarantined={"damaged": damaged}, received=len(population) + damaged)
    book.check()
    expected = Counter(PLACE_OF[fate] for _, fate in population) + Counter({"quarantined:damaged": damaged})
    expected["collected"] = len(population) + damaged
    assert parts(book) == {place: count for place, count in expected.items() if count}
    for place, count in parts(book).items():
        assert sum(parts(book, stratum).get(place, 0) for stratum in STRATA) == count


@given(st.lists(st.tuples(failures, fates), min_size=1, max_size=20), st.data())
@settings(max_examples=100, deadline=None)
def test_losing_any_one_observation_is_noticed(population, data) -> None:
    rows, samples = history(population)
    lost = data.draw(st.integers(0, len(population) - 1))
    keep = pa.array([index != lost for index in range(len(population))])
    gone = rows["interaction_id"][lost].as_py()
    others = samples.filter(pa.array([name != gone for name in samples["interaction_id"].to_pylist()], pa.bool_()))
    with pytest.raises(LedgerError):
        ledger(3, rows.select(COLLECTED.names), rows.filter(keep), others, {}).check()


@given(st.lists(st.tuples(failures, fates), max_size=20), st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_of_rows_changes_nothing(population, rng) -> None:
    rows, samples = history(population)

    def shuffled(table: pa.Table) -> pa.Table:
        order = list(range(table.num_rows))
        rng.shuffle(order)
        return table.take(pa.array(order, pa.int64()))

    assert parts(taken(shuffled(rows), shuffled(samples))) == parts(taken(rows, samples))
