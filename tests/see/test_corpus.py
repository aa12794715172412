"""Corpus statistics: means of single traces, whatever the batch; a planted head is found, spans are the strongest."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention import MultiHeadAttention
from regard.data.labelled import TaggedSentence, write_conllu
from regard.decode.alignment import AlignmentHead, aer, argmax_links, attend_pair
from regard.see import corpus, corpus_tally
from regard.see.corpus import (
    CorpusSentence,
    CorpusStatistics,
    held_out_sentences,
    read_corpus,
    serialize_neighbours,
    serialize_statistics,
    tag_sentences,
)
from regard.see.corpus_tally import corpus_statistics
from regard.see.methods.layers import find_blocks
from regard.see.sites import AttentionSite
from regard.see.trace import Trace, load_pretrained, trace_model
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.translation.task import Translator
from tests.interop.checkpoints import CHECKPOINTS, SENTENCES
from tests.narrowing import assert_is_instance
from tests.see.untrained_models import classifier, generator, image_classifier, tagger, translator

NAMES = ("entropy", "distance", "sink", "confidence", "largest")
TEXTS = ["the black cat ate the mouse", "a dog", "the man carries the light box", "the cat sleeps"]
TARGETS = ["le chat noir a mangé la souris", "un chien", "l' homme porte la boîte légère", "le chat dort"]


@cache
def model_of(name: str) -> PretrainedModel:
    torch.manual_seed(11)
    kinds: dict[str, Any] = {
        "translator": lambda: translator(layers=2),
        "subwords": lambda: translator(text="bpe"),
        "bahdanau": lambda: translator("bahdanau"),
        "talking heads": lambda: translator(decoder='normaliser = "TalkingHeads(3)"'),
        "tagger": tagger,
        "classifier": classifier,
        "generator": generator,
    }
    return kinds[name]()


def given(name: str) -> list[CorpusSentence]:
    targets = TARGETS if "translate" in dir(model_of(name)) else [None] * len(TEXTS)
    return [CorpusSentence(text, target) for text, target in zip(TEXTS, targets, strict=True)]


def single_traces(model: PretrainedModel, sentences: list[CorpusSentence]) -> list[Trace]:
    return [trace_model(model, one.text, target=one.target) for one in sentences]


def assert_means_of_traces(found: CorpusStatistics, traces: list[Trace]) -> None:
    for name, statistics in found.statistics.items():
        alone = [trace.site(name).statistics() for trace in traces]
        for each in NAMES:
            stacked = torch.stack([getattr(one, each) for one in alone])
            expected = stacked.amax(0) if each == "largest" else stacked.mean(0)
            torch.testing.assert_close(getattr(statistics, each), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["translator", "subwords", "bahdanau", "talking heads", "tagger", "classifier", "generator"]
)
def test_the_statistics_are_the_means_of_single_traces(name):
    model, sentences = model_of(name), given(name)
    found = corpus_statistics(model, sentences)
    traces = single_traces(model, sentences)
    assert list(found.statistics) == traces[0].attention_names
    assert_means_of_traces(found, traces)
    for head in found.heads:
        statistics = found.statistics[head.site]
        for each in NAMES:
            assert getattr(head, each) == pytest.approx(float(getattr(statistics, each)[head.head]), abs=1e-6)


@pytest.mark.parametrize("name", ["Marian", "GPT-2", "BERT", "BERT, masks"])
def test_models_of_hugging_face_are_counted_as_they_are_traced(name, tmp_path):
    CHECKPOINTS[name].save(tmp_path)
    model = load_pretrained(tmp_path)
    found = corpus_statistics(model, SENTENCES)
    assert_means_of_traces(found, [trace_model(model, text) for text in SENTENCES])
    assert set(found.states) == {block.name for block in find_blocks(model.model)} & set(found.states)
    assert found.states


@pytest.mark.parametrize("name", ["translator", "tagger"])
def test_nothing_of_a_sentence_depends_on_the_others(name, monkeypatch):
    model, sentences = model_of(name), given(name)
    together = corpus_statistics(model, sentences)
    monkeypatch.setattr(corpus_tally, "TOKENS_AT_ONCE", 1)
    alone = [corpus_statistics(model, [one]) for one in sentences]
    for site, found in together.sentence_statistics.items():
        torch.testing.assert_close(found, torch.cat([one.sentence_statistics[site] for one in alone]))
    for layer, states in together.states.items():
        torch.testing.assert_close(states.vectors, torch.cat([one.states[layer].vectors for one in alone]))
        assert states.places == tuple((n, at) for n, one in enumerate(alone) for _, at in one.states[layer].places)
    backwards = corpus_statistics(model, sentences[::-1])
    for one, other in zip(together.heads, backwards.heads, strict=True):
        assert [span.weight for span in one.spans] == pytest.approx([span.weight for span in other.spans], abs=1e-6)


@pytest.mark.parametrize("name", ["translator", "generator"])
def test_spans_are_the_largest_weights_of_queries_that_see_several_keys(name):
    model, sentences = model_of(name), given(name)
    found, traces = corpus_statistics(model, sentences, spans=7), single_traces(model, sentences)
    for head in found.heads:
        every = []
        for number, trace in enumerate(traces):
            steps = assert_is_instance(trace.sites[head.site], AttentionSite).head(head.head)
            choosing = steps.visible.sum(-1) > 1
            places = (steps.visible & choosing[:, None]).nonzero().tolist()
            every += [(float(steps.weights[i, j]), number, i, j) for i, j in places]
        best = sorted(every, reverse=True)[:7]
        assert [span.weight for span in head.spans] == pytest.approx([one[0] for one in best], abs=1e-6)
        for span in head.spans:
            trace = traces[span.sentence]
            weights = trace.site(head.site).weights(head.head)
            queries, keys = trace.axes_of(head.site)
            assert span.weight == pytest.approx(float(weights[span.query, span.key]), abs=1e-6)
            assert (span.query_token, span.key_token) == (queries.labels[span.query], keys.labels[span.key])


# --- a planted head ---


class PreviousWord(nn.Module):
    """q or k of three heads: the last knows nothing but positions, and looks one back."""

    def __init__(self, own: nn.Module, back: int):
        super().__init__()
        self.own, self.back = own, back

    def forward(self, x):
        found = self.own(x)
        width = found.shape[-1] // 3
        at = (torch.arange(x.shape[1]) - self.back).clamp(min=0) % width
        found[..., 2 * width :] = 9.0 * nn.functional.one_hot(at, width).to(found)
        return found


def planted_classifier() -> PretrainedModel:
    torch.manual_seed(3)
    model = classifier()
    layer = next(part for part in model.model.modules() if isinstance(part, MultiHeadAttention))
    layer.query, layer.key = PreviousWord(layer.query, 1), PreviousWord(layer.key, 0)
    return model


def test_a_planted_head_is_found():
    model = planted_classifier()
    short = [text for text in TEXTS if len(text.split()) <= 4]
    found = corpus_statistics(model, short)
    previous = min(found.heads, key=lambda head: head.entropy)
    assert previous.head == 2
    assert previous.confidence > 0.99
    words = sum(len(text.split()) for text in short)
    assert previous.distance == pytest.approx(
        sum((len(text.split()) - 1) / len(text.split()) for text in short) / len(short), abs=1e-2
    )
    assert all(span.key == max(span.query - 1, 0) for span in previous.spans[: words // 2])


def test_parts_of_speech_that_a_head_links_are_found():
    model = planted_classifier()
    sentence = CorpusSentence("the cat sleeps", tags=("DET", "NOUN", "VERB"))
    pairs = corpus_statistics(model, [sentence]).head("encoder.0", 2).tag_pairs
    assert {(pair.query, pair.key) for pair in pairs[:3]} == {("DET", "DET"), ("NOUN", "DET"), ("VERB", "NOUN")}
    for pair in pairs[:3]:
        assert pair.weight > 0.99
        assert pair.even == pytest.approx(1 / 3)


def test_a_key_that_gets_everything_is_a_sink():
    torch.manual_seed(3)
    model = generator()
    layer = next(part for part in model.model.modules() if isinstance(part, MultiHeadAttention))
    for parameter in layer.query.parameters():
        parameter.data.zero_()
    found = corpus_statistics(model, ["the cat", "a dog"])  # every key weighs the same
    first = found.head("blocks.0", 0)
    # the first token of three gets 1, 1/2 and 1/3
    assert first.sink == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=1e-5)
    assert first.sinks[0] == (found.tokens[0]["text"][0], pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=1e-5))


@pytest.mark.parametrize("name", ["translator", "subwords"])
def test_the_alignment_error_rate_is_that_of_the_links_of_each_sentence(name):
    model = assert_is_instance(model_of(name), Translator)
    sentences = [replace(one, tags=()) for one in held_out_sentences(model, 3)]
    links = frozenset({(0, 0), (1, 2), (2, 1), (3, 3), (3, 4), (4, 5), (5, 6)})  # more target words than source words
    sentences.append(CorpusSentence(TEXTS[0], TARGETS[0], alignment=links))
    found = corpus_statistics(model, sentences)
    for head in found.heads:
        if not head.site.endswith("cross"):
            assert head.aer is None
            continue
        errors = []
        for shift in (0, 1):
            predicted, gold = set(), set()
            for n, one in enumerate(sentences):
                matrix = attend_pair(model, one.text, one.target or "").word_matrix(
                    [AlignmentHead(head.site, head.head, shift)]
                )
                predicted |= {(n, *link) for link in argmax_links(matrix)}
                gold |= {(n, *link) for link in one.alignment}
            errors.append(aer(gold, set(), predicted))
        assert head.aer == pytest.approx(min(errors))
        assert errors[head.shift] == min(errors)


# --- states and errors ---


def test_the_nearest_state_is_the_one_with_the_largest_cosine():
    (found,) = corpus_statistics(model_of("tagger"), TEXTS).states.values()
    number, alike = found.nearest(2, count=3)[0]
    unit = nn.functional.normalize(found.vectors, dim=-1)
    cosines = unit @ unit[2]
    cosines[2] = -1
    assert number == int(cosines.argmax())
    assert alike == pytest.approx(float(cosines.max()), abs=1e-6)


def test_errors_are_the_predictions_that_differ_the_worst_first():
    model, sentences = model_of("translator"), given("translator")
    found = corpus_statistics(model, sentences)
    expected = []
    for number, trace in enumerate(single_traces(model, sentences)):
        wanted = [*trace.generated_ids(), 2]
        for row, (one, other) in enumerate(zip(wanted, trace.predictions.logits.argmax(-1).tolist(), strict=True)):
            if one != other:
                expected.append((float(trace.predictions.probabilities(row)[one]), number, row))
    assert found.predictions == sum(len(one["written"]) for one in found.tokens)
    assert {(error.sentence, error.row) for error in found.errors} == {(n, row) for _, n, row in expected}
    assert [error.wanted_probability for error in found.errors] == pytest.approx(
        sorted(p for p, _, _ in expected), abs=1e-6
    )


def test_without_what_is_wanted_there_are_no_errors_and_the_model_writes_its_own():
    model = model_of("translator")
    found = corpus_statistics(model, TEXTS)
    assert (found.predictions, found.errors) == (0, ())
    assert list(found.outputs) == [trace_model(model, text).output_text for text in TEXTS]


def test_tags_and_labels_are_wanted_of_what_predicts_them():
    sentences = held_out_sentences(model_of("tagger"), 5)
    found = corpus_statistics(model_of("tagger"), sentences)
    assert found.predictions == sum(len(one.tags) for one in sentences)
    sentences = held_out_sentences(model_of("classifier"), 5)
    assert corpus_statistics(model_of("classifier"), sentences).predictions == 5
    assert all(one.label and one.tags for one in sentences)


# --- sentences ---


def test_files_of_every_kind_are_read(tmp_path):
    model = model_of("translator")
    (tmp_path / "a.txt").write_text("the cat\n\na dog\n")
    assert [one.text for one in read_corpus(model, tmp_path / "a.txt")] == ["the cat", "a dog"]
    (tmp_path / "a.tsv").write_text("the cat\tle chat\t0-0 1-1\na dog\tun chien\nno bird\n")
    pairs = read_corpus(model, tmp_path / "a.tsv")
    assert [one.target for one in pairs] == ["le chat", "un chien", None]
    assert pairs[0].alignment == {(0, 0), (1, 1)}
    write_conllu([TaggedSentence(("the", "cat"), ("DET", "NOUN"))], tmp_path / "a.conllu")
    assert read_corpus(model, tmp_path / "a.conllu") == [CorpusSentence("the cat", tags=("DET", "NOUN"))]
    (tmp_path / "b.tsv").write_text("a fine film\tgood\n")
    assert read_corpus(model_of("classifier"), tmp_path / "b.tsv") == [CorpusSentence("a fine film", label="good")]


def test_a_tagger_tags_the_sentences_that_have_no_tags():
    known = CorpusSentence("a dog", tags=("DET", "NOUN"))
    first, second = tag_sentences(["the cat sleeps", known], model_of("tagger"))
    (wanted,) = [trace_model(model_of("tagger"), "the cat sleeps").output_text]
    assert " ".join(f"{word}/{tag}" for word, tag in zip(first.text.split(), first.tags, strict=True)) == wanted
    assert second == known
    assert corpus_statistics(model_of("translator"), [first]).head("encoder.0", 0).tag_pairs


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: corpus_statistics(model_of("translator"), []), "the corpus is empty"),
        (lambda: corpus_statistics(model_of("translator"), [3]), "a int is no sentence"),
        (lambda: corpus_statistics(model_of("tagger"), TEXTS, layers=["encoder.9"]), "there is no layer 'encoder.9'"),
        (lambda: corpus_statistics(image_classifier(), TEXTS), "and no sentences"),
        (lambda: CorpusSentence("the cat", tags=("DET",)), "1 tags for 2 words"),
        (lambda: corpus.parse_links("0-0 1:2", "a.tsv:3"), "a.tsv:3: '1:2' is no link"),
        (
            lambda: corpus_statistics(
                model_of("translator"), [CorpusSentence("a dog", "un", alignment=frozenset({(0, 5)}))]
            ),
            "sentence 1: the link 0-5 is beyond its 2 and 1 words",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(make, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


def test_progress_counts_sentences_and_stops():
    seen = []

    def stop(items, what, total=None, /):
        for n, item in enumerate(items):
            seen.append(what)
            if what == "sentences" and n == 2:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        corpus_statistics(model_of("translator"), TEXTS, progress=stop)
    assert seen == ["translations"] * 4 + ["sentences"] * 3


def test_the_json_has_the_numbers_of_the_statistics():
    model = model_of("tagger")
    found = corpus_statistics(model, held_out_sentences(model, 4))
    data = serialize_statistics(found)
    assert [head["entropy"] for head in data["heads"]] == [head.entropy for head in found.heads]
    assert data["heads"][1]["spans"][0]["weight"] == found.heads[1].spans[0].weight
    ((name, layer),) = data["layers"].items()
    assert layer["states"] == len(layer["points"]) == len(found.states[name].places)
    x, y, number, sentence, position, token, tag = layer["points"][5]
    assert [x, y] == found.states[name].project()[0][number].tolist()
    assert (token, tag) == (found.tokens[sentence]["text"][position], found.tags[sentence]["text"][position])
    near = serialize_neighbours(found, name, number, 2)
    assert [(one[1], one[0]) for one in near] == found.states[name].nearest(number, 2)
