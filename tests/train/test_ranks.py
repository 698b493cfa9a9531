"""Two processes train what one trains: the same episodes, figures, weights; and a failure of one ends both."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from task_app.core.errors import ConfigError, TrainError
from task_app.store import TraceStore
from task_app.train.checkpoint_folder import latest_checkpoint
from task_app.train.follower import must_follow
from task_app.train.metrics import MetricsLog
from task_app.train.ranks import current, leading
from task_app.train.rows import Row, deal_micro_batches, make_micro_batches
from tests.train import ranked_runs
from tests.train.chat_toy import ChatLineApp
from tests.train.conftest import MOVES, LineApp
from tests.train.ranked_runs import CASES, FAULTS, RANKS, config_of, data_of, train
from tests.train.tiny_models import write_model

ROOT = Path(__file__).parents[2]
EQUAL = [case for case in CASES if not case.startswith("resumed")]
RESUMED = [case for case in CASES if case.startswith("resumed")]
ADVICE = "rollout.group_size is 5: below 8 an advantage is mostly noise\n"


def torchrun(*arguments, timeout=400):
    """Two processes of a script or module, started as a user would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += map(str, arguments)
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def free_ports(count):
    """The first of `count` ports in a row that nobody uses, none of them among those the system gives to whoever
    connects: one of these may be taken before its case begins."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(50):
        first = random.randrange(10_000, lowest - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")


def write_data(path, app, text):
    """Thirteen lines to imitate, of several lengths; the last batch of six holds one."""
    rows = []
    for index in range(13):
        moves = [tuple(MOVES)[number % 3] for number in range(index % 2 + 1)]
        asked = [{"role": "system", "content": "Walk."}, {"role": "user", "content": text.format(index % 4)}]
        rows.append(json.dumps({"messages": [*asked, app.say(moves).to_wire()]}))
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every case of `ranked_runs`, by two processes; `alone` below it has the same cases by this one."""
    folder = tmp_path_factory.mktemp("ranks")
    alone = folder / "alone"
    alone.mkdir()
    for shape in ("qwen3", "llama"):
        write_model(folder / "models" / shape, shape)
    write_data(folder / data_of("sft"), LineApp(), "place {}")
    write_data(folder / data_of("sft-lora"), ChatLineApp(), "place {}, somewhere")
    for shared in ("models", data_of("sft"), data_of("sft-lora")):
        (alone / shared).symlink_to(folder / shared)
    for case in EQUAL:
        train(alone, case)
    train(alone, RESUMED[0])
    train(folder, "resumed-together", training__updates=1)
    done = torchrun(ranked_runs.__file__, folder, free_ports(len(CASES) + len(FAULTS)), *CASES, *FAULTS)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    train(folder, "resumed-alone", training__updates=2)
    return folder


def ended(folder, case, rank):
    """Exit code, seconds and everything printed by one process."""
    note = json.loads((folder / case / f"rank{rank}.json").read_text())
    return note["code"], note["seconds"], (folder / case / f"rank{rank}.txt").read_text()


def same(ours, theirs, tolerance=1e-6):
    """Whether two JSON values are equal, numbers to a tolerance."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == pytest.approx(theirs, abs=tolerance, rel=tolerance)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], tolerance) for key in ours)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(same(*pair, tolerance) for pair in zip(ours, theirs, strict=True))
    return ours == theirs


def lines(folder, case, *kinds):
    log = MetricsLog(folder / case / "run/metrics.jsonl").lines()
    return [{k: v for k, v in line.items() if k != "machine"} for line in log if not kinds or line["kind"] in kinds]


def latest(folder, case):
    found = latest_checkpoint(folder / case / "run/checkpoints")
    assert found is not None
    return found


def weights_and_moments(folder, case):
    """Weights by name, and the optimiser's state by parameter, of the last checkpoint."""
    (file,) = latest(folder, case).glob("*.safetensors")
    return load_file(file), torch.load(latest(folder, case) / "optimizer.pt")


def assert_equal_weights(first, second):
    """Weights to 1e-6. AdamW cares little how large gradients are, but its moments tell."""
    (ours, ours_state), (theirs, theirs_state) = weights_and_moments(*first), weights_and_moments(*second)
    assert ours.keys() == theirs.keys()
    assert ours_state["param_groups"] == theirs_state["param_groups"]
    for index, moments in ours_state["state"].items():
        for name, value in moments.items():
            torch.testing.assert_close(theirs_state["state"][index][name], value, rtol=1e-5, atol=2e-7)
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-6)


def episodes(folder, case):
    """What was stored, in the order of its places; log-probabilities and advantages apart."""
    with TraceStore.open(config_of(folder, case).rollout.trace_db, read_only=True) as store:
        told = []
        for episode in store.episodes():
            place = (episode.run_id.split("-", 2)[2:], episode.update or 0, episode.group_id, episode.member)
            traces = [decision.completion.tokens for decision in episode.decisions]
            told.append(
                (
                    place,
                    [(trace.prompt_ids, trace.completion_ids, trace.mask) for trace in traces if trace],
                    [step.action for step in episode.steps],
                    [decision.rewards for decision in episode.decisions],
                    (episode.status, episode.outcome),
                    [trace.logprobs for trace in traces if trace],
                    sorted(store.advantages(episode.episode_id).items()),
                )
            )
    return sorted(told, key=lambda one: one[0])


@pytest.mark.parametrize("case", CASES)
def test_both_end_well_and_only_the_first_speaks(folder, case):
    speech = case in ("full", "lora")
    assert [ended(folder, case, rank)[::2] for rank in range(RANKS)] == [(0, ADVICE if speech else ""), (0, "")]


@pytest.mark.parametrize("case", EQUAL)
def test_two_processes_end_with_the_weights_of_one(folder, case):
    assert_equal_weights((folder / "alone", case), (folder, case))


@pytest.mark.parametrize("case", EQUAL)
def test_every_figure_is_the_same(folder, case):
    ours, theirs = lines(folder / "alone", case), lines(folder, case)
    assert len(ours) == len(theirs) > 4
    for one, other in zip(ours, theirs, strict=True):
        # The largest difference of a log-probability to itself is nothing but rounding.
        tolerances = {name: 1e-5 if name == "mismatch/logp_max" else 1e-6 for name in one}
        differing = [name for name in one if not same(one[name], other.get(name), tolerances[name])]
        assert {name: (one[name], other.get(name)) for name in differing} == {}


@pytest.mark.parametrize("case", [case for case in EQUAL if not case.startswith("sft")])
def test_the_same_episodes_are_stored(folder, case):
    ours, theirs = episodes(folder / "alone", case), episodes(folder, case)
    assert len(ours) == len(theirs) >= 2 * 5 + 2 * 6
    for one, other in zip(ours, theirs, strict=True):
        assert one[:-2] == other[:-2]
        assert same(one[-2:], other[-2:], 1e-5)


def test_a_case_gives_one_process_a_micro_batch_more(folder):
    """Each row is a micro-batch there, and no two share one; so an odd number cannot be dealt evenly."""
    with TraceStore.open(config_of(folder, "full").rollout.trace_db, read_only=True) as store:
        played = [episode for episode in store.episodes() if "eval" not in episode.run_id]
    rows = [sum(len(one.decisions) for one in played if one.update == update) for update in (1, 2)]
    shortest = min(len(d.completion.tokens.prompt_ids) for one in played for d in one.decisions if d.completion.tokens)
    assert 2 * shortest > ranked_runs.ROW_BY_ROW
    assert any(count % 2 for count in rows), rows


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_goes_on_with_another_number_of_processes(folder, case):
    log = MetricsLog(folder / case / "run/metrics.jsonl").lines()
    assert [line["update"] for line in log if line["kind"] == "resume"] == [1]
    assert_equal_weights((folder / "alone", RESUMED[0]), (folder, case))
    assert same(lines(folder / "alone", RESUMED[0], "update"), lines(folder, case, "update"))


def test_a_killed_process_ends_the_other(folder):
    code, seconds, said = ended(folder, "killed", 0)
    assert ended(folder, "killed", 1)[0] == -9
    assert code == 1
    assert seconds < 60
    assert said.startswith("TrainError: another of the 2 processes ended or did not answer")


def test_a_process_that_does_not_answer_ends_the_other_by_the_deadline(folder):
    code, seconds, said = ended(folder, "hanging", 0)
    assert code == 1
    assert seconds < 60
    assert f"within {ranked_runs.TIMEOUT_S:g} s (training.rank_timeout_s)" in said


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("raising", "TrainError: this prompt cannot be read"),
        ("not-finite", "TrainError: update 1 stopped: the gradient's norm is nan"),
        ("disk-full", "could not be written: no space left on device"),
    ],
)
def test_what_can_be_told_is_told_by_the_first_alone(folder, case, told):
    code, _, said = ended(folder, case, 0)
    assert code == 1
    assert told in said
    assert ended(folder, case, 1)[::2] == (0, "")


@pytest.mark.parametrize("case", ["killed", "raising", "not-finite", "disk-full"])
def test_a_failed_run_is_in_the_ledger_and_its_folder_is_free(folder, case):
    assert '"failed"' in (folder / case / "ledger.jsonl").read_text()
    assert not (folder / case / "run/lock").exists()


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_under_torchrun_trains_and_prints_once(tmp_path):
    settings = {
        "training.run_dir": tmp_path / "run",
        "rollout.trace_db": tmp_path / "t.db",
        "training.updates": 1,
        "training.groups_per_update": 1,
        "rollout.group_size": 8,
        "rollout.max_decisions": 2,
        "eval.seeds": "1000000:1000002",
        "model.hidden_size": 32,
        "model.intermediate_size": 32,
    }
    given = [f"--{name}={value}" for name, value in settings.items()]
    done = torchrun("-m", "task_app", "train", "--json", *given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["after"]["n"] == 2
    assert done.stderr.count("step rewards: mode") == 1
    assert "Warning" not in done.stderr
    start = MetricsLog(tmp_path / "run/metrics.jsonl").lines()[0]
    assert start["machine"]["processes"] == 2


def test_a_refused_config_is_told_once_and_fails(tmp_path):
    done = torchrun("-m", "task_app", "train", "--training.credit.estimator=gae", f"--training.run_dir={tmp_path}")
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "return_loo" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert list(tmp_path.iterdir()) == []


# -- who one is --------------------------------------------------------------------------------------------------------


def test_alone_there_is_no_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with leading(1.0, "cuda:7") as here:
        assert here is current()
        assert here.alone
        assert here.gather(3) == [3]
        assert str(here.device("cuda:7")) == "cuda:7"
    assert not torch.distributed.is_initialized()
    assert not must_follow()


@pytest.mark.parametrize(
    ("device", "told"), [("cuda:1", 'allowed are "cpu" and "cuda"'), ("cuda", "needs a card each, and there are 0")]
)
def test_a_device_that_is_no_device_for_several_is_refused_before_they_meet(monkeypatch, device, told):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=told) as refused, leading(1.0, device):
        pass
    assert refused.value.field == "model.device"
    assert not torch.distributed.is_initialized()


def test_another_process_than_the_first_cannot_lead(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert must_follow()
    with pytest.raises(TrainError, match="process 1 of 2"), leading(1.0, "cpu"):
        pass


# -- dealing -----------------------------------------------------------------------------------------------------------


def row(length):
    return Row(tuple(range(length)), (length - 1,), (length,), (-1,), (0.0,), (1,), (1.0,))


@pytest.mark.parametrize("lengths", [[9, 1, 1, 1, 7, 2], [5], [3, 3, 3], [40, 1, 1, 1, 1], [8] * 7])
@pytest.mark.parametrize("hands", [1, 2, 3])
def test_rows_are_dealt_once_each_and_everyone_has_equally_many_batches(lengths, hands):
    rows, cpu = [row(length) for length in lengths], torch.device("cpu")
    dealt = [deal_micro_batches(rows, 8, cpu, hand=hand, hands=hands) for hand in range(hands)]
    assert len({len(batches) for batches in dealt}) == 1
    counted = [one for batches in dealt for batch in batches if batch.counts for one in batch.rows]
    assert sorted(map(repr, counted)) == sorted(map(repr, rows))
    loads = [sum(len(one.input_ids) for batch in batches if batch.counts for one in batch.rows) for batches in dealt]
    assert max(loads) - min(loads) <= max(lengths)
    for batches in dealt:
        assert all(batch.counts in (0.0, 1.0) for batch in batches)


def test_one_hand_gets_what_was_always_made():
    rows, cpu = [row(length) for length in (4, 2, 6)], torch.device("cpu")
    assert [one.rows for one in deal_micro_batches(rows, 8, cpu, hand=0, hands=1)] == [
        one.rows for one in make_micro_batches(rows, 8, cpu)
    ]
    assert deal_micro_batches([], 8, cpu, hand=1, hands=2) == []
