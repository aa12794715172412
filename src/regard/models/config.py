"""Model configurations: those of translation and text models, and the models built from them."""

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from regard.attention import (
    Additive,
    Bilinear,
    Dot,
    InducingPoints,
    LatentKV,
    LayerForm,
    Learned,
    Linformer,
    NativeSparse,
    Recipe,
    RecipeSizes,
    RelativeBias,
    RelativeVectors,
    Sinusoidal,
    TreeDepth,
    TreePath,
    get_layer_recipes,
    parse_part,
)
from regard.attention.backends.reference import fold_query
from regard.attention.parts import attach_own_parts, find_named
from regard.layers.embedding import SCALES, TIES, TiedEmbeddings
from regard.layers.pooling import (
    AttentionPooling,
    ClassTokenPooling,
    LastPooling,
    MaxPooling,
    MeanPooling,
    Pooling,
    TokenWeightPooling,
)
from regard.layers.rnn import CELLS, RNNLayers
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import ACTIVATIONS, FEED_FORWARDS, NORM_ORDERS, NORM_TYPES
from regard.models.baselines import LogRatioPooling, TfIdfPooling
from regard.models.config_base import AT_LEAST_0, Choices, ConfigBase, OneRecipe, Ranges, RecipeText, recipe_text
from regard.models.rnn_seq2seq import (
    READOUTS,
    BackwardStateBridge,
    BahdanauDecoder,
    CopyBridge,
    InputFeedingDecoder,
    LuongDecoder,
    RNNAttentionSeq2Seq,
    RNNEncoder,
    RNNSeq2Seq,
)
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer, make_causal

# --- translation and text models ---


RNN_KINDS = ("elman", "gru", "lstm")
LUONG_KINDS = ("luong-dot", "luong-general")
RNN_ATTENTION_KINDS = ("bahdanau", *LUONG_KINDS)
KINDS = (*RNN_KINDS, *RNN_ATTENTION_KINDS, "transformer")
"""What `ModelConfig.kind` may be: the ladder from the Elman network to the Transformer.

Examples:
    >>> KINDS
    ('elman', 'gru', 'lstm', 'bahdanau', 'luong-dot', 'luong-general', 'transformer')
"""

# fields that Transformers alone can use
STACK_FIELDS = (
    *("heads", "groups", "head", "norm", "norm_type", "norm_eps", "qk_norm", "feed_forward_type", "activation", "bias"),
    *("output_gate", "attention_dropout", "embedding_scale", "shared_positions"),
)
# what these may be
STACK_CHOICES: Choices = {
    "norm": tuple(NORM_ORDERS),
    "norm_type": tuple(NORM_TYPES),
    "feed_forward_type": tuple(FEED_FORWARDS),
    "activation": tuple(ACTIVATIONS),
}
# fields that not every kind can use
USED_BY: Choices = {
    **dict.fromkeys((*STACK_FIELDS, "decoder_layers", "encoder", "decoder"), ("transformer",)),
    "cross": (*RNN_ATTENTION_KINDS, "transformer"),
    "cell": RNN_ATTENTION_KINDS,
    "directions": (*RNN_KINDS, *LUONG_KINDS),
    "readout": ("bahdanau",),
    "input_feeding": LUONG_KINDS,
}
CHOICES: Choices = {
    "kind": KINDS,
    "tie": tuple(TIES),
    **STACK_CHOICES,
    "embedding_scale": tuple(SCALES),
    "cell": ("", *CELLS),
    "readout": tuple(READOUTS),
}


# layers, width, hidden width, heads
TEXT_SIZES = {"tiny": (2, 128, 256, 4), "small": (4, 256, 1024, 4), "base": (6, 512, 2048, 8)}


@dataclass(frozen=True, kw_only=True)
class TextModelConfig(ConfigBase):
    """Abstract: the keys that all models of texts have."""

    sizes: ClassVar[tuple[str, ...]] = tuple(TEXT_SIZES)
    default_size: ClassVar[str] = "tiny"

    kind: str
    layers: int = 2
    model: int = 128
    hidden: int = 256
    dropout: float = 0.1
    heads: int = 4
    groups: int | None = None
    head: int | None = None
    norm: str = "pre"
    norm_type: str = "layer"
    norm_eps: float = 1e-5
    qk_norm: bool = False
    output_gate: bool = False
    feed_forward_type: str = "plain"
    activation: str = "relu"
    bias: bool = True
    attention_dropout: float = 0.0
    embedding_scale: str = "input"
    shared_positions: bool = False

    @property
    def head_width(self) -> int:
        return self.model // self.heads if self.head is None else self.head


@dataclass(frozen=True, kw_only=True)
class ModelConfig(TextModelConfig):
    """A model that translates. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: elman, gru or lstm without attention; with it bahdanau, luong-dot or luong-general; transformer.
        layers: how many the encoder has, and as many the decoder.
        decoder_layers: how many the decoder has, if not as many.
        embedding_scale: where √model comes in: embeddings are multiplied by it (input), or the states before the logits
            are divided by it (output), or neither (none).
        output_bias: whether the logits' bias is learned.
        tie: which embeddings are one: none, those of target and output (target), of source and target (input), or all
            three.
        encoder: the recipe of the encoder's self-attention, in TOML as Recipe.to_toml writes it or as a `Recipe`, or a
            list with one for each layer; a line left out of the TOML is the kind's own, such as sinusoidal positions.
        decoder: the same, of the decoder's self-attention.
        cross: the same, of the decoder's attention to the source; Bahdanau's own has the additive score.
        cell: the cell of decoders with attention: elman, gru or lstm; left out, gru for Bahdanau, lstm for Luong.
        directions: 2 lets the encoder read backwards as well, each way with half of `hidden`; Bahdanau's always does,
            each way with all of it.
        readout: the layer between Bahdanau's states and the logits: maxout or tanh, or a module of your own.
        input_feeding: Luong's decoder is fed its last attentional vector.

    Examples:
        >>> config = ModelConfig.from_size("transformer", "tiny")
        >>> config.layers, config.model, config.heads, config.hidden
        (2, 128, 4, 256)
        >>> ModelConfig(kind="transformer", model=16, heads=3)
        Traceback (most recent call last):
            ...
        ValueError: heads = 3 does not divide model = 16; choose one that does
    """

    choices: ClassVar[Choices] = CHOICES
    used_by: ClassVar[Choices] = USED_BY
    sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base")
    default_size: ClassVar[str] = "small"

    decoder_layers: int | None = None
    tie: str = "none"
    output_bias: bool = True
    encoder: RecipeText = ""
    decoder: RecipeText = ""
    cross: RecipeText = ""
    cell: str = ""
    directions: int = 1
    readout: str = "maxout"
    input_feeding: bool = False

    def __post_init__(self):
        self.check()
        check_text_heads(self)
        if self.hidden % self.directions:
            raise ValueError(f"two directions cannot share hidden = {self.hidden}; make it even")
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
            for place in ("encoder", "decoder", "cross"):
                if self.kind == "transformer":
                    stack = make_stack_config(self)
                    if place != "encoder" and self.decoder_layers is not None:
                        stack = replace(stack, layers=self.decoder_layers)
                    stack.recipes(build_layer_recipes(self, place), place)
                else:
                    build_seq2seq_recipe(self, place)

    @classmethod
    def from_size(cls, kind: str, size: str = "small") -> "ModelConfig":
        sizes = TRANSFORMER_SIZES if kind == "transformer" else RECURRENT_SIZES
        if size not in sizes:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(sizes)}")
        return sizes[size](kind)


Size = Callable[[str], ModelConfig]
TRANSFORMER_SIZES: dict[str, Size] = {
    "tiny": lambda kind: ModelConfig(kind=kind, layers=2, model=128, heads=4, hidden=256),
    "small": lambda kind: ModelConfig(kind=kind, layers=4, model=256, heads=4, hidden=1024),
    # Vaswani et al. 2017, table 3
    "base": lambda kind: ModelConfig(kind=kind, layers=6, model=512, heads=8, hidden=2048, norm="post", tie="target"),
}
RECURRENT_SIZES: dict[str, Size] = {
    "tiny": lambda kind: ModelConfig(kind=kind, layers=1, model=128, hidden=128),
    "small": lambda kind: ModelConfig(kind=kind, layers=1, model=256, hidden=512, dropout=0.3),
    "base": lambda kind: ModelConfig(kind=kind, layers=2, model=512, hidden=1024, dropout=0.3),
}


def build_layer_recipes(config: ModelConfig, place: str) -> LayerRecipes:
    """The recipes of one of a Transformer's three attentions: one for all layers, or one for each."""
    return parse_recipes(getattr(config, place), lambda text: parse_seq2seq_recipe(config, place, text))


def build_seq2seq_recipe(config: ModelConfig, place: str) -> Recipe:
    """The recipe of the one attention of a recurrent model."""
    if not isinstance(text := getattr(config, place), str):
        raise ValueError(f"{place} has {len(text)} recipes, and a {config.kind} has one attention; give one")
    return parse_seq2seq_recipe(config, place, text)


def parse_recipes(given: RecipeText, parse: Callable[[str], Recipe]) -> LayerRecipes:
    return tuple(parse(recipe_text(one)) for one in given) if isinstance(given, tuple) else parse(recipe_text(given))


def parse_seq2seq_recipe(config: ModelConfig, place: str, text: str) -> Recipe:
    """What the text says, and the kind's default elsewhere."""
    try:
        given, written = Recipe.from_toml(text), tomllib.loads(text)
        own = {name: part for name, part in default_parts(config, place).items() if name not in written}
        complete = replace(given, **own)
        check_seq2seq_recipe(config, complete)
    except ValueError as error:
        raise ValueError(f"the recipe {place!r}: {error}") from None
    return complete


def default_parts(config: ModelConfig, place: str) -> dict[str, Any]:
    match config.kind:
        case "transformer":
            return {} if place == "cross" else {"position": Sinusoidal()}
        case "bahdanau":
            return {"score": Additive(config.hidden, hidden=config.hidden, key=2 * config.hidden)}
        case "luong-general":
            return {"score": Bilinear(config.hidden)}
    return {"score": Dot()}


def check_seq2seq_recipe(config: ModelConfig, recipe: Recipe) -> None:
    """Parts with sizes of their own must have those of the model."""
    if config.kind == "transformer":
        heads, query, key = config.heads, config.head_width, config.head_width
    else:
        heads, query, key = 1, config.hidden, config.hidden * (2 if config.kind == "bahdanau" else 1)
    check_recipe_shapes(recipe, heads=heads, query=query, key=key, model=config.model)


def check_recipe_shapes(recipe: Recipe, *, heads: int, query: int, key: int, model: int) -> None:
    if why := recipe.score.shape_error(query, key):
        raise ValueError(why)
    width = fold_query(recipe, torch.empty(0, heads, 0, query)).shape[-1]
    problems = [scheme.shape_error(heads, width, 0) for scheme in recipe.score_positions]
    problems += [
        f"{scheme} adds to embeddings of width {scheme.model}, not {model}"
        for scheme in recipe.embedding_positions
        if isinstance(scheme, Learned) and scheme.model != model
    ]
    for why in filter(None, problems):
        raise ValueError(why)


# --- encoders, language models, embeddings and pooling ---


TRANSFORMER_KINDS = ("transformer",)
ENCODER_KINDS = ("embed", *RNN_KINDS, *TRANSFORMER_KINDS)
LANGUAGE_MODEL_KINDS = (*RNN_KINDS, *TRANSFORMER_KINDS)
POOLINGS = ("mean", "max", "last", "class", "tf-idf", "log-ratio", "weights", "attention")
WORD_EMBEDDING_KINDS = ("learned", "skip-gram", "file", "one-hot")
STATIC_POOLINGS = ("mean", "last", "tf-idf", "log-ratio", "weights")  # poolings that need no vectors to weigh tokens
TEXT_CHOICES: Choices = {**STACK_CHOICES, "embedding_scale": ("input", "none")}
TRANSFORMER_FIELDS: Choices = dict.fromkeys((*STACK_FIELDS, "recipe"), TRANSFORMER_KINDS)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TextModelConfig):
    """The encoder of a text. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: embed (no context); elman, gru or lstm; transformer.
        hidden: the width of recurrent states (both directions together), or of a Transformer's feed-forward layers.
        dropout: the share of values that training sets to zero, on embeddings, between layers and on the output.
        recipe: the recipe of attention, in TOML as Recipe.to_toml writes it or as a `Recipe`, or a list with one for
            each layer; TOML without a position means Sinusoidal(), and those in dependency trees need governors.
        attention_form: what a token attends to in place of one key and value of each token:
            "Linformer(max_length=512, rank=64)", mixtures, or "InducingPoints(16)", learned points.
        embedding_norm: whether the sum of a token's embeddings is normed before the first layer, as BERT's is.
        segments: how many segments have an embedding, which is added to their tokens' (Devlin et al. 2019); a text by
            itself is the first of them.
    """

    choices: ClassVar[Choices] = {"kind": ENCODER_KINDS, **TEXT_CHOICES}
    used_by: ClassVar[Choices] = {
        **TRANSFORMER_FIELDS,
        **dict.fromkeys(("attention_form", "embedding_norm", "segments"), TRANSFORMER_KINDS),
        **dict.fromkeys(("layers", "hidden"), LANGUAGE_MODEL_KINDS),
        "directions": RNN_KINDS,
    }

    directions: int = 1
    embedding_norm: bool = False
    segments: int = 0
    attention_form: str = ""
    recipe: RecipeText = ""

    ranges: ClassVar[Ranges] = {"segments": AT_LEAST_0}

    def __post_init__(self):
        self.check()
        if self.hidden % self.directions:
            raise ValueError(f"two directions cannot share hidden = {self.hidden}; make it even")
        check_text_sizes(self)

    @classmethod
    def from_size(cls, kind, size):
        return cls(kind=kind, **widths_of_size(kind, size))

    @property
    def form(self) -> LayerForm | None:
        return read_form(self.attention_form)

    @property
    def width(self) -> int:
        """Of the vectors that leave the encoder."""
        return self.hidden if self.kind in RNN_KINDS else self.model


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TextModelConfig):
    """A language model. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: elman, gru or lstm; or transformer, a decoder without a source.
        dropout: the share of values that training sets to zero between layers; a recurrent model uses one mask for all
            tokens of a text.
        input_dropout: the same on the embeddings, with one mask for all tokens of a text.
        output_dropout: the same on the states before the logits.
        word_dropout: the share of the vocabulary that is left out of a batch, wherever it occurs.
        weight_dropout: the share of weights between recurrent states that are set to zero, the same for all tokens
            (Merity et al. 2018).
        tied: the logits use the embedding's weights.
        output_bias: whether the logits' bias is learned.
        kv_rank: the rank of the latent that keys and values are made of, which is all that the cache keeps (multi-head
            latent attention, MLA); left out, they are made of the token.
        query_rank: of MLA: the rank of a latent that the queries are made of; left out, they are made of the token.
        rotary_head: of MLA: the first features of a head's key, which all heads share and the recipe's
            Rotary(fraction = rotary_head / head) rotates.
        value_head: of MLA: the width of a head's values; left out, that of its keys.
        attention_form: what a token attends to in place of one key and value of each earlier token:
            "NativeSparse(block=64, k=16, window=512)".
        recipe: the recipe of attention, in TOML or as a `Recipe`, or a list with one for each layer, or the name of one
            such as "3 gated delta : 1 full" (`LAYER_RECIPES`); causal in any case. `Window(n)` needs a cache of n − 1
            tokens, linear attention (`Feature()` and `Proportional()`) a state of fixed size.
    """

    choices: ClassVar[Choices] = {"kind": LANGUAGE_MODEL_KINDS, **TEXT_CHOICES}
    used_by: ClassVar[Choices] = {
        **TRANSFORMER_FIELDS,
        **dict.fromkeys(("kv_rank", "query_rank", "rotary_head", "value_head", "attention_form"), TRANSFORMER_KINDS),
        "weight_dropout": RNN_KINDS,
    }

    input_dropout: float = 0.0
    output_dropout: float = 0.0
    word_dropout: float = 0.0
    weight_dropout: float = 0.0
    tied: bool = True
    output_bias: bool = True
    activation: str = "gelu"
    kv_rank: int | None = None
    query_rank: int | None = None
    rotary_head: int = 0
    value_head: int | None = None
    attention_form: str = ""
    recipe: RecipeText = ""

    ranges: ClassVar[Ranges] = {"rotary_head": AT_LEAST_0}

    def __post_init__(self):
        self.check()
        if self.kv_rank is None and (self.rotary_head or self.value_head or self.query_rank):
            raise ValueError("query_rank, rotary_head and value_head are of latent attention; set kv_rank as well")
        if self.kv_rank is not None and self.attention_form:
            raise ValueError(f"kv_rank = {self.kv_rank} and attention_form are two forms of attention; set one of them")
        if found := [each for each in check_text_sizes(self) if needs_tree(each)]:
            raise ValueError(
                f"{found[0].position} needs the trees of whole sentences, which are unknown while a text is "
                "generated; use a position in the sequence, such as Sinusoidal()"
            )

    @classmethod
    def from_size(cls, kind, size):
        return cls(kind=kind, **widths_of_size(kind, size))

    @property
    def form(self) -> LayerForm | None:
        """What its layers attend to, in multi-head latent attention or as `attention_form` says."""
        if self.kv_rank is None:
            return read_form(self.attention_form)
        return LatentKV(rank=self.kv_rank, rotary=self.rotary_head, value=self.value_head, query_rank=self.query_rank)


LAYER_FORMS = {form.__name__: form for form in (InducingPoints, LatentKV, Linformer, NativeSparse)}


def read_form(text: str) -> LayerForm | None:
    """The form of attention that a text such as "NativeSparse(block=64)" describes; None if there is no text."""
    if not text:
        return None
    form = parse_part(attach_own_parts(text, LAYER_FORMS))
    if not isinstance(form, LayerForm):
        raise ValueError(f"attention_form = {text!r} is no form; write one of {', '.join(LAYER_FORMS)} with its sizes")
    return form


def widths_of_size(kind: str, size: str) -> dict[str, Any]:
    """The widths of one of the sizes, as far as the kind has them."""
    if size not in TEXT_SIZES:
        raise ValueError(f"no size is called {size!r}; there are {', '.join(TEXT_SIZES)}")
    layers, model, hidden, heads = TEXT_SIZES[size]
    match kind:
        case "transformer":
            return {"layers": layers, "model": model, "hidden": hidden, "heads": heads}
        case "embed":
            return {"model": model}
    return {"layers": max(1, layers // 2), "model": model, "hidden": 2 * model}


@dataclass(frozen=True, kw_only=True)
class WordEmbeddingConfig(ConfigBase):
    """How tokens are represented, before any context.

    Args:
        kind: learned (a vector, with the rest of the model), skip-gram (a vector learnt beforehand from the texts
            trained on), file (a vector learnt elsewhere, as `regard vectors` writes them), one-hot (no vector: an
            index into the vocabulary).
        dropout: the share of tokens that are left out while training.
        frozen: vectors learnt beforehand stay as they are.
        window: the words on each side that skip-gram learns to predict.
        epochs: how often skip-gram reads the texts.
        file: a file of vectors as wide as the model; its words are known, even those that no training text has.
        ngrams: of one-hot: 2 counts pairs of words as well, 3 triples.
        buckets: for pairs and triples; several of them may share one.
    """

    choices: ClassVar[Choices] = {"kind": WORD_EMBEDDING_KINDS}
    used_by: ClassVar[Choices] = {
        **dict.fromkeys(("window", "epochs"), ("skip-gram",)),
        "frozen": ("skip-gram", "file"),
        "file": ("file",),
        **dict.fromkeys(("ngrams", "buckets"), ("one-hot",)),
    }

    kind: str = "learned"
    dropout: float = 0.0
    frozen: bool = True
    window: int = 5
    epochs: int = 5
    file: str = ""
    ngrams: int = 1
    buckets: int = 2**18

    def __post_init__(self):
        self.check()
        if self.kind == "file" and not self.file:
            raise ValueError("words.kind = 'file' needs words.file = the path of vectors; regard vectors learns some")

    def resolve(self, folder: Path) -> "WordEmbeddingConfig":
        return replace(self, file=os.path.abspath(folder / self.file)) if self.file else self

    @property
    def is_frozen(self) -> bool:
        """Vectors from before that are not to be changed."""
        return self.kind in ("skip-gram", "file") and self.frozen


@dataclass(frozen=True, kw_only=True)
class PoolingConfig(ConfigBase):
    """How a text's tokens become one vector.

    Args:
        kind: mean, max, last, class (the first token's vector, through one layer more), tf-idf and log-ratio (by
            formulas, from the texts trained on), weights (one learned number for each word of the vocabulary),
            attention.
        recipe: the recipe of attention, in TOML or as a `Recipe`: its score and normaliser; `normaliser = "Hard()"`
            chooses one token.
    """

    choices: ClassVar[Choices] = {"kind": POOLINGS}
    used_by: ClassVar[Choices] = {"recipe": ("attention",)}

    kind: str = "attention"
    recipe: OneRecipe = ""

    def __post_init__(self):
        self.check()
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
            Recipe.from_toml(recipe_text(self.recipe))


def build_pooling(config: PoolingConfig, width: int, size: int) -> Pooling:
    """For vectors of this width, of tokens from a vocabulary of this size."""
    match config.kind:
        case "attention":
            return AttentionPooling(width, recipe=Recipe.from_toml(recipe_text(config.recipe)))
        case "weights":
            return TokenWeightPooling(size)
        case "class":
            return ClassTokenPooling(width)
        case "tf-idf":
            return TfIdfPooling(torch.zeros(size))
        case "log-ratio":
            return LogRatioPooling(size)
    return {"mean": MeanPooling, "max": MaxPooling, "last": LastPooling}[config.kind]()


def check_text_sizes(config: EncoderConfig | LanguageModelConfig) -> tuple[Recipe, ...]:
    """The recipe, if it and the sizes fit each other; what it learns is not for use."""
    check_text_heads(config)
    with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
        return text_recipes(config)


def text_recipes(config: EncoderConfig | LanguageModelConfig) -> tuple[Recipe, ...]:
    """The recipe of each layer: what the text says, and sinusoidal positions where it says nothing of positions."""

    def parse(text: str) -> Recipe:
        try:
            recipe = Recipe.from_toml(text)
            if "position" not in tomllib.loads(text):
                recipe = replace(recipe, position=Sinusoidal())
            if config.kind == "transformer":
                head = config.head_width
                check_recipe_shapes(recipe, heads=config.heads, query=head, key=head, model=config.model)
                if config.form is not None:
                    whole = make_causal(recipe) if isinstance(config, LanguageModelConfig) else recipe
                    config.form.check(whole, config.heads, config.groups or config.heads, head)
        except ValueError as error:
            raise ValueError(f"the recipe: {error}") from None
        return recipe

    if isinstance(config, LanguageModelConfig) and (name := recipe_name(config.recipe)):
        sizes = RecipeSizes(heads=config.heads, head=config.head_width)
        texts = tuple(recipe.to_toml() for recipe in get_layer_recipes(name, config.layers, sizes))
        return make_stack_config(config).recipes(tuple(map(parse, texts)))
    return make_stack_config(config).recipes(parse_recipes(config.recipe, parse))


def recipe_name(given: RecipeText) -> str:
    """The name of a recipe of layers, which is one word or more and no line of TOML; empty if there is none."""
    return given.strip() if isinstance(given, str) and "=" not in given else ""


def check_heads(model: int, heads: int) -> None:
    if model % heads:
        raise ValueError(f"heads = {heads} does not divide model = {model}; choose one that does")


def check_text_heads(config: TextModelConfig) -> None:
    if config.kind == "transformer" and config.head is None:
        check_heads(config.model, config.heads)
    if config.groups is not None and config.heads % config.groups:
        raise ValueError(f"groups = {config.groups} does not divide heads = {config.heads}; choose one that does")


def needs_tree(*recipes: Recipe) -> bool:
    """Does a position need dependency trees?"""
    schemes = [part for recipe in recipes for part in (*recipe.embedding_positions, *recipe.score_positions)]
    relations = [part.relation for part in schemes if isinstance(part, RelativeBias | RelativeVectors)]
    return any(isinstance(part, TreeDepth | TreePath) for part in (*schemes, *relations))


def make_stack_config(config: EncoderConfig | LanguageModelConfig | ModelConfig) -> StackConfig:
    return StackConfig(
        layers=config.layers,
        model=config.model,
        heads=config.heads,
        groups=config.groups,
        head=config.head,
        hidden=config.hidden,
        norm=config.norm,
        norm_type=config.norm_type,
        norm_eps=config.norm_eps,
        qk_norm=config.qk_norm,
        output_gate=config.output_gate,
        form=None if isinstance(config, ModelConfig) else config.form,
        feed_forward_type=config.feed_forward_type,
        activation=config.activation,
        bias=config.bias,
        shared_positions=config.shared_positions,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )


# --- building translation models ---


def build_model(config: ModelConfig, source_size: int, target_size: int) -> Seq2Seq:
    """A model with new weights, for vocabularies of these sizes.

    Examples:
        >>> model = build_model(ModelConfig.from_size("transformer", "tiny"), source_size=1000, target_size=1200)
        >>> type(model).__name__, count_parameters(model)
        ('Transformer', 1099440)
    """
    output = config.hidden if config.kind in RNN_KINDS else config.model
    embeddings = TiedEmbeddings(
        source_size,
        target_size,
        config.model,
        tie=config.tie,
        output=output,
        scale=config.embedding_scale,
        bias=config.output_bias,
    )
    if config.kind == "transformer":
        return build_transformer(config, embeddings)
    if config.kind in RNN_KINDS:
        decoder = build_rnn(config, config.kind, config.model)
        return RNNSeq2Seq(embeddings, build_copy_encoder(config, config.kind), decoder, dropout=config.dropout)
    return build_bahdanau(config, embeddings) if config.kind == "bahdanau" else build_luong(config, embeddings)


def build_transformer(config: ModelConfig, embeddings: TiedEmbeddings) -> Transformer:
    encoder, decoder, cross = (build_layer_recipes(config, place) for place in ("encoder", "decoder", "cross"))
    return Transformer(
        embeddings,
        make_stack_config(config),
        decoder_layers=config.decoder_layers,
        encoder=encoder,
        decoder=decoder,
        cross=cross,
    )


def build_bahdanau(config: ModelConfig, embeddings: TiedEmbeddings) -> RNNAttentionSeq2Seq:
    cell, model, hidden = config.cell or "gru", config.model, config.hidden
    bridge = BackwardStateBridge(hidden, hidden, parts=CELLS[cell].state_size)
    encoder = RNNEncoder(build_rnn(config, cell, model, directions=2), bridge, dropout=config.dropout)
    readout = find_named(config.readout, READOUTS, "readout")(hidden + 2 * hidden + model, model)
    decoder = BahdanauDecoder(build_rnn(config, cell, model + 2 * hidden), readout)
    return RNNAttentionSeq2Seq(
        embeddings, encoder, decoder, recipe=build_seq2seq_recipe(config, "cross"), dropout=config.dropout
    )


def build_luong(config: ModelConfig, embeddings: TiedEmbeddings) -> RNNAttentionSeq2Seq:
    cell, model, hidden = config.cell or "lstm", config.model, config.hidden
    decoder = (
        InputFeedingDecoder(build_rnn(config, cell, model + model), context=hidden, concluded=model)
        if config.input_feeding
        else LuongDecoder(build_rnn(config, cell, model), context=hidden, concluded=model)
    )
    encoder = build_copy_encoder(config, cell)
    return RNNAttentionSeq2Seq(
        embeddings, encoder, decoder, recipe=build_seq2seq_recipe(config, "cross"), dropout=config.dropout
    )


def build_copy_encoder(config: ModelConfig, cell: str) -> RNNEncoder:
    """An encoder whose last state, both directions concatenated, is the decoder's initial one."""
    ways = config.directions
    rnn = build_rnn(config, cell, config.model, hidden=config.hidden // ways, directions=ways)
    return RNNEncoder(rnn, CopyBridge(ways), dropout=config.dropout)


def build_rnn(
    config: ModelConfig, cell: str, width: int, *, hidden: int | None = None, directions: int = 1
) -> RNNLayers:
    hidden = config.hidden if hidden is None else hidden
    return RNNLayers(
        width, hidden, cell=CELLS[cell], layers=config.layers, directions=directions, dropout=config.dropout
    )
