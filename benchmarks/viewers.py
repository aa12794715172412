"""Viewers of attention: BertViz beside the page of a trace in a file, for the same BERT-base and text.

pip install --target out/bertviz --no-deps bertviz ipython traitlets decorator stack_data executing asttokens pure_eval
PYTHONPATH=out/bertviz python benchmarks/viewers.py

BertViz writes the weights of all heads as decimal numbers, from a forward pass with output_attentions, which needs
eager attention. The page of Regard holds the weights of all heads that fit, each a float32, and q, k and v of some; the
model keeps its fused attention. Each runs in a process of its own; seconds are of the processor, on one thread.
"""

import argparse
import re
import shlex
import sys
import time
from importlib.util import find_spec
from math import isqrt
from typing import Any

from machine import alone, forget_peak, peak_mib, write
from regard.see.trace import MAX_TOKENS
from regard.serve.exports import MAX_PAGE_CELLS

HEADS, LAYERS = 12, 12
LONGEST_STRING = 2**29 - 24  # letters of a string in V8 (Chromium, node): no script can be longer


def by_bertviz(tokens: int) -> dict[str, Any]:
    """The file of BertViz's model view."""
    import torch
    from bertviz import model_view  # type: ignore[import-not-found]

    from watching import models, sentence, tokenizer_of_words

    model = models()["BERT-base"]
    model.set_attn_implementation("eager")
    return measured(lambda: bertviz_page(model_view, torch, model, tokenizer_of_words(), sentence(tokens)))


def bertviz_page(model_view: Any, torch: Any, model: Any, tokenizer: Any, text: str) -> tuple[str, int]:
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids.shape[1] == len(text.split())
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    page = model_view(weights, tokenizer.convert_ids_to_tokens(ids[0]), html_action="return").data
    return page, LAYERS * HEADS


def by_regard(tokens: int) -> dict[str, Any]:
    """The page of a trace in a file."""
    import regard
    from regard.see import show
    from watching import models, sentence, tokenizer_of_words

    model, tokenizer = models()["BERT-base"], tokenizer_of_words()

    def page() -> tuple[str, int]:
        found = show(regard.trace(model, tokenizer, sentence(tokens))).html
        return found, len(re.findall(r'"check":\s*{"difference"', found))  # one for each head whose weights are in it

    return measured(page)


def measured(make: Any) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    forget_peak()
    before, began = peak_mib(), time.process_time()
    page, heads = make()
    seconds = time.process_time() - began
    return {"bytes": len(page.encode()), "seconds": seconds, "mib": peak_mib() - before, "heads": heads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128])
    given = parser.parse_args()
    if find_spec("bertviz") is None:
        raise SystemExit("bertviz is missing; the first lines of this file say how to get it")
    rows = []
    for tokens in given.tokens:
        for name, function in (("BertViz", by_bertviz), ("Regard", by_regard)):
            rows.append({"who": name, "tokens": tokens, **alone(function, tokens)})
            print(
                "{who:8} {tokens:4} tokens: {bytes:13,} bytes, {seconds:6.2f} s, {mib:6.0f} MiB, {heads} heads".format(
                    **rows[-1]
                )
            )
    last = [row for row in rows if row["who"] == "BertViz"][-1]
    fit = isqrt(MAX_PAGE_CELLS // (LAYERS * HEADS))
    longest = isqrt(LONGEST_STRING * last["tokens"] ** 2 // last["bytes"])
    print(f"BertViz: beyond {longest} tokens the weights are longer than the longest string of a browser's script")
    print(f"Regard: beyond {MAX_TOKENS} tokens the server refuses, beyond {fit} a file has thumbnails of some heads")
    command = shlex.join(["python", "benchmarks/viewers.py", *sys.argv[1:]])
    print(
        write("viewers", command, rows, longest={"BertViz": longest, "Regard": MAX_TOKENS}, layers=LAYERS, heads=HEADS)
    )


if __name__ == "__main__":
    main()
