"""The sampler benchmark: both samplers of the trainer against batched left-padded `generate` of `transformers`.

Called by trainer.py. Both sides answer the same prompts with the same weights, at temperature 1 from the whole
distribution, in one process, in turn. `generate` returns ids alone; the samplers also return each token's
log-probability, draw from noise keyed by decision, and (the embedded one) hold every answer to its grammar.

generate, as shipped     neither mask nor log-probabilities: it samples any words, as many as a longest answer has
generate, with grammar   a logits processor follows each row's grammar by the same tables and masks what is illegal;
                         forced tokens still cost it a forward pass each
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from crafter_work import crafter, make_network, play_random, prompts_of_turn
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from task_app.config.training import ModelSection
from task_app.train.embedded import build_network
from task_app.train.masks import GrammarTable
from task_app.train.network import AnswerSampler

__all__ = ["SamplerRow", "chat_rows", "embedded_rows"]

NEW_TOKENS = 80
"""Most tokens of a chat answer: enough for every call of the random player in this tokenizer, whose mean is 66, since
earlier calls are repeated. Random models fill it."""
GROUP = 8


@dataclass(frozen=True)
class SamplerRow:
    """One comparison: tokens a second of both sides, medians, and their ratio."""

    name: str
    prompts: int
    different: int
    prompt_tokens: float
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.ours / self.theirs


def chat_rows(folder: Path, worlds: int, repeats: int) -> list[SamplerRow]:
    """`ChatSampler` on the first decision of a batch of groups, and on the fourth, when no two prompts are alike."""
    network = make_network(folder, history="last:4", max_new_tokens=NEW_TOKENS)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    stops, sampler = network.renderer.template.stops, network.sampler(1.0)
    episodes = play_random(network.spec, worlds, GROUP, 4)
    rows = []
    for turn, name in ((1, "chat, first decision"), (4, "chat, fourth decision")):
        prompts = prompts_of_turn(network, episodes, turn)
        _same_policy(model, sampler, prompts)

        def theirs(prompts: list[tuple[int, ...]] = prompts) -> int:
            said = _generate(model, prompts, NEW_TOKENS, eos_token_id=sorted(stops))
            return sum(_length(row, stops) for row in said.tolist())

        rows.append(_compared(name, prompts, partial(_answered, sampler, prompts), theirs, repeats))
    return rows


def embedded_rows(worlds: int, repeats: int) -> list[SamplerRow]:
    """The embedded sampler against both ways of `generate`, on a first decision of groups and on a tenth.

    Tokens are those of the answers, forced ones included: `generate` has to write them too.
    """
    spec = crafter(min_actions_per_decision=5, max_actions_per_decision=5)
    network = build_network(spec, ModelSection(), 0)
    sampler, table = network.sampler(1.0), network.table
    episodes = play_random(spec, worlds, GROUP, 10)
    rows = []
    for turn, name in ((1, "embedded, first decision"), (10, "embedded, tenth decision")):
        decisions = [episode.decisions[turn - 1] for episode in episodes if len(episode.decisions) >= turn]
        prompts = [network.renderer.prompt_ids(decision.messages) for decision in decisions]
        _same_policy(network.model, sampler, prompts, table)
        for held in (False, True):

            def theirs(held: bool = held, prompts: list[tuple[int, ...]] = prompts) -> int:
                extra = {"logits_processor": LogitsProcessorList([_Grammar(table)])} if held else {}
                return _generate(network.model, prompts, table.longest, **extra).numel()

            ours = partial(_answered, sampler, prompts)
            rows.append(_compared(name + ", with its grammar" * held, prompts, ours, theirs, repeats))
    return rows


class _Grammar(LogitsProcessor):
    """Masks what each row's grammar forbids, following it from the first new token on."""

    def __init__(self, table: GrammarTable) -> None:
        self._table, self._states = table, torch.empty(0, dtype=torch.long)
        self._next = torch.from_numpy(table.next_S_V)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        if not len(self._states):
            self._states = torch.full((len(scores),), self._table.start)
        else:
            after = self._next[self._states, input_ids[:, -1]]
            self._states = torch.where(after < 0, torch.full_like(after, self._table.final), after)
        return scores.masked_fill(~self._table.allowed_S_V[self._states], float("-inf"))


def _answered(sampler: AnswerSampler, prompts: Sequence[tuple[int, ...]]) -> int:
    answers = sampler.sample(prompts, [f"0/1/{index}" for index in range(len(prompts))])
    return sum(len(answer.ids) for answer in answers)


@torch.inference_mode()
def _generate(model: Any, prompts: Sequence[tuple[int, ...]], most: int, **extra: Any) -> Tensor:
    """New tokens (B, most at most) of prompts padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    input_B_T, mask_B_T = torch.zeros(2, len(prompts), longest, dtype=torch.long)
    for index, prompt in enumerate(prompts):
        input_B_T[index, longest - len(prompt) :] = torch.tensor(prompt)
        mask_B_T[index, longest - len(prompt) :] = 1
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0} | extra
    whole = model.generate(input_B_T, attention_mask=mask_B_T, max_new_tokens=most, **options)
    return whole[:, longest:]


def _length(ids: Sequence[int], stops: frozenset[int]) -> int:
    return next((index + 1 for index, token in enumerate(ids) if token in stops), len(ids))


@torch.no_grad()
def _same_policy(
    model: Any, sampler: AnswerSampler, prompts: Sequence[tuple[int, ...]], table: GrammarTable | None = None
) -> None:
    """Refuse to time a sampler whose log-probabilities are not the model's own. Raises SystemExit."""
    prompt = prompts[-1]
    answer = sampler.sample(prompts, [f"check/{index}" for index in range(len(prompts))])[-1]
    logits = model(torch.tensor([[*prompt, *answer.ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    if table is not None:
        logits = logits.masked_fill(~table.allowed_S_V[table.states(answer.ids)], float("-inf"))
    own = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
    difference = float((own - torch.tensor(answer.logprobs)).abs().max())
    if not difference < 1e-4:
        raise SystemExit(f"the sampler's log-probabilities differ from the model's by {difference:.2g}")


def _compared(
    name: str, prompts: Sequence[tuple[int, ...]], ours: Callable[[], int], theirs: Callable[[], int], repeats: int
) -> SamplerRow:
    """Both sides in turn, after a round that warms up."""
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(repeats + 1):
        for side, work in (("ours", ours), ("theirs", theirs)):
            begin = time.perf_counter()
            tokens = work()
            if number:
                rates[side].append(tokens / (time.perf_counter() - begin))
    mean = sum(map(len, prompts)) / len(prompts)
    different = len(set(prompts))
    return SamplerRow(name, len(prompts), different, mean, median(rates["ours"]), median(rates["theirs"]))
