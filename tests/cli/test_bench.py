"""regard bench: round-robin samples, wrong results fail, missing peers are named, results are written and plotted."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.cli import benchmarks
from regard.cli.benchmarks import decoding, train_peers, training
from regard.cli.benchmarks.harness import (
    Benchmark,
    BenchmarkSettings,
    Case,
    Implementation,
    MissingPeer,
    ReferenceResult,
    TimingSample,
    Verdict,
    measure,
)
from regard.cli.benchmarks.train_peers import Stopwatch
from regard.cli.benchmarks.training import TRAINERS, TrainingResult, judge, read_result, train, write_texts
from regard.data import SentencePair
from regard.world import World, translation_pairs

from .commands import assert_done, assert_plain, assert_refused, regard


@pytest.fixture
def setting(tmp_path) -> BenchmarkSettings:
    peers, folder = tmp_path / "peers", tmp_path / "scratch"
    folder.mkdir()
    return BenchmarkSettings(device="cpu", quick=True, threads=1, rounds=3, peers=peers, data=None, folder=folder)


def taking(name: str, seconds: list[float], found: object = 4, calls: list[str] | None = None) -> Implementation:
    """An implementation whose samples take so long."""
    left = list(seconds)

    def go() -> TimingSample:
        if calls is not None:
            calls.append(name)
        return TimingSample(left.pop(0), 6.0, found)

    return Implementation(name, go)


def unable(name: str, why: str) -> Implementation:
    def go() -> TimingSample:
        raise RuntimeError(f"{why}\nand much more")

    return Implementation(name, go)


def is_four(found: object, _: object) -> Verdict:
    return Verdict(f"found {found}", correct=found == 4)


def made(
    *others: Implementation, ours: tuple[Implementation, ...] = (), missing: tuple[MissingPeer, ...] = (), warm: int = 0
) -> Case:
    return Case("two and two", ours or (taking("we", [1.0, 2.0, 3.0]),), others, missing, is_four, 3, warm)


# --- samples ---


def test_every_implementation_is_sampled_in_every_round(setting):
    calls: list[str] = []
    we, they = (taking(name, [9.0, 1.0, 1.0, 1.0], calls=calls) for name in ("we", "they"))
    rows = measure(made(they, ours=(we,), warm=1), setting, lambda _: None)
    assert calls == ["we", "they"] * 4
    assert [row.speeds for row in rows] == [(6.0, 6.0, 6.0)] * 2  # the first round warms up


def test_a_ratio_is_the_median_of_those_within_a_round(setting):
    """By hand: theirs over ours is 4/1, 4/2, 15/3; the medians of the times are 2 and 4."""
    rows = measure(made(taking("they", [4.0, 4.0, 15.0])), setting, lambda _: None)
    assert rows[0].ratio is None
    assert (rows[1].ratio, rows[1].ratio_min, rows[1].ratio_max, rows[1].compared_with) == (4.0, 2.0, 5.0, "we")
    assert (rows[0].speed, rows[0].slowest, rows[0].fastest) == (3.0, 2.0, 6.0)


def test_whoever_is_wrong_gets_no_ratio_however_fast(setting):
    rows = measure(made(taking("they", [0.1] * 3, found=5)), setting, lambda _: None)
    assert (rows[1].state, rows[1].message, rows[1].ratio) == ("wrong", "found 5", None)
    assert rows[1].failed
    assert not rows[0].failed


def test_the_fastest_of_us_that_is_right_is_compared(setting):
    ours = (taking("plain", [3.0] * 3), taking("quick", [2.0] * 3), taking("hasty", [1.0] * 3, found=5))
    rows = measure(made(taking("they", [6.0] * 3), ours=ours), setting, lambda _: None)
    assert [row.failed for row in rows] == [False, False, True, False]
    assert (rows[3].compared_with, rows[3].ratio) == ("quick", 3.0)


def test_whoever_cannot_says_why_and_only_ours_fails(setting):
    rows = measure(made(unable("they", "no such kernel"), ours=(unable("we", "lost"),)), setting, lambda _: None)
    assert [(row.state, row.message, row.failed) for row in rows] == [
        ("failed", "lost", True),
        ("failed", "no such kernel", False),
    ]


def test_a_truth_allows_twice_the_error_of_plain_torch_and_no_more():
    exact, plain = torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.01])
    truth = ReferenceResult([exact], [plain], lambda found: found)
    assert truth.judge([torch.tensor([0.981])], []).correct
    assert not truth.judge([torch.tensor([0.979])], []).correct
    assert not truth.judge([torch.tensor([torch.nan])], []).correct
    assert (
        ReferenceResult([exact], [exact.float()], lambda found: found).judge([torch.tensor([1 + 2**-22])], []).correct
    )


# --- the command ---


@pytest.fixture
def offered(monkeypatch) -> Callable[..., None]:
    """The command has this benchmark only."""

    def offer(*cases: Case | MissingPeer) -> None:
        work = Benchmark("sums", "two and two", "ms", lambda _: iter(cases))
        monkeypatch.setattr(benchmarks, "BENCHMARKS", {"sums": work})

    return offer


def test_figures_are_printed_kept_and_drawn(offered):
    offered(
        made(taking("they", [4.0, 4.0, 15.0]), missing=(MissingPeer("nobody", "not installed; pip install nobody"),))
    )
    answer = regard(
        "bench", "sums", "--rounds", 3, "--threads", 1, "--device", "cpu", "--out", "kept", "--plot", "drawn"
    )
    printed = assert_done(answer)
    assert_plain(answer.output)
    assert "4.00× (2.00–5.00)" in printed
    assert "not measured: nobody: not installed; pip install nobody\n" in printed
    kept = json.loads(Path("kept/bench-sums-cpu.json").read_text(encoding="utf-8"))
    assert kept["command"] == "regard bench sums --device cpu --threads 1 --rounds 3"
    assert {"commit", "machine", "rows", "benchmark", "unit", "missing"} <= set(kept)
    assert kept["machine"]["torch"] == torch.__version__
    assert [row["implementation"] for row in kept["rows"]] == ["we", "they"]
    assert (kept["rows"][1]["ratio"], kept["rows"][1]["state"]) == (4.0, "correct")
    assert kept["missing"] == [{"name": "nobody", "why": "not installed; pip install nobody"}]
    assert Path("drawn/bench-sums-cpu.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_answer_fails_the_command(offered):
    offered(made(taking("they", [0.1] * 3, found=5)))
    answer = regard("bench", "--rounds", 3, "--threads", 1, "--device", "cpu", "--plot", ".")
    assert answer.exit_code == 1
    assert "WRONG: found 5" in answer.stdout
    assert answer.stderr == "FAILED: sums: two and two: they: found 5\n"
    assert json.loads(Path("bench/bench-sums-cpu.json").read_text())["rows"][1]["state"] == "wrong"


def test_a_work_that_cannot_be_measured_here_says_so_and_writes_nothing(offered):
    offered(MissingPeer("everybody", "stand elsewhere"))
    assert assert_done(regard("bench", "--threads", 1)) == "not measured: everybody: stand elsewhere\n"
    assert not Path("bench").exists()


def test_the_list_names_every_work_and_a_strange_one_is_refused():
    listed = assert_done(regard("bench", "--list"))
    assert [line.split()[0] for line in listed.splitlines()] == list(benchmarks.BENCHMARKS)
    assert_refused(
        regard("bench", "flying"), "no benchmark is called 'flying'; there are attention, layer, additive, train"
    )
    Path("full").write_text("")
    assert_refused(
        regard("bench", "layer", "--out", "full"), f"{Path('full')}: is a file, not a folder; choose another"
    )


def test_without_a_checkout_decoding_cannot_be_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(decoding, "SCRIPT", tmp_path / "nowhere.py")
    printed = assert_done(regard("bench", "decode", "--quick", "--threads", 1))
    assert printed == (
        f"not measured: all: there is no {tmp_path}/nowhere.py; install Regard from a checkout of it: "
        "pip install -e .\n"
    )


def test_nothing_is_run_that_lies_where_one_stands(monkeypatch):
    received: list[BenchmarkSettings] = []
    work = Benchmark("sums", "two and two", "ms", lambda setting: (received.append(setting), iter(()))[1])
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"sums": work})
    assert_done(regard("bench", "sums", "--threads", 1))
    for path in (decoding.SCRIPT, received[0].peers):
        assert path.is_absolute()
        assert not path.is_relative_to(Path.cwd())


@pytest.mark.parametrize("work", ["attention", "layer", "additive"])
def test_attention_is_right_and_so_are_the_others(work):
    assert_done(regard("bench", work, "--quick", "--rounds", 1, "--threads", 1, "--device", "cpu"))
    rows = json.loads(Path(f"bench/bench-{work}-cpu.json").read_text())["rows"]
    assert len(rows) > 1
    assert all(row["state"] == "correct" for row in rows)
    assert all(row["ours"] or row["ratio"] > 0 for row in rows)


# --- training ---


def texts_of(tmp_path) -> tuple[dict, int]:
    """A little of the world, ready to train on, and how many subwords it has."""
    some = list(
        {pair[0]: SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 211, "train")}.values()
    )
    texts = write_texts(some, some[:23], tmp_path / "texts", subwords=401)
    lines = [line for side in ("source", "target") for line in (texts.folder / f"train.{side}").read_text().split()]
    assert len(set(lines)) == texts.tokens == len(texts.vocabulary.read_text().split())
    return texts.plan(), len(lines)


def tiny(tmp_path) -> tuple[dict, int]:
    """A plan for a model that trains in no time on one batch of all there is."""
    plan, total = texts_of(tmp_path)
    plan |= {"layers": 1, "model": 16, "heads": 2, "hidden": 24, "dropout": 0.1, "tokens": 10**6, "longest": 256}
    plan |= {"rate": 1e-2, "smoothing": 0.1, "clip": 1.0, "seed": 1, "device": "cpu", "threads": 1, "steps": 7}
    return plan, total


def weights_of(plan: dict) -> int:
    """One table and its bias, 2 and 3 norms in the layers and one behind each stack, 3 attentions, 2 feed-forwards."""
    width, hidden = plan["model"], plan["hidden"]
    attention, thinking = 4 * (width * width + width), 2 * width * hidden + width + hidden
    return plan["words"] * (width + 1) + 7 * 2 * width + 3 * attention + 2 * thinking


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # nn.Transformer, of its own norms
@pytest.mark.parametrize("name", TRAINERS)
def test_every_piece_is_counted_once_an_epoch_and_something_is_learnt(name, tmp_path):
    plan, total = tiny(tmp_path)
    watch = Stopwatch()
    loss, weights = TRAINERS[name](plan | {"folder": str(tmp_path / "model")}, watch)
    assert watch.tokens == [total] * plan["steps"]  # all fit into one batch
    assert sorted(watch.ends) == watch.ends
    assert 0 < loss < math.log(plan["words"])
    assert weights == weights_of(plan)


def peer(folder: Path, outcome: dict | None) -> Path:
    """A toolkit that answers thus, or not at all."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    code = "import json, sys\nplan = json.load(open(sys.argv[3]))\n"
    code += (
        f"json.dump({outcome!r}, open(plan['answer'], 'w'))\n"
        if outcome
        else "sys.exit('ValueError: no such optimiser')\n"
    )
    python.write_text(f"#!{sys.executable} -S\n{code}")
    python.chmod(0o755)
    return python


def test_other_toolkits_are_asked_in_their_own_environments(setting, monkeypatch):
    monkeypatch.setattr(training, "WORLD", replace(training.WORLD, sentences=211))
    ends, tokens = [float(n) for n in range(12)], [100 + n for n in range(12)]
    peer(
        setting.peers / "joeynmt",
        {"ends": ends, "cpu_seconds": [n / 2 for n in ends], "tokens": tokens, "loss": 5.5, "weights": 7},
    )
    peer(setting.peers / "opennmt", None)
    (case,) = train(setting)
    assert isinstance(case, Case)
    joeynmt, opennmt = case.peers[1:]
    found = joeynmt.run()
    assert (found.seconds, found.amount) == (10.0 - 4.0, sum(range(105, 111)))  # neither the first five nor the last
    assert found.output == TrainingResult(5.5, 7, found.amount / 3.0)
    with pytest.raises(RuntimeError, match=r"^ValueError: no such optimiser; see .*log$"):
        opennmt.run()
    (missing,) = case.missing
    assert missing.name == "eole"
    assert missing.why.endswith(f"benchmarks/peers.sh {setting.peers} eole creates it")


def test_a_run_of_too_few_steps_has_no_speed(tmp_path):
    (tmp_path / "answer.json").write_text(json.dumps({"ends": [1.0] * 6, "tokens": [1] * 6, "loss": 1, "weights": 1}))
    with pytest.raises(RuntimeError, match="only 6 steps were completed"):
        read_result(tmp_path / "answer.json")


@pytest.mark.parametrize(
    ("theirs", "ours", "right"),
    [
        (5.0, 5.0, True),
        (5.0, 5.2, True),
        (5.0, 5.3, False),
        (6.2, 5.0, True),
        (6.3, 5.0, False),
        (float("nan"), 5.0, False),
    ],
)
def test_who_learnt_less_is_wrong(theirs, ours, right):
    assert judge(TrainingResult(theirs, 1, 1.0), TrainingResult(ours, 1, 1.0)).correct == right


@pytest.mark.slow
@pytest.mark.parametrize("name", train_peers.PEERS)
def test_a_toolkit_that_is_installed_counts_as_we_do(name, tmp_path):
    """All sentences fit into one batch, so that all read all subwords in every step."""
    python = Path(__file__).parents[2] / "out" / "peers" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}; make peers")
    plan, total = tiny(tmp_path)
    (tmp_path / "model").mkdir()
    plan |= {"folder": str(tmp_path / "model"), "answer": str(tmp_path / "answer.json")}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = [python, train_peers.__file__, name, tmp_path / "plan.json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["tokens"] == [total] * plan["steps"]
    assert 0 < answer["loss"] < math.log(plan["words"])
    ours = weights_of(plan)
    assert abs(answer["weights"] - ours) < 0.1 * ours  # a bias more or less
