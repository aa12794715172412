"""Translation on the command line: evaluation, and views of cross-attention and deciding words."""

from dataclasses import replace
from pathlib import Path

import torch

from regard import see
from regard.cli.input_checks import check_text
from regard.cli.options import build_search
from regard.cli.translation import evaluate_translations, save_alignment_heads
from regard.decode.alignment import AlignmentHead, all_heads
from regard.decode.translate import translate_texts
from regard.decode.word_alignment import SentencePairAttention, attend_pair, best_head, find_deciding_words, gold_links
from regard.see.plots.attention_maps import Alignment, head_maps, stack, strip
from regard.see.plots.panels import View
from regard.tasks.registry import Task, ViewRequest
from regard.tasks.translation.data import TranslationSettings, read_translation_pairs
from regard.tasks.translation.task import Translator
from regard.world import find_lecture_sentence


def view_translation(translator: Translator, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    check_text(translator, text, "the sentence", max_length=asked.max_tokens)
    written = asked.target
    if written is None:
        written = translate_texts(translator, [text], build_search(asked.beam, 1.0, 0.0))[0]
    if not written.strip():
        raise ValueError(f"{text!r} is translated by nothing; give a translation to look at with --target")
    seen = attend_pair(translator, text, written)
    if asked.all_heads:
        view = view_all_heads(seen)
    elif asked.word is not None:
        view = view_deciding_words(
            translator, seen, text, asked.word, choose_head_to_view(translator, folder, seen, asked.head)
        )
    else:
        head = choose_head_to_view(translator, folder, seen, asked.head)
        view = see.build_view(build_alignment(translator, seen, text, (head,)), title=head.name)
    return f"{text}\n{written}", view


def choose_head_to_view(
    translator: Translator, model: Path, seen: SentencePairAttention, asked: str | None
) -> AlignmentHead:
    """The one asked for, or the one at which the page opens as well."""
    if asked is None:
        return best_head(translator, model, seen)
    there = all_heads(seen.attention)
    layer, _, number = asked.rpartition(":")
    if not number.isdecimal() or AlignmentHead(layer, int(number)) not in there:
        names = ", ".join(dict.fromkeys(f"{head.layer}:{head.head}" for head in there))
        raise ValueError(f"--head {asked}: write LAYER:HEAD, one of {names}")
    return AlignmentHead(layer, int(number))


def build_alignment(translator: Translator, seen: SentencePairAttention, text: str, heads: tuple[AlignmentHead, ...]):
    """The matrix; a sentence of the lectures, if translated as they do, comes with its gold alignment."""
    data, gold = translator.settings.data, frozenset()
    sentence = find_lecture_sentence(text) if data.corpus == "world" and data.source == "en" else None
    if sentence and sentence.words == seen.source.words and sentence.words_for(data.target) == seen.target.words:
        gold = gold_links(sentence, data.source, data.target)
    return Alignment(seen.source.words, seen.target.words, seen.word_matrix(heads), gold)


def view_all_heads(seen: SentencePairAttention) -> View:
    panels = {
        layer: [seen.word_matrix([AlignmentHead(layer, number)]) for number in range(weights.shape[0])]
        for layer, weights in seen.attention.layers.items()
    }
    return head_maps(seen.source.words, seen.target.words, panels)


def view_deciding_words(
    translator: Translator, seen: SentencePairAttention, text: str, word: str, head: AlignmentHead
) -> View:
    """Two strips: where the model looked for the word's translation, and without which words it is another."""
    if word not in seen.source.words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(seen.source.words)}")
    at, weights = seen.source.words.index(word), seen.word_matrix([head])[:, :-1]
    there = int(weights[:, at].argmax())
    said, words = seen.target.words[there], seen.source.words
    others = {place: written for place, written in find_deciding_words(translator, text, said).items() if place != at}
    hangs = torch.tensor([float(place in others) for place in range(len(words))])
    shown = stack(
        strip(words, weights[there].cpu(), f"where it looked to write “{said}” ({head.name})", highlight=at),
        strip(
            words, hangs, f"left out, it is not “{said}” any more" if others else "no other word decides", highlight=at
        ),
    )
    return replace(shown, notes=tuple((f"no {words[place]}", written) for place, written in others.items()))


TRANSLATION = Task(
    settings=TranslationSettings,
    examples="pairs",
    read=lambda settings, split, folder: read_translation_pairs(settings.data, split, folder),
    from_examples=Translator.from_examples,
    from_description=Translator.from_description,
    load=Translator.load,
    token_ids=lambda translator, pairs: translator.source.encode_batch(pair.source for pair in pairs),
    evaluate=lambda translator, pairs: evaluate_translations(translator, pairs, build_search(5, 1.0, 0.0)),
    view=view_translation,
    suggested_command=lambda folder: ("translate", folder),
    after_training=save_alignment_heads,
)
