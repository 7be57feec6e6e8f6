"""The way from an alarm at three in the morning to a patched reward, and the gate's override by two people, walked in a
real browser on a real run: what each step is to show, and what stands in the store and the audit log afterwards.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from palomar.app.console import driving
from palomar.app.seeding import make_source
from palomar.data.store import Store

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.xdist_group("walk"),
    pytest.mark.skipif(shutil.which(driving.CHROMIUM) is None, reason="no chromium on this machine"),
]
CYCLES = 14
"""By then the policy asks in place of editing, and the check blocks."""
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that was checked in every cycle, with the incident that it opened by itself."""
    place = tmp_path_factory.mktemp("walk") / "home"
    make_source(place, 0, cycles=CYCLES)
    return place


@pytest.fixture(scope="module")
def consoles(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A console for each of two people on the same home: the user that starts one is the one who acts in it."""
    patch = pytest.MonkeyPatch()
    with ExitStack() as stack:
        urls = {}
        for name in ("ada", "bob"):
            patch.setenv("LOGNAME", name)
            urls[name] = stack.enter_context(driving.served(home, tmp_path_factory.mktemp("log") / f"{name}.log"))
        patch.undo()
        yield urls


class Walk:
    """A browser of one person, with what it asked for and what it complained about."""

    def __init__(self, opened: Browser, url: str) -> None:
        self.url = url
        self.context: BrowserContext = opened.new_context(
            viewport={"width": 1280, "height": 800}, timezone_id="America/New_York"
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._request)
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)

    def to(self, address: str) -> None:
        """Opens an address from outside, as a message's link does; the policy must be on it."""
        reply = self.page.goto(f"{self.url}/{address}")
        assert reply is not None
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-eval" not in policy
        self.settle()

    def settle(self) -> None:
        driving.settle(self.page, quiet_ms=400)
        assert self.page.get_by_test_id("stException").count() == 0

    def follow(self, name: str, heading: str) -> None:
        """Clicks on a link, and waits for the page that it names."""
        self.page.get_by_role("link", name=name).first.click()
        self.arrive(heading)

    def arrive(self, heading: str) -> None:
        self.page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()
        self.settle()

    def says(self, words: str | re.Pattern[str]) -> None:
        expect(self.page.get_by_test_id("stMain").get_by_text(words).first).to_be_visible(timeout=PATIENCE_MS)

    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(str(self.page.evaluate("location.href"))).query)

    def clean(self) -> None:
        """Nothing left the machine, and nothing was complained about but the 404s by which Streamlit finds its root."""
        host = urlsplit(self.url).netloc
        outside = [
            each for each in self.asked if urlsplit(each).netloc != host and not each.startswith(("data:", "blob:"))
        ]
        assert outside == []
        assert len(self.asked) > 20
        assert [each for each in self.errors if "404" not in each] == []


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with driving.browser() as opened:
        yield opened


def test_from_the_alarm_to_the_patch_in_the_audit_log(home: Path, consoles: dict[str, str], chromium: Browser) -> None:
    with Store.open(None, home) as store:
        run = store.runs.read()[0].run_id
        incident = next(each for each in store.incidents.read(run) if each.state == "open")
        newest = store.cycles.read(run, newest=1)[0].cycle
    walk = Walk(chromium, consoles["ada"])
    look_at_the_alarm(walk, incident.number)
    see_where_and_through_what(walk, incident.number)
    label_two_examples(walk, incident.number)
    patch_the_reward(walk, incident.number, from_cycle=newest + 1)
    with Store.open(None, home) as store:
        changed = store.rewards.changes(run)
        assert [(each.actor, each.action, each.from_cycle) for each in changed] == [("ada", "patch", newest + 1)]
        assert changed[0].version != changed[0].instead_of
        assert changed[0].proposal_id is not None
        now = store.incidents.get(incident.number)
        assert now is not None
        assert now.state in ("acknowledged", "mitigated")
        labels = store.labels.read(findings=[each.finding_id for each in store.incidents.pinned(incident.number)])
        assert [each.actor for each in labels] == ["ada", "ada"]
        assert store.audit_log.verify()[1] is None
    walk.to(f"audit?subject=reward:{changed[0].version}")
    walk.page.get_by_role("button", name="Verify now").click()
    walk.says(re.compile(r"\d+ entries, each follows the one before"))
    walk.settle()
    expect(walk.page.get_by_test_id("glide-cell-1-0").first).to_be_attached()
    told = " ".join(walk.page.locator("[data-testid^=glide-cell-]").all_text_contents())
    assert "reward.patch" in told
    assert "ada" in told
    walk.clean()
    walk.context.close()


def look_at_the_alarm(walk: Walk, number: int) -> None:
    """A sentence with numbers, whether the data can be trusted, what changed; acknowledged with one key."""
    walk.to(f"alarm?id={number}")
    walk.says(re.compile(r"\d.*→.*\d"))
    walk.says("DATA: NO FAULT")
    walk.says("NOBODY HAS IT")
    walk.page.keyboard.press("a")
    walk.says(f"Alarm {number} is acknowledged")
    walk.settle()
    walk.says(re.compile("Changes"))
    assert walk.page.get_by_test_id("stVegaLiteChart").locator("svg path").count() > 0


def see_where_and_through_what(walk: Walk, number: int) -> None:
    """The slices, and the terms that pay for it; and back."""
    walk.follow("All slices and terms", "Slices and terms")
    assert walk.query()["alarm"] == [str(number)]
    walk.says(re.compile(r"\d+ % where predicted failure"))
    walk.says("What pushes it")
    walk.says(re.compile("The terms add up to the reward"))
    walk.follow("Back to the alarm", "Alarm")


def label_two_examples(walk: Walk, number: int) -> None:
    """Each with one key; another key goes on to the next."""
    page = walk.page
    page.keyboard.press("e")
    walk.arrive("Examples")
    assert walk.query()["alarm"] == [str(number)]
    page.keyboard.press("1")
    walk.says("Example 1 is labelled")
    walk.settle()
    if walk.query().get("i", ["1"]) == ["1"]:
        page.keyboard.press("j")
        page.wait_for_timeout(500)
        walk.settle()
    assert walk.query()["i"] == ["2"]
    page.keyboard.press("2")
    walk.says("Example 2 is labelled")
    walk.settle()
    walk.follow("Back to the alarm", "Alarm")


def patch_the_reward(walk: Walk, number: int, *, from_cycle: int) -> None:
    """The lab about this alarm: a search, a replay, and the best proposal put in force, with a reason."""
    page = walk.page
    page.keyboard.press("p")
    walk.arrive("Reward lab")
    assert walk.query()["incident"] == [str(number)]
    replay = page.get_by_role("button", name=re.compile("^Replay it on"))
    if replay.count() == 0:
        page.locator(".st-key-act-search").get_by_role("button").click()
        replay.wait_for()
        walk.settle()
    replay.click()
    page.get_by_text(re.compile("^Replayed at")).first.wait_for()
    walk.settle()
    applying = page.locator(".st-key-act-apply")
    applying.get_by_role("textbox").fill("asking is paid like editing; the patch turns it round")
    applying.get_by_role("textbox").press("Enter")
    walk.settle()
    applying.get_by_role("button").click()
    walk.says(f"is in force from cycle {from_cycle} on, in place of")
    walk.settle()


def test_two_people_override_the_gate(home: Path, consoles: dict[str, str], chromium: Browser) -> None:
    with Store.open(None, home) as store:
        run = store.runs.read()[0].run_id
        decision = store.decisions.latest(run, count=1)[0]
    other = "BLOCK" if decision.verdict != "block" else "PROMOTE"
    ada, bob = Walk(chromium, consoles["ada"]), Walk(chromium, consoles["bob"])
    ada.to(f"gate?ckpt={decision.candidate}")
    ada.page.get_by_test_id("stRadio").get_by_text(other, exact=True).click()
    ada.settle()
    asking = ada.page.locator(".st-key-act-override")
    asking.get_by_role("textbox").fill("the customer's fix must not wait")
    asking.get_by_role("textbox").press("Enter")
    ada.settle()
    asking.get_by_role("button").click()
    ada.says("Nothing changes until another person approves")
    # Whoever asked cannot approve it too: the page says so, and the store refuses.
    ada.says("another person must approve it")
    mine = ada.page.locator("[class*='st-key-act-approve']")
    mine.get_by_role("textbox").fill("I agree with myself")
    mine.get_by_role("textbox").press("Enter")
    ada.settle()
    mine.get_by_role("button").click()
    ada.says("Not done.")

    bob.to(f"gate?ckpt={decision.candidate}")
    bob.says("the customer's fix must not wait")
    approving = bob.page.locator("[class*='st-key-act-approve']")
    approving.get_by_role("textbox").fill("seen the evidence, agreed")
    approving.get_by_role("textbox").press("Enter")
    bob.settle()
    approving.get_by_role("button").click()
    bob.says("the override stands")
    bob.settle()
    with Store.open(None, home) as store:
        now = store.decisions.get(run, decision.candidate)
        assert now is not None
        assert (now.kind, now.verdict) == ("override", other.lower())
        asked = store.overrides.read(run)[-1]
        assert (asked.requested_by, asked.approved_by) == ("ada", "bob")
        assert store.audit_log.verify()[1] is None
    for walk in (ada, bob):
        walk.clean()
        walk.context.close()
