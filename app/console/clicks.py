"""How fast the console answers in a real browser: ``python -m palomar.app.console.clicks --home HOME``.

Prints one line per measure: the cold first page, and from a click on an option to the text that it asks for, on the
behaviour page, which draws the most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from palomar.app.console.driving import browser, served, settle
from palomar.app.console.views.behaviour import GROUPS

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROUNDS = 4


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="How fast the console answers in a browser.")
    parser.add_argument("--home", type=Path, required=True, help="home of a finished run")
    chosen = parser.parse_args()
    with served(chosen.home) as url, browser() as opened:
        context = opened.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        _say("cold first page, to its first figures", [_loaded(page, url)])
        _say("warm page, to its first figures", [_loaded(page, url) for _ in range(ROUNDS)])
        page.goto(f"{url}/behaviour")
        settle(page)
        _say("click to text, another group of statistics", [_clicked(page, name) for name in list(GROUPS) * ROUNDS])
        context.close()


def _loaded(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.get_by_text("A first look at the watched series").wait_for()
    return time.perf_counter() - began


def _clicked(page: Page, group: str) -> float:
    page.get_by_label("Statistics").click()
    option = page.get_by_role("option", name=group, exact=True)
    option.wait_for()
    began = time.perf_counter()
    option.click()
    # The box of that group has its own key, and is drawn by the run that the click asked for.
    page.locator(f".st-key-group-{group.replace(' ', '-')}").wait_for()
    elapsed = time.perf_counter() - began
    settle(page, quiet_ms=300)
    return elapsed


def _say(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
    sys.stdout.write(
        f"{what}: median {1e3 * statistics.median(ordered):.0f} ms, p95 {1e3 * p95:.0f} ms, n {len(ordered)}\n"
    )


if __name__ == "__main__":
    main()
