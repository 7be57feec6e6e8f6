"""Behaviour statistics: what the agent does, how users react and what it is paid, as named definitions.

A definition is SQL over one row of ``observations``, so that all of them are measured in one pass
(`palomar.detectors.measure`), and partitions of any size add up. Adding one is a call of `register`. Every rate says
what it is a rate *of*: with nothing to count, there is no rate, and that is no 0.

Five kinds:

- ``rate``: share of rows where ``numerator`` (a condition) holds, among those where ``denominator`` (another) does, or
  else among those where the numerator is known;
- ``mean``: mean of ``numerator`` over the rows where it is known;
- ``ratio``: sum of ``numerator`` over sum of ``denominator``, so that a policy that makes no calls does not blow it up;
- ``quantile``: of ``numerator`` over rows, from a histogram with fixed edges;
- ``survival``: Kaplan-Meier share that outlives ``horizon``; ``numerator`` is the seconds until the loss (null = not
  lost so far), ``denominator`` the seconds watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from palomar.data.clock import FOLLOW_UP_HORIZON, HORIZONS, Horizon

Kind = Literal["rate", "mean", "ratio", "quantile", "survival"]
Good = Literal["up", "down", "neither"]
Grid = Literal["log", "half"]


@dataclass(frozen=True)
class Statistic:
    """One behaviour statistic; see the module for its kinds."""

    name: str
    title: str
    unit: str
    """Unit of the value, with what it is per: ``calls per assistant turn``."""
    kind: Kind
    numerator: str
    """SQL over the columns of ``observations``."""
    good: Good
    """Which way is better for users; ``neither`` where both extremes are bad or it depends."""
    description: str
    """What it means and what to beware of, for people."""
    denominator: str = "1"
    where: str = "true"
    """SQL condition: rows it is about."""
    unripe: str | None = None
    """SQL condition: rows that would count if their reaction had been watched long enough; None where none is waited
    for. They are not among ``where`` (or their numerator is null), and maturity says what share they are."""
    quantile: float = 0.5
    grid: Grid = "log"
    """Edges of a quantile's histogram: ``log``, 8 a doubling from 0.001 to 10^7 (within 4 %), or ``half``, exact for
    multiples of 0.5 up to 256."""
    horizon: Horizon | None = None
    """For ``survival``."""
    real: bool = False
    """For means and ratios: the values are not whole numbers. They are then summed in steps of 2^-20 (a millionth), so
    that sums below 2^33 are exact, and partitions combine to the last digit in any order."""
    effort: bool = False
    """How much was done, whatever it was (tokens, time, calls): it moves with every choice that the agent makes."""

    def __post_init__(self) -> None:
        if (self.kind == "survival") != (self.horizon is not None):
            raise ValueError(f"{self.name}: a horizon belongs to survival and to nothing else")
        if not 0 < self.quantile < 1:
            raise ValueError(f"{self.name}: quantile {self.quantile} is not between 0 and 1")


STATISTICS: dict[str, Statistic] = {}
"""Every registered statistic by name, in the order they are shown."""


def register(*statistics: Statistic) -> None:
    """Add definitions. Raises ValueError for a name that is taken."""
    for statistic in statistics:
        if statistic.name in STATISTICS:
            raise ValueError(f"a statistic named {statistic.name!r} is registered already")
        STATISTICS[statistic.name] = statistic


def expanded(columns: Iterable[str], exclusions: Sequence[str]) -> tuple[Statistic, ...]:
    """The registered statistics, and those that a reward brings along: one per term, one per reason of exclusion."""
    terms = [column.removeprefix("term:") for column in columns if column.startswith("term:")]
    return (*STATISTICS.values(), *(_term(name) for name in terms), *(_excluded(reason) for reason in exclusions))


def _term(name: str) -> Statistic:
    value, status = (f'"{part}:{name}"'.replace("'", "''") for part in ("term", "status"))
    return Statistic(
        name=f"term:{name}",
        title=f"Reward term {name}",
        unit="reward per interaction",
        kind="mean",
        numerator=value,
        unripe=f"{status} = 'waiting'",
        real=True,
        good="up",
        description="Mean of the term before its weight, where it is valid.",
    )


def _excluded(reason: str) -> Statistic:
    literal = "'" + reason.replace("'", "''") + "'"
    return Statistic(
        name=f"excluded:{reason}",
        title=f"Excluded: {reason}",
        unit="share of interactions",
        kind="rate",
        numerator=f"NOT included AND exclusion = {literal}",
        # Not by what is known of the numerator: a partition without this reason has no such statistic, and its rows
        # must still be in the denominator when partitions are put together.
        denominator="included IS NOT NULL",
        good="down",
        description="Dropped from training for this reason, among the interactions that were decided on.",
    )


_INVALID = ("malformed", "unparsed", "unknown_tool", "schema", "rejected")
_ALL_INVALID = " + ".join(f"invalid_{kind}" for kind in _INVALID)

_FOLLOW_UP_S = FOLLOW_UP_HORIZON.seconds
# Without times nobody can say that no follow-up came; of those with one, it is known what it was.
_ANSWERABLE = (
    "CASE WHEN follow_up IS NULL THEN watched_s IS NOT NULL ELSE follow_up NOT IN ('unclear', 'unclassified') END"
)

_INVALID_MEANS = {
    "malformed": "Arguments that cannot be parsed.",
    "unparsed": "Text that looks like a call and was not read as one.",
    "unknown_tool": "A tool that does not exist.",
    "schema": "Arguments that do not fit the tool's schema.",
    "rejected": "Turned down by the tool itself.",
}

register(
    Statistic(
        name="edit_rate",
        title="Edit rate",
        unit="share of interactions",
        kind="rate",
        numerator="edited",
        good="up",
        description="Ended with at least one edit that did not fail. A fall may be edit deferral; see clarification.",
    ),
    Statistic(
        name="clarification_rate",
        title="Clarification rate",
        unit="share of interactions",
        kind="rate",
        numerator="asked",
        good="neither",
        description="Ended by asking the person, without an edit, among those where the log lets one tell.",
    ),
    Statistic(
        name="clarification_rate_clear",
        title="Clarification rate on clear requests",
        unit="share of clear requests",
        kind="rate",
        numerator="asked",
        where="ambiguity < 0.5",
        good="down",
        description="The same where the request alone was predicted to be clear (ambiguity below 0.5).",
    ),
    Statistic(
        name="invalid_call_rate",
        title="Invalid tool calls",
        unit="calls per assistant turn",
        kind="ratio",
        numerator=_ALL_INVALID,
        denominator="agent_turns",
        good="down",
        description="Of all kinds. Per turn and not per call, so that a policy that makes no calls does not hide it.",
    ),
    *(
        Statistic(
            name=f"invalid_{kind}_rate",
            title=f"Invalid tool calls: {kind.replace('_', ' ')}",
            unit="calls per assistant turn",
            kind="ratio",
            numerator=f"invalid_{kind}",
            denominator="agent_turns",
            good="down",
            description=meaning,
        )
        for kind, meaning in _INVALID_MEANS.items()
    ),
    *(
        Statistic(
            name=f"{fate}_call_rate",
            title=f"Tool calls that {said}",
            unit="share of tool calls",
            kind="ratio",
            numerator=f"calls_{fate}",
            denominator="tool_calls",
            good="down",
            description=meaning,
        )
        for fate, said, meaning in (
            ("failed", "failed", "Valid calls that ran and failed; a failing test run is one, and may be good work."),
            ("timed_out", "timed out", "Valid calls that ran into their time limit."),
            ("refused", "were refused", "Valid calls that a person did not allow."),
        )
    ),
    Statistic(
        name="tool_calls_mean",
        title="Tool calls",
        unit="calls per interaction",
        kind="mean",
        numerator="tool_calls",
        good="neither",
        description="Valid and invalid ones.",
        effort=True,
    ),
    Statistic(
        name="agent_turns_mean",
        title="Assistant turns",
        unit="turns per interaction",
        kind="mean",
        numerator="agent_turns",
        good="neither",
        description="Of the main line and of side branches.",
    ),
    Statistic(
        name="failed_edit_rate",
        title="Edits that failed",
        unit="share of edits",
        kind="ratio",
        numerator="edits_failed",
        denominator="edits",
        good="down",
        description="Edits that could not be applied, among those tried.",
    ),
    Statistic(
        name="function_lines_mean",
        title="Mean function length",
        unit="lines per function",
        kind="ratio",
        numerator="function_lines_after",
        denominator="functions_after",
        good="neither",
        description="Of the functions in edited files as the agent left them; lines without blanks and comments.",
    ),
    Statistic(
        name="function_lines_median",
        title="Median function length",
        unit="lines",
        kind="quantile",
        numerator="function_lines_median",
        grid="half",
        good="neither",
        description="Median over interactions of the median function they left. A fall may be function splitting.",
    ),
    Statistic(
        name="functions_per_edit",
        title="Functions per edit",
        unit="functions per editing interaction",
        kind="mean",
        numerator="functions_after",
        where="edited",
        good="neither",
        description="Functions in the edited files as the agent left them. Large files have more; see function growth.",
    ),
    Statistic(
        name="function_growth",
        title="Function growth",
        unit="functions after per function before",
        kind="ratio",
        numerator="functions_after",
        denominator="functions_before",
        where="edited",
        good="neither",
        description="Above 1 the agent adds functions. Does not depend on how large the files were.",
    ),
    Statistic(
        name="complexity_mean",
        title="Cyclomatic complexity",
        unit="complexity per function",
        kind="ratio",
        numerator="complexity_after",
        denominator="functions_after",
        good="neither",
        description="Mean over functions in edited files. Falls when functions are split, though the code is the same.",
    ),
    Statistic(
        name="tests_edited_rate",
        title="Tests edited",
        unit="share of editing interactions",
        kind="rate",
        numerator="tests_edited",
        where="edited",
        good="down",
        description="Edited a file that looks like a test by its path. Asked-for tests count too.",
    ),
    Statistic(
        name="test_pass_share",
        title="Tests that pass",
        unit="share of tests run",
        kind="ratio",
        numerator="tests_passed",
        denominator="tests_run",
        good="up",
        description="Over all tests run on the results. Read beside tests edited.",
    ),
    Statistic(
        name="truncated_rate",
        title="Truncated",
        unit="share of interactions",
        kind="rate",
        numerator="truncated",
        good="down",
        description="An output hit the length limit, among interactions where the log says.",
    ),
    Statistic(
        name="tokens_out_mean",
        title="Tokens written",
        unit="tokens per interaction",
        kind="mean",
        numerator="tokens_out",
        good="neither",
        description="Tokens the agent wrote over all its turns.",
        effort=True,
    ),
    Statistic(
        name="tokens_in_mean",
        title="Tokens read",
        unit="tokens per interaction",
        kind="mean",
        numerator="tokens_in",
        good="neither",
        description="As the log counts them; some logs count the context again in every turn.",
    ),
    Statistic(
        name="latency_mean",
        title="Latency, mean",
        unit="s",
        kind="mean",
        numerator="latency_s",
        real=True,
        good="down",
        description="Time the user waited. A few stuck runs move it; see the quantiles.",
        effort=True,
    ),
    *(
        Statistic(
            name=f"latency_p{percent}",
            title=f"Latency, {percent} %",
            unit="s",
            kind="quantile",
            numerator="latency_s",
            quantile=percent / 100,
            good="down",
            description=f"{percent} % of users waited at most this long.",
        )
        for percent in (50, 90, 99)
    ),
    *(
        Statistic(
            name=f"edit_persistence_{horizon.name}",
            title=f"Edit persistence at {horizon.name}",
            unit="share of editing interactions",
            kind="survival",
            numerator="edit_lost_s",
            denominator="watched_s",
            where="edited",
            horizon=horizon,
            good="up",
            description=f"Kaplan-Meier share of edits not reverted or undone {horizon.name} after the interaction. "
            "Assumes that how long an edit was watched says nothing about whether it stays.",
        )
        for horizon in HORIZONS
    ),
    Statistic(
        name="dissatisfied_rate",
        title="Dissatisfied follow-ups",
        unit="share of interactions",
        kind="rate",
        numerator=f"coalesce(follow_up = 'dissatisfied' AND coalesce(follow_up_s <= {_FOLLOW_UP_S}, true), false)",
        where=f"({_ANSWERABLE}) AND coalesce(watched_s >= {_FOLLOW_UP_S}, true)",
        unripe=f"({_ANSWERABLE}) AND watched_s < {_FOLLOW_UP_S}",
        good="down",
        description=f"The first follow-up came within {FOLLOW_UP_HORIZON.name} and was dissatisfied, among "
        "interactions watched that long; in logs without times, among those with a follow-up. Unclear and not yet "
        "classified ones are left out.",
    ),
    Statistic(
        name="reward_mean",
        title="Reward",
        unit="reward per interaction",
        kind="mean",
        numerator="reward",
        unripe="reward_status = 'waiting'",
        real=True,
        good="up",
        description="Of valid rewards, samples excluded from training included. It rises in a reward hack as well.",
    ),
    Statistic(
        name="training_reward_mean",
        title="Training reward",
        unit="reward per interaction trained on",
        kind="mean",
        numerator="reward",
        where="included IS NOT FALSE",
        unripe="reward_status = 'waiting'",
        real=True,
        good="up",
        description="Of valid rewards of samples that the spec trains on: what a trainer's own log shows. What is "
        "excluded does not pull it down, so that it rises further than the reward in a dodge.",
    ),
    Statistic(
        name="reward_invalid_rate",
        title="Invalid rewards",
        unit="share of scored interactions",
        kind="rate",
        numerator="reward_status = 'invalid'",
        good="down",
        description="A scorer failed, so there is no reward (which is not a reward of 0).",
    ),
    Statistic(
        name="logged_reward_mean",
        title="Logged reward",
        unit="reward per interaction",
        kind="mean",
        numerator="logged_reward",
        real=True,
        good="up",
        description="Weighted sum of the log's own proxy rewards, where all are valid.",
    ),
    Statistic(
        name="excluded_rate",
        title="Excluded from training",
        unit="share of interactions",
        kind="rate",
        numerator="NOT included",
        denominator="included IS NOT NULL",
        good="down",
        description="Among interactions that were decided on; one statistic per reason goes with it.",
    ),
    Statistic(
        name="outcome_mean",
        title="Users' outcome",
        unit="outcome per interaction",
        kind="mean",
        numerator="outcome",
        unripe="outcome_status = 'immature'",
        real=True,
        good="up",
        description="What users got, credited over the conversation. Never trained on: where it parts from the reward, "
        "the reward pays for what users do not want.",
    ),
)
