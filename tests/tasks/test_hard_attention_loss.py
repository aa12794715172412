"""Hard attention is trained: what the losses estimate, how exactly, and what the baseline may and may not do."""

from dataclasses import dataclass
from math import log
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.attention import Additive, Dot, Hard, Normaliser, Recipe, Sampled, Softmax, StraightThrough
from regard.attention.softmax_variants import one_hot_argmax
from regard.data.batching import TokenBatchSampler
from regard.layers.pooling import AttentionPooling, MeanPooling
from regard.models.config import EncoderConfig
from regard.models.encoder import Encoder, SequenceClassifier
from regard.tasks.sequence_classification.task import (
    CrossEntropyLoss,
    ExpectedLoss,
    HardAttentionClassifier,
    LabelledBatch,
    LearnedBaseline,
    NoBaseline,
    ReinforceLoss,
    collate,
    compute_gradient,
    entropy,
    lengths_of,
    word_probabilities,
)
from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.corpus import Corpus
from tests.recorded import call_recorded

SIZE, WIDTH, LABELS = 13, 6, 3
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


@dataclass(frozen=True)
class Drawing(Normaliser):
    """A draw that turned out like this: the word `at`, in every text. With it, all draws can be gone through."""

    at: int

    def weigh(self, scores, visible):
        wanted = torch.zeros_like(scores)
        wanted[..., self.at] = 1.0
        return one_hot_argmax(wanted, visible)

    def log_probability(self, scores, visible, weights):
        return Sampled().log_probability(scores, visible, weights)


def chooser(normaliser: Normaliser, *, learned: bool = True, seed: int = 1) -> HardAttentionClassifier:
    torch.manual_seed(seed)
    encoder = Encoder(EncoderConfig(kind="embed", model=WIDTH, dropout=0.0), SIZE)
    pooling = AttentionPooling(WIDTH, recipe=Recipe(score=Additive(WIDTH, 5), normaliser=normaliser))
    classifier = SequenceClassifier(
        encoder, pooling, labels=LABELS
    )  # first, so that its weights are the same beside either
    baseline = LearnedBaseline(WIDTH, labels=LABELS, hidden=7) if learned else NoBaseline(LABELS)
    return HardAttentionClassifier(classifier, baseline).double().train()


def batch(*texts: tuple[list[int], int]) -> tuple[LabelledBatch, int]:
    made = collate(texts or [([3, 4, 5, 6, 7], 1)])
    return made, made.tokens


def attention_of(model: HardAttentionClassifier) -> list[nn.Parameter]:
    return list(model.classifier.pooling.parameters())


def each_draw(given, *, learned: bool, words: int = 5, loss: ReinforceLoss = ReinforceLoss()):
    """The chance of every draw, and the gradient of the whole classifier that it would give."""
    soft = chooser(Softmax(), learned=learned)
    x = soft.classifier.encoder(given[0].terms, given[0].lengths)
    models = [chooser(Hard(Drawing(at)), learned=learned) for at in range(words)]
    found = [compute_gradient(model, loss, given, list(model.classifier.parameters())) for model in models]
    return word_probabilities(soft.classifier, x, given[0].lengths)[0].detach(), torch.stack(found)


# --- on paper ---


def on_paper(normaliser: Normaliser) -> HardAttentionClassifier:
    """Two words: chances 1/4 and 3/4; the first gives the right label 1/2, the second 3/4."""
    encoder = Encoder(EncoderConfig(kind="embed", model=2, dropout=0.0), 6)
    pooling = AttentionPooling(2, recipe=Recipe(score=Dot(), normaliser=normaliser))
    model = HardAttentionClassifier(SequenceClassifier(encoder, pooling, labels=2), NoBaseline(2)).double().train()
    with torch.no_grad():
        encoder.embedding.weight[4:] = torch.eye(2).double() * 2**-0.5  # the table is scaled by √2 when it is read
        pooling.query.copy_(torch.tensor([0.0, log(3.0)], dtype=torch.double))
        model.classifier.output.weight.copy_(torch.tensor([[0.0, log(3.0)], [0.0, 0.0]], dtype=torch.double))
        model.classifier.output.bias.zero_()
    return model


def test_the_expected_loss_on_paper():
    """¼ log 2 + ¾ log 4/3; a word's score has the gradient p (its cost - the mean cost), here ± 3/16 log 3/2."""
    model, given = on_paper(Hard()), batch(([4, 5], 0))
    loss, count = ExpectedLoss()(model, given)
    assert count == 1
    assert loss.item() == pytest.approx(log(2) / 4 + log(4 / 3) * 3 / 4)
    found = compute_gradient(model, ExpectedLoss(), given, attention_of(model))
    assert_close(found, torch.tensor([1.0, -1.0], dtype=torch.double) * log(3 / 2) * 3 / 16, **EXACT)


def test_reinforce_on_paper():
    """Drawing the second word costs log 4/3: log 4/3 · ∇ log p, and ∇ log p is (-1/4, 1/4)."""
    model, given = on_paper(Hard(Drawing(1))), batch(([4, 5], 0))
    assert ReinforceLoss()(model, given)[0].item() == pytest.approx(log(4 / 3))
    found = compute_gradient(model, ReinforceLoss(), given, attention_of(model))
    assert_close(found, torch.tensor([-0.25, 0.25], dtype=torch.double) * log(4 / 3), **EXACT)


def test_entropy_on_paper():
    rows = torch.tensor([[0.25, 0.25, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]], requires_grad=True)
    found = entropy(rows)
    assert_close(found, torch.tensor([1.5 * log(2), 0.0]))
    found.sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()


# --- what is estimated ---


@pytest.mark.parametrize("learned", [False, True])
def test_reinforce_has_no_bias_with_or_without_a_baseline(learned):
    """Over every word that could be drawn, the mean gradient is that of the expected loss, for all weights."""
    given = batch()
    p, found = each_draw(given, learned=learned)
    model = chooser(Hard(), learned=learned)
    exact = compute_gradient(model, ExpectedLoss(), given, list(model.classifier.parameters()))
    assert_close(p @ found, exact, **EXACT)
    assert exact.abs().max() > 1e-3


def test_what_is_drawn_at_random_has_that_mean_too():
    """Many draws of `Sampled`, as in training; the margin is five times the error that so many draws leave."""
    given, draws = batch(), 4001
    p, each = each_draw(given, learned=True)
    exact = p @ each
    error = ((p @ (each - exact).square()) / draws).sqrt()
    model = chooser(Hard())
    torch.manual_seed(0)
    found = compute_gradient(
        model, ReinforceLoss(), batch(*[([3, 4, 5, 6, 7], 1)] * draws), list(model.classifier.parameters())
    )
    assert ((found - exact).abs() <= 5 * error + 1e-12).all()


def test_a_baseline_that_has_learned_to_guess_calms_the_gradient():
    given = batch()

    def variance(model: HardAttentionClassifier) -> float:
        p, _ = each_draw(given, learned=False)
        models = [
            HardAttentionClassifier(chooser(Hard(Drawing(at))).classifier, model.baseline) for at in range(len(p))
        ]
        found = torch.stack([compute_gradient(one, ReinforceLoss(), given, attention_of(one)) for one in models])
        return float(p @ (found - p @ found).square().sum(-1))

    model, none = chooser(Hard()), chooser(Hard(), learned=False)
    optimiser = torch.optim.Adam(model.baseline.parameters(), lr=0.05)
    torch.manual_seed(0)
    for _ in range(60):
        optimiser.zero_grad()
        ReinforceLoss()(model, given)[0].backward()
        optimiser.step()
    assert variance(model) < 0.5 * variance(none)


def test_the_entropy_bonus_opens_the_mind():
    """Its gradient is added to the exact one, whatever was drawn, and a step against it makes the chances more even."""
    given, bonus = batch(), 0.7
    p, plain = each_draw(given, learned=True)
    _, with_bonus = each_draw(given, learned=True, loss=ReinforceLoss(entropy=bonus))
    model = chooser(Hard())
    x = model.classifier.encoder(given[0].terms, given[0].lengths)
    even = entropy(word_probabilities(model.classifier, x, given[0].lengths)).sum()
    parts = torch.autograd.grad(even, list(model.classifier.parameters()), materialize_grads=True, allow_unused=True)
    wanted = -bonus * torch.cat([part.flatten() for part in parts])
    assert_close(with_bonus - plain, wanted.expand_as(plain), **EXACT)
    assert wanted.abs().max() > 1e-4
    assert len(p) == 5


def test_straight_through_is_soft_where_the_loss_is_linear_and_the_scores_are_hot():
    """Softmax((τ s + noise) / τ) is softmax(s) in the limit; a linear loss does not mind where it is taken."""
    temperature = 1e6
    torch.manual_seed(3)
    x, read = torch.randn(2, 5, WIDTH, dtype=torch.double), torch.randn(WIDTH, dtype=torch.double)
    tokens, lengths = torch.zeros(2, 5).long(), torch.tensor([5, 3])
    query = torch.randn(WIDTH, dtype=torch.double)

    def at(normaliser: Normaliser, heat: float):
        pooling = AttentionPooling(WIDTH, recipe=Recipe(score=Dot(), normaliser=normaliser)).double().train()
        with torch.no_grad():
            pooling.query.copy_(heat * query)
        (pooling(x, tokens, lengths) @ read).sum().backward()
        assert pooling.query.grad is not None
        return heat * pooling.query.grad

    assert_close(at(Hard(StraightThrough(temperature)), temperature), at(Softmax(), 1.0), rtol=1e-3, atol=1e-3)


def test_of_one_word_all_ways_learn_the_same():
    """There is nothing to choose."""
    given = batch(([5], 2), ([7], 0))
    ways = {Softmax(): CrossEntropyLoss(), Hard(StraightThrough()): CrossEntropyLoss(), Hard(): ReinforceLoss()}
    models = [(chooser(normaliser), loss) for normaliser, loss in ways.items()]
    models.append((chooser(Hard()), ExpectedLoss()))
    found = [compute_gradient(model, loss, given, list(model.classifier.parameters())) for model, loss in models]
    for other in found[1:]:
        assert_close(other, found[0], **EXACT)


# --- the baseline ---


def test_the_baseline_learns_by_its_own_error_alone():
    """2 (guess - reward) ∇ guess; and what it guesses changes no other gradient but through the draw's."""
    given, model = batch(), chooser(Hard(Drawing(2)))
    texts = given[0]
    weights = list(model.baseline.parameters())
    found = compute_gradient(model, ReinforceLoss(), given, weights)
    logits, x = model(texts.terms, texts.lengths), model.classifier.encoder(texts.terms, texts.lengths)
    reward = logits.log_softmax(-1)[0, 1].detach()
    guess = model.baseline(x, texts.terms, texts.lengths)[0, 1]
    parts = torch.autograd.grad((guess - reward) ** 2, weights, retain_graph=True)
    assert_close(found, torch.cat([part.flatten() for part in parts]), **EXACT)
    reading = list(model.classifier.output.parameters())
    none = chooser(Hard(Drawing(2)), learned=False)
    assert_close(
        compute_gradient(model, ReinforceLoss(), given, reading),
        compute_gradient(none, ReinforceLoss(), given, list(none.classifier.output.parameters())),
        **EXACT,
    )


def test_the_baseline_does_not_see_the_word_drawn():
    given = batch(([3, 4, 5, 6, 7], 1))[0]
    one, other = (chooser(Hard(Drawing(at))) for at in (0, 3))
    guesses = [
        model.baseline(model.classifier.encoder(given.terms, given.lengths), given.terms, given.lengths)
        for model in (one, other)
    ]
    assert_close(guesses[0], guesses[1], **EXACT)


# --- batches ---


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), ReinforceLoss(entropy=0.1), ExpectedLoss()])
def test_a_text_gives_the_same_gradient_alone_and_beside_longer_ones(loss):
    texts = [([3, 4], 0), ([5, 6, 7, 8, 9], 2), ([10, 11, 12], 1)]
    model = chooser(Hard(Drawing(1)))
    weights = list(model.parameters())
    together = compute_gradient(model, loss, batch(*texts), weights)
    alone = torch.stack([compute_gradient(model, loss, batch(text), weights) for text in texts])
    assert_close(together, alone.mean(0), **EXACT)
    value = loss(model, batch(*texts))[0]
    assert_close(value, torch.stack([loss(model, batch(text))[0] for text in texts]).sum(), **EXACT)


def test_the_value_of_reinforce_is_the_cross_entropy_of_what_was_drawn():
    given, model = batch(), chooser(Hard(Drawing(3)))
    assert_close(ReinforceLoss(entropy=0.3)(model, given), CrossEntropyLoss()(model, given))


def test_a_text_without_words_is_no_trouble():
    texts = LabelledBatch(torch.zeros(2, 3).long(), torch.tensor([0, 2]), torch.tensor([0, 1]))
    for loss in (ReinforceLoss(entropy=0.1), ExpectedLoss()):
        model = chooser(Hard())
        found = compute_gradient(model, loss, (texts, 2), list(model.parameters()))
        assert torch.isfinite(found).all()


def test_evaluation_draws_nothing():
    model, texts = chooser(Hard()).eval(), batch(([3, 4, 5, 6, 7], 1), ([8, 9], 0))[0]
    answers = [model(texts.terms, texts.lengths) for _ in range(5)]
    for answer in answers[1:]:
        assert torch.equal(answer, answers[0])
    _, record = call_recorded(model, texts.terms, texts.lengths)
    weights = record.weights("classifier.pooling")[:, 0, 0]
    assert_close(weights.sort(-1).values, torch.eye(5, dtype=torch.double)[[4, 4]])
    x = model.classifier.encoder(texts.terms, texts.lengths)
    assert weights.argmax(-1).tolist() == word_probabilities(model.classifier, x, texts.lengths).argmax(-1).tolist()


# --- training ---


def examples() -> list[tuple[list[int], int]]:
    """Among eight words that say nothing stands one of two that say it all."""
    torch.manual_seed(7)
    words, places = torch.randint(3, 11, (97, 5)), torch.randint(0, 5, (97,))
    made = words.scatter(1, places[:, None], 11 + torch.arange(97)[:, None] % 2)
    return [(row, n % 2) for n, row in enumerate(made.tolist())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("normaliser", "loss"),
    [
        (Softmax(), CrossEntropyLoss()),
        (Hard(StraightThrough()), CrossEntropyLoss()),
        (Hard(), ReinforceLoss()),
        (Hard(), ExpectedLoss()),
    ],
    ids=["soft", "straight-through", "reinforce", "expected"],
)
def test_each_way_learns_where_to_look(normaliser, loss, tmp_path):
    made, model = examples(), chooser(normaliser).float()
    corpus = Corpus(made, TokenBatchSampler(lengths_of(made), tokens=400), collate)
    for _ in train(
        model, corpus, loss, TrainConfig(ConstantSchedule(0.02), 150, clip=0.0, checkpoint_every=150), tmp_path
    ):
        pass
    model.eval()
    texts = collate(made)
    assert (model(texts.terms, texts.lengths).argmax(-1) == texts.labels).float().mean() > 0.95


# --- mistakes ---


def test_mistakes_are_told_with_a_remedy():
    given = batch()
    message = "REINFORCE needs a baseline, which a SequenceClassifier has not; wrap it in a HardAttentionClassifier"
    with pytest.raises(ValueError, match=message):
        ReinforceLoss()(chooser(Hard()).classifier, given)
    for model in (chooser(Hard()).eval(), chooser(Softmax()), chooser(Hard(StraightThrough()))):
        with pytest.raises(ValueError, match=r"no word was drawn: .* Hard\(Sampled\(\)\), after model.train\(\)"):
            ReinforceLoss()(model, given)
    message = "only a SequenceClassifier or a HardAttentionClassifier chooses words, not a Linear"
    with pytest.raises(ValueError, match=message):
        ExpectedLoss()(nn.Linear(2, 2), given)
    pooled = SequenceClassifier(chooser(Hard()).classifier.encoder, MeanPooling(), labels=LABELS).double()
    with pytest.raises(ValueError, match="MeanPooling draws no word; use AttentionPooling"):
        ExpectedLoss()(pooled, given)
    with pytest.raises(ValueError, match=r"entropy=-0.5 would reward a closed mind"):
        ReinforceLoss(entropy=-0.5)
    with pytest.raises(ValueError, match="2 texts, 2 lengths and 1 labels"):
        LabelledBatch(torch.zeros(2, 3).long(), torch.tensor([3, 2]), torch.tensor([1]))
