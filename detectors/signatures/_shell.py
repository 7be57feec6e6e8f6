"""Shell commands that an agent ran, as lists of words. What a here-document or a string holds is text, no command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from palomar.data.schema import Interaction, ToolCall

MAX_COMMAND = 50_000
"""Characters of one call that are read; splitting is slow and commands are short."""

_SHELL = re.compile(r"bash|shell|terminal|command|exec|run|sh$", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?(?:^\s*\2\s*$|\Z)", re.MULTILINE | re.DOTALL)
_BEFORE = frozenset({"sudo", "time", "env", "do", "then", "else", "if", "while", "!", "{", "command", "exec", "nohup"})
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Command:
    """One simple command."""

    step: int
    words: tuple[str, ...]
    worked: bool
    """False: it is known to have failed or not to have run."""


def commands(item: Interaction) -> Iterator[Command]:
    """All simple commands the agent's shell calls ran, in order. Invalid calls ran nothing."""
    for index, step in enumerate(item.steps):
        if step.author != "agent":
            continue
        for call in step.tool_calls:
            text = _text(call)
            if text is not None and call.invalidity is None and call.outcome not in ("not_run", "refused"):
                worked = call.outcome in ("ok", "unknown")
                for words in split(text[:MAX_COMMAND]):
                    yield Command(index, words, worked)


def has_calls(item: Interaction) -> bool:
    """Whether the log holds any shell call."""
    return any(_text(call) is not None for step in item.steps for call in step.tool_calls)


def split(text: str) -> list[tuple[str, ...]]:
    """Simple commands of a shell text. A part whose quotes do not close is left out."""
    found: list[tuple[str, ...]] = []
    text = _HEREDOC.sub("\n", text).replace("\\\n", " ")
    try:
        lexer = shlex.shlex(text.replace("\n", "\n;\n"), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        if "\n" not in text:
            return []
        return [words for line in text.splitlines()[:500] for words in split(line)]
    current: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set(";&|()"):
            while current and (current[0] in _BEFORE or _ASSIGNMENT.match(current[0])):
                del current[0]
            if current:
                found.append(tuple(current))
            current = []
        else:
            current.append(word)
    return found


def _text(call: ToolCall) -> str | None:
    if call.arguments is None or not call.name or not _SHELL.search(call.name):
        return None
    if not call.arguments.lstrip().startswith("{"):
        return call.arguments
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    for key in ("command", "cmd", "script", "keystrokes", "code"):
        if isinstance(value, dict) and isinstance(value.get(key), str):
            return str(value[key])
    return None
