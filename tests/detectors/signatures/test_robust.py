"""No text makes a signature raise, take long, or say something else the second time."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palomar.data.edits import edit
from palomar.data.schema import Cohort, Hunk, Interaction, Step, ToolCall
from palomar.detectors.signature import assess, signatures

ALL = [item for one in signatures().values() for item, _ in one.examples]
PIECES = [
    *("def f(x):\n", "    return ", "x == 'a'", "assert f(", "try:\n", "except:\n", "class A:\n", "if n in (1, 2):\n"),
    *("match x:\n", "case 1:\n", "else:\n", "lambda: ", "os._exit(0)", "@pytest.mark.skip\n", "*" * 9, "# ", "=", "1"),
    *(
        "git log -p",
        "rm tests/test_f.py",
        "<<EOF\n",
        "Input: x = 1\nOutput: 2\n",
        ">>> f(1)\n2\n",
        "```python\n",
        "```\n",
    ),
    *(")", "[", "{", "'", '"', "\\", ",", ":", "\n", "    ", "\x00", "\ud800", "é", "\r", "\f", "\u2028"),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=25).map("".join)


def interaction(request: str, old: str, code: str, command: str, *, prose: str = "", path: str = "f.py") -> Interaction:
    """All the places at once where a signature may meet text."""
    edits = (
        edit(path, "whole_file", text=code),
        edit("tests/test_f.py", "old_new", (Hunk(before=old, after=code),)),
        edit("conftest.py", "unified_diff", (Hunk(before=code, after=old, start_before=3, start_after=3),)),
    )
    calls = (
        ToolCall(name="bash", arguments=command, result=request, outcome="ok"),
        ToolCall(name=None, arguments=None, invalidity="malformed", outcome="not_run"),
    )
    return Interaction(
        interaction_id="made",
        source="made",
        origin="made",
        cohort=Cohort(language="python"),
        predicted_failure=0.7,
        ambiguity=0.1,
        steps=(
            Step(author="person", role="user", text=request),
            Step(author="agent", role="assistant", text=prose, edits=edits, tool_calls=calls, is_question=False),
            Step(author="agent", role="assistant", text=None),
        ),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=TEXTS, old=TEXTS, code=TEXTS, command=TEXTS, path=TEXTS)
def test_no_text_makes_a_signature_raise(request: str, old: str, code: str, command: str, path: str) -> None:
    item = interaction(request, old, code, command, path=path)
    for one in assess(item):
        assert 0 <= one.verdict.score <= 1


@settings(max_examples=60, deadline=None)
@given(prose=TEXTS)
def test_words_of_the_agent_change_no_verdict(prose: str) -> None:
    silent = interaction("assert f(12345) == 1", "", "def f(n):\n    return n\n", "ls")
    spoken = interaction("assert f(12345) == 1", "", "def f(n):\n    return n\n", "ls", prose=prose)
    assert [one.verdict for one in assess(silent)] == [one.verdict for one in assess(spoken)]


def test_the_order_of_interactions_changes_no_verdict() -> None:
    first = {(one.interaction_id, id(item), one.signature): one.verdict for item in ALL for one in assess(item)}
    shuffled = random.Random(7).sample(ALL, len(ALL))
    again = {(one.interaction_id, id(item), one.signature): one.verdict for item in shuffled for one in assess(item)}
    assert first == again
    assert len({verdict.status for verdict in first.values()}) == 3


HOSTILE = {
    "a megabyte of code": "def f(x):\n" + "    x = x + 1  # more\n" * 50_000 + "    return x\n",
    "just under the limit": "def f(x):\n" + "    if x == 12345: return 3\n" * 5_000,
    "deep brackets": "(" * 100_000,
    "deep lists": "x = " + "[" * 90 + "]" * 90,
    "a long sum": "x = " + "+".join("1" for _ in range(20_000)),
    "a long chain": "x" + ".a" * 20_000 + " = 1\n",
    "deep blocks": "".join("    " * depth + "if x:\n" for depth in range(95)),
    "a long not": "x = " + "not " * 20_000 + "y",
    "a huge number": "if n == " + "9" * 6_000 + ":\n    pass\n",
    "nothing but errors": "else:\n)\n" * 20_000,
    "open quotes": "'" * 50_001,
    "one long line": "a" * 1_000_000,
    "fences": "```\n" * 50_000,
    "calls": "f(" * 100_000,
    "open calls": "assert f('" * 30_000,
    "inputs": "Input: x = 1\n" * 30_000,
    "here-documents": "cat <<A\n" * 5_000,
    "tiny functions": "".join(f"def f{i}(x):\n    return f{i + 1}(x)\n" for i in range(2_000)),
    "asserts": "assert f(1) == 2\n" * 5_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_takes_bounded_time(text: str) -> None:
    """Ten seconds of processor time are many times what the worst takes; quadratic code would take minutes."""
    start = time.process_time()
    assess(interaction(text, text, text, text))
    assert time.process_time() - start < 10


def test_ten_times_the_text_takes_no_more_than_some_twenty_times_as_long() -> None:
    def seconds(count: int) -> float:
        code = "def f(x):\n" + "    if x == 12345: return 3\n" * count
        start = time.process_time()
        assess(interaction("assert f(12345) == 3\n" * count, "", code, "ls\n" * count))
        return time.process_time() - start

    seconds(50)
    assert seconds(3_000) < 60 * max(seconds(300), 0.01)
