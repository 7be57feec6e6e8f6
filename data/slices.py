"""Where a behaviour is looked at: slices of the interactions by how hard and how vague the request is."""

from __future__ import annotations

from collections.abc import Mapping

ALL = "all"
"""The slice that holds everything."""

BANDS: Mapping[str, tuple[tuple[float, ...], tuple[str, ...]]] = {
    "predicted_failure": ((0.4, 0.6), ("low", "mid", "high")),
    "ambiguity": ((0.5,), ("clear", "vague")),
}
"""Inner edges and names of the bands of a probability; a band holds its lower edge. Unions of the ledger's strata."""

FINE: Mapping[str, tuple[float, ...]] = {"predicted_failure": (0.2, 0.4, 0.6, 0.8), "ambiguity": (0.25, 0.5, 0.75)}
"""Inner edges of the finest cells; the bands' edges are among them."""

SLICES: Mapping[str, Mapping[str, str]] = {
    ALL: {},
    "predicted_failure=low": {"predicted_failure": "low"},
    "predicted_failure=mid": {"predicted_failure": "mid"},
    "predicted_failure=high": {"predicted_failure": "high"},
    "ambiguity=clear": {"ambiguity": "clear"},
    "ambiguity=vague": {"ambiguity": "vague"},
    "predicted_failure=high,ambiguity=clear": {"predicted_failure": "high", "ambiguity": "clear"},
    "predicted_failure=high,ambiguity=vague": {"predicted_failure": "high", "ambiguity": "vague"},
}
"""Bands by slice. A hole for hard requests alone does not show in `ALL`."""
