"""Doing what the agent wrote: its call runs, its edit is applied, the tests are run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from palomar.data.production.catalogue import Module
from palomar.data.production.grammar import Completion, Patch
from palomar.data.production.patching import PatchError, apply_patch, as_edit, seeded
from palomar.data.production.requests import Request
from palomar.data.production.sandbox import Run, Sandbox
from palomar.data.schema import Edit, ToolCall

_REMEMBERED = 30_000
"""Applied edits kept in memory; then it starts anew."""


@dataclass(frozen=True)
class Work:
    """What came of one completion."""

    calls: tuple[ToolCall, ...]
    edit: Edit | None = None
    """None = no edit was tried."""
    refusal: str | None = None
    """Why the harness turned the edit down."""
    tests_passed: int | None = None
    """None where nothing was applied."""
    tests_run: int | None = None

    @property
    def right(self) -> bool:
        """The edit went in and passes every test of what the user meant."""
        return self.tests_passed is not None and self.tests_passed == self.tests_run


class Workbench:
    """Applies edits and runs tests, each distinct one once."""

    def __init__(self, workers: int) -> None:
        self._sandbox = Sandbox(workers)
        self._edits: dict[tuple[str, int, int, Patch], tuple[str, Edit] | PatchError] = {}

    def close(self) -> None:
        """Ends the worker processes."""
        self._sandbox.close()

    def do(self, jobs: Sequence[tuple[Request, Completion, bool]]) -> list[Work]:
        """Does what completions say; the flag says that tools are down for this one."""
        prepared = [self._prepare(request, completion, down) for request, completion, down in jobs]
        runs: list[tuple[Module, str]] = []
        for (request, _, _), (_, after) in zip(jobs, prepared, strict=True):
            if after is not None:
                hidden = request.hidden
                meant = seeded(request.module, hidden.site, hidden.intent)
                runs += [(request.module, request.module.source(meant)), (request.module, after)]
        results = iter(self._sandbox.run(runs))
        return [
            work if after is None else _tested(work, expected=next(results), found=next(results))
            for work, after in prepared
        ]

    def _prepare(self, request: Request, completion: Completion, down: bool) -> tuple[Work, str | None]:
        """The work before its tests, and the text to test."""
        before = request.module.source(seeded(request.module, request.hidden.site, request.hidden.bug))
        path = request.visible.path
        calls = tuple(_run_call(call, path, before, down) for call in completion.calls)
        if completion.act != "edit":
            return Work(calls), None
        applied: tuple[str, Edit] | PatchError
        if completion.patch is None:
            applied = PatchError(completion.problem)
        elif not any(call.invalidity is None and call.outcome == "ok" for call in calls):
            applied = PatchError(f"{path} has not been read")
        else:
            applied = self._apply(request, completion.patch, before)
        if isinstance(applied, PatchError):
            failed = Edit(path=path, form="unknown", outcome="failed", language="python", text=completion.act_text)
            return Work(calls, failed, f"edit turned down: {applied}"), None
        after, edit = applied
        return Work(calls, edit.model_copy(update={"path": path})), after

    def _apply(self, request: Request, patch: Patch, before: str) -> tuple[str, Edit] | PatchError:
        hidden = request.hidden
        key = (request.module.name, hidden.site, hidden.bug, patch)
        if key not in self._edits:
            if len(self._edits) >= _REMEMBERED:
                self._edits.clear()
            try:
                after = apply_patch(request.module, seeded(request.module, hidden.site, hidden.bug), patch)
                self._edits[key] = after, as_edit(request.visible.path, before, after)
            except PatchError as exc:
                self._edits[key] = exc
        return self._edits[key]


def _run_call(call: ToolCall, path: str, content: str, down: bool) -> ToolCall:
    """The call with what came of it; a call that is invalid as written does not run."""
    if call.invalidity is not None:
        return call
    if down:
        return call.model_copy(update={"outcome": "timed_out", "problem": "no answer from the tool"})
    if json.loads(call.arguments or "")["path"] != path:
        return call.model_copy(update={"invalidity": "rejected", "outcome": "failed", "problem": "no such file"})
    return call.model_copy(update={"outcome": "ok", "result": content})


def _tested(work: Work, *, expected: Run, found: Run) -> Work:
    passed = sum(want == got for want, got in zip(expected.results, found.results, strict=False))
    return Work(work.calls, work.edit, work.refusal, passed, len(expected.results))
