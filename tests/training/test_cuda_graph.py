"""CUDA graphs: the same bits, no synchronisation, one graph for each shape, and models that are refused."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.data.preprocess import ImagePreprocessor, augment_images
from regard.layers.rnn import CELLS, RNNLayers, disable_host_sync
from regard.models import encoder
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.encoder import CharEncoder
from regard.models.encoder import TokenClassifier as TaggingModel
from regard.models.graph import GraphConfig
from regard.tasks.image_batches import AugmentedImages
from regard.tasks.node_classification.task import (
    NodeClassificationData,
    NodeClassificationSettings,
    NodeClassifier,
)
from regard.tasks.sequence_classification import task as sequence_classification
from regard.tasks.tagging import task as tagging
from regard.tasks.tagging.task import CharacterSettings
from regard.tasks.vqa.task import QuestionBatches
from regard.training import step as step_module
from regard.training.config import TrainingJob, make_train_config
from regard.training.corpus import Corpus, round_up_length
from regard.training.loop import make_backward
from regard.training.loop import train as trains
from regard.training.run import TrainingRun
from regard.training.step import CapturedBackward, shape_key
from tests.training.jobs import JOBS, MIXED, POSED, READER, TRAIN
from tests.training.jobs import classify as classify_job
from tests.training.jobs import tag as tag_job
from tests.training.sync_detector import SyncDetector, run_again

GPU = torch.cuda.is_available()
ONE = torch.ones(())


@pytest.fixture
def unchecked(monkeypatch):
    """A GPU is not asked where the first pieces stand."""
    monkeypatch.setattr(encoder, "check_first_pieces", lambda tokens, first: None)


def filled(job: TrainingJob) -> TrainingJob:
    """With batches as a GPU is given them, and the ways that it takes."""
    if not isinstance(job.data, Corpus):
        return job
    disable_host_sync(job.model)
    letters = isinstance(job.model, TaggingModel) and job.model.char_encoder is not None
    filler = (
        partial(tagging.filler, heads=False, letters=letters)
        if isinstance(job.loss, tagging.TaggingLoss)
        else sequence_classification.filler
    )
    return replace(job, data=replace(job.data, filler=filler))


def trained(
    job: TrainingJob, *, use_graphs: bool
) -> tuple[dict[str, torch.Tensor], list[float], CapturedBackward | None]:
    """Plain steps down the gradient: weights and running means, the losses on the way, and what was captured."""
    backward = make_backward(job.model, job.loss, make_train_config(job.train, job.width))
    captured = CapturedBackward(job.model, backward, capture=run_again) if use_graphs else None
    losses, places = [], [(epoch, n) for epoch in range(9) for n in range(job.data.steps(epoch))][:9]
    job.model.train()
    for step, (epoch, index) in enumerate(places):
        torch.manual_seed(step)
        job.model.zero_grad(set_to_none=not use_graphs)
        parts = [(captured or backward)(batch, ONE) for batch in job.data.at(epoch, index)]
        losses.append(sum(float(loss) for loss, _ in parts) / sum(tokens for _, tokens in parts))
        with torch.no_grad():
            for weight in job.model.parameters():
                if weight.grad is not None:
                    weight -= 0.003 * weight.grad
    return {name: one.clone() for name, one in job.model.state_dict().items()}, losses, captured


# --- the same bits, and nothing asked ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", JOBS)
def test_captured_work_never_synchronises_and_ends_with_the_same_bits(name, unchecked):
    launched, losses, _ = trained(filled(JOBS[name]("cpu")), use_graphs=False)
    again, found, captured = trained(filled(JOBS[name]("cpu")), use_graphs=True)
    assert captured is not None
    assert captured.captured_graphs
    assert losses == found
    for key, weight in launched.items():
        assert torch.equal(weight, again[key]), key


def test_the_sync_detector_sees_what_cannot_be_captured():
    x, positive = torch.randn(7, 5), torch.randn(7) > 0

    def caught(work) -> bool:
        try:
            with SyncDetector():
                work()
        except AssertionError:
            return True
        return False

    assert caught(lambda: x.sum().item())
    assert caught(lambda: x[positive])
    assert caught(lambda: positive.nonzero())
    assert caught(lambda: x.long().unique())
    assert caught(lambda: torch.tensor([1.0, 2.0]) * 3)
    assert caught(lambda: torch.rand(3).max().item())
    assert caught(lambda: x.clone().requires_grad_().gather(1, torch.zeros_like(x).long()).sum().backward())
    assert not caught(lambda: x.softmax(-1).masked_fill(~positive[:, None], 0.0)[torch.arange(3)])
    assert not caught(lambda: bool(torch.arange(5).ge(2).any()))  # made of sizes alone: no GPU has it


# --- what is captured, and what a capture leaves ---


class Noisy(nn.Module):
    """A layer with noise and a running mean."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.noise = nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(0.3)

    def forward(self, x):
        return self.noise(self.norm(self.layer(x))).square().sum()


def captured_of(model: nn.Module, **more) -> CapturedBackward:
    def backward(batch, scale):
        x, tokens, *rest = batch
        summed = model(x) * (rest[0] if rest else 1)
        (summed * scale).backward()
        return summed.detach(), tokens

    return CapturedBackward(model, backward, **{"capture": run_again, **more})


def test_a_shape_is_captured_the_second_time_and_launched_the_first(monkeypatch):
    monkeypatch.setattr(step_module, "MAX_GRAPHS", 2)
    captured = captured_of(Noisy())
    for rows, count in ((7, 0), (4, 0), (7, 1), (7, 1), (4, 2), (6, 2), (6, 2)):
        captured((torch.randn(rows, 5), rows), ONE)
        assert len(captured.captured_graphs) == count
    twice = captured_of(Noisy())
    for factor in (2, 3, 2, 3):  # what is no tensor belongs to the shape, but for the number of tokens
        twice((torch.randn(7, 5), factor, factor), ONE)
    assert len(twice.captured_graphs) == 2


def test_a_recording_leaves_everything_as_it_was():
    model = Noisy()
    captured = captured_of(model)
    batch = torch.randn(7, 5), 7
    captured(batch, ONE)
    before = [model.layer.weight.grad, model.norm.running_mean, model.norm.num_batches_tracked, torch.get_rng_state()]
    held = [one.clone() for one in before if one is not None]
    captured.captured_graph(batch, ONE)
    after = [model.layer.weight.grad, model.norm.running_mean, model.norm.num_batches_tracked, torch.get_rng_state()]
    for one, other in zip(held, after, strict=True):
        assert other is not None
        assert torch.equal(one, other)


def test_a_scale_is_read_anew_every_time():
    model = nn.Linear(5, 3)
    captured = captured_of(nn.Sequential(model, Sum()))
    x, grads = torch.randn(7, 5), []
    for scale in (1.0, 1.0, 4.0):
        model.zero_grad(set_to_none=False)
        captured((x, 7), torch.tensor(scale))
        assert model.weight.grad is not None
        grads.append(model.weight.grad.clone())
    assert_close(grads[2], 4 * grads[0])


class Sum(nn.Module):
    def forward(self, x):
        return x.square().sum()


def test_the_longest_are_captured_first():
    job = filled(tag_job(READER, CharacterSettings(), "cpu"))
    assert isinstance(job.data, Corpus)
    widths = [batch.pieces.shape[1] for batch, _ in job.data.longest_first()]
    assert widths == sorted(set(widths), reverse=True)
    assert len(widths) > 2
    backward = make_backward(job.model, job.loss, make_train_config(job.train, job.width))
    captured = CapturedBackward(job.model, backward, job.data.longest_first, lambda work, device: (work, work()))
    captured(job.data.at(0, 0)[0], ONE)
    assert [shape[0][1][0][1] for shape in captured.captured_graphs] == widths  # type: ignore[index]


# --- batches of few shapes ---


def test_lengths_are_rounded_up_by_a_quarter_at_most():
    assert [round_up_length(n) for n in (1, 2, 7, 8, 9, 11, 16, 17, 33, 63, 65)] == [
        1,
        2,
        7,
        8,
        10,
        12,
        16,
        20,
        40,
        64,
        80,
    ]
    for n in range(1, 999):
        assert n <= round_up_length(n) <= 1.25 * n
        assert round_up_length(round_up_length(n)) == round_up_length(n)
    assert len({round_up_length(n) for n in range(1, 257)}) == 28


@pytest.mark.parametrize("name", ["tag", "tag, transformer", "classify", "classify, transformer"])
def test_filled_batches_hold_the_same_and_have_one_shape_for_each_length(name):
    plain, full = JOBS[name]("cpu"), filled(JOBS[name]("cpu"))
    assert isinstance(plain.data, Corpus)
    assert isinstance(full.data, Corpus)
    shapes: dict[int, set] = {}
    tokens = 0
    for index in range(full.data.steps(0)):
        ((few, count),), ((many, counted),) = plain.data.at(0, index), full.data.at(0, index)
        assert count == counted
        tokens += count
        kept = many.labels[: len(few.labels)]
        assert torch.equal(kept[:, : few.labels.shape[1]] if kept.dim() > 1 else kept, few.labels)
        width = shape_key(many)[1][0][1]  # type: ignore[index]
        shapes.setdefault(width, set()).add(many.lengths.shape)
        assert width * (len(many.lengths) - 1) <= TRAIN.batch_size * 7
    assert all(len(rows) == 1 for rows in shapes.values())
    assert len(shapes) < full.data.steps(0)
    assert tokens == sum(count for index in range(plain.data.steps(1)) for _, count in plain.data.at(1, index))


@pytest.mark.parametrize("name", ["tag", "tag, transformer", "classify", "classify, transformer"])
def test_what_fills_a_batch_teaches_nothing(name):
    grads = []
    for job in (JOBS[name]("cpu"), filled(JOBS[name]("cpu"))):
        job.model.double().eval()  # R-Drop's two passes are one
        loss = replace(job.loss, **{"word_dropout" if isinstance(job.loss, tagging.TaggingLoss) else "dropout": 0.0})  # type: ignore[type-var]
        summed, count = loss(job.model, job.data.at(0, 1)[0])
        grads.append([summed, *torch.autograd.grad(summed / count, list(job.model.parameters()), allow_unused=True)])
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other)


def test_images_that_fill_a_batch_have_no_loss():
    job = JOBS["answer"]("cpu")
    data = job.data
    assert isinstance(data, QuestionBatches)
    job.model.double().eval()
    rows, found = next(iter(data.rows.at(0, 0))), []
    for fill in (1, 8):
        draws = data.draw_batch(rows, 0, fill)
        batch = data.materialize(draws)
        assert len(batch.pixels) % fill == 0
        found.append(job.model(batch.pixels.double(), batch.tokens, batch.lengths, batch.image_index))
    assert_close(*found)


# --- ways that ask for nothing ---


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_states_beside_padding_are_those_without_it(cell, directions, layers):
    rnn = RNNLayers(3, 5, cell=CELLS[cell], layers=layers, directions=directions).double()
    lengths = torch.tensor([7, 1, 4])
    x = torch.randn(3, 7, 3, dtype=torch.double, requires_grad=True)
    found = [rnn(x, lengths=lengths)[0], rnn.forward_padded(x, lengths)]
    assert_close(*found)
    seed = torch.randn_like(found[0])
    assert_close(*(torch.autograd.grad(out, [x, *rnn.parameters()], seed) for out in found))


def test_the_gradient_of_a_text_turned_round():
    rnn = RNNLayers(2, 3, cell=CELLS["gru"], directions=2).double()
    x = torch.randn(2, 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rnn.forward_padded(x, torch.tensor([3, 2])), [x])


def test_characters_encoded_at_once_are_those_encoded_word_by_word():
    spelling = CharEncoder(13, 10).double()
    letters = torch.randint(1, 13, (3, 5, 7)) * (torch.arange(7) < torch.randint(0, 8, (3, 5, 1)))
    word_by_word = spelling(letters)
    disable_host_sync(spelling)
    assert_close(spelling(letters), word_by_word)


@pytest.mark.parametrize("augment", [MIXED, POSED], ids=["mixed", "posed"])
def test_augmentation_on_the_device_is_that_of_the_host(augment):
    pixels = torch.randint(0, 256, (23, 3, 16, 12), dtype=torch.uint8)
    shown = AugmentedImages(pixels, ImagePreprocessor.of(pixels), augment, seed=5)
    rows = torch.tensor([19, 3, 7]).numpy()
    own = shown.draw_batch(rows, 4)[:, : 1 + 2 * len(augment.changes())]
    expected = augment_images(pixels[[19, 3, 7]], rows, by=augment.changes(), seed=5, epoch=4)
    assert torch.equal(shown.augment_pixels(own), expected)


# --- who is refused ---


def assert_refused(job: TrainingJob, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TrainingRun(job, Path("unused"))


def test_a_model_that_cannot_be_captured_raises_with_the_reason():
    trees = replace(READER, recipe='position = "RelativeBias(TreePath(4), heads=2)"')
    assert_refused(
        tag_job(trees, CharacterSettings(), "cpu"), r"train\.cuda_graph = true is not possible: .* places are in trees"
    )
    counted = WordEmbeddingConfig(kind="one-hot"), PoolingConfig(kind="tf-idf")
    assert_refused(classify_job(EncoderConfig(kind="embed", model=10), *counted, "cpu"), "one-hot.*; leave it out")
    settings = NodeClassificationSettings(
        data=NodeClassificationData(people=31),
        model=GraphConfig(kind="attention", layers=1, model=12, heads=2, hidden=14),
        train=replace(TRAIN, batch_size=4096),
    )
    nodes = settings.data.read("train").examples
    assert_refused(NodeClassifier.from_examples(nodes, settings).job(nodes, nodes), "its batches have many shapes")
    for name, job in JOBS.items():
        assert TrainingRun(job("cpu"), Path("unused")).config.cuda_graph, name


# --- runs ---


def run(
    name: str, folder: Path, leave: int | None = None, *, device: str = "cpu", use_graphs: bool = True, **train: Any
):
    """The weights and running means in the end, or where it was left."""
    job = JOBS[name](device, **train)
    plan = replace(TrainingRun(job, folder).config, cuda_graph=use_graphs)
    for report in (steps := trains(job.model, job.data, job.loss, plan, folder, job.validate)):
        if report.step == leave:
            steps.close()
    return {key: one.cpu() for key, one in job.model.state_dict().items()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["cnn", "answer", "lstm", "tag", "classify, transformer"])
def test_a_run_that_was_left_ends_with_the_same_bits(name, tmp_path):
    run(name, tmp_path / "again", leave=5)
    whole, again = run(name, tmp_path / "whole"), run(name, tmp_path / "again")
    for key, weight in whole.items():
        assert torch.equal(weight, again[key]), key


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", JOBS)
def test_a_captured_run_has_the_bits_of_one_launched_kernel_by_kernel(name, precision, tmp_path):
    """Straight on, and left in the middle and gone on with."""

    run_on_gpu = partial(run, name, device="cuda", precision=precision)
    run_on_gpu(tmp_path / "again", leave=5)
    weights = [run_on_gpu(tmp_path / way, use_graphs=way != "launched") for way in ("launched", "captured", "again")]
    for key, weight in weights[0].items():
        assert torch.equal(weight, weights[1][key]), key
        assert torch.equal(weight, weights[2][key]), key


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("layers", [1, 2])
def test_on_a_gpu_states_beside_padding_are_those_without_it(layers):
    rnn = RNNLayers(17, 23, cell=CELLS["lstm"], layers=layers, directions=2).cuda().eval()
    lengths = torch.tensor([29, 1, 13], device="cuda")
    x = torch.randn(3, 29, 17, device="cuda")
    exact = rnn.cpu().double()(x.cpu().double(), lengths=lengths.cpu())[0]
    rnn = rnn.float().cuda()
    packed, beside = (out.cpu().double() for out in (rnn.states(x, lengths), rnn.forward_padded(x, lengths)))
    assert (beside - exact).norm() <= 2 * (packed - exact).norm() + 1e-6


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_loss_that_asks_the_gpu_is_refused_in_a_sentence():
    """In a process of its own: a recording that failed leaves torch's noise unusable."""
    code = """
import torch
from torch import nn
from regard.training.step import CapturedBackward
model = nn.Linear(5, 3).cuda()
def backward(batch, scale):
    summed = model(batch[0]).sum()
    (summed * summed.item()).backward()
    return summed.detach(), 7
captured, one = CapturedBackward(model, backward), torch.ones((), device="cuda")
batch = (torch.randn(7, 5, device="cuda"), 7)
captured(batch, one)
try:
    captured(batch, one)
except ValueError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "this model cannot be captured" in result.stdout, result.stderr
    assert "leave cuda_graph out" in result.stdout
