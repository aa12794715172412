"""Token files: encoded sentence pairs or running text on disk, memory-mapped: a corpus may be larger than memory.

A prepared corpus is a folder, which `regard data prepare` writes:

    corpus.json            format, languages, counts, and the name, size and checksum of every shard; written last
    source.json, target.json   the tokenizers
    valid.jsonl            pairs that were held out, as text
    00000.tokens, …        the shards, at most some hundreds

One of running text has tokenizer.json and valid.txt instead; its shards are pieces of one stream of ids.

A shard holds, little-endian and each part aligned to 8 bytes:

    header    64 bytes: "REGARDTK", version, bytes of an id, pairs, ids, runs, bytes of info, checksums (CRC-32)
    lengths   (pairs, 2) uint16: ids of the source and of the target, without BOS and EOS
    starts    uint64: where the ids of pairs 0, 64, 128 and so on begin; and the number of ids
    runs      uint32: where each run of pairs of the same two lengths begins; and the number of pairs
    ids       uint16, or uint32 if the vocabulary has more than 65,536: source and target of each pair
    info      JSON: what cleaning removed

A shard of running text has no pairs: no lengths and no runs, and the number of ids is its one start.

Pairs stand in the order of their lengths, (padded width, source - target), so that batches of pairs of about the same
length are slices of it and a random order need be computed for those of a batch alone. A pair of 68 ids takes 140
bytes.
"""

import json
import mmap
import struct
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from regard.data.files import open_atomic, require_file, require_small_file, write_text_atomic
from regard.data.tokenizers.base import BOS

MAGIC, VERSION = b"REGARDTK", 1
HEADER = struct.Struct("<8sIIQQQQII8x")
CORPUS_FORMAT, CORPUS_FILE, HELD_OUT_FILE, HELD_OUT_TEXT = "regard tokens 1", "corpus.json", "valid.jsonl", "valid.txt"
SHARD_SUFFIX = ".tokens"
BLOCK_PAIRS = 64  # pairs whose ids have one start; the lengths of those before it in a block say where a pair begins
MAX_SIDE = 2**16 - 1  # ids of a side
GATHER_PAIRS = 4096  # pairs whose ids are copied at a time
ID_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
LENGTH_DTYPE, START_DTYPE, RUN_DTYPE = np.dtype("<u2"), np.dtype("<u8"), np.dtype("<u4")
MAX_SHARDS = 4096
LOADED_BYTES = 2**29  # of corpora that are read into memory whole, when many pairs at once are asked for
TEXT = "text"  # the content of a corpus that has no pairs

Example = tuple[Sequence[int], Sequence[int]]
Numbers = NDArray[np.int64]


def id_bytes_for(size: int) -> int:
    """Bytes of an id in a vocabulary of this size.

    Examples:
        >>> id_bytes_for(16_000), id_bytes_for(65_536), id_bytes_for(65_537)
        (2, 2, 4)
    """
    return 2 if size <= 2**16 else 4


def padded_width(source: Any, target: Any) -> Any:
    """Columns of the wider tensor of a batch: EOS behind the source, BOS and EOS around the target."""
    return np.maximum(source + 1, target + 2)


# --- shards ---


def write_shard(
    path: Path, lengths: NDArray[Any], ids: NDArray[Any], *, id_bytes: int, info: Mapping[str, Any] | None = None
) -> "ShardInfo":
    """Writes pairs atomically, sorted by their lengths.

    Args:
        lengths: of each pair, how many ids its source and its target have.
        ids: all of them, one pair behind the other, source first.
        info: what else is to be known of the shard, as JSON holds it.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> made = write_shard(Path("00000.tokens"), np.array([[2, 1], [1, 1]]), np.array([5, 6, 7, 8, 9]), id_bytes=2)
        >>> made.pairs, made.bytes
        (2, 128)
        >>> TokenShard.open(Path("00000.tokens"))[0]  # the shortest first
        ([8], [9])
    """
    lengths = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    sizes = lengths.sum(1)
    if len(ids) != sizes.sum() or (len(lengths) and not 0 < lengths.min() <= lengths.max() <= MAX_SIDE):
        raise ValueError(f"{path}: {len(ids)} ids for lengths of {sizes.sum()}, each from 1 to {MAX_SIDE}")
    source, target = lengths.T
    order = np.lexsort((source - target, padded_width(source, target)))
    lengths, at = lengths[order], (np.cumsum(sizes) - sizes)[order]
    cuts = np.flatnonzero((np.diff(lengths, axis=0) != 0).any(1)) + 1
    runs = np.concatenate(([0], cuts, [len(lengths)])) if len(lengths) else np.zeros(1, np.int64)
    begins = np.concatenate(([0], np.cumsum(sizes[order])))
    starts = np.concatenate((begins[:-1:BLOCK_PAIRS], begins[-1:]))
    stored = np.empty(len(ids), require_id_dtype(path, ids, id_bytes))
    for first in range(0, len(order), GATHER_PAIRS):
        part = slice(first, first + GATHER_PAIRS)
        stored[begins[part.start] : begins[min(part.stop, len(order))]] = gather_rows(
            ids, at[part], lengths[part].sum(1)
        )
    return save_parts(path, (lengths, starts, runs, stored), id_bytes, info)


def write_text_shard(
    path: Path, ids: NDArray[Any], *, id_bytes: int, info: Mapping[str, Any] | None = None
) -> "ShardInfo":
    """Writes a piece of running text atomically.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> made = write_text_shard(Path("text.tokens"), np.array([5, 6, 7]), id_bytes=2)
        >>> made.pairs, made.ids, TokenShard.open(Path("text.tokens")).ids.tolist()
        (0, 3, [5, 6, 7])
    """
    stored = ids.astype(require_id_dtype(path, ids, id_bytes))
    return save_parts(path, (np.zeros((0, 2)), np.array([len(ids)]), np.zeros(1), stored), id_bytes, info)


def require_id_dtype(path: Path, ids: NDArray[Any], id_bytes: int) -> np.dtype[Any]:
    """What ids of so many bytes are stored as, if they fit."""
    if len(ids) and int(ids.max()) >= 2 ** (8 * id_bytes):
        raise ValueError(f"{path}: the id {int(ids.max())} does not fit into {id_bytes} bytes; write 4")
    return ID_DTYPES[id_bytes]


def save_parts(path: Path, parts: Sequence[NDArray[Any]], id_bytes: int, info: Mapping[str, Any] | None) -> "ShardInfo":
    """The header, and lengths, starts, runs and ids with what else is to be known."""
    lengths, starts, runs, ids = parts
    text = json.dumps(info or {}, ensure_ascii=False, sort_keys=True).encode()
    stored = [lengths.astype(LENGTH_DTYPE), starts.astype(START_DTYPE), runs.astype(RUN_DTYPE), ids]
    payload = [*(part.tobytes() for part in stored), text]
    checksum = 0
    for part in payload:
        checksum = zlib.crc32(bytes(-len(part) % 8), zlib.crc32(part, checksum))
    counts = (len(lengths), len(ids), len(runs) - 1, len(text))
    bare = HEADER.pack(MAGIC, VERSION, id_bytes, *counts, checksum, 0)
    header = HEADER.pack(MAGIC, VERSION, id_bytes, *counts, checksum, zlib.crc32(bare))
    with open_atomic(path) as file:
        file.write(header)
        for part in payload:
            file.write(part)
            file.write(bytes(-len(part) % 8))
    return ShardInfo(path.name, len(lengths), len(ids), path.stat().st_size, checksum)


def gather_rows(ids: NDArray[Any], starts: Numbers, sizes: Numbers) -> NDArray[Any]:
    """The ids of rows that begin at `starts`, one row behind the other."""
    ends = np.cumsum(sizes)
    return ids[np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)]


@dataclass(frozen=True)
class ShardInfo:
    """What `corpus.json` says of a shard."""

    name: str
    pairs: int
    ids: int
    bytes: int
    crc32: int


@dataclass(frozen=True, eq=False)
class TokenLists:
    """The ids of many texts, one behind the other."""

    ids: Numbers
    sizes: Numbers

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> "TokenLists":
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        return TokenLists(np.fromiter(chain.from_iterable(texts), np.int64, int(sizes.sum())), sizes)

    @property
    def starts(self) -> Numbers:
        return np.cumsum(self.sizes) - self.sizes

    def split(self, counts: Sequence[int]) -> "list[TokenLists]":
        """The first so many texts, and so on."""
        sizes = np.split(self.sizes, np.cumsum(counts)[:-1])
        ids = np.split(self.ids, np.cumsum([part.sum() for part in sizes])[:-1])
        return [TokenLists(*part) for part in zip(ids, sizes, strict=True)]

    def prepend(self, token: int) -> "TokenLists":
        return TokenLists(np.insert(self.ids, self.starts, token), self.sizes + 1)

    def append(self, token: int) -> "TokenLists":
        return TokenLists(np.insert(self.ids, np.cumsum(self.sizes), token), self.sizes + 1)


class NumberedPairs(Sequence[Example]):
    """Abstract: pairs that are read by their number."""

    @abstractmethod
    def pair(self, index: int) -> Example: ...

    @abstractmethod
    def gather(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Many pairs at once: the lengths of their sides, and their ids, one pair behind the other."""

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} pairs, and none with the number {index}")
        return self.pair(index)


@dataclass(frozen=True, eq=False)
class TokenShard(NumberedPairs):
    """A memory-mapped file of pairs, in the order of their lengths."""

    path: Path
    id_bytes: int
    lengths: NDArray[Any] = field(repr=False)
    starts: NDArray[Any] = field(repr=False)
    runs: NDArray[Any] = field(repr=False)
    ids: NDArray[Any] = field(repr=False)
    info: Mapping[str, Any] = field(repr=False)
    crc32: int

    @staticmethod
    def open(path: Path) -> "TokenShard":
        """Maps the file; the header and the size are checked, and `verify` reads the rest."""
        path = require_file(path)
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size or header[:8] != MAGIC:
                raise ValueError(f"{path}: not a file of tokens; make it by regard data prepare")
            _, version, id_bytes, pairs, ids, runs, text, checksum, own = HEADER.unpack(header)
            if version != VERSION:
                raise ValueError(f"{path}: version {version} of the format, not {VERSION}; prepare the corpus again")
            if zlib.crc32(header[: HEADER.size - 12] + bytes(12)) != own or id_bytes not in ID_DTYPES:
                raise ValueError(f"{path}: its header is damaged; prepare the corpus again")
            blocks = -(-pairs // BLOCK_PAIRS)
            dtypes = (LENGTH_DTYPE, START_DTYPE, RUN_DTYPE, ID_DTYPES[id_bytes], np.dtype("u1"))
            counts = (2 * pairs, blocks + 1, runs + 1, ids, text)
            spans, end = [], HEADER.size
            for dtype, count in zip(dtypes, counts, strict=True):
                spans.append(end)
                end += -(-dtype.itemsize * count // 8) * 8
            if end != size:
                raise ValueError(f"{path}: {size:,} bytes, not {end:,}: it is torn; prepare the corpus again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if sys.platform != "win32":  # pairs of a batch lie anywhere: what is behind each is not wanted
            mapped.madvise(mmap.MADV_RANDOM)
        parts = [
            np.frombuffer(mapped, dtype, count, offset)
            for dtype, count, offset in zip(dtypes, counts, spans, strict=True)
        ]
        lengths, starts, bounds, stored, raw = parts
        if (
            int(starts[-1]) != ids
            or int(bounds[-1]) != pairs
            or (pairs and (np.diff(bounds.astype(np.int64)) < 1).any())
        ):
            raise ValueError(f"{path}: its counts are at odds; prepare the corpus again")
        info = json.loads(raw.tobytes() or b"{}")
        return TokenShard(path, id_bytes, lengths.reshape(-1, 2), starts, bounds, stored, info, checksum)

    def verify(self) -> None:
        """Reads all of it and compares the checksum."""
        checksum = 0
        with open(self.path, "rb") as file:
            file.seek(HEADER.size)
            while block := file.read(2**20):
                checksum = zlib.crc32(block, checksum)
        if checksum != self.crc32:
            raise ValueError(f"{self.path}: its checksum is another: it is damaged; prepare the corpus again")

    def __len__(self) -> int:
        return len(self.lengths)

    def pair(self, index: int) -> Example:
        block = index // BLOCK_PAIRS
        at = int(self.starts[block]) + int(self.lengths[block * BLOCK_PAIRS : index].sum(dtype=np.int64))
        source, target = map(int, self.lengths[index])
        ids = self.ids[at : at + source + target].tolist()
        return ids[:source], ids[source:]

    def gather(self, rows):
        first = rows - rows % BLOCK_PAIRS
        before = first[:, None] + np.arange(BLOCK_PAIRS)
        lengths = self.lengths[np.minimum(before, len(self) - 1)].sum(2, dtype=np.int64)
        starts = self.starts[rows // BLOCK_PAIRS].astype(np.int64) + np.where(before < rows[:, None], lengths, 0).sum(1)
        sides = self.lengths[rows].astype(np.int64)
        return sides, gather_rows(self.ids, starts, sides.sum(1))

    def length_runs(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Of each run of pairs of the same lengths: those of source and target, its first pair and its size."""
        bounds = self.runs.astype(np.int64)
        sides = self.lengths[bounds[:-1]].astype(np.int64).reshape(-1, 2)
        return sides[:, 0], sides[:, 1], bounds[:-1], np.diff(bounds)


@dataclass(frozen=True, eq=False)
class LoadedPairs(NumberedPairs):
    """The pairs of many shards in memory, one shard behind the other: many are gathered at once, where each shard of
    its own costs as long as a hundred pairs."""

    lengths: NDArray[Any] = field(repr=False)
    starts: Numbers = field(repr=False)
    ids: NDArray[Any] = field(repr=False)

    @staticmethod
    def of(shards: Sequence[TokenShard]) -> "LoadedPairs":
        lengths = np.concatenate([shard.lengths for shard in shards])
        sizes = lengths.sum(1, dtype=np.int64)
        return LoadedPairs(lengths, np.cumsum(sizes) - sizes, np.concatenate([shard.ids for shard in shards]))

    def __len__(self) -> int:
        return len(self.lengths)

    def pair(self, index: int) -> Example:
        source, target = map(int, self.lengths[index])
        ids = self.ids[self.starts[index] : self.starts[index] + source + target].tolist()
        return ids[:source], ids[source:]

    def gather(self, rows):
        sides = self.lengths[rows].astype(np.int64)
        return sides, gather_rows(self.ids, self.starts[rows], sides.sum(1))


# --- corpora ---


class ConcatenatedPairs(NumberedPairs):
    """Abstract: the pairs of several parts, one part after the other, by their number."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[NumberedPairs]: ...

    @cached_property
    def first_rows(self) -> Numbers:
        """The number of the first pair of each part, and how many there are."""
        return np.concatenate(([0], np.cumsum([len(part) for part in self.parts], dtype=np.int64)))

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    def pair(self, index: int) -> Example:
        number = int(np.searchsorted(self.first_rows, index, "right")) - 1
        return self.parts[number][index - int(self.first_rows[number])]

    def gather(self, rows):
        numbers = np.searchsorted(self.first_rows, rows, "right") - 1
        members = {int(number): np.flatnonzero(numbers == number) for number in np.unique(numbers)}
        found = [self.parts[number].gather(rows[some] - self.first_rows[number]) for number, some in members.items()]
        sides, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
        back = np.argsort(np.concatenate(list(members.values())))
        sizes = sides.sum(1)
        return sides[back], gather_rows(ids, (np.cumsum(sizes) - sizes)[back], sizes[back])


@dataclass(frozen=True, eq=False)
class TokenCorpus(ConcatenatedPairs):
    """A prepared corpus: pairs of ids by their number, read from the disk when they are asked for.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from regard.data.token_files import write_corpus, write_shard
        >>> folder = Path("prepared/one")
        >>> shard = write_shard(folder / "00000.tokens", np.array([[2, 1], [1, 1]]), np.arange(5, 10), id_bytes=2)
        >>> write_corpus(folder, [shard], {"source": "en", "target": "fr", "vocabulary": "mine", "text": {}})
        >>> list(TokenCorpus.open(folder))  # the shortest first
        [([8], [9]), ([5, 6], [7])]
    """

    folder: Path
    description: Mapping[str, Any] = field(repr=False)
    """What `corpus.json` holds."""
    shards: tuple[TokenShard, ...] = field(repr=False)

    @staticmethod
    def open(folder: str | Path) -> "TokenCorpus":
        folder = Path(folder)
        if not is_token_corpus(folder):
            raise ValueError(
                f"{folder}: no {CORPUS_FILE} in it; prepare it by regard data prepare, or let that finish by the same "
                "command"
            )
        path = require_small_file(folder / CORPUS_FILE)
        try:
            saved = json.loads(path.read_bytes().decode("utf-8"))
            if saved["format"] != CORPUS_FORMAT:
                raise ValueError(f"its format is {saved['format']!r}, not {CORPUS_FORMAT!r}")
            listed = [ShardInfo(**one) for one in saved["shards"]]
            sides = () if saved.get("content") == TEXT else ("source", "target")
            if not all(isinstance(saved[name], str) for name in (*sides, "vocabulary")) or len(listed) > MAX_SHARDS:
                raise ValueError("a part of it has another type")
            if odd := [one.name for one in listed if Path(one.name).name != one.name]:
                raise ValueError(f"the shard {odd[0]!r} lies outside of the folder")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}: damaged or foreign ({what}); prepare the corpus again") from None
        shards = tuple(TokenShard.open(folder / one.name) for one in listed)
        for shard, one in zip(shards, listed, strict=True):
            if (len(shard), len(shard.ids), shard.crc32) != (one.pairs, one.ids, one.crc32):
                raise ValueError(f"{shard.path}: not the shard that {path} lists; prepare the corpus again")
        return TokenCorpus(folder, saved, shards)

    @property
    def parts(self) -> Sequence[TokenShard]:
        return self.shards

    @property
    def is_text(self) -> bool:
        """Whether it is running text, and not pairs."""
        return self.description.get("content") == TEXT

    @property
    def ids(self) -> int:
        """How many ids it has."""
        return sum(len(shard.ids) for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.path.stat().st_size for shard in self.shards)

    def verify(self) -> None:
        for shard in self.shards:
            shard.verify()


def is_token_corpus(folder: str | Path) -> bool:
    return (Path(folder) / CORPUS_FILE).is_file()


def write_corpus(folder: Path, shards: Iterable[ShardInfo], description: Mapping[str, Any]) -> None:
    """The file that makes shards a corpus; written when all of them are."""
    listed = [vars(one) for one in shards]
    saved = {"format": CORPUS_FORMAT, **description, "shards": listed}
    write_text_atomic(folder / CORPUS_FILE, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")


# --- several corpora ---


@dataclass(frozen=True, eq=False)
class CorpusMixture(ConcatenatedPairs):
    """Pairs of one or more prepared corpora of the same vocabularies, and how often training sees those of each.

    Args:
        weights: how many pairs of each corpus are seen, in proportion; None, each pair once in an epoch.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from regard.data.token_files import write_corpus, write_shard
        >>> folder = Path("prepared/two")
        >>> shard = write_shard(folder / "00000.tokens", np.array([[2, 1], [1, 1]]), np.arange(5, 10), id_bytes=2)
        >>> write_corpus(folder, [shard], {"source": "en", "target": "fr", "vocabulary": "mine", "text": {}})
        >>> mixture = CorpusMixture.open(["prepared/two:3"])
        >>> len(mixture), mixture.weights
        (2, (3.0,))
    """

    corpora: tuple[TokenCorpus, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        require_mixable(self.corpora, [len(one) for one in self.corpora], "pairs")

    @staticmethod
    def open(paths: Sequence[str]) -> "CorpusMixture":
        """Folders, each with a weight behind a colon if it should not be the number of its pairs: prepared/tatoeba:3.

        A folder of prepared corpora stands for all of them.
        """
        corpora, weights = open_corpora(paths, len)
        if texts := [str(one.folder) for one in corpora if one.is_text]:
            raise ValueError(f"{texts[0]} is running text, without pairs; train on it with --task language_modeling")
        return CorpusMixture(corpora, weights)

    @property
    def parts(self) -> Sequence[TokenCorpus]:
        return self.corpora

    @cached_property
    def loaded(self) -> "LoadedPairs | None":
        """All pairs in memory, if they are few enough to be held there."""
        shards = [shard for corpus in self.corpora for shard in corpus.shards]
        return LoadedPairs.of(shards) if sum(corpus.bytes for corpus in self.corpora) <= LOADED_BYTES else None

    def sides(self, rows: Numbers) -> tuple[TokenLists, TokenLists]:
        """The sources and the targets of many pairs at once."""
        sizes, ids = (self.loaded or self).gather(rows)
        starts = np.cumsum(sizes.ravel()).reshape(-1, 2) - sizes
        source, target = (TokenLists(gather_rows(ids, starts[:, n], sizes[:, n]), sizes[:, n]) for n in (0, 1))
        return source, target

    def repeats(self, pairs: Sequence[int]) -> list[float]:
        """How often an epoch sees each pair of a corpus, if the corpora have so many; at least once."""
        return epoch_repeats(self.weights, pairs)


@dataclass(frozen=True, eq=False)
class TextMixture:
    """Running text of one or more prepared corpora of the same vocabulary, and how often training sees that of each.

    Args:
        weights: how many tokens of each corpus are seen, in proportion; None, each token once in an epoch.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from regard.data.token_files import write_corpus, write_text_shard
        >>> shard = write_text_shard(Path("prepared/plays/00000.tokens"), np.array([5, 6, 7]), id_bytes=2)
        >>> about = {"content": "text", "vocabulary": "mine", "text": {}, "texts": 1, "characters": 9}
        >>> write_corpus(Path("prepared/plays"), [shard], about)
        >>> mixture = TextMixture.open(["prepared/plays"])
        >>> len(mixture), mixture.stream[np.arange(4)].tolist()  # one line; BOS before its ids
        (1, [1, 5, 6, 7])
    """

    corpora: tuple[TokenCorpus, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        require_mixable(self.corpora, [one.ids for one in self.corpora], "tokens")

    @staticmethod
    def open(paths: Sequence[str]) -> "TextMixture":
        """As `CorpusMixture.open`, weighted by tokens."""
        corpora, weights = open_corpora(paths, lambda corpus: corpus.ids)
        if pairs := [str(one.folder) for one in corpora if not one.is_text]:
            raise ValueError(f"{pairs[0]} holds pairs, not running text; train a translator on it: --task translation")
        return TextMixture(corpora, weights)

    def __len__(self) -> int:
        """How many lines or documents there are."""
        return sum(one.description["texts"] for one in self.corpora)

    @property
    def characters(self) -> int:
        return sum(one.description["characters"] for one in self.corpora)

    @property
    def repeats(self) -> list[float]:
        """How often an epoch sees each corpus; at least once."""
        return epoch_repeats(self.weights, [one.ids for one in self.corpora])

    @cached_property
    def stream(self) -> "TokenStream":
        return TokenStream(tuple(tuple(shard.ids for shard in one.shards) for one in self.corpora))


@dataclass(frozen=True, eq=False)
class TokenStream:
    """The ids of several texts by their place, read from the disk when they are asked for; BOS stands before each text.

    Args:
        texts: the pieces of each.
    """

    texts: tuple[tuple[NDArray[Any], ...], ...] = field(repr=False)

    @cached_property
    def pieces(self) -> tuple[NDArray[Any], ...]:
        return tuple(piece for text in self.texts for piece in (np.array([BOS]), *text))

    @cached_property
    def first_places(self) -> Numbers:
        """Where each piece begins, and how many ids there are."""
        return np.concatenate(([0], np.cumsum([len(piece) for piece in self.pieces], dtype=np.int64)))

    @cached_property
    def text_starts(self) -> Numbers:
        """Where each text begins, with its BOS."""
        sizes = [1 + sum(map(len, text)) for text in self.texts]
        return np.cumsum([0, *sizes[:-1]], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.first_places[-1])

    def __getitem__(self, places: Numbers) -> Numbers:
        """The ids at these places, in their shape."""
        found = np.empty(places.shape, np.int64)
        numbers = np.searchsorted(self.first_places, places, "right") - 1
        for number in np.unique(numbers):
            here = numbers == number
            found[here] = self.pieces[number][places[here] - self.first_places[number]]
        return found


def require_mixable(corpora: Sequence[TokenCorpus], sizes: Sequence[int], what: str) -> None:
    if not corpora or not all(sizes):
        empty = [str(one.folder) for one, size in zip(corpora, sizes, strict=True) if not size]
        raise ValueError(f"{empty[0] if empty else 'the mixture'}: no {what} in it; leave it out")
    first, *others = corpora
    for one in others:
        if one.description["vocabulary"] != first.description["vocabulary"]:
            raise ValueError(
                f"{one.folder} and {first.folder} have other vocabularies; prepare them by one command, or with "
                f"--vocabulary {first.folder}"
            )


def open_corpora(
    paths: Sequence[str], size: Callable[[TokenCorpus], int]
) -> tuple[tuple[TokenCorpus, ...], tuple[float, ...] | None]:
    """Those of folders with weights, and the weight of each: that of a folder is shared by size."""
    named = [split_weight(path) for path in paths]
    weighted = [path for path, weight in named if weight is not None]
    if weighted and len(weighted) < len(named):
        without = next(path for path, weight in named if weight is None)
        raise ValueError(f"{without} has no weight, but {weighted[0]} has; give one to each, as in {without}:1")
    corpora, weights = list[TokenCorpus](), list[float]()
    for path, weight in named:
        found = [TokenCorpus.open(folder) for folder in corpus_folders(path)]
        total = sum(map(size, found))
        corpora += found
        weights += [(weight or 0.0) * size(one) / max(total, 1) for one in found]
    return tuple(corpora), tuple(weights) if weighted else None


def epoch_repeats(weights: Sequence[float] | None, sizes: Sequence[int]) -> list[float]:
    """How often an epoch sees all of each corpus: the one with the least weight for its size once."""
    if weights is None:
        return [1.0] * len(sizes)
    shares = [weight / max(count, 1) for weight, count in zip(weights, sizes, strict=True)]
    return [share / min(shares) for share in shares]


def split_weight(path: str) -> tuple[str, float | None]:
    """A folder, and the weight behind its last colon.

    Examples:
        >>> split_weight("prepared/tatoeba:3"), split_weight("prepared/tatoeba")
        (('prepared/tatoeba', 3.0), ('prepared/tatoeba', None))
    """
    folder, colon, text = path.rpartition(":")
    if not colon or Path(path).exists():
        return path, None
    try:
        weight = float(text)
    except ValueError:
        return path, None
    if not isfinite(weight) or weight <= 0:
        raise ValueError(
            f"{path}: a weight is a number above 0, not {text}; leave out a corpus that should not be seen"
        )
    return folder, weight


def corpus_folders(path: str | Path) -> list[Path]:
    """The folder itself, or the prepared corpora in it."""
    path = Path(path)
    inside = [] if is_token_corpus(path) or not path.is_dir() else sorted(path.iterdir())
    return [one for one in inside if is_token_corpus(one)] or [path]


def is_prepared(path: str) -> bool:
    """Whether a path of training data is a prepared corpus, or a folder of them."""
    return any(map(is_token_corpus, corpus_folders(split_weight(path)[0])))


def all_prepared(paths: Sequence[str]) -> bool:
    """Whether all are prepared corpora, or none is; both is an error."""
    prepared = [path for path in paths if is_prepared(path)]
    if prepared and (other := [path for path in paths if path not in prepared]):
        raise ValueError(f"{other[0]} is no prepared corpus, but {prepared[0]} is; prepare both by regard data prepare")
    return bool(prepared)
