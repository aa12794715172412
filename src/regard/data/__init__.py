"""Data: corpora, tokenizers and batches; names are imported on first use, so that only batches wait for torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.data.batching import (
        Batch,
        BatchSource,
        InMemoryBatches,
        LongPolicy,
        MixtureSampler,
        ShuffleBuffer,
        StreamingBatches,
        TokenBatchSampler,
        collate,
        pad_rows,
        pair_lengths,
    )
    from regard.data.cleaning import CleaningReport, CleaningRules, LanguageIdentifier, clean_pairs
    from regard.data.corpora import CORPORA, corpus_path, read_corpus_pairs
    from regard.data.documents import clause_spans, sentence_spans
    from regard.data.files import iter_lines, read_lines
    from regard.data.labelled import (
        LabelledText,
        Labels,
        TaggedSentence,
        WordPieces,
        encode_words,
        read_columns,
        read_conllu,
        read_labelled,
        read_tagged,
        write_columns,
        write_conllu,
    )
    from regard.data.lm_blocks import (
        BlockOrder,
        LMBlock,
        LMBlocks,
        MixtureBlocks,
        bits_per_byte,
        encode_lines,
        perplexity_per_word,
        read_text,
        sliding_windows,
    )
    from regard.data.parallel import (
        CorpusSize,
        SentencePair,
        count_pairs,
        iter_sides,
        read_pairs,
        write_pairs,
    )
    from regard.data.token_files import CorpusMixture, TextMixture, TokenCorpus
    from regard.data.tokenizers.base import (
        BOS,
        EOS,
        PAD,
        UNK,
        ByteTokenizer,
        CharTokenizer,
        TextNormalizer,
        Tokenizer,
        WordTokenizer,
    )
    from regard.data.tokenizers.subwords import SubwordTokenizer, load_tokenizer

__all__ = [
    "BOS",
    "CORPORA",
    "EOS",
    "PAD",
    "UNK",
    "Batch",
    "BatchSource",
    "BlockOrder",
    "ByteTokenizer",
    "CharTokenizer",
    "CleaningReport",
    "CleaningRules",
    "CorpusMixture",
    "CorpusSize",
    "InMemoryBatches",
    "LMBlock",
    "LMBlocks",
    "LabelledText",
    "Labels",
    "LanguageIdentifier",
    "LongPolicy",
    "MixtureBlocks",
    "MixtureSampler",
    "SentencePair",
    "ShuffleBuffer",
    "StreamingBatches",
    "SubwordTokenizer",
    "TaggedSentence",
    "TextMixture",
    "TextNormalizer",
    "TokenBatchSampler",
    "TokenCorpus",
    "Tokenizer",
    "WordPieces",
    "WordTokenizer",
    "bits_per_byte",
    "clause_spans",
    "clean_pairs",
    "collate",
    "corpus_path",
    "count_pairs",
    "encode_lines",
    "encode_words",
    "iter_lines",
    "iter_sides",
    "load_tokenizer",
    "pad_rows",
    "pair_lengths",
    "perplexity_per_word",
    "read_columns",
    "read_conllu",
    "read_corpus_pairs",
    "read_labelled",
    "read_lines",
    "read_pairs",
    "read_tagged",
    "read_text",
    "sentence_spans",
    "sliding_windows",
    "write_columns",
    "write_conllu",
    "write_pairs",
]
NAMES = {
    "batching": (
        "Batch",
        "BatchSource",
        "InMemoryBatches",
        "LongPolicy",
        "MixtureSampler",
        "ShuffleBuffer",
        "StreamingBatches",
        "TokenBatchSampler",
        "collate",
        "pad_rows",
        "pair_lengths",
    ),
    "cleaning": ("CleaningReport", "CleaningRules", "LanguageIdentifier", "clean_pairs"),
    "corpora": ("CORPORA", "corpus_path", "read_corpus_pairs"),
    "documents": ("clause_spans", "sentence_spans"),
    "files": ("iter_lines", "read_lines"),
    "labelled": (
        "LabelledText",
        "Labels",
        "TaggedSentence",
        "WordPieces",
        "encode_words",
        "read_columns",
        "read_conllu",
        "read_labelled",
        "read_tagged",
        "write_columns",
        "write_conllu",
    ),
    "lm_blocks": (
        "BlockOrder",
        "LMBlock",
        "LMBlocks",
        "MixtureBlocks",
        "bits_per_byte",
        "encode_lines",
        "perplexity_per_word",
        "read_text",
        "sliding_windows",
    ),
    "parallel": (
        "CorpusSize",
        "SentencePair",
        "count_pairs",
        "iter_sides",
        "read_pairs",
        "write_pairs",
    ),
    "token_files": ("CorpusMixture", "TextMixture", "TokenCorpus"),
    "tokenizers.base": (
        "BOS",
        "EOS",
        "PAD",
        "UNK",
        "ByteTokenizer",
        "CharTokenizer",
        "TextNormalizer",
        "Tokenizer",
        "WordTokenizer",
    ),
    "tokenizers.subwords": ("SubwordTokenizer", "load_tokenizer"),
}
HOMES = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}; it has {', '.join(sorted(HOMES))}")
    return getattr(import_module(f"regard.data.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
