"""Changing a spec's text: what stays keeps its comments, and what is read back is what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.reward.spec import RewardSpec, TermSpec, bundled_text, parse_spec, to_yaml, version
from palomar.reward.spec_text import rewritten

CLARIFICATION = TermSpec(name="clarification", kind="clarification", weight=1.0)
NAIVE = bundled_text("naive")


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def test_a_weight_is_changed_in_place() -> None:
    spec = parse_spec(NAIVE)
    terms = tuple(
        each.model_copy(update={"weight": 0.25}) if each.name == "function_size" else each for each in spec.terms
    )
    text = rewritten(NAIVE, spec.model_copy(update={"terms": terms}), why="too much")
    assert text == NAIVE.replace("weight: 0.8", "weight: 0.25")


def test_a_new_term_stands_below_the_last_with_its_reason() -> None:
    spec = parse_spec(NAIVE)
    new = spec.model_copy(update={"terms": (*spec.terms, CLARIFICATION)})
    text = rewritten(NAIVE, new, why="-", reasons={"clarification": "questions were free"})
    assert lines(NAIVE) <= lines(text)
    added = (
        "  # questions were free\n  - name: clarification\n    weight: 1.0\n    params: {clear: -1.4, ambiguous: 0.1}\n"
    )
    assert f"params: {{ reference_lines: 8 }}\n\n{added}\n  # Hole 2" in text


def test_a_rule_that_goes_leaves_a_comment() -> None:
    spec = parse_spec(NAIVE)
    text = rewritten(NAIVE, spec.model_copy(update={"inclusion": ()}), why="it was played")
    assert "inclusion: []\n  # Hole 1" in text
    assert "  # invalid_tool_call dropped samples here: it was played\n" in text
    assert "condition:" not in text


def test_of_two_rules_one_can_go() -> None:
    old = NAIVE.replace(
        "    action: drop\n", "    action: drop\n  # Too long.\n  - { name: long, condition: truncated }\n"
    )
    spec = parse_spec(old)
    text = rewritten(old, spec.model_copy(update={"inclusion": spec.inclusion[1:]}), why="it was played")
    assert [rule.name for rule in parse_spec(text).inclusion] == ["long"]
    assert "# Too long." in text


@pytest.mark.parametrize(
    "change",
    [
        {"nothing_applies": -1.0},
        {"outcome": None},
        {"description": "another one"},
        {
            "inclusion": (
                *parse_spec(NAIVE).inclusion,
                *parse_spec(NAIVE.replace("name: invalid_tool_call", "name: more")).inclusion,
            )
        },
    ],
)
def test_other_changes_are_written_out_below_the_head(change: dict[str, object]) -> None:
    new = parse_spec(NAIVE).model_copy(update=change)
    text = rewritten(NAIVE, new, why="reasons")
    assert version(parse_spec(text)) == version(new)
    assert text.startswith(NAIVE.splitlines()[0])
    assert "# Changed: reasons" in text


def test_lists_in_brackets_are_written_out() -> None:
    flow = "{ name: x, terms: [{ name: latency, weight: -1 }], inclusion: [{ name: c, condition: truncated }] }"
    spec = parse_spec(flow)
    for new in (
        spec.model_copy(update={"terms": (*spec.terms, CLARIFICATION)}),
        spec.model_copy(update={"inclusion": ()}),
    ):
        assert version(parse_spec(rewritten(flow, new, why="w"))) == version(new)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_read_back_is_always_what_was_meant(data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from(
            [*(bundled_text(name) for name in ("naive", "sound", "naive-dodge")), to_yaml(parse_spec(NAIVE))]
        )
    )
    spec = parse_spec(text)
    weight = st.floats(-1e6, 1e6).map(lambda value: value + 0.0)
    terms = [
        term.model_copy(update={"weight": data.draw(weight)})
        for term in spec.terms
        if term is spec.terms[0] or data.draw(st.booleans())
    ]
    if data.draw(st.booleans()):
        terms.append(CLARIFICATION.model_copy(update={"name": "asked_too_much", "weight": data.draw(weight)}))
    new: RewardSpec = spec.model_copy(
        update={"terms": tuple(terms), "inclusion": spec.inclusion[: data.draw(st.integers(0, 1))]}
    )
    reason = data.draw(st.text(max_size=200))
    assert version(parse_spec(rewritten(text, new, why=reason))) == version(new)
