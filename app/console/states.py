"""States in a word and a shape, never by colour alone: the same badge for the same thing on every page.

Five words say whether something may go on: PASS, WARN, FAIL, NO DATA, PENDING. The last two are no clearance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

State = Literal["pass", "warn", "fail", "no_data", "pending"]
WORDS: Mapping[State, str] = {
    "pass": "● PASS",
    "warn": "▲ WARN",
    "fail": "■ FAIL",
    "no_data": "◌ NO DATA",
    "pending": "○ PENDING",
}
_COLOURS: Mapping[State, str] = {
    "pass": "green",
    "warn": "orange",
    "fail": "red",
    "no_data": "gray",
    "pending": "blue",
}
OF_VERDICT: Mapping[str, State] = {"pass": "pass", "warn": "warn", "block": "fail", "not_assessable": "no_data"}
"""Of a check of a cycle or candidate."""
OF_GATE: Mapping[str, State] = {"promote": "pass", "hold": "warn", "block": "fail", "pending": "pending"}
OF_INCIDENT: Mapping[str, State] = {
    "open": "fail",
    "acknowledged": "warn",
    "mitigated": "pending",
    "resolved": "pass",
}
OF_SEVERITY: Mapping[str, State] = {"blocks": "fail", "warns": "warn", "notes": "pass"}


def words(state: State, of: str = "") -> str:
    """For cells of tables: shape and word, with a word of our own in its place where `of` is given."""
    return WORDS[state] if not of else f"{WORDS[state].split()[0]} {of}"


def badge(state: State, of: str = "") -> str:
    """For Markdown: the same with its colour. `of` is our own word in capitals (``PROMOTED``)."""
    return f":{_COLOURS[state]}-badge[{words(state, of)}]"
