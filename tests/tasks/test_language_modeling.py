"""The writing task: its text, blocks and loss, what text costs, the cache, exact resuming, saving and loading."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.data.lm_blocks import LMBlocks
from regard.data.tokenizers.base import BOS, EOS, CharTokenizer
from regard.layers.embedding import Embedding
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.tasks.config import TokenizerSettings
from regard.tasks.language_modeling import token_nll
from regard.tasks.language_modeling.task import (
    BlockStream,
    LanguageModelingData,
    LanguageModelingLoss,
    LanguageModelingSettings,
    TextGenerator,
    hidden_after_context,
    split_lines,
    validation,
)
from regard.tasks.language_modeling.token_nll import (
    NeuralCache,
    RecurrentContext,
    SlidingWindows,
    TokenNLL,
    cache_probabilities,
    interpolate_nats,
    total_nats,
    tune_cache,
)
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun

TRAIN = TrainSettings(
    steps=5, batch_size=35, max_length=7, warmup_steps=1, label_smoothing=0.0, validate_every=3, checkpoint_every=2
)
LSTM = LanguageModelConfig(kind="lstm", layers=2, model=6, hidden=10, dropout=0.2, weight_dropout=0.3, word_dropout=0.1)
ATTENTIVE = LanguageModelConfig(
    kind="transformer", layers=1, model=8, hidden=11, heads=2, dropout=0.2, input_dropout=0.1
)
LINES = ["the cat sat\n", "on the mat\n", "\n", "a cat saw the mat\n"] * 5


def settings_of(
    model: LanguageModelConfig = ATTENTIVE, text: str = "characters", lead: int = 0, **train
) -> LanguageModelingSettings:
    return LanguageModelingSettings(
        data=LanguageModelingData(lead=lead),
        text=TokenizerSettings(kind=text),
        model=model,
        train=replace(TRAIN, **train),
    )


def generator_of(model: LanguageModelConfig = ATTENTIVE, text: str = "characters", **more) -> TextGenerator:
    generator = TextGenerator.from_examples(LINES, settings_of(model, text, **more))
    generator.model.eval()
    return generator


# --- settings and text ---


def test_settings_survive_a_file():
    settings = replace(settings_of(LSTM, lead=3), measure=LanguageModelingSettings().measure)
    assert LanguageModelingSettings.from_toml(settings.to_toml()) == settings
    assert LanguageModelingSettings.of_world().with_changes({"measure.cache": "50"}).measure.cache == 50


def test_a_line_ends_in_a_newline_and_nowhere_else():
    assert split_lines("a\u2028b\n\nc") == ["a\u2028b\n", "\n", "c"]
    assert split_lines("a\n") == ["a\n"]
    assert split_lines("") == []


def test_a_text_without_one_to_validate_on_gives_its_last_hundredth_from_a_words_beginning(tmp_path):
    text = "".join(f"line {number} of it\n" for number in range(60))
    (tmp_path / "all.txt").write_text(text)
    data = LanguageModelingData(corpus="files", train=(str(tmp_path / "all.txt"),))
    train, valid = ("".join(data.read(split).examples) for split in ("train", "valid"))
    assert train + valid == text
    assert train[-1] in " \n"
    assert 1 <= len(valid) - len(text) // 100 < 10
    with pytest.raises(ValueError, match=r"data.test names no files"):
        data.read("test")


def test_files_follow_each_other_line_by_line(tmp_path):
    for name, text in (("a.txt", "one"), ("b.txt", "two\nthree")):
        (tmp_path / name).write_text(text)
    paths = tuple(str(tmp_path / name) for name in ("a.txt", "b.txt"))
    assert LanguageModelingData(corpus="files", train=paths, valid=paths).read("valid").examples == [
        "one\n",
        "two\n",
        "three\n",
    ]
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"a.txt: there is no text"):
        LanguageModelingData(corpus="files", test=paths[:1]).read("test")
    (tmp_path / "a.txt").write_text("word")
    with pytest.raises(ValueError, match="no text is left for train"):
        LanguageModelingData(corpus="files", train=paths[:1]).read("train")


def test_of_shakespeare_the_first_nine_tenths_of_the_characters_are_for_training(tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("First Citizen:\nBefore we proceed\n")  # 33 characters
    data = LanguageModelingData(corpus="tinyshakespeare")
    train, valid = (data.read(split, tmp_path).examples for split in ("train", "valid"))
    assert train == ["First Citizen:\n", "Before we proc"]
    assert valid == ["eed\n"]
    with pytest.raises(ValueError, match="has no split 'test'"):
        data.read("test", tmp_path)


def test_the_world_speaks_in_lines():
    lines = LanguageModelingData(sentences=7, max_length=5).read("train").examples
    assert len(lines) == 7
    assert all(line.endswith("\n") and 3 <= len(line.split()) <= 5 for line in lines)


def test_words_end_their_lines_and_letters_spell_theirs():
    words = generator_of(text="words")
    assert words.ids(["the cat\n", "\n"]).tolist() == [*words.tokenizer.encode("the cat"), EOS, EOS]
    assert words.encode_prompt("the cat\na") == (
        [EOS],
        [*words.tokenizer.encode("the cat"), EOS, *words.tokenizer.encode("a")],
    )
    letters = generator_of()
    assert letters.tokenizer.decode(letters.ids(LINES).tolist()) == "".join(LINES)
    assert letters.encode_prompt("a\ncat") == (letters.tokenizer.encode("\n"), letters.tokenizer.encode("a\ncat"))
    pieces = generator_of(text="bpe")
    opening, ids = pieces.encode_prompt("the mat")
    assert pieces.tokenizer.decode(opening) == "\n"
    assert pieces.tokenizer.decode(opening + ids) == "\nthe mat"
    one_line = TextGenerator.from_examples(["abc"], settings_of())
    assert one_line.encode_prompt("b") == ([BOS], one_line.tokenizer.encode("b"))


# --- blocks that are led ---


def test_every_target_counts_once_whatever_leads_it():
    ids = torch.arange(4, 4 + 53)
    blocks = LMBlocks(ids, 5, rows=3, context_length=7, seed=1)
    for epoch in (0, 1):
        parts = [block for index in range(blocks.steps(epoch)) for block in blocks.at(epoch, index)]
        found = torch.cat([block.targets[block.loss_mask] for block in parts])
        assert sorted(found.tolist()) == ids.tolist()
        for block in parts:
            assert block.inputs.shape[1] == 12
            assert not block.loss_mask[:, : block.context_length].any()
            assert block.loss_mask[:, block.context_length].any()
            for row, scored in zip(block.inputs, block.loss_mask, strict=True):
                first = int(scored.int().argmax())
                assert first == min(7, int(row[first]) - 4 + 1 if first else 0) or int(row[0]) == BOS
    with pytest.raises(ValueError, match="context_length=-1"):
        LMBlocks(ids, 5, context_length=-1)


@pytest.mark.parametrize("config", [LSTM, ATTENTIVE], ids=["lstm", "transformer"])
def test_what_leads_gives_context_and_learns_nothing(config):
    model = LanguageModel(replace(config, tied=False), 19).double().eval()
    tokens = torch.randint(0, 9, (3, 11))
    tokens[:, 4:] += 9  # words that stand nowhere before
    assert_close(model.logits(hidden_after_context(model, tokens, 4)), model(tokens)[:, 4:])
    assert_close(model.logits(hidden_after_context(model, tokens, 0)), model(tokens))
    hidden_after_context(model, tokens, 4).square().sum().backward()
    gradient = model.embedding.weight.grad
    assert gradient is not None
    assert not gradient[:9].any()
    assert gradient[9:][tokens[0, 4:] - 9].abs().sum() > 0


# --- loss ---


class Fixed(LanguageModel):
    """Of the ids 4 and 5, 4 is three times as probable; the others do not come. States are scores already."""

    def __init__(self, config, size):
        super().__init__(config, size)
        self.output = Embedding(size, size)
        self.output.weight.data = torch.eye(size)

    def decode_hidden(self, tokens, state):
        logits = torch.full((*tokens.shape, 6), -30.0)
        logits[..., 4], logits[..., 5] = math.log(3), 0.0
        return logits, state


class Halves(Fixed):
    """In the second half of the rows they are equally probable."""

    def decode_hidden(self, tokens, state):
        logits, _ = super().decode_hidden(tokens, state)
        logits[len(tokens) // 2 :, :, 4] = 0.0
        return logits, state


def of_one_block(ids: list[int], length: int, lead: int = 0):
    (batch,) = BlockStream(LMBlocks(torch.tensor(ids), length, rows=99, context_length=lead)).at(0, 0)
    return batch


def test_the_loss_by_hand():
    """Four targets of 4 and one of 5: 4 log 4/3 + log 4. Smoothed by 0.12, 0.02 of each is against each of the ids."""
    batch = of_one_block([4, 4, 5, 4, 4], 5)
    plain, tokens = LanguageModelingLoss()(Fixed(ATTENTIVE, 6), batch)
    assert tokens == 5
    assert_close(plain.item(), 4 * math.log(4 / 3) + math.log(4), rtol=1e-5, atol=1e-5)
    smooth, _ = LanguageModelingLoss(0.12)(Fixed(ATTENTIVE, 6), batch)
    all_six = math.log(4 / 3) + math.log(4) + 4 * (math.log(4) + 30)
    assert_close(smooth.item(), 0.88 * plain.item() + 5 * 0.02 * all_six, rtol=1e-5, atol=1e-5)


def test_rdrop_by_hand():
    """One target of 4: the mean of log 4/3 and log 2; the passes are apart by ¼ log 3, half of it counts 5 times."""
    batch = of_one_block([4], 1)
    summed_, tokens = LanguageModelingLoss(rdrop=5.0)(Halves(ATTENTIVE, 6), batch)
    wanted = (math.log(4 / 3) + math.log(2)) / 2 + 5 * math.log(3) / 4 / 2
    assert tokens == 1
    assert_close(summed_.item(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rdrop", [0.0, 2.0])
def test_the_gradient_does_not_depend_on_how_a_step_is_split(rdrop):
    generator = generator_of(replace(LSTM, dropout=0.0, weight_dropout=0.0, word_dropout=0.0))
    model, ids, grads = generator.model.double().train(), generator.ids(LINES), []
    for at_once in (6, 4, 1):
        model.zero_grad()
        for batch in BlockStream(LMBlocks(ids, 5, rows=6, micro_batch_rows=at_once, context_length=3, seed=2)).at(0, 1):
            LanguageModelingLoss(0.1, rdrop)(model, batch)[0].backward()
        grads.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert_close(grads[1], grads[0])
    assert_close(grads[2], grads[0])


# --- what a text costs ---


@pytest.mark.parametrize("config", [LSTM, ATTENTIVE], ids=["lstm", "transformer"])
def test_a_short_text_costs_what_its_scores_say(config):
    generator = generator_of(config)
    model, ids = generator.model.double(), generator.ids(LINES)[:13]
    scores = model(torch.tensor([[BOS, *ids[:-1].tolist()]]))[0].log_softmax(-1)
    wanted = -scores.gather(-1, ids[:, None]).sum().item()
    for context in (SlidingWindows(13, 5), SlidingWindows(50, 50), RecurrentContext()):
        assert_close(total_nats(context.token_nlls(model, ids)), wanted, rtol=1e-5, atol=1e-5)
    assert_close(validation(model, ids, RecurrentContext())["loss"], wanted / 13, rtol=1e-5, atol=1e-5)


def test_running_in_pieces_is_running_at_once(monkeypatch):
    generator, together = generator_of(LSTM), []
    ids = generator.ids(LINES)
    for tokens in (4096, 7):
        monkeypatch.setattr(token_nll, "TOKENS", tokens)
        nlls = list(RecurrentContext().token_nlls(generator.model, ids))
        assert torch.cat([some.tokens for some in nlls]).equal(ids)
        together.append(torch.cat([some.nats for some in nlls]))
    assert_close(*together)
    rows = list(RecurrentContext(3).token_nlls(generator.model, ids))
    assert sorted(torch.cat([some.tokens for some in rows]).tolist()) == sorted(ids.tolist())


def test_company_changes_no_cost(monkeypatch):
    generator, together = generator_of(), []
    for tokens in (4096, 1):
        monkeypatch.setattr(token_nll, "TOKENS", tokens)
        together.append(
            torch.cat([some.nats for some in SlidingWindows(11, 4).token_nlls(generator.model, generator.ids(LINES))])
        )
    assert_close(*together)


def test_the_context_is_stated():
    assert generator_of(LSTM).evaluation_context == RecurrentContext()
    assert generator_of().evaluation_context == SlidingWindows(7, 3)
    assert "from the 5 to 7 before it" in generator_of().evaluation_context.description
    assert "from all before it" in RecurrentContext().description
    assert generator_of(LSTM).validation_context(2500) == RecurrentContext(2)
    assert generator_of().validation_context(2500) == SlidingWindows(7, 7)
    assert generator_of(lead=4).evaluation_context == SlidingWindows(11, 5)
    assert generator_of(lead=4).validation_context(2500) == SlidingWindows(11, 7)


# --- the cache ---


def told_of(states, tokens, nats) -> TokenNLL:
    return TokenNLL(torch.tensor(states), torch.tensor(tokens), torch.tensor(nats))


def test_the_cache_by_hand():
    """Vectors (1, 0), (0, 1), (1, 0), (1, 0) that told the words 5, 6, 5, 6.

    The third looks at the first with e^θ and at the second with 1, and with e^θ = 3 points at 5 with 3/4. The fourth
    looks at both with 3 and at the second with 1: 6 has 1/7. With room for one word it looks at the third alone: 0.
    """
    theta = math.log(3)
    nlls = told_of([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [5, 6, 5, 6], [0.5] * 4)
    ((_, chances),) = cache_probabilities([nlls], 9, [theta])
    assert_close(chances, torch.tensor([[math.exp(-0.5), 0.0, 3 / 4, 1 / 7]]))
    ((_, chances),) = cache_probabilities([nlls], 1, [theta])
    assert_close(chances, torch.tensor([[math.exp(-0.5), 0.0, 0.0, 0.0]]))
    (nats,) = NeuralCache(9, theta, 0.2).token_nats([nlls])
    assert_close(float(nats[2].exp()), 1 / (0.8 * math.exp(-0.5) + 0.2 * 3 / 4), rtol=1e-6, atol=1e-6)


def test_with_the_cache_the_chances_of_all_words_still_add_up_to_one():
    states, words = torch.randn(23, 5), torch.randint(0, 7, (23,))
    share = torch.zeros(())
    for word in range(7):
        nlls = TokenNLL(states, torch.cat((words[:-1], torch.tensor([word]))), torch.full((23,), math.log(7)))
        (nats,) = NeuralCache(11, 0.7, 0.3).token_nats([nlls])
        share = share + (-nats[-1]).exp()
    assert_close(float(share), 1.0)


def test_the_cache_does_not_depend_on_how_the_text_comes(monkeypatch):
    states, words, nats = torch.randn(37, 5), torch.randint(0, 7, (37,)), torch.rand(37)
    nlls = TokenNLL(states, words, nats)
    whole = torch.cat(list(NeuralCache(11, 0.7, 0.3).token_nats([nlls])))
    monkeypatch.setattr(token_nll, "CACHE_CHUNK", 5)
    pieces = [TokenNLL(states[a:b], words[a:b], nats[a:b]) for a, b in ((0, 1), (1, 14), (14, 37))]
    assert_close(torch.cat(list(NeuralCache(11, 0.7, 0.3).token_nats(pieces))), whole)


def test_a_cache_is_chosen_where_it_helps_and_only_there():
    """Each vector tells its word; one that tells nothing of it helps nobody."""
    words = torch.randint(0, 5, (200,))
    costs = torch.full((200,), math.log(5))
    helpful = TokenNLL(nn.functional.one_hot(words, 5).float() * 3, words, costs)
    found = tune_cache([helpful], 50)
    assert found.size == 50
    assert found.share == token_nll.SHARES[-1]
    assert found.theta > 1
    sure = TokenNLL(torch.randn(200, 5), words, torch.full((200,), 1e-3))
    assert tune_cache([sure], 50).share == 0
    assert_close(interpolate_nats(costs, torch.ones(200), 0.0), costs.double())


def test_a_damaged_cache_is_told(tmp_path):
    assert NeuralCache.load(tmp_path) is None
    NeuralCache(5, 0.25, 0.1).save(tmp_path)
    assert NeuralCache.load(tmp_path) == NeuralCache(5, 0.25, 0.1)
    for text in ("{", '{"size": 0, "theta": 1, "share": 0.1}', '{"size": 3}'):
        (tmp_path / "pointer.json").write_text(text)
        with pytest.raises(ValueError, match=r"pointer.json is damaged"):
            NeuralCache.load(tmp_path)


# --- a run ---


RUNS = {
    "lstm with a lead": settings_of(LSTM, lead=3, gradient_accumulation=2),
    "words by attention": settings_of(ATTENTIVE, "words", rdrop=1.0, average_checkpoints=2),
}


def fit(settings: LanguageModelingSettings, folder: Path) -> TrainingRun:
    is_described = (folder / "settings.toml").exists()
    generator = TextGenerator.from_description(folder) if is_described else TextGenerator.from_examples(LINES, settings)
    return TrainingRun(generator.job(LINES, LINES[:7]), folder)


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


def test_a_saved_generator_is_the_same_again(tmp_path):
    generator = generator_of(LSTM)
    generator.save(tmp_path)
    NeuralCache(5, 0.25, 0.1).save(tmp_path)
    again = TextGenerator.load(tmp_path)
    assert again.neural_cache == NeuralCache(5, 0.25, 0.1)
    ids = again.ids(LINES[:2])
    assert_close(
        total_nats(again.evaluation_context.token_nlls(again.model, ids)),
        total_nats(generator.evaluation_context.token_nlls(generator.model, ids)),
    )
    assert isinstance(generator.tokenizer, CharTokenizer)
    replace(generator.tokenizer, vocabulary=generator.tokenizer.vocabulary[::-1]).save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer.json is not what the weights were trained with"):
        TextGenerator.load(tmp_path)


def test_a_run_whose_parts_have_their_former_names_is_read(tmp_path):
    generator = generator_of(LSTM)
    generator.save(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "words.json")
    assert TextGenerator.load(tmp_path).tokenizer == generator.tokenizer


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["elman", "gru", "lstm", "transformer"])
def test_a_rhyme_is_learnt_by_every_kind(kind, tmp_path):
    lines = ["one two three four\n"] * 30
    model = LanguageModelConfig(kind=kind, layers=1, model=16, hidden=16, dropout=0.0)
    settings = settings_of(
        model, "words", steps=60, batch_size=70, learning_rate=0.03, validate_every=60, checkpoint_every=60
    )
    generator = TextGenerator.from_examples(lines, settings)
    *_, last = TrainingRun(generator.job(lines, lines[:9]), tmp_path).steps()
    assert last.validation is not None
    assert last.validation["loss"] < 0.5
