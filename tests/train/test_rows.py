"""Rows: what is trained on, what is refused, and that padding only pads."""

from dataclasses import replace

import pytest
import torch

from task_app.core.errors import TrainError
from task_app.core.grammar import Grammar
from task_app.train.masks import GrammarTable
from task_app.train.rows import Row, RowBuilder, make_micro_batches


def builder(network):
    return RowBuilder(network.table, network.renderer.hash, 0.8)


def decisions(episodes):
    return [decision for episode in episodes for decision in episode.decisions]


def retold(decision, **changes):
    tokens = replace(decision.completion.tokens, **changes)
    return replace(decision, completion=replace(decision.completion, tokens=tokens))


def row_of(network, decision, advantage: float) -> Row:
    row = builder(network).row(decision, advantage)
    assert row is not None
    return row


def test_a_row_ends_before_its_last_choice(network, episodes):
    for decision in decisions(episodes):
        trace = decision.completion.tokens
        row = row_of(network, decision, 0.5)
        last = max(index for index, kept in enumerate(trace.mask) if kept)
        whole = trace.prompt_ids + trace.completion_ids
        assert row.input_ids == whole[: len(trace.prompt_ids) + last]
        assert [whole[position + 1] for position in row.positions] == list(row.targets)
        assert len(row.targets) == sum(trace.mask) < len(trace.mask)
        assert row.advantage == 0.5


def test_micro_batches_hold_every_row_once(network, episodes):
    rows = [row_of(network, decision, float(index)) for index, decision in enumerate(decisions(episodes))]
    for size in (1, 3, 100):
        batches = make_micro_batches(rows, size, torch.device("cpu"))
        assert all(len(batch.input_B_T) <= size for batch in batches)
        seen = sorted(value for batch in batches for value in batch.advantage_N.tolist())
        assert seen == sorted(row.advantage for row in rows for _ in row.targets)
        for batch in batches:
            assert int(batch.kept_B_K.sum()) == len(batch.target_N) == len(batch.sampler_logp_N)
    assert make_micro_batches([], 4, torch.device("cpu")) == []


def test_an_answer_without_a_choice_trains_nothing(network, episodes):
    """Under a grammar of one answer everything is forced."""
    tokenizer = network.table.tokenizer
    table = GrammarTable(Grammar("one", "0", "over", {"0": {"stay": "1"}, "1": {"end": "over"}}), tokenizer)
    ids = (tokenizer.id("stay"), tokenizer.id("end"))
    forced = {"completion_ids": ids, "logprobs": (0.0, 0.0), "mask": (0, 0), "grammar_hash": table.hash}
    decision = retold(decisions(episodes)[0], **forced)
    assert RowBuilder(table, network.renderer.hash, 0.8).row(decision, 1.0) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"grammar_hash": "f" * 16}, "sampled with grammar 'ffff"),
        ({"renderer_hash": "f" * 16}, "sampled with renderer 'ffff"),
        ({"temperature": 0.9}, "sampled with temperature 0.9, this trainer has 0.8"),
    ],
)
def test_what_the_trainer_cannot_reproduce_is_refused(network, episodes, changes, problem):
    with pytest.raises(TrainError, match=problem):
        builder(network).row(retold(decisions(episodes)[0], **changes), 1.0)


def test_broken_records_are_refused(network, episodes):
    decision = decisions(episodes)[0]
    trace = decision.completion.tokens
    with pytest.raises(TrainError, match="token 0 of decision 1 has mask 1, but its grammar says it was forced"):
        builder(network).row(retold(decision, mask=(1,) * len(trace.mask)), 1.0)
    with pytest.raises(TrainError, match="stored without tokens"):
        builder(network).row(replace(decision, completion=replace(decision.completion, tokens=None)), 1.0)
    with pytest.raises(TrainError, match="advantage of decision 1 is nan"):
        builder(network).row(decision, float("nan"))
    short = retold(decision)
    object.__setattr__(short.completion.tokens, "logprobs", trace.logprobs[:-1])
    with pytest.raises(TrainError, match="differ in length"):
        builder(network).row(short, 1.0)
