"""Imported models: tokens a second of beam search beside transformers' generate on the same folder.

    python benchmarks/imported_decoding.py          the size of OPUS-MT's models, 2 threads

The folder holds a Marian of 6 + 6 layers, width 512 and 58,101 words, as opus-mt-en-de has, and what the folders of
OPUS-MT ask of generate. Its weights are random but for the last cross-attention: it copies its source, so that texts
end. transformers loads the folder by from_pretrained; ours is what `regard import` makes of it. All take turns, each in
a process of its own, as in benchmarks/decoding.py; tokens are compared by their ids in the folder.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from decoding import ALONE, BEAM, OwnProcess, compare, measured, print_table
from decoding_peers import Ids, Translate, copier, hugging_face, marian, sources
from machine import write
from regard.data.tokenizers.base import EOS, PAD

WORDS, BATCHES_OF_MANY = 58_101, 3


def save_marian(folder: Path) -> None:
    marian(copier(words=WORDS), "cpu", torch.float32).save_pretrained(folder)
    change_json(folder / "config.json", activation_function="swish")
    change_json(
        folder / "generation_config.json", bad_words_ids=[[PAD]], forced_eos_token_id=EOS, renormalize_logits=True
    )
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    words = Tokenizer(models.WordLevel(special | {str(n): n for n in range(4, WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def ours(run: Path, precision: str) -> Translate:
    import regard
    from regard.decode import Beam, prepare, translate

    loaded: Any = regard.load(run, device="cpu").task_model
    source, target, model = loaded.source, loaded.target, prepare(loaded.model, precision)

    def search(batch: Sequence[Ids]) -> list[Ids]:
        ids = [[source.from_foreign[one] for one in text] for text in batch]
        return [tuple(target.to_foreign[one] for one in best.ids) for (best,) in translate(model, ids, Beam(BEAM))]

    return search


def theirs(folder: Path) -> Translate:
    from transformers import MarianMTModel

    return hugging_face(MarianMTModel.from_pretrained(folder).eval(), BEAM)


def main() -> None:
    from regard.interop import import_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given, rows = parser.parse_args(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name, "folder"), Path(name, "run")
        folder.mkdir()
        save_marian(folder)
        import_model(folder, run)
        makers: dict[str, Callable[[], Translate]] = {
            f"regard {precision}": partial(ours, run, precision) for precision in ("float32", "screened", "int8")
        }
        makers["transformers float32"] = partial(theirs, folder)
        made = {name: OwnProcess(make, given.threads) for name, make in makers.items()}
        for batch in given.batches:
            count = ALONE if batch == 1 else BATCHES_OF_MANY * batch
            texts = sources(count, words=WORDS, seed=batch)
            rows += compare(batch, *measured(made, texts, batch, given.rounds, "cpu", time.perf_counter() + 3600))
        for who in made.values():
            who.close()
    print_table(rows)
    command = shlex.join(["python", "benchmarks/imported_decoding.py", *sys.argv[1:]])
    write("imported-decoding", command, rows, beam=BEAM, words=WORDS, threads=given.threads)


if __name__ == "__main__":
    main()
