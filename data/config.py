"""Reading a YAML file that a person wrote: safe, strict, and with errors that name the line and the key.

PyYAML's safe loader builds plain values only; we compose the nodes ourselves first, since only nodes know their lines.
Aliases are refused: no file of ours needs them, and a few nested ones expand to gigabytes.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from palomar.data.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 50


def read_config(path: Path, model: type[Model]) -> Model:
    """The file at `path` as a `model`. Raises ConfigError with file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), None, None, f"cannot be read: {exc}") from exc
    return parse_config(text, model, source=str(path))


def parse_config(text: str, model: type[Model], *, source: str) -> Model:
    """YAML text as a `model`; `source` is what errors call it."""
    value, lines = parse_yaml(text, source=source)
    return validated(value, model, lines, source=source)


def validated(value: Any, model: type[Model], lines: dict[KeyPath, int], *, source: str, at: KeyPath = ()) -> Model:
    """A plain value, found at key path `at` of a file, as a `model`; for files whose parts have models of their own.

    A validator that knows which key is to blame, and is not on it, raises PydanticCustomError with that key's path in
    its context as ``path``.
    """
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise _config_error(exc, model, lines, source, at) from exc


def parse_yaml(text: str, *, source: str) -> tuple[Any, dict[KeyPath, int]]:
    """Plain value of YAML text, and the 1-based line of every key path in it.

    Raises ConfigError for bad syntax, a duplicate key, an alias, a tag that is not plain data, or more than a million
    characters or 50 levels.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(source, None, None, f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    lines: dict[KeyPath, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(source, _line(event.start_mark), None, "aliases (*name) are not read here")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ConfigError(source, _line(event.start_mark), None, f"is nested more than {MAX_DEPTH} deep")
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _record_lines(node, (), lines, source)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as exc:
        raise ConfigError(
            source, _line(exc.problem_mark or exc.context_mark), None, f"not YAML: {exc.problem}"
        ) from exc
    except yaml.YAMLError as exc:
        raise ConfigError(source, None, None, f"not YAML: {exc}") from exc


def _record_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], source: str) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if (*path, key) in lines:
                raise ConfigError(
                    source, line, dotted((*path, key)), f"is there twice (first in line {lines[*path, key]})"
                )
            lines[*path, key] = line
            _record_lines(value_node, (*path, key), lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _record_lines(item, (*path, index), lines, source)


def _line(mark: Any) -> int | None:
    """1-based line of a YAML mark (PyYAML's are 0-based, and may be absent)."""
    return None if mark is None else mark.line + 1


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``terms[2].weight``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _config_error(
    exc: ValidationError, model: type[BaseModel], lines: dict[KeyPath, int], source: str, at: KeyPath
) -> ConfigError:
    """The first of pydantic's complaints, said with line and key; the number of further ones is added."""
    # A misspelt key comes before the key it should have been, which is reported missing.
    first, *others = sorted(exc.errors(), key=lambda error: error["type"] != "extra_forbidden")
    # pydantic also puts names of union members into the path; keep what the file really has.
    path = at
    for part in (*first["loc"], *first.get("ctx", {}).get("path", ())):
        if (*path, part) in lines:
            path = (*path, part)
    wanted = first["loc"][-1] if first["loc"] else None
    key = (*path, str(wanted)) if first["type"] == "missing" else path
    problem = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        problem = "unknown key" + _suggestion(str(wanted), _known_keys(model, path[len(at) : -1]))
    elif first["type"] == "missing":
        problem = "is missing"
    elif isinstance(first["input"], str | int | float | bool | None):
        problem += f" (got {first['input']!r})"
    if others:
        problem += f"; and {len(others)} more problem{'s' if len(others) > 1 else ''}"
    return ConfigError(source, lines.get(path), dotted(key) or None, problem)


def _known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Keys a model has at a path, as far as it can be followed; for "did you mean"."""
    schema = model.model_json_schema()
    node: Any = schema
    for part in path:
        node = _resolve(node, schema)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return list(_resolve(node, schema).get("properties", {}))


def _resolve(node: Any, schema: Any) -> Any:
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            return schema["$defs"][option["$ref"].rsplit("/", 1)[-1]]
    return node


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""
