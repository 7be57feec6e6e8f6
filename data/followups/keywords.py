"""A plain keyword classifier, for comparison only: what the trained one must beat to be worth its weight.

Written in good faith before either was measured: the words one would grep for, in English and some of the commonest in
seven other languages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palomar.data.schema import FollowUpLabel

_DISSATISFIED = re.compile(
    r"""(?xi)
      \b(?:error|exception|traceback|wrong|incorrect|fail(?:s|ed|ing)?|broken?|bug|crash(?:es|ed)?|undo|revert|useless)\b
    | \w+Error\b
    | (?:\bnot|n't|\bnever|\bno\ longer|\bisnt|\bdoesnt|\bdont)\s+(?:\w+\s+)?(?:work|run|compile|correct|right|what)
    | \bstill\b | \bagain\b | \byou\ (?:forgot|missed|broke|deleted|removed|ignored)\b | \binstead\ of\b.*\bgot\b
    | \b(?:falsch|fehler|geht\ nicht|immer\ noch|erreur|faux|marche\ pas|mal|errado|erro|sbagliato|errore|fout|błąd)\b
    | не\ работает|ошибка|неправильно | 错|不行|报错 | 違|エラー|動きません
    """
)
_SATISFIED = re.compile(
    r"""(?xi)
      \b(?:thanks?|thx|ty|perfect|great|awesome|nice|excellent|amazing|lgtm|well\ done|good\ (?:job|work))\b
    | \b(?:it|that|this)\ works\b | \bworks\ (?:now|great|well|fine|like)\b | \bsolved\b
    | \b(?:danke|super|klasse|merci|parfait|gracias|perfecto|obrigad[oa]|grazie|perfetto|bedankt|dzięki)\b
    | спасибо|отлично | 谢谢|太好了 | ありがとう|完璧
    """
)


def classify_by_keywords(texts: Sequence[str]) -> list[FollowUpLabel]:
    """Complaint words first, then praise, else neutral; ``unclear`` only for an empty message."""
    return [_classify(text) for text in texts]


def _classify(text: str) -> FollowUpLabel:
    if not text.strip():
        return "unclear"
    if _DISSATISFIED.search(text):
        return "dissatisfied"
    return "satisfied" if _SATISFIED.search(text) else "neutral"
