"""Import: logits of transformers, with padding and KV cache, from checkpoints whose ids are in another order."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.interop import import_model
from regard.models.seq2seq import decoder_inputs, encode_sources
from tests.narrowing import assert_is_instance

from .checkpoints import CHECKPOINTS, SENTENCES

TRANSLATORS = [name for name, one in CHECKPOINTS.items() if "encoder_layers" in one.settings or "d_kv" in one.settings]
LANGUAGE_MODELS = [name for name in CHECKPOINTS if name not in TRANSLATORS]
LANGUAGES: dict[str, Any] = {"M2M100": {"source_language": "eng_Latn", "target_language": "fra_Latn"}}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A family's model of transformers, and the run that it was imported as; made once for each."""
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            here = tmp_path_factory.mktemp("import")
            model = CHECKPOINTS[name].save(here / "folder")
            made[name] = model, import_model(here / "folder", here / "run", **LANGUAGES.get(name, {}))
        return made[name]

    return get


def foreign(tokenizer: PretrainedTokenizer, rows: Tensor) -> Tensor:
    """Ids as transformers has them; padding may be anything."""
    return torch.tensor(tokenizer.to_foreign)[rows].clamp(min=0)


def reordered(tokenizer: PretrainedTokenizer, logits: Tensor) -> Tensor:
    """Our logits in the order of transformers."""
    return logits[..., [tokenizer.from_foreign[one] for one in range(tokenizer.vocabulary)]]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_gives_the_logits_of_transformers_with_padding_and_cache(imported, name):
    theirs, run = imported(name)
    model: Any = regard.load(run, device="cpu").task_model
    source, target = (assert_is_instance(one, PretrainedTokenizer) for one in (model.source, model.target))
    sources, targets = source.encode_batch(SENTENCES), target.encode_batch(reversed(SENTENCES))
    read = decoder_inputs(targets)
    with torch.no_grad():
        memory, lengths = encode_sources(model.model, sources)
        logits, _ = model.model.step(read, model.model.start(memory), memory)
        pieces, state = [], model.model.start(memory)
        for step in read.split(4, dim=1):
            found, state = model.model.step(step, state, memory)
            pieces.append(found)
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor([*one, EOS]) for one in sources], batch_first=True)
        mask = torch.arange(rows.shape[1]) < lengths[:, None]
        expected = theirs(
            input_ids=foreign(source, rows), attention_mask=mask.long(), decoder_input_ids=foreign(target, read)
        ).logits
    there = (read != PAD)[..., None]
    for found in (logits, torch.cat(pieces, 1)):
        assert float(((reordered(target, found) - expected) * there).abs().max()) <= 1e-5
    assert float(expected.abs().max()) > 0.1
    assert float(logits.log_softmax(-1)[..., BOS].max()) < -1000  # it is another token as well, and counts once


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_gives_the_logits_of_transformers_with_cache(imported, name):
    theirs, run = imported(name)
    model: Any = regard.load(run, device="cpu").task_model
    words = assert_is_instance(model.tokenizer, PretrainedTokenizer)
    ids = torch.tensor([[BOS, *words.encode(SENTENCES[3])], [BOS, *words.encode(" ".join(SENTENCES))[:13]]])
    with torch.no_grad():
        logits, state, pieces = model.model(ids), model.model.start(2), []
        for step in ids.split(5, dim=1):
            found, state = model.model.step(step, state)
            pieces.append(found)
        expected = theirs(input_ids=foreign(words, ids)).logits
    for found in (logits, torch.cat(pieces, 1)):
        assert float((reordered(words, found) - expected).abs().max()) <= 1e-5
    assert float(expected.abs().max()) > 0.1
