"""The `palomar` command.

Exit codes, the same for every command, so that a pipeline can rely on them:

==== =================================================================================
0    done, nothing to report
1    done, and there is something to report: records in quarantine, an aim not met
2    error: wrong usage, wrong config, store not there, or a bug; never reads as "pass"
3    could not decide: there is nothing to answer from
130  interrupted; what was finished is kept, ``palomar run --resume`` goes on
==== =================================================================================

Every command takes ``--json`` and then prints one JSON object to standard output and nothing else there.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback

import typer

from palomar import __version__
from palomar.app.cli import (
    alarms,
    audit,
    audit_log,
    baseline,
    bench,
    check,
    cohort,
    compact,
    console,
    experiment,
    gate,
    health,
    incident,
    ingest,
    jobs,
    label,
    notify,
    patch,
    pressure,
    probe,
    rebuild,
    report,
    reward,
    run,
    scan,
    seed,
    serve,
    settings,
    show,
    stats,
    why,
)
from palomar.data.errors import PalomarError

ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    help="See what a reward is teaching a coding agent, before and after it is learnt.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    run,
    ingest,
    stats,
    check,
    gate,
    health,
    baseline,
    pressure,
    why,
    audit,
    probe,
    audit_log,
    alarms,
    incident,
    notify,
    patch,
    reward,
    jobs,
    label,
    scan,
    report,
    show,
    experiment,
    console,
    settings,
    serve,
    cohort,
    compact,
    bench,
    seed,
    rebuild,
):
    module.register(app)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: an error that we raise on purpose is one line; a bug shows its traceback; both exit with 2."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except PalomarError as exc:
        _fail(type(exc).__name__, str(exc))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has gone; that is not our failure.
        sys.stderr.close()
        sys.exit(0)
    except Exception as exc:
        traceback.print_exc()
        _fail(type(exc).__name__, f"{exc} (this is a bug in Palomar)")


def _fail(kind: str, message: str) -> None:
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"error": {"kind": kind, "message": message}}) + "\n")
    sys.stderr.write(f"error: {message}\n")
    sys.exit(ERROR)
