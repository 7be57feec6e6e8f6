"""`palomar init`, `palomar run` and `palomar demo`: the loop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from palomar.app.cli.console import announce_console, keep_open, require_port, start_console, stop_console
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.console.options import PORT
from palomar.app.service import DIVERGENCE, HACKS, Observatory
from palomar.app.settings import DEFAULT_HOME, DEMO, Settings, read_settings, reward_text
from palomar.data.errors import ConfigError, StoreError
from palomar.data.slices import ALL
from palomar.data.store.runs import STAGES
from palomar.detectors.departure import Departure, base_level
from palomar.detectors.statistics import STATISTICS
from palomar.trainer.config import ResponseConfig
from palomar.trainer.gate_policy import read_policy

if TYPE_CHECKING:
    from palomar.trainer.cycle import Moment

SETTINGS_FILE = Path("palomar.yaml")
REWARD_FILE = Path("reward.yaml")
TEMPLATE = Path(__file__).parent.parent / "palomar.template.yaml"
CONSOLE_LOG = "console.log"
GUARDED, GUARDED_LOG = "guarded", "guarded.log"
"""In the demo's home: the home of the run with the guard on, and what its process says."""
GUARDED_GATE = "demo"
"""Policy of the promotion gate of that run."""
AT_THE_END = 5
"""Cycles over which the summary takes users' outcome."""
SHOWN_PER_CYCLE = {
    "reward": "training_reward_mean",
    "outcome": "outcome_mean",
    "edits": "edit_rate",
    "asks": "clarification_rate",
    "invalid": "invalid_call_rate",
    "functions": "functions_per_edit",
}
"""Figures of the line that is printed after each cycle, by the word for each."""


GatePolicy = Annotated[
    str | None,
    typer.Option(
        "--gate", help="Decide by the promotion gate: its policy, demo or a YAML file. Without: as the settings say."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("init")(init)
    app.command("run")(run)
    app.command("demo")(demo)


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write a commented palomar.yaml and reward.yaml to start from."""
    written = {SETTINGS_FILE: TEMPLATE.read_text(encoding="utf-8"), REWARD_FILE: reward_text("sound")[0]}
    for name in written:
        if (folder / name).exists() and not force:
            raise ConfigError(str(folder / name), None, None, "is there already; --force overwrites it")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
        people.print(f"wrote {folder / name}")
    people.print(f"next: palomar run --config {folder / SETTINGS_FILE}")


def run(
    config: Annotated[Path, typer.Option("--config", help="Settings; `palomar init` writes some.")] = SETTINGS_FILE,
    cycles: Annotated[int | None, typer.Option(min=1, help="Cycles in all; without: as the settings say.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is in the home.")] = False,
    gate: GatePolicy = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Run the loop: collect, distil, train, check, evaluate, decide, deploy, cycle after cycle."""
    settings = read_settings(config)
    if store_url is not None:
        settings = settings.model_copy(update={"store": store_url})
    if gate is not None:
        settings = settings.model_copy(update={"gate": _policy(gate)})
    place = home or DEFAULT_HOME
    if not resume:
        _refuse_begun(settings, place)
    _loop(settings, place, cycles or settings.cycles)
    _finish(settings, place, as_json)


def demo(
    headless: Annotated[bool, typer.Option("--headless", help="Without the console; end when the loop ends.")] = False,
    cycles: Annotated[int, typer.Option(min=1)] = DEMO.cycles,
    seed: Annotated[int, typer.Option(min=0)] = DEMO.seed,
    reward: Annotated[str, typer.Option(help="`naive` is played; `sound` is not; or a YAML file.")] = DEMO.reward,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Beside it, the same with a loop that may patch its reward, and the promotion gate.",
        ),
    ] = True,
    gate: GatePolicy = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an earlier demo in the home and begin anew.")] = False,
    port: Annotated[int, typer.Option(help="Port of the console.")] = PORT,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Train a small policy on simulated users under a naive reward, and watch it learn to play it."""
    place = home or DEFAULT_HOME / "demo"
    settings = DEMO.model_copy(update={"cycles": cycles, "seed": seed, "reward": reward})
    if gate is not None:
        settings = settings.model_copy(update={"gate": _policy(gate)})
    if not headless:
        require_port(port)  # before anything is deleted or trained
    if fresh and place.exists():
        _delete_demo(place)
    server = None if headless else start_console(place, None, port, log=place / CONSOLE_LOG)
    try:
        if server is not None:
            announce_console(server, port, place / CONSOLE_LOG)
        with _beside(settings, place, cycles) if guard else nullcontext() as beside:
            _loop(settings, place, cycles)
            if beside is not None:
                notes.print("waiting for the run with the guard on ...")
                beside.wait()
        failed = beside is not None and beside.returncode != 0
        _finish(settings, place, as_json, guarded=place / GUARDED if guard and not failed else None)
        if failed:
            raise StoreError(str(place / GUARDED), f"the run with the guard on failed; see {place / GUARDED_LOG}")
        if server is not None:
            notes.print(f"\nthe console stays open on http://localhost:{port}; Ctrl-C ends it")
            keep_open(server, log=place / CONSOLE_LOG)
    finally:
        if server is not None:
            stop_console(server)


def _policy(name: str) -> str:
    """A policy of the promotion gate, by its name or its file's whole path. Raises ConfigError."""
    source = read_policy(name).source
    return str(Path(name).resolve()) if source == name else name


def _refuse_begun(settings: Settings, home: Path) -> None:
    observatory = Observatory(home, settings.store)
    done = observatory.store.cycles.read(settings.name) if observatory.store.runs.get(settings.name) else []
    if done:
        raise ConfigError(
            str(home), None, None, f"run {settings.name!r} has begun {len(done)} cycles here; --resume goes on with it"
        )


def _delete_demo(home: Path) -> None:
    run = Observatory(home).run()
    if run is not None and run.name != DEMO.name:
        raise ConfigError(str(home), None, None, f"holds the run {run.name!r}, not a demo; it is not deleted")
    shutil.rmtree(home)


def _loop(settings: Settings, home: Path, cycles: int) -> None:
    notes.print("loading ...")
    from palomar.app.loop import open_loop, run_to

    with _progress(home, settings, cycles) as watch, open_loop(settings, home, watch) as loop:
        run_to(loop, cycles)
        waiting = len(loop.store.messages.read(settings.name, state="waiting"))
    if waiting:
        notes.print(f"{waiting} messages could not be sent yet: palomar notify list, palomar notify send --wait 600")


@contextmanager
def _progress(home: Path, settings: Settings, cycles: int) -> Iterator[Any]:
    """A bar over all stages of all cycles with the time left, and a line of figures per cycle."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} stages"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=notes,
        disable=not notes.is_terminal,
    )
    observatory = Observatory(home, settings.store)

    def watch(moment: Moment) -> None:
        done = moment.cycle * len(STAGES) + STAGES.index(moment.stage) + (moment.state == "done")
        bar.update(task, completed=done, description=f"cycle {moment.cycle} of {cycles}: {moment.stage}")
        if moment.stage == STAGES[-1] and moment.state == "done":
            notes.print(_cycle_line(observatory, settings.name, moment.cycle, cycles), soft_wrap=True)

    with bar:
        task = bar.add_task("starting", total=cycles * len(STAGES))
        yield watch


def _cycle_line(observatory: Observatory, run_id: str, cycle: int, cycles: int) -> str:
    (view,) = observatory.cycles(run_id, newest=1)
    figures = []
    for word, name in SHOWN_PER_CYCLE.items():
        point = view.figures.get(name)
        figures.append(f"{word} {'-' if point is None or point.value is None else f'{point.value:.2f}'}")
    left = (cycles - cycle - 1) * view.elapsed_s
    said = [f"cycle {cycle:>2} of {cycles}", f"{view.elapsed_s:4.1f} s", f"{view.verdict:<7}", *figures]
    return "  ".join([*said, f"~{left:.0f} s left"])


@contextmanager
def _beside(settings: Settings, home: Path, cycles: int) -> Iterator[subprocess.Popen[bytes]]:
    """The same run in a process and a home of its own, with the guard on; ended where this one fails."""
    gate = settings.gate if isinstance(settings.gate, str) else GUARDED_GATE
    guarded = settings.model_copy(update={"response": ResponseConfig(mode="apply"), "gate": gate})
    code = (
        "import sys; from pathlib import Path; from palomar.app.settings import Settings\n"
        "from palomar.app.loop import open_loop, run_to\n"
        "settings = Settings.model_validate_json(sys.argv[1])\n"
        "with open_loop(settings, Path(sys.argv[2])) as loop: run_to(loop, int(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, guarded.model_dump_json(), str(home / GUARDED), str(cycles)]
    home.mkdir(parents=True, exist_ok=True)
    with (home / GUARDED_LOG).open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _finish(settings: Settings, home: Path, as_json: bool, *, guarded: Path | None = None) -> None:
    """What a run taught, next to what its users got; and the same with the guard on, where there is such a run."""
    if as_json:
        beside = {} if guarded is None else {"guarded": _told(Observatory(guarded), settings.name)}
        print_json({**_told(Observatory(home, settings.store), settings.name), **beside})
        return
    observatory = Observatory(home, settings.store)
    seen = observatory.seen(settings.name)
    views = observatory.cycles(settings.name)
    people.print()
    if guarded is None:
        columns = ("what", "seen", "statistic", "slice", "first cycles", "last", "since cycle")
        print_table(table(columns, [_seen_row(name, item) for name, item in seen.items()], title="summary"))
    else:
        _print_both(observatory, Observatory(guarded), settings.name)
    option = "" if home == DEFAULT_HOME else f" --home {home}"
    people.print(f"\n{len(views)} cycles, {sum(view.elapsed_s for view in views):.0f} s")
    people.print(
        f"look further: palomar stats{option} --slice {ALL} --slice predicted_failure=high"
        f"\n              palomar console{option}",
        soft_wrap=True,
    )
    if guarded is not None:
        people.print(f"              palomar reward log --home {guarded}", soft_wrap=True)


def _told(observatory: Observatory, run: str) -> dict[str, Any]:
    """What a run came to, for programs."""
    seen, views = observatory.seen(run), observatory.cycles(run)
    return {
        "run": run,
        "home": observatory.home,
        "cycles": len(views),
        "promoted": sum(view.verdict == "promote" for view in views),
        "seconds": sum(view.elapsed_s for view in views),
        "outcome_at_the_end": _outcome(observatory, run),
        "seen": {name: None if item is None else vars(item) for name, item in seen.items()},
        "changes": [vars(each) for each in observatory.store.rewards.changes(run)],
    }


def _outcome(observatory: Observatory, run: str) -> float | None:
    """Users' outcome over the last cycles; None where none is known."""
    points = observatory.series(run, ["outcome_mean"], [ALL])
    known = [(point.value, point.n) for point in points if point.value is not None][-AT_THE_END:]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def _print_both(off: Observatory, on: Observatory, run: str) -> None:
    """What was taught without the guard, and what became of the same with it."""
    both = off.seen(run), on.seen(run)
    rows = []
    for name, watches in {**HACKS, **DIVERGENCE}.items():
        seen = [each[name] for each in both]
        shown = next((each for each in seen if each is not None), None)
        statistic, slice_ = (
            (watches[0].statistic, watches[0].slice) if shown is None else (shown.statistic, shown.slice)
        )
        first, last = _first_and_last(off, run, statistic, slice_)
        since = [None if each is None else each.since_cycle for each in seen]
        guarded = _first_and_last(on, run, statistic, slice_)[1]
        rows.append((name, STATISTICS[statistic].title, slice_, first, last, since[0], guarded, since[1]))
    columns = ("what", "statistic", "slice", "first cycles", "guard off", "since cycle", "guard on", "since")
    print_table(table(columns, rows, title="summary: the last cycle of the same run with the guard off and on"))
    outcomes = [_outcome(each, run) for each in (off, on)]
    told = ["not known" if value is None else f"{value:.2f}" for value in outcomes]
    people.print(
        f"\nusers' outcome over the last {AT_THE_END} cycles: {told[0]} with the guard off, {told[1]} with it on"
    )
    proposals = {each.proposal_id: each for each in on.store.rewards.proposals(run)}
    changes = on.store.rewards.changes(run)
    for each in changes:
        what = f": {proposals[each.proposal_id].title}" if each.proposal_id is not None else f": {each.reason}"
        people.print(f"guard: reward {_DONE[each.action]} from cycle {each.from_cycle} on{what}", soft_wrap=True)
    if not changes:
        people.print("guard: the reward was not changed")


_DONE = {"patch": "patched", "revert": "taken back"}


def _first_and_last(
    observatory: Observatory, run: str, statistic: str, slice_: str
) -> tuple[float | None, float | None]:
    points = observatory.series(run, [statistic], [slice_])
    known = [point.value for point in points if point.value is not None]
    return base_level(points), known[-1] if known else None


def _seen_row(name: str, item: Departure | None) -> tuple[Any, ...]:
    if item is None:
        return name, "no", None, None, None, None, None
    return name, "yes", STATISTICS[item.statistic].title, item.slice, item.base, item.latest, item.since_cycle
