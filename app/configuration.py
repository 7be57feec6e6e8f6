"""Settings as read: a run's configuration with its defaults marked, versions, detectors, and where things lie.

Secrets are masked here, before anything is shown. Detectors are read from their files and not run.
"""

from __future__ import annotations

import ast
import functools
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from palomar import __version__
from palomar.app.service import Observatory
from palomar.app.settings import Settings
from palomar.data.errors import ConfigError
from palomar.data.store.records import Run
from palomar.trainer.gate_policy import policy_names, read_policy

MASK = "•••"
_SECRET = re.compile(r"pass(word|phrase)?|secret|token$|api_?key|credential|dsn|webhook|authorization", re.IGNORECASE)
"""Names of settings whose values are never shown."""
_USERINFO = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]*(?=@)")
_QUERY_SECRET = re.compile(r"(?i)([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s]+")
SIZES_FOR_S = 60
"""How long a size is told before it is counted anew: a large home has thousands of files."""
STATED = ("RATE", "BUDGET", "BY_LOT", "TOLERANCE", "DISCOVERY")
"""Constants of detectors' files that their words on errors name; the numbers are put in their place."""
TABLES = ("interactions", "feedback", "observations", "samples", "derived")
"""Folders of the lake whose size is told."""


@dataclass(frozen=True)
class Setting:
    """One value of a run's configuration."""

    name: str
    """Keys joined by full stops, as in ``palomar.yaml``."""
    value: str
    """As JSON would have it; masked where it may be a secret."""
    default: bool | None
    """Whether it is what stands without being set; None = there is no default, or this version does not know it."""


@dataclass(frozen=True)
class RewardInForce:
    """A reward version of the run."""

    version: str
    from_cycle: int
    reason: str
    actor: str


@dataclass(frozen=True)
class PolicyKnown:
    """A gate's policy."""

    name: str
    version: str
    used: bool
    """Whether the run's newest decision was made by it."""


@dataclass(frozen=True)
class DetectorFile:
    """A detector, read from its file."""

    name: str
    source: str
    """``built in``, or the path of a file of the user's own."""
    about: str
    """First sentence of its docstring."""
    errors: str
    """How its errors are controlled, in its own words; empty where it does not say."""
    costly: bool
    """Left out by ``checks: quick``."""


@dataclass(frozen=True)
class Place:
    """Where something lies, and how large it is."""

    what: str
    where: str
    size: int | None
    """Bytes; None = it is not on this machine, or is not there."""


@dataclass(frozen=True)
class Configuration:
    """All that a run and this installation were told and found."""

    run_id: str | None
    settings: tuple[Setting, ...]
    rewards: tuple[RewardInForce, ...]
    """In the order in which they came into force."""
    policies: tuple[PolicyKnown, ...]
    detectors: tuple[DetectorFile, ...]
    unreadable: tuple[str, ...]
    """Files of the user's own that could not be read, with why."""
    libraries: Mapping[str, str]
    """Versions, Palomar's and Python's first."""
    schema: str | None
    """Revision of the store's tables; None = it could not be asked."""
    places: tuple[Place, ...]


def configuration(observatory: Observatory, run: Run | None) -> Configuration:
    """What there is to say; without a run, on the installation and the home alone."""
    config = {} if run is None else run.config
    gate, own = config.get("gate"), config.get("extensions")
    found, unreadable = [], []
    for path in own if isinstance(own, list | tuple) else ():
        try:
            found += detectors_in(Path(str(path)), str(path))
        except (OSError, SyntaxError, ValueError) as exc:
            unreadable.append(f"{path}: {exc}")
    return Configuration(
        run_id=None if run is None else run.run_id,
        settings=tuple(settings_of(config)),
        rewards=() if run is None else tuple(_rewards(observatory, run.run_id)),
        policies=tuple(_policies(observatory, run, gate if isinstance(gate, str) else None)),
        detectors=(*built_in(), *found),
        unreadable=tuple(unreadable),
        libraries=_libraries(),
        schema=observatory.store.health().schema if observatory.has_store else None,
        places=tuple(_places(observatory)),
    )


# -- settings ------------------------------------------------------------------------------------------------------


def settings_of(config: Mapping[str, Any]) -> Iterator[Setting]:
    """The values of a stored configuration, in its order, with defaults marked and secrets masked."""
    usual = _defaults(config)
    for name, value in _leaves(config):
        default = usual.get(name, _NOTHING)
        yield Setting(name, masked(name, value), None if default is _NOTHING else default == value)


_NOTHING = object()


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    source = config.get("source")
    given: dict[str, Any] = {}
    if isinstance(source, Mapping) and source.get("kind") == "logs":
        given = {"source": {"kind": "logs", "paths": ["*"]}}
    usual = dict(_leaves(Settings.model_validate(given).model_dump(mode="json")))
    usual.pop("source.paths", None)
    return usual


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _leaves(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(each) if isinstance(each, tuple) else each


def masked(name: str, value: Any) -> str:
    """A value as text, without what may be a secret: by its name, or a password or key within an address."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {masked(str(key), each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(masked(name, each) for each in value) + "]"
    if value not in (None, "", 0, False, True) and _SECRET.search(name.rpartition(".")[2]):
        return MASK
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _QUERY_SECRET.sub(rf"\g<1>{MASK}", _USERINFO.sub(MASK, str(value)))


# -- versions --------------------------------------------------------------------------------------------------------


def _rewards(observatory: Observatory, run_id: str) -> Iterator[RewardInForce]:
    store = observatory.store
    changes = {each.version: each for each in store.rewards.changes(run_id)}
    for each in store.rewards.scheduled(run_id):
        change, record = changes.get(each.version), store.rewards.get(each.version)
        said = change or record
        yield RewardInForce(
            each.version, each.from_cycle, "" if said is None else said.reason, "" if said is None else said.actor
        )


def _policies(observatory: Observatory, run: Run | None, chosen: str | None) -> Iterator[PolicyKnown]:
    newest = [] if run is None else observatory.store.decisions.latest(run.run_id, count=1)
    used = newest[0].policy if newest else None
    names = [*policy_names(), *([chosen] if chosen is not None and chosen not in policy_names() else [])]
    seen = set()
    for name in names:
        try:
            version = _packaged(name) if name in policy_names() else read_policy(name).policy.version
        except ConfigError as exc:
            version = f"cannot be read: {exc}"
        seen.add(version)
        yield PolicyKnown(name, version, version == used)
    if used is not None and used not in seen:
        yield PolicyKnown("of the newest decision", used, True)


@functools.cache
def _packaged(name: str) -> str:
    return read_policy(name).policy.version


def _libraries() -> dict[str, str]:
    return dict(_installed())


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    names = [re.split(r"[\s\[<>=!~;]", each, maxsplit=1)[0] for each in metadata.requires("palomar") or ()]
    found = [("palomar", __version__), ("python", platform.python_version())]
    for name in dict.fromkeys(names):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


# -- detectors -------------------------------------------------------------------------------------------------------


@functools.cache
def built_in() -> tuple[DetectorFile, ...]:
    """The detectors that come with Palomar, by name."""
    folder = Path(str(resources("palomar.detectors.checks")))
    found = [each for path in folder.glob("[!_]*.py") for each in detectors_in(path, "built in")]
    return tuple(sorted(found, key=lambda each: each.name))


def detectors_in(path: Path, source: str) -> list[DetectorFile]:
    """The detectors that a file registers under a name that stands in it. It is read, never run.

    Raises OSError, SyntaxError or ValueError where it cannot be read.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    about = ast.get_docstring(tree) or ""
    constants = _constants(tree) | _imported(tree, path)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if not isinstance(call, ast.Call) or not _is_detector(call.func) or not call.args:
                continue
            given = call.args[0]
            name = constants.get(given.id) if isinstance(given, ast.Name) else getattr(given, "value", None)
            costly = any(
                word.arg == "costly" and isinstance(word.value, ast.Constant) and word.value.value is True
                for word in call.keywords
            )
            if isinstance(name, str):
                found.append(DetectorFile(name, source, _first(about), _filled(errors_of(about), constants), costly))
    return found


def _constants(tree: ast.Module) -> dict[str, object]:
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _imported(tree: ast.Module, path: Path) -> dict[str, object]:
    """Constants that come from a module beside the file or one folder up."""
    found: dict[str, object] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        name = f"{node.module.rpartition('.')[2]}.py"
        for other in (path.parent / name, path.parent.parent / name):
            if other.is_file() and (wanted := {each.name for each in node.names} & set(STATED)):
                known = _constants(ast.parse(other.read_text(encoding="utf-8")))
                found |= {each: known[each] for each in wanted & known.keys()}
    return found


def _is_detector(func: ast.expr) -> bool:
    return (func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")) == "detector"


def _first(about: str) -> str:
    return " ".join(about.split("\n\n", 1)[0].split())


def errors_of(about: str) -> str:
    """What a docstring says of its errors: the paragraph that begins with ``Errors``, else when it fires."""
    paragraphs = [" ".join(paragraph.split()).replace("**", "") for paragraph in about.split("\n\n")]
    for words in paragraphs:
        if re.match(r"Errors?\b", words):
            return re.sub(r"^Errors?( control)?[:.]\s*", "", words)
    return next((words for words in paragraphs if words.startswith("Fires")), "")


def _filled(words: str, constants: Mapping[str, object]) -> str:
    """Words with the numbers in place of the names of constants of the same file."""

    def number(match: re.Match[str]) -> str:
        value = constants.get(match[1]) if match[1] in STATED else None
        return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else match[0]

    return re.sub(r"`([A-Z][A-Z_]+)`", number, words)


# -- places ----------------------------------------------------------------------------------------------------------


def _places(observatory: Observatory) -> Iterator[Place]:
    home = observatory.home
    yield Place("home", str(home.absolute()), None)
    if observatory.has_store:
        where = observatory.store.where
        file = Path(where)
        size = sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*")) if file.is_file() else None
        yield Place("store", where, size)
    for table in TABLES:
        folder = home / "lake" / table
        if folder.is_dir():
            yield Place(f"lake: {table}", str(folder.absolute()), _size(folder))
    for name in ("checkpoints", "evaluations", "experiments", "quarantine"):
        if (home / name).is_dir():
            yield Place(name, str((home / name).absolute()), _size(home / name))
    yield Place("Python", sys.executable, None)


def _size(folder: Path) -> int:
    """Bytes of all files below, counted anew after a minute."""
    return _counted(str(folder.absolute()), int(time.monotonic() // SIZES_FOR_S))


@functools.lru_cache(maxsize=64)
def _counted(folder: str, _: int) -> int:
    """The same, for one minute; files that go away meanwhile count as none."""
    total, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
