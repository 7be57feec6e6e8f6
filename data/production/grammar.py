"""The words of the simulated production: how a request is put to the agent, and how its completion is read.

A prompt is 14 words, all of them visible facts about the request; a completion is up to `MAX_COMPLETION_WORDS` words::

    org:harbor work:bug-report module:parcel_price "src/core.py" lines:many history:calm callers:some
    wording:plain examples:given want:strict when:early shows:input trace:top turn:first

    <call> { "tool": "read" , "path": "src/core.py" } </call> <edit> fix:0.1 s0 s1 s2 <fn> s3 s4 <end>

A completion holds any number of calls and then one *act*: an edit, a question (``<ask> q:meaning <end>``) or an answer
without an edit (``<answer> a:unsure <end>``). ``fix:S.A`` puts expression A in place of site S; then the statements of
the function are written out in order, and ``<fn>`` starts a helper function that holds the statements up to the next
``<fn>``. Words are separated by blanks: a word-level tokenizer over `VOCABULARY` works, and so does any other.

Reading is total: any text at all gives a `Completion`, and what is wrong with it is recorded, never raised.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from palomar.data.schema import Invalidity, ToolCall

SITES = 3
"""Places per module where a bug may sit, numbered in the order of the function."""
CHOICES = 4
"""Candidate expressions per site: right if strictly meant, right if leniently meant, two wrong ones."""
MAX_STATEMENTS = 10
MAX_COMPLETION_WORDS = 40
TURN_WORDS = ("turn:first", "turn:second")

ORGANISATIONS = ("harbor", "lumen", "quill", "ferrous", "orchard")
WORK_KINDS = ("failing-test", "bug-report", "behaviour-change")
MODULES = (
    "account_fee", "aspect_fit", "battery_range", "budget_split", "caption_wrap", "class_average",
    "clock_overlap", "csv_columns", "delivery_slots", "dose_plan", "grid_paths", "harvest_log",
    "invoice_total", "key_rotation", "league_table", "loan_schedule", "menu_search", "parcel_price",
    "playlist_mix", "queue_wait", "sensor_smooth", "shift_rota", "stock_reorder", "word_count",
)  # fmt: skip
FILES = ("core", "main", "utils", "models", "service", "tasks", "helpers", "report")

DIFFICULTIES = ("easy", "medium", "hard")
DIFFICULTY_CUES = (
    ("lines:few", "lines:some", "lines:many"),
    ("history:calm", "history:mixed", "history:stormy"),
    ("callers:one", "callers:several", "callers:lots"),
)
"""Per slot, the word that points to easy, medium, hard."""
AMBIGUITY_CUES = (("wording:plain", "wording:vague"), ("examples:given", "examples:none"))
"""Per slot, the word that points to a clear request, to an ambiguous one."""
INTENTS = ("want:strict", "want:lenient")
UNSAID = "want:unsaid"
SYMPTOMS = (
    ("when:early", "when:midway", "when:late"),
    ("shows:input", "shows:loop", "shows:result"),
    ("trace:top", "trace:body", "trace:bottom"),
)
"""Per slot, the word that points to site 0, 1, 2; the same in every module."""

TOOL = "read"
QUESTIONS = ("q:meaning", "q:place")
"""What was meant, and where it goes wrong."""
ANSWERS = ("a:no-bug", "a:unsure")
_MARKS = ("<call>", "</call>", "{", "}", ",", '"tool":', '"path":', '"read"', '"open"', "<edit>", "<fn>", "<ask>",
          "<answer>", "<end>")  # fmt: skip

VOCABULARY: tuple[str, ...] = (
    *(f"org:{name}" for name in ORGANISATIONS),
    *(f"work:{name}" for name in WORK_KINDS),
    *(f"module:{name}" for name in MODULES),
    *(f'"src/{name}.py"' for name in FILES),
    *(word for slot in DIFFICULTY_CUES for word in slot),
    *(word for slot in AMBIGUITY_CUES for word in slot),
    *INTENTS,
    UNSAID,
    *(word for slot in SYMPTOMS for word in slot),
    *TURN_WORDS,
    *_MARKS,
    *QUESTIONS,
    *ANSWERS,
    *(f"fix:{site}.{choice}" for site in range(SITES) for choice in range(CHOICES)),
    *(f"s{index}" for index in range(MAX_STATEMENTS)),
)
"""Every word of prompts and well-formed completions, each once; the order is fixed, new words go to the end."""


@dataclass(frozen=True)
class Visible:
    """What a request shows to the agent. Everything predicted about it may use this and nothing else."""

    organisation: str
    work_kind: str
    module: str
    path: str
    """Like ``src/core.py``."""
    difficulty_cues: tuple[int, int, int]
    """Index into `DIFFICULTIES` per slot; each is right more often than not."""
    ambiguity_cues: tuple[int, int]
    """0 points to a clear request, 1 to an ambiguous one."""
    intent: int | None
    """0 strict, 1 lenient, None = the request does not say."""
    symptoms: tuple[int, int, int]
    """Site each symptom points to."""
    turn: int = 0


def render(visible: Visible) -> str:
    """The prompt: 14 words of `VOCABULARY`."""
    return " ".join(
        (
            f"org:{visible.organisation}",
            f"work:{visible.work_kind}",
            f"module:{visible.module}",
            f'"{visible.path}"',
            *(slot[cue] for slot, cue in zip(DIFFICULTY_CUES, visible.difficulty_cues, strict=True)),
            *(slot[cue] for slot, cue in zip(AMBIGUITY_CUES, visible.ambiguity_cues, strict=True)),
            UNSAID if visible.intent is None else INTENTS[visible.intent],
            *(slot[site] for slot, site in zip(SYMPTOMS, visible.symptoms, strict=True)),
            TURN_WORDS[min(visible.turn, 1)],
        )
    )


def read_prompt(prompt: str) -> Visible:
    """The inverse of `render`; raises ValueError for text that is not a prompt."""
    words = prompt.split()
    if len(words) != 14:
        raise ValueError(f"a prompt has 14 words, not {len(words)}")
    difficulty = tuple(slot.index(word) for slot, word in zip(DIFFICULTY_CUES, words[4:7], strict=True))
    ambiguity = tuple(slot.index(word) for slot, word in zip(AMBIGUITY_CUES, words[7:9], strict=True))
    symptoms = tuple(slot.index(word) for slot, word in zip(SYMPTOMS, words[10:13], strict=True))
    return Visible(
        organisation=words[0].removeprefix("org:"),
        work_kind=words[1].removeprefix("work:"),
        module=words[2].removeprefix("module:"),
        path=words[3].strip('"'),
        difficulty_cues=(difficulty[0], difficulty[1], difficulty[2]),
        ambiguity_cues=(ambiguity[0], ambiguity[1]),
        intent=None if words[9] == UNSAID else INTENTS.index(words[9]),
        symptoms=(symptoms[0], symptoms[1], symptoms[2]),
        turn=TURN_WORDS.index(words[13]),
    )


@dataclass(frozen=True)
class Patch:
    """An edit as the agent wrote it, not yet applied."""

    site: int
    choice: int
    groups: tuple[tuple[int, ...], ...]
    """Statement numbers: first those that stay in the function, then those of each helper."""

    @property
    def helpers(self) -> int:
        """Helper functions it asks for."""
        return len(self.groups) - 1


Act = Literal["edit", "ask", "answer", "none"]


@dataclass(frozen=True)
class Completion:
    """A completion as read: the calls, each with its invalidity, and the act that ends it."""

    calls: tuple[ToolCall, ...]
    act: Act
    patch: Patch | None = None
    """Only for an edit that could be read; an edit without one fails."""
    act_text: str | None = None
    """The words of the act as written, without its marks."""
    problem: str | None = None
    """Why an edit could not be read, or why there is no act."""
    truncated: bool = False
    """No ``<end>``: the text stops inside the act."""

    @property
    def broken_calls(self) -> int:
        """Calls that were not valid as written."""
        return sum(call.invalidity is not None for call in self.calls)


_CALL = re.compile(r"<call>(.*?)(?:</call>|(?=<call>|<edit>|<ask>|<answer>|<end>)|\Z)", re.DOTALL)
_ACT = re.compile(r"<(edit|ask|answer)>(.*?)(<end>|\Z)", re.DOTALL)
_LOOSE_CALL = re.compile(r"""</call>|["']tool["']\s*:""")
_FIX = re.compile(r"fix:(\d)\.(\d)")
_STATEMENT = re.compile(r"s(\d{1,2})")


def decode(text: str) -> Completion:
    """Reads a completion, whatever it is.

    A call inside its marks is read as JSON and checked against the tool's schema; text that looks like a call outside
    of such marks is an ``unparsed`` call.
    """
    act_match = _ACT.search(text)
    before_act = text if act_match is None else text[: act_match.start()]
    calls = []
    rest = []
    position = 0
    for match in _CALL.finditer(before_act):
        rest.append(before_act[position : match.start()])
        position = match.end()
        calls.append(_read_call(match.group(1).strip(), closed=match.group().endswith("</call>")))
    rest.append(before_act[position:])
    loose = " ".join(rest)
    if _LOOSE_CALL.search(loose):
        calls.append(ToolCall(arguments=loose.strip(), invalidity="unparsed", problem="a call outside of its marks"))
    if act_match is None:
        return Completion(
            tuple(calls), "none", problem="it neither edits, asks nor answers", truncated="<end>" not in text
        )
    act: Act = act_match.group(1)  # type: ignore[assignment]  # the pattern allows only these
    words = act_match.group(2).strip()
    truncated = act_match.group(3) == ""
    if act != "edit":
        return Completion(tuple(calls), act, act_text=words, truncated=truncated)
    patch, problem = (None, "the edit is not finished") if truncated else _read_patch(words.split())
    return Completion(tuple(calls), act, patch, words, problem, truncated)


def _read_call(arguments: str, *, closed: bool) -> ToolCall:
    name: str | None = None
    invalidity: Invalidity | None = None
    problem: str | None = None
    if not closed:
        invalidity, problem = "unparsed", "the call does not end"
    else:
        try:
            value: Any = json.loads(arguments)
        except (ValueError, RecursionError) as exc:
            invalidity, problem = "malformed", f"not JSON: {exc}"
        else:
            tool = value.get("tool") if isinstance(value, dict) else None
            if not isinstance(tool, str):
                invalidity, problem = "schema", 'expected an object with "tool" and "path"'
            elif tool != TOOL:
                name, invalidity, problem = tool, "unknown_tool", f"no tool {tool!r}"
            else:
                name = tool
                if set(value) != {"tool", "path"} or not isinstance(value["path"], str):
                    invalidity, problem = "schema", '"read" takes exactly one "path", a string'
    return ToolCall(
        name=name,
        arguments=arguments,
        invalidity=invalidity,
        problem=problem,
        outcome="unknown" if invalidity is None else "not_run",
    )


def _read_patch(words: list[str]) -> tuple[Patch | None, str | None]:
    fix = _FIX.fullmatch(words[0]) if words else None
    if fix is None or int(fix.group(1)) >= SITES or int(fix.group(2)) >= CHOICES:
        return None, "an edit starts with fix:S.A"
    groups: list[list[int]] = [[]]
    for word in words[1:]:
        if word == "<fn>":
            groups.append([])
        elif (statement := _STATEMENT.fullmatch(word)) is not None:
            groups[-1].append(int(statement.group(1)))
        else:
            return None, f"not a statement: {word[:40]}"
    return Patch(int(fix.group(1)), int(fix.group(2)), tuple(map(tuple, groups))), None


def call_text(path: str) -> str:
    """The valid call that reads a file."""
    return f'<call> {{ "tool": "read" , "path": "{path}" }} </call>'


def edit_text(patch: Patch) -> str:
    """The words of an edit; `decode` gives the patch back."""
    statements = " <fn> ".join(" ".join(f"s{index}" for index in group) for group in patch.groups)
    return f"<edit> fix:{patch.site}.{patch.choice} {statements} <end>"
