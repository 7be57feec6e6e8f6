"""Is the console quick with a million interactions, 200 cycles and 50 incidents, for one reader and for twenty?

On the home that ``$PALOMAR_BENCH_HOME`` names, else on one that `palomar seed` makes once and the cache keeps (with
``--quick``: a small one).

What a reader sees is measured in a headless Chromium: the first page (until its last line, on a fresh server with a
fresh profile, and again), from a click in the sidebar to the heading of the page, and the marks that charts are drawn
with. Twenty Chromiums would measure themselves on two cores, so the twenty readers are sessions without a browser
(`palomar.app.console.sessions`): they visit the pages in turn, thinking for some seconds at each, and what is measured
is the time from what they send to the end of the page's script. Server time is the processor time of the server.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from palomar.app.bench import Measure
from palomar.app.cli.console import await_console, start_console, stop_console
from palomar.app.console.driving import browser, free_port, settle
from palomar.app.console.links import SECTIONS, Page
from palomar.app.console.sessions import Answer, Session
from palomar.app.console.tour import tour
from palomar.app.seeding import SeedConfig, seed_home

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

HOME_VARIABLE = "PALOMAR_BENCH_HOME"
SMALL = SeedConfig(interactions=16_000, cycles=32, incidents=8)
COLD_S, WARM_S = 5.0, 2.0
MEDIAN_MS, P95_MS = 200.0, 1_000.0
SERVER_MS = 100.0
PAYLOAD_MB, MARKS = 0.5, 2_000
READERS, THINKING_S = 20, (2.0, 6.0)
ROUNDS = 3
VIEWS, SETTLED = 1_000, 200
"""Page views of which memory is looked at, and after how many everything has been loaded once."""
GROWTH_MIB = 100.0
LAST_LINE = "The same on the command line"
TICKS_S = os.sysconf("SC_CLK_TCK")


def measure(quick: bool) -> list[Measure]:
    """The benchmark; with `quick` on a small home, with a tenth of the page views."""
    home = _home(quick)
    visits = tour(home)
    views = VIEWS // 10 if quick else VIEWS
    with browser() as opened:
        with _serving(home) as (url, _):
            first = _first_page(opened, url)
        with _serving(home) as (url, server):
            pages = _pages(url, server, visits)
            clicks = _clicks(opened, url)
            marks = _marks(opened, url, visits)
            readers = _readers(url, visits)
            memory = _memory(url, server, visits, views)
    load = f"load average before {os.getloadavg()[2]:.1f}"
    return [
        Measure("first page, fresh server and browser", first[0], "s", 1, aim=COLD_S, note=load),
        Measure("first page again", statistics.median(first[1:]), "s", len(first) - 1, aim=WARM_S),
        *_spread("click in the sidebar to the heading, one reader", clicks),
        *_spread(f"a page asked for to its end, {READERS} readers", readers),
        *_of_pages(pages, marks),
        *memory,
    ]


def _home(quick: bool) -> Path:
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    cache = Path(os.environ.get("PALOMAR_CACHE", Path.home() / ".cache" / "palomar")) / "seeded"
    home = cache / ("small" if quick else "big")
    if not (home / "palomar.db").exists():
        with tempfile.TemporaryDirectory(dir=_made(cache)) as folder:
            made = Path(folder) / "home"
            seed_home(made, SMALL if quick else SeedConfig())
            made.rename(home)
    return home


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _serving(home: Path) -> Iterator[tuple[str, int]]:
    """A fresh console on the home: its URL, and its process."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "console.log"
        server: subprocess.Popen[bytes] = start_console(home, None, port, log=log)
        try:
            await_console(server, port, log=log)
            yield f"http://localhost:{port}", server.pid
        finally:
            stop_console(server)


def _first_page(opened: Browser, url: str) -> list[float]:
    context = opened.new_context(viewport={"width": 1280, "height": 800})
    try:
        tab = context.new_page()
        return [_until_last_line(tab, url) for _ in range(1 + ROUNDS)]
    finally:
        context.close()


def _until_last_line(tab: Tab, url: str) -> float:
    began = time.perf_counter()
    tab.goto(url, wait_until="commit")
    tab.get_by_text(LAST_LINE).first.wait_for()
    elapsed = time.perf_counter() - began
    settle(tab)
    return elapsed


def _clicks(opened: Browser, url: str) -> list[float]:
    """Milliseconds from a click on each page's link in the sidebar to its heading."""
    context = opened.new_context(viewport={"width": 1280, "height": 800})
    try:
        tab = context.new_page()
        tab.goto(url)
        settle(tab)
        took = []
        titles = [title for section in SECTIONS.values() for title in section.values()]
        for _ in range(ROUNDS):
            for title in [*titles[1:], titles[0]]:
                target = tab.get_by_test_id("stSidebarNavLink").filter(has_text=title).first
                target.scroll_into_view_if_needed()
                began = time.perf_counter()
                target.click()
                tab.get_by_role("heading", level=1, name=title, exact=True).first.wait_for()
                took.append(1e3 * (time.perf_counter() - began))
                settle(tab, quiet_ms=300)
        return took
    finally:
        context.close()


def _pages(url: str, server: int, visits: Mapping[Page, Mapping[str, str]]) -> dict[Page, tuple[float, Answer]]:
    """By page: processor time of the server for a rerun in milliseconds, and the last answer."""
    found = {}
    for page, query in visits.items():
        with Session(url) as session:
            session.open(page, query)
            costs = []
            for _ in range(ROUNDS):
                began = _cpu_s(server)
                answer = session.open(page, query)
                costs.append(1e3 * (_cpu_s(server) - began))
        found[page] = (statistics.median(costs), answer)
    return found


def _marks(opened: Browser, url: str, visits: Mapping[Page, Mapping[str, str]]) -> dict[Page, int | None]:
    """By page: marks that its charts are drawn with; None where one is drawn on a canvas, which has none to count."""
    from urllib.parse import urlencode

    context = opened.new_context(viewport={"width": 1280, "height": 800})
    found: dict[Page, int | None] = {}
    try:
        tab = context.new_page()
        for page, query in visits.items():
            place = "" if page == "overview" else page
            tab.goto(f"{url}/{place}?{urlencode(query)}")
            settle(tab)
            charts = tab.get_by_test_id("stVegaLiteChart")
            drawn = charts.locator("g.role-mark > path, g.role-mark > text, g.role-mark > line, g.role-mark > rect")
            found[page] = None if charts.locator("canvas").count() else drawn.count()
        return found
    finally:
        context.close()


def _readers(url: str, visits: Mapping[Page, Mapping[str, str]]) -> list[float]:
    """Milliseconds of each answer to twenty readers at once."""
    took: list[float] = []
    problems: list[BaseException] = []

    def read(number: int) -> None:
        rng = random.Random(number)
        way = list(visits.items())
        try:
            with Session(url) as session:
                for page, query in itertools.islice(
                    itertools.cycle(way), number % len(way), number % len(way) + len(way)
                ):
                    time.sleep(rng.uniform(*THINKING_S))
                    session.refresh()
                    took.append(1e3 * session.open(page, query).seconds)
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return took


def _memory(url: str, server: int, visits: Mapping[Page, Mapping[str, str]], views: int) -> list[Measure]:
    """Resident memory of the server once everything was loaded, and how much it grows from there."""
    settled = None
    way = itertools.cycle(visits.items())
    for done in range(0, views, 10):
        with Session(url) as session:
            for page, query in itertools.islice(way, 10):
                session.open(page, query)
        if settled is None and done + 10 >= views * SETTLED // VIEWS:
            settled = _resident_mib(server)
    assert settled is not None
    after = _resident_mib(server)
    return [
        Measure(f"memory of the server after {views} page views", after, "MiB", views),
        Measure("of it grown in the last four fifths of them", after - settled, "MiB", views, aim=GROWTH_MIB),
    ]


def _of_pages(pages: Mapping[Page, tuple[float, Answer]], marks: Mapping[Page, int | None]) -> list[Measure]:
    broken = [f"{page}: {', '.join(answer.problems)}" for page, (_, answer) in pages.items() if answer.problems]
    most: list[tuple[str, Mapping[Page, float | None], str, float]] = [
        ("most server time of a page", {page: cost for page, (cost, _) in pages.items()}, "ms", SERVER_MS),
        ("largest page", {page: answer.received / 1e6 for page, (_, answer) in pages.items()}, "MB", PAYLOAD_MB),
        ("most marks on a page", dict(marks), "marks", MARKS),
    ]
    told = [Measure("pages that show an exception", len(broken), "pages", len(pages), aim=0, note="; ".join(broken))]
    for name, values, unit, aim in most:
        known = {page: value for page, value in values.items() if value is not None}
        top = max(known, key=lambda page: known[page])
        told.append(
            Measure(name, None if len(known) < len(values) else known[top], unit, len(values), aim=aim, note=top)
        )
    return told + [
        Measure(f"page {page}: server time of a rerun", cost, "ms", ROUNDS, note=_beside(answer, marks[page]))
        for page, (cost, answer) in pages.items()
    ]


def _beside(answer: Answer, marks: int | None) -> str:
    return f"{answer.received / 1e3:.0f} kB, {'marks not known' if marks is None else f'{marks} marks'}"


def _spread(what: str, took: Sequence[float]) -> list[Measure]:
    ordered = sorted(took)
    p95 = statistics.quantiles(ordered, n=20)[-1]
    return [
        Measure(f"{what}: median", statistics.median(ordered), "ms", len(ordered), aim=MEDIAN_MS),
        Measure(f"{what}: p95", p95, "ms", len(ordered), aim=P95_MS),
    ]


def _cpu_s(process: int) -> float:
    """Processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def _resident_mib(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
