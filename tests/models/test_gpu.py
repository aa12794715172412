"""On a CUDA device: every model gives what it gives on the CPU, and a step never synchronises."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.small_models import LADDER, model_of, sentences
from tests.recorded import call_recorded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # torch warns of its own doing when it compiles or watches for waits
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", LADDER)
def test_scores_weights_and_gradients_agree_with_the_cpu(name):
    model, (source, lengths, target) = model_of(name), sentences()
    wanted = model(source, lengths, target)
    gradients = torch.autograd.grad(wanted.square().sum(), list(model.parameters()), materialize_grads=True)
    _, record = call_recorded(model, source, lengths, target)
    expected_weights = {layer: record.weights(layer) for layer in record.calls}

    model.cuda()
    source, lengths, target = source.cuda(), lengths.cuda(), target.cuda()
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers have gradients in training mode alone
        got = model(source, lengths, target)
    assert_close(got.cpu(), wanted, rtol=0, atol=1e-10)
    gradients_on_gpu = torch.autograd.grad(got.square().sum(), list(model.parameters()), materialize_grads=True)
    assert_close([x.cpu() for x in gradients_on_gpu], list(gradients), rtol=0, atol=1e-8)
    _, record = call_recorded(model, source, lengths, target)
    assert_close({layer: record.weights(layer).cpu() for layer in record.calls}, expected_weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", LADDER)
def test_decoding_in_chunks_is_decoding_at_once(name):
    model, (source, lengths, target) = model_of(name).cuda(), sentences()
    source, lengths, target = source.cuda(), lengths.cuda(), target.cuda()
    memory = model.encode(source, lengths)
    state, parts = model.start(memory), []
    for words in target.split(1, 1):
        logits, state = model.step(words, state, memory)
        parts.append(logits)
    assert_close(torch.cat(parts, 1), model(source, lengths, target), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["gru", "bahdanau", "luong general, fed", "transformer, pre", "transformer, post"])
def test_half_precision_is_near_and_can_be_trained(name):
    model, (source, lengths, target) = model_of(name).float().cuda().train(), sentences()
    source, lengths, target = source.cuda(), lengths.cuda(), target.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        half = model(source, lengths, target)
    assert_close(half.float(), model(source, lengths, target), rtol=0, atol=0.1)
    half.float().logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("name", ["luong dot", "bahdanau", "transformer, pre", "transformer, rotary"])
def test_a_step_makes_the_gpu_wait_for_nothing(name):
    model, (source, lengths, target) = model_of(name).cuda(), sentences()
    target = target.cuda()
    memory = model.encode(source.cuda(), lengths.cuda())
    _, state = model.step(target[:, :2], model.start(memory), memory)
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits, state = model.step(target[:, 2:3], state, memory)
        logits, _ = model.step(target[:, 3:4], state, memory)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logits.isfinite().all()
