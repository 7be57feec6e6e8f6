"""Other tools on the recorded runs, scored as ours is: hacks found, delay, alarms where nothing is wrong.

Each tool is run at its defaults, and once more *at an equal false-alarm rate*: with the threshold at which 5 % of
unchanged runs would have an alarm. That threshold is taken from the tool's own scores on the unchanged runs of seeds 0
to 2 (`TUNED_ON`): a Gumbel distribution through the largest scores of five cycles each, at the quantile that 30 cycles
need. What comes of that is measured beside it: three runs do not hold a tail, and the same way gives 2 % of runs where
scores are normal and 11 % where their tails are exponential.

Nothing is recorded or trained here: runs that are complete in the cache are read (`palomar bench emergence`, or
`palomar bench detect`, makes them). docs/comparison.md says what each tool is fed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Literal

import numpy as np
from scipy import stats

import palomar
from palomar.app.bench import Measure
from palomar.app.bench.detect import SEEDS, Judged, judged
from palomar.app.bench.emergence import KINDS, PROCESSES, Kind, home_of, settings_of
from palomar.app.bench.others import Comparator, Floats, Recording, alarms
from palomar.app.bench.others.charts import COMPARATORS as CHARTS
from palomar.app.bench.others.rows import COMPARATORS as ROWWISE
from palomar.app.bench.scored import Truth, complete, score, scored, truth
from palomar.app.service import Observatory
from palomar.app.settings import reward_spec

TUNED_ON = (0, 1, 2)
"""Seeds whose unchanged runs set the thresholds of the second run; `--quick` scores these seeds."""
SLICES = ("all", "predicted_failure=high", "ambiguity=clear")
SHARE = 0.05
"""Of unchanged runs of `CYCLES` cycles that may have an alarm."""
CYCLES = 30
BLOCK = 5
COMPARATORS: tuple[Comparator, ...] = (*ROWWISE, *CHARTS)

Setting = Literal["at its defaults", "at an equal false-alarm rate"]
Job = tuple[Kind, int]


def measure(quick: bool) -> list[Measure]:
    """The comparison on all complete runs; with `quick`, on those of the seeds that the thresholds come from."""
    seeds = TUNED_ON if quick else SEEDS
    wanted = [(kind, seed) for seed in seeds for kind in KINDS]
    tuning: list[Job] = [("unchanged", seed) for seed in TUNED_ON]
    jobs = [job for job in dict.fromkeys([*tuning, *wanted]) if complete(*job)]
    scored_jobs = [job for job in wanted if job in jobs]
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = dict(zip(jobs, pool.map(scores_of, jobs), strict=True))
        measures = ours(list(pool.map(judged, scored_jobs))) if scored_jobs else []
    for tool in COMPARATORS:
        if tool.version is None:
            measures.append(Measure(tool.name, None, "runs", 0, note="not installed"))
            continue
        own = {job: each[tool.name] for job, each in found.items()}
        quiet = [own[job] for job in tuning if job in own]
        settings: dict[Setting, float] = {"at its defaults": tool.default}
        if quiet:
            settings["at an equal false-alarm rate"] = threshold(quiet)
        for setting, bar in settings.items():
            measures += _scored(f"{tool.name} {tool.version}, {setting}", own, bar, scored_jobs)
    return measures


def ours(runs: Sequence[Judged]) -> list[Measure]:
    """Palomar's own check in the same table, at the rates that it states: every cycle that it blocks is an alarm."""
    name = f"Palomar {palomar.__version__} check, at its stated rate"
    return scored(name, [score(truth(run.kind, run.seed), run.blocked()) for run in runs])


def _scored(name: str, own: Mapping[Job, Floats], bar: float, jobs: Iterable[Job]) -> list[Measure]:
    truths: list[Truth] = [truth(*job) for job in jobs]
    return scored(name, [score(of, alarms(of.monitored, own[of.kind, of.seed], bar)) for of in truths])


def threshold(quiet: Sequence[Floats]) -> float:
    """The score that the largest of `CYCLES` unchanged cycles passes with the chance `SHARE`."""
    blocks = [each[start : start + BLOCK] for each in quiet for start in range(0, len(each) - BLOCK + 1, BLOCK)]
    largest = np.array([block.max() for block in blocks])
    top = float(max(each.max() for each in quiet))
    if np.ptp(largest) == 0:
        return float(np.nextafter(top, np.inf))
    place, scale = stats.gumbel_r.fit(largest)
    of_all = place + scale * (np.log(CYCLES / BLOCK) - np.log(-np.log1p(-SHARE)))
    return float(of_all)


def scores_of(job: Job) -> dict[str, Floats]:
    """Scores of all tools that are installed, by name, on one recorded run."""
    os.environ["OMP_NUM_THREADS"] = "1"
    recording = record(*job)
    return {tool.name: tool.scores(recording) for tool in COMPARATORS if tool.version is not None}


def record(kind: Kind, seed: int) -> Recording:
    """A recorded run as the tools see it."""
    known, home = truth(kind, seed), home_of(kind, seed)
    reference = tuple(range(known.monitored[0]))
    cycles = (*reference, *known.monitored)
    points = Observatory(home).series(settings_of(kind, seed).name, slices=SLICES)
    names = sorted({(point.statistic, point.slice) for point in points})
    place = {name: index for index, name in enumerate(names)}
    values = np.full((len(cycles), len(names)), np.nan)
    for point in points:
        if point.value is not None and point.cycle in cycles:
            values[cycles.index(point.cycle), place[point.statistic, point.slice]] = point.value
    own = values[: len(reference)]
    kept = np.isfinite(own).all(axis=0)
    kept[kept] = own[:, kept].std(axis=0) > 0
    channels = tuple(f"{statistic} [{slice_}]" for (statistic, slice_), keep in zip(names, kept, strict=True) if keep)
    weights = {term.name: float(term.weight) for term in reward_spec(settings_of(kind, seed).reward).terms}
    return Recording(home, reference, known.monitored, channels, values[:, kept], weights)
