"""Whoever trains on an export: `datasets` loads it, trl trains on it, the project's own tokenizer knows every word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from task_app.export import SftOptions, export_sft

SCRIPT = Path(__file__).with_name("train_with_trl.py")
CALL = '{"name": "interact_many", "arguments": {"actions": ["noop", "do"]}}'


@pytest.fixture(scope="module")
def trained(known, tmp_path_factory) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What `datasets` and trl made of the known episodes, and the exports' own rows by form."""
    pytest.importorskip("torch", reason="training needs the extra `train`")
    folder = tmp_path_factory.mktemp("trl")
    files = {form: folder / f"{form}.jsonl" for form in ("trl", "openai")}
    for form, path in files.items():
        export_sft(known, path, options=SftOptions(form))
    command = [sys.executable, str(SCRIPT), *map(str, files.values()), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = {form: [json.loads(line) for line in path.read_text().splitlines()] for form, path in files.items()}
    return json.loads(done.stdout), rows


def test_datasets_loads_both_forms_as_they_were_written(trained):
    result, rows = trained
    assert len(rows["trl"]) == 17
    for form in ("trl", "openai"):
        assert [_without_none(row) for row in result["rows"][form]] == [_without_none(row) for row in rows[form]]


def _without_none(value: Any) -> Any:
    """A table has a place for every key in every row; those that a row did not have are None."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def test_trl_takes_every_row_for_a_conversation(trained):
    assert trained[0]["conversational"] is True


def test_trl_trains_and_learns_the_text_and_the_call_and_nothing_else(trained):
    result = trained[0]["sft"]
    assert 0 < result["loss"] < 10
    silent = f"<think>\n\n</think>\n\n<tool_call>\n{CALL}\n</tool_call><|im_end|>\n"
    speaking = f"<think>\n\n</think>\n\nI look around.\n<tool_call>\n{CALL}\n</tool_call><|im_end|>\n"
    assert result["learned"] == [silent] * 4 + [speaking] * 13  # base-1 and base-2 are random: they say nothing


def test_a_template_prints_the_tools_and_the_call_once_encoded(trained):
    """The reason for the form `trl`: some templates encode a string of arguments a second time."""
    result, rows = trained
    for text, row in zip(result["qwen2_5"]["trl"], rows["trl"], strict=True):
        assert f"<tools>\n{json.dumps(row['tools'][0], ensure_ascii=False)}\n</tools>" in text
        assert f"<tool_call>\n{CALL}\n</tool_call>" in text
        assert row["messages"][1]["content"] in text
    assert all(r'"arguments": "{\"actions\": [\"noop\", \"do\"]}"' in text for text in result["qwen2_5"]["openai"])


@pytest.mark.parametrize("form", ["openai", "trl"])
@pytest.mark.parametrize("policy", ["random", "expert"])
def test_the_projects_own_tokenizer_knows_every_word_of_every_row(
    play_scripted, spec_of, database, export, policy, form
):
    """Stands for SFT of the embedded policy: what a row shows and says can be encoded without an unknown word."""
    pytest.importorskip("tokenizers", reason="tokenizing needs the extra `train`")
    from task_app.train.renderer import Renderer
    from task_app.train.tokenizer import WordTokenizer

    spec = spec_of()
    episodes = play_scripted(range(3), 2, policy=policy, max_decisions=20)
    renderer = Renderer(WordTokenizer(spec.app.vocabulary(spec.options)), spec)
    rows = export(database(episodes), form=form)
    assert len(rows) == sum(len(episode.decisions) for episode in episodes) > 100
    played = [decision for episode in episodes for decision in episode.decisions]
    for row, decision in zip(rows, played, strict=True):
        assert renderer.prompt_ids(row["messages"][:-1]) == renderer.prompt_ids(decision.messages)
        arguments = row["messages"][-1]["tool_calls"][0]["function"]["arguments"]
        actions = (json.loads(arguments) if form == "openai" else arguments)["actions"]
        assert len(renderer.tokenizer.encode(" ".join(actions))) == len(actions)
        assert actions[: len(decision.steps)] == [step.action for step in decision.steps]
