"""Sampling spread over the processes of one training: each answers its share of the prompts from its whole network.

What a prompt is answered depends on its own noise key alone, so who answers it changes nothing. It plays no world: the
leader does, and asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from task_app.core.errors import TrainError
from task_app.train.network import AnswerSampler, Network
from task_app.train.ranks import current
from task_app.train.sampler import Answer

__all__ = ["sample_share", "sampler_of"]


def sampler_of(network: Network, temperature: float) -> AnswerSampler:
    """The sampler of the network that is trained: its own, or spread where there are several processes.

    Raises ConfigError for a temperature at which there is nothing to sample.
    """
    own = network.sampler(temperature)
    return own if current().alone else _SpreadSampler(own, temperature)


class _SpreadSampler(AnswerSampler):
    """Asks every process; the answers are those of `own`."""

    def __init__(self, own: AnswerSampler, temperature: float) -> None:
        self._own, self._temperature = own, temperature

    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> list[Answer]:
        """One answer per prompt. Raises TrainError, the first any process had."""
        if not prompts:
            return []
        with current().together("sample", self._temperature, prompts, keys):
            shares = sample_share(self._own, prompts, keys)
        answers: dict[int, Answer] = {}
        for share in shares:
            if isinstance(share, TrainError):
                raise share
            answers |= share
        return [answers[index] for index in range(len(prompts))]


def sample_share(
    own: AnswerSampler, prompts: Sequence[Sequence[int]], keys: Sequence[str]
) -> list[dict[int, Answer] | TrainError]:
    """In all processes: answer this one's share; every process's answers by the prompt's index, or what it raised."""
    here = current()
    # Alike prompts stay together: a sampler reads equal ones once.
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), tuple(prompts[index])))
    first, last = (len(order) * rank // here.size for rank in (here.rank, here.rank + 1))
    mine = order[first:last]
    outcome: dict[int, Answer] | TrainError
    try:
        answers = own.sample([prompts[index] for index in mine], [keys[index] for index in mine])
        outcome = dict(zip(mine, answers, strict=True))
    except TrainError as error:
        outcome = error
    return here.gather(outcome)
