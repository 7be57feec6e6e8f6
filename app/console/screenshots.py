"""Pictures of each page for the docs: ``python -m palomar.app.console.screenshots --home HOME --out docs/images``.

Starts the console on the home, visits the pages with a headless Chromium (Debian's, by playwright; both are for
development only), and writes one small PNG per page and theme: ``<page>-light.png``, ``<page>-dark.png``. A picture
that is larger than `LARGEST` gets fewer colours. Exits with 1 where a page shows an exception, or a picture stays too
large.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from palomar.app.console.driving import browser, served, settle
from palomar.app.console.tour import tour

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Browser

WIDTH, HEIGHT = 1280, 800
COLOURS = (64, 32, 16)
"""A page has few colours; a palette makes its picture several times smaller. As many of them as `LARGEST` allows."""
LARGEST = 60_000
"""Bytes."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def picture(opened: Browser, url: str, scheme: Literal["light", "dark"], path: Path, height: int = HEIGHT) -> bool:
    """Writes one page as a PNG with a palette; whether the page showed no exception."""
    from PIL import Image

    context = opened.new_context(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(url)
        settle(page)
        drawn = page.screenshot()
        fine = page.get_by_test_id("stException").count() == 0
    finally:
        context.close()
    with Image.open(io.BytesIO(drawn)) as image:
        path.write_bytes(small(image))
    return fine


def small(image: Image, largest: int = LARGEST, colours: Sequence[int] = COLOURS) -> bytes:
    """The picture as a PNG with as many colours as keep it below so many bytes; the fewest where none do."""
    from PIL.Image import Dither, Quantize

    content = b""
    for count in colours:
        written = io.BytesIO()
        image.convert("RGB").quantize(
            count, method=Quantize.MEDIANCUT, dither=Dither.NONE
        ).save(written, "PNG", optimize=True)  # fmt: skip
        content = written.getvalue()
        if len(content) <= largest:
            break
    return content


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Pictures of the console's pages.")
    parser.add_argument("--home", type=Path, required=True, help="home of a finished run, or a seeded one")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    parser.add_argument("--page", action="append", help="only this page; may be given several times")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wrong = []
    with served(chosen.home) as url, browser() as opened:
        for page, query in tour(chosen.home).items():
            if chosen.page and page not in chosen.page:
                continue
            place = "" if page == "overview" else page
            for scheme in SCHEMES:
                target = chosen.out / f"{page}-{scheme}.png"
                fine = picture(opened, f"{url}/{place}?{urlencode(query)}", scheme, target)
                size = target.stat().st_size
                sys.stdout.write(f"{target} {size / 1000:.0f} kB{'' if fine else ', SHOWS AN EXCEPTION'}\n")
                sys.stdout.flush()
                if not fine or size > LARGEST:
                    wrong.append(target)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
