"""verl rollout dumps: ``{step}.jsonl`` with ``input, output, gts, score, step, uid`` on each line.

One line is one output of the policy and becomes one interaction. Traps:

- ``uid`` is ``{sample}_{rollout}_{output}``: ``sample`` is the group, ``sample_rollout`` one session, which has several
  lines where it went over several turns. In validation dumps verl copies the session's last score onto its earlier
  lines, so a mean over lines weights long sessions more; the conversation id lets them be counted once;
- ``score`` 0.0 with ``timeout`` or ``error`` beside it (the ``rate_limited`` reward manager) is a scorer that failed,
  not a zero. The trainer's V1 leaves these two out of its train dumps; then nothing in the file can tell;
- V0 adds every key of ``reward_extra_info`` (numbers are kept as metrics, the rest in ``extra_json``) and may lack
  ``uid``; which keys a line has was taken from the first sample of its batch;
- filtered, stale and failed groups were dropped before the dump and show up only in the trainer's metrics;
- special tokens were skipped in decoding, so tool-call markup held in them is gone: no calls are read from the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, Reward, Step, content_id
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import asks, expect, extra, failed_reward, reward_of
from palomar.data.sources._json import dumps
from palomar.data.sources._messages import Distinct

_READ = frozenset({"input", "output", "score", "step", "uid"})
_FAILURES = ("timeout", "error")
"""Keys of ``reward_extra_info`` that say that the scorer failed."""


@source("verl")
class Verl:
    """Reader of verl rollout dumps."""

    name: str
    title = "verl rollout dump (JSONL)"

    def sniff(self, head: Head) -> float:
        """By the keys of the first line."""
        if not {"input", "output", "score", "step"} <= head.keys:
            return 0.0
        return 0.95 if head.keys & {"uid", "gts", "request_id"} else 0.6

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """One interaction a line."""
        distinct = Distinct()
        return each_record(file, file.records(), lambda native, file: [_interaction(native, file, distinct)])


def _interaction(native: Native, file: SourceFile, distinct: Distinct) -> Interaction:
    row = expect(native.value, dict, "record")
    prompt = expect(row.get("input"), str, "input")
    output = expect(row.get("output"), str, "output")
    step = expect(row.get("step"), int, "step")
    uid = row.get("uid")
    uid = uid if isinstance(uid, str) and uid.count("_") >= 2 else None
    sample, rollout, turn = uid.rsplit("_", 2) if uid is not None else (None, None, "0")
    answer = asks(Step(author="agent", role="assistant", text=output), ends_turn=True)
    return Interaction(
        interaction_id=distinct.id("verl", str(step), uid or "", prompt, output),
        source="verl",
        origin=file.origin,
        origin_record=native.number,
        conversation_id=content_id("verl", str(step), f"{sample}_{rollout}") if uid is not None else None,
        turn=int(turn) if turn.isdecimal() else 0,
        task_id=content_id("verl", prompt) if turn == "0" else None,
        group_id=content_id("verl", str(step), sample) if sample is not None else None,
        cycle=step,
        steps=(Step(author="person", role="user", text=prompt), answer),
        rewards=tuple(_rewards(row)),
        extra_json=extra(uid=row.get("uid"), **{key: row[key] for key in row if key not in _READ}),
    )


def _rewards(row: Mapping[str, Any]) -> Iterator[Reward]:
    failure = next((f"{key}: {dumps(row[key])}" for key in _FAILURES if row.get(key)), None)
    if failure is not None:
        yield failed_reward("score", f"the scorer failed ({failure}); the log says {row.get('score')}", kind="proxy")
    else:
        yield reward_of("score", row.get("score"), kind="proxy")
    for key, value in row.items():
        if key not in _READ and key not in _FAILURES and isinstance(value, bool | int | float):
            yield reward_of(key, value, kind="metric")
