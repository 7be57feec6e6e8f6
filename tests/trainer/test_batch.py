"""What was sampled is the same whether it is read from records or, without transcripts, from the lake."""

from __future__ import annotations

from pathlib import Path

from palomar.data.lake import Lake
from palomar.data.schema import Interaction, Step
from palomar.trainer.batch import Sampled, sampled_from, sampled_in


def interaction(name: str, *steps: Step) -> Interaction:
    return Interaction(interaction_id=name, source="s", origin="o", checkpoint="c", cycle=2, steps=steps)


PROMPT = Step(author="person", role="user", text="fix it", token_ids=(5, 6))
ANSWER = Step(author="agent", role="assistant", text="done", token_ids=(7, 8), logprobs=(-0.5, -1.5))
SILENT = Step(author="tool", role="tool", text="nobody sampled this")

TWO_TURNS = interaction("two-turns", PROMPT, SILENT, ANSWER, PROMPT, ANSWER)
NO_TOKENS = interaction("no-tokens", SILENT)


def test_tokens_of_all_steps_come_in_order_and_only_sampled_ones_have_a_log_probability() -> None:
    assert sampled_in([TWO_TURNS]) == [
        Sampled(
            "two-turns",
            "c",
            2,
            (5, 6, 7, 8, 5, 6, 7, 8),
            (None, None, -0.5, -1.5, None, None, -0.5, -1.5),
        )
    ]
    assert sampled_in([NO_TOKENS]) == [Sampled("no-tokens", "c", 2, (), ())]


def test_the_lake_gives_the_same_for_the_ids_that_are_asked_for(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append_interactions([TWO_TURNS, NO_TOKENS, interaction("other", ANSWER)], 2)
    found = sampled_from(lake, ["two-turns", "no-tokens"], [2])
    assert sorted(found, key=lambda item: item.interaction_id) == sampled_in([NO_TOKENS, TWO_TURNS])
    assert sampled_from(lake, ["two-turns"], [1]) == []
