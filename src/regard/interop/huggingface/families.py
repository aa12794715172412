"""Families of Hugging Face models: for each a table of its weights, and its config.json read and written."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any, Literal

from regard.attention import (
    Dot,
    Learned,
    LogBuckets,
    Recipe,
    RelativeBias,
    Rotary,
    RotaryScaling,
    ScaledDot,
    Sinusoidal,
)
from regard.interop.huggingface.weights import LARGEST_SIZE, AxisOrder, WeightRow, parse_table
from regard.models.config import (
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    TextModelConfig,
    build_layer_recipes,
    text_recipes,
)
from regard.models.config_base import ConfigBase, recipe_text
from regard.models.safetensors_io import shapes_only
from regard.models.transformer import make_causal
from regard.models.vision import VisionConfig, build_patch_recipe

# what transformers calls an activation, and what it is called here
ACTIVATION_NAMES = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATION_NAMES.items())}
MAX_POSITIONS = 1024  # rows of a table of positions, where a model itself has no limit


# --- config.json ---


@dataclass(frozen=True)
class CheckpointConfig:
    """What a config.json says; a file leaves out what is the default of transformers.

    Args:
        values: whatever it holds, which nobody has checked.
        tensors: the names of the weights beside it.
    """

    values: Mapping[str, Any]
    tensors: frozenset[str] = frozenset()

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.typed(name, default, int, "a whole number")
        least = 0 if name.endswith("_id") else 1
        if not least <= value <= LARGEST_SIZE:
            raise ValueError(f"config.json: {name} = {value!r:.80} should lie between {least} and {LARGEST_SIZE:,}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.typed(name, default, int | float, "a number")
        if not abs(value) < math.inf:
            raise ValueError(f"config.json: {name} = {value!r:.80} should be a finite number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        return self.typed(name, default, str, "text")

    def flag(self, name: str, *, default: bool) -> bool:
        return self.typed(name, default, bool, "true or false")

    def typed(self, name: str, default: Any, kind: Any, expected: str) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"config.json: {name} = {value!r:.80} should be {expected}")
        return value

    def activation(self, name: str, default: str) -> str:
        value = self.text(name, default)
        if value not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise ValueError(f"config.json: {name} = {value!r:.80} is no activation known here; there are {known}")
        return ACTIVATION_NAMES[value]

    def require(self, **expected: bool) -> None:
        """Refuses what changes the model in ways that ours cannot follow."""
        for name, value in expected.items():
            if self.flag(name, default=value) != value:
                raise ValueError(f"config.json: {name} = {not value} is not known here; import a model without it")

    def same(self, *names: str, default: int) -> int:
        """A size that our network has once."""
        one, *others = (self.whole(name, default) for name in names)
        if any(other != one for other in others):
            raise ValueError(f"config.json: {' and '.join(names)} differ, and our encoder and decoder have one of both")
        return one


@dataclass(frozen=True)
class Family:
    """Models of one kind.

    Args:
        task: which task of ours they are for.
        model: the configuration of our network, from theirs.
        config: theirs, from ours: the inverse of `model`, wherever our network is one of the family.
        table: of their weights; it may depend on our configuration.
        base: what the names of the base model begin with, which its own checkpoint leaves out.
        tied: tensors that files may hold twice: the copy, and the original.
        ignored: tensors that hold nothing to learn, such as masks and sinusoids; `*` is a number.
        sizes: of axes that the table takes apart, from our configuration.
        tags: of models of many languages: which texts begin with a language's tag: the source alone, which names the
            language to translate into, or both.
    """

    task: str
    model: Callable[[CheckpointConfig], ConfigBase]
    config: Callable[[Any], dict[str, Any]]
    table: Callable[[Any], tuple[WeightRow, ...]]
    base: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    sizes: Callable[[Any], Mapping[str, int]] = lambda model: {}
    tags: Literal["", "source", "both"] = ""


# --- the recipes of our configurations ---


def place_recipes(model: ConfigBase) -> dict[str, tuple[Recipe, ...]]:
    """The recipes of each attention, one for all layers or one for each; those of a decoder are causal."""
    with shapes_only():
        if isinstance(model, ModelConfig):
            built = {place: build_layer_recipes(model, place) for place in ("encoder", "decoder", "cross")}
            found = {place: (each,) if isinstance(each, Recipe) else tuple(each) for place, each in built.items()}
            return found | {"decoder": tuple(map(make_causal, found["decoder"]))}
        if isinstance(model, VisionConfig):
            texts = model.recipe if isinstance(model.recipe, tuple) else (model.recipe,)
            return {"attention": tuple(build_patch_recipe(recipe_text(one), (1, 1), model.model) for one in texts)}
        assert isinstance(model, EncoderConfig | LanguageModelConfig)
        each = text_recipes(model)
        return {"attention": tuple(map(make_causal, each)) if isinstance(model, LanguageModelConfig) else each}


def first_recipe(model: ConfigBase) -> Recipe:
    return next(iter(place_recipes(model).values()))[0]


def max_positions(model: ConfigBase) -> int:
    """As many as are learned; where none are, as many as a written table has."""
    learned = [part.max_length for part in first_recipe(model).embedding_positions if isinstance(part, Learned)]
    return min(learned, default=MAX_POSITIONS)


def sinusoids(model: ConfigBase) -> set[str]:
    """How the features of all sinusoidal positions are paired: adjacent (Vaswani et al. 2017), or as two halves."""
    recipes = [one for each in place_recipes(model).values() for one in each]
    return {part.pairs for one in recipes for part in one.embedding_positions if isinstance(part, Sinusoidal)}


def feature_order(model: ConfigBase) -> dict[str, AxisOrder]:
    """Of the residual stream: sines first and cosines behind them, which is how families pair them. Any network is
    the same with its features in another order."""
    if not isinstance(model, TextModelConfig) or sinusoids(model) != {"adjacent"}:
        return {}
    places = {feature: at for at, feature in enumerate((*range(0, model.model, 2), *range(1, model.model, 2)))}
    return {"model": AxisOrder(tuple(places[feature] for feature in range(model.model)))}


# --- Marian (OPUS-MT) ---


MARIAN_LAYERS = """
encoder.*.attention.{query,key,value}     model.encoder.layers.*.self_attn.{q,k,v}_proj       o model -> o model
encoder.*.attention.output                model.encoder.layers.*.self_attn.out_proj           model i -> model i
encoder.*.residual_attention.norm         model.encoder.layers.*.self_attn_layer_norm         model -> model
encoder.*.feed_forward.up                 model.encoder.layers.*.fc1                          o model -> o model
encoder.*.feed_forward.down               model.encoder.layers.*.fc2                          model i -> model i
encoder.*.residual_feed_forward.norm      model.encoder.layers.*.final_layer_norm             model -> model
decoder.*.attention.{query,key,value}     model.decoder.layers.*.self_attn.{q,k,v}_proj       o model -> o model
decoder.*.attention.output                model.decoder.layers.*.self_attn.out_proj           model i -> model i
decoder.*.residual_attention.norm         model.decoder.layers.*.self_attn_layer_norm         model -> model
decoder.*.cross.{query,key,value}         model.decoder.layers.*.encoder_attn.{q,k,v}_proj    o model -> o model
decoder.*.cross.output                    model.decoder.layers.*.encoder_attn.out_proj        model i -> model i
decoder.*.residual_cross.norm             model.decoder.layers.*.encoder_attn_layer_norm      model -> model
decoder.*.feed_forward.up                 model.decoder.layers.*.fc1                          o model -> o model
decoder.*.feed_forward.down               model.decoder.layers.*.fc2                          model i -> model i
decoder.*.residual_feed_forward.norm      model.decoder.layers.*.final_layer_norm             model -> model
"""
MARIAN = parse_table(f"""
embeddings.tables.target.weight                  model.shared.weight            target model -> target model
embeddings.tables.output.weight                  lm_head.weight                 target model -> target model
embeddings.bias                                  final_logits_bias              1 target -> target
{MARIAN_LAYERS}
""")
# of two vocabularies
MARIAN_PAIR = parse_table(f"""
embeddings.tables.source.weight                  model.encoder.embed_tokens.weight    source model -> source model
embeddings.tables.target.weight                  model.decoder.embed_tokens.weight    target model -> target model
embeddings.tables.output.weight                  lm_head.weight                       target model -> target model
embeddings.bias                                  final_logits_bias                    1 target -> target
{MARIAN_LAYERS}
""")


def read_marian(config: CheckpointConfig) -> ModelConfig:
    shared, tied = (config.flag(name, default=True) for name in (SHARED, TIED))
    recipe = Recipe(position=Sinusoidal(pairs="halves"))
    tie = ("all" if tied else "input") if shared else ("target" if tied else "none")
    return read_seq2seq(config, norm="post", activation="gelu", recipe=recipe, tie=tie, scaled=False)


TIED, SHARED = "tie_word_embeddings", "share_encoder_decoder_embeddings"


def write_marian(model: ModelConfig) -> dict[str, Any]:
    return write_seq2seq(model) | {SHARED: model.tie in ("all", "input"), TIED: model.tie in ("all", "target")}


def read_seq2seq(
    config: CheckpointConfig, *, norm: str, activation: str, recipe: Recipe, tie: str, scaled: bool, **changes: Any
) -> ModelConfig:
    """Of Marian and its relatives."""
    return ModelConfig(
        kind="transformer",
        layers=config.whole("encoder_layers", 12),
        decoder_layers=config.whole("decoder_layers", 12),
        model=config.whole("d_model", 1024),
        heads=config.same("encoder_attention_heads", "decoder_attention_heads", default=16),
        hidden=config.same("encoder_ffn_dim", "decoder_ffn_dim", default=4096),
        norm=norm,
        activation=config.activation("activation_function", activation),
        embedding_scale="input" if config.flag("scale_embedding", default=scaled) else "none",
        tie=tie,
        encoder=recipe,
        decoder=recipe,
        dropout=config.number("dropout", 0.1),
        **changes,
    )


def write_seq2seq(model: ModelConfig) -> dict[str, Any]:
    sides = {"attention_heads": model.heads, "ffn_dim": model.hidden}
    return {
        "encoder_layers": model.layers,
        "decoder_layers": model.decoder_layers or model.layers,
        "d_model": model.model,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()},
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "scale_embedding": model.embedding_scale == "input",
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "max_position_embeddings": max_positions(model),
        "forced_eos_token_id": None,
    }


# --- Pegasus and Blenderbot: Marian's layers with the norm before each sub-layer; sinusoids, or learned positions ---


FINAL_NORMS = "{encoder,decoder}_norm    model.{encoder,decoder}.layer_norm    model -> model"
LEARNED_POSITIONS = "{source,target}_positions.learned.0    model.{encoder,decoder}.embed_positions"
PEGASUS, PEGASUS_PAIR = ((*table, *parse_table(FINAL_NORMS)) for table in (MARIAN, MARIAN_PAIR))
BLENDERBOT, BLENDERBOT_PAIR = ((*table, *parse_table(LEARNED_POSITIONS)) for table in (PEGASUS, PEGASUS_PAIR))


def read_pegasus(config: CheckpointConfig) -> ModelConfig:
    return read_pre_norm(config, Recipe(position=Sinusoidal(pairs="halves")))


def read_blenderbot(config: CheckpointConfig) -> ModelConfig:
    length = config.whole("max_position_embeddings", 128)
    return read_pre_norm(config, Recipe(position=Learned(length, config.whole("d_model", 2560))))


def read_pre_norm(config: CheckpointConfig, recipe: Recipe) -> ModelConfig:
    tie = "all" if config.flag(TIED, default=True) else "none"
    return read_seq2seq(config, norm="pre", activation="gelu", recipe=recipe, tie=tie, scaled=False)


def write_pre_norm(model: ModelConfig) -> dict[str, Any]:
    """One table for all, or three, of which two may be the same."""
    return write_seq2seq(model) | {TIED: model.tie == "all"}


def write_blenderbot(model: ModelConfig) -> dict[str, Any]:
    return write_pre_norm(model) | {"encoder_no_repeat_ngram_size": 0}


# --- M2M100 and NLLB ---


M2M100 = parse_table(f"""
embeddings.tables.target.weight                  model.shared.weight            target model -> target model
embeddings.bias                                  -                              target
{MARIAN_LAYERS}
{FINAL_NORMS}
""")


def read_m2m100(config: CheckpointConfig) -> ModelConfig:
    """fairseq's waves are a little slower than Vaswani's: θ^(j / (half − 1)), and the first token is number 2."""
    config.require(tie_word_embeddings=True)
    half = config.whole("d_model", 1024) // 2
    slower = 10_000.0 ** (half / max(half - 1, 1))
    recipe = Recipe(position=Sinusoidal(theta=slower, pairs="halves", first=config.whole("pad_token_id", 1) + 1))
    return read_seq2seq(config, norm="pre", activation="relu", recipe=recipe, tie="all", scaled=True, output_bias=False)


# --- T5 ---


T5_LAYERS = """
embeddings.tables.target.weight                  shared.weight                  target model -> target model
embeddings.tables.output.weight                  lm_head.weight                 target model -> target model
embeddings.bias                                  -                              target
encoder.*.attention.learned.position0       encoder.block.*.layer.0.SelfAttention.relative_attention_bias    r h -> h r
decoder.*.attention.learned.position0       decoder.block.*.layer.0.SelfAttention.relative_attention_bias    r h -> h r
encoder.*.attention.{query,key,value,output}     encoder.block.*.layer.0.SelfAttention.{q,k,v,o}
encoder.*.residual_attention.norm                encoder.block.*.layer.0.layer_norm
encoder.*.residual_feed_forward.norm             encoder.block.*.layer.1.layer_norm
decoder.*.attention.{query,key,value,output}     decoder.block.*.layer.0.SelfAttention.{q,k,v,o}
decoder.*.residual_attention.norm                decoder.block.*.layer.0.layer_norm
decoder.*.cross.{query,key,value,output}         decoder.block.*.layer.1.EncDecAttention.{q,k,v,o}
decoder.*.residual_cross.norm                    decoder.block.*.layer.1.layer_norm
decoder.*.residual_feed_forward.norm             decoder.block.*.layer.2.layer_norm
{encoder,decoder}_norm                           {encoder,decoder}.final_layer_norm
"""
T5 = {
    "plain": parse_table(f"""
{T5_LAYERS}
encoder.*.feed_forward.{{up,down}}               encoder.block.*.layer.1.DenseReluDense.{{wi,wo}}
decoder.*.feed_forward.{{up,down}}               decoder.block.*.layer.2.DenseReluDense.{{wi,wo}}
"""),
    "gated": parse_table(f"""
{T5_LAYERS}
encoder.*.feed_forward.{{gate,up,down}}          encoder.block.*.layer.1.DenseReluDense.{{wi_0,wi_1,wo}}
decoder.*.feed_forward.{{gate,up,down}}          decoder.block.*.layer.2.DenseReluDense.{{wi_0,wi_1,wo}}
"""),
}


def read_t5(config: CheckpointConfig) -> ModelConfig:
    """Scores are not scaled, and the bias of all layers is that of the first. What the feed-forward layers are, and
    whether states are scaled before the logits, differs between T5 and T5 1.1."""
    _, gated, activation = config.text("feed_forward_proj", "relu").rpartition("gated-")
    heads, layers = config.whole("num_heads", 8), config.whole("num_layers", 6)
    buckets, distance = (
        config.whole(f"relative_attention_{name}", usual)
        for name, usual in (("num_buckets", 32), ("max_distance", 128))
    )

    def recipe(*, bidirectional: bool) -> Recipe:
        return Recipe(score=Dot(), position=RelativeBias(LogBuckets(buckets, distance, bidirectional), heads))

    return ModelConfig(
        kind="transformer",
        layers=layers,
        decoder_layers=config.whole("num_decoder_layers", layers),
        model=config.whole("d_model", 512),
        heads=heads,
        head=config.whole("d_kv", 64),
        hidden=config.whole("d_ff", 2048),
        norm_type="rms",
        norm_eps=config.number("layer_norm_epsilon", 1e-6),
        feed_forward_type="gated" if gated else "plain",
        activation="gelu_tanh" if gated and activation == "gelu" else ACTIVATION_NAMES[activation],
        bias=False,
        shared_positions=True,
        embedding_scale="output"
        if config.flag("scale_decoder_outputs", default=config.flag(TIED, default=True))
        else "none",
        tie="input" if "lm_head.weight" in config.tensors else "all",
        output_bias=False,
        encoder=recipe(bidirectional=True),
        decoder=recipe(bidirectional=False),
        cross=Recipe(score=Dot()),
        dropout=config.number("dropout_rate", 0.1),
    )


def write_t5(model: ModelConfig) -> dict[str, Any]:
    biases = [part for part in first_recipe(model).score_positions if isinstance(part, RelativeBias)]
    found = [part.relation for part in biases if isinstance(part.relation, LogBuckets)]
    buckets = found[0] if found else LogBuckets()
    gated = model.feed_forward_type == "gated"
    activation = "gelu" if gated and model.activation == "gelu_tanh" else THEIR_ACTIVATIONS[model.activation]
    return {
        "num_layers": model.layers,
        "num_decoder_layers": model.decoder_layers or model.layers,
        "d_model": model.model,
        "num_heads": model.heads,
        "d_kv": model.head_width,
        "d_ff": model.hidden,
        "layer_norm_epsilon": model.norm_eps,
        "feed_forward_proj": "gated-" * gated + activation,
        "relative_attention_num_buckets": buckets.buckets,
        "relative_attention_max_distance": buckets.max_distance,
        "dropout_rate": model.dropout,
        TIED: model.embedding_scale == "output",  # what they tell by it
        # transformers makes a KV cache as deep as the encoder
        "use_cache": (model.decoder_layers or model.layers) <= model.layers,
    }


# --- GPT-2 ---


# its linear layers are "Conv1D", whose weights are transposed
GPT2 = parse_table("""
embedding.weight                                 transformer.wte.weight             target model -> target model
output.weight                                    lm_head.weight                     target model -> target model
bias                                             -                                  target
backbone.positions.learned.0.weight              transformer.wpe.weight
backbone.layers.*.residual_attention.norm        transformer.h.*.ln_1
backbone.layers.*.attention.{query,key,value}    transformer.h.*.attn.c_attn        i (part o) -> part o i
backbone.layers.*.attention.output               transformer.h.*.attn.c_proj        i o -> o i
backbone.layers.*.residual_feed_forward.norm     transformer.h.*.ln_2
backbone.layers.*.feed_forward.up                transformer.h.*.mlp.c_fc           i o -> o i
backbone.layers.*.feed_forward.down              transformer.h.*.mlp.c_proj         i o -> o i
backbone.norm                                    transformer.ln_f
""")


def read_gpt2(config: CheckpointConfig) -> LanguageModelConfig:
    config.require(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    model = config.whole("n_embd", 768)
    score = ScaledDot() if config.flag("scale_attn_weights", default=True) else Dot()
    return LanguageModelConfig(
        kind="transformer",
        layers=config.whole("n_layer", 12),
        model=model,
        heads=config.whole("n_head", 12),
        hidden=config.whole("n_inner", 4 * model),
        activation=config.activation("activation_function", "gelu_new"),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        embedding_scale="none",
        tied=config.flag(TIED, default=True),
        output_bias=False,
        recipe=Recipe(score=score, position=Learned(config.whole("n_positions", 1024), model)),
        dropout=config.number("resid_pdrop", 0.1),
        attention_dropout=config.number("attn_pdrop", 0.1),
    )


def write_gpt2(model: LanguageModelConfig) -> dict[str, Any]:
    return {
        "n_layer": model.layers,
        "n_embd": model.model,
        "n_head": model.heads,
        "n_inner": model.hidden,
        "n_positions": max_positions(model),
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.norm_eps,
        "scale_attn_weights": not isinstance(first_recipe(model).score, Dot),
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        TIED: model.tied,
    }


# --- CTRL: sinusoids, scaled embeddings, ReLU, and a bias of the logits ---


CTRL = parse_table("""
embedding.weight                               transformer.w.weight  target model -> target model
output.weight                                  lm_head.weight        target model -> target model
bias                                           lm_head.bias          target -> target
backbone.layers.*.residual_attention.norm      transformer.h.*.layernorm1                        model -> model
backbone.layers.*.attention.{query,key,value}  transformer.h.*.multi_head_attention.{Wq,Wk,Wv}   o model -> o model
backbone.layers.*.attention.output             transformer.h.*.multi_head_attention.dense        model i -> model i
backbone.layers.*.residual_feed_forward.norm   transformer.h.*.layernorm2                        model -> model
backbone.layers.*.feed_forward.up              transformer.h.*.ffn.0                             o model -> o model
backbone.layers.*.feed_forward.down            transformer.h.*.ffn.2                             model i -> model i
backbone.norm                                  transformer.layernorm                             model -> model
""")
CTRL_EPSILON = 1e-6  # of all layers, whatever the configuration says of the last norm


def read_ctrl(config: CheckpointConfig) -> LanguageModelConfig:
    if (epsilon := config.number("layer_norm_epsilon", CTRL_EPSILON)) != CTRL_EPSILON:
        raise ValueError(f"config.json: layer_norm_epsilon = {epsilon} is that of the last norm alone; 1e-06 is of all")
    return LanguageModelConfig(
        kind="transformer",
        layers=config.whole("n_layer", 48),
        model=config.whole("n_embd", 1280),
        heads=config.whole("n_head", 16),
        hidden=config.whole("dff", 8192),
        activation="relu",
        norm_eps=CTRL_EPSILON,
        tied=config.flag(TIED, default=True),
        recipe=Recipe(position=Sinusoidal(pairs="halves")),
        dropout=config.number("resid_pdrop", 0.1),
    )


def write_ctrl(model: LanguageModelConfig) -> dict[str, Any]:
    return {
        "n_layer": model.layers,
        "n_embd": model.model,
        "n_head": model.heads,
        "dff": model.hidden,
        "n_positions": MAX_POSITIONS,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        TIED: model.tied,
    }


# --- Llama (SmolLM2), and Qwen3, whose queries and keys are normed ---


LLAMA_LAYERS = """
embedding.weight                                 model.embed_tokens.weight          target model -> target model
output.weight                                    lm_head.weight                     target model -> target model
bias                                             -                                  target
backbone.layers.*.residual_attention.norm        model.layers.*.input_layernorm
backbone.layers.*.attention.value                model.layers.*.self_attn.v_proj
backbone.layers.*.attention.{query,key}_norm     model.layers.*.self_attn.{q,k}_norm
backbone.layers.*.attention.output               model.layers.*.self_attn.o_proj
backbone.layers.*.residual_feed_forward.norm     model.layers.*.post_attention_layernorm
backbone.layers.*.feed_forward.{gate,up,down}    model.layers.*.mlp.{gate,up,down}_proj
backbone.norm                                    model.norm
"""
LLAMA = {
    "halves": parse_table(f"""
{LLAMA_LAYERS}
backbone.layers.*.attention.{{query,key}}        model.layers.*.self_attn.{{q,k}}_proj
"""),
    # their pairs of features are one from each half, ours are adjacent
    "adjacent": parse_table(f"""
{LLAMA_LAYERS}
backbone.layers.*.attention.query                model.layers.*.self_attn.q_proj    (h two pair) i -> (h pair two) i
backbone.layers.*.attention.key                  model.layers.*.self_attn.k_proj    (g two pair) i -> (g pair two) i
"""),
}


# as llama.cpp names it; rows of queries and keys are in the order of adjacent pairs
GGUF_LLAMA = parse_table("""
embedding.weight                                 token_embd.weight                  target model -> target model
output.weight                                    output.weight                      target model -> target model
bias                                             -                                  target
backbone.layers.*.residual_attention.norm        blk.*.attn_norm
backbone.layers.*.attention.{query,key,value}    blk.*.attn_{q,k,v}
backbone.layers.*.attention.output               blk.*.attn_output
backbone.layers.*.residual_feed_forward.norm     blk.*.ffn_norm
backbone.layers.*.feed_forward.{gate,up,down}    blk.*.ffn_{gate,up,down}
backbone.norm                                    output_norm
""")


def read_gguf_llama(config: CheckpointConfig) -> LanguageModelConfig:
    return replace(read_llama(config), recipe=Recipe(position=Rotary(theta=config.number("rope_theta", 10_000.0))))


def read_llama(config: CheckpointConfig) -> LanguageModelConfig:
    return read_decoder(config, layers=32, hidden=11_008, groups=config.whole("num_attention_heads", 32))


def read_qwen3(config: CheckpointConfig) -> LanguageModelConfig:
    config.require(use_sliding_window=False)
    return read_decoder(config, layers=32, hidden=22_016, groups=32, head=config.whole("head_dim", 128), qk_norm=True)


def read_decoder(
    config: CheckpointConfig, *, layers: int, hidden: int, groups: int, head: int | None = None, qk_norm: bool = False
) -> LanguageModelConfig:
    config.require(attention_bias=False, mlp_bias=False)
    heads = config.whole("num_attention_heads", 32)
    return LanguageModelConfig(
        kind="transformer",
        layers=config.whole("num_hidden_layers", layers),
        model=config.whole("hidden_size", 4096),
        heads=heads,
        groups=config.whole("num_key_value_heads", groups),
        head=head if config.values.get("head_dim") is None else config.whole("head_dim"),
        hidden=config.whole("intermediate_size", hidden),
        norm_type="rms",
        norm_eps=config.number("rms_norm_eps", 1e-6),
        qk_norm=qk_norm,
        feed_forward_type="gated",
        activation=config.activation("hidden_act", "silu"),
        bias=False,
        embedding_scale="none",
        tied=config.flag(TIED, default=False),
        output_bias=False,
        recipe=Recipe(position=read_rotary(config)),
        dropout=0.0,
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def rotary_pairs(model: LanguageModelConfig) -> str:
    """Of the features that are rotated together; "" if they are not the same in all layers."""
    recipes = place_recipes(model)["attention"]
    found = {part.pairs for one in recipes for part in one.query_key_positions if isinstance(part, Rotary)}
    return found.pop() if len(found) == 1 else ""


def llama_table(model: LanguageModelConfig) -> tuple[WeightRow, ...]:
    return LLAMA["adjacent" if rotary_pairs(model) == "adjacent" else "halves"]


def llama_sizes(model: LanguageModelConfig) -> dict[str, int]:
    return {"h": model.heads, "g": model.groups or model.heads, "two": 2}


def write_decoder(model: LanguageModelConfig) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.model,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.groups or model.heads,
        "head_dim": model.head_width,
        "intermediate_size": model.hidden,
        "rms_norm_eps": model.norm_eps,
        "hidden_act": THEIR_ACTIVATIONS[model.activation],
        "attention_dropout": model.attention_dropout,
        "rope_parameters": write_rotary(model),
        TIED: model.tied,
    }


def write_rotary(model: LanguageModelConfig) -> dict[str, Any]:
    schemes = [part for part in first_recipe(model).query_key_positions if isinstance(part, Rotary)]
    scheme = schemes[0] if schemes else Rotary()
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": scheme.theta}
    if not isinstance(scaling := scheme.scaling, RotaryScaling):
        return found
    if scaling.length == 1:
        return found | {"rope_type": "linear", "factor": scaling.factor}
    return found | {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.slow,
        "high_freq_factor": scaling.fast,
        "original_max_position_embeddings": scaling.length,
    }


def read_rotary(config: CheckpointConfig) -> Rotary:
    """transformers 5 has one table of it, earlier versions have two."""
    found = {**(config.values.get("rope_scaling") or {}), **(config.values.get("rope_parameters") or {})}
    rope = CheckpointConfig(found)
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0))
    kind = rope.text("rope_type", rope.text("type", "default"))
    match kind:
        case "default":
            return Rotary(theta=theta, pairs="halves")
        case "linear":
            return Rotary(theta=theta, pairs="halves", scaling=RotaryScaling(rope.number("factor", 1.0), length=1))
        case "llama3":
            scaling = RotaryScaling(
                rope.number("factor", 8.0),
                length=rope.whole("original_max_position_embeddings", 8192),
                slow=rope.number("low_freq_factor", 1.0),
                fast=rope.number("high_freq_factor", 4.0),
            )
            return Rotary(theta=theta, pairs="halves", scaling=scaling)
    raise ValueError(f"config.json: rope_type = {kind!r:.80} is not known here; there are default, linear and llama3")


# --- BERT ---


BERT = """
encoder.embedding.weight                              bert.embeddings.word_embeddings.weight    target m -> target m
encoder.segment_embedding                             bert.embeddings.token_type_embeddings
encoder.positions.learned.0                           bert.embeddings.position_embeddings
encoder.embedding_norm                                bert.embeddings.LayerNorm
encoder.context.layers.*.attention.{query,key,value}  bert.encoder.layer.*.attention.self.{query,key,value}
encoder.context.layers.*.attention.output             bert.encoder.layer.*.attention.output.dense
encoder.context.layers.*.residual_attention.norm      bert.encoder.layer.*.attention.output.LayerNorm
encoder.context.layers.*.feed_forward.up              bert.encoder.layer.*.intermediate.dense
encoder.context.layers.*.feed_forward.down            bert.encoder.layer.*.output.dense
encoder.context.layers.*.residual_feed_forward.norm   bert.encoder.layer.*.output.LayerNorm
"""
BERT_CLASSIFIER = parse_table(f"""
{BERT}
pooling.dense                                         bert.pooler.dense
output                                                classifier
""")


BERT_MASKED_LM = parse_table(f"""
{BERT}
transform                                             cls.predictions.transform.dense
norm                                                  cls.predictions.transform.LayerNorm
bias                                                  cls.predictions.bias              target -> target
""")


def read_bert(config: CheckpointConfig) -> EncoderConfig:
    config.require(is_decoder=False, add_cross_attention=False)
    if (kind := config.text("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(f"config.json: position_embedding_type = {kind!r:.80} is not known here; absolute is")
    model = config.whole("hidden_size", 768)
    return EncoderConfig(
        kind="transformer",
        layers=config.whole("num_hidden_layers", 12),
        model=model,
        heads=config.whole("num_attention_heads", 12),
        hidden=config.whole("intermediate_size", 3072),
        norm="post",
        norm_eps=config.number("layer_norm_eps", 1e-12),
        activation=config.activation("hidden_act", "gelu"),
        embedding_scale="none",
        embedding_norm=True,
        segments=config.whole("type_vocab_size", 2),
        recipe=Recipe(position=Learned(config.whole("max_position_embeddings", 512), model)),
        dropout=config.number("hidden_dropout_prob", 0.1),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1),
    )


def write_bert(model: EncoderConfig) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.model,
        "num_attention_heads": model.heads,
        "intermediate_size": model.hidden,
        "max_position_embeddings": max_positions(model),
        "type_vocab_size": max(1, model.segments),
        "hidden_act": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_eps": model.norm_eps,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }


# --- ViT ---


VIT = parse_table("""
encoder.patches.project.weight                   vit.embeddings.patch_embeddings.projection.weight  o c y x -> o (y x c)
encoder.patches.project.bias                     vit.embeddings.patch_embeddings.projection.bias
encoder.positions.learned.0.weight               vit.embeddings.position_embeddings                 1 t m -> t m
encoder.pool.token                               vit.embeddings.cls_token                           1 1 m -> m
encoder.layers.*.residual_attention.norm         vit.encoder.layer.*.layernorm_before
encoder.layers.*.attention.{query,key,value}     vit.encoder.layer.*.attention.attention.{query,key,value}
encoder.layers.*.attention.output                vit.encoder.layer.*.attention.output.dense
encoder.layers.*.residual_feed_forward.norm      vit.encoder.layer.*.layernorm_after
encoder.layers.*.feed_forward.up                 vit.encoder.layer.*.intermediate.dense
encoder.layers.*.feed_forward.down               vit.encoder.layer.*.output.dense
encoder.norm                                     vit.layernorm
output                                           classifier
""")


def read_vit(config: CheckpointConfig) -> VisionConfig:
    config.require(qkv_bias=True)
    if (activation := config.activation("hidden_act", "gelu")) != "gelu":
        raise ValueError(f"config.json: hidden_act = {activation!r} is not known of a ViT here; gelu is")
    model, patch, side = (
        config.whole("hidden_size", 768),
        config.whole("patch_size", 16),
        config.whole("image_size", 224),
    )
    return VisionConfig(
        kind="vit",
        patch=patch,
        layers=config.whole("num_hidden_layers", 12),
        model=model,
        heads=config.whole("num_attention_heads", 12),
        hidden=config.whole("intermediate_size", 3072),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        pool="class",
        class_position=True,
        recipe=Recipe(position=Learned(1 + (side // max(patch, 1)) ** 2, model)),
        dropout=config.number("hidden_dropout_prob", 0.0),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.0),
    )


def write_vit(model: VisionConfig) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.model,
        "num_attention_heads": model.heads,
        "intermediate_size": model.hidden,
        "patch_size": model.patch,
        "image_size": model.patch * isqrt(max_positions(model) - 1),
        "layer_norm_eps": model.norm_eps,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }


# --- all of them ---


EMBEDDING_COPIES = {
    "lm_head.weight": "model.shared.weight",
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
}
# two tables where a class has three, and one that nothing reads
PAIR_COPIES = EMBEDDING_COPIES | {"model.shared.weight": "model.decoder.embed_tokens.weight"}
SINUSOIDS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# by the architecture that config.json names; a run is exported to the first that it is one of
FAMILIES: dict[str, Family] = {
    "MarianMTModel": Family(
        "translation",
        read_marian,
        write_marian,
        lambda model: MARIAN if model.tie in ("all", "input") else MARIAN_PAIR,
        tied=EMBEDDING_COPIES,
        ignored=SINUSOIDS,
        tags="source",
    ),
    "PegasusForConditionalGeneration": Family(
        "translation",
        read_pegasus,
        write_pre_norm,
        lambda model: PEGASUS if model.tie in ("all", "input") else PEGASUS_PAIR,
        tied=PAIR_COPIES,
        ignored=SINUSOIDS,
    ),
    "BlenderbotForConditionalGeneration": Family(
        "translation",
        read_blenderbot,
        write_blenderbot,
        lambda model: BLENDERBOT if model.tie in ("all", "input") else BLENDERBOT_PAIR,
        tied=PAIR_COPIES,
    ),
    "M2M100ForConditionalGeneration": Family(
        "translation",
        read_m2m100,
        write_seq2seq,
        lambda model: M2M100,
        tied=EMBEDDING_COPIES,
        ignored=("model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
        tags="both",
    ),
    "T5ForConditionalGeneration": Family(
        "translation",
        read_t5,
        write_t5,
        lambda model: T5[model.feed_forward_type],
        tied={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
        # some files have it, and it was never used
        ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    ),
    "GPT2LMHeadModel": Family(
        "language_modeling",
        read_gpt2,
        write_gpt2,
        lambda model: GPT2,
        base="transformer.",
        tied={"lm_head.weight": "transformer.wte.weight"},
        ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    ),
    "CTRLLMHeadModel": Family(
        "language_modeling",
        read_ctrl,
        write_ctrl,
        lambda model: CTRL,
        base="transformer.",
        tied={"lm_head.weight": "transformer.w.weight"},
    ),
    "LlamaForCausalLM": Family(
        "language_modeling",
        read_llama,
        write_decoder,
        llama_table,
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
        sizes=llama_sizes,
    ),
    "Qwen3ForCausalLM": Family(
        "language_modeling",
        read_qwen3,
        write_decoder,
        llama_table,
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        sizes=llama_sizes,
    ),
    "BertForSequenceClassification": Family(
        "sequence_classification",
        read_bert,
        write_bert,
        lambda model: BERT_CLASSIFIER,
        base="bert.",
        ignored=("bert.embeddings.position_ids",),
    ),
    "BertForMaskedLM": Family(
        "masked_language_modeling",
        read_bert,
        write_bert,
        lambda model: BERT_MASKED_LM,
        base="bert.",
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(
            *("bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"),
            *("cls.seq_relationship.weight", "cls.seq_relationship.bias"),  # whether two sentences follow each other
        ),
    ),
    "BertModel": Family(
        "masked_language_modeling",
        read_bert,
        write_bert,
        lambda model: parse_table(BERT),
        base="bert.",
        ignored=("bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"),
    ),
    "ViTForImageClassification": Family(
        "image_classification",
        read_vit,
        write_vit,
        lambda model: VIT,
        base="vit.",
        ignored=("vit.pooler.dense.weight", "vit.pooler.dense.bias"),
        sizes=lambda model: {"y": model.patch, "x": model.patch},
    ),
    "GGUF llama": Family("language_modeling", read_gguf_llama, write_decoder, lambda model: GGUF_LLAMA),
}
