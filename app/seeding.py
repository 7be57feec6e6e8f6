"""A home with as many interactions, cycles and incidents as asked for, to see how the console does with them.

A short real run is its source: the simulated production is served and a small policy is trained under the naive reward,
until it plays it. Its interactions are drawn again (whole conversations, with replacement) into many cycles, under new
ids, users and times. A cycle is drawn from two neighbouring cycles of the run in shares that wander from era to era:
in each era the policy learns to play the reward, it is noticed, the reward is patched, and after a while the patch is
taken back.

What the product can compute of the new cycles it computes here too: facts and rewards of every row, statistics in all
slices, the ledger, the gate's decisions on evidence from the store, incidents by the grouping of findings. Three things
are carried over from the cycle of the run that a cycle is drawn from, since they would take hours: what detectors found
(with the ids of evidence, cycles and numbers of the run), forecasts, and the checkpoints with their evaluations. So a
finding's n is that of the run, and the policy's weights do not answer to the gate's decisions.

Everything but the times at which the store wrote it is a function of the config.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.app.settings import DEMO
from palomar.data.arrow import INTERACTION_SCHEMA
from palomar.data.errors import ConfigError, StoreError
from palomar.data.facts import facts
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.observations import SAMPLES
from palomar.data.schema import content_id
from palomar.data.store import Store
from palomar.data.store import records as stored
from palomar.data.store.incidents import Arrival
from palomar.detectors.incidents import arrivals
from palomar.detectors.measure import measure
from palomar.reward import changes
from palomar.reward.ledger import SAMPLE_COLUMNS, ledger
from palomar.reward.scoring import score
from palomar.reward.versions import stored_spec

RUN = "seeded"
SOURCE_CYCLES, SOURCE_REQUESTS = 30, 512
BASELINE = 8
"""Cycles at the beginning, in which nothing is trained on."""
PER_ERA = 3
"""Incidents that an era opens as a rule: asking, invalid calls, the shape of functions."""
SHORTEST_ERA = 4
PATCHED = 2
"""Cycles of an era that the patch of the one before is in force."""
PLAYED = 17
"""First cycle of the run in which all three hacks block; an era comes to one from there to the last."""
PROPOSED = (16, 20, 24, 28)
"""Cycles of the run in which patches are proposed."""
PEOPLE = ("ada", "bob", "chen", "dina")
FATES = ("patched", "accepted", "mitigated", "false_alarm", "open", "rolled_back", "acknowledged", "reopened")
"""What becomes of the incidents, in turn."""
ACCEPTED_CYCLES = 20
CANARY = ("candidate-canary", 8)
"""Name of the experiment in the last cycles, and how many they are."""
QUARANTINED_EVERY = 3
"""Every so many cycles some records could not be read."""
KINDS = ("damaged", "unknown_format", "too_large")


@dataclass(frozen=True)
class SeedConfig:
    """What is to be in the home."""

    interactions: int = 1_000_000
    cycles: int = 200
    incidents: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        eras = self.eras
        if self.cycles < BASELINE + SHORTEST_ERA * eras:
            raise ConfigError(
                "seed", None, "cycles", f"{self.incidents} incidents need {BASELINE + SHORTEST_ERA * eras} at least"
            )
        if self.interactions < 100 * self.cycles:
            raise ConfigError("seed", None, "interactions", "fewer than 100 a cycle show nothing")

    @property
    def eras(self) -> int:
        """How often the reward is played."""
        return max(1, -(-self.incidents // PER_ERA))


@dataclass(frozen=True)
class Turn:
    """What one new cycle is drawn from."""

    cycle: int
    era: int
    """-1: before the first."""
    first: int
    """First cycle of the era."""
    last: bool
    """Whether it is the era's last."""
    position: float
    """Between which cycles of the run it lies, and in which shares: 12.25 = three quarters of 12, a quarter of 13."""
    rows: int

    @property
    def source(self) -> int:
        """The nearer cycle of the run: what was found in it is told of this one."""
        return round(self.position)


def story(config: SeedConfig, last: int) -> list[Turn]:
    """From where each cycle is drawn. ``last``: of the run's cycles."""
    rng = np.random.default_rng([config.seed, 1])
    edges = np.linspace(BASELINE, config.cycles, config.eras + 1).round().astype(int)
    share, left = divmod(config.interactions, config.cycles)
    rows = [share + (cycle < left) for cycle in range(config.cycles)]
    turns = [Turn(cycle, -1, 0, False, float(cycle), rows[cycle]) for cycle in range(BASELINE)]
    for era, (first, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        top = float(rng.uniform(min(PLAYED, last), last))
        way = np.linspace(0, 1, end - first) ** 0.8
        turns += [
            Turn(
                cycle, era, first, cycle == end - 1, round(BASELINE + (top - BASELINE) * float(step), 3),
                rows[cycle],
            )
            for cycle, step in zip(range(first, end), way, strict=True)
        ]  # fmt: skip
    return turns


def make_source(
    home: Path, seed: int, said: Callable[[str], None] = lambda words: None, *, cycles: int = SOURCE_CYCLES
) -> None:
    """Makes the run that is drawn from, the demo's: some minutes of training and checking."""
    from palomar.app.loop import open_loop, run_to
    from palomar.trainer.config import ResponseConfig
    from palomar.trainer.response import Situation, respond

    settings = DEMO.model_copy(update={"name": "source", "seed": seed, "cycles": cycles, "reward": "naive"})
    with open_loop(settings, home) as loop:
        for cycle in range(cycles):
            run_to(loop, cycle + 1)
            said(f"the run that is drawn from: cycle {cycle + 1} of {cycles}")
        for cycle in (each for each in PROPOSED if each < cycles):
            now = Situation.of(
                loop.store,
                loop.lake,
                loop.run_id,
                cycle,
                config=ResponseConfig(mode="propose"),
                baseline_cycles=loop.baseline_cycles,
            )
            respond(now)


def seed_home(
    home: Path, config: SeedConfig, *, source: Path | None = None, said: Callable[[str], None] = lambda words: None
) -> None:
    """Makes the home. ``source``: home of a finished, checked run; without, one is made and thrown away.

    Raises StoreError where the home holds a run already, or the source none that can be drawn from.
    """
    with Store.open(None, home) as store:
        if store.runs.read():
            raise StoreError(str(home), "holds a run already; give the seeded one a home of its own")
        with tempfile.TemporaryDirectory(prefix="palomar-seed-") as folder:
            # Opening a store migrates it: a run that is somebody's is only read.
            copy = Path(folder) / "source"
            if source is None:
                make_source(copy, config.seed, said)
            else:
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("experiments", "reports"))
            with Store.open(None, copy) as drawn_from:
                _Seeding(home, store, copy, drawn_from, config).all(said)


class _Seeding:
    """The home under way, and the run that it is drawn from."""

    def __init__(self, home: Path, store: Store, source: Path, drawn: Store, config: SeedConfig) -> None:
        runs = drawn.runs.read()
        if not runs:
            raise StoreError(str(source), "holds no run to draw from")
        self.home, self.store, self.drawn, self.config = home, store, drawn, config
        self.run, self.source = runs[0], source
        self.lake, self.from_lake = Lake(home / "lake"), Lake(source / "lake")
        self.cycles = {each.cycle: each for each in drawn.cycles.read(self.run.run_id)}
        if len(self.cycles) <= BASELINE:
            raise StoreError(str(source), f"its run has {len(self.cycles)} cycles; more than {BASELINE} are drawn from")
        checked = {each.cycle for each in drawn.verdicts.read(self.run.run_id)}
        if missing := sorted(self.cycles.keys() - checked):
            raise StoreError(str(source), f"its run was not checked in cycle {missing[0]}")
        self.turns = story(config, max(self.cycles))
        self.pools: dict[int, _Pool] = {}
        self.late = self.from_lake.query(f"SELECT * FROM ({self.from_lake._relation('feedback', None)})")
        self.sampled = self.from_lake.query(_LAST_SAMPLE.format(self.from_lake._relation("samples", None)))
        self.checkpoints = {each.cycle: each for each in drawn.checkpoints.read(self.run.run_id)}
        self.evaluations = drawn.evaluations.read(self.run.run_id)
        self.as_drawn: dict[str, str] = {}
        """Last new id of interactions of the run that are evidence."""
        self.trial: tuple[str, str] | None = None
        """Control and candidate of the experiment, once it has begun."""

    def all(self, said: Callable[[str], None]) -> None:
        """Everything, cycle after cycle."""
        self._begin()
        for turn in self.turns:
            self._cycle(turn)
            if turn.cycle % 10 == 9 or turn.cycle == self.config.cycles - 1:
                said(f"cycle {turn.cycle + 1} of {self.config.cycles}")
        self._end()

    # -- the run -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        store = self.store
        config = {**self.run.config, "name": RUN, "seed": self.config.seed, "baseline_cycles": BASELINE}
        store.runs.add(RUN, name=RUN, seed=self.config.seed, config=config)
        first = self.drawn.rewards.effective(self.run.run_id, 0)
        assert first is not None, "a run begins with a reward"
        store.rewards.add(first.version, text=first.text, parent=None, reason=first.reason, actor=first.actor)
        store.rewards.schedule(RUN, first.version, from_cycle=0)
        self.first = first
        base = self.checkpoints[None]
        store.checkpoints.add(RUN, base.checkpoint_id, cycle=None, parent_id=None, path=base.path, sha256=base.sha256)
        store.checkpoints.promote(RUN, base.checkpoint_id, replacing=None, since_cycle=0, reason="the run's base")
        self._evaluated(base.checkpoint_id, base.checkpoint_id)
        self.champion = base.checkpoint_id
        if (self.source / "checkpoints").is_dir():
            shutil.copytree(self.source / "checkpoints", self.home / "checkpoints", dirs_exist_ok=True)

    def _evaluated(self, checkpoint: str, source: str) -> None:
        rows = [replace(each, checkpoint_id=checkpoint) for each in self.evaluations if each.checkpoint_id == source]
        self.store.evaluations.write(RUN, rows)
        target = self.home / "evaluations" / checkpoint
        for path in sorted((self.source / "evaluations" / source).glob("*.json")):
            target.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace(json.dumps(source), json.dumps(checkpoint))
            (target / path.name).write_text(text, encoding="utf-8")

    # -- a cycle -------------------------------------------------------------------------------------------------------

    def _cycle(self, turn: Turn) -> None:
        store, cycle = self.store, turn.cycle
        reward = store.rewards.effective(RUN, cycle)
        assert reward is not None, "the first one is scheduled"
        store.cycles.start(RUN, cycle, checkpoint_id=self.champion, reward_version=reward.version)
        findings = [each.finding for each in self.drawn.findings.read(self.run.run_id, turn.source)]
        drawn = self._interactions(turn, _wanted(findings))
        ended = self._began(cycle + 1)
        # Of the last two cycles not everything is known yet.
        as_of = ended if cycle >= self.config.cycles - 2 else ended + timedelta(hours=6)
        self.lake.write_observations(score(facts(self.lake, cycle, as_of), stored_spec(reward), as_of), cycle)
        trained = self._samples(turn, drawn)
        store.statistics.write(RUN, measure(self.lake, [cycle]))
        quarantined = self._quarantined(cycle)
        self._ledger(turn, quarantined)
        self._found(turn, findings)
        self._forecasts(turn)
        self._incidents(turn)
        candidate = self._candidate(turn)
        # The gate reads what the stages before it kept.
        self._before(turn, as_of, quarantined, {**trained, "candidate": candidate})
        self._after(turn, candidate, self._decided(turn, candidate))
        store.cycles.complete(RUN, cycle)
        if turn.last:
            self._react(turn)
        elif turn.era >= 0 and cycle == turn.first + PATCHED - 1 and reward.version != self.first.version:
            changes.revert(
                store, RUN, self.first.version, reason="edits got slower; the old weights until it is understood",
                actor=PEOPLE[turn.era % len(PEOPLE)],
            )  # fmt: skip

    def _began(self, cycle: int) -> datetime:
        return datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=5 * cycle)

    def _interactions(self, turn: Turn, wanted: Sequence[str]) -> pa.Table:
        """Draws the cycle's rows and stores them, with the reactions that came later.

        Returns old and new id by row, for what else is known of them.
        """
        low = int(turn.position)
        share = turn.position - low
        trial = turn.cycle >= self.config.cycles - CANARY[1]
        if trial and low + 1 <= max(self.cycles):
            share = 0.5  # control and candidate: what the champion did, and what its successor would do
        pools = [self._pool(low), self._pool(min(low + 1, max(self.cycles)))]
        rng = np.random.default_rng([self.config.seed, 3, turn.cycle])
        draws = rng.integers(0, 2**31, turn.rows)
        upper = rng.random(turn.rows) < share
        forced = [(which, number) for each in wanted for which, number in _where(pools, each)][: turn.rows // 4]
        for place, (which, talk) in enumerate(dict.fromkeys(forced)):
            draws[place], upper[place] = talk, bool(which)
        jitter = rng.integers(0, 35_000_000, turn.rows)
        sizes = np.where(upper, *(pool.sizes[draws % len(pool.sizes)] for pool in reversed(pools)))
        ends = np.cumsum(sizes)
        kept = int(np.searchsorted(ends, turn.rows)) + 1
        parts = []
        for which, pool in enumerate(pools):
            chosen = np.flatnonzero(upper[:kept] == bool(which))
            parts.append(pool.rows(draws[chosen] % len(pool.sizes), chosen, jitter, self._began(turn.cycle)))
        rows = pa.concat_tables([part.table for part in parts])
        number = np.concatenate([part.draw for part in parts])
        shift = np.concatenate([part.shift for part in parts])
        pool_of = np.repeat([0, 1], [len(part.draw) for part in parts])
        order = np.argsort(number, kind="stable")[: turn.rows]
        rows, number, shift, pool_of = rows.take(pa.array(order)), number[order], shift[order], pool_of[order]
        old = rows["interaction_id"].combine_chunks()
        rows = self._renamed(rows, turn, number, pool_of, trial)
        with self.lake.writing("interactions"):
            self.lake._put("interactions", turn.cycle, rows)
        names = pa.table({"old": old, "new": rows["interaction_id"], "shift": pa.array(shift, pa.int64())})
        late = self.lake.query(
            "SELECT names.new AS interaction_id, * EXCLUDE (old, new, shift) "
            'REPLACE ("at" + to_microseconds(shift) AS "at", ?::INT AS cycle) '
            "FROM (SELECT * RENAME (interaction_id AS source_id) FROM late) JOIN names ON source_id = old "
            'ORDER BY 1, "at"',
            [turn.cycle],
            late=self.late,
            names=names,
        ).drop_columns(["source_id"])
        if late.num_rows:
            with self.lake.writing("feedback"):
                self.lake._put("feedback", turn.cycle, late.cast(_like(self.late.schema, late)))
        firsts = set(wanted)
        known = pc.is_in(old, value_set=pa.array(sorted(firsts), pa.string()))
        self.as_drawn |= dict(
            zip(reversed(old.filter(known).to_pylist()), reversed(rows["interaction_id"].filter(known).to_pylist()),
                strict=True)
        )  # fmt: skip
        return names

    def _renamed(self, rows: pa.Table, turn: Turn, number: np.ndarray, pool_of: np.ndarray, trial: bool) -> pa.Table:
        """The rows as those of the cycle: ids, users, checkpoint, and in a trial the arm."""
        count = len(number)
        talk = _joined(f"seed-{turn.cycle:04d}-", pc.utf8_lpad(pa.array(number).cast(pa.string()), 6, "0"))
        # So many copies of each user as the pool is drawn; in a trial a user is of one arm.
        copies = max(1, -(-self.config.interactions // (self.config.cycles * SOURCE_REQUESTS)))
        copy = np.random.default_rng([self.config.seed, 4]).integers(0, copies, int(number.max()) + 1)[number]
        if trial:
            copy = 2 * copy + pool_of
        users = pc.binary_join_element_wise(rows["user_id"].combine_chunks(), pa.array(copy).cast(pa.string()), "-")
        arms = pa.array(np.where(pool_of == 1, "candidate", "control") if trial else [None] * count, pa.string())
        turn_of = pc.cast(rows["turn"], pa.string()).combine_chunks()
        new = {
            "interaction_id": pc.binary_join_element_wise(talk, turn_of, "-t"),
            "conversation_id": talk,
            "user_id": users,
            "checkpoint": self._served(pool_of, trial),
            "cycle": pa.array(np.full(count, turn.cycle), pa.int64()),
            "arm": arms,
            "origin": pa.array(["seed"] * count, pa.string()),
        }
        for name, values in new.items():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows

    def _served(self, pool_of: np.ndarray, trial: bool) -> pa.Array:
        """By row: the checkpoint; in a trial one of two, which stay as they were when it began."""
        if not trial:
            return pa.array([self.champion] * len(pool_of), pa.string())
        if self.trial is None:
            known = [each.checkpoint_id for each in self.store.checkpoints.read(RUN)]
            self.trial = (self.champion, next((each for each in reversed(known) if each != self.champion), known[0]))
        return pa.array(np.where(pool_of == 1, self.trial[1], self.trial[0]), pa.string())

    def _pool(self, cycle: int) -> _Pool:
        if cycle not in self.pools:
            if len(self.pools) > 3:
                self.pools.clear()
            self.pools[cycle] = _Pool.read(self.from_lake, cycle)
        return self.pools[cycle]

    def _samples(self, turn: Turn, drawn: pa.Table) -> dict[str, object]:
        """What the trainer did with those that they are drawn from, as far as the reward agrees; its figures."""
        watched = turn.cycle < BASELINE
        rows = self.lake.query(
            _SAMPLES,
            [watched],
            observations=self.lake.scan(
                "observations",
                ["interaction_id", "reward", "reward_status", "included", "exclusion", "tokens_out"],
                cycles=[turn.cycle],
            ),
            names=drawn,
            sampled=self.sampled,
        )
        count = rows.num_rows
        made = {
            "cycle": pa.array(np.full(count, turn.cycle), pa.int32()),
            "sampled_cycle": pa.array(np.full(count, turn.cycle), pa.int32()),
            "checkpoint": pa.array([self.champion] * count, pa.string()),
            "policy_lag": pa.array(np.zeros(count), pa.int32()),
        }
        columns = [made[field.name] if field.name in made else rows[field.name] for field in SAMPLES]
        table = pa.table(columns, names=SAMPLES.names).cast(SAMPLES)
        self.lake.append_samples(table, turn.cycle)
        left = {
            str(each["values"]): each["counts"] for each in pc.value_counts(table["reason"].drop_null()).to_pylist()
        }
        trained = pc.sum(table["trained"]).as_py() or 0
        return {"offered": count, "trained": trained, "not_trained": left, "policy_lag": {"0": trained}}

    def _quarantined(self, cycle: int) -> dict[str, int]:
        """Records of the cycle that could not be read, by kind."""
        if cycle % QUARANTINED_EVERY:
            return {}
        rng = np.random.default_rng([self.config.seed, 5, cycle])
        counts = {kind: int(count) for kind, count in zip(KINDS, rng.integers(0, 4, len(KINDS)), strict=True) if count}
        rows = [
            stored.QuarantinedRow(
                content_id(RUN, str(cycle), kind, str(number)), f"intake/cycle-{cycle:04d}.jsonl",
                int(rng.integers(1, 5_000)), None, kind, _PROBLEMS[kind],
            )
            for kind, count in counts.items()
            for number in range(count)
        ]  # fmt: skip
        self.store.quarantine.record(rows, at=self._began(cycle + 1))
        return counts

    def _ledger(self, turn: Turn, quarantined: Mapping[str, int]) -> None:
        cycle = turn.cycle
        book = ledger(
            cycle,
            self.lake.scan("interactions", ["interaction_id", "predicted_failure"], cycles=[cycle]),
            self.lake.scan(
                "observations",
                ["interaction_id", "cycle", "group_id", "predicted_failure", "ambiguity", "reward", "reward_status",
                 "included", "exclusion"],
                cycles=[cycle],
            ),
            self.lake.scan("samples", SAMPLE_COLUMNS, cycles=[cycle]),
            quarantined,
            received=turn.rows + sum(quarantined.values()),
        )  # fmt: skip
        book.check()
        self.store.ledger.write(RUN, book.rows)

    # -- what is carried over ------------------------------------------------------------------------------------------

    def _when(self, turn: Turn) -> Callable[[int], int]:
        """From a cycle of the run to the one of the era that is drawn from there, not after this one."""
        era = [each for each in self.turns if each.era == turn.era and each.cycle <= turn.cycle]
        if turn.era < 0:
            return lambda cycle: min(cycle, turn.cycle)
        ways = [each.position for each in era]
        return lambda cycle: era[int(np.abs(np.array(ways) - cycle).argmin())].cycle

    def _found(self, turn: Turn, findings: Sequence[Finding]) -> None:
        drawn, run, when = self.drawn, self.run.run_id, self._when(turn)
        verdict = drawn.verdicts.get(run, turn.source)
        assert verdict is not None, "every cycle that is drawn from was checked"
        told = [self._told(each, when) for each in findings]
        self.store.findings.write(RUN, turn.cycle, told, drawn.findings.reports(run, turn.source))
        self.store.verdicts.write(
            RUN,
            turn.cycle,
            verdict=verdict.verdict,
            reasons=verdict.reasons,
            sentence=_retold(verdict.sentence, when),
            findings=verdict.findings,
            budget=verdict.budget,
            as_of=self._began(turn.cycle + 1),
        )

    def _told(self, finding: Finding, when: Callable[[int], int]) -> Finding:
        places = {
            place: tuple(self.as_drawn[each] for each in ids if each in self.as_drawn)
            for place, ids in vars(finding.evidence).items()
        }
        return replace(
            finding,
            sentence=_retold(finding.sentence, when),
            since=None if finding.since is None else when(finding.since),
            evidence=Evidence(**places),
        )

    def _forecasts(self, turn: Turn) -> None:
        if turn.cycle == 0:
            return
        known = self.drawn.forecasts.read(self.run.run_id, for_cycle=turn.source)
        rows = [replace(each, for_cycle=turn.cycle, made_in=turn.cycle - 1) for each in known]
        self.store.forecasts.write(RUN, turn.cycle - 1, rows)

    def _incidents(self, turn: Turn) -> None:
        """By the product's grouping, among the incidents of the era; an earlier era's are another story."""
        found = self.store.findings.read(RUN, turn.cycle)
        record = self.store.cycles.get(RUN, turn.cycle)
        began = None if record is None else record.started_at

        def decide(
            known: Sequence[stored.Incident],
            pins: Mapping[int, Sequence[stored.PinnedFinding]],
            silences: Sequence[stored.Silence],
        ) -> list[Arrival]:
            own = [each for each in known if each.opened_cycle >= turn.first]
            room = self.config.incidents - len(known)
            told = []
            for each in arrivals(found, own, pins, turn.cycle, began, silences=silences):
                opens = each.what == "open"
                if opens and room <= 0:
                    continue
                room -= opens
                told.append(each)
            return told

        self.store.incidents.arrive(RUN, turn.cycle, decide)

    # -- checkpoints and decisions -------------------------------------------------------------------------------------

    def _candidate(self, turn: Turn) -> str | None:
        trained = {cycle: each for cycle, each in self.checkpoints.items() if cycle is not None}
        if turn.cycle < BASELINE or not trained:
            return None
        nearest = trained[min(trained, key=lambda cycle: (abs(cycle - turn.position), cycle))]
        name = content_id(RUN, str(self.config.seed), str(turn.cycle), nearest.checkpoint_id)[:16]
        self.store.checkpoints.add(
            RUN, name, cycle=turn.cycle, parent_id=self.champion, path=nearest.path, sha256=nearest.sha256
        )
        self._evaluated(name, nearest.checkpoint_id)
        return name

    def _decided(self, turn: Turn, candidate: str | None) -> stored.Decision | None:
        """By the promotion gate, on what the store holds of this home."""
        if candidate is None:
            return None
        from palomar.trainer.gate_evidence import gather
        from palomar.trainer.gate_policy import read_policy
        from palomar.trainer.promotion import decide
        from palomar.trainer.promotion_gate import check_candidate, said

        text = read_policy("demo")
        rule = text.policy
        check_candidate(self.store, self.home, RUN, candidate, None)
        evidence = gather(self.store, self.home, RUN, candidate, rule)
        given = vars(said(decide(evidence, rule), evidence, text))
        return self.store.decisions.take(RUN, candidate, after=0, cycle=turn.cycle, policy=rule.version, **given)

    def _before(
        self, turn: Turn, as_of: datetime, quarantined: Mapping[str, int], trained: Mapping[str, object]
    ) -> None:
        verdict = self.store.verdicts.get(RUN, turn.cycle)
        assert verdict is not None, "it was carried over"
        received = turn.rows + sum(quarantined.values())
        self._stage(turn, "collect", {"received": received, "quarantined": dict(quarantined)})
        self._stage(turn, "distil", {"as_of": as_of.isoformat(), "distilled": [turn.cycle], "unsettled": []})
        self._stage(turn, "train", trained)
        self._stage(turn, "check", {"verdict": verdict.verdict, "reasons": list(verdict.reasons)})
        self._stage(turn, "respond", {"action": "none"})
        self._stage(turn, "evaluate", {})

    def _after(self, turn: Turn, candidate: str | None, decision: stored.Decision | None) -> None:
        if candidate is None or decision is None:
            self._stage(turn, "decide", {"verdict": "hold", "reasons": ["baseline"]})
        else:
            self._stage(turn, "decide", {"verdict": decision.verdict, "reasons": list(decision.reasons)})
            self._deploy(turn, candidate, decision)
        self._stage(turn, "deploy", {"serving": self.champion})

    def _stage(self, turn: Turn, name: stored.StageName, figures: Mapping[str, object]) -> None:
        """A stage as the run had it, with the figures that are known of this cycle."""
        before = next((stage for stage in self.cycles[turn.source].stages if stage.stage == name), None)
        self.store.cycles.finish_stage(
            RUN,
            turn.cycle,
            name,
            elapsed_s=before.elapsed_s if before else 0.0,
            detail={**(before.detail if before else {}), **figures},
        )

    def _deploy(self, turn: Turn, candidate: str, decision: stored.Decision) -> None:
        checkpoints = self.store.checkpoints
        reason = ", ".join(decision.reasons) or "the gate let it pass"
        if decision.verdict == "promote":
            checkpoints.promote(RUN, candidate, replacing=self.champion, since_cycle=turn.cycle + 1, reason=reason)
            self.champion = candidate
        elif decision.verdict == "block":
            checkpoints.block(RUN, candidate, reason)
        elif turn.cycle < self.config.cycles - 1:  # the last one waits for somebody
            checkpoints.supersede(RUN, candidate, f"held: {reason}")

    # -- what people did -----------------------------------------------------------------------------------------------

    def _react(self, turn: Turn) -> None:
        """At the end of an era: incidents are worked on, and the reward is patched."""
        mine = [each for each in self.store.incidents.read(RUN) if each.opened_cycle >= turn.first]
        for incident in mine:
            self._work_on(incident, turn)
        if turn.cycle == self.config.cycles - 1:
            self._propose(turn)
            return
        proposals = self._propose(turn)
        if proposals:
            changes.apply(
                self.store, proposals[0], reason=f"turns round what era {turn.era + 1} taught",
                actor=PEOPLE[turn.era % len(PEOPLE)], after=turn.cycle,
            )  # fmt: skip
            self.store.baselines.move(
                RUN,
                from_cycle=turn.cycle + 1,
                cycles=range(turn.first, turn.first + PATCHED),
                reason=f"before the reward was played again in cycle {turn.first + PATCHED}",
                actor=PEOPLE[turn.era % len(PEOPLE)],
            )

    def _propose(self, turn: Turn) -> list[stored.RewardProposal]:
        """Patches that were proposed in the run nearest to where the era came to."""
        known = self.drawn.rewards.proposals(self.run.run_id, base=self.first.version)
        if not known:
            return []
        now = self.store.rewards.effective(RUN, turn.cycle + 1)
        if now is None or now.version != self.first.version:
            return []
        near = min({each.cycle for each in known}, key=lambda cycle: (abs(cycle - turn.position), cycle))
        rows = [
            replace(
                each,
                run_id=RUN,
                cycle=turn.cycle,
                proposal_id=content_id(RUN, str(turn.cycle), each.base, each.version),
            )
            for each in known
            if each.cycle == near
        ]
        self.store.rewards.propose(rows)
        return self.store.rewards.proposals(RUN, turn.cycle)

    def _work_on(self, incident: stored.Incident, turn: Turn) -> None:
        incidents, number = self.store.incidents, incident.number
        fate = FATES[(number - 1) % len(FATES)]
        actor, other = (PEOPLE[(number + place) % len(PEOPLE)] for place in (0, 1))
        if fate == "open":
            return
        incidents.acknowledge(number, actor=actor)
        if fate == "acknowledged":
            return
        incidents.assign(number, actor=actor, to=other, reason="on call")
        lead = incidents.pinned(number)[0].finding
        if lead.causes:
            cause = lead.causes[0]
            reward = self.first.version
            incidents.explain(
                number, actor=other, words=f"paid by {cause.name}", term=cause.name, slice_=cause.slice, reward=reward
            )
        if fate in ("mitigated", "patched", "reopened"):
            incidents.act(number, actor=other, what=f"reward patched from cycle {turn.cycle + 1} on", mitigates=True)
        if fate == "rolled_back":
            incidents.act(number, actor=other, what="the champion before it serves again", mitigates=True)
        useful = "not_useful" if fate == "false_alarm" else "useful"
        for person in (actor, other):
            incidents.vote(number, useful, actor=person)  # type: ignore[arg-type]
        if fate == "mitigated":
            return
        resolution: stored.Resolution = "patched" if fate == "reopened" else fate  # type: ignore[assignment]
        incidents.resolve(
            number,
            resolution,
            actor=other,
            reason=_REASONS[resolution],
            cycle=turn.cycle,
            until_cycle=turn.cycle + ACCEPTED_CYCLES if resolution == "accepted" else None,
        )
        if fate == "reopened":
            incidents.reopen(number, actor=actor, reason="seen again on another suite")

    def _end(self) -> None:
        store, last = self.store, self.config.cycles - 1
        found = [each for each in store.findings.read(RUN, last) if each.finding.severity == "warns"]
        if found:
            quiet = found[-1].finding
            store.silences.add(
                RUN, quiet.detector, actor="ada", reason="known since the last release", statistic=quiet.statistic,
                slice_=quiet.slice, until_cycle=last + ACCEPTED_CYCLES,
            )  # fmt: skip
        blocked = [each for each in store.decisions.latest(RUN, count=self.config.cycles) if each.verdict == "block"]
        for place, each in enumerate(blocked[:2]):
            asked = store.overrides.request(
                RUN,
                each.candidate,
                verdict="promote",
                reason="a customer waits for the fix in it",
                hours=24,
                actor="ada",
            )
            if place:
                store.overrides.approve(asked.override_id, actor="bob", approval="the fix outweighs it for a day")
        self._plan()
        store.runs.set_status(RUN, "complete")

    def _plan(self) -> None:
        from palomar.detectors.experiment import Plan

        name, cycles = CANARY
        assert self.trial is not None, "the last cycles are a trial"
        plan = Plan.model_validate(
            {
                "name": name,
                "arms": {
                    "control": {"share": 0.5, "role": "control", "checkpoint": self.trial[0]},
                    "candidate": {"share": 0.5, "role": "treatment", "checkpoint": self.trial[1]},
                },
                "planned_units": 400,
                "first_cycle": self.config.cycles - cycles,
            }
        )
        folder = self.home / "experiments" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(plan.model_dump_json(indent=2), encoding="utf-8")


# -- drawing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Rows drawn from one pool."""

    table: pa.Table
    draw: np.ndarray
    """By row: which draw it is of."""
    shift: np.ndarray
    """By row: by how much its times were moved, in microseconds."""


@dataclass(frozen=True)
class _Pool:
    """The interactions of one cycle of the run, by conversation."""

    table: pa.Table
    """Rows of a conversation lie together, in the order of their turns."""
    starts: np.ndarray
    """By conversation: its first row."""
    sizes: np.ndarray
    """By conversation: its rows."""
    of: Mapping[str, int]
    """By interaction: its conversation."""
    began: datetime

    @classmethod
    def read(cls, lake: Lake, cycle: int) -> _Pool:
        rows = lake.query(f"SELECT * FROM ({lake._relation('interactions', [cycle])}) ORDER BY conversation_id, turn")
        rows = rows.select(INTERACTION_SCHEMA.names).cast(INTERACTION_SCHEMA).combine_chunks()
        talks = rows["conversation_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.diff(talks, prepend=-1))
        sizes = np.diff(np.append(starts, len(talks)))
        of = dict(zip(rows["interaction_id"].to_pylist(), talks.tolist(), strict=True))
        first = pc.min(rows["started_at"]).as_py()
        return cls(rows, starts, sizes, of, first.replace(minute=0, second=0, microsecond=0))

    def rows(self, talks: np.ndarray, draws: np.ndarray, jitter: np.ndarray, began: datetime) -> _Part:
        """The conversations, with all their times moved to where the new cycle begins (and a little on)."""
        sizes = self.sizes[talks]
        draw = np.repeat(draws, sizes)
        inside = np.arange(len(draw)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        taken = self.table.take(pa.array(np.repeat(self.starts[talks], sizes) + inside))
        moved = int((began - self.began).total_seconds()) * 1_000_000
        shift = (jitter[draw] + moved).astype(np.int64)
        columns = [
            _moved(taken[field.name].combine_chunks(), shift) if _has_time(field.type) else taken[field.name]
            for field in taken.schema
        ]
        return _Part(pa.table(columns, schema=taken.schema), draw, shift)


def _has_time(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_time(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_time(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


def _moved(values: pa.Array, shift: np.ndarray) -> pa.Array:
    """Every time in the values, however deep, moved by the shift of its row."""
    kind = values.type
    if not _has_time(kind):
        return values
    if pa.types.is_timestamp(kind):
        return pc.add(values, pa.array(shift, pa.duration(kind.unit)))
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        inner = _moved(values.flatten(), np.repeat(shift, lengths))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=_nulls(values))
    fields = [_moved(values.field(place), shift) for place in range(kind.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_nulls(values))


def _nulls(values: pa.Array) -> pa.Array | None:
    return pc.is_null(values) if values.null_count else None


def _where(pools: Sequence[_Pool], interaction_id: str) -> list[tuple[int, int]]:
    """In which pool an interaction is, and its conversation there."""
    return [(which, pool.of[interaction_id]) for which, pool in enumerate(pools) if interaction_id in pool.of][:1]


def _wanted(findings: Sequence[Finding]) -> list[str]:
    """Interactions that findings point to."""
    ids = [each for finding in findings for some in vars(finding.evidence).values() for each in some]
    return list(dict.fromkeys(ids))


def _joined(before: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(before), values, "")


def _like(schema: pa.Schema, table: pa.Table) -> pa.Schema:
    return pa.schema([schema.field(name) for name in table.column_names])


def _retold(sentence: str, when: Callable[[int], int]) -> str:
    """The sentence with the cycles of this run in place of those of the one it was said of."""
    return re.sub(r"\b(cycles? )(\d+)", lambda found: f"{found[1]}{when(int(found[2]))}", sentence)


_PROBLEMS: Mapping[str, str] = {
    "damaged": "not JSON: the line ends in the middle",
    "unknown_format": "no known format has these keys",
    "too_large": "the record is larger than what is taken in",
}
_REASONS: Mapping[stored.Resolution, str] = {
    "patched": "not seen any more under the patched reward",
    "rolled_back": "not seen any more since the earlier champion serves",
    "accepted": "known and small; looked at again after the release",
    "false_alarm": "the mix of tasks moved, the behaviour did not",
}
_LAST_SAMPLE = """
SELECT interaction_id, arg_max(baseline, cycle) AS baseline, arg_max(advantage, cycle) AS advantage,
       arg_max(step, cycle) AS step, arg_max(tokens, cycle) AS tokens, arg_max(ratio, cycle) AS ratio,
       arg_max(clipped, cycle) AS clipped, arg_max(kl_sampler, cycle) AS kl_sampler
FROM ({}) GROUP BY interaction_id
"""
_SAMPLES = """
WITH rows AS (
    SELECT observations.*, names.old, sampled.*EXCLUDE (interaction_id),
           NOT ? AND coalesce(included, false) AND reward IS NOT NULL AND reward_status = 'valid' AS ok
    FROM observations JOIN names ON names.new = observations.interaction_id
    LEFT JOIN sampled ON sampled.interaction_id = names.old
)
SELECT interaction_id, reward, baseline,
       CASE WHEN ok THEN coalesce(advantage, reward - avg(reward) FILTER (ok) OVER ()) END AS advantage,
       CASE WHEN ok THEN 1.0 ELSE 0.0 END AS weight, ok AS trained,
       CASE WHEN ok THEN NULL
            WHEN exclusion IS NOT NULL THEN exclusion
            WHEN reward_status = 'waiting' THEN 'reward_waiting'
            WHEN reward_status <> 'valid' THEN 'reward_invalid'
            ELSE 'baseline' END AS reason,
       CASE WHEN ok THEN coalesce(step, 0) END AS step, coalesce(tokens, tokens_out, 0) AS tokens,
       CASE WHEN ok THEN ratio END AS ratio, CASE WHEN ok THEN clipped END AS clipped,
       CASE WHEN ok THEN kl_sampler END AS kl_sampler
FROM rows ORDER BY interaction_id
"""
