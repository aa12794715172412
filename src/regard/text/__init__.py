"""Text: corpora, tokenisers and batches. Names are fetched when first used, so that only batches wait for torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.text.batches import Batch, Batches, Example, Feed, Held, Long, collate, lengths_of, padded
    from regard.text.bytewise import Bytes
    from regard.text.conllu import Tagged, read_columns, read_conllu, read_tagged, write_columns, write_conllu
    from regard.text.corpus import Count, Pair, count, read_pairs, refuse, sides
    from regard.text.files import lines_of, read_lines
    from regard.text.known import KNOWN, known_pairs, known_path
    from regard.text.labelled import Labelled, Labels, read_labelled
    from regard.text.normal import Normal
    from regard.text.pieces import Pieces, first_pieces
    from regard.text.plain import Block, Blocks, Order, bits_per_byte, line_ids, perplexity_per_word, read_text, windows
    from regard.text.saved import load_tokeniser
    from regard.text.stream import Passed, Shuffled, Streamed
    from regard.text.subwords import Subwords
    from regard.text.vocabulary import BOS, EOS, PAD, UNK, Characters, Tokeniser, Words
    from regard.text.writing import write_pairs

NAMES = {
    "batches": ("Batch", "Batches", "Example", "Feed", "Held", "Long", "collate", "lengths_of", "padded"),
    "bytewise": ("Bytes",),
    "conllu": ("Tagged", "read_columns", "read_conllu", "read_tagged", "write_columns", "write_conllu"),
    "corpus": ("Count", "Pair", "count", "read_pairs", "refuse", "sides"),
    "files": ("lines_of", "read_lines"),
    "known": ("KNOWN", "known_pairs", "known_path"),
    "labelled": ("Labelled", "Labels", "read_labelled"),
    "normal": ("Normal",),
    "pieces": ("Pieces", "first_pieces"),
    "plain": ("Block", "Blocks", "Order", "bits_per_byte", "line_ids", "perplexity_per_word", "read_text", "windows"),
    "saved": ("load_tokeniser",),
    "stream": ("Passed", "Shuffled", "Streamed"),
    "subwords": ("Subwords",),
    "vocabulary": ("BOS", "EOS", "PAD", "UNK", "Characters", "Tokeniser", "Words"),
    "writing": ("write_pairs",),
}
HOMES = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'regard.text' has no attribute {name!r}; it has {', '.join(sorted(HOMES))}")
    return getattr(import_module(f"regard.text.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
