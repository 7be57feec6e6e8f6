"""Tools that look at series of cycle means: three sigma, ruptures, an isolation forest on the vector."""

from __future__ import annotations

import numpy as np

from palomar.app.bench.others import Comparator, Floats, Recording

PENALTIES = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0)
"""Of a change point, times the logarithm of the length: 2 is usual (two numbers more, as in BIC)."""


def _three_sigma(recording: Recording) -> Floats:
    beyond = np.abs(recording.scaled[len(recording.reference) :])
    return np.asarray(np.nanmax(beyond, axis=1), dtype=np.float64)


def _pelt(recording: Recording) -> Floats:
    """The largest penalty with which a change point lies after the reference, the series read anew at each cycle.

    `KernelCPD` with the linear kernel is PELT with squared error, in C.
    """
    import ruptures

    first = len(recording.reference)
    lasting = np.isfinite(recording.scaled).all(axis=0)
    found = np.zeros(len(recording.monitored))
    for values in recording.scaled[:, lasting].T:
        for place in range(len(found)):
            seen = values[: first + place + 1, None]
            fitted = ruptures.KernelCPD(kernel="linear", min_size=2).fit(seen)
            for penalty in PENALTIES:
                breaks = fitted.predict(pen=penalty * np.log(len(seen)))
                if not any(first <= each < len(seen) for each in breaks):
                    break
                found[place] = max(found[place], penalty)
    return found


def _forest(recording: Recording) -> Floats:
    from sklearn.ensemble import IsolationForest

    values = np.where(np.isfinite(recording.scaled), recording.scaled, 0.0)
    first = len(recording.reference)
    forest = IsolationForest(random_state=0).fit(values[:first])
    return np.asarray(-forest.score_samples(values[first:]), dtype=np.float64)


COMPARATORS = (
    Comparator(
        "3-sigma", "numpy", "numpy", _three_sigma, 3.0, "cycle means; standard deviation of the reference cycles"
    ),
    Comparator("ruptures PELT", "ruptures", "ruptures", _pelt, 2.0, "cycle means, scaled; all up to the cycle"),
    Comparator("IsolationForest", "scikit-learn", "sklearn", _forest, 0.5, "vectors of cycle means, scaled"),
)
