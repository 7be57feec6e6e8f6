"""How large functions are: lizard's line count, cyclomatic complexity and parameters, for whole files and for hunks.

Measured only where the language is one that lizard reads and the text is of a size that a person would have written;
everything else is None, which is "not measured" and not "no functions".
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any

import lizard

from palomar.data.schema import Edit, FunctionMeasure

MAX_CHARACTERS = 200_000
"""Beyond this a file is generated or minified; measuring it costs seconds and says nothing about the author."""

_ENDINGS = {
    "python": ".py", "javascript": ".js", "typescript": ".ts", "java": ".java", "kotlin": ".kt", "scala": ".scala",
    "go": ".go", "rust": ".rs", "c": ".c", "cpp": ".cpp", "csharp": ".cs", "php": ".php", "ruby": ".rb",
    "swift": ".swift", "objectivec": ".m", "lua": ".lua", "perl": ".pl", "fortran": ".f90", "erlang": ".erl",
    "solidity": ".sol", "zig": ".zig", "r": ".r", "vue": ".vue", "gdscript": ".gd",
}  # fmt: skip

Measures = tuple[FunctionMeasure, ...]

_MEMO: dict[tuple[bytes, str], Measures | None] = {}
_MEMO_LIMIT = 20_000


def measure(source_text: str, path_or_language: str | None) -> Measures | None:
    """Functions in a piece of code, in order; () where it has none.

    None where the language is unknown to lizard, the text is beyond `MAX_CHARACTERS`, or lizard cannot read it. A
    function that the text cuts off is measured as far as it goes. Nested functions are listed on their own, as lizard
    does. Remembered by content.
    """
    ending = _ending(path_or_language)
    if ending is None or len(source_text) > MAX_CHARACTERS:
        return None
    key = (hashlib.sha256(source_text.encode("utf-8", errors="replace")).digest(), ending)
    if key not in _MEMO:
        if len(_MEMO) >= _MEMO_LIMIT:
            _MEMO.clear()
        _MEMO[key] = _measure(source_text, ending)
    return _MEMO[key]


def measured(edit: Edit) -> Edit:
    """The edit with its functions before and after, where its language is known.

    Of a whole file they are the file's (before: not known). Of hunks they are the functions whose heads stand in the
    hunks: the rest of the file is not in the log. An edit of unknown form is not measured.
    """
    if edit.language not in _ENDINGS or edit.form == "unknown":
        return edit
    if not edit.hunks:
        after = None if edit.text is None else measure(edit.text, edit.language)
        return edit if after is None else edit.model_copy(update={"functions_after": after})
    before = measure("\n".join(hunk.before for hunk in edit.hunks), edit.language)
    after = measure("\n".join(hunk.after for hunk in edit.hunks), edit.language)
    return edit.model_copy(update={"functions_before": before, "functions_after": after})


def _ending(path_or_language: str | None) -> str | None:
    if not path_or_language:
        return None
    if path_or_language in _ENDINGS:
        return _ENDINGS[path_or_language]
    ending = PurePosixPath(path_or_language.replace("\\", "/")).suffix.lower()
    return ending if ending and lizard.get_reader_for("a" + ending) is not None else None


def _measure(source_text: str, ending: str) -> Measures | None:
    try:
        found: Any = lizard.analyze_file.analyze_source_code("text" + ending, source_text).function_list
    except Exception:  # lizard's readers raise all sorts on text that is not quite the language
        return None
    return tuple(
        FunctionMeasure(
            name=function.name,
            lines=function.nloc,
            complexity=function.cyclomatic_complexity,
            parameters=function.parameter_count,
        )
        for function in found
    )
