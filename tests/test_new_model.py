"""A new model, written here alone, trains packed, resumes, decodes with a cache, is traced, edited and shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    AttentionSites,
    CacheCell,
    Causal,
    Context,
    Cosine,
    KVCache,
    MultiHeadAttention,
    Padding,
    Recipe,
    Segments,
    SiteName,
    Sparsemax,
    Window,
)
from regard.data.packing import PackedBatch
from regard.data.parallel import SentencePair
from regard.decode import Beam, Greedy, translate
from regard.layers.embedding import TiedEmbeddings
from regard.models.config import ModelConfig
from regard.models.seq2seq import Memory, Seq2Seq
from regard.models.transformer import KVCaches
from regard.see import Edits, HeadOff, trace_model
from regard.serve.model_store import ModelStore
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator, train_tokenizers
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun
from tests.serve.client import client_of, floats, site_path

WIDTH, HEADS, LAYERS = 16, 2, 2
NEAR = Recipe(score=Cosine(), position=Alibi(HEADS), pattern=Window(3), normaliser=Sparsemax())
PAST = Recipe(score=Cosine(), position=Alibi(HEADS), pattern=Causal() & Window(4), normaliser=Sparsemax())
ACROSS = Recipe(score=Cosine(), normaliser=Sparsemax())
PAIRS = [
    SentencePair(f"the {noun} {verb}", f"{verb} {noun} le")
    for noun in ("cat", "dog", "mouse", "bird")
    for verb in ("sleeps", "eats", "runs", "sings")
]


@dataclass(frozen=True, eq=False)
class Sentences(Memory):
    states: Tensor
    lengths: Tensor


class ParallelLayer(nn.Module):
    """x + self-attention + cross-attention, both of the same norm: an odd layer, whose equation stands here alone."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.own = MultiHeadAttention(WIDTH, heads=HEADS, recipe=PAST)
        self.source = MultiHeadAttention(WIDTH, heads=HEADS, recipe=ACROSS)

    def forward(self, x: Tensor, memory: Tensor, own: Context, across: Context, cache: CacheCell | None) -> Tensor:
        y = self.norm(x)
        attended = self.own.compute_heads(y, None, own, cache)
        return x + self.own.output(attended) + self.source.output(self.source.compute_heads(y, memory, across))


class ParallelTranslator(Seq2Seq[Sentences, KVCaches]):
    """A small encoder–decoder of one's own, and how its attentions are called."""

    attention_sites: ClassVar[AttentionSites] = {
        "reader.*": SiteName("reader.*", "source", "source"),
        "writer.*.own": SiteName("writer.*.own", "read", "read"),
        "writer.*.source": SiteName("writer.*.source", "written", "source"),
    }

    def __init__(self, source: int, target: int):
        super().__init__()
        self.embeddings = TiedEmbeddings(source, target, WIDTH, tie="target")
        self.reader = nn.ModuleList(MultiHeadAttention(WIDTH, heads=HEADS, recipe=NEAR) for _ in range(LAYERS))
        self.writer = nn.ModuleList(ParallelLayer() for _ in range(LAYERS))

    def read_source(self, tokens: Tensor, context: Context) -> Tensor:
        x = self.embeddings.embed_source(tokens)
        for layer in self.reader:
            assert isinstance(layer, MultiHeadAttention)
            x = x + layer.output(layer.compute_heads(x, None, context))
        return x

    def write_target(
        self, tokens: Tensor, memory: Tensor, own: Context, across: Context, cells: Sequence[CacheCell | None]
    ) -> Tensor:
        x = self.embeddings.embed_target(tokens)
        for layer, cell in zip(self.writer, cells, strict=True):
            x = layer(x, memory, own, across, cell)
        return x

    def encode(self, source, lengths):
        return Sentences(self.read_source(source, Context(Padding(lengths))), lengths)

    def start(self, memory):
        return KVCaches((KVCache(),) * LAYERS)

    def decode_hidden(self, tokens, state, memory):
        cells = [CacheCell(cache) for cache in state.layers]
        x = self.write_target(tokens, memory.states, Context(), Context(Padding(memory.lengths)), cells)
        return x, KVCaches(tuple(cell.cache for cell in cells))

    def packed_hidden_states(self, source: PackedBatch, target: PackedBatch) -> Tensor:
        read, own = (Segments(side.segment_ids, side.position_ids) for side in (source, target))
        across = Segments(own.ids, own.positions, read.ids, read.positions)
        memory = self.read_source(source.tokens, Context(segments=read))
        return self.write_target(
            target.tokens, memory, Context(segments=own), Context(segments=across), [None] * LAYERS
        )

    def output(self):
        return self.embeddings.table("output"), self.embeddings.bias


def translator(**train: Any) -> Translator:
    settings = TranslationSettings(
        data=TranslationData(corpus="files", train=("pairs.tsv",)),
        text=PairTokenizerSettings(kind="words", joint=False),
        model=ModelConfig(kind="transformer", model=WIDTH, heads=HEADS),
        train=TrainSettings(
            **{"steps": 90, "batch_size": 120, "packed": True, "learning_rate": 2e-2, "average_checkpoints": 1} | train
        ),
    )
    source, target = train_tokenizers(PAIRS, settings.text)
    torch.manual_seed(3)
    return Translator(ParallelTranslator(source.size, target.size), source, target, settings)


def trained(folder: Path, stop_after: int | None = None, **train: Any) -> tuple[Translator, list[float]]:
    """The whole run, or until it is stopped."""
    one, losses = translator(**train), []
    for report in (run := TrainingRun(one.job(PAIRS, PAIRS[:4]), folder).steps()):
        losses.append(report.loss)
        if report.step == stop_after:
            run.close()
    return one, losses


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Translator, list[float]]:
    one, losses = trained(tmp_path_factory.mktemp("run"))
    one.model.eval()
    return one, losses


def test_it_trains_on_packed_rows(run):
    assert run[1][-1] < run[1][0] / 2


def test_packed_rows_give_what_padded_ones_give():
    one = translator()
    packed, padded = (translator(packed=kind).job(PAIRS, PAIRS[:4]) for kind in (True, False))
    sums = [sum(job.loss(one.model.eval(), batch)[0] for batch in job.data.at(0, 0)) for job in (packed, padded)]
    tokens = [sum(batch[1] for batch in job.data.at(0, 0)) for job in (packed, padded)]
    assert_close(sums[0] / tokens[0], sums[1] / tokens[1], rtol=0.2, atol=0)


def test_it_resumes_exactly(tmp_path):
    straight, _ = trained(tmp_path / "straight", steps=19)
    trained(tmp_path / "left", stop_after=11, steps=19)
    again, _ = trained(tmp_path / "left", steps=19)
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


def test_it_decodes_with_a_cache(run):
    one = run[0]
    sources = [one.source.encode(pair.source) for pair in PAIRS]
    found = [hypotheses[0] for hypotheses in translate(one.model, sources, Beam(3))]
    beams, greedy = (translate(one.model, sources, search) for search in (Beam(1), Greedy()))
    assert [hypotheses[0].ids for hypotheses in beams] == [hypotheses[0].ids for hypotheses in greedy]
    assert (
        sum(one.detokenize(hypothesis.ids) == pair.target for hypothesis, pair in zip(found, PAIRS, strict=True)) > 12
    )
    source, ids = torch.tensor([[*sources[0], 2]]), torch.tensor([[1, *found[0].ids]])
    whole = one.model(source, torch.tensor([source.shape[1]]), ids)
    memory = one.model.encode(source, torch.tensor([source.shape[1]]))
    state, parts = one.model.start(memory), []
    for token in ids.unbind(1):
        logits, state = one.model.step(token[:, None], state, memory)
        parts.append(logits)
    assert_close(torch.cat(parts, 1), whole)


def test_it_is_traced_exactly_and_a_head_is_switched_off(run):
    trace = trace_model(run[0], "the cat sleeps", target="sleeps cat le")
    assert list(trace.sites) == [
        "reader.0",
        "reader.1",
        "writer.0.own",
        "writer.0.source",
        "writer.1.own",
        "writer.1.source",
    ]
    for name in trace.sites:
        assert all(trace.site(name).check(head).holds for head in range(HEADS))
    off = trace_model(
        run[0], "the cat sleeps", target="sleeps cat le", edits=Edits(off=(HeadOff("writer.1.source", 1),))
    )
    assert not off.site("writer.1.source").output[:, 1].any()
    assert torch.equal(off.site("writer.1.source").output[:, 0], trace.site("writer.1.source").output[:, 0])
    assert not torch.equal(off.predictions.logits, trace.predictions.logits)


def test_the_page_shows_it(run):
    with client_of(ModelStore.from_models({"parallel": run[0]})) as client:
        trace = client.post("/api/traces", json={"model": "parallel", "text": "the cat sleeps"}).json()
        assert trace["sites"][0]["name"] == "reader.0"
        cells = floats(client, f"{site_path(trace, 'writer.0.source')}/heads/0/cells")
        assert_close(torch.tensor(cells).sum(-1), torch.ones(cells.shape[:-1]))
