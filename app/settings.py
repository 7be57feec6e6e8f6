"""Everything a person can set, in one file: `palomar.yaml`. Only this module reads it; below it, parts receive values.

`palomar init` writes a commented one. An unknown key, a wrong type or a value out of range is refused with its line.
The resolved settings are kept with the run in the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from palomar.app.notify.config import Channel, names_are_distinct
from palomar.data.config import read_config
from palomar.data.errors import ConfigError
from palomar.data.production.config import ProductionConfig
from palomar.reward.spec import RewardSpec, bundled_text, parse_spec
from palomar.trainer.config import (
    AdvantageConfig,
    EvaluationConfig,
    GateConfig,
    PolicyConfig,
    ResponseConfig,
    UpdateConfig,
)
from palomar.trainer.gate_policy import policy_names

DEFAULT_HOME = Path(".palomar")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _a_policy(name: str) -> str:
    if not is_file(name) and name not in policy_names():
        raise ValueError(f"no such policy comes with Palomar; there are: {', '.join(policy_names())}, or a YAML file")
    return name


Gate = Annotated[
    Annotated[GateConfig, Tag("suites")] | Annotated[str, AfterValidator(_a_policy), Tag("policy")],
    Discriminator(lambda value: "policy" if isinstance(value, str) else "suites"),
]


class SimulatedSource(_Strict):
    """Users are simulated; everything after them is the product itself."""

    kind: Literal["simulated"]
    requests: Annotated[int, Field(ge=1)] = 512
    """First requests a cycle; answers to questions come on top."""
    production: ProductionConfig = ProductionConfig()


class LogSource(_Strict):
    """Interactions are logs that something else writes: each cycle takes in what is new at `paths`."""

    kind: Literal["logs"]
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files, folders or globs, relative to the settings file."""
    format: str = "auto"
    """Name of a format (`palomar formats`), ``auto``: recognised by content, or a mapping file (docs/mapping.md)."""


class PolicySettings(_Strict):
    """The policy that a run begins with."""

    path: str = "base"
    """``base``: the tiny one that comes with Palomar. Else a folder with safetensors and a tokenizer, a ``.gguf`` file,
    or ``package:NAME`` for an installed package that carries one. Relative to the settings file."""
    runtime: PolicyConfig = PolicyConfig()


class Settings(_Strict):
    """One run of the loop."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "run"
    """Name of the run; a home holds one run."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    cycles: Annotated[int, Field(ge=1)] = 30
    baseline_cycles: Annotated[int, Field(ge=0)] = 8
    """Cycles at the beginning in which the policy serves and is measured, and nothing is trained on: what comes after
    is compared with them, and what the reward would teach is named before it is learnt."""
    checks: Literal["quick", "all", "none"] = "quick"
    """Detectors that look at each cycle: ``quick``, those that cost little; ``all`` (some seconds more for a thousand
    interactions; `palomar check` runs them all); or ``none``."""
    extensions: tuple[str, ...] = ()
    """Python files of your own that register statistics, detectors or signatures, relative to the settings file."""
    store: str | None = None
    """Database URL (``postgresql+psycopg://...``); none: SQLite in the home."""
    reward: str = "naive"
    """Name of a spec that comes with Palomar, or a YAML file, relative to the settings file."""
    source: Annotated[SimulatedSource | LogSource, Field(discriminator="kind")] = SimulatedSource(kind="simulated")
    policy: PolicySettings = PolicySettings()
    advantage: AdvantageConfig = AdvantageConfig()
    update: UpdateConfig = UpdateConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    gate: Gate = GateConfig()
    """Either the promotion gate's policy (docs/gate.md): the name of one that comes with Palomar, or a YAML file
    relative to the settings file. Or a mapping: the simple gate, which looks for significant losses in suites alone."""
    response: ResponseConfig = ResponseConfig()
    notify: Annotated[tuple[Channel, ...], AfterValidator(names_are_distinct)] = ()
    """Who is told of decisions and incidents (docs/notify.md)."""

    @model_validator(mode="after")
    def _responds_to_checks(self) -> Self:
        if self.response.mode != "observe" and self.checks == "none":
            raise ValueError(f"response.mode: {self.response.mode} needs checks, and checks are none")
        return self

    @property
    def checks_decide(self) -> bool:
        """Whether what detectors find has a say in what the run does."""
        return self.response.mode != "observe" or isinstance(self.gate, str)

    def resolved(self) -> dict[str, Any]:
        """All settings with their defaults filled in, as kept with the run.

        Without what may differ when it is resumed: how many cycles to run, who is told, and the store, whose URL holds
        a password.
        A response that only observes decides nothing: it is left out, and with it what looks at the cycles, unless
        the gate goes by what they found.
        """
        without = {"store", "cycles", "notify"}
        if self.response.mode == "observe":
            without |= {"response"} if self.checks_decide else {"checks", "extensions", "response"}
        return self.model_dump(mode="json", exclude=without)


DEMO = Settings(name="demo", cycles=32)
"""What `palomar demo` runs: a baseline, and 24 cycles of training."""


def read_settings(path: Path) -> Settings:
    """Settings from a file, with paths in it made absolute. Raises ConfigError with file, line and key."""
    settings = read_config(path, Settings)
    folder = path.resolve().parent
    changes: dict[str, Any] = {"extensions": tuple(str(folder / item) for item in settings.extensions)}
    if is_file(settings.reward):
        changes["reward"] = str(folder / settings.reward)
    if isinstance(settings.gate, str) and is_file(settings.gate):
        changes["gate"] = str(folder / settings.gate)
    if settings.policy.path != "base" and ":" not in settings.policy.path:
        changes["policy"] = settings.policy.model_copy(update={"path": str(folder / settings.policy.path)})
    if isinstance(settings.source, LogSource):
        source: dict[str, Any] = {"paths": tuple(str(folder / item) for item in settings.source.paths)}
        if is_file(settings.source.format):
            source["format"] = str(folder / settings.source.format)
        changes["source"] = settings.source.model_copy(update=source)
    return settings.model_copy(update=changes)


def is_file(name: str) -> bool:
    """Whether a reward or format is given as a YAML file, and not by name."""
    return name.endswith((".yaml", ".yml"))


def reward_text(reward: str) -> tuple[str, str]:
    """YAML text of a reward, named or in a file, and what errors call it. Raises ConfigError."""
    if not is_file(reward):
        return bundled_text(reward), reward
    try:
        return Path(reward).read_text(encoding="utf-8"), reward
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(reward, None, None, f"cannot be read: {exc}") from exc


def reward_spec(reward: str) -> RewardSpec:
    """The spec of a reward, named or in a file. Raises ConfigError."""
    text, source = reward_text(reward)
    return parse_spec(text, source=source)
