"""A trained model and a sentence in; its translation and what it looked at, in the terminal or as a picture, out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import BeamSize, Device, Longest, Model, device_of, file_for, search_of

if TYPE_CHECKING:
    from regard.decode.alignment import Head
    from regard.decode.reading import Looked
    from regard.see.panel import View
    from regard.tasks.translate import Translator


def look(
    model: Model,
    text: Annotated[str, typer.Argument(help="The sentence.")],
    target: Annotated[str | None, typer.Option(help="Its translation; without one, the model's own.")] = None,
    head: Annotated[str | None, typer.Option(help="LAYER:HEAD; without it, the heads that align best.")] = None,
    every: Annotated[bool, typer.Option("--every", help="All layers and heads, side by side.")] = False,  # noqa: FBT002
    word: Annotated[str | None, typer.Option(help="What decided how this word was translated?")] = None,
    save: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg or .pdf) as well.")] = None,
    beam: BeamSize = 5,
    longest: Longest = 1000,
    device: Device = "auto",
) -> None:
    """Translate a sentence and show where the model looked for each word.

    Example: `regard look run "the black cat ate the mouse"`

    Example: `regard look run "the black cat ate the mouse" --every --save heads.png`

    Example: `regard look run "the man carries the light box" --word light`
    """
    from regard import see
    from regard.cli.check import check
    from regard.decode.reading import look as looked_at
    from regard.decode.texts import translate_texts
    from regard.tasks.translate import Translator

    save = save and file_for(save)
    if every and (head or word):
        raise ValueError("--every shows all heads and words; leave it out, or --head and --word")
    if not text.strip():
        raise ValueError("the sentence is empty; give at least one word")
    translator = Translator.load(model, device_of(device))
    check(translator, [text], lambda _: "the sentence", longest=longest)
    written = translate_texts(translator, [text], search_of(beam, 1.0, 0.0))[0] if target is None else target
    if not written.strip():
        raise ValueError(f"{text!r} is translated by nothing; give a translation to look at with --target")
    seen = looked_at(translator, text, written)
    if every:
        view = every_head(seen)
    elif word is not None:
        view = deciding(translator, seen, text, word, heads_for(translator, model, seen, head))
    else:
        view = see.look(alignment(translator, seen, text, heads_for(translator, model, seen, head)))
    typer.echo(f"{text}\n{written}\n\n{see.ascii(view)}")
    if save:
        typer.echo(f"\ndrawn: {see.save(see.draw(view), save)}")


def heads_for(translator: "Translator", model: Path, seen: "Looked", asked: str | None) -> "tuple[Head, ...]":
    """Those asked for, those kept beside the model, or the one that covers this sentence best."""
    from regard.cli.heads import kept_heads
    from regard.decode.alignment import Head, all_heads
    from regard.decode.reading import head_by_coverage

    there = all_heads(seen.attention)
    if asked is None:
        texts = (" ".join(seen.source.words), " ".join(seen.target.words))
        return kept_heads(model, there) or head_by_coverage(translator, [texts])
    layer, _, number = asked.rpartition(":")
    if not number.isdecimal() or Head(layer, int(number)) not in there:
        names = ", ".join(dict.fromkeys(f"{head.layer}:{head.head}" for head in there))
        raise ValueError(f"--head {asked}: write LAYER:HEAD, one of {names}")
    return (Head(layer, int(number)),)


def alignment(translator: "Translator", seen: "Looked", text: str, heads: "tuple[Head, ...]"):
    """The matrix; a sentence of the lectures, if translated as they do, comes with its gold alignment."""
    from regard.decode.reading import gold_links
    from regard.see.alignment import Alignment
    from regard.world import known

    data, gold = translator.settings.data, frozenset()
    sentence = known(text) if data.corpus == "world" and data.source == "en" else None
    if sentence and sentence.words == seen.source.words and sentence.said(data.target) == seen.target.words:
        gold = gold_links(sentence, data.source, data.target)
    return Alignment(seen.source.words, seen.target.words, seen.words(heads), gold)


def every_head(seen: "Looked") -> "View":
    from regard.decode.alignment import Head
    from regard.see.heads import heads_view

    panels = {
        layer: [seen.words([Head(layer, number)]) for number in range(weights.shape[0])]
        for layer, weights in seen.attention.layers.items()
    }
    return heads_view(seen.source.words, seen.target.words, panels)


def deciding(translator: "Translator", seen: "Looked", text: str, word: str, heads: "tuple[Head, ...]") -> "View":
    """Two strips: where the model looked for the word's translation, and without which words it is another."""
    import torch

    from regard.decode.reading import decided
    from regard.see.alignment import stack, strip

    if word not in seen.source.words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(seen.source.words)}")
    at, weights = seen.source.words.index(word), seen.words(heads)[:, :-1]
    there = int(weights[:, at].argmax())
    said, words = seen.target.words[there], seen.source.words
    others = {place: written for place, written in decided(translator, text, said).items() if place != at}
    hangs = torch.tensor([float(place in others) for place in range(len(words))])
    shown = stack(
        strip(words, weights[there].cpu(), f"where it looked to write “{said}”", at=at),
        strip(words, hangs, f"left out, it is not “{said}” any more" if others else "no other word decides", at=at),
    )
    return replace(shown, notes=tuple((f"no {words[place]}", written) for place, written in others.items()))
