"""Families of transformers: small random models of each, and inputs that they read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY, LENGTH = 40, 7
IDS = torch.randint(4, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(LENGTH) < torch.tensor([LENGTH, 4, 5])[:, None]).long()

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = SIZES | TOKENS | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
PAIR = TOKENS | {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
ENCODER, DECODER = ["encoder.0", "encoder.1"], ["decoder.0", "decoder.1"]
BOTH = [*ENCODER, "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]


def texts(*, left: bool = False) -> dict[str, Tensor]:
    return {"input_ids": IDS, "attention_mask": MASK.flip(1) if left else MASK}


def left() -> dict[str, Tensor]:
    return texts(left=True)


def pairs() -> dict[str, Tensor]:
    return texts() | {"decoder_input_ids": IDS[:, :5]}


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 144).sin().view(2, 3, 12, 12)}


def waves() -> dict[str, Tensor]:
    return {"input_values": torch.linspace(0, 60, 2 * 400).sin().view(2, 400)}


def sounds() -> dict[str, Tensor]:
    return {"input_features": torch.linspace(0, 9, 2 * 8 * 100).sin().view(2, 8, 100), "decoder_input_ids": IDS[:2, :5]}


@dataclass(frozen=True)
class Family:
    """One family: its classes by name, its small configuration, what it reads, and the sites that it has."""

    model: str
    config: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]]
    sites: list[str]
    implementations: tuple[str, ...] = ("sdpa", "eager")
    generates: bool = False
    scale: float = 6.0  # of the weights: a fresh model weighs all keys nearly alike
    more: dict[str, Any] = field(default_factory=dict)

    def build(self, implementation: str | None = None) -> Any:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(
            **self.settings, **self.more, attn_implementation=implementation or self.implementations[0]
        )
        model: nn.Module = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(self.scale if weight.dim() > 1 else 1.0)
        return model


LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
GPT2 = TOKENS | {"n_embd": 24, "n_layer": 2, "n_head": 4}
DISTIL = {"vocab_size": VOCABULARY, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}
T5 = TOKENS | {"d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
WHISPER = PAIR | {
    "num_mel_bins": 8,
    "max_source_positions": 50,
    "max_target_positions": 24,
    "begin_suppress_tokens": [2, 5],
    "suppress_tokens": [0, 1, 3, *range(30, 40)],  # what is no letter
    "decoder_start_token_id": 1,
}
MODERN = SIZES | TOKENS | {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
WAV2VEC = SIZES | {
    "conv_dim": (8, 8),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
PATCHES = SIZES | {"image_size": 12, "patch_size": 4}
CAPPED = {"attn_logit_softcapping": 0.5}
OSS = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3}

FAMILIES = {
    "BERT": Family("BertModel", "BertConfig", SIZES | TOKENS, texts, ENCODER),
    "DistilBERT": Family("DistilBertModel", "DistilBertConfig", DISTIL, texts, ENCODER),
    "RoBERTa": Family("RobertaModel", "RobertaConfig", SIZES | TOKENS, texts, ENCODER),
    "ALBERT": Family(
        "AlbertModel", "AlbertConfig", SIZES | TOKENS | {"embedding_size": 12}, texts, ["encoder.0"], scale=9.0
    ),
    "ModernBERT": Family("ModernBertModel", "ModernBertConfig", MODERN, texts, ENCODER),
    "GPT-2": Family("GPT2LMHeadModel", "GPT2Config", GPT2, left, DECODER, generates=True),
    "Llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, left, DECODER, generates=True),
    "Qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", GROUPED, left, DECODER, generates=True),
    "Mistral": Family(
        "MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 3}, left, DECODER, generates=True
    ),
    "Gemma 2": Family("Gemma2ForCausalLM", "Gemma2Config", GROUPED, left, DECODER, ("eager",), more=LAYERS | CAPPED),
    "Gemma 3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED, left, DECODER, generates=True, more=LAYERS),
    "gpt-oss": Family(
        "GptOssForCausalLM", "GptOssConfig", GROUPED, left, DECODER, ("eager",), generates=True, more=OSS
    ),
    "T5": Family("T5ForConditionalGeneration", "T5Config", T5, pairs, BOTH, generates=True, scale=1.5),
    "Marian": Family("MarianMTModel", "MarianConfig", PAIR, pairs, BOTH, generates=True),
    "BART": Family("BartForConditionalGeneration", "BartConfig", PAIR, pairs, BOTH, generates=True),
    "M2M100": Family("M2M100ForConditionalGeneration", "M2M100Config", PAIR, pairs, BOTH, generates=True),
    "ViT": Family("ViTForImageClassification", "ViTConfig", PATCHES, pictures, ENCODER),
    "DINOv2": Family("Dinov2Model", "Dinov2Config", PATCHES, pictures, ENCODER),
    "wav2vec 2.0": Family("Wav2Vec2Model", "Wav2Vec2Config", WAV2VEC, waves, ENCODER),
    "Whisper": Family(
        "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, sounds, BOTH, generates=True, scale=12.0
    ),
}
WHISPER.pop("max_position_embeddings")
