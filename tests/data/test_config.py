"""A config that says something wrong is refused with the line and the key."""

import pytest
from pydantic import BaseModel, ConfigDict, PositiveInt

from palomar.data.config import parse_config, parse_yaml, read_config
from palomar.data.errors import ConfigError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    weight: float
    horizon: PositiveInt = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    terms: list[Inner] = []


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, Outer, source="spec.yaml")
    return str(caught.value)


def test_a_valid_file_becomes_the_model() -> None:
    parsed = parse_config("name: a\nterms:\n  - weight: 2\n", Outer, source="spec.yaml")
    assert parsed == Outer(name="a", terms=[Inner(weight=2.0)])


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one() -> None:
    assert refusal("name: a\nterms:\n  - weight: 1\n    horizn: 3\n") == (
        "spec.yaml:4: terms[0].horizn: unknown key; did you mean 'horizon'?"
    )


def test_a_wrong_value_is_refused_with_what_was_written() -> None:
    message = refusal("name: a\nterms:\n  - weight: 1\n  - weight: much\n")
    assert message.startswith("spec.yaml:4: terms[1].weight: ")
    assert "(got 'much')" in message


def test_a_missing_key_is_named_at_the_line_of_its_parent() -> None:
    assert refusal("name: a\nterms:\n  - horizon: 1\n") == "spec.yaml:3: terms[0].weight: is missing"


def test_a_key_given_twice_is_refused() -> None:
    assert refusal("name: a\nname: b\n") == "spec.yaml:2: name: is there twice (first in line 1)"


def test_further_problems_are_counted() -> None:
    assert refusal("nam: a\nterm: 2\n").endswith("; and 2 more problems")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: [a", "not YAML"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("name: !!python/object/apply:os.system ['true']\n", "not YAML"),
        ("x: " + "a" * 1_000_001, "at most 1,000,000"),
        ("\x00", "not YAML"),
    ],
)
def test_syntax_aliases_tags_and_size_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_yaml(text, source="spec.yaml")


def test_a_file_that_is_not_there_is_a_config_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.yaml", Outer)


def test_brackets_nested_ten_thousand_deep_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="nested more than 50 deep"):
        parse_yaml("[" * 10_000 + "]" * 10_000, source="spec.yaml")


def test_a_misspelt_key_is_named_before_the_one_that_is_missing_for_it() -> None:
    assert refusal("name: a\nterms:\n  - wieght: 1\n").startswith(
        "spec.yaml:3: terms[0].wieght: unknown key; did you mean"
    )
