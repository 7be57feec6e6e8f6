"""Audit of a spec without data: made-up interactions are paid by it, and what nobody would want to be paid is told.

Each check pays two interactions that differ in one thing, a plain edit and the same edit cut into more functions, say,
with the spec's own terms and rules. So a term that someone registers is audited like those that come with Palomar, and
no list of kinds has to be kept. What is found names the key and the line to change.

A check **flags** what pays for what no user wants, or frees it from being charged; it **notes** what is worth knowing.
Without data nobody can say how often the agent gets the chance, so a flag is a hole in the reward and not yet a hack.

Blind to: what depends on amounts (a charge that is there and too small; `palomar.reward.incentives` has that), and to
all that no made-up row shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.config import KeyPath, parse_yaml
from palomar.data.observations import FACTS
from palomar.reward.rows import Floats, Rows
from palomar.reward.scoring import score, term_scores
from palomar.reward.spec import RewardSpec, TermSpec, parse_spec
from palomar.reward.term import NOT_APPLICABLE, VALID

Severity = Literal["flags", "notes"]

POLICY_CHOOSES: Mapping[str, str] = {
    "invalid_tool_call": "break a call",
    "undecodable_tool_call": "break a call",
    "truncated": "run into the length limit",
    "no_edit": "leave the edit out",
    "failed_edit": "make an edit that fails",
    "question": "ask",
    "tests_edited": "edit a test",
    "call_timed_out": "let a call time out",
}
"""What the agent can do to meet a condition. The others are not its to choose: a refusal, a failed scorer, the kind of
traffic."""

DOMINANT = 0.8
"""Share of what all terms together can move the reward, from which on one is said to rule alone."""
NEGLIGIBLE = 0.01
"""Share below which a term decides nothing."""
LIKELY = 0.5
"""Giving up may pay where an edit is more likely to fail than this."""
_HUGE = 1e6
_WEEK_S = 7 * 86_400.0

_PLAIN: dict[str, Any] = {
    "source": "audit", "turn": 0, "traffic": "production", "agent_turns": 3, "tool_calls": 2, "invalid_malformed": 0,
    "invalid_unparsed": 0, "invalid_unknown_tool": 0, "invalid_schema": 0, "invalid_rejected": 0, "calls_failed": 0,
    "calls_timed_out": 0, "calls_refused": 0, "edits": 0, "edits_failed": 0, "edited": False, "asked": False,
    "files_edited": 0, "lines_added": 0, "lines_removed": 0, "tests_edited": False, "tokens_in": 4000,
    "tokens_out": 400, "latency_s": 20.0, "truncated": False, "logged_reward": 0.0, "watched_s": _WEEK_S,
    "undone": False, "refusals": 0, "answered": False, "predicted_failure": 0.5, "ambiguity": 0.5,
    "organisation": "any", "work_kind": "any", "language": "python", "tests_passed": 0, "tests_run": 5,
}  # fmt: skip
_EDIT = _PLAIN | {
    "edits": 1, "edited": True, "files_edited": 1, "lines_added": 4, "lines_removed": 3, "functions_before": 1,
    "functions_after": 1, "function_lines_before": 12, "function_lines_after": 12, "function_lines_median": 12.0,
    "complexity_before": 6, "complexity_after": 6, "complexity_max": 6, "tests_passed": 5,
}  # fmt: skip
_REPLY_S = 60.0

SCENES: Mapping[str, dict[str, Any]] = {
    "edit": _EDIT,
    "thanked edit": _EDIT | {"follow_up": "satisfied", "follow_up_s": _REPLY_S},
    "complained edit": _EDIT | {"follow_up": "dissatisfied", "follow_up_s": _REPLY_S},
    "reverted edit": _EDIT | {"edit_lost_s": _REPLY_S, "undone": True, "tests_passed": 2},
    "wrong edit": _EDIT | {"edit_lost_s": _REPLY_S, "undone": True, "tests_passed": 2, "follow_up": "dissatisfied",
                           "follow_up_s": _REPLY_S},
    "split edit": _EDIT | {"functions_after": 4, "function_lines_after": 18, "function_lines_median": 4.0,
                           "complexity_after": 9, "complexity_max": 3},
    "no-op edit": _EDIT | {"lines_added": 0, "lines_removed": 0},
    "edit of the tests": _EDIT | {"tests_edited": True},
    "edit with failing tests": _EDIT | {"tests_passed": 2},
    "edit with a broken call": _EDIT | {"invalid_malformed": 1, "tool_calls": 3},
    "slow edit": _EDIT | {"latency_s": 120.0},
    "long edit": _EDIT | {"tokens_out": 4000},
    "cut off edit": _EDIT | {"truncated": True},
    "nothing": _PLAIN,
    "nothing, at once": _PLAIN | {"latency_s": 1.0, "tool_calls": 0, "agent_turns": 1, "tokens_out": 5},
    "broken call": _PLAIN | {"invalid_malformed": 1},
    "timed out call": _PLAIN | {"calls_timed_out": 1, "latency_s": 600.0},
    "question on a clear request": _PLAIN | {"asked": True, "ambiguity": 0.0},
    "question on a vague request": _PLAIN | {"asked": True, "ambiguity": 1.0},
}  # fmt: skip
"""Made-up interactions by what they show."""


@dataclass(frozen=True)
class Flaw:
    """One thing that the audit says of a spec."""

    check: str
    severity: Severity
    key: str
    """Dotted path of what to change."""
    line: int | None
    """1-based, in the text; None where the spec lacks what should be there."""
    sentence: str


@dataclass(frozen=True)
class StaticAudit:
    """What an audit without data says."""

    name: str
    flaws: tuple[Flaw, ...]
    """Flags first, then by line."""
    unpaid: tuple[str, ...]
    """Scenes to which the spec gives no reward, so that nothing could be compared with them."""

    @property
    def flagged(self) -> bool:
        """Whether there is more than notes."""
        return any(flaw.severity == "flags" for flaw in self.flaws)


def static_audit(text: str, *, source: str = "spec") -> StaticAudit:
    """The audit of a spec's YAML. Raises ConfigError where it is no spec."""
    spec = parse_spec(text, source=source)
    _, lines = parse_yaml(text, source=source)
    paid_by = _Paid(spec)
    found = [*_rules(spec), *_pairs(paid_by), *_terms(paid_by), *_whole(paid_by)]
    located = [
        Flaw(check, severity, _dotted(spec, path), _line(lines, path), sentence)
        for check, severity, path, sentence in found
    ]
    located.sort(key=lambda flaw: (flaw.severity, flaw.line is None, flaw.line or 0))
    return StaticAudit(spec.name, tuple(located), paid_by.unpaid)


_Found = tuple[str, Severity, KeyPath, str]


class _Paid:
    """What a spec pays the scenes."""

    def __init__(self, spec: RewardSpec) -> None:
        self.spec = spec
        self.names = list(SCENES)
        rows = [{"interaction_id": name, **scene} for name, scene in SCENES.items()]
        self.facts = pa.Table.from_pylist(rows, schema=FACTS)
        table = score(self.facts, spec)
        reward = np.asarray(pc.fill_null(table["reward"], float("nan")), dtype=np.float64)
        self._reward = dict(zip(self.names, reward.tolist(), strict=True))
        self._dropped = dict(zip(self.names, table["exclusion"].to_pylist(), strict=True))
        self.unpaid = tuple(name for name in self.names if not np.isfinite(self._reward[name]))
        rowwise = Rows(self.facts)
        self.scores = {term.name: term_scores(rowwise, term) for term in spec.terms}
        self._parts = {
            term.name: dict(
                zip(self.names, (term.weight * np.nan_to_num(self.scores[term.name].value)).tolist(), strict=True)
            )
            for term in spec.terms
        }

    def reward(self, scene: str) -> float | None:
        """None where it has none."""
        value = self._reward[scene]
        return value if np.isfinite(value) else None

    def trained(self, scene: str) -> bool:
        """Whether it is trained on, as far as the rules say."""
        return self._dropped[scene] is None

    def blame(self, better: str, worse: str) -> KeyPath:
        """The term that favours `better` over `worse` the most."""
        gains = {name: parts[better] - parts[worse] for name, parts in self._parts.items()}
        name = max(gains, key=lambda each: gains[each])
        return ("terms", next(i for i, term in enumerate(self.spec.terms) if term.name == name))


# -- checks --------------------------------------------------------------------------------------------------------


def _rules(spec: RewardSpec) -> Iterator[_Found]:
    for index, rule in enumerate(spec.inclusion):
        at: KeyPath = ("inclusion", index)
        if rule.condition in POLICY_CHOOSES:
            yield (
                "selective rule", "flags", at,
                f"{rule.name} drops samples for what the agent chooses to do: it can {POLICY_CHOOSES[rule.condition]} "
                "where it would be charged, and is not; charge it and keep the sample",
            )  # fmt: skip


PAIRS: tuple[tuple[str, str, str, str], ...] = (
    ("reverted edit", "edit", "reverted edits paid", "an edit that is reverted is paid as much as one that stays"),
    ("complained edit", "thanked edit", "complaints paid", "a complaint is paid as much as thanks, or more"),
    ("broken call", "nothing", "broken calls paid", "breaking a call is paid more than not calling"),
    ("edit with a broken call", "edit", "broken calls paid", "an edit with a broken call is paid more than without"),
    ("split edit", "edit", "splitting paid", "the same edit cut into four functions is paid more"),
    ("slow edit", "edit", "waiting paid", "the same edit is paid more when the user waits longer"),
    ("long edit", "edit", "length paid", "the same edit is paid more when more is written"),
    ("cut off edit", "edit", "cut outputs paid", "the same edit is paid more when the output is cut off"),
    ("edit with failing tests", "edit", "failing tests paid", "an edit is paid more when its tests fail"),
    ("timed out call", "nothing", "time-outs paid", "a call that times out is paid more than none"),
    ("nothing", "edit", "doing nothing paid", "doing nothing is paid at least as much as an edit that stays"),
)  # fmt: skip
"""Scenes of which the first must not be paid more than the second: then check and sentence."""
_EVEN = {"reverted edits paid", "doing nothing paid"}
"""Checks for which being paid the same is too much."""


def _pairs(paid_by: _Paid) -> Iterator[_Found]:
    for worse, better, check, sentence in PAIRS:
        first, second = paid_by.reward(worse), paid_by.reward(better)
        if first is None or second is None or not (paid_by.trained(worse) and paid_by.trained(better)):
            continue
        if first > second + 1e-9 or (check in _EVEN and first > second - 1e-9):
            yield check, "flags", paid_by.blame(worse, better), f"{sentence} ({first:+.3g} against {second:+.3g})"


def _whole(paid_by: _Paid) -> Iterator[_Found]:
    clear, vague = (paid_by.reward(f"question on a {kind} request") for kind in ("clear", "vague"))
    asked = [paid_by.trained(f"question on a {kind} request") for kind in ("clear", "vague")]
    if clear is not None and vague is not None and all(asked) and clear >= vague - 1e-9:
        even = _break_even(paid_by, clear)
        yield (
            "needless questions free", "flags", ("terms",),
            f"a question on a clear request is paid what one on a vague request is ({clear:+.3g}): no term tells them "
            f"apart, so asking{even}; the incentive never flips",
        )  # fmt: skip
    gave_up, kept, wrong = (paid_by.reward(scene) for scene in ("nothing, at once", "edit", "wrong edit"))
    if gave_up is not None and kept is not None and wrong is not None and paid_by.trained("nothing, at once"):
        share = (kept - gave_up) / (kept - wrong) if kept > wrong else 0.0
        if share < 1:
            yield (
                "giving up paid", "flags" if share < LIKELY else "notes", ("terms",),
                f"giving up at once ({gave_up:+.3g}) beats an edit that fails in more than {max(share, 0):.0%} of "
                f"cases ({kept:+.3g} if it stays, {wrong:+.3g} if not)",
            )  # fmt: skip
    for scene, check, said in (
        ("no-op edit", "no-op edits", "an edit that changes no line is paid like any other if it is kept"),
        ("edit of the tests", "edited tests", "editing the tests is not charged"),
    ):
        same, plain = paid_by.reward(scene), paid_by.reward("edit")
        if same is not None and plain is not None and same >= plain - 1e-9 and paid_by.trained(scene):
            tests_paid = check == "edited tests" and _pays_tests(paid_by)
            severity: Severity = "flags" if tests_paid else "notes"
            more = ", and passing tests is paid" if tests_paid else ""
            yield check, severity, ("terms",), said + more
    if paid_by.spec.outcome is None:
        yield (
            "no outcome",
            "notes",
            (),
            "nothing referees the reward: without an outcome no hack can be told from learning",
        )
    if paid_by.spec.nothing_applies is not None:
        wrong = paid_by.reward("wrong edit")
        if wrong is not None and paid_by.spec.nothing_applies > wrong:
            yield (
                "silence paid", "flags", ("nothing_applies",),
                f"where no term applies {paid_by.spec.nothing_applies:+.3g} is paid, more than for an edit that is "
                f"reverted ({wrong:+.3g})",
            )  # fmt: skip


def _break_even(paid_by: _Paid, question: float) -> str:
    """From which probability of failure on asking beats editing, in words."""
    kept, wrong = paid_by.reward("edit"), paid_by.reward("wrong edit")
    if kept is None or wrong is None or kept <= wrong:
        return " may beat editing"
    share = (kept - question) / (kept - wrong)
    if share <= 0:
        return " beats editing always"
    return f" beats editing where it fails in more than {share:.0%} of cases" if share < 1 else " never beats editing"


def _pays_tests(paid_by: _Paid) -> bool:
    failing, passing = paid_by.reward("edit with failing tests"), paid_by.reward("edit")
    return failing is not None and passing is not None and passing > failing


def _terms(paid_by: _Paid) -> Iterator[_Found]:
    spec = paid_by.spec
    spreads = {term.name: abs(term.weight) * _spread(paid_by, term) for term in spec.terms if term.weight != 0}
    whole = sum(value for value in spreads.values() if np.isfinite(value))
    for index, term in enumerate(spec.terms):
        at: KeyPath = ("terms", index)
        scores = paid_by.scores[term.name]
        if term.weight == 0:
            yield "unpaid term", "notes", (*at, "weight"), f"{term.name} is measured and not paid (weight 0)"
            continue
        if (scores.status == NOT_APPLICABLE).all() and term.when is not None:
            yield "narrow term", "notes", (*at, "when"), f"{term.name} applies to none of the made-up interactions"
            continue
        if (scores.status == VALID).any() and _constant(term, scores.value, scores.status):
            yield "constant term", "flags", at, f"{term.name} gives every interaction the same: it teaches nothing"
            continue
        if not (scores.status == VALID).any():
            continue
        yield from _unbounded(term, at)
        if whole > 0 and np.isfinite(spreads[term.name]):
            share = spreads[term.name] / whole
            if share > DOMINANT and len(spreads) > 1:
                yield (
                    "one term rules", "notes", (*at, "weight"),
                    f"{term.name} can move the reward by {spreads[term.name]:.3g}, {share:.0%} of what all can",
                )  # fmt: skip
            elif share < NEGLIGIBLE:
                yield (
                    "dominated term", "notes", (*at, "weight"),
                    f"{term.name} can move the reward by {spreads[term.name]:.3g}, {share:.1%} of what all can: it "
                    "decides next to nothing",
                )  # fmt: skip


def _spread(paid_by: _Paid, term: TermSpec) -> float:
    """How far the term's values lie apart over the scenes, where it does not apply counting as 0."""
    scores = paid_by.scores[term.name]
    value = np.where(scores.status == NOT_APPLICABLE, 0.0, scores.value)
    known = value[np.isfinite(value)]
    return float(known.max() - known.min()) if len(known) else 0.0


def _constant(term: TermSpec, value: Floats, status: np.ndarray[Any, Any]) -> bool:
    """Whether it is the same wherever it applies, and applies everywhere or is worth 0."""
    applies = value[status == VALID]
    same = bool(np.ptp(applies) <= 1e-12)
    return same and (bool((applies == 0).all()) or not (status == NOT_APPLICABLE).any()) and _flat(term)


def _flat(term: TermSpec) -> bool:
    """Whether extreme rows get the same as ordinary ones, too."""
    values = _extremes(term)
    return not len(values) or bool(np.ptp(values) <= 1e-12)


def _extremes(term: TermSpec) -> Floats:
    """Values of the term on rows in which one number is huge."""
    rows = []
    for base in (_EDIT, _PLAIN | {"asked": True}):
        rows.append(base)
        for field in FACTS:
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                if field.name in ("turn", "cycle", "predicted_failure", "ambiguity", "watched_s", "kept_share"):
                    continue
                rows.append(base | {field.name: type(base.get(field.name) or 0)(_HUGE)})
                rows.append(base | {field.name: 0})
    facts = pa.Table.from_pylist([{"interaction_id": str(i), **row} for i, row in enumerate(rows)], schema=FACTS)
    value = term_scores(Rows(facts), term).value
    return value[np.isfinite(value)]


def _unbounded(term: TermSpec, at: KeyPath) -> Iterator[_Found]:
    values = _extremes(term)
    if len(values) and float(np.abs(values).max()) > _HUGE / 1e3:
        side = "upwards" if values.max() > _HUGE / 1e3 else "downwards"
        yield (
            "unbounded term", "flags", (*at, "bounds") if term.bounds is not None else at,
            f"{term.name} has no bound {side}: one odd sample can outweigh a batch; give it bounds",
        )  # fmt: skip


# -- places --------------------------------------------------------------------------------------------------------


def _dotted(spec: RewardSpec, path: KeyPath) -> str:
    """The path as people say it: terms and rules by name."""
    named: list[str] = []
    for depth, part in enumerate(path):
        if isinstance(part, int):
            listed: Any = spec.terms if path[depth - 1] == "terms" else spec.inclusion
            named[-1] += f"[{listed[part].name}]"
        else:
            named.append(part)
    return ".".join(named) or "outcome"


def _line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Line of the path, or of the nearest part of it that is there."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None
