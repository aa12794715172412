"""A model that nobody has seen: an encoder-decoder of odd parts is traced exactly, searched and edited."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Additive,
    Alibi,
    CacheCell,
    Causal,
    Context,
    Global,
    KVCache,
    MultiHeadAttention,
    Padding,
    Recipe,
    Rotary,
    SiteName,
    Sparsemax,
    TopK,
    Window,
)
from regard.attention.core import AttentionSites
from regard.decode import Beam, translate
from regard.layers.embedding import Embedding
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq
from regard.see import AttentionSite, Edits, HeadOff, Mask, compare, trace_model, trace_module, trace_with_edits
from regard.see.sites import apply_edits
from regard.serve.model_store import ModelStore
from regard.tasks.translation.task import Translator
from tests.see.test_sites import assert_untouched
from tests.see.untrained_models import CAT, translator
from tests.serve.client import client_of, floats, post_trace, site_path

WIDTH = 12


@dataclass(frozen=True, eq=False)
class Source(Memory):
    keys: Tensor
    values: Tensor
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class Target(DecoderState):
    cache: KVCache


class MadeUp(Seq2Seq[Source, Target]):
    """One odd layer on each side; no norm, no feed-forward, three heads that share one key here and none there."""

    attention_sites: AttentionSites  # undeclared unless it is set

    def __init__(self, source: int, target: int):
        super().__init__()
        self.source, self.target = Embedding(source, WIDTH), Embedding(target, WIDTH)
        self.reading = MultiHeadAttention(
            WIDTH, heads=3, groups=1, recipe=Recipe(position=Alibi(3), pattern=Window(4) | Global(1))
        )
        self.writing = MultiHeadAttention(
            WIDTH, heads=2, recipe=Recipe(position=Rotary(), pattern=Causal(), normaliser=Sparsemax())
        )
        self.across = MultiHeadAttention(WIDTH, heads=3, recipe=Recipe(score=Additive(4, hidden=5), normaliser=TopK(3)))
        self.bias = nn.Parameter(torch.zeros(target))

    def encode(self, source, lengths):
        x = self.source.embed(source)
        x = x + self.reading(x, pattern=Padding(lengths))
        _, k, v = self.across.project(x)
        return Source(k, v, lengths)

    def start(self, memory):
        return Target(KVCache())

    def decode_hidden(self, tokens, state, memory):
        x, cell = self.target.embed(tokens), CacheCell(state.cache)
        x = x + self.writing(x, cache=cell)
        seen = self.across.cross_heads(
            x, (memory.keys, memory.values), Context(Padding(memory.lengths)), state.cache.length
        )
        return x + self.across.output(seen), Target(cell.cache)

    def output(self):
        return self.target, self.bias


SITES = {
    "reading": SiteName("encoder", "source", "source"),
    "writing": SiteName("decoder.self", "read", "read"),
    "across": SiteName("decoder.cross", "written", "source"),
}


def made_up_translator(*, declares: bool) -> Translator:
    one = translator()
    model = MadeUp(one.source.size, one.target.size).eval()
    if declares:
        model.attention_sites = SITES
    return replace(one, model=model)


def test_a_module_that_nobody_has_seen_is_traced_exactly_and_edited():
    model = MadeUp(23, 19).eval()
    source, lengths = torch.randint(4, 23, (2, 7)), torch.tensor([7, 5])
    given = source, lengths, torch.randint(4, 19, (2, 6))
    with assert_untouched(model):
        logits, sites = trace_module(model, *given)
        with torch.no_grad():
            assert torch.equal(logits, model(*given))
    assert list(sites) == ["reading", "writing", "across"]
    for site in sites.values():
        assert isinstance(site, AttentionSite)
        assert all(site.check(head).holds for head in range(site.heads))
    for name, site in sites.items():
        assert isinstance(site, AttentionSite)
        with assert_untouched(model):
            after, edited = trace_module(model, *given, edits=Edits(off=(HeadOff(name, 1),)))
        other = edited[name]
        assert isinstance(other, AttentionSite)
        assert not torch.equal(after, logits)
        assert bool((other.output[:, 1] == 0).all())
        assert torch.equal(other.output[:, 0], site.output[:, 0])  # the others stay, bit for bit
    with pytest.raises(ValueError, match=r"no site 'decoder.0.self'; there are reading, writing, across"):
        trace_module(model, *given, edits=Edits(off=(HeadOff("decoder.0.self", 0),)))


def test_it_reads_token_by_token_with_edits_what_it_reads_at_once():
    model, edits = MadeUp(23, 19).double().eval(), Edits(masks=(Mask("writing", 1, 3, 1), Mask("across", 0, 4, 2)))
    source, lengths, target = torch.randint(4, 23, (1, 7)), torch.tensor([7]), torch.randint(4, 19, (1, 6))
    with torch.no_grad(), apply_edits(model, edits):
        at_once = model(source, lengths, target)
        memory = model.encode(source, lengths)
        state, parts = model.start(memory), []
        for token in target.split(1, 1):
            logits, state = model.step(token, state, memory)
            parts.append(logits)
    assert_close(torch.cat(parts, 1), at_once)
    with torch.no_grad():
        assert not torch.allclose(model(source, lengths, target), at_once)


@pytest.mark.parametrize("declares", [False, True])
def test_a_translator_made_of_it_is_traced_searched_and_edited_as_any_other(declares):
    one = made_up_translator(declares=declares)
    before = trace_model(one, CAT, beam=3)
    (found,) = translate(one.model, [one.source.encode(CAT)], Beam(3, length_penalty=1.0))[0]
    assert before.output_ids == found.ids
    name = list(before.sites)[-1]
    assert before.site(name).check(0).holds
    edits = Edits(off=tuple(HeadOff(name, head) for head in range(3)))
    after = trace_with_edits(before, edits)
    assert compare(before, after).largest_change > 0
    assert bool((after.site(name).output == 0).all())
    (n_q, n_k), site = before.site(name).shape, before.site(name).site_name
    assert len(before.axes[site.queries].labels) == n_q
    assert len(before.axes[site.keys].labels) == n_k
    if declares:
        assert list(before.sites) == ["encoder", "decoder.self", "decoder.cross"]
        assert before.word_weights(name, 0).shape[1] == len(CAT.split()) + 1


@pytest.mark.parametrize("declares", [False, True])
def test_it_is_shown_in_the_page(declares):
    one = made_up_translator(declares=declares)
    with client_of(ModelStore.from_models({"odd": one})) as client:
        trace, before = post_trace(client, {"model": "odd", "text": CAT}), trace_model(one, CAT)
        assert [card["name"] for card in trace["sites"]] == list(before.sites)
        for card in trace["sites"]:
            assert card["shown"]
            assert len(trace["axes"][card["queries"]]) == card["n_q"]
            assert len(trace["axes"][card["keys"]]) == card["n_k"]
            row = floats(client, f"{site_path(trace, card['name'])}/heads/1/rows/0")
            assert_close(torch.tensor(row), before.site(card["name"]).row(1, 0), atol=1e-6, rtol=0)
            assert client.get(f"{site_path(trace, card['name'])}/heads/1/check").json()["difference"] < 1e-5
        name = trace["sites"][-1]["name"]
        edits = {"off": [{"site": name, "head": 0}]}
        changed = post_trace(client, {"model": "odd", "text": CAT, "edits": edits})
        row = floats(client, f"{site_path(changed, name)}/heads/0/rows/0")
        assert not row.any()
