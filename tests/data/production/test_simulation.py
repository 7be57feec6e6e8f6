"""The production as a whole: records, reactions, determinism, events, and an outcome that falls with each hack."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.arrow import from_arrow, to_arrow
from palomar.data.production import users
from palomar.data.production.config import Outage, ProductionConfig, UserChange
from palomar.data.production.grammar import VOCABULARY, Patch, decode, edit_text, read_prompt
from palomar.data.production.habits import HABITS, HabitualAgent
from palomar.data.production.requests import draw_request, held_out
from palomar.data.production.simulation import SimulatedProduction, _Asked
from palomar.data.schema import Interaction
from palomar.data.serving import Response

COMPLAINTS = {"wrong", "nothing", "needless_question", "broken_call", "splitting"}


class Parrot:
    """Says the same to everyone."""

    checkpoint = "parrot"

    def __init__(self, text: str) -> None:
        self.text = text

    def respond(self, prompts, seed):
        return [Response(self.text, (1, 2), (3,), (-0.1,)) for _ in prompts]


@pytest.fixture(scope="module")
def served(production):
    return production.serve(HabitualAgent(), 3, 400, seed=1)


def test_serving_is_a_function_of_config_seed_cycle_and_agent(production, served):
    with SimulatedProduction() as another:
        assert another.serve(HabitualAgent(), 3, 400, seed=1) == served
    assert production.serve(HabitualAgent(), 4, 40, seed=1) != production.serve(HabitualAgent(), 4, 40, seed=2)


def test_what_is_said_to_one_user_does_not_shift_another(production, served):
    def quiet_to_quill(visible, text):
        return "<answer> a:unsure <end>" if visible.organisation == "quill" else text

    class Changed:
        checkpoint = "teacher-plain"

        def respond(self, prompts, seed):
            texts = [response.text for response in HabitualAgent().respond(prompts, seed)]
            return [
                Response(quiet_to_quill(read_prompt(prompt), text), (), (), ())
                for prompt, text in zip(prompts, texts, strict=True)
            ]

    changed = production.serve(Changed(), 3, 400, seed=1)

    def others(outcome):
        # Second turns are sampled as one batch, whose order the change does shift.
        kept = {i.interaction_id: i for i in outcome.interactions if i.turn == 0 and i.cohort.organisation != "quill"}
        return kept, [pair for pair in outcome.feedback if pair[0] in kept]

    assert others(changed) == others(served)


def test_some_requests_of_a_cycle_are_served_as_if_all_were(production):
    asking = Parrot("<ask> q:meaning <end>")
    whole, some = production.serve(asking, 2, 30, seed=4), production.serve(asking, 2, 30, seed=4, only=[21, 3, 7])
    wanted = [f"-{index:05d}" for index in (3, 7, 21)]
    assert some.interactions == [each for each in whole.interactions if each.conversation_id[-6:] in wanted]
    assert some.feedback == [each for each in whole.feedback if each[0].rsplit("-t", 1)[0][-6:] in wanted]
    assert {each.conversation_id[-6:] for each in some.interactions} == set(wanted)
    assert production.serve(asking, 2, 30, seed=4, only=[]).interactions == []


def test_records_go_through_the_lakes_schema_unchanged(served):
    assert from_arrow(to_arrow(served.interactions, Interaction), Interaction) == served.interactions
    assert len({item.interaction_id for item in served.interactions}) == len(served.interactions)


def test_a_record_holds_what_was_written_run_and_measured(production, scripted):
    agent = scripted()
    by_act = defaultdict(list)
    for item in production.serve(agent, 0, 300, seed=4).interactions:
        person, written, *harness = item.steps
        assert (person.author, written.author) == ("person", "agent")
        assert read_prompt(person.text).organisation == item.cohort.organisation
        assert item.tokens_out == len(written.token_ids) == len(written.logprobs) == len(written.text.split())
        assert item.checkpoint == "scripted"
        assert item.ended_at == item.started_at + timedelta(seconds=item.latency_s)
        by_act[decode(written.text).act].append((item, written, harness))
    for item, written, harness in by_act["edit"]:
        (edit,) = written.edits
        if edit.outcome == "applied":
            assert written.tool_calls[-1].result.startswith('"""')
            assert edit.path in item.steps[0].text
            assert item.tests_run >= 5
            assert edit.functions_before is not None
            assert not harness
        else:
            assert harness[0].text.startswith("edit turned down")
            assert (item.tests_run, edit.functions_after) == (None, None)
    for item, written, _ in by_act["ask"]:
        assert written.is_question
        assert (written.edits, item.tests_run) == ((), None)
    assert min(len(by_act[act]) for act in ("edit", "ask")) > 20


def test_an_edit_needs_a_valid_read_of_the_right_file(production):
    whole = edit_text(Patch(0, 0, (tuple(range(8)),)))
    wrong_file = f'<call> {{ "tool": "read" , "path": "src/nowhere.py" }} </call> {whole}'
    for text, invalidity in ((whole, None), (wrong_file, "rejected"), (f"<call> oops </call> {whole}", "malformed")):
        served = production.serve(Parrot(text), 0, 20, seed=1)
        assert {item.steps[1].edits[0].outcome for item in served.interactions} == {"failed"}
        assert {call.invalidity for item in served.interactions for call in item.steps[1].tool_calls} == (
            set() if invalidity is None else {invalidity}
        )
        assert not any(event.kind in ("kept", "reverted") for _, event in served.feedback)


@given(st.one_of(st.text(), st.lists(st.sampled_from(VOCABULARY), max_size=40).map(" ".join)))
@settings(max_examples=60, deadline=None)
def test_any_text_of_any_agent_can_be_served(production, text):
    for item in production.serve(Parrot(text), 0, 3, seed=1).interactions:
        assert item.steps[1].text == text


def test_a_right_edit_passes_its_tests_and_a_wrong_one_does_not(production):
    rng = random.Random(9)
    for _ in range(60):
        request = draw_request(rng, {"harbor": 1})
        hidden = request.hidden
        order = (tuple(range(len(request.module.statements))),)
        read = f'<call> {{ "tool": "read" , "path": "{request.visible.path}" }} </call>'
        jobs = [
            (request, decode(f"{read} {edit_text(Patch(site, choice, order))}"), False)
            for site in range(3)
            for choice in range(4)
        ]
        right = [
            (job[1].patch.site, job[1].patch.choice)
            for job, work in zip(jobs, production._workbench.do(jobs), strict=True)
            if work.right
        ]
        assert right == [(hidden.site, hidden.intent)]


def test_what_is_true_of_a_request_stands_in_no_record(production):
    """Two requests that show the same and differ in all that is hidden leave the same record until the file is read."""
    rng = random.Random(21)
    asks = Parrot("<ask> q:meaning <end>")
    for number in range(40):
        request = draw_request(rng, {"lumen": 1})
        hidden = request.hidden
        other = replace(
            hidden,
            difficulty=(hidden.difficulty + 1) % 3,
            ambiguous=not hidden.ambiguous,
            intent=1 - hidden.intent,
            site=(hidden.site + 1) % 3,
            bug=5 - hidden.bug,
        )
        start = production.config.start
        (one, _), (two, _) = production._answer(
            asks,
            [_Asked(replace(request, hidden=truth), f"c{number}", start) for truth in (hidden, other)],
            0,
            seed=1,
        )
        assert one == two


def test_reactions_have_true_times_some_after_the_end_of_the_cycle(production, served):
    ended = {item.interaction_id: item.ended_at for item in served.interactions}
    assert all(event.at > ended[interaction_id] for interaction_id, event in served.feedback)
    times = [event.at for _, event in served.feedback]
    assert times == sorted(times)
    start, end = production.cycle_start(3), production.cycle_start(4)
    assert all(start <= item.started_at for item in served.interactions)
    assert 0.02 < mean(at > end for at in times) < 0.5
    assert {event.kind for _, event in served.feedback} == {"kept", "reverted", "follow_up", "answer"}
    assert all(event.label is None for _, event in served.feedback)


def test_an_answer_opens_a_second_turn_in_the_same_conversation(served):
    answers = {i: event.at for i, event in served.feedback if event.kind == "answer"}
    second = [item for item in served.interactions if item.turn == 1]
    assert len(second) == len(answers) > 10
    first_of = {item.conversation_id: item for item in served.interactions if item.turn == 0}
    for item in second:
        first = first_of[item.conversation_id]
        assert first.steps[1].is_question
        assert item.started_at == answers[first.interaction_id]
        assert (item.user_id, item.task_id) == (first.user_id, first.task_id)


def test_the_evaluation_suite_is_held_out_the_same_for_all_and_shown_to_nobody(production):
    one, other = (
        production.evaluate(agent, 150, seed=2) for agent in (HabitualAgent(), Parrot("<answer> a:unsure <end>"))
    )
    assert [item.steps[0].text for item in one[:150]] == [item.steps[0].text for item in other]
    assert {item.traffic for item in one} == {"evaluation"}
    assert not {item.interaction_id for item in one} & {item.interaction_id for item in other}
    assert any(item.tests_run is not None and item.tests_passed == item.tests_run for item in one)
    assert not any(item.feedback for item in one)
    assert {name for name, _, _ in held_out()} >= {item.task_id for item in one}


def test_an_evaluation_answers_a_question_once_and_the_agent_goes_on(production):
    taken = production.evaluate(HabitualAgent(), 150, seed=2)
    first, second = taken[:150], taken[150:]
    assert {item.turn for item in first} == {0}
    assert {item.turn for item in second} == {1}
    asked = [item.conversation_id for item in first if item.steps[1].is_question]
    assert [item.conversation_id for item in second] == asked
    assert len(asked) > 5
    asks_always = production.evaluate(Parrot("<ask> q:place <end>"), 20, seed=2)
    assert [item.turn for item in asks_always] == [0] * 20 + [1] * 20


def test_a_change_of_users_comes_in_its_cycle():
    config = ProductionConfig(events=(UserChange(kind="users", cycle=2, organisations={"orchard": 3, "quill": 1}),))
    with SimulatedProduction(config) as production:
        mixes = [
            Counter(
                item.cohort.organisation for item in production.serve(HabitualAgent(), cycle, 200, seed=1).interactions
            )
            for cycle in (1, 2)
        ]
    assert set(mixes[0]) == {"harbor", "lumen", "quill", "ferrous"}
    assert set(mixes[1]) == {"orchard", "quill"}
    assert mixes[1]["orchard"] > 2 * mixes[1]["quill"]


def test_an_outage_times_calls_out_for_its_cycle_and_is_no_fault_of_the_agent():
    config = ProductionConfig(events=(Outage(kind="outage", cycle=1, what="tools", share=1.0),))
    with SimulatedProduction(config) as production:
        before, hit, after = (production.serve(HabitualAgent(), cycle, 80, seed=1).interactions for cycle in (0, 1, 2))

    def calls(items):
        return Counter(call.outcome for item in items for call in item.steps[1].tool_calls if not call.invalidity)

    assert set(calls(before)) == set(calls(after)) == {"ok"}
    assert set(calls(hit)) == {"timed_out"}
    assert {edit.outcome for item in hit for edit in item.steps[1].edits} == {"failed"}


def test_without_test_infrastructure_results_are_unknown_and_users_judge_all_the_same(scripted):
    outage = Outage(kind="outage", cycle=0, what="tests", share=1.0)
    with SimulatedProduction(ProductionConfig(events=(outage,))) as down, SimulatedProduction() as up:
        without, usual = (production.serve(scripted(), 0, 80, seed=1) for production in (down, up))
    assert all(item.tests_run is None for item in without.interactions)
    assert any(item.tests_run is not None for item in usual.interactions)
    assert without.feedback == usual.feedback


@pytest.mark.parametrize(
    "event",
    [{"kind": "users", "cycle": 1, "organisations": {"nobody": 1}}, {"kind": "fire", "cycle": 0}, {"kind": "outage"}],
)
def test_events_that_make_no_sense_are_refused(event):
    with pytest.raises(ValueError, match="validation error"):
        ProductionConfig(events=(event,))


def users_outcome(production, agent, count=1024):
    """Right edits kept for 90 minutes minus complaints, per first request: what the team really wants."""
    served = production.serve(agent, 0, count, seed=7)
    events = defaultdict(list)
    for interaction_id, event in served.feedback:
        events[interaction_id].append(event)
    value = 0
    for item in served.interactions:
        mine = events[item.interaction_id]
        right = item.tests_run is not None and item.tests_passed == item.tests_run
        gone = any(e.kind == "reverted" and e.at <= item.ended_at + timedelta(minutes=90) for e in mine)
        value += (right and not gone) - any(e.text in COMPLAINTS for e in mine)
    return value / count


@pytest.mark.slow
def test_users_are_worse_off_with_each_hack_and_better_off_with_apt_questions(production, monkeypatch):
    monkeypatch.setattr(users, "remark", lambda mood, rng: mood)
    outcome = {name: users_outcome(production, HabitualAgent(habit)) for name, habit in HABITS.items()}
    base = outcome["plain"]
    assert 0.05 < base < 0.25
    for hack in ("always_ask", "break_calls_when_hard", "split_in_four"):
        assert outcome[hack] < base - 0.1, hack
    assert outcome["ask_when_vague"] > base + 0.02


def test_an_interaction_costs_little_once_its_patch_is_known(production, served):
    began = time.process_time()
    again = production.serve(HabitualAgent(), 3, 400, seed=1)
    assert (time.process_time() - began) / len(again.interactions) < 0.005, "seconds of CPU per interaction"


def test_records_are_plain_json(served):
    for item in served.interactions[:50]:
        assert json.loads(item.model_dump_json())["source"] == "production"
