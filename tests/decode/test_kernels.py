"""The GPU's kernels without a GPU: interpreted they do what the CPU's code does, and they compile for a Hopper."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention import Context
from regard.attention.backends import masked
from regard.attention.parts import field_values
from regard.data.tokenizers.base import EOS
from regard.decode import (
    Beam,
    Constraints,
    LengthLimit,
    cuda_graphs,
    kv_cache,
    prepare,
    quantize,
)
from regard.decode import beam as searching
from regard.decode.beam import BeamState, initial_beam_state, select_candidates
from regard.decode.quantize import build_linear
from regard.decode.search import DecodingRequest
from regard.decode.text_generation import NO_EOS
from regard.decode.topk import topk_logprobs_torch
from regard.models.transformer import Transformer
from regard.ops import dispatch, fused_layers
from tests.attention.triton_interpreter import compile_for_hopper, print_json

from .reference_beam import reference_translate
from .test_batched_beam import PREFIXES as EVERY_PREFIX
from .test_batched_beam import decided
from .test_models import SOURCES as EVERY_SOURCE
from .test_models import model
from .toy_models import same

LIMIT = LengthLimit(0.5, 2)
CHOICES = [(4, 4, 6, 1), (5, 3, 5, 3), (4, 1, 1, 1), (4, 5, 8, 4)]  # sentences, beams, offers of each, best
SOURCES = EVERY_SOURCE[:3]  # an interpreted step takes seconds
SEARCHES: dict[str, tuple[Any, Beam, Any]] = {
    "plain": (model("transformer"), Beam(2, 0.8, n_best=2, max_length=LIMIT), None),
    "turned": (decided(groups=2, decoder='position = "Rotary()"').float(), Beam(2, max_length=LIMIT), None),
}
MORE_SEARCHES: dict[str, tuple[Any, Beam, Any]] = {
    "forced": (model("transformer"), Beam(2, 1.0, n_best=2, max_length=LIMIT), EVERY_PREFIX[:2]),
    "grouped, post norm": (
        decided(norm="post", tie="all", groups=3).float(),
        Beam(2, 0.7, n_best=2, max_length=LIMIT),
        None,
    ),
    "plain, four beams": (model("transformer"), Beam(4, 0.8, n_best=2, max_length=LIMIT), None),
    "forced, three beams": (model("transformer"), Beam(3, 1.0, n_best=3, max_length=LIMIT), EVERY_PREFIX[:2]),
    "post norm": (decided(norm="post", tie="all").float(), Beam(3, 0.7, n_best=3, max_length=LIMIT), None),
    "grouped": (decided(groups=3).float(), Beam(3, 0.7, n_best=3, max_length=LIMIT), None),
}


def sources_of(name: str) -> list[list[int]]:
    """Three, of which some leave the search before others, and two where another model is tested."""
    return SOURCES if name.startswith("plain") else SOURCES[:2]


def as_on_a_gpu() -> None:
    """From now on the search runs by the kernels."""
    from regard.attention.kernels.masked import masked_attention
    from regard.decode import kernels
    from regard.ops.dropout_triton import ResidualInputs, launch_residual_forward

    def forward(x: Any, f: Any, bias: Any, weight: Any, shift: Any, seed: Any, p: float, eps: float, dtype: Any) -> Any:
        out, stats = fused_layers.empty_forward(x, weight, dtype)
        launch_residual_forward(ResidualInputs(x, f, bias, weight, seed, p), shift, eps, out, stats)
        return out, stats

    def on_gpu(logits: Any, closed: Any, count: int, must: Any) -> Any:
        return kernels.topk_logprobs_triton(logits, torch.zeros(logits.shape[1]), closed, count, must)

    def implementation(op: Any) -> Any:
        return forward if "dropout_add_layernorm" in op._qualname else op._init_fn

    def follow_parents(cache: kv_cache.BeamKVCache, parents: torch.Tensor) -> Any:
        return *kernels.follow_parents_triton(cache.seen, parents, cache.source_mask.dtype), cache.slots

    patch = pytest.MonkeyPatch()  # never undone: this process does nothing else
    patch.setattr(dispatch, "use_fused", lambda x: True)
    patch.setattr(dispatch, "implementation", implementation)
    patch.setattr(kv_cache, "Context", lambda *args, **named: Context(*args, **named | {"captured": True}))
    patch.setattr(quantize, "build_linear", torch_linear)
    patch.setattr(kv_cache, "follow_parents", follow_parents)
    patch.setattr(kv_cache, "write_slots", kernels.write_slots_triton)
    patch.setattr(masked, "softmax_attention", masked_attention)
    patch.setattr(searching, "find_kernels", lambda *_: None)
    patch.setattr(searching, "select_candidates", lambda *args: kernels.select_candidates_triton(*args[:4]))
    patch.setattr(kv_cache, "topk_logprobs_torch", on_gpu)
    patch.setattr(cuda_graphs, "MIN_SENTENCES", 2)
    patch.setattr(cuda_graphs, "SLOTS", 16)


def torch_linear(weight: torch.Tensor, bias: torch.Tensor, precision: str) -> nn.Module:
    """As on a GPU, whose residual connections know torch's layer alone."""
    return build_linear(weight.double(), bias.double(), precision).float()


def attention_errors() -> dict[str, float]:
    """The largest differences of attention from its formula, where keys that nobody sees are not numbers."""
    from regard.attention.kernels.masked import masked_attention

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
            found[kind] = float((masked_attention(q, poisoned[0], poisoned[1], added) - wanted).abs().max())
    return found


def segment_topk_error() -> float:
    """Of vocabularies in one segment or several, how far the best words' log-probabilities are from the definition."""
    from regard.decode.kernels import segment_topk

    far = []
    for vocabulary, count, segment in ((37, 3, 16), (64, 4, 64), (101, 2, 32)):
        logits, bias = 3 * torch.randn(5, vocabulary), torch.randn(vocabulary)
        logits[1], bias[7:11], logits[2, 7:11] = 0.0, bias[7].clone(), 9.0  # the best of a row are equal
        closed = torch.zeros(vocabulary, dtype=torch.uint8).index_fill_(0, torch.tensor([0, 1, 8]), 1)
        values, words, whole = segment_topk(logits, bias, closed, count, segment)
        wanted = topk_logprobs_torch(logits + bias, closed, count, None)
        order = words.sort(dim=-1, stable=True).indices  # of equals the lower token
        top = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
        assert torch.equal(words.gather(1, order).gather(1, top.indices)[:, :count], wanted.tokens), vocabulary
        far += [top.values[:, :count] - wanted.values, whole - (logits + bias).logsumexp(-1, keepdim=True)]
    return max(float(part.abs().max()) for part in far)


def a_search(
    b: int, k: int, c: int, best: int, device: str
) -> tuple[BeamState, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Empty beams, and the candidates of every step: few numbers, so that there are equals."""
    steps = 7
    beam = Beam(k, 0.7, n_best=best, max_length=LengthLimit(1, 3))
    requests = [DecodingRequest((5,) * (n % 4), index=n) for n in range(b)]
    candidates = [
        (-torch.randint(0, 4, (b, k, c)) / 2, torch.stack([torch.randperm(12)[:c] for _ in range(b * k)]).view(b, k, c))
        for _ in range(steps)
    ]
    candidates[2][0][0] = -torch.inf  # nothing may follow
    candidates = [(values.to(device), words.to(device)) for values, words in candidates]
    return initial_beam_state(beam, requests, Constraints(), 40, torch.device(device), steps), candidates


def chosen_again(b: int, k: int, c: int, best: int, device: str = "cpu", eos: int = EOS) -> bool:
    from regard.decode.kernels import select_candidates_triton

    one, candidates = a_search(b, k, c, best, device)
    one = replace(one, eos=eos)
    notes = replace(one.backpointers, **{name: note.clone() for name, note in vars(one.backpointers).items()})
    own = {name: part.clone() for name, part in vars(one).items() if isinstance(part, torch.Tensor)}
    other = replace(one, **own, backpointers=notes)
    for step, (values, words) in enumerate(candidates):
        for select, state in ((select_candidates, one), (select_candidates_triton, other)):
            select(state, values, words, torch.tensor([step], device=device))
        used = one.backpointers.tokens[step] >= 0  # what stands elsewhere is never read
        for note, again in zip(field_values(one.backpointers)[:4], field_values(other.backpointers), strict=False):
            if not torch.equal(note[step][used], again[step][used]):
                return False
        names = ("tokens", "parents", "totals", "best_finished", "finished_step")
        if not all(torch.equal(getattr(one, name), getattr(other, name)) for name in names):
            return False
    return True


def cases() -> dict[str, Any]:
    torch.manual_seed(0)
    if "whole" in sys.argv:
        return search_by_kernels(MORE_SEARCHES)
    found: dict[str, Any] = {**attention_errors(), "segments": segment_topk_error()}
    for shape in CHOICES:
        found[f"chosen {shape}"] = chosen_again(*shape)
    found["chosen without an end"] = chosen_again(*CHOICES[1], eos=NO_EOS)
    return found | search_by_kernels(SEARCHES)


def search_by_kernels(searches: dict[str, tuple[Any, Beam, Any]]) -> dict[str, bool]:
    """Whether they find what the definition finds."""
    found, allowed = {}, Constraints(min_length=2)
    wanted = {
        name: reference_translate(made, sources_of(name), beam, prefixes=prefixes, constraints=allowed)
        for name, (made, beam, prefixes) in searches.items()
    }
    as_on_a_gpu()
    for name, (made, beam, prefixes) in searches.items():
        prepared = prepare(made)
        assert isinstance(prepared, Transformer)
        requests = [
            DecodingRequest(tuple(source), tuple(prefixes[n] if prefixes else ()), n)
            for n, source in enumerate(sources_of(name))
        ]
        for _ in range(2 if name.startswith("plain") else 1):  # the second time every step is there already
            again = cuda_graphs.run(prepared, beam, requests, allowed)
            found[name] = all(
                same(*pair, within=1e-4)
                for some, others in zip(again, wanted[name], strict=True)
                for pair in zip(some, others, strict=True)
            )
    return found


if __name__ == "__main__":
    print_json(cases)


def test_attention_reads_only_what_somebody_sees(interpreted):
    far = [interpreted[f"{name}{kind}"] for name in ("beams", "groups") for kind in ("", ", one mask")]
    assert max(far) < 5e-6


def test_a_vocabulary_in_several_segments_gives_the_candidates_of_one(interpreted):
    assert interpreted["segments"] < 5e-6


def test_the_same_are_chosen_equals_included(interpreted):
    assert all(interpreted[f"chosen {shape}"] for shape in CHOICES)
    assert interpreted["chosen without an end"]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_by_kernels_finds_what_the_definition_finds(name, interpreted):
    assert interpreted[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_SEARCHES)
def test_more_searches_by_kernels_find_what_the_definition_finds(name, interpreted_whole):
    assert interpreted_whole[name]


@pytest.mark.parametrize("kind", ["*bf16", "*fp32"])
def test_they_compile_for_a_hopper(kind):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels.masked import masked_attention_kernel
    from regard.decode.kernels import (
        follow_parents_kernel,
        select_candidates_kernel,
        subtract_logsumexp_kernel,
        write_slots_kernel,
    )

    tile = {"BEAMS": 4, "HEADS": 1, "WIDTH": 64, "QUERIES": 16, "KEYS": 64, "WW": 64}
    states = dict.fromkeys(("q", "k", "v", "mask", "visible", "out", "key", "value"), kind)
    whole = dict.fromkeys(("slots", "parents", "words", "at", "tokens", "ended", "limits", "said", "grown"), "*i64")
    double = dict.fromkeys(("penalties", "totals", "leading", "farthest", "each", "marks"), "*fp64")
    stores = {**states, "keys": kind, "values": kind, "slots": "*i64"}
    kinds = {**states, **whole, **double, "seen": "*u8", "values": "*fp32", "eps": "fp32"}
    product = compile_for_hopper(masked_attention_kernel, tile, kinds, num_warps=4, num_stages=2)
    assert ("mma" in product.asm["ptx"]) == (kind == "*bf16")
    compile_for_hopper(write_slots_kernel, {"BEAMS": 4, "GROUPS": 8, "WIDTH": 64, "WW": 512}, stores, num_warps=2)
    compile_for_hopper(follow_parents_kernel, {"BEAMS": 4, "SLOTS": 64, "BB": 4, "SS": 64}, kinds, num_warps=1)
    sizes = {"BEAMS": 4, "OFFERS": 32, "BEST": 1, "BB": 4, "OO": 128, "WW": 1}
    compile_for_hopper(select_candidates_kernel, {"END": 2, "EMPTY": 0, **sizes}, kinds, num_warps=1)
    floats = {**kinds, **dict.fromkeys(("values", "highest", "sums", "whole"), "*fp32")}
    compile_for_hopper(subtract_logsumexp_kernel, {"COUNT": 4, "PIECES": 8, "CC": 32}, floats, num_warps=1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_they_do_so_too():
    from regard.attention.kernels.masked import masked_attention
    from regard.decode.kernels import follow_parents_triton, write_slots_triton

    torch.manual_seed(3)
    assert all(chosen_again(*shape, device="cuda") for shape in [*CHOICES, (256, 4, 8, 4), (300, 8, 12, 2)])
    seen, parents = torch.rand(256, 4, 64) < 0.2, torch.randint(4, (256, 4))
    one, past = seen.cuda(), torch.zeros(2, 256, 8, 64, 64, dtype=torch.bfloat16)
    mask, at = torch.zeros(256, 1, 1, 16, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.long)
    cache = kv_cache.BeamKVCache((), mask, (), seen, at)
    slots, added, _ = kv_cache.follow_parents(cache, parents)
    slots_on_gpu, more = follow_parents_triton(one, parents.cuda(), torch.bfloat16)
    assert all(torch.equal(x.cpu(), y) for x, y in ((slots_on_gpu, slots), (more, added), (one, cache.seen)))
    q, k, v = torch.randn(256, 4, 3, 8, 64, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    again = past.cuda()
    write_slots_triton((again[0], again[1]), k.cuda(), v.cuda(), slots_on_gpu)
    kv_cache.write_slots((past[0], past[1]), k, v, slots)
    assert torch.equal(again.cpu(), past)
    k, v = torch.randn(past.shape).bfloat16()
    wanted = (q.float() @ k.float().mT + added[:, None].float()).softmax(-1) @ v.float()
    found = masked_attention(q.cuda(), k.cuda(), v.cuda(), more[:, None])
    torch.testing.assert_close(found.cpu().float(), wanted, atol=0.03, rtol=0.03)
