"""What a model's calls cost, from tokens, latency and a price. Knows no currency, reads no files."""

from __future__ import annotations

from dataclasses import dataclass

from task_app.config.models import PriceSection

__all__ = ["Cost", "cost_of"]

TOKENS_A_PRICE = 1_000_000
SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost in the currency of its price; None where it cannot be known.

    tokens, gpu      the two parts of `total`
    per_episode      total over all episodes, those without reward included: they were paid for
    per_achievement  total over the ΣUniqueΔ of rewarded episodes; None where nothing was unlocked
    """

    total: float | None
    tokens: float | None
    gpu: float
    per_episode: float | None
    per_achievement: float | None


def cost_of(
    price: PriceSection,
    *,
    prompt_tokens: int | None,
    completion_tokens: int | None,
    latency_s: float,
    episodes: int,
    unlocks: int,
) -> Cost:
    """The cost of calls that took so many tokens and seconds together.

    A token count that is None makes the cost unknown unless its price is 0.
    """
    gpu = price.gpu_hour * latency_s / SECONDS_AN_HOUR
    parts = [_part(price.input, prompt_tokens), _part(price.output, completion_tokens)]
    known = [part for part in parts if part is not None]
    tokens = sum(known) if len(known) == len(parts) else None
    total = tokens + gpu if tokens is not None else None
    return Cost(total, tokens, gpu, _over(total, episodes), _over(total, unlocks))


def _part(price: float, tokens: int | None) -> float | None:
    if not price:
        return 0.0
    return price * tokens / TOKENS_A_PRICE if tokens is not None else None


def _over(total: float | None, count: int) -> float | None:
    return total / count if total is not None and count else None
