"""`palomar audit-log`: what it prints, and exit codes that tell whole, broken and absent apart."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store.open(None, tmp_path) as store:
        for number in range(3):
            store.audit_log.append(
                actor="ada\x1b[31m", action="incident.ack", subject=f"incident:{number}", reason="[bold]seen\ud800"
            )
    return tmp_path


def audit_log(home: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["audit-log", *arguments, "--home", str(home)])
    assert done.exit_code == code, done.output
    return done.stdout


def change(home: Path) -> None:
    with sqlite3.connect(home / "palomar.db") as connection:
        connection.execute("DROP TRIGGER audit_log_refuse_update")
        connection.execute("UPDATE audit_log SET actor = 'eve' WHERE number = 2")


def test_entries_are_shown_as_text_whatever_they_hold(home: Path) -> None:
    said = audit_log(home, "show")
    assert "\x1b" not in said
    assert "[bold]seen" in said
    assert said.count("incident.ack") == 3
    shown = json.loads(audit_log(home, "show", "--subject", "incident:1", "--json"))
    assert [(entry["number"], entry["actor"], entry["reason"]) for entry in shown["entries"]] == [
        (2, "ada\x1b[31m", "[bold]seen\ud800")
    ]
    assert audit_log(home, "show", "--actor", "nobody") == "no entries\n"
    assert audit_log(home, "show", "--newest", "1").count("incident.ack") == 1


def test_whole_log_exits_with_0_and_a_changed_one_with_1_and_names_the_entry(home: Path) -> None:
    assert audit_log(home, "verify").startswith("whole: 3 entries")
    change(home)
    assert audit_log(home, "verify", code=1).startswith("BROKEN: entry 2 (changed)")
    told = json.loads(audit_log(home, "verify", "--json", code=1))
    assert (told["whole"], told["entries"], told["problem"]["number"]) == (False, 1, 2)


def test_head_that_was_kept_is_checked_against(home: Path) -> None:
    head = audit_log(home, "head").strip()
    assert json.loads(audit_log(home, "head", "--json"))["head"] == head
    assert "leads through the head after entry 3" in audit_log(home, "verify", "--head", head)
    audit_log(home, "verify", "--head", "3:" + "0" * 64, code=1)
    audit_log(home, "verify", "--head", "4:" + head[2:], code=1)
    audit_log(home, "verify", "--head", "three", code=2)


@pytest.mark.parametrize("command", ["show", "verify", "head"])
def test_home_without_a_store_exits_with_3_and_gets_none(command: str, tmp_path: Path) -> None:
    assert "no store" in audit_log(tmp_path, command, code=3)
    assert "no store" in json.loads(audit_log(tmp_path, command, "--json", code=3))["why"]
    assert not list(tmp_path.iterdir())
