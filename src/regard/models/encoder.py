"""Text encoders: tokens or characters to vectors in context, and classifiers of a sequence or of each token."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import AttentionSites, Context, DependencyTree, Padding, Recipe, SiteName
from regard.layers.embedding import Embedding, PositionalEmbedding
from regard.layers.pooling import Pooling, StaticPooling, token_mask
from regard.layers.rnn import CELLS, RNNLayers
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
from regard.models.stack import LayerRecipes, StackConfig
from regard.models.tfidf import BagOfWordsClassifier, CorpusWeights
from regard.models.transformer_layers import EncoderLayer, encode_layers
from regard.models.word_vectors import SkipGram, WordVectors, train_vectors
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
