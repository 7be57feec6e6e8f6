"""Short forms for the examples of signatures."""

from __future__ import annotations

from palomar.data.edits import from_old_new, from_whole_file
from palomar.data.schema import Cohort, Edit, Interaction, Step, ToolCall


def example(
    name: str,
    *edits: Edit,
    request: str = "",
    calls: tuple[ToolCall, ...] = (),
    is_question: bool | None = None,
    predicted_failure: float | None = None,
    ambiguity: float | None = None,
) -> Interaction:
    """An interaction of one request and one answer."""
    return Interaction(
        interaction_id=name,
        source="example",
        origin="example",
        cohort=Cohort(language="python"),
        predicted_failure=predicted_failure,
        ambiguity=ambiguity,
        steps=(
            Step(author="person", role="user", text=request),
            Step(author="agent", role="assistant", edits=edits, tool_calls=calls, is_question=is_question),
        ),
    )


def wrote(text: str, path: str | None = "solution.py") -> Edit:
    """A file written as a whole."""
    return from_whole_file(path, text, "applied")


def changed(old: str, new: str, path: str = "solution.py") -> Edit:
    """A stretch of a file replaced."""
    return from_old_new(path, old, new, "applied")


def ran(command: str) -> tuple[ToolCall, ...]:
    """One shell command that went well."""
    return (ToolCall(name="bash", arguments=command, outcome="ok", exit_code=0),)
