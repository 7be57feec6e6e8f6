"""A decision as other programs read it: a file that trainers poll, JUnit XML for pipelines, SARIF for code hosts.

All three keep the three answers apart: failed is not "could not be evaluated", and neither is passed.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from palomar import __version__
from palomar.app.gating import Answer
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.schema import content_id
from palomar.data.store.records import Decision
from palomar.trainer.gate_policy import PolicyText
from palomar.trainer.promotion import Check, Outcome

FILE_FORMAT = "palomar-decision/1"
DECISION_FILE = "decision.json"
"""Name of the loop's own decision file, in its home."""


# -- the decision file ---------------------------------------------------------------------------------------------


def plain_decision(decision: Decision) -> dict[str, Any]:
    """The decision as the file has it; docs/gate.md describes it."""
    return {
        "format": FILE_FORMAT,
        "sequence": decision.sequence,
        "decision_id": decision.decision_id,
        "run_id": decision.run_id,
        "candidate": decision.candidate,
        "cycle": decision.cycle,
        "verdict": decision.verdict,
        "kind": decision.kind,
        "reasons": list(decision.reasons),
        "sentence": decision.sentence,
        "policy": decision.policy,
        "actor": decision.actor,
        "decided_at": decision.created_at.isoformat(),
        "expires_at": None if decision.expires_at is None else decision.expires_at.isoformat(),
        "supersedes": decision.supersedes,
    }


def plain_answer(answer: Answer) -> dict[str, Any]:
    """The decision with its checks, as the command line and the API give it."""
    checks = {} if answer.outcome is None else plain_outcome(answer.outcome)
    said = None if answer.rule_said is None else plain_decision(answer.rule_said)
    return {**checks, **plain_decision(answer.decision), "state": answer.state, "rule_said": said}


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """What the rule says, with its arithmetic."""
    return {**outcome.model_dump(mode="json"), "arithmetic": outcome.arithmetic}


def write_decision_file(path: Path, decision: Decision) -> bool:
    """Puts the decision into the file, whole or not at all; False where the file has it or a later one of the run.

    Written beside its place, synced and renamed, so that who reads at any moment reads one decision. A lock file beside
    it lets writers come one after the other. Raises StoreError where the file is another run's, or no decision file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = _read(path)
            if before is not None and before["run_id"] != decision.run_id:
                raise StoreError(str(path), f"holds decisions of the run {before['run_id']!r}; give each run its own")
            if before is not None and before["sequence"] >= decision.sequence:
                return False
            _replace(path, json.dumps(plain_decision(decision), indent=1, ensure_ascii=False) + "\n")
    except OSError as exc:
        raise StoreError(str(path), f"cannot be written: {exc.strerror}") from exc
    return True


def publish(home: Path, decision: Decision) -> None:
    """Brings the decision file of a home up to date, where the loop keeps one there. Raises StoreError."""
    if (home / DECISION_FILE).exists():
        write_decision_file(home / DECISION_FILE, decision)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise StoreError(str(path), "is there and holds no decision; it is left as it is") from exc
    if not isinstance(said, dict) or said.get("format") != FILE_FORMAT or not isinstance(said.get("sequence"), int):
        raise StoreError(str(path), "is there and holds no decision; it is left as it is")
    return said


def write_text(path: Path, text: str) -> None:
    """Puts text into a file, whole or not at all. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as exc:
        raise StoreError(str(path), f"cannot be written: {exc.strerror}") from exc


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # a temporary file is its owner's alone; who polls may be another
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- JUnit XML -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    group: str
    name: str
    fate: str
    """``""`` passed, ``failure``, ``error`` (could not be evaluated) or ``skipped``."""
    message: str = ""
    text: str = ""


def junit(answer: Answer) -> str:
    """One test case per check, and one for the decision: ``failure`` = failed, ``error`` = could not be evaluated."""
    decision = answer.decision
    cases = [_junit_case(check) for check in _checks(answer)]
    fate = {"promote": "", "block": "failure", "hold": "error"}[decision.verdict]
    cases.append(_Case("decision", decision.verdict, fate, ", ".join(decision.reasons), decision.sentence))
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.fate == "failure" for case in cases)),
        "errors": str(sum(case.fate == "error" for case in cases)),
        "skipped": str(sum(case.fate == "skipped" for case in cases)),
        "time": "0",
    }
    root = ET.Element("testsuites", {"name": "palomar gate", **{k: v for k, v in counts.items() if k != "skipped"}})
    at = decision.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ET.SubElement(root, "testsuite", {"name": f"gate {_xml(decision.candidate)}", **counts, "timestamp": at})
    properties = ET.SubElement(suite, "properties")
    for name in ("decision_id", "run_id", "candidate", "verdict", "kind", "policy", "expires_at"):
        value = "" if getattr(decision, name) is None else str(getattr(decision, name))
        ET.SubElement(properties, "property", {"name": name, "value": _xml(value)})
    for case in cases:
        given = {"classname": f"gate.{case.group}", "name": _xml(case.name), "time": "0"}
        element = ET.SubElement(suite, "testcase", given)
        if case.fate == "skipped":
            ET.SubElement(element, "skipped", {"message": _xml(case.message)})
        elif case.fate:
            inner = ET.SubElement(element, case.fate, {"message": _xml(case.message), "type": case.group})
            inner.text = _xml(case.text)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _junit_case(check: Check) -> _Case:
    text = f"{check.sentence}\nneeded: {check.needed}" if check.needed else check.sentence
    if check.part == "success":
        # Not shown to be better is no fault, whatever the decision.
        fate = "" if check.result == "pass" else "skipped"
    else:
        fate = {"pass": "", "fail": "failure", "unknown": "error"}[check.result]
    return _Case(check.part, check.code, fate, check.sentence, text)


def _checks(answer: Answer) -> tuple[Check, ...]:
    """The checks behind the decision; none behind an override, which is made in spite of them."""
    return () if answer.outcome is None else answer.outcome.checks


def _xml(text: str) -> str:
    """Text without what XML 1.0 cannot hold, shown as escapes."""
    return "".join(
        c if c in "\t\n\r" or "\x20" <= c <= "\ud7ff" or c >= "\ue000" else ascii(c)[1:-1] for c in visible(text)
    )


# -- SARIF ---------------------------------------------------------------------------------------------------------


def sarif(answer: Answer, policy: PolicyText) -> dict[str, Any]:
    """SARIF 2.1.0: a result for each check that did not pass, at the line of the policy that asks for it.

    Failed is ``error``, could not be evaluated is ``warning``. The fingerprint is of the check, not of its numbers, so
    that the same thing in the next candidate is the same alert.
    """
    decision = answer.decision
    failed = [check for check in _checks(answer) if check.result != "pass" and check.part != "success"]
    uri = _uri(policy.source)
    results: list[dict[str, Any]] = [
        {
            "ruleId": check.code,
            "level": "error" if check.result == "fail" else "warning",
            "message": {"text": visible(f"{decision.candidate}: {check.sentence}")},
            "locations": [_location(uri, policy.line(*check.rule), decision.candidate)],
            "partialFingerprints": {"palomarCheck/v1": content_id(decision.run_id, check.code)},
            "properties": {"part": check.part, "result": check.result, "needed": check.needed},
        }
        for check in failed
    ]
    rules = [
        {"id": check.code, "shortDescription": {"text": f"gate: {check.part}, {check.code.replace(':', ', ')}"}}
        for check in {each.code: each for each in failed}.values()
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "palomar gate", "semanticVersion": __version__, "rules": rules}},
                "automationDetails": {"id": f"palomar-gate/{decision.run_id}"},
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "endTimeUtc": decision.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                        "exitCode": {"promote": 0, "block": 1, "hold": 3}[decision.verdict],
                    }
                ],
                "results": results,
                "properties": plain_decision(decision),
            }
        ],
    }


def _location(uri: str, line: int, candidate: str) -> dict[str, Any]:
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}},
        "logicalLocations": [{"name": candidate, "kind": "resource"}],
    }


def _uri(source: str) -> str:
    """The policy's file, relative to where the command runs: code hosts look for it in the repository."""
    path = Path(source)
    if path.is_absolute():
        try:
            path = path.relative_to(Path.cwd())
        except ValueError:
            return path.as_uri()
    return path.as_posix()
