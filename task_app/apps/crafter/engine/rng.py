"""NumPy's legacy generator (`RandomState`) on top of `random.Random`, number for number.

Both are the Mersenne Twister MT19937 and make doubles from two words in the same way. Calls of
`random.Random` cost a tenth of NumPy's. `random()` gives what `RandomState.uniform()` gives.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

__all__ = ["Random"]

_VERSION = 3  # of the tuples `random.Random.setstate` takes


class Random(random.Random):
    """A generator in the state of `RandomState(seed)`."""

    @classmethod
    def seeded(cls, seed: int) -> Random:
        """The generator that `numpy.random.RandomState(seed)` would be."""
        made = cls()
        _, key, position, *_ = np.random.RandomState(seed).get_state()
        made.set_words(key.tolist(), int(position))  # pyright: ignore[reportAttributeAccessIssue]
        return made

    def below(self, bound: int) -> int:
        """What `RandomState.randint(0, bound)` gives, bound < 2**32: masked words until one is small enough."""
        if bound == 1:
            return 0
        mask = (1 << (bound - 1).bit_length()) - 1
        while (word := self.getrandbits(32) & mask) >= bound:
            pass
        return word

    def words(self) -> tuple[tuple[int, ...], int]:
        """The key's 624 words and the position in it, as `RandomState.get_state` has them."""
        state = self.getstate()[1]
        return state[:-1], state[-1]

    def set_words(self, key: Sequence[int], position: int) -> None:
        """The inverse of `words`."""
        self.setstate((_VERSION, (*key, position), None))
