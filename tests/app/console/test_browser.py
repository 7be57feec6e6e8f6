"""The console in a real browser: a policy that holds, nothing asked of other machines, and pages that can be walked."""

from __future__ import annotations

import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from palomar.app.console import driving

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(driving.CHROMIUM) is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with driving.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def console(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with driving.served(seeded, tmp_path_factory.mktemp("log") / "console.log") as url:
        yield url


@pytest.fixture(scope="module")
def log_console(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with driving.served(logs, tmp_path_factory.mktemp("log") / "console.log") as url:
        yield url


def settle(page: Page) -> None:
    driving.settle(page, quiet_ms=250)


class Visit:
    """A page in a context of its own, with what it asked for and what it complained about."""

    def __init__(self, opened: Browser, scheme: Literal["light", "dark"] = "light") -> None:
        self.context: BrowserContext = opened.new_context(
            viewport={"width": 1280, "height": 800}, timezone_id="America/New_York", color_scheme=scheme
        )
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.sockets: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._request)
        self.page.on("websocket", lambda socket: self.sockets.append(socket.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)

    def outside(self, url: str) -> list[str]:
        """Requests that went anywhere else than to the console."""
        host = urllib.parse.urlsplit(url).netloc
        asked = [*self.requests, *self.sockets]
        return [
            item
            for item in asked
            if urllib.parse.urlsplit(item).netloc != host and not item.startswith(("data:", "blob:"))
        ]

    def complaints(self) -> list[str]:
        """Errors on the browser's console, but for the 404s by which Streamlit finds the root of a deep link."""
        return [text for text in self.errors if "404" not in text]


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    made = Visit(chromium)
    yield made
    made.context.close()


def test_the_overview_is_drawn_under_the_policy_and_asks_nothing_of_others(console: str, visit: Visit) -> None:
    reply = visit.page.goto(console)
    assert reply is not None
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'self' 'sha256-" in policy
    settle(visit.page)
    expect(visit.page.get_by_text("known hacks show")).to_have_count(1)
    # Charts are drawn: Vega works without eval, which the policy forbids.
    expect(visit.page.get_by_test_id("stVegaLiteChart")).to_have_count(1)
    assert (
        visit.page.locator("[data-testid=stVegaLiteChart] svg path, [data-testid=stVegaLiteChart] canvas").count() > 0
    )
    assert visit.sockets
    assert len(visit.requests) > 20
    assert visit.outside(console) == []
    assert visit.complaints() == []


def test_from_a_sentence_to_its_chart_to_a_trajectory_and_back(console: str, visit: Visit) -> None:
    page = visit.page
    page.goto(console)
    settle(page)
    page.get_by_role("link", name="See the chart").first.click()
    page.get_by_role("heading", name="Invalid tool calls").wait_for()
    settle(page)
    assert "stat=invalid_call_rate" in page.url
    assert "slice=predicted_failure%3Dhigh" in page.url
    page.get_by_role("link", name="Interactions of cycle 7").click()
    page.get_by_role("heading", name="Trajectory").wait_for()
    settle(page)
    assert "cycle=7" in page.url
    grid = page.get_by_test_id("stDataFrame").first
    box = grid.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 20, box["y"] + 35 + 18)  # the first row's box
    page.get_by_text("Back to the list of cycle 7").wait_for()
    settle(page)
    assert "id=seed-7-000" in page.evaluate("location.href")
    expect(page.get_by_text("Totals are off by one in core.py")).to_have_count(1)
    page.get_by_role("link", name="Back to the list of cycle 7").click()
    page.get_by_text("120 interactions in cycle 7").wait_for()
    assert visit.complaints() == []
    assert visit.outside(console) == []


def test_dark_mode_is_followed_by_page_and_charts(console: str, chromium: Browser) -> None:
    made = Visit(chromium, "dark")
    try:
        made.page.goto(f"{console}/behaviour")
        settle(made.page)
        ground = made.page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
        assert max(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(", ")) < 60
        labels = made.page.locator("[data-testid=stVegaLiteChart] svg .role-axis-label text")
        assert labels.count() > 0
        assert labels.first.get_attribute("fill") == "#FAFAFA"
    finally:
        made.context.close()


def test_hostile_text_neither_runs_nor_fetches(log_console: str, visit: Visit, hostile_id: str) -> None:
    page = visit.page
    page.goto(f"{log_console}/trajectory?id={urllib.parse.quote(hostile_id)}")
    settle(page)
    assert page.get_by_text("<script>document.title='owned'</script>").count() > 5
    assert page.locator("iframe").count() == 0
    assert page.locator("[data-testid=stMain] img").count() == 0
    links = page.locator("[data-testid=stMain] a[href*=beacon], [data-testid=stMain] a[href^=javascript]")
    assert [link.evaluate("node => node.parentElement.outerHTML") for link in links.all()] == []
    assert "Palomar" in page.title() or "Trajectory" in page.title()
    page.goto(f"{log_console}/behaviour?slice=%21%5Bx%5D%28http%3A%2F%2Fbeacon.invalid%2Fx.png%29")
    settle(page)
    expect(page.get_by_text("There is no slice")).to_have_count(1)
    assert visit.outside(log_console) == []
    # Stopped by what the pages say, not only by the policy: it had nothing to refuse.
    assert not any("Content Security Policy" in text for text in visit.errors)


def test_requests_that_name_another_host_are_refused(console: str) -> None:
    for path in ("/", "/_stcore/health"):
        request = urllib.request.Request(console + path, headers={"Host": "rebound.invalid"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 400
        assert "default-src 'self'" in refused.value.headers["content-security-policy"]


def test_a_click_is_answered_within_a_second(console: str, visit: Visit) -> None:
    """The measured median is in docs/console.md; here only that nothing has become slow by a factor."""
    page = visit.page
    page.goto(f"{console}/behaviour")
    settle(page)
    elapsed = []
    for name in ("users", "reward", "code"):
        began = time.perf_counter()
        page.get_by_label("Statistics").click()
        page.get_by_role("option", name=name, exact=True).click()
        page.locator(f".st-key-group-{name}").wait_for()
        elapsed.append(time.perf_counter() - began)
        settle(page)  # while a page is drawn anew, its widgets are there twice
    assert sorted(elapsed)[0] < 5.0, elapsed
