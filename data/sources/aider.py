"""Aider's chat history: the markdown file ``.aider.chat.history.md``, which holds many sessions.

What a line is follows from its beginning: ``# aider chat started at`` opens a session, ``#### `` is what the person
typed (a *run* of such lines is one turn; slash commands look the same), ``> `` is what Aider said, all else is the
agent's text. Runs are numbered within their session from 1, commands included; each person's step keeps ``session`` and
``turn`` in ``extra_json``, so that labels that name them can be joined. A file without a session line is one session.

A native record is a session; an interaction is one request and what came of it. Traps:

- a slash command is no request. It belongs to the interaction before it, as the person's reaction; ``/undo`` is
  feedback on the interaction whose commit it removed (several in a row walk back through several interactions);
- some commands do make the agent answer: ``/ask`` and ``/help`` are repeated by Aider as a plain turn, which must not
  count twice; ``/web``, and ``/run`` or ``/test`` whose output goes into the chat, are answered without one;
- Aider itself speaks in the person's lines (``# Fix any errors below``) when it sends lint errors back, and it may
  start without any person's line (``--lint``, ``--message``);
- output of ``/run`` has ``> `` on its first line only, so it looks like the agent's text. The agent's answers stand
  apart and end with a ``> Tokens:`` line, output does not. What the person says to it (``(y/n/instructions) ...``) is
  amid it;
- headings that the agent writes look like the person's lines. Aider ends each line it writes for the person with two
  blanks, the agent's headings have none. They count in the numbering and are text otherwise;
- ``The LLM did not conform to the edit format`` is said of blocks that did not match the file as well as of answers
  that could not be parsed: the first is an edit that failed, only the second an invalid call;
- an answer cut by ``^C`` has no ``> Tokens:`` line; the same ``^C`` at the prompt interrupts nothing;
- times are local and without a zone, so they are kept as text (``extra_json``) and not as a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from palomar.data.edits import edit, from_search_replace, from_whole_file
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Edit, Feedback, Interaction, Step, ToolCall, content_id
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import asks, extra, summary
from palomar.data.sources._json import dumps

SESSION = "# aider chat started at "
_SESSION_START = re.compile(rf"^{SESSION}\d{{4}}-", re.MULTILINE)
_SAID = re.compile(
    r"^> (?:Applied edit to|Tokens: |Commit [0-9a-f]{7}|Aider v|\$ aider|Added \S+ to the chat)", re.MULTILINE
)
_COMMIT = re.compile(r"^Commit ([0-9a-f]{7,40}) ")
_UNDONE = re.compile(r"^Removed: ([0-9a-f]{7,40})\b")
_APPLIED = re.compile(r"^Applied edit to (.+)$")
_NO_MATCH = re.compile(r"failed to (?:exactly )?match lines in (.+)$")
_NOT_CONFORMING = re.compile(r"did not conform to the (?:\w+ )?edit format|[Mm]alformed .*blocks")
_MODEL = re.compile(r"^(?:Main model|Models?): (\S+?)(?:,| with |$)")
_TOKENS = re.compile(r"^Tokens: ([\d.,]{1,20})(k?) sent,.{0,200}?([\d.,]{1,20})(k?) received", re.MULTILINE)
_DECIDED = re.compile(r"(?:^|\? ?)\(y/n/instructions\):? ?(.*)$|^Add the output to the chat\? (\w+)$", re.MULTILINE)
"""The person's answer on whether a command's output goes into the chat: yes, no, or what to do with it."""
_MARKUP = re.compile(r"</?\w+[^>\n]{0,200}>|!\[[^\]\n]{0,200}\]\([^)\n]{0,200}\)")
_SENT_BACK = "# Fix any errors below"
"""How Aider begins a turn that it writes itself, in the person's lines."""
_PRINTING = frozenset({"/run", "/test", "/lint", "/git", "/diff", "/map", "/map-refresh", "!"})
"""Commands whose output is printed as it comes; plain text after any other command is the agent's answer to it."""
_REPEATED = frozenset({"/ask", "/help", "/code", "/architect"})
"""Commands whose words Aider sends on as a plain turn."""

BlockKind = Literal["person", "aider", "text"]


@dataclass
class Block:
    """Consecutive lines of one kind: the person's, Aider's, or plain text (the agent's, or a program's output)."""

    kind: BlockKind
    lines: list[str] = field(default_factory=list)
    turn: int = 0
    """Number of the person's run in its session, from 1."""
    apart: bool = True
    """Whether a blank line stands before it."""

    @property
    def text(self) -> str:
        """The block's words: marks off, for a person's run as the labels define it (every line stripped)."""
        if self.kind == "person":
            return "\n".join(line[4:].strip() for line in self.lines).strip()
        if self.kind == "aider":
            return "\n".join(line.removeprefix(">").removeprefix(" ").rstrip() for line in self.lines).strip("\n")
        return "\n".join(self.lines).strip("\n")

    @property
    def command(self) -> str | None:
        """``/undo`` of a run that is a command (``!`` for a shell command), else None."""
        word = self.text.split(maxsplit=1)[0] if self.text else ""
        return "!" if word.startswith("!") else word if re.fullmatch(r"/[a-z][a-z-]*", word) else None


@dataclass
class Draft:
    """An interaction while its blocks come in."""

    identity: str
    """Text of the session up to and including the request: the same however much is written after it."""
    steps: list[Step] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    commits: set[str] = field(default_factory=set)
    asked_by_command: bool = False
    """The request is a command that the agent answered."""
    open: bool = True
    """The agent has not been seen to finish, so a ``^C`` interrupts it."""

    @property
    def answered(self) -> bool:
        """Whether the agent said anything."""
        return any(step.author == "agent" for step in self.steps)


@source("aider")
class Aider:
    """Reader of Aider chat histories."""

    name: str
    title = "Aider chat history (markdown)"

    def sniff(self, head: Head) -> float:
        """Sure of a session line; of a transcript without one by a person's lines beside Aider's own words."""
        if head.shape in ("binary", "empty"):
            return 0.0
        if _SESSION_START.search(head.text):
            return 0.95
        if not re.search(r"^#### \S", head.text, re.MULTILINE):
            return 0.0
        return 0.8 if _SAID.search(head.text) else 0.5 if 'class="chat-transcript"' in head.text else 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """Interactions of all sessions, in order."""
        return each_record(file, _sessions(file), _interactions)


def _sessions(file: SourceFile) -> Iterator[Native]:
    """Bytes of each session; its number counts the session lines. 0 = what stands before the first of them."""
    raw = file.read()
    starts = [match.start() for match in re.finditer(rb"^# aider chat started at ", raw, re.MULTILINE)]
    first = 0 if starts else 1  # a file without a session line is session 1
    bounds = [0, *starts, len(raw)]
    for number, (start, end) in enumerate(pairwise(bounds), start=first):
        if raw[start:end].strip():
            yield Native(number, raw[start:end], raw[start:end], byte_offset=start)


def _blocks(text: str) -> list[Block]:
    """The session in blocks. Blank lines end a person's run and are part of text only."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    # Aider ends the lines it writes with two blanks; a published transcript is often trimmed, so there all marks count.
    marked = text.startswith(SESSION) and any(line.startswith("#### ") and line.endswith("  ") for line in lines)
    blocks: list[Block] = []
    turn, in_run, blank = 0, False, True
    for line in lines:
        typed = line == "####" or line.startswith("#### ")
        if typed and not in_run:
            turn += 1
        fresh = not typed or not in_run
        in_run = typed
        kind: BlockKind
        if line.startswith(SESSION):
            kind = "aider"
        elif typed and (not marked or line.endswith("  ")):
            kind = "person"
        elif line == ">" or line.startswith("> "):
            kind = "aider"
        else:
            kind = "text"
        last = blocks[-1] if blocks else None
        if kind == "text" and not line.strip() and (last is None or last.kind != "text"):
            blank = True
            continue
        if last is None or last.kind != kind or (kind == "person" and fresh):
            blocks.append(last := Block(kind, turn=turn if kind == "person" else 0, apart=blank))
        blank = not line.strip()
        last.lines.append(line)
    return blocks


def _interactions(native: Native, file: SourceFile) -> list[Interaction]:
    try:
        text = native.value.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise file.error("encoding", f"byte {exc.start} of the session is not UTF-8: {exc.reason}") from exc
    session = _Session(native.number)
    blocks = _blocks(text)
    for index, block in enumerate(blocks):
        session.take(block, blocks[index + 1] if index + 1 < len(blocks) else None)
    return session.interactions(native, file, _started(text))


def _started(text: str) -> str | None:
    return text.split("\n", 1)[0].removeprefix(SESSION).strip() if text.startswith(SESSION) else None


class _Session:
    """Reads blocks in order and collects drafts of interactions."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.drafts: list[Draft] = []
        self.before: list[Step] = []
        """Steps that wait for the next draft: Aider's opening lines, and requests that got no answer."""
        self.model: str | None = None
        self.command: Block | None = None
        """The command given last, while what follows may be its output or its answer."""
        self.command_at = 0
        """Index of its step in `self.steps`."""
        self.accepted = False
        """Whether its output was put into the chat, so that the agent's answer follows."""
        self.read: list[str] = []

    @property
    def current(self) -> Draft | None:
        return self.drafts[-1] if self.drafts else None

    @property
    def steps(self) -> list[Step]:
        return self.drafts[-1].steps if self.drafts else self.before

    def take(self, block: Block, following: Block | None) -> None:
        """One more block; `following` tells output from answers."""
        self.read.extend(block.lines)
        if block.kind == "person":
            self._typed(block, following)
        elif block.kind == "aider":
            self._said(block)
        else:
            self._text(block, following)

    def _typed(self, block: Block, following: Block | None) -> None:
        text, command = block.text, block.command
        given, self.command, self.accepted = self.command, None, False
        if text.startswith(_SENT_BACK):
            self.steps.append(Step(author="harness", role="user", text=text, extra_json=self._place(block)))
        elif given is not None and given.command in _REPEATED and _repeats(given, block):
            del self.steps[self.command_at :]
            self._open()
            place = {"command": given.command, "command_turn": given.turn}
            if given.command == "/help":  # here the plain turn is the question wrapped in documentation
                self.steps.append(Step(author="person", role="user", text=given.text, extra_json=self._place(given)))
                self.steps.append(Step(author="harness", role="user", text=text, extra_json=self._place(block)))
            else:
                self.steps.append(Step(author="person", role="user", text=text, extra_json=self._place(block, **place)))
        elif command is not None or not text or text == "<blank>":
            self.command, self.command_at = block, len(self.steps)
            place = {"command": command} if command else {}
            self.steps.append(Step(author="person", role="user", text=text, extra_json=self._place(block, **place)))
        else:
            self._open()
            self.steps.append(Step(author="person", role="user", text=text, extra_json=self._place(block)))

    def _text(self, block: Block, following: Block | None) -> None:
        if not _MARKUP.sub("", block.text).strip():  # around a published transcript
            self.steps.append(Step(author="harness", role="markup", text=block.text))
            return
        edits = from_search_replace(block.text)
        counted = following is not None and following.kind == "aider" and _TOKENS.search(following.text) is not None
        finished = counted or bool(edits)
        command = self.command
        if command is not None:
            answer = finished or (block.apart and (self.accepted or command.command not in _PRINTING))
        else:
            # Aider's output may break lines without marking them; an answer stands apart.
            answer = finished or (block.apart and self.current is not None)
        if not answer:
            self.steps.append(Step(author="tool", role="output", text=block.text))
            self._decided(block.text)
            return
        if command is not None:  # answered without a repeated turn: the command is the request
            moved = self.steps[self.command_at :]
            del self.steps[self.command_at :]
            self._open()
            self.steps.extend(moved)
            self.drafts[-1].asked_by_command = True
            self.command = None
        elif self.current is None:
            self._open()
        draft = self.drafts[-1]
        draft.open = True
        draft.steps.append(Step(author="agent", role="assistant", text=block.text, edits=edits, model=self.model))

    def _said(self, block: Block) -> None:
        text = block.text
        step = Step(author="harness", role="aider", text=text)
        draft = self.current
        if draft is not None:
            self._effects(text, draft)
        self.steps.append(step)
        for line in text.split("\n"):
            if found := _MODEL.search(line):
                self.model = found.group(1)
            elif (found := _UNDONE.search(line)) and self.command is not None:
                for other in self.drafts:
                    if any(commit.startswith(found.group(1)) for commit in other.commits):
                        other.feedback.append(Feedback(kind="undo", text=line))
        self._decided(text)

    def _decided(self, text: str) -> None:
        """What the person says to a command's output, amid what Aider prints."""
        if self.command is None:
            return
        for found in _DECIDED.finditer(text):
            words = (found.group(1) or found.group(2) or "").strip()
            self.accepted = words.lower() not in ("", "n", "no")
            if words.lower() not in ("", "y", "yes", "n", "no"):
                self.steps.append(Step(author="person", role="user", text=words))

    def _effects(self, text: str, draft: Draft) -> None:
        """What Aider's lines say about the agent's last answer."""
        at = next((index for index in reversed(range(len(draft.steps))) if draft.steps[index].author == "agent"), None)
        lines = text.split("\n")
        if self.command is None:
            draft.commits.update(found.group(1) for line in lines if (found := _COMMIT.search(line)))
        # A ^C after the line that closes the answer was given at the prompt.
        ended = next((i for i, line in enumerate(lines) if _TOKENS.search(line) or _APPLIED.search(line)), len(lines))
        if draft.open and self.command is None and any(line.startswith("^C") for line in lines[:ended]):
            draft.feedback.append(Feedback(kind="interruption"))
            draft.open = False
        if at is None or self.command is not None:
            return
        answer = draft.steps[at]
        update: dict[str, object] = {}
        if found := next((found for line in lines if (found := _TOKENS.search(line))), None):
            update |= {"tokens_in": _count(*found.group(1, 2)), "tokens_out": _count(*found.group(3, 4))}
            draft.open = False
        applied = [found.group(1).strip() for line in lines if (found := _APPLIED.search(line))]
        unmatched = [found.group(1).strip() for line in lines if (found := _NO_MATCH.search(line))]
        if applied or unmatched:
            update["edits"] = _with_outcomes(answer, applied, unmatched)
            draft.open = False
        at_problem = next((index for index, line in enumerate(lines) if _NOT_CONFORMING.search(line)), None)
        if at_problem is not None and not unmatched and "failed to match" not in text:
            call = ToolCall(invalidity="unparsed", problem="\n".join(lines[at_problem:]), outcome="not_run")
            update["tool_calls"] = (*answer.tool_calls, call)
        if update:
            draft.steps[at] = answer.model_copy(update=update)

    def _open(self) -> None:
        """Start a draft. A request that got no answer is no interaction: it is part of the next one."""
        carried, feedback = self.before, list[Feedback]()
        if self.drafts and not self.drafts[-1].answered:
            last = self.drafts.pop()
            carried, feedback = last.steps, last.feedback
        self.before = []
        self.drafts.append(Draft("\n".join(self.read), steps=carried, feedback=feedback))

    def _place(self, block: Block, **more: object) -> str:
        return dumps({"session": self.number, "turn": block.turn, **more})

    def interactions(self, native: Native, file: SourceFile, started: str | None) -> list[Interaction]:
        """The interactions, each with the person's next request as its reaction. Empty where nothing was answered."""
        unanswered = self.drafts.pop() if self.drafts and not self.drafts[-1].answered else None
        if not self.drafts:
            return []
        requests = [
            [step for step in _opening(draft.steps) if draft.asked_by_command or not _is_command(step)]
            for draft in self.drafts[1:]
        ]
        requests.append([] if unanswered is None else _opening(unanswered.steps))
        if unanswered is not None:
            self.drafts[-1].steps.extend(unanswered.steps)
        conversation = content_id("aider", self.drafts[0].identity)
        found = []
        for turn, (draft, reaction) in enumerate(zip(self.drafts, requests, strict=True)):
            steps = _with_question(draft.steps)
            asked = any(step.is_question for step in steps)
            feedback = [
                *draft.feedback,
                *(Feedback(kind="answer" if asked else "follow_up", text=step.text) for step in reaction),
            ]
            models = [step.model for step in steps if step.model is not None]
            found.append(
                Interaction(
                    interaction_id=content_id("aider", draft.identity),
                    source="aider",
                    origin=file.origin,
                    origin_record=native.number,
                    conversation_id=conversation,
                    turn=turn,
                    checkpoint=models[-1] if models else None,
                    steps=steps,
                    feedback=tuple(feedback),
                    extra_json=extra(session=self.number, started_local=started),
                    **summary([step for step in steps if step.text]),
                )
            )
        return found


def _opening(steps: list[Step]) -> list[Step]:
    """What the person typed before the agent's first answer."""
    found = []
    for step in steps:
        if step.author == "agent":
            break
        if step.author == "person":
            found.append(step)
    return found


def _is_command(step: Step) -> bool:
    return (step.text or "").startswith(("/", "!", "<blank>"))


def _repeats(command: Block, block: Block) -> bool:
    """Whether a plain turn is what Aider made of a command's words."""
    words = command.text.split(maxsplit=1)[1:]
    said = words[0].strip() if words else ""
    return block.text == said or block.text.startswith("# Question: ")


def _with_question(steps: list[Step]) -> tuple[Step, ...]:
    """The steps, with `is_question` known for the agent's: only its last one can ask, and not beside an edit."""
    last = max(index for index, step in enumerate(steps) if step.author == "agent")
    return tuple(
        asks(step, ends_turn=index == last and not step.edits) if step.author == "agent" else step
        for index, step in enumerate(steps)
    )


def _count(number: str, thousands: str) -> int:
    value = float(number.replace(",", ""))
    return round(value * 1000) if thousands else round(value)


def _with_outcomes(answer: Step, applied: list[str], unmatched: list[str]) -> tuple[Edit, ...]:
    """The answer's edits with what Aider reported: applied or failed, file by file.

    A block that failed is one of its file, and Aider says which only by repeating it; with several blocks of one file
    the last ones of the answer are taken as failed. A file that was applied and has no block here (the whole-file and
    diff formats) gets an edit of its own, with the fenced text below its name where there is one.
    """
    edits = list(answer.edits)
    failures = list(unmatched)
    for index in reversed(range(len(edits))):
        path = edits[index].path
        if path in failures:
            failures.remove(path)
            edits[index] = edits[index].model_copy(update={"outcome": "failed"})
        elif path in applied:
            edits[index] = edits[index].model_copy(update={"outcome": "applied"})
    edits.extend(edit(path, "search_replace", outcome="failed") for path in failures)
    for path in dict.fromkeys(applied):
        if not any(item.path == path for item in edits):
            whole = re.search(
                rf"^[^\w\n]*{re.escape(path)}[^\w\n]*\n+```[^\n]*\n(.*?)^```",
                answer.text or "",
                re.MULTILINE | re.DOTALL,
            )
            if whole is not None and not whole.group(1).startswith(("--- ", "<<<<<")):
                edits.append(from_whole_file(path, whole.group(1), outcome="applied"))
            else:
                edits.append(edit(path, "unknown", text=answer.text, outcome="applied"))
    return tuple(edits)
