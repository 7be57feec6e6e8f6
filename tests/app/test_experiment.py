"""`palomar experiment` from the command line, on a run of the real loop whose checkpoints are served again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from palomar.app import experiments
from palomar.app.experiments import arm_of
from palomar.app.settings import DEMO, Settings
from palomar.data.errors import CheckpointError, ConfigError, StoreError
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.detectors.experiment import Plan


def palomar(*arguments: str | Path, home: Path, code: int) -> tuple[str, str]:
    environment = {**os.environ, "PALOMAR_HOME": str(home), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from palomar.app.cli import main; main()", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


BEGIN = """
import sys
from pathlib import Path
from palomar.app.loop import open_loop
from palomar.app.settings import Settings
from palomar.trainer.registry import register

with open_loop(Settings.model_validate_json(sys.argv[1]), Path(sys.argv[2])) as loop:
    base = loop.store.checkpoints.champion(loop.run_id).checkpoint.checkpoint_id
    register(loop.store, loop.run_id, loop.checkpoints.save(loop.base, parent=base, cycle=0), parent=base, cycle=0)
"""
"""A run with its base, and a second checkpoint with the base's weights: as good as trained, and not worse."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    settings = DEMO.model_copy(update={"name": "small"})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    subprocess.run([sys.executable, "-c", BEGIN, settings.model_dump_json(), str(folder)], check=True)
    return folder


def write_plan(home: Path, **changes: object) -> Path:
    with Store.open(None, home) as store:
        base, trained = (item.checkpoint_id for item in store.checkpoints.read("small"))
    lines = {
        "name": "trial",
        "planned_units": 160,
        "min_units": 1000,  # more than there are
        "arms": {
            "champion": {"checkpoint": base, "share": 0.5, "role": "control"},
            "candidate": {"checkpoint": trained, "share": 0.5, "role": "treatment"},
        },
        **changes,
    }
    path = home / "plan.yaml"
    path.write_text(json.dumps(lines), encoding="utf-8")  # JSON is YAML
    return path


@pytest.mark.slow
def test_two_checkpoints_are_served_to_users_drawn_at_random_and_reported(home: Path) -> None:
    plan = write_plan(home)
    # Before anything was served there is nothing to tell, which is no pass.
    said, _ = palomar("experiment", plan, "--json", home=home, code=3)
    assert json.loads(said)["status"] == "no_data"
    palomar("experiment", "list", home=home, code=3)

    out, _ = palomar("experiment", "run", plan, "--cycles", "2", "--requests", "100", "--json", home=home, code=3)
    found = json.loads(out)
    assert found["valid"]
    assert {each["status"] for each in found["effects"]} == {"too_few"}

    lake = Lake(home / "experiments" / "trial" / "lake")
    rows = lake.scan("observations", ["user_id", "arm", "checkpoint", "traffic", "cycle"]).to_pylist()
    checkpoints = {name: arm["checkpoint"] for name, arm in json.loads(plan.read_text("utf-8"))["arms"].items()}
    drawn = arm_of(Plan.model_validate_json(plan.read_text("utf-8")))
    assert len(rows) >= 200
    assert {row["cycle"] for row in rows} == {0, 1}
    assert all(row["arm"] == drawn(row["user_id"]) and row["checkpoint"] == checkpoints[row["arm"]] for row in rows)
    assert min(Counter(row["arm"] for row in rows).values()) > 60
    # The run itself is as it was, and the audit log says who did what.
    assert not Lake(home / "lake").cycles("interactions")
    with Store.open(None, home) as store:
        (entry,) = store.audit_log.read(subject="experiment:trial")
        assert (entry.action, entry.detail["arms"]) == ("experiment.serve", checkpoints)

    # More cycles go on from there: what was served stays as it was.
    before = {path: path.read_bytes() for path in lake.files("interactions")}
    palomar("experiment", "run", plan, "--cycles", "3", "--requests", "100", home=home, code=3)
    assert {path: path.read_bytes() for path in before} == before
    assert lake.cycles("interactions") == (0, 1, 2)
    text, _ = palomar("experiment", "report", plan, home=home, code=3)
    assert "candidate against champion" in text
    assert "assignment: 6 checks pass" in text
    listed = json.loads(palomar("experiment", "list", "--json", home=home, code=0)[0])["arms"]
    assert [(row["experiment"], row["arm"], row["checkpoint"]) for row in listed] == [
        ("trial", name, checkpoints[name]) for name in sorted(checkpoints)
    ]


@pytest.mark.slow
def test_a_plan_changed_after_looking_is_refused(home: Path) -> None:
    """Runs after the experiment above was served; alone, it serves it first."""
    plan = write_plan(home)
    if not (home / "experiments" / "trial").is_dir():
        palomar("experiment", "run", plan, "--cycles", "1", "--requests", "100", home=home, code=3)
    out, err = palomar("experiment", write_plan(home, alpha=0.2), "--json", home=home, code=2)
    assert "alpha: was 0.05 when the experiment began" in err
    assert json.loads(out)["error"]["kind"] == "ConfigError"
    # What is looked at may change.
    palomar("experiment", write_plan(home, metrics=["edit_rate"]), home=home, code=3)


@pytest.mark.slow
def test_what_cannot_be_served_is_an_error(home: Path) -> None:
    def serve(place: Path, **changes: object) -> None:
        experiments.serve(place, experiments.read_plan(write_plan(home, **changes)), 1, actor="test", reason="test")

    arms = json.loads(write_plan(home).read_text("utf-8"))["arms"]
    absent = {**arms, "candidate": {**arms["candidate"], "checkpoint": "0" * 16}}
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        serve(home, name="absent", arms=absent)
    with pytest.raises(StoreError, match="holds no run"):
        serve(home / "nowhere")
    with pytest.raises(ConfigError, match="unit: the simulated production draws users"):
        serve(home, unit="organisation")
    with pytest.raises(ConfigError, match="metrics: no metric 'edit_rat'"):
        serve(home, metrics=["edit_rat"])
    with pytest.raises(ConfigError, match="cannot be read"):
        experiments.read_plan(home / "missing.yaml")


def test_drawing_depends_on_the_name_and_the_user_alone_and_keeps_the_shares() -> None:
    arms = {
        "champion": {"checkpoint": "a", "share": 0.6, "role": "control"},
        "candidate": {"checkpoint": "b", "share": 0.3, "role": "treatment"},
        "anchor": {"checkpoint": "c", "share": 0.1, "role": "anchor"},
    }
    plans = [Plan.model_validate({"name": name, "planned_units": 100, "arms": arms}) for name in ("one", "two")]
    drawn, again, other = (
        [arm_of(plan)(f"user-{index}") for index in range(20_000)] for plan in (plans[0], plans[0], plans[1])
    )
    assert drawn == again
    counts = Counter(drawn)
    for name, arm in arms.items():
        assert counts[name] / 20_000 == pytest.approx(arm["share"], abs=0.012)  # 3.5 standard errors
    # Another experiment draws anew: whoever was in an arm of one is in any arm of the other.
    both = sum(a == b for a, b in zip(drawn, other, strict=True)) / 20_000
    assert both == pytest.approx(0.6**2 + 0.3**2 + 0.1**2, abs=0.015)
