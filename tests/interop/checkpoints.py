"""Checkpoints to import: small random models of each family, saved with a tokenizer whose special ids lie about."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, ViTImageProcessorPil

SENTENCES = [
    "the black cat ate a mouse",
    "one big dog saw it near that old house",
    "no bird sang",
    "a dog and the cat saw the old house while the mouse ate",
]
WORDS = list(dict.fromkeys(" ".join(SENTENCES).split()))
VOCABULARY = 37  # rows of the embeddings: more than there are tokens


@dataclass(frozen=True)
class CheckpointSpec:
    """A family: its class, its configuration, and which of its ids are special.

    Args:
        special: its tokens pad, bos, eos and unk, by their ids.
        tags: of languages.
        template: what its tokenizer puts around a text.
    """

    model: str
    config: str
    settings: dict[str, Any]
    special: dict[str, int]
    tags: tuple[str, ...] = ()
    template: str = "$A"

    def build(self) -> Any:
        torch.manual_seed(5)
        ids = {f"{name}_token_id": one for name, one in self.special.items() if name in ("pad", "bos", "eos")}
        rows = {"vocab_size": VOCABULARY} if self.special else {}
        config = getattr(transformers, self.config)(**{**rows, **ids, **self.settings})
        model = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "embed_positions" not in name:  # sinusoids
                    weight.copy_(torch.randn_like(weight) * 0.35)
                if name.endswith(("norm.weight", "LayerNorm.weight", "ln_1.weight", "layernorm.weight")):
                    weight.add_(1.0)
        return model

    def pieces(self) -> list[str]:
        """The vocabulary by ids, the special ones at their places."""
        special, plain = {one: f"<{name}>" for name, one in self.special.items()}, iter([*WORDS, *self.tags])
        return [special.get(one) or next(plain) for one in range(len(WORDS) + len(self.tags) + len(special))]

    def save(self, folder: Path) -> Any:
        model = self.build()
        model.save_pretrained(folder)
        if self.special:
            self.save_tokenizer(folder)
        else:
            ViTImageProcessorPil(size={"height": 12, "width": 12}, image_std=[0.5, 0.25, 0.2]).save_pretrained(folder)
        return model

    def save_tokenizer(self, folder: Path) -> None:
        pieces = self.pieces()
        engine = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token="<unk>"))
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
        names = [(f"<{name}>", one) for name, one in self.special.items()]
        if self.template != "$A":
            engine.post_processor = processors.TemplateProcessing(single=self.template, special_tokens=names)
        special = {f"{name}_token": f"<{name}>" for name in self.special}
        made = PreTrainedTokenizerFast(tokenizer_object=engine, **special, additional_special_tokens=list(self.tags))
        made.save_pretrained(folder)


SEQ2SEQ: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = {"d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
DECODER: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}
BERT: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
}
BERT_TOKENS = {"pad": 0, "unk": 5, "cls": 7, "sep": 9, "mask": 11}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
MARIAN = SEQ2SEQ | {"scale_embedding": True, "activation_function": "swish", "decoder_start_token_id": 22}
CHECKPOINTS: dict[str, CheckpointSpec] = {
    "Marian": CheckpointSpec(
        "MarianMTModel", "MarianConfig", MARIAN, {"eos": 0, "unk": 1, "pad": 22}, template="$A <eos>"
    ),
    "M2M100": CheckpointSpec(
        "M2M100ForConditionalGeneration",
        "M2M100Config",
        SEQ2SEQ | {"decoder_start_token_id": 2},
        {"bos": 0, "pad": 1, "eos": 2, "unk": 3},
        ("eng_Latn", "fra_Latn"),
        template="<bos> $A <eos>",
    ),
    "T5": CheckpointSpec("T5ForConditionalGeneration", "T5Config", T5, {"pad": 0, "eos": 1, "unk": 2}),
    "T5 1.1": CheckpointSpec(
        "T5ForConditionalGeneration",
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"pad": 0, "eos": 1, "unk": 2},
    ),
    "GPT-2": CheckpointSpec(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "bos_token_id": 20},
        {"eos": 20},
    ),
    "Llama": CheckpointSpec(
        "LlamaForCausalLM",
        "LlamaConfig",
        DECODER | {"rope_parameters": LLAMA3},
        {"unk": 0, "bos": 1, "eos": 2},
        template="<bos> $A",
    ),
    "Llama, tied": CheckpointSpec(
        "LlamaForCausalLM", "LlamaConfig", DECODER | {"tie_word_embeddings": True}, {"unk": 0, "bos": 1, "eos": 2}
    ),
    "BERT": CheckpointSpec(
        "BertForSequenceClassification",
        "BertConfig",
        BERT | {"num_labels": 3, "id2label": {0: "good", 1: "bad", 2: "neither"}},
        BERT_TOKENS,
        template="<cls> $A <sep>",
    ),
    "BERT, masks": CheckpointSpec("BertForMaskedLM", "BertConfig", BERT, BERT_TOKENS, template="<cls> $A <sep>"),
    "ViT": CheckpointSpec(
        "ViTForImageClassification", "ViTConfig", BERT | {"image_size": 12, "patch_size": 4, "num_labels": 5}, {}
    ),
    "Qwen3": CheckpointSpec("Qwen3ForCausalLM", "Qwen3Config", DECODER | {"head_dim": 10}, {"eos": 5, "pad": 20}),
}


def train_sentencepiece(folder: Path, texts: Sequence[str], name: str, size: int = 40) -> None:
    """A small model of SentencePiece, as folder/name."""
    path = folder / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(path), model_prefix=str(folder / "spm"), vocab_size=size, minloglevel=2, hard_vocab_limit=False
    )
    (folder / "spm.model").rename(folder / name)
    for leftover in ("spm.vocab", "texts.txt"):
        (folder / leftover).unlink()


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def save_opus_mt(folder: Path) -> None:
    """Marian as OPUS-MT has it: two models of SentencePiece, and one file that numbers the pieces of both."""
    folder.mkdir()
    texts = [f"{text}, {text[::-1]}." for text in SENTENCES for _ in range(9)]
    train_sentencepiece(folder, texts, "source.spm")
    train_sentencepiece(folder, texts[::-1] + WORDS, "target.spm", size=44)
    pieces = {"</s>": 0, "<unk>": 1}
    for name in ("source.spm", "target.spm"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        for one in range(model.get_piece_size() - 2):  # of which two are no tokens of the model
            pieces.setdefault(model.id_to_piece(one), len(pieces))
    pieces["<pad>"] = len(pieces)
    write_json(folder / "vocab.json", pieces)
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(folder / "tokenizer_config.json", special | {"tokenizer_class": "MarianTokenizer"})
    size = {"vocab_size": len(pieces), "decoder_start_token_id": len(pieces) - 1}
    marian = CHECKPOINTS["Marian"]
    tokens = {"eos": 0, "pad": len(pieces) - 1}
    CheckpointSpec(marian.model, marian.config, marian.settings | size, tokens).build().save_pretrained(folder)


# --- GGUF ---

GGUF_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
# their name of each weight of a layer, by transformers', and the type that it is quantised to
GGUF_LAYER = {
    "input_layernorm": ("attn_norm", "F32"),
    "self_attn.q_proj": ("attn_q", "Q8_0"),
    "self_attn.k_proj": ("attn_k", "Q4_1"),
    "self_attn.v_proj": ("attn_v", "Q4_0"),
    "self_attn.o_proj": ("attn_output", "Q5_1"),
    "post_attention_layernorm": ("ffn_norm", "F32"),
    "mlp.gate_proj": ("ffn_gate", "Q4_1"),
    "mlp.up_proj": ("ffn_up", "F16"),
    "mlp.down_proj": ("ffn_down", "Q5_0"),
}


def gguf_names(layers: int) -> dict[str, tuple[str, str]]:
    """The name and type in a GGUF file of every weight of transformers' Llama."""
    around = {"model.embed_tokens": ("token_embd", "Q8_0"), "model.norm": ("output_norm", "F32")}
    inside = {
        f"model.layers.{n}.{theirs}": (f"blk.{n}.{ours}", kind)
        for n in range(layers)
        for theirs, (ours, kind) in GGUF_LAYER.items()
    }
    return {f"{name}.weight": (f"{own}.weight", kind) for name, (own, kind) in (around | inside).items()}


def llama_of_gguf(path: Path, settings: dict[str, Any]) -> Any:
    """transformers' Llama with the dequantised weights of a file, whose queries and keys have rotary pairs side by
    side; transformers has their halves apart."""
    import gguf

    config = transformers.LlamaConfig(tie_word_embeddings=True, **settings)
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, (own, _) in gguf_names(config.num_hidden_layers).items():
            one = tensors.pop(own)
            x = torch.tensor(gguf.dequantize(one.data, one.tensor_type)).view(weights[name].shape)
            if "q_proj" in name or "k_proj" in name:
                head = config.hidden_size // config.num_attention_heads
                x = x.view(-1, head // 2, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)
            weights[name].copy_(x)
    assert not tensors
    return model


def save_gguf(path: Path) -> None:
    """A small random Llama in mixed quantisations, with a byte-level BPE of single bytes and a few merges."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    torch.manual_seed(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(GGUF_SIZES["num_hidden_layers"])
    writer.add_context_length(GGUF_SIZES["max_position_embeddings"])
    writer.add_embedding_length(GGUF_SIZES["hidden_size"])
    writer.add_feed_forward_length(GGUF_SIZES["intermediate_size"])
    writer.add_head_count(GGUF_SIZES["num_attention_heads"])
    writer.add_head_count_kv(GGUF_SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    merges = ["t h", "th e", "Ġ the", "a t", "c at"]
    pieces = ["<|end|>", *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces)
    writer.add_token_types([3] + [1] * (len(pieces) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    config = transformers.LlamaConfig(vocab_size=len(pieces), tie_word_embeddings=True, **GGUF_SIZES)
    shapes = {name: x.shape for name, x in transformers.LlamaForCausalLM(config).named_parameters()}
    for name, (own, kind) in gguf_names(GGUF_SIZES["num_hidden_layers"]).items():
        x = (torch.randn(shapes[name]) * 0.2 + ("norm" in name)).numpy()
        dtype = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(own, gguf.quantize(x, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
