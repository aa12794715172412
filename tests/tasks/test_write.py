"""The writing task: its text, blocks and loss, what text costs, the cache, exact resuming, saving and loading."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.layers.words import Table
from regard.models.reading_config import WriterConfig
from regard.models.writer import Writer
from regard.tasks import pointer as pointers
from regard.tasks import surprise
from regard.tasks.pointer import Pointer, chosen, mixed, pointed
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.surprise import Running, Told, Windows, summed
from regard.tasks.texts import WriteData, lines_in, read_texts
from regard.tasks.write import Author, Predicting, Stream, WriteSettings, led, validation
from regard.text.plain import Blocks
from regard.text.vocabulary import BOS, EOS, Characters
from regard.train.fit import Fit

TRAIN = TrainSettings(steps=5, tokens=35, longest=7, warmup=1, smoothing=0.0, validate_every=3, checkpoint_every=2)
LSTM = WriterConfig(kind="lstm", layers=2, model=6, hidden=10, dropout=0.2, weight_dropout=0.3, word_dropout=0.1)
ATTENTIVE = WriterConfig(kind="transformer", layers=1, model=8, hidden=11, heads=2, dropout=0.2, input_dropout=0.1)
LINES = ["the cat sat\n", "on the mat\n", "\n", "a cat saw the mat\n"] * 5


def settings_of(model: WriterConfig = ATTENTIVE, text: str = "characters", lead: int = 0, **train) -> WriteSettings:
    return WriteSettings(
        data=WriteData(lead=lead), text=ReadingSettings(kind=text), model=model, train=replace(TRAIN, **train)
    )


def author_of(model: WriterConfig = ATTENTIVE, text: str = "characters", **more) -> Author:
    author = Author.fresh(LINES, settings_of(model, text, **more))
    author.model.eval()
    return author


# --- settings and text ---


def test_settings_survive_a_file():
    settings = replace(settings_of(LSTM, lead=3), measure=WriteSettings().measure)
    assert WriteSettings.from_toml(settings.to_toml()) == settings
    assert WriteSettings.of_world().changed({"measure.cache": "50"}).measure.cache == 50


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[text]\nkind = "bpe"\nlanguage = "en"', "text.language = 'en' takes the blanks"),
        ("[measure]\nstride = 9\n[train]\nlongest = 7", "measure.stride = 9 would leave tokens out"),
        ("[train]\ntokens = 6\nlongest = 7", "train.tokens = 6 has no room for a block of train.longest = 7"),
        ("[measure]\ncache = -1", "measure.cache = -1 should be at least 0"),
        ("[data]\nlead = -1", "data.lead = -1"),
        ('task = "tag"', "the task is 'tag', not 'write'"),
    ],
)
def test_settings_that_make_no_sense(text, says):
    with pytest.raises(ValueError, match=says):
        WriteSettings.from_toml(text if text.startswith("task") else f'task = "write"\n{text}')


def test_a_line_ends_in_a_newline_and_nowhere_else():
    assert lines_in("a\u2028b\n\nc") == ["a\u2028b\n", "\n", "c"]
    assert lines_in("a\n") == ["a\n"]
    assert lines_in("") == []


def test_a_text_without_one_to_validate_on_gives_its_last_hundredth_from_a_words_beginning(tmp_path):
    text = "".join(f"line {number} of it\n" for number in range(60))
    (tmp_path / "all.txt").write_text(text)
    data = WriteData(corpus="files", train=(str(tmp_path / "all.txt"),))
    train, valid = ("".join(read_texts(data, split).examples) for split in ("train", "valid"))
    assert train + valid == text
    assert train[-1] in " \n"
    assert 1 <= len(valid) - len(text) // 100 < 10
    with pytest.raises(ValueError, match=r"data.test names no files"):
        read_texts(data, "test")


def test_files_follow_each_other_line_by_line(tmp_path):
    for name, text in (("a.txt", "one"), ("b.txt", "two\nthree")):
        (tmp_path / name).write_text(text)
    paths = tuple(str(tmp_path / name) for name in ("a.txt", "b.txt"))
    assert read_texts(WriteData(corpus="files", train=paths, valid=paths), "valid").examples == [
        "one\n",
        "two\n",
        "three\n",
    ]
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"a.txt: there is no text"):
        read_texts(WriteData(corpus="files", test=paths[:1]), "test")
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(ValueError, match="no text is left for train"):
        read_texts(WriteData(corpus="files", train=paths[:1]), "train")


def test_of_shakespeare_the_first_nine_tenths_of_the_characters_are_for_training(tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("First Citizen:\nBefore we proceed\n")  # 33 characters
    data = WriteData(corpus="tinyshakespeare")
    train, valid = (read_texts(data, split, tmp_path).examples for split in ("train", "valid"))
    assert train == ["First Citizen:\n", "Before we proc"]
    assert valid == ["eed\n"]
    with pytest.raises(ValueError, match="has no split 'test'"):
        read_texts(data, "test", tmp_path)


def test_the_world_speaks_in_lines():
    lines = read_texts(WriteData(sentences=7, longest=5), "train").examples
    assert len(lines) == 7
    assert all(line.endswith("\n") and 3 <= len(line.split()) <= 5 for line in lines)


def test_words_end_their_lines_and_letters_spell_theirs():
    words = author_of(text="words")
    assert words.ids(["the cat\n", "\n"]).tolist() == [*words.words.encode("the cat"), EOS, EOS]
    assert words.beginning("the cat\na") == ([EOS], [*words.words.encode("the cat"), EOS, *words.words.encode("a")])
    letters = author_of()
    assert letters.words.decode(letters.ids(LINES).tolist()) == "".join(LINES)
    assert letters.beginning("a\ncat") == (letters.words.encode("\n"), letters.words.encode("a\ncat"))
    pieces = author_of(text="bpe")
    opening, ids = pieces.beginning("the mat")
    assert pieces.words.decode(opening) == "\n"
    assert pieces.words.decode(opening + ids) == "\nthe mat"
    one_line = Author.fresh(["abc"], settings_of())
    assert one_line.beginning("b") == ([BOS], one_line.words.encode("b"))


# --- blocks that are led ---


def test_every_target_counts_once_whatever_leads_it():
    ids = torch.arange(4, 4 + 53)
    blocks = Blocks(ids, 5, rows=3, lead=7, seed=1)
    for epoch in (0, 1):
        parts = [block for index in range(blocks.steps(epoch)) for block in blocks.at(epoch, index)]
        found = torch.cat([block.targets[block.scored] for block in parts])
        assert sorted(found.tolist()) == ids.tolist()
        for block in parts:
            assert block.inputs.shape[1] == 12
            assert not block.scored[:, : block.lead].any()
            assert block.scored[:, block.lead].any()
            for row, scored in zip(block.inputs, block.scored, strict=True):
                first = int(scored.int().argmax())
                assert first == min(7, int(row[first]) - 4 + 1 if first else 0) or int(row[0]) == BOS
    with pytest.raises(ValueError, match="lead=-1"):
        Blocks(ids, 5, lead=-1)


@pytest.mark.parametrize("config", [LSTM, ATTENTIVE], ids=["lstm", "transformer"])
def test_what_leads_gives_context_and_learns_nothing(config):
    model = Writer(replace(config, tied=False), 19).double().eval()
    tokens = torch.randint(0, 9, (3, 11))
    tokens[:, 4:] += 9  # words that stand nowhere before
    assert_close(model.logits(led(model, tokens, 4)), model(tokens)[:, 4:])
    assert_close(model.logits(led(model, tokens, 0)), model(tokens))
    led(model, tokens, 4).square().sum().backward()
    gradient = model.words.weight.grad
    assert gradient is not None
    assert not gradient[:9].any()
    assert gradient[9:][tokens[0, 4:] - 9].abs().sum() > 0


# --- loss ---


class Fixed(Writer):
    """Of the ids 4 and 5, 4 is three times as probable; the others do not come. States are scores already."""

    def __init__(self, config, size):
        super().__init__(config, size)
        self.output = Table(size, size)
        self.output.weight.data = torch.eye(size)

    def read(self, tokens, state):
        logits = torch.full((*tokens.shape, 6), -30.0)
        logits[..., 4], logits[..., 5] = math.log(3), 0.0
        return logits, state


class Halves(Fixed):
    """In the second half of the rows they are equally probable."""

    def read(self, tokens, state):
        logits, _ = super().read(tokens, state)
        logits[len(tokens) // 2 :, :, 4] = 0.0
        return logits, state


def of_one_block(ids: list[int], length: int, lead: int = 0):
    (batch,) = Stream(Blocks(torch.tensor(ids), length, rows=99, lead=lead)).at(0, 0)
    return batch


def test_the_loss_by_hand():
    """Four targets of 4 and one of 5: 4 log 4/3 + log 4. Smoothed by 0.12, 0.02 of each is against each of the ids."""
    batch = of_one_block([4, 4, 5, 4, 4], 5)
    plain, tokens = Predicting()(Fixed(ATTENTIVE, 6), batch)
    assert tokens == 5
    assert_close(plain.item(), 4 * math.log(4 / 3) + math.log(4), rtol=1e-5, atol=1e-5)
    smooth, _ = Predicting(0.12)(Fixed(ATTENTIVE, 6), batch)
    all_six = math.log(4 / 3) + math.log(4) + 4 * (math.log(4) + 30)
    assert_close(smooth.item(), 0.88 * plain.item() + 5 * 0.02 * all_six, rtol=1e-5, atol=1e-5)


def test_consistency_by_hand():
    """One target of 4: the mean of log 4/3 and log 2; the passes are apart by ¼ log 3, half of it counts 5 times."""
    batch = of_one_block([4], 1)
    summed_, tokens = Predicting(consistency=5.0)(Halves(ATTENTIVE, 6), batch)
    wanted = (math.log(4 / 3) + math.log(2)) / 2 + 5 * math.log(3) / 4 / 2
    assert tokens == 1
    assert_close(summed_.item(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_the_gradient_does_not_depend_on_how_a_step_is_split(consistency):
    author = author_of(replace(LSTM, dropout=0.0, weight_dropout=0.0, word_dropout=0.0))
    model, ids, grads = author.model.double().train(), author.ids(LINES), []
    for at_once in (6, 4, 1):
        model.zero_grad()
        for batch in Stream(Blocks(ids, 5, rows=6, at_once=at_once, lead=3, seed=2)).at(0, 1):
            Predicting(0.1, consistency)(model, batch)[0].backward()
        grads.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert_close(grads[1], grads[0])
    assert_close(grads[2], grads[0])


# --- what a text costs ---


@pytest.mark.parametrize("config", [LSTM, ATTENTIVE], ids=["lstm", "transformer"])
def test_a_short_text_costs_what_its_scores_say(config):
    author = author_of(config)
    model, ids = author.model.double(), author.ids(LINES)[:13]
    scores = model(torch.tensor([[BOS, *ids[:-1].tolist()]]))[0].log_softmax(-1)
    wanted = -scores.gather(-1, ids[:, None]).sum().item()
    for context in (Windows(13, 5), Windows(50, 50), Running()):
        assert_close(summed(context.told(model, ids)), wanted, rtol=1e-5, atol=1e-5)
    assert_close(validation(model, ids, Running())["loss"], wanted / 13, rtol=1e-5, atol=1e-5)


def test_running_in_pieces_is_running_at_once(monkeypatch):
    author, together = author_of(LSTM), []
    ids = author.ids(LINES)
    for tokens in (4096, 7):
        monkeypatch.setattr(surprise, "TOKENS", tokens)
        told = list(Running().told(author.model, ids))
        assert torch.cat([some.tokens for some in told]).equal(ids)
        together.append(torch.cat([some.nats for some in told]))
    assert_close(*together)
    rows = list(Running(3).told(author.model, ids))
    assert sorted(torch.cat([some.tokens for some in rows]).tolist()) == sorted(ids.tolist())


def test_company_changes_no_cost(monkeypatch):
    author, together = author_of(), []
    for tokens in (4096, 1):
        monkeypatch.setattr(surprise, "TOKENS", tokens)
        together.append(torch.cat([some.nats for some in Windows(11, 4).told(author.model, author.ids(LINES))]))
    assert_close(*together)


def test_the_context_is_stated():
    assert author_of(LSTM).context == Running()
    assert author_of().context == Windows(7, 3)
    assert "from the 5 to 7 before it" in author_of().context.stated
    assert "from all before it" in Running().stated
    assert author_of(LSTM).quickly(2500) == Running(2)
    assert author_of().quickly(2500) == Windows(7, 7)
    assert author_of(lead=4).context == Windows(11, 5)
    assert author_of(lead=4).quickly(2500) == Windows(11, 7)


# --- the cache ---


def told_of(states, tokens, nats) -> Told:
    return Told(torch.tensor(states), torch.tensor(tokens), torch.tensor(nats))


def test_the_cache_by_hand():
    """Vectors (1, 0), (0, 1), (1, 0), (1, 0) that told the words 5, 6, 5, 6.

    The third looks at the first with e^θ and at the second with 1, and with e^θ = 3 points at 5 with 3/4. The fourth
    looks at both with 3 and at the second with 1: 6 has 1/7. With room for one word it looks at the third alone: 0.
    """
    theta = math.log(3)
    told = told_of([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [5, 6, 5, 6], [0.5] * 4)
    ((_, chances),) = pointed([told], 9, [theta])
    assert_close(chances, torch.tensor([[math.exp(-0.5), 0.0, 3 / 4, 1 / 7]]))
    ((_, chances),) = pointed([told], 1, [theta])
    assert_close(chances, torch.tensor([[math.exp(-0.5), 0.0, 0.0, 0.0]]))
    (nats,) = Pointer(9, theta, 0.2).nats([told])
    assert_close(float(nats[2].exp()), 1 / (0.8 * math.exp(-0.5) + 0.2 * 3 / 4), rtol=1e-6, atol=1e-6)


def test_with_the_cache_the_chances_of_all_words_still_add_up_to_one():
    states, words = torch.randn(23, 5), torch.randint(0, 7, (23,))
    share = torch.zeros(())
    for word in range(7):
        told = Told(states, torch.cat((words[:-1], torch.tensor([word]))), torch.full((23,), math.log(7)))
        (nats,) = Pointer(11, 0.7, 0.3).nats([told])
        share = share + (-nats[-1]).exp()
    assert_close(float(share), 1.0)


def test_the_cache_does_not_depend_on_how_the_text_comes(monkeypatch):
    states, words, nats = torch.randn(37, 5), torch.randint(0, 7, (37,)), torch.rand(37)
    told = Told(states, words, nats)
    whole = torch.cat(list(Pointer(11, 0.7, 0.3).nats([told])))
    monkeypatch.setattr(pointers, "AT_ONCE", 5)
    pieces = [Told(states[a:b], words[a:b], nats[a:b]) for a, b in ((0, 1), (1, 14), (14, 37))]
    assert_close(torch.cat(list(Pointer(11, 0.7, 0.3).nats(pieces))), whole)


def test_a_cache_is_chosen_where_it_helps_and_only_there():
    """Each vector tells its word; one that tells nothing of it helps nobody."""
    words = torch.randint(0, 5, (200,))
    costs = torch.full((200,), math.log(5))
    helpful = Told(nn.functional.one_hot(words, 5).float() * 3, words, costs)
    found = chosen([helpful], 50)
    assert found.size == 50
    assert found.share == pointers.SHARES[-1]
    assert found.theta > 1
    sure = Told(torch.randn(200, 5), words, torch.full((200,), 1e-3))
    assert chosen([sure], 50).share == 0
    assert_close(mixed(costs, torch.ones(200), 0.0), costs.double())


def test_a_damaged_cache_is_told(tmp_path):
    assert Pointer.load(tmp_path) is None
    Pointer(5, 0.25, 0.1).save(tmp_path)
    assert Pointer.load(tmp_path) == Pointer(5, 0.25, 0.1)
    for text in ("{", '{"size": 0, "theta": 1, "share": 0.1}', '{"size": 3}'):
        (tmp_path / "pointer.json").write_text(text)
        with pytest.raises(ValueError, match=r"pointer.json is damaged"):
            Pointer.load(tmp_path)


# --- a run ---


RUNS = {
    "lstm with a lead": settings_of(LSTM, lead=3, accumulate=2),
    "words by attention": settings_of(ATTENTIVE, "words", consistency=1.0, average=2),
}


def fit(settings: WriteSettings, folder: Path) -> Fit:
    there = (folder / "settings.toml").exists()
    author = Author.described(folder) if there else Author.fresh(LINES, settings)
    return Fit(author.job(LINES, LINES[:7]), folder)


@pytest.mark.parametrize("name", RUNS)
def test_left_and_begun_again_it_ends_with_the_same_bytes(name, tmp_path):
    straight, left = tmp_path / "straight", tmp_path / "left"
    reports = list(fit(RUNS[name], straight).steps())
    assert [report.step for report in reports if report.validation] == [3, 5]
    for leave in (1, 3, None):
        steps = fit(RUNS[name], left).steps()
        for report in steps:
            if report.step == leave:
                steps.close()
                break
    assert (straight / "model.safetensors").read_bytes() == (left / "model.safetensors").read_bytes()


def test_a_saved_author_is_the_same_again(tmp_path):
    author = author_of(LSTM)
    author.save(tmp_path)
    Pointer(5, 0.25, 0.1).save(tmp_path)
    again = Author.load(tmp_path)
    assert again.pointer == Pointer(5, 0.25, 0.1)
    ids = again.ids(LINES[:2])
    assert_close(summed(again.context.told(again.model, ids)), summed(author.context.told(author.model, ids)))
    assert isinstance(author.words, Characters)
    replace(author.words, vocabulary=author.words.vocabulary[::-1]).save(tmp_path / "words.json")
    with pytest.raises(ValueError, match=r"words.json is not what the weights were trained with"):
        Author.load(tmp_path)


@pytest.mark.parametrize("kind", ["elman", "gru", "lstm", "transformer"])
def test_a_rhyme_is_learnt_by_every_kind(kind, tmp_path):
    lines = ["one two three four\n"] * 30
    model = WriterConfig(kind=kind, layers=1, model=16, hidden=16, dropout=0.0)
    settings = settings_of(model, "words", steps=60, tokens=70, rate=0.03, validate_every=60, checkpoint_every=60)
    author = Author.fresh(lines, settings)
    *_, last = Fit(author.job(lines, lines[:9]), tmp_path).steps()
    assert last.validation is not None
    assert last.validation["loss"] < 0.5
