"""From files to the lake: nothing lost, nothing stored twice, conflicts set aside, follow-ups labelled."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from palomar.data import ingest as module
from palomar.data.errors import IngestError
from palomar.data.ingest import IngestReport, ingest
from palomar.data.lake import Lake
from palomar.data.schema import FollowUpLabel

FIXTURES = Path(__file__).parent / "fixtures"


def steps(request: str = "hi", answer: str = "ho") -> list[dict[str, str]]:
    return [
        {"author": "person", "role": "user", "text": request},
        {"author": "agent", "role": "assistant", "text": answer},
    ]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "home" / "lake")


@dataclass
class Reading:
    label: FollowUpLabel
    p: float | None


class Words:
    """A stand-in that is wrong about nothing it is asked here, and counts how often it is asked."""

    label_by = "classifier:words"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def classify(self, texts: Sequence[str]) -> list[Reading]:
        self.asked.append(list(texts))
        return [Reading("dissatisfied", 0.9) if "No" in text else Reading("unclear", None) for text in texts]


def test_everything_read_is_accounted_for_and_reading_again_changes_nothing(lake: Lake) -> None:
    first = ingest(FIXTURES / "openai-chat", lake)
    assert (first.files, first.records, first.interactions, first.conversations) == (1, 3, 4, 3)
    assert (first.new, first.known, first.quarantined) == (4, 0, {})
    second = ingest(FIXTURES / "openai-chat", lake)
    assert (second.new, second.known) == (0, 4)
    assert len(lake.scan("interactions", ["interaction_id"])) == 4


def test_the_same_log_under_two_names_is_stored_once(lake: Lake, tmp_path: Path) -> None:
    for name in ("a.traj.json", "copy.txt"):
        (tmp_path / name).write_bytes((FIXTURES / "mini-swe-agent" / "v1.traj.json").read_bytes())
    report = ingest([tmp_path / "a.traj.json", tmp_path / "copy.txt"], lake)
    assert (report.interactions, report.new, report.known) == (2, 1, 1)


def test_a_mixed_folder_is_counted_by_format_and_kind(lake: Lake, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    write(logs / "own.jsonl", {"interaction_id": "a", "steps": steps()}, '{"half', {"interaction_id": "b", "steps": []})
    (logs / "README.md").write_text("# logs")
    (logs / "empty").write_text("")
    report = ingest(logs, lake)
    assert report.quarantined == {"damaged": 1, "empty": 1, "unknown_format": 1}
    assert report.formats["palomar"].records == 3
    assert report.formats["unknown"].files == 2
    assert report.records == report.records_kept + 3
    written = [json.loads(line) for line in Path(report.quarantine_file or "").read_text().splitlines()]
    assert [(Path(entry["source"]).name, entry["line"], entry["kind"]) for entry in written] == [
        ("README.md", None, "unknown_format"), ("empty", None, "empty"), ("own.jsonl", 2, "damaged"),
    ]  # fmt: skip
    assert Path(report.quarantine_file or "").parent == tmp_path / "home" / "quarantine"
    assert ingest(logs, lake).quarantine_file == report.quarantine_file
    assert len(list((tmp_path / "home" / "quarantine").iterdir())) == 1


def test_the_report_is_plain_json(lake: Lake, tmp_path: Path) -> None:
    report = ingest(write(tmp_path / "log", "{"), lake)
    again = json.loads(json.dumps(report.to_dict()))
    assert again["entries"][0]["kind"] == "unknown_format"


def test_an_id_stored_with_other_content_is_set_aside_and_the_rest_is_stored(lake: Lake, tmp_path: Path) -> None:
    ingest(write(tmp_path / "one", {"interaction_id": "a", "steps": steps()}), lake)
    other = write(
        tmp_path / "two",
        {"interaction_id": "a", "steps": steps("other")},
        {"interaction_id": "b", "steps": steps()},
        {"interaction_id": "c", "steps": steps("first")},
        {"interaction_id": "c", "steps": steps("second")},
    )
    report = ingest(other, lake)
    assert (report.interactions, report.new, report.known, report.conflicting) == (4, 2, 0, 2)
    assert sorted((entry.line, entry.kind, entry.field) for entry in report.entries) == [
        (1, "conflict", "interaction_id"), (4, "conflict", "interaction_id"),
    ]  # fmt: skip
    assert lake.interaction("c").steps[0].text == "first"


def test_a_record_that_the_lake_cannot_hold_costs_only_itself(lake: Lake, tmp_path: Path) -> None:
    log = write(
        tmp_path / "log",
        *(
            {"interaction_id": f"i{number}", "steps": steps(), "tokens_out": 2**80 if number == 5 else 7}
            for number in range(9)
        ),
    )
    report = ingest(log, lake)
    assert (report.new, report.conflicting) == (8, 1)
    assert report.entries[0].line == 6


def test_a_late_reaction_reaches_the_lake_once(lake: Lake, tmp_path: Path) -> None:
    late = {"interaction_id": "a", "feedback": {"kind": "reverted", "at": "2026-01-01T00:00:00Z"}}
    log = write(tmp_path / "log", {"interaction_id": "a", "steps": steps()}, late)
    assert ingest(log, lake).feedback_new == 1
    again = ingest(log, lake)
    assert (again.feedback_new, again.feedback_known) == (0, 1)
    assert [(owner, item.kind) for owner, item in lake.feedback(["a"])] == [("a", "reverted")]


def test_follow_ups_are_labelled_in_batches_and_each_text_once(lake: Lake, tmp_path: Path) -> None:
    words = Words()
    said = {"kind": "follow_up", "text": "No, wrong"}
    kept = {"kind": "follow_up", "text": "No", "label": "neutral", "label_by": "a person"}
    log = write(
        tmp_path / "log",
        {"interaction_id": "a", "steps": steps(), "feedback": [said, kept, {"kind": "undo", "text": "No"}]},
        {"interaction_id": "b", "steps": steps("x"), "feedback": [said, {"kind": "follow_up", "text": " "}]},
        {"interaction_id": "a", "feedback": {"kind": "follow_up", "text": "hm"}},
    )
    ingest(log, lake, classify=words)
    assert words.asked == [["No, wrong", "hm"]]
    labelled, untouched, undo = lake.interaction("a").feedback
    assert (labelled.label, labelled.label_by, labelled.label_probability) == ("dissatisfied", "classifier:words", 0.9)
    assert (untouched.label, untouched.label_by, undo.label) == ("neutral", "a person", None)
    assert lake.interaction("b").feedback[1].label is None
    assert [(item.label, item.label_probability) for _, item in lake.feedback(["a"])] == [("unclear", None)]


def test_labelling_later_is_no_conflict(lake: Lake) -> None:
    ingest(FIXTURES / "openai-chat", lake)
    assert ingest(FIXTURES / "openai-chat", lake, classify=Words()).conflicting == 0


def test_the_cycle_is_given_to_logs_that_name_none(lake: Lake, tmp_path: Path) -> None:
    log = write(tmp_path / "log", {"steps": steps("a")}, {"steps": steps("b"), "cycle": 3})
    ingest(log, lake, cycle=7)
    assert lake.cycles("interactions") == (3, 7)


def test_batches_are_bounded_and_their_size_does_not_matter(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    append = lake.append_interactions

    def counting(records, cycle):  # type: ignore[no-untyped-def]
        sizes.append(len(records))
        return append(records, cycle)

    monkeypatch.setattr(lake, "append_interactions", counting)
    monkeypatch.setattr(module, "BATCH_ROWS", 40)
    log = write(tmp_path / "log", *({"steps": steps(str(number))} for number in range(100)))
    assert ingest(log, lake).new == 100
    assert sizes == [40, 40, 20]
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 400)
    sizes.clear()
    report = ingest(write(tmp_path / "big", *({"steps": steps("x" * 399)} for _ in range(3))), lake)
    assert (report.new, report.known, sizes) == (1, 2, [1, 1, 1])


def test_a_named_format_that_is_wrong_says_which_there_are(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="mini-swe-agent"):
        ingest(tmp_path, lake, format="nonsense")


def test_a_pattern_that_matches_nothing_is_an_error_but_what_came_before_is_stored(lake: Lake, tmp_path: Path) -> None:
    log = write(tmp_path / "log", {"interaction_id": "a", "steps": steps()})
    with pytest.raises(IngestError, match="no file"):
        ingest([log, f"{tmp_path}/*.absent"], lake)
    assert lake.interaction("a").turn == 0


def test_progress_is_told_after_each_file(lake: Lake) -> None:
    seen: list[tuple[str, int]] = []

    def progress(name: str, report: IngestReport) -> None:
        seen.append((Path(name).name, report.interactions))

    ingest(FIXTURES / "swe-agent", lake, progress=progress)
    assert [count for _, count in seen] == [1, 2, 3, 4]


def test_a_report_that_does_not_add_up_is_an_error() -> None:
    with pytest.raises(IngestError, match="3 records were met, but 1 kept \\+ 1 quarantined"):
        IngestReport(records=3, records_kept=1, quarantined={"empty": 1}).check()
    with pytest.raises(IngestError, match="2 interactions"):
        IngestReport(interactions=2, new=1).check()


def test_the_shared_samples_of_three_formats_end_in_the_lake(lake: Lake, samples: Path) -> None:
    report = ingest([samples / name for name in ("mini-swe-agent", "swe-agent", "rl-rollouts-tinker")], lake)
    assert report.formats["mini-swe-agent"].interactions == 62
    assert report.formats["swe-agent"].interactions == 22
    assert report.formats["tinker-rollouts"].interactions == 60
    assert report.new == 144
    assert "unexpected" not in report.quarantined
