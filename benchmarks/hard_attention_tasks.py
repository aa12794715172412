"""Estimators and tasks of hard_attention.py: how hard attention is trained, and sentences of the miniature world."""

from dataclasses import dataclass
from functools import cache

from regard.attention import Hard, Normaliser, Softmax, StraightThrough
from regard.data.batching import TokenBatchSampler
from regard.data.tokenizers.base import WordTokenizer
from regard.models.config import EncoderConfig
from regard.tasks.sequence_classification.task import (
    CrossEntropyLoss,
    Example,
    ExpectedLoss,
    LabelledBatch,
    ReinforceLoss,
    collate,
    lengths_of,
)
from regard.training.config import Loss
from regard.training.corpus import Corpus
from regard.world import Sentence, World
from regard.world.lexicon import ADJECTIVES, ADVERBS, VERBS, Split, english_forms

WIDTH, BATCH, LONGEST, SHOWN = 32, 64, 16, 9
FEELING = {-1: "negative", 0: "neutral", 1: "positive"}
SENTENCES: dict[Split, int] = {"train": 12_000, "valid": 2_000, "test": 4_000}


# --- the estimators ---


@dataclass(frozen=True)
class Estimator:
    """The normaliser, the loss, and whether a baseline is learned beside."""

    normaliser: Normaliser
    loss: Loss
    learned_baseline: bool = False


ESTIMATORS = {
    "soft": Estimator(Softmax(), CrossEntropyLoss()),
    "hard, every word summed": Estimator(Hard(), ExpectedLoss()),
    "REINFORCE": Estimator(Hard(), ReinforceLoss()),
    "REINFORCE, baseline": Estimator(Hard(), ReinforceLoss(), learned_baseline=True),
    "straight-through 0.5": Estimator(Hard(StraightThrough(0.5)), CrossEntropyLoss()),
    "straight-through 1": Estimator(Hard(StraightThrough(1.0)), CrossEntropyLoss()),
    "straight-through 2": Estimator(Hard(StraightThrough(2.0)), CrossEntropyLoss()),
}


# --- the tasks ---


@dataclass(frozen=True, eq=False)
class Sentences:
    """Ids and label of each sentence, and the position of the word that decides, where one does."""

    sentences: list[Sentence]
    examples: list[Example]
    deciding: list[int | None]

    def corpus(self, seed: int) -> Corpus[Example, LabelledBatch]:
        batches = TokenBatchSampler(lengths_of(self.examples), tokens=BATCH * (1 + LONGEST), sentences=BATCH, seed=seed)
        return Corpus(self.examples, batches, collate)


@dataclass(frozen=True)
class Task:
    """Which sentences, which labels, and what reads them."""

    one_word: bool
    encoder: EncoderConfig

    @property
    def names(self) -> tuple[str, ...]:
        return ("negative", "positive") if self.one_word else ("negative", "neutral", "positive")


ALONE = EncoderConfig(kind="embed", model=WIDTH, dropout=0.0)
IN_CONTEXT = EncoderConfig(kind="transformer", layers=1, heads=2, model=WIDTH, hidden=2 * WIDTH, dropout=0.0)
TASKS = {
    "one word": Task(one_word=True, encoder=ALONE),
    "all words": Task(one_word=False, encoder=ALONE),
    "in context": Task(one_word=False, encoder=IN_CONTEXT),
}


@cache
def valences() -> dict[str, int]:
    """The feeling of every English word that has one."""
    entries = [(form, entry.valence) for entry in (*ADJECTIVES, *VERBS) for form in english_forms(entry)]
    return {word: valence for word, valence in (*entries, *((a.en, a.valence) for a in ADVERBS)) if valence}


def decider(sentence: Sentence) -> int | None:
    """Where the only word with a feeling stands, if it is the sentence's own."""
    places = [at for at, word in enumerate(sentence.words) if word in valences()]
    if len(places) != 1 or "not" in sentence.words or valences()[sentence.words[places[0]]] != sentence.sentiment:
        return None
    return places[0]


@cache
def world(split: Split) -> list[Sentence]:
    made = World(max_length=LONGEST)
    return [made.sentence(number, split) for number in range(SENTENCES[split])]


@cache
def vocabulary() -> WordTokenizer:
    return WordTokenizer.train(" ".join(sentence.words) for sentence in world("train"))


@cache
def sentences(split: Split, task: Task) -> Sentences:
    chosen = [(sentence, decider(sentence)) for sentence in world(split)]
    kept = [(sentence, at) for sentence, at in chosen if at is not None or not task.one_word]
    labels = [task.names.index(FEELING[sentence.sentiment]) for sentence, _ in kept]
    ids = vocabulary().encode_batch(" ".join(sentence.words) for sentence, _ in kept)
    return Sentences([sentence for sentence, _ in kept], list(zip(ids, labels, strict=True)), [at for _, at in kept])


def shown_sentence(task: Task) -> Sentence:
    """The first held-out sentence that is long enough; of all words, one in which "not" stands before a feeling."""
    for sentence in sentences("test", task).sentences:
        feelings = [word for word in sentence.words if word in valences()]
        if len(sentence.words) >= SHOWN and (task.one_word or ("not" in sentence.words and len(feelings) > 1)):
            return sentence
    raise AssertionError("no sentence to show")
