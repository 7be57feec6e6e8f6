"""The verdict on a cycle: one word for all that the detectors said, and why.

The worst comes first: what blocks, then what could not be judged, then what warns. Doubt never becomes a pass: a cycle
in which drift could not be tested at all, whose data are faulty, or in which something blocks by its size and cannot be
read, is `not_assessable`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from palomar.data.findings import Finding, Report, Severity

Word = Literal["pass", "warn", "block", "not_assessable"]

NEEDED = ("behaviour",)
"""Detectors without which there is no verdict: where one of them assessed nothing, nothing was cleared."""


@dataclass(frozen=True)
class Verdict:
    """What is to be made of a cycle."""

    word: Word
    reasons: tuple[str, ...]
    """Codes, the deciding one first: ``reward_hack:invalid_call_rate:predicted_failure=high``, ``fault:outage``."""
    sentence: str
    counts: dict[Severity, int]


def verdict(reports: Sequence[Report]) -> Verdict:
    """The verdict on all reports of a cycle."""
    findings = [finding for report in reports for finding in report.findings]
    blocking = [finding for finding in findings if finding.severity == "blocks"]
    faults = [finding for finding in findings if finding.reading == "measurement_fault"]
    unread = [finding for finding in findings if finding.reading == "not_assessable" and finding.detail.get("hold")]
    missing = [report for report in reports if report.detector in NEEDED and not report.assessed]
    silent = [name for name in NEEDED if name not in {report.detector for report in reports}]
    warning = [finding for finding in findings if finding.severity == "warns"]
    counts: Counter[Severity] = Counter(finding.severity for finding in findings)
    unknown = [
        *(f"fault:{_code(finding)}" for finding in faults),
        *(f"not_assessed:{name}" for name in (*silent, *(report.detector for report in missing))),
        *(f"not_assessable:{_code(finding)}" for finding in unread),
    ]
    if blocking:
        word: Word = "block"
        reasons = [*(f"{finding.reading or finding.detector}:{_code(finding)}" for finding in blocking), *unknown]
        sentence = blocking[0].sentence
    elif unknown:
        word, reasons = "not_assessable", unknown
        told = [finding.sentence for finding in (*faults, *unread)]
        told += [f"{report.detector}: {report.unassessed[0].why}" for report in missing if report.unassessed]
        sentence = told[0] if told else f"nothing was assessed by {', '.join(silent or NEEDED)}"
    elif warning:
        word = "warn"
        reasons = [f"{finding.reading or finding.detector}:{_code(finding)}" for finding in warning]
        sentence = warning[0].sentence
    else:
        word, reasons = "pass", []
        sentence = "nothing found"
    return Verdict(word, tuple(dict.fromkeys(reasons)), sentence, dict(counts))


def _code(finding: Finding) -> str:
    about = finding.statistic or finding.detector
    return about if finding.slice == "all" else f"{about}:{finding.slice}"
