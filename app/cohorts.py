"""Cohorts: interactions that share something a person chose, as a text that can be sent to somebody.

    organisation=acme|zeta; predicted_failure=0.6..1; did=asked; cycle=12..20

Clauses are joined by ``;`` and all must hold. Words are joined by ``|``, one of which must fit; ``?`` stands for "not
known". Numbers are a range ``low..high`` that holds both its ends; either may be left out. Signs that mean something
here are percent-encoded inside a word (``%3B`` for ``;``). The text is the cohort's id: equal cohorts have the same, in
the URL, on the command line and in a file, so nothing is kept that could be gone tomorrow.

What a person typed never becomes SQL: columns are looked up in the tables below, values are parameters.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory
from palomar.data.errors import PalomarError
from palomar.detectors.cohort import Comparison, Condition, Size, compare, sizes, values_of

UNKNOWN = "?"
"""Stands for "not known"; a word that is itself a question mark is written ``%3F``."""

DID = "CASE WHEN edited THEN 'edited' WHEN asked THEN 'asked' WHEN asked IS NULL THEN 'no edit' ELSE 'neither' END"
_INVALID = "invalid_malformed + invalid_unparsed + invalid_unknown_tool + invalid_schema + invalid_rejected"
WORDS: Mapping[str, str] = {
    "organisation": "organisation",
    "work_kind": "work_kind",
    "language": "language",
    "did": DID,
    "invalid_call": f"CASE WHEN {_INVALID} > 0 THEN 'yes' ELSE 'no' END",
    "follow_up": "follow_up",
    "reward_status": "reward_status",
    "exclusion": "exclusion",
    "checkpoint": "checkpoint",
    "traffic": "traffic",
}
"""What has words, as SQL over ``observations``."""
NUMBERS: Mapping[str, str] = {"predicted_failure": "predicted_failure", "ambiguity": "ambiguity"}
"""What has a range, from 0 to 1."""
CYCLE = "cycle"
LONGEST = 2_000
"""Characters of a cohort's text."""
MOST_VALUES = 200
"""Values of a column that can be chosen from; any other can be typed."""
RECENT = 5
"""Cycles that are compared where the cohort names none: the newest."""


class CohortError(PalomarError):
    """A text that describes no cohort."""


@dataclass(frozen=True)
class Cohort:
    """Interactions that fit every clause."""

    words: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """By name in `WORDS`: the words that fit; None is "not known"."""
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """By name in `NUMBERS`: lowest and highest that fit; None = no limit."""
    cycles: tuple[int | None, int | None] = (None, None)
    """First and last cycle; None = no limit. Says in which cycles figures are taken, not what the cohort is."""

    @property
    def id(self) -> str:
        """Its text, in one form only."""
        clauses = [
            f"{name}={'|'.join(UNKNOWN if word is None else _quoted(word) for word in self.words[name])}"
            for name in WORDS
            if name in self.words
        ]
        clauses += [
            f"{name}={_number(self.ranges[name][0])}..{_number(self.ranges[name][1])}"
            for name in NUMBERS
            if name in self.ranges
        ]
        if self.cycles != (None, None):
            first, last = ("" if cycle is None else str(cycle) for cycle in self.cycles)
            clauses.append(f"{CYCLE}={first}..{last}")
        return ";".join(clauses)

    @property
    def condition(self) -> Condition:
        """Which rows, without the cycles. A column that is not known fits no range and no word but "not known"."""
        parts, parameters = [], list[object]()
        for name, chosen in self.words.items():
            known = [word for word in chosen if word is not None]
            fits = [f"list_contains(?::VARCHAR[], {WORDS[name]})"] if known else []
            fits += [f"({WORDS[name]}) IS NULL"] if None in chosen else []
            parts.append(f"coalesce({' OR '.join(fits)}, false)")
            parameters += [known] if known else []
        for name, (low, high) in self.ranges.items():
            for sign, limit in ((">=", low), ("<=", high)):
                if limit is not None:
                    parts.append(f"coalesce({NUMBERS[name]} {sign} ?, false)")
                    parameters.append(limit)
            if low is None and high is None:
                parts.append(f"{NUMBERS[name]} IS NOT NULL")
        return Condition(" AND ".join(parts) or "true", tuple(parameters))

    @property
    def everything(self) -> bool:
        """Whether it leaves nothing out (but cycles)."""
        return not self.words and not self.ranges


def parse(text: str) -> Cohort:
    """The cohort that a text describes. CohortError says which clause is wrong, and what would be right."""
    if len(text) > LONGEST:
        raise CohortError(f"a cohort is described in at most {LONGEST:,} characters, not {len(text):,}")
    words: dict[str, tuple[str | None, ...]] = {}
    ranges: dict[str, tuple[float | None, float | None]] = {}
    cycles: tuple[int | None, int | None] = (None, None)
    seen: set[str] = set()
    for clause in text.split(";"):
        if not clause.strip():
            continue
        name, equals, value = (part.strip() for part in clause.partition("="))
        if name in seen:
            raise CohortError(f"{name} is said twice; join words with |")
        seen.add(name)
        if not equals or not value:
            raise CohortError(f"{clause.strip()!r} is no clause; one reads name=value")
        if name in WORDS:
            given = [None if word.strip() == UNKNOWN else _unquoted(word.strip()) for word in value.split("|")]
            words[name] = tuple(sorted(set(given), key=lambda word: (word is None, word or "")))
        elif name in NUMBERS:
            ranges[name] = _range(name, value)
        elif name == CYCLE:
            cycles = _cycles(value)
        else:
            known = [*WORDS, *NUMBERS, CYCLE]
            near = difflib.get_close_matches(name, known, 1)
            raise CohortError(
                f"a cohort has no {name!r}" + (f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}")
            )
    return Cohort(words, ranges, cycles)


def _range(name: str, value: str) -> tuple[float | None, float | None]:
    low, dots, high = value.partition("..")
    try:
        limits = tuple(float(part) if part.strip() else None for part in (low, high))
    except ValueError:
        limits = ()
    if not dots or len(limits) != 2 or any(each is not None and not math.isfinite(each) for each in limits):
        raise CohortError(f"{name}={value}: a range reads 0.2..0.6, 0.6.. or ..0.4")
    if limits[0] is not None and limits[1] is not None and limits[0] > limits[1]:
        raise CohortError(f"{name}={value}: the range is empty")
    return limits[0], limits[1]


def _cycles(value: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"(\d{0,9})(?:(\.\.)(\d{0,9}))?", value, flags=re.ASCII)
    if found is None:
        raise CohortError(f"{CYCLE}={value}: cycles read 12..20, 12.. or 12")
    first = int(found[1]) if found[1] else None
    last = (int(found[3]) if found[3] else None) if found[2] else first
    if first is not None and last is not None and first > last:
        raise CohortError(f"{CYCLE}={value}: the range is empty")
    return first, last


def _quoted(word: str) -> str:
    """The word with the signs that mean something here percent-encoded; letters of any script stay. "" is ``%``."""
    if not word:
        return "%"
    if word != word.strip():
        return quote(word, safe="", errors="replace")
    return "".join(
        quote(letter, safe="", errors="replace") if letter in ";|=%?" or not letter.isprintable() else letter
        for letter in word
    )


def _unquoted(word: str) -> str:
    return "" if word == "%" else unquote(word)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


# -- what is asked of one ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """What can be chosen."""

    words: Mapping[str, tuple[str, ...]]
    """By name in `WORDS`: the commonest values in the lake, at most `MOST_VALUES`."""
    cycles: tuple[int, ...]


_CHOICES, _SIZES, _COMPARED = Kept(4), Kept(32), Kept(32)


def choices(observatory: Observatory) -> Choices:
    """The values that the lake holds."""
    lake = observatory.lake

    def make() -> Choices:
        found = values_of(lake, WORDS, MOST_VALUES)
        return Choices(found, lake.numbered("observations"))

    answer = _CHOICES.ask(("choices", state(lake, ("observations", None))), make, wait_s=None)
    assert not isinstance(answer, Pending)
    return answer


def over_time(observatory: Observatory, cohort: Cohort) -> list[Size] | Pending:
    """How large the cohort is in every cycle, whatever cycles it names."""
    lake, of = observatory.lake, cohort.condition
    key: Hashable = ("sizes", Cohort(cohort.words, cohort.ranges).id, state(lake, ("observations", None)))
    return _SIZES.ask(key, lambda: sizes(lake, of))


def compared_cycles(observatory: Observatory, cohort: Cohort) -> tuple[int | None, ...]:
    """Cycles whose interactions are compared: those that the cohort names, else the newest `RECENT`; logs without."""
    there = observatory.lake.cycles("observations")
    numbered = [cycle for cycle in there if cycle is not None]
    if not numbered:
        return there
    first, last = cohort.cycles
    if (first, last) == (None, None):
        return tuple(numbered[-RECENT:])
    return tuple(cycle for cycle in numbered if (first is None or cycle >= first) and (last is None or cycle <= last))


def beside(
    observatory: Observatory, cohort: Cohort, other: Cohort | None, *, wait_s: float | None = 0.25
) -> Comparison | Pending:
    """Every statistic of the cohort beside another's (None: the rest), in the cycles of `compared_cycles`."""
    lake, cycles = observatory.lake, compared_cycles(observatory, cohort)
    own, rest = cohort.condition, None if other is None else other.condition
    key: Hashable = (cohort.id, None if other is None else other.id, cycles, state(lake, ("observations", cycles)))
    return _COMPARED.ask(key, lambda: compare(lake, cycles, own, rest), wait_s=wait_s)


def words_of(cohort: Cohort) -> Sequence[tuple[str, str]]:
    """Name and values of each clause, for people; values are as they stand in logs."""
    said = [
        (name.replace("_", " "), " or ".join("not known" if word is None else word for word in chosen))
        for name, chosen in cohort.words.items()
    ]
    for name, (low, high) in cohort.ranges.items():
        limits = {
            (True, True): f"{_number(low)} to {_number(high)}",
            (True, False): f"{_number(low)} or more",
            (False, True): f"up to {_number(high)}",
        }
        said.append((name.replace("_", " "), limits.get((low is not None, high is not None), "known")))
    return said
