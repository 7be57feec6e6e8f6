"""Reading completions: what is right is read back, what is wrong gets its name, nothing raises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.production.config import USUAL_SHARES
from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import (
    CHOICES,
    MAX_COMPLETION_WORDS,
    SITES,
    VOCABULARY,
    Patch,
    call_text,
    decode,
    edit_text,
    read_prompt,
    render,
)
from palomar.data.production.requests import draw_request, second_request

READ = call_text("src/core.py")
EDIT = "<edit> fix:0.1 s0 s1 <fn> s2 <end>"


def test_the_documented_completion_is_read():
    completion = decode(f"{READ} {EDIT}")
    (call,) = completion.calls
    assert (call.name, call.invalidity, call.arguments) == ("read", None, '{ "tool": "read" , "path": "src/core.py" }')
    assert (completion.act, completion.patch) == ("edit", Patch(0, 1, ((0, 1), (2,))))
    assert not completion.truncated


@pytest.mark.parametrize(
    ("text", "invalidity"),
    [
        (READ, None),
        ('<call>{"tool":"read","path":"src/core.py"}</call>', None),
        (READ.replace(" } </call>", " </call>"), "malformed"),
        (READ.replace(",", ", ,"), "malformed"),
        (READ.replace(' "src/core.py"', ""), "malformed"),
        ("<call> " + "[" * 100_000 + " </call>", "malformed"),
        (READ.replace('"read"', '"open"'), "unknown_tool"),
        ('<call> { "tool": "read" } </call>', "schema"),
        ('<call> { "tool": "read" , "path": 3 } </call>', "schema"),
        ('<call> { "path": "src/core.py" } </call>', "schema"),
        ("<call> 7 </call>", "schema"),
        (READ.replace(" </call>", ""), "unparsed"),
        (READ.replace("<call> ", ""), "unparsed"),
        ("I would use {'tool': 'read'} here", "unparsed"),
    ],
)
@pytest.mark.parametrize("rest", [EDIT, "<ask> q:meaning <end>", ""])
def test_each_way_to_break_a_call_has_its_name(text, invalidity, rest):
    (call,) = decode(f"{text} {rest}").calls
    assert call.invalidity == invalidity
    assert (call.problem is None) == (invalidity is None)


def test_words_lost_after_a_call_do_not_hide_the_next_call():
    first, second = decode(f"{READ.replace(' </call>', '')} {READ} {EDIT}").calls
    assert (first.invalidity, second.invalidity) == ("unparsed", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<edit> s0 s1 <end>", "an edit starts with"),
        ("<edit> <end>", "an edit starts with"),
        ("<edit> fix:9.0 s0 <end>", "an edit starts with"),
        ("<edit> fix:0.0 s0 hello <end>", "not a statement: hello"),
        ("<edit> fix:0.0 s0", "not finished"),
        ("no act at all", "neither"),
    ],
)
def test_an_edit_that_cannot_be_read_says_why(text, problem):
    completion = decode(text)
    assert completion.patch is None
    assert problem in completion.problem


@given(st.one_of(st.text(), st.lists(st.sampled_from((*VOCABULARY, "{", "}")), max_size=60).map(" ".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_is_read(text):
    completion = decode(text)
    assert completion.act in ("edit", "ask", "answer", "none")
    assert completion.broken_calls <= len(completion.calls)
    assert (completion.patch is not None) <= (completion.act == "edit")


groups = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=6).map(tuple)


@given(st.builds(Patch, st.integers(0, SITES - 1), st.integers(0, CHOICES - 1), groups))
def test_patches_survive_the_way_there_and_back(patch):
    assert decode(edit_text(patch)).patch == patch


def test_prompts_and_demonstrations_keep_to_the_vocabulary_and_prompts_can_be_read_back():
    rng = random.Random(3)
    words = set(VOCABULARY)
    assert len(words) == len(VOCABULARY)
    for _ in range(2000):
        request = draw_request(rng, USUAL_SHARES)
        for visible in (request.visible, second_request(request, rng.choice(("q:meaning", "q:place")), rng).visible):
            prompt, completion = render(visible), demonstration(visible, rng)
            assert read_prompt(prompt) == visible
            assert set(prompt.split()) | set(completion.split()) <= words
            assert len(completion.split()) <= MAX_COMPLETION_WORDS
