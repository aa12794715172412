"""Tokens and how probable a language model found each in; the text on shades of its surprise out."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.labels import readable, short
from regard.see.numbers import brief
from regard.see.panel import Row, Scale, Strip, View
from regard.see.tagged import probabilities as checked

LONGEST = 24  # terminal cells of a token
NOTED = 5  # tokens whose alternatives are listed
NAMED = 12  # terminal cells of such a token in the notes

Alternatives = Sequence[tuple[str, float]]  # tokens and their probabilities, the most probable first


def growth(
    tokens: Sequence[str],
    probabilities: Float[Tensor, " written"],
    *,
    prompt: Sequence[str] = (),
    alternatives: Sequence[Alternatives] = (),
    title: str = "",
) -> View:
    """What was written after the prompt, each token the darker the more it surprised: -log₂ p, in bits.

    The prompt was given, so it surprises nobody: it has no shade. `alternatives`, if any, are those of each token; the
    notes list them for the tokens that surprised most. Tokens that hold their own blanks are set as one text.
    """
    for given in (tokens, prompt):
        if isinstance(given, str):
            raise ValueError(f"a text must be a list of tokens, not the one string {given!r}; use list(...) or split()")
    if not tokens:
        raise ValueError("nothing was written; give at least one token")
    if alternatives and len(alternatives) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have alternatives each, or none have, not {len(alternatives)}")
    chance = checked(probabilities, len(tokens))
    if float(chance.min()) == 0:
        place = int(chance.argmin())
        raise ValueError(f"{tokens[place]!r} was written with probability 0; a model's own text has none such")
    bits = -chance.log2() + 0.0
    everything = (*prompt, *tokens)
    close = any(not token.isprintable() or " " in token for token in everything)
    panel = Strip(
        "",
        tuple(piece(token) if close else short(readable(token), LONGEST) for token in everything),
        torch.cat((torch.zeros(len(prompt), dtype=bits.dtype), bits)),
        Scale.of(bits, "bits"),
        visible=torch.arange(len(everything)) >= len(prompt),
        close=close,
        absent="given",
    )
    mean = f"{brief(float(bits.mean()))} bits a token on average, perplexity {brief(2 ** float(bits.mean()))}"
    return View((Row((panel,), heading=title),), notes=(("", mean), *noted(tokens, chance, bits, alternatives)))


def piece(token: str) -> str:
    """A token of a running text: its blanks stay blank, its line breaks are seen."""
    return short(readable(token) if token.strip(" ") else token or readable(token), LONGEST)


def noted(
    tokens: Sequence[str], chance: Tensor, bits: Tensor, alternatives: Sequence[Alternatives]
) -> list[tuple[str, str]]:
    """The most surprising tokens, in their order, and what was expected in their place."""
    most: list[int] = bits.argsort(descending=True, stable=True)[:NOTED].tolist() if alternatives else []
    return [
        (
            spelled(tokens[n]),
            f"{percent(float(chance[n]))}; expected "
            + ", ".join(f"{spelled(token)} {percent(p)}" for token, p in alternatives[n]),
        )
        for n in sorted(most)
    ]


def spelled(token: str) -> str:
    """A token among others, its blanks to be seen."""
    return short(readable(token).replace(" ", "␣"), NAMED)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
