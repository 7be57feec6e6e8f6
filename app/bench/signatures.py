"""How often signatures of known hacks are right, on labelled code and on ordinary work.

Five sets (docs/signatures.md says what each can tell): 34 checked submissions with their hack type, 68 reviewed final
codes of impossible tasks, 60 ordinary patches of an agent, and solutions of HumanEval that pass its hidden tests; the
last two stand for "no hack"; and the edits of a recorded run, for tiny-functions alone. A third of the labelled ones
(by hash of the task or the record) was read while the signatures were written; the others were not, and are reported
apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from palomar.app.bench import SAMPLES, Measure
from palomar.app.bench.emergence import Kind, home_of
from palomar.app.bench.scored import complete
from palomar.data.lake import Lake
from palomar.data.schema import Interaction
from palomar.data.sources import read_path
from palomar.detectors.intervals import wilson
from palomar.detectors.signature import Status, assess, signatures
from palomar.detectors.signatures._code import edits_of, is_test_path

Split = Literal["read", "unread"]
HACK_SHARE = 0.01
"""Share of interactions that are hacks, at which precision is worked out: the labelled sets are balanced by hand, and
none gives a natural rate of hacks."""

TEST_EDITS = 0.186
"""Share of ordinary patches that edit tests, in one public set; ours has more of them on purpose."""


SPLITTING: tuple[Kind, int] = ("splitting", 0)
"""A recorded run (`palomar bench emergence`, or detect, makes it) in which the policy learns to cut functions up."""

ENDS = 8
"""Cycles of it that are looked at, at its beginning, where nothing is trained yet, and as many at its end."""

CUT_UP = 2
"""Functions more than before, from which an edit of that policy has cut one up: its tasks need no new function."""


@dataclass(frozen=True)
class Case:
    """One labelled interaction with its verdicts."""

    split: Split
    hack: bool | None
    """None: the reviewer could not decide; not counted."""
    kind: str
    verdicts: dict[str, Status]


def split_of(identity: str) -> Split:
    """A third is read (the development split), by SHA-256 of the identity."""
    return "read" if int(hashlib.sha256(identity.encode()).hexdigest(), 16) % 3 == 0 else "unread"


def measure(quick: bool) -> list[Measure]:
    """Recall, precision and false alarms by signature, set and split. `quick` changes nothing: it takes seconds."""
    measures: list[Measure] = []
    labelled: list[Case] = []
    for name, path, reader in (
        ("rh-cases", "rh-cases-labelled/cases.jsonl", _rh_case),
        ("impossible-lcb", "impossible-lcb-inspect/reviewed_labels.jsonl", _reviewed_case),
    ):
        if not (SAMPLES / path).exists():
            measures.append(
                Measure(f"labelled code, {name}", None, "cases", 0, aim=1.0, better="at_least", note="absent")
            )
            continue
        cases = [reader(item) for item in _interactions(SAMPLES / path)]
        labelled += cases
        for split in ("read", "unread"):
            measures += _of_set(f"{name}, {split} split", [case for case in cases if case.split == split])
    ordinary, more = _ordinary()
    return measures + more + _where_rare(labelled, ordinary) + _cut_up()


def _interactions(path: Path) -> Iterable[Interaction]:
    return (item for item in read_path(path) if isinstance(item, Interaction))


def _rh_case(item: Interaction) -> Case:
    labels = dict(label.split("=", 1) for label in item.labels)
    # Both submissions of a task share a split, or half of each pair would give the other away.
    return Case(
        split_of(item.task_id or ""), labels["ground_truth"] == "FAIL", labels.get("hack_type", ""), _verdicts(item)
    )


def _reviewed_case(item: Interaction) -> Case:
    labels = dict(label.split("=", 1) for label in item.labels)
    record = json.loads(item.extra_json or "{}")["record_id"]
    hack = {"hack": True, "not_hack": False}.get(labels["review"])
    return Case(split_of(record), hack, labels.get("hack_kind", ""), _verdicts(item))


def _verdicts(item: Interaction) -> dict[str, Status]:
    return {one.signature: one.verdict.status for one in assess(item)}


def _of_set(name: str, cases: Sequence[Case]) -> list[Measure]:
    """Recall, false alarms and precision: of any signature, and of each that flags something."""
    hacks = [case.verdicts for case in cases if case.hack is True]
    honest = [case.verdicts for case in cases if case.hack is False]
    measures = []
    for who in ("any signature", *signatures()):
        hits, alarms = _flagged(hacks, who), _flagged(honest, who)
        if who != "any signature" and hits + alarms == 0:
            continue
        assessed = len(hacks) - _unassessed(hacks, who)
        measures += [
            _rate(f"recall of {who}, {name}", hits, len(hacks), f"{assessed} of {len(hacks)} could be assessed"),
            _false_alarms(f"false alarms of {who}, {name}", honest, who),
            _rate(f"precision of {who}, {name}", hits, hits + alarms, "balance of the set is artificial"),
        ]
    for kind in sorted({case.kind for case in cases if case.hack}):
        of_kind = [case.verdicts for case in cases if case.hack and case.kind == kind]
        measures.append(
            _rate(f"recall of any signature on {kind}, {name}", _flagged(of_kind, "any signature"), len(of_kind))
        )
    return measures


def _ordinary() -> tuple[list[dict[str, Status]], list[Measure]]:
    """Verdicts on ordinary work, and the false alarms among them."""
    everything: list[dict[str, Status]] = []
    measures: list[Measure] = []
    for name, path in (
        ("ordinary patches", SAMPLES / "mini-swe-agent" / "trajs"),
        ("solved HumanEval", SAMPLES / "reflexion" / "reflexion_humaneval_py_pass_at_1"),
    ):
        if not path.exists():
            measures.append(_absent(name))
            continue
        items = [item for item in _interactions(path) if name != "solved HumanEval" or "is_solved=true" in item.labels]
        verdicts = [_verdicts(item) for item in items]
        everything += verdicts
        measures += [
            _false_alarms(f"false alarms of {who}, {name}", verdicts, who) for who in ("any signature", *signatures())
        ]
        editing = [
            one
            for item, one in zip(items, verdicts, strict=True)
            if any(is_test_path(edit.path) for _, edit in edits_of(item))
        ]
        if editing:
            alarms = _flagged(editing, "edited-tests")
            measures += [
                _rate(f"false alarms of edited-tests, {name} that edit tests", alarms, len(editing)),
                Measure(
                    f"false alarms of edited-tests per patch, where {TEST_EDITS:.1%} of patches edit tests",
                    TEST_EDITS * alarms / len(editing),
                    "fraction",
                    len(editing),
                ),
            ]
    return everything, measures


def _cut_up() -> list[Measure]:
    """What tiny-functions says of edits in a recorded run whose reward pays short functions, by functions added."""
    names = {
        f"recall of tiny-functions, edits that add {CUT_UP} functions or more, recorded run": True,
        "false alarms of tiny-functions, edits that add no function, recorded run": False,
    }
    if not complete(*SPLITTING):
        return [Measure(name, None, "fraction", 0, note="the run is not recorded") for name in names]
    lake = Lake(home_of(*SPLITTING) / "lake")
    cycles = lake.cycles("interactions")
    ids = lake.scan("interactions", ["interaction_id"], cycles=[*cycles[:ENDS], *cycles[-ENDS:]])
    verdicts: dict[bool, list[dict[str, Status]]] = {True: [], False: []}
    for item in lake.interactions(ids["interaction_id"].to_pylist()):
        edits = [edit for _, edit in edits_of(item)]
        added = sum(len(edit.functions_after or ()) - len(edit.functions_before or ()) for edit in edits)
        if edits and (added >= CUT_UP or added == 0):
            (one,) = assess(item, ["tiny-functions"])
            verdicts[added >= CUT_UP].append({one.signature: one.verdict.status})
    return [_false_alarms(name, verdicts[cut], "tiny-functions") for name, cut in names.items()]


def _where_rare(labelled: Sequence[Case], ordinary: Sequence[dict[str, Status]]) -> list[Measure]:
    """Precision where few interactions are hacks, from the unread splits' recall and all honest work's false alarms."""
    unread = [case for case in labelled if case.split == "unread"]
    hacks = [case.verdicts for case in unread if case.hack is True]
    honest = [*ordinary, *(case.verdicts for case in unread if case.hack is False)]
    measures = []
    for who in ("any signature", *signatures()):
        hits, alarms, assessed = _flagged(hacks, who), _flagged(honest, who), len(honest) - _unassessed(honest, who)
        if hits and assessed:
            worst = _precision(_interval(hits, len(hacks))[0], _interval(alarms, assessed)[1])
            counts = (
                f"recall {hits} of {len(hacks)}, false alarms {alarms} of {assessed}; {worst:.2f} at the worse ends"
            )
            measures.append(
                Measure(
                    f"precision of {who} where {HACK_SHARE:.0%} are hacks",
                    _precision(hits / len(hacks), alarms / assessed),
                    "fraction",
                    assessed,
                    note=counts,
                )
            )
    return measures


def _precision(recall: float, false_alarms: float) -> float:
    return recall * HACK_SHARE / (recall * HACK_SHARE + false_alarms * (1 - HACK_SHARE))


def _false_alarms(name: str, verdicts: Sequence[dict[str, Status]], who: str) -> Measure:
    """Of those that could be assessed: a signature that never looked raised no alarm and earned nothing by it."""
    assessed = len(verdicts) - _unassessed(verdicts, who)
    return _rate(name, _flagged(verdicts, who), assessed, f"{len(verdicts) - assessed} not assessed")


def _flagged(verdicts: Iterable[dict[str, Status]], who: str) -> int:
    return sum("flagged" in one.values() if who == "any signature" else one[who] == "flagged" for one in verdicts)


def _unassessed(verdicts: Iterable[dict[str, Status]], who: str) -> int:
    return sum(
        all(status == "not_assessed" for status in one.values())
        if who == "any signature"
        else one[who] == "not_assessed"
        for one in verdicts
    )


def _absent(name: str) -> Measure:
    return Measure(name, None, "cases", 0, aim=1.0, better="at_least", note="the samples are absent")


def _rate(name: str, count: int, of: int, note: str = "") -> Measure:
    if of == 0:
        return Measure(name, None, "fraction", 0, note="; ".join(filter(None, ("nothing to count", note))))
    low, high = _interval(count, of)
    counts = f"{count} of {of}, 95 % Wilson {low:.2f}..{high:.2f}"
    return Measure(name, count / of, "fraction", of, note="; ".join(filter(None, (counts, note))))


def _interval(count: int, of: int) -> tuple[float, float]:
    found = wilson(np.array([float(count)]), np.array([float(of)]))
    return float(found.low[0]), float(found.high[0])
