"""Training benchmark of other toolkits: times their training steps, in their own Python environment.

Imports nothing of Regard:

    out/peers/joeynmt/bin/python train_peers.py joeynmt plan.json

The toolkit runs its own training loop, and a stopwatch is called after each step: the time between two steps includes
batching, padding and clipping, but neither start-up nor validation nor checkpoints. Tokens are counted by one rule for
all: subwords of both sides, without padding, BOS and EOS. The validation loss is in nats per target subword and EOS,
without label smoothing.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RunPlan = dict[str, Any]
RunState = dict[str, Any]
NEVER = 10**6  # steps, in a run of a few hundred
AT_ONCE = 64  # held-out sentences


class Stopwatch:
    """For each step: when it ended, the CPU seconds until then, and its number of subwords."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.cpu_seconds: list[float] = []
        self.tokens: list[int] = []

    def step(self, tokens: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        self.cpu_seconds.append(time.process_time())
        self.tokens.append(tokens)


def call_after(owner: type, name: str, then: Callable[..., None]) -> None:
    """Call `then` with the same arguments after every call of a method."""
    method = getattr(owner, name)

    def called(*args: Any, **more: Any) -> Any:
        answer = method(*args, **more)
        then(*args, **more)
        return answer

    setattr(owner, name, called)


def count_subwords(ids: Tensor, specials: tuple[int, ...]) -> int:
    return int((~torch.isin(ids, torch.tensor(specials, device=ids.device))).sum())


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


# --- JoeyNMT 2.3 ---


def joeynmt(plan: RunPlan, watch: Stopwatch) -> tuple[float, int]:
    training, state = import_module("joeynmt.training"), {}
    side = {"type": "transformer", "num_layers": plan["layers"], "num_heads": plan["heads"], "layer_norm": "pre"}
    side |= {"hidden_size": plan["model"], "ff_size": plan["hidden"], "dropout": plan["dropout"]}
    side |= {"embeddings": {"embedding_dim": plan["model"], "scale": True, "dropout": plan["dropout"]}}
    language = {"level": "word", "voc_file": plan["vocabulary"], "max_length": plan["longest"]}
    config = {
        "name": "bench",
        "model_dir": plan["folder"],
        "use_cuda": plan["device"] != "cpu",
        "random_seed": plan["seed"],
        "data": {
            "train": plan["train"],
            "dev": plan["valid"],
            "dataset_type": "plain",
            "src": {"lang": "source", **language},
            "trg": {"lang": "target", **language},
        },
        "training": {
            "optimizer": "adamw",
            "adam_betas": [0.9, 0.98],
            "learning_rate": plan["rate"],
            "learning_rate_min": 0.0,
            "scheduling": "exponential",  # there is no constant rate but this
            "decrease_factor": 1.0,
            "clip_grad_norm": plan["clip"],
            "label_smoothing": plan["smoothing"],
            "normalization": "tokens",
            "batch_size": plan["tokens"],
            "batch_type": "token",
            "epochs": NEVER,
            "updates": plan["steps"],
            "logging_freq": NEVER,
            "validation_freq": NEVER,
            "keep_best_ckpts": 0,
        },
        "testing": {},
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": side,
            "decoder": side,
        },
    }

    def stepped(_: Any, batch: Any) -> None:
        watch.step(sum(count_subwords(ids, (1, 2, 3)) for ids in (batch.src, batch.trg)))

    def ended(trainer: Any, train_data: Any, valid_data: Any) -> None:
        state.update(model=trainer.model, valid=valid_data)

    call_after(training.TrainManager, "_train_step", stepped)
    call_after(training.TrainManager, "train_and_validate", ended)
    training.train(rank=0, world_size=None, cfg=config, skip_test=True)
    model = state["model"].eval()
    model.loss_function = ("crossentropy", 0.0)
    total, count = 0.0, 0
    with torch.no_grad():
        device = next(model.parameters()).device
        for batch in state["valid"].make_iter(batch_size=AT_ONCE, device=device):
            total += float(model(return_type="loss", **vars(batch))[0])
            count += batch.ntokens
    return total / count, weights(model)


# --- OpenNMT-py 3.5, and its successor eole 0.6 ---


def opennmt(plan: RunPlan, watch: Stopwatch) -> tuple[float, int]:
    trainer, parse, train = (import_module(f"onmt.{name}") for name in ("trainer", "utils.parse", "bin.train"))
    options = {
        **common(plan),
        "save_model": str(Path(plan["folder"]) / "model"),
        "word_vec_size": plan["model"],
        "transformer_ff": plan["hidden"],
        "position_encoding": "true",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": plan["layers"],
        "dec_layers": plan["layers"],
        "hidden_size": plan["model"],
        "heads": plan["heads"],
        "share_vocab": "true",
        "share_embeddings": "true",
        "share_decoder_embeddings": "true",
        "param_init_glorot": "true",
        "param_init": 0,
        "add_qkvbias": "true",
    }
    config = Path(plan["folder"]) / "config.yaml"
    config.write_text(json.dumps({**options, "data": corpora(plan)}))
    state = instrument(trainer.Trainer, "_gradient_accumulation", watch, lambda loss: loss.vocab)
    parser = parse.ArgumentParser()
    import_module("onmt.opts").train_opts(parser)
    train.train(parser.parse_args(["-config", str(config)]))
    return validate(state)


def eole(plan: RunPlan, watch: Stopwatch) -> tuple[float, int]:
    trainer, run, train = (import_module(f"eole.{name}") for name in ("trainer", "config.run", "bin.run.train"))
    options = common(plan) | {"share_vocab": True, "param_init_method": "xavier_uniform"}
    options |= {"model_path": str(Path(plan["folder"]) / "model")}
    outside = {name: options.pop(name) for name in ("src_vocab", "seed", "share_vocab", "report_every")}
    architecture = {
        "architecture": "transformer",
        "layers": plan["layers"],
        "hidden_size": plan["model"],
        "heads": plan["heads"],
        "transformer_ff": plan["hidden"],
        "add_qkvbias": True,
        "add_ffnbias": True,
        "share_decoder_embeddings": True,
        "share_embeddings": True,
        "embeddings": {
            "word_vec_size": plan["model"],
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
        },
    }
    config = run.TrainConfig(data=corpora(plan), model=architecture, training=options, **outside)
    state = instrument(trainer.Trainer, "_train_step", watch, lambda loss: loss.vocabs["tgt"])
    train.train(config)
    return validate(state)


def common(plan: RunPlan) -> RunState:
    """Options with the same names in both."""
    return {
        "src_vocab": plan["vocabulary"],
        "seed": plan["seed"],
        "batch_type": "tokens",
        "batch_size": plan["tokens"],
        "batch_size_multiple": 1,
        "valid_batch_size": plan["tokens"],
        "normalization": "tokens",
        "accum_count": [1],
        "bucket_size": plan["pairs"],
        "num_workers": 0,
        "train_steps": plan["steps"],
        "valid_steps": NEVER,
        "save_checkpoint_steps": NEVER,
        "report_every": NEVER,
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": plan["rate"],
        "decay_method": "none",
        "max_grad_norm": plan["clip"],
        "label_smoothing": plan["smoothing"],
        "dropout": [plan["dropout"]],
        "attention_dropout": [0.0],
        "dropout_steps": [0],
        **({"world_size": 1, "gpu_ranks": [0]} if plan["device"] != "cpu" else {}),
    }


def corpora(plan: RunPlan) -> RunState:
    sides = {name: (f"{plan[name]}.source", f"{plan[name]}.target") for name in ("train", "valid")}
    return {name: {"path_src": one, "path_tgt": other, "transforms": []} for name, (one, other) in sides.items()}


def instrument(owner: type, step: str, watch: Stopwatch, vocabulary: Callable[[Any], Any]) -> RunState:
    """Calls the stopwatch after every step; the returned table holds the trainer and validation set at the end."""
    state: RunState = {}

    def stepped(trainer: Any, batches: Any, *_: Any, **__: Any) -> None:
        if not state:
            words = vocabulary(trainer.train_loss)
            state["specials"] = tuple(words[token] for token in ("<blank>", "<s>", "</s>"))
        watch.step(sum(count_subwords(batch[side], state["specials"]) for batch in batches for side in ("src", "tgt")))

    def ended(trainer: Any, *_: Any, valid_iter: Any, **__: Any) -> None:
        state.update(trainer=trainer, valid=valid_iter)

    call_after(owner, step, stepped)
    call_after(owner, "train", ended)
    return state


def validate(state: RunState) -> tuple[float, int]:
    trainer = state["trainer"]
    trainer.valid_loss.criterion = nn.CrossEntropyLoss(ignore_index=state["specials"][0], reduction="sum")
    return trainer.validate(state["valid"]).xent(), weights(trainer.model)


PEERS: dict[str, Callable[[RunPlan, Stopwatch], tuple[float, int]]] = {
    "joeynmt": joeynmt,
    "opennmt": opennmt,
    "eole": eole,
}


def write_result(plan: RunPlan, train: Callable[[RunPlan, Stopwatch], tuple[float, int]]) -> None:
    torch.set_num_threads(plan["threads"])
    watch = Stopwatch()
    loss, size = train(plan, watch)
    result = {
        "ends": watch.ends,
        "cpu_seconds": watch.cpu_seconds,
        "tokens": watch.tokens,
        "loss": loss,
        "weights": size,
    }
    Path(plan["answer"]).write_text(json.dumps(result))


if __name__ == "__main__":
    write_result(json.loads(Path(sys.argv[2]).read_text()), PEERS[sys.argv[1]])
