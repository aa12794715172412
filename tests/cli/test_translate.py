"""regard translate: a line for a line from files, pipes and the keyboard, with scores, draws and streams."""

import gzip
import lzma
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.data import SentencePair
from regard.decode import Beam, Greedy, Sampling
from regard.decode.alignment import format_links, load_alignment_heads
from regard.decode.quantized_linear import INT8_BATCH_TOLERANCE
from regard.decode.search import Search
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.cli import TranslationJob, prompt_loop
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.world import World, translation_pairs

from .commands import assert_done, assert_plain, assert_refused, no_room, output_lines, regard

LINES = ["--format", "lines"]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [source for source, _ in translation_pairs(World(max_length=6), "fr", 50, "train")]


@pytest.fixture(scope="module")
def of_subwords(tmp_path_factory) -> Path:
    """A translator whose vocabulary spells every text, of letters that it has seen or not; it is of no use."""
    pairs = [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 50, "train")]
    text = PairTokenizerSettings(kind="bpe", vocab_size=400)
    model = ModelConfig(kind="transformer", layers=1, model=12, heads=2, hidden=20, dropout=0.0)
    folder = tmp_path_factory.mktemp("subwords") / "run"
    Translator.from_examples(pairs, TranslationSettings(text=text, model=model)).save(folder)
    return folder


# --- a line for a line ---


def test_a_file_and_a_pipe_give_the_same_lines(trained, sentences):
    Path("text.en").write_text("".join(f"{line}\n" for line in sentences))
    found = output_lines(regard("translate", trained, "text.en"))
    assert len(found) == 50
    assert len(set(found)) > 10
    assert output_lines(regard("translate", trained, "-", typed=Path("text.en").read_text())) == found
    assert output_lines(regard("translate", trained, typed=Path("text.en").read_text())) == found
    answer = regard("translate", trained, "text.en", "--out", "new/text.fr")
    assert assert_done(answer) == ""
    assert "translated: new/text.fr\n" in answer.stderr
    assert Path("new/text.fr").read_text(encoding="utf-8").splitlines() == found


def test_eight_bits_translate_nearly_alike_and_other_precisions_are_refused(trained, sentences):
    typed = "\n".join(sentences)
    exact, eight = (
        output_lines(regard("translate", trained, "-", *how, typed=typed)) for how in ([], ["--precision", "int8"])
    )
    assert sum(one == other for one, other in zip(exact, eight, strict=True)) > 40
    assert_refused(
        regard("translate", trained, "-", "--precision", "int4", typed=typed), "no precision is called 'int4'"
    )


@pytest.mark.parametrize("how", [["--beam", "1"], ["--beam", "5"], ["--beam", "3", "--best", "3"]])
def test_a_line_alone_and_among_fifty_is_translated_alike(how, trained, sentences):
    """Batch invariance: the same texts, and the same scores to 1e-4."""
    together = output_lines(regard("translate", trained, "-", "--scores", *how, typed="\n".join(sentences)))
    each = len(together) // 50
    for place in (0, 17, 49):
        alone = output_lines(regard("translate", trained, "-", "--scores", *how, typed=sentences[place]))
        among = together[place * each : (place + 1) * each]
        assert [line.split("\t")[1] for line in alone] == [line.split("\t")[1] for line in among]
        for one, other in zip(alone, among, strict=True):
            assert abs(float(one.split("\t")[0]) - float(other.split("\t")[0])) <= 1.01e-4


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("text.en.xz", lambda text: lzma.compress(text.encode())),
        ("text.en.gz", lambda text: gzip.compress(text.encode())),
        ("crlf.en", lambda text: text.replace("\n", "\r\n").encode()),
        ("open.en", lambda text: text.removesuffix("\n").encode()),
        ("marked.en", lambda text: text.encode("utf-8-sig")),
    ],
)
def test_packed_files_and_other_line_ends_are_read(name, pack, trained):
    text = "the cat sleeps\nthe dog sleeps\n"
    Path(name).write_bytes(pack(text))
    assert output_lines(regard("translate", trained, name)) == output_lines(
        regard("translate", trained, "-", typed=text)
    )


def test_no_lines_give_none(trained):
    Path("none.en").write_text("")
    assert output_lines(regard("translate", trained, "none.en")) == []
    assert output_lines(regard("translate", trained, "none.en", "--out", "none.fr")) == []
    assert Path("none.fr").read_text() == ""


def test_alignments_are_written_line_by_line(trained, sentences):
    Path("text.en").write_text("".join(f"{line}\n" for line in [*sentences[:5], "", *sentences[5:9]]))
    found = output_lines(regard("translate", trained, "text.en", "--align", "new/text.links"))
    assert found == output_lines(regard("translate", trained, "text.en"))
    aligned = Path("new/text.links").read_text().splitlines()
    assert len(aligned) == 10
    assert aligned[5] == ""
    translator, heads = Translator.load(trained), load_alignment_heads(trained)
    assert aligned[0] == format_links(translator, sentences[0], found[0], heads)
    assert re.fullmatch(r"(\d+-\d+ ?)+", aligned[0])


def test_alignments_need_a_file_and_one_translation(trained):
    message = "--align is for a file with one translation of each line"
    Path("text.en").write_text("the cat\n")
    assert_refused(regard("translate", trained, "text.en", "--align", "x", "--best", 2), message)
    assert_refused(regard("translate", trained, "--align", "x", typed="the cat"), message)


def test_an_empty_line_stays_empty(trained):
    found = output_lines(regard("translate", trained, "-", typed="the cat\n\n  \nthe dog\n\n"))
    assert [bool(line.strip()) for line in found] == [True, False, False, True, False]
    assert output_lines(regard("translate", trained, "-", "--scores", typed="\n")) == ["0.0000\t"]


def test_a_line_of_spaces_is_empty_though_a_vocabulary_may_have_spaces(of_subwords):
    found = output_lines(regard("translate", of_subwords, "-", *LINES, typed="the cat\n   \nthe dog\n"))
    assert [bool(line) for line in found] == [True, False, True]
    why = "stdin:2: the line is empty; remove it, or leave out --strict to keep it empty"
    assert_refused(regard("translate", of_subwords, "-", "--strict", typed="the cat\n   \n"), why)


# --- documents ---

MARKDOWN = "# the cat\n\n- the **cat** sleeps\n  17 https://a.org/b\n\n```\nthe dog\n```\n"


def test_a_document_keeps_its_lines_and_what_is_no_prose(trained):
    Path("letter.md").write_bytes(MARKDOWN.replace("\n", "\r\n").encode())
    answer = regard("translate", trained, "letter.md", "--out", "lettre.md")
    assert assert_done(answer) == ""
    assert answer.stderr == "translated: lettre.md\n"
    found = Path("lettre.md").read_bytes().decode()
    assert found.count("\r\n") == found.count("\n") == MARKDOWN.count("\n")
    assert re.fullmatch(
        r"# \S.*\n\n- .*\*\*\S.*\*\*.*\n  .*17 https://a.org/b\n\n```\nthe dog\n```\n", found.replace("\r", "")
    )
    assert found == Translator.load(trained).translate_document(
        Path("letter.md").read_bytes().decode(), format="markdown"
    )
    assert output_lines(regard("translate", trained, "-", "--format", "markdown", typed=MARKDOWN)) == found.splitlines()


def test_sentences_of_a_line_are_translated_one_by_one_unless_lines_are_wanted(trained):
    cat, dog = output_lines(regard("translate", trained, "-", typed="the cat sleeps\nthe dog sleeps"))
    assert output_lines(regard("translate", trained, "the cat sleeps")) == [cat]
    Path("text.txt").write_text("the cat sleeps\tthe dog sleeps")
    assert assert_done(regard("translate", trained, "text.txt")) == f"{cat}\t{dog}\n"
    as_lines = output_lines(regard("translate", trained, "text.txt", *LINES))
    assert as_lines != [f"{cat}\t{dog}"]
    assert output_lines(regard("translate", trained, "text.txt", "--scores"))[0].split("\t")[1] == as_lines[0]


def test_a_sentence_of_ten_thousand_tokens_is_translated_and_unknown_words_are_copied(trained):
    answer = regard("translate", trained, "-", "--beam", 1, typed=f"{'cat ' * 10_000}\nzebra\nשלום עולם\n")
    assert output_lines(answer)[1:] == ["zebra", "שלום עולם"]
    assert answer.stderr == "regard: 'zebra' and 2 more words are out of vocabulary; copied\n"
    answer = regard("translate", trained, "-", typed="zebra\nzebra\nшalom zebra\n")
    assert answer.stderr == "regard: 'zebra' and 1 more word are out of vocabulary; copied\n"


def test_formats_that_make_no_sense(trained):
    Path("letter.md").write_text(MARKDOWN)
    why = "--n-best is for lines, and this is markdown; leave it out, or say --format lines"
    assert_refused(regard("translate", trained, "letter.md", "--n-best", 2, "--length-penalty", 0), why)
    assert_refused(
        regard("translate", trained, "letter.md", "--format", "pdf"), "--format pdf: choose from lines, text"
    )


# --- scores, n-best, sampling ---


def test_the_best_come_first_each_with_its_score(trained):
    found = output_lines(
        regard("translate", trained, "-", "--best", 3, "--length-penalty", 0, typed="the cat sleeps\n")
    )
    assert len(found) == 3
    scores = [float(re.fullmatch(r"(-\d+\.\d{4})\t.*", line)[1]) for line in found]  # type: ignore[index]
    assert scores == sorted(scores, reverse=True)
    assert len({line.split("\t")[1] for line in found}) == 3


def test_every_line_has_as_many_translations_even_an_empty_one(trained):
    for how in (["--beam", 4], ["--sample"]):
        found = output_lines(regard("translate", trained, "-", "--best", 3, *how, typed="the cat sleeps\n\nthe dog\n"))
        assert len(found) == 9
        assert found[3:6] == ["0.0000\t"] * 3


def test_draws_repeat_with_their_seed_and_differ_with_another(trained):
    words = ["translate", trained, "-", "--sample", "--best", "5"]
    one, same, other = (
        output_lines(regard(*words, "--seed", seed, typed="the cat sleeps\nthe dog sleeps\n")) for seed in (3, 3, 4)
    )
    assert one == same != other
    assert len(one) == 10
    tame = output_lines(regard(*words, "--temperature", "0.0001", typed="the cat sleeps\n"))
    assert [line.split("\t")[1] for line in tame] == output_lines(
        regard("translate", trained, "-", "--beam", 1, typed="the cat sleeps\n")
    ) * 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "2"], "--temperature needs --sample"),
        (["--top-k", "2"], "--top-k needs --sample"),
        (["--seed", "0"], "--seed needs --sample"),
        (["--sample", "--temperature", "0"], "a temperature is positive, not 0.0"),
        (["--sample", "--top-p", "2"], "top_p=2.0 is no probability above 0 and up to 1"),
        (["--sample", "--top-k", "0"], "top_k=0 keeps no token: at least 1"),
        (["--beam", "0"], "Invalid value for '--beam'"),
        (["--best", "0"], "Invalid value for '--n-best' / '--best'"),
        (["--device", "abacus"], "--device abacus: "),
    ],
)
def test_flags_that_make_no_sense(words, message, trained):
    assert_refused(regard("translate", trained, "-", *words, typed="the cat\n"), message)


# --- what cannot be translated is refused before any work, what can only be guessed is said ---


def test_a_line_of_ten_thousand_tokens(trained):
    Path("long.en").write_text("zebra\n" + "cat " * 10_000 + "\n")
    why = "long.en:2: 10,000 tokens; split it, or allow it with --max-length 10000"
    answer = regard("translate", trained, "long.en")
    assert_refused(answer, why)
    assert answer.stdout == ""
    assert answer.stderr == f"regard: {why}\n"
    assert_refused(regard("translate", trained, "-", *LINES, "--longest", 2, typed="a b c\n"), "stdin:1: 3 tokens; s")


def test_unknown_words_and_characters(trained):
    text = f"the zebra sleeps\n😀 cat\nשלום עולם\n{'x' * 5000}\nthe cat\n"
    answer = regard("translate", trained, "-", *LINES, typed=text)
    assert len(output_lines(answer)) == 5
    assert answer.stderr.splitlines() == [
        "regard: stdin:1: 'zebra' is out of vocabulary; it is translated as <unk>",
        "regard: stdin:2: '😀' is out of vocabulary; it is translated as <unk>",
        "regard: stdin:3: 'שלום' is out of vocabulary; it is translated as <unk>",
        "regard: and 1 more line with out-of-vocabulary words",
    ]
    answer = regard("translate", trained, "-", *LINES, typed="x" * 5000)
    assert answer.stderr == f"regard: stdin:1: '{'x' * 40}…' is out of vocabulary; it is translated as <unk>\n"


def test_strict_refuses_what_would_be_guessed(trained):
    why = "stdin:2: 'zebra' is out of vocabulary; replace it, or leave out --strict to translate it as <unk>"
    assert_refused(regard("translate", trained, "-", "--strict", typed="the cat\nthe zebra\n"), why)
    why = "stdin:2: the line is empty; remove it, or leave out --strict to keep it empty"
    assert_refused(regard("translate", trained, "-", "--strict", typed="the cat\n\n"), why)
    assert len(output_lines(regard("translate", trained, "-", "--strict", typed="the cat\n"))) == 1


def test_words_of_letters_that_a_model_of_subwords_has_not_seen_are_named(of_subwords):
    text = "the cat\n我爱你 the cat\nČapek sleeps, l'été\n"
    answer = regard("translate", of_subwords, "-", *LINES, typed=text)
    assert len(output_lines(answer)) == 3
    assert answer.stderr.splitlines() == [
        "regard: stdin:2: '我爱你' is out of vocabulary; it is translated letter by letter",
        "regard: stdin:3: 'Čapek' is out of vocabulary; it is translated letter by letter",
    ]
    why = "stdin:2: '我爱你' is out of vocabulary; replace it, or leave out --strict to translate it letter by letter"
    assert_refused(regard("translate", of_subwords, "-", "--strict", typed=text), why)


def test_a_wrong_encoding(trained):
    """Windows-1252 in a file and in a pipe."""
    Path("win.en").write_bytes("the café\n".encode("cp1252"))
    why = ":1: not UTF-8 (byte 0xe9, the 8. of the line); convert the file, for example: iconv -f LATIN1 -t UTF-8"
    assert_refused(regard("translate", trained, "win.en"), f"win.en{why}")
    assert_refused(regard("translate", trained, "-", typed=Path("win.en").read_bytes()), f"stdin{why}")


def test_a_missing_file_and_a_folder(trained, tmp_path):
    assert_refused(regard("translate", trained, "a.en"), f"a.en: no such file; check the name (looked in {tmp_path})")
    assert_refused(regard("translate", trained, "."), ".: is a folder; give the files in it by name")


# --- where translations go ---


def test_a_place_that_cannot_be_written_is_refused_before_the_work(trained, tmp_path):
    Path("text.en").write_text("the cat\n")
    out = ["translate", trained, "text.en", "--out"]
    assert_refused(regard(*out, tmp_path), f"{tmp_path}: is a folder; name a file in it")
    assert_refused(regard(*out, "text.en/deeper"), "text.en: is a file, not a folder; choose another path")
    assert_refused(regard(*out, "/dev/null"), "/dev/null: is a device or a pipe, not a file; choose another place")
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_a_link(trained):
    Path("text.en").write_text("the cat\n")
    Path("real.fr").write_text("before")
    Path("link.fr").symlink_to("real.fr")
    assert_done(regard("translate", trained, "text.en", "--out", "link.fr"))
    assert Path("link.fr").is_symlink()
    assert Path("real.fr").read_text() != "before"


def test_a_full_disk_keeps_what_was_there(trained, sentences):
    Path("text.en").write_text("".join(f"{line}\n" for line in sentences))
    Path("text.fr").write_text("from yesterday\n")
    with no_room(after=100):
        answer = regard("translate", trained, "text.en", "--out", "text.fr", "--beam", 1)
    assert_refused(answer, "text.fr: cannot be written (File too large); make room, or choose another place")
    assert Path("text.fr").read_text() == "from yesterday\n"
    assert sorted(path.name for path in Path().iterdir()) == ["text.en", "text.fr"]


def test_a_full_disk_behind_a_redirection(trained):
    """Python itself writes what is left when it ends, so only a whole process tells."""
    Path("text.en").write_text("the cat\n")
    command = [sys.executable, "-c", "from regard.cli import app; app()", "translate", str(trained), "text.en"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "regard: output: No space left on device; free disk space, or choose another path\n"


def test_a_pipe_closed_early_is_no_error(trained, sentences, start):
    """As in: regard translate run big.en | head -1."""
    Path("big.en").write_text("".join(f"{line}\n" for line in sentences * 200))
    os.mkfifo("pipe")
    process = start("translate", trained, "big.en", "--beam", 1, out="pipe")
    with open("pipe") as pipe:
        first = pipe.readline()  # it is there before the last lines are begun
        assert process.process.is_alive()
    assert first.strip()
    assert process.ends() == 1
    assert process.err.read_text() == ""


def test_ctrl_c_leaves_what_was_there(trained, sentences, start):
    Path("big.en").write_text("".join(f"{line}\n" for line in sentences * 400))
    Path("big.fr").write_text("from yesterday\n")
    process = start("translate", trained, "big.en", "--out", "big.fr")
    process.until(lambda: list(Path().glob(".big.fr.*")))
    process.send(signal.SIGINT)
    assert process.ends() == 130
    assert process.err.read_text().strip() == ""
    assert Path("big.fr").read_text() == "from yesterday\n"
    assert sorted(path.name for path in Path().iterdir()) == ["big.en", "big.fr"]


def test_nothing_but_translations_is_written_to_a_file(trained, sentences):
    answer = regard("translate", trained, "-", typed="\n".join(sentences))
    assert_plain(answer.output)
    assert answer.stderr == ""


# --- typed ---


def job(translator: Translator, search: Search, max_length: int | None = None) -> TranslationJob:
    return TranslationJob(translator, translator.model, Path("run"), search, None, max_length)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("kind", [Beam, Sampling])
def test_several_translations_of_what_is_typed_come_with_their_scores(kind, draws, trained, type_lines, capsys):
    search = Sampling(samples=draws, seed=7) if kind is Sampling else Beam(3, n_best=draws)
    type_lines("the cat sleeps", "the dog sleeps")
    translator = Translator.load(trained)
    prompt_loop(job(translator, search), scores=draws > 1, streams=True, documents=False)
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 2 * draws
    assert all(re.match(r"-\d+\.\d{4}\t", line) for line in found.out.splitlines() if draws > 1)
    assert found.err == "Type a sentence; an empty line or Ctrl-D exits.\n> > > "


def test_a_streamed_translation_is_the_same_text(trained, type_lines, capsys, sentences):
    translator = Translator.load(trained)
    type_lines(*sentences[:7])
    prompt_loop(job(translator, Greedy()), scores=False, streams=True, documents=False)
    wanted = output_lines(regard("translate", trained, "-", "--beam", 1, typed="\n".join(sentences[:7])))
    assert capsys.readouterr().out.splitlines() == wanted


def test_what_is_typed_is_a_document(of_subwords, type_lines, capsys):
    """As on the command line: what the model cannot read, URLs and numbers are copied."""
    translator = Translator.load(of_subwords)
    type_lines("我爱你", "See https://a.org/b?c=1 17 cats. The dog sleeps", "cat")
    prompt_loop(job(translator, Beam(2)), scores=False, streams=True, documents=True)
    found = capsys.readouterr()
    typed = output_lines(regard("translate", of_subwords, "cat", "--beam", 2, "--length-penalty", 0))
    assert found.out.splitlines()[0] == "我爱你"
    assert "https://a.org/b?c=1" in found.out.splitlines()[1]
    assert found.out.splitlines()[2:] == typed
    assert found.err.count("regard: ") == found.err.count("'我爱你' is out of vocabulary; copied") == 1


def test_a_terminal_is_answered_with_documents_too(of_subwords, start):
    keyboard, terminal = os.openpty()
    name = os.ttyname(terminal)
    os.write(keyboard, "我爱你 https://a.org/b?c=1\n\n".encode())
    process = start("translate", of_subwords, stdin=name, err=name)
    assert process.ends() == 0
    assert process.out.read_text(encoding="utf-8") == "我爱你 https://a.org/b?c=1\n"
    os.close(terminal)
    os.close(keyboard)


def test_a_mistake_in_a_typed_line_does_not_end_the_conversation(trained, type_lines, capsys):
    type_lines("the zebra", "cat " * 9, "the caf\udce9", "the cat", "", "never asked for")
    translator = Translator.load(trained)
    prompt_loop(job(translator, Greedy(), 7), scores=False, streams=True, documents=False)
    found = capsys.readouterr()
    assert "regard: this line: 'zebra' is out of vocabulary; it is translated as <unk>" in found.err
    assert "regard: this line: 9 tokens; split it, or allow it with --max-length 9" in found.err
    assert "is a lone surrogate; remove it" in found.err
    assert len(found.out.splitlines()) == 2


def test_a_terminal_is_asked_and_translations_alone_are_redirected(trained, start):
    keyboard, terminal = os.openpty()
    name = os.ttyname(terminal)
    os.write(keyboard, b"the cat sleeps\n\n")
    process = start("translate", trained, "--beam", 1, stdin=name, err=name)
    assert process.ends() == 0
    assert b"Type a sentence" in os.read(keyboard, 10_000)
    wanted = regard("translate", trained, "-", "--beam", 1, typed="the cat sleeps")
    assert process.out.read_text(encoding="utf-8") == assert_done(wanted)
    os.close(terminal)
    os.close(keyboard)


def test_a_terminal_sees_progress_while_a_file_gets_the_translations(trained, sentences, start):
    Path("text.en").write_text("".join(f"{line}\n" for line in sentences))
    seen, terminal = os.openpty()
    process = start("translate", trained, "text.en", "--beam", 1, err=os.ttyname(terminal))
    assert process.ends() == 0
    assert b"translating" in os.read(seen, 10_000)
    wanted = regard("translate", trained, "text.en", "--beam", 1)
    assert process.out.read_text(encoding="utf-8") == assert_done(wanted)
    os.close(terminal)
    os.close(seen)


def test_a_sentence_may_stand_on_the_command_line(trained):
    Path("a.en").write_text("the cat sleeps\n")
    answer = regard("translate", trained, "the cat sleeps")
    assert assert_done(answer) == assert_done(regard("translate", trained, "a.en"))
    assert answer.stderr == ""
    mistaken = regard("translate", trained, "my cat.en")
    assert mistaken.stderr.startswith("regard: no file is called 'my cat.en'; it is read as a sentence\n")
    Path("the cat.en").write_text("the cat sleeps\n")
    answer = regard("translate", trained, "the cat.en")
    assert assert_done(answer) == assert_done(regard("translate", trained, "a.en"))
    assert "no file is called" not in answer.stderr


def test_a_word_may_stand_on_the_command_line(trained):
    answer = regard("translate", trained, "cat")
    assert assert_done(answer) == assert_done(regard("translate", trained, "-", typed="cat"))
    assert answer.stderr == "regard: no file is called 'cat'; it is read as a sentence\n"
    assert regard("translate", trained, "cat.").stderr == ""
    as_line = regard("translate", trained, "cat", "--scores")
    assert len(output_lines(as_line)) == 1
    assert as_line.stderr == answer.stderr
    assert_refused(regard("translate", trained, "cat.en"), "cat.en: no such file")


@pytest.mark.parametrize("options", [[], LINES, ["--n-best", 2, "--length-penalty", 0], ["--format", "markdown"]])
def test_a_text_without_a_word_is_refused_on_the_command_line_and_stays_empty_elsewhere(options, trained):
    for text in ("", " ", "\n\t"):
        assert_refused(regard("translate", trained, text, *options), "the sentence is empty; give at least one word")
    answer = regard("translate", trained, "-", *options, typed="")
    assert assert_done(answer) == ""
    if not options:
        assert answer.stderr == "regard: - is empty; there is nothing to translate\n"
    Path("empty.md").write_text("\n \n")
    answer = regard("translate", trained, "empty.md", "--out", "leer.md")
    assert_done(answer)
    assert answer.stderr == "regard: empty.md is empty; there is nothing to translate\ntranslated: leer.md\n"
    assert Path("leer.md").read_text() == "\n \n"


def test_a_notice_is_shown_once_for_many_lines(trained):
    Path("text.en").write_text("the cat\n" * 7)
    answer = regard("translate", trained, "text.en", "--n-best", 2)
    assert len(output_lines(answer)) == 14
    assert answer.stderr.count("n-best lists are ranked") == len(answer.stderr.splitlines()) == 1
    Path("text.txt").write_text("the zebra. the zebra sleeps\n" * 7)
    answer = regard("translate", trained, "text.txt", "--out", "texte.txt")
    assert_done(answer)
    assert answer.stderr.splitlines() == ["translated: texte.txt", "regard: 'zebra' is out of vocabulary; copied"]
    answer = regard("translate", trained, "my cats/zebra", "--scores")
    assert answer.stderr.count("no file is called") == 1


def test_a_sentence_that_names_a_url_is_not_asked_for_as_a_file(trained):
    """And of a long one the notice shows the beginning."""
    for sentence in ("the cat sees https://a.org/b?c=d.html", "the cat / the dog", "the cat and/or a dog."):
        assert "no file is called" not in regard("translate", trained, sentence).stderr
    long = f"{'the cat ' * 9}sees my/dog"
    notice = f"regard: no file is called '{long[:40]}…'; it is read as a sentence"
    assert regard("translate", trained, long).stderr.splitlines()[0] == notice


def test_a_dash_is_stdout_and_no_name_of_a_file(trained):
    answer = regard("translate", trained, "the cat", "--out", "-")
    assert assert_done(answer) == assert_done(regard("translate", trained, "the cat"))
    Path("text.en").write_text("the cat\n")
    refused = regard("translate", trained, "text.en", "--align", "-")
    assert_refused(refused, "- stands for stdout, which has other output here; give the name of a file")
    assert not Path("-").exists()


def test_best_says_why_log_probabilities_are_not_in_order(trained):
    Path("a.en").write_text("the cat sleeps\n")
    why = "n-best lists are ranked by the penalised score"
    assert why in regard("translate", trained, "a.en", "--best", 3).stderr
    plain = regard("translate", trained, "a.en", "--best", 3, "--length-penalty", 0)
    assert why not in plain.stderr
    scores = [float(line.split("\t")[0]) for line in assert_done(plain).splitlines()]
    assert scores == sorted(scores, reverse=True)


def test_a_penalty_without_measure_is_refused(trained):
    assert_refused(regard("translate", trained, "-", "--length-penalty", "1e300", typed="x"), "Invalid value for '--le")


def test_the_help_says_how_far_int8_depends_on_the_batch():
    output = " ".join(re.sub(r"[│\s]+", " ", assert_done(regard("translate", "--help"))).split())
    assert f"in int8, beside other lines, a score by up to {INT8_BATCH_TOLERANCE}" in output
