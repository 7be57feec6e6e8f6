"""Signing in: who is let in, by whom, and what they may do; with real servers, a real proxy and a real provider."""

from __future__ import annotations

import base64
import getpass
import http.client
import os
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from palomar.app.cli import app as command
from palomar.app.console import frame, options, signing
from palomar.app.console.driving import PATIENCE_MS, browser, free_port, served, settle
from palomar.app.console.server import Guard
from palomar.app.console.signing import Roles, SignIn, made, read_roles
from palomar.data.errors import ConfigError
from palomar.data.store import Store

ROLES = Roles(default=(), people={"ada": ("decide",), "bo": ("read",)}, groups={"ops": ("admin",)})
BY_PROXY = SignIn(mode="proxy", user_header="X-User", groups_header="X-Groups", roles=ROLES)
BY_PROVIDER = SignIn(mode="oidc", groups_claim="groups", roles=ROLES.model_copy(update={"people": {
    "ada@example.org": ("decide",), "bo@example.org": ("read",)}}))  # fmt: skip


# -- what is written down --------------------------------------------------------------------------------------------


def test_roles_add_up_from_everything_that_names_a_person_and_nobody_is_named_by_accident() -> None:
    roles = Roles(default=("read",), people={"ada": ("decide",)}, groups={"ops": ("admin",)})
    assert roles.of("ada", ()) == {"read", "decide"}
    assert roles.of("ada", ("ops", "others")) == {"read", "decide", "admin"}
    assert roles.of("Ada", ()) == {"read"}  # another name
    assert ROLES.of("eve", ("OPS",)) == frozenset()
    assert SignIn(mode="oidc").roles.of("anybody", ()) == {"read"}


def test_a_file_of_roles_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text("default: [read]\npeople:\n  ada: [decide]\n")
    assert read_roles(path).of("ada", ()) == {"read", "decide"}
    for text, problem in (("people:\n  ada: [root]\n", ":2"), ("peple: {}\n", "peple"), ("people: {}\n", "nobody")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_roles(path)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mode": "none"}, "mode"),
        ({"mode": "proxy"}, "--user-header"),
        ({"mode": "local", "user_header": "X-User"}, "--user-header"),
        ({"mode": "proxy", "user_header": "X User"}, "user_header"),
        ({"mode": "proxy", "user_header": "X-User", "peers": ("the proxy",)}, "peers"),
        ({"mode": "oidc", "groups_header": "X-Groups"}, "--groups-header"),
        ({"mode": "local", "groups_claim": "groups"}, "--groups-claim"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        made(**given)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--all-addresses"], "local has no sign-in"),
        (["--sign-in", "oidc"], "--secrets"),
        (["--sign-in", "oidc", "--secrets", "SECRETS"], "[auth] lacks cookie_secret"),
        (["--sign-in", "proxy"], "--user-header"),
        (["--sign-in", "proxy", "--user-header", "X-User", "--all-addresses"], "--proxy-address"),
        (["--roles", "ROLES"], "no --roles"),
    ],
)
def test_the_command_refuses_before_anything_listens(tmp_path: Path, words: list[str], problem: str) -> None:
    (tmp_path / "secrets.toml").write_text('[auth]\nredirect_uri = "x"\nclient_id = "top-secret"\n')
    (tmp_path / "roles.yaml").write_text("default: [read]\n")
    given = [
        {"SECRETS": str(tmp_path / "secrets.toml"), "ROLES": str(tmp_path / "roles.yaml")}.get(w, w) for w in words
    ]
    port = free_port()
    done = CliRunner().invoke(command, ["console", "--port", str(port), "--home", str(tmp_path), *given])
    assert isinstance(done.exception, ConfigError)
    assert problem in str(done.exception)
    assert "top-secret" not in str(done.exception)


def test_only_the_proxys_addresses_are_trusted() -> None:
    assert BY_PROXY.trusts("127.0.0.1")
    assert BY_PROXY.trusts("::1")
    assert BY_PROXY.trusts("::ffff:127.0.0.1")  # as a socket for both families says it
    for peer in ("10.0.0.5", "::ffff:10.0.0.5", "", None, "localhost", "127.0.0.1, 10.0.0.5"):
        assert not BY_PROXY.trusts(peer)
    wider = made(mode="proxy", user_header="X-User", peers=("10.0.0.0/24",))
    assert wider.trusts("10.0.0.5")
    assert not wider.trusts("127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "named", "path", "status"),
    [
        ("127.0.0.1", [b"ada"], "/", None),
        ("127.0.0.1", [], "/", 401),
        ("127.0.0.1", [b" "], "/", 401),
        ("127.0.0.1", [b"ada", b"eve"], "/", 401),  # a proxy that adds its header, and a client that sent one
        ("10.0.0.5", [b"ada"], "/", 403),
        ("127.0.0.1", [], "/_stcore/health", None),
        ("127.0.0.1", [], "/_stcore/stream", 401),
        ("127.0.0.1", [], "/_stcore/metrics", 401),
    ],
)
def test_the_guard_lets_nothing_past_without_one_name_from_the_proxy(
    peer: str, named: list[bytes], path: str, status: int | None
) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    scope = {"type": "http", "client": (peer, 1), "path": path, "headers": [(b"x-user", each) for each in named]}
    problem = Guard(never, BY_PROXY).problem(scope)
    assert (None if problem is None else problem[0]) == status


# -- pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch, seeded: Path) -> Callable[..., AppTest]:
    """`as_user({claims})` opens the console as the provider's user."""
    monkeypatch.setenv(signing.VARIABLE, BY_PROVIDER.model_dump_json())
    monkeypatch.setenv(options.HOME_VARIABLE, str(seeded))

    def open_(user: dict[str, Any], page: str | None = None) -> AppTest:
        app = AppTest.from_file(str(Path(frame.__file__).with_name("ui.py")), default_timeout=180)
        app.user = user
        app.run()
        if page is not None:
            app.switch_page(f"views/{page}.py").run()
        return app

    return open_


def said(app: AppTest) -> str:
    return "\n".join(str(each.value) for each in (*app.main.markdown, *app.sidebar.caption, *app.main.caption))


def test_who_has_not_signed_in_sees_a_button_and_nothing_else(as_user: Callable[..., AppTest]) -> None:
    app = as_user({"is_logged_in": False})
    assert [each.label for each in app.button] == ["Sign in"]
    assert [each.value for each in app.title] == ["Palomar"]
    assert not app.dataframe
    assert "seeded" not in said(app)
    assert not app.get("vega_lite_chart")


@pytest.mark.parametrize(
    ("claims", "seen"),
    [
        ({"email": "ada@example.org", "email_verified": True}, "decide"),
        ({"email": "bo@example.org"}, "read"),
        ({"email": "carl@example.org", "groups": ["ops"]}, "admin"),
        ({"email": "carl@example.org", "groups": "ops"}, "admin"),
        ({"email": "ada@example.org", "email_verified": False}, None),
        ({"email": "carl@example.org", "groups": {"ops": 1}}, None),
        ({"email": "carl@example.org"}, None),
        ({"sub": "ada@example.org"}, None),
        ({"email": ["ada@example.org"]}, None),
    ],
)
def test_claims_become_roles_and_whoever_has_none_sees_no_page(
    as_user: Callable[..., AppTest], claims: dict[str, Any], seen: str | None
) -> None:
    app = as_user({"is_logged_in": True, **claims})
    if seen is None:
        assert [each.value for each in app.title] == ["Palomar"]
        assert "seeded" not in said(app)
    else:
        assert f"roles: {seen}" in said(app)
        assert "` seeded `" in said(app)


def test_who_may_only_read_gets_no_form_and_who_decides_gets_one(as_user: Callable[..., AppTest]) -> None:
    reads = as_user({"is_logged_in": True, "email": "bo@example.org"}, "lab")
    assert not [each.label for each in reads.button if each.key and each.key.startswith("do-")]
    assert "needs the role decide, which ` bo@example.org ` has not" in said(reads)
    decides = as_user({"is_logged_in": True, "email": "ada@example.org"}, "lab")
    assert [each.key for each in decides.button if each.key and each.key.startswith("do-")]


# -- a real proxy ----------------------------------------------------------------------------------------------------


class _Forward(socketserver.BaseRequestHandler):
    """Puts headers into the head of each request and hands all else on, web sockets too: one request a connection."""

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = self.request.recv(65536)
            if not chunk:
                return
            head += chunk
        lines, _, rest = head.partition(b"\r\n\r\n")
        first, *headers = lines.split(b"\r\n")
        ours = {name.lower().encode() for name in self.server.headers}  # type: ignore[attr-defined]
        kept = [line for line in headers if line.split(b":")[0].strip().lower() not in ours]
        if not any(line.lower().startswith(b"upgrade:") for line in kept):
            kept = [line for line in kept if not line.lower().startswith(b"connection:")] + [b"Connection: close"]
        kept += [f"{name}: {value}".encode() for name, value in self.server.headers.items()]  # type: ignore[attr-defined]
        with socket.create_connection(("127.0.0.1", self.server.to)) as onward:  # type: ignore[attr-defined]
            onward.sendall(b"\r\n".join([first, *kept]) + b"\r\n\r\n" + rest)
            ends = {self.request: onward, onward: self.request}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    ends[ready].sendall(data)


@contextmanager
def proxy(to: int, headers: dict[str, str]) -> Iterator[int]:
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), _Forward) as server:
        server.to, server.headers = to, headers  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()


def status(port: int, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": f"localhost:{port}", **headers})
    return connection.getresponse().status


def upgrade(port: int, **headers: str) -> int:
    """Status of the answer to a web socket's handshake."""
    key = base64.b64encode(os.urandom(16)).decode()
    return status(
        port,
        "/_stcore/stream",
        **{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},
        **{"Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": "streamlit"},
        **headers,
    )


@pytest.mark.slow
@pytest.mark.browser
def test_behind_a_proxy_its_header_says_who_acts_and_nothing_is_reached_without_it(
    copied: Path, tmp_path: Path
) -> None:
    port = free_port()
    with served(copied, tmp_path / "console.log", port=port, how=BY_PROXY):
        assert status(port, "/") == 401
        assert status(port, "/_stcore/health") == 200
        assert upgrade(port) == 403  # how a server says no to a web socket
        named = {"X-User": "ada"}
        assert (status(port, "/", **named), upgrade(port, **named)) == (200, 101)
        # A header about where it came from changes nothing: who connects is who connects.
        assert status(port, "/", **named, **{"X-Forwarded-For": "10.9.9.9"}) == 200
        with proxy(port, {"X-User": "ada"}) as ada, proxy(port, {"X-User": "bo"}) as bo, browser() as chromium:
            page = chromium.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"http://localhost:{bo}/lab")
            settle(page)
            page.get_by_text("You are bo, signed in at the proxy; roles: read.").wait_for()
            assert page.get_by_text("needs the role decide").count() > 0
            assert page.get_by_role("button", name="Search for patches").count() == 0
            page.goto(f"http://localhost:{ada}/lab?patch=own")
            settle(page)
            page.get_by_text("You are ada, signed in at the proxy; roles: decide.").wait_for()
            weight = page.locator("[class*='st-key-weight-'][class*='function_size'] input")
            weight.fill("0.35")
            weight.press("Tab")
            page.get_by_text("term function_size: weight 0.8 -> 0.35").wait_for()
            page.get_by_label("Reason", exact=True).fill("less is paid for cutting")
            page.get_by_label("Reason", exact=True).press("Tab")
            page.get_by_role("button", name="Put it in force").click()
            page.get_by_text("The audit log has it").wait_for()
    with Store.open(None, copied) as store:
        (entry,) = store.audit_log.read(action="reward.")
        assert (entry.actor, entry.reason) == ("ada", "less is paid for cutting")


@pytest.mark.slow
def test_from_another_address_than_the_proxys_nothing_is_reached(copied: Path, tmp_path: Path) -> None:
    port = free_port()
    elsewhere = BY_PROXY.model_copy(update={"peers": ("10.1.2.3",)})
    with served(copied, tmp_path / "console.log", port=port, how=elsewhere):
        for forged in ({}, {"X-Forwarded-For": "10.1.2.3"}, {"Forwarded": "for=10.1.2.3"}):
            assert status(port, "/", **{"X-User": "ada"}, **forged) == 403
            assert upgrade(port, **{"X-User": "ada"}, **forged) == 403


@pytest.mark.slow
def test_a_local_console_takes_no_name_from_a_header(copied: Path, tmp_path: Path) -> None:
    """The header counts in the proxy's mode only; `test_browser` shows that a page then says the user's own name."""
    port = free_port()
    with served(copied, tmp_path / "console.log", port=port):
        assert status(port, "/", **{"X-User": "eve"}) == 200
        with proxy(port, {"X-User": "eve", "X-Forwarded-User": "eve"}) as by, browser() as chromium:
            page = chromium.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"http://localhost:{by}/")
            settle(page)
            page.get_by_text(f"Local single-user mode: no sign-in; you act as {getpass.getuser()}").wait_for()
            assert page.get_by_text("You are").count() == 0


# -- a real provider -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
def test_a_person_signs_in_at_a_provider_and_out_again(copied: Path, tmp_path: Path) -> None:
    provider = pytest.importorskip("oidc_provider_mock", reason="oidc-provider-mock is not installed")
    port = free_port()
    secrets = tmp_path / "secrets.toml"
    people = [
        provider.User(sub="ada", claims={"email": "ada@example.org", "email_verified": True}),
        provider.User(sub="eve", claims={"email": "eve@example.org", "email_verified": True}),
    ]
    with provider.run_server_in_thread(user_claims=people) as issuer:
        secrets.write_text(
            f'[auth]\nredirect_uri = "http://localhost:{port}/oauth2callback"\n'
            'cookie_secret = "0123456789abcdef0123456789abcdef"\nclient_id = "palomar"\nclient_secret = "secret"\n'
            f'server_metadata_url = "http://localhost:{issuer.server_port}/.well-known/openid-configuration"\n'
        )
        with (
            served(copied, tmp_path / "console.log", port=port, how=BY_PROVIDER, secrets=secrets) as url,
            browser() as chromium,
        ):
            page = chromium.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{url}/lab")
            settle(page)
            assert page.get_by_text("Reward lab").count() == 0
            assert page.get_by_role("button").all_inner_texts().count("Sign in") == 1
            assert page.get_by_test_id("stSidebarNavLink").count() == 0
            page.get_by_role("button", name="Sign in").click()
            page.locator("input[name=sub]").fill("ada")
            page.get_by_role("button", name="Authorize").click()
            page.get_by_text("You are ada@example.org, signed in; roles: decide.").wait_for()
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/end_session*")  # the provider ends its own session too, and asks about that
            page.goto(url)
            page.get_by_role("button", name="Sign in").wait_for()
            assert page.get_by_test_id("stSidebarNavLink").count() == 0
            # Somebody without a role has signed in, and sees nothing.
            page.get_by_role("button", name="Sign in").click()
            page.locator("input[name=sub]").fill("eve")
            page.get_by_role("button", name="Authorize").click()
            page.get_by_text("no role lets you look").wait_for()
            assert page.get_by_test_id("stSidebarNavLink").count() == 0
