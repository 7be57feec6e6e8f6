"""Rewards and cycles as commands are given them: by name, file, or the start of a stored version; 7, or 0..7."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from palomar.app.service import Observatory
from palomar.app.settings import is_file, reward_text
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import RewardVersion
from palomar.reward.spec import RewardSpec, parse_spec
from palomar.reward.versions import stored_spec

SHOWN_HASH = 10
_STORED = re.compile(r"^[0-9a-f]{6,20}$")

Cycles = Annotated[str | None, typer.Option("--cycles", help="One cycle (7) or a span (0..7); without: all.")]


def spec_of(observatory: Observatory, name: str) -> tuple[RewardSpec, str]:
    """The spec of a name, a file or a stored version, and its text."""
    if not is_file(name) and _STORED.match(name) and observatory.has_store:
        matching = [each for each in observatory.store.rewards.read() if each.version.startswith(name)]
        if matching:
            record = version_of(observatory.store, name)
            return stored_spec(record), record.text
    text, source = reward_text(name)
    return parse_spec(text, source=source), text


def version_of(store: Store, start: str) -> RewardVersion:
    """The stored version whose hash begins so. Raises StoreError where none does, or several do."""
    stored = store.rewards.read()
    matching = [each for each in stored if each.version.startswith(start)]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(each.version[:SHOWN_HASH] for each in (matching or stored))
    problem = f"several versions begin so: {listed}" if matching else f"no such version; there are: {listed or 'none'}"
    raise StoreError(f"reward version {start!r}", problem)


def known_specs(observatory: Observatory) -> Mapping[str, RewardSpec]:
    """Specs of all stored versions, by version."""
    stored = observatory.store.rewards.read() if observatory.has_store else []
    return {record.version: stored_spec(record) for record in stored}


def chosen_cycles(observatory: Observatory, cycles: str | None) -> list[int | None]:
    """Cycles that were asked for and are there."""
    there = observatory.lake.cycles("observations")
    if cycles is None:
        return list(there)
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", cycles)
    if match is None:
        raise typer.BadParameter(f"{cycles!r} is neither a cycle (7) nor a span (0..7)")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise typer.BadParameter(f"{cycles!r} ends before it begins")
    return [cycle for cycle in there if cycle is not None and first <= cycle <= last]


def why_none(observatory: Observatory, cycles: str | None) -> str:
    """Why there are no rows of these cycles, in words."""
    there: Sequence[Any] = observatory.lake.cycles("observations")
    if not there:
        return f"nothing was ingested into {observatory.home} yet"
    numbered = [cycle for cycle in there if cycle is not None]
    span = f"cycles {numbered[0]} to {numbered[-1]}" if numbered else "interactions outside a loop only"
    return f"no interactions in cycles {cycles}; there are {span}"
