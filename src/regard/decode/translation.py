"""Translation: as many sources or texts as there are in batches, or a large file into pairs; and unknown words."""

import json
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.data.files import chunks, make_folder, write_text_atomic
from regard.data.parallel import SentencePair, write_pairs
from regard.data.tokenizers.base import UNK, LosslessTokenizer, Tokenizer
from regard.decode.quantize import prepare
from regard.decode.search import (
    Constraints,
    DecodingRequest,
    Hypothesis,
    Ids,
    Search,
    make_requests,
    search_batch,
)
from regard.models.seq2seq import DecodableModel

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

Span = tuple[int, int]
AlignedWord = tuple[Span, Span | None]  # where a word of the translation stands, and the source word it is linked to
Candidate = tuple[str, float]  # a translation and its score

WINDOW = 1000  # lines that share batches: the first of a long text are ready before the last are read
LINE_BREAKS = str.maketrans("\n\r", "  ")  # a model of characters may produce them, and one line would become two
CELL_BREAKS = str.maketrans("\t\n\r", "   ")  # what would end a cell of a .tsv
SHARD_SENTENCES = 4096  # of a large file, translated and written together: a killed translation loses one shard
SORTED_SENTENCES = 2**20  # sorted by length together: batches of a shard are alike, and so are shards one after another


def translate_all(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """As many sources as there are, in batches of at most `tokens` source tokens × beams, in the order given.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("the cat sleeps", "a dog", "the dog")]
        >>> found = translate_all(translator.model, sources, Beam(2), tokens=16)
        >>> len(found), found[1][0].ids == translate(translator.model, sources[1:2], Beam(2))[0][0].ids
        (3, True)
    """
    found = dict(translate_as_found(model, sources, search, tokens=tokens, prefixes=prefixes, constraints=constraints))
    return [found[index] for index in range(len(sources))]


def translate_as_found(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """As `translate_all`, each with the index of its source as soon as it is found, the longest sources first.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("a dog", "the cat sleeps", "dog")]
        >>> [index for index, _ in translate_as_found(translator.model, sources, Greedy(), tokens=4)]
        [1, 0, 2]
    """
    requests = make_requests(sources, prefixes)
    yield from translate_requests(prepare(model), requests, search, tokens=tokens, constraints=constraints)


def translate_requests(
    model: DecodableModel,
    requests: Sequence[DecodingRequest],
    search: Search,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of each request with its index, batch by batch."""
    for batch in batch_by_tokens([(len(request.source) + 1) * search.width for request in requests], tokens):
        some = [requests[row] for row in batch]
        found = search_batch(model, some, search, constraints)
        yield from zip((request.index for request in some), found, strict=True)


def batch_by_tokens(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in batches whose padded size, rows × longest, is at most `tokens`; the longest come first.

    One that is over the budget by itself makes a batch of its own.
    """
    if tokens < 1:
        raise ValueError(f"a budget of {tokens} tokens fits nothing; give at least 1")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


# --- texts ---


@dataclass(frozen=True)
class Translation:
    """A translation as text, and its hypothesis."""

    text: str
    hypothesis: Hypothesis


EMPTY_TRANSLATION = Translation("", Hypothesis((), (), finished=True, score=0.0))


def translate_lines(
    translator: "Translator",
    texts: Iterable[str],
    search: Search,
    *,
    tokens: int = 4096,
    model: DecodableModel | None = None,
) -> Iterator[tuple[int, list[Translation]]]:
    """The translations of every text with its index, as soon as they are found; an empty line stays empty.

    Texts are read window by window, so there may be more of them than fit into memory. `model` is the translator's, if
    it has been prepared already.
    """
    model = prepare(translator.model) if model is None else model
    first = 0
    for some in chunks(texts, WINDOW):
        sources = encode_texts(translator.source, some)
        tag = translator.target.first_ids
        window = [DecodingRequest(tuple(source), tag, index) for index, source in enumerate(sources, first)]
        first += len(window)
        yield from ((request.index, [EMPTY_TRANSLATION]) for request in window if not request.source)
        full = [request for request in window if request.source]
        for index, found in translate_requests(model, full, search, tokens=tokens):
            yield index, [Translation(detokenize_line(translator, one.ids), one) for one in found]


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of every text; none where there is nothing but spaces, which a vocabulary may have as tokens."""
    return [ids if text.strip() else [] for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)]


def detokenize_line(translator: "Translator", ids: Sequence[int]) -> str:
    """Detokenised text, on one line."""
    return translator.detokenize(ids).translate(LINE_BREAKS)


def translate_texts(translator: "Translator", texts: Sequence[str], search: Search) -> list[str]:
    """The best translation of every text, in order."""
    found = dict(translate_lines(translator, texts, search))
    return [found[index][0].text for index in range(len(texts))]


def unknown_source_words(translator: "Translator", text: str) -> list[str]:
    """The words of a source text that are not in the vocabulary."""
    return unknown_words(translator.source, text)


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text that are not in a vocabulary."""
    ids, pieces = tokenizer.encode(text), tokenizer.tokens(text)
    return [piece.removeprefix("<unk:").removesuffix(">") for piece, id in zip(pieces, ids, strict=True) if id == UNK]


def unreadable_words(translator: "Translator", text: str) -> list[str]:
    """The words of a source text that the model cannot read: out of the vocabulary, or of letters it has not seen."""
    if not isinstance(translator.source, LosslessTokenizer):
        return unknown_source_words(translator, text)
    knows = word_reader(translator.source)
    return [word for word in text.split() if not knows(word)]


MIN_SHARE = 0.02  # of the letters of a vocabulary that a script must have to be one that the model was trained on
ALPHABETS = frozenset({"LATIN", "GREEK", "CYRILLIC"})  # of words with spaces between them


def word_reader(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a tokenizer has a word, or can spell it with letters that it was trained on.

    A word with another letter, such as Čapek where there is no Č, would be spelt by the bytes of that letter, which
    models of subwords garble. In scripts without spaces, where a word may be a sentence, only the script counts.
    """
    if not isinstance(tokenizer, LosslessTokenizer):
        return lambda word: UNK not in tokenizer.encode(word)
    scripts, letters = known_scripts(tokenizer.pieces), known_letters(tokenizer.pieces)
    if not scripts:
        return know_all

    def knows(letter: str) -> bool:
        script = script_of(letter)
        return script in scripts and (script not in ALPHABETS or letter in letters)

    return lambda word: word.isascii() or all(knows(letter) for letter in word if letter.isalpha())


@lru_cache(maxsize=16)  # a server asks for every request: one vocabulary of each model
def known_letters(pieces: tuple[bytes, ...]) -> frozenset[str]:
    """Those of the pieces, and the same in upper or lower case.

    Examples:
        >>> sorted(known_letters(("é".encode(), b"a")))
        ['A', 'a', 'É', 'é']
    """
    letters = "".join(piece.decode("utf-8", errors="ignore") for piece in pieces)
    return frozenset(other for one in set(letters) if one.isalpha() for other in (one, one.lower(), one.upper()))


@lru_cache(maxsize=16)
def known_scripts(pieces: tuple[bytes, ...]) -> frozenset[str]:
    """Latin, and the scripts of more than a few of the pieces; none if these are single bytes.

    Examples:
        >>> sorted(known_scripts((b"e", b"the", "д".encode(), "да".encode(), b"cat")))
        ['CYRILLIC', 'LATIN']
        >>> known_scripts((b"a", b"b"))
        frozenset()
    """
    texts = [piece.decode("utf-8", errors="ignore") for piece in pieces if len(piece) > 1]
    letters = Counter("".join(texts))  # of each letter once, since the names of letters take long
    counts = Counter[str]()
    for letter, count in letters.items():
        if letter.isalpha():
            counts[script_of(letter)] += count
    return frozenset({"LATIN", *(one for one, n in counts.items() if n > MIN_SHARE * counts.total())} if counts else ())


def script_of(letter: str) -> str:
    """As its Unicode name begins: LATIN, CYRILLIC, CJK."""
    return unicodedata.name(letter, "").partition(" ")[0]


# --- what documents need of a translator ---


def know_all(text: str) -> bool:
    return True


def know_none(text: str) -> bool:
    return False


def count_one(word: str) -> int:
    return 1


@dataclass(frozen=True)
class Ask:
    """A text to translate, and how many translations of it are wanted, best first."""

    text: str
    best: int = 1


@dataclass(frozen=True)
class SentenceTranslator:
    """What a document needs of a translator.

    Args:
        translate: the translations of some sentences.
        fits: whether a sentence is short enough for the model.
        knows: whether the model can read a word; one that it cannot is copied.
        is_common: whether the vocabulary has a word as one piece; upper case is an abbreviation where it has not.
        pieces: as how many pieces the vocabulary has a word; of two ways to write it, a text has the one with fewer.
        align: the words of a translation and the source words they are linked to; without it, a sentence with marks
            inside is translated in pieces.
        n_best: of each text so many translations with their scores, the best first; without it there is one of each,
            and a text is asked for as it stands.
        most: how many of them there are to choose from.
        source: the language to translate from; its abbreviations end no sentence.
        target: the language to translate into.
        report: called with the words that are copied.

    Examples:
        >>> shout = SentenceTranslator(lambda texts: [text.upper() for text in texts])
        >>> translate_document("See `x`, *all* of it, or https://a.org/b. Bye.", shout, "markdown")
        'SEE `x`, *ALL* OF IT, OR https://a.org/b. BYE.'
    """

    translate: Callable[[Sequence[str]], Sequence[str]]
    fits: Callable[[str], bool] = know_all
    knows: Callable[[str], bool] = know_all
    is_common: Callable[[str], bool] = know_none
    pieces: Callable[[str], int] = count_one
    align: Callable[[str, str], Sequence[AlignedWord] | None] | None = None
    n_best: Callable[[Sequence[str], int], Sequence[Sequence[Candidate]]] | None = None
    most: int = 1
    source: str = "en"
    target: str = ""
    report: Callable[[str], object] = know_all

    def answer(self, asked: Sequence[Ask]) -> list[Sequence[Candidate]]:
        """The translations that are asked for; those of which as many are wanted share batches."""
        if self.n_best is None:
            return [[(text, 0.0)] for text in self.translate([one.text for one in asked])]
        found = dict[Ask, Sequence[Candidate]]()
        for best in sorted({one.best for one in asked}):
            some = [one for one in asked if one.best == best]
            found |= zip(some, self.n_best([one.text for one in some], best), strict=True)
        return [found[one] for one in asked]


# --- a large file, into training pairs ---


def first_best(texts: Sequence[str], reference: str) -> int:
    """The default choice among the n best: the search's own."""
    return 0


@dataclass(frozen=True, kw_only=True)
class PairSynthesis:
    """How one side of sentence pairs is translated, so that the translation takes the place of the other side.

    Sequence-level distillation (Kim and Rush 2016) keeps the sources, and the targets become a teacher's;
    back-translation (Sennrich et al. 2016), `reverse`, keeps the targets, and the sources become a model's.

    Args:
        precision: as of `prepare`.
        tokens: of a batch, sources × beams; it changes no result.
        max_length: tokens of a sentence; pairs with a longer one are left out.
        to: the target language, of a translator that knows several.
        choose: which of the n best is taken, given the text of the side that is replaced: interpolated distillation.
    """

    translator: "Translator"
    search: Search
    precision: str = "float32"
    tokens: int = 4096
    max_length: int = 256
    reverse: bool = False
    to: str | None = None
    choose: Callable[[Sequence[str], str], int] = first_best

    @cached_property
    def model(self) -> DecodableModel:
        return prepare(self.translator.model, self.precision)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a translation to go on."""
        return {
            "weights": hash_weights(self.translator.model),
            "search": repr(self.search),
            "precision": self.precision,
            "choice": self.choose.__name__,
            "max_length": self.max_length,
            "reverse": self.reverse,
            "to": self.to,
        }

    def text(self, pair: SentencePair) -> str:
        """The side that is translated."""
        return pair.target if self.reverse else pair.source

    def translate(self, pairs: Sequence[SentencePair]) -> tuple[dict[int, SentencePair], Counter[str]]:
        """The pairs that are made of these, by their index, and why others are left out."""
        texts = list(map(self.text, pairs))
        others = [pair.source if self.reverse else pair.target for pair in pairs]
        translator = self.translator
        sources = translator.source.encode_batch([translator.tag_source(text, self.to) for text in texts])
        requests = [
            DecodingRequest(tuple(ids), translator.target.first_ids, index)
            for index, ids in enumerate(sources)
            if 0 < len(ids) <= self.max_length
        ]
        found = dict(translate_requests(self.model, requests, self.search, tokens=self.tokens))
        made, left_out = dict[int, SentencePair](), Counter[str]()
        for index, (text, other) in enumerate(zip(texts, others, strict=True)):
            ended = [detokenize_line(translator, one.ids) for one in found.get(index, ()) if one.finished]
            ended = [one for one in ended if one.strip()]
            if not ended:
                length = len(sources[index])
                why = "unfinished" if index in found else "long" if length else "empty"
                left_out[why] += 1
                continue
            kept, new = text.translate(CELL_BREAKS), ended[self.choose(ended, other)].translate(CELL_BREAKS)
            made[index] = SentencePair(new, kept) if self.reverse else SentencePair(kept, new)
        return made, left_out


def hash_weights(model: nn.Module) -> str:
    """A checksum of a model's weights, the same on every device."""
    found = sha256()
    for name, weight in model.state_dict().items():
        found.update(name.encode())
        found.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class SynthesisReport:
    """How many sentences were read, how many pairs were made of them, and why others are left out."""

    read: int
    pairs: int
    left_out: Mapping[str, int]


def never() -> bool:
    """The default: nobody asks to stop."""
    return False


def synthesize_pairs(
    pairs: Iterable[SentencePair],
    how: PairSynthesis,
    out: Path,
    *,
    stop: Callable[[], bool] = never,
    progress: Callable[[int], object] = int,
) -> SynthesisReport | None:
    """Translates a side of all pairs and writes those that are made; None if it was asked to stop before the end.

    Shards of some thousand sentences of about the same length, the longest first, are written at once or not at all,
    into a folder beside `out` that goes at the end; the pairs have the order of the sentences. So a translation that
    was killed goes on with the first shard that is missing, and ends with the same bytes.
    """
    folder = out.with_name(f"{out.name}.parts")
    check_request(folder, how.identity)
    windows: list[list[Path]] = []
    done = 0
    for some in chunks(pairs, SORTED_SENTENCES, lambda _: 1):
        windows.append([])
        order = sorted(range(len(some)), key=lambda row: -len(how.text(some[row])))
        for first in range(0, len(order), SHARD_SENTENCES):
            rows = order[first : first + SHARD_SENTENCES]
            path = folder / f"{len(windows) - 1:03d}-{len(windows[-1]):05d}.json"
            shard = {row: some[row] for row in rows}
            digest = sha256(repr(shard).encode()).hexdigest()
            if not path.exists():
                if stop():
                    return None
                write_translations(path, shard, how, digest)
            elif json.loads(path.read_bytes())["input"] != digest:
                raise ValueError(f"{path} holds translations of other sentences; remove {folder}")
            windows[-1].append(path)
            done += len(rows)
            progress(done)
    left_out = Counter[str]()

    def read() -> Iterator[SentencePair]:
        for paths in windows:
            shards = [json.loads(path.read_bytes()) for path in paths]
            for one in shards:
                left_out.update(one["left out"])
            yield from (SentencePair(*sides) for _, *sides in sorted(row for one in shards for row in one["pairs"]))

    written = write_pairs(read(), out)
    shutil.rmtree(folder)
    return SynthesisReport(done, written.pairs, dict(left_out))


def check_request(folder: Path, identity: Mapping[str, Any]) -> None:
    """Begins a folder of shards, or refuses one of another request."""
    path = folder / "request.json"
    if not path.exists():
        make_folder(folder)
        write_text_atomic(path, json.dumps(identity, indent=1) + "\n")
        return
    saved = json.loads(path.read_bytes())
    if changed := [name for name, value in identity.items() if saved.get(name) != value]:
        raise ValueError(
            f"{folder} holds a translation with other {' and '.join(changed)}; remove it, or choose another --out"
        )


def write_translations(path: Path, shard: Mapping[int, SentencePair], how: PairSynthesis, digest: str) -> None:
    """The pairs made of these, with their rows, and why others are left out."""
    made, left_out = how.translate(list(shard.values()))
    rows = list(shard)
    pairs = [[rows[index], pair.source, pair.target] for index, pair in made.items()]
    content = {"input": digest, "left out": left_out, "pairs": pairs}
    write_text_atomic(path, json.dumps(content, ensure_ascii=False) + "\n")
