"""CUDA graph capture: graphs share a memory pool, while one of them is there. With stand-ins for torch's."""

from contextlib import nullcontext

import pytest
import torch

from regard.ops.cuda_graph import WARMUPS, CUDAGraphCapture

CPU = torch.device("cpu")


class Stream:
    def wait_stream(self, other: "Stream") -> None: ...


class Graph:
    def replay(self) -> None: ...


@pytest.fixture
def pools(monkeypatch) -> list[int]:
    """The pool of every capture, in their order."""
    handles, used = iter(range(100)), list[int]()

    def graph(_, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        used.append(pool)
        return nullcontext()

    stand_ins = {
        "graph_pool_handle": lambda: next(handles),
        "Stream": lambda _: Stream(),
        "current_stream": lambda _: Stream(),
        "stream": lambda _: nullcontext(),
        "CUDAGraph": Graph,
        "graph": graph,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return used


def test_graphs_share_a_pool_until_the_last_of_them_is_gone(pools):
    capture = CUDAGraphCapture()
    one, other = (capture(lambda: torch.zeros(1), CPU) for _ in range(2))
    assert pools[0] == pools[1]
    del one
    third = capture(lambda: torch.zeros(1), CPU)
    assert pools[2] == pools[0]
    del other, third
    capture(lambda: torch.zeros(1), CPU)
    assert pools[3] != pools[0]


@pytest.mark.usefixtures("pools")
def test_work_warms_up_before_it_is_captured():
    runs = []
    _, result = CUDAGraphCapture()(lambda: torch.tensor([runs.append(1) or len(runs)]), CPU)
    assert result.item() == WARMUPS + 1


@pytest.mark.usefixtures("pools")
def test_what_cannot_be_captured_says_so():
    def work():
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(
        RuntimeError, match="operation not permitted"
    ):  # it fails before the capture: an error of its own
        CUDAGraphCapture("cuda_graph = true: ")(work, CPU)
    runs = []

    def second():
        runs.append(1)
        return work() if len(runs) > WARMUPS else torch.zeros(1)

    with pytest.raises(
        ValueError, match=r"cuda_graph = true: this model cannot be captured .*when stream is capturing\)"
    ):
        CUDAGraphCapture("cuda_graph = true: ")(second, CPU)
