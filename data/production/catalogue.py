"""The modules of the simulated production: real functions, places where a bug may sit, and tests.

Each file of ``modules/`` holds one function of plain code and, below it, three constants that are no part of what an
agent sees: ``DOMAIN``, ``CASES`` (arguments of the tests) and ``SITES`` (per place: kind of bug, the expression in the
code, the expression that is right under the lenient reading of the request, two wrong ones). Files are read with
``ast.literal_eval``; this process never runs them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from palomar.data.production.grammar import CHOICES, MAX_STATEMENTS, SITES

_FOLDER = Path(__file__).with_name("modules")
INDENT = "    "


@dataclass(frozen=True)
class Site:
    """One place in the function, and the expressions that may stand there."""

    bug: str
    """Kind of bug: ``off-by-one``, ``wrong-operator``, ..."""
    statement: int
    """Number of the statement it is in."""
    choices: tuple[str, ...]
    """Expressions: right if strictly meant (as in the file), right if leniently meant, wrong, wrong."""


@dataclass(frozen=True)
class Module:
    """One module: its text in parts, so that patches can put it together again."""

    name: str
    domain: str
    function: str
    head: str
    """Everything up to and including the function's docstring."""
    parameters: tuple[str, ...]
    statements: tuple[str, ...]
    """Top-level statements of the function, with their indentation and comments, each ending with a line break."""
    sites: tuple[Site, ...]
    cases: tuple[tuple[Any, ...], ...] = field(repr=False)

    def statement(self, index: int, choices: tuple[int, ...]) -> str:
        """Text of a statement when site k holds expression ``choices[k]``."""
        text = self.statements[index]
        for site, choice in zip(self.sites, choices, strict=True):
            if site.statement == index and choice:
                text = text.replace(site.choices[0], site.choices[choice], 1)
        return text

    def source(self, choices: tuple[int, ...]) -> str:
        """The whole module when site k holds expression ``choices[k]``."""
        return self.head + "".join(self.statement(index, choices) for index in range(len(self.statements)))


@cache
def modules() -> dict[str, Module]:
    """All modules by name."""
    return {path.stem: _read(path) for path in sorted(_FOLDER.glob("[a-z]*.py"))}


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    constants = {
        node.targets[0].id: node
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    values = {name: ast.literal_eval(node.value) for name, node in constants.items()}
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    lines = text.splitlines(keepends=True)
    docstring, *body = function.body
    ends = [docstring.end_lineno or 0, *(node.end_lineno or 0 for node in body)]
    statements = tuple("".join(lines[start:end]) for start, end in pairwise(ends))
    sites = tuple(_site(path.stem, statements, *entry) for entry in values["SITES"])
    if (
        len(sites) != SITES
        or len(statements) > MAX_STATEMENTS
        or [s.statement for s in sites] != sorted(s.statement for s in sites)
    ):
        raise ValueError(f"{path.name}: expected {SITES} sites in order, and at most {MAX_STATEMENTS} statements")
    arguments = function.args
    return Module(
        name=path.stem,
        domain=values["DOMAIN"],
        function=function.name,
        head="".join(lines[: ends[0]]),
        parameters=tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)),
        statements=statements,
        sites=sites,
        cases=tuple(values["CASES"]),
    )


def _site(name: str, statements: tuple[str, ...], bug: str, *choices: str) -> Site:
    found = [index for index, text in enumerate(statements) for _ in range(text.count(choices[0]))]
    if len(found) != 1 or len(set(choices)) != CHOICES:
        raise ValueError(f"{name}: {choices[0]!r} must stand in the function once, and have {CHOICES - 1} others")
    return Site(bug, found[0], choices)
