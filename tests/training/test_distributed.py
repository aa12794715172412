"""Several processes step as one: the same gradient, the same order of examples, and exact resume after kill -9."""

import json
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.data.batching import Batch
from regard.data.preparation import prepare_corpora
from regard.models.config import LanguageModelConfig
from regard.tasks.registry import get_task
from regard.tasks.translation.task import Translator
from regard.training.checkpoint import Progress, checkpoint_path, read_valid_state
from regard.training.config import TrainingJob, TrainSettings, make_train_config
from regard.training.distributed import (
    ProcessGroup,
    Replica,
    SharedData,
    gather_tensor,
    join_processes,
    share_rows,
)
from regard.training.loop import make_optimiser, make_step, one_step, step_seed
from regard.training.run import TrainingRun, read_log
from regard.training.step import LossScaleState
from tests.data.prepared import listed_texts, request_for, text_request, world_lines, world_source
from tests.training.jobs import JOBS
from tests.training.killed_runs import BAHDANAU, HELD_OUT, KNOWN, TRANSFORMER, settings
from tests.training.processes import exit_codes, messages, run_processes, started
from tests.training.test_resume import assert_same_run

STEADY = replace(TRANSFORMER, dropout=0.0)


def job(model: Any = STEADY, steps: int = 12, prepared: str = "", **train: Any) -> TrainingJob:
    """Of pairs in memory, or of prepared pairs or texts in this folder."""
    torch.manual_seed(0)
    wanted = settings(model, steps, schedule="constant")
    wanted = replace(wanted, train=replace(wanted.train, **train))
    if prepared:
        return prepared_job(Path(prepared), model, wanted.train)
    return Translator.from_examples(KNOWN, wanted).job(KNOWN, HELD_OUT)


def prepared_job(folder: Path, model: Any, train: TrainSettings) -> TrainingJob:
    kind: Any = get_task("translation")
    fields = {"model": model}
    if (folder / "tokenizer.json").exists():
        kind = get_task("language_modeling")
        fields = {"model": LanguageModelConfig(kind="transformer", layers=1, model=28, heads=2, dropout=model.dropout)}
        train = replace(train, max_length=16)
    data = replace(kind.settings().data, corpus="files", train=(str(folder),))
    examples, held_out = (data.read(split).examples for split in ("train", "valid"))
    wanted = kind.fit_settings(replace(kind.settings(), data=data, train=train, **fields), examples, ())
    return kind.task_model.from_examples(examples, wanted).job(examples, held_out)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> dict[str, str]:
    """Folders of prepared corpora: two of pairs, and two of texts."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_corpora(request_for(folder / "pairs", [world_source("a", 200), world_source("b", 60, seed=1)]))
    texts = [listed_texts("a", world_lines(300)), listed_texts("b", world_lines(100, seed=1), documents=True)]
    prepare_corpora(text_request(folder / "texts", texts))
    return {name: str(folder / name) for name in ("pairs", "texts")}


# --- the gradient ---


def first_gradient(group: ProcessGroup, made: TrainingJob) -> dict[str, torch.Tensor]:
    """Of the mean loss of the first step, by weight; what is clipped, and what is reported."""
    config = group.adapt(make_train_config(made.train, made.width))
    replica, data = Replica.of(made.model, made.loss, config, group), group.share(made.data)
    optimiser = make_optimiser(replica.module, config, captured=False)
    replica.load()
    step = make_step(replica.module, data, made.loss, config, optimiser, group)
    scale = LossScaleState.of(0, 1.0, torch.device("cpu"))
    report, _, _ = one_step(replica.module, optimiser, data, step, config, Progress(), scale)
    names = [name for name, _ in made.model.named_parameters()]
    weights = zip(names, replica.module.parameters(), strict=True)
    found = {name: gather_tensor(weight.grad) / report.tokens for name, weight in weights if weight.grad is not None}
    return (
        found
        | {"tokens": torch.tensor(report.tokens), "loss": torch.tensor(report.loss)}
        | {"norm": torch.tensor(report.norm)}
    )


def write_gradients(group: ProcessGroup, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    for name, case in cases.items():
        found = first_gradient(group, job(**case))
        if group.is_main:
            save_file({key: value.contiguous() for key, value in found.items()}, folder / f"{name}-{group.size}")


CASES: dict[str, dict[str, Any]] = {
    "padded": {},
    "accumulated": {"gradient_accumulation": 3},
    "dealt": {"gradient_accumulation": 4},
    "packed": {"packed": True, "batch_size": 400},
    "captured": {"packed": True, "batch_size": 400, "cuda_graph": True},
    "few rows": {"batch_size": 20},
}
PREPARED: dict[str, dict[str, Any]] = {
    "prepared": {"prepared": "pairs"},
    "prepared and packed": {"prepared": "pairs", "packed": True, "batch_size": 400},
    "prepared texts": {"prepared": "texts", "gradient_accumulation": 2},
}
SHARDED: dict[str, dict[str, Any]] = {"sharded": {"parallel": "fsdp"}}
MORE_CASES: dict[str, dict[str, Any]] = {
    "rnn": {"model": replace(BAHDANAU, dropout=0.0)},
    "sharded rnn": {"model": replace(BAHDANAU, dropout=0.0), "parallel": "fsdp", "gradient_accumulation": 2},
    "sharded and packed": {"parallel": "fsdp", "packed": True, "batch_size": 400, "gradient_accumulation": 3},
}


def with_folder(case: dict[str, Any], folders: dict[str, str]) -> dict[str, Any]:
    return {name: folders[value] if name == "prepared" else value for name, value in case.items()}


def assert_same_gradient(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert one["tokens"] == other["tokens"]
    for name, expected in one.items():
        torch.testing.assert_close(other[name], expected, rtol=1e-6, atol=1e-6 * float(one["norm"]))


@pytest.mark.parametrize(
    ("sizes", "cases"),
    [
        ((2, 4), CASES),
        ((2,), PREPARED),
        ((2,), SHARDED),
        pytest.param((2, 3, 4), CASES | PREPARED | SHARDED | MORE_CASES, marks=pytest.mark.slow),
    ],
    ids=["ddp", "prepared", "fsdp", "all"],
)
def test_the_gradient_is_that_of_one_process(sizes, cases, prepared, tmp_path):
    cases = {name: with_folder(case, prepared) for name, case in cases.items()}
    for size in (1, *sizes):
        assert run_processes(size, tmp_path, write_gradients, tmp_path, cases) == [0] * size, messages(tmp_path)
    for name in cases:
        one = load_file(tmp_path / f"{name}-1")
        for size in sizes:
            assert_same_gradient(one, load_file(tmp_path / f"{name}-{size}"))


def summed_gradients(made: TrainingJob, batches: list[Any]) -> tuple[list[torch.Tensor], int]:
    """By the plain definition, in eval mode: without dropout."""
    made.model.zero_grad()
    tokens = 0
    for share in batches:
        summed, count = made.loss(made.model, share.batch)
        (summed * share.weight).backward()
        tokens += count
    return [weight.grad.clone() for weight in made.model.parameters() if weight.grad is not None], tokens


# the losses of the last two draw words to hide, also in eval mode
SHAREABLE = [name for name in JOBS if name not in ("answer", "cnn", "tag", "classify")]


@pytest.mark.parametrize("name", SHAREABLE)
def test_the_shares_of_a_batch_are_all_of_it_in_every_task(name):
    made = JOBS[name]("cpu")
    made.model.eval()
    torch.manual_seed(0)
    whole, tokens = summed_gradients(made, SharedData(made.data, 0, 1).at(0, 0))
    for size in (2, 4):
        shares = [share for rank in range(size) for share in SharedData(made.data, rank, size).at(0, 0)]
        torch.manual_seed(0)
        parts, counted = summed_gradients(made, shares)
        assert counted == tokens
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_every_row_is_in_one_share_and_in_their_order():
    batch = Batch(torch.arange(15).view(5, 3), torch.full((5,), 3), torch.arange(10).view(5, 2), torch.full((5,), 2))
    shares = [share_rows((batch, 5), rank, 2) for rank in range(2)]
    assert [share.batch[0].source[:, 0].tolist() for share in shares] == [[0, 6, 12], [3, 9]]
    assert [share.batch[1] for share in shares] == [5, 0]  # the number of tokens counts once
    (last,) = {share_rows((batch, 5), rank, 7).weight for rank in (5, 6)}
    assert last == 0  # and takes a row that is not its own, lest the others wait


def test_micro_batches_are_dealt_out_before_rows_are():
    made = job(gradient_accumulation=4)
    whole = made.data.at(0, 0)
    dealt = [SharedData(made.data, rank, 2).at(0, 0) for rank in range(2)]
    assert [[share.batch[1] for share in shares] for shares in dealt] == [
        [whole[0][1], whole[2][1]],
        [whole[1][1], whole[3][1]],
    ]


def test_dropout_differs_by_rank_and_rank_0_is_a_single_process():
    seeds = [ProcessGroup(rank, 4).seed(7) for rank in range(4)]
    assert seeds[0] == ProcessGroup().seed(7) == 7
    assert len({step_seed(seed, 5) for seed in seeds}) == 4


# --- what cannot be ---


def test_weights_stay_where_they_are_while_one_process_validates(monkeypatch):
    """A captured step has their addresses, and `to` gives those of an RNN new ones on a GPU."""
    made = job()
    replica = Replica.of(made.model, made.loss, make_train_config(made.train, made.width), ProcessGroup())
    monkeypatch.setattr(torch.nn.Module, "_apply", lambda *_: pytest.fail("the model was moved"))
    assert replica.evaluate(lambda model: {"training": float(model.training)}, nullcontext()) == {"training": 0.0}


@pytest.mark.parametrize(("name", "why"), [("answer", "share its images"), ("cnn", "BatchNorm2d takes the mean")])
def test_batches_that_cannot_be_shared_are_refused(name, why, tmp_path):
    made = JOBS[name]("cpu", gradient_accumulation=1)
    TrainingRun(made, tmp_path)
    with pytest.raises(ValueError, match=f"2 processes cannot share its batches: .*{why}"):
        TrainingRun(made, tmp_path, group=ProcessGroup(0, 2))


@pytest.mark.parametrize("other", [{"cuda_graph": True}, {"precision": "bf16-pure"}])
def test_what_needs_the_whole_model_cannot_be_sharded(other):
    with pytest.raises(ValueError, match="needs the whole model on each GPU, and parallel = 'fsdp' divides it"):
        job(packed=True, parallel="fsdp", **other)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("mps", "several processes cannot train on mps, only on GPUs by CUDA or on CPUs; use --device cpu"),
        ("cuda", "--nproc-per-node asks for more processes than GPUs, of which there are 0; lower it"),
    ],
)
def test_devices_that_processes_cannot_share_are_refused(device, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{why}$"), join_processes(device):
        pass


# --- runs ---


def follow(group: ProcessGroup, folder: Path, upto: int, train: dict[str, Any], pause: float = 0.0) -> None:
    """Trains until step `upto`, and leaves there; the last step is the end of the run."""
    made = job(**train)
    steps = TrainingRun(made, folder, group=group).steps()
    for report in steps:
        time.sleep(pause)
        if report.step == upto < made.train.steps:
            steps.close()


def losses(folder: Path) -> list[float]:
    return [line["validation"]["loss"] for line in read_log(folder) if "validation" in line]


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"prepared": "pairs", "packed": True, "batch_size": 400},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({"parallel": "fsdp"}, {"prepared": "pairs"}, {"prepared": "texts"})
        ),
    ],
    ids=["ddp", "prepared and packed", "fsdp", "prepared", "prepared texts"],
)
def test_a_run_goes_on_with_another_number_of_processes(train, prepared, tmp_path):
    train = {"gradient_accumulation": 2} | with_folder(train, prepared)
    follow(ProcessGroup(), tmp_path / "one", 12, train)
    for size, upto in ((1, 3), (2, 7), (4, 12)):
        codes = run_processes(size, tmp_path, follow, tmp_path / "several", upto, train)
        assert codes == [0] * size, messages(tmp_path)
    torch.testing.assert_close(losses(tmp_path / "several"), losses(tmp_path / "one"), rtol=1e-5, atol=0)
    one, several = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "several"))
    for name, weight in one.items():
        torch.testing.assert_close(several[name], weight, rtol=0, atol=2e-3)  # Adam divides by what is nearly 0


def test_with_fsdp_each_process_writes_its_part_of_a_checkpoint(tmp_path):
    """In safetensors alone; a torn part costs that checkpoint, and one process reads what several wrote."""
    train = {"parallel": "fsdp", "steps": 6, "gradient_accumulation": 2}
    for name in ("straight", "torn"):
        codes = run_processes(2, tmp_path, follow, tmp_path / name, 6 if name == "straight" else 4, train)
        assert codes == [0] * 2, messages(tmp_path)
    last = checkpoint_path(tmp_path / "torn" / "checkpoints", 4)
    names = sorted(str(path.relative_to(last)) for path in last.rglob("*") if path.is_file())
    assert names == sorted(["state.json", *json.loads((last / "state.json").read_text())["sums"]])
    first, second = (load_file(last / name) for name in names if name.startswith("optimiser/"))
    weights = load_file(last / "model.safetensors")
    for part in (first, second):
        size = sum(tensor.numel() for tensor in part.values())
        assert 0.8 < size / sum(weight.numel() for weight in weights.values()) < 1.2  # half of two moments
    shutil.copytree(tmp_path / "torn", tmp_path / "one")
    part = last / next(name for name in names if name.startswith("optimiser/"))
    part.write_bytes(part.read_bytes()[:-1])
    assert read_valid_state(last) is None
    assert run_processes(2, tmp_path, follow, tmp_path / "torn", 6, train) == [0] * 2, messages(tmp_path)
    assert_same_run(tmp_path / "torn", tmp_path / "straight")
    follow(ProcessGroup(), tmp_path / "one", 6, train)
    torch.testing.assert_close(losses(tmp_path / "one"), losses(tmp_path / "straight"), rtol=1e-5, atol=0)


def follow_without_listing(group: ProcessGroup, folder: Path, train: dict[str, Any]) -> None:
    """As where a file system shared by several machines tells each of them late what others have written."""
    listed = Path.iterdir

    def iterdir(path: Path):
        if path.name == "optimiser":
            raise AssertionError("what others wrote is looked for")
        return listed(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", iterdir)
        follow(group, folder, 6, train)


def test_no_process_looks_for_the_parts_of_others_while_they_write(tmp_path):
    train = {"parallel": "fsdp", "steps": 6}
    assert run_processes(2, tmp_path, follow_without_listing, tmp_path / "run", train) == [0] * 2, messages(tmp_path)
    last = checkpoint_path(tmp_path / "run" / "checkpoints", 6)
    names = {str(path.relative_to(last)) for path in last.rglob("*.safetensors")}
    assert len(names) == 3
    assert json.loads((last / "state.json").read_text())["sums"].keys() == names


def follow_on_a_full_disk(group: ProcessGroup, folder: Path, train: dict[str, Any]) -> None:
    """Process 1 can write no file that is longer than a message."""
    if group.rank:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (999, resource.RLIM_INFINITY))
    follow(group, folder, 6, train)


def test_a_part_that_cannot_be_written_ends_all_with_one_message(tmp_path):
    train = {"parallel": "fsdp", "steps": 6}
    assert run_processes(2, tmp_path, follow, tmp_path / "run", 2, train) == [0] * 2, messages(tmp_path)
    codes = run_processes(2, tmp_path, follow_on_a_full_disk, tmp_path / "run", train)
    assert sorted(code or 0 for code in codes) == [1, 2]
    (said,) = messages(tmp_path)
    assert said.startswith(f"cannot write a checkpoint to {tmp_path}/run/checkpoints: process 1: ")
    assert said.endswith("File too large; earlier ones are untouched")
    assert saved_step(tmp_path / "run") == 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob(".draft-*")] == []


@pytest.mark.parametrize(
    ("size", "train", "times"),
    [
        (3, {"model": TRANSFORMER}, 1),
        (2, {"model": TRANSFORMER, "prepared": "pairs"}, 1),
        *(
            pytest.param(2, {"model": TRANSFORMER, **each}, 7, marks=pytest.mark.slow)
            for each in (
                {"prepared": "pairs"},
                {"prepared": "pairs", "packed": True, "batch_size": 400},
                {"prepared": "texts"},
            )
        ),
        pytest.param(3, {"model": TRANSFORMER, "gradient_accumulation": 2}, 10, marks=pytest.mark.slow),
        pytest.param(3, {"model": TRANSFORMER, "parallel": "fsdp", "precision": "bfloat16"}, 4, marks=pytest.mark.slow),
        pytest.param(4, {"model": TRANSFORMER, "precision": "float16"}, 6, marks=pytest.mark.slow),
    ],
)
def test_after_kill_9_of_a_random_rank_the_run_ends_with_the_same_bytes(size, train, times, prepared, tmp_path):
    """Twenty times in the slow forms of each kind of data; with dropout, so that each rank has noise of its own."""
    chance = random.Random(size)
    steps = 12 if times == 1 else 40
    whole = with_folder(train, prepared) | {"steps": steps}
    assert run_processes(size, tmp_path, follow, tmp_path / "straight", steps, whole) == [0] * size, messages(tmp_path)
    folder = tmp_path / "killed"
    for number in range(times):
        errors = tmp_path / f"errors-{number}"
        errors.mkdir()
        last = saved_step(folder)
        with started(size, errors, follow, folder, steps, whole, 0.05) as processes:
            while saved_step(folder) < min(last + 2, steps - 4) and all(one.is_alive() for one in processes):
                time.sleep(0.02)
            time.sleep(chance.random() * 0.2)
            lost = chance.randrange(size)
            processes[lost].kill()
            codes = exit_codes(processes)
        assert codes[lost] == -signal.SIGKILL
        assert all(code in (1, 2) for rank, code in enumerate(codes) if rank != lost), codes
        assert messages(errors) == [
            f"one of the {size} processes was lost; start the same command again: it resumes from the last checkpoint"
        ]
    assert saved_step(folder) < steps
    assert run_processes(size, tmp_path, follow, folder, steps, whole) == [0] * size, messages(tmp_path)
    assert_same_run(folder, tmp_path / "straight")


def saved_step(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("checkpoints/[0-9]*")), default=0)


def fail_in_rank_1(group: ProcessGroup) -> None:
    if group.rank == 1:
        raise ValueError("corpus.tsv: no such file; check the path")
    group.barrier()


def test_a_mistake_of_one_process_is_said_once_and_ends_all(tmp_path):
    assert run_processes(3, tmp_path, fail_in_rank_1) == [1, 2, 1]
    assert messages(tmp_path) == ["corpus.tsv: no such file; check the path"]


# --- torchrun ---

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "regard", "train"]
SMALL = ["--steps", "30", "--batch-size", "200", "--device", "cpu", "--set", "train.checkpoint_every=5", "--out"]


def said(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


@pytest.mark.slow
def test_torchrun_trains_is_interrupted_and_resumes(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [*TORCHRUN, *SMALL, folder], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        while saved_step(folder) < 5 and one.poll() is None:
            time.sleep(0.1)
        one.send_signal(signal.SIGINT)
        out, err = one.communicate(timeout=60)
    assert one.returncode != 0
    assert len(said(out, "saved: ")) == 1, err
    stopped = saved_step(folder)
    assert 5 <= stopped < 30
    end = subprocess.run([*TORCHRUN, *SMALL, folder], capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    assert len(said(end.stdout, "trained: ")) == 1
    assert f"resuming from step {stopped}" in end.stderr
    again = subprocess.run([*TORCHRUN, "--out", folder, "--steps", "3"], capture_output=True, text=True)
    assert again.returncode != 0
    assert len(said(again.stderr, "regard: ")) == 1
    assert "Traceback" not in "".join(re.findall(r"^\[rank.*$", again.stderr, re.MULTILINE))
