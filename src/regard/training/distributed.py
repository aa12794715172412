"""Distributed training: the processes that torchrun starts share every batch, by DDP or FSDP2, and step as one.

A batch is that of one process, and each process takes some of its rows (of several batches in a step, some batches).
The gradients of summed losses are added up over all processes and divided by the tokens of all, so the step is that of
one process, whatever their number, up to rounding. Rank 0 alone validates and writes; all read the run's folder.

    DistributedDataParallel   each process holds the model; gradients are reduced while the backward pass goes on
    fully_shard (FSDP2)       each process holds a part of every weight, gradient and moment; a layer is gathered to run

A captured backward pass, and that of precision "bf16-pure", run without DDP's hooks: their gradients are reduced
afterwards, as one flat tensor.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.models.seq2seq import map_tensors
from regard.models.transformer import DecoderLayer, EncoderLayer
from regard.training.config import Loss, TrainConfig, TrainingData
from regard.training.step import (
    BackwardFunction,
    StepResult,
    apply_update,
    collect_tensors,
    gradient_norm,
    gradients_of,
)
from regard.world.splitmix import combine_seeds

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.tensor import DTensor

    from regard.training.checkpoint import Progress

TIMEOUT = timedelta(
    hours=2
)  # that the others wait for rank 0, which may be validating; a lost process is noticed at once
LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR")  # variables of the environment that torchrun sets

DDP_WARMUPS = 4  # backward passes, after which DDP with a static graph has arranged its buckets


# --- the processes ---


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together: this one is `rank` of `size`.

    Args:
        device: the one of this process.

    Examples:
        >>> ProcessGroup().is_main  # one process is rank 0 of 1
        True
        >>> from regard.data import LMBlocks
        >>> data = LMBlocks(torch.arange(4, 104), length=10, rows=4)
        >>> ProcessGroup(rank=1, size=4).share(data).steps(epoch=0) == data.steps(epoch=0)
        True
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all."""
        self.any(flag=False)

    def any(self, *, flag: bool) -> bool:
        """Whether any process says so; all get the answer."""
        return flag if self.size == 1 else self.sum(int(flag)) > 0

    def sum(self, number: int) -> int:
        numbers = torch.tensor([number])
        dist.all_reduce(numbers)
        return int(numbers)

    def sum_all(self, numbers: Tensor) -> Tensor:
        """Each number, of all processes."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def from_main(self, figures: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What rank 0 finds; the others wait for it."""
        if self.size == 1:
            return figures()
        text = json.dumps(figures()).encode() if self.is_main else b""
        length = self.sum(len(text))
        letters = torch.tensor(list(text), dtype=torch.uint8) if text else torch.empty(length, dtype=torch.uint8)
        dist.broadcast(letters, 0)
        return json.loads(bytes(letters.tolist()))

    def resume(self, read: "Callable[[], Progress]") -> "Progress":
        """Rank 0 reads the checkpoint first, for it also clears up; the others must find the same."""
        if self.size == 1:
            return read()
        progress = read() if self.is_main else None
        self.barrier()
        progress = progress or read()
        if self.any(flag=self.sum(progress.step) != self.size * progress.step):
            raise ValueError(
                "the processes find different checkpoints; the folder of the run must be one that all machines share"
            )
        return progress

    def seed(self, seed: int) -> int:
        """Of dropout and whatever else a step draws: each process has its own, rank 0 that of a single process."""
        return combine_seeds(seed, self.rank) if self.rank else seed

    def share(self, data: TrainingData) -> TrainingData:
        """Of each step, what this process takes of it."""
        return data if self.size == 1 else SharedData(data, self.rank, self.size)

    def adapt(self, config: TrainConfig) -> TrainConfig:
        """With a seed of its own; a step of several processes, which meet in it, is not captured as a whole."""
        return config if self.size == 1 else replace(config, seed=self.seed(config.seed), capture_step=False)


@contextmanager
def join_processes(device: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone. If one of them fails, one of them says why.

    Args:
        device: of a single process; of several, "cuda" is a GPU for each.

    Examples:
        >>> from pathlib import Path
        >>> from regard.data import LMBlocks
        >>> data, layer = LMBlocks(torch.arange(4, 104), length=10), torch.nn.Linear(3, 1)
        >>> def loss(model, block):
        ...     return model(torch.ones(4, 3)).sum(), 4
        >>> config = TrainConfig(ConstantSchedule(0.001), steps=2)
        >>> with join_processes("cpu") as group:  # the same script under torchrun: several
        ...     reports = list(train(layer, data, loss, config, Path("joined"), group=group))
        >>> group.rank, group.size, len(reports)
        (0, 1, 2)
    """
    if not all(name in os.environ for name in LAUNCHER) or int(os.environ["WORLD_SIZE"]) == 1:
        yield ProcessGroup(device=device)
        return
    from torch.distributed.rendezvous import rendezvous  # not every build of torch has it

    if device.startswith("cuda"):
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise ValueError(
                f"--nproc-per-node asks for more processes than GPUs, of which there are {count}; lower it"
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(device)
    elif device != "cpu":
        raise ValueError(
            f"several processes cannot train on {device}, only on GPUs by CUDA or on CPUs; use --device cpu"
        )
    store, rank, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield ProcessGroup(rank, size, device)
    except (ValueError, RuntimeError) as error:
        if not is_first_failure(store):
            raise SystemExit(1) from None  # another process has said why
        if isinstance(error, RuntimeError) and is_connection_error(error):
            raise ValueError(
                f"one of the {size} processes was lost; start the same command again: it resumes from the last "
                "checkpoint"
            ) from error
        raise
    else:
        dist.destroy_process_group()


def is_first_failure(store: "Store") -> bool:
    try:
        return store.add("regard/failures", 1) == 1
    except RuntimeError:  # the machine that holds the store is lost
        return True


def is_connection_error(error: RuntimeError) -> bool:
    """Whether a process could not reach another: gloo has no exception of its own for it."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


# --- the share of a batch ---


@dataclass(frozen=True, eq=False)
class Share:
    """What a process takes of a micro-batch, (rows, tokens, …); of weight 0 if there are fewer rows than processes."""

    batch: tuple[Any, ...]
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class SharedData:
    """The shares of one process: some micro-batches of a step, or, if they cannot be dealt out, some rows of each."""

    data: TrainingData
    rank: int
    size: int

    def steps(self, epoch: int) -> int:
        return self.data.steps(epoch)

    def at(self, epoch: int, index: int) -> list[Share]:
        batches = self.data.at(epoch, index)
        if len(batches) % self.size == 0:
            return [Share(batch) for batch in batches[self.rank :: self.size]]
        return [share_rows(batch, self.rank, self.size) for batch in batches]


def share_rows(batch: tuple[Any, ...], rank: int, size: int) -> Share:
    """Rows rank, rank + size and so on; the number of tokens, which is that of all rows, goes with those of rank 0."""
    given, tokens, *rest = batch
    rows = min(map(len, collect_tensors(given)))
    first = rank if rank < rows else 0  # no process may be without a batch: the others would wait for its gradients
    part = map_tensors(lambda tensor: tensor[first::size].contiguous(), given)
    return Share((part, 0 if rank else tokens, *rest), float(rank < rows))


# --- the step ---


class LossModule(nn.Module):
    """A model and its loss as one module: DDP and FSDP2 act on what a module's `forward` computes."""

    def __init__(self, model: nn.Module, loss: Loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: tuple[Any, ...]) -> tuple[Tensor, int]:
        return self.loss(self.model, batch)


@dataclass(frozen=True, eq=False)
class DistributedLoss:
    """A `Loss` by DDP or FSDP2, whose backward pass adds up the gradients of all processes.

    Args:
        module: either of the two, around a model and its loss.
        factor: of the loss; DDP's gradient is the mean over processes, and ours their sum.
    """

    module: nn.Module
    factor: float = 1.0

    def __call__(self, model: nn.Module, batch: tuple[Any, ...]) -> tuple[Tensor, int]:
        return self.module(batch)

    def accumulate(self) -> AbstractContextManager[Any]:
        """Inside, DDP leaves gradients where they are: the last micro-batch reduces those of all."""
        return self.module.no_sync() if isinstance(self.module, nn.parallel.DistributedDataParallel) else nullcontext()


@dataclass(frozen=True, eq=False)
class DistributedStep:
    """A step by the gradients of all processes, each of which has its shares of the micro-batches.

    Args:
        backward: adds up the gradients of all processes if `loss` does, and otherwise those of this one.
    """

    group: ProcessGroup
    optimiser: torch.optim.Optimizer
    backward: BackwardFunction
    clip: float
    loss: DistributedLoss | None

    @staticmethod
    def of(
        group: ProcessGroup,
        model: nn.Module,
        data: TrainingData,
        loss: Loss,
        config: TrainConfig,
        optimiser: torch.optim.Optimizer,
        make_backward: Callable[[nn.Module, Loss, TrainConfig], BackwardFunction],
    ) -> "DistributedStep":
        if has_local_gradients(config):
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)
            return DistributedStep(group, optimiser, make_backward(model, loss, config), config.clip, None)
        if isinstance(model, LossModule):
            return DistributedStep(
                group, optimiser, make_backward(model, whole := DistributedLoss(model), config), config.clip, whole
            )
        module = nn.parallel.DistributedDataParallel(LossModule(model, loss), static_graph=True)
        whole = DistributedLoss(module, float(group.size))
        step = DistributedStep(group, optimiser, make_backward(model, whole, config), config.clip, whole)
        # DDP arranges its buckets anew after its first backward passes. These must not be of steps: a resumed run would
        # add up in another order than one that never stopped.
        for _ in range(DDP_WARMUPS):
            step.backward(data.at(0, 0)[0].batch, torch.ones((), device=group.device))
        return step

    def __call__(self, shares: Sequence[Share], scale: Tensor, rate: float) -> StepResult:
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = rate
        # a CUDA graph adds to the same addresses every time
        self.optimiser.zero_grad(set_to_none=self.loss is not None)
        total, tokens = torch.zeros_like(scale), 0
        for number, share in enumerate(shares, 1):
            weight = share.weight * (self.loss.factor if self.loss else 1.0)
            with self.loss.accumulate() if self.loss and number < len(shares) else nullcontext():
                summed, count = self.backward(share.batch, scale * weight)
            total, tokens = total + share.weight * summed, tokens + int(share.weight) * count
        gradients = gradients_of(self.optimiser)
        if self.loss is None:
            reduce_gradients(gradients)
        dist.all_reduce(total)
        tokens, norm = self.group.sum(tokens), gather_tensor(gradient_norm(gradients))
        loss, norm, skipped = apply_update(
            self.optimiser, norm, total, torch.full_like(scale, tokens), scale, clip=self.clip
        )
        return StepResult(loss, norm, skipped, tokens)


def has_local_gradients(config: TrainConfig) -> bool:
    """Whether a backward pass computes the gradients of one process, without the hooks of DDP."""
    return config.cuda_graph or config.precision == "bf16-pure"


@torch.no_grad()
def reduce_gradients(gradients: list[Tensor]) -> None:
    """The sums over all processes."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def gather_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that all processes hold parts of; of any other, itself."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def is_shard(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether processes hold parts of it."""
    dtensor = dtensor_type()
    return dtensor is not None and isinstance(tensor, dtensor)


def shard_like(weight: Tensor, whole: Tensor) -> Tensor:
    """The part of this process of a tensor of the shape of a weight, if it holds a part of that; else all of it."""
    if not is_shard(weight) or whole.shape != weight.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)


def dtensor_type() -> "type[DTensor] | None":
    """The tensors that FSDP2 makes of weights; None where it was not used, for to import them takes seconds."""
    module = sys.modules.get("torch.distributed.tensor")
    return module and module.DTensor


# --- FSDP2 ---


@dataclass(frozen=True, eq=False)
class Replica:
    """What a process trains: the model itself, or a copy of it of which it holds a part.

    Args:
        model: what rank 0 validates and saves; with FSDP it is in the host's memory, but while it is validated.
        module: what is trained.
    """

    model: nn.Module
    module: nn.Module
    group: ProcessGroup

    @staticmethod
    def of(model: nn.Module, loss: Loss, config: TrainConfig, group: ProcessGroup) -> "Replica":
        if group.size == 1 or config.parallel == "ddp":
            return Replica(model, model, group)
        return Replica(model, shard(LossModule(deepcopy(model.cpu()), loss), group), group)

    @torch.no_grad()
    def load(self) -> None:
        """The weights of rank 0's model."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if self.module is self.model:
            return
        for weight, whole in zip(self.module.parameters(), self.model.parameters(), strict=True):
            assert isinstance(weight, DTensor)
            weight.copy_(distribute_tensor(whole.to(self.group.device), weight.device_mesh, weight.placements))
        for buffer, whole in zip(self.module.buffers(), self.model.buffers(), strict=True):
            buffer.copy_(whole)

    @torch.no_grad()
    def gather(self) -> None:
        """The weights that are trained, into the model."""
        if self.module is self.model:
            return
        for weight, whole in zip(self.module.parameters(), self.model.parameters(), strict=True):
            whole.copy_(gather_tensor(weight))
        for buffer, whole in zip(self.module.buffers(), self.model.buffers(), strict=True):
            whole.copy_(buffer)

    def evaluate(
        self, validate: Callable[[nn.Module], dict[str, float]], precision: AbstractContextManager[Any]
    ) -> dict[str, float]:
        """The figures of the model, where the data are."""
        with torch.no_grad(), precision:
            if self.module is self.model:  # `to` would move an RNN's weights, of which a CUDA graph has the addresses
                return validate(self.model.eval())
            figures = validate(self.model.to(self.group.device).eval())
        self.model.cpu()
        return figures


def shard(module: LossModule, group: ProcessGroup) -> LossModule:
    """FSDP2: the weights of a layer are gathered when it runs, all others once in a step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(torch.device(group.device).type, (group.size,))
    early: list[nn.Module] = []  # of a decoder layer, but used before it runs: see `cross_keys_values`
    for layer in module.modules():
        if isinstance(layer, EncoderLayer | DecoderLayer):
            cross = (
                [] if isinstance(layer, EncoderLayer) else [layer.cross.key, layer.cross.value, layer.cross.key_norm]
            )
            early += (parts := [part for part in cross if part is not None])
            fully_shard(layer, mesh=mesh, ignored_params={weight for part in parts for weight in part.parameters()})
    if early:
        # of their outputs, views of a product, none is changed in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        (first, *_) = fully_shard(early, mesh=mesh, reshard_after_forward=False)
        module.register_forward_pre_hook(lambda *_: first.unshard())
    fully_shard(module, mesh=mesh)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # the sum of gradients, not their mean
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return module
