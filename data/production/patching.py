"""Applying an edit: the module after it, as text, with helper functions really extracted.

Extraction follows the data flow: a helper's parameters are the names its statements need and that are defined by then,
and it returns the names it sets that later statements need. So a split in the right order keeps behaviour, whatever the
groups; statements left out or put in another order give code that fails on its own when it runs.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from palomar.data.code_metrics import measure
from palomar.data.production.catalogue import INDENT, Module
from palomar.data.production.grammar import SITES, Patch
from palomar.data.schema import Edit, FunctionMeasure, Hunk

_BETWEEN = "\n\n\ndef "
"""What stands between two functions."""


class PatchError(Exception):
    """The edit names a statement that the function does not have."""


@dataclass(frozen=True)
class Flow:
    """What a stretch of statements does to names."""

    needs: frozenset[str] = frozenset()
    """Read before they are certainly set."""
    sets: frozenset[str] = frozenset()
    """Certainly set at the end."""
    may_set: frozenset[str] = frozenset()
    """Set on some path; includes `sets`."""
    returns: bool = False
    """Holds a return statement."""

    def then(self, later: Flow) -> Flow:
        """The flow of both, one after the other."""
        return Flow(
            self.needs | (later.needs - self.sets),
            self.sets | later.sets,
            self.may_set | later.may_set,
            self.returns or later.returns,
        )


def seeded(module: Module, site: int, bug: int) -> tuple[int, ...]:
    """Choices of all sites in a module that is right (strictly) but for one bug."""
    return tuple(bug if index == site else 0 for index in range(SITES))


def apply_patch(module: Module, choices: tuple[int, ...], patch: Patch) -> str:
    """The module's text after the patch. Raises PatchError where it cannot be applied."""
    count = len(module.statements)
    wanted = [index for group in patch.groups for index in group]
    if any(index >= count for index in wanted):
        raise PatchError(f"{module.function} has no statement s{max(wanted)}")
    choices = tuple(patch.choice if site == patch.site else choice for site, choice in enumerate(choices))
    text = {index: module.statement(index, choices) for index in set(wanted)}
    flow = {index: statement_flow(source) for index, source in text.items()}
    main = [text[index] for index in patch.groups[0]]
    so_far = _sequence(flow[index] for index in patch.groups[0])
    defined = [*module.parameters, *sorted(so_far.may_set - set(module.parameters))]
    helpers = []
    for number, group in enumerate(patch.groups[1:], start=1):
        own = _sequence(flow[index] for index in group)
        later = _sequence(flow[index] for following in patch.groups[number + 1 :] for index in following)
        passed_on = sorted(own.may_set & later.needs)
        # A name that is set on some paths only keeps its old value on the others, so the old value must come in.
        needed = own.needs | (set(passed_on) - own.sets)
        parameters = [name for name in defined if name in needed]
        name = f"_{module.function}_part{number}"
        call = f"{name}({', '.join(parameters)})"
        body = "".join(text[index] for index in group) or f"{INDENT}pass\n"
        if own.returns:
            main.append(f"{INDENT}return {call}\n")
        elif passed_on:
            main.append(f"{INDENT}{', '.join(passed_on)} = {call}\n")
            body += f"{INDENT}return {', '.join(passed_on)}\n"
        else:
            main.append(f"{INDENT}{call}\n")
        helpers.append(f"{_BETWEEN}{name}({', '.join(parameters)}):\n{body}")
        defined += sorted(own.may_set - set(defined))
    return module.head + "".join(main) + "".join(helpers)


@lru_cache(maxsize=4096)
def statement_flow(source: str) -> Flow:
    """Flow of one statement, given with its indentation."""
    return _sequence(_flow(node) for node in ast.parse(textwrap.dedent(source)).body)


def _sequence(flows: Iterable[Flow]) -> Flow:
    total = Flow()
    for flow in flows:
        total = total.then(flow)
    return total


def _flow(node: ast.stmt) -> Flow:
    match node:
        case ast.Assign(targets=targets, value=value):
            names = frozenset(name for target in targets for name in _stored(target))
            # What a target reads: `table[key] = value` needs both names.
            return Flow(_read(value).union(*(_read(target) for target in targets)), names, names)
        case ast.AugAssign(target=target, value=value):
            names = frozenset(_stored(target))
            return Flow(_read(value) | _read(target) | names, names, names)
        case ast.For(target=target, iter=source, body=body):
            names = frozenset(_stored(target))
            inside = Flow(sets=names, may_set=names).then(_sequence(map(_flow, body)))
            return Flow(_read(source) | inside.needs, frozenset(), inside.may_set, inside.returns)
        case ast.While(test=test, body=body):
            inside = _sequence(map(_flow, body))
            return Flow(_read(test) | inside.needs, frozenset(), inside.may_set, inside.returns)
        case ast.If(test=test, body=body, orelse=orelse):
            yes, no = _sequence(map(_flow, body)), _sequence(map(_flow, orelse))
            return Flow(
                _read(test) | yes.needs | no.needs,
                yes.sets & no.sets,
                yes.may_set | no.may_set,
                yes.returns or no.returns,
            )
        case ast.Return():
            return Flow(_read(node), returns=True)
        case ast.Expr() | ast.Raise() | ast.Break() | ast.Continue() | ast.Pass():
            return Flow(_read(node))
    raise TypeError(f"modules do not use {type(node).__name__}")


def _stored(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _read(node: ast.AST) -> frozenset[str]:
    """Names an expression reads from outside; names of its own comprehensions and lambdas are not among them."""
    read: set[str] = set()
    own: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.comprehension(target=target):
                own |= _stored(target)
            case ast.Lambda(args=arguments):
                own |= {argument.arg for argument in arguments.args}
    return frozenset(read - own)


def as_edit(path: str, before: str, after: str) -> Edit:
    """The change between two texts of a file, as a unified diff's hunks with three lines of context, measured."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    hunks = []
    added = removed = 0
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3):
        hunks.append(
            Hunk(
                before="".join(old[group[0][1] : group[-1][2]]),
                after="".join(new[group[0][3] : group[-1][4]]),
                start_before=group[0][1] + 1,
                start_after=group[0][3] + 1,
            )
        )
        for tag, old_start, old_end, new_start, new_end in group:
            if tag != "equal":
                removed += old_end - old_start
                added += new_end - new_start
    return Edit(
        path=path,
        form="unified_diff",
        outcome="applied",
        language="python",
        hunks=tuple(hunks),
        lines_added=added,
        lines_removed=removed,
        functions_before=function_sizes(before),
        functions_after=function_sizes(after),
    )


def function_sizes(source: str) -> tuple[FunctionMeasure, ...]:
    """Functions of one of our modules, or of one after a patch.

    Measured one by one: measuring is the dearest part of a patch, and most helpers were seen before.
    """
    first, *others = source.split(_BETWEEN)
    parts = (first, *("def " + other for other in others))
    return tuple(size for part in parts for size in measure(part, "python") or ())
