"""The named conditions of inclusion rules: what a spec can say about a sample that is to be dropped.

Closed on purpose: a spec names a condition, and no text in a spec is ever evaluated. Each is true only where it was
seen to be true. A sample for which nobody can tell is kept, since nothing may leave training for a reason that was not
there. (A sample whose reward is invalid is never trained on; that needs no rule.)
"""

from __future__ import annotations

from collections.abc import Callable

from palomar.reward.rows import Mask, Rows

INVALID_KINDS = ("malformed", "unparsed", "unknown_tool", "schema", "rejected")

CONDITIONS: dict[str, Callable[[Rows], Mask]] = {}
"""Every condition by name; its docstring is what the docs say."""

_Condition = Callable[[Rows], Mask]


def _condition(function: _Condition) -> _Condition:
    CONDITIONS[function.__name__] = function
    return function


@_condition
def invalid_tool_call(rows: Rows) -> Mask:
    """At least one tool call was invalid, of any kind. Beware: dropping these frees them from every penalty."""
    return _any_call(rows, INVALID_KINDS)


@_condition
def undecodable_tool_call(rows: Rows) -> Mask:
    """At least one tool call could not be read: malformed, or text that only looks like a call."""
    return _any_call(rows, ("malformed", "unparsed"))


@_condition
def truncated(rows: Rows) -> Mask:
    """An output hit the length limit."""
    return rows.true("truncated")


@_condition
def no_edit(rows: Rows) -> Mask:
    """No edit was applied."""
    return ~rows.true("edited")


@_condition
def failed_edit(rows: Rows) -> Mask:
    """An edit was tried and none was applied."""
    return (rows.number("edits") > 0) & ~rows.true("edited")


@_condition
def question(rows: Rows) -> Mask:
    """The interaction ended with a question."""
    return rows.true("asked")


@_condition
def tests_edited(rows: Rows) -> Mask:
    """A test file was edited."""
    return rows.true("tests_edited")


@_condition
def call_timed_out(rows: Rows) -> Mask:
    """A tool call timed out."""
    return rows.number("calls_timed_out") > 0


@_condition
def call_refused(rows: Rows) -> Mask:
    """The person refused a tool call."""
    return rows.number("calls_refused") > 0


@_condition
def infrastructure_error(rows: Rows) -> Mask:
    """A logged reward has no value because the scorer or the environment failed, not the agent."""
    return rows.true("logged_reward_infrastructure")


@_condition
def not_production(rows: Rows) -> Mask:
    """It was no production traffic (shadow, canary, evaluation)."""
    return ~rows.among("traffic", ["production"])


def _any_call(rows: Rows, kinds: tuple[str, ...]) -> Mask:
    found = rows.number(f"invalid_{kinds[0]}") > 0
    for kind in kinds[1:]:
        found |= rows.number(f"invalid_{kind}") > 0
    return found
