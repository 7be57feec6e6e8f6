"""What goes together in a cycle, where it did not, or no longer does: a classifier two-sample test of the joint alone.

A classifier is to tell the cycle's interactions from the reference's, and all it sees are products of two columns, each
turned into normal scores *within its own cycle*. Levels and spreads of columns are the same on both sides by
construction, so what it finds is a change of correlations: the agent asks when it is hard, where it asked at random.
It is fitted on two thirds of the users and scored on the rest (no user is on both sides); its held-out AUC is 0.5 where
there is nothing to tell.

Fires when the AUC of the cycle is above what the reference cycles allow at `RATE` (`palomar.detectors.leave_one_out`).
Each of these is told from all the others *and from the cycle*, as the cycle is from them: the numbers share rows, and
only where all share them alike does their scatter tell how far the next one may lie. The pairs of columns are named by
their share of the held-out difference of scores.

Blind to: changes of a single column (drift has those); what needs three columns to show; columns that are nearly
constant in the reference (`RARE`) or known in fewer than a tenth of it; reactions and rewards, which ripen after the
cycle. A yes-or-no column whose rate moved far can move its correlations by that alone: the finding says whether the
columns' own levels moved.
Source: Lopez-Paz and Oquab 2017, "Revisiting classifier two-sample tests"; linear discriminant with Ledoit and Wolf's
shrinkage, since boosted trees saw less of such changes at 500 interactions a cycle (docs/distribution.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from palomar.data.derived import derived
from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.data.observations import BEHAVIOUR
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.leave_one_out import SHORTEST, Beyond, beyond, unready
from palomar.detectors.sampling import FOLDS, sample

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NAME = "joint"
RATE = 5 / 1000
"""False alarms a cycle."""
COLUMNS = (
    "predicted_failure",
    "ambiguity",
    *(name for name in BEHAVIOUR.names if not name.startswith("logged_reward")),
)
"""What is paired: what was asked, as predicted from the request alone, and what the agent did."""
MOST_ROWS = 2_000
"""Of the cycle that is to be told."""
MOST_OF_OTHERS = 500
"""Of each of those that it is to be told from."""
FEWEST_ROWS = 100
"""Of a cycle; with fewer the classifier learns nothing."""
RARE = 0.03
"""Share of a column's known values that must differ from its commonest one."""
KNOWN = 0.1
"""Share of the reference's rows in which a column must be known."""
PAIRS_NAMED = 3
LEAST_SHARE = 0.05
"""Of the difference, for a pair to be named."""
_VERSION = "3"
_FEWEST_BOTH = 30  # rows in which both columns are known, below which a pair says nothing


def _flip(folder: Path, *, last: float, scale: float = 1.0) -> View:
    """Eight cycles in which long answers take long, and one where the correlation is ``last``."""
    cycles = []
    for cycle in range(9):
        rng = np.random.default_rng([7, cycle])
        tokens, noise = rng.standard_normal((2, 300))
        correlation, factor = (last, scale) if cycle == 8 else (0.7, 1.0)
        slow = correlation * tokens + np.sqrt(1 - correlation**2) * noise
        more = {"tokens_out": np.exp(4 + 0.5 * tokens).astype(int), "latency_s": factor * np.exp(2 + 0.5 * slow)}
        cycles.append(rows(cycle, 300, **more))
    return view(folder, cycles)


EXAMPLES = (
    Example("long answers come fast, with both margins as before", lambda folder: _flip(folder, last=-0.7), "fires"),
    Example("all answers take twice as long", lambda folder: _flip(folder, last=0.7, scale=2.0), "clear"),
    Example(
        "too few reference cycles",
        lambda folder: view(folder, [rows(cycle, 200) for cycle in range(SHORTEST)], reference=range(SHORTEST - 1)),
        "not_assessable",
    ),
)


@detector(NAME, examples=EXAMPLES, costly=True)
def joint(seen: View) -> Report:
    """Compare what goes together in the cycle with the reference."""
    if why := unready(seen):
        return Report(NAME, unassessed=(Unassessed("everything", why),))
    assert seen.cycle is not None
    told = _told(seen, seen.cycle)
    if told["why"]:
        return Report(NAME, unassessed=(Unassessed("everything", told["why"]),))
    known = told["usual"]
    result = beyond(told["auc"], known, RATE)
    power = (
        f"a held-out AUC above {result.limit:.3f} would have been seen (0.5: nothing to tell; the reference cycles "
        f"among each other reach {result.usual:.3f}) over {told['num_pairs']} pairs of columns"
    )
    unassessed = tuple(Unassessed(name, why) for name, why in told["left_out"])
    found = (_finding(seen, told, result, known),) if result.out else ()
    return Report(NAME, found, told["num_pairs"], unassessed, power)


def _finding(seen: View, told: Mapping[str, Any], result: Beyond, known: Sequence[float]) -> Finding:
    assert seen.cycle is not None
    since = seen.cycle
    for cycle in reversed([each for each in seen.monitored if each < seen.cycle]):
        earlier = _told(seen, cycle)
        if earlier["why"] or not beyond(earlier["auc"], earlier["usual"], RATE).out:
            break
        since = cycle
    pairs = told["pairs"]
    named = "; ".join(f"{p['one']} with {p['other']} {p['before']:+.2f} -> {p['after']:+.2f}" for p in pairs)
    moved = sorted({name for pair in pairs for name in (pair["one"], pair["other"])} & set(told["moved"]))
    levels = f"the levels of {', '.join(moved)} moved too" if moved else "the levels of these columns did not move"
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"what goes together changed: a classifier that sees no levels tells the cycle's interactions from the "
            f"reference's with AUC {result.value:.3f} (reference cycles among each other {result.usual:.3f}, limit "
            f"{result.limit:.3f}), n={told['n']:,}, first out in cycle {since}; correlations that give it away: "
            f"{named}; {levels}"
        ),
        statistic="auc",
        unit="held-out AUC, 0.5 to 1",
        before=result.usual,
        after=result.value,
        effect=result.value - result.usual,
        test=result.t,
        threshold=result.threshold,
        error_control=(
            f"{RATE * 1000:g} alarms per 1000 cycles: prediction limit of Student's t over {len(known)} reference "
            f"cycles, each against all others"
        ),
        n=told["n"],
        smallest=result.limit - result.usual,
        since=since,
        evidence=Evidence(tuple(told["carrying"]), tuple(told["random"]), tuple(told["counter"])),
        detail={"pairs": pairs, "levels_moved": moved, "reference_auc": list(known)},
    )


# -- one cycle ------------------------------------------------------------------------------------------------------


def _told(seen: View, cycle: int) -> dict[str, Any]:
    """How well the cycle, and each reference cycle, can be told from all the others of them; kept beside the lake."""
    others = [each for each in seen.reference if each != cycle]
    table = derived(
        seen.lake,
        NAME,
        cycle,
        version=f"{_VERSION} {others}",
        parts=[("observations", [*others, cycle])],
        make=lambda: pa.Table.from_pylist([_tell(seen, cycle, others)], _KEPT),
    )
    row: dict[str, Any] = table.to_pylist()[0]
    row["left_out"] = [(each["name"], each["why"]) for each in row["left_out"]]
    return row


_PAIR = pa.struct(
    [
        pa.field("one", pa.string()),
        pa.field("other", pa.string()),
        pa.field("before", pa.float64()),
        pa.field("after", pa.float64()),
        pa.field("share", pa.float64()),  # of the held-out difference of mean scores
    ]
)
_KEPT = pa.schema(
    [
        pa.field("why", pa.string()),  # it could not be done; empty: it could
        pa.field("auc", pa.float64()),
        pa.field("usual", pa.list_(pa.float64())),  # AUCs of the reference cycles
        pa.field("n", pa.int64()),
        pa.field("num_pairs", pa.int64()),
        pa.field("pairs", pa.list_(_PAIR)),
        pa.field("moved", pa.list_(pa.string())),  # columns whose own level left the reference's
        pa.field("left_out", pa.list_(pa.struct([("name", pa.string()), ("why", pa.string())]))),
        *(pa.field(name, pa.list_(pa.string())) for name in ("carrying", "random", "counter")),
    ]
)


@dataclass(frozen=True)
class _Cycle:
    """A cycle's sample: ids (n,), fold of the user (n,), values (n, columns) with NaN where not known."""

    ids: npt.NDArray[np.object_]
    fold: Ints
    values: Floats

    def narrowed(self, columns: Sequence[int], rows: int) -> _Cycle:
        """The first so many rows, which are a sample too, of some columns."""
        return _Cycle(self.ids[:rows], self.fold[:rows], self.values[:rows, columns])


def _tell(seen: View, cycle: int, others: Sequence[int]) -> dict[str, Any]:
    nothing = {"auc": None, "n": 0, "num_pairs": 0}
    empty: dict[str, list[object]] = {name: [] for name in _KEPT.names if pa.types.is_list(_KEPT.field(name).type)}
    nothing |= empty  # type: ignore[arg-type]
    now = _sample(seen, cycle, MOST_ROWS)
    before = [part for part in (_sample(seen, each, MOST_ROWS) for each in others) if len(part.ids) >= FEWEST_ROWS]
    if len(now.ids) < FEWEST_ROWS or len(before) < SHORTEST:
        why = f"{len(now.ids)} interactions, and {len(before)} reference cycles with {FEWEST_ROWS}; {FEWEST_ROWS} and "
        return nothing | {"why": why + f"{SHORTEST} are needed"}
    kept, left_out = _usable(before)
    pairs = list(combinations(range(len(kept)), 2))
    if not pairs:
        return nothing | {"why": "fewer than two columns vary in the reference"}
    whole = [part.narrowed(kept, MOST_ROWS) for part in (*before, now)]
    short = [part.narrowed(kept, MOST_OF_OTHERS) for part in (*before, now)]
    products = [_products(part.values, pairs) for part in whole]
    as_other = [
        _products(part.values, pairs) if len(part.ids) < len(long.ids) else product
        for part, long, product in zip(short, whole, products, strict=True)
    ]

    def held_against_others(one: int) -> tuple[float, Floats, Floats, Floats]:
        """AUC of one part, its rows' held-out scores, each pair's share, and the others' correlations."""
        rest = [each for each in range(len(whole)) if each != one]
        x = np.concatenate([*(as_other[each] for each in rest), products[one]])
        fold = np.concatenate([*(short[each].fold for each in rest), whole[one].fold])
        is_one = np.arange(len(x)) >= len(x) - len(products[one])
        auc, scores, shares = _cross_fitted(x, is_one, fold)
        return auc, scores[is_one], shares, x[~is_one].mean(axis=0)

    auc, scores, shares, earlier = held_against_others(len(before))
    names = [COLUMNS[index] for index in kept]
    order = np.argsort(-scores, kind="stable")
    return {
        "why": "",
        "auc": auc,
        "usual": [held_against_others(one)[0] for one in range(len(before))],
        "n": len(now.ids),
        "num_pairs": len(pairs),
        "pairs": [
            {
                "one": names[pairs[index][0]],
                "other": names[pairs[index][1]],
                "before": float(earlier[index]),
                "after": float(products[-1][:, index].mean()),
                "share": float(shares[index]),
            }
            for index in _named(shares, pairs)
        ],
        "moved": _moved(whole, names),
        "left_out": [{"name": name, "why": why} for name, why in left_out],
        "carrying": now.ids[order[:5]].tolist(),
        "random": now.ids[:2].tolist(),  # the sample is in random order
        "counter": now.ids[order[-1:]].tolist(),
    }


def _sample(seen: View, cycle: int, most: int) -> _Cycle:
    table = sample(seen, cycle, most)
    return _Cycle(
        ids=table["interaction_id"].to_numpy(),
        fold=table["fold"].to_numpy(),
        values=np.stack([table[name].cast(pa.float64()).to_numpy() for name in COLUMNS], axis=1),
    )


def _usable(before: Sequence[_Cycle]) -> tuple[list[int], list[tuple[str, str]]]:
    """Positions of the columns that can be paired, and the others with the reason."""
    kept, left_out = [], []
    pooled = np.concatenate([part.values for part in before])
    for index, name in enumerate(COLUMNS):
        values = pooled[:, index][~np.isnan(pooled[:, index])]
        if len(values) < KNOWN * len(pooled):
            left_out.append((name, f"known in {len(values):,} of {len(pooled):,} reference rows; {KNOWN:.0%} needed"))
            continue
        commonest = np.unique(values, return_counts=True)[1].max()
        if commonest > (1 - RARE) * len(values):
            left_out.append((name, f"{1 - commonest / len(values):.1%} of it vary in the reference; {RARE:.0%} needed"))
            continue
        kept.append(index)
    return kept, left_out


def _products(values: Floats, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Products of normal scores, (n, pairs): their mean over rows is the correlation among the rows that know both."""
    n, num_columns = values.shape
    known = ~np.isnan(values)
    scores = np.zeros((n, num_columns))
    for index in range(num_columns):
        here = known[:, index]
        if not here.any():
            continue
        normal = stats.norm.ppf((stats.rankdata(values[here, index]) - 0.5) / here.sum())
        if (spread := normal.std()) > 1e-9:
            scores[here, index] = (normal - normal.mean()) / spread
    first, second = np.array(pairs).T
    both = (known.T.astype(np.float64) @ known)[first, second]
    weight = np.where(both >= _FEWEST_BOTH, n / np.maximum(both, 1), 0.0)
    products: Floats = scores[:, first] * scores[:, second] * weight
    return products


def _cross_fitted(x: Floats, is_now: npt.NDArray[np.bool_], fold: Ints) -> tuple[float, Floats, Floats]:
    """Held-out AUC (mean over folds by size), held-out scores (n,), and each pair's share of their difference.

    The score is linear, so the difference of its means between cycle and reference is a sum over the pairs, exactly.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.metrics import roc_auc_score
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    scores, parts, areas, sizes = np.zeros(len(x)), np.zeros(x.shape[1]), [], []
    for held_out in range(FOLDS):
        out = fold == held_out
        if len(np.unique(is_now[out])) < 2 or len(np.unique(is_now[~out])) < 2:
            continue  # a fold without users of both sides: few users
        classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=[0.5, 0.5])
        with threadpool_limits(1):  # matrices this small are slower on many threads
            classifier.fit(x[~out], is_now[~out])
        scores[out] = classifier.decision_function(x[out])
        areas.append(roc_auc_score(is_now[out], scores[out]))
        sizes.append(int(out.sum()))
        apart = x[out & is_now].mean(axis=0) - x[out & ~is_now].mean(axis=0)
        parts += classifier.coef_[0] * apart * out.sum()
    total = parts.sum()
    shares = parts / total if abs(total) > 1e-12 else parts
    return float(np.average(areas, weights=sizes)), scores, shares


def _named(shares: Floats, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Positions of the pairs with the largest shares, each column once: columns that are alike would fill the list."""
    named: list[int] = []
    used: set[int] = set()
    for index in np.argsort(-shares).tolist():
        if named and (len(named) == PAIRS_NAMED or shares[index] < LEAST_SHARE):
            break
        if used.isdisjoint(pairs[index]):
            named.append(index)
            used.update(pairs[index])
    return named


def _moved(parts: Sequence[_Cycle], names: Sequence[str]) -> list[str]:
    """Columns whose mean rank in the cycle is out of what the reference cycles' allow, either side, at `RATE`."""
    values = np.concatenate([part.values for part in parts])
    sizes = np.cumsum([len(part.ids) for part in parts])[:-1]
    moved = []
    for index, name in enumerate(names):
        column = values[:, index]
        ranks = np.full(len(column), np.nan)
        known = ~np.isnan(column)
        ranks[known] = stats.rankdata(column[known]) / known.sum()
        means = [float(np.nanmean(part)) for part in np.split(ranks, sizes) if not np.isnan(part).all()]
        if len(means) <= SHORTEST:
            continue
        *usual, now = means
        if beyond(now, usual, RATE / 2).out or beyond(-now, [-each for each in usual], RATE / 2).out:
            moved.append(name)
    return moved
