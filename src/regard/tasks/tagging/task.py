"""Tagging (token classification): its settings and sentences, batches, the loss, metrics, the Tagger and its task."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import record_attention
from regard.data.batching import pad_rows
from regard.data.corpora import corpus_path
from regard.data.labelled import NO_VALUE, Labels, TaggedSentence, WordPieces, encode_words, read_tagged
from regard.data.tokenizers.base import UNK, CharTokenizer, Tokenizer
from regard.data.tokenizers.subwords import load_tokenizer
from regard.layers.rnn import disable_host_sync
from regard.models.config import EncoderConfig, WordEmbeddingConfig
from regard.models.config_base import FRACTION, Ranges, SettingsTable
from regard.models.encoder import CharEncoder, Encoder, initialise_embedding
from regard.models.encoder import TokenClassifier as TaggingModel
from regard.models.seq2seq import map_tensors
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics
from regard.tasks.pretrained import (
    ModelOutput,
    PretrainedModel,
    one_or_many,
    token_strings,
    train_tokenizer_with_vectors,
)
from regard.tasks.protocol import EncodedInput, Predictions, Task, TaskInput, TokenAxis, no_progress, token_label
from regard.tasks.splits import LoadedExamples, SentenceData, Split, drop_long, iterate_batches
from regard.training.config import TrainingJob, TrainSettings, to_float32
from regard.training.corpus import Corpus, to_device_async
from regard.world import find_lecture_sentence

# --- settings and data ---


@dataclass(frozen=True, kw_only=True)
class TaggingData(SentenceData[TaggedSentence]):
    """Tagged sentences; files are .conllu, or two columns in a .tsv or .txt."""

    examples: ClassVar[str] = "sentences"
    files_hint: ClassVar[str] = '{split} = ["{split}.conllu"], or on the command line --{split} {split}.conllu'

    def from_world(self, split: Split, count: int | None) -> list[TaggedSentence]:
        return [TaggedSentence(one.words, one.tags, one.governors) for one in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[TaggedSentence]:
        return LoadedExamples([sentence for path in paths for sentence in read_tagged(path)])

    def from_corpus(self, split: Split, folder: Path | None) -> list[TaggedSentence]:
        return list(read_tagged(corpus_path(self.corpus, split, folder)))


@dataclass(frozen=True, kw_only=True)
class CharacterSettings(SettingsTable):
    """Whether words are also read letter by letter, which tells of words that were never seen.

    Args:
        read: the letters of a word are read as well.
        hide: how often, while training, a known word is hidden, so that its letters must tell.
    """

    ranges: ClassVar[Ranges] = {"hide": FRACTION}

    read: bool = False
    hide: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(RunSettings):
    """The settings of a tagger's run.

    [words] says what a word's vector begins with, [spelling] whether its characters are read as well,
    and how often a word is hidden so that they must be.
    The label of a word is predicted at its first subword.
    """

    task: ClassVar[str] = "tagging"

    data: TaggingData = TaggingData()
    text: TokenizerSettings = TokenizerSettings()
    words: WordEmbeddingConfig = WordEmbeddingConfig()
    spelling: CharacterSettings = CharacterSettings()
    model: EncoderConfig = EncoderConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

    def __post_init__(self):
        if self.spelling.read and self.text.kind != "words":
            raise ValueError(f"spelling.read = true is for whole words, not text.kind = {self.text.kind!r}; use words")
        if self.words.kind == "one-hot":
            raise ValueError("words.kind = 'one-hot' is for texts with one label; a tagger's words have vectors")
        if self.words.dropout:
            raise ValueError("a tagger hides words by spelling.hide, not by words.dropout; set that")

    @classmethod
    def of_world(cls):
        """Parts of speech in the miniature world, in a minute."""
        return cls(
            text=TokenizerSettings(kind="words"),
            model=EncoderConfig(kind="transformer", layers=2, model=64, heads=4, hidden=128),
            train=world_training(steps=800, batch_size=1024, learning_rate=3e-3, warmup_steps=50, validate_every=200),
        )


# --- the model ---

UNTAGGED = -100  # stands for a word that has no tag, and for no word at all
MAX_CHARACTERS = 256  # of a word that are read: a table has room for the longest word's in every word
CHARACTER_MULTIPLE = 8  # a table of letters has room for a multiple of so many in each word


@dataclass(frozen=True)
class TaggingExample:
    """A sentence as numbers: its pieces, the words' labels, the heads and letters of the pieces if the model asks."""

    pieces: WordPieces
    labels: Sequence[int]
    governors: Sequence[int] | None = None
    characters: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, eq=False)
class TaggingBatch:
    """Padded sentences.

    Args:
        pieces: ids of the subword tokens.
        first_pieces: where each word begins among them; its vector is the one that is tagged.
        labels: of the words.
        governors: of the tokens, for positions in dependency trees.
        characters: of the words, where their spelling is read.
    """

    pieces: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    first_pieces: Int[Tensor, "b w"]
    labels: Int[Tensor, "b w"]
    governors: Int[Tensor, "b t"] | None
    characters: Int[Tensor, "b t c"] | None

    @property
    def model_inputs(self) -> tuple[Tensor | None, ...]:
        return self.pieces, self.lengths, self.first_pieces, self.governors, self.characters

    def to(self, device: torch.device | str) -> "TaggingBatch":
        return map_tensors(lambda part: to_device_async(part, device), self)

    @property
    def tokens(self) -> int:
        return int((self.labels != UNTAGGED).sum())


def collate(examples: Sequence[TaggingExample]) -> TaggingBatch:
    pieces, lengths = pad_rows([example.pieces.ids for example in examples])
    first = pad_with([example.pieces.first_indices for example in examples], 0)
    labels = pad_with([example.labels for example in examples], UNTAGGED)
    heads = [example.governors for example in examples if example.governors is not None]
    letters = [example.characters for example in examples if example.characters is not None]
    return TaggingBatch(
        pieces,
        lengths,
        first,
        labels,
        pad_with(heads, 0) if heads else None,
        pad_characters(letters) if letters else None,
    )


def pad_with(rows: Sequence[Sequence[int]], filler: int) -> Int[Tensor, "b w"]:
    table = np.full((len(rows), max(map(len, rows))), filler)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table)


def pad_characters(sentences: Sequence[Sequence[Sequence[int]]]) -> Int[Tensor, "b t c"]:
    """Room for letters comes in steps, so that few shapes do."""
    sizes = np.zeros((len(sentences), max(map(len, sentences))), dtype=np.int64)
    for row, sentence in zip(sizes, sentences, strict=True):
        row[: len(sentence)] = [len(word) for word in sentence]
    width = max(1, -(-int(sizes.max()) // CHARACTER_MULTIPLE)) * CHARACTER_MULTIPLE
    table = np.zeros((*sizes.shape, width), dtype=np.int64)
    table[np.arange(width) < sizes[..., None]] = [letter for some in sentences for word in some for letter in word]
    return torch.from_numpy(table)


def filler(length: int, *, heads: bool, letters: bool) -> TaggingExample:
    """A sentence of words without tags."""
    pieces = WordPieces([UNK] * length, list(range(length)))
    return TaggingExample(
        pieces, [UNTAGGED] * length, [0] * length if heads else None, [[UNK]] * length if letters else None
    )


def lengths_of(examples: Sequence[TaggingExample]) -> list[tuple[int, int]]:
    return [(len(example.pieces.ids), 0) for example in examples]


@dataclass(frozen=True)
class TaggingLoss:
    """Cross-entropy summed over the words that have a tag; a share of the pieces is hidden (`hide`)."""

    smoothing: float = 0.0
    word_dropout: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[TaggingBatch, int]) -> tuple[Tensor, int]:
        given, tagged = batch
        if self.word_dropout:
            hidden = torch.rand(given.pieces.shape, device=given.pieces.device) < self.word_dropout
            given = replace(given, pieces=given.pieces.masked_fill(hidden, UNK))
        wanted = given.labels.flatten()
        summed = cross_entropy(
            to_float32(model(*given.model_inputs)).flatten(0, 1),
            wanted,
            ignore_index=UNTAGGED,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return summed, tagged


@dataclass(frozen=True, eq=False)
class Tagger(PretrainedModel):
    """A model with the vocabulary it reads and the tags it knows."""

    settings_type = TaggingSettings
    part_files: ClassVar = {
        "tokenizer": ("tokenizer", load_tokenizer),
        "labels": ("labels", Labels.load),
        "characters": ("characters", load_tokenizer),
    }

    model: TaggingModel
    tokenizer: Tokenizer
    labels: Labels
    characters: Tokenizer
    settings: TaggingSettings

    @classmethod
    def from_examples(cls, sentences: Sequence[TaggedSentence], settings: TaggingSettings) -> "Tagger":
        """A vocabulary, letters and tags from the sentences, and a model with new weights."""
        texts = [" ".join(sentence.words) for sentence in sentences]
        labels = Labels.of(tag for sentence in sentences for tag in sentence.tags if tag != NO_VALUE)
        return cls.from_parts(
            train_tokenizer_with_vectors(texts, settings.text, settings.words),
            labels,
            CharTokenizer.train(texts),
            settings=settings,
        )

    @staticmethod
    def build_model(words: Tokenizer, labels: Labels, letters: Tokenizer, settings: TaggingSettings) -> TaggingModel:
        spelling = CharEncoder(letters.size, settings.model.model) if settings.spelling.read else None
        model = TaggingModel(Encoder(settings.model, words.size), labels=len(labels), char_encoder=spelling)
        model.encoder.embedding.weight.requires_grad_(not settings.words.is_frozen)
        return model

    def examples(self, sentences: Iterable[TaggedSentence]) -> list[TaggingExample]:
        return [self.example(sentence, f"sentence {number}") for number, sentence in enumerate(sentences, 1)]

    def example(self, sentence: TaggedSentence, where: str = "the sentence") -> TaggingExample:
        """Trees are for models whose places are in them; a tag the model does not know is refused."""
        pieces, heads = encode_words(self.tokenizer, sentence.words), None
        if self.model.encoder.needs_governors:
            if sentence.governors is None:
                raise ValueError(
                    f"{where} has no dependency heads, and the model's places are in trees; "
                    "give a .conllu with heads, or train with a place in the row"
                )
            heads = pieces.governors(sentence.governors)
        labels = [UNTAGGED if tag == NO_VALUE else self.labels.index(tag, where) for tag in sentence.tags]
        letters = (
            self.characters.encode_batch(word[:MAX_CHARACTERS] for word in sentence.words)
            if self.settings.spelling.read
            else None
        )
        return TaggingExample(pieces, labels, heads, letters)

    def job(
        self, sentences: Sequence[TaggedSentence], held_out: Sequence[TaggedSentence], device: str = "cpu", /
    ) -> TrainingJob:
        train, examples = self.settings.train, self.examples(sentences)
        heads = self.model.encoder.needs_governors
        fill = partial(filler, heads=heads, letters=self.settings.spelling.read)
        corpus = Corpus.of(examples, lengths_of, collate, train, device, filler=fill)
        held = drop_long(self.examples(held_out), lengths_of, train)
        # every time anew: a run that was killed before its first checkpoint has nothing else to start from
        read, names = (example.pieces.ids for example in examples), token_strings(self.tokenizer)
        initialise_embedding(self.model.encoder.embedding, self.settings.words, read, vocabulary=names, seed=train.seed)
        if corpus.filler:
            disable_host_sync(self.model)
        loss = TaggingLoss(train.label_smoothing, self.settings.spelling.hide)
        dropped = corpus.left_out + len(held_out) - len(held)
        why = "the model's places are in trees, which only a CPU can follow" if heads else ""
        more = {"left_out": dropped, "capture_objection": why, "figures": LABEL_FIGURES}
        return self.training_job(corpus, loss, lambda model: validation(model, held, device), device, **more)

    def tag(self, texts: str | Sequence[str]) -> Any:
        """The tags of the words of a text, or of each of a list; words are separated by blanks."""

        def run(texts: Sequence[str]) -> list[TaggingOutput]:
            sentences = [parse_sentence(self, text) for text in texts]
            return [
                TaggingOutput.of(sentence.words, tags, probabilities)
                for sentence, (tags, probabilities) in zip(
                    sentences, self.predict_probabilities(sentences), strict=True
                )
            ]

        return one_or_many(texts, run)

    def predict(self, sentences: Sequence[TaggedSentence]) -> list[list[str]]:
        """The tags of the words; those the sentences have already play no part."""
        return [tags for tags, _ in self.predict_probabilities(sentences)]

    def predict_probabilities(self, sentences: Sequence[TaggedSentence]) -> list[tuple[list[str], list[float]]]:
        """The tags of the words, and the probability of each."""
        examples = self.examples(map(without_tags, sentences))
        found: list[tuple[list[str], list[float]]] = [([], [])] * len(sentences)
        device = str(next(self.model.parameters()).device)
        with torch.inference_mode():
            for rows, batch, _ in iterate_batches(examples, lengths_of, collate, device=device):
                best = self.model(*batch.model_inputs).float().softmax(-1).max(-1)
                for row, tags, sure in zip(rows, best.indices.tolist(), best.values.tolist(), strict=True):
                    count = len(sentences[row].words)
                    found[row] = [self.labels.name(tag) for tag in tags[:count]], sure[:count]
        return found

    def predict_with_attention(self, sentence: TaggedSentence) -> "TaggingPrediction":
        """The tags of one sentence, how sure the model is of each, and what every layer attended to, by piece."""
        example = self.example(without_tags(sentence))
        batch = collate([example]).to(next(self.model.parameters()).device)
        with torch.inference_mode(), record_attention(self.model) as record:
            logits = self.model(*batch.model_inputs)
            of_text = [site.name for site in record.sites if site.queries == site.keys]  # no points, no mixtures
            weights = {name: record.weights(name)[0].cpu() for name in of_text}
        sure, tags = logits[0].float().softmax(-1).max(-1)
        names = [self.labels.name(tag) for tag in tags.tolist()]
        return TaggingPrediction(example.pieces, names, sure.cpu(), weights)


def validation(model: nn.Module, examples: Sequence[TaggingExample], device: str = "cpu") -> dict[str, float]:
    """The mean negative log-probability of a held-out tag, and the share of tags that are right."""
    total, right, count = 0.0, 0, 0
    for _, batch, tagged in iterate_batches(examples, lengths_of, collate, device=device):
        logits = to_float32(model(*batch.model_inputs))
        total += cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=UNTAGGED, reduction="sum"
        ).item()
        right, count = right + int((logits.argmax(-1) == batch.labels).sum()), count + tagged
    return {"loss": total / count, "accuracy": right / count}


@dataclass(frozen=True, kw_only=True)
class TaggingOutput(ModelOutput):
    """The tags of a sentence: `text` is word/TAG, `score` the sum of the tags' log-probabilities."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]

    @staticmethod
    def of(words: Sequence[str], tags: Sequence[str], probabilities: Sequence[float]) -> "TaggingOutput":
        text = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
        score = sum(map(math.log, probabilities))
        return TaggingOutput(
            text=text, score=score, words=tuple(words), tags=tuple(tags), probabilities=tuple(probabilities)
        )

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (*row, f"{100 * sure:.1f} %") for *row, sure in zip(self.words, self.tags, self.probabilities, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class TaggingPrediction:
    """What a tagger made of a sentence, and its weights by layer, between pieces."""

    pieces: WordPieces
    tags: list[str]
    confidence: Float[Tensor, " w"]
    weights: dict[str, Float[Tensor, "h t t"]]

    def word_weights(self, weights: Float[Tensor, "t t"]) -> Float[Tensor, "w w"]:
        """How much each word attended to each: from its first piece, which is tagged, to all pieces of a word."""
        rows = weights[self.pieces.first_indices]
        return torch.stack([rows[:, start:stop].sum(1) for start, stop in self.pieces.spans], 1)


def without_tags(sentence: TaggedSentence) -> TaggedSentence:
    return sentence.with_tags([NO_VALUE] * len(sentence.words))


def evaluate_tagger(tagger: Tagger, sentences: Sequence[TaggedSentence]) -> LabelMetrics:
    tagger.examples(sentences)  # a tag that is unknown could never be right
    found = tagger.predict(sentences)
    triples = [
        (wanted, tag, number)
        for number, (sentence, tags) in enumerate(zip(sentences, found, strict=True))
        for wanted, tag in zip(sentence.tags, tags, strict=True)
        if wanted != NO_VALUE
    ]
    if not triples:
        raise ValueError("no word has a tag to compare with; give sentences that are tagged")
    wanted, predicted, numbers = zip(*triples, strict=True)
    return LabelMetrics(
        labels=tagger.labels.names,
        wanted=wanted,
        found=predicted,
        unit="words",
        signature=f"words:{len(triples)}|sentences:{len(sentences)}",
        outputs=tuple(" ".join(tags) for tags in found),
        example_ids=numbers,
    )


# --- the task ---


def parse_sentence(tagger: Tagger, text: str) -> TaggedSentence:
    """Words between blanks; a sentence of the lectures comes with its tree, which some models want."""
    words = text.split()
    gold = find_lecture_sentence(" ".join(words))
    governors = gold.governors if gold and list(gold.words) == words else None
    if governors is None and tagger.model.encoder.needs_governors:
        raise ValueError(
            "this model needs the words' governors, which are known of the lectures' sentences alone; use one of "
            "those, or tag a .conllu with heads: regard tag"
        )
    return TaggedSentence(tuple(words), (NO_VALUE,) * len(words), governors)


class TaggingTask(Task):
    """Tagging: a label for each word of a sentence."""

    settings = TaggingSettings
    task_model = Tagger
    takes_batches = True
    verb = "tag"
    suggested_command = "tag"

    def token_ids(self, task_model: Tagger, examples: Sequence[TaggedSentence]):
        return (one.pieces.ids for one in task_model.examples(map(without_tags, examples)))

    def evaluate(self, task_model: Tagger, examples: Sequence[TaggedSentence], *, search=None, progress=no_progress):
        return evaluate_tagger(task_model, examples)

    def example_text(self, example: TaggedSentence) -> str:
        return " ".join(example.words)

    def texts(self, task_model: Tagger, given: TaskInput):
        return [(task_model.tokenizer, given.text)]

    def encode(self, task_model: Tagger, given: TaskInput) -> EncodedInput:
        sentence = parse_sentence(task_model, given.text)
        example = task_model.example(sentence)
        given.refuse_long(len(example.pieces.ids))
        batch = collate([example]).to(next(task_model.model.parameters()).device)
        labels = tuple(token_label(task_model.tokenizer, one) for one in example.pieces.ids)
        axis = TokenAxis(labels, sentence.words, tuple(example.pieces.word_ids))
        return EncodedInput(batch.model_inputs, {"text": axis}, sentence.words)

    def option_name(self, task_model: Tagger, option: int) -> str:
        return task_model.labels.name(option)

    def output_text(self, task_model: Tagger, given: TaskInput, predictions: Predictions) -> str:
        pairs = zip(predictions.rows, predictions.best_options(), strict=True)
        return " ".join(f"{word}/{tag}" for word, tag in pairs)


TASK = TaggingTask()
