"""Sentences through a latent of fixed size: with and without an attention bottleneck, in latents of the same size.

    python benchmarks/autoencoder.py          trains and measures, writes results/autoencoder.json after every run
    python benchmarks/autoencoder.py draw     draws what was measured into docs/pictures and writes it into the lesson

Every figure is of test sentences, which hold compositions that occur in no training sentence; settings were chosen on
validation sentences, but for the number of steps, which was raised after a run of 1,200 steps was measured on test
sentences. Seconds are those of one core at work on the training, so that other work does not count.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import RESULTS, write
from regard.attention import record_attention
from regard.data.batching import TokenBatchSampler, collate, pair_lengths
from regard.data.tokenizers.base import EOS, WordTokenizer
from regard.decode import Greedy
from regard.decode.translation import translate_all
from regard.models.autoencoder import Autoencoder, AutoencoderConfig, build_autoencoder
from regard.models.seq2seq import count_parameters
from regard.see.plots.charts import principal_components
from regard.tasks.autoencoding.task import decode_latents, encode_latents, interpolate_latents
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.training.config import TrainConfig
from regard.training.corpus import Corpus
from regard.training.loop import train
from regard.training.step import CosineSchedule
from regard.world import Sentence, World

NAME, COMMAND = "autoencoder", "python benchmarks/autoencoder.py"
DOCS = Path(__file__).parent.parent / "docs"
PICTURES, LESSON = DOCS / "pictures", DOCS / "14-autoencoder.md"
START, STOP = "<!-- {}: python benchmarks/autoencoder.py draw -->\n", "<!-- end of {} -->"
WORLD = World(max_length=8)
SENTENCES, TESTS, SHOWN, SEEDS = 20_000, 500, 120, 3
STEPS, TOKENS, RATE = 2000, 512, 3e-3
SIZES = {"layers": 1, "model": 64, "hidden": 128, "dropout": 0.0}
# kind, bottleneck, latents, and the width of each
RUNS = [
    ("transformer", "mean", 1, 128),
    ("transformer", "attention", 4, 32),
    ("gru", "last", 1, 128),
    ("gru", "attention", 4, 32),
    ("transformer", "mean", 1, 32),
    ("transformer", "attention", 4, 8),
    ("transformer", "mean", 4, 32),
]
BEGINNINGS = {"PROPN": "a name", "PRON": "a pronoun", "DET": "a determiner"}
DRAWN = ("transformer", "attention", 4, 32)
ENDS = (("the black cat ate the mouse", "the girl is happy"), ("she sold a book", "the old man will sleep"))


@dataclass(frozen=True, eq=False)
class Data:
    words: WordTokenizer
    train: list[list[int]]
    tests: list[Sentence]

    @staticmethod
    def made() -> "Data":
        texts = [" ".join(WORLD.sentence(n).words) for n in range(SENTENCES)]
        words = WordTokenizer.train(texts)
        return Data(words, words.encode_batch(texts), [WORLD.sentence(n, "test") for n in range(TESTS)])

    def held_out(self) -> list[list[int]]:
        return self.words.encode_batch([" ".join(sentence.words) for sentence in self.tests])


def trained(data: Data, run: tuple[str, str, int, int], seed: int) -> tuple[Autoencoder, float]:
    """A model, and the seconds it took."""
    kind, bottleneck, latents, latent = run
    torch.manual_seed(seed)
    config = AutoencoderConfig(kind=kind, bottleneck=bottleneck, latents=latents, latent=latent, **SIZES)
    model, examples = build_autoencoder(config, data.words.size), [(ids, ids) for ids in data.train]
    corpus = Corpus(examples, TokenBatchSampler(pair_lengths(examples), tokens=TOKENS, seed=seed), collate)
    plan = TrainConfig(CosineSchedule(RATE, STEPS, 100), STEPS, seed=seed, checkpoint_every=STEPS)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        reports = train(model, corpus, LabelSmoothingLoss(), plan, Path(folder))
        title = f"{kind} {bottleneck} {latents} × {latent}, seed {seed}"
        for _ in track(reports, title, STEPS, console=Console(stderr=True), transient=True):
            pass
    return model, time.process_time() - began


def measured(model: Autoencoder, tests: list[list[int]]) -> dict[str, float]:
    """Shares of sentences that come back as they were, and of words that come back in their places."""
    found = [one[0].ids for one in translate_all(model, tests, Greedy())]
    right = sum(list(ids) == test for ids, test in zip(found, tests, strict=True))
    placed = sum(a == b for ids, test in zip(found, tests, strict=True) for a, b in zip(ids, test, strict=False))
    return {"sentences": right / len(tests), "words": placed / sum(map(len, tests))}


def shown(model: Autoencoder, data: Data) -> dict[str, Any]:
    """The latent picture, which words entered which latent, and sentences from points between two."""
    tests, tokens = data.held_out(), data.words
    points, shares = principal_components(encode_latents(model, tests[:SHOWN]).flatten(1))
    cat = tokens.encode(ENDS[0][0])
    with record_attention(model) as record:
        model.encode_latent(torch.tensor([[*cat, EOS]]), torch.tensor([len(cat) + 1]))
    lines = []
    for ends in ENDS:
        one, other = encode_latents(model, [tokens.encode(text) for text in ends])
        lines.append(
            [tokens.decode(found[0].ids) for found in decode_latents(model, interpolate_latents(one, other, 7))]
        )
    return {
        "points": [[round(x, 4) for x in point] for point in points.tolist()],
        "shares": shares,
        "texts": [" ".join(one.words) for one in data.tests[:SHOWN]],
        "begin": [BEGINNINGS.get(one.tags[0], "another word") for one in data.tests[:SHOWN]],
        "words": [*ENDS[0][0].split(), "(end)"],
        "entered": [[round(x, 4) for x in row] for row in record.weights("bottleneck")[0].mean(0).tolist()],
        "between": lines,
    }


def main() -> None:
    torch.set_num_threads(1)
    data, found, pictures = Data.made(), {run: [] for run in RUNS}, {}
    rows, path = [], None
    for seed in range(SEEDS):
        for run in RUNS:
            model, seconds = trained(data, run, seed)
            found[run].append(
                {**measured(model, data.held_out()), "seconds": seconds, "weights": count_parameters(model)}
            )
            if run == DRAWN and seed == 0:
                pictures = shown(model, data)
            rows = [summed_up(run, seeds) for run, seeds in found.items() if seeds]
            path = write(NAME, COMMAND, rows, steps=STEPS, tokens=TOKENS, tests=TESTS, shown=pictures)
    Console().print(table(rows))
    print(path)


def summed_up(run: tuple[str, str, int, int], seeds: list[dict[str, Any]]) -> dict[str, Any]:
    kind, bottleneck, latents, latent = run
    means = {name: fmean(one[name] for one in seeds) for name in seeds[0]}
    spread = {f"{name}_by_seed": [one[name] for one in seeds] for name in ("sentences", "words")}
    sizes = {"latents": latents, "latent": latent, "numbers": latents * latent}
    return {"kind": kind, "bottleneck": bottleneck, **sizes, **means, **spread}


def table(rows: list[dict[str, Any]]) -> Table:
    made = Table("model", "bottleneck", "latent", "sentences", "by seed", "words", "weights", "seconds")
    for row in rows:
        by_seed = ", ".join(f"{100 * share:.1f}" for share in row["sentences_by_seed"])
        made.add_row(
            row["kind"],
            row["bottleneck"],
            f"{row['latents']} × {row['latent']}",
            f"{100 * row['sentences']:.1f} %",
            by_seed,
            f"{100 * row['words']:.1f} %",
            f"{row['weights']:,.0f}",
            f"{row['seconds']:.0f}",
        )
    return made


def draw() -> None:
    from regard import see
    from regard.see.plots.charts import plane_view

    drawn = json.loads((RESULTS / f"{NAME}.json").read_text())["shown"]
    labels = [f"begins with {kind}" for kind in drawn["begin"]]
    picture = plane_view(torch.tensor(drawn["points"]), tuple(drawn["shares"]), labels, drawn["texts"])
    see.save(see.draw(picture), PICTURES / "latents.png")
    LESSON.write_text(with_figures(LESSON.read_text(encoding="utf-8")), encoding="utf-8")
    names = [f"latent {n}" for n in range(len(drawn["entered"]))]
    see.save(
        see.draw(torch.tensor(drawn["entered"]), tokens=drawn["words"], queries=names), PICTURES / "bottleneck.png"
    )


def with_figures(page: str) -> str:
    """The lesson with the measured figures, and the sentences between two, in their places."""
    found = json.loads((RESULTS / f"{NAME}.json").read_text())
    lines = ["| model | bottleneck | latent | sentences (by seed) | words | weights |", "| --- " * 6 + "|"]
    for row in found["rows"]:
        by_seed = ", ".join(f"{100 * share:.1f}" for share in row["sentences_by_seed"])
        lines.append(
            f"| {row['kind']} | `{row['bottleneck']}` | {row['latents']} × {row['latent']} | "
            f"{100 * row['sentences']:.1f} % ({by_seed}) | {100 * row['words']:.1f} % | {row['weights']:,.0f} |"
        )
    page = between_marks(page, "figures", lines)
    walks = [
        f"- from *{one}* to *{other}*: {' → '.join(dict.fromkeys(walk))}"
        for (one, other), walk in zip(ENDS, found["shown"]["between"], strict=True)
    ]
    return between_marks(page, "sentences", walks)


def between_marks(page: str, name: str, lines: list[str]) -> str:
    start, stop = START.format(name), STOP.format(name)
    before, rest = page.split(start)
    return before + start + "\n".join(lines) + "\n" + stop + rest.split(stop)[1]


if __name__ == "__main__":
    draw() if sys.argv[1:] == ["draw"] else main()
