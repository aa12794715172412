"""Seeing is exact: what a site recomputes is what the layer gave, whichever kernel ran, and nothing stays behind."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    AttentionCore,
    AttentionRecord,
    Causal,
    Context,
    Cosine,
    Dot,
    Feature,
    Forget,
    GatedDelta,
    GateProjection,
    Global,
    Hard,
    Linformer,
    MultiHeadAttention,
    Padding,
    Proportional,
    Recipe,
    RelativeBias,
    Rotary,
    SiteName,
    Sparsemax,
    Strided,
    TopK,
    Unnormalised,
    VectorDecay,
    Window,
    record_attention,
)
from regard.attention.functional import steps
from regard.attention.position_variants import Clipped, LogBuckets, RelativeVectors
from regard.layers.pooling import AttentionPooling, LastPooling, MaxPooling, MeanPooling, TokenWeightPooling
from regard.models import build_model
from regard.models.autoencoder import AutoencoderConfig, build_autoencoder
from regard.models.baselines import BagOfWordsClassifier
from regard.models.config import EncoderConfig, LanguageModelConfig
from regard.models.encoder import Encoder, SequenceClassifier, TokenClassifier
from regard.models.graph import GraphConfig, GraphNetwork, Neighbours, edge_weights, undirected_edges
from regard.models.language_model import LanguageModel
from regard.models.vision import ChannelCNN, ConvolutionBlock, VisionConfig, VQAConfig, VQAModel, build_vision_model
from regard.see import trace_model, trace_module
from regard.see.edits import Edits, GateOff, Mask, Temperature
from regard.see.sites import AttentionRecorder, AttentionSite, GateSite, apply_edits, trace_layer
from regard.tasks.sequence_classification.task import ClassificationData, ClassificationSettings, TextClassifier
from tests.models.small_models import LADDER, SOURCE, TARGET, WITH_ATTENTION, sentences
from tests.narrowing import assert_is_instance
from tests.see.untrained_models import CAT, WORDS

READER = EncoderConfig(kind="transformer", layers=2, model=12, heads=3, hidden=17, dropout=0.1)


def record_both_ways(model: nn.Module, tracing: AttentionRecorder, *inputs: Any) -> AttentionRecord:
    """By the recorder of traces, which changes nothing, and by that of the attention weights."""
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            output = model(*inputs)
        assert torch.equal(output, model(*inputs))
        with record_attention(model) as record:
            model(*inputs)
        return record


def assert_exact(tracing: AttentionRecorder) -> None:
    """Every head of every site, recomputed by the reference."""
    for site in tracing.sites().values():
        if isinstance(site, AttentionSite):
            for head in range(site.heads):
                assert site.check(head).error < 1e-5
                weights = site.head(head).weights
                assert bool((weights[~site.head(head).visible] == 0).all())


def state_of(model: nn.Module) -> list[object]:
    """All that a module holds, part by part."""
    return [
        (name, sorted(key for key in vars(part)), sorted(part._buffers), part.training)
        for name, part in model.named_modules()
    ]


class assert_untouched:
    """Nothing is kept on the model, and its weights are what they were."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __enter__(self) -> None:
        self.before, self.weights = state_of(self.model), {n: w.clone() for n, w in self.model.state_dict().items()}

    def __exit__(self, *error: object) -> None:
        assert state_of(self.model) == self.before
        now = self.model.state_dict()
        assert list(now) == list(self.weights)
        assert all(torch.equal(now[name], weight) for name, weight in self.weights.items())


# --- every model ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_seen_as_it_ran(name):
    model, (source, lengths, target) = build_model(LADDER[name], SOURCE, TARGET).eval(), sentences()
    tracing = AttentionRecorder()
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(source, lengths, target)
        plain = model(source, lengths, target)
        with record_attention(model) as record:
            model(source, lengths, target)
    # linear attention reads on by its sums; all others go the very same way
    assert torch.equal(logits, plain) or (name == "transformer, linear decoder" and torch.allclose(logits, plain))
    assert_exact(tracing)
    assert list(tracing.sites()) == list(record.calls)
    for site, found in tracing.sites().items():
        assert isinstance(found, AttentionSite)
        again = torch.stack([found.head(head, sentence=1).weights for head in range(found.heads)])
        assert_close(again, record.weights(site)[1], atol=1e-6, rtol=0)
    # the names by which heads are kept beside a model
    named = {"decoder.0.cross", "attention"} & set(record.calls)
    assert bool(named) == (name in WITH_ATTENTION)


@pytest.mark.parametrize("name", ["transformer, rotary", "transformer, windows", "bahdanau", "luong general, fed"])
def test_word_by_word_is_the_same_as_at_once(name):
    model, (source, lengths, target) = build_model(LADDER[name], SOURCE, TARGET).eval(), sentences()
    one, all_ = AttentionRecorder(), AttentionRecorder()
    with torch.no_grad():
        for tracing, parts in ((one, target.split(1, 1)), (all_, [target])):
            with tracing.record(model):
                memory = model.encode(source, lengths)
                logits, state = torch.empty(0), model.start(memory)
                for part in parts:
                    logits, state = model.step(part, state, memory)
            tracing.calls["last"] = [GateSite(SiteName("last", "", ""), logits[:, -1], "")]
    for name, site in one.sites().items():
        other = all_.sites()[name]
        if isinstance(site, AttentionSite) and isinstance(other, AttentionSite):
            assert_close(site.output, other.output, atol=1e-5, rtol=0)
        if isinstance(site, GateSite) and isinstance(other, GateSite):
            assert_close(site.weights, other.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        'position = "Rotary()"',
        'position = "Alibi(3)"',
        'pattern = "Window(3)"',
        'pattern = "Window(2) | Strided(3)"',
        'score = "Feature()"\nnormaliser = "Proportional()"',
        'normaliser = "Sparsemax()"',
    ],
)
def test_a_language_model_is_seen_as_it_ran(recipe):
    config = LanguageModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=17, recipe=recipe)
    model, tracing, tokens = LanguageModel(config, 23).eval(), AttentionRecorder(), torch.randint(4, 23, (1, 19))
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(tokens)
        assert_close(logits, model(tokens), atol=0 if "Feature" not in recipe else 1e-5, rtol=0)
    assert list(tracing.sites()) == ["blocks.0", "blocks.1"]
    assert_exact(tracing)


@pytest.mark.parametrize(
    "pooling",
    [
        AttentionPooling(12),
        AttentionPooling(12, recipe=Recipe(normaliser=Hard())),
        MeanPooling(),
        LastPooling(),
        MaxPooling(),
    ],
)
def test_a_classifier_is_seen_as_it_ran(pooling):
    model, tracing = SequenceClassifier(Encoder(READER, 29), pooling, labels=5).eval(), AttentionRecorder()
    tokens, lengths = torch.randint(0, 29, (2, 7)), torch.tensor([7, 4])
    weights = record_both_ways(model, tracing, tokens, lengths).weights("pooling")[:, 0, 0]
    assert list(tracing.sites()) == ["encoder.0", "encoder.1", "pooling"]
    assert_exact(tracing)
    pooled = tracing.sites()["pooling"]
    seen = pooled.weights[1] if isinstance(pooled, GateSite) else pooled.head(0, sentence=1).weights[0]
    assert_close(seen, weights[1], atol=1e-6, rtol=0)


def test_counted_words_and_recurrent_readers_are_seen_too():
    tokens, lengths, tracing = torch.randint(0, 29, (1, 7)), torch.tensor([7]), AttentionRecorder()
    counted = BagOfWordsClassifier(29, TokenWeightPooling(29), labels=3).eval()
    gru = SequenceClassifier(
        Encoder(EncoderConfig(kind="gru", layers=1, model=6, hidden=8), 29), MeanPooling(), labels=3
    ).eval()
    with torch.no_grad():
        for model in (counted, gru):
            with tracing.record(model):
                logits = model(tokens, lengths)
            assert torch.equal(logits, model(tokens, lengths))
    assert list(tracing.sites()) == ["weigh", "pooling"]


def test_a_tagger_over_trees_is_seen_as_it_ran():
    recipe = 'position = "RelativeBias(TreePath(4), heads=3)"'
    model, tracing = TokenClassifier(Encoder(replace(READER, recipe=recipe), 29), labels=5).eval(), AttentionRecorder()
    given = torch.randint(4, 29, (1, 5)), torch.tensor([5]), torch.arange(5)[None], torch.tensor([[2, 0, 2, 5, 3]])
    with torch.no_grad():
        with tracing.record(model):
            logits = model(*given)
        assert torch.equal(logits, model(*given))
    assert_exact(tracing)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_vision_transformer_is_seen_as_it_ran(pool):
    config = VisionConfig(kind="vit", patch=8, layers=2, model=12, heads=3, hidden=17, pool=pool)
    model, tracing, pixels = (
        build_vision_model(config, (3, 24, 16), 5).eval(),
        AttentionRecorder(),
        torch.randn(1, 3, 24, 16),
    )
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(pixels)
        assert torch.equal(logits, model(pixels))
    assert list(tracing.sites()) == ["blocks.0", "blocks.1"]
    assert_exact(tracing)


@pytest.mark.parametrize(("gate", "shape"), [("channel", (1, 16, 1, 1)), ("spatial", (1, 1, 6, 6))])
def test_the_gates_of_a_cnn_are_sites_without_queries(gate, shape):
    model = ChannelCNN(3, classes=5, width=8, blocks=1, attention=gate).eval()
    tracing, pixels = AttentionRecorder(), torch.randn(1, 3, 12, 12)
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(pixels)
        assert torch.equal(logits, model(pixels))
        with record_attention(model) as record:
            model(pixels)
    sites = tracing.sites()
    assert list(sites) == list(record.calls) == ["stage.0.0", "stage.1.0", "stage.2.0"]
    for name, site in sites.items():
        assert isinstance(site, GateSite)
        assert torch.equal(site.weights, record.weights(name))
        assert site.site_name.keys == ("channels" if gate == "channel" else "places")
    assert tuple(assert_is_instance(sites["stage.1.0"], GateSite).weights.shape) == shape


@pytest.mark.parametrize("gate", ["channel", "spatial"])
def test_a_shut_gate_leaves_the_way_around_it(gate):
    model, pixels = ChannelCNN(3, classes=5, width=8, blocks=1, attention=gate).eval(), torch.randn(1, 3, 12, 12)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # a fresh block adds nothing
    with torch.no_grad():
        with apply_edits(model, Edits(shut=(GateOff("stage.1.0"),))):
            shut = model(pixels)
        assert not torch.equal(shut, model(pixels))
        block = assert_is_instance(model.stages["1-0"], ConvolutionBlock)
        block.second.weight.zero_()  # what is gated is nothing now, which is the same
        assert_close(shut, model(pixels))


def test_a_model_that_answers_is_seen_as_it_ran():
    config = VQAConfig(patch=8, image_layers=1, question_layers=1, layers=2, model=12, heads=3, hidden=17)
    model, tracing = VQAModel(config, shape=(3, 16, 24), vocabulary_size=19, answers=7).eval(), AttentionRecorder()
    given = torch.randn(1, 3, 16, 24), torch.randint(4, 19, (1, 5)), torch.tensor([5])
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(*given)
        assert torch.equal(logits, model(*given))
    names = ["question.0", "picture.0", "look.0.cross", "look.0.self", "look.1.cross", "look.1.self", "pooling"]
    assert list(tracing.sites()) == names
    assert_exact(tracing)


@pytest.mark.parametrize("kind", ["attention", "mean", "alone"])
def test_a_graph_is_seen_as_it_ran(kind):
    model, tracing = (
        GraphNetwork(GraphConfig(kind=kind, layers=2, model=12), features=5, labels=3).eval(),
        AttentionRecorder(),
    )
    neighbours = Neighbours.of(undirected_edges([(0, 1), (1, 2), (2, 6), (3, 5), (0, 6)], 7), 7)
    features = torch.randn(7, 5)
    edges = edge_weights(record_both_ways(model, tracing, features, neighbours), neighbours)
    assert_exact(tracing)
    assert list(edges.weights) == list(tracing.sites()) == (["blocks.0", "blocks.1"] if kind != "alone" else [])
    for name, weights in edges.weights.items():
        site = tracing.sites()[name]
        assert isinstance(site, AttentionSite)
        assert_close(site.head(0).weights[*edges.pairs], weights[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("bottleneck", ["attention", "mean"])
@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_an_autoencoder_is_seen_as_it_ran(kind, bottleneck):
    heads = AutoencoderConfig.heads if (kind, bottleneck) == ("gru", "mean") else 2
    config = AutoencoderConfig(
        kind=kind, bottleneck=bottleneck, latents=3, latent=5, layers=1, model=12, hidden=14, heads=heads
    )
    model, tracing = build_autoencoder(config, 23).eval(), AttentionRecorder()
    source, lengths, target = torch.randint(4, 23, (2, 7)), torch.tensor([7, 3]), torch.randint(4, 23, (2, 5))
    with torch.no_grad(), assert_untouched(model):
        with tracing.record(model):
            logits = model(source, lengths, target)
        assert torch.equal(logits, model(source, lengths, target))
    decoder = ["decoder.0.self", "decoder.0.cross"] if kind == "transformer" else ["decoder.attention"]
    assert list(tracing.sites()) == [*(["encoder.0"] if kind == "transformer" else []), "bottleneck", *decoder]
    assert_exact(tracing)


# --- every recipe ---

RECIPES = {
    "plain": Recipe(),
    "causal": Recipe(pattern=Causal()),
    "window": Recipe(pattern=Causal() & Window(5), position=Rotary()),
    "bigbird's": Recipe(pattern=Window(3) | Global(2)),
    "strided": Recipe(pattern=Strided(4) & Causal(), position=Alibi(6)),
    "linear": Recipe(score=Feature(), normaliser=Proportional(), pattern=Causal()),
    "t5": Recipe(position=RelativeBias(LogBuckets(), 6)),
    "shaw": Recipe(position=RelativeVectors(Clipped(3), 4)),
    "sparsemax": Recipe(normaliser=Sparsemax(), score=Cosine()),
    "top-k": Recipe(normaliser=TopK(3), score=Dot()),
    "hard": Recipe(normaliser=Hard()),
}


@pytest.mark.parametrize("name", RECIPES)
def test_any_recipe_is_seen_as_it_ran(name):
    layer = MultiHeadAttention(24, heads=6, groups=2, recipe=RECIPES[name]).eval()
    x, padding = torch.randn(2, 37, 24), Padding(torch.tensor([37, 29]))
    site = trace_layer(layer, x, pattern=padding)
    q, k, v = layer.project(x)
    whole = steps(q, k, v, layer.effective_recipe(Context(padding))).weights.detach()
    for head in (0, 5):
        assert site.check(head).holds
        assert_close(site.head(head, sentence=1).weights, whole[1, head], atol=1e-6, rtol=0)
        assert_close(site.row(head, 23, sentence=1), whole[1, head, 23], atol=1e-6, rtol=0)
    found, seen = site.statistics(sentence=1), whole[1]
    far = (torch.arange(37)[:, None] - torch.arange(37)).abs()
    rows = (seen.sum(-1) > 0).sum(-1)  # behind the padding a window sees nothing, and such queries do not count
    assert_close(found.sink, seen[..., 0].sum(-1) / rows, atol=1e-5, rtol=0)
    assert_close(found.distance, (seen * far).sum((-1, -2)) / rows, atol=1e-4, rtol=0)
    assert_close(found.entropy, -torch.special.xlogy(seen, seen).sum((-1, -2)) / rows, atol=1e-4, rtol=0)
    assert_close(found.largest, seen.amax((-1, -2)), atol=1e-6, rtol=0)
    again, thumbnails = site.overview(5, 7, sentence=1)
    assert torch.equal(again.entropy, found.entropy)
    picture = site.max_pool(4, 5, 7, sentence=1)
    shown = by_hand(site.visible(4, range(37), sentence=1).float(), 5, 7) > 0
    # a hidden cell is not a weight of 0; a product of all heads may round otherwise than that of one
    assert_close(thumbnails[4], picture.masked_fill(~shown, -torch.inf), atol=1e-6, rtol=0)
    assert_close(picture, by_hand(seen[4], 5, 7), atol=1e-6, rtol=0)
    part = site.max_pool(4, 3, 99, queries=range(11, 29), keys=range(2, 13), sentence=1)
    assert_close(part, by_hand(seen[4, 11:29, 2:13], 3, 11), atol=1e-6, rtol=0)


@pytest.mark.parametrize("gate", [Forget(), VectorDecay(), GatedDelta()], ids=repr)
def test_a_gated_layer_is_seen_as_it_ran(gate):
    """By its effective weights, some of which are negative."""
    state = {} if gate == Forget() else {"score": Cosine(1.0), "normaliser": Unnormalised()}
    layer = MultiHeadAttention(24, heads=6, groups=2, recipe=Recipe(pattern=Causal(), gate=gate, **state)).eval()
    x, padding = torch.randn(2, 37, 24), Padding(torch.tensor([37, 29]))
    site = trace_layer(layer, x, pattern=padding)
    values = assert_is_instance(layer.gate, GateProjection)(x)
    recipe = layer.effective_recipe(Context(padding)).with_gate(**values)
    whole = steps(*layer.project(x), recipe).weights.detach()
    for head in (0, 5):
        assert site.check(head).holds
        assert_close(site.head(head, sentence=1).weights, whole[1, head], atol=1e-6, rtol=0)
        assert_close(site.row(head, 23, sentence=1), whole[1, head, 23], atol=1e-6, rtol=0)
    picture, seen = site.max_pool(4, 5, 7, sentence=1), whole[1, 4]
    most, least = by_hand(seen.clamp(min=0), 5, 7), by_hand((-seen).clamp(min=0), 5, 7)
    assert_close(picture, torch.where(least > most, -least, most), atol=1e-6, rtol=0)  # what is furthest from 0
    _, thumbnails = site.overview(5, 7, sentence=1)
    assert torch.equal(thumbnails[4], picture.where(thumbnails[4] > -torch.inf, -torch.inf))
    assert site.signed is bool((whole < 0).any()) is (gate != Forget())
    assert type(gate).__name__ in site.note


def test_a_gated_language_model_is_traced():
    recipe = 'score = "Cosine(1.0)"\nnormaliser = "Unnormalised()"\ngate = "GatedDelta()"'
    config = LanguageModelConfig(kind="transformer", layers=2, model=12, hidden=16, heads=3, recipe=recipe)
    _, sites = trace_module(LanguageModel(config, 17).eval(), torch.randint(0, 17, (2, 9)))
    assert list(sites) == ["blocks.0", "blocks.1"]
    for site in sites.values():
        assert isinstance(site, AttentionSite)
        assert site.check().holds


@pytest.mark.parametrize(
    ("backend", "name"),
    [("sdpa", "plain"), ("sdpa", "causal"), ("sdpa", "t5"), ("gather", "window"), ("linear", "linear")],
)
def test_fused_kernels_are_seen_through(backend, name):
    """The output is the fused kernel's, and the weights are the reference's; a mistake of either would show."""
    recipe, tracing, core = RECIPES[name], AttentionRecorder(), AttentionCore()
    q, k, v = torch.randn(1, 6, 331, 8), torch.randn(1, 2, 331, 8), torch.randn(1, 2, 331, 8)
    with torch.no_grad(), tracing.record(core, "s"):
        core(q, k, v, recipe, backend=backend)
    site = tracing.sites()["s"]
    assert isinstance(site, AttentionSite)
    assert max(site.check(head).error for head in range(6)) < 1e-5
    wrong = replace(site, output=site.output + 1e-3)
    assert not wrong.check(0).holds


def test_a_sentence_is_seen_the_same_whatever_it_is_batched_with():
    model, (source, lengths, target) = build_model(LADDER["transformer, rotary"], SOURCE, TARGET).eval(), sentences()
    together, alone = AttentionRecorder(), AttentionRecorder()
    with torch.no_grad():
        for tracing, rows in ((together, slice(None)), (alone, slice(1, 2))):
            with tracing.record(model):
                model(source[rows, : max(lengths[rows])], lengths[rows], target[rows])
    for name, site in alone.sites().items():
        other = together.sites()[name]
        assert isinstance(site, AttentionSite)
        assert isinstance(other, AttentionSite)
        n_q, n_k = site.shape
        assert_close(other.head(1, sentence=1).weights[:n_q, :n_k], site.head(1).weights, atol=1e-6, rtol=0)


def by_hand(weights: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    (n_q, n_k), picture = weights.shape, torch.zeros(rows, columns)
    for i in range(n_q):
        for j in range(n_k):
            at = i * rows // n_q, j * columns // n_k
            picture[at] = max(float(picture[at]), float(weights[i, j]))
    return picture


def test_two_tokens_on_paper():
    """Scores log 1, log 3 weigh ¼ and ¾; with a temperature of ½ they count twice: 1/10 and 9/10."""
    recipe = Recipe(score=Dot())
    q, k, v = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0], [math.log(3)]]]]), torch.tensor([[[[4.0], [8.0]]]])
    for edits, weights, output in (
        (Edits(), [0.25, 0.75], 7.0),
        (Edits(temperatures=(Temperature("*", 0.5),)), [0.1, 0.9], 7.6),
        (Edits(masks=(Mask("s", 0, 0, 1),)), [1.0, 0.0], 4.0),
    ):
        tracing, core = AttentionRecorder(edits), AttentionCore()
        with tracing.record(core, "s"):
            core(q, k, v, recipe)
        site = tracing.sites()["s"]
        assert isinstance(site, AttentionSite)
        assert_close(site.row(0, 0), torch.tensor(weights))
        assert_close(site.output.flatten(), torch.tensor([output]))
        assert site.statistics().sink.item() == pytest.approx(weights[0])


def test_linformer_tells_what_each_token_weighs():
    layer = MultiHeadAttention(12, heads=3, form=Linformer(max_length=11, rank=4)).eval()
    x = torch.randn(1, 7, 12)
    site = trace_layer(layer, x)
    assert site.shape == (7, 4)
    assert "mixtures of 7 tokens" in site.note
    assert site.check(1).holds
    values = layer.value(x).view(1, 7, 3, 4)[0, :, 1]
    assert_close(site.token_weights(1) @ values, site.output[0, 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("form", "sites", "axis"),
    [
        ("InducingPoints(2)", ["encoder.0.points", "encoder.0"], "points"),
        ("Linformer(max_length=32, rank=4)", ["encoder.0"], "mixtures"),
        (
            "NativeSparse(block=2, k=2, window=2)",
            [f"encoder.0.{one}" for one in ("compressed", "chosen", "window")],
            "blocks",
        ),
    ],
)
def test_what_is_attended_to_in_place_of_tokens_has_numbers(form, sites, axis):
    """The axes that the page shows: every attention of a text classifier, with a label for each query and key."""
    settings = ClassificationSettings(
        data=ClassificationData(sentences=97), text=WORDS, model=replace(READER, layers=1, attention_form=form)
    )
    trace = trace_model(TextClassifier.from_examples(settings.data.read("train").examples, settings), CAT)
    assert [name for name in trace.attention_names if name.startswith("encoder")] == sites
    assert trace.axes[axis].labels[:2] == (f"{axis} 0", f"{axis} 1")
    for name in sites:
        site = trace.site(name)
        assert site.check().holds
        assert tuple(len(one.labels) for one in trace.axes_of(name)) == site.shape


def test_half_precision_is_seen_in_single_and_double_on_request():
    layer = MultiHeadAttention(24, heads=6, recipe=Recipe(position=RelativeBias(LogBuckets(), 6))).eval()
    half = trace_layer(layer.bfloat16(), torch.randn(1, 13, 24, dtype=torch.bfloat16))
    assert half.output.dtype == torch.bfloat16
    assert half.head(2).weights.dtype == torch.float32
    assert half.check(2).holds
    assert half.check(2).tolerance < 0.1
    assert half.head(2, dtype=torch.float64).weights.dtype == torch.float64


def test_notes_say_what_weights_mean():
    layer = MultiHeadAttention(12, heads=3, recipe=Recipe(score=Feature(), normaliser=Proportional())).eval()
    assert "linear attention" in trace_layer(layer, torch.randn(1, 5, 12)).note
    assert "hard" in trace_layer(MultiHeadAttention(12, heads=3, recipe=RECIPES["hard"]), torch.randn(1, 5, 12)).note
    assert trace_layer(MultiHeadAttention(12, heads=3), torch.randn(1, 5, 12)).note == ""


def test_a_check_looks_at_every_sentence():
    site = trace_layer(MultiHeadAttention(12, heads=3).eval(), torch.randn(3, 5, 12))
    assert site.check(1).holds
    site.output[2, 1, 4] += 0.1
    assert_close(site.check(1).error, 0.1, atol=1e-4, rtol=0)
    assert site.check(0).holds


def test_products_are_those_of_the_sentence_that_is_asked_for():
    site = trace_layer(MultiHeadAttention(12, heads=3).eval(), torch.randn(3, 5, 12))
    products = site.head(1, sentence=2).products
    assert products is not None
    assert_close(products, site.q[2, 1] @ site.k[2, 1].T)


def test_queries_keys_and_values_are_what_their_matrices_make():
    """Four heads in two groups, which look at another text."""
    layer = MultiHeadAttention(12, heads=4, groups=2).eval()
    site = trace_layer(layer, torch.randn(2, 5, 12), torch.randn(2, 7, 12))
    assert site.projections is not None
    for part, made in (("q", site.q), ("k", site.k), ("v", site.v)):
        for number in range(made.shape[1]):
            found = site.projections.head_projection(part, number, 3)
            assert found.bias is not None
            assert_close(found.x @ found.weight + found.bias, made[:, number])


def test_of_cached_tokens_nobody_knows_what_their_keys_are_made_from():
    model, (source, lengths, target) = build_model(LADDER["transformer, rotary"], SOURCE, TARGET).eval(), sentences()
    tracing = AttentionRecorder()
    with torch.no_grad(), tracing.record(model):
        memory = model.encode(source, lengths)
        _, state = model.step(target[:, :2], model.start(memory), memory)
        first = tracing.sites()
        tracing.calls.clear()
        model.step(target[:, 2:3], state, memory)
    known = {
        name: [site.projections is not None for site in (first[name], one) if isinstance(site, AttentionSite)]
        for name, one in tracing.sites().items()
    }
    assert known["decoder.0.self"] == [True, False]
    assert known["decoder.0.cross"] == [True, True]


def test_a_matrix_that_nobody_could_hold_is_not_made():
    site = trace_layer(
        MultiHeadAttention(4, heads=2, recipe=Recipe(pattern=Causal() & Window(16))), torch.randn(1, 9001, 4)
    )
    with pytest.raises(ValueError, match="too many to hold; use row"):
        site.head(0)
    assert site.row(1, 9000)[8985:].sum().item() == pytest.approx(1, abs=1e-5)
    assert site.max_pool(1, 9, 9).diag().min() > 0


def test_the_statistics_of_a_long_window_are_those_of_its_weights():
    """What is computed for queries far from the first key begins with another, which some of them see."""
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal() & Window(257))).eval()
    site = trace_layer(layer, torch.randn(1, 701, 8))
    found, weights = site.statistics(), torch.stack([site.head(head).weights for head in range(2)])
    at = torch.arange(701.0)
    assert_close(found.sink, weights[..., 0].mean(-1))
    assert_close(found.distance, (weights * (at[:, None] - at)).sum(-1).mean(-1))
    assert_close(found.largest, weights.amax((1, 2)))


def test_the_last_queries_of_a_text_know_their_places():
    """As a decoder asks that has read 5 tokens before: the same weights, distances and edits as in the whole text."""
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal())).eval()
    edits = Edits(masks=(Mask("attention", 0, query=6, key=2),))
    whole = trace_layer(layer, torch.randn(1, 11, 8), edits=edits)
    last = replace(whole, q=whole.q[:, :, 5:], output=whole.output[:, :, 5:], query_offset=5)
    assert_close(last.head(0).weights, whole.head(0).weights[5:])
    apart = torch.arange(5.0, 11.0)[:, None] - torch.arange(11.0)
    assert_close(last.statistics().distance[1], (whole.head(1).weights[5:] * apart).sum(-1).mean())


def test_a_long_head_alone_is_cheap():
    """Of 4,096 tokens and 8 heads one is computed: 16 million weights, not 134."""
    layer = MultiHeadAttention(16, heads=8, recipe=Recipe(pattern=Causal() & Window(64))).eval()
    site = trace_layer(layer, torch.randn(1, 4096, 16))
    assert site.head(3).weights.shape == (4096, 4096)
    assert site.max_pool(3, 64, 64).shape == (64, 64)
    assert site.row(3, 4095).sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda site: site.head(6), "no head 6; they are counted from 0 to 5"),
        (lambda site: site.head(-1), "no head -1"),
        (lambda site: site.row(0, 37), "no query 37"),
        (lambda site: site.max_pool(0, 0, 5), "at least one row"),
        (lambda site: site.max_pool(0, 5, 5, keys=range(30, 40)), "no key 39"),
        (lambda site: site.max_pool(0, 5, 5, keys=range(9, 3)), "at least one"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(ask, why):
    site = trace_layer(MultiHeadAttention(24, heads=6), torch.randn(1, 37, 24))
    with pytest.raises(ValueError, match=why) as refused:
        ask(site)
    assert "\n" not in str(refused.value)
