"""Interactions that do what none of the reference did: for surfacing what nobody has thought of.

Four kinds, each counted over the whole cycle and shown by its strangest interactions, with what they are alone in:

- ``calls``: a step from one tool call to the next (or to the end) that never came before, a new tool among them;
- ``combination``: a set of behaviours that never came together;
- ``range``: a number beyond the largest or below the smallest of the reference;
- ``isolation``: lonelier in an isolation forest (Liu et al. 2008) than every row of the reference, on a sample.

A first time is no news: something new comes in every cycle. A kind fires when it is commoner than in the reference
cycles, each held against the others, by more than `palomar.detectors.leave_one_out` allows; `RATE` is split over the
four. "Never before" is "not in the reference": what came after it and stayed is told again in every cycle.

Blind to: what the reference did already, however bad; single strange interactions at the usual rate of strange ones
(signatures are for those); the texts themselves (see ``texts``); reactions and rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from palomar.data.derived import derived
from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.data.nested import Flat, among
from palomar.data.observations import BEHAVIOUR
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.leave_one_out import SHORTEST, TooMany, too_many, unready
from palomar.detectors.sampling import sample

Floats = npt.NDArray[np.float64]

NAME = "anomaly-interactions"
RATE = 5 / 1000
"""False alarms a cycle over all kinds."""
SHOWN = 5
"""Interactions a kind."""
NUMBERS = tuple(
    field.name
    for field in BEHAVIOUR
    if not pa.types.is_boolean(field.type)
    and not pa.types.is_string(field.type)
    and not field.name.startswith("logged_reward")
)
FLAGS: Mapping[str, str] = {
    "edited": "edited",
    "asked": "asked",
    "edited tests": "tests_edited",
    "cut off": "truncated",
    **{
        f"{kind.replace('_', ' ')} call": f"invalid_{kind} > 0"
        for kind in ("malformed", "unparsed", "unknown_tool", "schema", "rejected")
    },
    "call failed": "calls_failed > 0",
    "call timed out": "calls_timed_out > 0",
    "call refused": "calls_refused > 0",
    "edit failed": "edits_failed > 0",
    "several files": "files_edited > 1",
    "more functions": "functions_after > functions_before",
    "no call": "tool_calls = 0",
    "many calls": "tool_calls > 10",
    "tests fail": "tests_passed < tests_run",
}
"""Behaviours that a combination is made of, as SQL over ``observations``; unknown is no."""
_FOREST_ROWS = 500  # of each other cycle
_FOREST_NOW = 2_000
_VERSION = "3"
_LONGEST = 60  # characters of a tool's name that are kept: it is the agent's text


def _invented(folder: Path) -> View:
    """The last cycle has a dozen interactions that time out, refuse and edit several files at once."""
    cycles = [rows(cycle, 300) for cycle in range(9)]
    odd = np.arange(300) < 12
    last = rows(8, 300, calls_timed_out=odd.astype(int), calls_refused=odd.astype(int), tool_calls=1 + 90 * odd)
    return view(folder, [*cycles[:8], last])


def _outside(folder: Path) -> View:
    whole = view(folder, [rows(0, 50)])
    return View(whole.lake, None)


EXAMPLES = (
    Example("a dozen interactions do what none did", _invented, "fires"),
    Example("as strange as ever", lambda folder: view(folder, [rows(cycle, 300) for cycle in range(9)]), "clear"),
    Example("logs from outside a loop", _outside, "not_assessable"),
)


@dataclass(frozen=True)
class _Strange:
    """What one kind found in a cycle."""

    count: int
    n: int
    first: tuple[tuple[str, str], ...]
    """The strangest: interaction id, and what it is alone in."""


@detector(NAME, examples=EXAMPLES, costly=True)
def anomaly_interactions(seen: View) -> Report:
    """Count what the cycle's interactions do that the reference's did not."""
    if why := unready(seen):
        return Report(NAME, unassessed=(Unassessed("everything", why),))
    assert seen.cycle is not None
    findings, unassessed, power = [], [], []
    for kind, count in KINDS.items():
        usual = [count(seen, cycle, _others(seen, cycle)) for cycle in seen.reference]
        now = count(seen, seen.cycle, seen.reference)
        if now.n == 0 or sum(each.n > 0 for each in usual) < SHORTEST:
            why = f"nothing is stored of it in the cycle, or in all but {SHORTEST - 1} reference cycles"
            unassessed.append(Unassessed(kind, why))
            continue
        held = [each for each in usual if each.n > 0]
        result = too_many(now.count, now.n, [e.count for e in held], [e.n for e in held], RATE / len(KINDS))
        power.append(f"{result.smallest} of {now.n:,} by {kind} (the reference's rate: {result.expected:.1f})")
        if result.out:
            findings.append(_finding(seen, kind, now, result))
    return Report(NAME, tuple(findings), len(power), tuple(unassessed), _seen_from(power))


def _seen_from(power: Sequence[str]) -> str:
    return f"would have been seen: {'; '.join(power)}" if power else ""


def _finding(seen: View, kind: str, now: _Strange, result: TooMany) -> Finding:
    shown = "; ".join(f"{interaction} {what}" for interaction, what in now.first[:2])
    usual = seen.query("SELECT interaction_id FROM observations ORDER BY hash(interaction_id) LIMIT 2")
    return Finding(
        detector=NAME,
        severity="notes",
        sentence=(
            f"{now.count:,} of {now.n:,} {_WORDS[kind]}, where {result.expected:.1f} were to be expected and "
            f"{result.smallest:,} are too many; the strangest: {shown}"
        ),
        statistic=kind,
        unit="share",
        before=result.expected / now.n,
        after=now.count / now.n,
        effect=(now.count - result.expected) / now.n,
        test=float(now.count),
        threshold=float(result.smallest - 1),
        error_control=(
            f"{RATE * 1000:g} alarms per 1000 cycles over {len(KINDS)} kinds: prediction limit of the count, each "
            f"reference cycle against the others"
        ),
        n=now.n,
        smallest=result.smallest / now.n,
        evidence=Evidence(
            tuple(interaction for interaction, _ in now.first), tuple(usual["interaction_id"].to_pylist())
        ),
        detail={"alone_in": [list(each) for each in now.first]},
    )


_WORDS = {
    "calls": "steps from one tool call to the next never came in the reference",
    "combination": "interactions combine behaviours that never came together in the reference",
    "range": "interactions go beyond the reference's range",
    "isolation": "interactions (a sample) are lonelier than every one of the reference",
}


def _others(seen: View, cycle: int) -> tuple[int, ...]:
    return tuple(each for each in seen.reference if each != cycle)


# -- groups that were never seen: combinations and calls ------------------------------------------------------------

_GROUPS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("ids", pa.list_(pa.string())),  # a few interactions of it
    ]
)


def _never_seen(groups: Callable[[View, int], pa.Table], seen: View, cycle: int, others: Sequence[int]) -> _Strange:
    known = pa.chunked_array([groups(seen, other)["key"].combine_chunks() for other in others], pa.string())
    table = groups(seen, cycle)
    n = pc.sum(table["count"]).as_py() or 0
    new = table.filter(pc.invert(pc.is_in(table["key"], value_set=known)))
    # The rarest first: what came once is stranger than what has become a habit.
    listed = new.sort_by([("count", "ascending"), ("key", "ascending")]).slice(0, SHOWN).to_pylist()
    first = tuple((row["ids"][0], f"is alone in: {row['key']}") for row in listed)
    return _Strange(pc.sum(new["count"]).as_py() or 0, n, first)


def _combinations(seen: View, cycle: int) -> pa.Table:
    words = ", ".join(f"CASE WHEN {sql} THEN '{word}' END" for word, sql in FLAGS.items())
    sql = f"""
        SELECT coalesce(nullif(concat_ws(' + ', {words}), ''), 'nothing') AS key, count(*) AS count,
            list_sort(min(interaction_id, {SHOWN})) AS ids
        FROM observations GROUP BY 1 ORDER BY 1
    """
    return _kept(seen, "combinations", cycle, "observations", lambda: seen.query(sql, [cycle]).cast(_GROUPS))


def _calls(seen: View, cycle: int) -> pa.Table:
    """Steps from call to call: ``start > read``, ``read > edit``, ``edit > end``."""
    return _kept(seen, "calls", cycle, "interactions", lambda: _counted_calls(seen, cycle))


def _counted_calls(seen: View, cycle: int) -> pa.Table:
    parts = seen.lake.steady(("interactions",), lambda: [_transitions(table) for table in _call_leaves(seen, cycle)])
    if not parts:
        return _GROUPS.empty_table()
    sql = f"""
        SELECT key, count(*) AS count, list_sort(min(interaction_id, {SHOWN})) AS ids
        FROM steps GROUP BY key ORDER BY key
    """
    return seen.lake.query(sql, steps=pa.concat_tables(parts)).cast(_GROUPS)


def _call_leaves(seen: View, cycle: int) -> Iterator[pa.Table]:
    step = "steps.list.element"
    leaves = ["interaction_id", f"{step}.author", *(f"{step}.tool_calls.list.element.{n}" for n in _CALL)]
    for path in seen.lake.files("interactions", [cycle]):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=leaves):
                yield pa.Table.from_batches([batch])


_CALL = ("name", "invalidity")


def _transitions(table: pa.Table) -> pa.Table:
    """One row per step between calls of an interaction, the first and the last included."""
    steps = Flat.of(table["steps"].combine_chunks())
    calls = steps.take(among(steps["author"], "agent")).children("tool_calls")
    valid = pc.utf8_slice_codeunits(pc.coalesce(calls["name"], "unnamed"), 0, _LONGEST)
    # An invalid call goes by its kind: what it calls itself may be anything.
    kind = pc.binary_join_element_wise(calls["invalidity"], "call", " ")
    labels = pc.if_else(pc.is_null(calls["invalidity"]), valid, kind)
    names = labels.to_numpy(zero_copy_only=False)
    ids = table["interaction_id"].to_numpy()
    is_first = np.r_[True, calls.row[1:] != calls.row[:-1]] if len(calls) else np.zeros(0, dtype=bool)
    is_last = np.r_[is_first[1:], True] if len(calls) else is_first
    before = np.where(is_first, "start", np.roll(names, 1)) if len(calls) else names
    silent = np.setdiff1d(np.arange(calls.num_rows), calls.row)
    row = np.concatenate([calls.row, calls.row[is_last], silent])
    left = pa.array(np.concatenate([before, names[is_last], np.full(len(silent), "start")]), pa.string())
    right = pa.array(np.concatenate([names, np.full(is_last.sum() + len(silent), "end")]), pa.string())
    return pa.table({"interaction_id": ids[row], "key": pc.binary_join_element_wise(left, right, " > ")})


def _kept(seen: View, name: str, cycle: int, table: Any, make: Callable[[], pa.Table]) -> pa.Table:
    return derived(seen.lake, name, cycle, version=_VERSION, parts=[(table, [cycle])], make=make)


# -- numbers beyond the reference's -----------------------------------------------------------------------------------

_STRANGE = pa.schema(
    [
        pa.field("count", pa.int64()),
        pa.field("n", pa.int64()),
        pa.field("ids", pa.list_(pa.string())),
        pa.field("what", pa.list_(pa.string())),
    ]
)


def _beyond_range(seen: View, cycle: int, others: Sequence[int]) -> _Strange:
    return _counted(seen, "range", cycle, others, lambda: _count_beyond_range(seen, cycle, others))


def _count_beyond_range(seen: View, cycle: int, others: Sequence[int]) -> _Strange:
    limits: dict[str, tuple[float, float]] = {}
    parts = [_extremes(seen, other) for other in others]
    for name in NUMBERS:
        known = [limit for part in parts if (limit := part[name]) is not None]
        if known:
            limits[name] = (min(low for low, _ in known), max(high for _, high in known))
    now = _extremes(seen, cycle)
    n = seen.query("SELECT count(*) AS n FROM observations", [cycle])["n"][0].as_py()
    passed = [name for name, (low, high) in limits.items() if (own := now[name]) and (own[0] < low or own[1] > high)]
    if not passed:
        return _Strange(0, n if limits else 0, ())
    limits = {name: limits[name] for name in passed}  # only columns that are passed somewhere are read
    # How far out, in widths of the reference's range, on its better side; NULL compares as not out.
    far = {
        name: f"greatest({low!r} - {name}, {name} - {high!r}) / {max(high - low, 1.0)!r}"
        for name, (low, high) in limits.items()
    }
    out = " OR ".join(f"coalesce({sql} > 0, false)" for sql in far.values())
    columns = ", ".join(f"{name}::DOUBLE AS {name}, {sql} AS far_{name}" for name, sql in far.items())
    furthest = f"greatest({', '.join(f'far_{name}' for name in far)}, 0)"
    with seen.lake.connect(["observations"], [cycle]) as connection:
        counted = connection.execute(f"SELECT count(*) FROM observations WHERE {out}").fetchone()
        first = connection.execute(
            f"SELECT * FROM (SELECT interaction_id, {columns} FROM observations WHERE {out}) "
            f"ORDER BY {furthest} DESC, interaction_id LIMIT {SHOWN}"
        ).to_arrow_table()
    assert counted is not None
    return _Strange(counted[0], n, tuple(_alone(row, limits) for row in first.to_pylist()))


def _alone(row: Mapping[str, Any], limits: Mapping[str, tuple[float, float]]) -> tuple[str, str]:
    out = sorted((name for name in limits if (row[f"far_{name}"] or 0) > 0), key=lambda name: -row[f"far_{name}"])
    said = (f"{name} {row[name]:.4g} (reference {limits[name][0]:.4g} to {limits[name][1]:.4g})" for name in out[:3])
    return row["interaction_id"], "is alone in: " + ", ".join(said)


def _extremes(seen: View, cycle: int) -> dict[str, tuple[float, float] | None]:
    listed = ", ".join(f"min({n})::DOUBLE AS low_{n}, max({n})::DOUBLE AS high_{n}" for n in NUMBERS)
    sql = f"SELECT {listed} FROM observations"
    row = _kept(seen, "extremes", cycle, "observations", lambda: seen.query(sql, [cycle])).to_pylist()[0]
    return {n: None if row[f"low_{n}"] is None else (row[f"low_{n}"], row[f"high_{n}"]) for n in NUMBERS}


def _counted(seen: View, name: str, cycle: int, others: Sequence[int], make: Callable[[], _Strange]) -> _Strange:
    """What a kind found in a cycle next to others, kept beside the lake."""

    def table() -> pa.Table:
        made = make()
        ids, what = [interaction for interaction, _ in made.first], [each for _, each in made.first]
        return pa.table({"count": [made.count], "n": [made.n], "ids": [ids], "what": [what]}, _STRANGE)

    kept = derived(
        seen.lake,
        name,
        cycle,
        version=f"{_VERSION} {list(others)}",
        parts=[("observations", [*others, cycle])],
        make=table,
    )
    row = kept.to_pylist()[0]
    return _Strange(row["count"], row["n"], tuple(zip(row["ids"], row["what"], strict=True)))


# -- lonely rows ------------------------------------------------------------------------------------------------------


def _lonely(seen: View, cycle: int, others: Sequence[int]) -> _Strange:
    return _counted(seen, "isolation", cycle, others, lambda: _count_lonely(seen, cycle, others))


def _count_lonely(seen: View, cycle: int, others: Sequence[int]) -> _Strange:
    from sklearn.ensemble import IsolationForest

    now, ids = _amounts(seen, cycle, _FOREST_NOW)
    before = np.concatenate([_amounts(seen, other, _FOREST_ROWS)[0] for other in others])
    if not len(now) or not len(before):
        return _Strange(0, 0, ())
    middle = np.array(
        [np.median(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0.0 for column in before.T]
    )
    now, before = (np.where(np.isnan(part), middle, part) for part in (now, before))
    forest = IsolationForest(n_estimators=64, max_samples=256, random_state=0).fit(before)
    lonely, usual = -forest.score_samples(now), -forest.score_samples(before)
    out = lonely > usual.max()
    first = np.argsort(-lonely, kind="stable")[: min(SHOWN, int(out.sum()))]
    return _Strange(int(out.sum()), len(now), tuple((ids[index], _rarest(now[index], before)) for index in first))


def _rarest(row: Floats, before: Floats) -> str:
    """The three numbers in which a row lies farthest in a tail of the reference."""
    share = np.minimum((before >= row).mean(axis=0), (before <= row).mean(axis=0))
    said = (
        f"{NUMBERS[index]} {row[index] ** 2:.4g} ({share[index]:.1%} of the reference as far out)"
        for index in np.argsort(share, kind="stable")[:3]
    )
    return "is loneliest in: " + ", ".join(said)


def _amounts(seen: View, cycle: int, most: int) -> tuple[Floats, list[str]]:
    """Roots of the numbers, (rows, numbers), NaN where not known.

    A forest cuts evenly between the extremes: as they are, one huge amount would take all cuts; logs hide large ones.
    """
    table = sample(seen, cycle, most)
    values = np.stack([table[name].cast(pa.float64()).to_numpy() for name in NUMBERS], axis=1)
    return np.sqrt(np.maximum(values, 0)), table["interaction_id"].to_pylist()


KINDS: Mapping[str, Callable[[View, int, Sequence[int]], _Strange]] = {
    "calls": lambda seen, cycle, others: _never_seen(_calls, seen, cycle, others),
    "combination": lambda seen, cycle, others: _never_seen(_combinations, seen, cycle, others),
    "range": _beyond_range,
    "isolation": _lonely,
}
