"""Exports: a trained translator in CTranslate2, onnxruntime and transformers, beside our own search: tokens, seconds.

    python benchmarks/export.py RUN [--sentences 500]

RUN is a trained translator, such as `regard train recipes/world.toml --out RUN` makes. Each export is proved
as `regard export` does it, on so many validation sentences, greedily and with a beam of 4. Then all of them search the
same sentences with a beam of 4, in turns; the seconds are those of the processor, the least of all rounds, by one
thread. The Hugging Face folder is imported again, and must be the same weights, bit by bit.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from machine import write
from regard.interop import import_model
from regard.interop.ctranslate2 import CTranslate2Translation
from regard.interop.export_format import Engine, TranslationEngine, translation_limit
from regard.interop.exporter import export, gather_inputs
from regard.interop.huggingface.exporting import TransformersTranslation
from regard.interop.onnx import OnnxTransformer
from regard.tasks.registry import task_of_run
from regard.tasks.translation.task import Translator

BEAM, ROUNDS = 4, 3


def least_seconds(engines: dict[str, Engine], ids: Any, limit: int) -> dict[str, float]:
    """Of the processor, in turns."""
    found = dict.fromkeys(engines, float("inf"))
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            before = time.process_time()
            engine.search(ids, BEAM, limit)
            found[name] = min(found[name], time.process_time() - before)
    return found


def same_weights(one: Translator, other: Translator) -> bool:
    """To the bit, by the same names."""
    weights, others = dict(one.model.named_parameters()), dict(other.model.named_parameters())
    return weights.keys() == others.keys() and all(torch.equal(x, others[name]) for name, x in weights.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentences", type=int, default=500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, translator = task_of_run(given.run), Translator.load(given.run)
    inputs = gather_inputs(task, translator, None, None, count=given.sentences)
    limit, rows = translation_limit(translator, inputs), list[dict[str, Any]]()
    with TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in ("ctranslate2", "onnx", "hf")}
        proofs = {name: export(given.run, name, out, count=given.sentences) for name, out in places.items()}
        engines: dict[str, Engine] = {
            "regard": TranslationEngine(translator.model),
            "ctranslate2": CTranslate2Translation.load(places["ctranslate2"], translator, "float32"),
            "onnx": TranslationEngine(OnnxTransformer.load(places["onnx"])),
            "hf": TransformersTranslation.load(places["hf"], translator),
        }
        again = Translator.load(import_model(places["hf"], Path(folder) / "again"))
        same = same_weights(translator, again)
        seconds = least_seconds(engines, inputs.ids, limit)
    for name, proof in proofs.items():
        checks = {check.name: check.to_json() for check in proof.checks}
        times = {
            "seconds": seconds[name],
            "regard_seconds": seconds["regard"],
            "ratio": seconds["regard"] / seconds[name],
        }
        rows.append({"engine": name, "precision": "float32", **times, "versions": proof.versions, "checks": checks})
        rows[-1] |= {"imported_again_bit_identical": same} if name == "hf" else {}
    table = Table("engine", "sentences", "identical, beam 4", "largest difference", "seconds", "ours / theirs")
    for row in rows:
        check = row["checks"]["beam 4"]
        table.add_row(
            row["engine"],
            str(check["sentences"]),
            str(check["identical"]),
            f"{check['largest_difference']:.1e}",
            f"{row['seconds']:.2f}",
            f"{row['ratio']:.2f}",
        )
    Console().print(table)
    command = f"python benchmarks/export.py RUN --sentences {given.sentences}"
    print(write("export", command, rows, inputs=inputs.origin, recipe="recipes/world.toml"))


if __name__ == "__main__":
    main()
