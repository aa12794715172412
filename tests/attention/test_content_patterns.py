"""Patterns chosen from the content: on paper, their laws, their caches, and what is refused."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    AttentionCall,
    Block,
    BlockChoice,
    Causal,
    ContentPattern,
    Forget,
    LightningIndexer,
    MultiHeadAttention,
    NativeSparse,
    Padding,
    PerHead,
    Recipe,
    Rotary,
    Segments,
    TopBlocks,
    Window,
    attend,
    attention_stats,
    choice_loss,
    parse_part,
    record_attention,
    steps,
)
from regard.attention.backends.block_sparse import BlockSparseTiles, tiling_objections
from regard.attention.functional import explain, prepare
from regard.attention.kv_cache import KVCache
from regard.attention.pattern import Or
from regard.data.lm_blocks import LMBlock
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.see import AttentionSite, trace_module
from regard.see.edits import Edits, HeadOff
from regard.tasks.language_modeling.task import LanguageModelingLoss
from regard.training.config import with_choice_loss
from tests.narrowing import assert_is_instance, not_none

B, H, G, T, D = 2, 4, 2, 23, 6


def draw(*, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(B, h, T, D, dtype=torch.double, requires_grad=grad) for h in (H, G, G))
    return q, k, v


def patterns() -> dict[str, ContentPattern]:
    return {
        "blocks, together": TopBlocks(2, 4),
        "blocks, two by two": TopBlocks(3, 4, queries=2),
        "blocks, each query": TopBlocks(2, 4, queries=1),
        "keys": LightningIndexer(5, query=H * D, key=G * D, heads=2, width=3).double(),
    }


@pytest.fixture(params=patterns())
def pattern(request) -> ContentPattern:
    return patterns()[request.param]


# --- on paper ---


def test_the_block_whose_mean_fits_best_is_chosen():
    """Means of blocks of two keys are (1, 0), (0, 1), (-1, 0); the query (0, 2) takes the second, (-1, 0) the third."""
    k = torch.tensor(
        [[2.0, 0.0], [0.0, 0.0], [0.0, 3.0], [0.0, -1.0], [-2.0, 1.0], [0.0, -1.0], [9.0, 9.0], [0.0, 0.0]]
    )
    q = torch.zeros(8, 2)
    q[6], q[7] = torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 0.0])
    q, k = q[None, None], k[None, None]
    seen = steps(q, k, k, Recipe(pattern=TopBlocks(2, 2, queries=1))).visible[0, 0].long()
    assert seen[6].tolist() == [0, 0, 1, 1, 0, 0, 1, 0]
    assert seen[7].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    together = steps(q, k, k, Recipe(pattern=TopBlocks(2, 2))).visible[0, 0].long()
    assert together[7].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]  # as query 6, the first of their block


def test_the_indexer_adds_up_what_its_heads_say():
    """I = 1·ReLU(q k) + 2·ReLU(-q k) of q = 1 and keys 4, -3, 1 is 4, 6, 1: of two keys the first two are seen."""
    indexer = LightningIndexer(2, query=1, heads=2, width=1)
    indexer.to_query.weight.data, indexer.to_key.weight.data = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0]])
    indexer.to_weight.weight.data = torch.tensor([[1.0], [2.0]])
    q, k = torch.ones(1, 1, 3, 1), torch.tensor([4.0, -3.0, 1.0]).view(1, 1, 3, 1)
    assert_close(indexer.index(q, k)[0, 2] * 2**0.5, torch.tensor([4.0, 6.0, 1.0]))
    assert steps(q, k, k, Recipe(pattern=indexer)).visible[0, 0].tolist()[2] == [True, True, False]


# --- laws ---


def test_no_choice_depends_on_a_later_token(pattern):
    q, k, v = draw()
    recipe = Recipe(pattern=pattern, position=Rotary())
    before = attend(q, k, v, recipe)
    for first in (1, 9, 14, 22):
        other = (torch.cat((x[:, :, :first], torch.randn_like(x[:, :, first:]) * 5), 2) for x in (q, k, v))
        later_q, later_k, later_v = other
        assert_close(attend(later_q, later_k, later_v, recipe)[:, :, :first], before[:, :, :first])
        assert not steps(q, k, v, recipe).visible.triu(1).any()


@pytest.mark.parametrize(
    "whole", [TopBlocks(6, 4), TopBlocks(9, 4, queries=1), LightningIndexer(T, query=H * D, key=G * D).double()]
)
def test_who_chooses_everything_is_causal(whole):
    q, k, v = draw()
    assert_close(attend(q, k, v, Recipe(pattern=whole)), attend(q, k, v, Recipe(pattern=Causal())))


def test_the_choice_of_blocks_is_that_of_their_means():
    """What is added to every key, a longer query, and another order within earlier blocks change no choice."""
    q, k, v = draw()

    def chosen(q: Tensor, k: Tensor) -> Tensor:
        planned = prepare(q, k, v, Recipe(pattern=TopBlocks(2, 4, queries=1)), 0, 0)[0].pattern
        assert isinstance(planned, BlockChoice)
        return planned.chosen

    shuffled = k.unflatten(2, (-1, 1))[:, :, :20].view(B, G, 5, 4, D)[:, :, :, [2, 0, 3, 1]].reshape(B, G, 20, D)
    for other in (
        chosen(q, k + torch.randn(D, dtype=torch.double)),
        chosen(q * 7, k),
        chosen(q, torch.cat((shuffled, k[:, :, 20:]), 2)),
    ):
        assert torch.equal(other, chosen(q, k))


def test_every_backend_agrees_or_objects(pattern):
    given = draw(grad=True)
    upstream = torch.randn(B, H, T, D, dtype=torch.double)
    for recipe in (Recipe(pattern=pattern), Recipe(pattern=pattern & Padding(torch.tensor([T, 9])) & Window(11))):
        planned, q, k, positions = prepare(*given, recipe, 0, 0)
        want = attend(*given, recipe, backend="reference")
        wanted = torch.autograd.grad(want, given, upstream)
        ran = []
        for name, backend in BACKENDS.items():
            if not backend.objections(planned, q, k, positions):
                got = attend(*given, recipe, backend=name)
                assert_close((got, *torch.autograd.grad(got, given, upstream)), (want, *wanted))
                ran.append(name)
        assert ran[-2:] == ["sdpa", "reference"]


def test_decoding_with_a_cache_is_reading_at_once(pattern):
    recipe = Recipe(position=Rotary(), pattern=pattern)
    layer = MultiHeadAttention(H * D, heads=H, groups=G, recipe=recipe).double()
    x = torch.randn(B, T, H * D, dtype=torch.double)
    for sizes in ([1] * T, [3, 1, 7, 12], [4, 19]):
        cache, parts = KVCache(), []
        for part in x.split(sizes, 1):
            out, cache = layer.extend(part, cache)
            parts.append(out)
        assert_close(torch.cat(parts, 1), layer(x))


def test_each_head_may_choose_by_a_pattern_of_its_own(pattern):
    """The first of two heads chooses, the second sees all of the past; decoding goes on with what was chosen."""
    recipe = Recipe(pattern=PerHead([pattern, Causal()]))
    layer, x = MultiHeadAttention(H * D, heads=H, groups=G, recipe=recipe).double(), torch.randn(B, T, H * D).double()
    with record_attention(layer) as record:
        whole = layer(x)
    (call,) = record.calls_of("attention")
    assert isinstance(call, AttentionCall)
    own, every = (steps(call.q, call.k, call.v, Recipe(pattern=one)).visible for one in (pattern, Causal()))
    seen = call.steps().visible
    assert torch.equal(seen[:, ::2], own.expand_as(seen)[:, ::2])
    assert torch.equal(seen[:, 1::2], every.expand_as(seen)[:, 1::2])
    cache, parts = KVCache(), []
    for part in x.split([3, 1, 7, 12], 1):
        out, cache = layer.extend(part, cache)
        parts.append(out)
    assert_close(torch.cat(parts, 1), whole)


@dataclass(frozen=True)
class BlocksAndOwn(ContentPattern):
    """A pattern of one's own, whose choice is combined of others: a cache hands it back whole."""

    def choose(self, q, k, positions, past):
        assert past is None or isinstance(past, Or)
        return TopBlocks(2, 4).choose(q, k, positions, None if past is None else past.left) | Window(2) & Causal()


@pytest.mark.parametrize(
    "own",
    [BlocksAndOwn(), Window(9) & BlocksAndOwn(), PerHead([BlocksAndOwn(), Causal()]), ~~BlocksAndOwn() & Causal()],
)
def test_a_choice_that_is_combined_of_others_decodes_with_a_cache(own):
    layer = MultiHeadAttention(H * D, heads=H, groups=G, recipe=Recipe(pattern=own)).double()
    x = torch.randn(B, T, H * D, dtype=torch.double)
    cache, parts = KVCache(), []
    for part in x.split([3, 1, 7, 12], 1):
        out, cache = layer.extend(part, cache)
        parts.append(out)
    assert_close(torch.cat(parts, 1), layer(x))


@pytest.mark.parametrize("chosen", ["TopBlocks(2, 4)", "LightningIndexer(3, query=24)"])
def test_a_choice_within_a_window_is_among_all_keys_and_so_the_cache_keeps_them(chosen):
    config = {"kind": "transformer", "layers": 2, "model": H * D, "heads": H, "hidden": 8, "dropout": 0.0}
    recipe = f"pattern = 'Window(6) & {chosen}'"
    model = LanguageModel(LanguageModelConfig.from_dict(config | {"recipe": recipe}), 11).double().eval()
    tokens, state, logits = torch.randint(11, (B, T)), model.start(B), []
    for token in tokens.split(1, 1):
        found, state = model.step(token, state)
        logits.append(found)
    assert_close(torch.cat(logits, 1), model(tokens))


def test_a_recipe_file_describes_it(pattern):
    recipe = Recipe(pattern=pattern & Window(9))
    again = Recipe.from_toml(recipe.to_toml())
    assert again.to_toml() == recipe.to_toml()
    if not isinstance(pattern, LightningIndexer):  # whose weights are fresh
        assert again == recipe


def test_what_was_chosen_is_seen(pattern):
    """Records and statistics show the weights that were used."""
    layer = MultiHeadAttention(H * D, heads=H, groups=G, recipe=Recipe(pattern=pattern)).double()
    x = torch.randn(B, T, H * D, dtype=torch.double)
    with record_attention(layer) as record:
        layer(x)
    weights, (call,) = record.weights("attention"), record.calls_of("attention")
    q, k, v = layer.project(x)
    assert_close(weights, steps(q, k, v, layer.recipe).weights)
    assert ((weights > 0).sum(-1) <= 12).all()
    assert_close(attention_stats(q, k, layer.recipe).mass, weights.sum(2))
    assert isinstance(call, AttentionCall)
    assert_close(call.output, attend(q, k, v, layer.recipe))


# --- the indexer learns ---


def test_the_indexer_learns_from_its_loss_alone():
    q, k, v = draw(grad=True)
    indexer = LightningIndexer(5, query=H * D, key=G * D, heads=2, width=3).double()
    output = attend(q, k, v, Recipe(pattern=indexer))
    none = torch.autograd.grad(output.sum(), list(indexer.parameters()), allow_unused=True)
    assert all(grad is None for grad in none)
    weights = steps(q, k, v, Recipe(pattern=Causal())).weights
    loss = indexer.loss(q, k, weights)
    assert all(grad is None for grad in torch.autograd.grad(loss, (q, k), allow_unused=True, retain_graph=True))
    optimiser = torch.optim.Adam(indexer.parameters(), 0.02)
    for _ in range(30):
        optimiser.zero_grad()
        indexer.loss(q, k, weights).backward()
        optimiser.step()
    assert indexer.loss(q, k, weights) < 0.8 * loss
    assert indexer.loss(q, k, weights) > 0


@pytest.mark.parametrize(
    "pattern", ["LightningIndexer(2, query=24)", "PerHead([LightningIndexer(2, query=24), Causal()])"]
)
def test_a_run_trains_the_indexers_of_its_model(pattern):
    """At once and with a lead, whose KV cache holds what was chosen; the figure is the loss of the words alone."""
    recipe = Recipe(position=Rotary(), pattern=parse_part(pattern)).to_toml()
    config = LanguageModelConfig(kind="transformer", layers=2, model=24, heads=3, hidden=8, dropout=0.0, recipe=recipe)
    for lead in (0, 4):
        torch.manual_seed(0)
        model = LanguageModel(config, 11).double()
        tokens = torch.randint(3, 11, (2, 13))
        block = LMBlock(tokens[:, :-1], tokens[:, 1:], torch.ones(2, 12, dtype=torch.bool))
        plain = LanguageModelingLoss()
        loss = with_choice_loss(model, plain)
        wanted, count = plain(model, (block, 2 * (12 - lead), lead))
        found, same = loss(model, (block, 2 * (12 - lead), lead))
        assert (found.item(), same) == (pytest.approx(wanted.item()), count)
        indexers = [weight for name, weight in model.named_parameters() if "pattern" in name]
        others = [weight for name, weight in model.named_parameters() if "pattern" not in name]
        assert len(indexers) == 2 * 3
        assert all(grad is None for grad in torch.autograd.grad(wanted, indexers, allow_unused=True, retain_graph=True))
        assert all((grad != 0).any() for grad in torch.autograd.grad(found, indexers, retain_graph=True))
        for mine, theirs in zip(torch.autograd.grad(found, others), torch.autograd.grad(wanted, others), strict=True):
            assert_close(mine, theirs)


def test_the_indexer_learns_what_the_heads_attend_to_where_it_hides_nothing():
    x = torch.randn(2, 9, 24, dtype=torch.double)
    layer = MultiHeadAttention(24, heads=3, recipe=Recipe(pattern=LightningIndexer(2, query=24))).double()
    with record_attention(layer) as record:
        layer(x)
    (call,) = record.calls_of("attention")
    assert isinstance(call, AttentionCall)
    indexer = assert_is_instance(layer.recipe.pattern, LightningIndexer)
    dense = steps(call.q, call.k, call.v, Recipe(pattern=Causal())).weights
    assert_close(choice_loss(record), indexer.loss(call.q, call.k, dense))
    plain = MultiHeadAttention(24, heads=3, recipe=Recipe(pattern=TopBlocks(2, 2))).double()
    with record_attention(plain) as record:
        plain(x)
    assert choice_loss(record) is None
    loss = LanguageModelingLoss()
    assert with_choice_loss(nn.Linear(2, 2), loss) is loss


# --- native sparse attention ---


def nsa(k: int = 3, window: int = 5) -> MultiHeadAttention:
    return MultiHeadAttention(24, heads=4, groups=2, form=NativeSparse(block=4, k=k, window=window)).double()


def only_branch(layer: MultiHeadAttention, branch: int) -> MultiHeadAttention:
    """Its other gates shut."""
    gate = not_none(layer.branches).gate
    gate.weight.data.zero_()
    gate.bias.data = torch.full((3, 4), -torch.inf, dtype=torch.double).index_fill(0, torch.tensor(branch), 1e9)
    gate.bias.data = gate.bias.data.flatten()
    return layer


@pytest.mark.parametrize("branch", [1, 2])
def test_branches_that_see_everything_are_causal_attention_in_value_and_gradient(branch):
    layer, x = only_branch(nsa(k=6, window=T), branch), torch.randn(B, T, 24, dtype=torch.double, requires_grad=True)
    q, k, v = layer.project(x)
    want = attend(q, k.chunk(3, 1)[branch], v.chunk(3, 1)[branch], Recipe(pattern=Causal()))
    want, upstream = layer.output(want.transpose(1, 2).flatten(2)), torch.randn(B, T, 24, dtype=torch.double)
    got, inputs = layer(x), [x, layer.get_parameter("key.weight"), layer.get_parameter("value.weight")]
    assert_close(got, want)
    assert_close(torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(want, inputs, upstream))


def test_the_compressed_branch_sees_whole_blocks_alone():
    layer, x = only_branch(nsa(), 0), torch.randn(1, 9, 24, dtype=torch.double)
    output, bias = layer(x), layer.get_parameter("output.bias")
    assert_close(output[:, :3], bias.expand(1, 3, 24))  # nobody has read a block yet
    assert not torch.allclose(output[:, 3], bias)
    changed = x.clone()
    changed[:, 8] += 1.0
    assert_close(layer(changed)[:, :8], output[:, :8])


def test_native_sparse_attention_with_a_cache_is_reading_at_once():
    layer, x = nsa(), torch.randn(B, T, 24, dtype=torch.double)
    for sizes in ([1] * T, [6, 1, 16]):
        cache, parts = None, []
        for part in x.split(sizes, 1):
            out, cache = layer.extend(part, cache)
            parts.append(out)
        assert_close(torch.cat(parts, 1), layer(x))
    grads = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    assert all(grad.any() for grad in grads)


def test_native_sparse_attention_of_a_padded_text_is_that_of_the_text():
    layer, x = nsa(), torch.randn(2, T, 24, dtype=torch.double)
    x[1, 9:] = 1e6
    assert_close(layer(x, pattern=Padding(torch.tensor([T, 9])))[1, :9], layer(x[1:, :9])[0])


def test_the_branches_of_a_language_model_of_settings_are_seen_and_add_up():
    """The microscope names them behind their layer; what was chosen is what the second saw."""
    form = "NativeSparse(block=4, k=2, window=3)"
    lines = {"kind": "transformer", "layers": 2, "model": 16, "heads": 2, "hidden": 8, "dropout": 0.0}
    lines |= {"attention_form": form, "recipe": "position = 'Rotary()'"}
    config = LanguageModelConfig.from_dict(lines)
    assert LanguageModelConfig.from_dict(config.to_dict()) == config
    model, tokens = LanguageModel(config, 11).eval(), torch.randint(0, 11, (1, 19))
    whole, sites = trace_module(model, tokens)
    assert list(sites) == [f"blocks.{n}.{branch}" for n in range(2) for branch in ("compressed", "chosen", "window")]
    assert [site.site_name.keys for site in list(sites.values())[:3]] == ["blocks", "text", "text"]
    assert all(assert_is_instance(site, AttentionSite).check().holds for site in sites.values())
    chosen = assert_is_instance(sites["blocks.0.chosen"], AttentionSite)
    assert (chosen.weights(0)[-1] > 0).sum() <= 2 * 4
    off, _ = trace_module(model, tokens, edits=Edits(off=(HeadOff("blocks.0.window", 1),)))
    assert not torch.equal(off, whole)
    state, logits = model.start(1), []
    for token in tokens.split(1, 1):
        found, state = model.step(token, state)
        logits.append(found)
    assert_close(torch.cat(logits, 1), whole, atol=1e-5, rtol=1e-5)


def test_what_native_sparse_attention_cannot_do_is_said():
    for given, message in (
        ({"recipe": Recipe(pattern=Window(3))}, "chooses by itself what a token sees"),
        ({"recipe": Recipe(pattern=Causal(), gate=Forget())}, "weighs each row by itself"),
        ({"form": NativeSparse(block=4, k=2, window=3), "heads": 5}, "do not divide"),
    ):
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(24, **{"heads": 4, "form": NativeSparse()} | given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be a whole number, at least 2"):
        NativeSparse(k=1)
    with pytest.raises(ValueError, match="besides it understands Padding"):
        nsa()(torch.zeros(1, 5, 24).double(), pattern=Window(2))
    with pytest.raises(ValueError, match="attends in branches"):
        nsa().look(torch.zeros(1, 5, 24).double())


# --- what the kernels read, and what is refused ---


def test_lists_of_chosen_blocks_hold_each_choice_twice():
    """By query blocks and by key blocks, of each head by itself, without those that are not there."""
    q, k, v = draw()
    choice = prepare(q, k, v, Recipe(pattern=TopBlocks(3, 4)), 0, 0)[0].pattern
    assert isinstance(choice, BlockChoice)
    choice = replace(choice, block=64, queries=64)  # as its tiles are
    lists = BlockSparseTiles.of(choice, 6 * 64, 6 * 64).static
    wanted = {
        (b * H + h, row, int(column))
        for b in range(B)
        for h in range(H)
        for row in range(6)
        for column in choice.chosen[b, h, row]
        if column >= 0
    }
    for rows, turn in ((lists.of_queries, False), (lists.of_keys, True)):  # type: ignore[union-attr]
        firsts, found = rows.firsts.tolist(), set()
        for place, (first, stop) in enumerate(pairwise(firsts)):
            for column, mask in zip(rows.columns[first:stop].tolist(), rows.masks[first:stop].tolist(), strict=True):
                head, row = divmod(place, 6)
                found.add((head, column, row) if turn else (head, row, column))
                assert (mask == 0) == (row == column)
        assert found == wanted
        assert firsts[-1] == len(wanted)


def test_what_the_kernels_cannot_read_is_said():
    q, k, v = draw()
    plans = {
        group: prepare(q, k, v, Recipe(pattern=TopBlocks(2, 4, queries=group)), 0, 0)[0].pattern for group in (1, 4)
    }
    assert "its tiles are blocks of 64, 128 keys" in tiling_objections(plans[4], T, T)[0]
    large = replace(plans[4], block=64, queries=64)  # type: ignore[type-var]
    assert tiling_objections(large & Causal() & Padding(torch.tensor([3, 4])), T, T) == []
    assert "hides single keys" in tiling_objections(large & Window(3), T, T)[0]
    assert "begin at query 0, not at 64" in tiling_objections(large, T, T, 64)[0]
    assert explain(Recipe(pattern=TopBlocks(2, 4)), q, k).backend == "sdpa"


def test_what_makes_no_sense_is_refused():
    q, k, v = draw()
    with pytest.raises(
        ValueError, match=r"these begin at 6, behind one; pass queries from a multiple on, or a KV cache"
    ):
        attend(q[:, :, 6:], k, v, Recipe(pattern=TopBlocks(2, 4)), q_index=6)
    with pytest.raises(ValueError, match="3 queries that choose together must divide a block of 4"):
        TopBlocks(2, 4, queries=3)
    with pytest.raises(ValueError, match="k must be a whole number, at least 1"):
        TopBlocks(0, 4)
    with pytest.raises(ValueError, match="ask steps"):
        TopBlocks(2, 4).sees(*torch.zeros(4, 1, dtype=torch.long))
    with pytest.raises(
        ValueError, match="reads heads of 5 and 5 numbers in all, not of 24 and 12; say query= and key="
    ):
        attend(q, k, v, Recipe(pattern=LightningIndexer(2, query=5).double()))
    ids = torch.zeros(B, T, dtype=torch.long)
    packed = Segments(ids, torch.arange(T).expand(B, T))
    for pattern in (TopBlocks(2, 4), Causal() & PerHead([Window(2), TopBlocks(2, 4)])):
        with pytest.raises(ValueError, match="chooses among all keys of a row, and so among those of several texts"):
            packed.within(pattern)
    with pytest.raises(ValueError, match="is chosen from the keys of tokens, and blocks of 2 have none"):
        Block(2, Causal() & TopBlocks(2, 4))
