"""One log line through every layer, top to bottom. Read this first.

    source -> Interaction -> lake -> observations -> reward, ledger -> statistics

Each step is a function of the one before it, and what it returns is what the next one takes.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from palomar.app.service import Observatory
from palomar.data.facts import facts
from palomar.data.ingest import ingest
from palomar.data.lake import Lake
from palomar.data.observations import SAMPLES
from palomar.detectors.measure import measure
from palomar.reward.ledger import ledger
from palomar.reward.scoring import score
from palomar.reward.spec import parse_spec

SPEC = """
name: walk
terms:
  - { name: edit_persistence, weight: 1.0, params: { horizon_minutes: 30, kept: 1.0, reverted: -1.5 } }
  - { name: dissatisfied_follow_up, weight: -0.3, params: { horizon_minutes: 30 } }
  - { name: latency, weight: -0.01, params: { cap_s: 120 } }
inclusion:
  - { name: broken_call, condition: invalid_tool_call, action: drop }
outcome:
  terms:
    - { name: edit_persistence, weight: 1.0, params: { horizon_minutes: 90, kept: 1.0, reverted: 0.0 } }
    - { name: dissatisfied_follow_up, weight: -1.0, params: { horizon_minutes: 90 } }
"""

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def said(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


REQUEST = {
    "interaction_id": "walk-1",
    "source": "palomar",
    "origin": "walk",
    "cycle": 3,
    "checkpoint": "policy-a",
    "user_id": "ann",
    "predicted_failure": 0.8,
    "ambiguity": 0.1,
    "started_at": said(0),
    "ended_at": said(1),
    "latency_s": 60.0,
    "steps": [
        {"author": "person", "role": "user", "text": "Totals are off by one in core.py"},
        {
            "author": "agent",
            "role": "assistant",
            "is_question": False,
            "tool_calls": [
                {"name": "read", "arguments": '{"path": "core.py"', "invalidity": "malformed", "outcome": "not_run"}
            ],
            "edits": [
                {
                    "path": "core.py",
                    "form": "unified_diff",
                    "outcome": "applied",
                    "hunks": [{"before": "return n", "after": "return n + 1"}],
                    "functions_before": [{"name": "total", "lines": 9, "complexity": 2, "parameters": 1}],
                    "functions_after": [{"name": "total", "lines": 9, "complexity": 2, "parameters": 1}],
                }
            ],
        },
    ],
    "feedback": [
        {"kind": "reverted", "at": said(11)},
        {"kind": "follow_up", "at": said(12), "text": "Still wrong!", "label": "dissatisfied"},
    ],
}


def test_one_log_line_walks_through_every_layer(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(REQUEST) + "\n" + '{"damaged": \n', encoding="utf-8")
    lake = Lake(tmp_path / "home" / "lake")

    # data: the line becomes an interaction in the lake; the damaged one goes to quarantine, and both are accounted for.
    report = ingest(log, lake)
    assert (report.records, report.new, report.quarantined) == (2, 1, {"damaged": 1})
    assert lake.interaction("walk-1").steps[1].tool_calls[0].invalidity == "malformed"

    # data: its flat row, as far as users had reacted two hours later.
    as_of = START + timedelta(hours=2)
    known = facts(lake, 3, as_of)
    row = known.to_pylist()[0]
    assert (row["edited"], row["asked"], row["invalid_malformed"]) == (True, False, 1)
    assert row["edit_lost_s"] == 600.0  # reverted ten minutes after the end
    assert row["follow_up"] == "dissatisfied"

    # reward: what a spec pays for it, and that it leaves training for its broken call.
    observations = score(known, parse_spec(SPEC), as_of)
    paid = observations.to_pylist()[0]
    assert paid["term:edit_persistence"] == -1.5
    assert paid["reward"] == pytest.approx(-1.5 - 0.3 * 1 - 0.01 * 60)
    assert (paid["included"], paid["exclusion"]) == (False, "broken_call")
    # The outcome referees: the edit did not stay, and the user complained.
    assert paid["outcome"] == -1.0
    lake.write_observations(observations, 3)

    # trainer: what it made of the sample (here: what any trainer would say of an excluded one).
    sample = dict.fromkeys(SAMPLES.names) | {
        "interaction_id": "walk-1",
        "cycle": 3,
        "sampled_cycle": 3,
        "weight": 0.0,
        "trained": False,
        "reason": "broken_call",
        "tokens": 0,
    }
    lake.append_samples(pa.Table.from_pylist([sample], schema=SAMPLES), 3)

    # reward: no sample disappears.
    book = ledger(
        3,
        lake.scan("interactions", ["interaction_id", "predicted_failure"]),
        observations,
        lake.scan("samples", SAMPLES.names),
        report.quarantined,
    )
    book.check()
    assert book.count("collected") == 2
    assert book.count("excluded", "broken_call") == 1
    assert book.count("quarantined", "damaged") == 1

    # detectors: the behaviour statistics, in every slice.
    points = {(point.statistic, point.slice): point for point in measure(lake, [3])}
    broken = points["invalid_call_rate", "predicted_failure=high"]
    assert (broken.value, broken.n, broken.status) == (1.0, 1, "ok")
    assert points["edit_persistence_30m", "all"].value == 0.0
    # Nobody asked for this log's tests to be run: that is "no data", not a pass rate of 0.
    assert (points["test_pass_share", "all"].value, points["test_pass_share", "all"].status) == (None, "no data")

    # app: what a person is shown of it.
    shown = Observatory(tmp_path / "home").trajectory("walk-1")
    assert [event.kind for event in shown.feedback] == ["reverted", "follow_up"]
    assert shown.observation["reward"] == paid["reward"]
    assert shown.sample["reason"] == "broken_call"
