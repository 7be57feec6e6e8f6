"""A spec says what it means, is refused with line and key where it does not, and is known by its content."""

import random
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import palomar.reward
from palomar.data.errors import ConfigError
from palomar.reward.spec import RewardSpec, TermSpec, bundled, bundled_text, parse_spec, read_spec, to_yaml, version
from palomar.reward.term import TERMS

SPECS = sorted(path.stem for path in (Path(palomar.reward.__file__).parent / "specs").glob("*.yaml"))
MINIMAL = "name: a\nterms:\n  - name: latency\n    weight: -0.01\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, source="spec.yaml")
    return str(caught.value)


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\nterms:\n  - name: latency\n    wieght: 1\n",
            "spec.yaml:4: terms[0].wieght: unknown key; did you mean 'weight'?",
        ),
        ("name: a\ntems: []\n" + MINIMAL[8:], "spec.yaml:2: tems: unknown key; did you mean 'terms'?"),
        (
            MINIMAL + "    params: {cap_seconds: 3}\n",
            "spec.yaml:5: terms[0].params.cap_seconds: unknown key; did you mean 'cap_s'?",
        ),
        (
            MINIMAL + "    params:\n      cap_s: -3\n",
            "spec.yaml:6: terms[0].params.cap_s: Input should be greater than 0 (got -3)",
        ),
        (
            MINIMAL + "    when: {ambigiuty: {min: 0}}\n",
            "spec.yaml:5: terms[0].when.ambigiuty: unknown key; did you mean 'ambiguity'?",
        ),
        (
            MINIMAL + "    when:\n      ambiguity: {min: 0.5, max: 0.5}\n",
            "spec.yaml:6: terms[0].when.ambiguity: min 0.5 must lie below max 0.5",
        ),
        (MINIMAL + "    when: {ambiguity: {}}\n", "spec.yaml:5: terms[0].when.ambiguity: needs min, max or both"),
        (
            MINIMAL + "    bounds: [1, -1]\n",
            "spec.yaml:5: terms[0].bounds: the lower bound 1 must lie below the upper bound -1",
        ),
        ("name: a\nterms:\n  - name: latency\n", "spec.yaml:3: terms[0].weight: is missing"),
        (
            "name: a\nterms:\n  - name: latency\n    weight: .nan\n",
            "spec.yaml:4: terms[0].weight: Input should be a finite number (got nan)",
        ),
        (
            "name: a\nterms:\n  - name: latency\n    weight: -.inf\n",
            "spec.yaml:4: terms[0].weight: Input should be a finite number (got -inf)",
        ),
        (
            "name: a\nterms:\n  - name: latency\n    weight: yes\n",
            "spec.yaml:4: terms[0].weight: expected a number (got True)",
        ),
        (
            "name: a\nterms:\n  - name: latency\n    weight: lots\n",
            "spec.yaml:4: terms[0].weight: Input should be a valid number",
        ),
        (
            MINIMAL + "  - name: latency\n    weight: 2\n",
            "spec.yaml:5: terms[1].name: the name 'latency' is there twice",
        ),
        (MINIMAL + "    weight: 2\n", "spec.yaml:5: terms[0].weight: is there twice (first in line 4)"),
        ("name: a\nterms: []\n", "spec.yaml:2: terms: needs at least one term"),
        ("name: a b\n" + MINIMAL[8:], "spec.yaml:1: name: String should match"),
        (MINIMAL + "outcome: {terms: []}\n", "spec.yaml:5: outcome.terms: needs at least one term"),
        (
            MINIMAL + "inclusion:\n  - {name: x, condition: trunkated}\n",
            "spec.yaml:6: inclusion[0].condition: no condition is called that; did you mean 'truncated'?",
        ),
        (
            MINIMAL + "inclusion:\n  - {name: x, condition: truncated, action: keep}\n",
            "spec.yaml:6: inclusion[0].action: Input should be 'drop' (got 'keep')",
        ),
        (
            MINIMAL + "inclusion:\n  - {name: reward_invalid, condition: truncated}\n",
            "spec.yaml:6: inclusion[0].name: 'reward_invalid' is the reason",
        ),
        (
            MINIMAL + "outcome:\n  terms:\n    - {name: latency, weight: 1}\n",
            "spec.yaml:7: outcome.terms[0]: 'latency' is trained on with the same params",
        ),
        (
            MINIMAL + "outcome: {terms: [{name: latency, weight: 1, params: {cap: 2}}]}\n",
            "spec.yaml:5: outcome.terms[0].params.cap: unknown key",
        ),
        ("- name: a\n", "spec.yaml: expected a mapping"),
        ("", "spec.yaml: expected a mapping"),
        ("terms: &x [1]\nname: *x\n", "spec.yaml:2: aliases"),
        ("name: !!python/object/apply:os.getcwd []\n", "spec.yaml:1: not YAML"),
        ("# " + "a" * 200_001, "spec.yaml: 200,003 characters"),
        ("name: " + "[" * 10_000, "spec.yaml:1: is nested more than 50 deep"),
    ],
)
def test_what_a_spec_says_wrong_is_named_with_line_and_key(text, message) -> None:
    assert refusal(text).startswith(message)


def test_an_unknown_term_is_refused_with_the_nearest_and_all_known_ones() -> None:
    message = refusal("name: a\nterms:\n  - name: latencie\n    weight: 1\n")
    assert message.startswith("spec.yaml:3: terms[0]: no term is called that; did you mean 'latency'? there are: ")
    assert all(kind in message for kind in TERMS)
    assert refusal("name: a\nterms:\n  - {name: slow, kind: latencie, weight: 1}\n").startswith(
        "spec.yaml:3: terms[0].kind"
    )


def test_a_spec_made_in_python_is_held_to_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="cap_seconds"):
        TermSpec(name="latency", kind="latency", weight=1.0, params={"cap_seconds": 3})
    with pytest.raises(ValidationError, match="there twice"):
        RewardSpec(name="a", terms=[TermSpec(name="latency", kind="latency", weight=1.0)] * 2)


def test_numbers_may_be_written_as_people_write_them() -> None:
    spec = parse_spec("name: a\nterms:\n  - {name: latency, weight: 1e-3}\n")
    assert spec.terms[0].weight == 0.001


def test_a_missing_file_and_a_missing_bundled_spec_are_config_errors(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spec(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="naive, "):
        bundled("../naive")


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_at_all_is_a_spec_or_a_config_error(text) -> None:
    with suppress(ConfigError):
        parse_spec(text)


FRAGMENTS = ("? [a]: b\n", "1: x\n", "- ", "{", "]", "null", "yes", "!!", "&a ", "*a", "<<: {a: 1}\n", "\t", "'", "| ",
             ".nan", "2026-01-01", "terms: 3\n", "outcome: x\n", "params: []", "when: 5")  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_a_damaged_spec_is_a_spec_or_a_config_error(seed) -> None:
    rng = random.Random(seed)
    text = bundled_text("naive")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(FRAGMENTS) + text[at + rng.choice((0, 0, 1, 7)) :]
    with suppress(ConfigError):
        parse_spec(text)


# Version ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_written_out_and_read_back_is_the_same(name) -> None:
    spec = bundled(name)
    again = parse_spec(to_yaml(spec))
    assert again == spec
    assert version(again) == version(spec)


def _shuffled(value, rng):
    if isinstance(value, dict):
        items = [(key, _shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(5))
def test_comments_layout_and_order_of_keys_and_terms_do_not_change_the_version(seed) -> None:
    spec = bundled("naive")
    rng = random.Random(seed)
    content = _shuffled(yaml.safe_load(to_yaml(spec)), rng)
    rng.shuffle(content["terms"])
    text = "# a comment\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=seed % 2 == 0, indent=4)
    assert version(parse_spec(text)) == version(spec)


def test_what_is_left_out_and_its_default_written_down_are_the_same_version() -> None:
    written = MINIMAL + "    kind: latency\n    params: {cap_s: 600}\nnothing_applies: null\ninclusion: []\n"
    assert version(parse_spec(written)) == version(parse_spec(MINIMAL))
    # Past the cache, which takes equal specs for one.
    assert len({version.__wrapped__(parse_spec(MINIMAL.replace("-0.01", zero))) for zero in ("0", "0.0", "-0.0")}) == 1


def _leaves(value, path=()):
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _changed(value):
    if isinstance(value, float):
        return value * 0.5 + 0.001
    return {"edit": "anything", "drop": None, "truncated": "no_edit", "invalid_tool_call": "no_edit"}.get(
        value, f"{value}x"
    )


EVERYTHING = """
name: everything
description: words
nothing_applies: 0.25
terms:
  - name: one
    kind: latency
    weight: 1.0
    bounds: [0.5, 2.0]
    when: {organisation: [quill], ambiguity: {min: 0.25, max: 0.75}}
  - {name: two, kind: dissatisfied_follow_up, weight: 1.0, params: {horizon_minutes: 10.0, only_after: edit}}
inclusion:
  - {name: cut, condition: truncated, when: {language: [python]}}
outcome:
  terms: [{name: three, kind: latency, weight: 1.0, params: {cap_s: 7.0}}]
"""


def test_every_single_value_changes_the_version() -> None:
    original = yaml.safe_load(EVERYTHING)
    seen = {version(parse_spec(EVERYTHING))}
    leaves = [(path, value) for path, value in _leaves(original) if path[-1] not in ("kind", "action")]
    assert len(leaves) == 20
    for path, value in leaves:
        changed = yaml.safe_load(EVERYTHING)
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = _changed(value)
        seen.add(version(parse_spec(yaml.safe_dump(changed))))
    assert len(seen) == len(leaves) + 1


def test_the_version_of_a_spec_does_not_change_with_the_program() -> None:
    """Recorded runs name their reward by it: whoever changes the canonical form or a default makes them strangers."""
    assert version(parse_spec(EVERYTHING)) == "7083a9d4d9de3aa96008"


def test_the_order_of_rules_matters_since_the_first_names_the_reason() -> None:
    rules = ["  - {name: a, condition: truncated}\n", "  - {name: b, condition: no_edit}\n"]
    one, other = (MINIMAL + "inclusion:\n" + "".join(order) for order in (rules, rules[::-1]))
    assert version(parse_spec(one)) != version(parse_spec(other))


# What comes with Palomar ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hole"),
    [("naive-dodge", "inclusion"), ("naive-deferral", "clarification"), ("naive-splitting", "function_size")],
)
def test_a_naive_variant_is_sound_but_for_its_one_hole(name, hole) -> None:
    variant, sound = bundled(name), bundled("sound")
    terms = {term.name: term for term in variant.terms}
    differing = {key for key in {*terms, *(t.name for t in sound.terms)} if terms.get(key) not in sound.terms}
    rules = {rule.condition for rule in variant.inclusion}
    expected = {
        "inclusion": ({"invalid_tool_call"}, {"invalid_tool_call"}),
        "clarification": ({"clarification"}, set()),
        "function_size": ({"function_size", "code_growth"}, set()),
    }
    assert (differing, rules) == expected[hole]
    assert variant.outcome == sound.outcome == bundled("naive").outcome
