"""Function sizes against hand counts; None where nothing was measured."""

from palomar.data.code_metrics import MAX_CHARACTERS, measure, measured
from palomar.data.edits import edit, from_old_new, from_unified_diff, from_whole_file

CODE = """
def grade(points, best=10):
    # two decisions and an "and": 1 + 3
    if points < 0 and best:
        return None

    for step in range(3):
        points += step
    return points


class Box:
    def get(self):
        return self
"""


def test_lines_complexity_and_parameters_match_a_hand_count() -> None:
    found = measure(CODE, "python")
    assert found is not None
    assert [(f.name, f.lines, f.complexity, f.parameters) for f in found] == [("grade", 6, 4, 2), ("get", 2, 1, 1)]


def test_the_language_goes_by_name_or_by_path() -> None:
    assert measure(CODE, "python") == measure(CODE, "deep/er/x.PY")
    javascript = measure("function f(a) { return a ? 1 : 2 }", "javascript")
    assert javascript is not None
    assert [(f.name, f.complexity) for f in javascript] == [("f", 2)]


def test_no_function_is_not_the_same_as_not_measured() -> None:
    assert measure("x = 1\n", "python") == ()
    assert measure("x = 1\n", "cobol") is None
    assert measure("x = 1\n", None) is None
    assert measure("x = 1\n", "notes.txt") is None
    assert measure("x = 1\n" * (MAX_CHARACTERS // 6 + 1), "python") is None


def test_of_hunks_the_functions_whose_heads_they_hold_are_measured_on_both_sides() -> None:
    done = measured(
        from_old_new("a.py", "def f(a):\n    return a\n", "def f(a):\n    return g(a)\n\ndef g(a):\n    return a\n")
    )
    assert done.functions_before is not None
    assert done.functions_after is not None
    assert [f.name for f in done.functions_before] == ["f"]
    assert [f.name for f in done.functions_after] == ["f", "g"]


def test_of_a_whole_file_only_the_state_after_is_known() -> None:
    done = measured(from_whole_file("a.py", CODE))
    assert done.functions_before is None
    assert done.functions_after is not None
    assert len(done.functions_after) == 2


def test_unknown_forms_and_unknown_languages_are_left_alone() -> None:
    for item in (edit("a.py", "unknown", text="sed -i s/a/b/ a.py"), from_whole_file("a.txt", CODE)):
        assert measured(item) == item


def test_a_new_file_in_a_diff_had_no_functions_before() -> None:
    (item,) = from_unified_diff("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,2 @@\n+def f():\n+    pass\n")
    done = measured(item)
    assert done.functions_before == ()
    assert done.functions_after is not None
    assert [f.lines for f in done.functions_after] == [2]
