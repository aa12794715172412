"""Pooling: the weight of each token, and none for padding."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Additive, Causal, Dot, Hard, Recipe, Sampled, Sparsemax, StraightThrough, reinforce
from regard.layers.pooling import (
    AttentionPooling,
    ClassTokenPooling,
    LastPooling,
    MaxPooling,
    MeanPooling,
    TokenWeightPooling,
)
from tests.recorded import call_with_steps

SIZE, WIDTH, LENGTHS = 13, 5, (7, 2, 3)
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}
POOLINGS = {
    "mean": MeanPooling,
    "last": LastPooling,
    "max": MaxPooling,
    "weights": lambda: TokenWeightPooling(SIZE),
    "attention": lambda: AttentionPooling(WIDTH),
    "additive": lambda: AttentionPooling.additive(WIDTH, 3),
    "sparse": lambda: AttentionPooling(WIDTH, recipe=Recipe(normaliser=Sparsemax())),
    "hard": lambda: AttentionPooling(WIDTH, recipe=Recipe(normaliser=Hard())),
}


def pooling_of(name):
    pooling = POOLINGS[name]().double().eval()
    for weight in pooling.parameters():
        torch.nn.init.normal_(weight)
    return pooling


@dataclass(frozen=True, eq=False)
class Pooled:
    vector: torch.Tensor
    weights: torch.Tensor
    log_probability: torch.Tensor | None


def pooled_by(pooling, *text) -> Pooled:
    """The vector, the weight of each token, and log p of the token that was drawn."""
    vector, record = call_with_steps(pooling, *text)
    drawn = record.log_probability("attention")
    return Pooled(vector, record.weights("attention")[:, 0, 0], None if drawn is None else drawn[:, 0, 0])


def texts():
    tokens, lengths = torch.randint(0, SIZE, (3, 7)), torch.tensor(LENGTHS)
    return torch.randn(3, 7, WIDTH, dtype=torch.double), tokens, lengths


# two words, (1, 3) and (5, 1), and one of padding
X = torch.tensor([[[1.0, 3.0], [5.0, 1.0], [9.0, 9.0]]])
TWO = torch.tensor([[4, 6, 4]]), torch.tensor([2])


def test_mean_last_and_max_on_paper():
    assert MeanPooling()(X, *TWO).tolist() == [[3.0, 2.0]]
    assert LastPooling()(X, *TWO).tolist() == [[5.0, 1.0]]
    pooled = pooled_by(MaxPooling(), X, *TWO)
    assert pooled.vector.tolist() == [[5.0, 3.0]]
    assert pooled.weights.tolist() == [[0.5, 0.5, 0.0]]  # each word gave one of the two features


def test_learned_token_weights_on_paper():
    """Importances log 1 and log 3 make weights ¼ and ¾, wherever the two words stand."""
    pooling = TokenWeightPooling(7)
    assert_close(pooling(X, *TWO), MeanPooling()(X, *TWO))  # before anything is learnt
    with torch.no_grad():
        pooling.importance[6] = torch.tensor(3.0).log()
    pooled = pooled_by(pooling, X, *TWO)
    assert_close(pooled.weights, torch.tensor([[0.25, 0.75, 0.0]]))
    assert_close(pooled.vector, torch.tensor([[4.0, 1.5]]))


def test_attention_pooling_on_paper():
    """The query (log 3, 0) scores the words log 3 and 2 log 3 by the dot product: weights ¼ and ¾."""
    pooling = AttentionPooling(2, recipe=Recipe(score=Dot()))
    with torch.no_grad():
        pooling.query.copy_(torch.tensor([3.0, 1.0]).log())
    x = torch.tensor([[[1.0, 4.0], [2.0, 8.0], [9.0, 9.0]]])
    pooled = pooled_by(pooling, x, *TWO)
    assert_close(pooled.weights, torch.tensor([[0.25, 0.75, 0.0]]))
    assert_close(pooled.vector, torch.tensor([[1.75, 7.0]]))
    assert_close(pooling(x, *TWO), pooled.vector)


@pytest.mark.parametrize("name", POOLINGS)
def test_company_and_padding_change_nothing(name):
    pooling, (x, tokens, lengths) = pooling_of(name), texts()
    together = pooled_by(pooling, x, tokens, lengths)
    assert_close(pooling(x, tokens, lengths), together.vector, **EXACT)
    for n, length in enumerate(LENGTHS):
        alone = pooled_by(pooling, x[n : n + 1, :length], tokens[n : n + 1, :length], lengths[n : n + 1])
        assert_close(alone.vector[0], together.vector[n], **EXACT)
        assert_close(alone.weights[0], together.weights[n, :length], **EXACT)
        assert (together.weights[n, length:] == 0).all()
        assert_close(together.weights[n].sum().item(), 1.0)
    other, elsewhere = x.clone(), tokens.clone()
    for n, length in enumerate(LENGTHS):
        other[n, length:], elsewhere[n, length:] = 99.0, SIZE - 1
    assert_close(pooling(other, elsewhere, lengths), together.vector, **EXACT)


@pytest.mark.parametrize("name", [name for name in POOLINGS if name != "max"])
def test_the_vector_is_the_weighted_sum_that_is_shown(name):
    x, tokens, lengths = texts()
    pooled = pooled_by(pooling_of(name), x, tokens, lengths)
    assert_close((pooled.weights[..., None] * x).sum(1), pooled.vector, **EXACT)


@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_without_words_gives_nothing(name):
    x, tokens, _ = texts()
    pooled = pooled_by(pooling_of(name), x, tokens, torch.tensor([0, 1, 7]))
    assert (pooled.vector[0] == 0).all()
    assert (pooled.weights[0] == 0).all()
    assert pooled.vector[1:].abs().sum() > 0


def hard(training) -> AttentionPooling:
    return AttentionPooling(WIDTH, recipe=Recipe(score=Additive(WIDTH, 3), normaliser=Hard(training))).double()


def test_hard_attention_takes_the_word_that_soft_attention_weighs_most():
    soft, (x, tokens, lengths) = hard(Sampled()).eval(), texts()
    most = AttentionPooling(WIDTH, recipe=Recipe(score=soft.recipe.score)).double()
    most.load_state_dict(soft.state_dict())
    best = pooled_by(most, x, tokens, lengths).weights.argmax(-1)
    chosen = pooled_by(soft, x, tokens, lengths)
    assert_close(chosen.vector, x[torch.arange(3), best])
    assert chosen.log_probability is None  # nothing is drawn outside training


def test_while_training_a_word_is_drawn_with_its_soft_probability():
    """And reinforcing the draws of the second word makes it likelier."""
    pooling = hard(Sampled()).train()
    x, tokens = torch.randn(1, 3, WIDTH, dtype=torch.double).expand(4001, 3, WIDTH), torch.zeros(4001, 3).long()
    lengths = torch.full((4001,), 2)
    soft = AttentionPooling(WIDTH, recipe=Recipe(score=pooling.recipe.score)).double()
    soft.load_state_dict(pooling.state_dict())
    expected = pooled_by(soft, x[:1], tokens[:1], lengths[:1]).weights[0]
    drawn = pooled_by(pooling, x, tokens, lengths)
    assert drawn.log_probability is not None
    assert_close(drawn.weights.mean(0), expected, rtol=0, atol=0.04)
    assert_close(drawn.log_probability, (drawn.weights * expected.clamp(min=1e-9).log()).sum(-1))
    reward = drawn.weights[:, 1]
    reinforce(drawn.log_probability, reward, reward.mean().expand_as(reward)).backward()
    assert pooling.query.grad is not None
    with torch.no_grad():
        pooling.query.sub_(0.5 * pooling.query.grad)
        soft.load_state_dict(pooling.state_dict())
    assert pooled_by(soft, x[:1], tokens[:1], lengths[:1]).weights[0, 1] > expected[1]


def test_straight_through_chooses_one_word_and_still_has_a_gradient():
    pooling, (x, tokens, lengths) = hard(StraightThrough()).train(), texts()
    pooled = pooled_by(pooling, x, tokens, lengths)
    assert_close(pooled.weights.sort(-1).values, torch.eye(7, dtype=torch.double)[[6, 6, 6]])
    pooled.vector.square().sum().backward()
    assert pooling.query.grad is not None
    assert pooling.query.grad.abs().sum() > 0


def test_what_a_learned_query_cannot_use_is_refused():
    with pytest.raises(
        ValueError, match=r"a learned query has no position, so NoPosition\(\) and Causal\(\) do not apply"
    ):
        AttentionPooling(WIDTH, recipe=Recipe(pattern=Causal()))
    with pytest.raises(ValueError, match="compares widths"):
        AttentionPooling(WIDTH, recipe=Recipe(score=Additive(3, 2)))


def test_the_first_token_goes_through_one_layer_more():
    """tanh(2 x + 1) of the first token's vector, whatever stands behind it."""
    pool = ClassTokenPooling(1)
    with torch.no_grad():
        pool.dense.weight.fill_(2.0)
        pool.dense.bias.fill_(1.0)
    x = torch.tensor([[[0.5], [7.0]], [[-1.0], [9.0]]])
    found = pool(x, torch.tensor([[4, 5], [6, 0]]), torch.tensor([2, 1]))
    assert_close(found, torch.tensor([[2.0], [-1.0]]).tanh())
    assert pool.weights(torch.zeros(1, 3, dtype=torch.long), torch.tensor([0])).tolist() == [[0.0, 0.0, 0.0]]
