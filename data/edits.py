"""Edits in every form in which agents express them, read into `Edit` records.

A form whose hunks can be read gives hunks; one that cannot is kept whole, as ``form="unknown"`` with its text. Nothing
here applies an edit or says whether it succeeded: `outcome` is what the caller knows from its log.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from unidiff import PatchSet
from unidiff.errors import UnidiffParseError

from palomar.data.schema import Edit, EditForm, EditOutcome, Hunk, ToolCall

LANGUAGES = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".jsx": "javascript", ".mjs": "javascript",
    ".cjs": "javascript", ".ts": "typescript", ".tsx": "typescript", ".vue": "vue", ".java": "java", ".kt": "kotlin",
    ".kts": "kotlin", ".scala": "scala", ".go": "go", ".rs": "rust", ".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp",
    ".cxx": "cpp", ".hpp": "cpp", ".hh": "cpp", ".cs": "csharp", ".php": "php", ".rb": "ruby", ".swift": "swift",
    ".m": "objectivec", ".mm": "objectivec", ".lua": "lua", ".r": "r", ".pl": "perl", ".f90": "fortran", ".zig": "zig",
    ".sol": "solidity", ".erl": "erlang", ".ex": "elixir", ".exs": "elixir", ".hs": "haskell", ".sh": "shell",
    ".bash": "shell", ".sql": "sql", ".html": "html", ".css": "css", ".scss": "css", ".md": "markdown",
    ".rst": "restructuredtext", ".json": "json", ".jsonl": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml",
    ".xml": "xml", ".ini": "ini", ".cfg": "ini", ".tf": "terraform", ".gd": "gdscript", ".dart": "dart", ".jl": "julia",
}  # fmt: skip


def language_of(path: str | None) -> str | None:
    """Programming (or markup) language by file ending, lower case; None where unknown."""
    return None if path is None else LANGUAGES.get(PurePosixPath(path.strip().replace("\\", "/")).suffix.lower())


def edit(
    path: str | None,
    form: EditForm,
    hunks: tuple[Hunk, ...] = (),
    *,
    text: str | None = None,
    outcome: EditOutcome = "unknown",
    lines_added: int | None = None,
    lines_removed: int | None = None,
) -> Edit:
    """An edit with its language filled in."""
    return Edit(
        path=path,
        form=form,
        outcome=outcome,
        language=language_of(path),
        hunks=hunks,
        text=text,
        lines_added=lines_added,
        lines_removed=lines_removed,
    )


_FILE_START = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HEADER = re.compile(r"^--- [^\n]*\n\+\+\+ ", re.MULTILINE)
_TARGET = re.compile(r"^\+\+\+ (?:b/)?([^\t\r\n]+)|^diff --git a/\S+ b/(\S+)", re.MULTILINE)


def from_unified_diff(text: str, outcome: EditOutcome = "unknown") -> tuple[Edit, ...]:
    """One edit per file of a unified (git) diff; none where the text is no diff.

    A part whose hunks do not add up (models miscount them) becomes ``unknown`` with its text, alone: the other files of
    the same diff are read. A diff with CRLF line ends is read as if it had LF ones. Renames without a change of text
    and binary files have no hunks.
    """
    plain = text.replace("\r\n", "\n")
    if not _HEADER.search(plain) and not _FILE_START.search(plain):
        return ()
    parts = [part for part in _FILE_START.split(plain) if part.strip()]
    return tuple(item for part in parts for item in _diff_part(part, outcome))


def _diff_part(part: str, outcome: EditOutcome) -> list[Edit]:
    if not _HEADER.search(part) and not part.startswith("diff --git "):
        return []  # prose before the first file
    try:
        files = list(PatchSet.from_string(part if part.endswith("\n") else part + "\n"))
    except (UnidiffParseError, ValueError):
        files = []
    if not files:
        target = _TARGET.search(part)
        path = (target.group(1) or target.group(2)).strip() if target else None
        return [edit(path, "unknown", text=part, outcome=outcome)]
    found = []
    for file in files:
        hunks = tuple(
            Hunk(
                before=_side(hunk, "-"),
                after=_side(hunk, "+"),
                start_before=hunk.source_start,
                start_after=hunk.target_start,
            )
            for hunk in file
        )
        found.append(
            edit(
                file.path,
                "unified_diff",
                hunks,
                text=None if hunks else part,
                outcome=outcome,
                lines_added=file.added,
                lines_removed=file.removed,
            )
        )
    return found


def _side(hunk: object, sign: str) -> str:
    """Text of one side of a hunk: context and own lines, without the end of line that the diff says is absent."""
    lines: list[str] = []
    mine = False
    for line in hunk:  # type: ignore[attr-defined]
        if line.line_type == "\\":
            if mine and lines:
                lines[-1] = lines[-1].removesuffix("\n")
        else:
            mine = line.line_type in (" ", sign)
            if mine:
                lines.append(line.value)
    return "".join(lines)


def _lines(text: str) -> int:
    return len(text.splitlines())


def from_old_new(path: str | None, old: str, new: str, outcome: EditOutcome = "unknown") -> Edit:
    """Replacement of one string by another, as edit tools take it. Lines are counted of the differing middle."""
    added, removed = _changed(old, new)
    hunk = Hunk(before=old, after=new)
    return edit(path, "old_new", (hunk,), outcome=outcome, lines_added=added, lines_removed=removed)


def _changed(old: str, new: str) -> tuple[int, int]:
    """Lines added and removed, common lines at both ends left out."""
    before, after = old.splitlines(), new.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return len(after), len(before)


def from_whole_file(path: str | None, text: str, outcome: EditOutcome = "unknown") -> Edit:
    """A file written anew. What stood there before is not known, so there is no hunk and no count of removed lines."""
    return edit(path, "whole_file", text=text, outcome=outcome, lines_added=_lines(text))


_SEARCH = re.compile(r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD)\b")
_DIVIDER = re.compile(r"={5,9}[ \t]*")
_REPLACE = re.compile(r">{5,9} ?(?:REPLACE|UPDATED|updated)\b")
"""Marks of Aider's blocks, those of its older releases (ORIGINAL/UPDATED, HEAD/updated) among them."""
_BLOCK_FENCE = re.compile(r"```|<source>")


def from_search_replace(text: str, outcome: EditOutcome = "unknown") -> tuple[Edit, ...]:
    """Search/replace blocks (``<<<<<<< SEARCH``, ``=======``, ``>>>>>>> REPLACE``), the path on the line before.

    A block right after another one of the same file may leave the path out. A block that is never closed is none. One
    pass over the lines: a pattern over the whole text takes cubic time where blocks are left open.
    """
    found: list[Edit] = []
    path: str | None = None
    old: list[str] | None = None
    new: list[str] | None = None
    lines = text.replace("\r\n", "\n").split("\n")
    for index, line in enumerate(lines):
        if _SEARCH.match(line):
            path = _path_before(lines, index) or path
            old, new = [], None
        elif old is None:
            continue
        elif new is None and _DIVIDER.fullmatch(line):
            new = []
        elif new is not None and _REPLACE.match(line):
            before, after = ("".join(f"{part}\n" for part in side) for side in (old, new))
            added, removed = _changed(before, after)
            hunk = Hunk(before=before, after=after)
            found.append(
                edit(path, "search_replace", (hunk,), outcome=outcome, lines_added=added, lines_removed=removed)
            )
            old = new = None
        else:
            (old if new is None else new).append(line)
    return tuple(found)


def _path_before(lines: list[str], index: int) -> str | None:
    """The file named above a block: on the line before it, or before the fence it stands in."""
    at = index - 1
    if at >= 0 and _BLOCK_FENCE.match(lines[at]):
        at -= 1
    named = lines[at].strip().strip("`*#: ") if at >= 0 else ""
    return named if named and " " not in named else None


_MAY_WRITE = re.compile(r">|<<|\btee\b|\bsed\b|\bperl\b|\bpython|\bpatch\b|\bapply\b")
_HEREDOC = re.compile(r"<<(?P<dash>-?)[ \t]*(?P<quote>['\"]?)(?P<word>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)")
_PYTHON_WRITE = re.compile(
    r"""open\(\s*(?:'([^'\n]+)'|"([^"\n]+)")\s*,\s*(?:mode\s*=\s*)?['"][wax]|Path\(\s*(?:'([^'\n]+)'|"([^"\n]+)")\s*\)\.write_"""
)
_PYTHON_WRITE_TO_NAME = re.compile(r"open\(\s*(\w+)\s*,\s*['\"][wax]|\b(\w+)\.write_(?:text|bytes)\(")


def from_shell(command: str, outcome: EditOutcome = "unknown") -> tuple[Edit, ...]:
    """Edits that a shell command makes, as far as its text tells.

    ``cat``/``tee`` with a here-document writes its body (``heredoc``); a diff fed to ``patch`` or ``git apply`` is read
    as a diff; ``sed -i``, ``perl -i``, output redirected to a file, and Python that opens a file for writing are edits
    of ``unknown`` form with their text. Blind to editors, to scripts run from files, and to paths held in variables
    (for Python: path None unless assigned as a literal in the same text).
    """
    if not _MAY_WRITE.search(command):
        return ()  # most commands only look; splitting them into words is slow
    found: list[Edit] = []
    skeleton, bodies = _without_heredocs(command)
    for words, marks in _simple_commands(skeleton):
        body = next((bodies[mark] for mark in marks if mark in bodies), None)
        found.extend(_command_edits(words, body, command, outcome))
    return tuple(found)


_PATHS = ("path", "file_path", "filepath", "filename", "file_name", "file", "target_file", "TargetFile")
_OLD = ("old_string", "old_str", "old_text", "search", "oldText", "old")
_NEW = ("new_string", "new_str", "new_text", "replace", "newText", "new", "replacement")
_WHOLE = ("content", "file_text", "contents", "text", "file_contents")
_COMMANDS = ("command", "cmd", "script", "keystrokes")
_SHELLS = re.compile(r"bash|shell|terminal|command|exec|run", re.IGNORECASE)
_WRITERS = re.compile(r"write|create|save|put|overwrite", re.IGNORECASE)
_OUTCOMES: dict[str, EditOutcome] = {
    "ok": "applied", "failed": "failed", "timed_out": "failed", "refused": "failed", "not_run": "failed",
}  # fmt: skip


def for_call(call: ToolCall) -> tuple[Edit, ...]:
    """Edits that a tool call makes (or tried to), by the argument names that edit tools share.

    Read are: old and new string with a path, whole contents with a path from a tool that writes or creates, a diff or a
    ``*** Begin Patch`` text, lists of such edits, and shell commands. The outcome follows the call's: a call that did
    not run left the file as it was. Arguments that are no JSON give no edit, since what they meant cannot be told.
    """
    arguments = _object(call.arguments)
    if arguments is None or not call.name:
        return ()
    return from_arguments(call.name, arguments, _OUTCOMES.get(call.outcome, "unknown"))


def shell_edits(call: ToolCall) -> tuple[Edit, ...]:
    """Edits of a call whose arguments are a shell command as it stands; the outcome follows the call's."""
    return from_shell(call.arguments, _OUTCOMES.get(call.outcome, "unknown")) if call.arguments else ()


def from_arguments(name: str, arguments: Mapping[str, Any], outcome: EditOutcome = "unknown") -> tuple[Edit, ...]:
    """Edits in the parsed arguments of a call of tool `name`; see `for_call`."""
    path = _first(arguments, _PATHS)
    old, new = _first(arguments, _OLD), _first(arguments, _NEW)
    if old is not None and new is not None:
        return (from_old_new(path, old, new, outcome),)
    parts = arguments.get("edits")
    if isinstance(parts, list):
        given = {} if path is None else {"path": path}
        inner = [from_arguments(name, {**given, **part}, outcome) for part in parts if isinstance(part, dict)]
        return tuple(item for group in inner for item in group)
    for key in ("patch", "diff", "input"):
        text = arguments.get(key)
        if isinstance(text, str) and (found := from_patch(text, outcome)):
            return found
    whole = _first(arguments, _WHOLE)
    action = arguments.get("command")
    if path is not None and whole is not None and (_WRITERS.search(name) or action == "create"):
        return (from_whole_file(path, whole, outcome),)
    if path is not None and new is not None and (action == "insert" or "insert_line" in arguments):
        line = arguments.get("insert_line")
        start = line + 1 if isinstance(line, int) and line >= 0 else None
        hunk = Hunk(before="", after=new, start_after=start)
        return (edit(path, "old_new", (hunk,), outcome=outcome, lines_added=_lines(new), lines_removed=0),)
    command = _first(arguments, _COMMANDS)
    if command is not None and path is None and _SHELLS.search(name):
        return from_shell(command, outcome)
    return ()


def from_patch(text: str, outcome: EditOutcome = "unknown") -> tuple[Edit, ...]:
    """A unified diff, or a ``*** Begin Patch`` text (whose hunks have no line numbers and are kept as text)."""
    if "*** Begin Patch" not in text:
        return from_unified_diff(text, outcome)
    found = []
    for match in _PATCH_FILE.finditer(text):
        lines = match["body"].splitlines()
        added = sum(line.startswith("+") for line in lines)
        removed = sum(line.startswith("-") for line in lines)
        known = match["verb"] != "Delete"
        found.append(
            edit(
                match["path"].strip(),
                "unknown",
                text=match.group(),
                outcome=outcome,
                lines_added=added,
                lines_removed=removed if known else None,
            )
        )
    return tuple(found)


_PATCH_FILE = re.compile(
    r"^\*\*\* (?P<verb>Add|Update|Delete) File: (?P<path>[^\n]+)\n"
    r"(?P<body>(?:(?!\*\*\* (?:Add|Update|Delete|End) )[^\n]*(?:\n|\Z))*)",
    re.MULTILINE,
)


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _first(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((arguments[key] for key in keys if isinstance(arguments.get(key), str)), None)


def _without_heredocs(command: str) -> tuple[str, dict[str, str]]:
    """The command with every here-document replaced by a mark, and the bodies by mark."""
    bodies: dict[str, str] = {}
    lines = command.replace("\r\n", "\n").split("\n")
    kept: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        for match in list(_HEREDOC.finditer(line)):
            start = index
            while (
                index < len(lines) and (lines[index].lstrip("\t") if match["dash"] else lines[index]) != match["word"]
            ):
                index += 1
            body = lines[start:index]
            index += 1
            mark = f"__heredoc_{len(bodies)}__"
            bodies[mark] = "".join(part + "\n" for part in body)
            line = line.replace(match.group(), f" {mark} ", 1)
        kept.append(line)
    return "\n".join(kept), bodies


def _simple_commands(skeleton: str) -> list[tuple[list[str], list[str]]]:
    """Simple commands of a shell line: their words, and the here-document marks among them."""
    lexer = shlex.shlex(skeleton.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars="();&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word and set(word) <= set("();&|"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # a quote left open: what was read so far stands
        pass
    split = []
    for words in commands:
        marks = [word for word in words if word.startswith("__heredoc_")]
        rest = [word for word in words if not word.startswith("__heredoc_")]
        if rest:
            split.append((rest, marks))
    return split


def _command_edits(words: list[str], body: str | None, command: str, outcome: EditOutcome) -> list[Edit]:
    targets, arguments = _redirects(words)
    while arguments and (arguments[0] == "sudo" or re.fullmatch(r"\w+=.*", arguments[0], re.DOTALL)):
        arguments = arguments[1:]
    if not arguments:
        return []
    name, rest = PurePosixPath(arguments[0]).name, arguments[1:]
    if name == "tee":
        targets += [(word, "-a" in rest) for word in rest if not word.startswith("-")]
    if body is not None and name in ("cat", "tee"):
        return [_written(path, body, appends, outcome) for path, appends in targets]
    if body is not None and (name == "patch" or (name == "git" and rest[:1] == ["apply"])):
        return list(from_unified_diff(body, outcome))
    if name in ("sed", "perl") and any(re.match(r"-[A-Za-z]*i|--in-place", word) for word in rest):
        return [edit(path, "unknown", text=command, outcome=outcome) for path in _sed_files(rest)]
    if name.startswith("python"):
        script = body if body is not None else next((b for a, b in pairwise(rest) if a == "-c"), "")
        return [edit(path, "unknown", text=command, outcome=outcome) for path in _python_writes(script)]
    if name in ("echo", "printf", "cat", "tee", "sed", "awk", "head", "tail", "jq", "diff"):
        return [edit(path, "unknown", text=command, outcome=outcome) for path, _ in targets]
    return []


def _redirects(words: list[str]) -> tuple[list[tuple[str, bool]], list[str]]:
    """Files that output goes to (and whether it is appended), and the words without redirections."""
    targets: list[tuple[str, bool]] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word in (">", ">>", ">|") and index + 1 < len(words):
            descriptor = rest.pop() if rest and rest[-1] == "2" else None
            path = words[index + 1]
            if descriptor is None and not path.startswith(("/dev/", "&")):
                targets.append((path, word == ">>"))
            index += 2
        elif set(word) <= set("<>&") and word:
            index += 2
        else:
            rest.append(word)
            index += 1
    return targets, rest


def _written(path: str, body: str, appends: bool, outcome: EditOutcome) -> Edit:
    if appends:  # nothing is taken away, so the hunk is known
        hunk = Hunk(before="", after=body)
        return edit(path, "heredoc", (hunk,), outcome=outcome, lines_added=_lines(body), lines_removed=0)
    return edit(path, "heredoc", text=body, outcome=outcome, lines_added=_lines(body))


def _sed_files(words: list[str]) -> list[str | None]:
    """File arguments of ``sed -i``: what follows the script; the path is None where none is seen."""
    takes_script = {"-e", "--expression", "-f", "--file"}
    given, files, index = False, list[str](), 0
    while index < len(words):
        word = words[index]
        if word in takes_script:
            given, index = True, index + 2
            continue
        if word == "" or (word.startswith("-") and word != "-"):
            given = given or word.startswith("--expression=") or bool(re.fullmatch(r"-[A-Za-z]*e", word))
            if re.fullmatch(r"-[a-zA-Z]+e", word):  # perl -pie, perl -i -pe: the script is the next word
                index += 1
        elif not given:
            given = True
        else:
            files.append(word)
        index += 1
    return list(files) or [None]


def _python_writes(script: str) -> list[str | None]:
    """Files that a Python text opens for writing, by the literal path or the literal assigned to the name it uses."""
    found: list[str | None] = []
    for match in _PYTHON_WRITE.finditer(script):
        found.append(next(group for group in match.groups() if group is not None))
    for match in _PYTHON_WRITE_TO_NAME.finditer(script):
        name = match.group(1) or match.group(2)
        literal = re.search(rf"\b{re.escape(name)}\s*=\s*(?:\w+\()?['\"]([^'\"\n]+)['\"]", script)
        found.append(literal.group(1) if literal else None)
    return list(dict.fromkeys(found))
