"""The GPU's kernels without a GPU: interpreted they do what the CPU's code does, and they compile for a Hopper."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.decode import (
    Beam,
    Constraints,
    LengthLimit,
    beam_state,
    prepare,
    ready,
    room,
    stages,
    topk_logprobs,
    translate,
)
from regard.decode.beam_state import BeamState, SearchRules, field_values, initial_beam_state, select_candidates
from regard.decode.hypothesis import DecodingRequest
from tests.attention.triton_interpreter import compile_for_hopper, print_json, run_interpreted

from .test_batched_beam import PREFIXES, decided
from .test_models import SOURCES, model
from .toy_models import same

LIMIT = LengthLimit(0.5, 2)
CHOICES = [(9, 4, 6, 1), (7, 3, 5, 3), (5, 1, 1, 1), (6, 5, 8, 4)]  # sentences, beams, offers of each, best
SEARCHES: dict[str, tuple[Any, Beam, Any]] = {
    "plain": (model("transformer"), Beam(4, 0.8, n_best=2, max_length=LIMIT), None),
    "forced": (model("transformer"), Beam(3, 1.0, n_best=3, max_length=LIMIT), PREFIXES),
    "post norm": (decided(norm="post", tie="all").float(), Beam(3, 0.7, n_best=3, max_length=LIMIT), None),
    "grouped": (decided(groups=3).float(), Beam(3, 0.7, n_best=3, max_length=LIMIT), None),
    "turned": (decided(groups=2, decoder='position = "Rotary()"').float(), Beam(2, max_length=LIMIT), None),
}


def as_on_a_gpu() -> None:
    """From now on the search runs by the kernels."""
    from regard.decode import beam_state_kernel, norm_kernel, room_kernel

    plain = ready.PreparedResidual.after

    def after(self: Any, x: Any, y: Any) -> Any:
        if not self.post:
            return plain(self, x, y)
        return norm_kernel.added_and_normed(x, y, self.weight, self.bias, self.eps)

    def on_gpu(logits: Any, closed: Any, count: int, must: Any) -> Any:
        return topk_logprobs.topk_logprobs_gpu(logits, torch.zeros(logits.shape[1]), closed, count, must)

    ready.PreparedResidual.after = after
    room.follow = lambda room, parents, dtype: room_kernel.followed(room.seen, parents, dtype)
    room.cells_of = lambda slots, _: slots
    room.write, room.attended = room_kernel.keep, room_kernel.looked
    beam_state.select_candidates, beam_state.topk_logprobs_cpu = beam_state_kernel.select_candidates_triton, on_gpu
    stages.LEAST, stages.SLOTS = 2, 16


def seen_again() -> dict[str, float]:
    """The largest differences of attention from its formula, where keys that nobody sees are not numbers."""
    from regard.decode.room_kernel import looked

    found = {}
    for name, (b, h, g, t, c, d) in {"beams": (3, 4, 4, 4, 64, 8), "groups": (2, 6, 2, 5, 131, 24)}.items():
        q, kv = torch.randn(b, t, h, d).transpose(1, 2), torch.randn(2, b, g, c, d)
        seen = torch.rand(b, 1, t, c) < 0.2
        seen[..., 1], seen[..., c // 2 : c // 2 + 9] = True, False
        for kind, sees in ((name, seen), (f"{name}, one mask", seen[:, :, :1])):
            added = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
            k, v = (part.repeat_interleave(h // g, 1) for part in kv)
            wanted = (q @ k.mT + added).softmax(-1) @ v
            poisoned = kv.masked_fill(~sees.any(2)[None, ..., None], torch.nan)
            found[kind] = float((looked(q, poisoned[0], poisoned[1], added) - wanted).abs().max())
    return found


def offered_again() -> float:
    """Of a vocabulary in three stretches, how far the best words' log-probabilities are from the definition."""
    from regard.decode.beam_state_kernel import segment_topk as in_stretches

    logits, bias = 5 * torch.randn(3, 37), torch.randn(37)
    closed = torch.zeros(37, dtype=torch.uint8).index_fill_(0, torch.tensor([0, 17]), 1)
    values, words, whole = in_stretches(logits, bias, closed, 4, stretch=16)
    wanted = topk_logprobs.topk_logprobs_cpu(logits + bias, closed, 4, None)
    values, picked = values.topk(4)
    assert torch.equal(words.gather(1, picked), wanted.tokens)
    far = values - wanted.values, whole[:, 0] - (logits + bias).logsumexp(-1)
    return max(float(part.abs().max()) for part in far)


def a_search(
    b: int, k: int, c: int, best: int, device: str
) -> tuple[BeamState, SearchRules, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Empty lanes, and what is offered at every step: few numbers, so that there are equals."""
    steps = 7
    rules = SearchRules.of(0.7, Constraints(), k, steps, torch.zeros(40, device=device))
    asked = [DecodingRequest((5,) * n, index=n) for n in range(b)]
    offered = [
        (-torch.randint(0, 4, (b, k, c)) / 2, torch.stack([torch.randperm(12)[:c] for _ in range(b * k)]).view(b, k, c))
        for _ in range(steps)
    ]
    offered[2][0][0] = -torch.inf  # nothing may follow
    offered = [(values.to(device), words.to(device)) for values, words in offered]
    return initial_beam_state(asked, [3 + n % 4 for n in range(b)], rules, best, 0.7, steps), rules, offered


def chosen_again(b: int, k: int, c: int, best: int, device: str = "cpu") -> bool:
    from regard.decode.beam_state_kernel import select_candidates_triton

    one, rules, offered = a_search(b, k, c, best, device)
    notes = replace(one.backpointers, **{name: note.clone() for name, note in vars(one.backpointers).items()})
    other = replace(
        one, **{name: part.clone() for name, part in vars(one).items() if name != "backpointers"}, backpointers=notes
    )
    for step, (values, words) in enumerate(offered):
        for way, here in ((select_candidates, one), (select_candidates_triton, other)):
            way(here, rules, values, words, torch.tensor([step], device=device))
        there = one.backpointers.tokens[step] >= 0  # what stands where there is nothing is never read
        for note, again in zip(field_values(one.backpointers), field_values(other.backpointers), strict=True):
            if not torch.equal(note[step][there], again[step][there]):
                return False
        names = ("tokens", "parents", "totals", "best_finished", "finished_step")
        if not all(torch.equal(getattr(one, name), getattr(other, name)) for name in names):
            return False
    return True


def cases() -> dict[str, Any]:
    torch.manual_seed(0)
    found: dict[str, Any] = {**seen_again(), "stretches": offered_again()}
    for shape in CHOICES:
        found[f"chosen {shape}"] = chosen_again(*shape)
    allowed = Constraints(min_length=2)
    wanted = {
        name: translate(made, SOURCES, beam, prefixes=prefixes, constraints=allowed)
        for name, (made, beam, prefixes) in SEARCHES.items()
    }
    as_on_a_gpu()
    for name, (made, beam, prefixes) in SEARCHES.items():
        prepared = prepare(made)
        assert isinstance(prepared, ready.PreparedModel)
        asked = [
            DecodingRequest(tuple(source), tuple((prefixes or [()] * 5)[n]), n) for n, source in enumerate(SOURCES)
        ]
        for _ in range(2 if name == "plain" else 1):  # the second time every stage is there already
            again = stages.run(prepared, beam, asked, allowed)
            found[name] = all(
                same(*pair, within=1e-4)
                for some, others in zip(again, wanted[name], strict=True)
                for pair in zip(some, others, strict=True)
            )
    return found


if __name__ == "__main__":
    print_json(cases)


@pytest.fixture(scope="module")
def kernels_interpreted() -> dict[str, Any]:
    return run_interpreted("tests.decode.test_kernels")


def test_attention_reads_only_what_somebody_sees(kernels_interpreted):
    far = [kernels_interpreted[f"{name}{kind}"] for name in ("beams", "groups") for kind in ("", ", one mask")]
    assert max(far) < 5e-6


def test_a_vocabulary_in_several_stretches_is_offered_as_one(kernels_interpreted):
    assert kernels_interpreted["stretches"] < 5e-6


def test_the_same_are_chosen_equals_included(kernels_interpreted):
    assert all(kernels_interpreted[f"chosen {shape}"] for shape in CHOICES)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_by_kernels_finds_what_the_definition_finds(name, kernels_interpreted):
    assert kernels_interpreted[name]


@pytest.mark.parametrize("kind", ["*bf16", "*fp32"])
def test_they_compile_for_a_hopper(kind):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.decode.beam_state_kernel import select_candidates_kernel, subtract_logsumexp_kernel
    from regard.decode.norm_kernel import add_layernorm_kernel
    from regard.decode.room_kernel import following, keeping, looking

    tile = {"BEAMS": 4, "HEADS": 1, "WIDTH": 64, "QUERIES": 16, "KEYS": 64, "WW": 64}
    states = dict.fromkeys(("q", "k", "v", "added", "out", "past", "key", "value", "x", "y", "weight", "bias"), kind)
    whole = dict.fromkeys(("slots", "parents", "words", "at", "tokens", "ended", "limits", "said", "grown"), "*i64")
    double = dict.fromkeys(("penalties", "totals", "leading", "farthest", "each", "sums"), "*fp64")
    kinds = {**states, **whole, **double, "seen": "*u8", "values": "*fp32", "eps": "fp32"}
    product = compile_for_hopper(looking, tile, kinds, num_warps=4, num_stages=2)
    assert ("mma" in product.asm["ptx"]) == (kind == "*bf16")
    compile_for_hopper(keeping, {"BEAMS": 4, "GROUPS": 8, "WIDTH": 64, "WW": 512}, kinds, num_warps=2)
    compile_for_hopper(following, {"BEAMS": 4, "SLOTS": 64, "BB": 4, "SS": 64}, kinds, num_warps=1)
    sizes = {"BEAMS": 4, "OFFERS": 32, "BEST": 1, "BB": 4, "OO": 128, "WW": 1}
    compile_for_hopper(select_candidates_kernel, {"END": 2, "EMPTY": 0, **sizes}, kinds, num_warps=1)
    compile_for_hopper(add_layernorm_kernel, {"WIDTH": 512, "WW": 512}, kinds, num_warps=1)
    floats = {**kinds, **dict.fromkeys(("values", "highest", "sums", "whole"), "*fp32")}
    compile_for_hopper(subtract_logsumexp_kernel, {"COUNT": 4, "PIECES": 8, "CC": 32}, floats, num_warps=1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_they_do_so_too():
    from regard.decode.room_kernel import followed, keep, looked

    torch.manual_seed(3)
    assert all(chosen_again(*shape, device="cuda") for shape in [*CHOICES, (256, 4, 8, 4), (300, 8, 12, 2)])
    seen, parents = torch.rand(256, 4, 64) < 0.2, torch.randint(4, (256, 4))
    one, past = seen.cuda(), torch.zeros(2, 256, 8, 64, 64, dtype=torch.bfloat16)
    here = room.BeamKVCache((), torch.zeros(256, 1, 1, 16), (), seen, torch.zeros(1, dtype=torch.long))
    slots, added = room.follow(here, parents, torch.bfloat16)
    there, more = followed(one, parents.cuda(), torch.bfloat16)
    assert all(torch.equal(x.cpu(), y) for x, y in ((there, slots), (more, added), (one, here.seen)))
    q, k, v = torch.randn(256, 4, 3, 8, 64, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    again = past.cuda()
    keep(again, k.cuda(), v.cuda(), there)
    room.write(past, k, v, room.cells_of(slots, past))
    assert torch.equal(again.cpu(), past)
    k, v = torch.randn(past.shape).bfloat16()
    wanted = (q.float() @ k.float().mT + added[:, None].float()).softmax(-1) @ v.float()
    found = looked(q.cuda(), k.cuda(), v.cuda(), more[:, None])
    torch.testing.assert_close(found.cpu().float(), wanted, atol=0.03, rtol=0.03)
