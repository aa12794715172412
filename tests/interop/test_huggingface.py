"""Hugging Face models: every family is seen exactly, padded, cached and generating, and left as it was."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface

import regard
from regard.attention import AdditiveMask, BooleanMask, Causal, Full, NoPosition, Window
from regard.attention.stats import ROWS
from regard.see import Edits, HeadOff, Mask, Temperature, Weight

from .families import FAMILIES, IDS, SIZES, TOKENS, Family, texts

OWN_INTERFACE = AttentionInterface.get_interface
GENERATION = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}


def generation_inputs(family: Family) -> dict[str, Any]:
    return {name: x for name, x in family.inputs().items() if name != "decoder_input_ids"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_seen_exactly_and_runs_as_ever(name):
    family = FAMILIES[name]
    for implementation in family.implementations:
        model = family.build(implementation)
        with torch.no_grad():
            alone = model(**family.inputs())[0]
            with regard.watch(model) as seen:
                watched = model(**family.inputs())[0]
        assert torch.equal(alone, watched)
        assert list(seen) == family.sites
        assert seen.check().error <= 1e-5
        sites = [site for calls in seen.values() for site in calls]
        spread = [float(site.weights(head)[-1].max()) * site.shape[1] for site in sites for head in range(4)]
        assert max(spread) > 1.5  # the weights are not all alike
        assert model.config._attn_implementation == implementation
    assert AttentionInterface.get_interface is OWN_INTERFACE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.generates])
def test_generation_is_seen_exactly_greedy_with_beams_and_with_a_static_cache(name):
    family, caches = FAMILIES[name], ({}, {"num_beams": 3}, {"cache_implementation": "static"})
    model = family.build()
    for options in caches[: 2 if name == "Whisper" else 3]:
        alone = model.generate(**generation_inputs(family), **GENERATION, **options)
        with regard.watch(model) as seen:
            watched = model.generate(**generation_inputs(family), **GENERATION, **options)
        assert torch.equal(alone, watched)
        assert len(seen[family.sites[-1]]) >= 4
        assert seen.check().error <= 1e-5


def test_queries_are_counted_on_while_a_text_is_generated():
    model = FAMILIES["BART"].build()
    for options in ({}, {"cache_implementation": "static"}):
        with regard.watch(model) as seen:
            model.generate(**texts(), **GENERATION, **options)
        for name in ("decoder.0.self", "decoder.1.cross"):
            assert [site.query_offset for site in seen[name]] == [0, 1, 2, 3]


def test_a_sink_takes_a_share_of_every_row():
    family = FAMILIES["gpt-oss"]
    model = family.build()
    with torch.no_grad(), regard.watch(model) as seen:
        model.model.layers[0].self_attn.sinks.fill_(1.0)
        model.model.layers[1].self_attn.sinks.copy_(torch.tensor([-9.0, 0.0, 1.0, 9.0]))
        model(IDS)
    (first,), (second,) = seen.values()
    assert (first.weights(0).sum(-1) < 0.99).all()
    sums = [float(second.weights(head).sum(-1).mean()) for head in range(4)]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > 0.99 > 0.01 > sums[3]
    assert second.check().error <= 1e-5
    assert second.statistics().entropy.isfinite().all()
    assert "learned sink" in second.note


@pytest.mark.parametrize("name", ["Gemma 3", "gpt-oss"])
def test_a_mask_is_named_by_what_it_shows(name):
    model = FAMILIES[name].build()
    with torch.no_grad(), regard.watch(model) as seen:
        model(IDS)
        model(**texts(left=True))
    (alone, padded), (whole, _) = seen["decoder.0"], seen["decoder.1"]
    assert alone.recipe.pattern == Causal() & Window(3)
    assert whole.recipe.pattern == Causal()
    assert isinstance(padded.recipe.pattern, BooleanMask)
    generated = model.generate(IDS, **GENERATION)
    with torch.no_grad(), regard.watch(model) as seen:
        model.generate(IDS, **GENERATION)
        model(generated)
    assert {site.recipe.pattern for site in seen["decoder.1"]} <= {Causal(), Full()}


def test_a_bias_of_zeros_is_none():
    model = FAMILIES["T5"].build()
    with torch.no_grad(), regard.watch(model) as seen:
        model(input_ids=IDS, decoder_input_ids=IDS[:, :5])
    assert seen["decoder.0.cross"][0].recipe.position == NoPosition()
    assert isinstance(seen["decoder.0.self"][0].recipe.position, AdditiveMask)
    assert seen["decoder.0.self"][0].recipe.pattern == Causal()


# --- edits ---


def test_a_head_that_is_off_is_the_zeroed_columns_of_the_output_projection():
    model = FAMILIES["GPT-2"].build()
    with torch.no_grad():
        with regard.watch(model, edits=Edits(off=(HeadOff("decoder.1", 2),))) as seen:
            edited = model(IDS).logits
        model.transformer.h[1].attn.c_proj.weight[12:18] = 0
        wanted = model(IDS).logits
    assert torch.allclose(edited, wanted, atol=1e-5)
    assert seen["decoder.1"][0].weights(2).abs().max() == 0


def test_edits_act_inside_of_the_running_generation():
    model = FAMILIES["BART"].build()

    def last_logits() -> torch.Tensor:
        found = model.generate(**texts(), **GENERATION, return_dict_in_generate=True, output_logits=True)
        return found.logits[-1]

    alone = last_logits()
    with regard.watch(model, edits=Edits(off=tuple(HeadOff("decoder.1.cross", head) for head in range(4)))):
        assert (last_logits() - alone).abs().max() > 0.01
    assert torch.equal(last_logits(), alone)

    cell = Edits(weights=(Weight("decoder.0.cross", 1, query=2, key=3, value=1.0),))
    with regard.watch(model, edits=cell) as seen:
        model.generate(**texts(), **GENERATION)
    rows = [site.weights(1)[0] for site in seen["decoder.0.cross"]]
    assert [bool(row[3] == 1) for row in rows] == [False, False, True, False]
    assert seen.check().error <= 1e-5


def test_masks_and_temperatures():
    model = FAMILIES["BERT"].build()
    edits = Edits(masks=(Mask("encoder.0", 0, query=1, key=4),), temperatures=(Temperature("encoder.1", 0.5),))
    with torch.no_grad(), regard.watch(model, edits=edits) as seen:
        model(IDS)
    assert seen["encoder.0"][0].weights(0)[1, 4] == 0
    found = seen["encoder.1"][0]
    assert torch.allclose(found.weights(0), (found.head(0).adjusted / 0.5).softmax(-1), atol=1e-6)


def test_cells_of_a_cache_that_drops_keys_cannot_be_edited():
    family = FAMILIES["Gemma 3"]
    edits = Edits(masks=(Mask("decoder.0", 0, query=1, key=0),))
    model = family.build()
    with regard.watch(model, edits=edits), pytest.raises(ValueError, match=r"decoder\.0 keeps a window of 3 keys"):
        model.generate(**generation_inputs(family), **GENERATION)
    with regard.watch(model, edits=Edits(off=(HeadOff("decoder.0", 0),))):
        model.generate(**generation_inputs(family), **GENERATION)


# --- what is kept ---


def test_statistics_alone_are_those_of_all():
    model = FAMILIES["Llama"].build()
    with torch.no_grad():
        with regard.watch(model, statistics_only=True) as little:
            model(IDS)
        with regard.watch(model) as seen:
            model(IDS)
    assert not little.calls
    for name, (site,) in seen.items():
        assert torch.equal(little.statistics[name][0].entropy, site.statistics().entropy)


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_statistics_and_pictures_of_a_long_padded_text_are_those_of_its_weights(name):
    """Several bands of queries: by softmax of q · k alone, and with a bias that is added to it."""
    model, tokens = FAMILIES[name].build(), 2 * ROWS + 27
    ids = IDS[:1].repeat(1, -(-tokens // IDS.shape[1]))[:, :tokens]
    given = {"input_ids": ids, "attention_mask": (torch.arange(tokens) < tokens - 40).long()[None]}
    inputs = given if name == "Llama" else given | {"decoder_input_ids": ids}
    with torch.no_grad():
        with regard.watch(model, statistics_only=True) as little:
            model(**inputs)
        with regard.watch(model) as seen:
            model(**inputs)
    for site, found in ((calls[0], little.statistics[site_name][0]) for site_name, calls in seen.items()):
        weights = torch.stack([site.weights(head) for head in range(site.heads)])
        far = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs()
        torch.testing.assert_close(found.entropy, -torch.special.xlogy(weights, weights).sum(-1).mean(-1))
        torch.testing.assert_close(found.distance, (weights * far).sum(-1).mean(-1))
        torch.testing.assert_close(found.sink, weights[..., 0].mean(-1))
        torch.testing.assert_close(found.confidence, weights.amax(-1).mean(-1))
        torch.testing.assert_close(site.max_pool(1, 1, tokens)[0], weights[1].amax(0))
        torch.testing.assert_close(site.row(1, 150), weights[1, 150])


def test_memory_is_bounded_and_gradients_are_not_held():
    model = FAMILIES["BERT"].build()
    with regard.watch(model) as seen:
        loss = model(IDS)[0].sum()
    assert not any(site.q.requires_grad or site.output.requires_grad for (site,) in seen.values())
    loss.backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad is not None
    with pytest.raises(ValueError, match="1,000 may be kept; watch less"), regard.watch(model, max_bytes=1000):
        model(IDS)
    assert AttentionInterface.get_interface is OWN_INTERFACE


# --- objections ---


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_bypasses_the_interface_objects():
    model = transformers.DebertaV2Model(transformers.DebertaV2Config(**SIZES, **TOKENS))
    objection = r"DebertaV2Model cannot be watched: its \w+ computes attention by itself"
    with pytest.raises(ValueError, match=objection), regard.watch(model):
        pass
    config = transformers.GPT2Config(**FAMILIES["GPT-2"].settings, reorder_and_upcast_attn=True)
    config._attn_implementation = "eager"
    model = transformers.GPT2Model(config).eval()
    with pytest.raises(ValueError, match="GPT2Attention ran without"), regard.watch(model):
        model(IDS)


def test_an_unknown_keyword_is_refused_and_never_ignored():
    model = FAMILIES["Llama"].build()
    with torch.no_grad(), regard.watch(model):
        model(IDS, tilt=None)
        with pytest.raises(ValueError, match="LlamaAttention gives its attention 'tilt'"):
            model(IDS, tilt=0.5)
    with torch.no_grad():
        model(IDS, tilt=0.5)  # transformers itself ignores it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("other", ["flash_attention_2", pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_dropout_and_other_kernels_are_refused(other):
    model = transformers.BertModel(transformers.BertConfig(**SIZES, **TOKENS)).train()
    with pytest.raises(ValueError, match=r"drops weights at random \(0\.1\).*call model.eval\(\)"), regard.watch(model):
        model(IDS)
    model = FAMILIES["Llama"].build()
    model.config._attn_implementation = other
    with pytest.raises(ValueError, match=rf"attends by '{other}'.*set_attn_implementation"), regard.watch(model):
        model(IDS)


def test_an_exception_in_the_block_leaves_transformers_alone():
    model = FAMILIES["BERT"].build()
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"), regard.watch(model):
        model()
    assert AttentionInterface.get_interface is OWN_INTERFACE


def test_threads_that_share_a_model_do_not_see_each_other():
    model = FAMILIES["BERT"].build()

    def look(head: int) -> tuple[int, float]:
        with torch.no_grad(), regard.watch(model, edits=Edits(off=(HeadOff("encoder.0", head),))) as seen:
            for _ in range(5):
                model(IDS)
        return len(seen["encoder.0"]), float(max(site.weights(head).abs().max() for site in seen["encoder.0"]))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [(5, 0.0)] * 4
    assert AttentionInterface.get_interface is OWN_INTERFACE


def test_a_model_inside_of_another_module():
    class Pooled(nn.Module):
        """As sentence encoders are: a model of transformers, and what is made of its vectors."""

        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([FAMILIES["BERT"].build()])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.parts[0](ids).last_hidden_state.mean(1)

    model = Pooled().eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(IDS)
    assert list(seen) == FAMILIES["BERT"].sites
    assert seen.check().error <= 1e-5


def test_another_model_and_nested_blocks():
    model, other = FAMILIES["BERT"].build(), FAMILIES["BERT"].build()
    with torch.no_grad(), regard.watch(model) as outer:
        with regard.watch(model, edits=Edits(off=(HeadOff("encoder.0", 0),))) as inner:
            model(IDS)
            other(IDS)
        model(IDS)
    assert len(inner["encoder.0"]) == 1
    assert len(outer["encoder.0"]) == 2
    with pytest.raises(ValueError, match=r"there is no site 'encoder\.7'; there are encoder\.0, encoder\.1"):
        outer["encoder.7"]
