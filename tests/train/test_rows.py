"""Rows: what is trained on, what is refused, and that padding only pads."""

from dataclasses import replace

import pytest
import torch

from task_app.config.training import ObjectiveSection
from task_app.core.errors import TrainError
from task_app.core.grammar import Grammar
from task_app.train.masks import GrammarTable
from task_app.train.objective import token_loss
from task_app.train.rows import Row, RowBuilder, make_micro_batches
from task_app.train.score import score


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
        assert (row.advantages, row.spans) == ((0.5,), (len(row.targets),))


def test_micro_batches_hold_every_row_once(network, episodes):
    rows = [row_of(network, decision, float(index)) for index, decision in enumerate(decisions(episodes))]
    longest = max(len(row.input_ids) for row in rows)
    for most in (1, 3 * longest, 1_000_000):
        batches = make_micro_batches(rows, most, torch.device("cpu"))
        for batch in batches:
            width = max(len(row.input_ids) for row in batch.rows)
            assert len(batch.rows) == 1 or len(batch.rows) * width <= most
            assert len(batch.target_N) == len(batch.sampler_logp_N) == len(batch.decision_N) == len(batch.state_N)
            assert batch.decision_N.tolist() == [i for i, row in enumerate(batch.rows) for _ in row.targets]
        seen = sorted(value for batch in batches for value in batch.advantage_N.tolist())
        assert seen == sorted(row.advantages[0] for row in rows for _ in row.targets)
    assert len(make_micro_batches(rows, 1, torch.device("cpu"))) == len(rows)
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


def growing(network, episodes, versions=("v", "v", "v")):
    """Three decisions of one conversation: each prompt is all that was said before, and two tokens more."""
    said: tuple[int, ...] = (1, 5)
    grown = []
    for turn, (decision, version) in enumerate(zip(decisions(episodes), versions, strict=False), start=1):
        prompt = (*said, 6, 7)
        again = retold(decision, prompt_ids=prompt, prefix_length=0)
        grown.append(replace(again, turn=turn, completion=replace(again.completion, model=version)))
        said = prompt + decision.completion.tokens.completion_ids
    return grown


def test_decisions_whose_tokens_go_on_exactly_share_a_row(network, episodes):
    conversation = growing(network, episodes)
    (merged,) = builder(network).rows(conversation, [1.0, 2.0, 3.0])
    apart = [row_of(network, decision, float(index)) for index, decision in enumerate(conversation, start=1)]
    assert merged.input_ids == apart[-1].input_ids
    assert merged.spans == tuple(len(row.targets) for row in apart)
    assert merged.advantages == (1.0, 2.0, 3.0)
    assert merged.targets == tuple(token for row in apart for token in row.targets)
    assert merged.positions == tuple(position for row in apart for position in row.positions)


def test_other_versions_and_other_prompts_do_not_share_a_row(network, episodes):
    rows = builder(network).rows(growing(network, episodes, ("v", "v", "w")), [1.0, 2.0, 3.0])
    assert [len(row.spans) for row in rows] == [2, 1]
    first, second, third = growing(network, episodes)
    changed = retold(second, prompt_ids=(2, *second.completion.tokens.prompt_ids[1:]))
    rows = builder(network).rows([first, changed, third], [1.0, 2.0, 3.0])
    assert [len(row.spans) for row in rows] == [1, 1, 1]


@pytest.mark.parametrize("ratio", ["token", "gspo"])
def test_merging_changes_neither_loss_nor_gradient(network, episodes, ratio):
    conversation, settings = growing(network, episodes), ObjectiveSection(ratio=ratio)
    merged = builder(network).rows(conversation, [1.0, -2.0, 3.0])
    apart = [row_of(network, decision, value) for decision, value in zip(conversation, (1.0, -2.0, 3.0), strict=True)]
    gradients = []
    for rows in (merged, apart):
        network.model.zero_grad()
        for batch in make_micro_batches(rows, 1, torch.device("cpu")):
            logp_N = score(network, network.model, batch, 0.8).logp_N
            old_N = batch.sampler_logp_N
            loss = token_loss(logp_N, old_N, old_N, batch.advantage_N, settings, batch.decision_N).loss_N
            loss.sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.model.parameters()]))
    assert gradients[0].abs().max() > 0
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5
