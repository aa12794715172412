"""Every token of a text is learnt once an epoch and scored once, and what it costs is told per byte and per word."""

import gzip
import lzma
import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    BOS,
    EOS,
    PAD,
    BlockOrder,
    CharTokenizer,
    LMBlock,
    LMBlocks,
    TextNormalizer,
    WordTokenizer,
    bits_per_byte,
    encode_lines,
    load_tokenizer,
    perplexity_per_word,
    read_text,
    sliding_windows,
)
from regard.data.corpora import corpus_path
from regard.data.files import read_lines
from regard.data.lm_blocks import (
    MixtureBlocks,
    count_words,
    describe_context,
    encode_pieces,
    encode_text,
)
from regard.data.token_files import TextMixture
from regard.data.tokenizers.base import ByteTokenizer
from regard.tasks.config import TokenizerSettings
from regard.tasks.pretrained import train_text_tokenizer
from tests.data.prepared import write_stream

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
sizes = st.integers(1, 17)


def stream(count: int) -> torch.Tensor:
    """Tokens that tell their place: the first is 100."""
    return torch.arange(100, 100 + count)


def scored(blocks: list[LMBlock]) -> list[int]:
    return [one for block in blocks for one in block.targets[block.loss_mask].tolist()]


def epoch(blocks: LMBlocks, number: int) -> list[LMBlock]:
    return [block for index in range(blocks.steps(number)) for block in blocks.at(number, index)]


def assert_rows_hold_together(block: LMBlock) -> None:
    """A row is a piece of the stream: every target is the input after, and what counts is not padding."""
    real = block.targets != PAD
    assert torch.equal(block.inputs != PAD, real)
    assert not (block.loss_mask & ~real).any()
    before = torch.where(block.targets == 100, BOS, block.targets - 1)
    assert torch.equal(block.inputs[real], before[real])
    assert torch.equal(real.long().cummin(1).values.bool(), real), "padding is on the right"


# --- reading ---


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("text", ["", "a", "a\n", "\n", "\n\na  b\u2028c \n\t", "é😀\n\n"])
def test_a_text_is_read_as_it_is(tmp_path, text, packed):
    path = tmp_path / f"a.txt{packed}"
    path.write_bytes(PACKED[packed](text.encode()))
    assert read_text(path) == text


def test_windows_line_ends_and_a_byte_order_mark_go(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n".encode())
    assert read_text(tmp_path / "a.txt") == "one\ntwo\n"


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt: no such file"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes("one\nà\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.txt:2: not UTF-8 .* iconv"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"one\n" * 999)[:-7])
    with pytest.raises(ValueError, match=r"b\.txt\.xz: cannot be read beyond line \d+"):
        read_text(tmp_path / "b.txt.xz")


def test_a_text_keeps_its_line_ends_and_lines_get_theirs():
    letters, words = CharTokenizer.train(["ab\n"]), WordTokenizer.train(["a b"])
    assert letters.decode(encode_text(letters, "ab\nba")) == "ab\nba"
    a, b = words.encode("a b")
    assert encode_lines(words, ["a b", "", " b "]).tolist() == [a, b, EOS, EOS, b, EOS]
    assert count_words(["a b", "", " b "]) == 6


# --- learning ---


@given(count=st.integers(1, 97), length=sizes, rows=sizes, at_once=st.none() | sizes, number=st.integers(0, 3))
def test_every_token_is_learnt_once_in_an_epoch(count, length, rows, at_once, number):
    for order in BlockOrder:
        taken = min(rows, count)
        blocks = LMBlocks(stream(count), length, rows=taken, micro_batch_rows=at_once, order=order, seed=3)
        found = epoch(blocks, number)
        assert Counter(scored(found)) == Counter(stream(count).tolist())
        assert sum(block.tokens for block in found) == count
        for block in found:
            assert_rows_hold_together(block)
            assert block.inputs.shape[1] == length
            assert len(block) <= min(taken, at_once or taken)


def test_a_step_is_the_same_whatever_was_read_before():
    once, again = (LMBlocks(stream(101), 7, rows=3, seed=5) for _ in range(2))
    for number, index in ((1, 4), (0, 2), (1, 4), (7, 0)):
        for one, other in zip(once.at(number, index), again.at(number, index), strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.targets, other.targets)


def test_epochs_and_seeds_mix_and_cut_anew():
    blocks = LMBlocks(stream(1009), 13, rows=5, seed=0)
    orders = {
        tuple(scored(epoch(one, number))) for one in (blocks, LMBlocks(stream(1009), 13, seed=1)) for number in (0, 1)
    }
    assert len(orders) == 4
    cuts = {int(block.inputs[0, 0]) % 13 for number in range(29) for block in blocks.at(number, 1)}
    assert len(cuts) > 5


def prepared(folder: Path, *counts: int, weights: tuple[float, ...] | None = None) -> TextMixture:
    """Texts of so many tokens, each a number of its own, in two shards each."""
    corpora, first = [], 100
    for number, count in enumerate(counts):
        ids = list(range(first, first + count))
        corpora.append(write_stream(folder / str(number), [ids[: count // 3], ids[count // 3 :]]))
        first += count
    return TextMixture(tuple(corpora), weights)


@pytest.mark.parametrize("context", [0, 4])
def test_every_token_of_prepared_texts_is_learnt_once_in_an_epoch(context, tmp_path):
    mixture = prepared(tmp_path, 97, 1, 40)
    for length, rows, at_once in ((7, 3, None), (50, 2, 1), (1, 16, 5), (200, 4, None)):
        blocks = MixtureBlocks(mixture, length, rows=rows, micro_batch_rows=at_once, seed=3, context_length=context)
        for number in (0, 1, 2):
            found = [block for index in range(blocks.steps(number)) for block in blocks.at(number, index)]
            assert Counter(scored(found)) == Counter(range(100, 238))
            assert sum(block.tokens for block in found) == 138
            for block in found:
                real = block.targets != PAD
                begins = torch.isin(block.targets, torch.tensor([100, 197, 198]))
                assert torch.equal(block.inputs[real], torch.where(begins, BOS, block.targets - 1)[real])
                assert block.inputs.shape[1] == context + length
                assert 0 < len(block) <= (at_once or rows)


def test_context_comes_of_the_same_text(tmp_path):
    blocks = MixtureBlocks(prepared(tmp_path, 30, 30), 6, rows=1, context_length=9)
    for index in range(blocks.steps(0)):
        (block,) = blocks.at(0, index)
        first = int(block.targets[block.loss_mask][0])
        own = block.targets[block.targets != PAD]
        assert own[0] == max(first - 9, 100 if first < 130 else 130)


def test_prepared_texts_mix_and_are_cut_anew_in_every_epoch(tmp_path):
    mixture = prepared(tmp_path, 500, 500)
    blocks, other = (MixtureBlocks(mixture, 13, rows=5, seed=seed) for seed in (0, 1))

    def order(one: MixtureBlocks, number: int) -> tuple[int, ...]:
        return tuple(scored([block for index in range(one.steps(number)) for block in one.at(number, index)]))

    assert len({order(one, number) for one in (blocks, other) for number in (0, 1)}) == 4
    assert order(blocks, 1) == order(MixtureBlocks(mixture, 13, rows=5), 1)
    cuts = {int(block.inputs[0, 0]) % 13 for number in range(29) for block in blocks.at(number, 1)}
    assert len(cuts) > 5
    both = {int(one) < 600 for one in blocks.at(0, 3)[0].targets[:, 0]}
    assert both == {True, False}, "a step has blocks of both"


def test_epochs_of_weighted_texts_go_on_where_the_last_one_ended(tmp_path):
    """The second text has weight 5 for 2 of the first at the same size: each token 2.5 times in an epoch."""
    blocks = MixtureBlocks(prepared(tmp_path, 120, 120, weights=(2.0, 5.0)), 6, rows=4)
    seen = Counter[int]()
    for number in (0, 1):
        found = Counter(scored([block for index in range(blocks.steps(number)) for block in blocks.at(number, index)]))
        assert {found[one] for one in range(100, 220)} == {1}
        assert {found[one] for one in range(220, 340)} == {2, 3}
        seen += found
    assert {seen[one] for one in range(220, 340)} == {5}


PIECES = "the cat sleeps\n\n  a dog\nthe end \nTHE\tDOG\n"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes"])
def test_a_text_that_is_encoded_in_pieces_is_the_same_text(kind):
    lines = [f"{line}\n" for line in ("the cat sleeps", "", "  a dog", "the end ", "THE\tDOG")]
    tokenizer = train_text_tokenizer(lines * 30, TokenizerSettings(kind=kind, vocab_size=300))
    ids = [one for part in encode_pieces(tokenizer, lines, opening=True) for one in part]
    assert tokenizer.decode(ids) == PIECES
    if kind in ("characters", "bytes"):
        assert ids == tokenizer.encode(PIECES)
    blanks = sum(ids.count(one) for one in tokenizer.encode(" ")[:1])
    assert blanks <= PIECES.count(" ") + 1, "a piece that follows a line's end gets no blank of its own"


def test_words_in_pieces_end_their_lines():
    tokenizer = WordTokenizer.train(["the cat sleeps", "the dog"])
    found = encode_pieces(tokenizer, ["the cat\nthe dog\n", "sleeps\n"], opening=False)
    assert found == [encode_lines(tokenizer, some).tolist() for some in (["the cat", "the dog"], ["sleeps"])]


def test_micro_batches_are_the_step_in_parts():
    whole = LMBlocks(stream(101), 7, rows=5, seed=2).at(3, 1)
    parts = LMBlocks(stream(101), 7, rows=5, micro_batch_rows=2, seed=2).at(3, 1)
    assert [len(block) for block in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([block.targets for block in parts]), whole[0].targets)


def test_onward_rows_go_on_where_they_ended():
    blocks = LMBlocks(stream(23), 3, rows=2, order=BlockOrder.SEQUENTIAL)
    first, second = blocks.at(0, 0)[0], blocks.at(0, 1)[0]
    assert first.inputs.tolist() == [[BOS, 100, 101], [110, 111, 112]]
    assert first.targets.tolist() == [[100, 101, 102], [111, 112, 113]]
    assert second.inputs[:, 0].tolist() == first.targets[:, -1].tolist()
    last = blocks.at(0, blocks.steps(0) - 1)[0]
    assert last.targets.tolist() == [[109, 110, PAD], [120, 121, 122]]
    assert blocks.steps(0) == blocks.steps(9) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LMBlocks(stream(5), 0), "length=0 must be at least 1"),
        (lambda: LMBlocks(stream(5), 3, rows=0), "rows=0 must be at least 1"),
        (lambda: LMBlocks(stream(5), 3, micro_batch_rows=0), "micro_batch_rows=0 must be at least 1"),
        (
            lambda: LMBlocks(stream(5), 3, order="random"),  # type: ignore[arg-type]
            "order='random' is no order of blocks; choose from shuffled, onward",
        ),
        (
            lambda: LMBlocks(stream(5), 3, rows=7, order=BlockOrder.SEQUENTIAL),
            "5 tokens cannot fill 7 rows side by side",
        ),
        (lambda: LMBlocks(stream(0), 3), r"a stream is a row of whole numbers, at least one, not \(0,\)"),
        (lambda: LMBlocks(torch.ones(2, 3), 3), r"not \(2, 3\) of torch.float32"),
        (lambda: LMBlocks(torch.tensor([5, PAD, 5]), 3), "id 0 is padding and cannot occur inside a text"),
        (lambda: LMBlocks(stream(5), 3).at(0, 2), r"epoch=0 and index=2 count from 0, and an index is below"),
        (lambda: LMBlocks(stream(5), 3).at(-1, 0), "epoch=-1 and index=0 count from 0"),
        (lambda: sliding_windows(stream(5), 3, 4), "stride=4 lies in 1 to length=3"),
        (lambda: sliding_windows(stream(5), 3, 0), "stride=0 lies in 1 to length=3"),
    ],
)
def test_what_makes_no_blocks_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- measuring ---


@given(count=st.integers(1, 97), length=sizes, stride=sizes, rows=sizes)
def test_every_token_is_scored_once_with_the_stated_context(count, length, stride, rows):
    stride = min(stride, length)
    found = list(sliding_windows(stream(count), length, stride, rows=rows))
    assert scored(found) == stream(count).tolist()
    for block in found:
        assert_rows_hold_together(block)
        seen = torch.arange(1, block.inputs.shape[1] + 1).expand_as(block.inputs)[block.loss_mask]
        places = block.targets[block.loss_mask] - 100 + 1  # how many tokens stand before, with BOS
        assert (seen <= length).all()
        assert ((seen >= length - stride + 1) | (seen == places)).all()


def test_windows_on_paper():
    first, second, third = sliding_windows(stream(7), 4, 2)
    assert first.inputs.tolist() == [[BOS, 100, 101, 102]]
    assert first.targets.tolist() == [[100, 101, 102, 103]]
    assert first.loss_mask.tolist() == [[True] * 4]
    assert second.inputs.tolist() == [[101, 102, 103, 104]]
    assert second.targets.tolist() == [[102, 103, 104, 105]]
    assert second.loss_mask.tolist() == [[False, False, True, True]]
    assert third.targets.tolist() == [[104, 105, 106, PAD]]
    assert third.loss_mask.tolist() == [[False, False, True, False]]
    assert (
        describe_context(4, 2) == "every token once, from the 3 to 4 before it (from all, where fewer stand before it)"
    )
    assert describe_context(4, 1) == "every token once, from the 4 before it (from all, where fewer stand before it)"


def test_the_loss_of_a_text_does_not_depend_on_how_many_windows_are_read_at_once():
    torch.manual_seed(0)
    table = torch.randn(107, 107, dtype=torch.float64).log_softmax(-1)  # a bigram model: one token of context

    def loss(*, length: int, stride: int, rows: int) -> float:
        found = sliding_windows(stream(7), length, stride, rows=rows)
        return sum(-float(table[block.inputs, block.targets][block.loss_mask].sum()) for block in found)

    losses = [loss(length=4, stride=2, rows=1), loss(length=4, stride=2, rows=3), loss(length=5, stride=5, rows=2)]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-12)


def test_bits_per_byte_on_paper():
    assert bits_per_byte(math.log(256) * 10, 10) == pytest.approx(8)
    # "é" is two bytes: a model that has to choose among four signs spends two bits on it, one per byte
    assert bits_per_byte(math.log(4), len("é".encode())) == pytest.approx(1)


def test_perplexity_per_word_on_paper():
    assert perplexity_per_word(math.log(100) * 7, 7) == pytest.approx(100)
    # a word in two pieces, with the chances 1/2 and 1/8, is a word with the chance 1/16
    assert perplexity_per_word(math.log(2) + math.log(8), 1) == pytest.approx(16)
    assert perplexity_per_word(1e6, 1) == math.inf


def test_no_text_has_no_measure():
    with pytest.raises(ValueError, match="0 bytes: there is no text to share the loss among"):
        bits_per_byte(1.0, 0)
    with pytest.raises(ValueError, match="0 words"):
        perplexity_per_word(1.0, 0)


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA names no folder of known corpora")
def test_real_texts_have_the_published_sizes():
    folder = Path(os.environ["REGARD_DATA"])
    assert len(read_text(corpus_path("tinyshakespeare", "whole", folder))) == 1_115_394
    lines = list(read_lines(corpus_path("wikitext2", "valid", folder)))
    assert count_words(lines) == len(encode_lines(WordTokenizer.train(lines), lines)) == 217_646


# --- bytes ---


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_in_bytes_comes_back(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode()) == len(tokenizer.tokens(text)) == len(tokenizer.word_ids(text))
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == text


@given(st.binary())
def test_any_bytes_come_back(raw):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode_bytes(raw)
    assert tokenizer.decode_bytes([BOS, *ids, EOS]) == raw
    assert all(4 <= one < tokenizer.size == 260 for one in ids)


def test_bytes_are_saved_and_shown(tmp_path):
    tokenizer = ByteTokenizer(TextNormalizer(lower=True))
    tokenizer.save(tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json") == tokenizer
    assert tokenizer.encode("A") == [4 + ord("a")]
    assert tokenizer.tokens("é b") == ["<0xC3>", "<0xA9>", "␣", "b"]
    assert ByteTokenizer().decode(ByteTokenizer().encode("é")[:1]) == "�"
