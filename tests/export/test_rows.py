"""The form of a row, and that a database and an episode just played give the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from task_app.collect import reward_vector
from task_app.core.types import AssistantMessage, Episode, StepRewardFlags, ToolCall
from task_app.export import SftOptions, export_sft
from task_app.export.rows import NO_ARGUMENTS, UNPARSED, RowForm, RowMaker, facts_of
from task_app.store import TraceStore


def lines(episode: Episode, form: RowForm = "openai") -> list[str]:
    return list(RowMaker(form).rows(*facts_of(episode)))


def test_a_row_is_the_decision_as_it_was_prompted_and_answered(known, export, by_id):
    first = export(known, run_id=("night",))[0]
    episode = by_id["night-1a"]
    assert list(first) == ["messages", "tools", "metadata"]
    assert first["messages"] == [
        *episode.decisions[0].messages,
        {
            "role": "assistant",
            "content": "I look around.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "interact_many", "arguments": '{"actions": ["noop", "do"]}'},
                }
            ],
        },
    ]
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant"]
    assert first["tools"] == list(episode.tools)
    assert first["metadata"] == {
        "schema": 1,
        "app": "crafter",
        "app_version": episode.task.version,
        "seed": 1,
        "run_id": "night",
        "episode_id": "night-1a",
        "turn": 1,
        "policy": "chat",
        "policy_version": "1",
        "model": "gpt-4o-mini",
        "prompt_hash": episode.prompt_hash,
        "unique_delta": 1,
        "ach_delta": 1,
        "outcome": 2.0,
        "episode_return": 2.0,
    }


def test_tools_keep_the_order_of_their_keys_since_a_template_prints_them_so(known, export, by_id):
    (tool,) = export(known)[0]["tools"]
    assert json.dumps(tool) == json.dumps(by_id["night-1a"].tools[0])


def test_the_deltas_are_the_decisions_own_and_the_return_is_the_episodes(known, export):
    found = {
        (row["metadata"]["episode_id"], row["metadata"]["turn"]): tuple(
            row["metadata"][key] for key in ("unique_delta", "ach_delta", "outcome", "episode_return")
        )
        for row in export(known)
    }
    assert found["night-1a", 3] == (1, 2, 2.0, 2.0)
    assert found["night-2a", 4] == (0, 0, 3.0, 3.0)
    assert found["day-1", 2] == (1, 1, 1.0, 1.0)
    assert found["day-2", 3] == (0, 1, 2.0, 2.0)
    assert found["base-2", 1] == (0, 0, 1.0, 1.0)


FLAGS = [
    StepRewardFlags(),
    StepRewardFlags("off"),
    StepRewardFlags("env_sparse"),
    StepRewardFlags(kind="absolute"),
    StepRewardFlags(indicator_lambda=0.1),
    StepRewardFlags(indicator_lambda=0.7, beta=0.3),
    StepRewardFlags(beta=0.1, horizon="episode"),
]


@pytest.mark.parametrize("form", ["openai", "trl"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_database_gives_the_bytes_of_the_episodes_written_to_it(play_scripted, database, tmp_path, flags, form):
    episodes = play_scripted(range(2), 2, policy="expert", flags=flags, max_decisions=12)
    export_sft(database(episodes), tmp_path / "o.jsonl", options=SftOptions(form))
    expected = [line for episode in episodes for line in lines(episode, form)]
    assert (tmp_path / "o.jsonl").read_bytes() == "".join(f"{line}\n" for line in expected).encode()
    assert len(expected) == 48


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_return_is_the_collectors_and_the_databases(play_scripted, database, export, flags):
    episodes = play_scripted(range(2), 1, policy="expert", flags=flags, max_decisions=12)
    db = database(episodes)
    with TraceStore.open(db, read_only=True) as store:
        view = {row[0]: row[1] for row in store.query("SELECT episode_id, episode_return FROM episode_summaries")}
    expected = {episode.episode_id: reward_vector(episode, flags).total for episode in episodes}
    assert any(expected.values())
    for row in export(db):
        metadata = row["metadata"]
        assert metadata["episode_return"] == expected[metadata["episode_id"]]
        assert metadata["episode_return"] == pytest.approx(view[metadata["episode_id"]])


def test_known_episodes_too_unparsed_answers_left_out(known, by_id, tmp_path):
    export_sft(known, tmp_path / "o.jsonl")
    names = ("base-1", "base-2", "day-1", "day-2", "night-1a", "night-1b", "night-2a")
    expected = "".join(f"{line}\n" for name in names for line in lines(by_id[name]))
    assert (tmp_path / "o.jsonl").read_text(encoding="utf-8") == expected


def test_an_episode_without_a_reward_or_without_decisions_has_no_rows(by_id, database, export):
    with pytest.raises(ValueError, match=r"night-2b has status infra_error"):
        facts_of(by_id["night-2b"])
    assert lines(replace(by_id["base-2"], decisions=())) == []
    assert lines(replace(by_id["base-1"], decisions=())) == []


# -- what the model said ----------------------------------------------------------------------------

PRETTY = '{\n  "actions" :  [ "noop",\t"do" ]\n}'


def test_arguments_stay_the_string_the_model_said_and_become_an_object_for_trl(by_id, database, export, answering):
    db = database([answering(by_id["night-1b"], PRETTY, '{"actions":["do"],"actions":["noop"]}')])
    said = [row["messages"][-1]["tool_calls"][0]["function"] for row in export(db)]
    assert said[0] == {"name": "interact_many", "arguments": PRETTY}
    objects = [row["messages"][-1]["tool_calls"][0]["function"]["arguments"] for row in export(db, form="trl")]
    assert objects == [{"actions": ["noop", "do"]}, {"actions": ["noop"]}]  # of a repeated key the last one ran


def test_an_objects_keys_stay_in_the_order_the_model_said(by_id, database, export, answering):
    db = database([answering(by_id["night-1b"], '{"z": 1, "a": {"y": 2.50, "b": "é"}}', None)])
    row = export(db, form="trl")[0]
    assert json.dumps(row["messages"][-1]["tool_calls"][0]["function"]["arguments"], ensure_ascii=False) == (
        '{"z": 1, "a": {"y": 2.5, "b": "é"}}'
    )


@pytest.mark.parametrize(
    "arguments", ["", "{", "[1]", '"noop"', "null", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1} {}']
)
@pytest.mark.parametrize("form", ["openai", "trl"])
def test_a_call_whose_arguments_are_no_json_object_is_never_a_row(by_id, answering, arguments, form):
    """An app may read such an answer all the same; whoever trains on it could not."""
    maker = RowMaker(form)
    assert len(list(maker.rows(*facts_of(answering(by_id["night-1b"], arguments, None))))) == 1
    assert dict(maker.skipped) == {NO_ARGUMENTS: 1}


def test_deeply_nested_arguments_are_no_crash(by_id, answering):
    maker = RowMaker()
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert len(list(maker.rows(*facts_of(answering(by_id["night-1b"], deep, None))))) == 1
    assert dict(maker.skipped) == {NO_ARGUMENTS: 1}


def test_answers_that_did_not_parse_are_counted_not_exported(by_id):
    maker = RowMaker()
    rows = [json.loads(line) for line in maker.rows(*facts_of(by_id["day-1"]))]
    assert [row["metadata"]["turn"] for row in rows] == [2]
    assert dict(maker.skipped) == {UNPARSED: 1}


SPECIAL = 'say "no"\\ / \n\t\x00\x7f \u2028\u2029 é × 🙂 \ud83d half \udc00'


@pytest.mark.parametrize("form", ["openai", "trl"])
def test_every_character_survives(by_id, database, export, answering, form):
    """Quotes, controls, line separators, emoji and halves of surrogate pairs; a row stays one line."""
    arguments = json.dumps({"actions": [SPECIAL]}, ensure_ascii=False)
    message = AssistantMessage(SPECIAL, (ToolCall("interact_many", arguments, "call_1"),), "tool_calls")
    episode = answering(by_id["night-1b"], message, '{"actions": ["\\ud83d"]}')
    prompt = ({"role": "user", "content": SPECIAL},)
    episode = replace(episode, decisions=tuple(replace(d, messages=prompt) for d in episode.decisions))
    rows = export(database([episode]), form=form)
    assert [json.loads(line) for line in lines(episode, form)] == rows
    assert rows[0]["messages"][0] == prompt[0]
    answer = rows[0]["messages"][1]
    assert answer["content"] == SPECIAL
    said = answer["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(said) if form == "openai" else said) == {"actions": [SPECIAL]}


def test_trl_contents_are_strings_wherever_text_is_meant(by_id, database, export, answering):
    episode = answering(by_id["night-1b"], AssistantMessage(None, (ToolCall("interact_many", "{}"),)), "{}")
    parts = [{"type": "text", "text": "You see"}, {"type": "text", "text": "grass."}]
    picture = [*parts, {"type": "image_url", "image_url": {"url": "data:,"}}]
    history = {"role": "assistant", "content": None, "tool_calls": [_call('{"a": 1}')]}
    prompts = (
        ({"role": "user", "content": parts}, history, {"role": "tool", "tool_call_id": "c", "content": "done"}),
        ({"role": "user", "content": picture},),
    )
    decisions = zip(episode.decisions, prompts, strict=True)
    db = database([replace(episode, decisions=tuple(replace(d, messages=p) for d, p in decisions))])
    first, second = export(db, form="trl")
    assert [message["content"] for message in first["messages"]] == ["You see\ngrass.", "", "done", ""]
    assert first["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert second["messages"][0]["content"] == picture  # a picture is no text; nothing is dropped
    assert export(db)[0]["messages"][0]["content"] == parts


def test_a_history_without_sound_arguments_is_no_row_for_anyone(by_id, database, export):
    episode = by_id["night-1b"]
    history = {"role": "assistant", "content": None, "tool_calls": [_call("{")]}
    first, second = episode.decisions
    db = database([replace(episode, decisions=(replace(first, messages=(*first.messages, history)), second))])
    for form in ("openai", "trl"):
        assert [row["metadata"]["turn"] for row in export(db, form=form)] == [2]


def _call(arguments: str) -> dict:
    return {"id": "c", "type": "function", "function": {"name": "go", "arguments": arguments}}


def test_a_text_answer_has_no_tool_calls(by_id, database, export, answering):
    db = database([answering(by_id["night-1b"], AssistantMessage("noop"), None)])
    for form in ("openai", "trl"):
        assert export(db, form=form)[0]["messages"][-1] == {"role": "assistant", "content": "noop"}
