"""`palomar console`: the Streamlit console on this machine."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, StoreUrl, notes
from palomar.app.console import options, signing
from palomar.app.console.options import HOST, PORT
from palomar.app.console.signing import SignIn
from palomar.app.settings import DEFAULT_HOME
from palomar.data.errors import ConfigError

START_S = 120
"""How long the console may take to answer; a crowded machine needs several times the usual two seconds."""
LEAST_SECRET = 32
LOG_TAIL = 2_000
"""Characters of its log that are shown when it ends by itself."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console")(console)


def console(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = PORT,
    public_name: Annotated[
        str | None, typer.Option(help="Name of the reverse proxy that people reach it by; see docs/console.md.")
    ] = None,
    sign_in: Annotated[
        str, typer.Option(help="How people sign in: local (one person, no sign-in), oidc, or proxy; docs/console.md.")
    ] = "local",
    roles: Annotated[
        Path | None, typer.Option(help="YAML file that says who may do what; without: who signs in may only look.")
    ] = None,
    secrets: Annotated[Path | None, typer.Option(help="With oidc: TOML file with Streamlit's [auth] section.")] = None,
    name_claim: Annotated[str | None, typer.Option(help="With oidc: claim that names a person; usually email.")] = None,
    groups_claim: Annotated[str | None, typer.Option(help="With oidc: claim that holds a person's groups.")] = None,
    user_header: Annotated[str | None, typer.Option(help="With proxy: header that names who it is.")] = None,
    groups_header: Annotated[str | None, typer.Option(help="With proxy: header with their groups, by commas.")] = None,
    proxy_address: Annotated[
        list[str] | None, typer.Option(help="With proxy: address or network of the proxy; without: this machine.")
    ] = None,
    all_addresses: Annotated[
        bool, typer.Option("--all-addresses", help="Listen on all addresses, not on this machine's own only.")
    ] = False,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Open the console on http://localhost:8501 until interrupted."""
    how = signing.made(
        mode=sign_in,
        roles=None if roles is None else signing.read_roles(roles),
        name_claim=name_claim,
        groups_claim=groups_claim,
        user_header=user_header,
        groups_header=groups_header,
        peers=None if proxy_address is None else tuple(proxy_address),
    )
    _require_sense(how, roles, secrets, proxy_address, all_addresses)
    address = options.ALL_ADDRESSES if all_addresses else HOST
    server = start_console(
        home or DEFAULT_HOME, store_url, port, public_name=public_name, how=how, address=address, secrets=secrets
    )
    try:
        await_console(server, port)
        for_whom = "for you alone, on this machine" if how.mode == "local" else f"sign-in: {how.mode}"
        notes.print(f"console: http://localhost:{port} ({for_whom}); Ctrl-C ends it")
        keep_open(server)
    except KeyboardInterrupt:
        pass  # how it ends well, also before `keep_open` waits for it
    finally:
        stop_console(server)


def _require_sense(
    how: SignIn, roles: Path | None, secrets: Path | None, proxy_address: list[str] | None, all_addresses: bool
) -> None:
    """Raises ConfigError for options that do not go together, before anything listens."""
    problem = None
    if how.mode == "local" and all_addresses:
        problem = "local has no sign-in, so it listens on this machine only; --all-addresses needs oidc or proxy"
    elif how.mode == "local" and (roles is not None or proxy_address):
        problem = "local knows one person, who may do everything: no --roles, no --proxy-address"
    elif how.mode == "proxy" and all_addresses and not proxy_address:
        problem = "on all addresses, say where the proxy speaks from: --proxy-address"
    elif how.mode == "oidc" and secrets is None:
        problem = "oidc needs --secrets, the TOML file with the provider"
    elif secrets is not None and how.mode != "oidc":
        problem = "--secrets belongs to oidc"
    elif secrets is not None:
        problem = _of_secrets(secrets)
    if problem is not None:
        raise ConfigError("--sign-in", None, None, problem)


def _of_secrets(path: Path) -> str | None:
    """What keeps an OIDC sign-in from working; no value of the file is repeated, since they are secrets."""
    try:
        auth = tomllib.loads(path.read_text(encoding="utf-8")).get("auth")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        return f"--secrets {path}: {exc.strerror if isinstance(exc, OSError) else 'is not TOML'}"
    needed = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
    missing = [name for name in needed if not isinstance(auth, dict) or not auth.get(name)]
    if missing:
        return f"--secrets {path}: [auth] lacks {', '.join(missing)}"
    assert isinstance(auth, dict)
    if len(str(auth["cookie_secret"])) < LEAST_SECRET:
        return (
            f"--secrets {path}: cookie_secret has fewer than {LEAST_SECRET} characters; whoever guesses it is anybody"
        )
    if not str(auth["redirect_uri"]).endswith("/oauth2callback"):
        return f"--secrets {path}: redirect_uri must end with /oauth2callback"
    if importlib.util.find_spec("authlib") is None:
        return "oidc needs Authlib: pip install 'authlib>=1.3.2'"
    return None


def require_port(port: int) -> None:
    """Raises ConfigError where something listens on the port already, or we may not."""
    # A browser may try either for "localhost", so both must be free.
    for family, address in ((socket.AF_INET, HOST), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                problem = f"{port} is in use by another program; stop that, or choose another port"
                raise ConfigError("--port", None, None, problem) from exc
            if family == socket.AF_INET:
                raise ConfigError("--port", None, None, f"{port} cannot be used: {exc.strerror}") from exc
            # No IPv6 on this machine: then nobody reaches anything by it.


def start_console(
    home: Path,
    store_url: str | None,
    port: int,
    *,
    log: Path | None = None,
    public_name: str | None = None,
    how: SignIn | None = None,
    address: str = HOST,
    secrets: Path | None = None,
) -> subprocess.Popen[bytes]:
    """The console as a child process; unless told otherwise, on this machine and for one person only.

    It ends when this process does, killed or not. What it has to say goes to `log`, without one to this process's
    standard error. Raises ConfigError where the port is taken.
    """
    require_port(port)
    environment = {
        **os.environ,
        options.HOME_VARIABLE: str(home.absolute()),
        options.PARENT_VARIABLE: str(os.getpid()),
        signing.VARIABLE: (how or SignIn()).model_dump_json(),
        "FORWARDED_ALLOW_IPS": "",  # else a header may say where a connection came from, and whom we trust goes by that
        **({} if store_url is None else {options.STORE_VARIABLE: store_url}),
        **({} if public_name is None else {options.PUBLIC_NAME_VARIABLE: public_name}),
    }
    flags = options.arguments(port, public_name, address=address, secrets=secrets)
    command = [sys.executable, "-m", "streamlit", *flags]
    if log is None:
        return _child(command, environment, None)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as written:
        return _child(command, environment, written.fileno())


def _child(command: list[str], environment: dict[str, str], stderr: int | None) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process only, which then ends the console in good order.
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def await_console(server: subprocess.Popen[bytes], port: int, *, log: Path | None = None) -> None:
    """Returns once the console answers. Raises ConfigError with the end of its log where it ends or stays silent."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        code = server.poll()
        if code is not None:
            raise ConfigError("console", None, None, f"ended by itself with exit code {code}{_tail(log)}")
        if _answers(port):
            return
        time.sleep(0.1)
    raise ConfigError("console", None, None, f"has not answered on port {port} for {START_S} s{_tail(log)}")


def announce_console(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Says, from beside the work that goes on, when the console answers, or why it will not."""

    def tell() -> None:
        try:
            await_console(server, port, log=log)
        except ConfigError as exc:
            notes.print(f"no console: {exc}", soft_wrap=True)
        else:
            notes.print(f"console: http://localhost:{port}")

    threading.Thread(target=tell, daemon=True).start()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/_stcore/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path | None) -> str:
    if log is None:
        return "; see above"
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return f"; {log} ends with:\n{text[-LOG_TAIL:]}" if text else f"; {log} is empty"


def keep_open(server: subprocess.Popen[bytes], *, log: Path | None = None) -> None:
    """Waits until the person ends the console with Ctrl-C, which is how it ends well. Else raises ConfigError."""
    try:
        code = server.wait()
    except KeyboardInterrupt:
        return
    raise ConfigError("console", None, None, f"ended by itself with exit code {code}{_tail(log)}")


def stop_console(server: subprocess.Popen[bytes]) -> None:
    """Ends the child process."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
