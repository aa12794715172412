"""Peers of beam search: the weights of a Transformer of ours as Hugging Face's Marian and as a CTranslate2 model."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention.position_variants import Sinusoidal
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.models import ModelConfig, Seq2Seq, build_model

Ids = tuple[int, ...]
Translate = Callable[[Sequence[Ids]], list[Ids]]
WORDS, MODEL, HEADS, HIDDEN, LAYERS = 32_000, 512, 8, 2048, 6
POSITION = 64  # features that hold the position alone: as many as a head has
LONGEST = 1024


def copier(*, words: int = WORDS, layers: int = LAYERS, strength: float = 2.0) -> Seq2Seq:
    """A Transformer-base that copies its source, hesitating: random weights, but for the last cross-attention.

    A random model repeats itself until the limit, and training one takes minutes. Here the first features hold
    the position of a token alone; by them seven heads of the last cross-attention find the source token at the position
    of the next target token, and add its other features. All other weights are random, so the model is surer of one
    token than of another, and beams differ.
    """
    torch.manual_seed(1)
    config = ModelConfig(
        kind="transformer", layers=layers, model=MODEL, heads=HEADS, hidden=HIDDEN, norm="post", tie="all", dropout=0.0
    )
    model = build_model(config, words, words).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("output.weight", "down.weight")):
                weight.mul_(0.4)
                weight[:POSITION] = 0.0
            elif name.endswith("bias") and "norm" not in name and name != "embeddings.bias":
                weight.normal_(std=0.02)
                if name.endswith(("output.bias", "down.bias")):
                    weight[:POSITION] = 0.0
        model.get_parameter("embeddings.tables.target.weight")[:, :POSITION] = 0.0
        model.get_parameter("embeddings.bias")[[PAD, BOS]] = -1e4  # never generated
        last, here, rest = f"decoder.{layers - 1}.cross", torch.arange(POSITION), torch.arange(MODEL - POSITION)
        for part in ("query", "key"):
            weight = model.get_parameter(f"{last}.{part}.weight").zero_()
            for head in range(HEADS):
                weight[head * POSITION + here, here] = 5.0
        model.get_parameter(f"{last}.value.weight").zero_()[rest, POSITION + rest] = 1.0
        model.get_parameter(f"{last}.output.weight").zero_()[POSITION + rest, rest] = strength
    return model


def sources(count: int, *, words: int = WORDS, seed: int = 0, shortest: int = 8, longest: int = 36) -> list[Ids]:
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=draws).tolist()
    return [tuple(torch.randint(EOS + 2, words, (length,), generator=draws).tolist()) for length in lengths]


# --- Hugging Face ---


def marian(model: Seq2Seq, device: str, dtype: torch.dtype) -> Any:
    """Its position table has all sines before all cosines, ours has them in turn: each axis of features is permuted."""
    from transformers import MarianConfig, MarianMTModel

    weights = {name: weight.detach().float().cpu() for name, weight in model.state_dict().items()}
    words, layers = weights["embeddings.bias"].shape[0], len(list(model.get_submodule("decoder").children()))
    order = torch.cat((torch.arange(0, MODEL, 2), torch.arange(1, MODEL, 2)))
    config = MarianConfig(
        vocab_size=words,
        d_model=MODEL,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        activation_function="relu",
        max_position_embeddings=LONGEST,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        dropout=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )
    theirs = MarianMTModel(config)
    table = weights["embeddings.tables.target.weight"][:, order]
    named: dict[str, Tensor] = {
        "final_logits_bias": weights["embeddings.bias"][None],
        **dict.fromkeys(
            ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), table
        ),
        "lm_head.weight": table,
    }
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj", "up": "fc1", "down": "fc2"}
    places = {"attention": "self_attn", "cross": "encoder_attn", "feed_forward": ""}
    around = {
        "attention": "self_attn_layer_norm",
        "cross": "encoder_attn_layer_norm",
        "feed_forward": "final_layer_norm",
    }
    for name, weight in weights.items():
        side, *path = name.split(".")
        if side not in ("encoder", "decoder"):
            continue
        layer, place, *inner = path
        if place.startswith("residual_"):
            key = f"{around[place.removeprefix('residual_')]}.{inner[-1]}"
            value = weight[order]
        else:
            key = ".".join(filter(None, (places[place], parts[inner[0]], inner[1])))
            writes = inner[0] in ("output", "down")
            value = weight[order] if writes else weight[:, order] if inner[1] == "weight" else weight
        named[f"model.{side}.layers.{layer}.{key}"] = value
    missing, unexpected = theirs.load_state_dict(named, strict=False)
    assert not unexpected and all("embed_positions" in name for name in missing), (missing, unexpected)  # noqa: PT018
    theirs.generation_config.bad_words_ids = None
    return theirs.to(device, dtype).eval()  # type: ignore[arg-type] (its decorator hides the method's type)


def hugging_face(theirs: Any, beam: int) -> Translate:
    def translate(batch: Sequence[Ids]) -> list[Ids]:
        device = theirs.device
        ids = pad_sequence([torch.tensor([*one, EOS]) for one in batch], batch_first=True, padding_value=PAD).to(device)
        longest = 2 * max(map(len, batch)) + 10
        with torch.no_grad():
            found = theirs.generate(
                input_ids=ids,
                attention_mask=(ids != PAD).long(),
                num_beams=beam,
                do_sample=False,
                length_penalty=0.0,
                early_stopping=False,
                max_new_tokens=longest,
            )
        return [until_eos(row) for row in found[:, 1:].tolist()]

    return translate


def until_eos(row: Sequence[int]) -> Ids:
    return tuple(row[: row.index(EOS)] if EOS in row else row)


# --- CTranslate2 ---


def ctranslate2(model: Seq2Seq, beam: int, precision: str, threads: int, *, apart: bool = False) -> Translate:
    """All threads work on one batch; `apart`, each on its share of it, as ours do where there are many sentences."""
    import ctranslate2  # pyright: ignore[reportMissingImports] (in an environment of its own: make peers)
    from ctranslate2.specs import common_spec, transformer_spec  # pyright: ignore[reportMissingImports]

    weights = {name: weight.detach().float().cpu().clone().numpy() for name, weight in model.state_dict().items()}
    words, layers = weights["embeddings.bias"].shape[0], len(list(model.get_submodule("decoder").children()))
    spec: Any = transformer_spec.TransformerSpec.from_config(
        (layers, layers), HEADS, pre_norm=False, activation=common_spec.Activation.RELU
    )
    places = Sinusoidal().table(torch.arange(LONGEST), MODEL).float().numpy()
    for side in (spec.encoder, spec.decoder):
        side.scale_embeddings = MODEL**0.5
        side.position_encodings.encodings = places
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = weights["embeddings.tables.target.weight"]
    spec.decoder.projection.weight, spec.decoder.projection.bias = (
        spec.decoder.embeddings.weight,
        weights["embeddings.bias"],
    )

    def linear(there: Any, *here: str) -> None:
        import numpy

        there.weight = numpy.concatenate([weights[f"{name}.weight"] for name in here])
        there.bias = numpy.concatenate([weights[f"{name}.bias"] for name in here])

    def norm(there: Any, here: str) -> None:
        there.gamma, there.beta = weights[f"{here}.norm.weight"], weights[f"{here}.norm.bias"]

    for name, side in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for n, layer in enumerate(side.layer):
            at = f"{name}.{n}"
            linear(layer.self_attention.linear[0], *(f"{at}.attention.{part}" for part in ("query", "key", "value")))
            linear(layer.self_attention.linear[1], f"{at}.attention.output")
            norm(layer.self_attention.layer_norm, f"{at}.residual_attention")
            if name == "decoder":
                linear(layer.attention.linear[0], f"{at}.cross.query")
                linear(layer.attention.linear[1], f"{at}.cross.key", f"{at}.cross.value")
                linear(layer.attention.linear[2], f"{at}.cross.output")
                norm(layer.attention.layer_norm, f"{at}.residual_cross")
            linear(layer.ffn.linear_0, f"{at}.feed_forward.up")
            linear(layer.ffn.linear_1, f"{at}.feed_forward.down")
            norm(layer.ffn.layer_norm, f"{at}.residual_feed_forward")
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *(str(word) for word in range(4, words))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token, spec.config.add_source_eos, spec.config.add_source_bos = "<s>", False, False
    folder = tempfile.TemporaryDirectory()
    spec.validate()
    spec.optimize(quantization=precision if precision != "float32" else None)
    spec.save(folder.name)
    workers, each = (threads, 1) if apart else (1, threads)
    theirs = ctranslate2.Translator(
        folder.name, device="cpu", inter_threads=workers, intra_threads=each, compute_type=precision
    )
    names = {token: id for id, token in enumerate(tokens)}

    def translate(batch: Sequence[Ids]) -> list[Ids]:
        found = theirs.translate_batch(
            [[*(tokens[id] for id in one), "</s>"] for one in batch],
            beam_size=beam,
            length_penalty=0.0,
            max_decoding_length=2 * max(map(len, batch)) + 10,
            max_batch_size=-(-len(batch) // workers),
        )
        return [tuple(names[token] for token in one.hypotheses[0]) for one in found]

    return translate
