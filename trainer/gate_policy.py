"""What a gate asks for, as a YAML file: which evidence there must be, what loss is harmless, which errors are held.

Two come with Palomar: ``demo``, for a loop that has evaluation suites and the check of its cycles and no experiment,
and ``production``, for a pipeline with an A/B test. What a policy names and nobody measured holds the candidate.

The version is a hash of what the policy says, defaults filled in; comments and layout do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from palomar.data.config import KeyPath, parse_yaml, validated
from palomar.data.errors import ConfigError
from palomar.data.schema import content_id

FOLDER = Path(__file__).with_name("policies")

Against = Literal["champion", "anchor", "milestone"]
"""``champion``: who serves. ``anchor``: a checkpoint that is never changed, so that small losses cannot add up.
``milestone``: the last one that was promoted as improved, so that small gains can."""

Positive = Annotated[float, Field(gt=0)]
Error = Annotated[float, Field(gt=0, lt=0.5)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Margins(_Strict):
    """How much worse a metric may be, in its own unit (0.02 of a share is 2 points); absent: not compared with it."""

    champion: Positive | None = None
    anchor: Positive | None = None

    @model_validator(mode="after")
    def _asks(self) -> Margins:
        if self.champion is None and self.anchor is None:
            raise PydanticCustomError("margins", "needs a margin against the champion, the anchor, or both")
        return self

    def items(self) -> list[tuple[Against, float]]:
        """The comparisons that are asked for."""
        given: list[tuple[Against, float | None]] = [("champion", self.champion), ("anchor", self.anchor)]
        return [(against, margin) for against, margin in given if margin is not None]


class ShiftMargins(Margins):
    """The same for an experiment's metric."""

    relative: bool = False
    """Margins are shares of the control's value: 0.02 = 2 % of what it is."""


class Validity(_Strict):
    """Conditions without which a cycle's data say nothing."""

    ledger: bool = True
    """The sample ledger of the cycle that trained the candidate is there and adds up."""
    digests: bool = True
    """The candidate on disk is the one that was registered, file by file."""
    max_lag: Annotated[int, Field(ge=0)] | None = 1
    """Oldest policy, in cycles back, whose samples it was trained on; null: not asked."""
    reward_valid_share: Share | None = 0.98
    """Of the samples offered to the update, those whose scorers did not fail; null: not asked."""
    reward_known_share: Share | None = 0.8
    """Of the samples offered, those whose reward was known by then; null: not asked."""


class Checked(_Strict):
    """What detectors must have said."""

    cycle: bool = True
    """The check of the cycle that trained the candidate was made and could be assessed."""
    candidate: bool = True
    """So was the check of the candidate beside its champion (`palomar gate --check` makes both)."""


class SuitePolicy(_Strict):
    """One evaluation suite, run on the same tasks by both sides."""

    guardrails: dict[str, Margins] = {}
    """Metrics that must not be worse."""
    two_way: dict[str, Margins] = {}
    """Metrics for which more is no better than less: they must be the same within the margin."""
    must_pass: dict[str, tuple[str, ...]] = {}
    """Metric -> tasks on which it must be 1."""
    min_tasks: Annotated[int, Field(ge=2)] = 50
    min_clusters: Annotated[int, Field(ge=2)] = 10
    """Families of tasks; with fewer, nothing can be said."""


class ExperimentPolicy(_Strict):
    """An A/B test in production (docs/experiments.md)."""

    guardrails: dict[str, ShiftMargins] = {}
    two_way: dict[str, ShiftMargins] = {}


class Success(_Strict):
    """A metric of which the candidate may be better, and than what."""

    metric: str
    suite: str | None = None
    """The suite it is of; absent: the experiment's."""
    against: Against = "champion"


class Errors(_Strict):
    """Chances of a wrong answer, each per candidate."""

    guardrail: Error = 0.05
    """To promote though one guardrail is worse by its margin."""
    equivalence: Error = 0.05
    """The same of a two-way metric."""
    success: Error = 0.05
    """To say "improved" though no success metric is; shared by all of them."""
    deterioration: Error = 0.01
    """To block over the experiment though nothing is worse; shared by its metrics."""
    suites: Error = 0.01
    """To block over the suites though nothing is worse; shared by their metrics (Holm)."""


class Policy(_Strict):
    """A gate's policy."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    anchor: str = "base"
    """Checkpoint that is never changed: ``base``, the run's first, or an id."""
    validity: Validity = Validity()
    check: Checked = Checked()
    incidents: bool = True
    """No open incident of the run blocks."""
    suites: dict[str, SuitePolicy] = {}
    experiment: ExperimentPolicy | None = None
    """Absent: there is none, and none is asked for."""
    success: tuple[Success, ...] = ()
    neutral_in_a_row: Annotated[int, Field(ge=0)] = 3
    """Promotions in a row of which no success is shown; the next one must show some."""
    errors: Errors = Errors()
    hold_hours: Positive = 5.0
    """How long a hold stands before the gate must be asked anew."""
    override_hours: Positive = 24.0
    """Longest time that an override may stand."""

    @model_validator(mode="after")
    def _consistent(self) -> Policy:
        guarded = any(suite.guardrails for suite in self.suites.values())
        if not guarded and not (self.experiment and self.experiment.guardrails):
            raise PydanticCustomError("policy", "asks for no guardrail: everything would pass")
        for number, each in enumerate(self.success):
            if each.suite is not None and each.suite not in self.suites:
                raise _at(("success", number, "suite"), f"no suite {each.suite!r} above")
            if each.suite is None and self.experiment is None:
                raise _at(("success", number), "needs a suite, since the policy has no experiment")
            if each.suite is None and each.against == "milestone":
                raise _at(("success", number, "against"), "an experiment has no arm for the milestone")
        return self

    @property
    def version(self) -> str:
        """Name and hash of what it says."""
        return f"{self.name}-{content_id(self.model_dump_json())[:8]}"

    @property
    def blocks_wrongly(self) -> float:
        """Chance to block over suites and experiment though nothing is worse, at most."""
        tests_suites = any(suite.guardrails for suite in self.suites.values())
        return (self.errors.suites if tests_suites else 0) + (self.errors.deterioration if self.experiment else 0)


class PolicyText:
    """A policy with the text it came from, and the line of each key in it."""

    def __init__(self, text: str, source: str) -> None:
        value, lines = parse_yaml(text, source=source)
        self.policy = validated(value, Policy, lines, source=source)
        self.text = text
        self.source = source
        self._lines: Mapping[KeyPath, int] = lines

    def line(self, *path: Any) -> int:
        """1-based line of a key path, or of the innermost part of it that the file has."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def read_policy(name: str) -> PolicyText:
    """A policy by the name of one that comes with Palomar, or from a YAML file. Raises ConfigError."""
    if name.endswith((".yaml", ".yml")):
        try:
            return PolicyText(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(name, None, None, f"cannot be read: {exc}") from exc
    if name not in policy_names():
        raise ConfigError(
            name, None, None, f"no such policy comes with Palomar; there are: {', '.join(policy_names())}"
        )
    return PolicyText((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")


def policy_names() -> list[str]:
    """Names of the policies that come with Palomar."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _at(path: tuple[str | int, ...], problem: str) -> PydanticCustomError:
    return PydanticCustomError("policy", problem, {"path": path})
