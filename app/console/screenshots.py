"""Pictures of each page for the docs: ``python -m palomar.app.console.screenshots --home HOME --out docs/images``.

Starts the console on the home, visits the pages with a headless Chromium (Debian's, by playwright; both are for
development only), and writes one small PNG per page and theme.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from palomar.app.console.driving import browser, served, settle
from palomar.app.console.links import address
from palomar.app.service import Observatory

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTH, HEIGHT = 1280, 800
COLOURS = 64
"""A page has few colours; a palette makes its picture several times smaller."""


def pages(home: Path) -> Mapping[str, str]:
    """What to show, as paths by name of the picture; the trajectory is one with a call, an edit and a reaction."""
    observatory = Observatory(home)
    cycle = observatory.lake.cycles("observations")[-1]
    rows = observatory.interactions(cycle, limit=500, where="edited").rows.to_pylist()
    told = [row for row in rows if row["follow_up"] and row["tool_calls"]] or rows
    return {
        "overview": "",
        "behaviour": address("behaviour", slice="all"),
        "trajectory": address("trajectory", id=told[0]["interaction_id"]),
    }


def picture(opened: Browser, url: str, scheme: Literal["light", "dark"], path: Path, height: int = HEIGHT) -> None:
    """Writes one page as a PNG with a palette."""
    from PIL import Image

    context = opened.new_context(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(url)
        settle(page)
        page.screenshot(path=path)
    finally:
        context.close()
    with Image.open(path) as drawn:
        drawn.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Pictures of the console's pages.")
    parser.add_argument("--home", type=Path, required=True, help="home of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    with served(chosen.home) as url, browser() as opened:
        for name, path in pages(chosen.home).items():
            for scheme in schemes:
                target = chosen.out / f"{name}-{scheme}.png"
                picture(opened, f"{url}/{path}", scheme, target)
                sys.stdout.write(f"{target} {target.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    main()
