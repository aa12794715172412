"""Hugging Face tokenizers behind our interface: those of transformers, for models that it runs.

The ids of such a model are mapped to our order on the way in and its logits on the way out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.data.tokenizers.base import EOS
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.pretrained import ForeignTokenizer, foreign_order


@dataclass(frozen=True, eq=False)
class HuggingFaceTokenizer(ForeignTokenizer):
    """A tokenizer of transformers.

    Args:
        own: the tokenizer.
        to_foreign: of each id here the id there; -1 for a special one that the model does not have.
        from_foreign: the reverse.
        side: which of its texts it reads: a source's (text), or a target's, whose pieces or language may be others.
    """

    own: Any = field(repr=False)
    to_foreign: tuple[int, ...] = field(repr=False)
    from_foreign: dict[int, int] = field(repr=False)
    side: Literal["text", "text_target"] = "text"
    normalizer: TextNormalizer = TextNormalizer()
    kind = "huggingface"

    @staticmethod
    def of(own: Any, vocabulary: int, start: int | None, end: int | None) -> "HuggingFaceTokenizer":
        """For a model with so many logits, whose texts begin and end with these ids of its own."""
        to_foreign, from_foreign = foreign_order(vocabulary, (own.pad_token_id, start, end, own.unk_token_id))
        return HuggingFaceTokenizer(own, to_foreign, from_foreign)

    def encode(self, text):
        return [self.from_foreign[one] for one in self.foreign_ids(text)]

    def foreign_ids(self, text: str) -> list[int]:
        """The model's own ids of a text with all that its tokenizer adds, but for the end, which a search appends."""
        ids = list(self.own(**{self.side: text})["input_ids"])
        return ids[:-1] if ids and self.from_foreign[ids[-1]] == EOS else ids

    def foreign_piece(self, one):
        found = self.own.convert_ids_to_tokens(one)
        return found if isinstance(found, str) else None

    def foreign_text(self, ids, *, skip_special):
        return self.own.decode(list(ids), skip_special_tokens=skip_special)

    def is_foreign_special(self, one):
        return one in self.own.all_special_ids

    def to_dict(self):
        raise ValueError("a Hugging Face tokenizer is saved by itself: tokenizer.save_pretrained(folder)")

    def written(self, ids: Iterable[int]) -> str:
        """The text of what a model wrote, without its special tokens."""
        return self.own.decode([self.to_foreign[one] for one in ids], skip_special_tokens=True).strip()
