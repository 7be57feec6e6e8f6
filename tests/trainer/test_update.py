from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from palomar.data.errors import StaleDataError
from palomar.data.schema import Interaction
from palomar.trainer.batch import TrainingBatch, build_batch, sampled_in
from palomar.trainer.config import AdvantageConfig, UpdateConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.update import SAMPLES, update

PROMPTS = ["go left please", "stay", "up up down please go", "right"] * 16
Serve = Callable[..., list[Interaction]]
Score = Callable[..., pa.Table]


def says_left(interaction: Interaction) -> float:
    return float("left" in (interaction.steps[-1].text or "").split())


@pytest.fixture
def batch(policy: Policy, serve: Serve, score: Score) -> TrainingBatch:
    interactions = serve(policy, PROMPTS)
    return build_batch(sampled_in(interactions), score(interactions, says_left), 0, AdvantageConfig())


def clone(policy: Policy) -> Policy:
    return replace(policy, model=copy.deepcopy(policy.model))


def weights(policy: Policy) -> dict[str, Any]:
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_rewarded_word_becomes_likelier_and_a_punished_one_rarer(policy: Policy, serve: Serve, score: Score) -> None:
    def share(word_policy: Policy) -> float:
        answers = word_policy.respond(PROMPTS * 8, 9)
        return sum("left" in answer.text.split() for answer in answers) / len(answers)

    before = share(policy)
    for sign in (1.0, -1.0):
        trained = clone(policy)
        state: dict[str, Any] = {}
        for cycle in range(3):
            interactions = serve(trained, PROMPTS * 4, seed=cycle, cycle=cycle)
            table = score(interactions, lambda interaction, sign=sign: sign * says_left(interaction))
            batch = build_batch(sampled_in(interactions), table, cycle, AdvantageConfig())
            result = update(trained, None, batch, UpdateConfig(), seed=cycle, optimizer_state=state)
            assert result.report.status == "updated"
            state = result.optimizer_state
        assert (share(trained) - before) * sign > 0.1


def test_equal_inputs_and_seed_give_equal_weights_and_another_seed_others(policy: Policy, batch: TrainingBatch) -> None:
    outcomes = []
    for seed in (1, 1, 2):
        trained = clone(policy)
        update(trained, None, batch, UpdateConfig(), seed=seed)
        outcomes.append(weights(trained))
    assert same(outcomes[0], outcomes[1])
    assert not same(outcomes[0], outcomes[2])


def test_one_step_on_the_sampler_follows_the_score_function_gradient(policy: Policy, batch: TrainingBatch) -> None:
    # On-policy the ratio is 1, so that the gradient is that of - sum_i A_i log pi(y_i) / tokens (REINFORCE).
    reference = clone(policy)
    tokens, loss = 0, torch.zeros(())
    for sample in batch.trained:
        logp = torch.log_softmax(reference.model(input_ids=torch.tensor([sample.ids])).logits[0], dim=-1)
        for place, logprob in enumerate(sample.logprobs):
            if logprob is not None:
                loss = loss - sample.advantage * logp[place - 1, sample.ids[place]]
                tokens += 1
    (loss / tokens).backward()
    expected = float(torch.nn.utils.clip_grad_norm_(reference.model.parameters(), 1e9))
    result = update(clone(policy), None, batch, UpdateConfig(steps=1), seed=0)
    assert result.report.gradient_norm == pytest.approx(expected, rel=1e-4)
    assert result.report.tokens == tokens
    assert result.report.steps == 1


def test_accumulating_over_micro_batches_is_the_same_as_one_large_batch(policy: Policy, batch: TrainingBatch) -> None:
    norms = [
        update(clone(policy), None, batch, UpdateConfig(steps=1, micro_batch=size), seed=0).report.gradient_norm
        for size in (3, 64)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_the_clip_takes_the_gradient_of_tokens_that_moved_too_far(policy: Policy, batch: TrainingBatch) -> None:
    # As if the sampler had been less sure by 1 nat a token: every ratio is e, beyond 1.2.
    moved = replace(
        batch,
        samples=tuple(
            replace(sample, logprobs=tuple(None if value is None else value - 1.0 for value in sample.logprobs))
            for sample in batch.samples
        ),
    )
    result = update(clone(policy), None, moved, UpdateConfig(steps=1), seed=0)
    rows = result.samples.to_pylist()
    assert {row["clipped"] for row in rows if row["advantage"] > 0} == {1.0}
    assert {row["clipped"] for row in rows if row["advantage"] < 0} == {0.0}
    assert [row["ratio"] for row in rows] == pytest.approx([math.e] * len(rows), rel=1e-3)
    # Where all of them are better than average there is nothing left to learn from.
    praised = replace(moved, samples=tuple(replace(sample, advantage=1.0) for sample in moved.samples))
    report = update(clone(policy), None, praised, UpdateConfig(steps=1), seed=0).report
    assert (report.gradient_norm, report.clip_share) == (0.0, 1.0)
    # k3 of a token: e - 1 - 1.
    expected = [row["tokens"] * (math.e - 2) for row in rows]
    assert [row["kl_sampler"] for row in rows] == pytest.approx(expected, rel=1e-3)


def test_kl_to_the_base_holds_the_policy_back(policy: Policy, batch: TrainingBatch) -> None:
    base = clone(policy)
    distances = []
    for coefficient in (0.0, 10.0):
        trained = clone(policy)
        state: dict[str, Any] = {}
        for step in range(3):
            result = update(
                trained, base, batch, UpdateConfig(kl_coefficient=coefficient), seed=step, optimizer_state=state
            )
            state = result.optimizer_state
        distances.append(result.report.kl_base)
    assert distances[0] is not None
    assert distances[1] is not None
    assert 0 <= distances[1] < distances[0] / 3
    with pytest.raises(ValueError, match="no base policy"):
        update(clone(policy), None, batch, UpdateConfig(kl_coefficient=1.0), seed=0)


def test_kl_of_a_policy_to_itself_is_zero_and_not_measured_is_none(policy: Policy, batch: TrainingBatch) -> None:
    tiny = UpdateConfig(learning_rate=1e-9)
    report = update(clone(policy), policy, batch, tiny, seed=0).report
    assert report.kl_base == pytest.approx(0.0, abs=1e-5)
    assert report.kl_sampler == pytest.approx(0.0, abs=1e-5)
    assert update(clone(policy), None, batch, tiny, seed=0).report.kl_base is None


def test_the_entropy_coefficient_keeps_the_policy_more_random(policy: Policy, serve: Serve, score: Score) -> None:
    entropies = []
    for coefficient in (0.0, 3.0):
        trained = clone(policy)
        state: dict[str, Any] = {}
        for cycle in range(4):
            interactions = serve(trained, PROMPTS, seed=cycle, cycle=cycle)
            batch = build_batch(sampled_in(interactions), score(interactions, says_left), cycle, AdvantageConfig())
            config = UpdateConfig(entropy_coefficient=coefficient)
            result = update(trained, None, batch, config, seed=cycle, optimizer_state=state)
            state = result.optimizer_state
        entropies.append(result.report.entropy)
    assert entropies[1] > entropies[0] + 0.02  # type: ignore[operator]


def test_adams_state_goes_on_in_the_next_cycle(policy: Policy, batch: TrainingBatch) -> None:
    once = clone(policy)
    first = update(once, None, batch, UpdateConfig(), seed=0)
    kept, fresh = clone(once), clone(once)
    second = update(kept, None, batch, UpdateConfig(), seed=1, optimizer_state=first.optimizer_state)
    update(fresh, None, batch, UpdateConfig(), seed=1)
    assert not same(weights(kept), weights(fresh))
    steps = {float(value) for name, value in second.optimizer_state.items() if name.endswith("/step")}
    assert steps == {8.0}


def test_every_sample_offered_is_recorded_with_what_was_used_or_why_not(
    policy: Policy, serve: Serve, score: Score
) -> None:
    old = serve(policy, PROMPTS[:8], seed=1, cycle=1)
    older = serve(policy, PROMPTS[:8], seed=2, cycle=0)
    new = serve(policy, PROMPTS[:32], seed=3, cycle=2)
    everything = [*older, *old, *new]
    waiting = new[0].interaction_id
    table = score(everything, lambda one: None if one.interaction_id == waiting else says_left(one))
    batch = build_batch(sampled_in(everything), table, 2, AdvantageConfig(max_lag=1))
    result = update(clone(policy), policy, batch, UpdateConfig(), seed=0)
    assert result.samples.schema == SAMPLES
    rows = {row["interaction_id"]: row for row in result.samples.to_pylist()}
    assert len(rows) == len(everything)
    assert {rows[one.interaction_id]["reason"] for one in older} == {"stale"}
    assert {rows[one.interaction_id]["policy_lag"] for one in old} == {1}
    assert rows[waiting]["reason"] == "reward_waiting"
    for row in rows.values():
        assert row["trained"] == (row["reason"] is None) == (row["weight"] == 1.0) == (row["step"] is not None)
        assert (row["advantage"] is None) == (not row["trained"])
        assert row["tokens"] > 0
    report = result.report
    assert report.offered == 48
    assert report.trained == 39
    assert report.not_trained == {"reward_waiting": 1, "stale": 8}
    assert report.policy_lag == {0: 31, 1: 8}
    trained = [row for row in rows.values() if row["trained"]]
    assert report.reward_mean == pytest.approx(sum(row["reward"] for row in trained) / len(trained))
    assert {row["step"] for row in trained} == {0, 1, 2, 3}


def test_the_reward_of_stale_data_is_not_in_the_baseline(policy: Policy, serve: Serve, score: Score) -> None:
    older, new = serve(policy, PROMPTS[:8], cycle=0), serve(policy, PROMPTS, cycle=2)
    table = score([*older, *new], lambda one: 1000.0 if one.cycle == 0 else says_left(one))
    batch = build_batch(sampled_in([*older, *new]), table, 2, AdvantageConfig(scale=False))
    assert batch.trained[0].baseline == pytest.approx(sum(map(says_left, new)) / len(new))


def test_data_older_than_the_lag_is_refused_even_if_a_batch_holds_it(policy: Policy, batch: TrainingBatch) -> None:
    for lag in (2, -1, None):
        old = replace(batch, samples=(replace(batch.samples[0], policy_lag=lag), *batch.samples[1:]))
        before = weights(policy)
        with pytest.raises(StaleDataError, match="at most 1 cycles back"):
            update(policy, None, old, UpdateConfig(), seed=0)
        assert same(before, weights(policy))


@pytest.mark.parametrize("status", ["empty", "all_excluded", "no_spread"])
def test_a_batch_with_nothing_to_learn_from_changes_nothing_and_says_why(
    policy: Policy, serve: Serve, score: Score, status: str
) -> None:
    interactions = [] if status == "empty" else serve(policy, PROMPTS)
    table = score(interactions, lambda _: None if status == "all_excluded" else 1.0)
    batch = build_batch(sampled_in(interactions), table, 0, AdvantageConfig())
    before = weights(policy)
    result = update(policy, policy, batch, UpdateConfig(), seed=0, optimizer_state={})
    assert result.report.status == status
    assert same(before, weights(policy))
    assert result.report.kl_sampler is None
    assert result.samples.num_rows == len(interactions)
    assert not any(result.samples["trained"].to_pylist())
    assert sum(result.report.not_trained.values()) == len(interactions)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(policy: Policy, batch: TrainingBatch) -> None:
    damaged = replace(batch, samples=(replace(batch.samples[0], advantage=math.inf), *batch.samples[1:]))
    before = weights(policy)
    result = update(policy, None, damaged, UpdateConfig(), seed=0)
    assert result.report.status == "not_finite"
    assert same(before, weights(policy))
    assert not any(result.samples["trained"].to_pylist())


def test_tokens_that_the_policy_did_not_sample_are_context_and_never_trained_on(
    policy: Policy, serve: Serve, score: Score
) -> None:
    (one,) = serve(policy, ["go left"])
    tool = one.steps[0].model_copy(update={"author": "tool", "role": "tool"})
    again = one.model_copy(update={"steps": (*one.steps, tool, one.steps[1])})
    sample = build_batch(sampled_in([again]), score([again], says_left), 0, AdvantageConfig()).samples[0]
    answer = len(one.steps[1].token_ids or ())
    assert [value is not None for value in sample.logprobs] == [False] * 2 + [True] * answer + [False] * 2 + [
        True
    ] * answer


def test_an_interaction_without_logprobs_prompt_or_cycle_is_named(policy: Policy, serve: Serve, score: Score) -> None:
    one, two, three = serve(policy, ["go left", "stay", "up"])
    bare = one.model_copy(update={"steps": tuple(s.model_copy(update={"logprobs": None}) for s in one.steps)})
    promptless = two.model_copy(update={"steps": two.steps[1:]})
    foreign = three.model_copy(update={"cycle": None})
    interactions = [bare, promptless, foreign]
    batch = build_batch(sampled_in(interactions), score(interactions, says_left), 0, AdvantageConfig())
    assert [sample.reason for sample in batch.samples] == ["no_logprobs", "no_prompt_tokens", "unknown_policy"]
    assert batch.status == "all_excluded"
