"""Text encoders: tokens or characters to vectors in context; classifiers, taggers and masked language models.

A masked language model is an encoder that must predict words that are masked, from their context (the cloze of Taylor
1953; Devlin et al. 2019), and some that are visible or replaced by another, so that it uses the context everywhere.
Unlike those of `baselines`, its vectors are contextual: *light* has as many as occurrences.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from regard.attention import AttentionSites, Context, DependencyTree, Padding, Recipe, SiteName
from regard.attention.parts import find_named
from regard.data.batching import pad_rows
from regard.data.tokenizers.base import UNK, WordTokenizer
from regard.layers.embedding import Embedding, PositionalEmbedding
from regard.layers.pooling import Pooling, StaticPooling, token_mask
from regard.layers.rnn import CELLS, RNNLayers
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import ACTIVATIONS, EncoderLayer, encode_layers
from regard.models.baselines import BagOfWordsClassifier, CorpusWeights, SkipGram, WordVectors, train_vectors
from regard.models.config import (
    RNN_KINDS,
    STATIC_POOLINGS,
    EncoderConfig,
    PoolingConfig,
    WordEmbeddingConfig,
    build_pooling,
    check_text_sizes,
    make_stack_config,
    needs_tree,
    text_recipes,
)
from regard.ops import dispatch
from regard.ops.dropout import Dropout

PAD_CHARACTER = 0  # padding
CHARACTER_WIDTH = 48  # the width of a character's embedding


class CharEncoder(nn.Module):
    """The last states of a bidirectional GRU over the characters, concatenated.

    Args:
        size: how many characters there are, padding included.
        width: of the words' vectors; even.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"two directions cannot share a width of {width}; make it even")
        self.embedding, self.width = Embedding(size, CHARACTER_WIDTH), width
        self.rnn = RNNLayers(CHARACTER_WIDTH, width // 2, cell=CELLS["gru"], directions=2)

    def forward(self, characters: Int[Tensor, "b t c"]) -> Float[Tensor, "b t m"]:
        """A word's characters end where padding begins; an empty word is 0. The same word has the same vector."""
        rows = rearrange(characters, "b t c -> (b t) c")
        if not self.rnn.may_sync:  # so the distinct words cannot be found
            return rearrange(self.encode_padded(rows), "(b t) m -> b t m", b=len(characters))
        words, inverse = rows.unique(dim=0, return_inverse=True)  # few words make up most of a text
        lengths = (words != PAD_CHARACTER).sum(1)
        _, (last, *_) = self.rnn(self.embedding.embed(words), lengths=lengths.clamp(min=1))
        vectors = rearrange(last, "n way h -> n (way h)").masked_fill((lengths == 0)[:, None], 0.0)
        return rearrange(vectors[inverse], "(b t) m -> b t m", b=len(characters))

    def encode_padded(self, words: Int[Tensor, "n c"]) -> Float[Tensor, "n m"]:
        """A vector for each, with repetitions: forwards its last state, backwards the one at its first character.

        The shapes do not depend on the words.
        """
        lengths = (words != PAD_CHARACTER).sum(1)
        states = self.rnn.forward_padded(self.embedding.embed(words), lengths.clamp(min=1))
        forth, back = states.chunk(2, -1)
        n, c = words.shape
        ends = torch.arange(n, device=words.device) * c + (lengths - 1).clamp(min=0)
        last = rearrange(forth, "n c h -> (n c) h").index_select(0, ends)
        return torch.cat((last, back[:, 0]), -1).masked_fill((lengths == 0)[:, None], 0.0)


Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Governors = Int[Tensor, "b t"]
Characters = Int[Tensor, "b t c"]
X = Float[Tensor, "b t m"]
Embedded = Float[Tensor, "b t embedding"]


class ContextLayers(nn.Module, ABC):
    """Abstract: embeddings to vectors in context."""

    @abstractmethod
    def forward(self, x: X, lengths: Lengths, tree: DependencyTree | None) -> X: ...


class NoContext(ContextLayers):
    """No context: a token has the same vector everywhere."""

    def forward(self, x, lengths, tree):
        return x


class RNNContext(ContextLayers):
    """A recurrent network, in one direction or in both."""

    def __init__(self, rnn: RNNLayers, *, dropout: float = 0.0):
        super().__init__()
        self.rnn, self.dropout = rnn, Dropout(dropout)

    def forward(self, x, lengths, tree):
        return self.dropout(self.rnn.states(x, lengths))


class TransformerContext(ContextLayers):
    """Transformer layers with the recipe's attention; of several recipes, each has its own."""

    def __init__(self, stack: StackConfig, recipe: LayerRecipes):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(stack, each) for each in stack.recipes(recipe))
        self.norm = stack.final_norm()

    def forward(self, x, lengths, tree):
        return encode_layers(self.layers, self.norm, x, Context(Padding(lengths), tree=tree))


class Encoder(nn.Module):
    """Tokens to vectors in context, 0 on padding. Padding changes nothing, whatever it holds.

    Args:
        config: the kind and its sizes.
        size: of the vocabulary.
    """

    attention_sites: ClassVar[AttentionSites] = {"context.layers.*.attention": SiteName("layers.*", "text", "text")}

    def __init__(self, config: EncoderConfig, size: int):
        super().__init__()
        recipes = text_recipes(config)
        self.width, self.needs_governors = config.width, config.kind == "transformer" and needs_tree(*recipes)
        self.embedding = Embedding(size, config.model, scaled=config.embedding_scale == "input")
        self.segment_embedding = Embedding(config.segments, config.model, scaled=False) if config.segments else None
        self.embedding_norm = make_stack_config(config).make_norm(config.model) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.positions = PositionalEmbedding(recipes[0].fresh() if config.kind == "transformer" else Recipe())
        self.context = build_context(config, recipes)

    def forward(
        self, tokens: Tokens, lengths: Lengths, governors: Governors | None = None, extra: Embedded | None = None
    ) -> X:
        """Text b ends after lengths[b] tokens. `governors` are the heads of CoNLL-U (1-based, 0 is the root), by token;
        `extra` is added to the embeddings."""
        mask, tree = token_mask(tokens, lengths), self.build_tree(tokens, lengths, governors)
        x = self.embed(tokens, lengths, tree, extra)
        return self.context(x, lengths, tree).masked_fill(~mask[..., None], 0.0)

    def embed(self, tokens: Tokens, lengths: Lengths, tree: DependencyTree | None, extra: Embedded | None = None) -> X:
        x = self.embedding.embed(tokens.where(token_mask(tokens, lengths), 0))
        if self.segment_embedding is not None:
            x = x + self.segment_embedding.weight[0]  # one text is all of the first segment
        x = self.positions(x if extra is None else x + extra, 0, tree)
        return self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))

    def build_tree(self, tokens: Tokens, lengths: Lengths, governors: Governors | None) -> DependencyTree | None:
        if not self.needs_governors:
            return None
        if governors is None:
            raise ValueError(
                f"{self.positions.recipe.position} needs the governors of the sentences' tokens: give governors=..., "
                "or use a position in the sequence, such as Sinusoidal()"
            )
        return DependencyTree.from_governors(governors.where(token_mask(tokens, lengths), 0))


def build_context(config: EncoderConfig, recipes: Sequence[Recipe]) -> ContextLayers:
    if config.kind in RNN_KINDS:
        rnn = RNNLayers(
            config.model,
            config.hidden // config.directions,
            cell=CELLS[config.kind],
            layers=config.layers,
            directions=config.directions,
            dropout=config.dropout,
        )
        return RNNContext(rnn, dropout=config.dropout)
    return TransformerContext(make_stack_config(config), recipes) if config.kind == "transformer" else NoContext()


class SequenceClassifier(nn.Module):
    """One label for a text: softmax(c + V pool(vectors)) of the labels."""

    attention_sites: ClassVar[AttentionSites] = {
        "encoder.context.layers.*.attention": SiteName("encoder.*", "text", "text")
    }

    def __init__(self, encoder: Encoder, pooling: Pooling, *, labels: int):
        super().__init__()
        self.encoder, self.pooling, self.output = encoder, pooling, make_classifier_head(encoder.width, labels)

    def forward(
        self, tokens: Tokens, lengths: Lengths, governors: Governors | None = None
    ) -> Float[Tensor, "b labels"]:
        return self.output(self.pooling(self.encoder(tokens, lengths, governors), tokens, lengths))


class TokenClassifier(nn.Module):
    """One label for every word, from the first of its pieces.

    Args:
        encoder: of the pieces.
        labels: how many there are to choose from.
        char_encoder: of the characters of each piece, if they are read as well.
    """

    attention_sites: ClassVar[AttentionSites] = SequenceClassifier.attention_sites

    def __init__(self, encoder: Encoder, *, labels: int, char_encoder: CharEncoder | None = None):
        super().__init__()
        self.encoder, self.output, self.char_encoder = (
            encoder,
            make_classifier_head(encoder.width, labels),
            char_encoder,
        )

    def forward(
        self,
        tokens: Tokens,
        lengths: Lengths,
        first_pieces: Int[Tensor, "b w"],
        governors: Governors | None = None,
        characters: Characters | None = None,
    ) -> Float[Tensor, "b w labels"]:
        """first_pieces[b, w] is the index of word w's first piece; beyond a text's last word it may be any index."""
        return self.classify_tokens(
            self.encoder(tokens, lengths, governors, self.encode_characters(characters)), first_pieces
        )

    def encode_characters(self, characters: Characters | None) -> X | None:
        if self.char_encoder is None:
            return None
        if characters is None:
            raise ValueError("this model reads the characters of words as well; give characters=...")
        return self.char_encoder(characters)

    def classify_tokens(self, x: X, first_pieces: Int[Tensor, "b w"]) -> Float[Tensor, "b w labels"]:
        # on a GPU this would synchronise, and torch raises its own error
        if first_pieces.device.type == "cpu" and not dispatch.is_exporting():
            check_first_pieces(x.shape[1], first_pieces)
        # whole rows: the deterministic backward pass of an element-wise gather would synchronise the GPU
        rows = first_pieces + torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
        states = rearrange(x, "b t m -> (b t) m").index_select(0, rearrange(rows, "b w -> (b w)"))
        return self.output(rearrange(states, "(b w) m -> b w m", b=len(x)))


def check_first_pieces(tokens: int, first_pieces: Int[Tensor, "b w"]) -> None:
    if first_pieces.numel() and not 0 <= first_pieces.min() <= first_pieces.max() < tokens:
        raise ValueError(
            f"first pieces are at 0 to {tokens - 1}, not at {int(first_pieces.min())} or {int(first_pieces.max())}"
        )


def make_classifier_head(width: int, labels: int) -> nn.Linear:
    if labels < 2:
        raise ValueError(f"there must be 2 labels or more to choose from, not {labels}")
    return nn.Linear(width, labels)


# --- text classifiers: embeddings, encoder and pooling combined ---


def check_combination(words: WordEmbeddingConfig, model: EncoderConfig, pooling: PoolingConfig) -> None:
    """One-hot tokens can only be counted, and texts come without dependency trees."""
    if model.kind == "transformer" and needs_tree(*check_text_sizes(model)):
        raise ValueError(
            f"model.recipe = {model.recipe!r} needs dependency trees, which texts do not have; use a position in the "
            "sequence, such as Sinusoidal()"
        )
    if words.kind == "one-hot" and (model.kind != "embed" or pooling.kind not in STATIC_POOLINGS):
        raise ValueError(
            f"words.kind = 'one-hot' cannot be read by model.kind = {model.kind!r} and pooling.kind = "
            f"{pooling.kind!r}: tokens without vectors are only counted; choose model.kind = 'embed' and pooling.kind "
            f"from {', '.join(STATIC_POOLINGS)}, or words.kind = 'learned'"
        )


def build_classifier(
    words: WordEmbeddingConfig, model: EncoderConfig, pooling: PoolingConfig, *, size: int, labels: int
) -> SequenceClassifier | BagOfWordsClassifier:
    """With new weights, for a vocabulary of this size."""
    check_combination(words, model, pooling)
    if words.kind == "one-hot":
        weigh = build_pooling(pooling, size, size)
        assert isinstance(weigh, StaticPooling)
        return BagOfWordsClassifier(size, weigh, labels=labels)
    encoder = Encoder(model, size)
    encoder.embedding.weight.requires_grad_(not words.is_frozen)
    return SequenceClassifier(encoder, build_pooling(pooling, encoder.width, size), labels=labels)


def initialise(
    model: nn.Module,
    words: WordEmbeddingConfig,
    documents: Sequence[Sequence[int]],
    labels: Sequence[int],
    *,
    vocabulary: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """What is computed before training: weights by a formula, embeddings by skip-gram or from a file.

    `vocabulary` names every row of the embedding, for vectors from a file.
    """
    for part in model.modules():
        if isinstance(part, CorpusWeights):
            part.fit(documents, labels)
    if isinstance(model, SequenceClassifier):
        initialise_embedding(model.encoder.embedding, words, documents, vocabulary=vocabulary, seed=seed)


def initialise_embedding(
    table: Embedding,
    words: WordEmbeddingConfig,
    documents: Iterable[Sequence[int]],
    *,
    vocabulary: Sequence[str],
    seed: int,
) -> None:
    """Pretrained vectors: of skip-gram, or from a file."""
    size, width = table.weight.shape
    if words.kind == "skip-gram":
        config = SkipGram(width=width, window=words.window, epochs=words.epochs, seed=seed)
        vectors = train_vectors(([str(one) for one in document] for document in documents), config)
        vectors.initialise(table, [str(row) for row in range(size)])
    elif words.kind == "file":
        vectors = WordVectors.load(words.file)
        if vectors.vectors.shape[1] != width:
            raise ValueError(
                f"{words.file}: vectors of width {vectors.vectors.shape[1]}; set model.model to that, not to {width}"
            )
        if not vectors.initialise(table, vocabulary):
            raise ValueError(f"{words.file}: none of its words is in the vocabulary; is it of the same language?")


# --- masked language models ---


BATCH = 64  # sentences that are encoded together


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig:
    """How a masked language model is trained.

    Args:
        encoder: its configuration.
        mask_rate: the share of words to predict: half of them are masked, a quarter replaced by a random one.
        size: of the vocabulary; other words are unknown, and never predicted.
        steps, batch, rate: how often, how many sentences each time, and the optimiser's first rate (it falls to 0).
        seed: of initial weights, of the order of sentences and of the masks.
    """

    encoder: EncoderConfig = EncoderConfig(kind="gru", layers=1, model=48, hidden=96, directions=2, dropout=0.0)
    mask_rate: float = 0.25
    size: int = 10_000
    steps: int = 400
    batch: int = 64
    rate: float = 5e-3
    seed: int = 0

    def __post_init__(self):
        if not 0 < self.mask_rate < 1:
            raise ValueError(
                f"mask_rate = {self.mask_rate} should lie between 0 and 1: some words are predicted, not all"
            )
        for name in ("size", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Words as they occur, sentence after sentence: which word, in which sentence, at which position, and its vector.

    Words outside the vocabulary, which are all encoded alike, are nobody's neighbours.
    """

    words: tuple[str, ...]
    positions: tuple[tuple[int, int], ...]
    vectors: Float[Tensor, "n m"]
    known: frozenset[str]

    def of(self, word: str) -> list[int]:
        """The rows of a word."""
        found = [row for row, one in enumerate(self.words) if one == word]
        if not found:
            raise ValueError(f"{word!r} occurs in none of these sentences")
        return found

    def neighbours(self, row: int, k: int = 5) -> list[tuple[str, float]]:
        """The k other words of which some occurrence points most nearly the same way, with the cosine."""
        units = normalize(self.vectors, dim=-1)
        values, order = (units @ units[row]).sort(descending=True, stable=True)
        found: dict[str, float] = {}
        for one, cosine in zip(order.tolist(), values.tolist(), strict=True):
            if self.words[one] != self.words[row] and self.words[one] in self.known:
                found.setdefault(self.words[one], cosine)
            if len(found) == k:
                break
        return list(found.items())

    def nearest_same_word(self, word: str) -> list[tuple[int, int]]:
        """For each occurrence of a word the other one whose vector points most nearly the same way."""
        rows = self.of(word)
        if len(rows) < 2:
            raise ValueError(f"{word!r} occurs only once, so it has no other occurrence to compare with")
        units = normalize(self.vectors[rows], dim=-1)
        cosines = (units @ units.T).fill_diagonal_(-torch.inf)
        return [(row, rows[best]) for row, best in zip(rows, cosines.argmax(1).tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class MaskedLMEncoder:
    """A tokenizer, and an encoder of its sentences."""

    tokenizer: WordTokenizer
    encoder: Encoder

    def read(self, sentences: Iterable[Sequence[str]]) -> Occurrences:
        """Every word of the sentences."""
        sentences, vectors = list(sentences), []
        with torch.inference_mode():
            for start in range(0, len(sentences), BATCH):
                some = sentences[start : start + BATCH]
                tokens, lengths = pad_rows([self.tokenizer.encode(" ".join(sentence)) for sentence in some])
                read = self.encoder(tokens, lengths)
                vectors += [row[: len(sentence)] for row, sentence in zip(read, some, strict=True)]
        words = tuple(word for sentence in sentences for word in sentence)
        places = tuple((n, at) for n, sentence in enumerate(sentences) for at in range(len(sentence)))
        return Occurrences(words, places, torch.cat(vectors).clone(), frozenset(self.tokenizer.vocabulary))


def train_masked_lm(sentences: Iterable[Sequence[str]], config: MaskedLMConfig = MaskedLMConfig()) -> MaskedLMEncoder:
    """The same sentences and config give the same encoder, on one machine."""
    texts = [" ".join(sentence) for sentence in sentences if sentence]
    words = WordTokenizer.train(texts, size=config.size)
    ids, generator = words.encode_batch(texts), Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = TokenClassifier(Encoder(config.encoder, words.size), labels=words.size)
        optimiser = torch.optim.Adam(model.parameters(), lr=config.rate)
        for step in range(config.steps):
            optimiser.param_groups[0]["lr"] = config.rate * (1 - step / config.steps)
            rows = torch.randint(len(ids), (config.batch,), generator=generator).tolist()
            train_step(model, [ids[row] for row in rows], config.mask_rate, optimiser, generator)
    return MaskedLMEncoder(words, model.eval().encoder)


def train_step(
    model: TokenClassifier,
    ids: list[list[int]],
    mask_rate: float,
    optimiser: torch.optim.Optimizer,
    generator: Generator,
) -> None:
    """One step: mask, predict, update."""
    tokens, lengths = pad_rows(ids)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    masked = (
        (torch.rand(tokens.shape, generator=generator) < mask_rate) & (positions < lengths[:, None]) & (tokens != UNK)
    )
    if not masked.any():
        return
    draw = torch.rand(tokens.shape, generator=generator)
    other = torch.randint(UNK + 1, model.output.out_features, tokens.shape, generator=generator)
    inputs = tokens.where(~masked | (draw >= 0.75), other).masked_fill(masked & (draw < 0.5), UNK)
    states = model.encoder(inputs, lengths)
    loss = cross_entropy(model.output(states[masked]), tokens[masked])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


# --- with subwords, and a head of its own ---


class MaskedLanguageModel(nn.Module):
    """An encoder, and BERT's head: logits of every token by the embedding's own weights (Devlin et al. 2019).

    logits = E norm(φ(W x + b)) + c. Without a head it only encodes.

    Args:
        config: of the encoder; the head has its activation and its norm.
        size: of the vocabulary.
        head: whether there is one.
    """

    attention_sites: ClassVar[AttentionSites] = SequenceClassifier.attention_sites

    def __init__(self, config: EncoderConfig, size: int, *, head: bool = True):
        super().__init__()
        self.encoder, width = Encoder(config, size), config.width
        if head and width != config.model:
            raise ValueError(
                f"embeddings of width {config.model} cannot score states of width {width}; make them equal"
            )
        self.activation = find_named(config.activation, ACTIVATIONS, "activation")
        self.transform = nn.Linear(width, width) if head else None
        self.norm = make_stack_config(config).make_norm(width) if head else None
        self.bias = nn.Parameter(torch.zeros(size)) if head else None

    def forward(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b t v"]:
        return self.logits(self.encoder(tokens, lengths))

    def logits(self, x: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch v"]:
        if self.transform is None or self.norm is None or self.bias is None:
            raise ValueError("this encoder has no head that predicts tokens; it gives vectors: model.embed(texts)")
        return self.encoder.embedding.logits(self.norm(self.activation(self.transform(x))), self.bias)
