"""What can be written in a spec stands in docs/reward.md, and nothing else does."""

import re
from pathlib import Path

import pytest

from palomar.reward.conditions import CONDITIONS
from palomar.reward.spec import InclusionRule, Outcome, RewardSpec, TermSpec, When, parse_spec
from palomar.reward.term import STATUSES, TERMS

DOCS = (Path(__file__).parents[2] / "docs" / "reward.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return DOCS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> set[str]:
    """The words in code type in the first cell of each row of the tables."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_key_is_documented_and_no_other() -> None:
    models = (RewardSpec, TermSpec, When, InclusionRule, Outcome)
    keys = {key for model in models for key in model.model_fields}
    assert first_cells(section("Keys")) == keys


def test_every_term_is_documented_and_no_other() -> None:
    assert first_cells(section("Terms")) == set(TERMS)


@pytest.mark.parametrize("kind", sorted(TERMS))
def test_every_parameter_is_documented_with_its_default(kind) -> None:
    rows = [line.split("|")[1:5] for line in section("Terms").split("| kind | parameter |")[1].splitlines()[2:]]
    documented: dict[str, str] = {}
    owners: list[str] = []
    for row in (row for row in rows if len(row) == 4):
        owners = re.findall(r"`([^`]+)`", row[0]) or owners
        if kind in owners:
            names, defaults = re.findall(r"`([^`]+)`", row[1]), row[2].replace("`", "").split(",")
            documented |= dict(zip(names, (default.strip() for default in defaults), strict=True))
    words = {None: "none"}
    fields = TERMS[kind].Params.model_fields
    expected = {
        name: "all five"
        if name == "kinds"
        else f"{field.default:g}"
        if isinstance(field.default, float)
        else field.default
        for name, field in fields.items()
    }
    assert documented == {name: words.get(default, default) for name, default in expected.items()}


def test_every_condition_is_documented_and_no_other() -> None:
    assert first_cells(section("Conditions")) == set(CONDITIONS)


def test_every_status_is_documented() -> None:
    assert first_cells(section("Statuses")) == set(STATUSES)


def test_the_example_is_a_spec() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert [term.kind for term in parse_spec(example).terms] == ["edit_persistence", "latency", "clarification"]
