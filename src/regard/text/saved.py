"""A file that a tokeniser saved in; the same tokeniser out, or a ValueError that says what is wrong with the file."""

import json
from pathlib import Path
from typing import Any

from regard.text.bytewise import Bytes
from regard.text.files import small
from regard.text.normal import Normal
from regard.text.subwords import Subwords, tidy
from regard.text.vocabulary import FORMAT, Characters, Tokeniser, Words

KINDS = (Words.kind, Characters.kind, Subwords.kind, Bytes.kind)


def load_tokeniser(path: str | Path) -> Tokeniser:
    path = small(path)
    try:
        held = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no tokeniser at all ({error}); save it again") from None
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        found = held.get("format") if isinstance(held, dict) else type(held).__name__
        raise ValueError(f"{path}: not a tokeniser of this Regard: its format is {found!r}, not {FORMAT!r}")
    try:
        return _tokeniser(held)
    except (ValueError, TypeError, KeyError) as error:
        said = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: damaged: {said}; save it again") from None


def _tokeniser(held: dict[str, Any]) -> Tokeniser:
    normal = Normal(**held["normal"])
    match held["kind"]:
        case "words":
            return Words(tuple(_texts(held["vocabulary"], list)), normal)
        case "characters":
            return Characters("".join(_texts(held["vocabulary"], str)), normal)
        case "subwords":
            return Subwords(tidy(json.dumps(held["model"])), normal)
        case "bytes":
            return Bytes(normal)
    raise ValueError(f"the kind {held['kind']!r} is none of {', '.join(KINDS)}")


def _texts(vocabulary: Any, wanted: type) -> Any:
    if not isinstance(vocabulary, wanted) or not all(isinstance(piece, str) for piece in vocabulary):
        raise ValueError(f"the vocabulary is no {'list of texts' if wanted is list else 'text'}")
    return vocabulary
