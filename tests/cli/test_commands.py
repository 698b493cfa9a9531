"""The commands as a user runs them: in a process of their own, against real files and ports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.store import TraceStore


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "task_app", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "t.db"
    done = run("rollout", "--policy", "expert", "--seeds", "0:2", "--group-size", "2", "--max-decisions", "6",
               "--trace-db", path, "--run-id", "mine", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path


def test_help_names_every_command_and_needs_no_config_model():
    done = run("--help")
    assert done.returncode == 0
    for command in ("list", "info", "serve", "rollout", "eval", "collect", "traces", "train", "demo", "checkpoint"):
        assert command in done.stdout
    program = "import sys; from task_app.cli import app; print('pydantic' in sys.modules, 'numpy' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["False", "False"]


def test_list_knows_crafter_and_its_alias():
    (crafter,) = json.loads(run("list", "--json").stdout)
    assert (crafter["name"], crafter["aliases"], crafter["source"]) == ("crafter", ["grpo-crafter"], "built-in")


def test_info_says_which_engine_plays(monkeypatch):
    monkeypatch.setenv("TASK_APP_ENGINE", "reference")
    assert json.loads(run("info", "--json").stdout)["crafter engine"].startswith("reference (TASK_APP_ENGINE")
    assert "crafter engine" in run("info").stdout


def test_rollout_prints_a_row_per_episode_and_stores_it(database):
    done = run("rollout", "--policy", "expert", "--seeds", "0:2", "--group-size", "1", "--max-decisions", "6",
               "--trace-db", database)  # fmt: skip
    assert done.returncode == 0, done.stderr
    with TraceStore.open(database, read_only=True) as store:
        mine = list(store.episodes(run_id="mine"))
        played_again = [e for e in store.episodes() if e.run_id != "mine"]
    assert [e.member for e in mine] == [0, 1, 0, 1]
    for episode in played_again:
        assert episode.episode_id[:8] in done.stdout
    deltas = sum(d.rewards.unique_delta for e in played_again for d in e.decisions if d.rewards)
    assert f"ΣUniqueΔ {deltas}" in done.stdout


def test_json_rows_add_up_to_the_stored_records(database):
    done = run("rollout", "--policy", "expert", "--seeds", "3", "--group-size", "1", "--max-decisions", "8",
               "--trace-db", database, "--json")  # fmt: skip
    (row,) = json.loads(done.stdout)["episodes"]
    with TraceStore.open(database, read_only=True) as store:
        episode = store.episode(row["episode_id"])
    by_turn = {d.turn: d.rewards.unique_delta for d in episode.decisions if d.rewards and d.rewards.unique_delta}
    assert {int(turn): delta for turn, delta in row["unique_delta_by_turn"].items()} == by_turn
    assert row["outcome"] == row["unique_delta_sum"] == sum(by_turn.values()) == row["return"]


def test_traces_show_has_a_row_per_decision_with_a_running_total(database):
    with TraceStore.open(database, read_only=True) as store:
        episode = next(store.episodes(run_id="mine"))
    shown = run("traces", "show", episode.episode_id[:12], "--db", database, "--json")
    rows = json.loads(shown.stdout)["decision_rows"]
    assert [row["turn"] for row in rows] == list(range(1, len(episode.decisions) + 1))
    assert [row["executed"] for row in rows] == [" ".join(s.action for s in d.steps) for d in episode.decisions]
    assert rows[-1]["total"] == episode.outcome
    assert "ach_delta" in run("traces", "show", episode.episode_id, "--db", database).stdout


def test_collect_is_byte_identical_twice_and_off_ends_in_the_outcome(database, tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for output in (first, second):
        done = run("collect", "--db", database, "--output", output, "--run-id", "mine")
        assert done.returncode == 0, done.stderr
    assert first.read_bytes() == second.read_bytes()
    off = run("collect", "--db", database, "--run-id", "mine", "--training.step_rewards_mode=off")
    for line in map(json.loads, off.stdout.splitlines()):
        assert line["rewards"] == [0.0] * (line["decisions"] - 1) + [line["outcome"]]


def test_replay_earns_what_the_stored_episodes_earned(database, tmp_path):
    done = run("rollout", "--policy", "replay", "--replay-db", database, "--seeds", "0:2", "--group-size", "2",
               "--max-decisions", "6", "--trace-db", tmp_path / "again.db", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with TraceStore.open(database, read_only=True) as store:
        before = [(e.outcome, e.event_counts) for e in store.episodes(run_id="mine")]
    with TraceStore.open(tmp_path / "again.db", read_only=True) as store:
        assert [(e.outcome, e.event_counts) for e in store.episodes()] == before


def test_eval_shows_the_random_policy_beside_the_one_asked_for(tmp_path):
    done = run("eval", "--policy", "expert", "--seeds", "1000000:1000003", "--max-decisions", "10",
               "--trace-db", tmp_path / "t.db", "--json")  # fmt: skip
    expert, random = json.loads(done.stdout)
    assert (expert["policy"], random["policy"]) == ("expert", "random")
    assert expert["outcome"]["n"] == random["outcome"]["n"] == 3
    assert expert["outcome"]["mean"] > random["outcome"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rollout", "--polcy", "random"), "--polcy"),
        (("rolout",), "did you mean 'rollout'"),
        (("rollout", "--app", "craftr"), "did you mean 'crafter'"),
        (("rollout", "--policy", "expret"), "did you mean 'expert'"),
        (("rollout", "--seeds", "5:2"), "rollout.seeds"),
        (("rollout", "--group-size", "0"), "rollout.group_size"),
        (("rollout", "--rollout.max_decisions=99999999"), "rollout.max_decisions"),
        (("rollout", "--training.step_rewards_mode=stepwise"), "'off', 'decision_stepwise' or 'env_sparse'"),
        (("rollout", "--task.options.max_actions_per_decision=0"), "max_actions_per_decision"),
        (("rollout", "--policy", "chat"), "needs model"),
        (("rollout", "--policy", "replay"), "replay_db"),
        (("train", "--training.credit.estimator=gae"), "return_loo"),
        (("train", "--config", "no.toml"), "no.toml does not exist"),
        (("serve", "crafter", "--host", "0.0.0.0", "--port", "0"), "ENVIRONMENT_API_KEY"),
        (("demo",), "the demo runs in the project's folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_named_and_exits_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.db")), "a refused command must not leave a database"


def test_a_foreign_database_is_refused_and_left_alone(tmp_path):
    foreign = tmp_path / "notes.db"
    foreign.write_text("not a database at all, but a text that is longer than a header of SQLite " * 20)
    before = foreign.read_bytes()
    done = run("rollout", "--policy", "random", "--seeds", "0", "--group-size", "1", "--trace-db", foreign)
    assert (done.returncode, foreign.read_bytes()) == (1, before)
    assert "notes.db" in done.stderr


def test_training_prints_json_and_nothing_beside_it(tmp_path, database):
    small = ["--model.hidden_size=16", "--model.heads=2", "--model.kv_heads=2", "--model.intermediate_size=16",
             "--rollout.seeds=0:4", "--rollout.group_size=2", "--rollout.max_decisions=2", "--training.updates=1",
             "--training.groups_per_update=2", "--eval.seeds=1000000:1000001", "--sft.epochs=1",
             f"--rollout.trace_db={tmp_path / 't.db'}", f"--training.run_dir={tmp_path / 'rl'}",
             f"--sft.run_dir={tmp_path / 'sft'}", "--algorithm.type=grpo", "--json"]  # fmt: skip
    done = run("train", *small)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_dir"] == str(tmp_path / "rl")
    assert "held-out after 1 updates" in done.stderr
    assert "no effect in local training: algorithm.type" in done.stderr
    data = tmp_path / "data.jsonl"
    assert run("traces", "export-sft", "--db", database, "--output", data).returncode == 0
    done = run("train", "--type", "sft", "--dataset", data, "--validation", data, *small)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_dir"] == str(tmp_path / "sft")
    assert "validation after" in done.stderr


def run_without(packages: list[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command where these packages are not installed."""
    program = f"import sys; sys.modules |= dict.fromkeys({packages!r}); from task_app.cli import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--dry-run"], 0, "nothing was done; training would be"),
        (["--dry-run", "--type", "sft", "--dataset", "none.jsonl"], 2, "sft data none.jsonl cannot be read"),
        (["--ledger"], 0, "ledger.jsonl"),
        (["--training.credit.estimator=gae"], 2, "unknown estimator 'gae'"),
        ([], 2, "torch is not installed; it comes with the extra 'train': pip install 'crafter-task-app[train]'"),
    ],
)
def test_what_is_answered_before_training_needs_no_torch(tmp_path, arguments, code, said):
    config = tmp_path / "one.toml"
    config.write_text("[training]\nupdates = 1\n")
    done = run_without(["torch", "transformers"], "train", "--config", config, *arguments)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
