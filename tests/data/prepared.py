"""Prepared corpora for tests: written directly, or by a preparation of the miniature world."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data import SentencePair
from regard.data.cleaning import CleaningRules
from regard.data.preparation import PairPreparation, TextPreparation
from regard.data.sources import PairSource, TextSource
from regard.data.token_files import Example, TokenCorpus, write_corpus, write_shard, write_text_shard
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.tasks.config import TokenizerSettings
from regard.tasks.pretrained import train_text_tokenizer
from regard.world import World, translation_pairs

TEXT_OF_LINES = {"kind": "bpe", "vocab_size": 400}
TEXT = {"kind": "bpe", "vocab_size": 400, "joint": True}


def write_examples(folder: Path, shards: Sequence[Sequence[Example]], vocabulary: str = "one") -> TokenCorpus:
    """A corpus of these pairs of ids, without tokenizers."""
    folder.mkdir(parents=True)
    infos = []
    for number, examples in enumerate(shards):
        lengths = np.array([(len(source), len(target)) for source, target in examples])
        ids = np.array([one for pair in examples for side in pair for one in side])
        infos.append(write_shard(folder / f"{number:05d}.tokens", lengths, ids, id_bytes=2))
    write_corpus(folder, infos, {"source": "en", "target": "fr", "vocabulary": vocabulary, "text": TEXT})
    return TokenCorpus.open(folder)


def write_stream(folder: Path, pieces: Sequence[Sequence[int]], vocabulary: str = "one") -> TokenCorpus:
    """A corpus of running text in so many shards."""
    shards = [
        write_text_shard(folder / f"{number:05d}.tokens", np.array(piece), id_bytes=2)
        for number, piece in enumerate(pieces)
    ]
    about = {"content": "text", "vocabulary": vocabulary, "text": TEXT_OF_LINES, "texts": 1, "characters": 1}
    write_corpus(folder, shards, about)
    return TokenCorpus.open(folder)


def text_request(out: Path, sources: Iterable[TextSource], kind: str = "bpe", **more: Any) -> TextPreparation:
    settings = TokenizerSettings(kind=kind, vocab_size=400)
    return TextPreparation(
        sources=tuple(sources),
        out=out,
        text=settings.to_dict(),
        learn=lambda sample: train_text_tokenizer(sample, settings),
        **more,
    )


def listed_texts(name: str, texts: Sequence[str], *, documents: bool = False) -> TextSource:
    return TextSource(name, lambda: iter(texts), (name, str(len(texts))), documents)


def world_lines(count: int, seed: int = 0) -> list[str]:
    return [f"{source}\n" for source, _ in translation_pairs(World(max_length=9, seed=seed), "fr", count)]


def learn(sample: Sequence[SentencePair]) -> tuple[Tokenizer, Tokenizer]:
    both = SubwordTokenizer.bpe((text for pair in sample for text in (pair.source, pair.target)), size=400)
    return both, both


def world_source(name: str, count: int, target: str = "fr", seed: int = 0) -> PairSource:
    pairs = [SentencePair(*pair) for pair in translation_pairs(World(max_length=6, seed=seed), target, count)]
    return listed_source(name, pairs, target)


def listed_source(name: str, pairs: Sequence[SentencePair], target: str = "fr") -> PairSource:
    def read(on_empty: Callable[[str], object]) -> Iterator[SentencePair]:
        return iter(pairs)

    return PairSource(name, ("en", target), read, (name, str(len(pairs))))


def request_for(out: Path, sources: Iterable[PairSource], rules: CleaningRules | None = None) -> PairPreparation:
    return PairPreparation(sources=tuple(sources), out=out, text=TEXT, learn=learn, rules=rules)
