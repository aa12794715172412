"""Does a test notice? Plants one error at a time into a copy of the code, runs its tests on it, says which test did.

python benchmarks/mutants.py                 every mutant; writes benchmarks/results/mutants.json and docs/mutants.md
python benchmarks/mutants.py --again         those that the recorded run lacks, or that no test noticed in it
python benchmarks/mutants.py --again --minutes 25   the same, until the time is over; the next one goes on
python benchmarks/mutants.py Window training/   the mutants of this part, and of the files below this; writes nothing
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from planted import ERRORS

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src/regard")


def files(folder: str, *names: str) -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for name in names]


Stages = tuple[list[str], ...]

ALIKE = [*files("attention", "parity"), "-k", "not flex"]  # every backend beside the reference, for every recipe
PARITY = files("attention", "peers_torch", "laws", "parity")
# Which tests must notice an error, by how the path of its file begins; the longest such beginning counts.
# The cheap ones first: most errors never reach the second stage, and FlexAttention traces every call anew.
SUITES: dict[str, Stages] = {
    "attention/": (
        files(
            "attention",
            "examples",
            "definitions",
            "recipe",
            "bad_input",
            "block_map",
            "multihead",
            "hooks",
            "padding_removal",
        ),
        files("attention", "kv_cache", "learned_parts", "masks", "numerics", "content_patterns", "gates"),
        [*files("attention", "family"), "-k", "not drawn"],  # pictures are no part of a copy
        files("hostile", "pattern_data"),
        [*PARITY, "-k", "not flex"],
        [*PARITY, "-k", "flex"],
    ),
    "attention/backends/block_sparse": (files("attention", "block_sparse"), files("hostile", "pattern_data")),
    "attention/native_sparse": (files("attention", "content_patterns"),),
    "attention/backends/elementwise": (files("attention", "elementwise"), ALIKE),
    "attention/backends/hard": (files("attention", "hard"), ALIKE),
    "attention/backends/tiles": (files("attention", "elementwise", "hard"),),
    "attention/kernels/additive": (files("attention", "additive"), ALIKE),
    "attention/kernels/block_sparse": (
        files("attention", "block_sparse_kernels", "block_sparse"),
        ALIKE,
    ),
    "attention/kernels/relative": (files("attention", "relative"), ALIKE),
    "attention/kernels/state": (files("attention", "state_kernels"),),
    "attention/backends/state": (files("attention", "gates", "kv_cache"),),
    "attention/kernels/stats": (files("attention", "stats_kernels", "stats", "stats_laws"),),
    "tasks/translation/build_": (files("tasks", "build_stages"), files("cli", "model_build")),
    "tasks/translation/model_build": (files("cli", "model_build"),),
    "decode/translation": (files("cli", "model_build"), files("decode", "document_translation", "translate")),
    "tasks/translation/model_card": (files("tasks", "model_card"),),
    "ops/": (
        files("ops", "dropout", "linear_relu", "fused_qkv_linear", "linear_cross_entropy", "rdrop_loss"),
        files("ops", "dropout_add_layernorm", "embedding_dropout", "flat_adamw"),
    ),
    "ops/cuda_graph": (files("ops", "cuda_graph"),),
    "ops/rms_norm_triton": (files("ops", "rms_norm"),),
    "ops/rotary_triton": (files("ops", "rotary"),),
    "layers/transformer_layers": (
        files("layers", "residual"),
        [*files("models", "transformer"), *files("ops", "dropout_add_layernorm")],
    ),
    "ops/dropout_triton": (files("ops", "dropout_add_layernorm", "embedding_dropout"),),
    "ops/linear_triton": (files("ops", "fused_qkv_linear", "linear_cross_entropy", "rdrop_loss"),),
    "layers/": (
        files("layers", "residual", "rnn", "channel_attention", "patches", "pooling", "bottleneck"),
        files("models", "transformer", "graph", "config"),
    ),
    "models/": (
        files("models", "rnn_seq2seq", "tfidf", "build_classifier", "vqa", "vision", "encoder", "transformer"),
        files("models", "masked_lm", "language_model", "contracts", "convolution", "word_vectors", "graph"),
        files("models", "autoencoder"),
    ),
    "data/": (
        files("data", "batching", "lm_blocks", "tagged", "word_pieces", "ngrams", "labelled", "normalization"),
        files("data", "tokenizers", "parallel", "graphs", "images", "preprocess"),
    ),
    "data/batching": (files("data", "batching"), files("training", "packed_corpus")),
    "data/packing": (files("training", "packed_corpus"),),
    "world/splitmix": (files("data", "batching"),),
    "training/": (
        files("training", "step", "loop", "run", "master_weights"),
        files("training", "gradient", "cpu_parallel"),
    ),
    "models/config_base": (files("tasks", "settings_reference"), files("models", "config")),
    "tasks/config": (files("tasks", "settings_reference", "config"),),
    "models/safetensors_io": (files("models", "safetensors_io"),),
    "tasks/model_packages": (files("tasks", "model_packages"),),
    "interop/exporter": (files("cli", "packaged_models"),),
    "interop/": (files("interop", "torch_modules", "huggingface"), files("interop", "huggingface_trace")),
    "tasks/own_parts": (files("tasks", "own_parts"), files("cli", "own_parts")),
    "tasks/language_modeling/family": (files("cli", "family"),),
    "cli/train": (files("cli", "dry_run"),),
    "tasks/train_request": (files("tasks", "train_request"), files("cli", "own_parts")),
    "tasks/sequence_classification/task": (files("tasks", "gradient_noise", "hard_attention_loss"),),
    "training/checkpoint": (
        files("training", "step", "loop", "run"),
        files("training", "run_folder", "resume"),
        files("training", "distributed"),
    ),
    "training/distributed": (files("training", "distributed"),),
    "training/numerics": (files("training", "master_weights"), files("ops", "flat_adamw")),
    "data/documents": (files("data", "documents"), files("decode", "document_translation")),
    "decode/": (
        files("decode", "constraints", "alignment", "stepwise", "beam", "invariance", "topk_logprobs", "generation"),
        files("decode", "word_alignment", "models", "batched_beam", "translate"),
        files("tasks", "autoencoding_latents"),
        files("decode", "beam_kernels"),  # with a compiler, what torch and NumPy define runs there alone
    ),
    "decode/document_translation": (files("decode", "document_translation"),),
    "decode/protected_spans": (files("decode", "document_translation"),),
    "decode/kernels": (files("decode", "kernels"),),
    "decode/continuous": (files("decode", "continuous"),),
    "decode/text_generation": (files("decode", "generation"), files("see", "beam_tree")),
    "serve/": (files("serve", "api"),),
    "decode/kv_cache": (files("decode", "batched_beam", "topk_logprobs"),),
    "decode/quantize": (files("decode", "batched_beam"),),
    "decode/linear_kernels": (files("decode", "linear_kernels"),),
    "decode/beam_kernels": (files("decode", "beam_kernels"),),
    "decode/quantized_linear": (files("decode", "topk_logprobs"), files("decode", "batched_beam")),
    "attention/kernels/masked": (files("decode", "kernels"),),
    "attention/backends/masked": (files("attention", "masked"),),
    "attention/backends/packed": (files("attention", "packed_attention", "text_positions"),),
    "attention/kernels/packed": (files("attention", "packed_attention"),),
    "serve/explanations": (files("serve", "explanations"),),
    "see/head_views": (files("serve", "explanations"), files("cli", "look")),
    "cli/look": (files("cli", "look"),),
    "serve/widget": (files("serve", "widget"),),
    "see/corpus": (files("see", "corpus"),),
    "see/methods": (files("see", "methods"),),
    "serve/trace_cache": (files("serve", "corpora"),),
    "serve/workers": (files("serve", "corpora"),),
    "see/": (
        files(
            "see/plots", "attention_maps", "surprisal", "tags", "latent_plane", "nearest_neighbours", "neighbour_plot"
        ),
        files("see/plots", "word_contributions", "position_views", "self_attention_maps", "image_overlay", "terminal"),
        files("see/plots", "length_curves", "mpl_draw"),
        files("see", "sites", "trace", "edits", "beam_tree", "methods"),
    ),
}
# Where the tests of a file have another name than the file.
NAMED = {
    "attention/core": "hooks",
    "attention/gate": "gates",
    "decode/beam_decoder": "beam",
    "decode/quantized_linear": "topk_logprobs",
    "decode/search": "beam",
    "decode/topk": "topk_logprobs",
    "layers/embedding": "residual",
    "layers/transformer_layers": "residual",
    "see/plots/charts": "latent_plane",
    "see/plots/recipe_views": "position_views",
    "see/plots/layout": "image_overlay",
    "see/plots/terminal": "length_curves",
    "see/plots/text_views": "surprisal",
    "see/compare": "edits",
    "see/head_views": "explanations",
    "serve/trace_cache": "corpora",
    "serve/workers": "corpora",
    "training/config": "run",
    "training/loop": "step",
}
# all parameters of a test, of which the short form of the suite has a sample
OPTIONS = [
    "-m",
    "not gpu and (sampled or not slow)",
    "-x",
    "-q",
    "-n0",
    "-pno:cacheprovider",
    "-pno:anyio",
    "-Wignore::pytest.PytestAssertRewriteWarning",
]
# imported once; every run is a fork of a process that has them, and loads our own code and tests anew
PRELOADED = ["torch._dynamo", "torch.distributed.tensor", "hypothesis", "einops", "jaxtyping", "beartype", "pytest"]
WORKERS = 2
PATIENCE = 240.0  # seconds of a run of tests, after which the error has been noticed: with it they never end


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in src/regard/`file`, and `new` takes its place."""

    file: str
    part: str
    wrong: str
    old: str
    new: str

    @property
    def stages(self) -> Stages:
        """Before all others the tests of the file itself, if there are any."""
        path = self.file.removesuffix(".py")
        folder, _, name = path.rpartition("/")
        own = [test for test in files(folder, NAMED.get(path, name)) if (ROOT / test).exists()]
        suite = SUITES[max((begin for begin in SUITES if self.file.startswith(begin)), key=len)]
        return (own, *suite) if own else suite


FIELDS = [field.name for field in fields(Mutant)]
MUTANTS = tuple(Mutant(file, *error) for file, errors in ERRORS.items() for error in errors)


@dataclass(frozen=True)
class Outcome:
    """The first test that failed, if one did, and how long that took."""

    noticed_by: str | None
    seconds: float


def main(parts: Sequence[str]) -> int:
    console, began = Console(), time.perf_counter()
    parts, again, seconds = read_options(parts)
    noticed, more = recorded_rows() if again else ({}, {})
    mutants = [mutant for mutant in chosen(parts) if mutant not in noticed]
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        original = Path(temporary) / "original"
        take_copy(ROOT, original)
        for mutant in mutants:
            mutated(mutant, original)  # stops at once where the code has moved on
        with console.status("first the tests as they are, without an error"):
            green = refuse_red(mutants, original)
        console.print(f"without an error all tests pass ({green:.0f} s); now {len(mutants)} errors, one by one")
        outcomes = dict(trials(mutants, original, Path(temporary), console, began + seconds))
    known = noticed | {mutant: {**asdict(mutant), **asdict(outcome)} for mutant, outcome in outcomes.items()}
    rows = [known[mutant] for mutant in chosen(parts) if mutant in known]
    survivors = [row for row in rows if not row["noticed_by"]]
    Console(width=150).print(table(rows))
    console.print(f"{len(rows) - len(survivors)} of {len(rows)} errors were noticed")
    if missing := len(chosen(parts)) - len(rows):
        console.print(f"{missing} were not tried in this time; try them with --again")
    if not parts:
        from machine import write  # which loads our own code, as no process that tests a copy of it may

        command = "make mutants" + (" && python benchmarks/mutants.py --again" if more else "")
        more |= {"seconds": time.perf_counter() - began, "workers": WORKERS}
        print(write("mutants", command, rows, **more))
        (ROOT / "docs" / "mutants.md").write_text(page(rows))
    return 1 if survivors else 0


def read_options(words: Sequence[str]) -> tuple[list[str], bool, float]:
    """The parts, whether what is recorded goes on, and for how many seconds at most."""
    words, seconds = list(words), float("inf")
    if "--minutes" in words:
        at = words.index("--minutes")
        seconds = 60 * float(words[at + 1])
        del words[at : at + 2]
    return [word for word in words if word != "--again"], "--again" in words, seconds


def recorded_rows() -> tuple[dict[Mutant, dict], dict]:
    """The errors that were noticed in the recorded run, and what the new record says of that run."""
    record = json.loads((ROOT / "benchmarks" / "results" / "mutants.json").read_text())
    rows = {Mutant(*(row[name] for name in FIELDS)): row for row in record["rows"] if row["noticed_by"]}
    return rows, {"first_run": {name: record[name] for name in ("commit", "seconds")} | {"errors": len(record["rows"])}}


def chosen(parts: Sequence[str]) -> list[Mutant]:
    """The mutants of these parts and files; all of them if none is named, and then no part may be missing."""
    from regard.attention.backends import BACKENDS
    from regard.attention.parts import PARTS

    others = ["And", "Or", "Not", "Padding", "Documents", "Edges", "MultiHeadAttention"]
    others += ["DependencyTree", "Linformer", "PackedSequences"]
    asked = parts or [*PARTS, *BACKENDS, *others, *SUITES]
    if missing := [name for name in asked if not any(belongs(mutant, name) for mutant in MUTANTS)]:
        raise SystemExit(f"no error is planted into {', '.join(sorted(missing))}; add one to benchmarks/planted.py")
    return [mutant for mutant in MUTANTS if not parts or any(belongs(mutant, name) for name in parts)]


def belongs(mutant: Mutant, name: str) -> bool:
    """Is this the name of its part, or how the path of its file begins?"""
    return mutant.part == name or ("/" in name and mutant.file.startswith(name))


# --- one mutant ---


def take_copy(source: Path, target: Path) -> None:
    """What a test run needs, without any bytecode."""
    for folder in ("src", "tests", "benchmarks"):
        shutil.copytree(source / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(source / "pyproject.toml", target)


def mutated(mutant: Mutant, folder: Path) -> str:
    """The mutant's file with its error in place."""
    text = (folder / PACKAGE / mutant.file).read_text()
    if (times := text.count(mutant.old)) != 1:
        raise SystemExit(f"{mutant.part}, {mutant.wrong}: {times} × {mutant.old!r} in {mutant.file}; it must be once")
    return text.replace(mutant.old, mutant.new)


def trial(mutant: Mutant, original: Path, folder: Path) -> Outcome:
    """Its tests on a copy of its own, each stage in a process of its own."""
    own = shutil.ignore_patterns("said.txt", "report.xml")
    shutil.copytree(original, folder, ignore=own, copy_function=os.link)
    file, text = folder / PACKAGE / mutant.file, mutated(mutant, folder)
    file.unlink()  # or the original would be written to
    file.write_text(text)
    for bytecode in file.parent.glob(f"__pycache__/{file.stem}.*"):
        bytecode.unlink()  # it is trusted by date, and a mutant may be as old as its original
    began = time.perf_counter()
    noticed_by = next(filter(None, (first_failure(mutant, folder, stage) for stage in mutant.stages)), None)
    shutil.rmtree(folder)
    return Outcome(noticed_by, time.perf_counter() - began)


def refuse_red(mutants: Sequence[Mutant], original: Path) -> float:
    """Every test that an error will meet passes without one; how long they took. The bytecode stays for all copies."""
    began, stages = time.perf_counter(), {tuple(stage): stage for mutant in mutants for stage in mutant.stages}
    for stage in stages.values():
        if red := first_failure(None, original, stage):
            raise SystemExit(f"red before any error is planted: {red}")
    return time.perf_counter() - began


def first_failure(mutant: Mutant | None, folder: Path, tests: list[str]) -> str | None:
    """The first test that fails on the copy, by name."""
    run = get_context("forkserver").Process(target=run_tests, args=(folder, tests))
    run.start()
    run.join(PATIENCE)
    if run.exitcode is None:
        run.kill()
        return f"{Path(tests[0]).name}::no end within {PATIENCE:.0f} s"
    if run.exitcode == 0:
        return None
    report = folder / "report.xml"
    for case in ElementTree.parse(report).iter("testcase") if run.exitcode == 1 and report.exists() else ():
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.get('classname', '').split('.')[-1]}.py::{case.get('name')}"
    # not a verdict: nothing could be collected, or the process died
    raise RuntimeError(f"{mutant or 'without an error'}: {run.exitcode}\n{(folder / 'said.txt').read_text()[-3000:]}")


def run_tests(folder: Path, tests: list[str]) -> None:
    """Runs in the new process: from here on `regard` and `tests` are the copy's."""
    import pytest
    import torch
    from hypothesis import Phase, settings

    torch.set_num_threads(1)
    # that a law is broken is all we ask: not how small an example breaks it
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
    settings.load_profile("mutants")
    with (folder / "said.txt").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    # also in the processes that a test starts: Triton's interpreter
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # for the copies that follow
    code = pytest.main([*OPTIONS, "--junitxml=report.xml", *tests])
    # the copy was tested, not the working tree
    assert Path(sys.modules["regard"].__file__ or "").is_relative_to(folder)
    sys.exit(int(code))


# --- all of them ---


def trials(
    mutants: Sequence[Mutant], original: Path, folder: Path, console: Console, end: float
) -> Iterator[tuple[Mutant, Outcome]]:
    """The outcomes, until the time is over."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    clocks = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    pool = ThreadPoolExecutor(WORKERS)
    jobs = {pool.submit(trial, mutant, original, folder / str(n)): mutant for n, mutant in enumerate(mutants)}
    try:
        with Progress(*columns, *clocks, console=console) as progress:
            task = progress.add_task("planting", total=len(jobs))
            for job in as_completed(jobs):
                mutant, outcome = jobs[job], job.result()
                if not outcome.noticed_by:
                    progress.console.print(f"[red]nobody noticed[/] {mutant.part}: {mutant.wrong}")
                progress.update(task, advance=1, description=mutant.part)
                yield mutant, outcome
                if time.perf_counter() > end:
                    return
    finally:
        pool.shutdown(cancel_futures=True)


def table(rows: list[dict]) -> Table:
    made = Table("part", "error planted", "first test that noticed it", "s")
    for row in rows:
        noticed = escape(row["noticed_by"]) if row["noticed_by"] else "[red]none[/]"
        made.add_row(row["part"], row["wrong"], noticed, f"{row['seconds']:.0f}")
    return made


def page(rows: list[dict]) -> str:
    """docs/mutants.md"""
    noticed = Counter(row["noticed_by"].split("::")[0] for row in rows if row["noticed_by"])
    by_file = ", ".join(f"`{file}` {count}" for file, count in noticed.most_common())
    lines = [
        "# Does a test notice?",
        "",
        "Written by `make mutants` (benchmarks/mutants.py); the errors are listed in benchmarks/planted.py.",
        "",
        "Each error below was planted alone into a copy of the code, and the tests of its package were run until one",
        f"failed, the cheap ones first. {sum(noticed.values())} of {len(rows)} errors were noticed: {by_file}.",
    ]
    if missing := len(MUTANTS) - len(rows):
        lines += ["", f"{missing} more errors are listed and were not tried in this run."]
    for package, within in groupby(rows, lambda row: row["file"].split("/")[0]):
        heads = "part", "error planted", "first test that noticed it"
        lines += ["", f"## {package}", "", f"| {' | '.join(heads)} |", "| --- | --- | --- |"]
        for row in within:
            cells = row["part"], row["wrong"], f"`{row['noticed_by']}`" if row["noticed_by"] else "**none**"
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
