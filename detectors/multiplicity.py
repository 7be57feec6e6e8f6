"""Many tests at once, and many tests one after another.

For a fixed family of p-values use libraries: ``scipy.stats.false_discovery_control`` (BH, BY) and
``statsmodels.stats.multitest.multipletests`` (Holm, Bonferroni, BH, BY). Here is what they lack: e-values and levels
that are handed out online.

Which is valid when:

- `e_bh`: any dependence, but at **one common stopping time**. Never feed it running maxima ("it was 40 at some time"):
  the false discovery rate is then not controlled (Tavyrikov, Goeman and de Heide, arXiv 2501.19360). Alarms that
  latch need Bonferroni over e-processes (Ville) instead.
- `e_lond` and `LORD-dep`: any dependence between tests. Consecutive checkpoints share users and weights, so these are
  the ones for a run of checkpoints.
- `LORD++`, `LORD3`, `SAFFRON`, `ADDIS`: **independent** p-values only. `LOND`: independent or positively dependent.
- ``alpha-spending``: any dependence, and bounds the chance of even one false rejection.
- ``LORD3-onlineFDR``: to compare with the R package onlineFDR (2.19.1), not to use. It credits every reward two tests
  late and one that nothing earned (at its test 2), so it is not the published LORD3, which is here under that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Online = Literal["LORD++", "LORD3", "LORD3-onlineFDR", "LORD-dep", "SAFFRON", "ADDIS", "LOND", "alpha-spending"]
ONLINE: tuple[Online, ...] = get_args(Online)


def e_bh(e_values: Floats, alpha: float) -> npt.NDArray[np.bool_]:
    """Which of K e-values are discoveries at false discovery rate alpha; (K,) in, (K,) out.

    The k* largest, k* = max{k : k-th largest >= K / (alpha k)} (Wang and Ramdas 2022). See the module for where it is
    not valid.
    """
    total = len(e_values)
    order = np.argsort(-e_values, kind="stable")
    enough = np.flatnonzero(e_values[order] >= total / (alpha * np.arange(1, total + 1)))
    found = np.zeros(total, dtype=bool)
    if len(enough):
        found[order[: enough[-1] + 1]] = True
    return found


def e_from_p(p_values: Floats, kappa: float | None = None) -> Floats:
    """E-values from p-values: kappa p^(kappa-1), or without kappa its mixture (1 - p + p ln p) / (p ln^2 p).

    Vovk and Wang 2021. Valid for one p-value fixed beforehand, not for the smallest of several looks. p in (0, 1].
    """
    if np.any((p_values <= 0) | (p_values > 1)):
        raise ValueError("p-values lie in (0, 1]")
    if kappa is not None:
        return kappa * p_values ** (kappa - 1)
    log = np.log(p_values)
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = (1 - p_values + p_values * log) / (p_values * log**2)
    return np.where(p_values > 1 - 1e-6, 0.5, mixed)  # its limit at 1, where the formula is 0/0


@dataclass(frozen=True)
class Levels:
    """Test levels in order, and what was rejected."""

    alpha: Floats
    rejected: npt.NDArray[np.bool_]


def e_lond(e_values: Sequence[float], alpha: float) -> Levels:
    """E-LOND: level alpha gamma_t (R + 1), R rejections so far; rejects at 1/level (Xu and Ramdas 2024).

    Valid under any dependence. Its power is low, and the levels dry up over a long quiet time.
    """
    return _run(len(e_values), lambda t, times: _lond(alpha, t, times), lambda t, level: e_values[t - 1] >= 1 / level)


def online(p_values: Sequence[float], method: Online, alpha: float) -> Levels:
    """Levels of an online procedure with the defaults of the R package onlineFDR; see the module for which is valid.

    Raises ValueError for an unknown method.
    """
    if method not in ONLINE:
        raise ValueError(f"no online procedure {method!r}; there are: {', '.join(ONLINE)}")
    p = np.asarray(p_values, dtype=np.float64)
    levels: dict[Online, Callable[[int, list[int]], float]] = {
        "LORD++": lambda t, times: _wealth(alpha, alpha / 10, _gamma, t, times),
        "LORD3": _lord_by_wealth(alpha, _gamma, by_age=True),
        "LORD3-onlineFDR": _lord_by_wealth(alpha, _gamma, by_age=True, late=True),
        "LORD-dep": _lord_by_wealth(alpha, _gamma_dependent, by_age=False),
        "SAFFRON": lambda t, times: _saffron(p, alpha, t, times),
        "ADDIS": lambda t, times: _addis(p, alpha, t, times),
        "LOND": lambda t, times: _lond(alpha, t, times),
        "alpha-spending": lambda t, _: alpha * _gamma(t),
    }
    return _run(len(p), levels[method], lambda t, level: bool(p[t - 1] <= level))


def _run(count: int, level_of: Callable[[int, list[int]], float], rejects: Callable[[int, float], bool]) -> Levels:
    """Tests 1, 2, ... in order; `level_of` is told the times of the rejections so far."""
    times: list[int] = []
    levels = np.empty(count)
    for t in range(1, count + 1):
        levels[t - 1] = level_of(t, times)
        if rejects(t, levels[t - 1]):
            times.append(t)
    rejected = np.zeros(count, dtype=bool)
    rejected[np.array(times, dtype=int) - 1] = True
    return Levels(levels, rejected)


def _gamma(t: int) -> float:
    """Shares of LORD and LOND that add up to 1 (Javanmard and Montanari 2018)."""
    log = np.log(max(t, 2))
    return float(0.07720838 * log / (t * np.exp(np.sqrt(np.log(t)))))


def _gamma_dependent(t: int) -> float:
    return float(0.139307 / (t * np.log(max(t, 2)) ** 3))


def _gamma_saffron(t: int) -> float:
    return float(0.4374901658 / t**1.6)


def _lond(alpha: float, t: int, times: list[int]) -> float:
    return alpha * _gamma(t) * (len(times) + 1)


def _wealth(alpha: float, initial: float, gamma: Callable[[int], float], t: int, times: list[int]) -> float:
    """Initial wealth, what the first rejection earns, and what later ones do, each spent by its age."""
    earned = [initial * gamma(t)]
    earned += [(alpha - initial if j == 0 else alpha) * gamma(t - time) for j, time in enumerate(times)]
    return float(sum(earned))


def _lord_by_wealth(
    alpha: float, gamma: Callable[[int], float], *, by_age: bool, late: bool = False
) -> Callable[[int, list[int]], float]:
    """LORD3 spends by age since the last rejection, LORD-dep by time: of the wealth there was right after it.

    ``late`` books rewards as onlineFDR's LORD3 does; see the module.
    """
    initial = alpha / 10
    reward = alpha - initial
    spent: list[float] = []

    def wealth_after(test: int, times: list[int]) -> float:
        earned = sum(time <= test for time in times)
        if late and test > 0:
            earned = (1 in times) + (test >= 2) + sum(time <= test - 2 for time in times)
        return initial - sum(spent[:test]) + reward * earned

    def level_of(t: int, times: list[int]) -> float:
        last = times[-1] if times else 0
        spent.append(gamma(t - last if by_age else t) * wealth_after(last, times))
        return spent[-1]

    return level_of


def _saffron(p: Floats, alpha: float, t: int, times: list[int]) -> float:
    """Wealth is not spent on candidates (p <= cut): only what lies above the cut makes it age."""
    cut = 0.5
    candidate = p[: t - 1] <= cut

    def age(since: int) -> int:
        return t - since - int(candidate[since:].sum())

    earned = alpha / 2 * _gamma_saffron(age(0))
    earned += sum((alpha / 2 if j == 0 else alpha) * _gamma_saffron(age(time)) for j, time in enumerate(times))
    return float(min(cut, (1 - cut) * earned))


def _addis(p: Floats, alpha: float, t: int, times: list[int]) -> float:
    """SAFFRON that lets large p-values (> discard) pass without ageing."""
    cut, discard = 0.25, 0.5
    kept, candidate = p[: t - 1] <= discard, p[: t - 1] <= cut

    def age(since: int) -> int:
        return 1 + int(kept[since:].sum()) - int(candidate[since:].sum())

    earned = alpha / 2 * _gamma_saffron(age(0))
    earned += sum((alpha / 2 if j == 0 else alpha) * _gamma_saffron(age(time)) for j, time in enumerate(times))
    return float(min(cut, (discard - cut) * earned))
