"""Captum and inseq as oracles, where they are installed: they call the library's own model, without our hooks.

pip install --no-deps --target peers captum
PYTHONPATH=peers pytest tests/see/test_oracles.py       the same for inseq, of whose methods gradient × input alone
                                                        runs with transformers 5 and from the same baseline
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.see.methods import (
    attribute_tokens,
    gradient_times_input,
    leave_one_out,
    prediction_target,
)
from regard.see.trace import Trace
from tests.interop.families import FAMILIES
from tests.interop.folders import SENTENCE, make_tokenizer

ROW = 3


@pytest.fixture(scope="module")
def captum() -> Any:
    return pytest.importorskip("captum.attr", reason="captum is not installed")


class Oracle:
    """A model of its own that reads embeddings, and the numbers of one prediction of it."""

    def __init__(self, name: str):
        tokenizer = make_tokenizer()
        self.trace: Trace = regard.trace(FAMILIES[name].build(), tokenizer, SENTENCE)
        self.model = FAMILIES[name].build("eager")  # the same weights
        option = self.trace.predictions.option_name(prediction_target(self.trace, ROW).option)
        self.option = tokenizer.convert_tokens_to_ids(option)
        table = self.model.get_input_embeddings().weight.detach()
        self.vectors = table[torch.tensor(tokenizer(SENTENCE)["input_ids"])][None]
        self.average = table.mean(0).expand_as(self.vectors)

    def logits(self, vectors: Tensor) -> Tensor:
        return self.model(inputs_embeds=vectors).logits[:, ROW]

    def logit(self, vectors: Tensor) -> Tensor:
        return self.logits(vectors)[:, self.option]

    def log_probability(self, vectors: Tensor) -> Tensor:
        return self.logits(vectors).double().log_softmax(-1)[:, self.option]


@pytest.fixture(scope="module", params=["GPT-2", "Llama", "Qwen3"])
def oracle(request: Any) -> Oracle:
    return Oracle(request.param)


def test_it_reads_the_same_model(oracle):
    expected = oracle.trace.predictions.logits[ROW].max()
    assert float(oracle.logit(oracle.vectors).detach()) == pytest.approx(float(expected), abs=1e-5)


def test_integrated_gradients_are_captums(oracle, captum):
    found = attribute_tokens(oracle.trace, ROW, steps=128)
    theirs = captum.IntegratedGradients(oracle.logit)
    expected, missed = theirs.attribute(
        oracle.vectors, baselines=oracle.average, n_steps=500, return_convergence_delta=True
    )
    size = float(expected.sum(-1).abs().max())
    assert abs(float(missed)) < 0.01 * size
    assert found.scores["text"].tolist() == pytest.approx(expected[0].sum(-1).tolist(), abs=0.01 * size)


def test_gradient_times_input_is_captums(oracle, captum):
    found = gradient_times_input(oracle.trace, ROW).scores["text"]
    expected = captum.InputXGradient(oracle.logit).attribute(oracle.vectors.clone().requires_grad_())
    assert found.tolist() == pytest.approx(expected[0].sum(-1).detach().tolist(), abs=1e-4)


def test_leaving_a_token_out_is_captums_feature_ablation(oracle, captum):
    found = leave_one_out(oracle.trace, ROW).scores["text"]
    tokens = torch.arange(len(found))[None, :, None].expand_as(oracle.vectors)
    theirs = captum.FeatureAblation(oracle.log_probability)
    expected = theirs.attribute(oracle.vectors, baselines=oracle.average, feature_mask=tokens)
    assert found.tolist() == pytest.approx(expected[0, :, 0].tolist(), abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of inseq's own imports
def test_gradient_times_input_is_inseqs():
    inseq = pytest.importorskip("inseq", reason="inseq is not installed")
    oracle, words = Oracle("GPT-2"), SENTENCE.split()
    tokenizer, names = make_tokenizer(), oracle.trace.predictions
    tokenizer.name_or_path = "words"  # inseq asks for one
    model = inseq.load_model(oracle.model, "input_x_gradient", tokenizer=tokenizer)
    prompt = " ".join(words[: ROW + 1])
    answer = model.attribute(prompt, f"{prompt} {words[ROW + 1]}", attributed_fn="logit", show_progress=False)
    expected = answer.sequence_attributions[0].target_attributions.sum(-1)[: ROW + 1, 0]
    option = next(n for n in range(names.logits.shape[1]) if names.option_name(n) == words[ROW + 1])
    found = gradient_times_input(oracle.trace, ROW, option).scores["text"]
    assert found[: ROW + 1].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    assert found[ROW + 1 :].abs().max() == 0
