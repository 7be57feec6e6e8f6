"""Do the arms hold the share of users they were given? A mismatch means the comparison is broken, not that one won.

For one look ``scipy.stats.chisquare(users, total * shares)`` is the test; this is the one for looking all the time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

PRIOR = 100.0
"""How sharply the alternative is centred on the intended shares, in users."""


def e_value(counts: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """E-process against "arms are drawn with these shares": (looks, arms) of users new at each look -> (looks,).

    Bayes factor of a Dirichlet-multinomial centred on the shares (Lindon and Malek 2022); alarm at 1/alpha. Users must
    be assigned independently: count each once, not each of their interactions.
    """
    seen = np.cumsum(counts, axis=0)
    prior = PRIOR * shares
    log = special.gammaln(prior + seen).sum(axis=1) - special.gammaln(prior).sum()
    log += special.gammaln(PRIOR) - special.gammaln(PRIOR + seen.sum(axis=1))
    factor: npt.NDArray[np.float64] = np.exp(log - (seen * np.log(shares)).sum(axis=1))
    return factor
