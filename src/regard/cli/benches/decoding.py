"""Sentences of made words in; beam search by us, Hugging Face and CTranslate2 with the same weights, to be timed, out.

The model and the exporters are those of benchmarks/decoding_peers.py, which is read as a file where it lies: only what
is installed from a checkout of the repository (pip install -e) can measure this work.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import torch

from regard.cli.benches.calling import absent, clock
from regard.cli.benches.work import CHECKOUT, Case, Missing, Setting, Turn, Verdict, Way
from regard.decode import Beam, prepare, translate

BEAM, ROUNDS, WARM = 4, 5, 1
LAYERS, LAYERS_QUICK = 6, 1
SCRIPT = CHECKOUT / "benchmarks" / "decoding_peers.py"
# the part of the translations that must be our float32 search's own, token for token; narrow numbers tip close calls
SAME = {"float32": 0.95, "bfloat16": 0.5, "int8": 0.5}

Ids = tuple[int, ...]
Translate = Callable[[Sequence[Ids]], list[Ids]]


@dataclass(frozen=True)
class Kind:
    """Numbers that the weights are kept in, and how many sentences at once."""

    precision: str
    batch: int


def kinds(setting: Setting) -> list[Kind]:
    if setting.quick:
        return [Kind("float32", 2)]
    if setting.device.startswith("cuda"):
        return [Kind("bfloat16", batch) for batch in (1, 32, 256)]
    return [Kind(precision, batch) for precision in ("float32", "int8") for batch in (1, 32)]


def decode(setting: Setting) -> Iterator[Case | Missing]:
    peers = script()
    if peers is None:
        yield Missing("everybody", f"there is no {SCRIPT}; install Regard from a checkout of it: pip install -e .")
        return
    model = peers.copier(layers=LAYERS_QUICK if setting.quick else LAYERS).to(setting.device)
    for kind in kinds(setting):
        asked = peers.sources(kind.batch, seed=kind.batch)
        right = ours(model, "float32")(asked)
        missing, others = [], []
        for name, module, make in rivals(peers, model, kind.precision, setting):
            if lacking := absent(name, module):
                missing.append(lacking)
            else:
                others.append(translating(name, make(), asked, setting))
        way = translating("regard", ours(model, kind.precision), asked, setting)
        judge = judging(right, SAME[kind.precision])
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
    return lambda asked: [found[0].ids for found in translate(ready, asked, Beam(BEAM))]


def rivals(
    peers: ModuleType, model: torch.nn.Module, precision: str, setting: Setting
) -> list[tuple[str, str, Callable[[], Translate]]]:
    """Name, module and maker of everybody who can keep weights in such numbers."""
    found: list[tuple[str, str, Callable[[], Translate]]] = []
    if precision != "int8":
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
        hugging_face = lambda: peers.hugging_face(peers.marian(model, setting.device, dtype), BEAM)  # noqa: E731
        found.append(("transformers", "transformers", hugging_face))
    if setting.device == "cpu":
        made = lambda: peers.ctranslate2(model, BEAM, precision, setting.threads)  # noqa: E731
        found.append(("ctranslate2", "ctranslate2", made))
    return found


def translating(name: str, run: Translate, asked: Sequence[Ids], setting: Setting) -> Way:
    def go() -> Turn:
        began = clock(setting.device)
        with torch.no_grad():
            found = run(asked)
        return Turn(clock(setting.device) - began, sum(len(ids) + 1 for ids in found), found)

    return Way(name, go)


def judging(right: Sequence[Ids], least: float) -> Callable[[Sequence[Ids], Sequence[Ids]], Verdict]:
    def judge(found: Sequence[Ids], _: Sequence[Ids]) -> Verdict:
        same = sum(one == other for one, other in zip(found, right, strict=True)) / len(right)
        return Verdict(f"{same:.0%} the same as our float32 search", right=same >= least)

    return judge
