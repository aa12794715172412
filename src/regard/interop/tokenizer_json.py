"""tokenizer.json: our tokenizers as those of the `tokenizers` library, with the same ids.

Our special ids stand for no text, so those of the library are not added tokens: "<s>" in a sentence stays text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers as library
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.data.tokenizers.base import (
    BOS,
    EOS,
    NUM_SPECIAL_TOKENS,
    PAD,
    UNK,
    ByteTokenizer,
    CharTokenizer,
    LosslessTokenizer,
    Tokenizer,
    WordTokenizer,
)
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.subwords import UNICODE_TO_BYTE, SubwordTokenizer

SPECIAL_NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}
NEVER = -1e9  # the score of a special token of a unigram model, which any other spelling exceeds
FORMS = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A name for each id, all of them distinct: the word, the character, the piece in GPT-2's alphabet of bytes."""
    names = piece_names(tokenizer)
    return [*special_names(names), *names]


def piece_names(tokenizer: Tokenizer) -> list[str]:
    if isinstance(tokenizer, WordTokenizer):
        return list(tokenizer.vocabulary)
    if isinstance(tokenizer, CharTokenizer):
        return [*(f"<0x{byte:02X}>" for byte in range(256)), *tokenizer.vocabulary]
    if isinstance(tokenizer, SubwordTokenizer | ByteTokenizer):
        signs = {byte: sign for sign, byte in UNICODE_TO_BYTE.items()}
        return ["".join(signs[byte] for byte in piece) for piece in tokenizer.pieces]
    raise ValueError(
        f"a tokenizer of the kind {tokenizer.kind!r} has no tokenizer.json; export words, bytes or subwords"
    )


def special_names(taken: Iterable[str]) -> list[str]:
    """Names of PAD, BOS, EOS and UNK; a corpus may have words such as "<unk>", and then they differ from these."""
    known, found = set(taken), []
    for name in SPECIAL_NAMES.values():
        while name in known:
            name = f"<{name}>"
        found.append(name)
    return found


def export_tokenizer(
    tokenizer: Tokenizer, *, before: Sequence[int] = (), after: Sequence[int] = (), opening: str = ""
) -> library.Tokenizer:
    """The library's tokenizer. All of `TextNormalizer` is part of it but the word tokenization of a language, which
    comes first.

    Args:
        before, after: special ids around every text.
        opening: stands before every text, and is not part of what ids are decoded to.
    """
    made = library.Tokenizer(export_model(tokenizer))
    made.normalizer = export_normalizer(tokenizer, opening)
    strip = [decoders.Strip(sign, 1, 0) for sign in opening]
    if isinstance(tokenizer, WordTokenizer):
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif isinstance(tokenizer, CharTokenizer):
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *strip])
    elif isinstance(tokenizer, SubwordTokenizer):
        made.pre_tokenizer = library.Tokenizer.from_str(tokenizer.model).pre_tokenizer
        strip = [decoders.Strip(" ", 1, 0), *strip]
        made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), *strip])
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), *strip])
    if before or after:
        names = token_names(tokenizer)
        template = [*(names[one] for one in before), "$A", *(names[one] for one in after)]
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(names[one], one) for one in {*before, *after}]
        )
    return made


def export_model(tokenizer: Tokenizer) -> models.Model:
    names = token_names(tokenizer)
    vocabulary = {name: one for one, name in enumerate(names)}
    if isinstance(tokenizer, WordTokenizer):
        return models.WordLevel(vocabulary, unk_token=names[UNK])
    if isinstance(tokenizer, CharTokenizer):
        return models.BPE(vocabulary, [], unk_token=names[UNK], byte_fallback=True)
    if not isinstance(tokenizer, SubwordTokenizer):
        return models.BPE(vocabulary, [])
    model: Mapping[str, Any] = json.loads(tokenizer.model)["model"]
    if model["type"] == "BPE":
        return models.BPE(vocabulary, [(left, right) for left, right in model["merges"]])
    scores = [*((name, NEVER) for name in names[:NUM_SPECIAL_TOKENS]), *map(tuple, model["vocab"])]
    return models.Unigram(scores, unk_id=UNK)


def export_normalizer(tokenizer: Tokenizer, opening: str) -> normalizers.Normalizer:
    normal, steps = tokenizer.normalizer, list[normalizers.Normalizer]()
    steps += [FORMS[normal.form]()] if normal.form else []
    if normal.squeeze or normal.language:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps += [normalizers.Lowercase()] if normal.lower else []
    steps += [FORMS[normal.form]()] if normal.form and normal.lower else []
    prefix = (tokenizer.prefix if isinstance(tokenizer, LosslessTokenizer) else "") + opening
    steps += [normalizers.Prepend(prefix)] if prefix else []
    return normalizers.Sequence(steps)


def words_first(normal: TextNormalizer, text: str) -> str:
    """What tokenizer.json is given: the text, tokenized into words where the model reads it so."""
    return TextNormalizer(language=normal.language).apply(text)
