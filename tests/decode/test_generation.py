"""Writing on: cached as uncached, in bounded memory where the model has it, and text as it comes."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.data.tokenizers.base import BOS, EOS, PAD, UNK, ByteTokenizer, CharTokenizer, WordTokenizer
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.decode import Constraints, Greedy, Sampling
from regard.decode.stepwise import GeneratedToken, generate, has_growing_cache, stream_text, text_constraints
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import map_tensors

SIZE = 17
LINEAR = 'score = "Feature()"\nnormaliser = "Proportional()"\nposition = "Rotary()"'
PROMPT = [5, 11, 7]


def transformer(recipe: str = "") -> LanguageModelConfig:
    return LanguageModelConfig(kind="transformer", layers=2, model=8, hidden=11, heads=2, recipe=recipe)


WRITERS = {
    "lstm": LanguageModelConfig(kind="lstm", layers=2, model=6, hidden=10),
    "elman": LanguageModelConfig(kind="elman", layers=1, model=6, hidden=10),
    "full": transformer('position = "Rotary()"'),
    "window": transformer('pattern = "Window(4)"\nposition = "Rotary()"'),
    "linear": transformer(LINEAR),
}
BOUNDED = [name for name in WRITERS if name != "full"]


def writer_of(name: str) -> LanguageModel:
    return LanguageModel(WRITERS[name], SIZE).double().eval()


def without_memory(
    model: LanguageModel, prompt: list[int], tokens: int, context: int | None = None
) -> list[GeneratedToken]:
    """The same by hand: everything is read anew for every token, and only the best is taken."""
    start, read, found = 0, list(prompt), []
    for _ in range(tokens):
        scores = model(torch.tensor([read[start:]]))[0, -1].log_softmax(-1)
        scores[[PAD, BOS]] = -torch.inf
        found.append(GeneratedToken(int(scores.argmax()), float(scores.max().detach())))
        if context is not None and len(read) - start >= context:
            start = len(read) + 1 - context // 2
        read.append(found[-1].id)
    return found


def ids(tokens) -> list[int]:
    return [token.id for token in tokens]


def assert_same(found: Iterable[GeneratedToken], wanted: list[GeneratedToken]) -> None:
    """Also how probable each token was: of a fresh model the best token is often the same, whatever it read."""
    found = list(found)
    assert ids(found) == ids(wanted)
    assert_close([one.log_probability for one in found], [one.log_probability for one in wanted], atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", WRITERS)
def test_with_memory_as_without(name):
    model = writer_of(name)
    assert_same(generate(model, PROMPT, Greedy(), tokens=23), without_memory(model, PROMPT, 23))


def test_a_memory_that_grows_begins_anew_behind_half_of_its_context():
    model = writer_of("full")
    assert_same(generate(model, PROMPT, Greedy(), tokens=23, context=7), without_memory(model, PROMPT, 23, 7))
    long = list(range(4, 16))
    assert_same(generate(model, long, Greedy(), tokens=1, context=7), without_memory(model, long[-7:], 1))


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bounded_memory_needs_no_end(name):
    model = writer_of(name)
    assert not has_growing_cache(model)
    assert_same(generate(model, PROMPT, Greedy(), tokens=23, context=5), without_memory(model, PROMPT, 23))


@pytest.mark.parametrize("name", BOUNDED)
def test_a_step_of_a_bounded_memory_holds_no_more_after_many(name):
    model, state, sizes = writer_of(name), writer_of(name).start(1), []
    for token in range(40):
        _, state = model.decode_hidden(torch.tensor([[token % SIZE]]), state)
        held: list[int] = []

        def note(tensor: Tensor, held: list[int] = held) -> Tensor:
            held.append(tensor.numel())
            return tensor

        map_tensors(note, state)
        sizes.append(sum(held))
    assert set(sizes[5:]) == {sizes[5]}
    assert sizes[5] > 0
    assert has_growing_cache(writer_of("full"))


def test_a_seed_is_a_text():
    model = writer_of("lstm")
    texts = [ids(generate(model, PROMPT, Sampling(seed=seed), tokens=31)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert ids(generate(model, PROMPT, Sampling(top_k=1), tokens=9)) == ids(generate(model, PROMPT, Greedy(), tokens=9))


def test_from_nothing_a_text_begins_at_the_beginning():
    model = writer_of("full")
    assert ids(generate(model, [], Greedy(), tokens=5)) == ids(generate(model, [BOS], Greedy(), tokens=5))


def test_what_stands_for_no_text_is_never_written():
    model = writer_of("lstm")
    model.bias.data[[PAD, BOS, UNK, EOS]] = 50.0
    words, letters = WordTokenizer(tuple("abcdefghijklm")), CharTokenizer("ab")
    assert set(ids(generate(model, PROMPT, Greedy(), tokens=5, constraints=text_constraints(words)))) == {EOS}
    assert min(ids(generate(model, PROMPT, Greedy(), tokens=5, constraints=text_constraints(letters)))) >= 4
    assert (
        list(generate(model, PROMPT, Greedy(), tokens=5, constraints=Constraints(allowed_next=lambda written: [])))
        == []
    )


def test_writing_leaves_the_model_in_training():
    model = writer_of("lstm").train()
    tokens = generate(model, PROMPT, Greedy(), tokens=3)
    next(tokens)
    assert all(part.training for part in model.modules())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"tokens": 3, "context": 1}])
def test_no_room_to_write(wrong):
    with pytest.raises(ValueError, match="should be at least 1"):
        next(generate(writer_of("lstm"), PROMPT, Greedy(), **wrong))


# --- as text ---


def test_letters_come_whole():
    words = ByteTokenizer()
    given = words.encode("né €")
    assert list(stream_text(words, given)) == ["n", "", "é", " ", "", "", "€", ""]
    assert "".join(stream_text(words, given[:-1])) == "né \N{REPLACEMENT CHARACTER}"


def test_words_come_with_their_blanks_and_line_ends():
    words = WordTokenizer(("the", "cat"))
    the, cat = words.encode("the cat")
    assert list(stream_text(words, [the, cat, EOS, the])) == ["the", " cat", "\n", "the"]
    assert list(stream_text(words, [cat], [the])) == [" cat"]
    assert list(stream_text(words, [cat], [the, EOS])) == ["cat"]


def test_subwords_spell_what_was_read():
    words = SubwordTokenizer.bpe(["the cat sat on the mat\n"] * 9, size=290)
    given = words.encode("the cat\nsat")
    assert "".join(stream_text(words, given)) == "the cat\nsat"
    assert "".join(stream_text(words, given[1:], given[:1])) == words.decode(given).removeprefix(
        words.decode(given[:1])
    )
