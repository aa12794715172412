"""Text in; the ids of its subwords out, and back: BPE and unigram pieces over bytes, so that nothing is lost.

The cutting is done by the `tokenizers` library. Its ids are moved up by four, and no special token is made known to
it: so no sentence can spell one. A blank before the text makes its first word the same as anywhere else; `decode`
takes it away again.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from regard.text.normal import Normal
from regard.text.vocabulary import SPECIALS, Spelt, readable, some, starts

# No piece reaches over these cuts: letters with their accents, digits, and signs, each with the one blank before it.
CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def byte_signs() -> dict[str, int]:
    """The sign by which byte-level pieces write each byte: itself where it can be printed, a letter above otherwise."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


SIGNS = byte_signs()


@dataclass(frozen=True)
class Subwords(Spelt):
    """Made by `Subwords.bpe` or `Subwords.unigram`. For a joint vocabulary, train on both sides."""

    model: str = field(repr=False)
    """The tokeniser as `tokenizers` writes it."""
    normal: Normal = Normal()
    kind = "subwords"
    before = " "

    def __post_init__(self):
        assert self.pieces  # asked for now, so that a damaged model is found here and not in the middle of a text

    @staticmethod
    def bpe(texts: Iterable[str], *, size: int = 10_000, min_count: int = 2, normal: Normal = Normal()) -> "Subwords":
        """Byte-pair encoding: the most frequent pair becomes one piece, until there are `size` ids in all."""
        trainer = trainers.BpeTrainer(
            vocab_size=room(size), min_frequency=min_count, initial_alphabet=list(SIGNS), show_progress=False
        )
        engine = built(models.BPE())
        engine.train_from_iterator(_ready(texts, normal), trainer)
        return Subwords(tidy(engine.to_str()), normal)

    @staticmethod
    def unigram(texts: Iterable[str], *, size: int = 10_000, normal: Normal = Normal()) -> "Subwords":
        """The pieces that make the texts most probable, each drawn on its own; `size` ids in all."""
        trainer = trainers.UnigramTrainer(vocab_size=room(size), initial_alphabet=list(SIGNS), show_progress=False)
        engine = built(models.Unigram())
        engine.train_from_iterator(_ready(texts, normal), trainer)
        settled = models.Unigram(settle(json.loads(engine.to_str())["model"]["vocab"], room(size)))
        return Subwords(tidy(built(settled).to_str()), normal)

    def under(self, normal: Normal) -> "Subwords":
        """The same pieces for texts in another normal form: the other language of a joint vocabulary."""
        return replace(self, normal=normal)

    @cached_property
    def _engine(self) -> Tokenizer:
        # Before the library sees it: some settings would make it panic, which Python cannot tell from a crash.
        held, fresh = settings(self.model), [settings(built(model).to_str()) for model in examples()]
        if held not in fresh:
            strange = [name for name, value in held.items() if all(one.get(name) != value for one in fresh)]
            raise ValueError(f"the subword model is damaged or foreign: {', '.join(strange) or 'a part is missing'}")
        try:
            return Tokenizer.from_str(self.model)
        except Exception as error:  # the library raises no narrower kind
            raise ValueError(f"the subword model is damaged: {error}") from None

    @cached_property
    def pieces(self):  # type: ignore[override]
        held = self._engine.get_vocab()
        if sorted(held.values()) != list(range(len(held))):
            raise ValueError("the subword model is damaged: its ids have gaps")
        if missing := [byte for sign, byte in SIGNS.items() if sign not in held]:
            raise ValueError(f"the subword model is damaged: it cannot spell the byte 0x{missing[0]:02X}")
        if foreign := [piece for piece in held if not piece or not SIGNS.keys() >= set(piece)]:
            raise ValueError(f"the subword model is foreign: {foreign[0]!r} is not made of bytes")
        return tuple(bytes(SIGNS[sign] for sign in piece) for piece in sorted(held, key=lambda piece: held[piece]))

    def encode(self, text):
        text = self.normal.apply(text)
        return [SPECIALS + one for one in self._engine.encode(self.before + text).ids] if text else []

    def encode_all(self, texts):
        ready = [self.normal.apply(text) for text in texts]
        found = self._engine.encode_batch_fast([self.before + text for text in ready])
        return [[SPECIALS + one for one in cut.ids] if text else [] for text, cut in zip(ready, found, strict=True)]

    def tokens(self, text):
        """A piece that goes on with a word begins with a middle dot: "light", "·ness"."""
        spelt, text = self.spell(self.encode(text)), self.before + self.normal.apply(text)
        inside = [not character.isspace() for character in text for _ in character.encode()]
        goes_on = [start > 0 and inside[start] and inside[start - 1] for start in starts(spelt)]
        shown = [readable(piece.removeprefix(b" ") or piece) for piece in spelt]
        return [f"·{piece}" if more else piece for piece, more in zip(shown, goes_on, strict=True)]

    def learnt(self):
        return {"model": json.loads(self.model)}


# --- how a model is made ---


def built(model: models.Model) -> Tokenizer:
    engine = Tokenizer(model)
    cuts = pre_tokenizers.Split(Regex(CUTS), "isolated")
    into_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([cuts, into_bytes])
    return engine


def examples() -> list[models.Model]:
    """One of each kind that Regard makes."""
    return [models.BPE(), models.Unigram([("a", 0.0)])]


def settings(written: str) -> dict[str, Any]:
    """All of a model but what it learnt. Whatever else a file may switch on would lose text or make it random."""
    held = json.loads(written)
    if not isinstance(held, dict) or not isinstance(held.get("model"), dict):
        raise ValueError("the subword model is damaged: it is not an object with a model inside")
    inner = {name: value for name, value in held["model"].items() if name not in ("vocab", "merges")}
    return {**held, "model": None, **inner}


def tidy(model: str) -> str:
    """The same text for the same model, whether just trained or read from a file."""
    return json.dumps(json.loads(model), ensure_ascii=False, separators=(",", ":"))


def room(size: int) -> int:
    """How many pieces `size` ids leave for; at least every byte must have one."""
    if size < SPECIALS + len(SIGNS):
        raise ValueError(f"size={size} is too small: {SPECIALS} special ids and {len(SIGNS)} bytes are always there")
    return size - SPECIALS


def settle(scored: list[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    """At most so many pieces, in one order with one score each, however the library walked through its tables.

    From run to run it adds up in another order, which shows in the last digits, and hands out the lowest scores to
    rare bytes in another order, in steps of 0.0001. So scores are rounded, and rare bytes all get the lowest.
    """
    lowest = min(score for _, score in scored)
    rare = lowest + 0.0001 * len(SIGNS)
    level = [(piece, round(lowest if piece in SIGNS and score <= rare else score, 4)) for piece, score in scored]
    ranked = sorted(level, key=lambda one: (one[0] not in SIGNS, -one[1], one[0]))[:most]
    return sorted(ranked, key=lambda one: (-one[1], one[0]))


def _ready(texts: Iterable[str], normal: Normal) -> Iterator[str]:
    return (Subwords.before + normal.apply(text) for text in some(texts))
