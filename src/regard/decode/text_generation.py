"""Text generation: language models continue prompts, many together; texts join and leave a batch at any step.

    batch = ContinuousGeneration(model)
    batch.add([TextRequest((5, 9), Greedy(), tokens=20), TextRequest((7,), Sampling(seed=1), tokens=50, index=1)])
    while batch.texts:
        step = batch.step()                # the next token of every text, and which texts are finished

Every row of the KV cache has a length of its own: token n of a text is written to slot n of its row, and a query sees
the slots of those tokens that its pattern shows it. No token is read twice while a row holds at most `context` tokens.
A model whose cache grows with the text (full attention) then restarts from the last half of them, as if they were the
whole text; one whose state is bounded (recurrent, windowed, linear attention) never has to.

On a GPU the step of a prepared model is captured in a CUDA graph for every shape: rows in powers of two, slots in
multiples of 128. The most probable tokens are chosen within it, so greedy search runs many steps ahead of the host.
"""

import codecs
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention import Context, FloatMask, Learned, NoGate, Pattern, Softmax
from regard.attention.batch_patterns import UnpaddedTokens
from regard.attention.core import is_recorded
from regard.attention.kv_cache import LayerCache, is_causal
from regard.attention.score import InnerProduct
from regard.attention.sparse_patterns import is_content
from regard.data.tokenizers.base import BOS, EOS, PAD, UNK, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.beam import Beam, BeamSearch
from regard.decode.beam_decoder import AllowedNext, ModelBeams, move_rows, rows_that_stay
from regard.decode.cuda_graphs import get_or_capture, next_power
from regard.decode.kv_cache import BeamSlots, Slots, rotate_once
from regard.decode.quantized_linear import OutputLinear
from regard.decode.search import NOT_FINITE, Constraints, DecodingRequest, Ids, LengthLimit, token_index
from regard.decode.stepwise import Greedy, PartialHypothesis, Sampling, StepwiseSearch, mask_disallowed
from regard.decode.topk import log_probabilities, stable_topk, topk_logprobs_torch
from regard.layers.transformer_layers import EncoderLayer
from regard.models.language_model import RNNLM, LanguageModel, TransformerLM
from regard.models.rnn_seq2seq import RNNState
from regard.models.seq2seq import DecoderState, inference_mode, pad_ids
from regard.ops.cuda_graph import CUDAGraphCapture, GraphCapture

NO_EOS = -2  # no candidate's token: -1 stands for no candidate
CONTEXT_TOKENS = 8  # that decide how the text of the next one begins
MIN_SLOTS = 64  # of a row
SLOT_MULTIPLE = 128  # of a captured step
READ_TOKENS = 2**14  # of prompts, with their padding, that are read at once
ROWS = 64  # texts that are continued at once
AHEAD = 32  # steps of greedy search that a GPU makes before the host looks


# --- the states of many texts ---


class TextDecoder(ABC):
    """Abstract: the states of texts of different lengths, one row each."""

    runs_ahead: bool = False  # whether it chooses tokens itself, by `search_greedily`

    @property
    @abstractmethod
    def rows(self) -> int: ...

    @abstractmethod
    def read(self, prompts: Sequence[Ids], longest: int = 0) -> Float[Tensor, "n v"]:
        """New rows behind the others; the logits of what follows each prompt. No text will have more than so many
        tokens, if that is known."""

    @abstractmethod
    def step(self, tokens: Sequence[int]) -> Float[Tensor, "b v"]:
        """Every row reads its next token; the logits of what follows."""

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> None:
        """These rows alone, in this order."""


def text_decoder(model: LanguageModel) -> TextDecoder:
    """The one in which most is shared: rows of one KV cache, rows of one state, or a state for each text."""
    if not isinstance(model, LanguageModel):  # one of transformers, with a cache of its own
        return SeparateStates(model)
    if isinstance(model.backbone, RNNLM) and not is_recorded(model):
        return StateRows(model)
    if objections(model):
        return SeparateStates(model)
    idle = idle_decoders(model)
    return SlotDecoder(model) if idle is None else idle.take(model)


def objections(model: LanguageModel) -> list[str]:
    """Why the texts of a model cannot be rows of one KV cache."""
    if not isinstance(model.backbone, TransformerLM):
        return [f"{type(model.backbone).__name__} is no Transformer"]
    weight = model.embedding.weight
    found = ["double precision is for a CPU"] if weight.is_cuda and weight.dtype == torch.double else []
    found += ["its attention is recorded or edited"] if is_recorded(model) else []
    for layer in model.backbone.layers:
        assert isinstance(layer, EncoderLayer)
        attention, recipe = layer.attention, layer.attention.recipe
        found += [] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]
        found += [] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]
        found += [f"{scheme} adds to the scores" for scheme in recipe.score_positions]
        found += [] if isinstance(recipe.gate, NoGate) else [f"{recipe.gate} wants values of every token"]
        found += [] if is_row_pattern(recipe.pattern) else [f"{recipe.pattern} is not one mask for every row"]
        found += [f"{attention.compress} mixes the whole text"] if attention.compress is not None else []
        found += [f"{attention.form} keeps the keys of three branches"] if attention.branches is not None else []
        found += [f"backend {attention.backend} is forced"] if attention.backend else []
        found += ["latent keys and values differ in width"] if weight.is_cuda and attention.latent is not None else []
    return list(dict.fromkeys(found))


def is_row_pattern(pattern: Pattern) -> bool:
    """Is what a query sees known from its index alone, for all heads, and never ahead of it?"""
    return (
        pattern.batches == 1
        and not pattern.depends_on_head
        and not is_content(pattern)
        and is_causal(pattern, MIN_SLOTS)
    )


class SeparateStates(TextDecoder):
    """A state for each text, which is read alone: of any model."""

    def __init__(self, model: LanguageModel):
        self.model, self.states = model, list[DecoderState]()

    @property
    def rows(self):
        return len(self.states)

    def read(self, prompts, longest=0):
        first = self.rows
        self.states += [self.model.start(1) for _ in prompts]
        return torch.cat([self.advance(first + n, prompt) for n, prompt in enumerate(prompts)])

    def step(self, tokens):
        return torch.cat([self.advance(row, [token]) for row, token in enumerate(tokens)])

    def advance(self, row: int, tokens: Ids) -> Float[Tensor, "1 v"]:
        read = torch.tensor([list(tokens)], device=self.model.embedding.weight.device)
        x, self.states[row] = self.model.decode_hidden(read, self.states[row])
        return self.model.logits(x[:, -1:])[:, 0]

    def keep(self, rows):
        self.states = [self.states[row] for row in rows]


class StateRows(TextDecoder):
    """Rows of one state of a recurrent model, whose size does not depend on what was read."""

    def __init__(self, model: LanguageModel):
        self.model, self.state = model, model.start(0)

    @property
    def rows(self):
        return len(self.hidden[0])

    @property
    def hidden(self) -> tuple[Tensor, ...]:
        assert isinstance(self.state, RNNState)
        return self.state.hidden

    def read(self, prompts, longest=0):
        logits, by_length = list[Tensor | None]([None] * len(prompts)), dict[int, list[int]]()
        states = list[tuple[Tensor, ...]]([()] * len(prompts))
        for n, prompt in enumerate(prompts):  # prompts as long as each other are read together
            by_length.setdefault(len(prompt), []).append(n)
        for same in by_length.values():
            read = torch.tensor([list(prompts[n]) for n in same], device=self.model.embedding.weight.device)
            x, state = self.model.decode_hidden(read, self.model.start(len(same)))
            assert isinstance(state, RNNState)
            for row, (n, found) in enumerate(zip(same, self.model.logits(x[:, -1:]), strict=True)):
                logits[n], states[n] = found, tuple(part[row : row + 1] for part in state.hidden)
        parts = zip(self.hidden, *states, strict=True)
        self.state = RNNState(tuple(torch.cat(part) for part in parts))
        return torch.cat([found for found in logits if found is not None])

    def step(self, tokens):
        read = torch.tensor([[token] for token in tokens], device=self.model.embedding.weight.device)
        x, self.state = self.model.decode_hidden(read, self.state)
        return self.model.logits(x)[:, 0]

    def keep(self, rows):
        self.state = self.state.pick(torch.tensor(rows, dtype=torch.long, device=self.hidden[0].device))


# --- rows of one KV cache ---


@dataclass(eq=False)
class PromptKeys(LayerCache):
    """Of one layer, the keys and values of prompts that are read from their first token on, padded behind their ends.

    Args:
        positions: of the tokens.
        found: keys, rotated, and values.
    """

    positions: Int[Tensor, "n t"]
    found: tuple[Tensor, ...] = ()

    @property
    def first(self):
        return 0

    def attend(self, layer, q, k, v, recipe):
        q, k, recipe = rotate_once(q, k, recipe, self.positions)
        self.found = k, v
        return layer.core(q, k, v, recipe, backend=layer.backend)


def slot_tokens(newest: Int[Tensor, " b"], slots: int, used: int) -> Int[Tensor, "b used"]:
    """The index of the token in each of the first slots of every row, whose newest token has this index; below 0 where
    there is none. Token n stands in slot n modulo their number."""
    slot = torch.arange(used, device=newest.device)
    return newest[:, None] - (newest[:, None] - slot) % slots


def gather_slots(old: Float[Tensor, "b g was d"], tokens: Int[Tensor, "b c"]) -> Float[Tensor, "b g c d"]:
    """From slots, or from keys one after the other, those of these tokens; anything where a token is below 0."""
    index = tokens.clamp_min(0) % old.shape[2]
    return old.gather(2, index[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3]))


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a captured step leaves in its buffers: the scores after every row (without the bias, where the bias is added
    as tokens are chosen), the best token of each, and its log-probability."""

    scores: Float[Tensor, "b v"]
    tokens: Int[Tensor, " b"]
    values: Float[Tensor, " b"]


class SlotDecoder(TextDecoder):
    """Rows of one KV cache, each with a length of its own.

    The stores have spare rows and slots; when a text leaves, the last one takes its row. A layer that looks back a
    bounded number of tokens keeps no more than those.

    Args:
        capture: captures the step of a model whose weights do not change, on a GPU.
    """

    def __init__(self, model: LanguageModel, capture: GraphCapture | None = None):
        assert isinstance(model.backbone, TransformerLM)
        self.model, self.backbone, self.capture = model, model.backbone, capture
        self.runs_ahead, weight = capture is not None, model.embedding.weight
        self.counts, self.stores = list[int](), tuple[Slots, ...]()  # the tokens of every row, their keys and values
        self.lengths = torch.zeros(0, dtype=torch.long, device=weight.device)  # as `counts`, where a graph reads them
        self.tokens, self.table = self.lengths, weight[:0].detach()  # what is read next; the vectors of positions
        self.slots, self.graphs = 0, dict[tuple[int, int], Callable[[], StepOutput]]()
        self.banned = torch.zeros(len(model.bias), dtype=torch.uint8, device=weight.device)

    @property
    def rows(self):
        return len(self.counts)

    def ban(self, tokens: Collection[int]) -> None:
        """Tokens that greedy search does not choose."""
        self.banned.zero_()
        self.banned[token_index(tokens, len(self.banned), self.banned.device)] = 1

    # --- memory ---

    def reserve_positions(self, tokens: int, longest: int = 0) -> None:
        """Vectors of so many positions; and of more, up to the longest text's, where there are more."""
        if tokens > len(self.table):
            self.graphs.clear()  # which know the old address
            schemes, weight = self.backbone.positions.recipe.embedding_positions, self.model.embedding.weight
            more = max(MIN_SLOTS, next_power(max(tokens, longest)))
            more = min([more, *(part.max_length for part in schemes if isinstance(part, Learned))])
            self.table = self.backbone.positions.table(max(tokens, more), weight).to(weight.dtype)

    def reserve_slots(self, rows: int, tokens: int, like: Sequence[tuple[Tensor, ...]]) -> None:
        """Memory for so many rows of so many tokens, shaped as these keys and values of all layers."""
        if rows <= len(self.lengths) and tokens <= self.slots:
            return
        self.graphs.clear()
        old, held = self.stores, torch.tensor(self.counts, device=self.lengths.device)
        rows, slots = next_power(max(rows, len(self.lengths))), next_power(max(tokens, self.slots, MIN_SLOTS))
        stores = list[Slots]()
        for n, (back, pair) in enumerate(zip(self.backbone.lookbacks, like, strict=True)):
            kept = slots if back is None else min(slots, back + 1)
            k, v = (part.new_zeros(rows, part.shape[1], kept, part.shape[3]) for part in pair)
            if self.counts:
                for before, after in zip(old[n], (k, v), strict=True):
                    after[: self.rows] = gather_slots(before[: self.rows], slot_tokens(held - 1, kept, kept))
            stores.append((k, v))
        self.stores, self.slots = tuple(stores), slots
        self.tokens = pad(self.tokens, (0, rows - len(self.tokens)))
        self.lengths = torch.zeros_like(self.tokens)
        self.set_lengths()

    def set_lengths(self) -> None:
        self.lengths.copy_(torch.tensor([*self.counts, *[0] * (len(self.lengths) - self.rows)]))

    def keep(self, rows):
        index = torch.tensor(rows, dtype=torch.long, device=self.lengths.device)
        move_rows((part for pair in self.stores for part in pair), index)
        self.counts = [self.counts[row] for row in rows]
        self.set_lengths()

    # --- reading ---

    def read(self, prompts, longest=0):
        some = max(1, READ_TOKENS // max(map(len, prompts)))
        return torch.cat([self.read_padded(prompts[n : n + some], longest) for n in range(0, len(prompts), some)])

    def read_padded(self, prompts: Sequence[Ids], longest: int) -> Float[Tensor, "n v"]:
        """Prompts of different lengths in one batch: what follows a text's end changes nothing before it."""
        first, device, lengths = self.rows, self.lengths.device, [len(prompt) for prompt in prompts]
        n, t = len(prompts), max(lengths)
        longest = max(t + 1, longest if self.runs_ahead else 0)  # of what a graph knows nothing should move
        self.reserve_positions(t, longest)
        ids, ends = pad_ids(prompts).to(device), torch.tensor(lengths, device=device)
        positions, tokens = torch.arange(t, device=device).expand(n, t), None
        starts = range(0, n * t, t)
        if device.type == "cpu" and min(lengths) < t:
            tokens = UnpaddedTokens.of((positions < ends[:, None]).flatten().nonzero()[:, 0], n, t)
            starts = accumulate(lengths[:-1], initial=0)
        context = Context(tokens=tokens, captured=ids.is_cuda)
        cells = [PromptKeys(positions) for _ in self.backbone.layers]
        x = self.model.embed(context.unpad(ids)) + self.table[context.unpad(positions)]
        x = self.backbone.read_layers(x, cells, context).flatten(0, 1)
        self.reserve_slots(first + n, longest, [cell.found for cell in cells])
        for store, cell in zip(self.stores, cells, strict=True):
            for slots, new in zip(store, cell.found, strict=True):
                if t <= slots.shape[2]:
                    slots[first : first + n, :, :t] = new
                else:  # the last of them, each where its index belongs
                    slots[first : first + n] = gather_slots(new, slot_tokens(ends - 1, slots.shape[2], slots.shape[2]))
        self.counts += lengths
        self.set_lengths()
        last = torch.tensor([start + length - 1 for start, length in zip(starts, lengths, strict=True)], device=device)
        return self.logits(self.model.project_output(x[last][None])[0])

    def logits(self, hidden: Float[Tensor, "n model"]) -> Float[Tensor, "n v"]:
        return self.model.logits(hidden[None])[0]

    def step(self, tokens):
        self.tokens[: self.rows] = torch.tensor(list(tokens), device=self.tokens.device)
        used = self.begin_step()
        if self.capture is None:
            found = self.logits(self.hidden_states(self.rows, used))
            self.lengths[: self.rows] += 1
            return found
        scores = self.replay(used).scores[: self.rows]
        linear = self.fused_output
        return scores if linear is None else scores + linear.bias

    def begin_step(self) -> int:
        """How many slots are used by the step that begins here."""
        used = max(self.counts) + 1
        self.reserve_positions(used)
        self.reserve_slots(self.rows, used, self.stores)
        self.counts = [count + 1 for count in self.counts]
        return used

    def hidden_states(self, rows: int, used: int) -> Float[Tensor, "rows model"]:
        """The first rows read their next tokens, with which none has more tokens than are used."""
        newest = self.lengths[:rows]
        masks, cells = dict[tuple[Pattern, int], tuple[FloatMask, Tensor]](), list[BeamSlots]()
        for layer, (k, v) in zip(self.backbone.layers, self.stores, strict=True):
            assert isinstance(layer, EncoderLayer)
            pattern, own, slots = layer.attention.recipe.pattern, (k[:rows], v[:rows]), k.shape[2]
            if (pattern, slots) not in masks:
                at = (newest % slots)[:, None]
                masks[pattern, slots] = self.mask(pattern, newest, slots, min(slots, used)), at
            mask, written = masks[pattern, slots]
            cells.append(BeamSlots(own, written, mask, newest[:, None]))
        x = self.model.embed(self.tokens[:rows, None]) + self.table[newest[:, None]]
        x = self.backbone.read_layers(x, cells, Context(captured=x.is_cuda))
        return self.model.project_output(x)[:, 0]

    def mask(self, pattern: Pattern, newest: Int[Tensor, " b"], slots: int, used: int) -> FloatMask:
        """The slots that the newest token of every row sees, its own among them."""
        j, zero = slot_tokens(newest, slots, used), newest.new_zeros(())
        visible = (j >= 0) & pattern.sees(zero, zero, newest[:, None], j.clamp_min(0))
        return FloatMask(self.table.new_zeros(()).where(visible, -torch.inf)[:, None, None])

    # --- CUDA graphs ---

    def search_greedily(self, tokens: Sequence[int], steps: int) -> tuple[list[list[int]], list[list[float]]]:
        """So many steps, each with the best token of the one before: of every step the best token after each row, and
        its log-probability."""
        self.tokens[: self.rows] = torch.tensor(list(tokens), device=self.tokens.device)
        found, values = list[Tensor](), list[Tensor]()
        for _ in range(steps):
            best = self.replay(self.begin_step())
            found.append(best.tokens[: self.rows].clone())
            values.append(best.values[: self.rows].clone())
        return torch.stack(found).tolist(), torch.stack(values).tolist()

    def replay(self, used: int) -> StepOutput:
        """The captured step: every row reads its token, and its best next token is left in its place."""
        shape = next_power(self.rows), min(self.slots, used + -used % SLOT_MULTIPLE)
        found = get_or_capture(self.graphs, shape, lambda: self.capture_step(*shape))()
        self.lengths[: self.rows] += 1  # not in the graph: rows that are nobody's stay at their first slot
        return found

    @property
    def fused_output(self) -> OutputLinear | None:
        """The output layer whose bias is added as tokens are chosen."""
        linear = (self.model.output or self.model.embedding).projection
        return linear if isinstance(linear, OutputLinear) and linear.weight.is_cuda else None

    def capture_step(self, rows: int, used: int) -> Callable[[], StepOutput]:
        found, tokens_read = list[StepOutput](), self.tokens.clone()

        def work() -> Tensor:
            hidden, linear = self.hidden_states(rows, used), self.fused_output
            if linear is None:
                scores = self.logits(hidden)
                best = topk_logprobs_torch(scores, self.banned, 1, None)
            else:
                from regard.decode.kernels import topk_logprobs_triton

                scores = linear.multiply(hidden)
                best = topk_logprobs_triton(scores, linear.bias, self.banned, 1, None)
            values, at = best.values.max(-1)  # of equals the first, which is the lower token
            tokens = best.tokens.gather(1, at[:, None])[:, 0]
            self.tokens[:rows] = tokens
            found[:] = [StepOutput(scores, tokens, values)]
            return scores

        assert self.capture is not None
        replay, _ = self.capture(work, self.lengths.device)
        self.tokens.copy_(tokens_read)  # work was done to warm up, and will write to the same slots again

        def run() -> StepOutput:
            replay()
            return found[0]

        return run


class IdleDecoders(nn.Module):
    """The decoders of a prepared model that nobody uses, with their captured steps; a part of the model, so that they
    live as long as it does."""

    def __init__(self):
        super().__init__()
        self.idle: list[SlotDecoder] = []

    def take(self, model: LanguageModel) -> SlotDecoder:
        with suppress(IndexError):  # of an empty list; another thread may take the last
            return self.idle.pop()
        return SlotDecoder(model, CUDAGraphCapture() if model.embedding.weight.is_cuda else None)


def give_back(model: LanguageModel, decoder: TextDecoder) -> None:
    """A decoder whose steps are captured may be used again."""
    if isinstance(decoder, SlotDecoder) and decoder.runs_ahead and (idle := idle_decoders(model)) is not None:
        idle.idle.append(decoder)


def idle_decoders(model: LanguageModel) -> IdleDecoders | None:
    return next((part for part in model.children() if isinstance(part, IdleDecoders)), None)


# --- batches of texts ---


@dataclass(frozen=True)
class GeneratedToken:
    """A token, and the model's own log-probability of it, before temperature and truncation; `alternatives` are the
    most probable tokens instead of it."""

    id: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TextRequest:
    """A prompt to continue by up to `tokens` tokens.

    Args:
        search: how each next token is chosen; a sample depends on its seed, not on the batch.
        top: how many of the most probable tokens come with each.
        index: tells the texts of a batch apart.
    """

    prompt: tuple[int, ...]
    search: StepwiseSearch = Greedy()
    tokens: int = 200
    top: int = 0
    index: int = 0

    def __post_init__(self):
        if self.tokens < 1:
            raise ValueError(f"tokens={self.tokens} should be at least 1")


@dataclass(eq=False)
class RunningText:
    """A text of a batch.

    Args:
        recent: its last tokens, as many as are read again.
        unread: those that its row of the state has not read.
        seen: how many its row has read.
        row: the tokens that were generated.
    """

    request: TextRequest
    recent: deque[int]
    unread: list[int]
    seen: int = 0
    row: PartialHypothesis = field(default_factory=lambda: PartialHypothesis(DecodingRequest(())))


@dataclass(frozen=True)
class TextStep:
    """What a step gave: the next tokens of every text, by its index, and the texts that it finished. There is one
    token, or none at an early end; and several where the step ran ahead."""

    tokens: dict[int, tuple[GeneratedToken, ...]]
    finished: list[int]


class ContinuousGeneration:
    """Texts that a language model continues together, each of its own length, search and limit.

    The tokens and log-probabilities of a text are those of the text alone. EOS does not end a text unless the
    constraints say so: for a model of words it is the end of a line.

    Args:
        constraints: of all texts.
        context: how many tokens are read at most, where the model's cache grows with them.
    """

    def __init__(self, model: LanguageModel, constraints: Constraints = Constraints(), context: int | None = None):
        if context is not None and context < 2:
            raise ValueError(f"context={context} should be at least 2, or None for no limit")
        self.model, self.constraints = model, constraints
        self.limit = context if has_growing_cache(model) else None
        self.texts: list[RunningText] = []  # those that have a row, in the order of the rows; then new ones
        self.decoder: TextDecoder | None = None

    def add(self, requests: Sequence[TextRequest]) -> None:
        """They are read at the next step."""
        for request in requests:
            recent = deque(request.prompt or [BOS], maxlen=self.limit)
            self.texts.append(RunningText(request, recent, list(recent)))

    def remove(self, indices: Collection[int]) -> None:
        """These texts leave at once."""
        self.leave([text.request.index in indices for text in self.texts])

    def step(self, ahead: int = 1) -> TextStep:
        """Every text one token on; or up to so many, where a GPU chooses them itself."""
        with inference_mode(self.model):
            if self.decoder is None:
                self.decoder = text_decoder(self.model)
            if (steps := min(ahead, self.steps_ahead())) > 1:
                chosen, best = self.search_ahead(steps), [()] * len(self.texts)
            else:
                scores = log_probabilities(self.read_next(self.decoder))
                chosen = [[one] for one in choose_tokens(scores, self.texts, self.constraints)]
                best = top_tokens(scores, [text.request.top for text in self.texts])
        return self.settle(chosen, best)

    def read_next(self, decoder: TextDecoder) -> Float[Tensor, "n v"]:
        """The logits after every text, whose row has then read all of it; new texts get their rows."""
        rows = decoder.rows
        parts = [decoder.step([text.unread[0] for text in self.texts[:rows]])] if rows else []
        if new := [text.unread for text in self.texts[rows:]]:
            lengths = [text.seen + len(text.unread) + text.request.tokens - len(text.row.tokens) for text in self.texts]
            parts.append(decoder.read(new, max(lengths) if self.limit is None else min(self.limit, max(lengths))))
        return torch.cat(parts)

    def steps_ahead(self) -> int:
        """How many steps depend on nothing but the most probable tokens."""
        decoder, rules = self.decoder, self.constraints
        if not isinstance(decoder, SlotDecoder) or not decoder.runs_ahead or decoder.rows < len(self.texts):
            return 0
        if rules.allowed_next is not None or rules.min_length:
            return 0
        if any(text.request.top or not isinstance(text.request.search, Greedy) for text in self.texts):
            return 0
        limit = math.inf if self.limit is None else self.limit
        left = (min(text.request.tokens - len(text.row.tokens), limit - text.seen) for text in self.texts)
        return int(min(left))

    def search_ahead(self, steps: int) -> list[list[tuple[int, float]]]:
        assert isinstance(self.decoder, SlotDecoder)
        self.decoder.ban({PAD, BOS, *self.constraints.banned})
        tokens, values = self.decoder.search_greedily([text.unread[0] for text in self.texts], steps)
        if any(math.isnan(value) for step in values for value in step):
            raise ValueError(NOT_FINITE)
        by_row = zip(zip(*tokens, strict=True), zip(*values, strict=True), strict=True)
        return [list(zip(*pair, strict=True)) for pair in by_row]

    def settle(
        self, chosen: Sequence[Sequence[tuple[int, float]]], best: Sequence[tuple[tuple[int, float], ...]]
    ) -> TextStep:
        """Every text with its next tokens; what is finished leaves, and what has read its context begins anew."""
        tokens, finished, anew = dict[int, tuple[GeneratedToken, ...]](), list[int](), list[RunningText]()
        for text, some, alternatives in zip(self.texts, chosen, best, strict=True):
            index, over = text.request.index, False
            for at, (token, value) in enumerate(some):
                if over := value == -torch.inf or token in self.constraints.stop:
                    some = some[:at]
                    break
            tokens[index] = tuple([GeneratedToken(*one, alternatives) for one in some])
            if some:
                ids, values = zip(*some, strict=True)
                text.row, text.seen = text.row.extend_by(ids, values), text.seen + len(text.unread) + len(ids) - 1
                text.recent.extend(ids)
                text.unread = [ids[-1]]
            if over or len(text.row.tokens) == text.request.tokens:
                finished.append(index)
            elif self.limit is not None and text.seen >= self.limit:
                text.unread, text.seen = list(text.recent)[-(self.limit // 2) :], 0
                anew.append(text)
        done = {*finished}
        self.leave([text.request.index in done or text.seen == 0 for text in self.texts], anew)
        return TextStep(tokens, finished)

    def leave(self, leaving: Sequence[bool], anew: Sequence[RunningText] = ()) -> None:
        """Rows of texts that leave are free at once; some of them are read anew."""
        rows = 0 if self.decoder is None else self.decoder.rows
        staying = rows_that_stay(leaving[:rows])
        if self.decoder is not None and len(staying) < rows:
            self.decoder.keep(staying)
        new = [text for text, over in zip(self.texts[rows:], leaving[rows:], strict=True) if not over]
        self.texts = [*(self.texts[row] for row in staying), *new, *anew]
        if not self.texts and self.decoder is not None:
            give_back(self.model, self.decoder)
            self.decoder = None


def choose_tokens(
    scores: Float[Tensor, "n v"], texts: Sequence[RunningText], constraints: Constraints
) -> list[tuple[int, float]]:
    """The next token of every text by its own search, and its log-probability: -∞ where no token is allowed."""
    masked = mask_disallowed(scores, [text.row for text in texts], constraints)
    groups, tokens = dict[StepwiseSearch, list[int]](), torch.zeros(len(texts), dtype=torch.long, device=scores.device)
    for n, text in enumerate(texts):  # those that differ in their seeds alone are one group
        search = text.request.search
        groups.setdefault(replace(search, seed=0) if isinstance(search, Sampling) else search, []).append(n)
    for search, members in groups.items():
        index = torch.tensor(members, device=scores.device)
        some, rows = masked[index], [texts[n].row for n in members]
        if isinstance(search, Sampling):
            found = search.draw(some, [draw_number(texts[n]) for n in members])
        else:
            found = search.choose(some, rows)
        tokens[index] = found
    values = masked.gather(-1, tokens[:, None])[:, 0]
    return list(zip(tokens.tolist(), values.tolist(), strict=True))


def draw_number(text: RunningText) -> float:
    search = text.request.search
    assert isinstance(search, Sampling)
    return search.uniform_draw(text.row)


def top_tokens(scores: Float[Tensor, "n v"], counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """So many of the most probable tokens of each row, with their log-probabilities."""
    if not max(counts):
        return [()] * len(counts)
    best, ids = (part.tolist() for part in stable_topk(scores, max(counts)))
    return [tuple(zip(ids[n][:count], best[n][:count], strict=True)) for n, count in enumerate(counts)]


# --- texts to their ends ---


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    search: StepwiseSearch,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
    context: int | None = None,
    top: int = 0,
) -> Iterator[GeneratedToken]:
    """Up to `tokens` tokens after the prompt (after BOS without one), fewer if the constraints allow none.

    EOS does not end the text: for a model of words it is the end of a line. With each token come the
    `top` most probable ones.
    """
    batch = ContinuousGeneration(model, constraints, context)
    batch.add([TextRequest(tuple(prompt), search, tokens, top)])
    while batch.texts:  # not in inference mode: the caller may need gradients
        yield from batch.step().tokens[0]


def generate_all(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    search: StepwiseSearch,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
    context: int | None = None,
    rows: int = ROWS,
) -> list[list[GeneratedToken]]:
    """What `generate` gives for each prompt; so many texts are continued at once, and as one ends the next begins."""
    batch, waiting = ContinuousGeneration(model, constraints, context), deque(enumerate(prompts))
    found = [list[GeneratedToken]() for _ in prompts]
    while waiting or batch.texts:
        free = min(len(waiting), rows - len(batch.texts))
        joining = [waiting.popleft() for _ in range(free)]
        batch.add([TextRequest(tuple(prompt), search, tokens, index=n) for n, prompt in joining])
        for index, some in batch.step(AHEAD).tokens.items():
            found[index] += some
    return found


def continuation_search(
    model: LanguageModel, prompt: Sequence[int], beam: Beam, tokens: int, constraints: Constraints = Constraints()
) -> BeamSearch:
    """Beam search for `tokens` tokens after the prompt, ready to run; as in `generate`, EOS does not end the text."""
    return batched_continuation_search(model, [list(prompt) or [BOS]], beam, tokens, constraints)


def batched_continuation_search(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    beam: Beam,
    tokens: int,
    constraints: Constraints = Constraints(),
) -> BeamSearch:
    """The same after several prompts, which are as long as each other."""
    read = torch.tensor([list(prompt) for prompt in prompts], device=model.embedding.weight.device)

    def forward(tokens: Tensor, state: Any, memory: None) -> tuple[Tensor, DecoderState]:
        x, state = model.decode_hidden(tokens, state)
        return model.logits(x[:, -1:]), state

    decoder = ModelBeams.after(read, forward, model.start(len(prompts)), None, beam.size)
    requests = [DecodingRequest((), index=n) for n in range(len(prompts))]
    decoder.allowed_next = AllowedNext.of(constraints, requests)
    search = BeamSearch.begin(decoder, replace(beam, max_length=LengthLimit(0, tokens)), requests, constraints)
    if EOS in constraints.stop:
        return search
    return replace(search, beams=replace(search.beams, eos=NO_EOS))


def has_growing_cache(model: LanguageModel) -> bool:
    """Whether the model's state grows with every token (a KV cache)."""
    if isinstance(model, LanguageModel) and isinstance(model.backbone, TransformerLM) and not objections(model):
        return None in model.backbone.lookbacks
    with inference_mode(model):
        _, state = model.decode_hidden(torch.tensor([[BOS]], device=model.embedding.weight.device), model.start(1))
    return model.memory_grows(state)


def text_constraints(tokenizer: Tokenizer) -> Constraints:
    """Bans ids without text: UNK, and EOS except for a model of words, where it is the end of a line, and for one from
    elsewhere, where it is the end of the text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return Constraints(banned=frozenset([UNK]), stop=frozenset([EOS]))
    return Constraints(banned=frozenset([UNK] if isinstance(tokenizer, WordTokenizer) else [UNK, EOS]))


def stream_text(tokenizer: Tokenizer, tokens: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of each token after the prompt, and what is left at the end. A character of several bytes comes with the
    last of them."""
    if isinstance(tokenizer, LosslessTokenizer):
        yield from stream_bytes(tokenizer, tokens, at_start=not prompt)
        return
    if isinstance(tokenizer, PretrainedTokenizer):
        yield from stream_foreign(tokenizer, tokens, prompt)
        return
    line_start = not prompt or prompt[-1] == EOS
    for token in tokens:
        yield "\n" if token == EOS else f"{'' if line_start else ' '}{tokenizer.decode([token])}"
        line_start = token == EOS


def stream_foreign(tokenizer: PretrainedTokenizer, tokens: Iterable[int], prompt: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text of those before it, the last few of which decide on blanks and letters."""
    ids, read, start = list(prompt), len(prompt), max(0, len(prompt) - CONTEXT_TOKENS)
    for token in tokens:
        ids.append(token)
        before, text = tokenizer.text(ids[start:read]), tokenizer.text(ids[start:])
        if text.endswith("\ufffd"):  # half of a letter
            yield ""
            continue
        yield text.removeprefix(before)
        read, start = len(ids), max(start, len(ids) - CONTEXT_TOKENS)
    yield tokenizer.text(ids[start:]).removeprefix(tokenizer.text(ids[start:read]))


def stream_bytes(tokenizer: LosslessTokenizer, tokens: Iterable[int], *, at_start: bool) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        text = decoder.decode(b"".join(tokenizer.ids_to_bytes([token])))
        yield text.removeprefix(tokenizer.prefix) if at_start else text
        at_start = at_start and not text
    yield decoder.decode(b"", final=True)
