"""Ids in; what a person reads for each, and the words they belong to, out."""

from collections.abc import Sequence

from regard.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Spelt, Tokeniser, readable

SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def named(tokeniser: Tokeniser, one: int) -> str:
    """A token by itself, its blanks to be seen."""
    if one < SPECIALS:
        return SPECIAL[one]
    return readable(tokeniser.pieces[one - SPECIALS]) if isinstance(tokeniser, Spelt) else tokeniser.decode([one])


def id_of(tokeniser: Tokeniser, token: int | str) -> int:
    """A token by its number or its name."""
    if isinstance(token, str):
        # of a character and a byte that look the same, the character, as `encode` would
        names = {named(tokeniser, one): one for one in range(tokeniser.size)} | {SPECIAL[one]: one for one in SPECIAL}
        if token in names:
            return names[token]
        raise ValueError(f"there is no token {token!r:.80} in the vocabulary of {tokeniser.size}")
    return tokeniser.checked([token])[0]


def words_of(tokeniser: Tokeniser, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words that ids spell, and the word of each: also of ids that no tokeniser would give for that text.

    A blank belongs to the word behind it.
    """
    if not isinstance(tokeniser, Spelt):
        return tuple(named(tokeniser, one) for one in ids), tuple(range(len(ids)))
    word_of: list[int] = []
    spelt: list[bytes] = []
    for one in ids:
        piece = b"" if one < SPECIALS else tokeniser.pieces[one - SPECIALS]
        if not spelt or (piece[:1].isspace() and spelt[-1].strip()):
            spelt.append(b"")
        spelt[-1] += piece
        word_of.append(len(spelt) - 1)
    return tuple(word.strip().decode(errors="replace") for word in spelt), tuple(word_of)
