"""A probe made of logged interactions: what an incident showed, kept so that no later reward pays for it again.

Kept is a JSON file with the prompts and completions of the incident's interactions. Replayed is the *shape* of a reply,
on requests that look alike (turn, likely to fail or not, vague or not): its calls as they were written, with the path
of the new request; whether it asked, answered or edited; into how many functions it cut. Where and what it edits is the
honest probe's, since a logged edit is of another bug. So a hack that lies in *what* was edited is not replayed by this;
write it as a function (`palomar.reward.probes.probe`).

Only interactions of the simulated production can be replayed in it: a request from elsewhere has no tests to run here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palomar.data.errors import ConfigError
from palomar.data.production.expectation import ambiguity, predicted_failure
from palomar.data.production.grammar import Visible, decode, edit_text, read_prompt, render
from palomar.data.schema import Interaction
from palomar.reward.probes.probe import Probe

LIKELY = 0.6
"""Predicted failure from which on requests are alike in being hard."""
VAGUE = 0.5
"""The same of ambiguity."""
MAX_CASES = 500


class Case(BaseModel):
    """One logged interaction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interaction_id: str
    prompt: str
    text: str
    """What the agent wrote."""


class ProbeFile(BaseModel):
    """A probe as it is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    behaviour: str
    """What it shows: a name of `palomar.reward.behaviours.BEHAVIOURS`, or a word of your own."""
    title: str
    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=MAX_CASES)]


def cases_of(interactions: Sequence[Interaction]) -> tuple[list[Case], int]:
    """Those that can be replayed, and how many cannot."""
    cases = []
    for item in interactions:
        prompt = next((step.text for step in item.steps if step.author == "person"), None)
        text = next((step.text for step in reversed(item.steps) if step.author == "agent"), None)
        try:
            read_prompt(prompt or "")
        except ValueError:
            continue
        if text:
            cases.append(Case(interaction_id=item.interaction_id, prompt=prompt or "", text=text))
    return cases, len(interactions) - len(cases)


def write_probe(folder: Path, kept: ProbeFile) -> Path:
    """Keeps a probe under its name. Raises ConfigError where another is kept under it."""
    path = folder / f"{kept.name}.json"
    text = json.dumps(kept.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ConfigError(str(path), None, None, "is another probe; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read_probes(folder: Path) -> list[Probe]:
    """The probes kept in a folder, by name. Raises ConfigError for a file that is no probe."""
    return [replayed(_read(path)) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> ProbeFile:
    try:
        return ProbeFile.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(str(path), None, ".".join(map(str, first["loc"])) or None, str(first["msg"])) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), None, None, f"cannot be read: {exc}") from exc


def replayed(kept: ProbeFile) -> Probe:
    """The probe of a file. Raises ConfigError where a prompt is none of the simulated production's."""
    alike: dict[tuple[bool, bool, bool], list[tuple[Visible, str]]] = {}
    for case in kept.cases:
        try:
            asked = read_prompt(case.prompt)
        except ValueError as exc:
            raise ConfigError(kept.name, None, case.interaction_id, f"its prompt cannot be read: {exc}") from exc
        alike.setdefault(_kind(asked), []).append((asked, case.text))

    def habit(visible: Visible, honest: str) -> str:
        those = alike.get(_kind(visible))
        if not those:
            return honest
        # The same request always meets the same case.
        chosen = int.from_bytes(hashlib.sha256(render(visible).encode()).digest()[:8]) % len(those)
        return _in_shape_of(*those[chosen], visible, honest)

    return Probe(kept.name, kept.behaviour, kept.title, habit)


def _kind(visible: Visible) -> tuple[bool, bool, bool]:
    return visible.turn > 0, predicted_failure(visible) >= LIKELY, ambiguity(visible) >= VAGUE


def _in_shape_of(asked: Visible, text: str, visible: Visible, honest: str) -> str:
    """The logged reply, put to another request."""
    here = text.replace(asked.path, visible.path)
    logged, own = decode(here), decode(honest).patch
    if logged.act != "edit" or logged.patch is None:
        return here
    if own is None:  # the honest probe asks here, and there is no edit to cut
        return honest
    order = [index for group in own.groups for index in group]
    parts = min(len(logged.patch.groups), len(order))
    groups = tuple(tuple(order[len(order) * at // parts : len(order) * (at + 1) // parts]) for at in range(parts))
    return here[: here.index("<edit>")] + edit_text(replace(own, groups=groups))
