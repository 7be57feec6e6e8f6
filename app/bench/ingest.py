"""How fast foreign logs become interactions: MB/s and interactions/s on one core, by format, and into the lake.

The logs are made up, of an ordinary shape: a request, then turns of reasoning, a command, and its output, with a patch
at the end. Reading includes recognising the format, validating, and measuring the functions of the edits.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palomar.app.bench import Measure
from palomar.data.ingest import ingest
from palomar.data.lake import Lake
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, read_file

SEED = 1
TURNS = 12
OUTPUT_CHARACTERS = 1_500
WORDS = ("list", "index", "total", "value", "order", "parse", "check", "retry", "cache", "items", "result", "error")

Session = dict[str, Any]


def measure(quick: bool) -> list[Measure]:
    """Per format, best of three passes over one set of files; then one format's logs into an empty lake."""
    sessions = [_session(random.Random(SEED * 1_000_003 + number), number) for number in range(60 if quick else 600)]
    found: list[Measure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WRITERS.items():
            place = Path(folder) / name
            place.mkdir()
            write(place, sessions)
            found += _read(name, place, passes=2 if quick else 3)
        lake = Lake(Path(folder) / "home" / "lake")
        start = time.process_time()
        report = ingest(Path(folder) / "palomar", lake)
        elapsed_s = time.process_time() - start
        rate = report.interactions / elapsed_s
        found.append(Measure("ingest palomar into the lake: interactions", rate, "1/s", report.interactions, (SEED,)))
    return found


def _read(name: str, place: Path, passes: int) -> list[Measure]:
    files = sorted(place.iterdir())
    size = sum(path.stat().st_size for path in files)
    best_s, count = float("inf"), 0
    for _ in range(passes):
        start = time.process_time()
        items = [item for path in files for item in read_file(SourceFile(path, path.name))]
        best_s = min(best_s, time.process_time() - start)
        count = sum(isinstance(item, Interaction) and item.source == name for item in items)
    if count == 0:
        raise RuntimeError(f"no interaction of {name} was read: the generator no longer writes the format")
    return [
        Measure(f"read {name}", size / best_s / 1e6, "MB/s", count, (SEED,)),
        Measure(f"read {name}: interactions", count / best_s, "1/s", count, (SEED,)),
    ]


def _session(generator: random.Random, number: int) -> Session:
    def text(characters: int) -> str:
        return " ".join(generator.choices(WORDS, k=characters // 6))

    path = f"src/{generator.choice(WORDS)}.py"
    functions = "".join(
        f"def {word}(a, b):\n    if a > b:\n        return {number}\n    return a\n\n\n"
        for word in generator.sample(WORDS, 4)
    )
    lines = functions.splitlines()
    patch = (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,{len(lines) - 1} +1,{len(lines)} @@\n"
        + "".join(f" {line}\n" for line in lines[:-1])
        + f"+{lines[-1]}# {number}\n"
    )
    turns = [(text(200), f"grep -n {generator.choice(WORDS)} {path}", text(OUTPUT_CHARACTERS)) for _ in range(TURNS)]
    return {"id": f"s{number}", "request": text(600), "turns": turns, "patch": patch, "path": path, "code": functions}


def _palomar(place: Path, sessions: list[Session]) -> None:
    def record(session: Session) -> Session:
        steps = [{"author": "person", "role": "user", "text": session["request"]}]
        for thought, command, output in session["turns"]:
            call = {"name": "bash", "arguments": command, "outcome": "ok", "result": output}
            steps.append({"author": "agent", "role": "assistant", "text": thought, "tool_calls": [call]})
        return {"interaction_id": session["id"], "steps": steps, "rewards": [{"name": "kept", "value": 1.0}]}

    _lines(place / "log.jsonl", [record(session) for session in sessions])


def _openai_chat(place: Path, sessions: list[Session]) -> None:
    def record(session: Session) -> Session:
        messages: list[Any] = [{"role": "user", "content": session["request"]}]
        for number, (thought, command, output) in enumerate(session["turns"]):
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            call = {"id": f"c{number}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": thought, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": output})
        arguments = json.dumps({"path": session["path"], "content": session["code"]})
        call = {"id": "last", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
        return {"messages": [*messages, {"role": "assistant", "content": None, "tool_calls": [call]}]}

    _lines(place / "chat.jsonl", [record(session) for session in sessions])


def _mini_swe_agent(place: Path, sessions: list[Session]) -> None:
    for session in sessions:
        messages = [{"role": "system", "content": "shell"}, {"role": "user", "content": session["request"]}]
        for thought, command, output in session["turns"]:
            messages.append({"role": "assistant", "content": f"THOUGHT: {thought}\n\n```bash\n{command}\n```"})
            observation = f"<returncode>0</returncode>\n<output>\n{output}\n</output>"
            messages.append({"role": "user", "content": observation})
        info = {"exit_status": "Submitted", "submission": session["patch"], "mini_version": "1.15.0"}
        log = {"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1"}
        (place / f"{session['id']}.traj.json").write_text(json.dumps(log, indent=2))


def _swe_agent(place: Path, sessions: list[Session]) -> None:
    for session in sessions:
        trajectory = [
            {"action": command, "observation": output, "response": thought, "thought": thought, "execution_time": 0.1}
            for thought, command, output in session["turns"]
        ]
        history = [{"role": "user", "content": session["request"], "agent": "main"}]
        info = {"exit_status": "submitted", "submission": session["patch"]}
        log = {"trajectory": trajectory, "history": history, "info": info}
        (place / f"{session['id']}.traj").write_text(json.dumps(log, indent=2))


def _tinker_rollouts(place: Path, sessions: list[Session]) -> None:
    for session in sessions:
        messages: list[Any] = [{"role": "user", "content": session["request"]}]
        for thought, command, output in session["turns"]:
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            call = {"type": "function", "id": None, "function": function}
            messages.append({"role": "assistant", "content": thought, "tool_calls": [call]})
            messages.append({"role": "user", "content": f"EXIT CODE: 0\n\nSTDOUT: {output}"})
        log = {"rollouts": messages, "metrics": {"public_reward": 1.0, "private_reward": 0.5}, "env_type": "Bench"}
        (place / f"{session['id']}.json").write_text(json.dumps(log))


def _verl(place: Path, sessions: list[Session]) -> None:
    rows = [
        {
            "input": session["request"],
            "output": "\n".join(thought for thought, _, _ in session["turns"]),
            "gts": None,
            "score": 0.5,
            "step": 1,
            "uid": f"{number // 8}_{number % 8}_0",
        }
        for number, session in enumerate(sessions)
    ]
    _lines(place / "1.jsonl", rows)


def _aider(place: Path, sessions: list[Session]) -> None:
    parts = []
    for session in sessions:
        parts.append("\n# aider chat started at 2026-01-01 10:00:00\n\n")
        for thought, command, _ in session["turns"]:
            parts.append(f"#### {command}  \n\n{thought}\n\n> Tokens: 1.0k sent, 200 received.\n\n")
    (place / "history.md").write_text("".join(parts))


def _lines(path: Path, records: list[Session]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


WRITERS: dict[str, Callable[[Path, list[Session]], None]] = {
    "palomar": _palomar,
    "openai-chat": _openai_chat,
    "mini-swe-agent": _mini_swe_agent,
    "swe-agent": _swe_agent,
    "tinker-rollouts": _tinker_rollouts,
    "verl": _verl,
    "aider": _aider,
}
