"""What every source must keep to, checked by one walk over the registry: a new source is tested by its fixture alone.

Fixtures lie in ``tests/data/fixtures/<source name>/``, one or more files.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palomar.data.arrow import from_arrow, to_arrow
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import Item, SourceFile, read_file, sources

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MAPPING = ".mapping.yaml"
FILES = sorted(
    (name, path)
    for name in sources()
    for folder in {name, name.replace("-", "_")}
    for path in (FIXTURES / folder).glob("**/*")
    if path.is_file() and not path.name.endswith(MAPPING)
)


def mapping_of(path: Path) -> str | None:
    """The mapping beside a fixture that can only be read through it."""
    beside = path.with_name(path.name.split(".")[0] + MAPPING)
    return str(beside) if beside.exists() else None


EACH = pytest.mark.parametrize(("name", "path"), FILES, ids=[f"{name}/{path.name}" for name, path in FILES])


def read(path: Path, fixture: Path | None = None) -> tuple[list[Item], SourceFile]:
    file = SourceFile(path, str(path))
    return list(read_file(file, mapping_of(fixture or path) or "auto")), file


def interactions(items: list[Item]) -> list[Interaction]:
    return [item for item in items if isinstance(item, Interaction)]


def assert_balanced(items: list[Item], file: SourceFile) -> None:
    refused = sum(isinstance(item, Quarantined) for item in items)
    assert file.records_read == file.records_kept + refused


@pytest.mark.parametrize("name", sources())
def test_every_source_has_a_fixture_and_a_row_in_the_docs(name: str) -> None:
    assert any(source == name for source, _ in FILES)
    table = (FIXTURES.parents[2] / "docs" / "formats.md").read_text()
    assert f"| `{name}` |" in table


@EACH
def test_a_fixture_is_recognised_by_its_own_source_and_no_other_is_as_sure(name: str, path: Path) -> None:
    if mapping_of(path):
        pytest.skip("read through a mapping of its own")
    head = SourceFile(path, path.name).head
    confidence = {other: reader.sniff(head) for other, reader in sources().items()}
    own = confidence.pop(name)
    assert 0.3 <= own <= 1.0
    assert all(0.0 <= other < own for other in confidence.values()), confidence


@EACH
def test_a_fixture_is_recognised_whatever_its_name(name: str, path: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "unnamed"
    renamed.write_bytes(path.read_bytes())
    _, file = read(renamed, path)
    assert file.format == name


@EACH
def test_a_fixture_gives_interactions_that_survive_the_lake_and_adds_up(name: str, path: Path) -> None:
    items, file = read(path)
    found = interactions(items)
    assert found
    assert all(item.kind != "unexpected" for item in items if isinstance(item, Quarantined))
    assert_balanced(items, file)
    assert from_arrow(to_arrow(found, Interaction), Interaction) == found
    for item in found:
        assert item.origin.startswith(str(path))
        assert item.origin_record is not None
        assert any(step.author == "agent" for step in item.steps)


@EACH
def test_the_same_log_under_another_name_has_the_same_ids_and_content(name: str, path: Path, tmp_path: Path) -> None:
    first = interactions(read(path)[0])
    assert len({item.interaction_id for item in first}) == len(first)
    copy = tmp_path / f"copy{path.suffix}"
    copy.write_bytes(path.read_bytes())
    second = interactions(read(copy, path)[0])
    place = {"origin": "", "origin_record": None}
    assert [item.model_copy(update=place) for item in second] == [item.model_copy(update=place) for item in first]


@EACH
def test_turns_are_numbered_and_a_follow_up_is_what_the_person_says_next(name: str, path: Path) -> None:
    turns: dict[str, list[Interaction]] = {}
    for item in interactions(read(path)[0]):
        if item.conversation_id is not None:
            turns.setdefault(item.conversation_id, []).append(item)
    for conversation in turns.values():
        assert [item.turn for item in conversation] == list(range(len(conversation)))
        for item, later in pairwise(conversation):
            reactions = [f.text for f in item.feedback if f.kind in ("follow_up", "answer")]
            opening = next(step for step in later.steps if step.author == "person")
            assert not reactions or opening.text in reactions  # a trainer's dump may not know the reaction


@EACH
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0))
def test_a_file_cut_off_anywhere_never_raises_and_adds_up(name: str, path: Path, share: float, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / path.name
    cut.write_bytes(data[: int(len(data) * share)])
    items, file = read(cut, path)
    assert items
    assert_balanced(items, file)
    assert all(item.kind != "unexpected" for item in items if isinstance(item, Quarantined)), items


@EACH
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.randoms(use_true_random=False))
def test_a_file_with_garbled_bytes_never_raises_and_adds_up(
    name: str, path: Path, seed: object, tmp_path: Path
) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(3):
        data[seed.randrange(len(data))] = seed.randrange(256)  # type: ignore[attr-defined]
    garbled = tmp_path / path.name
    garbled.write_bytes(bytes(data))
    items, file = read(garbled, path)
    assert_balanced(items, file)


@EACH
def test_a_damaged_line_costs_only_itself(name: str, path: Path, tmp_path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    if SourceFile(path, path.name).head.shape != "jsonl" or len(lines) < 3:
        pytest.skip("not a file of one record a line")
    damaged = tmp_path / path.name
    damaged.write_bytes(b"\n".join([*lines[:1], b'{"half": [1, 2', *lines[1:]]))
    items, file = read(damaged, path)
    assert {item.interaction_id for item in interactions(items)} == {
        item.interaction_id for item in interactions(read(path)[0])
    }
    entries = [item for item in items if isinstance(item, Quarantined) and "half" in item.excerpt]
    assert [(entry.line, entry.kind) for entry in entries] == [(2, "damaged")]
    assert_balanced(items, file)


@EACH
def test_odd_shapes_of_a_record_are_refused_by_name_not_by_accident(name: str, path: Path, tmp_path: Path) -> None:
    """Values of the first record are replaced by every other JSON type; the reader foresees each."""
    if SourceFile(path, path.name).head.shape not in ("json", "jsonl"):
        pytest.skip("not JSON")
    text = path.read_text()
    first = json.loads(text if SourceFile(path, path.name).head.shape == "json" else text.split("\n", 1)[0])
    odd = tmp_path / f"odd{path.suffix}"
    variants = _variants(first, 0)
    for variant in variants[:: len(variants) // 200 + 1]:
        odd.write_text(json.dumps(variant) + "\n")
        for item in read_file(SourceFile(odd, "odd"), mapping_of(path) or name):
            assert not (isinstance(item, Quarantined) and item.kind == "unexpected"), (item.problem, variant)


def _variants(value: object, depth: int) -> list[object]:
    """The value with one of its parts (to a depth of 3) replaced by a value of another type."""
    others: list[object] = [None, True, -1, 1.5, "text", [], [None], [[]], {}, {"a": 1}, "\ud83d"]
    if depth == 3:
        return []
    found: list[object] = []
    if isinstance(value, dict):
        for key, part in value.items():
            found += [{**value, key: other} for other in others]
            found += [{**value, key: inner} for inner in _variants(part, depth + 1)]
    elif isinstance(value, list):
        for index, part in list(enumerate(value))[:3]:
            found += [[*value[:index], other, *value[index + 1 :]] for other in others]
            found += [[*value[:index], inner, *value[index + 1 :]] for inner in _variants(part, depth + 1)]
    return found
