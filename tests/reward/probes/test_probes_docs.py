"""docs/probes.md lists the probes that there are, what they show, and the words that are said of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from palomar.reward.probes import library  # noqa: F401  (registers the probes)
from palomar.reward.probes.judgement import Word
from palomar.reward.probes.probe import PROBES

DOCS = (Path(__file__).parents[3] / "docs" / "probes.md").read_text(encoding="utf-8")


def section(title: str) -> list[list[str]]:
    text = DOCS.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]


def test_every_probe_is_listed_with_what_it_shows_and_no_other() -> None:
    listed = section("The probes that come with Palomar")
    named = {name for row in listed for name in re.findall(r"`([^`]+)`", row[0])}
    assert named == {probe.name for probe in PROBES.values() if probe.habit.__module__.startswith("palomar.")}
    for row in listed:
        shown = {word.strip() for word in row[1].split(",")}
        assert {PROBES[name].behaviour for name in re.findall(r"`([^`]+)`", row[0])} == shown


def test_every_word_is_explained() -> None:
    assert {row[0].strip() for row in section("What is compared")} == set(get_args(Word))
