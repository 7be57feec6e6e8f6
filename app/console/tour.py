"""One address of every page, with ids that the home has: for pictures and for measuring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palomar.app.console.links import SECTIONS, Page
from palomar.app.service import Observatory
from palomar.data.store.incidents import ACTIVE


def tour(home: Path) -> Mapping[Page, dict[str, str]]:
    """By page in the order of the sidebar: its query, about the worst open alarm where it can be about one."""
    observatory = Observatory(home)
    about: dict[Page, dict[str, str]] = {"cohorts": {"id": "did=asked"}}
    run = observatory.run()
    if run is not None:
        store = observatory.store
        open_ = store.incidents.read(run.run_id, states=ACTIVE)
        worst = max(open_, key=lambda each: (each.blocks, each.number), default=None)
        if worst is not None:
            number = str(worst.number)
            finding = store.incidents.pinned(worst.number)[0].finding
            about |= {
                "alarm": {"id": number},
                "behaviour": {"stat": finding.statistic or "", "slice": finding.slice},
                "why": {"alarm": number},
                "examples": {"alarm": number},
                "lab": {"incident": number},
            }
        decided = store.decisions.latest(run.run_id, count=40)
        told = next((each for each in decided if each.verdict == "block"), None) or next(iter(decided), None)
        if told is not None:
            about["gate"] = {"ckpt": told.candidate}
    cycles = observatory.lake.cycles("observations")
    if cycles:
        rows = observatory.interactions(cycles[-1], limit=500, where="edited").rows.to_pylist()
        rich = [row for row in rows if row["follow_up"] and row["tool_calls"]] or rows
        if rich:
            about["trajectory"] = {"id": rich[0]["interaction_id"]}
    pages = [page for section in SECTIONS.values() for page in section]
    return {page: about.get(page, {}) for page in pages}
