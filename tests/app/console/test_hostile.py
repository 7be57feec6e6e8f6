"""Text of agents, tools and users stays text: what Streamlit is told to read as Markdown never holds it bare."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app import console
from palomar.app.console.plain import MAX_SHOWN, plain, shown
from palomar.app.console.tables import in_words, slice_in_words
from palomar.app.console.views.steps import diff_of
from tests.app.console.conftest import outside_code

FOLDER = Path(console.__file__).parent
MARKDOWN = ("markdown", "caption", "info", "warning", "error", "success", "title", "header", "subheader")


@pytest.mark.parametrize(
    "query", [{"name": "overview"}, {"name": "behaviour"}, {"name": "trajectory"}, {"name": "trajectory", "id": True}]
)
def test_hostile_text_is_never_markdown_on_any_page(
    page: Callable[..., AppTest], logs: Path, hostile_id: str, query: dict[str, str]
) -> None:
    if "id" in query:
        query = {**query, "id": hostile_id}
    app = page(logs, **query)
    assert not app.exception
    everything = [str(item.value) for kind in MARKDOWN for item in app.get(kind)]
    labels = [item.label for kind in ("selectbox", "button", "expander", "number_input") for item in app.get(kind)]
    for text in (*map(outside_code, everything), *labels):
        for attack in (
            "beacon.invalid",
            "<script",
            "<iframe",
            "javascript:",
            "LaTeX",
            ":red[directive",
            "\u202e",
            "\x1b",
        ):
            assert attack not in text
    if "id" in query:
        # It is there to be read: as text, with what reverses or hides it made visible.
        bodies = [item.value for item in (*app.text, *app.code)]
        assert sum("<script>document.title='owned'</script>" in body for body in bodies) > 10
        assert not any(hidden in body for body in bodies for hidden in ("\u202e", "\x1b", "\x07", "\x00"))
        assert all(len(body) <= 2 * MAX_SHOWN for body in bodies)
        assert sum(len(body) for body in bodies) < 500_000
        assert any("more characters are in the record" in item.value for item in app.caption)
        assert any("10 more tool calls are in the record" in item.value for item in app.caption)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "`",
        "``a`",
        "a`b``c```",
        "![x](http://beacon.invalid)",
        "<b>",
        "a\n\n# b",
        "  ",
        "",
        "$x$",
        ":red[x]",
        "`" * 300,
    ],
)
def test_plain_is_one_code_span_whatever_it_holds(text: str) -> None:
    said = plain(text)
    assert "\n" not in said
    if text.strip():
        fence = re.match("`+", said)
        assert fence is not None
        assert said.endswith(f" {fence[0]}")
        # No run of backticks within is as long as the fence, so that nothing inside can end the span.
        assert len(fence[0]) not in [len(run) for run in re.findall("`+", said[len(fence[0]) : -len(fence[0])])]
    else:
        assert said == "(empty)"


@pytest.mark.parametrize(
    "name", ["![x](http://beacon.invalid)", "<b>:x", "a:b", "![x](http://b=1", "__a__", "[a](b)=c"]
)
def test_names_of_statistics_and_slices_that_are_not_ours_are_code_spans(name: str) -> None:
    for said in (in_words(name), slice_in_words(name), slice_in_words(f"predicted_failure={name}")):
        assert not re.search(r"[\[\]<>()!]|__", outside_code(said)), said


def test_long_text_is_cut_and_the_rest_is_counted() -> None:
    assert shown("x" * 1_000_000) == ("x" * MAX_SHOWN, 1_000_000 - MAX_SHOWN)
    assert len(plain("x" * 1_000_000)) < 220


def test_a_diff_of_long_hostile_texts_is_cut_before_it_is_compared() -> None:
    said = diff_of("\n".join("a" * (n % 7) for n in range(300_000)), "\n".join("a" * (n % 5) for n in range(300_000)))
    assert len(said) < 40_000
    assert "are not compared here" in said
    assert diff_of("a\nb", "a\nc") == "@@ -1,2 +1,2 @@\n a\n-b\n+c"
    assert diff_of("same", "same") == "\\ no line differs"


# -- the rule itself, over the sources -------------------------------------------------------------------------------

BANNED = {
    "html": "renders markup",
    "altair_chart": "66 ms a rerun; give a dictionary to vega_lite_chart",
    "line_chart": "adds points to hover at for each row",
    "write": "reads strings as Markdown",
    "table": "reads cells as Markdown",
    "toast": "reads Markdown",
    "map": "fetches tiles from outside",
    "image": "fetches addresses",
    "components": "renders markup",
    "iframe": "renders markup",
}
STYLE_SHEET = "st.html(STYLE)"
"""A path to our own style sheet; Streamlit wraps a file of that kind in a style element."""
MARKDOWN_CALLS = ("markdown", "caption", "info", "warning", "error", "success", "title", "header", "subheader", "badge")
SAFE_CALLS = {
    "about",
    "badge",
    "because",
    "family_words",
    "cause_words",
    "figure",
    "finding_words",
    "gate_badge",
    "gate_word_badge",
    "headline",
    "in_words",
    "incident_words",
    "plain",
    "reading_words",
    "same_by",
    "sentence",
    "severity_badge",
    "silence_words",
    "slice_in_words",
    "span",
    "stale_words",
    "standing",
    "state_badge",
    "unit",
    "until_words",
    "utc",
    "watch_line",
    "where",
}
"""Functions whose answers may stand in Markdown: each gives our own words, or foreign ones through `plain`."""
FOREIGN = {
    "text",
    "thinking",
    "name",
    "path",
    "problem",
    "arguments",
    "result",
    "role",
    "branch",
    "interaction_id",
    "task_id",
    "origin",
    "checkpoint",
    "organisation",
    "work_kind",
    "reason",
    "stop_reason",
    "slice",
    "source",
}
"""Attributes of records that others wrote."""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node


def bare(node: ast.AST) -> Iterator[str]:
    """Foreign attributes in an expression that do not go through a safe function."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in SAFE_CALLS:
            return
    if isinstance(node, ast.Attribute) and node.attr in FOREIGN:
        yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from bare(child)


def faults(source: str) -> list[str]:
    """What breaks the rule in a module."""
    tree = ast.parse(source)
    found = [
        f"{name}: {BANNED[name]}"
        for name, node in calls(tree)
        if name in BANNED and _is_streamlit(node) and ast.unparse(node) != STYLE_SHEET
    ]
    for name, node in calls(tree):
        for word in node.keywords:
            if word.arg in ("unsafe_allow_html", "unsafe_allow_javascript"):
                found.append(f"{word.arg}: renders markup")
        if name in ("cache_data", "cache_resource") and not {"max_entries"} <= {word.arg for word in node.keywords}:
            found.append(f"{name} without max_entries: grows for ever")
        if name in MARKDOWN_CALLS and node.args:
            found += [f"{name}: {text} is not ours and is read as Markdown" for text in bare(node.args[0])]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Attribute) and decorator.attr in ("cache_data", "cache_resource"):
                    found.append(f"{decorator.attr} without max_entries: grows for ever")
    return found


def _is_streamlit(node: ast.Call) -> bool:
    owner = ast.unparse(node.func).rsplit(".", 1)[0]
    return owner in ("st", "st.sidebar", "left", "right", "middle", "column", "st.components.v1")


SOURCES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_page_renders_markup_or_reads_foreign_text_as_markdown(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "st.markdown('x', unsafe_allow_html=True)",
        "st.html(x)",
        "st.altair_chart(x)",
        "st.line_chart(x)",
        "st.write(step.text)",
        "left.table(x)",
        "st.markdown(f'**{call.name}**')",
        "st.caption('by ' + item.checkpoint)",
        "st.error(str(event.text))",
        "@st.cache_data\ndef f(): ...",
        "@st.cache_data(ttl=3)\ndef f(): ...",
    ],
)
def test_the_rule_finds_each_fault(source: str) -> None:
    assert faults(source) != []


def test_the_rule_lets_plain_text_pass() -> None:
    assert faults("st.markdown(f'**{plain(call.name)}**')\nst.text(step.text)\nst.code(call.result)") == []
    assert len(SOURCES) > 10
