"""Another spec as text, changed as little as possible: comments, layout and order of what stays are kept.

The text of a spec is what people read, with the reasons in its comments. So a weight is changed in place, a term is put
below the last one, and where a rule or term goes, a comment says so. What cannot be written that way (lists in braces,
changes of another kind) is written out anew, below the comments that headed the old text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from palomar.data.errors import ConfigError
from palomar.reward.spec import InclusionRule, RewardSpec, TermSpec, parse_spec, to_yaml, version

_Edit = tuple[int, int, str]
"""From, to, and what stands there instead."""


def rewritten(text: str, new: RewardSpec, *, why: str, reasons: Mapping[str, str] | None = None) -> str:
    """YAML of `new`, as a change of `text`, which is YAML of the spec it came from.

    `why` goes into the comments; of a term or rule that `reasons` names, its reason does.

    Reading it gives `new`, always.
    """
    try:
        changed = _changed(text, new, why, reasons or {})
        if changed is not None and version(parse_spec(changed)) == version(new):
            return changed
    except (ConfigError, yaml.YAMLError):
        pass  # written out below
    head = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        head.append(line)
    return "\n".join([*head, *_comment(f"Changed: {why}"), to_yaml(new)])


def _changed(text: str, new: RewardSpec, why: str, reasons: Mapping[str, str]) -> str | None:
    """The text with weights, new terms and gone rules edited in; None where that is not all that differs."""
    old = parse_spec(text)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return None
    parts = {key.value: (key, value) for key, value in root.value}
    edits: list[_Edit] = []
    terms = parts["terms"][1]
    for index, term in enumerate(old.terms):
        after = next((each for each in new.terms if each.name == term.name), None)
        if after is None:
            edits.append(_gone(text, terms, index, f"{term.name} is gone: {reasons.get(term.name, why)}"))
        elif after.weight != term.weight:
            weight = next(value for key, value in terms.value[index].value if key.value == "weight")
            edits.append((weight.start_mark.index, weight.end_mark.index, repr(after.weight)))
    added = [term for term in new.terms if term.name not in {each.name for each in old.terms}]
    if added:
        edits.append(_below(text, terms, added, [reasons.get(term.name, why) for term in added]))
    if old.inclusion != new.inclusion:
        edits += _rules(
            text,
            parts.get("inclusion"),
            old.inclusion,
            new.inclusion,
            [reasons.get(rule.name, why) for rule in old.inclusion],
        )
    for start, end, instead in sorted(edits, reverse=True):
        text = text[:start] + instead + text[end:]
    return text


def _below(text: str, terms: Any, added: Sequence[TermSpec], reasons: Sequence[str]) -> _Edit:
    """New terms below the last one of a list with dashes."""
    if terms.flow_style or not terms.value:
        raise yaml.YAMLError("a list in brackets")
    last = terms.value[-1]
    indent = " " * (last.start_mark.column - 2)
    place = _end(text, last.end_mark.index)
    lines = []
    for term, why in zip(added, reasons, strict=True):
        # Defaults are left out, as a person would; the check of what comes out covers that.
        content = term.model_dump(mode="json", exclude_none=True, exclude={"params"})
        params = term.params.model_dump(mode="json", exclude_none=True)
        if content["kind"] == content["name"]:
            del content["kind"]
        lines += ["", *_comment(why, indent)]
        body = [f"{key}: {_flow(value)}" for key, value in content.items()]
        if params:
            body.append(f"params: {_flow(params)}")
        lines += [f"{indent}- {body[0]}", *(f"{indent}  {line}" for line in body[1:])]
    return place, place, "\n" + "\n".join(lines)


def _rules(
    text: str, rules: Any, old: Sequence[InclusionRule], new: Sequence[InclusionRule], reasons: Sequence[str]
) -> list[_Edit]:
    kept = [rule for rule in old if rule in new]
    if list(new) != kept or rules is None:
        raise yaml.YAMLError("rules that are new or in another order")
    key, items = rules
    edits = [
        _gone(text, items, index, f"{rule.name} dropped samples here: {reasons[index]}")
        for index, rule in enumerate(old)
        if rule not in new
    ]
    if not kept:
        colon = text.index(":", key.end_mark.index) + 1
        edits.append((colon, colon, " []"))
    return edits


def _gone(text: str, items: Any, index: int, said: str) -> _Edit:
    """A comment in the place of an item of a list with dashes."""
    if items.flow_style:
        raise yaml.YAMLError("a list in brackets")
    item = items.value[index]
    indent = " " * (item.start_mark.column - 2)
    start = text.rfind("\n", 0, item.start_mark.index) + 1
    return start, _end(text, item.end_mark.index), "\n".join(_comment(said, indent))


def _end(text: str, index: int) -> int:
    """Where the content before `index` ends: a block's own mark lies behind the blank lines and comments below it."""
    lines = text[:index].splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return len("".join(lines).rstrip("\n"))


def _comment(words: str, indent: str = "") -> list[str]:
    """Comment lines of at most about 110 characters; what is no printable character is a blank."""
    lines: list[str] = []
    line = ""
    for word in "".join(each if each.isprintable() else " " for each in words).split():
        if line and len(indent) + 2 + len(line) + 1 + len(word) > 110:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [f"{indent}# {each}" for each in [*lines, line]]


def _flow(value: object) -> str:
    """A value on one line, in braces and brackets."""
    written = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return str(written).removesuffix("\n").removesuffix("...").strip()
