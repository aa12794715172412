"""Tokenizer files: loads what a tokenizer saved."""

import json
from pathlib import Path
from typing import Any

from regard.data.files import require_small_file
from regard.data.tokenizers.base import FORMAT, ByteTokenizer, CharTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.subwords import SubwordTokenizer, canonical_json

KINDS = (WordTokenizer.kind, CharTokenizer.kind, SubwordTokenizer.kind, ByteTokenizer.kind)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer that a file holds, whichever its kind."""
    path = require_small_file(path)
    try:
        saved = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no tokenizer at all ({error}); save it again") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        file_format = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise ValueError(f"{path}: not a tokenizer of this Regard: its format is {file_format!r}, not {FORMAT!r}")
    try:
        return _tokenizer(saved)
    except (ValueError, TypeError, KeyError) as error:
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: damaged: {reason}; save it again") from None


def _tokenizer(saved: dict[str, Any]) -> Tokenizer:
    normalizer = TextNormalizer(**saved["normal"])
    match saved["kind"]:
        case "words":
            return WordTokenizer(tuple(_texts(saved["vocabulary"], list)), normalizer)
        case "characters":
            return CharTokenizer("".join(_texts(saved["vocabulary"], str)), normalizer)
        case "subwords":
            return SubwordTokenizer(canonical_json(json.dumps(saved["model"])), normalizer)
        case "bytes":
            return ByteTokenizer(normalizer)
    raise ValueError(f"the kind {saved['kind']!r} is none of {', '.join(KINDS)}")


def _texts(vocabulary: Any, wanted: type) -> Any:
    if not isinstance(vocabulary, wanted) or not all(isinstance(piece, str) for piece in vocabulary):
        raise ValueError(f"the vocabulary is no {'list of texts' if wanted is list else 'text'}")
    return vocabulary
