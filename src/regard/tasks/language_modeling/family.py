"""Family ladder: recipes of attention compared as language models on one budget of tokens, parameters, rates, seeds.

Each recipe is a language model of its own. It learns running text (the next byte), and tasks that are generated, whose
answers are single tokens. Per task and recipe, the rate is chosen from three by the validation of the first seed; the
other seeds learn at that rate. A run is a folder, so that whatever is killed goes on.

    runs/TASK/RECIPE/RATE-SEED/result.json      one run; its weights beside it
    speed/RECIPE.json                           tokens a second, memory and cache, by length
    budget.json                                 the size and the recipes, which runs of one folder share
    family.json, family.md, *.png               all of it
"""

import json
import statistics
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import LAYER_RECIPES, RecipeSizes, get_layer_recipes
from regard.data.corpora import corpus_path
from regard.data.files import write_text_atomic
from regard.data.lm_blocks import LMBlocks, read_text
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.models.safetensors_io import write_weights
from regard.models.seq2seq import DecoderState
from regard.models.transformer import KVCaches
from regard.ops.cuda_graph import CUDAGraphCapture
from regard.tasks.language_modeling.task import (
    BlockStream,
    LanguageModelingLoss,
    split_text,
    validation,
)
from regard.tasks.language_modeling.token_nll import SlidingWindows
from regard.tasks.protocol import ProgressBar
from regard.training.config import TrainConfig, TrainingData, with_choice_loss
from regard.training.loop import DivergedError, train
from regard.training.step import CosineSchedule
from regard.world.lexicon import Split
from regard.world.long_inputs import DIGITS, QUESTION, TOWNS, VOCABULARY, AssociativeRecall, ListOps, Retrieval
from regard.world.world import World

Tokens = Int[Tensor, "b t"]
BYTES = 256  # the vocabulary of running text
VALID_SEQUENCES = 128  # of generated tasks, the same for all recipes
GUESSED_SEQUENCES = 1000  # by which it is counted how often a guess is right
FIRST_OF_SEED = 2**32  # the sequences of one seed are numbered from here on
WARMUP_SHARE, WEIGHT_DECAY = 10, 0.1
SOLVED = 0.99  # share of right answers
RESULT, WEIGHTS = "result.json", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class FamilySize:
    """How much is trained and measured.

    Args:
        hidden: of the first recipe's feed-forward layers; the others' follow from its number of parameters.
        window: of recipes with one, in tokens.
        steps: of each run.
        rows, sequences: of a step: rows of running text, sequences of a generated task.
        length: of the blocks of running text; a generated task has its own.
        pairs, queries: of associative recall.
        words: of ListOps, and of a text and one question of retrieval.
        questions: of retrieval, after each text; with one alone little is learnt of each text.
        held_out: tokens of running text that a validation reads.
        lengths: at which speed, memory and cache are measured, in tokens.
        rates, seeds: to choose from, and to repeat with.
    """

    layers: int
    model: int
    heads: int
    hidden: int
    window: int
    steps: int
    rows: int
    sequences: int
    length: int
    pairs: int
    queries: int
    words: int
    questions: int
    held_out: int
    lengths: tuple[int, ...]
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    seeds: tuple[int, ...] = (0, 1, 2)


SIZES: dict[str, FamilySize] = {
    "quick": FamilySize(
        layers=2, model=32, heads=2, hidden=64, window=8, steps=8, rows=4, sequences=8, length=64, pairs=4, queries=12,
        words=48, questions=2, held_out=512, lengths=(64, 256),
    ),
    "small": FamilySize(
        layers=2, model=64, heads=2, hidden=128, window=16, steps=400, rows=16, sequences=32, length=64, pairs=4,
        queries=28, words=64, questions=8, held_out=4096, lengths=(128, 512, 2048),
    ),
    "full": FamilySize(
        layers=2, model=128, heads=2, hidden=256, window=32, steps=2000, rows=32, sequences=256, length=256, pairs=8,
        queries=24, words=64, questions=8, held_out=65_536, lengths=(512, 2048, 8192, 32_768),
    ),
}  # fmt: skip


# --- recipes ---


def family_rungs(size: FamilySize, file: Path | None = None) -> dict[str, dict[str, Any]]:
    """The keys of [model] that each recipe has, by name: those of LAYER_RECIPES and MLA, or those of a TOML file."""
    if file is None:
        head = size.model // size.heads
        latent = {"recipe": "position = 'Rotary(fraction=0.5)'", "kv_rank": size.model // 4, "rotary_head": head // 2}
        return {name: {"recipe": name} for name in LAYER_RECIPES} | {"latent (MLA)": latent}
    try:
        found = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: {error}; give each recipe a table: [mine] and recipe = ...") from None
    if not found or not all(isinstance(keys, dict) for keys in found.values()):
        raise ValueError(f"{file} names no recipe; give each a table: [mine] and recipe = ...")
    return found


def rung_config(size: FamilySize, keys: Mapping[str, Any]) -> LanguageModelConfig:
    """A language model of the size with these keys."""
    base = {"kind": "transformer", "layers": size.layers, "model": size.model, "heads": size.heads, "dropout": 0.0}
    base |= {"hidden": size.hidden, "norm_type": "rms", "bias": False}
    given = dict(keys)
    if isinstance(given.get("recipe"), str) and given["recipe"] in LAYER_RECIPES:
        sizes = RecipeSizes(heads=size.heads, head=size.model // size.heads, window=size.window)
        given["recipe"] = [one.to_toml() for one in get_layer_recipes(given["recipe"], size.layers, sizes)]
    return LanguageModelConfig.from_dict(base | given)


def count_parameters(config: LanguageModelConfig, vocabulary: int) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in LanguageModel(config, vocabulary).parameters())


def equalise(config: LanguageModelConfig, parameters: int, vocabulary: int) -> LanguageModelConfig:
    """With feed-forward layers so wide that the model has about so many parameters."""
    more = parameters - count_parameters(config, vocabulary)
    each = count_parameters(replace(config, hidden=config.hidden + 1), vocabulary) - count_parameters(
        config, vocabulary
    )
    return replace(config, hidden=max(1, config.hidden + round(more / each)))


# --- tasks ---


@dataclass(frozen=True, eq=False)
class FamilyTask:
    """What is learnt: a vocabulary, the batches of a seed, the loss of one, and figures of held-out tokens.

    Args:
        figure: which of the figures counts: the loss, the less the better, or the accuracy, the more the better.
        length: tokens of a sequence.
        guess: the accuracy of who only knows which answers a text names most often, or which are most frequent.
    """

    name: str
    figure: Literal["loss", "accuracy"]
    vocabulary: int
    length: int
    data: Callable[[int, str], TrainingData]
    loss: Callable[[nn.Module, Any], tuple[Tensor, int]]
    validate: Callable[[nn.Module], dict[str, float]]
    guess: float | None = None

    def is_better(self, one: float, other: float) -> bool:
        return one < other if self.figure == "loss" else one > other


@dataclass(frozen=True)
class Answers:
    """Sequences of which some tokens are answers: their ids, and the indices of the tokens before the answers."""

    tokens: Tokens
    asked: Int[Tensor, "b n"]

    def to(self, device: str) -> "Answers":
        return Answers(self.tokens.to(device), self.asked.to(device))


Draw = Callable[[int, int, Split], Answers]  # so many sequences from a number on


@dataclass(frozen=True, eq=False)
class AnswerStream:
    """Endless sequences of a task, numbered by seed and step."""

    draw: Draw
    rows: int
    seed: int
    device: str

    def steps(self, epoch: int) -> int:
        return FIRST_OF_SEED // self.rows

    def at(self, epoch: int, index: int) -> list[tuple[Answers, int]]:
        first = self.seed * FIRST_OF_SEED + index * self.rows
        batch = draw_answers(self.draw, first, self.rows, "train")
        return [(batch.to(self.device), batch.asked.numel())]


@lru_cache(maxsize=4096)
def draw_answers(draw: Draw, first: int, count: int, split: Split) -> Answers:
    """Kept, for every recipe learns the same."""
    return draw(first, count, split)


def answer_logits(model: nn.Module, batch: Answers) -> tuple[Tensor, Tensor]:
    """Logits where an answer is asked for, and the answers."""
    assert isinstance(model, LanguageModel)
    x, _ = model.decode_hidden(batch.tokens[:, :-1], model.start(len(batch.tokens)))
    x = x.gather(1, batch.asked[..., None].expand(-1, -1, x.shape[-1]))
    return model.logits(x).flatten(0, 1), batch.tokens.gather(1, batch.asked + 1).flatten()


def answer_loss(model: nn.Module, batch: tuple[Answers, int]) -> tuple[Tensor, int]:
    logits, answers = answer_logits(model, batch[0])
    return cross_entropy(logits.float(), answers, reduction="sum"), batch[1]


def guess_accuracy(found: Answers, vocabulary: int, named: Collection[int]) -> float:
    """How often the answer is the token, of those named, that stands most often before the first question; of equals,
    one at random. Where none is named: the most frequent answer of all."""
    answers = found.tokens.gather(1, found.asked + 1)
    if not named:
        return float(answers.flatten().bincount().max() / answers.numel())
    counts = torch.stack(
        [row[: int(asked[0])].bincount(minlength=vocabulary) for row, asked in zip(*vars(found).values(), strict=True)]
    )
    counts = counts.where(torch.isin(torch.arange(vocabulary), torch.tensor(list(named))), 0)
    best = counts == counts.amax(1, keepdim=True)
    return float((best.gather(1, answers) / best.sum(1, keepdim=True)).mean())


def answer_task(
    name: str, vocabulary: int, length: int, rows: int, draw: Draw, named: Collection[int] = ()
) -> FamilyTask:
    """`named`: the tokens that may be answers, where a text names some of them."""

    def validate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        with torch.no_grad():
            logits, answers = answer_logits(model, draw_answers(draw, 0, VALID_SEQUENCES, "valid").to(str(device)))
        right = (logits.argmax(-1) == answers).float().mean()
        return {"loss": float(cross_entropy(logits.float(), answers)), "accuracy": float(right)}

    def data(seed: int, device: str) -> TrainingData:
        return AnswerStream(draw, rows, seed, device)

    guess = guess_accuracy(draw(0, GUESSED_SEQUENCES, "valid"), vocabulary, named)
    return FamilyTask(name, "accuracy", vocabulary, length, data, answer_loss, validate, guess)


def recall_task(size: FamilySize) -> FamilyTask:
    recall = AssociativeRecall(pairs=size.pairs, queries=size.queries, keys=2 * size.pairs, values=2 * size.pairs)

    asked = torch.arange(2 * recall.pairs, recall.length, 2)

    def draw(first: int, count: int, split: Split) -> Answers:
        return Answers(torch.from_numpy(recall.sequences(first, count, split)), asked.expand(count, -1))

    values = range(recall.keys, recall.keys + recall.values)
    return answer_task("recall", recall.keys + recall.values, recall.length, size.sequences, draw, values)


def word_task(
    name: str,
    size: FamilySize,
    known: Iterable[str],
    asked: Sequence[int],
    draw: Callable[[int, Split], tuple[Sequence[str], str]],
    named: Collection[str] = (),
) -> FamilyTask:
    """A text and its answer, one token more. `asked`: the indices of the words before answers, the last word's last."""
    ids = {word: number for number, word in enumerate(dict.fromkeys(known))}

    def draw_batch(first: int, count: int, split: Split) -> Answers:
        drawn = [draw(number, split) for number in range(first, first + count)]
        tokens = torch.tensor([[ids[word] for word in (*text, answer)] for text, answer in drawn])
        return Answers(tokens, torch.tensor([asked]).expand(count, -1))

    return answer_task(name, len(ids), asked[-1] + 2, size.sequences, draw_batch, [ids[word] for word in named])


def retrieval_task(size: FamilySize) -> FamilyTask:
    """Who lives where, asked several times of each text: of one question in a text nothing is learnt for long."""
    each = QUESTION + 1  # a question and its answer
    words = size.words + each * (size.questions - 1)
    world = Retrieval(words=words, chains=4, asked="last", questions=size.questions)

    def draw(number: int, split: Split) -> tuple[Sequence[str], str]:
        found = world.question(number, split)
        return found.words, found.answer

    known = *world_words(), *TOWNS, "where", "does", "live", "lives", "in", "."
    return word_task("retrieval", size, known, range(size.words - 1, words, each), draw, TOWNS)


@lru_cache(maxsize=1)
def world_words() -> tuple[str, ...]:
    """The words of the miniature world."""
    from regard.world.long_inputs import MAX_FILLER, MIN_FILLER, PEOPLE, filler_sentences

    sizes = range(MIN_FILLER, MAX_FILLER + 1)
    sentences = (
        sentence for size in sizes for split in ("train", "valid") for sentence in filler_sentences(size, split)
    )
    return tuple(dict.fromkeys((*PEOPLE, *(word for sentence in sentences for word in sentence))))


def listops_task(size: FamilySize) -> FamilyTask:
    world = ListOps(words=size.words)

    def draw(number: int, split: Split) -> tuple[Sequence[str], str]:
        found = world.expression(number, split)
        return found.words, found.answer

    return word_task("listops", size, (*VOCABULARY, *DIGITS), [size.words - 1], draw)


def text_task(name: str, size: FamilySize, train: str, valid: str) -> FamilyTask:
    """Running text, byte by byte."""
    ids, held = (torch.tensor(list(text.encode())) for text in (train, valid))
    held = held[: size.held_out]
    context = SlidingWindows(size.length, size.length)

    def data(seed: int, device: str) -> TrainingData:
        return BlockStream(LMBlocks(ids, size.length, rows=size.rows, seed=seed), device)

    def validate(model: nn.Module) -> dict[str, float]:
        return {"loss": validation(model, held, context)["loss"]}

    return FamilyTask(name, "loss", BYTES, size.length, data, LanguageModelingLoss(), validate)


def build_task(name: str, size: FamilySize, folder: Path | None = None) -> FamilyTask:
    """A generated task, running text by the name of its corpus, or the text of a file."""
    match name:
        case "recall":
            return recall_task(size)
        case "retrieval":
            return retrieval_task(size)
        case "listops":
            return listops_task(size)
        case "world":
            texts = (
                "\n".join(" ".join(World().sentence(n, split).words) for n in range(2000))
                for split in ("train", "valid")
            )
            return text_task(name, size, *texts)
        case "tinyshakespeare":
            text = read_text(corpus_path(name, "whole", folder))
            return text_task(name, size, text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :])
        case "wikitext2":
            return text_task(name, size, *(read_text(corpus_path(name, split, folder)) for split in ("train", "valid")))
    if not Path(name).is_file():
        known = "recall, retrieval, listops, world, tinyshakespeare, wikitext2"
        raise ValueError(f"no task is called {name!r}; there are {known}, or the path of a text")
    text = read_text(name)
    return text_task(Path(name).stem, size, split_text(text, "train"), split_text(text, "valid"))


# --- runs ---


@dataclass(frozen=True)
class FamilyRun:
    """One run: which task, recipe, rate and seed."""

    task: str
    recipe: str
    config: LanguageModelConfig
    rate: float
    seed: int

    def folder(self, out: Path) -> Path:
        return out / "runs" / slug(self.task) / slug(self.recipe) / f"{self.rate:g}-{self.seed}"


def slug(name: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in Path(name).name).strip("-")


@dataclass(frozen=True, eq=False)
class FamilyLadder:
    """All that is to be trained and measured.

    Args:
        rungs: the models' configurations by the names of the recipes, with equal numbers of parameters for each task.
        text_folder: where corpora lie.
    """

    out: Path
    size: FamilySize
    tasks: tuple[str, ...]
    rungs: dict[str, dict[str, Any]]
    device: str = "cpu"
    text_folder: Path | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def precision(self) -> str:
        """Of matrix products; weights and the optimiser are in float32."""
        return "bfloat16" if self.on_gpu else "float32"

    def config(self, recipe: str, vocabulary: int) -> LanguageModelConfig:
        first = rung_config(self.size, next(iter(self.rungs.values())))
        return equalise(rung_config(self.size, self.rungs[recipe]), count_parameters(first, vocabulary), vocabulary)

    def runs(
        self, task: FamilyTask, name: str, rates: Mapping[str, Sequence[float]], seeds: Sequence[int]
    ) -> list[FamilyRun]:
        return [
            FamilyRun(name, recipe, self.config(recipe, task.vocabulary), rate, seed)
            for recipe in self.rungs
            for rate in rates[recipe]
            for seed in seeds
        ]


def run_result(folder: Path) -> dict[str, Any] | None:
    path = folder / RESULT
    return json.loads(path.read_text()) if path.exists() else None


def train_one(run: FamilyRun, ladder: FamilyLadder, task: FamilyTask) -> dict[str, Any]:
    """Trains a run to its end, from where it was."""
    folder = run.folder(ladder.out)
    torch.manual_seed(run.seed)
    model = LanguageModel(run.config, task.vocabulary).to(ladder.device)
    steps, begin = ladder.size.steps, time.perf_counter()
    quarter = max(1, steps // 4)
    config = TrainConfig(
        CosineSchedule(run.rate, steps, min(steps - 1, max(1, steps // WARMUP_SHARE))),
        steps,
        seed=run.seed,
        weight_decay=WEIGHT_DECAY,
        validate_every=quarter,
        checkpoint_every=quarter,
        keep=2,
        deterministic=not ladder.on_gpu,
        precision=ladder.precision,
        capture_step=ladder.on_gpu,
    )
    curve: list[tuple[int, dict[str, float]]] = []
    why = ""
    try:
        loss = with_choice_loss(model, task.loss)
        for report in train(model, task.data(run.seed, ladder.device), loss, config, folder, task.validate):
            if report.validation:
                curve.append((report.step, report.validation))
    except DivergedError as error:
        why = str(error)
    figures = curve[-1][1] if curve and not why else task.validate(model)  # a run killed at its very end has no curve
    result = {"task": run.task, "recipe": run.recipe, "rate": run.rate, "seed": run.seed, "figures": figures}
    result |= {"diverged": why, "curve": curve, "seconds": round(time.perf_counter() - begin, 1)}
    result |= {"parameters": sum(weight.numel() for weight in model.parameters()), "hidden": run.config.hidden}
    write_weights({name: one.contiguous() for name, one in model.state_dict().items()}, folder / WEIGHTS)
    write_text_atomic(folder / RESULT, json.dumps(result) + "\n")
    rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def figure_of(task: FamilyTask, result: Mapping[str, Any]) -> float:
    """Of a run that diverged, the worst there is."""
    value = result["figures"].get(task.figure)
    worst = float("inf") if task.figure == "loss" else 0.0
    return worst if result["diverged"] or value is None or value != value else value


def train_all(runs: Sequence[FamilyRun], ladder: FamilyLadder, jobs: int, what: str, progress: ProgressBar) -> None:
    """Every run that is not finished, so many at a time, each in a process of its own."""
    left = [run for run in runs if run_result(run.folder(ladder.out)) is None]
    if jobs == 1 or len(left) < 2:
        for run in progress(left, what, len(left)):
            train_in_process(run, ladder)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, get_context("spawn"), limit_threads) as pool:
        futures = [pool.submit(train_in_process, run, ladder) for run in left]
        for future in progress(as_completed(futures), what, len(futures)):
            future.result()


def limit_threads() -> None:
    torch.set_num_threads(1)


def train_in_process(run: FamilyRun, ladder: FamilyLadder) -> None:
    train_one(run, ladder, cached_task(run.task, ladder.size, ladder.text_folder))


cached_task = lru_cache(maxsize=8)(build_task)  # every run of a task reads the same


def train_family(
    ladder: FamilyLadder, jobs: int, notice: Callable[[str], object], progress: ProgressBar
) -> list[dict[str, Any]]:
    """For every task and recipe: the chosen rate, and the figures of all seeds at it.

    The first seed of all tasks comes first, then the others', so that no process waits for the end of a task.
    """
    first, begin = ladder.size.seeds[0], time.perf_counter()
    tasks = {name: cached_task(name, ladder.size, ladder.text_folder) for name in ladder.tasks}
    every_rate = dict.fromkeys(ladder.rungs, ladder.size.rates)
    tried = {name: ladder.runs(task, name, every_rate, [first]) for name, task in tasks.items()}
    train_all([run for runs in tried.values() for run in runs], ladder, jobs, "rates", progress)
    rates = {name: best_rates(task, ladder, tried[name]) for name, task in tasks.items()}
    chosen = {
        name: ladder.runs(task, name, {recipe: [rate] for recipe, rate in rates[name].items()}, ladder.size.seeds)
        for name, task in tasks.items()
    }
    train_all([run for runs in chosen.values() for run in runs], ladder, jobs, "seeds", progress)
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        for recipe, rate in rates[name].items():
            found = [result_of(run, ladder) for run in chosen[name] if run.recipe == recipe]
            values = [figure_of(task, one) for one in found]
            row = {"task": task.name, "recipe": recipe, "figure": task.figure, "rate": rate, "values": values}
            row |= {"guess": task.guess}
            rows.append(row | {"parameters": found[0]["parameters"], "hidden": found[0]["hidden"]})
    count = len({run.folder(ladder.out) for name in tasks for run in (*tried[name], *chosen[name])})
    notice(f"{count} runs, {time.perf_counter() - begin:,.0f} s")
    return rows


def best_rates(task: FamilyTask, ladder: FamilyLadder, runs: Sequence[FamilyRun]) -> dict[str, float]:
    """Of each recipe the rate of its best run; of equal ones, the lowest."""
    best: dict[str, dict[str, Any]] = {}
    for run in runs:
        result = result_of(run, ladder)
        known = best.get(run.recipe)
        if known is None or task.is_better(figure_of(task, result), figure_of(task, known)):
            best[run.recipe] = result
    return {recipe: result["rate"] for recipe, result in best.items()}


def result_of(run: FamilyRun, ladder: FamilyLadder) -> dict[str, Any]:
    found = run_result(run.folder(ladder.out))
    assert found is not None
    return found


def refuse_other_budget(ladder: FamilyLadder) -> None:
    """Finished runs are kept, and so a folder holds those of one size; rates, seeds, tasks and recipes may be added."""
    path, names = ladder.out / "budget.json", list(ladder.rungs)
    size = {name: x for name, x in asdict(ladder.size).items() if name not in ("rates", "seeds")}
    # the first recipe has as many parameters as all others get
    now = json.loads(
        json.dumps(size | {"first recipe": names[0]} | {f"[{name}]": ladder.rungs[name] for name in names})
    )
    begun = any((ladder.out / "runs").glob("*/*/*"))
    if begun and not path.exists():
        raise ValueError(
            f"{ladder.out} holds runs of an earlier version, which does not say of what size they are; "
            "use another folder: --out"
        )
    known = json.loads(path.read_text()) if begun else {}
    if other := [name for name, x in now.items() if known.get(name, x) != x]:
        name = other[0]
        raise ValueError(
            f"{ladder.out} holds runs of {name} = {known[name]}, not {now[name]}; use another folder: --out"
        )
    write_text_atomic(path, json.dumps(known | now, indent=1) + "\n")


# --- speed, memory and cache against length ---


ROUNDS, DECODED = 3, 8  # times that a step is timed, and tokens decoded


def measure_recipe(ladder: FamilyLadder, recipe: str) -> list[dict[str, Any]]:
    """Tokens a second and memory of a training step, tokens a second of decoding, and the cache, by length."""
    path = ladder.out / "speed" / f"{slug(recipe)}.json"
    if path.exists():
        return json.loads(path.read_text())
    torch.manual_seed(0)
    model, rows = LanguageModel(ladder.config(recipe, BYTES), BYTES).to(ladder.device), []
    for length in ladder.size.lengths:
        tokens = torch.randint(0, BYTES, (1, length), device=ladder.device)
        try:
            rows.append(
                {"length": length, **measure_training(model.train(), tokens), **measure_decoding(model.eval(), tokens)}
            )
        except torch.OutOfMemoryError:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, json.dumps(rows) + "\n")
    return rows


def measure_training(model: LanguageModel, tokens: Tokens) -> dict[str, float]:
    """Forward and backward pass, on a GPU in bfloat16 and captured in a CUDA graph.

    Memory: on a GPU the peak of a step, on a CPU what the forward pass keeps for the backward pass.
    """
    saved: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=tokens.is_cuda):
            logits = model(tokens)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    if tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        memory = torch.cuda.max_memory_allocated() - before
        replay, _ = CUDAGraphCapture()(step, tokens.device)
        return {"train": tokens.numel() / median_seconds(replay, cuda=True), "memory": memory}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        step()
    return {"train": tokens.numel() / median_seconds(step, cuda=False), "memory": sum(saved.values())}


def measure_decoding(model: LanguageModel, tokens: Tokens) -> dict[str, float]:
    """After so many tokens: tokens a second, and the bytes of the cache."""
    with torch.no_grad():
        _, state = model.decode_hidden(tokens, model.start(1))
        assert isinstance(state, KVCaches)
        held = sum(cache.nbytes for cache in state.layers)
        current: list[DecoderState] = [state]

        def decode() -> None:
            for _ in range(DECODED):
                current[0] = model.step(tokens[:, :1], current[0])[1]

        seconds = median_seconds(decode, cuda=tokens.is_cuda)
    return {"decode": DECODED / seconds, "cache": held}


def median_seconds(work: Callable[[], object], *, cuda: bool) -> float:
    work()
    found = []
    for _ in range(ROUNDS):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else f"{torch.get_num_threads()} threads of a CPU"
    return f"{name}, torch {torch.__version__}"
