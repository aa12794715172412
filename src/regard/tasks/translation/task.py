"""Translation: label-smoothed and R-Drop losses, the training job of a seq2seq model, the Translator and its task."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.data.batching import Batch, Example, collate, pair_lengths
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair
from regard.data.tokenizers.base import PAD, Tokenizer
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.tokenizer_io import load_tokenizer
from regard.decode.alignment import AlignmentHead, Links
from regard.decode.beam import Beam
from regard.decode.stepwise import Greedy
from regard.decode.translate import translate_texts
from regard.decode.word_alignment import (
    HEADS_FILE,
    attend_pair,
    best_head,
    gold_links,
    select_head_by_coverage,
    select_heads_by_gold,
)
from regard.models.config import RNN_KINDS, build_model
from regard.models.flops import flops
from regard.models.seq2seq import PackableModel, Seq2Seq
from regard.models.transformer import Transformer
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import EXAMPLE_SENTENCE, TaskInput, TokenAxis, no_progress
from regard.tasks.splits import Split
from regard.tasks.tokenizers import train_tokenizer
from regard.tasks.translation.data import TranslationSettings, read_translation_pairs
from regard.tasks.translation.metrics import evaluate_translations
from regard.tasks.translation.seq2seq import Seq2SeqTask
from regard.train.config import VARIABLE_SHAPES, TrainingJob, TrainSettings
from regard.train.corpus import Corpus, PackedCorpus, PackedPairs, drop_long, iterate_batches
from regard.world import LECTURE_SENTENCES, World, find_lecture_sentence


@dataclass(frozen=True)
class LabelSmoothingLoss:
    """Cross-entropy summed over the target tokens, a share `smoothing` of it against the uniform distribution."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[Batch | PackedPairs, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = decoder_states(model, given)
        return model.loss(x, wanted, smoothing=self.smoothing, ignore_index=PAD), tokens


@dataclass(frozen=True)
class RDropLoss:
    """The loss of two passes under different dropout, and how far they disagree (R-Drop, Liang et al. 2021).

    Per token: the mean of both cross-entropies + weight · ½ (KL(p ‖ q) + KL(q ‖ p)). Small corpora gain most.
    """

    smoothing: float
    weight: float

    def __call__(self, model: nn.Module, batch: tuple[Batch | PackedPairs, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = decoder_states(model, repeat_batch(given))
        return model.loss(x, wanted, smoothing=self.smoothing, ignore_index=PAD, rdrop=self.weight), tokens


def decoder_states(model: Seq2Seq, given: Batch | PackedPairs) -> tuple[Float[Tensor, "b t model"], Int[Tensor, "b t"]]:
    """The decoder's hidden states, and the labels."""
    if isinstance(given, Batch):
        return model.hidden_states(given.source, given.source_lengths, given.target[:, :-1]), given.target[:, 1:]
    assert isinstance(model, PackableModel)  # or it objected
    return model.packed_hidden_states(given.source, given.target), given.labels


def repeat_batch(given: Batch | PackedPairs) -> Batch | PackedPairs:
    """Every sentence two times, first all of them, then all again."""
    if isinstance(given, PackedPairs):
        return given.repeated()
    parts = (given.source, given.source_lengths, given.target, given.target_lengths)
    return Batch(*(repeat(part, "b ... -> (two b) ...", two=2) for part in parts))


def build_loss(settings: TrainSettings) -> LabelSmoothingLoss | RDropLoss:
    if settings.rdrop:
        return RDropLoss(settings.label_smoothing, settings.rdrop)
    return LabelSmoothingLoss(settings.label_smoothing)


def packing_objections(model: nn.Module) -> list[str]:
    """Why a model cannot be trained on packed texts; empty if it can."""
    if not isinstance(model, PackableModel):
        return [f"{type(model).__name__} reads token after token, not all texts at once"]
    compressed = {part.compress for part in model.modules() if isinstance(part, MultiHeadAttention)} - {None}
    return [f"{compress} mixes all keys of a row, and so those of several texts" for compress in compressed]


def validation(
    model: nn.Module, examples: Sequence[Example], *, tokens: int = 8192, device: str = "cpu"
) -> dict[str, float]:
    """The mean negative log-probability of a held-out target token."""
    total, count = 0.0, 0
    for _, batch, predictions in iterate_batches(examples, pair_lengths, collate, tokens=tokens, device=device):
        summed, _ = LabelSmoothingLoss()(model, (batch, predictions))
        total, count = total + summed.item(), count + predictions
    return {"loss": total / count}


def seq2seq_job(
    task_model: PretrainedModel, examples: Sequence[Example], held_out: Sequence[Example], device: str
) -> TrainingJob:
    """The training of whatever writes a target for a source."""
    train = task_model.settings.train
    if train.packed and (why := packing_objections(task_model.model)):
        raise ValueError(f"train.packed = true cannot be had: {'; '.join(why)}; leave it out")
    corpus = (
        PackedCorpus.of(examples, train, device)
        if train.packed
        else Corpus.of(examples, pair_lengths, collate, train, device)
    )
    held = drop_long(held_out, pair_lengths, train)
    if train.compile and isinstance(task_model.model, Transformer):
        for layer in (*task_model.model.encoder, *task_model.model.decoder):
            layer.compile(dynamic=False)  # one graph for all layers of a stack
    return TrainingJob(
        task_model.model.to(device),
        corpus,
        build_loss(train),
        lambda model: validation(model, held, device=device),
        train,
        task_model.settings.model.model,
        task_model.describe,
        corpus.left_out + len(held_out) - len(held),
        flops_per_token(task_model.model, examples, train),
        capture_objection="" if train.packed else VARIABLE_SHAPES,
    )


def flops_per_token(model: nn.Module, examples: Sequence[Example], train: TrainSettings) -> float | None:
    """FLOPs for each target token; R-Drop passes twice."""
    if not isinstance(model, Transformer):
        return None
    lengths = [(len(source) + 1, len(target) + 1) for source, target in examples]
    return flops(model, lengths) / sum(target for _, target in lengths) * (2 if train.rdrop else 1)


def train_tokenizers(pairs: Sequence[SentencePair], settings: PairTokenizerSettings) -> tuple[Tokenizer, Tokenizer]:
    """One for each side; joint ones share their vocabulary."""
    normals = [
        TextNormalizer(lower=settings.lowercase, language=language or None)
        for language in (settings.source_language, settings.target_language)
    ]
    if settings.joint:
        texts = [
            normal.apply(text)
            for pair in pairs
            for normal, text in zip(normals, (pair.source, pair.target), strict=True)
        ]
        shared = train_tokenizer(texts, settings, TextNormalizer())
        source, target = (with_normalization(shared, normal) for normal in normals)
        return source, target
    source, target = (
        train_tokenizer([getattr(pair, side) for pair in pairs], settings, normal)
        for side, normal in zip(("source", "target"), normals, strict=True)
    )
    return source, target


def with_normalization(tokenizer: Tokenizer, normal: TextNormalizer) -> Tokenizer:
    """The same vocabulary, reading through another normal form."""
    return replace(tokenizer, normalizer=normal)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Translator(PretrainedModel):
    """A model with what it needs to read and write text."""

    model: Seq2Seq
    source: Tokenizer
    target: Tokenizer
    settings: TranslationSettings

    @staticmethod
    def from_examples(pairs: Sequence[SentencePair], settings: TranslationSettings) -> "Translator":
        """Vocabularies learnt from the pairs, and a model with new weights."""
        source, target = train_tokenizers(pairs, settings.text)
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)

    def examples(self, pairs: Sequence[SentencePair]) -> list[Example]:
        sources = self.source.encode_batch([pair.source for pair in pairs])
        targets = self.target.encode_batch([pair.target for pair in pairs])
        return list(zip(sources, targets, strict=True))

    def detokenize(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.target.normalizer.detokenize(self.target.decode(ids))

    def job(self, pairs: Sequence[SentencePair], held_out: Sequence[SentencePair], device: str = "cpu") -> TrainingJob:
        """The training of this translator on these pairs."""
        return seq2seq_job(self, self.examples(pairs), self.examples(held_out), device)

    @property
    def parts(self) -> dict[str, Tokenizer]:
        return {"source": self.source, "target": self.target}

    @classmethod
    def from_description(cls, folder):
        settings = load_settings(folder, TranslationSettings)
        source, target = (load_tokenizer(folder / f"{side}.json") for side in ("source", "target"))
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)


# --- alignment heads ---


MAX_SENTENCES = 100  # on which the heads are chosen
MAX_PAIR_TOKENS = 256  # tokens of a side: the attention weights of longer pairs take too much memory


def save_alignment_heads(
    translator: Translator, held_out: list[SentencePair], folder: Path
) -> tuple[AlignmentHead, ...]:
    """Chooses on held-out sentences, by gold alignments where available; none for a model without attention."""
    heads = choose_alignment_heads(translator, held_out)
    rows = [[head.layer, head.head, head.shift] for head in heads]
    write_text_atomic(folder / HEADS_FILE, json.dumps(rows) + "\n")
    return heads


def choose_alignment_heads(translator: Translator, held_out: list[SentencePair]) -> tuple[AlignmentHead, ...]:
    config, data = translator.settings.model, translator.settings.data
    if config.kind in RNN_KINDS:
        return ()
    if data.corpus == "world":
        world = World(min_length=data.min_length, max_length=data.max_length)
        return select_heads_by_gold(translator, [world.sentence(number, "valid") for number in range(MAX_SENTENCES)])
    lengths = [max(map(len, example)) for example in translator.examples(held_out)]
    short = [
        (pair.source, pair.target) for pair, length in zip(held_out, lengths, strict=True) if length <= MAX_PAIR_TOKENS
    ]
    return select_head_by_coverage(translator, short[:MAX_SENTENCES]) if short else ()


def alignment_heads_from_texts(translator: Translator, texts: Sequence[str]) -> tuple[AlignmentHead, ...]:
    """For an unfinished run, which has saved none: chosen on its own translations of the first of these texts."""
    if translator.settings.model.kind in RNN_KINDS:
        return ()
    short = [text for text in texts if 0 < len(translator.source.encode(text)) <= MAX_PAIR_TOKENS][:MAX_SENTENCES]
    pairs = [pair for pair in zip(short, translate_texts(translator, short, Greedy()), strict=True) if pair[1].strip()]
    return select_head_by_coverage(translator, pairs) if pairs else ()


# --- the task ---


class TranslationTask(Seq2SeqTask):
    """Translation: a sentence in another language."""

    settings = TranslationSettings
    task_model = Translator
    examples = "pairs"
    searches = True
    suggested_command = "translate"
    beam = 5

    def read(self, settings: TranslationSettings, split: Split, folder: Path | None = None):
        return read_translation_pairs(settings.data, split, folder)

    def token_ids(self, task_model: Translator, examples: Sequence[SentencePair]):
        return task_model.source.encode_batch(pair.source for pair in examples)

    def evaluate(self, task_model: Translator, examples: Sequence[SentencePair], *, search=None, progress=no_progress):
        return evaluate_translations(task_model, examples, search or Beam(5, length_penalty=1.0), progress)

    def after_training(
        self, task_model: Translator, held_out: Sequence[SentencePair], folder: Path, *, progress=no_progress
    ) -> None:
        save_alignment_heads(task_model, list(held_out), folder)

    def describe(self, task_model: Translator) -> str:
        return f"{task_model.settings.data.source} → {task_model.settings.data.target}"

    def example_input(self, task_model: Translator) -> TaskInput:
        data = task_model.settings.data
        if data.corpus != "world" or data.source == "en":
            return super().example_input(task_model)
        sentence = find_lecture_sentence(EXAMPLE_SENTENCE) or LECTURE_SENTENCES[0]
        return TaskInput(" ".join(sentence.words_for(data.source)))

    def pair(self, task_model: Translator) -> tuple[Tokenizer, Tokenizer]:
        return task_model.source, task_model.target

    def gold_alignment(self, task_model: Translator, source: TokenAxis, target: TokenAxis):
        return known_alignment(task_model, source.words, target.words)

    def preferred_head(self, task_model: Translator, folder: Path | None, axes: Mapping[str, TokenAxis]):
        source, target = axes.get("source"), axes.get("written")
        if source is None or target is None or not target.words:
            return None
        head = best_head(task_model, folder, attend_pair(task_model, " ".join(source.words), " ".join(target.words)))
        return head.layer, head.head


def known_alignment(translator: Translator, source: Sequence[str], target: Sequence[str]) -> Links:
    """The gold alignment of a sentence of the lectures, if it is translated as they do."""
    data = translator.settings.data
    sentence = find_lecture_sentence(" ".join(source)) if data.corpus == "world" and data.source == "en" else None
    if sentence and (sentence.words, sentence.words_for(data.target)) == (tuple(source), tuple(target)):
        return gold_links(sentence, data.source, data.target)
    return frozenset()


TASK = TranslationTask()
