"""Text views: tags, surprisal and word weights below or behind the words of a text."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.see.plots.attention_maps import assert_weights, strip, to_cpu_double, word_labels
from regard.see.plots.panels import ColourScale, PanelRow, Strip, View, format_number, truncate_label, visible_text

MAX_TAG_CELLS = 12  # terminal cells of a tag


def tag_view(
    sentence: Sequence[str],
    tags: Sequence[str],
    *,
    gold: Sequence[str] | None = None,
    probabilities: Float[Tensor, " words"] | None = None,
    attention: Mapping[int, Float[Tensor, " words"]] | None = None,
    title: str = "",
) -> View:
    """Words above their tags.

    Args:
        gold: the right tags; where they differ, the tag is marked and the right one stands below it.
        probabilities: how probable the model finds each tag, as the shade of its word.
        attention: for some words, by their indices from 0: the weights of the others when they were tagged.

    Examples:
        >>> view = tag_view(["the", "light", "box"], ["DET", "NOUN", "NOUN"], gold=["DET", "ADJ", "NOUN"])
        >>> print(ascii(view))
        the light  box
        DET ✗ NOUN NOUN
            ADJ
        <BLANKLINE>
        2 of 3 tags are right; the gold tag stands below each wrong one
    """
    shown, given = word_labels(sentence, "words"), check_tags(tags, len(sentence), "tags")
    right = given if gold is None else check_tags(gold, len(sentence), "gold tags")
    wrong = frozenset(n for n in range(len(shown)) if (tags if gold is None else gold)[n] != tags[n])
    below = (given, tuple(right[n] if n in wrong else "" for n in range(len(shown)))) if wrong else (given,)
    known = torch.full((len(shown),), probabilities is not None)
    panel = Strip(
        "",
        shown,
        torch.zeros(len(shown)) if probabilities is None else check_probabilities(probabilities, len(shown)),
        ColourScale("weights", 0.0, 1.0, "probability"),
        visible=known,
        rows_below=below,
        errors=wrong,
    )
    rows = [PanelRow((panel,), heading=title)]
    for at, weights in (attention or {}).items():
        view = strip(sentence, weights, f"attention when tagging “{word_at(shown, at)}” as {given[at]}", highlight=at)
        rows += view.rows
    return View(tuple(rows), notes=() if gold is None else (("", tally(len(shown), len(wrong))),))


def tally(count: int, wrong: int) -> str:
    right = f"{count - wrong} of {count} tags are right"
    return f"{right}; the gold tag stands below each wrong one" if wrong else right


def check_tags(tags: Sequence[str], count: int, name: str) -> tuple[str, ...]:
    if isinstance(tags, str) or len(tags) != count:
        raise ValueError(f"{count} words need a tag each, not {len(tags)} {name}: {tags!r}")
    return tuple(truncate_label(visible_text(tag), MAX_TAG_CELLS) for tag in tags)


def word_at(shown: tuple[str, ...], at: int) -> str:
    if not 0 <= at < len(shown):
        raise ValueError(f"there is no word {at} in a sentence of {len(shown)}; words are counted from 0")
    return shown[at]


def check_probabilities(given: Tensor, count: int) -> Tensor:
    if tuple(given.shape) != (count,):
        raise ValueError(f"{count} words need a probability each, shape ({count},), not {tuple(given.shape)}")
    wrong = given[~((given >= 0) & (given <= 1))]
    if len(wrong):
        raise ValueError(f"probabilities lie between 0 and 1, but {float(wrong[0]):g} is among them")
    return to_cpu_double(given)


# --- surprisal ---


MAX_TOKEN_CELLS = 24  # terminal cells of a token
MAX_LISTED_TOKENS = 5  # tokens whose alternatives are listed
MAX_LISTED_CELLS = 12  # terminal cells of such a token in the notes

Alternatives = Sequence[tuple[str, float]]  # tokens and their probabilities, the most probable first


def surprisal_view(
    tokens: Sequence[str],
    probabilities: Float[Tensor, " tokens"],
    *,
    prompt: Sequence[str] = (),
    alternatives: Sequence[Alternatives] = (),
    title: str = "",
) -> View:
    """The generated text after the prompt, each token the darker the more it surprised: -log₂ p, in bits.

    The prompt was given, so it surprises nobody: it has no shade. `alternatives`, if any, are those of each token; the
    notes list them for the tokens that surprised most. Tokens that hold their own spaces are set as one text.

    Examples:
        >>> view = surprisal_view(["black", "cat"], torch.tensor([0.25, 0.5]), prompt=["the"])
        >>> view.notes
        (('', '1.50 bits a token on average, perplexity 2.83'),)
    """
    for some in (tokens, prompt):
        if isinstance(some, str):
            raise ValueError(f"a text must be a list of tokens, not the one string {some!r}; use list(...) or split()")
    if not tokens:
        raise ValueError("there is no generated token; give at least one")
    if alternatives and len(alternatives) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have alternatives each, or none have, not {len(alternatives)}")
    chance = check_probabilities(probabilities, len(tokens))
    if float(chance.min()) == 0:
        place = int(chance.argmin())
        raise ValueError(
            f"{tokens[place]!r} was generated with probability 0; give the probabilities of the model's own text"
        )
    bits = -chance.log2() + 0.0
    everything = (*prompt, *tokens)
    close = any(not token.isprintable() or " " in token for token in everything)
    panel = Strip(
        "",
        tuple(
            running_token(token) if close else truncate_label(visible_text(token), MAX_TOKEN_CELLS)
            for token in everything
        ),
        torch.cat((torch.zeros(len(prompt), dtype=bits.dtype), bits)),
        ColourScale.of(bits, "bits"),
        visible=torch.arange(len(everything)) >= len(prompt),
        keeps_spaces=close,
        missing_label="given",
    )
    mean = float(bits.mean())
    summary = f"{format_number(mean)} bits a token on average, perplexity {format_number(2**mean)}"
    return View(
        (PanelRow((panel,), heading=title),),
        notes=(("", summary), *alternatives_notes(tokens, chance, bits, alternatives)),
    )


def running_token(token: str) -> str:
    """A token of a running text: its spaces stay, its line breaks are visible."""
    return truncate_label(visible_text(token) if token.strip(" ") else token or visible_text(token), MAX_TOKEN_CELLS)


def alternatives_notes(
    tokens: Sequence[str], chance: Tensor, bits: Tensor, alternatives: Sequence[Alternatives]
) -> list[tuple[str, str]]:
    """The most surprising tokens, in their order, and what was expected in their place."""
    most: list[int] = bits.argsort(descending=True, stable=True)[:MAX_LISTED_TOKENS].tolist() if alternatives else []
    return [
        (
            token_with_spaces(tokens[n]),
            f"{percent(float(chance[n]))}; expected "
            + ", ".join(f"{token_with_spaces(token)} {percent(p)}" for token, p in alternatives[n]),
        )
        for n in sorted(most)
    ]


def token_with_spaces(token: str) -> str:
    """A token among others, its spaces visible."""
    return truncate_label(visible_text(token).replace(" ", "␣"), MAX_LISTED_CELLS)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


# --- word weights and contributions ---


MAX_WORDS = 400  # words of a text that are shown


def word_weights_view(
    text: Sequence[str],
    weights: Float[Tensor, " words"],
    title: str = "",
    *,
    visible: Bool[Tensor, " words"] | None = None,
) -> View:
    """How much each word counts: by TF-IDF, by learned weights, by attention. A long text wraps.

    A word that is not `visible` has no weight, because the model does not know it: that is not a weight of 0.

    Examples:
        >>> weights = torch.tensor([0.1, 0.7, 0.2])
        >>> view = word_weights_view(["a", "fine", "film"], weights, prediction_title("good", 0.93))
        >>> print(ascii(view, numbers=True))
        good, 93 %
        <BLANKLINE>
        a    fine film
        ░░░░ ████ ░░░░
        0.10 0.70 0.20
    """
    shown = check_one_per_word(text, weights, visible)
    known = to_cpu_double(weights) if visible is None else to_cpu_double(weights).where(visible.cpu(), 0.0)
    assert_weights(known)
    return View(
        (PanelRow((text_strip(text, known, ColourScale.of(known, "weight"), visible),), heading=title),),
        notes=truncation_note(shown),
    )


def word_contributions(
    text: Sequence[str],
    parts: Float[Tensor, " words"],
    title: str = "",
    *,
    label: str = "the label",
    other: str = "against it",
    visible: Bool[Tensor, " words"] | None = None,
) -> View:
    """What each word adds to a label's score or, below 0, takes from it: blue and orange.

    word_weights_view and word_contributions both take `prediction_title(...)` as title.

    Examples:
        >>> title = prediction_title("good", 0.7)
        >>> view = word_contributions(["not", "bad"], torch.tensor([-0.5, 1.5]), title, label="good")
        >>> print(ascii(view, numbers=True))
        good, 70 %
        <BLANKLINE>
        not   bad
        ----- ████
        -0.50 1.50
        <BLANKLINE>
        ░▒▓█ above 0 to 1.50, -=≡≣ below 0 to -1.50
        <BLANKLINE>
        above 0 speaks for good, below 0 against it; together the words add +1.00
    """
    shown = check_one_per_word(text, parts, visible)
    known = to_cpu_double(parts) if visible is None else to_cpu_double(parts).where(visible.cpu(), 0.0)
    if not torch.isfinite(known).all():
        raise ValueError(f"what words add must be finite, but {float(known[~known.isfinite()][0]):g} is among it")
    most = float(known.abs().max()) or 1.0
    strip = text_strip(text, known, ColourScale("signed", -most, most, "added"), visible)
    total = f"above 0 speaks for {label}, below 0 {other}; together the words add {float(known.sum()):+.2f}"
    return View((PanelRow((strip,), heading=title),), notes=(("", total.replace("-", "−")), *truncation_note(shown)))


def prediction_title(label: str, probability: float, gold: str | None = None) -> str:
    """What a text was taken for: a title.

    Examples:
        >>> prediction_title("good", 0.93), prediction_title("good", 0.93, gold="bad")
        ('good, 93 %', 'good, 93 %, wrongly: it is bad')
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability lies between 0 and 1, not at {probability:g}")
    found = f"{label}, {100 * probability:.0f} %"
    return found if gold is None else f"{found}, rightly" if gold == label else f"{found}, wrongly: it is {gold}"


# --- checks ---


def text_strip(text: Sequence[str], numbers: Tensor, scale: ColourScale, visible: Tensor | None) -> Strip:
    shown = word_labels(text, "the text")[:MAX_WORDS]
    seen = None if visible is None else visible.cpu()[:MAX_WORDS]
    return Strip("", shown, numbers[:MAX_WORDS], scale, visible=seen, missing_label="unknown")


def check_one_per_word(text: Sequence[str], numbers: Tensor, visible: Tensor | None) -> int:
    """How many words there are, once each is known to have its number."""
    count = len(word_labels(text, "the text"))
    if tuple(numbers.shape) != (count,):
        raise ValueError(f"{count} words need a number each, shape ({count},), not {tuple(numbers.shape)}")
    if visible is not None and tuple(visible.shape) != (count,):
        raise ValueError(f"{count} words are visible or not, shape ({count},), not {tuple(visible.shape)}")
    return count


def truncation_note(count: int) -> tuple[tuple[str, str], ...]:
    return (("", f"the first {MAX_WORDS} of {count:,} words"),) if count > MAX_WORDS else ()
