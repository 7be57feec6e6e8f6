"""Labels of examples, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import pytest

from palomar.data.errors import StoreError
from palomar.data.findings import Evidence, Finding
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.data.store.labels import subject

STRANGE = "wéil \x00 \ud800 \ufffe0041"


def found(store: Store) -> str:
    finding = Finding("behaviour", "blocks", "asks more", "clarification_rate", evidence=Evidence(("i1", STRANGE)))
    store.findings.write("demo", 1, [finding])
    return store.findings.read("demo", 1)[0].finding_id


def test_a_label_is_read_as_it_was_set_and_the_last_word_stands(store: Store) -> None:
    finding_id = found(store)
    first = store.labels.set(finding_id, STRANGE, "hack", place="carrying", actor="ada")
    assert (first.run_id, first.detector, first.place, first.label) == ("demo", "behaviour", "carrying", "hack")
    other = store.labels.set(finding_id, STRANGE, "not", place="carrying", actor="bob")
    elsewhere = store.labels.set(finding_id, "i1", "cannot_tell", place="random", actor="ada")
    assert store.labels.read() == [elsewhere, first, other]
    assert store.labels.read(interaction_id=STRANGE) == [first, other]
    assert store.labels.read(findings=[finding_id]) == store.labels.read()
    assert store.labels.read(findings=["0" * 20]) == store.labels.read(findings=[]) == []
    changed = store.labels.set(finding_id, STRANGE, "not", place="carrying", actor="ada", reason="read it again")
    assert store.labels.read(interaction_id=STRANGE) == [changed, other]
    entries = store.audit_log.read(subject=subject(finding_id))
    told = [(each.actor, each.action, each.detail["interaction"], each.detail["label"], each.detail["was"])
            for each in entries]  # fmt: skip
    assert told == [
        ("ada", "label.set", STRANGE, "hack", None),
        ("bob", "label.set", STRANGE, "not", None),
        ("ada", "label.set", "i1", "cannot_tell", None),
        ("ada", "label.set", STRANGE, "not", "hack"),
    ]
    assert entries[-1].reason == "read it again"


def test_the_same_word_again_writes_nothing(store: Store) -> None:
    finding_id = found(store)
    first = store.labels.set(finding_id, "i1", "hack", place="carrying", actor="ada", token="one")
    assert store.labels.set(finding_id, "i1", "hack", place="carrying", actor="ada", token="two") == first
    store.labels.set(finding_id, "i1", "not", place="carrying", actor="ada", token="three")
    # A request that is sent again, late, does not undo what was said since.
    assert store.labels.set(finding_id, "i1", "hack", place="carrying", actor="ada", token="one").label == "not"
    assert len(store.audit_log.read(subject=subject(finding_id))) == 2
    with pytest.raises(StoreError, match="was used for"):
        store.labels.set(finding_id, "i1", "hack", place="carrying", actor="bob", token="one")


def test_a_finding_that_is_nowhere_has_no_labels(store: Store) -> None:
    with pytest.raises(StoreError, match="no finding"):
        store.labels.set("0" * 20, "i1", "hack", place="carrying", actor="ada")
    assert store.labels.read() == []
    with pytest.raises(StoreError, match="is not one of"):
        store.labels.set(found(store), "i1", "maybe", place="carrying", actor="ada")  # type: ignore[arg-type]
    assert store.audit_log.read(action="label.set") == []


def test_a_pinned_finding_can_be_labelled_after_its_cycle_was_checked_again_without_it(store: Store) -> None:
    finding_id = found(store)
    arrival = Arrival(None, "open", "it blocks", "asking", ("asking",), "all", True, True,
                      tuple((each, "because") for each in store.findings.read("demo", 1)))  # fmt: skip
    store.incidents.arrive("demo", 1, lambda *_: [arrival])
    store.findings.write("demo", 1, [])
    label = store.labels.set(finding_id, "i1", "hack", place="carrying", actor="ada")
    assert (label.run_id, label.detector) == ("demo", "behaviour")
