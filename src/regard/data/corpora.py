"""Public corpora: the catalogue, with licence, homepage, files and checksums; finds, checks and downloads the files.

read_corpus_pairs("multi30k", "train", "de", "en", Path("corpora"))   from corpora/multi30k/train.de.xz and the like
corpus_path("sst2", "train", Path("corpora"))                         corpora/sst2/train.tsv.xz: one file, any reader
check_corpus(find_corpus("multi30k"), Path("corpora"))                compares its files with their checksums
"""

import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from http.client import HTTPException
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from regard.data.files import COMPRESSED, open_atomic, open_decompressed
from regard.data.parallel import SentencePair, raise_on_empty, read_pairs


@dataclass(frozen=True)
class CorpusFile:
    """One file: of one language, or a table with a column for each of two."""

    split: str
    languages: tuple[str, ...]
    path: str
    """Below the folder of all corpora, without .gz or .xz."""
    sha256: str
    """Of the content, unpacked: a plain, a .gz and a .xz copy of one text have the same."""
    url: str | None = None
    """Where this file is public."""


@dataclass(frozen=True)
class CorpusInfo:
    """A catalogued corpus."""

    name: str
    _: KW_ONLY
    title: str
    size: str
    licence: str
    redistributable: bool
    """Whether weights trained on it may be redistributed."""
    homepage: str
    files: tuple[CorpusFile, ...]
    original_urls: tuple[str, ...] = ()
    """Public archives to make it from, where its files are not public one by one."""
    note: str = ""
    """How the files differ from the public ones, and how to make them."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.split for part in self.files))

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(language for part in self.files for language in part.languages))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The languages it translates between, both ways. Files of one language each match line by line."""
        tables = dict.fromkeys((a, b) for a, b in (part.languages for part in self.files if len(part.languages) == 2))
        sides = dict.fromkeys(part.languages[0] for part in self.files if len(part.languages) == 1)
        return (*tables, *combinations(sides, 2))


def parse_files(folder: str, table: str, *, base_url: str = "", suffix: str = "") -> tuple[CorpusFile, ...]:
    """Lines of split, languages (- for none), name and checksum; the public URL is base_url + name + suffix."""
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(
        CorpusFile(
            split,
            () if languages == "-" else tuple(languages.split("-")),
            f"{folder}/{name}",
            sha256,
            f"{base_url}{name}{suffix}" if base_url else None,
        )
        for split, languages, name, sha256 in rows
    )


# --- public corpora ---


PARALLEL_CORPORA = (
    CorpusInfo(
        "multi30k",
        title="captions of photographs",
        size="29,000 train, 1,014 valid, 1,000 test",
        licence="captions of Flickr30k's pictures: for research",
        redistributable=False,
        homepage="https://github.com/multi30k/dataset",
        files=parse_files(
            "multi30k",
            """
            train en train.en 460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6
            train de train.de 2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72
            train fr train.fr 5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d
            valid en val.en 1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227
            valid de val.de 660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660
            valid fr val.fr 5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc
            test en test_2016_flickr.en 399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182
            test de test_2016_flickr.de 4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16
            test fr test_2016_flickr.fr cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6
            """,
            base_url="https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
            suffix=".gz",
        ),
        note="The archives of WMT 2016, which other toolkits download, hold another version of some of these files.",
    ),
    CorpusInfo(
        "tatoeba",
        title="everyday sentences",
        size="150,367 (fr) and 156,988 (de) train, 2,000 valid, 4,000 test",
        licence="CC BY 2.0 FR: name tatoeba.org",
        redistributable=True,
        homepage="https://tatoeba.org",
        files=parse_files(
            "tatoeba",
            """
            train en-fr train.en-fr.tsv 6a750416f3ca3adf38528fc4d65432e3489183ffeafab8726813d8a94a3c077c
            train en-de train.en-de.tsv 8924d05c212b530132338587ea963a0bfd92f58f1521796f19139e0f5ac68976
            valid en-fr dev.en-fr.tsv 05694472b41fe2802e0b928f41741a091300c04e0276976a32abcc0e701610fe
            valid en-de dev.en-de.tsv 4ff18d602554d35b53653170ad5968276ca2532e156a8a26424834108fba1203
            test en-fr test.en-fr.tsv 1efbaf6c60e6ac4673444bb575895342f05a6953a57c9db92b59e91209ea756e
            test en-de test.en-de.tsv c42c071a12a8b72c3abd20093718455d3ec483bd1b5fff86e9d944a1f816891d
            """,
        ),
        original_urls=("https://www.manythings.org/anki/fra-eng.zip", "https://www.manythings.org/anki/deu-eng.zip"),
        note="A selection: valid and test share no English sentence with train. Tatoeba grows every day, so a fresh "
        "download is another version, and you divide it yourself. The archives, which manythings.org packs, hold a "
        "table with a third column that names the authors: cut -f1,2 fra.txt > train.en-fr.tsv",
    ),
    CorpusInfo(
        "europarl",
        title="speeches in the European Parliament",
        size="450,000 train, 2,000 valid, for fr and for de",
        licence="free to use: name the source",
        redistributable=True,
        homepage="https://www.statmt.org/europarl/",
        files=parse_files(
            "europarl",
            """
            train en-fr train.en-fr.tsv 60ca06847f56674f4803e717a3383d0c9b1d43eb90c4a1b9a586755a6f222ba5
            train en-de train.en-de.tsv 01416dd0ad7027db1d65e140a4083d94d8f910412bb3853c285c91aaca6dcc11
            valid en-fr dev.en-fr.tsv 59fd23d750ae05ea991a73a4c2903be1372ac1712d3efb4f490e7231ef0eec14
            valid en-de dev.en-de.tsv f79f68051b15d2aba467309e0ee02ace6e830ebe83bf12f1245d6cac5dff3a20
            """,
        ),
        original_urls=(
            "https://www.statmt.org/europarl/v7/fr-en.tgz",
            "https://www.statmt.org/europarl/v7/de-en.tgz",
        ),
        note="A selection: sentences of 3 to 50 words, none of them in a test set. The whole corpus is about four "
        "times as large, and another version. After tar xzf fr-en.tgz: regard data convert europarl-v7.fr-en.en "
        "europarl-v7.fr-en.fr train.en-fr.tsv.xz --skip-empty",
    ),
    CorpusInfo(
        "newstest",
        title="newspapers: development sets of WMT, 2012 (valid) and 2013 (test)",
        size="3,003 valid, 3,000 test",
        licence="for research; to tune and to measure, not to train",
        redistributable=False,
        homepage="https://www.statmt.org/wmt15/translation-task.html",
        files=parse_files(
            "newstest",
            """
            valid en newstest2012.en-de.en f9e51f85c4948033fc7d77ef427f4d88908a8dd3f778970f62d0baafac3ff97e
            valid de newstest2012.en-de.de 946b9587b79271b0f3ce9cc8c0e5b310e3021ef598e1ba5dc2a24fef8960de30
            valid en newstest2012.en-fr.en f9e51f85c4948033fc7d77ef427f4d88908a8dd3f778970f62d0baafac3ff97e
            valid fr newstest2012.en-fr.fr 29aa5aff172127f6adf5625cc2f8e44f579d524700e84f1ec0eb14f4f19719e4
            test en newstest2013.en-de.en ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e
            test de newstest2013.en-de.de d7ea35ab91ff3709e03ad9cb6bf5b4f2cc775cd2d72efd5254c4aec5e69663ca
            test en newstest2013.en-fr.en ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e
            test fr newstest2013.en-fr.fr 909b63be5df3eb8c13e1d5967bf3f0adfdb9f6ed5e638c5bffff563ee2ff7f41
            """,
        ),
        original_urls=("https://www.statmt.org/wmt15/dev-v2.tgz",),
        note="The archive holds the texts as dev/newstest2012.en and so on; copy each to the name it has here.",
    ),
)

OTHER_CORPORA = (
    CorpusInfo(
        "ud_english_ewt",
        title="web texts with tags and dependency trees (CoNLL-U), release 2.16",
        size="12,544 train, 2,001 valid, 2,077 test",
        licence="CC BY-SA 4.0: name it, same licence",
        redistributable=True,
        homepage="https://github.com/UniversalDependencies/UD_English-EWT",
        files=parse_files(
            "ud_english_ewt",
            """
            train en en_ewt-ud-train.conllu 3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b
            valid en en_ewt-ud-dev.conllu 531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6
            test en en_ewt-ud-test.conllu e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd
            """,
            base_url="https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/r2.16/",
        ),
    ),
    CorpusInfo(
        "sst2",
        title="sentences of film reviews, good or bad (text, tab, label)",
        size="6,920 train, 872 valid, 1,821 test, 58,475 phrases",
        licence="for research",
        redistributable=False,
        homepage="https://nlp.stanford.edu/sentiment/",
        files=parse_files(
            "sst2",
            """
            train en train.tsv 4bdc38ba1cf151a802f72b0ba750d22404ad7103b6597b8c39b875a9f28f0b9c
            phrases en train_phrases.tsv bb94f3623ee154364af06f7831086a36fad79e475c7d0cb6609f61c595463d2c
            valid en dev.tsv 5a6e516ec8c2ece1c86fe5c2877de566d35cd4b364395382a790c222cfd49915
            test en test.tsv c204bc7652500e47fab2711fbebdf87f7491ec6aad8a2b806346f7d53f4634e0
            """,
        ),
        original_urls=("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",),
        note="The original holds trees with five labels. Here neutral sentences are left out, and no phrase is part "
        "of a valid or test sentence.",
    ),
    CorpusInfo(
        "imdb",
        title="film reviews (label, tab, rating, tab, text)",
        size="25,000 train, 25,000 test",
        licence="for research (Maas et al. 2011)",
        redistributable=False,
        homepage="https://ai.stanford.edu/~amaas/data/sentiment/",
        files=parse_files(
            "imdb",
            """
            train en train.tsv d7acef29c8f1737a8993a764ef5a5a84955656e872f874e4d588d8fe5fec5d63
            test en test.tsv 291201e6268250b955d59fd891fc37220cbcbb598ca34f4bd5ef757cb1fe29e0
            """,
        ),
        original_urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
        note="The original holds one file for each review; here they are the lines of a table.",
    ),
    CorpusInfo(
        "wikitext2",
        title="articles of Wikipedia, in words, rare ones as <unk>",
        size="36,718 lines train, 3,760 valid, 4,358 test",
        licence="CC BY-SA: name it, same licence",
        redistributable=True,
        homepage="https://huggingface.co/datasets/Salesforce/wikitext",
        files=parse_files(
            "wikitext2",
            """
            train en train.txt 728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89
            valid en valid.txt f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
            test en test.txt d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0
            """,
            base_url="https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/",
        ),
        note="The public train.txt is another version than the one whose checksum is kept here.",
    ),
    CorpusInfo(
        "tinyshakespeare",
        title="Shakespeare's plays: the first 90 % to train, the rest to validate",
        size="1,115,394 characters",
        licence="public domain",
        redistributable=True,
        homepage="https://github.com/karpathy/char-rnn",
        files=parse_files(
            "tinyshakespeare",
            "whole en input.txt 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            base_url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        ),
    ),
    CorpusInfo(
        "mnist",
        title="handwritten digits (IDX)",
        size="60,000 train, 10,000 test",
        licence="CC BY-SA 3.0, as usually stated",
        redistributable=True,
        homepage="http://yann.lecun.com/exdb/mnist/",
        files=parse_files(
            "mnist",
            """
            train - train-images-idx3-ubyte ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
            train - train-labels-idx1-ubyte 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
            test - t10k-images-idx3-ubyte 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
            test - t10k-labels-idx1-ubyte ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
            """,
            base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
            suffix=".gz",
        ),
    ),
    CorpusInfo(
        "fashion_mnist",
        title="pictures of clothes (IDX)",
        size="60,000 train, 10,000 test",
        licence="MIT",
        redistributable=True,
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        files=parse_files(
            "fashion_mnist",
            """
            train - train-images-idx3-ubyte c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
            train - train-labels-idx1-ubyte bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
            test - t10k-images-idx3-ubyte 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
            test - t10k-labels-idx1-ubyte 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
            """,
            base_url="https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            suffix=".gz",
        ),
    ),
    CorpusInfo(
        "cifar10",
        title="small photographs of ten kinds (JPEG)",
        size="50,000 train, 10,000 test",
        licence="for research",
        redistributable=False,
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=parse_files(
            "cifar10_jpeg", "whole - cifar10_jpegs.tar d0b487b3b2c930ffdd554226c34ef07ec2be6f201eab895aef9bd34ba7b629c4"
        ),
        original_urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        note="The original holds exact pixels; these are JPEG pictures in folders train and test, in another order.",
    ),
    CorpusInfo(
        "easy_vqa",
        title="drawn shapes with questions",
        size="38,575 questions train, 9,673 test",
        licence="MIT",
        redistributable=True,
        homepage="https://github.com/vzhou842/easy-VQA",
        files=parse_files(
            "easy_vqa", "whole - easy_vqa.tar 8c4dd9cf21e6127dbd3ce8f2de68788f3d27b28d443318545057938f271bd39e"
        ),
        original_urls=("https://github.com/vzhou842/easy-VQA/archive/HEAD.zip",),
        note="The same pictures and questions as in the original's folder data, packed as one archive.",
    ),
)

CORPORA = {corpus.name: corpus for corpus in (*PARALLEL_CORPORA, *OTHER_CORPORA)}
"""The catalogued corpora by name; `regard data fetch NAME FOLDER` downloads one.

Examples:
    >>> corpus = CORPORA["tatoeba"]
    >>> corpus.title, corpus.splits, corpus.pairs
    ('everyday sentences', ('train', 'valid', 'test'), (('en', 'fr'), ('en', 'de')))
"""


# --- files and downloads ---


PACKED_SUFFIXES = ("", *COMPRESSED)
FOLDERS = frozenset(part.path.partition("/")[0] for corpus in CORPORA.values() for part in corpus.files)


def find_corpus(name: str) -> CorpusInfo:
    if name not in CORPORA:
        raise ValueError(f"no catalogued corpus is called {name!r}; choose from {', '.join(CORPORA)}")
    return CORPORA[name]


def read_corpus_pairs(name: str, split: str, source: str, target: str, folder: Path | None) -> list[SentencePair]:
    """The pairs of a split (train, valid or test), in either direction; `folder` has the catalogued corpora.

    Examples:
        >>> from pathlib import Path
        >>> path = Path("corpora/tatoeba/train.en-fr.tsv")
        >>> path.parent.mkdir(parents=True, exist_ok=True)
        >>> corpus = write_pairs([SentencePair("the cat", "le chat")], path)
        >>> read_corpus_pairs("tatoeba", "train", "fr", "en", Path("corpora"))
        [SentencePair(source='le chat', target='the cat')]
    """
    return list(iter_corpus_pairs(name, split, source, target, folder))


def iter_corpus_pairs(
    name: str,
    split: str,
    source: str,
    target: str,
    folder: Path | None,
    on_empty: Callable[[str], object] = raise_on_empty,
) -> Iterator[SentencePair]:
    """The same one at a time, so that a corpus may be larger than memory."""
    paths, swapped = pair_paths(name, split, source, target, folder)
    pairs = read_pairs(paths, on_empty=on_empty)
    return (pair.swapped() for pair in pairs) if swapped else pairs


def pair_paths(name: str, split: str, source: str, target: str, folder: Path | None) -> tuple[list[Path], bool]:
    """The table, or the two files, of a split, and whether the target comes first in it."""
    corpus = find_corpus(name)
    _files_for_pair(corpus, split, source, target)
    of_split = [part for part in corpus.files if part.split == split]
    for columns in ((source, target), (target, source)):
        if table := [part for part in of_split if part.languages == columns]:
            return [find_file(corpus, table, folder)], columns != (source, target)
    sides = ([part for part in of_split if part.languages == (language,)] for language in (source, target))
    return [find_file(corpus, side, folder) for side in sides], False


def corpus_path(name: str, split: str, folder: Path | None) -> Path:
    """The one file of a split: tagged words, labelled texts or plain text.

    Examples:
        >>> from pathlib import Path
        >>> Path("corpora/sst2").mkdir(parents=True, exist_ok=True)
        >>> Path("corpora/sst2/dev.tsv").touch()
        >>> corpus_path("sst2", "valid", Path("corpora")).as_posix()
        'corpora/sst2/dev.tsv'
    """
    corpus = find_corpus(name)
    _split(corpus, split)
    of_split = [part for part in corpus.files if part.split == split]
    if len(of_split) > 1:
        files = ", ".join(part.path.partition("/")[2] for part in of_split)
        raise ValueError(f"{name} has {len(of_split)} files for {split}: {files}; read the one you mean by its path")
    return find_file(corpus, of_split, folder)


def _split(corpus: CorpusInfo, split: str) -> None:
    if split not in corpus.splits:
        raise ValueError(f"{corpus.name} has no split {split!r}; it has {', '.join(corpus.splits)}")


def _files_for_pair(corpus: CorpusInfo, split: str, source: str, target: str) -> None:
    if not corpus.pairs:
        others = ", ".join(other.name for other in CORPORA.values() if other.pairs)
        raise ValueError(f"{corpus.name} holds no translations; choose from {others}")
    _split(corpus, split)
    if (source, target) not in corpus.pairs and (target, source) not in corpus.pairs:
        offered = ", ".join("-".join(pair) for pair in corpus.pairs)
        raise ValueError(f"{corpus.name} does not translate {source!r} into {target!r}; it has {offered}, both ways")


# --- where the files are ---


def candidate_paths(part: CorpusFile, folder: Path) -> list[Path]:
    """The paths where a file may be, without .gz or .xz: in the corpus's own folder, or directly in `folder`."""
    home, _, name = part.path.partition("/")
    # Files of different corpora have the same names, so the folder of one never serves another.
    inside = [] if folder.name in FOLDERS - {home} else [folder / name]
    return [folder / part.path, *inside]


def locate_file(part: CorpusFile, folder: Path | None) -> Path | None:
    """The path of the file, plain or compressed, if it exists."""
    paths = [
        Path(f"{path}{suffix}")
        for path in (candidate_paths(part, folder) if folder else ())
        for suffix in PACKED_SUFFIXES
    ]
    return next((path for path in paths if path.is_file()), None)


def find_file(corpus: CorpusInfo, parts: Sequence[CorpusFile], folder: Path | None) -> Path:
    """The first of these files that exists; a ValueError with a remedy if none does."""
    paths = [path for part in parts if (path := locate_file(part, folder))]
    return paths[0] if paths else _missing_error(corpus, parts, folder)


def _missing_error(corpus: CorpusInfo, parts: Sequence[CorpusFile], folder: Path | None) -> Path:
    if folder is None:
        raise ValueError(
            f"{corpus.name}: its folder is not set; name it with --data FOLDER or REGARD_DATA, {_source(corpus)}"
        )
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name the one that holds {corpus.name} with --data or REGARD_DATA")
    tried = " and ".join(str(path) for part in parts[:2] for path in candidate_paths(part, folder))
    raise ValueError(
        f"{corpus.name} is not in {folder}: looked for {tried}, plain, .gz and .xz; "
        f"name another folder with --data FOLDER or REGARD_DATA, {_source(corpus)}"
    )


def _source(corpus: CorpusInfo) -> str:
    return f"or download it with `regard data fetch {corpus.name} FOLDER` or from {corpus.homepage}"


# --- checksums ---


class FileState(StrEnum):
    ABSENT = "not here"
    MATCHES = "as known"
    OTHER_VERSION = "another version"  # a cleaned, shortened or corrected corpus, which can be used
    DAMAGED = "damaged"


@dataclass(frozen=True)
class FileCheck:
    """A file of a corpus, its path, and how it compares with its checksum."""

    file: CorpusFile
    path: Path | None
    state: FileState
    reason: str = ""


def check_corpus(corpus: CorpusInfo, folder: Path | None) -> Iterator[FileCheck]:
    """One file at a time, since a large one takes seconds."""
    for part in corpus.files:
        yield check_file(part, locate_file(part, folder))


def check_file(part: CorpusFile, path: Path | None) -> FileCheck:
    if path is None:
        return FileCheck(part, None, FileState.ABSENT)
    try:
        same = sha256_digest(path) == part.sha256
    except ValueError as error:
        return FileCheck(part, path, FileState.DAMAGED, str(error))
    return FileCheck(part, path, FileState.MATCHES if same else FileState.OTHER_VERSION)


def sha256_digest(path: Path) -> str:
    """The sha256 of the decompressed file; a truncated one is a ValueError."""
    try:
        with open_decompressed(path) if path.suffix in COMPRESSED else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the file again") from None


# --- download ---


TIMEOUT_SECONDS = 30  # seconds without a byte
CHUNK_BYTES = 1 << 16
OFFLINE_HINT = "fetch it elsewhere and name its folder with --data"


class HttpResponse(Protocol):
    """The response of a server."""

    @property
    def headers(self) -> "HttpHeaders": ...
    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


class HttpHeaders(Protocol):
    def get(self, name: str, /) -> str | None: ...


Connect = Callable[[str], HttpResponse]


def open_https(url: str) -> HttpResponse:
    """Follows redirects, but only to https: no other handler is installed."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        UnknownHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPRedirectHandler,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener.open(Request(url, headers={"User-Agent": f"regard/{version('regard')}"}), timeout=TIMEOUT_SECONDS)


def ignore_progress(arrived: int, total: int | None) -> None:
    """The default progress callback."""


def missing_downloads(corpus: CorpusInfo, folder: Path) -> Iterator[tuple[str, Path]]:
    """The URLs to download and their paths: the corpus's own files, or else the archives to make it from."""
    own = [(part.url, part) for part in corpus.files if part.url]
    for url, part in own:
        if not locate_file(part, folder):
            packing = Path(url).suffix
            yield url, folder / f"{part.path}{packing if packing in COMPRESSED else ''}"
    for url in () if own else corpus.original_urls:
        path = folder / corpus.name / url.rpartition("/")[2]
        if not path.exists():
            yield url, path


def download(
    url: str,
    path: Path,
    *,
    connect: Connect = open_https,
    on_progress: Callable[[int, int | None], object] = ignore_progress,
) -> None:
    """`on_progress` is called with the bytes received so far, and with the total if the server sends it."""
    with closing(_open(url, connect)) as response, open_atomic(path) as file:
        length = response.headers.get("Content-Length")
        total, arrived = int(length) if length else None, 0
        while chunk := _read_chunk(response, url):
            file.write(chunk)
            arrived += len(chunk)
            on_progress(arrived, total)
        if total is not None and arrived != total:
            raise ValueError(f"{url}: broke off after {arrived:,} of {total:,} bytes; try again")


def _open(url: str, connect: Connect) -> HttpResponse:
    if not url.startswith("https://"):
        raise ValueError(f"{url}: only https is supported; download it by other means")
    try:
        return connect(url)
    except HTTPError as error:
        error.close()
        raise ValueError(f"{url}: the server responded {error.code} {error.reason}; {OFFLINE_HINT}") from None
    except (OSError, HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ValueError(f"{url}: cannot be reached ({why}); check the network, or {OFFLINE_HINT}") from None


def _read_chunk(response: HttpResponse, url: str) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, HTTPException) as error:
        raise ValueError(f"{url}: broke off ({error}); try again") from None
