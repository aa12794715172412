"""Watching a Hugging Face model: the time of a forward pass, alone, watched, and watched for statistics alone.

python benchmarks/watching.py                        BERT-base and GPT-2 size, random weights, 512 tokens, on the CPU

The passes take turns on one thread; times are of the processor, ratios those of medians. Before them the weights are
checked against the layers' own outputs.
"""

import argparse
import shlex
import sys
import time
from statistics import median
from typing import Any

import torch

import regard
from machine import write

SIZES: dict[str, Any] = {"layers": 12, "heads": 12, "width": 768}


def models() -> dict[str, Any]:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    bert = BertConfig(num_hidden_layers=SIZES["layers"], num_attention_heads=SIZES["heads"], hidden_size=SIZES["width"])
    gpt2 = GPT2Config(n_layer=SIZES["layers"], n_head=SIZES["heads"], n_embd=SIZES["width"])
    torch.manual_seed(0)
    return {"BERT-base": BertModel(bert).eval(), "GPT-2": GPT2LMHeadModel(gpt2).eval()}


# --- a text for any model ---


WORDS = 1000


def tokenizer_of_words() -> Any:
    """Of so many words, for models of any vocabulary that is at least as large."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<pad>"]  # which no word may begin with: they are found inside of words
    known = special + [f"w{n}" for n in range(WORDS - len(special))]
    words = Tokenizer(WordLevel({word: n for n, word in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")


def sentence(tokens: int) -> str:
    return " ".join(f"w{n * n % 997}" for n in range(tokens))


def seconds(model: Any, ids: torch.Tensor, how: str) -> float:
    began = time.process_time()
    if how == "alone":
        model(ids)
    else:
        with regard.watch(model, statistics_only=how == "statistics"):
            model(ids)
    return time.process_time() - began


@torch.no_grad()
def measure(model: Any, tokens: int, turns: int) -> dict[str, Any]:
    ids = torch.randint(1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    with regard.watch(model) as seen:
        model(ids)
    check = seen.check()
    ways = ("alone", "kept", "statistics")
    times: dict[str, list[float]] = {how: [] for how in ways}
    for _ in range(turns):
        for how in ways:
            times[how].append(seconds(model, ids, how))
    middle = {how: median(found) for how, found in times.items()}
    ratios = {how: middle[how] / middle["alone"] for how in ways[1:]}
    spread = {how: [min(found), max(found)] for how, found in times.items()}
    return {"seconds": middle, "spread": spread, "ratio": ratios, "error": check.error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = [
        {"model": name, **measure(model, given.tokens, given.turns)} for name, model in models().items()
    ]
    for row in rows:
        ratios = ", ".join(f"{how} {ratio:.2f} ×" for how, ratio in row["ratio"].items())
        print(f"{row['model']:<10} {row['seconds']['alone']:.2f} s alone; {ratios}; off by {row['error']:.1e} at most")
    command = shlex.join(["python", "benchmarks/watching.py", *sys.argv[1:]])
    write("watching", command, rows, sizes=SIZES, tokens=given.tokens, turns=given.turns)


if __name__ == "__main__":
    main()
