"""The embedded policy as a policy: completions, ids, and what it needs from a task app."""

import pytest

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError
from task_app.core.task import TaskSpec
from task_app.train.embedded import build_network
from task_app.train.policy import EmbeddedPolicy


def test_a_completion_carries_its_tokens(network, request_for):
    policy = EmbeddedPolicy(network, temperature=0.7, updates=12)
    request = request_for("place 1 turn 1")
    completion = policy.decide([request])[0]
    tokens = completion.tokens
    assert tokens is not None
    words = [network.renderer.tokenizer.words[token] for token in tokens.completion_ids]
    assert completion.message == network.spec.app.words_to_message(words)
    assert tokens.prompt_ids == network.renderer.prompt_ids(request.messages)
    assert (tokens.grammar_hash, tokens.renderer_hash) == (network.table.hash, network.renderer.hash)
    assert (tokens.temperature, tokens.prefix_length) == (0.7, 1)
    assert (completion.prompt_tokens, completion.completion_tokens) == (len(tokens.prompt_ids), len(words))
    assert (policy.name, policy.version, policy.batched) == ("embedded", "u12", True)
    assert policy.sampling_s >= completion.latency_s > 0


def test_completion_ids_follow_from_the_request_and_the_weights(network, request_for):
    policy = EmbeddedPolicy(network)
    requests = [request_for("place 1", "0/1/2/3/1"), request_for("place 1", "0/1/2/3/2")]
    first, second = (completion.completion_id for completion in policy.decide(requests))
    assert first != second
    assert policy.decide(requests[:1])[0].completion_id == first
    policy.set_updates(1)
    assert policy.decide(requests[:1])[0].completion_id != first
    policy.end_episode("e")


def test_an_app_without_grammar_cannot_be_played(line):
    class Speechless(type(line.app)):
        def grammar(self, options):
            return None

    class Wordless(type(line.app)):
        def vocabulary(self, options):
            return ()

    for kind, missing in ((Speechless, "grammar"), (Wordless, "vocabulary")):
        with pytest.raises(ConfigError, match=f"has no {missing}"):
            build_network(TaskSpec(kind(), line.options), ModelSection(), seed=0)


def test_a_device_that_is_not_there_is_refused(line):
    with pytest.raises(ConfigError, match=r"model\.device 'warp'"):
        build_network(line, ModelSection(device="warp"), seed=0)
