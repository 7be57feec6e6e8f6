"""The modules are real code with real tests: bugs fail, fixes pass, readings differ."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import combinations

import pytest

from palomar.data.code_metrics import measure
from palomar.data.production.catalogue import modules
from palomar.data.production.grammar import CHOICES, MODULES, SITES
from palomar.data.production.patching import seeded
from palomar.data.production.requests import WRONG, held_out


def test_there_are_at_least_24_modules_and_the_vocabulary_names_each():
    assert tuple(modules()) == MODULES
    assert len(MODULES) >= 24


def test_bugs_are_of_many_kinds():
    kinds = Counter(site.bug for module in modules().values() for site in module.sites)
    assert sum(kinds.values()) >= 3 * 24
    assert len(kinds) >= 6
    assert min(kinds[kind] for kind in ("off-by-one", "wrong-operator", "wrong-default", "missing-edge-case")) >= 5


@pytest.mark.parametrize("name", MODULES)
def test_every_expression_at_a_site_behaves_differently_on_the_tests(name, sandbox):
    module = modules()[name]
    for site in range(SITES):
        jobs = [(module, module.source(seeded(module, site, choice))) for choice in range(CHOICES)]
        runs = sandbox.run(jobs)
        assert all(run.status == "ran" for run in runs)
        for one, other in combinations(range(CHOICES), 2):
            assert runs[one].results != runs[other].results, f"site {site}: expressions {one} and {other}"


@pytest.mark.parametrize("name", MODULES)
def test_code_is_of_a_size_that_people_write_and_its_tests_are_several(name):
    module = modules()[name]
    (function,) = measure(module.source((0, 0, 0)), "python")
    assert 10 <= function.lines <= 20
    assert len(module.cases) >= 5
    ast.parse(module.source((3, 2, 1)))


def test_seeding_a_bug_changes_only_its_site():
    module = modules()["parcel_price"]
    right, buggy = module.source((0, 0, 0)), module.source(seeded(module, 2, 3))
    assert buggy == right.replace("price *= 1.5", "price += 1.5")


def test_one_bug_of_each_module_is_held_out():
    assert Counter(name for name, _, _ in held_out()) == dict.fromkeys(MODULES, 1)
    assert {bug for _, _, bug in held_out()} == set(WRONG)
    assert {site for _, site, _ in held_out()} == set(range(SITES))
