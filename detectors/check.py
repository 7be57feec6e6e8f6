"""The check of one cycle: every detector, what each says, and the verdict.

    View  --(each detector)-->  Reports  --(one word for all)-->  Verdict

A detector that fails takes nothing with it: its failure is a thing that could not be assessed. Reports come in the
order of the detectors' names, and are a function of the view.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from palomar.data.findings import Finding, Report, Unassessed
from palomar.detectors.detector import Detector, View, detectors
from palomar.detectors.verdict import Verdict, verdict

_log = logging.getLogger(__name__)

READS, CHARTS = "behaviour", "drift"
"""The detector that reads what the other one charts: what both speak of is told once, with its reading. What is charted
and not read (spreads, correlations, what users and scorers made of it) warns: a change alone is no reason to block."""


@dataclass(frozen=True)
class Checked:
    """All that is known about a cycle once it was checked."""

    cycle: int | None
    verdict: Verdict
    reports: tuple[Report, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all detectors; those that block first, then those that warn."""
        found = [finding for report in self.reports for finding in report.findings]
        return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))

    @property
    def budget(self) -> str:
        """Which errors are held at what rate, in words, as the findings and reports have it."""
        said = [finding.error_control for report in self.reports for finding in report.findings]
        return "; ".join(dict.fromkeys(each for each in said if each))


_ORDER = {"blocks": 0, "warns": 1, "notes": 2}


def check(view: View, names: Collection[str] | None = None) -> Checked:
    """Run all detectors (or those named) on a cycle. Raises KeyError for an unknown name."""
    known = detectors()
    chosen = list(known) if names is None else [name for name in known if name in names]
    if names is not None and len(chosen) < len(set(names)):
        raise KeyError(f"no detector {', '.join(sorted(set(names) - set(known)))}; there are: {', '.join(known)}")
    reports = _told_once([_report(known[name], view) for name in chosen])
    return Checked(view.cycle, verdict(reports), tuple(reports))


def _report(detector: Detector, view: View) -> Report:
    try:
        return detector.judge(view)
    except Exception as exc:  # one broken detector must not silence the others
        _log.warning("detector %s failed on cycle %s", detector.name, view.cycle, exc_info=True)
        why = f"the detector failed: {type(exc).__name__}: {exc}"
        return Report(detector.name, unassessed=(Unassessed("everything", why),))


def _told_once(reports: list[Report]) -> list[Report]:
    read = {finding.key for report in reports if report.detector == READS for finding in report.findings}

    def unread(report: Report) -> tuple[Finding, ...]:
        left = [finding for finding in report.findings if replace(finding, detector=READS).key not in read]
        return tuple(
            replace(finding, severity="warns", detail={**finding.detail, "would_block": finding.severity == "blocks"})
            for finding in left
        )

    return [replace(report, findings=unread(report)) if report.detector == CHARTS else report for report in reports]
