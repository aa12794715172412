"""Corpus catalogue: public corpora by name, with licence, homepage, files and checksums."""

from dataclasses import KW_ONLY, dataclass
from itertools import combinations


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
