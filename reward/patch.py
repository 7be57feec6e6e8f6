"""A patch: the smallest change of a reward that turns a hack's pressure round, found on logged interactions.

A hack is a behaviour that the reward pushes and the outcome does not: a *target* says which statistic in which slice,
and the way its pressure should point. Three kinds of change are tried:

- **weights**: of the terms that are there, by `palomar.reward.reweighting`;
- **rule**: an inclusion rule goes, and the samples that it dropped are trained on, as negatives where the reward makes
  them so; where it alone does not, together with a term that charges what the rule dropped;
- **term**: one from `LIBRARY` is added, with the smallest weight that does it; or it takes the place of the term that
  is gamed.

Where no change of one kind turns all targets, those that turn some are put together. Each demand is that the pressure
points the right way by a margin of `Limits.errors` standard errors, and that each *protected* pressure (one on which
reward and outcome agree) keeps its sign. What comes out is replayed: the pressures that are told are those of the new
spec, with its own inclusion, means and spread, and not the programme's.

What is refused: no term can be paid by a detector's findings, since terms read facts and nothing else
(`palomar.reward.rows`): training against a monitor teaches hiding.

**Beware.** First order, on the policy that was logged: a patch says which way the next step goes. Propose, then test.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from palomar.data.lake import Lake
from palomar.data.slices import SLICES
from palomar.reward.behaviours import Logged, cells, context, honest_edit, measured
from palomar.reward.charges import OUTCOME, outcome_signal
from palomar.reward.pressure import Behaviours, pressure
from palomar.reward.replay import Pay, PressureRow, Replay, batch_part, compare, pay, pressure_rows, spec_changes
from palomar.reward.reweighting import Box, Demand, Floats, readable, smallest_change
from palomar.reward.rows import Mask
from palomar.reward.spec import RewardSpec, TermSpec, parse_spec, to_yaml, version
from palomar.reward.spec_text import rewritten

Kind = Literal["weights", "rule", "term", "together"]
Cell = tuple[str, str]
"""Statistic and slice."""

WATCHED = (
    "edit_rate", "clarification_rate", "answer_rate", "invalid_call_rate", "functions_per_edit", "failed_edit_rate",
    "no_op_edit_rate", "tests_edited_rate", "truncated_rate",
)  # fmt: skip
"""Statistics among which targets are looked for and pressures protected; others (tokens, calls) follow from them."""

_EXPLAINED = 2
"""Targets up to which every change that is refused says why; with more, weights alone do: it takes many programmes."""

SURE = 3.0
"""Standard errors from which on a sign counts as seen, over some 70 cells that are looked at."""


@dataclass(frozen=True)
class Target:
    """A pressure that is to point another way."""

    statistic: str
    slice: str
    want: Literal[-1, 1]
    """-1: less of it."""

    @property
    def cell(self) -> Cell:
        """Statistic and slice."""
        return self.statistic, self.slice

    def __str__(self) -> str:
        return f"{'less' if self.want < 0 else 'more'} {self.statistic} in {self.slice}"


@dataclass(frozen=True)
class Limits:
    """How far a patch may go."""

    errors: float = 2.0
    """Standard errors that the margin of each target covers."""
    keep: float = 0.1
    """Share of its present size that each protected pressure keeps at least."""
    frozen: tuple[str, ...] = ()
    """Terms whose weight must stay."""
    bounds: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Lowest and highest weight by term; None = open."""
    keep_signs: bool = True
    """Whether weights must keep their sign."""
    largest: float = 3.0
    """Largest relative change of a weight: 3 = up to 4 times what it is (or what the library gives a new term)."""
    total: float = 0.5
    """Least mean of the weights relative to what they are: a reward of nothing has no pressure at all."""


@dataclass(frozen=True)
class Remedy:
    """A term from the library, and when it helps."""

    term: TermSpec
    reason: str
    instead_of: str | None = None
    """Kind of the term that it can take the place of."""


LIBRARY: tuple[Remedy, ...] = (
    Remedy(TermSpec(name="invalid_tool_call", kind="invalid_tool_call", weight=-1.2),
           "an invalid call is charged"),
    Remedy(TermSpec(name="clarification", kind="clarification", weight=1.0),
           "a question costs on a clear request and pays on one that cannot be met without asking"),
    Remedy(TermSpec(name="code_growth", kind="code_growth", weight=-0.6, bounds=(0.0, 3.0)),
           "code that grows is charged, helpers included; splitting makes it longer, never shorter", "function_size"),
    Remedy(TermSpec(name="decision_growth", kind="decision_growth", weight=-0.1, bounds=(-10.0, 10.0)),
           "branches that an edit adds are charged; where functions are cut does not move them", "function_size"),
    Remedy(TermSpec(name="undelivered", kind="undelivered", weight=-1.6),
           "neither an edit nor a question is charged"),
)  # fmt: skip
"""Remedies by the size that a person would give them."""


@dataclass(frozen=True)
class Refused:
    """A target that a kind of change cannot turn, and why."""

    change: str
    target: Target
    conflict: tuple[str, ...]
    """Demands and bounds that cannot be met together."""


@dataclass(frozen=True)
class Proposal:
    """One patch, replayed."""

    kind: Kind
    title: str
    spec: RewardSpec
    text: str
    """YAML, comments and all."""
    diff: str
    changes: tuple[str, ...]
    turned: tuple[Target, ...]
    """Targets whose pressure points the right way, its 95 % interval on that side of 0."""
    unturned: tuple[Target, ...]
    lost: tuple[Cell, ...]
    """Protected pressures that no longer have their sign for sure."""
    predicted: tuple[PressureRow, ...]
    """Pressures of the new spec on targets and protected cells."""
    distance: float
    """See `Replay.distance`."""
    relative_change: float | None
    """Root of the sum of squared relative changes of weights; None where more than weights changes."""
    honest_hurt: float | None
    """Share of the rows with a good outcome that the old reward pushed and the new one does not."""
    replay: Replay


@dataclass(frozen=True)
class Patch:
    """What was asked for and what was found."""

    version: str
    targets: tuple[Target, ...]
    protected: tuple[Cell, ...]
    before: tuple[PressureRow, ...]
    """Pressures of the present spec (``old``) and of the outcome on targets and protected cells."""
    proposals: tuple[Proposal, ...]
    """Best first: most targets turned, then fewest protected pressures lost, least harm, least distance."""
    refused: tuple[Refused, ...]
    num_rows: int


def patch(
    lake: Lake,
    cycles: Sequence[int | None],
    spec: RewardSpec,
    targets: Sequence[Target] | None = None,
    *,
    text: str | None = None,
    limits: Limits | None = None,
    known: Mapping[str, RewardSpec] | None = None,
) -> Patch:
    """Proposals that turn the targets round; without targets those that reward and outcome pull apart (`opposed`).

    `text` is the YAML of the spec, whose comments the proposals keep. `known` are specs by version, by which rows were
    scored. Raises LakeError for a statistic that the bench does not measure.
    """
    return propose(Logged.read(lake, cycles), spec, targets, text=text, limits=limits, known=known)


def propose(
    logged: Logged,
    spec: RewardSpec,
    targets: Sequence[Target] | None = None,
    *,
    text: str | None = None,
    limits: Limits | None = None,
    known: Mapping[str, RewardSpec] | None = None,
    tell: Callable[[float], None] | None = None,
) -> Patch:
    """`patch` of rows that were read already. `tell` hears how far it is, from 0 to 1."""
    also = [target.statistic for target in targets or ()]
    bench = _Bench(
        logged, spec, {**(known or {}), version(spec): spec}, limits or Limits(), text or to_yaml(spec), also=also
    )
    wanted = tuple(bench.opposed() if targets is None else targets)
    bench.aim(wanted)
    changes = bench.changes() if bench.open() else []
    tried = []
    for number, change in enumerate(changes):
        if tell is not None:
            tell(number / (len(changes) + 1))  # putting them together takes about as long as one of them
        tried.append(bench.solve(change))
    proposals = [found for found, _ in tried if found is not None]
    refused = [each for _, some in tried for each in some]
    proposals += bench.together([(change, found) for change, (found, _) in zip(changes, tried, strict=True)])
    unique = list({version(each.spec): each for each in proposals if each.turned}.values())
    unique.sort(key=lambda each: (len(each.unturned), len(each.lost), round(each.honest_hurt or 0.0, 3), each.distance))
    return Patch(
        version=version(spec),
        targets=wanted,
        protected=bench.protected,
        before=bench.before,
        proposals=tuple(unique),
        refused=tuple(refused),
        num_rows=len(logged),
    )


@dataclass(frozen=True)
class Signs:
    """Which way reward and outcome surely push (by `SURE` standard errors); 0 = not sure."""

    reward: Mapping[Cell, int]
    outcome: Mapping[Cell, int]
    opposed: tuple[Target, ...]
    """Cells in which they surely push apart, the surest first; wanted is the outcome's way."""


def signs(logged: Logged, spec: RewardSpec, known: Mapping[str, RewardSpec] | None = None) -> Signs:
    """Of every watched statistic in every slice."""
    bench = _Bench(logged, spec, {**(known or {}), version(spec): spec}, Limits(), to_yaml(spec))
    sure = {(statistic, slice_): bench.sure((statistic, slice_)) for slice_ in SLICES for statistic in WATCHED}
    reward, outcome = ({cell: each[index] for cell, each in sure.items()} for index in (0, 1))
    return Signs(reward, outcome, tuple(bench.opposed()))


def opposed(logged: Logged, spec: RewardSpec, known: Mapping[str, RewardSpec] | None = None) -> tuple[Target, ...]:
    """Cells in which reward and outcome surely push apart, the surest first; wanted is the outcome's way."""
    return signs(logged, spec, known).opposed


def pushing(
    logged: Logged, spec: RewardSpec, cells_: Sequence[Cell], known: Mapping[str, RewardSpec] | None = None
) -> dict[Cell, int]:
    """Which way a spec pushes each cell: 1, -1, or 0 where that is not sure (the 95 % interval holds 0)."""
    paid = pay(logged, spec, {**(known or {}), version(spec): spec})
    statistics = list(dict.fromkeys(statistic for statistic, _ in cells_))
    slices = list(dict.fromkeys(slice_ for _, slice_ in cells_))
    rows = (
        pressure_rows(logged, ["reward"], paid.advantage[:, None], paid.decided, statistics=statistics, slices=slices)
        if cells_
        else []
    )
    found = {(row.statistic, row.slice): row for row in rows}
    return {cell: _side(found.get(cell)) for cell in cells_}


def outcome_pushed(logged: Logged, spec: RewardSpec, known: Mapping[str, RewardSpec] | None = None) -> int:
    """Which way a spec pushes the users' outcome itself: 1, -1, or 0 where that is not sure."""
    paid = pay(logged, spec, {**(known or {}), version(spec): spec})
    outcome = outcome_signal(logged.table)
    chosen = paid.decided & outcome.counted
    if not chosen.any():
        return 0
    level = Behaviours(("outcome",), outcome.values[chosen], np.ones((int(chosen.sum()), 1)))
    found = pressure(paid.advantage[chosen][:, None], level, context(logged, chosen), logged.clusters[chosen])
    low, high = float(found.low[0, 0]), float(found.high[0, 0])
    return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(frozen=True)
class _Change:
    """A change to try: a spec with the terms and rules it will have, and the terms whose weights are free."""

    kind: Kind
    title: str
    spec: RewardSpec
    """New terms at the weight that the library gives them."""
    free: tuple[str, ...]
    reasons: Mapping[str, str]

    def with_spec(self, spec: RewardSpec) -> _Change:
        return replace(self, spec=spec)


class _Bench:
    """The logged rows, what the present spec pays them, and what is wanted."""

    def __init__(
        self,
        logged: Logged,
        spec: RewardSpec,
        known: Mapping[str, RewardSpec],
        limits: Limits,
        text: str,
        *,
        also: Sequence[str] = (),
    ) -> None:
        self._logged, self._spec, self._known, self._limits, self._text = logged, spec, known, limits, text
        # Targets may be about other statistics than those that are watched.
        self._statistics = tuple(dict.fromkeys((*WATCHED, *also)))
        self._behaviours = measured(logged.rows, self._statistics)  # refuses what it does not know
        self._cell, self._members = cells(logged.rows)
        self._now = pay(logged, spec, known)
        outcome = outcome_signal(logged.table)
        self._rows = [
            *self._pressures(["old"], self._now.advantage[:, None], self._now.decided),
            *self._pressures([OUTCOME], outcome.values, outcome.counted),
        ]
        self._sides = {(row.kind, row.statistic, row.slice): row for row in self._rows}
        self._good = self._good_rows()
        self.targets: tuple[Target, ...] = ()
        self.protected: tuple[Cell, ...] = ()
        self.before: tuple[PressureRow, ...] = ()

    def _pressures(
        self, kinds: Sequence[str], signals: Floats, counted: Mask, slices: Sequence[str] = tuple(SLICES)
    ) -> list[PressureRow]:
        return pressure_rows(self._logged, kinds, signals, counted, statistics=self._statistics, slices=slices)

    def _good_rows(self) -> Mask:
        """Rows of which users got something: an outcome above 0; without outcomes, honest edits."""
        outcome = np.asarray(self._logged.table["outcome"].fill_null(float("nan")), dtype=np.float64)
        return outcome > 0 if np.isfinite(outcome).any() else honest_edit(self._logged.rows)

    def sure(self, cell: Cell) -> tuple[int, int]:
        """Sure signs of reward and outcome; 0 = not sure."""
        rows = [self._sides.get((kind, *cell)) for kind in ("old", OUTCOME)]
        signs = [0 if row is None or row.z is None or abs(row.z) < SURE else int(np.sign(row.z)) for row in rows]
        return signs[0], signs[1]

    def opposed(self) -> list[Target]:
        found = []
        for slice_ in SLICES:
            for statistic in WATCHED:
                reward, outcome = self.sure((statistic, slice_))
                if reward * outcome < 0:
                    row = self._sides["old", statistic, slice_]
                    found.append((-abs(row.z or 0.0), Target(statistic, slice_, 1 if outcome > 0 else -1)))
        return [target for _, target in sorted(found, key=lambda each: (each[0], each[1].cell))]

    def aim(self, targets: tuple[Target, ...]) -> None:
        """Takes the targets, and protects every pressure on which reward and outcome agree."""
        self.targets = targets
        aimed = {target.cell for target in targets}
        every = [(statistic, slice_) for slice_ in SLICES for statistic in WATCHED]
        agreed = [cell for cell in every if cell not in aimed and np.prod(self.sure(cell)) > 0]
        self.protected = tuple(agreed)
        self.before = tuple(row for row in self._rows if (row.statistic, row.slice) in {*aimed, *agreed})

    def open(self) -> bool:
        """Whether a target does not point the right way yet, by its 95 % interval: else there is nothing to patch."""
        return any(_side(self._sides.get(("old", *target.cell))) != target.want for target in self.targets)

    # -- what could be changed -------------------------------------------------------------------------------------

    def changes(self) -> list[_Change]:
        """Every single change that is tried."""
        paid = [term.name for term in self._spec.terms if term.weight != 0]
        found = [_Change("weights", "other weights", self._spec, tuple(paid), {})]
        found += [self._without(rule.name) for rule in self._spec.inclusion]
        kinds = {term.kind for term in self._spec.terms if term.weight != 0}
        for remedy in LIBRARY:
            if remedy.term.kind in kinds:
                continue
            added = self._with(remedy)
            found.append(added)
            found += [
                added.with_spec(_weighted(added.spec, {term.name: 0.0}))
                for term in self._spec.terms
                if term.kind == remedy.instead_of and term.weight != 0
            ]
            found += [self._joined([self._without(rule.name), added]) for rule in self._spec.inclusion
                      if remedy.term.kind == rule.condition]  # fmt: skip
        return [_titled(change, self._spec) for change in found]

    def _without(self, name: str) -> _Change:
        kept = tuple(rule for rule in self._spec.inclusion if rule.name != name)
        reason = "what it dropped is trained on, as a negative where the reward makes it one"
        return _Change("rule", "", self._spec.model_copy(update={"inclusion": kept}), (), {name: reason})

    def _with(self, remedy: Remedy) -> _Change:
        taken = {term.name for term in self._spec.terms}
        name = next(name for name in (remedy.term.name, f"{remedy.term.name}_2") if name not in taken)
        term = remedy.term.model_copy(update={"name": name})
        spec = self._spec.model_copy(update={"terms": (*self._spec.terms, term)})
        return _Change("term", "", spec, (name,), {name: remedy.reason})

    def _joined(self, parts: Sequence[_Change]) -> _Change:
        """All changes at once."""
        inclusion = tuple(rule for rule in self._spec.inclusion if all(rule in part.spec.inclusion for part in parts))
        terms = {term.name: term for term in self._spec.terms}
        for part in parts:
            terms |= {term.name: term for term in part.spec.terms if term != terms.get(term.name)
                      and term not in self._spec.terms}  # fmt: skip
        spec = self._spec.model_copy(update={"inclusion": inclusion, "terms": tuple(terms.values())})
        paid = {term.name for term in spec.terms if term.weight != 0}  # one part may unpay what another leaves free
        free = tuple(dict.fromkeys(name for part in parts for name in part.free if name in paid))
        kind: Kind = "rule" if len(parts) == 2 and {part.kind for part in parts} == {"rule", "term"} else "together"
        return _Change(kind, "", spec, free, {name: why for part in parts for name, why in part.reasons.items()})

    # -- how much --------------------------------------------------------------------------------------------------

    def solve(self, change: _Change) -> tuple[Proposal | None, list[Refused]]:
        """The change with the smallest free weights that turn as many targets as it can, replayed."""
        if not self.targets:
            return None, []
        errors = self._limits.errors
        proposal: Proposal | None = None
        refused: list[Refused] = []
        for _ in range(3):
            spec, refused = self._fitted(change, errors)
            if spec is None:
                return None, refused
            proposal = self._replayed(change, spec)
            missed = {each.target for each in refused}
            if all(target in missed for target in proposal.unturned):
                break
            errors *= 1.4  # the spread and the means of the new reward are not those that the programme took
        return proposal, refused

    def _fitted(self, change: _Change, errors: float) -> tuple[RewardSpec | None, list[Refused]]:
        """The spec with its weights; None where nothing changes or no target can be turned."""
        new = {term.name for term in change.spec.terms} - {term.name for term in self._spec.terms}
        terms = [
            term for term in change.spec.terms if term.name in change.free and term.name not in self._limits.frozen
        ]
        names = [*(term.name for term in terms), "all other terms"]
        reference = np.array([*(term.weight for term in terms), 1.0])
        start = np.where([name in new for name in names], 0.0, reference)
        box = self._box(names, reference, new)
        rows, covariances = self._linear(change.spec, [term.name for term in terms])
        guards = []
        for cell in self.protected:
            old = self._sides["old", *cell].value or 0.0
            guards.append(Demand(f"{cell[0]} in {cell[1]} keeps its sign", np.sign(old) * rows[cell],
                                 self._limits.keep * abs(old)))  # fmt: skip
        there = np.array([name not in new for name in names[:-1]] + [False])
        if there.any():
            share = np.where(there, 1 / reference, 0.0) / there.sum()
            guards.insert(0, Demand("the weights keep half their size", share, self._limits.total))
        met: list[Demand] = []
        refused = []
        found = start
        wanted = [
            Demand(str(target), target.want * rows[target.cell], 0.0, covariances[target.cell], errors)
            for target in self.targets
        ]
        at_once = smallest_change(
            start, [*guards, *wanted], names=names, box=box, scale=np.abs(reference), explain=False
        )
        if at_once.weights is not None:
            met, found = wanted, at_once.weights
        for target, demand in zip(self.targets if at_once.weights is None else (), wanted, strict=False):
            answer = smallest_change(
                start,
                [*guards, *met, demand],
                names=names,
                box=box,
                scale=np.abs(reference),
                explain=change.kind == "weights" or len(self.targets) <= _EXPLAINED,
            )
            if answer.weights is None:
                refused.append(Refused(change.title, target, answer.conflict))
            else:
                met.append(demand)
                found = answer.weights
        told = readable(start, found, [*guards, *met], box)
        weights = dict(zip(names[:-1], told[:-1].tolist(), strict=True))
        spec = _weighted(change.spec, weights, drop_unpaid=new)
        unchanged = version(spec) == version(self._spec) or not met
        # A library term that needs no weight is none.
        return (None if unchanged or (new and not new & {term.name for term in spec.terms}) else spec), refused

    def _box(self, names: Sequence[str], reference: Floats, new: set[str]) -> Box:
        reach = np.abs(reference) * self._limits.largest
        low, high = reference - reach, reference + reach
        if self._limits.keep_signs:
            low, high = (
                np.where(reference > 0, np.maximum(low, 0.0), low),
                np.where(reference < 0, np.minimum(high, 0.0), high),
            )
        for index, name in enumerate(names):
            if name in new:  # from nothing to what the library gives it, and beyond
                low[index], high[index] = min(low[index], 0.0), max(high[index], 0.0)
        low[-1] = high[-1] = 1.0
        for index, name in enumerate(names):
            lowest, highest = self._limits.bounds.get(name, (None, None))
            low[index] = max(low[index], -np.inf if lowest is None else lowest)
            high[index] = min(high[index], np.inf if highest is None else highest)
        return Box(low, high)

    def _linear(self, spec: RewardSpec, free: Sequence[str]) -> tuple[dict[Cell, Floats], dict[Cell, Floats]]:
        """Pressure on each cell per unit of each free weight and of all other terms together, and its covariance.

        The covariance comes from the errors of the sums of two: var(a + b) = var(a) + var(b) + 2 cov(a, b).
        """
        paid = pay(self._logged, spec, self._known)
        weight = {term.name: term.weight for term in spec.terms}
        parts = [np.nan_to_num(paid.contributions[name]) / weight[name] for name in free]
        rest = [np.nan_to_num(value) for name, value in paid.contributions.items() if name not in free]
        parts.append(np.sum(rest, axis=0) if rest else np.zeros(len(self._logged)))
        units = [batch_part(part, paid.reward, paid.included, self._logged.cycle) for part in parts]
        size = len(units)
        first, second = np.triu_indices(size, 1)
        signals = np.column_stack([*units, *(units[i] + units[j] for i, j in zip(first, second, strict=True))])
        cells_wanted = {*(target.cell for target in self.targets), *self.protected}
        rows, covariances = {}, {}
        for slice_ in dict.fromkeys(slice_ for _, slice_ in cells_wanted):
            chosen = paid.decided & self._members[slice_][self._cell]
            held = context(self._logged, chosen)
            found = pressure(signals[chosen], self._behaviours.of(chosen), held, self._logged.clusters[chosen])
            for k, statistic in enumerate(self._statistics):
                if (statistic, slice_) not in cells_wanted:
                    continue
                variance = np.nan_to_num(found.error[k]) ** 2
                covariance = np.diag(variance[:size])
                covariance[first, second] = (variance[size:] - variance[first] - variance[second]) / 2
                covariance[second, first] = covariance[first, second]
                rows[statistic, slice_] = np.nan_to_num(found.value[k, :size])
                covariances[statistic, slice_] = covariance
        return rows, covariances

    # -- what comes of it ------------------------------------------------------------------------------------------

    def _replayed(self, change: _Change, spec: RewardSpec) -> Proposal:
        new = pay(self._logged, spec, self._known)
        wanted = {*(target.cell for target in self.targets), *self.protected}
        slices = [slice_ for slice_ in SLICES if any(slice_ == each for _, each in wanted)]
        rows = {
            (row.statistic, row.slice): row
            for row in self._pressures(["new"], new.advantage[:, None], new.decided, slices)
            if (row.statistic, row.slice) in wanted
        }
        turned = tuple(target for target in self.targets if _side(rows.get(target.cell)) == target.want)
        kept = {cell: np.sign(self._sides["old", *cell].value or 0.0) for cell in self.protected}
        pushed = self._good & (self._now.advantage > 0)
        text = rewritten(self._text, spec, why="a patch", reasons=change.reasons)
        return Proposal(
            kind=change.kind,
            title=change.title,
            spec=spec,
            text=text,
            diff="\n".join(difflib.unified_diff(self._text.splitlines(), text.splitlines(), "old", "new", lineterm="")),
            changes=spec_changes(self._spec, spec),
            turned=turned,
            unturned=tuple(target for target in self.targets if target not in turned),
            lost=tuple(cell for cell, sign in kept.items() if _side(rows.get(cell)) != sign),
            predicted=tuple(rows.values()),
            distance=_distance(self._now, new),
            relative_change=_relative_change(self._spec, spec),
            honest_hurt=float((new.advantage[pushed] <= 0).mean()) if pushed.any() else None,
            replay=compare(self._logged, self._spec, spec, known=self._known, pressures=False),
        )

    def together(self, tried: Sequence[tuple[_Change, Proposal | None]]) -> list[Proposal]:
        """Changes that turn some targets each, put together until all are turned or none adds any.

        Once from changes of structure alone, once with other weights among them: these turn much and cost much.
        """
        useful = [(change, found) for change, found in tried if found is not None and found.turned]
        found: list[Proposal] = []
        for some in ([each for each in useful if each[0].kind != "weights"], useful):
            chosen = self._cover(some)
            if len(chosen) < 2:
                continue
            joint = self._joined(chosen)
            paid = tuple(term.name for term in joint.spec.terms if term.weight != 0)
            for change in (
                _titled(joint, self._spec),
                _titled(replace(joint, free=paid), self._spec, ", other weights"),
            ):
                proposal, _ = self.solve(change)
                if proposal is not None:
                    found.append(proposal)
                    if not proposal.unturned:
                        break
        return found

    def _cover(self, useful: Sequence[tuple[_Change, Proposal]]) -> list[_Change]:
        """Changes that turn all that can be turned, each the one that adds most; those that add nothing left out."""
        left, chosen = set(self.targets), list[tuple[_Change, Proposal]]()
        while left and useful:
            best = max(
                useful,
                key=lambda each: (len(left & set(each[1].turned)), -len(each[1].lost), -each[1].distance),
            )
            if not left & set(best[1].turned):
                break
            chosen.append(best)
            left -= set(best[1].turned)
        for each in list(chosen):
            others = [other for other in chosen if other is not each]
            if set(each[1].turned) <= {target for other in others for target in other[1].turned}:
                chosen = others
        return [change for change, _ in chosen]


def _side(row: PressureRow | None) -> int:
    """The sign of a pressure whose interval lies on one side of 0; else 0."""
    if row is None or row.low is None or row.high is None:
        return 0
    return 1 if row.low > 0 else -1 if row.high < 0 else 0


def _weighted(spec: RewardSpec, weights: Mapping[str, float], drop_unpaid: set[str] | None = None) -> RewardSpec:
    """The spec with other weights; terms in `drop_unpaid` whose weight is 0 are left out."""
    terms = tuple(
        term.model_copy(update={"weight": weights.get(term.name, term.weight) + 0.0})
        for term in spec.terms
        if weights.get(term.name, term.weight) != 0 or term.name not in (drop_unpaid or ())
    )
    return parse_spec(to_yaml(spec.model_copy(update={"terms": terms})))  # checked anew, as if a person had written it


def _titled(change: _Change, old: RewardSpec, more: str = "") -> _Change:
    """The change with its name in words."""
    if change.kind == "weights":
        return change
    before = {term.name: term for term in old.terms}
    parts = [f"no rule {rule.name}" for rule in old.inclusion if rule not in change.spec.inclusion]
    parts += [f"{term.name} added" for term in change.spec.terms if term.name not in before]
    parts += [f"{term.name} unpaid" for term in change.spec.terms
              if term.weight == 0 and before.get(term.name, term).weight != 0]  # fmt: skip
    return replace(change, title=", ".join(parts) + more)


def _distance(now: Pay, new: Pay) -> float:
    size = float(np.sqrt((now.advantage**2).mean()))
    return float(np.sqrt(((new.advantage - now.advantage) ** 2).mean())) / size if size else 0.0


def _relative_change(old: RewardSpec, new: RewardSpec) -> float | None:
    before, after = ({term.name: term.weight for term in spec.terms} for spec in (old, new))
    if before.keys() != after.keys() or old.inclusion != new.inclusion:
        return None
    return float(np.sqrt(sum(((after[name] - value) / value) ** 2 for name, value in before.items() if value)))
