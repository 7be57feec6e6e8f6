"""Edits in every form: what is read of each, and what is kept whole because it cannot be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palomar.data.edits import (
    for_call,
    from_old_new,
    from_patch,
    from_search_replace,
    from_shell,
    from_unified_diff,
    from_whole_file,
    language_of,
)
from palomar.data.schema import ToolCall

DIFF = """diff --git a/shop/cart.py b/shop/cart.py
index 1111111..2222222 100644
--- a/shop/cart.py
+++ b/shop/cart.py
@@ -1,3 +1,4 @@ def outside():
 def total(items):
-    return 0
+    value = sum(items)
+    return value
 # end
@@ -20,2 +21,1 @@
 a
-b
\\ No newline at end of file
diff --git a/new.js b/new.js
new file mode 100644
--- /dev/null
+++ b/new.js
@@ -0,0 +1,1 @@
+let x = 1
"""


def test_a_unified_diff_gives_one_edit_per_file_with_both_sides_of_each_hunk() -> None:
    cart, new = from_unified_diff(DIFF, "applied")
    assert (cart.path, cart.language, cart.form, cart.outcome) == ("shop/cart.py", "python", "unified_diff", "applied")
    assert (cart.lines_added, cart.lines_removed) == (2, 2)
    first, second = cart.hunks
    assert first.before == "def total(items):\n    return 0\n# end\n"
    assert first.after == "def total(items):\n    value = sum(items)\n    return value\n# end\n"
    assert (first.start_before, first.start_after) == (1, 1)
    assert (second.before, second.after, second.start_before) == ("a\nb", "a\n", 20)
    assert (new.path, new.language, new.hunks[0].before, new.lines_added) == ("new.js", "javascript", "", 1)


def test_crlf_diffs_and_leading_prose_are_read() -> None:
    found = from_unified_diff("Here is my patch:\r\n" + DIFF.replace("\n", "\r\n"))
    assert [(edit.path, edit.outcome) for edit in found] == [("shop/cart.py", "unknown"), ("new.js", "unknown")]
    assert "\r" not in found[0].hunks[0].after


def test_a_diff_whose_lines_do_not_add_up_is_kept_whole_and_alone() -> None:
    broken = DIFF.replace("@@ -1,3 +1,4 @@", "@@ -1,9 +1,9 @@")
    bad, good = from_unified_diff(broken)
    assert (bad.path, bad.form, bad.hunks, bad.lines_added) == ("shop/cart.py", "unknown", (), None)
    assert bad.text is not None
    assert "@@ -1,9 +1,9 @@" in bad.text
    assert (good.path, good.form) == ("new.js", "unified_diff")


@pytest.mark.parametrize("text", ["", "FLAG{x}", "--- not a diff", "diff of opinion", "+++ b/x"])
def test_what_is_no_diff_gives_no_edit(text: str) -> None:
    assert from_unified_diff(text) == ()


@given(st.lists(st.sampled_from(DIFF.splitlines()), max_size=30))
def test_no_shuffling_of_diff_lines_raises(lines: list[str]) -> None:
    for edit in from_unified_diff("\n".join(lines)):
        assert edit.hunks or edit.text


def test_search_and_replace_blocks_take_the_path_from_the_line_before() -> None:
    text = (
        "Change it:\n\napp/main.py\n```python\n"
        "<<<<<<< SEARCH\na = 1\nb = 2\n=======\na = 3\nb = 2\n>>>>>>> REPLACE\n```\n"
        "\n```python\n<<<<<<< SEARCH\n=======\nimport os\n>>>>>>> REPLACE\n```\n"
    )
    first, second = from_search_replace(text)
    assert (first.path, first.form) == ("app/main.py", "search_replace")
    assert (first.hunks[0].before, first.hunks[0].after) == ("a = 1\nb = 2\n", "a = 3\nb = 2\n")
    assert (first.lines_added, first.lines_removed) == (1, 1)
    assert (second.path, second.lines_added, second.lines_removed) == ("app/main.py", 1, 0)


def test_lines_of_a_replacement_are_counted_without_what_stays() -> None:
    edit = from_old_new("a.py", "x\nold\ny\n", "x\nnew\nnewer\ny\n")
    assert (edit.lines_added, edit.lines_removed) == (2, 1)


def test_of_a_whole_file_what_was_there_is_not_known() -> None:
    edit = from_whole_file("src/a.rs", "fn main() {}\n")
    assert (edit.language, edit.lines_added, edit.lines_removed, edit.hunks) == ("rust", 1, None, ())
    assert edit.text == "fn main() {}\n"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat > a.py <<'EOF'\nx = 1\nEOF", [("a.py", "heredoc", "x = 1\n")]),
        ("cat <<EOF > a.py && python a.py\nx = '$y'\nEOF\n", [("a.py", "heredoc", "x = '$y'\n")]),
        ("cd src && tee b.txt <<-END\n\tq\n\tEND\nls", [("b.txt", "heredoc", "\tq\n")]),
        ("cat a.py | head > /dev/null 2>&1", []),
        ("sed -i 's/a b/c/' x.py", [("x.py", "unknown", None)]),
        ("sed -i.bak -e 's/a/b/' -e 's/c/d/' x.py y.py", [("x.py", "unknown", None), ("y.py", "unknown", None)]),
        ("sed -n '1,3p' x.py", []),
        ("perl -pi -e 's/a/b/' x.py", [("x.py", "unknown", None)]),
        ("echo 'print(1)' > run.py; ls > out.txt", [("run.py", "unknown", None)]),
        ("sudo printf x >> /etc/motd", [("/etc/motd", "unknown", None)]),
        ("python3 -c \"open('a.py', 'w').write('x')\"", [("a.py", "unknown", None)]),
        ("python - <<EOF\np = 'a.py'\nwith open(p, 'w') as f:\n  f.write('')\nEOF", [("a.py", "unknown", None)]),
        ("python - <<EOF\nopen(sys.argv[1]).read()\nEOF", []),
        ("pytest -k 'a and b' 2> errors.txt", []),
        ("echo \"unclosed > file.py", []),
        ("cat <<EOF > a.py\nnever closed", [("a.py", "heredoc", "never closed\n")]),
        ("grep '>' a.py", []),
        ("", []),
    ],
)  # fmt: skip
def test_shell_commands_that_write_files(command: str, expected: list[tuple[str, str, str | None]]) -> None:
    found = from_shell(command)
    assert [(edit.path, edit.form) for edit in found] == [(path, form) for path, form, _ in expected]
    for edit, (_, form, text) in zip(found, expected, strict=True):
        assert edit.text == (command if form == "unknown" else text)


def test_appending_takes_nothing_away_so_its_hunk_is_known() -> None:
    (edit,) = from_shell("cat >> a.py <<'EOF'\nx = 1\nEOF")
    assert (edit.hunks[0].before, edit.hunks[0].after, edit.lines_removed) == ("", "x = 1\n", 0)


def test_a_diff_fed_to_git_apply_is_read_as_a_diff() -> None:
    found = from_shell(f"cd repo\ngit apply <<'EOF'\n{DIFF}EOF\n")
    assert [edit.path for edit in found] == ["shop/cart.py", "new.js"]
    assert found[0].form == "unified_diff"


@given(st.text(alphabet="catsed-i>< |&;'\"\\\n$EOF ./", max_size=80))
def test_no_shell_text_raises(command: str) -> None:
    from_shell(command)


EDITOR = "str_replace_editor"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
TWO = [{"old_string": "1", "new_string": "2"}] * 2


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, [("a.py", "old_new")]),
        (EDITOR, {"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": ""}, [("a.py", "old_new")]),
        (EDITOR, {"command": "create", "path": "a.py", "file_text": "x"}, [("a.py", "whole_file")]),
        (EDITOR, {"command": "insert", "path": "a.py", "insert_line": 3, "new_str": "x"}, [("a.py", "old_new")]),
        (EDITOR, {"command": "view", "path": "a.py"}, []),
        ("Write", {"file_path": "a.py", "content": "x"}, [("a.py", "whole_file")]),
        ("read_file", {"path": "a.py", "content": "x"}, []),
        ("MultiEdit", {"file_path": "a.py", "edits": TWO}, [("a.py", "old_new")] * 2),
        ("apply_patch", {"input": PATCH}, [("a.py", "unknown")]),
        ("apply", {"patch": DIFF}, [("shop/cart.py", "unified_diff"), ("new.js", "unified_diff")]),
        ("bash", {"command": "sed -i s/a/b/ a.py"}, [("a.py", "unknown")]),
        ("search", {"query": "x", "path": "."}, []),
        ("bash", {"command": ["ls"]}, []),
    ],
)  # fmt: skip
def test_tool_calls_are_edits_by_their_argument_names(
    name: str, arguments: dict[str, object], expected: list[tuple[str, str]]
) -> None:
    found = for_call(ToolCall(name=name, arguments=json.dumps(arguments), outcome="ok"))
    assert [(edit.path, edit.form) for edit in found] == expected
    assert all(edit.outcome == "applied" for edit in found)


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "refused", "not_run"])
def test_a_call_that_did_not_succeed_is_an_edit_that_failed(outcome: str) -> None:
    call = {"name": "write", "arguments": '{"path": "a", "content": "x"}', "outcome": outcome}
    (edit,) = for_call(ToolCall.model_validate(call))
    assert edit.outcome == "failed"


def test_a_begin_patch_text_counts_lines_per_file() -> None:
    text = (
        "*** Begin Patch\n*** Add File: a.py\n+x\n+y\n*** Delete File: b.py\n"
        "*** Update File: c.py\n@@ f\n-x\n+y\n z\n*** End Patch\n"
    )
    found = from_patch(text)
    assert [(edit.path, edit.lines_added, edit.lines_removed) for edit in found] == [
        ("a.py", 2, 0), ("b.py", 0, None), ("c.py", 1, 1),
    ]  # fmt: skip


def test_languages_go_by_file_ending() -> None:
    assert [language_of(p) for p in ("A.PY", "x\\y.tsx", "Makefile", "a.unknown", None)] == [
        "python", "typescript", None, None, None,
    ]  # fmt: skip
