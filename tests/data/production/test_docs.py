"""docs/production.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import RootModel

from palomar.data.config import parse_config
from palomar.data.production import sandbox_worker, users
from palomar.data.production.config import USUAL_SHARES, ProductionConfig
from palomar.data.production.grammar import decode, read_prompt
from palomar.data.production.requests import ORGANISATION, WORK

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "production.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    table = TEXT.split(header, 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_numbers_of_the_user_model_are_the_codes():
    told = {name.strip("`"): float(value) for name, value, _ in rows("| name | value | meaning |")}
    known = {name: value for name, value in vars(users).items() if name.isupper() and isinstance(value, int | float)}
    assert told == known


def test_the_mixes_are_the_codes():
    for name, share, count, test, bug, change, domain in rows("| organisation | usual share"):
        profile = ORGANISATION[name]
        assert float(share.split(",")[0]) == USUAL_SHARES.get(name, 0)
        assert (int(count), domain) == (profile.users, profile.domain)
        assert [float(test), float(bug), float(change)] == list(profile.work.values())
    for name, *shares in rows("| kind of work | easy"):
        assert [float(share) for share in shares] == [*WORK[name].difficulty, WORK[name].ambiguous]


def test_the_example_prompt_and_completion_are_read():
    prompt, completion = re.findall(r"((?:^    \S.*\n)+)", TEXT, flags=re.MULTILINE)[:2]
    assert read_prompt(prompt).module == "parcel_price"
    assert decode(completion).patch.helpers == 1


def test_the_example_config_is_valid():
    (example,) = re.findall(r"```yaml\nsource:\n  kind: simulated\n  production:\n(.*?)```", TEXT, flags=re.DOTALL)
    config = parse_config(example, RootModel[ProductionConfig], source="docs").root
    assert config.shares(9) == USUAL_SHARES
    assert config.shares(10) == {"orchard": 0.6, "quill": 0.4}
    assert (config.outage(14, "tools"), config.outage(15, "tools"), config.outage(14, "tests")) == (0.8, 0, 0)


@pytest.mark.parametrize(
    "limit",
    [
        f"{sandbox_worker.CPU_S} s of CPU",
        f"{sandbox_worker.WALL_S:g} s of wall",
        f"{sandbox_worker.MEMORY_BYTES >> 20} MiB",
    ],
)
def test_the_limits_are_the_workers(limit):
    assert limit in TEXT
