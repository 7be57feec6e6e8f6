"""How audits are scored by `palomar bench audit`: by the name of the hole, and every way on its own."""

from __future__ import annotations

from palomar.app.bench.audit import WAYS, Audited, scores
from palomar.app.bench.planted import HOLES, while_planted
from palomar.reward.spec import bundled, parse_spec, version
from palomar.reward.term import TERMS

NOTHING: frozenset[str] = frozenset()
THREE = frozenset({"broken call", "question", "split"})


def audited(seed: int, **changes: frozenset[str]) -> Audited:
    """All is well but for what is named: ``{"naive/logs": ...}``."""
    said = {(name, way): NOTHING for name in ("naive", "sound") for way in WAYS}
    said |= {("naive", way): THREE for way in ("logs", "probes")}
    for hole in HOLES:
        said |= {(hole.name, way): NOTHING for way in WAYS} | {(f"{hole.name}: variant", way): NOTHING for way in WAYS}
        said[hole.name, "probes"] = hole.behaviours
    for key, flagged in changes.items():
        name, way = key.split("/")
        said[name, way] = flagged
    return Audited(seed, 2_000, said, {"sound": NOTHING})


def told(*each: Audited) -> dict[str, tuple[float | None, bool | None]]:
    return {measure.measure: (measure.value, measure.met) for measure in scores(each)}


def test_all_aims_are_met_where_every_hole_is_named_and_nothing_else() -> None:
    found = told(audited(1), audited(2))
    assert {met for _, met in found.values()} == {True, None}


def test_another_hole_is_no_stand_in_for_the_one_that_was_missed() -> None:
    found = told(audited(1), audited(2, **{"naive/logs": THREE - {"split"} | {"no-op edit"}}))
    assert found["naive, logs: all three holes named"] == (0.5, False)
    assert found["naive, logs: function splitting named"] == (0.5, None)
    assert found["naive, logs: edit deferral named"] == (1.0, None)
    assert found["naive, probes: all three holes named"] == (1.0, True)
    hole = HOLES[0].name
    missed = told(audited(1, **{f"{hole}/probes": frozenset({"question"})}))
    assert missed[f"planted, {hole}: found"] == (0.0, False)


def test_one_flag_of_any_way_makes_a_sound_reward_loud() -> None:
    found = told(audited(1, **{"sound/probes": frozenset({"question"}), f"{HOLES[2].name}: variant/spec": THREE}))
    assert found["sound, probes: nothing flagged"] == (0.0, False)
    assert found["sound, logs: nothing flagged"] == (1.0, True)
    assert found[f"planted, {HOLES[2].name}: the sound variant is quiet"] == (0.0, False)


def test_planted_terms_are_there_only_while_planted() -> None:
    before = set(TERMS)
    with while_planted():
        versions = {version(parse_spec(text)) for hole in HOLES for text in (hole.hole, hole.variant)}
        assert len(set(TERMS) - before) == 2
    assert set(TERMS) == before
    assert len(versions) == 2 * len(HOLES)
    assert version(bundled("sound")) not in versions
