"""`palomar init`, `palomar run` and `palomar demo`: the loop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from palomar.app.cli.console import announce_console, keep_open, require_port, start_console, stop_console
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.console.options import PORT
from palomar.app.service import ALL, Observatory
from palomar.app.settings import DEFAULT_HOME, DEMO, Settings, read_settings, reward_text
from palomar.data.errors import ConfigError
from palomar.data.store.runs import STAGES
from palomar.detectors.departure import Departure
from palomar.detectors.statistics import STATISTICS

if TYPE_CHECKING:
    from palomar.trainer.cycle import Moment

SETTINGS_FILE = Path("palomar.yaml")
REWARD_FILE = Path("reward.yaml")
TEMPLATE = Path(__file__).parent.parent / "palomar.template.yaml"
CONSOLE_LOG = "console.log"
SHOWN_PER_CYCLE = {
    "reward": "training_reward_mean",
    "outcome": "outcome_mean",
    "edits": "edit_rate",
    "asks": "clarification_rate",
    "invalid": "invalid_call_rate",
    "functions": "functions_per_edit",
}
"""Figures of the line that is printed after each cycle, by the word for each."""


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
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Run the loop: collect, distil, train, check, evaluate, decide, deploy, cycle after cycle."""
    settings = read_settings(config)
    if store_url is not None:
        settings = settings.model_copy(update={"store": store_url})
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
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an earlier demo in the home and begin anew.")] = False,
    port: Annotated[int, typer.Option(help="Port of the console.")] = PORT,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Train a small policy on simulated users under a naive reward, and watch it learn to play it."""
    place = home or DEFAULT_HOME / "demo"
    settings = DEMO.model_copy(update={"cycles": cycles, "seed": seed, "reward": reward})
    if not headless:
        require_port(port)  # before anything is deleted or trained
    if fresh and place.exists():
        _delete_demo(place)
    server = None if headless else start_console(place, None, port, log=place / CONSOLE_LOG)
    try:
        if server is not None:
            announce_console(server, port, place / CONSOLE_LOG)
        _loop(settings, place, cycles)
        _finish(settings, place, as_json)
        if server is not None:
            notes.print(f"\nthe console stays open on http://localhost:{port}; Ctrl-C ends it")
            keep_open(server, log=place / CONSOLE_LOG)
    finally:
        if server is not None:
            stop_console(server)


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


def _finish(settings: Settings, home: Path, as_json: bool) -> None:
    """What a run taught, next to what its users got."""
    observatory = Observatory(home, settings.store)
    seen = observatory.seen(settings.name)
    views = observatory.cycles(settings.name)
    if as_json:
        print_json(
            {
                "run": settings.name,
                "home": home,
                "cycles": len(views),
                "promoted": sum(view.verdict == "promote" for view in views),
                "seconds": sum(view.elapsed_s for view in views),
                "seen": {name: None if item is None else vars(item) for name, item in seen.items()},
            }
        )
        return
    rows = [_seen_row(name, item) for name, item in seen.items()]
    people.print()
    columns = ("what", "seen", "statistic", "slice", "first cycles", "last", "since cycle")
    print_table(table(columns, rows, title="summary"))
    option = "" if home == DEFAULT_HOME else f" --home {home}"
    people.print(f"\n{len(views)} cycles, {sum(view.elapsed_s for view in views):.0f} s")
    people.print(
        f"look further: palomar stats{option} --slice {ALL} --slice predicted_failure=high"
        f"\n              palomar console{option}",
        soft_wrap=True,
    )


def _seen_row(name: str, item: Departure | None) -> tuple[Any, ...]:
    if item is None:
        return name, "no", None, None, None, None, None
    return name, "yes", STATISTICS[item.statistic].title, item.slice, item.base, item.latest, item.since_cycle
