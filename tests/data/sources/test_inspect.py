"""Inspect logs: both compressions, attachments, error types, scores of any shape, trimmed and cut-off archives."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zipfile_zstd

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, detect, read_path

HASH = "0123456789abcdef0123456789abcdef"
HEADER = {
    "version": 2,
    "status": "success",
    "eval": {
        "eval_id": "e1",
        "task": "fix",
        "model": "openai/gpt",
        "scorers": [{"name": "tests"}, {"name": "judge"}],
        "dataset": {"samples": 103},
    },
    "results": {"total_samples": 103},
}


def call(identifier: str, function: str, arguments: Any = None, parse_error: str | None = None) -> dict[str, Any]:
    found = {"id": identifier, "function": function, "arguments": arguments or {}, "type": "function"}
    return found | ({"parse_error": parse_error} if parse_error else {})


def tool(identifier: str, function: str, content: str, kind: str | None = None, message: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"role": "tool", "tool_call_id": identifier, "function": function, "content": content}
    return found | ({"error": {"type": kind, "message": message}} if kind else {})


def sample(number: int = 1, **changes: Any) -> dict[str, Any]:
    messages = [
        {"id": "m0", "role": "system", "content": "You are careful."},
        {"id": "m1", "role": "user", "content": f"attachment://{HASH}", "source": "input"},
        {"id": "m2", "role": "assistant", "model": "gpt", "content": "Looking.", "tool_calls": [
            call("c1", "bash", {"cmd": "cat > a.py <<'EOF'\nx = 1\nEOF"}),
            call("c2", "fly", {}),
            call("c3", "bash", {"command": 3}),
            call("c4", "bash", parse_error="Error parsing the following tool call arguments: {"),
            call("c5", "bash", {"cmd": "sleep 99"}),
            call("c6", "bash", {"cmd": "rm -rf /"}),
            call("c7", "text_editor", {"command": "create", "path": "b.py", "file_text": "y = 2\n"}),
        ]},
        tool("c1", "bash", ""),
        tool("c2", "fly", "", "parsing", "Tool fly not found"),
        tool("c3", "bash", "", "parsing", "Found 1 validation errors parsing tool input arguments"),
        tool("c4", "bash", "", "parsing", "Error parsing the following tool call arguments: {"),
        tool("c5", "bash", "", "timeout", "Command timed out"),
        tool("c6", "bash", "", "approval", "not that"),
        tool("c7", "text_editor", "", "permission", "read only"),
        {"id": "m3", "role": "user", "content": "Please proceed."},
        {"id": "m4", "role": "assistant", "model": "gpt", "content": "Done."},
    ]  # fmt: skip
    events = [
        {"event": "model", "timestamp": "2026-01-01T00:00:00+00:00", "completed": "2026-01-01T00:00:05+00:00",
         "working_time": 4.5, "output": {"choices": [{"message": {"id": "m4"}, "stop_reason": "max_tokens"}],
                                         "usage": {"input_tokens": 10, "output_tokens": 2}}},
        {"event": "tool", "id": "c1", "function": "bash", "working_time": 0.5, "failed": None},
        {"event": "approval", "approver": "human", "decision": "reject", "explanation": "not that",
         "timestamp": "2026-01-01T00:00:03+00:00"},
        {"event": "approval", "approver": "policy", "decision": "reject", "explanation": "by rule"},
    ]  # fmt: skip
    return {
        "id": f"s{number}",
        "epoch": 1,
        "uuid": f"u{number}",
        "messages": messages,
        "events": events,
        "scores": {"tests": {"value": "C", "answer": "x"}, "judge": {"value": {"hack": 1.0, "quality": None}}},
        "model_usage": {"openai/gpt": {"input_tokens": 12, "output_tokens": 7}, "judge": {"output_tokens": 900}},
        "started_at": "2026-01-01T00:00:00+00:00",
        "completed_at": "2026-01-01T00:01:00+00:00",
        "total_time": 60.0,
        "output": {"choices": [{"stop_reason": "stop"}]},
        "attachments": {HASH: "fix a.py"},
        **changes,
    }


def archive(path: Path, samples: list[Any], method: int = zipfile.ZIP_DEFLATED, header: bool = True) -> Path:
    with zipfile.ZipFile(path, "w", method) as log:
        log.writestr("_journal/start.json", json.dumps({"version": 2, "eval": HEADER["eval"], "plan": {}}))
        for number, item in enumerate(samples, start=1):
            log.writestr(f"samples/s{number}_epoch_1.json", item if isinstance(item, str) else json.dumps(item))
        log.writestr("_journal/summaries/1.json", "[]")
        if header:
            log.writestr("header.json", json.dumps(HEADER))
    return path


def read(path: Path) -> tuple[list[Interaction], list[Quarantined]]:
    found = list(read_path(path))
    return (
        [item for item in found if isinstance(item, Interaction)],
        [item for item in found if isinstance(item, Quarantined)],
    )


@pytest.fixture(scope="module")
def item(tmp_path_factory: pytest.TempPathFactory) -> Interaction:
    (found,), quarantine = read(archive(tmp_path_factory.mktemp("inspect") / "log.eval", [sample()]))
    assert quarantine == []
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile_zstd.ZIP_ZSTANDARD])
def test_all_compressions_give_the_same_interactions(tmp_path: Path, method: int, item: Interaction) -> None:
    path = archive(tmp_path / "log.eval", [sample(1), sample(2)], method)
    first, second = read(path)[0]
    assert first.interaction_id == item.interaction_id != second.interaction_id
    assert first.steps == item.steps


def test_zstd_members_are_read_in_a_process_that_knows_only_palomar(tmp_path: Path) -> None:
    path = archive(tmp_path / "log.eval", [sample()], zipfile_zstd.ZIP_ZSTANDARD)
    code = f"from palomar.data.sources import read_path; print(*(type(i).__name__ for i in read_path({str(path)!r})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["Interaction"]


def test_it_is_recognised_by_its_members_under_any_name(tmp_path: Path) -> None:
    reader = detect(SourceFile(archive(tmp_path / "x.zip", [sample()]), "x.zip").head)
    assert reader is not None
    assert reader.name == "inspect"


def test_attachments_are_put_back(item: Interaction) -> None:
    assert item.steps[1].text == "fix a.py"


def test_the_scaffold_is_no_person(item: Interaction) -> None:
    assert [step.author for step in item.steps if step.role == "user"] == ["person", "harness"]


def test_every_error_type_keeps_its_meaning(item: Interaction) -> None:
    calls = [call for step in item.steps for call in step.tool_calls]
    assert [(call.outcome, call.invalidity) for call in calls] == [
        ("ok", None),
        ("not_run", "unknown_tool"),
        ("not_run", "schema"),
        ("not_run", "malformed"),
        ("timed_out", None),
        ("refused", None),
        ("failed", None),
    ]
    assert calls[4].problem == "timeout: Command timed out"


def test_edits_follow_what_came_of_their_calls(item: Interaction) -> None:
    edits = [(edit.path, edit.form, edit.outcome) for step in item.steps for edit in step.edits]
    assert edits == [("a.py", "heredoc", "applied"), ("b.py", "whole_file", "failed")]


def test_only_a_persons_refusal_is_feedback(item: Interaction) -> None:
    assert [(f.kind, f.text) for f in item.feedback] == [("refusal", "not that")]


def test_grades_numbers_and_nulls_become_rewards(item: Interaction) -> None:
    assert [(reward.name, reward.value, reward.invalid_reason) for reward in item.rewards] == [
        ("tests", 1.0, None),
        ("judge/hack", 1.0, None),
        ("judge/quality", None, "the log holds null"),
    ]
    assert item.labels == ("tests=C",)
    assert item.traffic == "evaluation"


def test_times_and_tokens_are_the_models_own_and_not_the_judges(item: Interaction) -> None:
    assert (item.tokens_in, item.tokens_out, item.latency_s) == (12, 7, 60.0)
    last = item.steps[-1]
    assert (last.tokens_out, last.elapsed_s, last.truncated) == (2, 4.5, True)
    assert item.stop_reason == "stop"


def test_a_failed_sample_has_invalid_rewards_and_no_zeros(tmp_path: Path) -> None:
    failed = sample(scores=None, error={"message": "sandbox gone", "traceback": ""})
    limited = sample(2, scores={}, limit={"type": "message", "limit": 30})
    first, second = read(archive(tmp_path / "log.eval", [failed, limited]))[0]
    assert [(r.name, r.value, r.infrastructure) for r in first.rewards] == [
        ("tests", None, True),
        ("judge", None, True),
    ]
    assert first.stop_reason == "error"
    assert [(r.value, r.infrastructure, r.invalid_reason) for r in second.rewards] == [
        (None, False, "not scored"),
        (None, False, "not scored"),
    ]
    assert second.stop_reason == "limit:message"


def test_a_trimmed_log_counts_what_is_there_and_keeps_the_headers_number(item: Interaction) -> None:
    log = json.loads(item.extra_json or "")["log"]
    assert (log["total_samples"], log["samples_in_file"]) == (103, 1)


def test_a_log_still_being_written_has_no_header(tmp_path: Path) -> None:
    (found,), quarantine = read(archive(tmp_path / "log.eval", [sample()], header=False))
    assert (found.checkpoint, quarantine) == ("openai/gpt", [])


def test_one_bad_member_does_not_cost_the_others(tmp_path: Path) -> None:
    interactions, quarantine = read(archive(tmp_path / "log.eval", [sample(1), '{"id": 2', sample(3)]))
    assert [found.origin_record for found in interactions] == [1, 3]
    assert [(entry.source.split("!")[1], entry.line, entry.kind) for entry in quarantine] == [
        ("samples/s2_epoch_1.json", 2, "damaged")
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile_zstd.ZIP_ZSTANDARD])
def test_a_cut_off_archive_gives_the_members_that_are_whole(tmp_path: Path, method: int) -> None:
    whole = archive(tmp_path / "log.eval", [sample(1), sample(2), sample(3)], method)
    with zipfile.ZipFile(whole) as log:
        cut = log.getinfo("samples/s3_epoch_1.json").header_offset + 200
    broken = tmp_path / "cut.eval"
    broken.write_bytes(whole.read_bytes()[:cut])
    interactions, quarantine = read(broken)
    assert [found.origin_record for found in interactions] == [1, 2]
    assert [(entry.source.split("!")[1], entry.kind, entry.problem) for entry in quarantine] == [
        ("samples/s3_epoch_1.json", "damaged", "the archive breaks off inside this member")
    ]


def test_a_cut_off_archive_that_was_streamed_is_read_too(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        """Cannot seek, so sizes are written behind each member."""

        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as log:
        for number in (1, 2):
            log.writestr(f"samples/s{number}_epoch_1.json", json.dumps(sample(number)))
        size = len(pipe.data)
    path = tmp_path / "log.eval"
    path.write_bytes(bytes(pipe.data[: size - 60]))
    interactions, quarantine = read(path)
    assert [found.origin_record for found in interactions] == [1]
    assert [entry.kind for entry in quarantine] == ["damaged"]


def test_an_archive_without_samples_is_said_to_be_so(tmp_path: Path) -> None:
    assert [(entry.kind, entry.problem) for entry in read(archive(tmp_path / "log.eval", []))[1]] == [
        ("no_interaction", "the log holds no samples")
    ]


def test_the_older_json_log_gives_the_same(tmp_path: Path, item: Interaction) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(HEADER | {"samples": [sample()]}, indent=1))
    (found,), _ = read(path)
    assert (found.interaction_id, found.steps) == (item.interaction_id, item.steps)


def test_all_89_samples_of_the_five_logs_are_read(samples: Path) -> None:
    interactions, quarantine = read(samples / "impossible-lcb-inspect" / "eval")
    counts: dict[str, int] = {}
    for found in interactions:
        counts[found.task_id.split("/")[0] if found.task_id else ""] = (
            counts.get(found.task_id.split("/")[0] if found.task_id else "", 0) + 1
        )
    # The folder's SOURCE.md: 40 of 103 and 25 of 103 samples, and three whole files of 8.
    assert counts == {"lcb_oneoff_canmod_minimal": 40, "lcb_conflicting_canmod_tools": 25, "re_bench": 24}
    assert quarantine == []
    assert len({found.interaction_id for found in interactions}) == 89
    limits = [found.stop_reason for found in interactions if found.stop_reason == "limit:message"]
    assert len(limits) == 25
