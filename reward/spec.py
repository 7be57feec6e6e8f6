"""The reward spec: what is paid, what is trained on, and what referees. Written in YAML, immutable, known by its hash.

    name: example
    terms:                       # reward = sum of weight x term
      - name: edit_persistence   # names the term's columns; also its kind, unless `kind` says otherwise
        weight: 1.0
        params: { horizon_minutes: 90, kept: 1.0, reverted: -1.5 }
    inclusion:                   # who is trained on; the first rule that holds names the reason
      - { name: cut_off, condition: truncated, action: drop }
    outcome:                     # the referee: never trained on
      terms:
        - { name: edit_persistence, weight: 1.0, params: { horizon_minutes: 1440, kept: 1.0, reverted: 0.0 } }

The grammar key by key is in docs/reward.md. Nothing in a spec is evaluated: terms and conditions are names from closed
registries.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

import palomar.reward.terms  # noqa: F401  (registers the terms)
from palomar.data.config import KeyPath, parse_yaml, validated
from palomar.data.errors import ConfigError
from palomar.data.schema import content_id
from palomar.reward.conditions import CONDITIONS
from palomar.reward.term import TERMS, NoParams, Number, SpecPart

REWARD_INVALID = "reward_invalid"
"""Reason of samples excluded because their reward is invalid; no rule may take this name."""

MAX_SPEC_CHARACTERS = 200_000

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
Words = Annotated[tuple[str, ...], Field(min_length=1)]


class Range(SpecPart):
    """A half-open range, so that two terms meeting at a value do not both apply to it: min <= value < max."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("needs min, max or both")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"min {self.min:g} must lie below max {self.max:g}")
        return self


class When(SpecPart):
    """To which interactions a term or rule applies: all that is named must hold."""

    organisation: Words | None = None
    work_kind: Words | None = None
    language: Words | None = None
    ambiguity: Range | None = None
    predicted_failure: Range | None = None


class TermSpec(SpecPart):
    """One term of a reward or an outcome."""

    name: Name
    """Names the columns ``term:<name>`` and ``status:<name>``."""
    kind: str
    """A registered term; the same as ``name`` where not given."""
    weight: Number
    """What the term's value is multiplied by. 0: measured and kept, but neither paid nor needed."""
    bounds: tuple[Number | None, Number | None] | None = None
    """The term's value is clipped to [lowest, highest] before it is weighted; null = open at that end."""
    when: When | None = None
    params: Annotated[SerializeAsAny[SpecPart], Field(validate_default=True)] = NoParams()

    @model_validator(mode="before")
    @classmethod
    def _kind_is_name(cls, value: Any) -> Any:
        if isinstance(value, dict) and "kind" not in value and "name" in value:
            return {**value, "kind": value["name"]}
        return value

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return _known(kind, TERMS, "term")

    @field_validator("bounds")
    @classmethod
    def _ordered(cls, bounds: tuple[float | None, float | None] | None) -> tuple[float | None, float | None] | None:
        if bounds is not None:
            low, high = bounds
            if low is not None and high is not None and low >= high:
                raise ValueError(f"the lower bound {low:g} must lie below the upper bound {high:g}")
        return bounds

    @field_validator("params", mode="before")
    @classmethod
    def _params_of_kind(cls, value: Any, info: ValidationInfo) -> SpecPart:
        kind = info.data.get("kind")
        if kind is None:  # which was refused already
            return NoParams()
        model: type[SpecPart] = TERMS[kind].Params
        if isinstance(value, SpecPart):
            value = value.model_dump()
        return model.model_validate(value)


class InclusionRule(SpecPart):
    """One reason for which a sample is not trained on."""

    name: Name
    """The reason, as the ledger and ``exclusion`` say it."""
    condition: str
    """A registered condition."""
    action: Literal["drop"] = "drop"
    when: When | None = None

    @field_validator("condition")
    @classmethod
    def _known_condition(cls, condition: str) -> str:
        return _known(condition, CONDITIONS, "condition")

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == REWARD_INVALID:
            raise ValueError(f"{REWARD_INVALID!r} is the reason of samples without a valid reward; take another name")
        return name


class Outcome(SpecPart):
    """What users got: the referee of the reward. Credited over the conversation, and never trained on."""

    terms: tuple[TermSpec, ...]


class RewardSpec(SpecPart):
    """A whole reward: terms, inclusion rules, and the outcome it is judged by."""

    name: Name
    description: str = ""
    terms: tuple[TermSpec, ...]
    nothing_applies: Number | None = None
    """Reward where no term applies. Null: the reward is invalid there, since doing nothing is not worth 0 by nature."""
    inclusion: tuple[InclusionRule, ...] = ()
    outcome: Outcome | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for path, problem in _conflicts(self):
            raise PydanticCustomError("conflict", "{problem}", {"path": path, "problem": problem})
        return self


def _conflicts(spec: RewardSpec) -> Iterator[tuple[KeyPath, str]]:
    """What the parts say against each other: the key path, and what is wrong there."""
    outcome_terms = spec.outcome.terms if spec.outcome is not None else ()
    if not spec.terms:
        yield ("terms",), "needs at least one term"
    if spec.outcome is not None and not outcome_terms:
        yield ("outcome", "terms"), "needs at least one term"
    names: list[tuple[KeyPath, list[str]]] = [
        (("terms",), [term.name for term in spec.terms]),
        (("inclusion",), [rule.name for rule in spec.inclusion]),
        (("outcome", "terms"), [term.name for term in outcome_terms]),
    ]
    for at, listed in names:
        for index, name in enumerate(listed):
            if name in listed[:index]:
                yield (*at, index, "name"), f"the name {name!r} is there twice"
    paid = {(term.kind, term.params, term.when) for term in spec.terms if term.weight != 0}
    for index, term in enumerate(outcome_terms):
        if (term.kind, term.params, term.when) in paid:
            yield (
                ("outcome", "terms", index),
                f"{term.kind!r} is trained on with the same params, so it cannot referee; take a later horizon",
            )


def parse_spec(text: str, *, source: str = "spec") -> RewardSpec:
    """A spec from YAML text; `source` is what errors call it. Raises ConfigError with line and key."""
    if len(text) > MAX_SPEC_CHARACTERS:
        raise ConfigError(source, None, None, f"{len(text):,} characters; at most {MAX_SPEC_CHARACTERS:,} are read")
    value, lines = parse_yaml(text, source=source)
    if not isinstance(value, dict):
        raise ConfigError(source, None, None, "expected a mapping with the keys name and terms")
    # A term's params have a model of their own; checked here first, their errors keep their line.
    for at, params, model in _params_in(value):
        validated(params, model, lines, source=source, at=at)
    return validated(value, RewardSpec, lines, source=source)


def _params_in(value: dict[str, Any]) -> Iterator[tuple[KeyPath, Any, type[SpecPart]]]:
    """Key path, value and model of the params of each term of a known kind, as far as the shape is right."""
    outcome = value.get("outcome")
    for at, terms in ((("terms",), value.get("terms")), (("outcome", "terms"), _get(outcome, "terms"))):
        for index, term in enumerate(terms if isinstance(terms, list) else ()):
            params, kind = _get(term, "params"), _get(term, "kind") or _get(term, "name")
            if params is not None and isinstance(kind, str) and kind in TERMS:
                yield (*at, index, "params"), params, TERMS[kind].Params


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _known(word: str, registry: Iterable[str], what: str) -> str:
    names = sorted(registry)
    if word in names:
        return word
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"no {what} is called that; {hint}there are: {', '.join(names)}")


def read_spec(path: Path) -> RewardSpec:
    """The spec in a file. Raises ConfigError with file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), None, None, f"cannot be read: {exc}") from exc
    return parse_spec(text, source=str(path))


def bundled(name: str) -> RewardSpec:
    """A spec that comes with Palomar (``naive``, ``sound``, ...). Raises ConfigError naming those there are."""
    return parse_spec(bundled_text(name), source=f"{name}.yaml")


def bundled_text(name: str) -> str:
    """The YAML of a spec that comes with Palomar, comments and all. Raises ConfigError naming those there are."""
    folder = Path(__file__).parent / "specs"
    if name not in (known := sorted(path.stem for path in folder.glob("*.yaml"))):
        raise ConfigError(name, None, None, f"no such spec comes with Palomar; there are: {', '.join(known)}")
    return (folder / f"{name}.yaml").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def version(spec: RewardSpec) -> str:
    """Content hash, 20 hex digits. Layout, comments and the order of keys and terms do not change it; any value does.

    Values left at their default count as written, so that a spec says the same when a default changes later.
    """
    content = spec.model_dump(mode="json", exclude_none=True)
    for part in (content, content.get("outcome", {})):
        if "terms" in part:
            part["terms"] = sorted(part["terms"], key=lambda term: str(term["name"]))
    return content_id("reward-spec/1", json.dumps(content, sort_keys=True, allow_nan=False))


def to_yaml(spec: RewardSpec) -> str:
    """The spec as YAML that `parse_spec` reads back to an equal spec; comments are not kept."""
    content = spec.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
