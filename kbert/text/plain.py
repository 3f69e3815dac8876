"""A plain text, or two, as one row by Python alone: of so little, TensorFlow's operations take longest to begin.

Beside weights that have just been read their code is in no cache: on two EPYC cores that took 1.7 of the 6 ms of a
MiniLM's sentence. Plain is ASCII without control characters but tabs and ends of lines, in words that are not long; all
others are the graph's (wordpiece.py).
"""

import json
import re
from collections.abc import Sequence

import numpy as np

LONGEST_WORD = 32  # Python looks for pieces in n * n / 2 places
MOST_CHARACTERS = 16  # for each token that fits: a longer text hardly does, and takes long to look through
# As normalization.py has them, whose modules a server does without; not Python's own whitespace, which is more.
PLAIN = re.compile(r"[\t\n\r -~]*")
WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")


class PlainRow:
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] of texts that are plain and fit, equal to the graph's."""

    def __init__(self, pieces: Sequence[str], lower_case: bool, longest: int):
        """longest: of the row, in tokens."""
        self.ids = {piece: number for number, piece in enumerate(pieces)}
        self.lower_case, self.longest = bool(lower_case), int(longest)

    @classmethod
    def from_json(cls, content: bytes) -> "PlainRow":
        return cls(**json.loads(content))

    def as_json(self) -> bytes:
        return json.dumps({"pieces": [*self.ids], "lower_case": self.lower_case, "longest": self.longest}).encode()

    def __call__(self, *texts: str | bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """input_ids and segment_ids of a text or of two, int32 [1, S], or None where that is left to the graph."""
        row, segments = [self.ids["[CLS]"]], [0]
        for segment, text in enumerate(texts):
            found = self.ids_of(text)
            if found is None:
                return None
            row += [*found, self.ids["[SEP]"]]
            segments += [segment] * (len(found) + 1)
        if len(row) > self.longest:
            return None
        return np.array([row], np.int32), np.array([segments], np.int32)

    def ids_of(self, text: str | bytes) -> list[int] | None:
        """Of the text's pieces; None for one that is not plain, or too long to be looked through."""
        if not isinstance(text, (str, bytes)) or len(text) > MOST_CHARACTERS * self.longest or not text.isascii():
            return None
        text = text.decode("ascii") if isinstance(text, bytes) else text
        if not PLAIN.fullmatch(text):
            return None
        row = []
        for word in WORD.finditer(text.lower() if self.lower_case else text):
            if len(word[0]) > LONGEST_WORD:
                return None
            row += self.ids_of_word(word[0])
        return row

    def ids_of_word(self, word: str) -> list[int]:
        """Of the longest piece that it begins with, of the longest that goes on, and so forth; or [UNK]'s."""
        row, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            ends = (end for end in range(len(word), begin, -1) if prefix + word[begin:end] in self.ids)
            end = next(ends, None)
            if end is None:
                return [self.ids["[UNK]"]]
            row.append(self.ids[prefix + word[begin:end]])
            begin = end
        return row
