"""Edits inside of running Hugging Face models: what an attention function gives that was edited by hand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import regard
from regard.see import Edits, HeadOff, Mask, Swap, Temperature, Weight

from .families import FAMILIES, Family, texts
from .folders import SENTENCE, make_processor

GENERATION = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
HEAD, QUERY, KEY, SET, WARM = 2, 3, 1, 0.7, 0.4
GENERATED = {"gpt-oss": 8}  # the query whose cell is edited, where the last layer alone can be
# the attention that is edited: its path in the module tree, and its site
EDITED = {
    "GPT-2": ("transformer.h.0.attn", "decoder.0"),
    "Llama": ("model.layers.0.self_attn", "decoder.0"),
    "gpt-oss": ("model.layers.1.self_attn", "decoder.1"),
    "T5": ("decoder.block.0.layer.1.EncDecAttention", "decoder.0.cross"),
    "Marian": ("model.decoder.layers.1.encoder_attn", "decoder.1.cross"),
    "BART": ("model.decoder.layers.0.self_attn", "decoder.0.self"),
    "BERT": ("encoder.layer.1.attention.self", "encoder.1"),
    "ViT": ("vit.layers.0.attention", "encoder.0"),
    "Whisper": ("model.decoder.layers.1.encoder_attn", "decoder.1.cross"),
}


@dataclass
class ByHand:
    """Attention in the open, with one edit of one module; queries are counted on from call to call."""

    module: nn.Module
    what: str
    query: int = QUERY
    seen: int = 0

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scale = given.get("scaling")
        scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
        bias = given.get("position_bias")
        scores = scores if bias is None else scores + bias
        if module is self.module and self.what == "temperature":
            scores = scores / WARM
        scores = scores if mask is None else scores + mask[..., : k.shape[2]]
        row = self.query - self.seen
        here = module is self.module and 0 <= row < q.shape[2]
        if here and self.what == "mask":
            scores[:, HEAD, row, KEY] = -torch.inf
        if (sinks := given.get("s_aux")) is not None:
            sink = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        if module is self.module:
            self.seen += q.shape[2]
            weights = weights.clone()
            if self.what == "off":
                weights[:, HEAD] = 0
            if here and self.what == "weight":
                old = weights[:, HEAD, row].clone()
                rest = old.sum(-1, keepdim=True) - old[:, KEY : KEY + 1]
                new = old * (old.sum(-1, keepdim=True) - SET) / rest
                new[:, KEY] = SET
                weights[:, HEAD, row] = new
        return (weights @ v).transpose(1, 2).contiguous(), None


@pytest.fixture
def by_hand() -> Iterator[Any]:
    def run(family: Family, path: str, what: str, query: int = QUERY) -> tuple[Any, ByHand]:
        model = family.build("eager")
        edited = ByHand(model.get_submodule(path), what, query)
        AttentionInterface.register("by_hand", edited)
        AttentionMaskInterface.register("by_hand", eager_mask)
        model.set_attn_implementation("by_hand")
        return model, edited

    yield run
    for table in (AttentionInterface, AttentionMaskInterface):
        table._global_mapping.pop("by_hand", None)


def edits_of(what: str, site: str, query: int = QUERY) -> Edits:
    return {
        "off": Edits(off=(HeadOff(site, HEAD),)),
        "weight": Edits(weights=(Weight(site, HEAD, query, KEY, SET),)),
        "mask": Edits(masks=(Mask(site, HEAD, query, KEY),)),
        "temperature": Edits(temperatures=(Temperature(site, WARM),)),
    }[what]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", ["off", "weight", "mask", "temperature"])
@pytest.mark.parametrize("name", EDITED)
def test_an_edited_forward_pass_is_that_of_a_hand(by_hand, name, what):
    family, (path, site) = FAMILIES[name], EDITED[name]
    # of padded texts some rows see no key that could be weighed
    inputs = {name: x[:1] for name, x in family.inputs().items()}
    hand, _ = by_hand(family, path, what)
    with torch.no_grad():
        wanted = hand(**inputs)[0]
    for implementation in family.implementations:
        model = family.build(implementation)
        with torch.no_grad():
            alone = model(**inputs)[0]
            with regard.watch(model, edits=edits_of(what, site)) as seen:
                found = model(**inputs)[0]
        assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
        assert (found - alone).abs().max() > 1e-4
        assert seen.check().error <= 1e-5


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", ["off", "weight", "mask", "temperature"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "gpt-oss", "T5", "Marian", "BART"])
def test_an_edited_generation_is_that_of_a_hand(by_hand, name, what):
    family, (path, site) = FAMILIES[name], EDITED[name]
    inputs = {one: x[:1] for one, x in texts().items()}
    wanted = {"return_dict_in_generate": True, "output_logits": True, **GENERATION}
    query = GENERATED.get(name, QUERY)
    hand, edited = by_hand(family, path, what, query)
    by_a_hand = hand.generate(**inputs, **wanted)
    assert edited.seen >= 5
    model = family.build()
    alone = model.generate(**inputs, **wanted)
    with regard.watch(model, edits=edits_of(what, site, query)):
        found = model.generate(**inputs, **wanted)
    assert torch.equal(found.sequences, by_a_hand.sequences)
    assert torch.allclose(torch.stack(found.logits), torch.stack(by_a_hand.logits), atol=1e-4, rtol=1e-4)
    assert max((one - other).abs().max() for one, other in zip(found.logits, alone.logits, strict=True)) > 1e-4


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Marian"])
def test_a_swapped_word_is_the_other_text(name):
    model, tokenizer = FAMILIES[name].build(), make_processor(name)
    more = {"more": 4} if name == "GPT-2" else {}
    swapped = regard.trace(model, tokenizer, SENTENCE, edits=Edits(swaps=(Swap(2, "dog"),)), **more)
    other = regard.trace(model, tokenizer, SENTENCE.replace("cat", "dog"), **more)
    assert swapped.output_ids == other.output_ids
    assert torch.equal(swapped.predictions.logits, other.predictions.logits)
    for site in other.sites:
        assert torch.equal(swapped.site(site).q, other.site(site).q)


@pytest.mark.parametrize("what", ["off", "weight", "mask", "temperature"])
def test_a_traced_edit_is_the_watched_one(what):
    model, tokenizer = FAMILIES["GPT-2"].build(), make_processor("GPT-2")
    trace = regard.trace(model, tokenizer, SENTENCE, more=4, edits=edits_of(what, "decoder.0"))
    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    with regard.watch(model, edits=edits_of(what, "decoder.0")):
        own = model.generate(ids, max_new_tokens=4, do_sample=False, suppress_tokens=[0, 2, 3])[0]
    assert trace.output_text == tokenizer.decode(own)
