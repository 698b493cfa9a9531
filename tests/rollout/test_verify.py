"""An episode replayed and compared: honest ones pass, every kind of difference is found, named and placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_app.core.errors import ContextOverflow, PolicyError
from task_app.core.types import AssistantMessage, Completion, DecisionRewards, Episode, ParseFailure, StepRewardFlags
from task_app.rollout import Limits
from task_app.rollout.verify import KINDS, Kind, verify_episode

OFF, SPARSE = StepRewardFlags("off"), StepRewardFlags("env_sparse")
LINES = ["right right", "what", "left right right", "stay"]


def changed(episode: Episode, turn: int, **changes: Any) -> Episode:
    """The episode with fields of one decision changed."""
    decisions = [replace(d, **changes) if d.turn == turn else d for d in episode.decisions]
    return replace(episode, decisions=tuple(decisions))


def step_changed(episode: Episode, step: int, **changes: Any) -> Episode:
    """The episode with fields of one step changed."""
    (turn,) = (d.turn for d in episode.decisions if step in [s.step for s in d.steps])
    steps = [replace(s, **changes) if s.step == step else s for s in episode.decisions[turn - 1].steps]
    return changed(episode, turn, steps=tuple(steps))


def recorded(episode: Episode, **changes: Any) -> DecisionRewards:
    """The third decision's record with fields changed."""
    record = episode.decisions[2].rewards
    assert record is not None
    return replace(record, **changes)


def answered(episode: Episode, turn: int, content: str) -> Episode:
    """The episode with another answer stored at one turn."""
    return changed(episode, turn, completion=Completion(AssistantMessage(content), "c"))


def test_every_kind_is_explained():
    assert list(KINDS) == list(get_args(Kind))


class TestHonest:
    @pytest.mark.parametrize("flags", [StepRewardFlags(), OFF, SPARSE], ids=lambda flags: flags.mode)
    def test_every_mode(self, play_one, toy, flags):
        assert verify_episode(toy(), play_one(LINES, flags=flags)).kind == "ok"

    @pytest.mark.parametrize(
        ("lines", "limits", "options", "cause"),
        [
            (["right", "right die right"], Limits(4), {}, "terminated"),
            (["right die"], Limits(4), {"length": 2}, "terminated"),
            (["right right"], Limits(9), {"length": 5}, "max_steps"),
            (["what", "right", "what", "what"], Limits(9, max_parse_failures=2), {}, "max_parse_failures"),
            (["what"], Limits(3, max_parse_failures=3), {}, "max_parse_failures"),
            (["right", ""], Limits(3), {}, "max_decisions"),
            (["right"], Limits(2), {"parts": 3}, "max_decisions"),
            (["right stay stay"], Limits(9, max_env_steps=4), {}, "max_env_steps"),
            (["right stay"], Limits(9, max_env_steps=4), {}, "max_env_steps"),
        ],
    )
    def test_every_end(self, play_one, toy, lines, limits, options, cause):
        episode = play_one(lines, limits=limits, **options)
        assert episode.cause == cause
        assert verify_episode(toy(**options), episode).kind == "ok"

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        lines=st.lists(
            st.lists(st.sampled_from(["left", "right", "die", "what"]), max_size=4).map(" ".join), min_size=1
        ),
        limit=st.integers(1, 5),
        failures=st.integers(0, 3),
        length=st.integers(1, 12),
        flags=st.sampled_from([StepRewardFlags(), OFF, SPARSE]),
    )
    def test_whatever_was_played(self, play_one, toy, lines, limit, failures, length, flags):
        episode = play_one(lines, limits=Limits(limit, failures), length=length, flags=flags)
        assert verify_episode(toy(length=length), episode).kind == "ok"

    def test_what_was_played_before_the_policy_failed(self, play_one, toy, speaker):
        gone = PolicyError("gone", retryable=False)
        episode = play_one(speaker(LINES, faults={(0, 3): [gone]}))
        assert (episode.status, len(episode.decisions)) == ("infra_error", 2)
        assert verify_episode(toy(), episode).kind == "ok"
        assert verify_episode(toy(), step_changed(episode, 1, reward=0.0)).kind == "reward"

    def test_what_was_played_before_the_world_failed(self, play_one, toy, toy_app):
        toy_app.faults = {"step": {4, 5, 6, 7, 8, 9, 10, 11, 12}}
        episode = play_one(["right right"])
        assert (episode.status, len(episode.decisions)) == ("infra_error", 1)
        toy_app.faults = {}
        assert verify_episode(toy(), episode).kind == "ok"

    def test_an_episode_whose_world_was_never_made(self, play_one, toy, toy_app):
        toy_app.faults = {"reset": range(1, 99)}
        episode = play_one(["right"])
        assert (episode.status, episode.decisions) == ("infra_error", ())
        assert verify_episode(toy(), replace(episode, tools=())).kind == "ok"

    def test_an_episode_aborted_when_it_had_just_ended(self, play_one, toy):
        episode = play_one(["right die"])
        late = replace(episode, status="aborted", cause="took longer than 3 s", outcome=None)
        assert verify_episode(toy(), late).kind == "ok"
        assert verify_episode(toy(), replace(late, terminated=False)).kind == "ok"

    def test_a_crafter_player_with_history(self, play_scripted, spec_of):
        for episode in play_scripted(range(3), 1, policy="expert", max_decisions=10, history_calls=4):
            assert verify_episode(spec_of(history_calls=4), episode).kind == "ok"


DIFFERENCES: list[tuple[Kind, str, Callable[[Episode], Episode]]] = [
    # `LINES` under a limit of 4: steps 0 1 | – | 2 3 4 | 5; reach_1 reach_2 | – | – reach_2 reach_3 | –
    ("action", "turn 1, step 1: action 'left' stored, the answer asks for 'right'",
     lambda e: step_changed(e, 1, action="left")),
    ("action", "turn 1, step 0: action 'fly' stored, the answer asks for 'right'",
     lambda e: step_changed(e, 0, action="fly")),
    ("action", "turn 3, step 4: action 'right' stored, the answer asks for no more",
     lambda e: answered(e, 3, "left right")),
    ("action", "turn 4: 1 actions stored, the answer asks for 2 and the world had not ended",
     lambda e: answered(e, 4, "stay stay")),
    ("action", "turn 2: parse failure none stored, the answer's is 'unknown_word'",
     lambda e: changed(e, 2, failure=None)),
    ("action", "turn 2: parse failure 'cut_off' stored, the answer's is 'unknown_word'",
     lambda e: changed(e, 2, failure=ParseFailure("cut_off", "what"))),
    ("action", "turn 4: parse failure 'unknown_word' stored, the answer's is none",
     lambda e: changed(e, 4, failure=ParseFailure("unknown_word", "stay"))),
    ("reward", "turn 3, step 2: reward -0.49 stored, -0.5 replayed", lambda e: step_changed(e, 2, reward=-0.49)),
    ("reward", "turn 1, step 0: reward 1.0000000000000002 stored, 1.0 replayed",
     lambda e: step_changed(e, 0, reward=1.0000000000000002)),
    ("event", "turn 1, step 1: events 'reach_3' stored, 'reach_2' replayed",
     lambda e: step_changed(e, 1, events=("reach_3",))),
    ("event", "turn 3, step 2: events 'reach_9' stored, none replayed",
     lambda e: step_changed(e, 2, events=("reach_9",))),
    ("event", "turn 1, step 0: events none stored, 'reach_1' replayed", lambda e: step_changed(e, 0, events=())),
    ("end", "turn 4, step 5: terminated True stored, False replayed", lambda e: step_changed(e, 5, terminated=True)),
    ("end", "turn 1, step 0: truncated True stored, False replayed", lambda e: step_changed(e, 0, truncated=True)),
    ("end", "status 'ok' stored, 'truncated' replayed", lambda e: replace(e, status="ok")),
    ("end", "cause 'max_steps' stored, 'max_decisions' replayed", lambda e: replace(e, cause="max_steps")),
    ("end", "terminated True stored, False replayed", lambda e: replace(e, terminated=True)),
    ("end", "truncated False stored, True replayed", lambda e: replace(e, truncated=False)),
    ("end", "outcome 4.0 stored, 3.0 replayed", lambda e: replace(e, outcome=4.0)),
    ("end", "outcome none stored, 3.0 replayed", lambda e: replace(e, outcome=None)),
    ("end", "outcome 3.0 stored, status aborted carries none", lambda e: replace(e, status="aborted")),
    ("end", "truncated True stored, status aborted is not truncated",
     lambda e: replace(e, status="aborted", outcome=None)),
    ("end", "terminated True stored with status aborted, the replayed world goes on",
     lambda e: replace(e, status="aborted", outcome=None, truncated=False, terminated=True)),
    ("end", "status infra_error stored, but it had ended before: max_decisions",
     lambda e: replace(e, status="infra_error", outcome=None, truncated=False)),
    ("end", "truncated (max_decisions) stored after 3 of 4 decisions, but nothing had ended it",
     lambda e: replace(e, decisions=e.decisions[:3])),
    ("decision_rewards", "turn 3: ach_delta 1 stored, 2 replayed",
     lambda e: changed(e, 3, rewards=recorded(e, ach_delta=1))),
    ("decision_rewards", "turn 3: unique_delta 2 stored, 1 replayed",
     lambda e: changed(e, 3, rewards=recorded(e, unique_delta=2))),
    ("decision_rewards", "turn 3: all 'reach_2' stored, 'reach_2, reach_3' replayed",
     lambda e: changed(e, 3, rewards=recorded(e, all=("reach_2",)))),
    ("decision_rewards", "turn 3: unique none stored, 'reach_3' replayed",
     lambda e: changed(e, 3, rewards=recorded(e, unique=()))),
    ("decision_rewards", "turn 3: turn 2 stored, 3 replayed",
     lambda e: changed(e, 3, rewards=recorded(e, turn=2))),
    ("decision_rewards", "turn 2: no decision record stored, mode is decision_stepwise",
     lambda e: changed(e, 2, rewards=None)),
    ("decision_rewards", "turn 1: a decision record stored, mode off has none", lambda e: replace(e, flags=OFF)),
    ("observation", "turn 3: the prompt differs in line 2: 'user: turn 3 of 4 at 7' stored, \"user: turn 3",
     lambda e: changed(e, 3, messages=(e.decisions[2].messages[0], {"role": "user", "content": "turn 3 of 4 at 7"}))),
    ("observation", "turn 1: the prompt differs in line 1: 'system: Run.' stored, 'system: Walk.' replayed",
     lambda e: changed(e, 1, messages=({"role": "system", "content": "Run."}, e.decisions[0].messages[1]))),
    ("observation", "turn 4: the prompt differs in line 2: no such line stored",
     lambda e: changed(e, 4, messages=e.decisions[3].messages[:1])),
    ("observation", "turn 2: the prompt differs in line 2", lambda e: changed(
        e, 2, messages=(e.decisions[1].messages[0], e.decisions[1].messages[1] | {"name": "x"}))),
    ("observation", "the tools differs", lambda e: replace(e, tools=({"type": "function"},))),
    ("damaged", "turn 2 is missing, turn 3 stands in its place",
     lambda e: replace(e, decisions=(e.decisions[0], *e.decisions[2:]))),
    ("damaged", "step 3 is missing, step 4 stands in its place",
     lambda e: changed(e, 3, steps=(e.decisions[2].steps[0], e.decisions[2].steps[2]))),
    ("damaged", "step-reward mode 'stepwise' is unknown (allowed: off, decision_stepwise, env_sparse)",
     lambda e: replace(e, flags=StepRewardFlags("stepwise"))),  # type: ignore[arg-type]
    ("damaged", "step-reward kind 'all' is unknown", lambda e: replace(
        e, flags=StepRewardFlags(kind="all"))),  # type: ignore[arg-type]
    ("damaged", "step-reward horizon 'far' is unknown", lambda e: replace(
        e, flags=StepRewardFlags(horizon="far"))),  # type: ignore[arg-type]
    ("unverifiable", "made by toy version '0'; toy version '1' is installed",
     lambda e: replace(e, task=replace(e.task, version="0"))),
    ("unverifiable", "made by corridor version '1'", lambda e: replace(e, task=replace(e.task, app="corridor"))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sentence", "tamper"), DIFFERENCES, ids=[sentence for _, sentence, _ in DIFFERENCES])
def test_each_difference_is_named_and_placed(play_one, toy, kind, sentence, tamper):
    verdict = verify_episode(toy(), tamper(play_one(LINES)))
    assert not verdict.passed
    assert (verdict.kind, verdict.sentence[: len(sentence)]) == (kind, sentence)
    if sentence.startswith("turn ") and kind != "damaged":
        assert sentence.startswith(f"turn {verdict.turn}")
        assert verdict.step is None or sentence.startswith(f"turn {verdict.turn}, step {verdict.step}:")


class TestEnds:
    def test_a_decision_cut_short_by_a_budget_that_is_not_stored(self, play_one, toy):
        episode = play_one(["right stay stay"], limits=Limits(9, max_env_steps=4))
        verdict = verify_episode(toy(), replace(episode, details={}))
        assert (verdict.kind, verdict.turn) == ("action", 2)

    def test_a_context_that_is_full_is_the_policys_to_say(self, play_one, toy, speaker):
        def overflow(request):
            if request.turn == 3:
                raise ContextOverflow("full", frozenset({request.episode_id}))

        episode = play_one(speaker(LINES, during=overflow))
        assert (episode.status, episode.cause, len(episode.decisions)) == ("truncated", "context", 2)
        assert verify_episode(toy(), episode).kind == "ok"
        assert verify_episode(toy(), replace(episode, cause="stopped")).kind == "ok"
        assert verify_episode(toy(), replace(episode, cause="tired")).kind == "end"

    def test_a_last_step_that_was_cut_off(self, play_one, toy):
        episode = play_one(["right", "right die right"])
        cut = changed(episode, 2, steps=episode.decisions[1].steps[:-1])
        assert verify_episode(toy(), cut).sentence == (
            "turn 2: 1 actions stored, the answer asks for 3 and the world had not ended"
        )

    def test_a_record_that_goes_on_after_death(self, play_one, toy):
        episode = play_one(["right die right", "right"])
        more = replace(play_one(["right", "left"]).decisions[1], turn=2, steps=episode.decisions[0].steps[:1])
        more = replace(more, steps=(replace(more.steps[0], step=2),))
        verdict = verify_episode(toy(), replace(episode, decisions=(*episode.decisions, more)))
        assert verdict.kind == "end"
        assert verdict.sentence == "turn 2: the record goes on, but the world was over after step 1"

    def test_a_death_that_is_denied(self, play_one, toy):
        episode = step_changed(play_one(["right die right", "right"]), 1, terminated=False)
        assert verify_episode(toy(), episode).kind == "action"
        lived = step_changed(play_one(["right die"]), 1, terminated=False)
        assert verify_episode(toy(), lived).sentence == "turn 1, step 1: terminated False stored, True replayed"

    def test_more_decisions_than_the_limit(self, play_one, toy):
        # The prompt says the limit too, so it is compared without texts.
        episode = replace(play_one(["right"]), max_decisions=3, prompt_hash="old")
        assert verify_episode(toy(), episode).sentence == "4 decisions stored, the limit is 3"

    def test_failures_in_a_row_that_would_have_ended_it_before(self, play_one, toy):
        episode = play_one(["what", "right", "what"], limits=Limits(3))
        claimed = replace(episode, cause="max_parse_failures")
        assert verify_episode(toy(), claimed).sentence == "cause 'max_parse_failures' stored, 'max_decisions' replayed"
        told_apart = play_one(["what", "right", "what", "what"], limits=Limits(4))
        assert verify_episode(toy(), replace(told_apart, cause="max_parse_failures")).kind == "ok"


class TestWhatCannotBeCompared:
    def test_other_texts_are_not_compared_and_the_verdict_says_so(self, play_one, toy):
        old = replace(play_one(LINES), prompt_hash="older")
        verdict = verify_episode(toy(), changed(old, 1, messages=()))
        assert (verdict.kind, verdict.passed) == ("ok, texts not compared", True)
        assert verify_episode(toy(), step_changed(old, 0, reward=2.0)).kind == "reward"

    def test_a_world_that_breaks_in_the_replay_proves_nothing(self, play_one, toy, toy_app):
        episode = play_one(["right right"])
        toy_app.faults = {"step": {toy_app.calls["step"] + 4}}
        verdict = verify_episode(toy(), episode)
        assert (verdict.kind, verdict.turn, verdict.step) == ("unverifiable", 2, 3)
        assert verdict.sentence == "turn 2, step 3 (right): the world raised RuntimeError: step broke"

    def test_a_world_that_cannot_be_made_proves_nothing(self, play_one, toy, toy_app):
        episode = play_one(["right"])
        toy_app.faults = {"reset": range(99)}
        verdict = verify_episode(toy(), episode)
        assert (verdict.kind, verdict.sentence) == ("unverifiable", "the world of seed 0 cannot be made: reset broke")

    def test_a_record_its_own_app_cannot_read_does_not_end_the_check(self, play_one, toy):
        strange = changed(play_one(["right"]), 2, completion=Completion(AssistantMessage(["?"]), "c"))  # type: ignore[arg-type]
        verdict = verify_episode(toy(), strange)
        assert (verdict.kind, verdict.passed) == ("unverifiable", False)
        assert "comparing it raised AttributeError" in verdict.sentence
