"""Translation: its settings and sentence pairs, the Translator, its alignment heads, its evaluation and its task."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from regard.data.batching import Example
from regard.data.corpora import read_corpus_pairs
from regard.data.files import file_format, write_text_atomic
from regard.data.parallel import SentencePair, read_pairs
from regard.data.preparation import load_vocabularies
from regard.data.token_files import HELD_OUT_FILE, CorpusMixture, all_prepared
from regard.data.tokenizers.base import TextNormalizer, Tokenizer
from regard.data.tokenizers.pretrained import language_tag, split_language_code
from regard.data.tokenizers.subwords import SubwordTokenizer, load_tokenizer
from regard.decode.alignment import (
    HEADS_FILE,
    AlignmentHead,
    Links,
    align_pair,
    argmax_links_or_null,
    attend_pair,
    best_head,
    gold_links,
    load_alignment_heads,
    select_head_by_coverage,
    select_heads_by_gold,
)
from regard.decode.beam import Beam
from regard.decode.document_translation import sentence_translator, translate_document
from regard.decode.quantize import prepare
from regard.decode.search import Search
from regard.decode.stepwise import Greedy
from regard.decode.translation import Translation, translate_lines, translate_texts
from regard.models.config import RNN_KINDS, ModelConfig, build_model
from regard.models.seq2seq import Seq2Seq
from regard.tasks.config import PairTokenizerSettings, RunSettings, require_unchanged, world_training
from regard.tasks.pretrained import ModelOutput, PretrainedModel, WordAlignment, one_or_many, train_tokenizer
from regard.tasks.protocol import EXAMPLE_SENTENCE, ProgressBar, TaskInput, TokenAxis, no_progress
from regard.tasks.seq2seq import Seq2SeqTask, seq2seq_job
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainingJob, TrainSettings
from regard.world import LECTURE_SENTENCES, World, find_lecture_sentence, translation_pairs
from regard.world.long_inputs import Stories, graded_story_pairs, story_pairs

if TYPE_CHECKING:
    from regard.tasks.translation.metrics import TranslationMetrics

# --- settings and data ---


@dataclass(frozen=True, kw_only=True)
class TranslationData(SentenceData[SentencePair]):
    """Sentence pairs; files are one .tsv or .jsonl, or two text files.

    The corpus `stories` has English on both sides: stories of `max_length` words, and what they tell of one person; to
    train on, also of half as many words, of a quarter and so on.

    Args:
        source: the language to translate from: of the miniature world, a known corpus, or a field of a .jsonl.
        target: the language to translate into.
    """

    examples: ClassVar[str] = "pairs"
    files_hint: ClassVar[str] = (
        '{split} = ["{split}.en", "{split}.de"] or ["{split}.tsv"], '
        "or on the command line --{split} {split}.en --{split} {split}.de"
    )
    generated: ClassVar[tuple[str, ...]] = ("world", "stories")

    source: str = "en"
    target: str = "fr"
    sentences: int = 60_000

    def from_world(self, split: Split, count: int | None) -> list[SentencePair]:
        count = self.sentences if count is None else count
        if self.corpus == "stories":
            make_pairs = graded_story_pairs if split == "train" else story_pairs
            return [
                SentencePair(*pair) for pair in make_pairs(Stories(words=self.max_length, relevant=1), count, split)
            ]
        world = World(min_length=self.min_length, max_length=self.max_length)
        if self.source == "en":
            return [SentencePair(*pair) for pair in translation_pairs(world, self.target, count, split)]
        if self.target == "en":
            return [SentencePair(*pair).swapped() for pair in translation_pairs(world, self.source, count, split)]
        raise ValueError(f"the world translates from or into en, not from {self.source!r} into {self.target!r}")

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[SentencePair]:
        """The pairs of one .tsv, of one .jsonl, whose fields are the languages, or of two text files."""
        if len(paths) > 1 and (tables := [path for path in paths if file_format(Path(path)) in (".tsv", ".jsonl")]):
            raise ValueError(f"{tables[0]} holds both sides already; give it alone, or two files of plain text")
        fields = (self.source, self.target)
        return self.read_nonempty(lambda on_empty: read_pairs(paths, fields=fields, on_empty=on_empty))

    def read_files(self, split: Split) -> LoadedExamples[Any]:
        """Token files of `regard data prepare` are mapped; the pairs that it held out are to validate on."""
        if split == "test" or (split == "valid" and self.valid) or not all_prepared(self.train):
            return super().read_files(split)
        mixture = CorpusMixture.open(self.train)
        if split == "train":
            return LoadedExamples(mixture)
        found = [pair for corpus in mixture.corpora for pair in read_pairs(corpus.folder / HELD_OUT_FILE)]
        if not found:
            raise ValueError(
                f"{self.train[0]} was prepared without held-out pairs; give files of their own: --valid dev.tsv"
            )
        return LoadedExamples(found)

    def from_corpus(self, split: Split, folder: Path | None) -> list[SentencePair]:
        return read_corpus_pairs(self.corpus, split, self.source, self.target, folder)


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(RunSettings):
    task: ClassVar[str] = "translation"

    data: TranslationData = TranslationData()
    text: PairTokenizerSettings = PairTokenizerSettings()
    model: ModelConfig = ModelConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings()

    def __post_init__(self):
        if self.train.cuda_graph and not self.train.packed:
            raise ValueError("train.cuda_graph = true wants batches of one shape; say packed = true as well")

    @classmethod
    def of_world(cls):
        """French, as the miniature world speaks it, in a minute."""
        rotary = 'position = "Rotary()"'
        return cls(
            data=TranslationData(sentences=40_000, max_length=7),
            text=PairTokenizerSettings(kind="words", joint=False),
            model=ModelConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, encoder=rotary, decoder=rotary
            ),
            # small batches: where nothing is ambiguous for long, many steps teach more than exact ones
            train=world_training(
                steps=3300, batch_size=384, learning_rate=8e-3, warmup_steps=100, weight_decay=0.1, validate_every=825
            ),
        )


# --- the model ---


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

    settings_type = TranslationSettings
    part_files: ClassVar = {"source": ("source", load_tokenizer), "target": ("target", load_tokenizer)}

    model: Seq2Seq
    source: Tokenizer
    target: Tokenizer
    settings: TranslationSettings
    alignment_heads: tuple[AlignmentHead, ...] = ()  # those saved with the run

    @staticmethod
    def build_model(source: Tokenizer, target: Tokenizer, settings: TranslationSettings) -> Seq2Seq:
        return build_model(settings.model, source.size, target.size)

    @classmethod
    def from_examples(
        cls, pairs: Sequence[SentencePair] | CorpusMixture, settings: TranslationSettings
    ) -> "Translator":
        """Vocabularies learnt from the pairs, or those of prepared corpora, and a model with new weights."""
        if isinstance(pairs, CorpusMixture):
            source, target = load_vocabularies(pairs.corpora[0].folder, ("source", "target"))
        else:
            source, target = train_tokenizers(pairs, settings.text)
        return cls.from_parts(source, target, settings=settings)

    def examples(self, pairs: Sequence[SentencePair]) -> list[Example]:
        sources = self.source.encode_batch([pair.source for pair in pairs])
        targets = self.target.encode_batch([pair.target for pair in pairs])
        return list(zip(sources, targets, strict=True))

    @property
    def target_languages(self) -> tuple[str, ...]:
        """Those that a source can ask for, if the model was trained on several."""
        tags = self.source.tags if isinstance(self.source, SubwordTokenizer) else ()
        return tuple(tag.removeprefix(">>").removesuffix("<<") for tag in tags)

    def tag_source(self, text: str, to: str | None) -> str:
        """The text with the tag of its target language, which only a model of several has."""
        languages, known = self.target_languages, self.settings.data.target
        if not languages:
            if to is not None and to != known:
                raise ValueError(f"this model translates into {known}, not into {to!r}; leave that out")
            return text
        if to is None and text.strip() and split_language_code(text)[0] not in map(language_tag, languages):
            raise ValueError(f"this model translates into {', '.join(languages)}; say which, as in --to {languages[0]}")
        if to is not None and to not in languages:
            raise ValueError(f"this model translates into {', '.join(languages)}, not into {to!r}; choose one of them")
        return f"{language_tag(to)} {text}" if to and text.strip() else text

    def detokenize(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.target.normalizer.detokenize(self.target.decode(ids))

    def job(
        self, pairs: Sequence[SentencePair] | CorpusMixture, held_out: Sequence[SentencePair], device: str = "cpu"
    ) -> TrainingJob:
        """The training of this translator on these pairs."""
        examples = self.examples(held_out)
        if isinstance(pairs, CorpusMixture):
            self.require_own_ids(pairs)
        known = pairs if isinstance(pairs, CorpusMixture) else self.examples(pairs)
        job = seq2seq_job(self, known, examples, device)
        if job.train.best_metric != "bleu":
            return job
        longest = [max(map(len, example)) for example in examples]
        short = [pair for pair, tokens in zip(held_out, longest, strict=True) if tokens <= job.train.max_length]

        def validate(model: nn.Module) -> dict[str, float]:
            assert model is self.model, "the model that is trained is the translator's own"
            return {**job.validate(model), "bleu": greedy_bleu(self, short)}

        return replace(job, validate=validate, figures=("loss", "bleu"))

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int = 5,
        length_penalty: float = 1.0,
        n_best: int = 1,
        precision: str = "float32",
        to: str | None = None,
    ) -> Any:
        """The translation of a text, or of each of a list; beyond the best, `alternatives` holds the n-best list.

        Args:
            beam: hypotheses of the search; 1 is greedy.
            length_penalty: above 0 favours longer translations.
            precision: float32; faster are screened and int8 on a CPU, and bfloat16 on a GPU.
            to: the target language, of a model that knows several.
        """
        search = Beam(beam, length_penalty=length_penalty, n_best=n_best)

        def run(texts: Sequence[str]) -> list[TranslationOutput]:
            model, tagged = prepare(self.model, precision), [self.tag_source(text, to) for text in texts]
            found = dict(translate_lines(self, tagged, search, model=model))
            return [translation_output(self, text, found[index]) for index, text in enumerate(tagged)]

        return one_or_many(texts, run)

    def translate_document(
        self,
        text: str,
        *,
        format: str = "text",
        beam: int = 5,
        length_penalty: float = 1.0,
        precision: str = "float32",
        max_length: int | None = None,
        to: str | None = None,
    ) -> str:
        """The translation of a whole document, sentence by sentence; its lines, markup, URLs and numbers stay.

        Args:
            format: text, markdown, srt or html.
            max_length: tokens of a sentence, by default those of the training; a longer one is split into clauses.
        """
        search, model = Beam(beam, length_penalty=length_penalty), prepare(self.model, precision)
        by = sentence_translator(self, search, model=model, to=to, max_length=max_length)
        return translate_document(text, by, format)

    def with_extras(self, run):
        return replace(self, alignment_heads=load_alignment_heads(run))


@dataclass(frozen=True, kw_only=True)
class TranslationOutput(ModelOutput):
    """A translation: `score` is its log-probability, `alternatives` the rest of the n-best list, best first."""

    source: str
    alternatives: tuple["TranslationOutput", ...] = ()
    translator: Translator = field(repr=False, compare=False)

    @cached_property
    def alignment(self) -> WordAlignment:
        """By the alignment heads of the run, or the head that covers this sentence best: one more forward pass."""
        pair, weights = align_pair(self.translator, self.source, self.text)
        return WordAlignment(pair.source.words, pair.target.words, weights, argmax_links_or_null(weights))


def translation_output(translator: Translator, source: str, found: Sequence[Translation]) -> TranslationOutput:
    """Of an n-best list."""
    best, *rest = (
        TranslationOutput(text=one.text, score=one.hypothesis.log_probability, source=source, translator=translator)
        for one in found
    )
    return replace(best, alternatives=tuple(rest))


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


def choose_alignment_heads(translator: Translator, held_out: Sequence[SentencePair]) -> tuple[AlignmentHead, ...]:
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


# --- evaluation ---


def evaluate_translations(
    translator: Translator,
    pairs: Sequence[SentencePair],
    search: Search,
    progress: ProgressBar = no_progress,
    *,
    tokens: int = 4096,
    precision: str = "float32",
    to: str | None = None,
) -> "TranslationMetrics":
    """Texts as people write them, and where the model reads them tokenised, as it reads them.

    Args:
        tokens: of a batch, sources × beams; it changes no result.
        to: the target language, of a translator that knows several.
    """
    from regard.tasks.translation.metrics import TranslationMetrics

    sources = [translator.tag_source(pair.source, to) if to else pair.source for pair in pairs]
    model = prepare(translator.model, precision)
    arriving = translate_lines(translator, sources, search, tokens=tokens, model=model)
    found = dict(progress(arriving, "translating", len(pairs)))
    texts = [found[place][0].text for place in range(len(pairs))]
    wanted = [pair.target for pair in pairs]
    words = tuple(len(pair.source.split()) for pair in pairs)
    return TranslationMetrics(tuple(texts), tuple(wanted), words, translator.target.normalizer)


def greedy_bleu(translator: Translator, pairs: Sequence[SentencePair]) -> float:
    """BLEU of greedy translations, in float32 whatever the precision of the training: to choose a checkpoint by."""
    from regard.tasks.translation.metrics import text_metrics

    with torch.autocast(next(translator.model.parameters()).device.type, enabled=False):
        found = translate_texts(translator, [pair.source for pair in pairs], Greedy())
    normal, wanted = translator.target.normalizer, [pair.target for pair in pairs]
    return text_metrics(normal, wanted)[0].score(found, wanted).value


# --- the task ---


class TranslationTask(Seq2SeqTask):
    """Translation: a sentence in another language."""

    settings = TranslationSettings
    task_model = Translator
    verb = "translate"
    batching = "search"
    searches = True
    suggested_command = "translate"
    beam = 5

    def fit_settings(self, settings: TranslationSettings, examples: Sequence[Any], given: Collection[str]):
        """Prepared corpora bring their languages and vocabularies."""
        if not isinstance(examples, CorpusMixture):
            return settings
        described = [corpus.description for corpus in examples.corpora]
        sources, targets = (dict.fromkeys(one[side] for one in described) for side in ("source", "target"))
        languages = {"source": " ".join(sources), "target": " ".join(targets)}
        fitting = replace(
            settings,
            data=replace(settings.data, **languages),
            text=PairTokenizerSettings(**described[0]["text"]),
        )
        return require_unchanged(settings, fitting, given)

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

    def example_text(self, example: SentencePair) -> str:
        return example.source

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
