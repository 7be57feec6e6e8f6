"""What a reward term is: a small registered class that values one thing about each interaction.

A term reads columns of facts and answers, for every row at once, a value and a status:

- ``valid``: the value holds.
- ``not_applicable``: what the term values did not happen (no edit, no question). The term then contributes 0, because
  the spec says so; that is kept apart from a valid 0, which was measured.
- ``waiting``: the value is not known yet and will be, once the horizon has passed.
- ``invalid``: the value should be there and is not, or is no finite number. Never a 0.

To add a term, write one file in ``reward/terms/`` with a class under ``@term("its_kind")``; the folder is walked.
Its docstring says the range, which way is worse, when it is not valid, and how it can be gamed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from palomar.reward.rows import Floats, Mask, Rows

Status = Literal["valid", "not_applicable", "waiting", "invalid"]
STATUSES: tuple[Status, ...] = get_args(Status)
VALID, NOT_APPLICABLE, WAITING, INVALID = range(4)
"""Codes of the statuses: positions in STATUSES."""


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _without_sign_of_zero(value: float) -> float:
    return value + 0.0  # -0.0 + 0.0 is 0.0: equal numbers must give equal hashes of a spec


Number = Annotated[FiniteFloat, BeforeValidator(_not_bool), AfterValidator(_without_sign_of_zero)]
"""A finite number; YAML's ``true`` is none."""
Minutes = Annotated[Number, Field(gt=0)]
Positive = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]


class SpecPart(BaseModel):
    """A part of a reward spec: frozen, and no key beyond those it names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoParams(SpecPart):
    """Parameters of a term that has none."""


@dataclass(frozen=True)
class TermScores:
    """What one term says about every row; all of shape (rows,)."""

    value: Floats
    """Unweighted value; NaN where the status is not ``valid``."""
    status: NDArray[np.uint8]
    """Positions in STATUSES."""
    reason: pa.Array
    """Why the status is not ``valid``, in words; null where it is."""


Case = tuple[Mask, int, str]
"""Which rows, the status they get, and why."""


def by_case(value: Floats, *cases: Case) -> TermScores:
    """Scores from a value per row and the cases in which it does not hold; of several cases the first decides.

    A row under no case whose value is not finite is invalid: a term that forgot a case must not pay.
    """
    all_cases = (*cases, (~np.isfinite(value), INVALID, "has no finite value"))
    which = np.select([mask for mask, _, _ in all_cases], range(1, len(all_cases) + 1), default=0)
    statuses = np.array([VALID, *(status for _, status, _ in all_cases)], dtype=np.uint8)
    reasons = pa.array([None, *(reason for _, _, reason in all_cases)], pa.string())
    return TermScores(
        value=np.where(which == 0, value, np.nan), status=statuses[which], reason=reasons.take(pa.array(which))
    )


P = TypeVar("P", bound=SpecPart)


class Term(Generic[P]):
    """Base of the terms. A subclass gives ``Params`` and `score`, and says in its docstring what it is."""

    kind: ClassVar[str]
    """Name in a spec; set by `term`."""
    Params: type[P]

    def __init__(self, params: P) -> None:
        self.params = params

    def score(self, rows: Rows) -> TermScores:
        """Value and status of every row."""
        raise NotImplementedError


TERMS: dict[str, type[Term[Any]]] = {}
"""Every registered term by kind; filled when ``palomar.reward.terms`` is imported."""

T = TypeVar("T", bound=type[Term[Any]])


def term(kind: str) -> Callable[[T], T]:
    """Registers a term class under `kind`. Raises ValueError where the kind is taken."""

    def register(cls: T) -> T:
        if kind in TERMS:
            raise ValueError(f"two terms are called {kind!r}: {TERMS[kind].__module__} and {cls.__module__}")
        cls.kind = kind
        TERMS[kind] = cls
        return cls

    return register


def with_reason(scores: TermScores, rows: Mask, reason: pa.ChunkedArray) -> TermScores:
    """`scores` whose reason on the masked rows is taken from a column of texts, where that has one."""
    texts = pc.if_else(pa.array(rows), pc.coalesce(reason.combine_chunks(), scores.reason), scores.reason)
    return TermScores(scores.value, scores.status, texts)
