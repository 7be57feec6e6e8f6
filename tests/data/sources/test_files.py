"""Damage of all sorts, with real bytes: each gets a clear message, and the rest is read."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from palomar.data.quarantine import EXCERPT_BYTES, Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import Item, Line, SourceFile, files_under, read_file, read_path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def line(name: str, **more: object) -> bytes:
    steps = [
        {"author": "person", "role": "user", "text": f"do {name}"},
        {"author": "agent", "role": "assistant", "text": "done"},
    ]
    return json.dumps({"interaction_id": name, "steps": steps, **more}).encode()


def split(items: list[Item]) -> tuple[list[str], list[Quarantined]]:
    return (
        [item.interaction_id for item in items if isinstance(item, Interaction)],
        [item for item in items if isinstance(item, Quarantined)],
    )


def read(path: Path, **options: int) -> tuple[list[str], list[Quarantined]]:
    file = SourceFile(path, path.name, **options)  # type: ignore[arg-type]
    ids, entries = split(list(read_file(file)))
    assert file.records_read == file.records_kept + len(entries)
    return ids, entries


def test_a_damaged_line_says_where_and_the_rest_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line("a") + b"\n" + line("b")[:40] + b"\n" + line("c") + b"\n")
    ids, (entry,) = read(log)
    assert ids == ["a", "c"]
    assert (entry.line, entry.kind, entry.byte_offset) == (2, "damaged", len(line("a")) + 1)
    assert str(entry).startswith("log.jsonl:2: not JSON at character 35: Unterminated string")
    assert entry.size == 40


def test_an_entry_keeps_the_beginning_and_the_size_of_what_it_is_about(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line("a") + b"\n" + b'{"steps": "' + b"x" * 10_000)
    _, (entry,) = read(log)
    assert (len(entry.excerpt), entry.size) == (EXCERPT_BYTES, 10_011)


def test_invalid_utf8_costs_that_line_and_names_the_byte(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    broken = line("b").replace(b"done", b"d\xe9ne")
    log.write_bytes(line("a") + b"\n" + broken + b"\n" + line("c"))
    ids, (entry,) = read(log)
    assert ids == ["a", "c"]
    assert (entry.line, entry.kind) == (2, "encoding")
    assert f"byte {broken.index(0xE9)} (0xe9)" in entry.problem
    assert "d\\xe9ne" in entry.excerpt


def test_crlf_bom_and_blank_lines_are_no_trouble(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\xef\xbb\xbf" + line("a") + b"\r\n\r\n   \n" + line("b") + b"\r\n")
    assert read(log) == (["a", "b"], [])
    first = next(SourceFile(log, "log").lines())
    assert isinstance(first, Line)
    assert first.data == line("a")  # readers of text see no mark either


def test_an_empty_file_is_one_entry(tmp_path: Path) -> None:
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        log = tmp_path / "log.jsonl"
        log.write_bytes(content)
        ids, (entry,) = read(log)
        assert (ids, entry.kind, entry.line) == ([], "empty", None)


def test_an_unknown_format_names_the_known_ones(tmp_path: Path) -> None:
    for content in (b"just prose\n", b'{"a": 1}\n', b"\x7fELF\0\0\0", b"[1, 2, 3]", b'"text"'):
        log = tmp_path / "log"
        log.write_bytes(content)
        ids, (entry,) = read(log)
        assert (ids, entry.kind) == ([], "unknown_format")
        assert "openai-chat" in entry.problem


def test_a_line_beyond_the_cap_is_read_past_and_hashed(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    data = line("a") + b"\n" + line("big", labels=["x" * 5000]) + b"\n" + line("c") + b"\n{"
    log.write_bytes(data)
    ids, (entry, after) = read(log, max_line_bytes=1000)
    assert ids == ["a", "c"]
    assert after.byte_offset == len(data) - 1  # counted over the long line
    assert (entry.line, entry.kind) == (2, "too_large")
    assert entry.size is not None
    assert entry.size > 5000
    assert len(entry.excerpt) <= EXCERPT_BYTES


@pytest.mark.slow
def test_a_line_of_200_mb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("wb") as stream:
        stream.write(line("a") + b'\n{"steps": "')
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(b'"}\n' + line("c"))
    script = (
        "import resource, sys, json\n"
        "from palomar.data.sources import read_path\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps([getattr(i, 'interaction_id', None) or str(i) for i in read_path(sys.argv[1])]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=True)
    found, kilobytes = run.stdout.splitlines()
    first, refused, last = json.loads(found)
    assert (first, last) == ("a", "c")
    assert "a line of 200,000,014 bytes; the limit is 67,108,864" in refused
    assert int(kilobytes) < 160 * 1024  # two copies of what the cap lets in, not of the line


def test_gzip_and_zstd_are_undone_and_a_cut_off_one_keeps_what_it_had(tmp_path: Path) -> None:
    plain = b"".join(line(f"i{number}", labels=[os.urandom(200).hex()]) + b"\n" for number in range(400))
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "log.bin").write_bytes(pa.compress(plain, codec="zstd", asbytes=True))
    assert len(read(tmp_path / "log.jsonl.gz")[0]) == 400
    assert len(read(tmp_path / "log.bin")[0]) == 400
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(plain)[:-3000])
    ids, (entry,) = read(cut)
    assert 300 < len(ids) < 400
    assert (entry.kind, entry.line) == ("damaged", len(ids) + 1)
    assert "breaks off" in entry.problem


def test_a_lone_surrogate_becomes_the_replacement_character(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line("a").replace(b"done", b"\\ud83d and \\uDE00 and \\ud83d\\ude00"))
    (item,) = read_path(log)
    assert isinstance(item, Interaction)
    assert item.steps[1].text == "\ufffd and \ufffd and \U0001f600"


def test_json_nested_beyond_reason_is_damaged_not_a_crash(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line("a") + b"\n" + b"[" * 200_000 + b"\n" + b'{"a": ' + b"9" * 5000 + b"}\n")
    ids, entries = read(log)
    assert ids == ["a"]
    assert [entry.kind for entry in entries] == ["damaged", "damaged"]


def test_a_json_list_of_records_is_read_like_lines(tmp_path: Path) -> None:
    records = [json.loads(line(name)) for name in "abc"]
    for text in (json.dumps(records), json.dumps(records, indent=2)):
        (tmp_path / "log.json").write_text(text)
        assert read(tmp_path / "log.json") == (["a", "b", "c"], [])
    many = [json.loads(line(str(number), labels=["x" * 1000])) for number in range(200)]  # longer than the head
    for text in (json.dumps(many), json.dumps(many, indent=2)):
        (tmp_path / "log.json").write_text(text)
        assert read(tmp_path / "log.json") == ([str(number) for number in range(200)], [])


def test_a_document_cut_off_is_one_entry_with_the_formats_name(tmp_path: Path) -> None:
    whole = (FIXTURES / "mini-swe-agent" / "v1.traj.json").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-30])
    ids, (entry,) = read(tmp_path / "cut")
    assert (ids, entry.kind, entry.format) == ([], "damaged", "mini-swe-agent")


def test_a_folder_of_mixed_formats_is_read_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.jsonl").write_bytes(line("a"))
    (tmp_path / "deep" / "chat.json").write_text('[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]')
    (tmp_path / "deep" / "t").write_bytes((FIXTURES / "swe-agent" / "history_only.traj").read_bytes())
    (tmp_path / "README").write_text("# notes")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_text("no log")
    items = list(read_path(tmp_path))
    assert [getattr(item, "kind", None) or item.source for item in items] == [
        "unknown_format", "palomar", "openai-chat", "swe-agent",
    ]  # fmt: skip


def test_links_are_followed_but_a_loop_is_entered_once(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_bytes(line("a"))
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    (tmp_path / "logs" / "up").symlink_to(tmp_path)
    (tmp_path / "logs" / "b.jsonl").symlink_to(tmp_path / "logs" / "a.jsonl")
    (tmp_path / "logs" / "dangling").symlink_to(tmp_path / "nowhere")
    ids, entries = split(list(read_path(tmp_path / "logs")))
    assert ids == ["a", "a"]  # the file under two names: the lake stores it once
    assert [entry.kind for entry in entries] == ["unreadable"]


def test_a_pipe_or_an_unreadable_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    _, (entry,) = read(tmp_path / "pipe")
    assert (entry.kind, entry.problem) == ("unreadable", "not a regular file")
    _, (entry,) = read(tmp_path / "absent")
    assert entry.kind == "unreadable"


def test_a_glob_names_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "a.txt"):
        (tmp_path / name).write_bytes(line(name))
    assert [Path(origin).name for _, origin in files_under(f"{tmp_path}/*.jsonl")] == ["a.jsonl", "b.jsonl"]


def test_lines_of_any_length_around_the_cap_are_counted_exactly(tmp_path: Path) -> None:
    generator = random.Random(3)
    sizes = [generator.choice([0, 1, 49, 50, 51, 52, 120]) for _ in range(300)]
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"x" * size + b"\n" for size in sizes))
    found = list(SourceFile(log, "log", max_line_bytes=50).lines())
    expected = [(number, size) for number, size in enumerate(sizes, start=1) if size]
    got = [(f.line, (f.size or 0) - 1) if isinstance(f, Quarantined) else (f.number, len(f.data)) for f in found]
    assert got == expected
    assert [isinstance(f, Quarantined) for f in found] == [size > 50 for _, size in expected]


def test_importing_the_sources_stays_light() -> None:
    code = (
        "import sys, palomar.data.sources as s\n"
        "s.sources()\n"
        "print([name for name in ('torch', 'transformers', 'streamlit') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
