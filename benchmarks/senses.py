"""Word senses: whether a word's nearest occurrence has the same meaning, by static and by contextual vectors.

    python benchmarks/senses.py world                      the miniature world, whose ambiguous words have gold readings
    python benchmarks/senses.py ewt --data FOLDER          UD English-EWT: words that are tagged in several ways

Both are trained on training sentences; what is counted are words of held-out ones. Of each ambiguous word, is the
occurrence nearest to it one of the same meaning? Skip-gram has one vector for all, so it can only guess among them.
Writes results/senses-*.json and docs/pictures/senses-*.png.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import normalize

from machine import write
from regard import see
from regard.data.corpora import corpus_path
from regard.data.labelled import read_tagged
from regard.models.baselines import SkipGram, WordVectors, train_vectors
from regard.models.config import EncoderConfig
from regard.models.encoder import MaskedLMConfig, Occurrences, train_masked_lm
from regard.world import World

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
ENOUGH = 5  # occurrences of each of two meanings, or a word is not counted
SHOWN = {"world": "light", "ewt": "work"}
GRU = EncoderConfig(kind="gru", layers=1, model=64, hidden=128, directions=2, dropout=0.0)
LEARNT = {
    "world": (SkipGram(width=48, window=3), MaskedLMConfig(encoder=GRU, steps=1200)),
    "ewt": (SkipGram(width=64, window=5, min_count=3), MaskedLMConfig(encoder=GRU, steps=1500, batch=48, size=6000)),
}
Meant = dict[tuple[int, int], str]  # by sentence and place, the meaning of a word


@dataclass(frozen=True)
class Text:
    """Training sentences, held-out ones, and the senses of the ambiguous words of those."""

    train: Sequence[Sequence[str]]
    held_out: Sequence[Sequence[str]]
    meant: Meant


def of_world(data: Path | None) -> Text:
    world = World()
    held_out = [world.sentence(number, "valid") for number in range(3000)]
    meant = {(n, one.index): one.sense for n, sentence in enumerate(held_out) for one in sentence.ambiguities}
    train = [world.sentence(number).words for number in range(20_000)]
    return Text(train, [sentence.words for sentence in held_out], meant)


def of_ewt(data: Path | None) -> Text:
    """A word's tag is the coarsest of meanings, but people have checked it."""
    train, held_out = (list(read_tagged(corpus_path("ud_english_ewt", part, data))) for part in ("train", "valid"))
    words = [[word.lower() for word in sentence.words] for sentence in (*train, *held_out)]
    tags = [sentence.tags for sentence in held_out]
    meant = {(n, at): tag for n, these in enumerate(tags) for at, tag in enumerate(these)}
    return Text(words[: len(train)], words[len(train) :], meant)


def ambiguous(seen: Occurrences, meant: Meant) -> dict[str, list[int]]:
    """The rows of words that are meant in two ways at least, often enough to be counted, by word."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, (word, place) in enumerate(zip(seen.words, seen.positions, strict=True)):
        if place in meant:
            rows[word].append(row)
    often = {word: Counter(meant[seen.positions[row]] for row in found) for word, found in rows.items()}
    return {word: rows[word] for word, senses in often.items() if sum(n >= ENOUGH for n in senses.values()) > 1}


def counted(seen: Occurrences, meant: Meant) -> list[dict[str, Any]]:
    """For each ambiguous word: how often chance finds another of its meaning, and how often the nearest vector does."""
    found = []
    for word, rows in ambiguous(seen, meant).items():
        senses = Counter(meant[seen.positions[row]] for row in rows)
        chance = sum(n * (n - 1) for n in senses.values()) / (len(rows) * (len(rows) - 1))
        pairs = [pair for pair in seen.nearest_same_word(word) if all(seen.positions[row] in meant for row in pair)]
        right = sum(meant[seen.positions[one]] == meant[seen.positions[other]] for one, other in pairs)
        found.append(
            {"word": word, "senses": dict(senses), "chance": 100 * chance, "in context": 100 * right / len(pairs)}
        )
    return sorted(found, key=lambda row: -sum(row["senses"].values()))


def draw(name: str, static: WordVectors, seen: Occurrences, text: Text) -> None:
    word = SHOWN[name]
    rows = [row for row in seen.of(word) if seen.positions[row] in text.meant]
    meanings = [text.meant[seen.positions[row]] for row in rows]
    often = [sense for sense, count in Counter(meanings).most_common(3) if count >= ENOUGH]
    by_sense = [[row for row, one in zip(rows, meanings, strict=True) if one == sense] for sense in often]
    usual = [most_typical(seen, some) for some in by_sense]
    titles = [" ".join(around(text.held_out[seen.positions[row][0]], seen.positions[row][1])) for row in usual]
    lists = [(title, seen.neighbours(row)) for title, row in zip(titles, usual, strict=True)]
    view = see.nearest_neighbours_view([(word, static.neighbours(word))], lists)
    print(see.ascii(view))
    see.save(see.draw(view), PICTURES / f"senses-{name}-neighbours.png")
    kept = [row for row, meaning in zip(rows, meanings, strict=True) if meaning in often]
    plane = see.senses_view(seen.vectors[kept], [text.meant[seen.positions[row]] for row in kept], title=word)
    see.save(see.draw(plane), PICTURES / f"senses-{name}.png")


def most_typical(seen: Occurrences, rows: list[int]) -> int:
    """The occurrence whose vector points most nearly the way of all."""
    units = normalize(seen.vectors[rows], dim=-1)
    return rows[int((units @ units.mean(0)).argmax())]


def around(words: Sequence[str], at: int) -> Sequence[str]:
    return words[max(0, at - 4) : at + 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=LEARNT)
    parser.add_argument("--data", type=Path, help="the folder of known corpora")
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = {"world": of_world, "ewt": of_ewt}[given.name](given.data)
    skip_gram, fill_in = LEARNT[given.name]
    static, reader = train_vectors(text.train, skip_gram), train_masked_lm(text.train, fill_in)
    seen = reader.read(text.held_out)
    rows = counted(seen, text.meant)
    table = Table("word", "meanings", "one vector", "in context")
    for row in rows:
        senses = ", ".join(f"{sense} {count}" for sense, count in row["senses"].items())
        table.add_row(row["word"], senses, f"{row['chance']:.0f} %", f"{row['in context']:.0f} %")
    Console().print(table)
    weights = [sum(row["senses"].values()) for row in rows]
    total = {
        name: sum(row[name] * weight for row, weight in zip(rows, weights, strict=True)) / sum(weights)
        for name in ("chance", "in context")
    }
    print(f"{sum(weights):,} occurrences of {len(rows)} words: {total}")
    command = f"python benchmarks/senses.py {given.name}{' --data FOLDER' if given.data else ''}"
    print(write(f"senses-{given.name}", command, rows, total=total, occurrences=sum(weights)))
    draw(given.name, static, seen, text)


if __name__ == "__main__":
    main()
