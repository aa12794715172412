"""Our attention against the layers of Hugging Face transformers, hooked inside their own models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    Block,
    Causal,
    Dot,
    Edges,
    GatedDelta,
    GivenScale,
    Global,
    KVCache,
    LatentKV,
    LayerOptions,
    LogBuckets,
    MultiHeadAttention,
    NTKScaling,
    Padding,
    Pattern,
    Recipe,
    RelativeBias,
    Rotary,
    RotaryScaling,
    SinkSoftmax,
    SoftCap,
    Unnormalised,
    Window,
    YarnScaling,
    attend,
    steps,
)
from tests.narrowing import assert_is_instance, not_none

transformers = pytest.importorskip("transformers")

from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention  # noqa: E402
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention, T5Model  # noqa: E402

LENGTHS = torch.tensor([11, 5])
# Llama takes its angles and its softmax in float32, whatever the model's type; these are float32's own tolerances.
FLOAT32: Any = {"rtol": 1.3e-6, "atol": 1e-5}


M = TypeVar("M", bound=nn.Module)


def with_large_weights(model: M) -> M:
    """In float64, without dropout, and with weights so large that attention is far from uniform."""
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=1.0 if name.endswith("bias") else parameter.shape[-1] ** -0.5)
    return model.double().eval()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def not_padding(lengths: Tensor, tokens: int) -> Tensor:
    """transformers' attention_mask: 1 is a word, 0 is padding."""
    return (torch.arange(tokens) < lengths[:, None]).long()


def gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of a sum in which every number of the output counts differently."""
    weight = torch.arange(output.numel(), dtype=output.dtype).cos().view_as(output)
    return torch.autograd.grad(output, inputs, weight, retain_graph=True)


@dataclass(frozen=True, eq=False)
class LayerCall:
    """What a layer was given by its model, and what it returned."""

    hidden: Tensor
    output: Tensor
    weights: Tensor


def record_call(layer: nn.Module, run: Callable[[], object]) -> LayerCall:
    """Run the model, and record one of its layers: masks and positions are the model's own."""
    calls = []

    def record(_, args, kwargs, output):
        calls.append(LayerCall(args[0] if args else kwargs["hidden_states"], output[0], output[-1]))

    handle = layer.register_forward_hook(record, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    assert len(calls) == 1
    return calls[0]


def with_weights(ours: MultiHeadAttention, **projections: nn.Module) -> MultiHeadAttention:
    """Our layer with a copy of their projections."""
    ours = ours.double().eval()
    for name, projection in projections.items():
        getattr(ours, name).load_state_dict(projection.state_dict())
    return ours


def unbiased(width_in: int, width_out: int) -> nn.Linear:
    return nn.Linear(width_in, width_out, bias=False)


def assert_same_layer(
    ours: MultiHeadAttention,
    theirs: LayerCall,
    memory: Tensor | None = None,
    *,
    pattern: Pattern | None = None,
    then: Callable[[Tensor], Tensor] = lambda x: x,
    **tolerances: Any,
) -> None:
    """Output, weights and gradients agree, on the reference and on whichever backend runs by default."""
    inputs = (theirs.hidden,) if memory is None else (theirs.hidden, memory)
    by_reference, seen = ours.look(*inputs, pattern=pattern)
    assert_close(seen.weights, theirs.weights, **tolerances)
    for output in (by_reference, ours(*inputs, pattern=pattern)):
        assert_close(then(output), theirs.output, **tolerances)
        assert_close(gradients(then(output), *inputs), gradients(theirs.output, *inputs), **tolerances)


# --- BERT ---


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padding"])
def test_the_attention_of_bert_is_ours(lengths: Tensor | None):
    config = transformers.BertConfig(
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=1,
        intermediate_size=7,
        vocab_size=17,
        attn_implementation="eager",
    )
    model = with_large_weights(transformers.BertModel(config))
    layer = model.encoder.layer[0].attention
    ours = with_weights(
        MultiHeadAttention(15, heads=3),
        query=layer.self.query,
        key=layer.self.key,
        value=layer.self.value,
        output=layer.output.dense,
    )
    x, mask = drawn(2, 11, 15), None if lengths is None else not_padding(lengths, 11)
    theirs = record_call(layer, lambda: model(inputs_embeds=x, attention_mask=mask))
    assert_same_layer(
        ours,
        theirs,
        pattern=None if lengths is None else Padding(lengths),
        then=lambda output: layer.output.LayerNorm(output + theirs.hidden),
    )


# --- GPT-2 ---


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """GPT-2 keeps its projections as (in, out); torch as (out, in)."""
    width_in, width_out = weight.shape
    ours = nn.Linear(width_in, width_out, dtype=weight.dtype)
    ours.load_state_dict({"weight": weight.T, "bias": bias})
    return ours


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["causal", "causal and padding"])
def test_the_attention_of_gpt2_is_ours(lengths: Tensor | None):
    config = transformers.GPT2Config(
        n_embd=15, n_head=3, n_layer=1, n_inner=7, n_positions=13, vocab_size=17, attn_implementation="eager"
    )
    model = with_large_weights(transformers.GPT2Model(config))
    layer = model.h[0].attn
    parts = zip(layer.c_attn.weight.chunk(3, 1), layer.c_attn.bias.chunk(3), strict=True)
    query, key, value = (linear(weight, bias) for weight, bias in parts)
    ours = with_weights(
        MultiHeadAttention(15, heads=3, recipe=Recipe(pattern=Causal())),
        query=query,
        key=key,
        value=value,
        output=linear(layer.c_proj.weight, layer.c_proj.bias),
    )
    x, mask = drawn(2, 11, 15), None if lengths is None else not_padding(lengths, 11)
    theirs = record_call(layer, lambda: model(inputs_embeds=x, attention_mask=mask))
    assert_same_layer(ours, theirs, pattern=None if lengths is None else Padding(lengths))


# --- T5 ---

T5 = {"heads": 3, "head": 5, "model": 13, "buckets": 8, "furthest": 7}  # far enough to share buckets in 11 tokens


def t5() -> T5Model:
    config = transformers.T5Config(
        d_model=T5["model"],
        d_kv=T5["head"],
        num_heads=T5["heads"],
        d_ff=7,
        num_layers=1,
        num_decoder_layers=1,
        vocab_size=17,
        relative_attention_num_buckets=T5["buckets"],
        relative_attention_max_distance=T5["furthest"],
        attn_implementation="eager",
    )
    return with_large_weights(T5Model(config))


def ours_for_t5(layer: T5Attention, recipe: Recipe) -> MultiHeadAttention:
    ours = MultiHeadAttention(
        T5["model"], heads=T5["heads"], head=T5["head"], recipe=recipe, options=LayerOptions(projection=unbiased)
    )
    return with_weights(ours, query=layer.q, key=layer.k, value=layer.v, output=layer.o)


def t5_bias(layer: T5Attention, *, bidirectional: bool) -> RelativeBias:
    bias = RelativeBias(
        LogBuckets(T5["buckets"], T5["furthest"], bidirectional=bidirectional), heads=T5["heads"]
    ).double()
    bias.load_state_dict({"weight": layer.relative_attention_bias.weight.T})
    return bias


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_the_self_attention_of_t5_is_ours(part: str):
    model = t5()
    layer = assert_is_instance(model.get_submodule(f"{part}.block.0.layer.0.SelfAttention"), T5Attention)
    bias = t5_bias(layer, bidirectional=part == "encoder")
    pattern = Padding(LENGTHS) if part == "encoder" else Causal()
    ours = ours_for_t5(layer, Recipe(score=Dot(), position=bias, pattern=pattern))
    x, y = drawn(2, 11, 13), drawn(2, 11, 13)
    theirs = record_call(
        layer,
        lambda: model(inputs_embeds=x, decoder_inputs_embeds=y, attention_mask=not_padding(LENGTHS, 11)),
    )
    assert_same_layer(ours, theirs)
    (of_theirs,) = gradients(theirs.output, layer.relative_attention_bias.weight)
    assert_close(gradients(ours(theirs.hidden), bias.weight), (of_theirs.T,))


def test_the_cross_attention_of_t5_is_ours():
    model = t5()
    layer = assert_is_instance(model.get_submodule("decoder.block.0.layer.1.EncDecAttention"), T5Attention)
    ours = ours_for_t5(layer, Recipe(score=Dot()))
    x, y = drawn(2, 11, 13), drawn(2, 7, 13)
    memory = []
    model.encoder.register_forward_hook(lambda module, args, output: memory.append(output[0]))
    theirs = record_call(
        layer,
        lambda: model(inputs_embeds=x, decoder_inputs_embeds=y, attention_mask=not_padding(LENGTHS, 11)),
    )
    assert_same_layer(ours, theirs, memory[0], pattern=Padding(LENGTHS))


@pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    ("buckets", "furthest"), [(32, 128), (8, 7), (32, 512), (64, 1000), (10, 37), (320, 800), (36, 98), (72, 98)]
)
def test_the_buckets_of_t5_are_ours(buckets: int, furthest: int, *, bidirectional: bool):
    i, j = torch.tensor(5000), torch.arange(10_000)
    expected = T5Attention._relative_position_bucket(
        j - i, bidirectional=bidirectional, num_buckets=buckets, max_distance=furthest
    )
    ours = LogBuckets(buckets, furthest, bidirectional=bidirectional).bucket(torch.tensor(0), i, j)
    assert torch.equal(ours, expected)
    assert len(ours.unique()) > buckets // 2


# --- Llama ---


def llama(heads: int, groups: int) -> tuple[Any, MultiHeadAttention]:
    config = transformers.LlamaConfig(
        hidden_size=30,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=14,
        num_hidden_layers=1,
        intermediate_size=7,
        vocab_size=17,
        rope_parameters={"rope_type": "default", "rope_theta": 101.0},
        attn_implementation="eager",
    )
    model = with_large_weights(transformers.LlamaModel(config))
    layer = model.layers[0].self_attn
    recipe = Recipe(position=Rotary(theta=101.0, pairs="halves"), pattern=Causal())
    ours = with_weights(
        MultiHeadAttention(
            30, heads=heads, groups=groups, head=14, recipe=recipe, options=LayerOptions(projection=unbiased)
        ),
        query=layer.q_proj,
        key=layer.k_proj,
        value=layer.v_proj,
        output=layer.o_proj,
    )
    return model, ours


@pytest.mark.parametrize("groups", [6, 3, 1])
def test_the_attention_of_llama_is_ours(groups: int):
    model, ours = llama(6, groups)
    x = drawn(2, 11, 30)
    theirs = record_call(model.layers[0].self_attn, lambda: model(inputs_embeds=x))
    assert_same_layer(ours, theirs, **FLOAT32)


def test_reading_on_is_llamas_reading_on():
    model, ours = llama(6, 2)
    layer, past, cache = model.layers[0].self_attn, transformers.DynamicCache(config=model.config), KVCache()
    for piece in drawn(2, 11, 30).split((5, 1, 3, 2), 1):
        theirs = record_call(
            layer, lambda piece=piece: model(inputs_embeds=piece, past_key_values=past, use_cache=True)
        )
        output, cache = ours.extend(theirs.hidden, cache)
        assert_close(output, theirs.output, **FLOAT32)
    assert cache.length == past.get_seq_length() == 11


# --- Bloom ---


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17])
def test_the_slopes_of_alibi_are_blooms(heads: int):
    # Bloom adds slope · j: its keys are numbered from the left, which softmax cannot tell from a distance
    added = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)
    assert_close(Alibi(heads).slopes(), added[:, 0, 1])


# --- BigBird ---

BIGBIRD = {"heads": 3, "head": 5, "block": 13, "blocks": 11, "random": 2}


@pytest.fixture
def _numpy_as_it_was():
    """BigBird draws its blocks from numpy's global generator."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def blocks_drawn(layer: BigBirdBlockSparseAttention) -> Tensor:
    """The random blocks of every head and row, drawn once more by BigBird's own function from its own seed."""
    tokens, block = BIGBIRD["blocks"] * BIGBIRD["block"], BIGBIRD["block"]
    lengths, counts = layer._get_rand_attn_plan(tokens, block, BIGBIRD["random"])
    np.random.seed(layer.seed)
    drawn_by_head = layer._bigbird_block_rand_mask_with_head(
        tokens, tokens, block, block, BIGBIRD["heads"], lengths, counts
    )
    return torch.from_numpy(np.stack(drawn_by_head)).long()


def pattern_of_bigbird(picked: Tensor) -> Pattern:
    """One head's: its neighbours, the first and the last block, and what rows 1, 2, ... picked."""
    last = BIGBIRD["blocks"] - 1
    every = torch.arange(BIGBIRD["blocks"])
    ends = torch.full_like(every, last)
    rows = torch.arange(1, last).repeat_interleave(picked.shape[1])
    edges = torch.cat(
        (torch.stack((every, ends)), torch.stack((ends, every)), torch.stack((rows, picked.flatten()))), 1
    )
    return Block(BIGBIRD["block"], Window(2) | Global(1) | Edges(edges))


@pytest.mark.usefixtures("_numpy_as_it_was")
@pytest.mark.parametrize("lengths", [None, torch.tensor([143, 83])], ids=["full", "padding"])
@pytest.mark.parametrize("backend", ["reference", "gather", "sdpa"])
def test_the_blocks_of_bigbird_are_ours(lengths: Tensor | None, backend: str):
    tokens, width = BIGBIRD["blocks"] * BIGBIRD["block"], BIGBIRD["heads"] * BIGBIRD["head"]
    config = transformers.BigBirdConfig(
        hidden_size=width,
        num_attention_heads=BIGBIRD["heads"],
        num_hidden_layers=1,
        intermediate_size=7,
        vocab_size=17,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        sep_token_id=3,
        max_position_embeddings=tokens,
        attention_type="block_sparse",
        block_size=BIGBIRD["block"],
        num_random_blocks=BIGBIRD["random"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    # In eval mode BigBird draws nothing and counts its first block several times over; it is itself while training.
    model = with_large_weights(transformers.BigBirdModel(config)).train()
    layer = model.encoder.layer[0].attention.self
    x, mask = drawn(2, tokens, width), None if lengths is None else not_padding(lengths, tokens)
    theirs = record_call(layer, lambda: model(inputs_embeds=x, attention_mask=mask))

    picked = blocks_drawn(layer)
    assert not torch.equal(picked[0], picked[1])  # each head has blocks of its own, so it is evaluated by itself
    q, k, v = (
        rearrange(part(theirs.hidden), "b t (h d) -> b h t d", h=BIGBIRD["heads"])
        for part in (layer.query, layer.key, layer.value)
    )
    outputs, stages = [], []
    for head, blocks in enumerate(picked):
        pattern = pattern_of_bigbird(blocks)
        recipe = Recipe(pattern=pattern if lengths is None else pattern & Padding(lengths))
        one_q, one_k, one_v = (part[:, head : head + 1] for part in (q, k, v))
        outputs.append(attend(one_q, one_k, one_v, recipe, backend=backend))
        stages.append(steps(one_q, one_k, one_v, recipe))
    # the queries that are padding are nobody's business: BigBird sets their output to 0
    words = torch.ones(2, tokens) if mask is None else mask
    output = rearrange(torch.cat(outputs, 1), "b h t d -> b t (h d)") * words[..., None]
    assert_close(output, theirs.output)
    assert_close(gradients(output, theirs.hidden), gradients(theirs.output, theirs.hidden))
    real = words.bool()[:, None, :, None]
    assert_close(torch.cat([seen.weights for seen in stages], 1) * real, theirs.weights * real)
    assert torch.equal(torch.cat([seen.visible for seen in stages], 1) & real, (theirs.weights > 0) & real)


# --- the gated delta rule ---


@pytest.mark.parametrize("tokens", [5, 71])
def test_the_gated_delta_rule_is_that_of_qwen3_next(tokens, monkeypatch):
    """Its layer, random weights, with our attention in place of its own: convolution and gated norm stay."""
    config = transformers.Qwen3NextConfig(
        hidden_size=24,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=6,
        linear_value_head_dim=5,
        num_hidden_layers=1,
    )
    layer = qwen3_next.Qwen3NextGatedDeltaNet(config, 0).eval()
    nn.init.uniform_(layer.dt_bias, -3, 3)
    x, called = torch.randn(2, tokens, 24), []
    with torch.no_grad():
        wanted = layer(x)

    def ours(query, key, value, *, g, beta, use_qk_l2norm_in_kernel, **_):
        assert use_qk_l2norm_in_kernel
        q, k, v, log_decay, beta = (part.transpose(1, 2) for part in (query, key, value, g, beta))
        q, k = (qwen3_next.l2norm(x, dim=-1, eps=1e-6) for x in (q, k))
        recipe = Recipe(pattern=Causal(), normaliser=Unnormalised(), gate=GatedDelta())
        recipe = recipe.with_gate(log_decay=log_decay, beta=beta)
        called.append(recipe)
        assert_close(attend(q, k, v, recipe, backend="reference"), attend(q, k, v, recipe), rtol=0, atol=1e-5)
        return attend(q, k, v, recipe).transpose(1, 2), None

    monkeypatch.setattr(qwen3_next, "torch_chunk_gated_delta_rule", ours)
    with torch.no_grad():
        assert_close(layer(x), wanted, rtol=0, atol=1e-5)
    assert len(called) == 1


# --- layers of 2025: sinks, normed heads, soft cap, windows, gated outputs ---


MODEL, HEADS, GROUPS, WIDTH, TOKENS = 24, 4, 2, 8, 13
SIZES: dict[str, Any] = {
    "hidden_size": MODEL,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": WIDTH,
}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "attn_implementation": "eager"}


def copy_attention(theirs: nn.Module, ours: MultiHeadAttention, *, norm_shift: float = 0.0) -> None:
    """Their projections and norms in our layer; some of theirs multiply by 1 + weight."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    with torch.no_grad():
        for mine, name in names.items():
            for part, weight in theirs.get_submodule(name).named_parameters():
                ours.get_parameter(f"{mine}.{part}").copy_(weight)
        for mine, name in {"query_norm": "q_norm", "key_norm": "k_norm"}.items():
            if hasattr(theirs, name):
                ours.get_parameter(f"{mine}.weight").copy_(theirs.get_parameter(f"{name}.weight") + norm_shift)


def assert_layer_agrees(theirs: nn.Module, ours: MultiHeadAttention, cos_sin: tuple[Tensor, Tensor]) -> None:
    """The same output and gradient, at once and token by token."""
    x = drawn(2, TOKENS, MODEL)
    visible = ours.recipe.pattern.sees(
        torch.zeros(1), torch.zeros(1), torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    )
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    want, _ = theirs(x, position_embeddings=cos_sin, attention_mask=mask)
    got = ours(x)
    assert_close(got, want, **FLOAT32)
    assert_close(gradients(got, x), gradients(want, x), rtol=1e-5, atol=1e-4)
    cache, parts = KVCache(), []
    for piece in x.split([5, 1, 1, 6], 1):
        part, cache = ours.extend(piece, cache)
        parts.append(part)
    assert_close(torch.cat(parts, 1), got)


def places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1])[None]


no_bias = partial(nn.Linear, bias=False)


@pytest.mark.parametrize("layer", [0, 1], ids=["sliding", "full"])
def test_a_layer_of_gpt_oss(layer):
    from transformers.models.gpt_oss import modeling_gpt_oss as there

    yarn = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0}
    yarn |= {"truncate": False, "original_max_position_embeddings": 32}
    config = transformers.GptOssConfig(**SIZES, sliding_window=5, rope_parameters=yarn)
    theirs = with_large_weights(there.GptOssAttention(config, layer))
    scaling = YarnScaling(factor=8.0, length=32, slow=1.0, fast=4.0, whole=False)
    recipe = Recipe(
        position=Rotary(150_000.0, "halves", scaling),
        pattern=Causal() & Window(5) if layer == 0 else Causal(),
        normaliser=SinkSoftmax.of(theirs.get_parameter("sinks").detach()),
    )
    assert not_none(config.layer_types)[layer] == ("sliding_attention", "full_attention")[layer]
    ours = MultiHeadAttention(MODEL, heads=HEADS, groups=GROUPS, head=WIDTH, recipe=recipe).double()
    copy_attention(theirs, ours)
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.GptOssRotaryEmbedding(config)(x, places(x)))


def qk_norm_layer(recipe: Recipe, eps: float) -> MultiHeadAttention:
    options = LayerOptions(projection=no_bias, head_norm=partial(nn.RMSNorm, eps=eps))
    return MultiHeadAttention(MODEL, heads=HEADS, groups=GROUPS, head=WIDTH, recipe=recipe, options=options).double()


def test_a_layer_of_qwen3_norms_its_heads_before_they_are_rotated():
    from transformers.models.qwen3 import modeling_qwen3 as there

    config = transformers.Qwen3Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    theirs = with_large_weights(there.Qwen3Attention(config, 0))
    recipe = Recipe(position=Rotary(10_000.0, "halves"), pattern=Causal())
    ours = qk_norm_layer(recipe, config.rms_norm_eps)
    copy_attention(theirs, ours)
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.Qwen3RotaryEmbedding(config)(x, places(x)))


@pytest.mark.parametrize("layer", [0, 5], ids=["sliding", "full"])
def test_a_layer_of_gemma_3(layer):
    """Five layers with a window to one without, each kind with a theta of its own, and a scale of its own."""
    from transformers.models.gemma3 import modeling_gemma3 as there

    six: dict[str, Any] = SIZES | {"num_hidden_layers": 6}
    config = transformers.Gemma3TextConfig(**six, sliding_window=4, query_pre_attn_scalar=17)
    kind = not_none(config.layer_types)[layer]
    assert kind == ("full_attention" if layer == 5 else "sliding_attention")
    theirs = with_large_weights(there.Gemma3Attention(config, layer))
    theta = not_none(config.rope_parameters)[kind]["rope_theta"]
    recipe = Recipe(
        score=GivenScale(17**-0.5),
        position=Rotary(theta, "halves"),
        pattern=Causal() & Window(4) if layer == 0 else Causal(),
    )
    ours = qk_norm_layer(recipe, config.rms_norm_eps)
    copy_attention(theirs, ours, norm_shift=1.0)
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.Gemma3RotaryEmbedding(config)(x, places(x), kind))


def test_a_layer_of_gemma_2_caps_its_scores():
    from transformers.models.gemma2 import modeling_gemma2 as there

    config = transformers.Gemma2Config(**SIZES, sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=1.5)
    theirs = with_large_weights(there.Gemma2Attention(config, 1))
    recipe = Recipe(score=SoftCap(1.5), position=Rotary(10_000.0, "halves"), pattern=Causal())
    ours = MultiHeadAttention(
        MODEL, heads=HEADS, groups=GROUPS, head=WIDTH, recipe=recipe, options=LayerOptions(projection=no_bias)
    ).double()
    copy_attention(theirs, ours)
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.Gemma2RotaryEmbedding(config)(x, places(x)))


def test_a_full_layer_of_qwen3_next_gates_its_output():
    """A quarter of the features is rotated, heads are normed, and σ(W x) gates what they give."""
    from transformers.models.qwen3_next import modeling_qwen3_next as there

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    config = transformers.Qwen3NextConfig(**SIZES, rope_parameters=rope)
    theirs = with_large_weights(there.Qwen3NextAttention(config, 0))
    ours = MultiHeadAttention(
        MODEL,
        heads=HEADS,
        groups=GROUPS,
        head=WIDTH,
        recipe=Recipe(position=Rotary(10_000.0, "halves", fraction=0.25), pattern=Causal()),
        options=LayerOptions(
            projection=no_bias, head_norm=partial(nn.RMSNorm, eps=config.rms_norm_eps), output_gate=no_bias
        ),
    ).double()
    # their queries and gates are rows of one matrix, head by head
    query, gate = rearrange(theirs.q_proj.weight.detach(), "(h two d) m -> two (h d) m", h=HEADS, two=2)
    theirs_query, theirs.q_proj = theirs.q_proj, nn.Linear(MODEL, HEADS * WIDTH, bias=False).double()
    with torch.no_grad():
        theirs.q_proj.weight.copy_(query)
        copy_attention(theirs, ours, norm_shift=1.0)
        ours.get_parameter("output_gate.weight").copy_(gate)
    theirs.q_proj = theirs_query
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.Qwen3NextRotaryEmbedding(config)(x, places(x)))


@pytest.mark.parametrize("query_rank", [None, 10], ids=["query of the token", "query of a latent"])
def test_a_layer_of_deepseek_v3_makes_keys_and_values_of_latents(query_rank):
    """Their queries and keys have what is rotated last, ours first; their W^K and W^V are rows of one matrix."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as there

    own, rotary, value, rank = 6, 4, 5, 12
    config = transformers.DeepseekV3Config(
        hidden_size=MODEL,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=query_rank,
        kv_lora_rank=rank,
        qk_nope_head_dim=own,
        qk_rope_head_dim=rotary,
        v_head_dim=value,
        max_position_embeddings=64,
        num_hidden_layers=1,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    theirs = with_large_weights(there.DeepseekV3Attention(config, 0))
    latent = LatentKV(rank=rank, rotary=rotary, value=value, query_rank=query_rank)
    head = rotary + own
    recipe = Recipe(position=Rotary(10_000.0, fraction=rotary / head), pattern=Causal())
    ours = MultiHeadAttention(
        MODEL, heads=HEADS, head=head, recipe=recipe, form=latent, options=LayerOptions(projection=no_bias)
    ).double()
    query = not_none(theirs.q_proj if query_rank is None else theirs.q_b_proj)
    rotated_first = [*range(own, head), *range(own)]
    query = rearrange(query.weight, "(h d) m -> h d m", h=HEADS)[:, rotated_first].flatten(0, 1)
    key, values = rearrange(theirs.kv_b_proj.weight, "(h d) r -> h d r", h=HEADS).split([own, value], 1)
    down = theirs.kv_a_proj_with_mqa.weight.split([rank, rotary])[::-1]
    weights = {"latent.down.weight": torch.cat(down), "latent.norm.weight": theirs.kv_a_layernorm.weight}
    weights |= {"key.weight": key.flatten(0, 1), "value.weight": values.flatten(0, 1)}
    weights |= {"output.weight": theirs.o_proj.weight}
    if query_rank is None:
        weights |= {"query.weight": query}
    else:
        down, norm = not_none(theirs.q_a_proj), not_none(theirs.q_a_layernorm)
        weights |= {"query.0.weight": down.weight, "query.1.weight": norm.weight}
        weights |= {"query.2.weight": query}
    ours.load_state_dict({name: weight.detach() for name, weight in weights.items()})
    x = torch.zeros(1, TOKENS, MODEL, dtype=torch.float64)
    assert_layer_agrees(theirs, ours, there.DeepseekV3RotaryEmbedding(config)(x, places(x)))


@pytest.mark.parametrize("factor", [2.0, 4.0, 32.0])
def test_scaled_frequencies_are_those_of_transformers(factor):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    d, length, theta = 64, 2048, 10_000.0
    sizes: dict[str, Any] = {"hidden_size": d, "num_attention_heads": 1, "max_position_embeddings": length}
    frequency = theta ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    rope = {"rope_theta": theta, "factor": factor, "original_max_position_embeddings": length}
    extra = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    ours = {
        "linear": RotaryScaling(factor, length=1),
        "llama3": RotaryScaling(factor, length=length),
        "yarn": YarnScaling(factor, length=length),
    }
    for kind, scaling in ours.items():
        parameters = rope | {"rope_type": kind} | extra.get(kind, {})
        config = LlamaConfig(**sizes, rope_parameters=parameters)
        want, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        assert_close(scaling.scale(frequency).float(), want, rtol=1e-5, atol=1e-8)
        assert magnitude == pytest.approx(scaling.magnitude)
    # "dynamic" is NTK by how much longer the text is than those of the training
    config = LlamaConfig(**sizes, rope_parameters=rope | {"rope_type": "dynamic"})
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=2 * length)
    assert_close(NTKScaling(2 * factor - (factor - 1)).scale(frequency).float(), want, rtol=1e-5, atol=1e-8)
