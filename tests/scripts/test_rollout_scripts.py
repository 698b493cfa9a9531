"""The two rollout scripts against the real app on a real port, and the warning that fires only when it should."""

from __future__ import annotations

import copy
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.core.errors import PolicyError
from task_app.core.wire import episode_to_json
from task_app.rollout.client import HostedTaskApp
from task_app.store import TraceStore
from task_app.traced import Wanted, line_up, play_traced, summarise_answer

SCRIPTS = Path(__file__).parents[2] / "scripts"
LOCAL, REMOTE = SCRIPTS / "run_local_rollout_traced.py", SCRIPTS / "run_rollout_remote.py"


def run(script, *arguments, cwd, **environ):
    env = {key: value for key, value in os.environ.items() if key != "ENVIRONMENT_API_KEY"} | environ
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=120, check=False)


def stored(tmp_path):
    with TraceStore.open(tmp_path / "hosted.db", read_only=True) as store:
        return list(store.episodes())


@pytest.fixture
def chat_server(served, endpoint):
    """An app with a key whose own policy is `chat` at the stub endpoint; its address."""
    return served(
        {"ENVIRONMENT_API_KEY": "ek"},
        **{"policy.name": "chat", "policy.model": "stub", "policy.inference_url": endpoint.url},
    )


# -- the command lines of the operations note ------------------------------------------------


def note_line(line, base_url, tmp_path):
    """Run a command line as the note has it; only the address and where the project lies are put in."""
    line = line.replace("http://localhost:8010", base_url).replace("https://<modal-app-url>", base_url)
    words = shlex.join([sys.executable]) + " " + line.replace("scripts/", f"{SCRIPTS}/")
    env = os.environ | {"ENVIRONMENT_API_KEY": "ek"}
    return subprocess.run(words, shell=True, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)


def test_the_local_line(chat_server, endpoint, tmp_path):
    line = (
        'scripts/run_local_rollout_traced.py --api-key "$ENVIRONMENT_API_KEY" --base-url http://localhost:8010 '
        "--model gpt-4o-mini --trace-format full --trace-path ./trace_full.json"
    )
    done = note_line(line, chat_server, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (episode,) = stored(tmp_path)
    assert episode.policy == "chat"
    assert len(endpoint.received) == 20
    assert endpoint.received[0].body["model"] == "gpt-4o-mini"
    trace = json.loads((tmp_path / "trace_full.json").read_text())
    assert trace == {
        "format": "full",
        "session_id": episode.episode_id,
        "episode": json.loads(json.dumps(episode_to_json(episode))),
    }
    assert sorted(path.name for path in tmp_path.glob("*trace*")) == ["trace_full.json"]


def test_the_remote_line(chat_server, endpoint, tmp_path):
    line = (
        'scripts/run_rollout_remote.py --base-url https://<modal-app-url> --api-key "$ENVIRONMENT_API_KEY" '
        "--model gpt-4o-mini --max-llm-calls 10"
    )
    done = note_line(line, chat_server, tmp_path)
    assert (done.returncode, "warning" in done.stderr) == (0, False)
    assert len(endpoint.received) == 10
    assert "seed 0 " in done.stdout


# -- what they say -----------------------------------------------------------------------------


def test_the_summary_is_the_stored_episodes(served, tmp_path):
    done = run(
        LOCAL, "--base-url", served(), "--policy", "expert", "--seed", "3", "--max-llm-calls", "8", "--run-id", "mine",
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (episode,) = stored(tmp_path)
    records = [decision.rewards for decision in episode.decisions if decision.rewards]
    ach, unique = sum(r.ach_delta for r in records), sum(r.unique_delta for r in records)
    assert unique == episode.outcome
    assert unique > 0
    heading = done.stdout.splitlines()[0]
    assert heading == (
        f"run mine · seed 3 · episode {episode.episode_id} · truncated (max_decisions) · "
        f"return {unique} · outcome {unique} · ΣAchΔ {ach} · ΣUniqueΔ {unique}"
    )
    rows = [line.split("│") for line in done.stdout.splitlines() if line.count("│") == 6]
    assert [(int(r[0]), int(r[2]), int(r[3])) for r in rows] == [(r.turn, r.ach_delta, r.unique_delta) for r in records]
    assert float(rows[-1][6]) == unique
    for name, times in episode.event_counts.items():
        assert any(line.split() == [name, "│", str(times)] for line in done.stdout.splitlines()), name


def test_the_key_comes_from_the_environment_and_a_wrong_one_is_said(served, tmp_path):
    address = served({"ENVIRONMENT_API_KEY": "ek"})
    options = ("--base-url", address, "--policy", "random", "--max-llm-calls", "1")
    assert run(LOCAL, *options, cwd=tmp_path, ENVIRONMENT_API_KEY="ek").returncode == 0
    assert run(REMOTE, *options, cwd=tmp_path, ENVIRONMENT_API_KEY="ek").returncode == 0
    for script in (LOCAL, REMOTE):
        refused = run(script, *options, "--api-key", "other", cwd=tmp_path, ENVIRONMENT_API_KEY="ek")
        assert refused.returncode == 1
        assert "HTTP 401: a valid key is needed" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert len(stored(tmp_path)) == 2


@pytest.mark.parametrize("script", [LOCAL, REMOTE], ids=["local", "remote"])
def test_a_trace_that_cannot_be_written_is_said_before_anything_is_played(chat_server, endpoint, tmp_path, script):
    (tmp_path / "file").write_text("mine")
    where = tmp_path / "file" / "trace.json"
    done = run(script, "--base-url", chat_server, "--api-key", "ek", "--trace-path", where, cwd=tmp_path)
    assert (done.returncode, endpoint.received) == (2, [])
    assert f"cannot write {where}" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_broken_rollout_exits_1_and_leaves_an_older_trace(chat_server, endpoint, tmp_path):
    endpoint.otherwise = endpoint.status(401)
    (tmp_path / "t.json").write_text("older")
    done = run(LOCAL, "--base-url", chat_server, "--api-key", "ek", "--trace-path", "t.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "HTTP 503: the rollout broke" in done.stderr
    assert (tmp_path / "t.json").read_text() == "older"
    assert sorted(p.name for p in tmp_path.iterdir() if "json" in p.name) == ["t.json"]


def test_several_seeds_are_summed_up_and_one_that_breaks_is_named(chat_server, endpoint, tmp_path):
    endpoint.plan(*[endpoint.call("noop")] * 5, endpoint.status(401))
    done = run(
        REMOTE, "--base-url", chat_server, "--api-key", "ek", "--max-llm-calls", "2", "--seed", "4:6", "--seed", "9",
        "--seed", "5", "--trace-path", "all.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    broke = [e for e in stored(tmp_path) if e.status == "infra_error"]
    assert sorted(e.task.seed for e in stored(tmp_path)) == [4, 5, 9]
    assert f"error: seed {broke[0].task.seed}: " in done.stderr
    assert len(json.loads((tmp_path / "all.json").read_text())) == 2
    numbers = dict(line.split("│") for line in done.stdout.splitlines() if line.count("│") == 1)
    numbers = {name.strip(): value.strip() for name, value in numbers.items()}
    assert (numbers["rollouts"], numbers["with a reward"], numbers["ΣUniqueΔ"]) == ("3", "2", "0")


@pytest.mark.parametrize("seed", ["5:2", "x", "-1"])
def test_a_wrong_seed_is_named(tmp_path, seed):
    done = run(REMOTE, "--base-url", "http://127.0.0.1:9", f"--seed={seed}", cwd=tmp_path)
    assert done.returncode == 2
    assert seed in done.stderr


# -- the warning ---------------------------------------------------------------------------------

MODES = {
    "stepwise": {},
    "absolute, lambda, beta": {"kind": "absolute", "indicator_lambda": 0.5, "step_beta": 0.1},
    "horizon episode": {"step_beta": 0.3, "horizon": "episode"},
    "off": {"mode": "off"},
    "env_sparse": {"mode": "env_sparse"},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory, module_server):
    """A healthy expert rollout in every mode and trace format; seed 1 repeats achievements within 8 decisions."""

    def one(flags, trace_format):
        body = {
            "run_id": "r",
            "env": {"seed": 1, "config": {"step_rewards": flags}},
            "policy": {"policy_name": "expert", "config": {"max_llm_calls": 8}},
            "record": {"return_trace": True, "trace_format": trace_format},
        }
        with HostedTaskApp(module_server) as app:
            return app.rollout(body)

    return {(mode, form): one(flags, form) for mode, flags in MODES.items() for form in ("compact", "full")}


@pytest.fixture(scope="module")
def module_server(tmp_path_factory):
    from tests.rollout.conftest import serving

    with serving(tmp_path_factory.mktemp("answers") / "t.db") as start:
        yield start()


FORMATS = ["compact", "full"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_healthy_answers_warn_of_nothing(answers, mode, form):
    answer = answers[mode, form]
    assert line_up(answer) == ()
    summary = summarise_answer(answer, 1)
    assert summary.unique_delta == summary.outcome
    assert summary.unique_delta > 0
    assert summary.ach_delta > summary.unique_delta
    assert summary.turns[-1].total == pytest.approx(summary.episode_return)


def rewarded_step(answer):
    return next(step for step in answer["trajectories"][0]["steps"] if step["info"]["events"])


def record_of(answer):
    return rewarded_step(answer)["info"]["meta"]["decision_rewards"]


def trace_record(answer):
    trace = answer["trace"]
    told = trace.get("decision_rewards") or [d["rewards"] for d in trace["episode"]["decisions"]]
    return next(record for record in told if record["unique_delta"])


def add(place, key, by: float = 1):
    place[key] += by


ANYWHERE = {
    "the return": (lambda a: add(a["metrics"]["episode_returns"], 0), "the return is"),
    "the outcome": (lambda a: add(a["metrics"], "outcome_score"), "the outcome is"),
    "a reward": (lambda a: add(rewarded_step(a), "reward", 0.5), "the rewards of the steps do not add up"),
    "the return is gone": (lambda a: a["metrics"].update(episode_returns=[None]), "the return is none"),
}
STEPWISE = {
    "unique_delta": (lambda a: add(record_of(a), "unique_delta"), "of the trajectory is"),
    "unique_delta of the trace": (lambda a: add(trace_record(a), "unique_delta"), "of the trace is"),
    "a turn twice": (lambda a: record_of(a).update(turn=8), "the trajectory cannot be summed: two decision records"),
    "a turn out of range": (lambda a: trace_record(a).update(turn=9), "the trace cannot be summed: decision record"),
    "lambda": (lambda a: add(a["metrics"]["details"]["step_rewards"], "indicator_lambda"), "the return is"),
}


WITH_RECORDS = [mode for mode in MODES if mode not in ("off", "env_sparse")]
ALTERED = [*((m, what) for m in MODES for what in ANYWHERE), *((m, what) for m in WITH_RECORDS for what in STEPWISE)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("mode", "what"), ALTERED)
def test_an_altered_number_is_warned_of(answers, mode, form, what):
    alter, said = (ANYWHERE | STEPWISE)[what]
    answer = copy.deepcopy(answers[mode, form])
    alter(answer)
    assert any(said in warning for warning in line_up(answer)), line_up(answer)


def test_altered_facts_are_warned_of_where_there_are_no_records(answers):
    for mode in ("off", "env_sparse"):
        answer = copy.deepcopy(answers[mode, "compact"])
        rewarded_step(answer)["info"]["events"].append("an event that never was")
        assert any("ΣUniqueΔ of the trajectory" in warning for warning in line_up(answer))
    answer = copy.deepcopy(answers["env_sparse", "compact"])
    add(rewarded_step(answer)["info"]["step_rewards"], 0)
    assert any("the rewards of the trajectory add up to" in warning for warning in line_up(answer))
    absolute = copy.deepcopy(answers["absolute, lambda, beta", "compact"])
    add(record_of(absolute), "ach_delta")
    assert any("the rewards of the trajectory add up to" in warning for warning in line_up(absolute))


def test_an_episode_without_a_reward_has_nothing_to_line_up(answers):
    answer = copy.deepcopy(answers["stepwise", "compact"])
    answer["metrics"].update(episode_returns=[None], outcome_score=None)
    for step in answer["trajectories"][0]["steps"]:
        step["reward"] = None
    assert line_up(answer) == ()
    assert summarise_answer(answer, 1).turns[-1].total is None


def test_an_app_that_does_not_say_its_flags_is_not_accused(answers):
    answer = copy.deepcopy(answers["absolute, lambda, beta", "compact"])
    del answer["metrics"]["details"]["step_rewards"]
    assert line_up(answer) == ()


def test_the_warning_reaches_the_user_and_is_not_an_error(endpoint, answers, tmp_path):
    altered = copy.deepcopy(answers["stepwise", "full"])
    add(altered["metrics"]["episode_returns"], 0)
    endpoint.otherwise = endpoint.raw(json.dumps(altered).encode())
    for script in (LOCAL, REMOTE):
        done = run(script, "--base-url", endpoint.url, cwd=tmp_path)
        assert done.returncode == 0
        assert "the return is" in done.stderr
        assert "warning: " in done.stderr


@pytest.mark.parametrize("body", [b"{}", b'{"metrics": {}, "trajectories": []}', b'{"metrics": 3, "trajectories": 4}'])
def test_something_else_that_answers_is_named(endpoint, body):
    endpoint.otherwise = endpoint.raw(body)
    with pytest.raises(PolicyError, match="the answer is not a rollout's"):
        play_traced(Wanted(endpoint.url))
