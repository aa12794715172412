"""Writing on: cached as uncached, in bounded memory where the model has it, and text as it comes."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.attention import record_attention
from regard.data.tokenizers.base import BOS, EOS, PAD, UNK, ByteTokenizer, CharTokenizer, WordTokenizer
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.decode import Constraints, Greedy, Sampling, is_prepared, prepare, text_generation
from regard.decode.search import DecodingRequest
from regard.decode.stepwise import PartialHypothesis
from regard.decode.text_generation import (
    ContinuousGeneration,
    GeneratedToken,
    SeparateStates,
    SlotDecoder,
    StateRows,
    TextRequest,
    generate,
    generate_all,
    has_growing_cache,
    objections,
    slot_tokens,
    stream_text,
    text_constraints,
    text_decoder,
)
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import map_tensors
from regard.ops.cuda_graph import WARMUPS

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
MANY = WRITERS | {
    "sinusoidal": transformer('position = "Sinusoidal()"'),
    "alibi": transformer('position = "Alibi(heads=2)"'),
    "latent": LanguageModelConfig(
        kind="transformer",
        layers=2,
        model=8,
        hidden=11,
        heads=2,
        kv_rank=6,
        rotary_head=2,
        recipe='position = "Rotary(fraction=0.5)"',
    ),
    "native sparse": LanguageModelConfig(
        kind="transformer", layers=2, model=8, hidden=11, heads=2, attention_form="NativeSparse(block=2, k=2, window=3)"
    ),
}
BOUNDED = [name for name in WRITERS if name != "full"]


def writer_of(name: str) -> LanguageModel:
    return LanguageModel(MANY[name], SIZE).double().eval()


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
    with pytest.raises(ValueError, match=r"should be at least [12]"):
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


# --- many texts together ---


@pytest.fixture
def few_slots(monkeypatch):
    """Rows that grow at every few tokens, and a captured step for every few slots."""
    monkeypatch.setattr(text_generation, "MIN_SLOTS", 2)
    monkeypatch.setattr(text_generation, "SLOT_MULTIPLE", 4)


def requests(count: int, seed: int = 0) -> list[TextRequest]:
    """Prompts and texts of different lengths; every second is sampled, each with a seed of its own."""
    draw = random.Random(seed)
    searches = [Greedy(), Sampling(0.9, seed=5), Sampling(1.3, top_k=5, seed=6), Sampling(0.7, top_p=0.8, seed=7)]
    return [
        TextRequest(
            tuple(draw.choices(range(4, SIZE), k=draw.randint(0, 13))),
            searches[n % 4],
            tokens=draw.randint(1, 19),
            top=n % 3,
            index=n,
        )
        for n in range(count)
    ]


def run_together(
    batch: ContinuousGeneration, waiting: list[TextRequest], draw: random.Random, leaving: Iterable[int] = ()
):
    """Some join before each step; some of them are removed again."""
    found, leaving = {request.index: list[GeneratedToken]() for request in waiting}, {*leaving}
    while waiting or batch.texts:
        batch.add([waiting.pop(0) for _ in range(min(len(waiting), draw.randint(0, 3)))])
        gone = {text.request.index for text in batch.texts} & leaving
        if gone and draw.random() < 0.5:
            batch.remove(gone)
        if batch.texts:
            for index, tokens in batch.step().tokens.items():
                found[index] += tokens
    return found


def read_anew(model: LanguageModel, request: TextRequest, context: int | None) -> list[GeneratedToken]:
    """The text alone, without a cache: everything is read again for every token."""
    limit = context if has_growing_cache(model) else None
    read = list(request.prompt or [BOS])[-limit if limit else 0 :]
    start, row, found = 0, PartialHypothesis(DecodingRequest(())), list[GeneratedToken]()
    for _ in range(request.tokens):
        with torch.no_grad():
            logits = model(torch.tensor([read[start:]]))[:, -1]
        [(token, value)] = request.search.choose_allowed(logits, [row], Constraints())
        best, tokens = logits.log_softmax(-1).topk(max(request.top, 1))
        pairs = zip(tokens[0].tolist(), best[0].tolist(), strict=True)
        found.append(GeneratedToken(token, value, tuple(pairs)[: request.top]))
        row = row.extend(token, value)
        if limit is not None and len(read) - start >= limit:
            start = len(read) + 1 - limit // 2
        read.append(token)
    return found


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("context", [None, 9], ids=["", "context of 9"])
@pytest.mark.parametrize("name", MANY)
def test_a_text_among_others_is_the_text_alone(name, context):
    torch.manual_seed(1)
    model, wanted = LanguageModel(MANY[name], SIZE).double().eval(), requests(13)
    batch = ContinuousGeneration(model, context=context)
    found = run_together(batch, list(wanted), random.Random(2), leaving=[3, 8])
    for request in wanted:
        expected = read_anew(model, request, context)
        if request.index in (3, 8):  # cancelled at some step
            expected = expected[: len(found[request.index])]
        assert_same(found[request.index], expected)
        for one, other in zip(found[request.index], expected, strict=True):
            assert ids_of(one) == ids_of(other)
    assert batch.decoder is None


def ids_of(token: GeneratedToken) -> list[int]:
    return [id for id, _ in token.alternatives]


def test_who_shares_one_cache():
    kinds = {name: type(text_decoder(LanguageModel(config, SIZE))) for name, config in MANY.items()}
    apart = {name for name, kind in kinds.items() if kind is SeparateStates}
    assert apart == {"linear", "alibi", "native sparse"}
    assert {name for name, kind in kinds.items() if kind is StateRows} == {"lstm", "elman"}
    assert objections(writer_of("linear")) == [
        "Proportional() is not softmax",
    ]
    with record_attention(model := writer_of("full")):
        assert objections(model) == ["its attention is recorded or edited"]


def test_slots_go_round_where_nobody_looks_back_further():
    newest = torch.tensor([1, 6])
    assert slot_tokens(newest, 4, 4).tolist() == [[0, 1, -2, -1], [4, 5, 6, 3]]
    assert slot_tokens(newest, 8, 3).tolist() == [[0, 1, -6], [0, 1, 2]]


def test_a_windowed_cache_keeps_a_window():
    model = writer_of("window")
    batch = ContinuousGeneration(model)
    batch.add([TextRequest(tuple(PROMPT), tokens=100)])
    for _ in range(90):
        batch.step()
    assert isinstance(batch.decoder, SlotDecoder)
    assert {part.shape[2] for pair in batch.decoder.stores for part in pair} == {4}


def test_all_prompts_as_each_alone():
    model = writer_of("full")
    prompts = [request.prompt for request in requests(7)]
    together = generate_all(model, prompts, Sampling(seed=3), tokens=6, rows=3, context=11)
    for prompt, found in zip(prompts, together, strict=True):
        assert_same(found, list(generate(model, prompt, Sampling(seed=3), tokens=6, context=11)))


def capture_nothing(work, device):
    """Work that is done anew at every replay, after the runs that warm up."""
    for _ in range(WARMUPS):
        work()
    return work, work()


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("name", ["full", "window", "sinusoidal"])
def test_steps_ahead_are_the_steps_one_by_one(name):
    model, rules = writer_of(name), Constraints(banned=frozenset([9]), stop=frozenset([EOS]))
    wanted = [replace(request, search=Greedy(), top=0, tokens=23) for request in requests(5)]
    batch = ContinuousGeneration(model, rules, context=30)
    batch.decoder = SlotDecoder(model, capture_nothing)
    batch.add(wanted)
    found, steps = {request.index: list[GeneratedToken]() for request in wanted}, 0
    while batch.texts:
        for index, tokens in batch.step(7).tokens.items():
            found[index] += tokens
        steps += 1
    assert steps < 23
    for request in wanted:
        alone = generate(model, request.prompt, Greedy(), tokens=23, constraints=rules, context=30)
        assert_same(found[request.index], list(alone))


@pytest.mark.usefixtures("few_slots")
def test_a_captured_step_serves_samples_too():
    model, wanted = writer_of("full"), requests(6, seed=4)
    batch = ContinuousGeneration(model)
    batch.decoder = SlotDecoder(model, capture_nothing)
    found = run_together(batch, list(wanted), random.Random(1))
    for request in wanted:
        assert_same(found[request.index], read_anew(model, request, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_prepared_model_says_the_same(dtype):
    model = writer_of("sinusoidal").to(dtype)
    fast = prepare(model)
    assert is_prepared(fast)
    assert isinstance(fast, LanguageModel)
    for prompt in (PROMPT, [4]):
        found, wanted = (list(generate(one, prompt, Greedy(), tokens=9)) for one in (fast, model))
        assert ids(found) == ids(wanted)
        assert [one.log_probability for one in found] == pytest.approx(
            [one.log_probability for one in wanted], abs=1e-5
        )
    assert not is_prepared(prepare(writer_of("lstm")))
    with pytest.raises(ValueError, match="cannot decode in bfloat16: RNNLM is no Transformer"):
        prepare(writer_of("lstm"), "bfloat16")
