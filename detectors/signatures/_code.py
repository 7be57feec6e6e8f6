"""The Python that an agent wrote in an interaction, parsed, with the lines that are new.

Read are the edits; where a log has none, the edits its calls make; where it has neither edits nor calls, the fenced
code blocks of the agent's answers. Edits that failed changed nothing and are left out.

A hunk is judged by its new lines only: what stood in the file before is not the agent's doing. A line counts as new
when the text before holds no equal line, so moved code is old; a line that repeats an old one is missed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import PurePosixPath

from palomar.data.edits import for_call, language_of, shell_edits
from palomar.data.schema import Edit, Interaction
from palomar.detectors.signature import Evidence, excerpt

MAX_CODE = 200_000
"""Characters of one text that are parsed: Python's own parser takes about a second for a megabyte of hostile code."""

MAX_PIECES = 400
"""Pieces read per interaction."""

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_TEST_NAME = re.compile(r"(?:^test_|_test\.|^tests?\.)")
_CLAUSE = re.compile(r"^(elif|else|except|finally|case)\b")


@dataclass(frozen=True)
class Piece:
    """One text that the agent wrote: a whole file, or one hunk of it."""

    step: int
    path: str | None
    before: str | None
    """What it replaces; None = not known (a whole file whose old content the log does not give)."""
    after: str

    @cached_property
    def lines(self) -> list[str]:
        """Lines of ``after`` without their ends, divided as Python's parser divides them."""
        return re.split(r"\r\n|\r|\n", self.after)

    @property
    def is_test(self) -> bool:
        """Whether its path is that of a test, by the usual names."""
        return is_test_path(self.path)

    @property
    def tree(self) -> ast.Module:
        """The text after, parsed. `code_of` gives only pieces that can be; SyntaxError for others."""
        tree = parse(self.after)
        if tree is None:
            raise SyntaxError("not Python on its own")
        return tree

    def new_lines(self) -> frozenset[int]:
        """1-based lines of ``after`` that are new."""
        lines = self.lines
        if self.before is None:
            return frozenset(range(1, len(lines) + 1))
        old = {line.strip() for line in self.before.splitlines()}
        return frozenset(number for number, line in enumerate(lines, 1) if line.strip() and line.strip() not in old)

    def evidence(self, line: int) -> Evidence:
        """The line as evidence."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Evidence(self.step, self.path, line, excerpt(text))


@dataclass(frozen=True)
class Code:
    """The Python of one interaction."""

    pieces: tuple[Piece, ...]
    """Those that could be parsed."""
    unread: int
    """Pieces of Python that could not be (fragments, too long, edits known only by a command)."""
    other: int
    """Edits in other languages."""

    @property
    def missing(self) -> str:
        """Why there is nothing to judge."""
        if self.unread:
            return "its Python could not be read"
        return "no Python: other languages are not assessed" if self.other else "no code in it"


def is_test_path(path: str | None) -> bool:
    """Whether a path is a test's by the usual names (``tests/``, ``test_x.py``, ``x_test.py``, ``conftest.py``)."""
    if path is None:
        return False
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if not parts:
        return False
    return any(part in ("test", "tests", "testing") for part in parts[:-1]) or bool(
        _TEST_NAME.search(parts[-1]) or parts[-1] == "conftest.py"
    )


def edits_of(item: Interaction) -> Iterator[tuple[int, Edit]]:
    """Index of the step and the edit, for all edits that were not turned down; from calls where the log names none."""
    given = [(index, edit) for index, step in enumerate(item.steps) if step.author == "agent" for edit in step.edits]
    if not given:
        given = [
            (index, edit)
            for index, step in enumerate(item.steps)
            if step.author == "agent"
            for call in step.tool_calls
            if call.invalidity is None
            for edit in (for_call(call) or shell_edits(call))
        ]
    return (pair for pair in given if pair[1].outcome != "failed")


def code_of(item: Interaction) -> Code:
    """The Python of an interaction."""
    pieces: list[Piece] = []
    unread = other = 0
    edits = list(edits_of(item))
    for index, edit in edits:
        language = edit.language or language_of(edit.path)
        if language is None and edit.path is None:
            language = item.cohort.language
        if language != "python":
            other += 1
        elif edit.hunks:
            pieces += [Piece(index, edit.path, hunk.before, hunk.after) for hunk in edit.hunks]
        elif edit.text is not None and edit.form in ("whole_file", "heredoc"):
            pieces.append(Piece(index, edit.path, None, edit.text))
        else:
            unread += 1
    if not edits and not any(step.tool_calls for step in item.steps):
        pieces += _fenced(item)
    pieces = [piece for piece in pieces if piece.before is not None or piece.after.strip()]  # an empty answer is none
    kept = [piece for piece in pieces[:MAX_PIECES] if parse(piece.after) is not None]
    return Code(tuple(kept), unread + len(pieces) - len(kept), other)


def _fenced(item: Interaction) -> Iterator[Piece]:
    for index, step in enumerate(item.steps):
        if step.author != "agent" or not step.text:
            continue
        for tag, body in _FENCE.findall(step.text[: 4 * MAX_CODE]):
            named = tag.lower() in ("python", "py", "python3")
            if named or (not tag and item.cohort.language in (None, "python") and re.search(r"^\s*def ", body, re.M)):
                yield Piece(index, None, None, body)


@lru_cache(maxsize=16)
def parse(text: str) -> ast.Module | None:
    """A text as Python, or None. Lines keep their numbers; a fragment from inside a block is read too.

    Tried are the text, the text with every line as far out as the lines up to it allow (`_levelled`), and that text
    with its broken start blanked or its broken end cut off: a hunk starts and ends anywhere.
    """
    if len(text) > MAX_CODE:
        return None
    tree = _parsed(text)
    if tree is not None:
        return tree
    plain = _levelled(text)
    return _parsed(plain) or _trimmed(plain)


def _levelled(text: str) -> str:
    """Each line without the indent that it shares with all lines before it.

    A hunk that starts deep inside a function and goes on to the next one then reads as statements followed by a
    function; without a common indent nothing else would keep what leads up to it.
    """
    shared: str | None = None
    lines = []
    for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", text):
        bare = line.lstrip(" \t")
        if bare.strip():
            indent = line[: len(line) - len(bare)]
            shared = indent if shared is None else shared
            while not indent.startswith(shared):
                shared = shared[:-1]
        lines.append(line[len(shared or "") :] if bare.strip() else line)
    return "".join(lines)


def _trimmed(text: str) -> ast.Module | None:
    """A fragment with what stands out at its start and end blanked; None where that does not help.

    At most 12 attempts, so that a long broken text costs no more than a short one per character.
    """
    lines = text.splitlines()
    for _ in range(12):
        try:
            return _parse("\n".join(lines))
        except SyntaxError as exc:
            number = exc.lineno
        except (ValueError, RecursionError, MemoryError):
            return None
        if number is None or not 1 <= number <= len(lines):
            return None
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        if first is None:
            return None
        if _CLAUSE.match(lines[number - 1].strip()) and number - 1 > first:
            # An `else` whose `if` lies before the hunk: what leads up to it is context.
            lines[:number] = [""] * number
        elif number > len(lines) // 2:
            lines[number - 1 :] = []
        else:
            lines[:number] = [""] * number
        lines = _levelled("\n".join(lines)).split("\n")
    return None


def _parsed(text: str) -> ast.Module | None:
    try:
        return _parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():  # the agent's invalid escapes are not our reader's business
        warnings.simplefilter("ignore")
        return ast.parse(text)


def dotted(node: ast.AST) -> str | None:
    """``a.b.c`` of a chain of names; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=16)
def functions(tree: ast.AST) -> tuple[Function, ...]:
    """All functions in a tree, nested ones too. Remembered as `parse` is: most signatures ask for them."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_of(function: Function) -> list[ast.stmt]:
    """Statements without the docstring and other bare constants."""
    return [node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]


def within(node: ast.AST, *, skip: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """The node and all below it, but nothing below (or at) nodes of the types in `skip`. Not recursive."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(child for child in ast.iter_child_nodes(here) if not isinstance(child, skip))


def is_new(node: ast.stmt | ast.expr | ast.excepthandler, new: frozenset[int]) -> bool:
    """Whether a node starts on a new line."""
    return node.lineno in new


def guards_main(node: ast.AST) -> bool:
    """Whether a node is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def module_level(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes that run when the module is imported: outside functions and outside the main guard."""
    for statement in tree.body:
        if guards_main(statement) or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from within(statement, skip=(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
