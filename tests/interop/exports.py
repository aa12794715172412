"""Models to export: small ones with random weights that end their sentences, and inputs for them."""

from dataclasses import replace
from typing import Any

import torch

from regard.data.tokenizers.base import EOS, WordTokenizer
from regard.interop.export_format import ProofInputs
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.tasks.language_modeling.task import LanguageModelingSettings, TextGenerator
from regard.tasks.translation.task import TranslationSettings, Translator

WORDS = tuple(f"w{number}" for number in range(29))
SOURCE, TARGET = WordTokenizer(WORDS), WordTokenizer(WORDS[:23])
SIZES = {"kind": "transformer", "layers": 2, "model": 12, "heads": 3, "hidden": 20}
HALVES = "position = \"Rotary(pairs='halves', theta=500.0)\""
LEARNED = 'position = "Learned(60, 12)"'
LLAMA = {
    "model": 24,
    "recipe": HALVES,
    "norm_type": "rms",
    "feed_forward_type": "gated",
    "activation": "silu",
    "bias": False,
    "embedding_scale": "none",
    "groups": 1,
}


def decided(model: Any, bias: torch.Tensor) -> None:
    """Weights large enough that the model is sure of something, and sentences that may end; PAD and BOS never come."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(1.7)
        if bias.requires_grad:
            bias.normal_()
            bias[:2], bias[EOS] = -30.0, 1.5
    model.eval()


def translator(*, target: WordTokenizer = TARGET, **changes: Any) -> Translator:
    settings = TranslationSettings(model=ModelConfig(**(SIZES | changes)))
    made = Translator.from_parts(SOURCE, target, settings=settings)
    decided(made.model, made.model.output()[1])
    return made


def generator(**changes: Any) -> TextGenerator:
    settings = LanguageModelingSettings(model=LanguageModelConfig(**(SIZES | changes)))
    made = TextGenerator.from_parts(SOURCE, settings=settings)
    decided(made.model, made.model.bias)
    return made


def proof_inputs(task_model: Any, count: int = 17) -> ProofInputs:
    drawn = ProofInputs.drawn(count, SOURCE.size, "a test")
    if isinstance(task_model, Translator):
        return drawn
    return replace(drawn, ids=tuple((EOS, *row) for row in drawn.ids))
