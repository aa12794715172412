"""Sentence pairs in; the text files that every toolkit trains on, cut into pieces once and for all, out.

A piece is written as its number, so that every toolkit reads lines of plain words, cuts at blanks, and has the same
vocabulary: the pieces that occur in training. Nothing is left for a tokeniser to do differently.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.text.corpus import Pair
from regard.text.files import write_whole
from regard.text.subwords import Subwords
from regard.text.vocabulary import SPECIALS

PIECES = 8000


@dataclass(frozen=True)
class Texts:
    """Where they lie: train.source, train.target, valid.source and valid.target, and a piece on each line."""

    folder: Path
    pairs: int
    words: int

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary"

    def plan(self) -> dict[str, object]:
        names = {name: str(self.folder / name) for name in ("train", "valid", "vocabulary")}
        return {**names, "pairs": self.pairs, "words": self.words + SPECIALS}


def write_texts(train: Sequence[Pair], valid: Sequence[Pair], folder: Path, pieces: int = PIECES) -> Texts:
    tokeniser = Subwords.bpe([text for pair in train for text in (pair.source, pair.target)], size=pieces)
    counts: Counter[int] = Counter()
    for name, pairs in (("train", train), ("valid", valid)):
        for side in ("source", "target"):
            rows = tokeniser.encode_all([getattr(pair, side) for pair in pairs])
            counts.update(piece for row in rows for piece in row if name == "train")
            write_whole(folder / f"{name}.{side}", "".join(f"{' '.join(map(str, row))}\n" for row in rows))
    write_whole(folder / "vocabulary", "".join(f"{piece}\n" for piece, _ in counts.most_common()))
    return Texts(folder, len(train), len(counts))
