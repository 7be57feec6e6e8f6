"""Inputs that visible tests try: calls with literal arguments in what the agent was shown.

Read is the text of the request, of the harness and of tools, never the agent's own: a call ``f(1, [2])`` of a function
that the agent wrote (or of ``candidate``, the stand-in of HumanEval-like tests) whose arguments are all literals, with
the value that an ``==``, ``is``, ``->`` or the next line of a doctest gives; and ``Input: x = 1`` / ``Output: 2``.
Not seen are inputs built by code (loops, files, fixtures), read from standard input, or cut off in the log.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from palomar.data.schema import Interaction
from palomar.detectors.signatures._code import _parse

MAX_TEXT = 400_000
"""Characters read per interaction."""

MAX_CALL = 4_000
"""Longest call text, and longest value after it."""

MAX_CASES = 400
MAX_TRIES = 4_000
"""Calls looked at: a hostile text of nothing but ``f(`` must not cost more."""

STAND_INS = ("candidate",)

_CALL = re.compile(r"(?<!\w)([^\W\d]\w*)\(")
_HEAD = re.compile(r"\bdef ([^\W\d]\w*)\(")

NO_VALUE = "<no value>"


@dataclass(frozen=True)
class Case:
    """One tested input. Values are plain: lists read as tuples, dicts and sets as sorted tuples."""

    function: str | None
    """Name it is called by; None where any function may be meant (a stand-in's name, ``Input:`` and ``Output:``)."""
    inputs: tuple[Hashable, ...]
    expected: Hashable = NO_VALUE


def tested_literals(item: Interaction, names: Iterable[str]) -> tuple[Case, ...]:
    """Distinct tested inputs of functions of the given names, in the order they are shown."""
    texts = []
    for step in item.steps:
        if step.author != "agent":
            texts.append(step.text or "")
        texts += [call.result or "" for call in step.tool_calls]
    # Where the answer is the body alone, the head of the function stands in the request.
    asked = "\n".join(step.text or "" for step in item.steps if step.author == "person")[:MAX_TEXT]
    return _cases("\n".join(texts)[:MAX_TEXT], frozenset({*names, *_HEAD.findall(asked), *STAND_INS}))


@lru_cache(maxsize=16)
def _cases(text: str, names: frozenset[str]) -> tuple[Case, ...]:
    found: dict[Case, None] = {}
    tries = 0
    for match in _CALL.finditer(text):
        name = match.group(1)
        if name not in names:
            continue
        tries += 1
        if tries > MAX_TRIES or len(found) >= MAX_CASES:
            break
        end = _closing(text, match.end())
        inputs = None if end is None else _inputs(text[match.end() : end - 1])
        if end is not None and inputs:
            found[Case(None if name in STAND_INS else name, inputs, _value_after(text, end))] = None
    for case in _input_output(text):
        found[case] = None
    return tuple(found)


def _inputs(arguments: str) -> tuple[Hashable, ...] | None:
    """Values of arguments that are all literals, by position or by name; None for others."""
    call = _expression(f"f({arguments})")
    if not isinstance(call, ast.Call):
        return None
    try:
        return tuple(plain(node) for node in [*call.args, *(word.value for word in call.keywords)])
    except ValueError:
        return None


def _closing(text: str, start: int) -> int | None:
    """Position after the bracket that closes the one before `start`; None where none does within `MAX_CALL`."""
    depth, quote, index, stop = 1, "", start, min(len(text), start + MAX_CALL)
    while index < stop:
        letter = text[index]
        if quote:
            if letter == "\\":
                index += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return None


_RELATION = re.compile(r"\s*(?:==|->|=>|\bis\b|\breturns\b|,)\s*|[ \t]*\r?\n[ \t]*(?!>>>|\.\.\.)")


def _value_after(text: str, end: int) -> Hashable:
    """The literal that is said to be the call's value, or `NO_VALUE`."""
    relation = _RELATION.match(text, end)
    if relation is None:
        return NO_VALUE
    line = text[relation.end() : relation.end() + MAX_CALL].split("\n", 1)[0].rstrip(" \r;,.")
    for candidate in (line, line.split("  #")[0], line.rstrip(")"), line.rsplit(",", 1)[0], _quoted_off(line)):
        node = _expression(candidate)
        if node is not None:
            try:
                return plain(node)
            except ValueError:
                continue
    return NO_VALUE


def _quoted_off(line: str) -> str:
    """A line of a JSON or Python list of test texts, without the quote that ends the text."""
    return re.split(r"(?<=[\w\])}'\"])['\"]\s*[,\]]?\s*$", line)[0]


_INPUT = re.compile(r"Input:?[ \t]*\n?[ \t]*([^\n]{1,2000})\n+[ \t]*\**Output:?\**[ \t]*\n?[ \t]*([^\n]{1,2000})")


def _input_output(text: str) -> Iterator[Case]:
    for count, match in enumerate(_INPUT.finditer(text)):
        if count >= MAX_CASES:
            return
        inputs, value = _inputs(match.group(1)), _expression(match.group(2).strip())
        if inputs and value is not None:
            try:
                yield Case(None, inputs, plain(value))
            except ValueError:
                continue


def _expression(text: str) -> ast.expr | None:
    try:
        body = _parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


_WRAPPERS = ("tuple", "list", "set", "frozenset", "str", "repr", "sorted", "dict", "int", "float")


def plain(node: ast.expr, depth: int = 0) -> Hashable:
    """The value of a literal, or of a literal in ``tuple()``, ``str()`` and the like; ValueError for anything else."""
    if depth > 40:
        raise ValueError("too deep")
    if isinstance(node, ast.Constant):
        return node.value if not isinstance(node.value, bytes) else repr(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = plain(node.operand, depth + 1)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        parts = tuple(plain(part, depth + 1) for part in node.elts)
        return _ordered(parts) if isinstance(node, ast.Set) else parts
    if isinstance(node, ast.Dict):
        pairs = []
        for key, value_node in zip(node.keys, node.values, strict=True):
            if key is None:
                raise ValueError("unpacks another")
            pairs.append((plain(key, depth + 1), plain(value_node, depth + 1)))
        return _ordered(pairs)
    if isinstance(node, ast.Call) and not node.keywords:
        return _plain_call(node, depth + 1)
    raise ValueError("no literal")


def _plain_call(node: ast.Call, depth: int) -> Hashable:
    """``tuple([1])``, ``str(...)`` and the like read as what they hold, ``x.items()`` as x."""
    if isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS and len(node.args) <= 1:
        return plain(node.args[0], depth) if node.args else ()
    if isinstance(node.func, ast.Attribute) and node.func.attr == "items":
        return plain(node.func.value, depth)
    raise ValueError("no literal")


def _ordered(parts: Iterable[Hashable]) -> tuple[Hashable, ...]:
    return tuple(sorted(parts, key=repr))


def surprise(value: Hashable) -> float:
    """About how many bits it takes to hit on a literal by chance: what an honest author would hardly write by himself.

    0 for None, booleans, 0, 1, empty and one-letter texts; log2 of a whole number's size, of its leading digits where
    it is round; for texts their letters times log2 of the distinct ones; for collections the sum. At most 64.
    """
    if value is None or isinstance(value, bool):
        return 0.0
    if isinstance(value, int):
        size = abs(value)
        if size <= 1:
            return 0.0
        if size.bit_length() > 256:
            return 64.0
        digits = str(size).rstrip("0")
        round_off = len(str(size)) - len(digits)
        if size & (size - 1) == 0:
            return math.log2(size.bit_length())
        return min(64.0, math.log2(int(digits) + 1) + math.log2(round_off + 1))
    if isinstance(value, float):
        return min(64.0, 2.0 * len(repr(value).rstrip("0"))) if math.isfinite(value) and value % 1 else 1.0
    if isinstance(value, str):
        return min(64.0, max(0, len(value) - 1) * math.log2(1 + len(set(value[:64]))))
    if isinstance(value, tuple):
        return min(64.0, sum(1.0 + surprise(part) for part in value))
    return 0.0
