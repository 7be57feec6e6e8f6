"""Flags a reward under which doing nothing pays more than trying.

For: environments that start from a reward of 0 and pay -1 for a failure make the idle answer the better one wherever
failure is likely. This is so before a policy has found it: a few answers are idle by accident.

Idle is an answer without a call, an edit or a question. Fires where idle answers were paid more than the others on
requests likely to fail (predicted failure from 0.6 on; where that is not known, on all), significantly. Pools the
reference cycles so far, and afterwards the last `POOL` cycles.

Errors: `RATE` false alarms per look, one-sided Student t (Welch) with errors clustered by user.

Blind to: idleness that takes another form, such as an empty edit; requests on which nothing had to be done.

Source: huggingface/trl#6427.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import stats

from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.slices import BANDS
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import evidence, exact_sum
from palomar.detectors.detector import Example, View, detector

NAME = "idle-paid"
RATE = 0.001
"""Chance of a false alarm per look."""
POOL = 8
"""Cycles that are looked at together."""
FEWEST, FEWEST_USERS = 20, 10
"""Idle rows, and users with one, that it takes."""
IDLE = "tool_calls = 0 AND edits = 0 AND NOT coalesce(asked, false)"


def _idle(cycle: int, paid: float) -> pa.Table:
    """A cycle with some idle answers that are paid `paid`; failed edits cost 1."""
    table = rows(cycle)
    idle = np.random.default_rng(cycle + 11).random(table.num_rows) < 0.1
    acted: dict[str, Any] = {
        name: np.where(idle, 0, np.asarray(table[name])) for name in ("tool_calls", "edits", "edited", "asked")
    }
    lost = np.asarray(table["edit_lost_s"].is_valid())
    edited = np.asarray(table["edited"])
    reward = np.where(idle, paid, np.where(edited & ~lost, 1.0, np.where(lost, -1.0, -0.2)))
    acted["edited"], acted["asked"] = acted["edited"].astype(bool), acted["asked"].astype(bool)
    acted["tool_calls"] = np.where(idle, 0, np.maximum(acted["tool_calls"], 1))
    return rows(cycle, reward=reward, **acted)


EXAMPLES = [
    Example(
        "doing nothing is worth 0", lambda folder: example_view(folder, [_idle(c, 0.0) for c in range(4)]), "fires"
    ),
    Example("doing nothing costs 1", lambda folder: example_view(folder, [_idle(c, -1.0) for c in range(4)]), "clear"),
    Example(
        "nobody was idle",
        lambda folder: example_view(folder, [rows(c, tool_calls=1) for c in range(4)]),
        "not_assessable",
    ),
]


@detector(NAME, examples=EXAMPLES)
def idle_paid(view: View) -> Report:
    """One finding where idle answers were paid more on requests likely to fail."""
    if view.cycle is None:
        cycles: tuple[int | None, ...] = (None,)
    elif view.cycle in view.reference:
        cycles = tuple(cycle for cycle in view.reference if cycle in view.history)
    else:
        cycles = view.history[-POOL:]
    edge = BANDS["predicted_failure"][0][-1]
    table = view.query(
        f"SELECT coalesce(user_id, conversation_id, interaction_id) AS u, ({IDLE}) AS idle, count(*) AS n, "
        f"{exact_sum('reward')} AS total FROM observations WHERE reward_status = 'valid' AND isfinite(reward) "
        f"AND coalesce(predicted_failure >= {edge}, true) GROUP BY ALL ORDER BY ALL",
        cycles,
    )
    user = np.asarray(table["u"].combine_chunks().dictionary_encode().indices, dtype=np.int64)
    idle, n, total = (table[name].to_numpy(zero_copy_only=False) for name in ("idle", "n", "total"))
    idle = idle.astype(bool)
    count, users = int(n[idle].sum()), len(np.unique(user[idle]))
    if count < FEWEST or users < FEWEST_USERS or n[~idle].sum() < FEWEST:
        why = (
            f"{count} idle answers of {users} users have a reward on requests likely to fail; it takes {FEWEST} of "
            f"{FEWEST_USERS}, and as many others"
        )
        return Report(NAME, unassessed=(Unassessed("reward of doing nothing", why),))
    tried, rested = float(total[~idle].sum() / n[~idle].sum()), float(total[idle].sum() / n[idle].sum())
    influence = np.where(idle, (total - rested * n) / n[idle].sum(), -(total - tried * n) / n[~idle].sum())
    sums = np.bincount(user, weights=influence)
    error = float(np.sqrt((sums**2).sum() * len(sums) / max(len(sums) - 1, 1)))
    threshold = float(stats.t.isf(RATE, users - 1))
    effect = rested - tried
    power = f"idle answers paid {threshold * error:.2f} more than others"
    if effect < threshold * error or effect <= 0:
        return Report(NAME, assessed=1, power=power)
    finding = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"doing nothing was paid {rested:.2f} on requests likely to fail, and trying {tried:.2f} "
            f"({effect:+.2f}, at least {effect - threshold * error:+.2f}), n={count:,} idle answers"
        ),
        statistic="reward of idle answers",
        slice="predicted_failure=high",
        unit="reward",
        before=tried,
        after=rested,
        effect=effect,
        low=effect - threshold * error,
        test=effect / error if error > 0 else None,
        threshold=threshold,
        error_control=f"{RATE:g} false alarms per look, one-sided Student t clustered by user",
        n=count,
        smallest=threshold * error,
        since=cycles[0],
        reading="forewarning",
        evidence=evidence(view, IDLE, "reward_status = 'valid'"),
    )
    return Report(NAME, (finding,), 1, power=power)
