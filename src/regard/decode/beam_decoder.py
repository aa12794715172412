"""Beam decoders: the protocol, and that of any model, whose beams are rows of its state; batches of many sentences."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from regard.attention import AttentionRecord, Causal, Full, NoGate, Softmax, record_attention
from regard.attention.core import is_recorded
from regard.attention.score import InnerProduct
from regard.data.tokenizers.base import BOS
from regard.decode.search import Constraints, DecodingRequest, Hypothesis, token_index
from regard.decode.topk import TopKLogProbs, topk_logprobs_torch
from regard.layers.transformer_layers import DecoderLayer, EncoderLayer
from regard.models.seq2seq import DecodableModel, Reorderable, encode_sources
from regard.models.transformer import Transformer

MIN_COVERAGE = 1e-9  # a source token that was never attended to costs much, but not infinity


@runtime_checkable
class BeamDecoder(Protocol):
    """The hidden states of all beams of all sentences, step by step; its state follows the parents of the beams.

    Attributes:
        vocabulary: how many tokens there are to choose from.
        covered: the coverage penalty of each beam, if it ended here; None without a coverage penalty.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def covered(self) -> Tensor | None: ...

    def live(self, goes: Bool[Tensor, "b k"]) -> Int[Tensor, " n"] | None:
        """The flat indices of the beams to compute, of those that go on; None computes all beams."""
        ...

    def step(
        self, tokens: Int[Tensor, "b k"], parents: Int[Tensor, "b k"], live: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n model"]:
        """The hidden states of all (or the live) beams, after the last token of each, which its parent beam went on
        with."""
        ...

    def topk(
        self, hidden: Float[Tensor, "n _"], banned: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None, /
    ) -> TopKLogProbs:
        """The `count` best tokens after these hidden states, or more; where `must` is not -1, that token alone."""
        ...

    def keep(self, rows: Int[Tensor, " n"]) -> "BeamDecoder":
        """These sentences alone; the decoder of the others is lost."""
        ...


def objections(model: DecodableModel | nn.Module) -> list[str]:
    """Why a model's beams cannot share one KV cache."""
    if not isinstance(model, Transformer):
        return [f"a {type(model).__name__} is no Transformer"]
    bias = model.embeddings.bias
    found = ["double precision is for a CPU"] if bias.is_cuda and bias.dtype == torch.double else []
    found += ["its attention is recorded or edited"] if is_recorded(model) else []
    for layer in (*model.encoder, *model.decoder):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        decodes = isinstance(layer, DecoderLayer)
        for attention in (layer.attention, layer.cross) if decodes else (layer.attention,):
            recipe, plain = attention.recipe, Causal() if decodes and attention is layer.attention else Full()
            found += [] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]
            found += [] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]
            found += [] if recipe.pattern == plain else [f"{recipe.pattern} hides more than the future"]
            found += [f"{scheme} adds to the scores" for scheme in recipe.score_positions]
            found += [] if isinstance(recipe.gate, NoGate) else [f"{recipe.gate} wants values of every token"]
            found += [f"backend {attention.backend} is forced"] if attention.backend else []
    return list(dict.fromkeys(found))


@dataclass(eq=False)
class AllowedNext:
    """The constraint `allowed_next`: it is asked about the prefix of every row.

    Args:
        forced: for every sentence how many tokens are forced, which need no permission.
    """

    rule: Callable[[tuple[int, ...]], Collection[int]]
    forced: list[int]
    prefixes: list[tuple[int, ...]]

    @staticmethod
    def of(constraints: Constraints, requests: Sequence[DecodingRequest]) -> "AllowedNext | None":
        if constraints.allowed_next is None:
            return None
        return AllowedNext(constraints.allowed_next, [len(one.prefix) for one in requests], [()] * len(requests))

    def mask(self, owners: Int[Tensor, " n"], vocabulary: int) -> Bool[Tensor, "n v"]:
        allowed = torch.ones(len(owners), vocabulary, dtype=torch.bool, device=owners.device)
        for row, (prefix, owner) in enumerate(zip(self.prefixes, owners.tolist(), strict=True)):
            if len(prefix) >= self.forced[owner]:
                allowed[row] = False
                allowed[row, token_index(self.rule(prefix), vocabulary, owners.device)] = True
        return allowed

    def extend(self, rows: Int[Tensor, " n"], tokens: Int[Tensor, "n 1"]) -> None:
        pairs = zip(rows.tolist(), tokens[:, 0].tolist(), strict=True)
        self.prefixes = [(*self.prefixes[row], token) for row, token in pairs]


@dataclass(eq=False)
class Coverage:
    """How much each source token was attended to by the tokens of each row, for the coverage penalty."""

    model: DecodableModel
    beta: float
    lengths: Int[Tensor, " b"]
    weights: Float[Tensor, "n s"]

    @staticmethod
    def begin(model: DecodableModel, lengths: Int[Tensor, " b"], beta: float) -> "Coverage":
        return Coverage(model, beta, lengths, torch.zeros(len(lengths), int(lengths.max()), device=lengths.device))

    def step(self, tokens: Int[Tensor, "n t"], state: Any, memory: Any) -> tuple[Float[Tensor, "n t v"], Reorderable]:
        """As the model's own step; the cross-attention of the last token is added."""
        if is_recorded(self.model):
            raise ValueError(
                "a search with a coverage penalty reads the unedited model's attention; use none with edits"
            )
        with record_attention(self.model) as record:
            logits, state = self.model.step(tokens, state, memory)
        self.weights = self.weights + mean_cross_attention(record)
        return logits, state

    def penalties(self, owners: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return coverage_penalty(self.weights, self.lengths[owners], self.beta)


@dataclass(eq=False)
class ModelBeams:
    """The beams of any model: one row of the model's own state for every beam that goes on.

    Args:
        forward: from tokens, state and memory to the logits of what follows each token, and the state after them.
        memory: the encoded sources, if there are any.
        owners: the sentence of every row, by its number at the beginning.
        row_of: the row of every beam.
        first: the logits of the first step, until they are asked for.
    """

    forward: Callable[[Tensor, Any, Any], tuple[Tensor, Reorderable]]
    state: Reorderable
    memory: Reorderable | None
    owners: Int[Tensor, " n"]
    row_of: Int[Tensor, "b k"]
    coverage: Coverage | None = None
    allowed_next: AllowedNext | None = None
    first: Float[Tensor, "n v"] | None = None
    vocabulary: int = 0

    @staticmethod
    def begin(
        model: DecodableModel,
        requests: Sequence[DecodingRequest],
        beams: int,
        beta: float = 0.0,
        constraints: Constraints = Constraints(),
    ) -> "ModelBeams":
        memory, lengths = encode_sources(model, [request.source for request in requests])
        coverage = Coverage.begin(model, lengths, beta) if beta else None
        forward = model.step if coverage is None else coverage.step
        decoder = ModelBeams.after(torch.full_like(lengths, BOS)[:, None], forward, model.start(memory), memory, beams)
        decoder.coverage, decoder.allowed_next = coverage, AllowedNext.of(constraints, requests)
        return decoder

    @staticmethod
    def after(
        tokens: Int[Tensor, "b t"],
        forward: Callable[[Tensor, Any, Any], tuple[Tensor, Reorderable]],
        state: Reorderable,
        memory: Reorderable | None,
        beams: int,
    ) -> "ModelBeams":
        """What all beams of a sentence begin with is read at once, in one row; the logits tell the vocabulary."""
        rows = torch.arange(len(tokens), device=tokens.device)
        decoder = ModelBeams(forward, state, memory, rows, rows[:, None].expand(-1, beams))
        decoder.first = decoder.read(tokens)
        decoder.vocabulary = decoder.first.shape[-1]
        return decoder

    @property
    def device(self) -> torch.device:
        return self.owners.device

    @property
    def covered(self) -> Float[Tensor, "b k"] | None:
        return None if self.coverage is None else self.coverage.penalties(self.owners)[self.row_of]

    def live(self, goes: Bool[Tensor, "b k"]) -> Int[Tensor, " n"] | None:
        return None if goes.all() else goes.flatten().nonzero()[:, 0]

    def step(
        self, tokens: Int[Tensor, "b k"], parents: Int[Tensor, "b k"], live: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n v"]:
        if self.first is not None:
            logits, self.first = self.first, None
            return logits
        rows, tokens = self.row_of.gather(1, parents), rearrange(tokens, "b k -> (b k) 1")
        rows, row_of = rows.flatten(), torch.arange(len(tokens), device=tokens.device)
        if live is not None:
            row_of = torch.zeros_like(row_of).index_copy(0, live, row_of[: len(live)])
            rows, tokens = rows[live], tokens[live]
        self.row_of = row_of.view(parents.shape)
        self.reorder(rows)
        if self.allowed_next is not None:
            self.allowed_next.extend(rows, tokens)
        return self.read(tokens)

    def reorder(self, rows: Int[Tensor, " n"]) -> None:
        """A sentence's beams share its encoded source, so it is copied only if owners move."""
        if not torch.equal(rows, torch.arange(len(self.owners), device=rows.device)):
            self.state = self.state.pick(rows)
        if not torch.equal(owners := self.owners[rows], self.owners) and self.memory is not None:
            self.memory = self.memory.pick(rows)
        self.owners = owners
        if self.coverage is not None:
            self.coverage.weights = self.coverage.weights[rows]

    def read(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        logits, self.state = self.forward(tokens, self.state, self.memory)
        return logits[:, -1]

    def topk(
        self, hidden: Float[Tensor, "n v"], banned: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None
    ) -> TopKLogProbs:
        """The model's own steps end with logits."""
        allowed = None if self.allowed_next is None else self.allowed_next.mask(self.owners, self.vocabulary)
        return topk_logprobs_torch(hidden, banned, count, must, allowed)

    def keep(self, rows: Int[Tensor, " n"]) -> "ModelBeams":
        self.row_of = self.row_of[rows]
        return self


def cross_attention_sites(record: AttentionRecord) -> list[str]:
    """The attentions from target tokens to the source (or a latent) among those that were recorded."""
    return [site.name for site in record.sites if site.queries == "written"]


def mean_cross_attention(record: AttentionRecord) -> Float[Tensor, "n s"]:
    """The cross-attention of the token just predicted: the mean over the heads of the last layer."""
    if not (sites := cross_attention_sites(record)):
        raise ValueError("the model has no cross-attention to compute coverage from; use coverage_penalty=0")
    return reduce(record.weights(sites[-1])[:, :, -1], "n h s -> n s", "mean")


def coverage_penalty(coverage: Float[Tensor, "n s"], lengths: Int[Tensor, " n"], beta: float) -> Float[Tensor, " n"]:
    """cp(x, y) = β Σᵢ log min(Σⱼ weightⱼᵢ, 1) over the source tokens i, EOS included, and target tokens j."""
    real = torch.arange(coverage.shape[-1], device=coverage.device) < rearrange(lengths, "n -> n 1")
    return beta * torch.where(real, coverage.clamp(MIN_COVERAGE, 1.0).log(), 0.0).sum(-1)


# --- batches of sentences ---


if TYPE_CHECKING:
    from regard.decode.beam import BeamSearch, BeamState
    from regard.decode.kv_cache import BeamKVCache

SENTENCES_PER_CORE = 32  # from so many on, a search on each core pays: they wait for Python's lock at every operation
LEAVING = 8  # once one sentence in so many is finished they are released: others move to their rows


def search_by_cores(
    search: Callable[[Sequence[DecodingRequest]], list[list[Hypothesis]]],
    requests: Sequence[DecodingRequest],
    cores: int,
) -> list[list[Hypothesis]]:
    """Every core searches its own part of the sentences, single-threaded; all parts have about as many tokens."""
    threads, turn, by_length = torch.get_num_threads(), 2 * cores, sorted(requests, key=lambda one: len(one.source))
    parts = [by_length[core::turn] + by_length[turn - 1 - core :: turn] for core in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(search, parts))
    finally:
        torch.set_num_threads(threads)  # the number is per thread, but the last one set is that of new threads
    by_index = dict(zip((one.index for part in parts for one in part), chain(*found), strict=True))
    return [by_index[request.index] for request in requests]


def keep_unfinished(search: "BeamSearch", done: Sequence[bool]) -> list[DecodingRequest]:
    """A running search goes on without the sentences that are done; the requests that are left."""
    staying = rows_that_stay(done)
    rows = torch.tensor(staying, device=search.decoder.device)
    search.decoder, search.beams = search.decoder.keep(rows), select_sentences(search.beams, rows)
    return [search.requests[row] for row in staying]


def rows_that_stay(done: Sequence[bool]) -> list[int]:
    """The rows of the sentences that are not done: the last take the rows of those that leave, so few are moved."""
    staying = [row for row, over in enumerate(done) if not over]
    last = [row for row in staying if row >= len(staying)]
    return [last.pop() if done[row] else row for row in range(len(staying))]


def select_sentences(beams: "BeamState", rows: Int[Tensor, " n"]) -> "BeamState":
    """The beams of these sentences alone."""
    by_sentence = {part.name: getattr(beams, part.name)[rows] for part in fields(beams)[:7]}
    history = {part.name: getattr(beams.backpointers, part.name)[:, rows] for part in fields(beams.backpointers)}
    backpointers = replace(beams.backpointers, **history)
    return replace(beams, **by_sentence, forced=beams.forced[:, rows], backpointers=backpointers)


def keep_sentences(cache: "BeamKVCache", rows: Int[Tensor, " n"]) -> "BeamKVCache":
    """The cache of these sentences alone, in this order. Keys and values are moved within the old one, which is
    lost."""
    move_rows((part for pair in (*cache.sources, *cache.past) for part in pair), rows)
    sources, past = (
        tuple((k[: len(rows)], v[: len(rows)]) for k, v in layers) for layers in (cache.sources, cache.past)
    )
    mask, seen, at = cache.source_mask[rows], cache.seen[rows], cache.at.clone()
    return replace(cache, sources=sources, source_mask=mask, past=past, seen=seen, at=at)


def move_rows(stores: Iterable[Tensor], rows: Int[Tensor, " n"]) -> None:
    """Row n of every store becomes the row `rows[n]`, in place; what keeps its place is not moved."""
    moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    for store in stores:
        store[moved] = store[rows[moved]]
