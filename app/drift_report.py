"""Evidently's report on a cycle as it is kept: which cycles have one, what it found, and whether it still holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from palomar.app.service import Observatory
from palomar.detectors.evidently_report import FOLDER, Column, EvidentlyReport, kept

State = Literal["kept", "stale", "none"]
MOST_BYTES = 64 << 20
"""Of a page that is handed out; Evidently's are some 4 MB."""


@dataclass(frozen=True)
class DriftReport:
    """What is known of a cycle's report."""

    cycle: int | None
    state: State
    """``stale``: there is a page, but the cycle's or the reference's observations have changed since it was made."""
    columns: tuple[Column, ...]
    """The most different first; empty unless it is kept."""
    n: int
    """Interactions of the cycle that were looked at."""
    reference_n: int
    page: Path | None
    """Evidently's page; None where it is gone."""

    @property
    def compared(self) -> tuple[Column, ...]:
        """Columns that were compared."""
        return tuple(column for column in self.columns if column.value is not None)

    @property
    def drifted(self) -> tuple[Column, ...]:
        """Those beyond their threshold."""
        return tuple(column for column in self.columns if column.drifted)


def cycles_with_a_page(observatory: Observatory) -> list[int | None]:
    """Cycles of which a page is in the home, the newest first; None (logs outside a loop) last."""
    names = {path.stem for path in (observatory.home / FOLDER).glob("*.html")}
    numbers = sorted((int(name) for name in names if name.isascii() and name.isdigit()), reverse=True)
    return [*numbers, *([None] if "None" in names else [])]


def drift_report(observatory: Observatory, cycle: int | None) -> DriftReport:
    """The report on a cycle, as the last `palomar report` left it. Makes nothing."""
    page = observatory.home / FOLDER / f"{cycle}.html"
    found = page if page.is_file() else None
    view = observatory.view(cycle)
    told: EvidentlyReport | None = None if view is None else kept(view)
    if told is None or (view is not None and view.cycle != cycle):
        return DriftReport(cycle, "none" if found is None else "stale", (), 0, 0, found)
    return DriftReport(cycle, "kept", told.columns, told.n, told.reference_n, found)
