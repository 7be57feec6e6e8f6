"""Edits are really applied: helpers are extracted, behaviour is kept, diffs and sizes are those of the text."""

from __future__ import annotations

import difflib

import lizard
import pytest

from palomar.data.edits import from_patch
from palomar.data.production.catalogue import modules
from palomar.data.production.grammar import MODULES, Patch
from palomar.data.production.patching import PatchError, apply_patch, as_edit, function_sizes, seeded, statement_flow


@pytest.mark.parametrize("name", MODULES)
def test_every_grouping_into_helpers_keeps_behaviour(name, sandbox, regroup):
    module = modules()[name]
    (reference,) = sandbox.run([(module, module.source((0, 0, 0)))])
    patches = [
        regroup(module, cuts, empty_first=empty_first)
        for cuts in range(2 ** (len(module.statements) - 1))
        for empty_first in (False, cuts % 16 == 0)
    ]
    texts = [apply_patch(module, (0, 0, 0), patch) for patch in patches]
    for patch, run in zip(patches, sandbox.run([(module, text) for text in texts]), strict=True):
        assert run == reference, patch


@pytest.mark.parametrize("name", MODULES)
def test_leaving_out_or_turning_round_statements_breaks_the_code(name, sandbox):
    module = modules()[name]
    order = tuple(range(len(module.statements)))
    (reference,) = sandbox.run([(module, module.source((0, 0, 0)))])
    broken = [order[:-1], order[1:], order[::-1]]
    runs = sandbox.run([(module, apply_patch(module, (0, 0, 0), Patch(0, 0, (some,)))) for some in broken])
    assert all(run != reference for run in runs)


def test_the_extracted_helper_is_as_a_person_would_write_it():
    text = apply_patch(modules()["parcel_price"], (0, 0, 0), Patch(0, 0, ((0,), (1, 2, 3), (4, 5, 6, 7, 8))))
    assert "    volume = 1" not in text.split("def _parcel_price_part1")[0]
    assert "    billed = _parcel_price_part1(weight_kg, sides_cm)\n" in text
    assert "    return _parcel_price_part2(zone, express, longest, billed)\n" in text
    assert text.split("def _parcel_price_part1")[1].startswith(
        "(weight_kg, sides_cm):\n    volume = 1\n    for side in sides_cm:\n        volume *= side\n"
        "    billed = max(weight_kg, volume / 5000)\n    return billed\n"
    )


def test_a_name_set_on_some_paths_only_comes_in_and_goes_out():
    flow = statement_flow("    if a:\n        b = c\n")
    assert (flow.needs, flow.sets, flow.may_set) == ({"a", "c"}, set(), {"b"})
    loop = statement_flow("    for x in xs:\n        total += x\n")
    assert (loop.needs, loop.sets, loop.may_set) == ({"xs", "total"}, set(), {"x", "total"})
    nested = statement_flow("    rows[key] = sorted((v, i) for i, v in pairs)\n")
    assert (nested.needs, nested.may_set) == ({"rows", "key", "sorted", "pairs"}, set())


def test_a_patch_that_names_an_unknown_statement_cannot_be_applied():
    with pytest.raises(PatchError, match="no statement s9"):
        apply_patch(modules()["queue_wait"], (0, 0, 0), Patch(0, 0, ((0, 9),)))


@pytest.mark.parametrize("name", MODULES)
def test_edits_equal_the_unified_diff_of_the_texts_and_lizard_on_the_whole_file(name, regroup):
    module = modules()[name]
    choices = seeded(module, 1, 2)
    before = module.source(choices)
    for cuts in (0, 0b1, 0b101010, 0b1111111):
        patch = Patch(1, 0, regroup(module, cuts).groups)
        after = apply_patch(module, choices, patch)
        edit = as_edit("src/core.py", before, after)
        diff = "".join(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/src/core.py", "b/src/core.py")
        )
        (parsed,) = from_patch(diff)
        assert (edit.hunks, edit.lines_added, edit.lines_removed) == (
            parsed.hunks, parsed.lines_added, parsed.lines_removed,
        )  # fmt: skip
        whole = lizard.analyze_file.analyze_source_code("core.py", after).function_list
        assert [(f.name, f.lines, f.complexity, f.parameters) for f in edit.functions_after] == [
            (f.name, f.nloc, f.cyclomatic_complexity, f.parameter_count) for f in whole
        ]
        assert edit.functions_before == function_sizes(before)
        assert len(edit.functions_after) == 1 + cuts.bit_count()
