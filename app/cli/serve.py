"""`palomar serve`, the HTTP API; and `palomar token`, who may speak to it."""

from __future__ import annotations

import ipaddress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import ConfigError
from palomar.data.followups import FollowUpClassifier
from palomar.data.store.tokens import problem_of

HOST, PORT = "127.0.0.1", 8600

tokens = typer.Typer(help="Tokens of programs that speak to `palomar serve`.", no_args_is_help=True)

Reason = Annotated[str, typer.Option(help="Why; kept in the audit log.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("serve")(serve)
    app.add_typer(tokens, name="token")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = PORT,
    policy: Annotated[
        str, typer.Option(help="By which the gate is asked: a YAML file, or demo or production (docs/gate.md).")
    ] = "demo",
    experiment: Annotated[Path | None, typer.Option(help="Plan of the A/B test that the policy asks for.")] = None,
    classify: Annotated[bool, typer.Option(help="Class follow-up messages that have no label.")] = True,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second that each token may send.")] = 20.0,
    compact_at: Annotated[
        int, typer.Option(help="Merge the lake's small files where a partition has so many; 0: never.")
    ] = 64,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Serve the HTTP API until interrupted; docs/api.md. Plain HTTP: put TLS in front of it where others reach it."""
    from palomar.app.api.limits import Limits
    from palomar.app.api.server import serve as serve_api
    from palomar.app.api.state import Api
    from palomar.app.experiments import read_plan
    from palomar.app.ingesting import Deriving
    from palomar.trainer.gate_policy import read_policy

    observatory = Observatory(home or DEFAULT_HOME, store_url)
    good = [each for each in observatory.store.tokens.read() if problem_of(each) is None]
    if not good and not _is_local(host):
        problem = f"{host} can be reached by others, and there is no token: `palomar token create` makes one"
        raise ConfigError("--host", None, None, problem)
    api = Api(
        observatory=observatory,
        policy=read_policy(policy),
        plan=None if experiment is None else read_plan(experiment),
        limits=Limits(requests_per_s=rate),
        classify=FollowUpClassifier() if classify else None,
    )
    api.deriving = Deriving(observatory.lake, lambda: api.store, compact_at=compact_at)
    notes.print(f"API: http://{host}:{port}/v1/health, /openapi.json; {len(good)} tokens; Ctrl-C ends it")
    serve_api(api, host, port)


@tokens.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who acts with it, for good: names are never used again.")],
    role: Annotated[list[str], typer.Option(help="ingest, read, decide (reads too) or admin (all).")],
    days: Annotated[float, typer.Option(help="How long it lives.")] = 90.0,
    reason: Reason = "",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept."""
    store = Observatory(home or DEFAULT_HOME, store_url).store
    made, secret = store.tokens.create(name, role, days=days, actor=who(actor), reason=reason)
    if as_json:
        print_json(asdict(made) | {"token": secret})
        return
    notes.print(f"{name}: {', '.join(made.roles)}, until {made.expires_at:%F %R} UTC. It is shown this once:")
    typer.echo(secret)


@tokens.command("list")
def list_command(home: Home = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """List all tokens that were ever made, without their secrets."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    found = observatory.store.tokens.read() if observatory.has_store else []
    if as_json:
        print_json({"tokens": [asdict(each) | {"state": problem_of(each) or "good"} for each in found]})
    elif found:
        rows = [
            (each.name, ", ".join(each.roles), problem_of(each) or "good", f"{each.expires_at:%F %R}",
             visible(each.created_by))
            for each in found
        ]  # fmt: skip
        print_table(table(("token", "roles", "state", "until (UTC)", "made by"), rows))
    else:
        people.print("no tokens")


@tokens.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Its name.")],
    reason: Reason = "",
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """End a token now; a running server refuses it from the next request on."""
    ended = Observatory(home or DEFAULT_HOME, store_url).store.tokens.revoke(name, actor=who(actor), reason=reason)
    if as_json:
        print_json(asdict(ended))
    else:
        people.print(f"{name} is revoked")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
