"""The translation task: settings, vocabularies, loss, saving and loading, and that training translates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result
from torch.testing import assert_close

from regard.data import SentencePair, collate
from regard.data.batching import pair_lengths
from regard.data.tokenizers.base import TextNormalizer
from regard.decode import Greedy, translate_all
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.seq2seq import LabelSmoothingLoss, RDropLoss, build_loss, validation
from regard.tasks.translation.metrics import (
    CHRF_PLAIN,
    TRANSLATION_EDIT_RATE,
    TranslationMetrics,
    bleu,
    bleu_by_length,
    chrf_plus_plus,
    exact_match,
    text_metrics,
)
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.config import TrainSettings
from regard.training.corpus import Corpus
from regard.world import World, translation_pairs

WORDS = PairTokenizerSettings(kind="words", joint=False)
TINY = ModelConfig(kind="transformer", layers=1, model=32, heads=2, hidden=64, dropout=0.0)
SETTINGS = TranslationSettings(
    text=WORDS, model=TINY, train=TrainSettings(batch_size=256, steps=5, label_smoothing=0.1)
)


def some(count: int, split: str = "train") -> list[SentencePair]:
    return [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", count, split)]  # type: ignore[arg-type]


# --- settings ---


def test_settings_survive_a_file():
    assert TranslationSettings.from_toml(SETTINGS.to_toml()) == SETTINGS
    assert TranslationSettings.from_toml("") == TranslationSettings()


def test_a_file_names_a_size_and_changes_it():
    settings = TranslationSettings.from_toml('[model]\nkind = "bahdanau"\nsize = "tiny"\ndropout = 0.25\n')
    assert settings.model == replace(ModelConfig.from_size("bahdanau", "tiny"), dropout=0.25)


def test_lines_can_be_replaced():
    changed = SETTINGS.with_changes({"train.steps": "7", "text.kind": "bpe", "train.learning_rate": "1e-4"})
    assert (changed.train.steps, changed.text.kind, changed.train.learning_rate) == (7, "bpe", 1e-4)


# --- loss ---


def test_without_dropout_both_passes_agree():
    translator = Translator.from_examples(some(20), SETTINGS)
    batch = collate(translator.examples(some(7)))
    one, other = (
        loss(translator.model, (batch, batch.tokens)) for loss in (LabelSmoothingLoss(0.1), RDropLoss(0.1, 5.0))
    )
    assert_close(one[0], other[0])
    assert one[1] == other[1] == batch.tokens


def test_with_dropout_the_passes_differ():
    model = replace(TINY, dropout=0.5)
    translator = Translator.from_examples(some(20), replace(SETTINGS, model=model))
    batch = collate(translator.examples(some(7)))
    agree, differ = (RDropLoss(0.0, weight)(translator.model, (batch, 1))[0] for weight in (0.0, 5.0))
    assert differ > agree


def test_the_loss_is_chosen_by_the_settings():
    assert build_loss(TrainSettings(label_smoothing=0.2)) == LabelSmoothingLoss(0.2)
    assert build_loss(TrainSettings(label_smoothing=0.2, rdrop=5.0)) == RDropLoss(0.2, 5.0)


def test_the_gradient_does_not_depend_on_how_sentences_are_batched():
    translator = Translator.from_examples(some(40), SETTINGS)
    model = translator.model.double()
    examples = translator.examples(some(12))
    grads = []
    for parts in ([examples], [examples[:5], examples[5:]], [[example] for example in examples]):
        model.zero_grad()
        tokens = 0
        for part in parts:
            batch = collate(part)
            summed, count = LabelSmoothingLoss(0.1)(model, (batch, batch.tokens))
            summed.backward()
            tokens += count
        grads.append([part.grad.clone() / tokens for part in model.parameters() if part.grad is not None])
    for other in grads[1:]:
        assert_close(other, grads[0])


# --- translators ---


def test_a_translator_is_the_same_after_saving(tmp_path):
    translator = Translator.from_examples(some(60), SETTINGS)
    translator.save(tmp_path)
    again = Translator.load(tmp_path)
    assert again.settings == translator.settings
    sources = [source for source, _ in translator.examples(some(5))]
    assert sources == [source for source, _ in again.examples(some(5))]
    translator.model.eval()
    for one, other in zip(
        translate_all(translator.model, sources, Greedy()), translate_all(again.model, sources, Greedy()), strict=True
    ):
        assert one == other


def test_a_folder_without_a_translator_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"settings\.toml is missing; train one with"):
        Translator.load(tmp_path)


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_a_joint_vocabulary_is_shared(kind):
    settings = replace(
        SETTINGS,
        text=PairTokenizerSettings(kind=kind, vocab_size=400, joint=True, lowercase=True, target_language="fr"),
    )
    translator = Translator.from_examples(some(50), settings)
    assert translator.source.size == translator.target.size
    assert translator.target.normalizer.language == "fr"


def test_training_translates_by_heart_and_resumes_to_the_bit(tmp_path):
    known = some(12)
    settings = replace(SETTINGS, train=TrainSettings(batch_size=200, steps=150))

    def run(folder: Path, cut: int | None = None) -> Translator:
        translator = Translator.from_examples(known, settings)
        corpus = Corpus.of(translator.examples(known), pair_lengths, collate, settings.train)
        plan = TrainConfig(ConstantSchedule(3e-3, warmup=10), 150, checkpoint_every=40)
        steps = train(translator.model, corpus, LabelSmoothingLoss(), plan, folder)
        for report in steps:
            if report.step == cut:
                steps.close()
                return run(folder)
        return translator

    straight, resumed = run(tmp_path / "a"), run(tmp_path / "b", cut=67)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    straight.model.eval()
    found = translate_all(straight.model, [source for source, _ in straight.examples(known)], Greedy())
    texts = [straight.detokenize(best[0].ids) for best in found]
    assert exact_match(texts, [pair.target for pair in known]).value == 100
    assert validation(straight.model, straight.examples(known))["loss"] < 0.2


def test_accumulation_leaves_no_sentence_out():
    translator = Translator.from_examples(some(40), SETTINGS)
    examples = translator.examples(some(40))
    corpus = Corpus.of(examples, pair_lengths, collate, TrainSettings(batch_size=64, gradient_accumulation=3))
    seen = sum(len(batch) for step in range(corpus.steps(0)) for batch, _ in corpus.at(0, step))
    assert seen == 40


# --- metrics ---


def test_metrics_carry_their_signatures():
    same = ["the black cat ate the mouse", "a light box is here"]
    assert_close(bleu(same, same).value, 100.0)
    assert "tok:13a" in bleu(same, same).signature
    assert "tok:none" in bleu(same, same, tokenised=True).signature
    assert_close(CHRF_PLAIN.score(same, same).value, 100.0)
    assert_close(chrf_plus_plus().score(same, same).value, 100.0)
    assert "nc:6|nw:2" in chrf_plus_plus().score(same, same).signature
    assert exact_match(same, [same[0], "something else"]).value == 50.0


def test_ter_counts_edits_by_words():
    """One word of four is replaced, and one of four is left out: 2 edits of 8 words."""
    score = TRANSLATION_EDIT_RATE.score(["the Black dog ate", "a box is"], ["the black cat ate", "a box is here"])
    assert score.value == 25.0
    assert score.signature.startswith("nrefs:1|case:lc|tok:tercom")


def test_a_lower_cased_model_is_not_judged_by_capitals():
    normal = TextNormalizer(lower=True, language="en")
    found, wanted = ("the cat, here",), ("The cat, here",)
    metrics = TranslationMetrics(found * 5, wanted * 5, (3,) * 5, normal)
    assert [score.name for score in metrics.scores] == ["BLEU, lower-cased, tokenised", "chrF++", "TER"]
    assert [round(score.value) for score in metrics.scores] == [100, 100, 0]
    assert {metric.name for metric in text_metrics(TextNormalizer(), wanted)} == {"BLEU", "chrF", "chrF++", "TER"}


def test_ter_is_left_out_of_long_texts_and_that_is_said():
    long = TranslationMetrics(("a cat",), ("the cat " * 76,), (9,), TextNormalizer())
    assert [score.name for score in long.scores] == ["BLEU", "chrF", "chrF++", "exact match"]
    assert "TER                               –   would take long: a reference has 152 words" in long.table()


def test_bleu_of_sentences_too_short_for_its_longest_ngrams_counts_the_others():
    """p₁ = 5/6, p₂ = 3/4, p₃ = 1/2: their geometric mean, where plain BLEU would be 0 for want of a fourth word."""
    wanted = ["le chat dort", "le chien mange"]
    assert bleu(wanted, wanted).value == pytest.approx(100.0)
    one_wrong = bleu(["le chat dort", "le chien court"], wanted)
    assert one_wrong.value == pytest.approx(100 * (5 / 6 * 3 / 4 * 1 / 2) ** (1 / 3))
    assert "|eff:yes|" in one_wrong.signature
    shorter = bleu(["le chat"], ["le chat noir dort"])  # what the reference has, a translation may be judged by
    assert (shorter.value, "|eff:no|" in shorter.signature) == (0.0, True)
    found = TranslationMetrics(tuple(wanted), tuple(wanted), (3, 3), TextNormalizer())
    assert "no reference has four words, so BLEU counts the shorter n-grams alone (eff:yes)" in found.table()
    (bucket,) = found.lengths
    assert bucket.bleu == pytest.approx(100.0)
    for result in found.compare(found).values():
        assert result.p_value == 1.0


def test_two_systems_are_compared_by_sacrebleus_own_paired_bootstrap():
    """Its p-values, intervals and signature, as those of `sacrebleu --paired-bs`."""
    wanted = tuple(f"the {n} black cats ate {n + 1} mice in house {n % 7}" for n in range(60))
    poor = tuple(text.replace("black", "blue") if n % 3 else text for n, text in enumerate(wanted))
    close = tuple(text.replace("cats", "cat") if n % 60 == 7 else text for n, text in enumerate(poor))
    first, second, third = (
        TranslationMetrics(one, wanted, (9,) * 60, TextNormalizer()) for one in (wanted, poor, close)
    )
    far, near, none = first.compare(second), second.compare(third), second.compare(second)
    signatures, results = PairedTest([("a", wanted), ("b", poor)], {"BLEU": BLEU()}, [wanted], "bs", 1000)()
    one, two = (result for result in results["BLEU"] if isinstance(result, Result))
    assert far["BLEU"].p_value == two.p_value
    assert far["BLEU"].p_value < 0.01
    assert far["BLEU"].intervals == (one.ci, two.ci)
    assert far["BLEU"].signature == str(signatures["BLEU"])
    assert "bs:1000|seed:12345" in far["BLEU"].signature
    assert near["BLEU"].p_value > 0.05
    assert {name: one.p_value for name, one in none.items()} == dict.fromkeys(
        ("BLEU", "chrF", "chrF++", "TER", "exact match"), 1.0
    )


def test_bleu_by_length_sorts_sentences_by_their_source():
    found, wanted = ["a b c d e", "x x x x x", "a b c d e"], ["a b c d e"] * 3
    short, long = bleu_by_length(found, wanted, [4, 12, 8], edges=[1, 10])
    assert (short.first, short.last, short.sentences, short.length) == (1, 9, 2, 6.0)
    assert (long.first, long.last, long.sentences, long.length) == (10, 12, 1, 12.0)
    assert_close(short.bleu, 100.0)
    assert long.bleu < 1
    assert (str(short), str(long)) == ("1–9", "10–12")


def test_a_length_that_no_sentence_has_is_no_bucket():
    assert [bucket.first for bucket in bleu_by_length(["a"], ["a"], [7], edges=[1, 6, 11])] == [6]


def test_metrics_want_one_reference_for_each():
    with pytest.raises(ValueError, match="2 translations for 1 references"):
        bleu(["a", "b"], ["a"])
