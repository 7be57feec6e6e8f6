"""Laws that hold for any facts and any spec, and the speed that only vectorised code reaches."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.app.bench.scoring import measure, random_facts
from palomar.data.lake import Lake
from palomar.data.observations import FACTS, OBSERVATIONS
from palomar.data.schema import Cohort, Edit, Feedback, Interaction, Step
from palomar.reward.scoring import contributions, score
from palomar.reward.spec import RewardSpec, TermSpec, bundled
from palomar.reward.term import TERMS

FACTS_500 = random_facts(500, seed=3)
weights = st.floats(-5, 5).map(lambda value: round(value, 3))


def specs(minimum: int = 1) -> st.SearchStrategy[RewardSpec]:
    kinds = st.lists(st.sampled_from(sorted(TERMS)), min_size=minimum, max_size=5, unique=True)
    terms = kinds.flatmap(
        lambda names: st.tuples(*(st.builds(TermSpec, name=st.just(n), kind=st.just(n), weight=weights) for n in names))
    )
    return st.builds(RewardSpec, name=st.just("any"), terms=terms, nothing_applies=st.one_of(st.none(), weights))


def reweighted(spec: RewardSpec, factor: float) -> RewardSpec:
    terms = tuple(term.model_copy(update={"weight": term.weight * factor}) for term in spec.terms)
    return spec.model_copy(update={"terms": terms})


def rewards(table: pa.Table) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in table["reward"].to_pylist()])


@given(specs())
@settings(max_examples=60, deadline=None)
def test_a_reward_is_there_exactly_where_it_is_valid_and_else_has_a_reason(spec) -> None:
    table = score(FACTS_500, spec)
    status, reward = table["reward_status"].to_pylist(), table["reward"].to_pylist()
    for one, value, reason, included, why in zip(
        status, reward, *(table[name].to_pylist() for name in ("reward_reason", "included", "exclusion")), strict=True
    ):
        assert (one == "valid") == (value is not None) == (reason is None)
        assert (included, why) == {
            "valid": (True, None), "waiting": (None, None), "invalid": (False, "reward_invalid"),
        }[one]  # fmt: skip


@given(specs())
@settings(max_examples=60, deadline=None)
def test_contributions_add_up_to_the_reward_wherever_a_term_applies(spec) -> None:
    table = score(FACTS_500, spec)
    paid = [term.name for term in spec.terms if term.weight != 0]
    applies = np.zeros(500, dtype=bool)
    for name in paid:
        applies |= np.array(table[f"status:{name}"].to_pylist()) != "not_applicable"
    parts = contributions(table, spec)
    total = np.sum([parts[name] for name in paid], axis=0) if paid else np.zeros(500)
    there = applies & ~np.isnan(rewards(table))
    np.testing.assert_allclose(total[there], rewards(table)[there], rtol=1e-12, atol=1e-12)


@given(specs(), st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_the_reward_is_linear_in_the_weights(spec, factor) -> None:
    spec = spec.model_copy(update={"nothing_applies": None})
    np.testing.assert_allclose(
        rewards(score(FACTS_500, reweighted(spec, factor))), factor * rewards(score(FACTS_500, spec)), rtol=1e-9
    )


@given(st.permutations(range(60)), st.integers(1, 59))
@settings(max_examples=40, deadline=None)
def test_order_and_chunks_of_rows_and_order_of_terms_change_no_bit(order, cut) -> None:
    facts, sound = FACTS_500.slice(0, 60), bundled("sound")
    turned = sound.model_copy(update={"terms": sound.terms[::-1]})
    moved = facts.take(pa.array(order))
    chunked = pa.concat_tables([moved.slice(0, cut), moved.slice(cut)])
    columns = OBSERVATIONS.names
    got = score(chunked, turned).select(columns).combine_chunks()
    wanted = score(facts, sound).select(columns).take(pa.array(order)).combine_chunks()
    reasons = ("reward_reason",)  # with several invalid terms, the first in the spec is named
    assert got.drop_columns(list(reasons)).equals(wanted.drop_columns(list(reasons)))


def test_the_outcome_is_what_a_plain_loop_gives() -> None:
    table = score(FACTS_500, bundled("sound"))
    own = score(FACTS_500.set_column(FACTS.get_field_index("conversation_id"), FACTS.field("conversation_id"),
                                     pa.nulls(500, pa.string())), bundled("sound"))  # fmt: skip
    rows, alone = table.to_pylist(), own.to_pylist()
    for row in rows:
        later = [
            alone[index]
            for index, other in enumerate(rows)
            if other["conversation_id"] == row["conversation_id"] and other["turn"] >= row["turn"]
        ]
        mature = all(one["outcome_status"] == "mature" for one in later)
        assert row["outcome"] == (pytest.approx(sum(one["outcome"] for one in later)) if mature else None)
    assert {row["outcome_status"] for row in rows} == {"mature", "immature"}


def test_facts_of_the_lake_are_scored_and_scored_again_when_more_is_known(tmp_path) -> None:
    from palomar.data.facts import facts

    end = datetime(2026, 3, 1, tzinfo=UTC)
    edit = Edit(path="a.py", form="old_new", outcome="applied", functions_before=(), functions_after=())
    interaction = Interaction(
        interaction_id="i", source="test", origin="log", cycle=0, conversation_id="c", started_at=end, ended_at=end,
        latency_s=4.0, ambiguity=0.1, cohort=Cohort(organisation="quill"), tests_passed=1, tests_run=1,
        steps=(Step(author="person", role="user"), Step(author="agent", role="assistant", edits=(edit,))),
    )  # fmt: skip
    lake = Lake(tmp_path / "lake")
    lake.append_interactions([interaction], 0)
    naive, soon, later = bundled("naive"), end + timedelta(minutes=5), end + timedelta(days=2)
    lake.write_observations(score(facts(lake, 0, soon), naive, soon), 0)
    stored = lake.scan("observations", OBSERVATIONS.names, cycles=[0])
    assert stored.select(["reward_status", "outcome_status"]).to_pylist() == [
        {"reward_status": "waiting", "outcome_status": "immature"}
    ]
    lake.append_feedback([("i", Feedback(kind="reverted", at=end + timedelta(minutes=30)))], 1)
    lake.write_observations(score(facts(lake, 0, later), naive, later), 0)
    stored = lake.scan("observations", [*OBSERVATIONS.names, "status:function_size"], cycles=[0])
    assert stored["reward"].to_pylist() == [pytest.approx(-1.5 - 0.04)]
    assert stored["outcome"].to_pylist() == [0.0]
    assert stored["status:function_size"].to_pylist() == ["not_applicable"]
    again = score(lake.scan("observations", FACTS.names, cycles=[0]), naive, later)
    assert again["reward"].to_pylist() == stored["reward"].to_pylist()


def test_scoring_runs_no_loop_over_rows() -> None:
    """A loop in Python over rows and terms stays below 20,000 rows a second."""
    _, speed = measure(quick=True)
    assert speed.value is not None
    assert speed.value > 50_000


def test_the_reward_package_loads_no_heavy_library() -> None:
    program = (
        "import sys, palomar.reward.versions, palomar.reward.scoring, palomar.reward.ledger;"
        "print([name for name in ('torch', 'transformers', 'streamlit', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
