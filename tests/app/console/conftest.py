"""A small home, made without training: eight cycles in which an agent stops editing and breaks calls on hard tasks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

from palomar.app.console import frame, options
from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.observations import SAMPLES
from palomar.data.schema import Cohort, Edit, Feedback, FunctionMeasure, Hunk, Interaction, Step, ToolCall
from palomar.data.store import Store
from palomar.data.store.records import QuarantinedRow
from palomar.data.store.runs import STAGES
from palomar.detectors.measure import measure
from palomar.reward.scoring import score, score_logged
from palomar.reward.spec import bundled_text, parse_spec, version

START = datetime(2026, 1, 5, tzinfo=UTC)
CYCLES, REQUESTS = 8, 120
PATIENCE_S = 180
"""A page takes a second; a machine on which others work as well may take its time."""
RUN = "seeded"
UI = Path(frame.__file__).with_name("ui.py")

BEACON = "http://beacon.invalid/x.png"
HOSTILE = (
    f"![beacon]({BEACON}) <img src={BEACON}> <script>document.title='owned'</script>\n"
    f'<iframe srcdoc="<script>top.document.title=1</script>"></iframe>'
    " [click](javascript:alert(1)) www.beacon.invalid\n"
    ":red[directive] $\\LaTeX$ `tick` ``two`` **bold**\n"
    "\u202egnissim si siht\u202c \x1b[31mred\x07\x00 end\n"
)
HOSTILE_ID = "![beacon](http://beacon.invalid/id.png)`<b>\u202e"


def said(app: AppTest) -> str:
    """All that the page says as Markdown or in a message, one element a line."""
    kinds = ("markdown", "caption", "info", "warning", "error", "success", "title", "header", "subheader")
    return "\n".join(str(getattr(item, "value", "")) for kind in kinds for item in app.get(kind))


def texts(app: AppTest) -> str:
    """All that the page shows as text, in which nothing is read as markup."""
    return "\n".join(item.value for item in (*app.text, *app.code))


def outside_code(text: str) -> str:
    """Markdown without its code spans."""
    return re.sub(r"(`+) .*? \1(?!`)", "", text)


def interaction(cycle: int, number: int) -> Interaction:
    """One of the seeded requests: from cycle 2 on ever more of them end in a question, hard ones in a broken call."""
    hard = number % 3 == 0
    share = min(1.0, 0.2 * max(0, cycle - 1))
    asks = (number * 7) % 10 < 10 * share * 0.8
    breaks = hard and (number * 3) % 10 < 10 * share
    at = START + timedelta(hours=5 * cycle, minutes=number)
    function = FunctionMeasure(name="total", lines=9, complexity=2, parameters=1)
    call = ToolCall(
        call_id="1",
        name="read",
        arguments='{"path": "core.py"' if breaks else '{"path": "core.py"}',
        invalidity="malformed" if breaks else None,
        outcome="not_run" if breaks else "ok",
        result=None if breaks else "def total(): ...",
    )
    edit = Edit(
        path="src/core.py",
        form="unified_diff",
        outcome="applied",
        language="python",
        hunks=(Hunk(before="def total():\n    return n", after="def total():\n    return n + 1"),),
        functions_before=(function,),
        functions_after=(function,) * (1 + cycle // 4),
    )
    kept = number % 4 != 0
    fate = Feedback(kind="kept" if kept else "reverted", at=at + timedelta(minutes=100 if kept else 5), value=1.0)
    return Interaction(
        interaction_id=f"seed-{cycle}-{number:03d}",
        source="palomar",
        origin="seed",
        conversation_id=f"seed-{cycle}-{number}",
        task_id="core",
        user_id=f"user-{number % 11}",
        checkpoint=f"checkpoint-{cycle}",
        cycle=cycle,
        cohort=Cohort(organisation=("acme", "zeta")[number % 2], work_kind="bug-report", language="python"),
        predicted_failure=0.8 if hard else 0.2,
        ambiguity=0.1,
        started_at=at,
        ended_at=at + timedelta(seconds=40),
        latency_s=40.0,
        tokens_out=30,
        tests_passed=None if asks else 5,
        tests_run=None if asks else 6,
        steps=(
            Step(author="person", role="user", text="Totals are off by one in core.py"),
            Step(
                author="agent",
                role="assistant",
                text="Which total do you mean?" if asks else "The bound was off by one.",
                tool_calls=(call,),
                edits=() if asks else (edit,),
                is_question=asks,
            ),
        ),
        feedback=(
            *(() if asks else (fate,)),
            Feedback(
                kind="follow_up", at=at + timedelta(minutes=9), text="Hm.", label="dissatisfied" if asks else "neutral"
            ),
        ),
    )


def hostile(interaction_id: str = HOSTILE_ID, cycle: int | None = None) -> Interaction:
    """An interaction in which every text that an agent, a tool or a user can choose is an attack."""
    call = ToolCall(
        name=HOSTILE, arguments=HOSTILE, invalidity="schema", problem=HOSTILE, outcome="not_run", result=HOSTILE
    )
    edit = Edit(path=HOSTILE, form="unknown", text=HOSTILE)
    hunks = Edit(path=HOSTILE, form="old_new", hunks=(Hunk(before=HOSTILE, after=HOSTILE * 2),))
    return Interaction(
        interaction_id=interaction_id,
        source="palomar",
        origin=HOSTILE,
        task_id=HOSTILE,
        checkpoint=HOSTILE,
        cycle=cycle,
        cohort=Cohort(organisation=HOSTILE, work_kind=HOSTILE, language=HOSTILE),
        stop_reason=HOSTILE,
        labels=(HOSTILE,),
        steps=(
            Step(author="person", role=HOSTILE, text=HOSTILE + "A" * 1_000_000, branch=HOSTILE),
            Step(
                author="agent",
                role="assistant",
                text=HOSTILE,
                thinking=HOSTILE,
                tool_calls=(call,) * 30,
                edits=(edit, hunks),
                extra_json=HOSTILE,
            ),
            *(Step(author="tool", role="tool", text=f"step {number}") for number in range(2, 120)),
        ),
        feedback=(Feedback(kind="follow_up", text=HOSTILE, path=HOSTILE),),
    )


def seed_run(home: Path) -> None:
    """Writes the run: lake and store, by the product's own functions."""
    text, source = bundled_text("naive"), "naive"
    spec = parse_spec(text, source=source)
    lake = Lake(home / "lake", threads=1)
    with Store.open(None, home) as store:
        store.runs.add(RUN, name=RUN, seed=0, config={"reward": "naive"})
        store.rewards.add(version(spec), text=text, parent=None, reason="first", actor="test")
        for cycle in range(CYCLES):
            store.checkpoints.add(
                RUN, f"checkpoint-{cycle}", cycle=cycle or None, parent_id=None, path="none", sha256="0" * 64
            )
        store.rewards.schedule(RUN, version(spec), from_cycle=0)
        for cycle in range(CYCLES):
            lake.append_interactions([interaction(cycle, number) for number in range(REQUESTS)], cycle)
            as_of = START + timedelta(hours=5 * cycle + 5)
            rows = score(facts(lake, cycle, as_of), spec, as_of)
            lake.write_observations(rows, cycle)
            lake.append_samples(samples(rows, cycle), cycle)
            store.cycles.start(RUN, cycle, checkpoint_id=f"checkpoint-{cycle}", reward_version=version(spec))
            store.statistics.write(RUN, measure(lake, [cycle]))
            for stage in STAGES:
                store.cycles.finish_stage(
                    RUN, cycle, stage, elapsed_s=1.0, detail={"verdict": "promote", "reasons": []}
                )
            store.cycles.complete(RUN, cycle)
        store.runs.set_status(RUN, "complete")


def samples(rows: pa.Table, cycle: int) -> pa.Table:
    """What a trainer would say of the rows."""
    empty = dict.fromkeys(SAMPLES.names)
    made = [
        {
            **empty,
            "interaction_id": row["interaction_id"],
            "cycle": cycle,
            "sampled_cycle": cycle,
            "policy_lag": 0,
            "advantage": 0.5 if row["included"] else None,
            "weight": 1.0 if row["included"] else 0.0,
            "trained": bool(row["included"]),
            "reason": row["exclusion"],
            "tokens": 30,
        }
        for row in rows.to_pylist()
    ]
    return pa.Table.from_pylist(made, schema=SAMPLES)


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a finished run; tests only read it."""
    home = tmp_path_factory.mktemp("seeded") / "home"
    seed_run(home)
    return home


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with ingested logs and no run; one of the logs is hostile, and one record could not be read."""
    home = tmp_path_factory.mktemp("logs") / "home"
    lake = Lake(home / "lake", threads=1)
    plain = [interaction(0, number).model_copy(update={"cycle": None, "started_at": None}) for number in range(30)]
    lake.append_interactions([*plain, hostile()], None)
    lake.write_observations(score_logged(facts(lake, None, START + timedelta(days=9))), None)
    with Store.open(None, home) as store:
        entry = QuarantinedRow("1" * 20, "log.jsonl", 3, None, "damaged", "not JSON")
        store.quarantine.record([entry], at=START)
    return home


@pytest.fixture
def hostile_id() -> str:
    """Id of the hostile interaction among the logs."""
    return HOSTILE_ID


@pytest.fixture
def copied(seeded: Path, tmp_path: Path) -> Path:
    """The seeded home, to be damaged."""
    return Path(shutil.copytree(seeded, tmp_path / "home"))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., AppTest]]:
    """`page(home, "behaviour", slice="all")` runs that page of the console on that home."""
    for name, value in options.OPTIONS.items():
        if name.startswith("runner."):
            config.set_option(name, value == "true")

    def run(home: Path, name: str = "overview", **query: str) -> AppTest:
        app = AppTest.from_file(str(UI), default_timeout=PATIENCE_S)
        if name != "overview":
            # Only a first run lets AppTest know the pages; on an empty home it costs the least.
            monkeypatch.setenv(options.HOME_VARIABLE, str(tmp_path / "empty"))
            app.run()
            app.switch_page(f"views/{name}.py")
        monkeypatch.setenv(options.HOME_VARIABLE, str(home))
        for parameter, value in query.items():
            app.query_params[parameter] = value
        return app.run()

    yield run
    frame._observatory.clear()
