"""Explanation methods: each has a law that can be checked, on our models and on Hugging Face's."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.core import hook_attention
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import inference_mode
from regard.see import Edits, HeadOff, Mask, Temperature, trace_with_edits
from regard.see.methods import (
    METHODS,
    HeadEffects,
    TokenMatrices,
    ablate_heads,
    attention_flow,
    attention_rollout,
    attention_times_gradient,
    attribute_tokens,
    attribution,
    explain,
    gradient_times_input,
    interventions,
    leave_one_out,
    logit_contributions,
    logit_lens,
    patch_activations,
    prediction,
    prediction_target,
    residual_stream,
    value_weighted,
    value_zeroing,
)
from regard.see.methods.attribution import embed, find_projections, gauss_legendre, layer_of
from regard.see.methods.layers import find_blocks, recorded_streams, replaced_stream
from regard.see.methods.prediction import frozen_model, run_again
from regard.see.plots.charts import METHOD_NOTES, method_view
from regard.see.plots.draw import ascii
from regard.see.trace import Trace, load_pretrained, trace_model
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import TaskInput, no_progress
from regard.tasks.registry import get_task
from tests.interop.checkpoints import CHECKPOINTS, SENTENCES
from tests.interop.families import FAMILIES
from tests.interop.folders import SENTENCE, make_tokenizer
from tests.narrowing import assert_is_instance
from tests.see.untrained_models import CAT, classifier, example_input, generator, image_classifier, tagger, translator

TARGET = "le chat noir a mangé la souris"
MODELS = {
    "translator": lambda: translator(layers=2),
    "translator, norms after": lambda: translator(norm="post"),
    "language model": generator,
    "tagger": tagger,
    "classifier": classifier,
}


@cache
def model_of(name: str) -> PretrainedModel:
    torch.manual_seed(7)
    return MODELS[name]()


@cache
def trace_of(name: str, text: str = CAT) -> Trace:
    return trace_model(model_of(name), text, target=TARGET if name.startswith("translator") else None)


def linear_of(trace: Trace, site: str, projection: str) -> nn.Linear:
    found = layer_of(trace, site).get_submodule(projection)
    assert isinstance(found, nn.Linear)
    return found


every_model = pytest.mark.parametrize("name", MODELS)


def log_probability(trace: Trace, row: int, option: int) -> Tensor:
    return trace.predictions.logits[row].double().log_softmax(-1)[option]


# --- attention through layers ---


@every_model
def test_rows_of_rolled_out_attention_sum_to_one(name):
    found = attention_rollout(trace_of(name))
    assert found.sum(-1).allclose(torch.ones(len(found)), atol=1e-5)


def test_rolled_out_attention_is_the_product_of_the_layers_mixing_matrices():
    trace = trace_of("translator")
    first, second = (
        (torch.stack([site.weights(head) for head in range(site.heads)]).mean(0) + torch.eye(7)) / 2
        for site in (trace.site("encoder.0"), trace.site("encoder.1"))
    )
    assert attention_rollout(trace, "source").allclose(second @ first, atol=1e-6)


def test_the_flow_through_one_layer_is_its_mixing_matrix():
    trace = trace_of("language model")
    assert attention_flow(trace).allclose(attention_rollout(trace), atol=1e-6)


def test_weights_that_are_no_shares_of_an_output_are_not_followed():
    state = "score = 'Cosine(1.0)'\nnormaliser = 'Unnormalised()'\ngate = 'GatedDelta()'"
    for learner, why in ((generator(recipe=state), "blocks.0 may be below 0"), (native_sparse(), "that gates add up")):
        for method in (attention_rollout, attention_flow):
            with pytest.raises(ValueError, match=why):
                method(trace_model(learner, CAT))


def native_sparse() -> TextGenerator:
    learner = generator()
    config = replace(learner.settings.model, attention_form="NativeSparse(block=2, k=2, window=3)")
    model = LanguageModel(config, learner.tokenizer.size)
    return replace(learner, model=model, settings=replace(learner.settings, model=config))


def test_no_more_flows_through_two_layers_than_leaves_a_token():
    found = attention_flow(trace_of("translator"), "source")
    assert (found <= 1 + 1e-6).all()
    assert (found >= attention_rollout(trace_of("translator"), "source") - 1e-5).all()


def test_what_arrives_of_a_value_is_its_weight_times_the_projected_value():
    trace, name = trace_of("translator"), "decoder.0.cross"
    site, head_output = trace.site(name), linear_of(trace, name, "output")
    head, query, key, width = 1, 3, 2, site.v.shape[-1]
    output = head_output.weight[:, head * width : (head + 1) * width]
    expected = (site.weights(head)[query, key] * (output @ site.v[0, head, key])).norm().detach()
    assert float(value_weighted(trace, name)[head, query, key]) == pytest.approx(float(expected), rel=1e-5)


# --- tokens ---


@pytest.mark.sampled(4)
@every_model
def test_integrated_gradients_add_up_to_the_difference_of_logits(name):
    found = attribute_tokens(trace_of(name), 0, steps=64)
    assert found.difference is not None
    assert abs(found.total - found.difference) <= 0.01 * max(0.1, abs(found.difference))


def test_gauss_legendre_integrates_polynomials_of_degree_2n_minus_1_exactly():
    places, shares = gauss_legendre(5)
    for power in range(10):
        assert sum(w * x**power for x, w in zip(places, shares, strict=True)) == pytest.approx(1 / (power + 1))


def test_gradient_times_input_is_the_slope_along_the_embedding():
    """By a finite difference: the embedding of one token is scaled by 1 ± ε."""
    trace, place, step = trace_of("classifier"), 2, 1e-2
    target, logits = prediction_target(trace), []
    with frozen_model(trace):
        for sign in (1, -1):

            def scale(call, x, sign=sign):
                vectors = x.vectors.clone()
                vectors[:, place] *= 1 + sign * step
                return vectors

            with embed(trace, scale):
                logits.append(float(run_again(trace)[target.row, target.option]))
    slope = (logits[0] - logits[1]) / (2 * step)
    assert float(gradient_times_input(trace).scores["text"][place]) == pytest.approx(slope, abs=1e-3)


def test_a_token_that_a_row_cannot_see_is_worth_nothing_to_it():
    for method in (gradient_times_input, leave_one_out, attribute_tokens):
        scores = method(trace_of("language model"), 2).scores["text"]
        assert scores[3:].abs().max() == 0, method
        assert scores[:3].abs().min() > 0, method


# --- weights and heads ---


def test_attention_times_gradient_is_the_weight_times_the_slope_of_the_logit():
    """By a finite difference: one weight grows by ε, so its value comes in that much more."""
    trace, name, step = trace_of("tagger"), "encoder.0", 1e-2
    target, site, (head, query, key), logits = prediction_target(trace, 0), trace.site(name), (1, 0, 3), []
    with frozen_model(trace) as model:
        for sign in (1, -1):

            def nudge(call, sign=sign):
                output = call.output.clone()
                output[:, head, query] += sign * step * site.v[:, head, key]
                return output

            with hook_attention(model, nudge):
                logits.append(float(run_again(trace)[target.row, target.option]))
    slope = (logits[0] - logits[1]) / (2 * step)
    expected = float(site.weights(head)[query, key]) * slope
    assert abs(slope) > 1e-3
    found = attention_times_gradient(trace, 0)[name]
    assert float(found[head, query, key]) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("name", ["translator", "tagger"])
def test_what_a_head_is_worth_is_what_the_edit_that_switches_it_off_costs(name):
    trace = trace_of(name)
    found, site = ablate_heads(trace, 1), trace.attention_names[0]
    after = trace_with_edits(trace, Edits(off=(HeadOff(site, 2),)))
    target = found.target
    lost = log_probability(trace, 1, target.option) - log_probability(after, 1, target.option)
    assert float(found.effects[site][2]) == pytest.approx(float(lost), abs=1e-6)
    assert found.log_probability == pytest.approx(float(log_probability(trace, 1, target.option)), abs=1e-6)
    ranked = [effect for _, _, effect in found.ranked()]
    assert ranked == sorted(ranked, reverse=True)
    assert len(ranked) == sum(trace.site(name).heads for name in trace.attention_names)


def test_a_head_that_gives_every_query_the_same_loses_nothing_by_its_mean():
    trace = trace_of("classifier")
    value = linear_of(trace, "encoder.0", "value")
    own = value.weight.data.clone()
    try:
        value.weight.data.zero_()
        found = ablate_heads(trace_model(trace.request.task_model, CAT), by="mean")
    finally:
        value.weight.data.copy_(own)
    assert found.effects["encoder.0"].abs().max() < 1e-6


# --- layers ---


@every_model
def test_the_last_row_of_the_lens_is_the_model_itself(name):
    trace = trace_of(name)
    lens = logit_lens(trace)
    assert lens.logits[-1].equal(trace.predictions.logits)
    assert lens.best(-1, 0, 2) == [(name, pytest.approx(p, abs=1e-6)) for name, p in trace.predictions.best(0, 2)]


@pytest.mark.parametrize("part", ["residual", "attention", "head"])
def test_patching_what_decides_brings_back_the_other_prediction(part):
    clean, other = trace_of("language model"), trace_of("language model", "the white dog saw a man")
    assert clean.site("blocks.0").shape == other.site("blocks.0").shape
    options = (3, 5)
    found = patch_activations(clean, other, -1, options=options, part=part)
    if part == "residual":  # of one layer, a row depends on its own state alone
        assert found.effects[0, -1] == pytest.approx(1.0, abs=1e-4)
        assert found.effects[0, :-1].abs().max() == 0
    assert found.effects.shape == (1, 3 if part == "head" else clean.site("blocks.0").shape[0])
    assert found.effects.isfinite().all()


def test_patches_between_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="different numbers of tokens"):
        patch_activations(trace_of("language model"), trace_of("language model", "the dog saw a man"), options=(3, 5))
    with pytest.raises(ValueError, match="both inputs give"):
        patch_activations(trace_of("language model"), trace_of("language model"))
    with pytest.raises(ValueError, match="different models"):
        patch_activations(trace_of("language model"), trace_of("tagger"))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "classifier"])
def test_the_contributions_of_all_parts_add_up_to_the_logit(name):
    found = logit_contributions(trace_of(name), 0)
    assert found.total == pytest.approx(found.logit, abs=1e-4)
    assert found.logit == pytest.approx(float(trace_of(name).predictions.logits[0].max()), abs=1e-5)
    assert sum("head" in part for part in found.parts) >= 3


def test_nothing_adds_up_where_attention_pools_the_states():
    with pytest.raises(ValueError, match="not linear"):
        logit_contributions(trace_of("classifier"))


def test_a_head_without_values_contributes_nothing():
    trace = trace_of("language model")
    output = linear_of(trace, "blocks.0", "output")
    own = output.weight.data.clone()
    try:
        output.weight.data[:, :4] = 0.0  # of head 0
        found = logit_contributions(trace_model(trace.request.task_model, CAT), 0)
    finally:
        output.weight.data.copy_(own)
    heads = [value for part, value in found.parts.items() if "head" in part]
    assert heads[0] == 0
    assert all(heads[1:])
    assert found.total == pytest.approx(found.logit, abs=1e-4)


@every_model
def test_the_residual_stream_is_the_sum_of_its_parts_up_to_the_output_of_every_layer(name):
    trace = trace_of(name)
    found = residual_stream(trace, 0)
    blocks = find_blocks(trace.request.task_model.model)
    with frozen_model(trace), recorded_streams(blocks) as streams:
        run_again(trace)
    on_the_way = ("sum", "norm") if "norms after" in name else ("sum",)
    for stack, parts in found.stacks.items():
        state, ends = parts[0].vector, {}
        for before, part in pairwise(parts):
            if part.kind == "sum":
                assert part.vector.allclose(state + before.vector, atol=1e-5), part.name
            state = part.vector if part.kind in on_the_way else state
            ends |= {} if part.name.endswith("final norm") else {part.layer: part.vector}
        for layer, vector in ends.items():
            assert vector.allclose(streams[layer][0, found.positions[stack]], atol=1e-5), layer


def test_the_parts_of_the_stream_add_up_to_the_logit_and_those_of_a_layer_to_its_heads():
    found = residual_stream(trace_of("translator"), 3)
    assert found.positions == {"decoder": 3, "encoder": found.positions["encoder"]}
    assert found.contributions is not None
    parts = {part.name: part for part in found.stacks["decoder"]}
    added = [part.added for part in parts.values() if part.added is not None]
    assert sum(added) + found.contributions.parts["biases"] == pytest.approx(found.logit, abs=1e-4)
    heads = [value for name, value in found.contributions.parts.items() if name.startswith("decoder.1.cross.head")]
    assert parts["decoder.1.cross"].added == pytest.approx(sum(heads), abs=1e-6)
    assert parts["decoder.1.cross"].sites == ("decoder.1.cross",)
    assert all(part.added is None for part in found.stacks["encoder"])
    assert parts["decoder.1.feed_forward.sum"].best[0][0] == found.target.name  # the last lens is the output


def test_a_stream_into_what_is_not_linear_says_why_nothing_adds_up():
    found = residual_stream(trace_of("classifier"))
    assert found.contributions is None
    assert "not linear" in found.note
    assert {part.kind for part in found.stacks["encoder.context.layers"]} >= {"embedding", "attention", "feed-forward"}


def foreign_model_and_tokenizer(name: str) -> tuple[Any, Any]:
    """Every bias is something, for the library begins with zeros."""
    model = FAMILIES[name].build()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if path.endswith("bias"):
                weight.add_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    return model, make_tokenizer(ends=name in ("Marian", "T5"))


def foreign_trace(name: str) -> Trace:
    return regard.trace(*foreign_model_and_tokenizer(name), SENTENCE)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Gemma 3", "Marian", "T5"])
def test_what_the_parts_of_a_foreign_model_add_is_found_by_their_numbers(name):
    """Norms before or behind, written by torch or by the library, with a norm of a sub-layer's own: all add up."""
    trace = foreign_trace(name)
    found = residual_stream(trace, 0)
    assert found.contributions is not None, found.note
    assert found.contributions.total == pytest.approx(float(trace.predictions.logits[0].max()), abs=1e-4)
    *_, parts = found.stacks.values()
    kinds = [part.kind for part in parts if part.kind in ("attention", "feed-forward")]
    crossing = name in ("Marian", "T5")
    layers = 2 if crossing else len(trace.sites)
    assert kinds == ["attention", *["attention"] * crossing, "feed-forward"] * layers
    assert {site for part in parts for site in part.sites} <= set(trace.sites)
    assert all(part.added is not None for part in parts if part.kind in ("attention", "feed-forward", "embedding"))
    assert parts[-1].name.endswith("final norm") or name == "Marian"


# --- the same laws on models of other libraries ---

foreign_models = pytest.mark.parametrize("name", ["GPT-2", "Llama", "Gemma 3", "Marian", "T5"])


@foreign_models
def test_every_law_of_attribution_holds_on_foreign_models(name):
    trace = foreign_trace(name)
    rollout, flow = attention_rollout(trace), attention_flow(trace)
    assert rollout.sum(-1).allclose(torch.ones(len(rollout)), atol=1e-5)
    assert (flow <= 1 + 1e-5).all()
    assert (flow >= rollout - 1e-4).all()
    for zeroed in value_zeroing(trace).values():
        rows = zeroed.sum(-1)
        assert torch.where(rows == 0, 1.0, rows).allclose(torch.ones(len(rows)), atol=1e-5)
    tokens = attribute_tokens(trace, 0, steps=64)
    assert tokens.difference is not None
    assert abs(tokens.total - tokens.difference) <= 0.01 * abs(tokens.difference)
    if name == "GPT-2":
        assert max(map(abs, leave_one_out(trace, 0).scores["text"][1:].tolist())) < 1e-6  # the first sees itself alone


@foreign_models
def test_every_law_of_interventions_and_layers_holds_on_foreign_models(name):
    trace = foreign_trace(name)
    torch.testing.assert_close(logit_lens(trace).logits[-1], trace.predictions.logits, atol=1e-5, rtol=1e-5)
    found = ablate_heads(trace, 0)
    site, head = trace.attention_names[-1], 1
    without = trace_with_edits(trace, Edits(off=(HeadOff(site, head),)))
    lost = found.log_probability - float(log_probability(without, 0, found.target.option))
    assert float(found.effects[site][head]) == pytest.approx(lost, abs=1e-4)


@foreign_models
def test_the_heads_of_foreign_models_are_told_apart_by_the_map_that_reads_them(name):
    model, tokenizer = foreign_model_and_tokenizer(name)
    trace = regard.trace(model, tokenizer, SENTENCE)
    last = trace.attention_names[-1]
    site, linear = trace.site(last), find_projections(trace).outputs[last].module
    weight = linear.get_parameter("weight").detach()
    (weight.T if name == "GPT-2" else weight)[:, : site.v.shape[-1]] = 0.0  # of head 0
    found = logit_contributions(regard.trace(model, tokenizer, SENTENCE), 0)
    assert found.total == pytest.approx(found.logit, abs=1e-4)
    stack = [one for one in trace.attention_names if one.split(".")[0] == last.split(".")[0]]
    heads = [value for part, value in found.parts.items() if ".head " in part]
    assert len(heads) == sum(trace.site(one).heads for one in stack)
    first, *others = heads[-site.heads :]
    assert first == 0
    assert all(others)


@pytest.mark.parametrize(("name", "path"), [("GPT-2", "c_proj"), ("Llama", "o_proj"), ("T5", "o")])
def test_what_arrives_of_a_foreign_value_passes_its_output_projection(name, path):
    trace = foreign_trace(name)
    last = trace.attention_names[-1]
    site, weight = trace.site(last), layer_of(trace, last).get_submodule(path).get_parameter("weight")
    weight = weight.T if name == "GPT-2" else weight  # its linear maps are written the other way round
    head, query, key, width = 2, 3, 1, site.v.shape[-1]
    value = site.v[0, head * site.v.shape[1] // site.heads, key]
    expected = (site.weights(head)[query, key] * (weight[:, head * width : (head + 1) * width] @ value)).norm()
    assert float(value_weighted(trace, last)[head, query, key]) == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_attention_times_gradient_is_autograds_through_the_librarys_own_weights(name):
    tokenizer, model = make_tokenizer(), FAMILIES[name].build("eager")
    trace = regard.trace(FAMILIES[name].build(), tokenizer, SENTENCE)
    target = prediction_target(trace, 3)
    found = model(torch.tensor([tokenizer(SENTENCE)["input_ids"]]), output_attentions=True)
    logit = found.logits[0, 3, tokenizer.convert_tokens_to_ids(target.name)]
    slopes = torch.autograd.grad(logit, found.attentions)
    for layer, (weights, slope) in enumerate(zip(found.attentions, slopes, strict=True)):
        expected = (weights * slope)[0].detach()
        assert attention_times_gradient(trace, 3)[f"decoder.{layer}"].allclose(expected, atol=1e-4)


@pytest.mark.parametrize("name", ["translator", "Marian"])
def test_patching_every_position_behind_the_encoder_gives_the_other_run(name):
    if name == "Marian":
        model, tokenizer = FAMILIES[name].build(), make_tokenizer(ends=True)
        clean, other = (regard.trace(model, tokenizer, text, target="a b a") for text in (SENTENCE, SENTENCE[::-1]))
    else:
        clean, other = trace_of(name), trace_of(name, "the white dog saw a man")
    blocks = find_blocks(clean.request.task_model.model)
    last = [block for block in blocks if block.stack != blocks[-1].stack][-1]
    with frozen_model(clean), recorded_streams([last]) as streams:
        run_again(clean)
    with frozen_model(clean), replaced_stream(last, streams[last.name]):
        patched = run_again(other)
    assert patched.allclose(clean.predictions.logits, atol=1e-5)
    assert not other.predictions.logits.allclose(clean.predictions.logits, atol=1e-3)


def test_a_capped_logit_is_no_sum_and_it_is_said():
    trace = foreign_trace("Gemma 2")
    assert "not linear" in residual_stream(trace, 0).note
    with pytest.raises(ValueError, match="not linear"):
        logit_contributions(trace, 0)


def test_zeroing_a_value_that_nobody_attends_to_changes_nothing():
    found = value_zeroing(trace_of("language model"))["blocks.0"]
    assert found.triu(1).abs().max() < 1e-12
    assert found.sum(-1).allclose(torch.ones(len(found)), atol=1e-5)


# --- the methods by name ---


def test_steep_gradients_are_integrated_by_more_panels(monkeypatch):
    """Attention that is all but hard: the logit changes in steps along the path."""
    sharp = trace_with_edits(trace_of("translator"), Edits(temperatures=(Temperature("*", 0.05),)))
    found = attribute_tokens(sharp, 3, steps=16)
    assert found.difference is not None
    assert abs(found.total - found.difference) < 0.005 * abs(found.difference)
    monkeypatch.setattr(attribution, "COMPLETENESS", torch.inf)
    plain = attribute_tokens(sharp, 3, steps=16)
    assert found.difference == plain.difference
    assert abs(plain.total - found.difference) > 0.1 * abs(found.difference)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edit", [{"masks": (Mask("encoder.0", 0, 1, 2),)}, {"off": (HeadOff("encoder.0", 1),)}])
def test_gradients_pass_through_heads_that_are_edited(edit):
    edited = trace_with_edits(trace_of("translator"), Edits(**edit))
    found = attribute_tokens(edited, 3, steps=64)
    assert found.difference is not None
    assert abs(found.total - found.difference) < 0.01 * abs(found.difference)


def test_of_several_heads_the_named_methods_give_the_sum():
    trace = trace_of("translator")
    found = assert_is_instance(explain(trace, "value-norms"), TokenMatrices)
    assert found.matrices["decoder.0.cross"].allclose(value_weighted(trace, "decoder.0.cross").sum(0))
    assert found.axes["decoder.0.cross"] == ("written", "source")
    mean = assert_is_instance(explain(trace, "mean-heads", 1), HeadEffects)
    assert mean.effects["encoder.0"].equal(ablate_heads(trace, 1, by="mean").effects["encoder.0"])


# --- what is refused, and what is drawn ---


def test_what_a_model_does_not_have_is_refused():
    recurrent = trace_model(translator("gru"), CAT, target=TARGET)
    for method in (attention_rollout, ablate_heads, attention_times_gradient, logit_lens, value_zeroing):
        with pytest.raises(ValueError, match="this model has no"):
            method(recurrent)
    with pytest.raises(ValueError, match="there is no row 9"):
        ablate_heads(trace_of("tagger"), 9)
    with pytest.raises(ValueError, match="there is no option"):
        attribute_tokens(trace_of("tagger"), 0, 10**6)
    with pytest.raises(ValueError, match="at least 2 steps"):
        attribute_tokens(trace_of("tagger"), steps=1)
    with pytest.raises(ValueError, match="'zero' or by 'mean'"):
        ablate_heads(trace_of("tagger"), by="median")  # type: ignore[arg-type]


def test_an_image_has_heads_and_no_tokens(tmp_path):
    model = image_classifier()
    trace = trace_model(model, *example_input("picture", model, tmp_path)[:1])
    assert isinstance(ablate_heads(trace), HeadEffects)
    with pytest.raises(ValueError, match="embeds no tokens"):
        leave_one_out(trace)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_drawn(method):
    drawn = ascii(method_view(trace_of("translator"), method, 0, no_progress))
    assert METHOD_NOTES[method].split(";")[0][:30] in " ".join(drawn.split()) or method == "contributions"


def test_an_unknown_method_names_those_there_are():
    with pytest.raises(ValueError, match="no method is called 'magic'; there are heads"):
        method_view(trace_of("tagger"), "magic", 0, no_progress)


# --- many copies at once ---

OTHER_TEXT = "a man carries the light box and the cat sleeps"


FOREIGN = ["Marian", "GPT-2", "BERT", "BERT, masks"]


@pytest.mark.parametrize("name", [*MODELS, "bahdanau", *FOREIGN])
def test_inputs_of_other_lengths_in_one_batch_change_no_logit(name, tmp_path):
    if name in FOREIGN:
        CHECKPOINTS[name].save(tmp_path)
        task_model = load_pretrained(tmp_path)
    else:
        task_model = translator(name) if name == "bahdanau" else model_of(name)
    texts = SENTENCES if name in FOREIGN else [CAT, OTHER_TEXT, "the cat"]
    task = get_task(task_model.settings.task)
    pairs = zip(texts, reversed(texts), strict=True)  # of other lengths on either side
    encoded = [task.encode(task_model, TaskInput(text, target=other)) for text, other in pairs]
    with inference_mode(task_model.model):
        alone = [task.forward(task_model.model, one) for one in encoded]
        together = task.forward_batch(task_model.model, encoded)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 40, 2048])
def test_what_a_head_and_a_token_are_worth_does_not_depend_on_how_many_are_tried_at_once(monkeypatch, tokens):
    monkeypatch.setattr(prediction, "TOKENS_AT_ONCE", tokens)
    trace = trace_of("translator")
    heads, words = ablate_heads(trace, row=2, by="mean"), leave_one_out(trace, row=2)
    monkeypatch.setattr(prediction, "TOKENS_AT_ONCE", 1)
    monkeypatch.setattr(interventions, "MAX_RECORD", 0)  # and nothing before an attention is taken from a record
    one_by_one = ablate_heads(trace, row=2, by="mean")
    for name, found in heads.effects.items():
        assert found.allclose(one_by_one.effects[name], atol=1e-5)
    for name, found in leave_one_out(trace, row=2).scores.items():
        assert found.allclose(words.scores[name], atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 40, 2048])
def test_a_token_that_cannot_be_seen_is_worth_nothing_however_batches_round(monkeypatch, tokens):
    """As on processors where a sum rounds otherwise in a batch of another size, or at another place in it."""

    def rounded(*arguments):
        exact = prediction.log_probabilities(*arguments)
        return [value + 1e-6 * len(exact) + 1e-7 * place for place, value in enumerate(exact)]

    monkeypatch.setattr(prediction, "TOKENS_AT_ONCE", tokens)
    monkeypatch.setattr(attribution, "log_probabilities", rounded)
    scores = leave_one_out(trace_of("language model"), 2).scores["text"]
    assert scores[3:].abs().max() == 0
    assert scores[:3].abs().min() > 1e-3


def test_what_comes_before_a_head_is_not_computed_again():
    trace, ran = trace_of("translator"), []
    layer = layer_of(trace, "encoder.0")
    hook = layer.get_submodule("query").register_forward_hook(lambda part, args, output: ran.append(output))
    try:
        ablate_heads(trace, row=0)
    finally:
        hook.remove()
    first, *again = ran
    assert again
    assert all(one[:1].equal(first) for one in again)  # taken from the record, bit for bit
