"""What a person wrote, apart from what they pasted.

Mood is in the words; a pasted file only drowns them. Lines that are plainly code are left out, and so is what stands in
code fences, except reports of failure: a person who pastes an error and nothing else has said something.

The rules look at one line at a time and parse no language. A line of code they take for prose costs a little accuracy;
a sentence they take for code would cost the message. So in doubt a line is prose: four words in a row, or a letter
outside ASCII, make it so, unless it can only be code.
"""

from __future__ import annotations

import re

LINE_CHARS = 400
"""A longer line is judged by its beginning, so that the time is linear in the text."""

_FAILURE = re.compile(
    r"traceback|\berror\b|error:|exception\b|\bfail(?:ed|ure|s)?\b|\bpanic(?:ked)?\b|\bexpected\b", re.IGNORECASE
)
_CERTAINLY_CODE = re.compile(
    r"""(?x)
      import\s+[\w.]+(?:\s+as\s+\w+)?(?:,\s*[\w.]+)*;?$
    | from\s+[\w.]+\s+import\b
    | (?:async\s+)?def\s+\w+\s*\(
    | (?:fn|func|function)\s+\w*\s*\(
    | class\s+\w+\s*(?:\(.*\))?\s*[:{]$
    | for\s+[\w,\ ()]+\s+in\s.*:$
    | (?:for|while|if|switch|catch)\s*\(.*
    | (?:while|if|elif|except)\b.*:$
    | with\s.*(?:\(|\sas\s).*:$
    | (?:else|try|finally)\s*[:{]$
    | (?:const|let|var|val)\s+\w+.*=
    | (?:SELECT|INSERT\s+INTO|UPDATE|DELETE\s+FROM|CREATE\s+TABLE)\b.*[;,(*]
    | File\s" | at\s[\w.$<>]+\s?\( | >>>\s | \.\.\.\s\s | \$\s\w | @\w+[\w.]*(?:\(.*\))?$
    | </?\w+[^<>]*/?>
    """
)
_PROBABLY_CODE = re.compile(
    r"""(?x)
      (?:return|yield|print|raise|throw|assert|await|del)\b\s*[^\s\w]*\w*\s*[(\[{+\-*/<>=.%].*
    | return\s*\w*;?$
    | (?i:select|insert\s+into|update|delete\s+from|create\s+table)\b.*[;(*]
    | [\w.\[\]"']+\s*(?::\s*[\w\[\],\ |]+)?\s*(?:[-+*/|&%]|//|\*\*)?=(?!=)\s*\S    # an assignment
    | [\w.]+\(.*\)[;,:]?$                                                        # a bare call
    | \#\s*(?:include|define)\b | //\s | /\* | \*/ | <!--
    | (?=.*[\[\]{}(|])[\[\](){},;=~^|+*<>\s_\d'".:-]+$                           # brackets and numbers
    | [-=~^_*]{3,}$                                                              # a ruler
    | .*(?:;|\{|\}|\},|\];|\}\)|\);)$
    """
)
_QUOTED = re.compile(r"""(?<!\w)(?:"[^"]*"|'[^']*')""")
_WORDY = re.compile(r"(?:[A-Za-z][a-z']*,?\s){3}[A-Za-z][a-z']*|[^\W\d_a-zA-Z]")


def prose(text: str) -> str:
    """Lines of `text` that are words or a report of failure, stripped and joined; "" where there is only code.

    Half characters (lone surrogates, from text cut in the middle of an emoji) become "?", as no tokenizer takes them.
    """
    text = text.encode(errors="replace").decode()
    kept = []
    in_fence = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("```"):
            in_fence = not in_fence
        elif line and (_FAILURE.search(line[:LINE_CHARS]) if in_fence else not _is_code(line[:LINE_CHARS])):
            kept.append(line)
    return "\n".join(kept)


def _is_code(line: str) -> bool:
    if _CERTAINLY_CODE.match(line):
        return True
    return _PROBABLY_CODE.match(line) is not None and not _WORDY.search(_QUOTED.sub("", line))
