"""A word-level tokenizer over a task app's own vocabulary. It knows words and ids, no templates.

Texts are split at white space and at `,`, `:` and `;`, which carry no meaning. An integer that is not
in the vocabulary is read digit by digit. Any other unknown word is an error: a policy that silently
read `<unk>` would train on a hole in its own prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from task_app.core.errors import TrainError

__all__ = ["ANSWER", "BEGIN", "PAD", "SPLIT_RULE", "WordTokenizer"]

PAD, BEGIN, ANSWER, UNKNOWN = "<pad>", "<begin>", "<answer>", "<unk>"
_MARKERS = (PAD, BEGIN, ANSWER, UNKNOWN)

SPLIT_RULE = r"[\s,:;]+"
_INTEGER = re.compile(r"[+-]?\d+")


class WordTokenizer:
    """Words to ids and back. The four markers come first, then the vocabulary in its own order."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises TrainError when a word is a marker or would be split."""
        for word in words:
            if word in _MARKERS or not word or re.search(SPLIT_RULE, word):
                raise TrainError(f"vocabulary word {word!r} cannot be a token: a marker, empty, or split by the rule")
        self.words: tuple[str, ...] = tuple(dict.fromkeys([*_MARKERS, *words]))
        ids = {word: index for index, word in enumerate(self.words)}
        self._tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Split(  # pyright: ignore[reportAttributeAccessIssue]
            Regex(SPLIT_RULE), behavior="removed"
        )
        self._ids = ids

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def json(self) -> str:
        """The tokenizer in the `tokenizers` library's own file form."""
        return self._tokenizer.to_str(pretty=True)

    def id(self, word: str) -> int:
        """The id of one word or marker. Raises TrainError for an unknown one."""
        if word not in self._ids:
            raise TrainError(f"word {word!r} is not in the tokenizer's vocabulary of {len(self)} words")
        return self._ids[word]

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises TrainError naming the first word that is neither known nor an integer."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids
        if all(index >= len(_MARKERS) for index in ids):
            return ids
        spelled: list[int] = []
        for index, (start, end) in zip(ids, encoding.offsets, strict=True):
            spelled += [index] if index >= len(_MARKERS) else self._digits(text[start:end])
        return spelled

    def _digits(self, word: str) -> list[int]:
        if not _INTEGER.fullmatch(word) or not all(sign in self._ids for sign in word):
            raise TrainError(
                f"observation holds the unknown word {word!r}; the task app's vocabulary must list every word "
                "its texts are made of"
            )
        return [self._ids[sign] for sign in word]
