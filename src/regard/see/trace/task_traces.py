"""Traces per task: encodes an input, runs the model with a recorder, and labels tokens, words and patches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from regard.data.batching import pad_rows
from regard.data.images.image_preprocess import ImagePreprocessor
from regard.data.images.labelled_images import read_image
from regard.data.tagged import NO_VALUE, TaggedSentence
from regard.data.tokenizers.base import (
    BOS,
    EOS,
    NUM_SPECIAL_TOKENS,
    PAD,
    UNK,
    LosslessTokenizer,
    Tokenizer,
    format_piece,
)
from regard.decode.beam import Beam
from regard.decode.generation import generate, stream_text, text_constraints
from regard.decode.model import decoder_inputs, encode_sources, inference_mode
from regard.decode.search import LengthLimit
from regard.decode.stepwise import Greedy
from regard.decode.translate import translate
from regard.decode.word_alignment import TokenizedText, gold_links
from regard.models.autoencoder import Autoencoder
from regard.models.seq2seq import Seq2Seq
from regard.models.vision import PatchEncoder, VisionTransformer
from regard.see.trace.beam_tree import BeamTree, beam_tree, continuation_tree
from regard.see.trace.edits import refuse_word_swaps, swap_words, without_word_swaps
from regard.see.trace.recorder import AttentionRecorder, apply_edits
from regard.see.trace.trace import Predictions, TokenAxis, Trace, TraceRequest, build_trace, collect_sites
from regard.tasks.autoencoding.task import SentenceAutoencoder
from regard.tasks.image_classification.task import ImageClassifier
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.node_classification.data import training_graph
from regard.tasks.node_classification.task import NodeClassifier
from regard.tasks.sequence_classification.task import TextClassifier, build_ngrams
from regard.tasks.sequence_classification.task import collate as texts_together
from regard.tasks.tagging.task import Tagger, collate
from regard.tasks.translation.task import Translator
from regard.tasks.vqa.task import QuestionAnswerer
from regard.world import find_lecture_sentence

SPECIAL_LABELS = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def token_label(tokenizer: Tokenizer, one: int) -> str:
    """A token by itself, its spaces made visible."""
    if one < NUM_SPECIAL_TOKENS:
        return SPECIAL_LABELS[one]
    return (
        format_piece(tokenizer.pieces[one - NUM_SPECIAL_TOKENS])
        if isinstance(tokenizer, LosslessTokenizer)
        else tokenizer.decode([one])
    )


def token_id(tokenizer: Tokenizer, token: int | str) -> int:
    """A token by its number or its name."""
    if isinstance(token, str):
        # of a character and a byte that look the same, the character, as `encode` would
        names = {token_label(tokenizer, one): one for one in range(tokenizer.size)} | {
            SPECIAL_LABELS[one]: one for one in SPECIAL_LABELS
        }
        if token in names:
            return names[token]
        raise ValueError(f"there is no token {token!r:.80} in the vocabulary of {tokenizer.size}")
    return tokenizer.validate_ids([token])[0]


def group_into_words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words that ids spell, and the word of each: also of ids that no tokenizer would give for that text.

    A space belongs to the word after it.
    """
    if not isinstance(tokenizer, LosslessTokenizer):
        return tuple(token_label(tokenizer, one) for one in ids), tuple(range(len(ids)))
    word_ids: list[int] = []
    spelt: list[bytes] = []
    for one in ids:
        piece = b"" if one < NUM_SPECIAL_TOKENS else tokenizer.pieces[one - NUM_SPECIAL_TOKENS]
        if not spelt or (piece[:1].isspace() and spelt[-1].strip()):
            spelt.append(b"")
        spelt[-1] += piece
        word_ids.append(len(spelt) - 1)
    return tuple(word.strip().decode(errors="replace") for word in spelt), tuple(word_ids)


# --- classification and tagging ---


def trace_tagging(request: TraceRequest, tagger: Tagger) -> Trace:
    """Words between spaces; a sentence of the lectures comes with its tree, which some models need."""
    text = " ".join(swap_words(request.text, request.edits).split())
    words, gold = tuple(text.split()), find_lecture_sentence(text)
    governors = gold.governors if gold and gold.words == words else None
    if governors is None and tagger.model.encoder.needs_governors:
        raise ValueError(
            "this model needs the words' governors, which are known of the lectures' sentences alone; use one of those"
        )
    example, recorder = (
        tagger.example(TaggedSentence(words, (NO_VALUE,) * len(words), governors)),
        AttentionRecorder(request.edits),
    )
    request.refuse_long(len(example.pieces.ids))
    with inference_mode(tagger.model), recorder.record(tagger.model):
        batch = collate([example]).to(next(tagger.model.parameters()).device)
        logits = tagger.model(*batch.model_inputs)[0].float()
    tags = [tagger.labels.name(n) for n in logits.argmax(-1).tolist()]
    labels = tuple(token_label(tagger.tokenizer, one) for one in example.pieces.ids)
    return Trace(
        request,
        "tagging",
        " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)),
        {"text": TokenAxis(labels, words, tuple(example.pieces.word_ids))},
        collect_sites(recorder),
        Predictions(words, logits, tagger.labels.name),
    )


def trace_classification(request: TraceRequest, classifier: TextClassifier) -> Trace:
    text, recorder = (
        swap_words(classifier.tokenizer.normalizer.apply(request.text), request.edits),
        AttentionRecorder(request.edits),
    )
    request.refuse_long(len(terms := classifier.terms(text)))
    with inference_mode(classifier.model), recorder.record(classifier.model):
        batch = texts_together([(terms, 0)]).to(next(classifier.model.parameters()).device)
        logits = classifier.model(batch.terms, batch.lengths).float()
    output = classifier.labels.name(int(logits.argmax()))
    predictions = Predictions(("label",), logits, classifier.labels.name)
    return Trace(
        request,
        "sequence_classification",
        output,
        {"text": text_axis(classifier, text)},
        collect_sites(recorder),
        predictions,
    )


def text_axis(classifier: TextClassifier, text: str) -> TokenAxis:
    """The words of a text and, where they are read too, runs of several, which belong to no single word."""
    pieces, owners = classifier.tokenizer.tokens(text) or ["<unk>"], classifier.tokenizer.word_ids(text)
    kept = classifier.kept_indices(len(pieces))
    labels, word_ids = [], []
    for run in build_ngrams(classifier.tokenizer, classifier.settings.words).word_indices(len(kept)):
        labels.append(" ".join(pieces[kept[one]] for one in run))
        word_ids.append(owners[kept[run.start]] if len(run) == 1 and owners else None)
    return TokenAxis(tuple(labels), tuple(classifier.tokenizer.normalizer.apply(text).split()), tuple(word_ids))


def trace_node_classification(request: TraceRequest, classifier: NodeClassifier) -> Trace:
    """One node of the graph that was trained on; the sites are those of the whole graph."""
    refuse_word_swaps(request.edits, "a graph")
    graph, recorder = training_graph(classifier.settings.data), AttentionRecorder(request.edits)
    number = graph.index(request.text)
    with inference_mode(classifier.model), recorder.record(classifier.model):
        logits = classifier.model(*classifier.graph_input(graph).model_inputs)[number, None].float()
    output = classifier.labels.name(int(logits.argmax()))
    axes = {"nodes": TokenAxis(tuple(node.name for node in graph.nodes))}
    return Trace(
        request,
        "node_classification",
        output,
        axes,
        collect_sites(recorder),
        Predictions((request.text,), logits, classifier.labels.name),
    )


# --- images ---


def trace_image_classification(request: TraceRequest, classifier: ImageClassifier) -> Trace:
    """The image as it is; its mirror image, which some models classify as well, is not traced."""
    refuse_word_swaps(request.edits, "an image")
    pixels, recorder, model = (
        load_image(classifier.sight, request.text),
        AttentionRecorder(request.edits),
        classifier.model,
    )
    with inference_mode(model), recorder.record(model):
        logits = model(classifier.sight.normalize(pixels[None].to(next(model.parameters()).device))).float()
    axes = {"patches": patch_axis(model.encoder)} if isinstance(model, VisionTransformer) else {}
    predictions = Predictions(("class",), logits, classifier.labels.name)
    output = classifier.labels.name(int(logits.argmax()))
    return Trace(request, "image_classification", output, axes, collect_sites(recorder), predictions, image=pixels)


def trace_vqa(request: TraceRequest, answerer: QuestionAnswerer) -> Trace:
    if request.question is None:
        raise ValueError("this model answers questions about images; give question='what colour is the circle'")
    question = swap_words(answerer.tokenizer.normalizer.apply(request.question), request.edits)
    request.refuse_long(len(ids := answerer.ids(question)))
    pixels, recorder, model = load_image(answerer.sight, request.text), AttentionRecorder(request.edits), answerer.model
    with inference_mode(model), recorder.record(model):
        device = next(model.parameters()).device
        tokens, lengths = (part.to(device) for part in pad_rows([ids]))
        logits = model(answerer.sight.normalize(pixels[None].to(device)), tokens, lengths).float()
    words = tuple(answerer.tokenizer.normalizer.apply(question).split())
    text = TokenAxis(tuple(answerer.tokenizer.tokens(question)), words, tuple(answerer.tokenizer.word_ids(question)))
    output, predictions = (
        answerer.labels.name(int(logits.argmax())),
        Predictions(("answer",), logits, answerer.labels.name),
    )
    axes = {"text": text, "patches": patch_axis(model.image_encoder)}
    return Trace(request, "vqa", output, axes, collect_sites(recorder), predictions, image=pixels)


def load_image(sight: ImagePreprocessor, path: str) -> UInt8[Tensor, "c h w"]:
    return sight.fit(read_image(path, mode="RGB" if sight.channels == 3 else "L"))


def patch_axis(encoder: PatchEncoder) -> TokenAxis:
    """The pool's own token first, if it has one, then the patches row by row."""
    rows, columns = encoder.grid
    patches = (f"{y},{x}" for y in range(rows) for x in range(columns))
    return TokenAxis((*["class"] * encoder.pool.extra, *patches), grid=encoder.grid)


def to_grid(weights: Tensor, axis: TokenAxis) -> Tensor:
    """The weights of patches in the rows and columns of the image; the class token is left out."""
    if axis.grid is None:
        raise ValueError("this axis has no patches of an image; choose one whose grid is known")
    rows, columns = axis.grid
    return rearrange(weights[..., -rows * columns :], "... (y x) -> ... y x", y=rows)


# --- generated text ---


DEFAULT_LM_BEAM = 4  # hypotheses shown of a language model that decoded greedily
MAX_LOGITS = 2**28  # of a text: tokens × vocabulary
NEWLINES_TO_SPACES = str.maketrans("\n\r", "  ")


@dataclass(frozen=True, eq=False)
class Seq2SeqPipeline:
    """What translation and autoencoding share: a sequence-to-sequence model and its two tokenizers."""

    model: Seq2Seq
    source: Tokenizer
    target: Tokenizer
    beam: int  # unless another is request for

    @staticmethod
    def of(task_model: Translator | SentenceAutoencoder) -> "Seq2SeqPipeline":
        if isinstance(task_model, Translator):
            return Seq2SeqPipeline(task_model.model, task_model.source, task_model.target, 5)
        return Seq2SeqPipeline(task_model.model, task_model.tokenizer, task_model.tokenizer, 1)

    def reading(self, request: TraceRequest) -> TokenizedText:
        return TokenizedText.of(self.source, swap_words(self.source.normalizer.apply(request.text), request.edits))

    def search(self, request: TraceRequest) -> Beam:
        return Beam(self.beam if request.beam is None else request.beam, length_penalty=1.0)


def trace_translation(request: TraceRequest, translator: Translator) -> Trace:
    trace = trace_seq2seq(request, Seq2SeqPipeline.of(translator), "translation")
    data, source = translator.settings.data, trace.axes["source"]
    sentence = find_lecture_sentence(" ".join(source.words)) if data.corpus == "world" and data.source == "en" else None
    if sentence and (sentence.words, sentence.words_for(data.target)) == (source.words, trace.axes["written"].words):
        return replace(trace, gold_alignment=gold_links(sentence, data.source, data.target))
    return trace


def trace_autoencoding(request: TraceRequest, autoencoder: SentenceAutoencoder) -> Trace:
    return trace_seq2seq(request, Seq2SeqPipeline.of(autoencoder), "autoencoding")


def trace_seq2seq(request: TraceRequest, pair: Seq2SeqPipeline, task: str) -> Trace:
    """One forward pass over the given target, or over the one that the search chose, with every attention recorded."""
    source, target, recorder = pair.reading(request), pair.target, AttentionRecorder(without_word_swaps(request.edits))
    request.refuse_long(len(source.ids))
    text = choose_target(request, pair, source)
    with inference_mode(pair.model), recorder.record(pair.model):
        memory, lengths = encode_sources(pair.model, [source.ids])
        logits, _ = pair.model.step(decoder_inputs([text.ids]).to(lengths.device), pair.model.start(memory), memory)
    axes = {
        "source": TokenAxis((*source_labels(pair.source, source), "</s>"), source.words, (*source.word_ids, None)),
        "read": TokenAxis(("<s>", *text.labels), text.words, (None, *text.word_ids)),
        "written": TokenAxis((*text.labels, text.end), text.words, (*text.word_ids, None)),
    }
    if isinstance(pair.model, Autoencoder):
        axes["latents"] = TokenAxis(tuple(f"latent {n}" for n in range(pair.model.decoder.shape[0])))
    longest = 0 if text.forced else LengthLimit().of(len(source.ids))
    return Trace(
        request,
        task,
        target.normalizer.detokenize(target.decode(text.ids)).translate(NEWLINES_TO_SPACES),
        axes,
        collect_sites(recorder, {"read": longest, "written": longest}),
        Predictions(axes["written"].labels, logits[0].float(), lambda one: token_label(target, one)),
        output_ids=text.ids,
        forced_steps=len(axes["written"].labels) if request.target is not None else 0,
    )


@dataclass(frozen=True)
class TargetText:
    """A target: its ids and their labels, its words, and how it ends."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    end: str
    forced: bool


def choose_target(request: TraceRequest, pair: Seq2SeqPipeline, source: TokenizedText) -> TargetText:
    """The given target; or what the search chooses."""
    target = pair.target
    if request.target is not None and request.target.strip():
        read = TokenizedText.of(target, request.target)
        request.refuse_long(len(read.ids))
        return TargetText(read.ids, source_labels(target, read), read.words, read.word_ids, "</s>", forced=True)
    if (ids := () if request.target is not None else request.ids) is not None:
        end, given = "</s>", True
    else:
        with apply_edits(pair.model, without_word_swaps(request.edits)):
            ((found, *_),) = translate(pair.model, [source.ids], pair.search(request), prefixes=[request.prefix])
        ids, end, given = found.ids, "</s>" if found.finished else "…", False
    return TargetText(ids, tuple(token_label(target, one) for one in ids), *group_into_words(target, ids), end, given)


def source_labels(tokenizer: Tokenizer, read: TokenizedText) -> tuple[str, ...]:
    """One for each id; of a word that is not known, the word itself."""
    of_text = tokenizer.tokens(" ".join(read.words))
    plain = [token_label(tokenizer, one) for one in read.ids]
    return tuple(of_text if len(of_text) == len(plain) else plain)  # several spaces are tokens of their own


def trace_generation(request: TraceRequest, generator: TextGenerator) -> Trace:
    """A text as the model reads it, and `more` tokens that it generates after it, greedily or by beam search."""
    opening, ids = generator.encode_prompt(swap_words(request.text, request.edits))
    given = min(len(ids), len(request.prefix) - 1) if request.prefix else len(ids)  # the last of a prefix was chosen
    ids, edits = list(request.prefix) or ids, without_word_swaps(request.edits)
    request.refuse_long(len(ids) + request.more)
    refuse_too_many_logits(len(ids) + request.more, generator.tokenizer.size)
    more = list[int]()
    if request.more and (request.beam or 1) == 1:
        allowed = text_constraints(generator.tokenizer)
        with apply_edits(generator.model, edits):
            generated = generate(generator.model, opening + ids, Greedy(), tokens=request.more, constraints=allowed)
            more = [one.id for one in generated]
    elif request.more:
        more = list(continuation_beams(request, generator).hypotheses[0].ids)
    recorder, everything = AttentionRecorder(edits), opening + ids + more
    model = generator.model
    with inference_mode(model), recorder.record(model):
        x, _ = model.decode_hidden(torch.tensor([everything], device=model.embedding.weight.device), model.start(1))
        logits = model.logits(x[:, len(opening) - 1 :])[0].float()
    labels = [token_label(generator.tokenizer, one) for one in everything]
    words, word_ids = group_into_words(generator.tokenizer, ids + more)
    output = (
        generator.tokenizer.normalizer.detokenize(generator.tokenizer.decode(ids)) if request.prefix else request.text
    ) + "".join(stream_text(generator.tokenizer, more, opening + ids))
    return Trace(
        request,
        "language_modeling",
        output,
        {"text": TokenAxis(tuple(labels), words, (*[None] * len(opening), *word_ids))},
        collect_sites(recorder, {"text": len(everything) + request.more}),
        Predictions((*labels[len(opening) :], "…"), logits, lambda one: token_label(generator.tokenizer, one)),
        output_ids=tuple(ids + more),
        forced_steps=given,
    )


def refuse_too_many_logits(tokens: int, options: int) -> None:
    if tokens * options > MAX_LOGITS:
        raise ValueError(
            f"{tokens:,} tokens with {options:,} logits each are too many to keep; "
            f"shorten the text to {MAX_LOGITS // options:,}"
        )


# --- branches and beams ---


def trace_branch(trace: Trace, ids: Sequence[int], step: int, token: int | str) -> Trace:
    """The same up to a step, then another token."""
    request, task_model = trace.request, trace.request.task_model
    if not 0 <= step <= len(ids):
        raise ValueError(f"there is no step {step}; they are counted from 0 to {len(ids)}")
    if isinstance(task_model, TextGenerator):
        one = token_id(task_model.tokenizer, token)
        more = max(request.more, len(ids) - step - 1)
        return build_trace(replace(request, prefix=(*ids[:step], one), more=more))
    assert isinstance(task_model, (Translator, SentenceAutoencoder))  # no other model generates
    target = Seq2SeqPipeline.of(task_model).target
    one = token_id(target, token)
    if one == EOS:
        return build_trace(replace(request, target=None, prefix=(), ids=tuple(ids[:step])))
    if one in (PAD, BOS):
        raise ValueError(f"{token_label(target, one)} never occurs in the middle of a text; choose another token")
    return build_trace(replace(request, target=None, ids=None, prefix=(*ids[:step], one)))


def build_beam_tree(request: TraceRequest) -> BeamTree:
    task_model = request.task_model
    if isinstance(task_model, TextGenerator):
        return continuation_beams(request, task_model)
    assert isinstance(task_model, (Translator, SentenceAutoencoder))  # no other model generates
    pair = Seq2SeqPipeline.of(task_model)
    with apply_edits(pair.model, without_word_swaps(request.edits)):
        return beam_tree(pair.model, pair.reading(request).ids, pair.search(request), request.prefix)


def continuation_beams(request: TraceRequest, generator: TextGenerator) -> BeamTree:
    """The beam search of a language model after its text; without a beam size, of the default one."""
    if not request.more:
        raise ValueError("nothing was generated after this text, so there are no beams; ask for some tokens: more=12")
    if (size := DEFAULT_LM_BEAM if request.beam is None else request.beam) < 1:
        raise ValueError(f"a beam of size {size} keeps nothing; choose 1 or more")
    opening, ids = generator.encode_prompt(swap_words(request.text, request.edits))
    prompt = opening + (list(request.prefix) or ids)
    allowed = text_constraints(generator.tokenizer)
    with apply_edits(generator.model, without_word_swaps(request.edits)):
        return continuation_tree(generator.model, prompt, size, request.more, allowed)
