"""Export: a run's model as the folder of another engine, or packed to 8 bits for Regard itself, with proof and card.

All is written beside the folder and renamed at the end: a folder of that name has been proved.
"""

import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.data.corpora import CORPORA
from regard.data.files import make_folder, read_lines, require_small_file, write_text_atomic
from regard.data.tokenizers.base import EOS
from regard.decode.alignment import HEADS_FILE
from regard.decode.beam import Beam
from regard.decode.search import Hypothesis
from regard.decode.translation import translate_all
from regard.interop.export_format import (
    CONTINUATION,
    PROMPT,
    Check,
    Engine,
    ExportFormat,
    GenerationEngine,
    Proof,
    ProofInputs,
    TranslationEngine,
    compare_engines,
    compare_outputs,
    encode_text,
    frame_ids,
    hash_file,
    hash_files,
    input_tokenizer,
    package_versions,
    position_limit,
    read_proof,
    translation_limit,
    words_first,
)
from regard.models.safetensors_io import (
    named_tensors,
    pack_weights,
    saveable_tensors,
    unpack_weights,
    write_weights,
)
from regard.models.seq2seq import count_parameters
from regard.tasks.image_classification.task import ImageClassifier
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.metrics import MetricScore
from regard.tasks.model_packages import MODEL_CARD, resolve_model
from regard.tasks.own_parts import OwnParts
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import Task
from regard.tasks.registry import task_of_run
from regard.tasks.runs import summarize_run
from regard.tasks.tagging.task import Tagger
from regard.tasks.translation.task import Translator
from regard.training.checkpoint import EXAMPLE, WEIGHTS, read_example, resolve_run, resolve_weights
from regard.training.run import LOG_FILE

# the module of each format, which is loaded when it is asked for, and its class there
FORMATS = {
    "hf": ("regard.interop.huggingface.exporting", "HuggingFaceFormat"),
    "onnx": ("regard.interop.onnx", "OnnxFormat"),
    "ctranslate2": ("regard.interop.ctranslate2", "CTranslate2Format"),
    "regard": (__name__, "PackedRunFormat"),
}
BatchSearch = Callable[[Beam, Sequence[tuple[int, ...]]], list[list[Hypothesis]]]  # from sources to their n-best lists
CARD = "README.md"
SENTENCES = 100


def find_format(name: str) -> ExportFormat:
    if name not in FORMATS:
        raise ValueError(f"--to {name}: there is no such format; choose from {', '.join(FORMATS)}")
    module, kind = FORMATS[name]
    return getattr(import_module(module), kind)()


def export(
    run: str | Path,
    to: str,
    out: str | Path,
    *,
    precision: str | None = None,
    sentences: str | Path | None = None,
    count: int = SENTENCES,
    checkpoint: str | int | None = None,
    data: str | Path | None = None,
    own_parts: OwnParts = OwnParts(),
) -> Proof:
    """Writes a run's model as a folder of another engine, runs both on the same sentences there, and says how far they
    agree. Where an output in float32 differs, nothing is written.

    Args:
        run: the folder of a run, or of one of its checkpoints, or the name of a model that is shipped.
        to: hf (transformers), onnx (onnxruntime), ctranslate2, or regard: a run a quarter as large.
        out: a folder that does not exist yet, or is empty.
        precision: float32, or int8 for CTranslate2 and for Regard; by default float32, and int8 for Regard.
        sentences: a file of texts for the proof; by default those that the run was validated on.
        count: how many of them.
        data: the folder that holds known corpora.

    Examples:
        >>> proof = regard.interop.export("run", "ctranslate2", "exported", count=10)
        >>> proof.exact, [check.name for check in proof.checks]
        (True, ['tokenizer.json', 'greedy', 'beam 4'])
    """
    run, out, format = resolve_model(run), Path(out), find_format(to)
    format.require_packages()
    precision = precision or format.precisions[0]
    if precision not in format.precisions:
        raise ValueError(
            f"precision {precision} is not written for {format.title}; choose from {', '.join(format.precisions)}"
        )
    refuse_used_folder(out)
    task = task_of_run(run)
    task_model = task.task_model.load(run, "cpu", checkpoint, own_parts)
    if why := format.objections(task_model):
        raise ValueError(f"{run} cannot be exported to {format.title}: {'; '.join(why)}")
    paths = (None if given is None else Path(given) for given in (sentences, data))
    inputs = gather_inputs(task, task_model, *paths, count=count)
    with replaced_folder(out) as folder:
        checks = write_and_prove(format, task_model, folder, inputs, precision)
        format.copy_extras(resolve_run(run)[0], folder)
        proof = Proof(
            engine=format.title,
            precision=precision,
            versions=package_versions(format.packages),
            origin=inputs.origin,
            checks=tuple(checks),
            run_weights=hash_file(resolve_weights(run, checkpoint).file),
            files=hash_files(folder),
        )
        card = model_card(format, task, task_model, run, out.name, proof)
        write_text_atomic(folder / CARD, card)
        proof.save(folder)
    return proof


def write_and_prove(
    format: ExportFormat, task_model: PretrainedModel, folder: Path, inputs: ProofInputs, precision: str
) -> list[Check]:
    """The checks of a folder that was written; of quantised weights, those of the same in float32 before."""
    checks = list[Check]()
    if precision != "float32":
        exact = folder / "float32"
        exact.mkdir()
        checks += [
            replace(check, name=f"{check.name}, float32")
            for check in write_and_prove(format, task_model, exact, inputs, "float32")
        ]
        shutil.rmtree(exact)
    format.write(task_model, folder, precision)
    if inputs.texts and not checks:
        own = [encode_text(task_model, text) for text in inputs.texts]
        normal = input_tokenizer(task_model).normalizer
        found = format.encode(task_model, folder, [words_first(normal, text) for text in inputs.texts])
        checks.append(compare_outputs("tokenizer.json", own, [tuple(ids) for ids in found]))
    checks += format.prove(task_model, folder, inputs, precision)
    for check in checks:
        if failure := check.failure():
            raise ValueError(f"the model written for {format.title} is not this one: {failure}; nothing is kept")
    return checks


# --- packed runs ---


class PackedRunFormat(ExportFormat):
    """The folder of a run as every command reads it, its matrices in 8 bits: what packages of models ship."""

    title = "Regard"
    packages = ()
    precisions = ("int8", "float32")

    def objections(self, task_model):
        if isinstance(task_model, Translator | TextGenerator):
            return []
        return [f"nothing proves a packed model for the task {task_model.settings.task!r}; translators and writers do"]

    def write(self, task_model, folder, precision):
        note = replace(task_model, settings=without_folders(task_model.settings)).describe(folder)
        tensors = saveable_tensors(task_model.model)
        write_weights(tensors if precision == "float32" else pack_weights(tensors), folder / WEIGHTS, note)

    def copy_extras(self, run, folder):
        for name in (HEADS_FILE, EXAMPLE, MODEL_CARD):
            if (run / name).is_file():
                write_text_atomic(folder / name, require_small_file(run / name).read_text(encoding="utf-8"))

    def encode(self, task_model, folder, texts):
        loaded = type(task_model).load(folder)
        return [list(encode_text(loaded, text)) for text in texts]

    def prove(self, task_model, folder, inputs, precision):
        """What is loaded are the weights that were meant, to the bit, with their tokens; and what 8 bits cost."""
        loaded, exact = type(task_model).load(folder), precision == "float32"
        own = saveable_tensors(task_model.model)
        meant = own if exact else unpack_weights(pack_weights(own))
        found = named_tensors(loaded.model)
        if wrong := [name for name, tensor in meant.items() if not torch.equal(tensor, found[name])]:
            raise ValueError(f"{folder / WEIGHTS}: {wrong[0]!r} is not what was written; nothing is kept")
        error = max(float((tensor - meant[name]).abs().max()) for name, tensor in own.items() if tensor.numel())
        checks = [Check(f"weights, off by {error:.2g} at most", len(meant), len(meant), 0)]
        quantized = deepcopy(task_model.model)
        for name, tensor in named_tensors(quantized).items():
            tensor.copy_(meant[name])
        in_memory, read = packed_engine(task_model, quantized), packed_engine(task_model, loaded.model)
        limit = CONTINUATION if isinstance(task_model, TextGenerator) else translation_limit(task_model, inputs)
        checks += compare_engines(in_memory, read, inputs.ids, limit)
        if not exact:
            checks = [replace(check, name=f"{check.name}, as quantised in memory") for check in checks]
            original = packed_engine(task_model, task_model.model)
            checks += compare_engines(original, read, inputs.ids, limit, exact=False)
        return checks

    def usage(self, task_model, folder, text):
        folder, text = (json.dumps(one, ensure_ascii=False) for one in (folder, text))
        return f"import regard\n\nmodel = regard.load({folder})\nprint(model({text}))\n"


def packed_engine(task_model: PretrainedModel, model: Any) -> Engine:
    """Our own searches."""
    if isinstance(task_model, Translator):
        return TranslationEngine(model, task_model.target.first_ids)
    return GenerationEngine(model)


def without_folders(settings: Any) -> Any:
    """The settings of a run whose files are named without the folders of the machine that it was trained on."""
    data = settings.data
    names = {split: tuple(Path(path).name for path in vars(data)[split]) for split in ("train", "valid", "test")}
    return replace(settings, data=replace(data, **names))


# --- exported models that run ---


def load_exported(folder: Path, translator: Translator, run: Path | None = None) -> BatchSearch:
    """The search of a translator that was exported to CTranslate2 or ONNX; its proof must be that of this run.

    CTranslate2 searches by itself, refills beams and applies no penalty; a model in ONNX is searched by us.
    """
    proof = read_proof(folder)
    if run is not None and hash_file(resolve_weights(run, None).file) != proof.get("run_weights_sha256"):
        raise ValueError(f"{folder} was not exported from {run} as it is now; export it again")
    if proof.get("engine") == find_format("ctranslate2").title:
        from regard.interop.ctranslate2 import CTranslate2Translation

        return CTranslate2Translation.load(folder, translator, str(proof["precision"])).search_beam
    if proof.get("engine") == find_format("onnx").title:
        from regard.interop.onnx import OnnxTransformer

        model = OnnxTransformer.load(folder)
        return lambda beam, sources: translate_all(
            model, sources, beam, prefixes=[translator.target.first_ids] * len(sources)
        )
    raise ValueError(f"{folder} is for {proof.get('engine')}; CTranslate2 and ONNX run here")


# --- inputs ---


def gather_inputs(
    task: Task, task_model: PretrainedModel, sentences: Path | None, data: Path | None, *, count: int
) -> ProofInputs:
    """Sentences of a file, or of the run's validation data; ids at random where those are not there. Of an image model,
    the numbers that images are drawn by."""
    if count < 1:
        raise ValueError(f"{count} sentences prove nothing; take at least 1")
    if isinstance(task_model, ImageClassifier):
        if sentences is not None:
            raise ValueError(f"{sentences}: an image model reads no sentences; leave --sentences out")
        return ProofInputs(tuple((number,) for number in range(count)), "images of pixels drawn at random")
    limit = position_limit(task_model)
    if sentences is not None:
        found = text_inputs(task_model, list(read_lines(sentences)), sentences.name, limit, count)
        if not found.ids:
            raise ValueError(f"{sentences}: no text to run the models on; give at least one sentence")
        return found
    try:
        examples = task.read(task_model.settings, "valid", data).examples
    except ValueError as error:
        logging.getLogger(__name__).warning(
            f"the validation data is not there ({error}); the proof runs ids drawn at random: better, give --sentences"
        )
        before, after = frame_ids(task_model, tokenizer := input_tokenizer(task_model))
        drawn = ProofInputs.drawn(count, min(tokenizer.size, limit), "the validation data was not there")
        after = tuple(one for one in after if one != EOS)  # of a source, which every engine adds
        return replace(drawn, ids=tuple((*before, *row, *after) for row in drawn.ids))
    origin = f"{task_model.settings.data.corpus}, valid"
    if isinstance(task_model, Tagger):  # whose words are encoded one by one
        ids = [tuple(row) for row in task.token_ids(task_model, examples[:count])]
        return ProofInputs(tuple(row for row in ids if 0 < len(row) < limit), origin)
    texts = [one if isinstance(one, str) else one.source if "source" in vars(one) else one.text for one in examples]
    return text_inputs(task_model, texts, origin, limit, count)


def text_inputs(task_model: PretrainedModel, texts: Sequence[str], origin: str, limit: int, count: int) -> ProofInputs:
    """The first texts that are neither empty nor too long; of a language model, how they begin."""
    kept, ids = [], []
    for text in texts:
        text, row = text.rstrip("\n"), encode_text(task_model, text.rstrip("\n"))
        if isinstance(task_model, TextGenerator):
            row = row[: min(PROMPT, limit - CONTINUATION)]
        if len(kept) < count and text.strip() and 0 < len(row) < limit:
            kept.append(text)
            ids.append(row)
    return ProofInputs(tuple(ids), origin, tuple(kept))


# --- the folder ---


def refuse_used_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already; remove it, or choose another --out")


@contextmanager
def replaced_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well, and is gone when it does not."""
    make_folder(out.parent)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.part")
    try:
        temporary.mkdir()
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written ({error.strerror}); make room, or choose another place") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# --- the model card ---


def model_card(
    format: ExportFormat, task: Task, task_model: PretrainedModel, run: Path, name: str, proof: Proof
) -> str:
    """README.md: task, data, sizes, metrics with their signatures, the proof, and how to load the model."""
    settings, summary = task_model.settings, summarize_run(run)
    config, parameters = settings.model, count_parameters(task_model.model)
    sizes = ", ".join(
        f"{key} {value}" for key, value in config.to_dict().items() if key in ("layers", "model", "hidden", "heads")
    )
    corpus, origin = settings.data.corpus, "trained" if (resolve_run(run)[0] / LOG_FILE).exists() else "imported"
    licence = f" ({CORPORA[corpus].licence})" if corpus in CORPORA else ""
    text = read_example(run) or task.example_input(task_model).text
    title = f"{task.name.replace('_', ' ')}{' ' * bool(about := task.describe(task_model))}{about}"
    lines = [
        *(
            "---",
            f"library_name: {proof.engine.lower()}",
            "tags:",
            "- regard",
            f"- {task.name.replace('_', '-')}",
            "---",
            "",
        ),
        *(f"# {name}", ""),
        *(f"A model for {title}, {origin} by Regard {proof.versions['regard']} and exported to {format.title}.", ""),
        *("## Model", ""),
        f"- {config.kind}: {sizes}; {parameters:,} parameters",
        *(f"- {kind}: {part.size:,} tokens ({part.kind})" for kind, part in vocabularies(task_model).items()),
        f"- weights: {proof.precision}",
        *(
            [f"- trained for {summary.step or summary.steps:,} steps on {corpus}{licence}"]
            if origin == "trained"
            else []
        ),
        *("", "## Metrics", ""),
        *metric_lines(run, summary.best and str(summary.best)),
        *("", "## Proof", ""),
        *proof_lines(proof),
        *("", "## Use", "", f"In the folder that holds `{name}`:", ""),
        *("```python", format.usage(task_model, name, text).rstrip("\n"), "```", ""),
    ]
    return "\n".join(lines)


def vocabularies(task_model: Any) -> dict[str, Any]:
    names = [name for name in ("source", "target", "tokenizer") if name in task_model.part_files]
    return {f"{name} vocabulary" if name != "tokenizer" else "vocabulary": getattr(task_model, name) for name in names}


def metric_lines(run: Path, best: str | None) -> list[str]:
    """Those of the training, and of what `regard evaluate --save` left in the folder of the run."""
    found = [f"- validation: {best}"] if best else []
    for path in sorted(run.glob("*.json")):
        found += [f"- {on}: {one.name} {one.value:.4g} (`{one.signature}`)" for on, one in saved_scores(path)]
    return found or ["None were saved with the run: `regard evaluate RUN --save RUN/metrics.json` does."]


def saved_scores(path: Path) -> list[tuple[str, MetricScore]]:
    """What a file of metrics holds; nothing if it is another file."""
    try:
        saved = json.loads(require_small_file(path).read_text(encoding="utf-8"))
    except ValueError:
        return []  # another program's
    match saved:
        case {"on": [*on], "scores": dict(scores)}:
            named = " and ".join(map(str, on))
            return [
                (named, MetricScore(str(name), float(one["value"]), str(one["signature"])))
                for name, one in scores.items()
                if isinstance(one, dict) and isinstance(one.get("value"), int | float) and "signature" in one
            ]
        case {"on": [*on], "signature": str(signature)}:
            named, figures = " and ".join(map(str, on)), saved.items()
            return [(named, MetricScore(name, one, signature)) for name, one in figures if isinstance(one, float)]
    return []


def proof_lines(proof: Proof) -> list[str]:
    found = []
    for check in proof.checks:
        line = f"- {check.name}: {check.identical} of {check.sentences} identical"
        if check.mean_log_probability is not None:
            own, other = check.mean_log_probability
            line += f"; mean log-probability of a token {other:.4f}, that of float32 {own:.4f}"
        elif check.largest_difference:
            line += f"; log-probabilities within {check.largest_difference:.1e}"
        found.append(line)
    versions = ", ".join(f"{name} {number}" for name, number in proof.versions.items())
    return [*found, f"- inputs: {proof.origin}; {versions}; all of it is in `proof.json`"]


# --- publishing ---


def list_files(folder: Path) -> dict[str, int]:
    """The files that would be uploaded, with their bytes; links are refused."""
    if links := [path for path in folder.rglob("*") if path.is_symlink()]:
        raise ValueError(f"{links[0]} is a link, which is not followed; copy the file")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def publish(folder: str | Path, repo: str, *, dry_run: bool = False, private: bool = False) -> dict[str, int]:
    """Uploads an exported folder to the Hugging Face hub, if its proof is there and is of these very files.

    Args:
        repo: user/name.
        dry_run: uploads nothing.

    Returns:
        The files and their bytes.

    Examples:
        >>> regard.interop.publish("run", "me/model", dry_run=True)
        Traceback (most recent call last):
            ...
        ValueError: run has no proof.json: nothing shows that its model is ours; export it with regard export
    """
    folder = Path(folder)
    if not re.fullmatch(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", repo):
        raise ValueError(f"--repo {repo!r} is no name on the hub; write user/name")
    files = list_files(folder)
    read_proof(folder)
    if dry_run:
        return files
    if find_spec("huggingface_hub") is None:
        raise ValueError("publishing needs huggingface_hub; pip install 'regard[interop]'")
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        hub.create_repo(repo, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=folder)
    except Exception as error:  # those of its HTTP library, which differs from version to version, have no common base
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{repo} cannot be reached ({reason}); check the network, and log in: hf auth login") from None
    return files
