"""Taggers: words to pieces and back, whatever else is in the batch; trees; exact resume; what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from regard.data.labelled import NO_VALUE, TaggedSentence
from regard.data.tokenizers.base import WordTokenizer
from regard.models.baselines import WordVectors
from regard.models.config import EncoderConfig, WordEmbeddingConfig
from regard.tasks.config import TokenizerSettings
from regard.tasks.tagging.task import (
    UNTAGGED,
    CharacterSettings,
    Tagger,
    TaggingData,
    TaggingLoss,
    TaggingSettings,
    collate,
    validation,
)
from regard.training.config import TrainSettings
from tests.narrowing import assert_is_instance
from tests.tasks.resume_check import assert_resumes

TREES = 'position = "RelativeBias(TreePath(4), heads=2)"'
MODELS = {
    "transformer": EncoderConfig(kind="transformer", layers=1, model=16, heads=2, hidden=24, dropout=0.0),
    "trees": EncoderConfig(kind="transformer", layers=1, model=16, heads=2, hidden=24, dropout=0.0, recipe=TREES),
    "gru": EncoderConfig(kind="gru", layers=1, model=16, hidden=24, directions=2, dropout=0.0),
    "alone": EncoderConfig(kind="embed", model=16, dropout=0.0),
}
SETTINGS = TaggingSettings(
    data=TaggingData(sentences=30, max_length=7),
    text=TokenizerSettings(kind="words"),
    model=MODELS["transformer"],
    train=TrainSettings(
        steps=60, batch_size=128, learning_rate=1e-2, warmup_steps=5, label_smoothing=0.0, validate_every=30
    ),
)


def sentences(count: int = 30) -> Sequence[TaggedSentence]:
    return replace(SETTINGS, data=replace(SETTINGS.data, sentences=count)).data.read("train").examples


def tagger(kind: str = "transformer", **changes) -> Tagger:
    return Tagger.from_examples(sentences(), replace(SETTINGS, model=MODELS[kind], **changes))


@pytest.mark.parametrize("spelt", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_tags_do_not_depend_on_the_batch(kind, spelt):
    one = tagger(kind, spelling=CharacterSettings(read=spelt))
    one.model.double().eval()
    given = sorted(sentences(7), key=lambda sentence: len(sentence.words))
    together = collate(one.examples(given))
    with torch.no_grad():
        scores = one.model(*together.model_inputs)
        for row, sentence in enumerate(given):
            alone = one.model(*collate([one.example(sentence)]).model_inputs)
            assert_close(scores[row, : len(sentence.words)], alone[0])
    assert one.predict(given) == [one.predict([sentence])[0] for sentence in given]


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_every_word_has_one_tag_however_it_is_cut(kind):
    one = tagger(text=TokenizerSettings(kind=kind, vocab_size=300))
    given = TaggedSentence(("uncle", "Zaphod's", "\N{PILE OF POO}", "ran"), (NO_VALUE,) * 4)
    assert [len(tags) for tags in one.predict([given])] == [4]
    seen = one.predict_with_attention(given)
    weights = seen.word_weights(next(iter(seen.weights.values()))[0])
    assert weights.shape == (4, 4)
    assert_close(weights.sum(1), torch.ones(4))


def test_a_word_without_a_tag_teaches_nothing():
    one, given = tagger(), sentences(1)[0]
    half = given.with_tags([*given.tags[:2], *[NO_VALUE] * (len(given.tags) - 2)])
    batch = collate([one.example(half)])
    assert batch.tokens == 2
    assert (batch.labels != UNTAGGED).sum() == 2
    summed, count = TaggingLoss()(one.model, (batch, 2))
    logits = one.model(*batch.model_inputs)[0, :2].log_softmax(-1)
    assert count == 2
    assert_close(summed, -logits.gather(1, batch.labels[0, :2, None]).sum())


def test_the_gradient_does_not_depend_on_the_split():
    one, given = tagger(), sentences(6)
    one.model.double()

    def gradient(parts: list[Sequence[TaggedSentence]]) -> list[torch.Tensor]:
        one.model.zero_grad()
        for part in parts:
            batch = collate(one.examples(part))
            TaggingLoss(0.1)(one.model, (batch, batch.tokens))[0].backward()
        return [weight.grad.clone() for weight in one.model.parameters() if weight.grad is not None]

    for whole, split in zip(gradient([given]), gradient([given[:1], given[1:4], given[4:]]), strict=True):
        assert_close(whole, split)


def test_trees_are_read_and_asked_for():
    one, given = tagger("trees"), sentences(3)
    assert one.examples(given)[0].governors == list(given[0].governors or ())
    with pytest.raises(ValueError, match="sentence 1 has no dependency heads, and the model's places are in trees"):
        one.predict([TaggedSentence(("the", "cat"), (NO_VALUE, NO_VALUE))])


def test_spelling_is_for_whole_words():
    with pytest.raises(ValueError, match=r"spelling\.read = true is for whole words, not text\.kind = 'bpe'"):
        TaggingSettings(spelling=CharacterSettings(read=True))


def test_a_hidden_word_is_known_by_its_letters_alone():
    """Whatever the words were, with all hidden the loss is the same; with none it is not."""
    one = tagger(spelling=CharacterSettings(read=True, hide=0.5))
    batch = collate(one.examples(sentences(2)))
    other = replace(batch, pieces=batch.pieces.masked_fill(batch.pieces > 3, 4))
    hidden = [TaggingLoss(word_dropout=1.0)(one.model, (given, 1))[0] for given in (batch, other)]
    assert_close(*hidden)
    assert TaggingLoss()(one.model, (batch, 1))[0] != TaggingLoss()(one.model, (other, 1))[0]
    with pytest.raises(ValueError, match=r"hide = 1\.0 should be at least 0 and below 1"):
        CharacterSettings(hide=1.0)


def vocabulary() -> tuple[str, ...]:
    return assert_is_instance(tagger().tokenizer, WordTokenizer).vocabulary


@pytest.mark.parametrize("frozen", [False, True])
def test_words_begin_with_the_vectors_of_a_file_and_know_its_words(tmp_path, frozen):
    own = vocabulary()[:2]
    vectors = WordVectors((*own, "zebra"), torch.randn(3, 16))
    vectors.save(tmp_path / "vectors.txt")
    one = tagger(words=WordEmbeddingConfig(kind="file", file=str(tmp_path / "vectors.txt"), frozen=frozen))
    one.job(sentences(), sentences(5))
    rows = [one.tokenizer.encode(word)[0] for word in vectors.words]
    table = one.model.encoder.embedding.weight
    assert_close(normalize(table[rows].detach()), normalize(vectors.vectors))
    TaggingLoss()(one.model, (collate(one.examples(sentences(2))), 1))[0].backward()
    assert (table.grad is None) == frozen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["skip-gram", "file"])
def test_a_run_from_known_vectors_ends_with_the_same_bits(tmp_path, kind):
    file = ""
    if kind == "file":
        file = str(tmp_path / "vectors.txt")
        WordVectors(vocabulary(), torch.randn(len(vocabulary()), 16)).save(file)
    words = WordEmbeddingConfig(kind=kind, file=file, frozen=False)
    assert_resumes(lambda: tagger(words=words), sentences(), sentences(5), tmp_path, cut=17)


def test_what_a_taggers_words_cannot_be_is_refused(tmp_path):
    for words, why in (
        (WordEmbeddingConfig(kind="one-hot"), "have vectors"),
        (WordEmbeddingConfig(dropout=0.1), "spelling.hide"),
    ):
        with pytest.raises(ValueError, match=why):
            tagger(words=words)
    WordVectors(("zebra",), torch.ones(1, 8)).save(tmp_path / "narrow.txt")
    with pytest.raises(ValueError, match="to that, not to 16"):
        tagger(words=WordEmbeddingConfig(kind="file", file=str(tmp_path / "narrow.txt"))).job(sentences(), sentences(5))


def test_a_tag_that_is_unknown_is_named():
    with pytest.raises(ValueError, match="sentence 2: the label 'FOO' is not known; the known ones are ADJ, "):
        tagger().examples([sentences(1)[0], TaggedSentence(("the",), ("FOO",))])


def test_training_stops_goes_on_and_ends_with_the_same_bits(tmp_path):
    given = sentences()

    def fresh() -> Tagger:
        return Tagger.from_examples(given, replace(SETTINGS, spelling=CharacterSettings(read=True)))

    straight = assert_resumes(fresh, given, given, tmp_path, cut=37)
    loaded = Tagger.load(tmp_path / "a")
    assert loaded.predict(given) == straight.predict(given)
    assert validation(loaded.model, loaded.examples(given))["accuracy"] > 0.95


def test_labels_of_another_run_are_not_taken_for_its_own(tmp_path):
    one = tagger()
    one.save(tmp_path)
    labels = (tmp_path / "labels.json").read_text(encoding="utf-8")
    (tmp_path / "labels.json").write_text(labels.replace("NOUN", "NOON"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json or labels\.json or characters\.json is not what"):
        Tagger.load(tmp_path)
