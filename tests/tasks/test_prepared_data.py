"""Training from prepared corpora: exact resume, shares of processes, packed rows, and what does not fit is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.data.batching import collate
from regard.data.lm_blocks import MixtureBlocks
from regard.data.preparation import prepare_corpora
from regard.data.token_files import CorpusMixture, TextMixture
from regard.data.tokenizers.subwords import load_tokenizer
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.tasks.config import effective_examples
from regard.tasks.language_modeling.task import (
    TASK as LANGUAGE_MODELING,
)
from regard.tasks.language_modeling.task import (
    BlockStream,
    LanguageModelingData,
    LanguageModelingSettings,
    TextGenerator,
)
from regard.tasks.seq2seq import seq2seq_job
from regard.tasks.translation.task import TASK, TranslationData, TranslationSettings, Translator
from regard.training.config import TrainSettings
from regard.training.corpus import Corpus
from regard.training.distributed import SharedData
from tests.data.prepared import listed_texts, request_for, text_request, world_lines, world_source

from .resume_check import assert_resumes

TINY = ModelConfig(kind="transformer", layers=1, model=16, heads=2, hidden=32, dropout=0.1)
TRAIN = TrainSettings(batch_size=256, steps=6, validate_every=3, checkpoint_every=2, gradient_accumulation=2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "out"
    prepare_corpora(request_for(out, [world_source("a", 400), world_source("b", 100, seed=1)]))
    return out


@pytest.fixture(scope="module")
def settings(prepared) -> TranslationSettings:
    data = TranslationData(corpus="files", train=(f"{prepared}/a:1", f"{prepared}/b:1"))
    return TranslationSettings(data=data, model=TINY, train=TRAIN)


@pytest.fixture(scope="module")
def mixture(settings) -> CorpusMixture:
    found = settings.data.read("train").examples
    assert isinstance(found, CorpusMixture)
    return found


def test_settings_take_languages_and_vocabulary_from_the_corpora(settings, mixture):
    fitted = TASK.fit_settings(settings, mixture, ())
    assert (fitted.text.vocab_size, fitted.data.source, fitted.data.target) == (400, "en", "fr")
    assert TASK.fit_settings(fitted, mixture, ()) == fitted
    asked = settings.with_changes({"text.vocab_size": 300})
    with pytest.raises(
        ValueError, match=r"text\.vocab_size = 300, but the corpora were prepared with 400; leave it out"
    ):
        TASK.fit_settings(asked, mixture, ("text.vocab_size",))
    translator = Translator.from_examples(mixture, fitted)
    assert translator.source.size <= 400
    assert effective_examples(mixture) == len(mixture)


def test_held_out_pairs_are_to_validate_on(settings, mixture, prepared):
    held = settings.data.read("valid").examples
    assert 0 < len(held) < 20
    text = Path(prepared).parent / "own.tsv"
    text.write_text("the cat\tle chat\n")
    assert len(replace(settings.data, valid=(str(text),)).read("valid").examples) == 1
    with pytest.raises(ValueError, match=r"own.tsv is no prepared corpus, but .*/a:1 is"):
        replace(settings.data, train=(*settings.data.train, str(text))).read("train")


@pytest.mark.parametrize("train", [TRAIN, replace(TRAIN, packed=True, max_length=60)], ids=["padded", "packed"])
def test_a_killed_run_ends_with_the_same_weights(settings, mixture, tmp_path, train):
    held = settings.data.read("valid").examples

    def fresh() -> Translator:
        torch.manual_seed(0)
        return Translator.from_examples(mixture, replace(settings, train=train))

    assert_resumes(fresh, mixture, held, tmp_path, cut=3)


def test_several_processes_share_the_batches_of_one(settings, mixture):
    corpus = Corpus.of(mixture, lambda _: [], collate, settings.train)
    whole = corpus.at(1, 2)
    assert len(whole) == 2
    shares = [SharedData(corpus, rank, 2).at(1, 2)[0].batch for rank in (0, 1)]
    for batch, share in zip(whole, shares, strict=True):
        assert torch.equal(batch[0].source, share[0].source)
    thirds = [SharedData(corpus, rank, 3).at(1, 2)[0].batch[0] for rank in range(3)]
    assert sum(len(part) for part in thirds) == len(whole[0][0])
    assert torch.equal(thirds[1].source, whole[0][0].source[1::3])


def test_a_model_of_other_vocabularies_refuses_the_corpora(settings, mixture, tmp_path):
    other = prepare_corpora(request_for(tmp_path / "out", [world_source("de", 200, "de")]))
    translator = Translator.from_examples(CorpusMixture(tuple(other)), settings)
    with pytest.raises(ValueError, match="was prepared with another vocabulary than the model's"):
        translator.job(mixture, settings.data.read("valid").examples)


@pytest.mark.parametrize("weights", [None, (1.0, 1.0)])
def test_packed_rows_hold_the_pairs_of_an_epoch(settings, mixture, weights):
    """Each once, or as often as the weights of the corpora say: of 400 and 100 pairs the second four times."""
    fitted = replace(settings, train=replace(TRAIN, packed=True, max_length=60))
    translator, weighted = Translator.from_examples(mixture, fitted), replace(mixture, weights=weights)
    job = seq2seq_job(translator, weighted, translator.examples(settings.data.read("valid").examples), "cpu")
    tokens = sum(count for index in range(job.data.steps(0)) for _, count in job.data.at(0, index))
    first, second = (sum(len(target) + 1 for _, target in corpus) for corpus in mixture.corpora)
    times = len(mixture.corpora[0]) / len(mixture.corpora[1]) if weights else 1
    assert tokens == pytest.approx(first + times * second, rel=0 if times == 1 else 0.01)


def test_a_model_of_several_target_languages_is_told_which(tmp_path, settings):
    corpora = prepare_corpora(request_for(tmp_path, [world_source("fr", 80), world_source("de", 80, "de")]))
    mixture = CorpusMixture(tuple(corpora))
    translator = Translator.from_examples(mixture, TASK.fit_settings(settings, mixture, ()))
    assert (translator.settings.data.target, translator.target_languages) == ("fr de", ("fr", "de"))
    assert translator.source.size == translator.target.size, "a joint vocabulary has the tags on both sides"
    assert translator.tag_source("the cat", "de") == ">>de<< the cat"
    tokens = translator.source.encode(">>de<< the cat")
    assert translator.source.decode(tokens) == ">>de<< the cat"
    assert translator.source.words(">>de<< the cat") == (
        (">>de<<", "the", "cat"),
        tuple(translator.source.word_ids(">>de<< the cat")),
    )
    assert translator.source.tokens(">>de<< the cat")[0] == ">>de<<"
    translator.source.save(tmp_path / "saved.json")
    assert load_tokenizer(tmp_path / "saved.json") == translator.source
    assert translator.translate("the cat", to="de").source == ">>de<< the cat"
    assert translator.translate(">>fr<< the cat").source == ">>fr<< the cat"
    with pytest.raises(ValueError, match="translates into fr, de; say which, as in --to fr"):
        translator.translate("the cat")
    with pytest.raises(ValueError, match="translates into fr, de, not into 'es'"):
        translator.translate("the cat", to="es")


def test_a_model_of_one_target_language_needs_not_be_told(settings, mixture):
    translator = Translator.from_examples(mixture, TASK.fit_settings(settings, mixture, ()))
    assert translator.tag_source("the cat", "fr") == translator.tag_source("the cat", None) == "the cat"
    with pytest.raises(ValueError, match="translates into fr, not into 'de'"):
        translator.tag_source("the cat", "de")


# --- language models ---


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("texts") / "out"
    sources = [listed_texts("a", world_lines(900)), listed_texts("b", world_lines(400, seed=1), documents=True)]
    prepare_corpora(text_request(out, sources))
    return out


@pytest.fixture(scope="module")
def text_settings(texts) -> LanguageModelingSettings:
    data = LanguageModelingData(corpus="files", train=(f"{texts}/a:1", f"{texts}/b:1"))
    model = LanguageModelConfig(kind="transformer", layers=1, model=16, heads=2, hidden=32, dropout=0.1)
    return LanguageModelingSettings(data=data, model=model, train=replace(TRAIN, max_length=32))


@pytest.fixture(scope="module")
def text_mixture(text_settings) -> TextMixture:
    found = text_settings.data.read("train").examples
    assert isinstance(found, TextMixture)
    return found


def test_a_language_model_takes_its_vocabulary_from_prepared_texts(text_settings, text_mixture, texts):
    task = LANGUAGE_MODELING
    fitted = task.fit_settings(text_settings, text_mixture, ())
    assert fitted.text.vocab_size == 400
    asked = text_settings.with_changes({"text.vocab_size": 300})
    with pytest.raises(ValueError, match=r"text\.vocab_size = 300, but the corpora were prepared with 400"):
        task.fit_settings(asked, text_mixture, ("text.vocab_size",))
    assert task.fit_settings(text_settings, ["a line"], ()) == text_settings
    generator = TextGenerator.from_examples(text_mixture, fitted)
    assert generator.tokenizer == load_tokenizer(texts / "tokenizer.json")
    documents = text_mixture.corpora[1].description
    assert documents["texts"] + documents["held_out"] == documents["cleaning"]["kept"] <= 400
    assert effective_examples(text_mixture) >= len(text_mixture) == 891 + documents["texts"]
    held = text_settings.data.read("valid").examples
    assert held[:9] == world_lines(900)[-9:]


def test_a_killed_language_model_ends_with_the_same_weights(text_settings, text_mixture, tmp_path):
    held = text_settings.data.read("valid").examples
    fitted = LANGUAGE_MODELING.fit_settings(text_settings, text_mixture, ())

    def fresh() -> TextGenerator:
        torch.manual_seed(0)
        return TextGenerator.from_examples(text_mixture, fitted)

    assert_resumes(fresh, text_mixture, held, tmp_path, cut=3)


def test_prepared_text_is_learnt_as_the_file_that_it_was(text_settings, texts):
    """In an epoch the same targets with the same tokens before them, but for where blocks are cut."""
    alone = replace(text_settings, data=replace(text_settings.data, train=(f"{texts}/a",)))
    mixture = alone.data.read("train").examples
    generator = TextGenerator.from_examples(mixture, LANGUAGE_MODELING.fit_settings(alone, mixture, ()))
    lines = world_lines(900)[:891]
    prepared, plain = (generator.job(examples, lines[:9]).data for examples in (mixture, lines))
    found = [
        sorted(
            target
            for index in range(data.steps(0))
            for block, _, _ in data.at(0, index)
            for target in block.targets[block.loss_mask].tolist()
        )
        for data in (prepared, plain)
    ]
    assert found[0] == found[1]


def test_a_language_model_of_another_vocabulary_refuses_the_texts(text_settings, text_mixture):
    generator = TextGenerator.from_examples(world_lines(50), text_settings)
    with pytest.raises(ValueError, match="was prepared with another vocabulary than the model's"):
        generator.job(text_mixture, world_lines(9))


def test_several_processes_share_the_blocks_of_one(text_settings, text_mixture):
    blocks = MixtureBlocks(text_mixture, 32, rows=8, micro_batch_rows=4, seed=1)
    stream = BlockStream(blocks)
    whole = stream.at(1, 2)
    shares = [SharedData(stream, rank, 2).at(1, 2)[0].batch for rank in (0, 1)]
    assert [torch.equal(one[0].inputs, share[0].inputs) for one, share in zip(whole, shares, strict=True)] == [True] * 2
    thirds = [SharedData(stream, rank, 3).at(1, 2)[0].batch[0] for rank in range(3)]
    assert torch.equal(thirds[1].inputs, whole[0][0].inputs[1::3])
