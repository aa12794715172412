"""Decoding benchmark: beam search by Regard, Hugging Face and CTranslate2 with the same weights.

The model and the exporters are those of benchmarks/decoding_peers.py, which is loaded by its path: only an installation
from a checkout of the repository (pip install -e) can run this benchmark.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import torch

from regard.cli.benchmarks.harness import (
    CHECKOUT,
    BenchmarkSettings,
    Case,
    Implementation,
    MissingPeer,
    TimingSample,
    Verdict,
    clock,
    missing_package,
)
from regard.decode import Beam, prepare, translate

BEAM, ROUNDS, WARM = 4, 5, 1
LAYERS, LAYERS_QUICK = 6, 1
SCRIPT = CHECKOUT / "benchmarks" / "decoding_peers.py"
# the share of the translations that must equal float32 beam search; lower precision changes near ties
MIN_EQUAL_SHARE = {"float32": 0.95, "bfloat16": 0.5, "int8": 0.5}

Ids = tuple[int, ...]
Translate = Callable[[Sequence[Ids]], list[Ids]]


@dataclass(frozen=True)
class DecodingSetup:
    """The precision of the weights, and the batch size."""

    precision: str
    batch: int


def decoding_setups(setting: BenchmarkSettings) -> list[DecodingSetup]:
    if setting.quick:
        return [DecodingSetup("float32", 2)]
    if setting.device.startswith("cuda"):
        return [DecodingSetup("bfloat16", batch) for batch in (1, 32, 256)]
    return [DecodingSetup(precision, batch) for precision in ("float32", "int8") for batch in (1, 32)]


def decode(setting: BenchmarkSettings) -> Iterator[Case | MissingPeer]:
    peers = script()
    if peers is None:
        yield MissingPeer("all", f"there is no {SCRIPT}; install Regard from a checkout of it: pip install -e .")
        return
    model = peers.copier(layers=LAYERS_QUICK if setting.quick else LAYERS).to(setting.device)
    for kind in decoding_setups(setting):
        sources = peers.sources(kind.batch, seed=kind.batch)
        right = ours(model, "float32")(sources)
        missing, others = [], []
        for name, module, make in peer_translators(peers, model, kind.precision, setting):
            if lacking := missing_package(name, module):
                missing.append(lacking)
            else:
                others.append(timed_translation(name, make(), sources, setting))
        way = timed_translation("regard", ours(model, kind.precision), sources, setting)
        judge = compare_tokens(right, MIN_EQUAL_SHARE[kind.precision])
        name = f"{kind.precision}, beam {BEAM}, batch {kind.batch}, {setting.threads} threads"
        yield Case(name, (way,), tuple(others), tuple(missing), judge, ROUNDS, WARM)


def script() -> ModuleType | None:
    if not SCRIPT.exists():
        return None
    spec = spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module
    spec.loader.exec_module(module)
    return module


def ours(model: torch.nn.Module, precision: str) -> Translate:
    ready = prepare(model, precision)  # type: ignore[arg-type]
    return lambda sources: [found[0].ids for found in translate(ready, sources, Beam(BEAM))]


def peer_translators(
    peers: ModuleType, model: torch.nn.Module, precision: str, setting: BenchmarkSettings
) -> list[tuple[str, str, Callable[[], Translate]]]:
    """Name, module and constructor of every peer that supports the precision."""
    found: list[tuple[str, str, Callable[[], Translate]]] = []
    if precision != "int8":
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
        hugging_face = lambda: peers.hugging_face(peers.marian(model, setting.device, dtype), BEAM)  # noqa: E731
        found.append(("transformers", "transformers", hugging_face))
    if setting.device == "cpu":
        made = lambda: peers.ctranslate2(model, BEAM, precision, setting.threads)  # noqa: E731
        found.append(("ctranslate2", "ctranslate2", made))
    return found


def timed_translation(name: str, run: Translate, sources: Sequence[Ids], setting: BenchmarkSettings) -> Implementation:
    def go() -> TimingSample:
        began = clock(setting.device)
        with torch.no_grad():
            found = run(sources)
        return TimingSample(clock(setting.device) - began, sum(len(ids) + 1 for ids in found), found)

    return Implementation(name, go)


def compare_tokens(right: Sequence[Ids], min_share: float) -> Callable[[Sequence[Ids], Sequence[Ids]], Verdict]:
    def judge(found: Sequence[Ids], _: Sequence[Ids]) -> Verdict:
        same = sum(one == other for one, other in zip(found, right, strict=True)) / len(right)
        return Verdict(f"{same:.0%} of the sequences equal float32 beam search", correct=same >= min_share)

    return judge
