"""The store: what was decided and counted, in SQLite by default or PostgreSQL by URL. See docs/store.md.

The lake keeps what happened, row by row; the store keeps what people and gates ask about: runs, cycles and their
stages, checkpoints and the champion, reward versions, decisions, the sample ledger, statistics, what detectors say.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from palomar.data.errors import StoreError
from palomar.data.store.audit_log import AuditLog
from palomar.data.store.baselines import Baselines
from palomar.data.store.checkpoints import Checkpoints, Evaluations
from palomar.data.store.database import Database, locate
from palomar.data.store.decisions import Decisions, Overrides
from palomar.data.store.findings import Findings
from palomar.data.store.forecasts import Forecasts
from palomar.data.store.incidents import Incidents
from palomar.data.store.intake import Quarantine
from palomar.data.store.jobs import Jobs
from palomar.data.store.labels import Labels
from palomar.data.store.ledger import Ledger
from palomar.data.store.messages import Messages
from palomar.data.store.migrate import bring_up_to_date, version_of
from palomar.data.store.records import Health
from palomar.data.store.rewards import Rewards
from palomar.data.store.runs import Cycles, Runs
from palomar.data.store.silences import Silences
from palomar.data.store.statistics import Statistics
from palomar.data.store.tokens import Tokens
from palomar.data.store.verdicts import Verdicts


class Store:
    """An open store. Each method of its parts is one transaction; threads may share it, a forked process may not.

    Every failure is a StoreError that says where and what, never with a password.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.where = database.where
        """File or URL, without password."""
        self.runs = Runs(database)
        self.cycles = Cycles(database)
        self.checkpoints = Checkpoints(database)
        self.evaluations = Evaluations(database)
        self.rewards = Rewards(database)
        self.decisions = Decisions(database)
        self.overrides = Overrides(database)
        self.ledger = Ledger(database)
        self.statistics = Statistics(database)
        self.findings = Findings(database)
        self.verdicts = Verdicts(database)
        self.baselines = Baselines(database)
        self.forecasts = Forecasts(database)
        self.quarantine = Quarantine(database)
        self.audit_log = AuditLog(database)
        self.incidents = Incidents(database)
        self.silences = Silences(database)
        self.tokens = Tokens(database)
        self.jobs = Jobs(database)
        self.labels = Labels(database)
        self.messages = Messages(database)

    @classmethod
    def open(cls, url: str | None, home: Path) -> Self:
        """The store at ``url`` (None: ``home/palomar.db``), made or migrated to this version's schema first."""
        location = locate(url, home)
        if location.drivername == "sqlite":
            folder = Path(str(location.database)).parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise StoreError(str(location.database), f"its folder cannot be made: {exc.strerror}") from exc
        with Database(location, foreign_keys=False) as database:
            bring_up_to_date(database)
        return cls(Database(location))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections; a later call opens new ones."""
        self._database.close()

    def health(self) -> Health:
        """Whether the store answers, and how fast."""
        began = time.perf_counter()
        schema, problem = None, None
        try:
            schema = self._database.read(version_of)
        except StoreError as exc:
            problem = exc.problem
        return Health(self.where, problem is None, problem, schema, time.perf_counter() - began)
