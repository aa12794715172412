"""Decoding of a language model beside transformers' generate: the same GPT-2 of random weights, greedy, in one run.

    python benchmarks/language_model_decoding.py                           on a GPU: 12 layers of 768, bfloat16
    python benchmarks/language_model_decoding.py --batches 64 1 --greedy   only what the ratio needs, 64 texts first
    python benchmarks/language_model_decoding.py --layers 2 --width 64 --heads 4 --words 500 --tokens 24 --batches 1 4

The folder is what transformers saves; ours is what `regard import` makes of it, prepared. Of each the first round,
which captures, compiles and plans a kernel for every length, is thrown away; then both take turns, and the fastest
round of each counts. A token is judged against the same weights in float32: is it the most probable one after the
tokens before it? Of two that are as probable in bfloat16, either may come. What was measured is written after every
batch.
"""

import argparse
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from machine import write

Rows = list[list[int]]
Decode = Callable[[Rows, int], Rows]
POSITIONS, CHECKED_ROWS = 1024, 8
BEGIN = time.perf_counter()


def save_gpt2(folder: Path, given: argparse.Namespace) -> None:
    """Weights twice as large as GPT-2 starts with, so that one token is likelier than the others; id 0 is the end, and
    its embedding is 0: nobody writes it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=given.words,
        n_embd=given.width,
        n_layer=given.layers,
        n_head=given.heads,
        n_positions=POSITIONS,
        initializer_range=0.04,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        model.transformer.wte.weight[0] = 0.0
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<end>": 0} | {str(n): n for n in range(1, given.words)}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))


def load_ours(folder: Path, device: str, precision: str) -> tuple[Decode, Decode]:
    """Greedy search, and sampling."""
    import regard
    from regard.data.tokenizers.base import EOS, UNK
    from regard.decode import Constraints, Greedy, Sampling, prepare
    from regard.decode.stepwise import StepwiseSearch
    from regard.decode.text_generation import generate_all
    from regard.interop import import_model

    loaded: Any = regard.load(import_model(folder, folder / "run"), device=device).task_model
    words, rules = loaded.tokenizer, Constraints(banned=frozenset([UNK, EOS]))
    model = prepare(loaded.model, precision)

    def by(search: StepwiseSearch) -> Decode:
        def decode(prompts: Rows, tokens: int) -> Rows:
            ids = [[words.from_foreign[one] for one in prompt] for prompt in prompts]
            found = generate_all(model, ids, search, tokens=tokens, constraints=rules, context=POSITIONS)
            return [[words.to_foreign[token.id] for token in text] for text in found]

        return decode

    return by(Greedy()), by(Sampling(temperature=0.8, top_p=0.9))


def load_theirs(folder: Path, device: str, dtype: torch.dtype) -> tuple[Decode, Any]:
    from transformers import GPT2LMHeadModel

    model: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype)
    model = model.to(device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def decode(prompts: Rows, tokens: int) -> Rows:
        ids = torch.tensor(prompts, device=device)
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, use_cache=True
            )
        return found[:, ids.shape[1] :].tolist()

    return decode, model


def timed(decode: Decode, prompts: Rows, tokens: int, device: str) -> tuple[float, Rows]:
    synchronize(device)
    begin = time.perf_counter()
    found = decode(prompts, tokens)
    synchronize(device)
    return time.perf_counter() - begin, found


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def share_of_best(exact: Any, prompts: Rows, found: Rows) -> tuple[float, float]:
    """The share of tokens that are the most probable ones in float32, and how far the others are from it, in nats."""
    device, gaps = next(exact.parameters()).device, list[Tensor]()
    for prompt, tokens in list(zip(prompts, found, strict=True))[:CHECKED_ROWS]:
        read = torch.tensor([[*prompt, *tokens[:-1]]], device=device)
        with torch.inference_mode():
            scores = exact(read).logits[0, len(prompt) - 1 :].float()
        chosen = torch.tensor(tokens, device=device)
        gaps.append(scores.amax(-1) - scores.gather(-1, chosen[:, None])[:, 0])
    gap = torch.cat(gaps)
    return float((gap <= 0).float().mean()), float(gap.max())


def equal_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def measure(
    batch: int, ours: Decode, sample: Decode, theirs: Decode, exact: Any, given: argparse.Namespace
) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(batch)
    prompts: Rows = torch.randint(1, given.words, (batch, given.prompt), generator=draw).tolist()
    row: dict[str, Any] = {"batch": batch, "prompt": given.prompt, "tokens": given.tokens}
    seconds: dict[str, list[float]] = {"regard": [], "transformers": [], "regard sampling": []}
    for name, decode in (("regard", ours), ("transformers", theirs)):
        row[f"{name} first round, seconds"], _ = timed(decode, prompts, given.tokens, given.device)
        print(f"batch {batch}: {name}, first round {row[f'{name} first round, seconds']:.1f} s", flush=True)
    texts: dict[str, Rows] = {}
    for n in range(given.rounds):
        if n and time.perf_counter() - BEGIN > given.seconds:
            break
        for name, decode in (("regard", ours), ("transformers", theirs)):
            taken, texts[name] = timed(decode, prompts, given.tokens, given.device)
            seconds[name].append(taken)
    if not given.greedy:
        try:
            sample(prompts, 8)
            seconds["regard sampling"].append(timed(sample, prompts, given.tokens, given.device)[0])
        except Exception:
            print("sampling failed:", traceback.format_exc(limit=-3), flush=True)
    row["rounds"] = len(seconds["regard"])
    for name, taken in seconds.items():
        if taken:
            row[f"{name} tokens/s"] = batch * given.tokens / min(taken)
            row[f"{name} spread"] = (max(taken) - min(taken)) / min(taken)
    row["ratio"] = row["regard tokens/s"] / row["transformers tokens/s"]
    same = [equal_prefix(*pair) for pair in zip(texts["regard"], texts["transformers"], strict=True)]
    row["equal before the first difference"] = sum(same) / (batch * given.tokens)
    for name, found in texts.items():
        row[f"{name} most probable in float32"], row[f"{name} largest gap"] = share_of_best(exact, prompts, found)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--words", type=int, default=50_257)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--greedy", action="store_true", help="no sampling")
    parser.add_argument("--seconds", type=float, default=60.0, help="after these, one round is enough")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--no-write", action="store_true", help="print the figures alone")
    given, rows = parser.parse_args(), list[dict[str, Any]]()
    precision = given.precision or ("bfloat16" if given.device == "cuda" else "float32")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_gpt2(folder, given)
        ours, sample = load_ours(folder, given.device, precision)
        theirs, _ = load_theirs(folder, given.device, torch.bfloat16 if precision == "bfloat16" else torch.float32)
        _, exact = load_theirs(folder, given.device, torch.float32)
    print(f"loaded in {time.perf_counter() - BEGIN:.1f} s", flush=True)
    sizes = {name: getattr(given, name) for name in ("layers", "width", "heads", "words")} | {"precision": precision}
    command = f"python benchmarks/language_model_decoding.py {shlex.join(sys.argv[1:])}".strip()
    for batch in given.batches:
        try:
            rows.append(measure(batch, ours, sample, theirs, exact, given))
        except Exception:
            print(f"batch {batch} failed:\n{traceback.format_exc()}", flush=True)
            continue
        print("\n".join(f"{name:<42} {value:,.4f}" for name, value in rows[-1].items()), "\n", flush=True)
        if not given.no_write:
            print(write(f"language-model-decoding-{given.device}", command, rows, model=sizes))
    print(f"{time.perf_counter() - BEGIN:.1f} s in all")


if __name__ == "__main__":
    main()
