"""How the Streamlit server is configured, as flags; without importing Streamlit, since the command line needs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"
PORT = 8501
SCRIPT = Path(__file__).with_name("server.py")

OPTIONS: Mapping[str, str] = {
    "server.headless": "true",
    "server.address": HOST,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",  # the default calls Streamlit's own servers
    "client.showErrorDetails": "type",  # messages of bugs may hold secrets; they are in the log
    "client.showErrorLinks": "false",
    "client.toolbarMode": "viewer",
    "runner.magicEnabled": "false",  # it would show every string that stands alone, docstrings too
    "runner.postScriptGC": "false",  # a full collection after every click costs more than most pages
    # Per theme: a colour set for both makes one theme of its own, and the reader's dark mode is then not followed.
    "theme.light.primaryColor": "#0072B2",  # the default red reads as an alarm
    "theme.dark.primaryColor": "#56B4E9",
    "theme.baseFontSize": "15",
    "theme.headingFontSizes": "1.9rem,1.5rem,1.25rem,1.1rem,1rem,0.9rem",
}

HOME_VARIABLE, STORE_VARIABLE = "PALOMAR_HOME", "PALOMAR_STORE"
PUBLIC_NAME_VARIABLE = "PALOMAR_CONSOLE_NAME"
"""Name by which a reverse proxy is reached; unset: the console answers to this machine's own names only."""
PARENT_VARIABLE = "PALOMAR_CONSOLE_PARENT"
"""Process that the console must not outlive; unset: it ends when it is told to."""


def arguments(
    port: int, public_name: str | None = None, *, address: str = HOST, secrets: Path | None = None
) -> list[str]:
    """Arguments of ``python -m streamlit`` that run the console; `secrets` is the TOML file of an OIDC sign-in."""
    options = {**OPTIONS, "server.port": str(port), "browser.serverAddress": public_name or "localhost"}
    options["server.address"] = address
    if secrets is not None:
        options["secrets.files"] = str(secrets.absolute())
    return ["run", str(SCRIPT), *(flag for name, value in options.items() for flag in (f"--{name}", value))]
