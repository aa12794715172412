"""A shipped translator: its cold first answer, and target tokens a second beside CTranslate2 and transformers.

    python benchmarks/shipped.py en-fr PAIRS.tsv            a name or the folder of a run; the first 1,000 pairs
    python benchmarks/shipped.py --alignments               word alignments of all that are installed, against gold ones

The cold start is a process of its own for each sentence, in turns with a bare `import torch`; the seconds of the
processor depend little on what else the machine does. The engines get the ids of the same lines and search with the
same beam, each in a process of its own, round after round. Theirs are what `regard export` writes of the same weights,
with its proof; one that the export refuses is named with the reason. BLEU is of the texts that each wrote.

Alignments are those of the heads that a model was shipped with, which were chosen without gold ones, on the miniature
world's sentences and their gold translations: it knows the words, and has never seen the sentences.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from rich.console import Console
from rich.table import Table

from decoding import OwnProcess, compare, measured
from decoding_peers import Ids, Translate, hugging_face
from machine import write
from regard.data.parallel import read_pairs
from regard.decode.alignment import (
    annotate_pair,
    annotated_attention_maps,
    evaluate_heads,
    load_alignment_heads,
    select_heads_by_gold,
)
from regard.interop import export
from regard.tasks.model_packages import packaged_models, resolve_model
from regard.tasks.translation.task import Translator
from regard.world import World
from startup import BARE, COMMAND, measure

SENTENCE, BEAM, LINES, BATCH = "Where is the train station?", 5, 1000, 64
SENTENCES = 200  # of the miniature world


def cold_start(name: str, rounds: int) -> dict[str, Any]:
    """Seconds from the command to its end, by the clock (the least) and of the processor (the median)."""
    jobs = {BARE: (BARE,), "regard translate": (COMMAND, "translate", name, SENTENCE)}
    for job in jobs.values():
        measure(*job)
    samples = [{what: measure(*job) for what, job in jobs.items()} for _ in range(rounds)]
    return {
        what: {
            "seconds": min(one[what]["seconds"] for one in samples),
            "processor": statistics.median(one[what]["processor"] for one in samples),
            "ratio": statistics.median(one[what]["processor"] / one[BARE]["processor"] for one in samples),
        }
        for what in jobs
    }


# --- engines: each from the ids of all lines to those of their translations ---


def ours(folder: Path, precision: str) -> Translate:
    from regard.decode import Beam, prepare
    from regard.decode.translation import translate_all

    translator = Translator.load(folder)
    model, prefix = prepare(translator.model, precision), translator.target.first_ids
    return lambda lines: [
        best.ids for best, *_ in translate_all(model, lines, Beam(BEAM), prefixes=[prefix] * len(lines))
    ]


def by_ctranslate2(folder: Path, exported: Path, precision: str, *, apart: bool) -> Translate:
    """All threads on one batch, or `apart` each on batches of its own."""
    import ctranslate2

    from regard.interop.ctranslate2 import CTranslate2Translation

    made = CTranslate2Translation.load(exported, Translator.load(folder), precision)
    threads = {"inter_threads": torch.get_num_threads() if apart else 1}
    threads["intra_threads"] = 1 if apart else torch.get_num_threads()
    engine = ctranslate2.Translator(str(exported), compute_type=precision, **threads)
    ids = {name: one for one, name in enumerate(made.target)}

    def translate(lines: Sequence[Ids]) -> list[Ids]:
        longest = 2 * max(map(len, lines)) + 10
        options: Any = {"beam_size": BEAM, "length_penalty": 0, "max_batch_size": BATCH, "max_decoding_length": longest}
        found = engine.translate_batch([[made.source[one] for one in line] for line in lines], **options)
        return [tuple(ids[name] for name in one.hypotheses[0]) for one in found]

    return translate


def by_transformers(exported: Path) -> Translate:
    """Batches of lines of like length."""
    from transformers import AutoModelForSeq2SeqLM

    search = hugging_face(AutoModelForSeq2SeqLM.from_pretrained(exported).eval(), BEAM)

    def translate(lines: Sequence[Ids]) -> list[Ids]:
        order = sorted(range(len(lines)), key=lambda n: len(lines[n]))
        found: dict[int, Ids] = {}
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            found |= dict(zip(rows, search([lines[row] for row in rows]), strict=True))
        return [found[row] for row in range(len(lines))]

    return translate


def alignments() -> list[dict[str, Any]]:
    """Alignment error of every shipped translator, and of the best set of its heads, chosen on other sentences."""
    world, rows = World(min_length=3, max_length=12), list[dict[str, Any]]()
    for model in packaged_models():
        translator, shipped = Translator.load(model.folder), load_alignment_heads(model.folder)
        examples = [annotate_pair(translator, world.sentence(number, "test")) for number in range(SENTENCES)]
        chosen = select_heads_by_gold(translator, [world.sentence(number, "valid") for number in range(SENTENCES)])
        maps = annotated_attention_maps(translator.model, examples)
        found = {"shipped": evaluate_heads(shipped, maps, examples), "by gold": evaluate_heads(chosen, maps, examples)}
        counts = {
            name: {"aer": one.error, "precision": one.precision, "recall": one.recall} for name, one in found.items()
        }
        rows.append(
            {"model": model.name, "sentences": SENTENCES, "heads": [asdict(head) for head in shipped], **counts}
        )
        print(model.name, *(f"{name}: {one.error:.3f}" for name, one in found.items()))
    return rows


def main() -> None:
    if sys.argv[1:] == ["--alignments"]:
        print(write("shipped-alignments", "python benchmarks/shipped.py --alignments", alignments()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name that regard models lists, or the folder of a run")
    parser.add_argument("pairs", type=Path, help="a .tsv of sources and references")
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0, help="no round is begun later than that")
    given, refused = parser.parse_args(), dict[str, str]()
    folder = resolve_model(given.model)
    started = cold_start(given.model, 2 * given.rounds + 1)
    pairs = list(islice(read_pairs([str(given.pairs)]), given.lines))
    translator = Translator.load(folder)
    lines = [tuple(ids) for ids in translator.source.encode_batch([pair.source for pair in pairs])]
    makers = {f"regard {precision}": partial(ours, folder, precision) for precision in ("float32", "int8")}
    with tempfile.TemporaryDirectory() as name:
        texts = Path(name, "sources.txt")
        texts.write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
        for engine, to, precision in (
            ("ctranslate2 float32", "ctranslate2", "float32"),
            ("ctranslate2 int8", "ctranslate2", "int8"),
            ("transformers float32", "hf", "float32"),
        ):
            exported = Path(name, engine.replace(" ", "-"))
            try:
                proof = export(folder, to, exported, precision=precision, sentences=texts, count=50)
            except ValueError as error:
                refused[engine] = str(error)
                continue
            print(
                engine, *(f"{check.name}: {check.identical} of {check.sentences}" for check in proof.checks), sep="; "
            )
            if to == "hf":
                makers[engine] = partial(by_transformers, exported)
            else:
                makers[engine] = partial(by_ctranslate2, folder, exported, precision, apart=False)
                makers[f"{engine}, apart"] = partial(by_ctranslate2, folder, exported, precision, apart=True)
        made = {name: OwnProcess(make, given.threads) for name, make in makers.items()}
        until = time.perf_counter() + given.seconds
        seconds, found = measured(made, lines, len(lines), given.rounds, "cpu", until)
        rows = compare(len(lines), seconds, found)
        for who in made.values():
            who.close()
    for row in rows:
        written = [translator.detokenize(ids) for ids in found[row["who"]]]
        row["bleu"] = round(sacrebleu.corpus_bleu(written, [[pair.target for pair in pairs]]).score, 2)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print_rows(rows, started, refused)
    command = " ".join(["python benchmarks/shipped.py", Path(given.model).name, given.pairs.name, *sys.argv[3:]])
    more = {"start": started, "refused": refused, "bytes": size, "beam": BEAM, "threads": given.threads}
    print(write("shipped", command, rows, **more, load=os.getloadavg()[0]))


def print_rows(rows: Sequence[dict[str, Any]], started: dict[str, Any], refused: dict[str, str]) -> None:
    console = Console(width=160)
    table = Table("cold start", "least seconds", f"processor, s (times {BARE})")
    for what, one in started.items():
        table.add_row(what, f"{one['seconds']:.2f}", f"{one['processor']:.2f} ({one['ratio']:.2f})")
    console.print(table)
    table = Table("who", "target tokens/s", "same as our float32", "BLEU", "times as fast as")
    for row in rows:
        times = ", ".join(f"{other} {ratio}×" for other, ratio in row["times"].items())
        table.add_row(row["who"], f"{row['tokens_per_second']:,.0f}", f"{row['same']:.1%}", f"{row['bleu']:.2f}", times)
    console.print(table)
    for engine, why in refused.items():
        console.print(f"{engine} does not take part: {why}")


if __name__ == "__main__":
    main()
