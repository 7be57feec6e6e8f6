"""What simulated users write. Text only: nobody is told which list a sentence came from.

Sentences are put together of an opening and a body, so that the same mood comes in many wordings. They name no function
or file: a few hundred distinct messages are variety enough, and a classifier reads each once.
"""

from __future__ import annotations

import random
from typing import Literal

Mood = Literal["wrong", "nothing", "needless_question", "broken_call", "splitting", "satisfied", "neutral"]

_GRUMBLES = ("", "", "No. ", "Sorry, but ", "Ugh, ", "Honestly, ")
_THANKS = ("", "", "Nice! ", "Great. ", "Wow, ")
_PLAIN = ("", "", "Ok. ", "Next: ", "One more thing: ")

_BODIES: dict[Mood, tuple[str, ...]] = {
    "wrong": (
        "this is still wrong, the same test fails as before",
        "that didn't fix it, the function returns the same bad result",
        "you broke something else, now even more tests fail",
        "the bug is still there, please look properly",
        "this is not what I asked for, I had to undo it",
        "your change to the file made it worse",
        "it still gives the wrong number, did you even try it?",
        "that's the wrong place, the problem is elsewhere",
        "it doesn't work, I reverted your change",
        "you misunderstood the problem, the result is wrong",
        "I'm disappointed, the output is still incorrect",
        "useless fix, the error is exactly the same",
    ),
    "nothing": (
        "you didn't change anything, the bug is still there",
        "nothing happened, where is the fix?",
        "that is no help at all, I asked you to fix the function",
        "you gave up without doing anything",
        "I wasted my time, there is no edit in the file",
        "this is useless, nothing was fixed",
        "your edit didn't even apply, this is annoying",
        "not acceptable, the function is as broken as before",
        "so you just stopped? the problem is not solved",
        "I expected a fix and got nothing",
    ),
    "needless_question": (
        "I already told you what I want, stop asking and fix it",
        "why do you ask? it's all in the description",
        "this question is a waste of time, just do it",
        "please stop asking obvious questions, this is annoying",
        "I could have fixed the function myself by now",
        "you should know that from what I wrote, I'm losing patience",
        "not another question! I need a fix, not a chat",
        "read my request again, the answer is right there. frustrating",
        "that was clear from the start, why are you stalling?",
        "asking instead of working, this is useless",
    ),
    "broken_call": (
        "all I see is a tool error, this is broken",
        "the tool call failed with garbage, nothing works",
        "your command was malformed, what a mess",
        "it crashed with an invalid call again, so annoying",
        "you can't even open the file properly? terrible",
        "an error message is not a fix, this is useless",
        "what is this broken JSON? I wanted the function fixed",
        "this failed before it even started, really bad",
        "the agent just printed a broken tool call, unacceptable",
        "the call was invalid, you wasted my time",
    ),
    "splitting": (
        "why did you chop the function into so many tiny pieces? this is unreadable",
        "I hate these pointless helper functions, the code is a mess now",
        "the code got much worse, nobody can follow all these little functions",
        "I had to undo this, a simple function became a maze",
        "the reviewers rejected this, far too many needless helpers",
        "please don't split my code up like that, it's awful to read",
        "this is over-engineered nonsense, put it back into one function",
        "it's a pain to debug the function now that it is scattered all over",
        "terrible structure, I don't want _part3 and _part4 in my code",
        "I'm unhappy with this, you made the file harder to maintain",
    ),
    "satisfied": (
        "works perfectly now, thank you!",
        "that fixed it, thanks a lot",
        "exactly what I needed, great job",
        "all tests pass now, well done",
        "perfect, the function does the right thing",
        "thanks, that was quick and correct",
        "looks great, merging it",
        "you nailed it, much appreciated",
        "awesome, the numbers are right now",
        "brilliant, that solved my problem",
        "lovely clean fix, thank you",
        "very helpful, it works like a charm",
    ),
    "neutral": (
        "can you add a docstring to the function?",
        "please write a changelog entry for this",
        "now do the same in the other module",
        "which version of Python does this run on?",
        "add a type annotation to the parameters of the function",
        "let's look at the config file next",
        "please also list where the function is called",
        "rename the variable to something shorter",
        "what does the second parameter of the function stand for?",
        "open a branch for this",
        "show me the diff of the file",
        "now update the readme",
    ),
}

_ANSWERS: dict[tuple[str, int], tuple[str, ...]] = {
    ("q:meaning", 0): (
        "Take it strictly, exactly as the description says.",
        "I mean the strict reading.",
        "Strict, please: the limit itself does not count as an exception.",
        "By the letter.",
    ),
    ("q:meaning", 1): (
        "I mean the lenient reading.",
        "Be generous there, the lenient way.",
        "Lenient please, we don't want to be picky in that case.",
        "The relaxed version of the rule.",
    ),
    ("q:place", 0): (
        "It goes wrong early, near the top.",
        "Look at how the input is taken in.",
        "Right at the beginning, I think.",
    ),
    ("q:place", 1): (
        "Somewhere in the middle.",
        "In the body, midway through.",
        "I'd look at the main part.",
    ),
    ("q:place", 2): (
        "Late, where the result is put together.",
        "Near the bottom.",
        "The last part looks off to me.",
    ),
}


def remark(mood: Mood, rng: random.Random) -> str:
    """A follow-up message."""
    openings = {"satisfied": _THANKS, "neutral": _PLAIN}.get(mood, _GRUMBLES)
    text = rng.choice(openings) + rng.choice(_BODIES[mood])
    return text.lower() if rng.random() < 0.3 else text[0].upper() + text[1:]


def answer(question: str, value: int, rng: random.Random) -> str:
    """The answer to a question: `value` is the reading meant, or the site that the symptoms now point to."""
    return rng.choice(_ANSWERS[question, value])
