"""Traces of Hugging Face models: the same object, views, edits and page as for our own models."""

import json
import shutil

import pytest
import torch

import regard
from regard.see import (
    Edits,
    HeadOff,
    Swap,
    Weight,
    ablate_heads,
    ascii,
    attribute_tokens,
    compare,
    logit_lens,
    value_zeroing,
)
from regard.see.plots.attention_maps import view_trace
from regard.serve.model_store import ModelStore
from tests.cli.commands import assert_done, assert_refused
from tests.cli.commands import regard as command
from tests.serve.client import client_of, events, floats, post_trace, site_path

from .families import FAMILIES
from .folders import SENTENCE, make_tokenizer, save_folder

PAIRS = ("T5", "BART", "Marian", "M2M100")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    here = tmp_path_factory.mktemp("huggingface")
    return {name: save_folder(name, here / name.lower()) for name in ("BERT", "GPT-2", "T5")}


def traced(name: str, **options):
    return regard.trace(FAMILIES[name].build(), make_tokenizer(ends=name in PAIRS), SENTENCE, **options)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Qwen3", "Gemma 3", "gpt-oss"])
def test_a_language_model_goes_on_as_transformers_does(name):
    model, tokenizer = FAMILIES[name].build(), make_tokenizer()
    ids = tokenizer(SENTENCE, return_tensors="pt")["input_ids"]
    own = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, suppress_tokens=[0, 2, 3])[0]
    trace = regard.trace(model, tokenizer, SENTENCE, more=5)
    assert trace.output_text == tokenizer.decode(own)
    assert trace.axes["text"].labels == tuple(tokenizer.convert_ids_to_tokens(own))
    assert list(trace.sites) == FAMILIES[name].sites
    assert max(trace.site(site).check().error for site in trace.sites) <= 1e-5
    with torch.no_grad():
        shares = model(own[None]).logits[0, -1].softmax(-1)
    found = trace.next_token_probabilities(len(trace.predictions.rows) - 1)
    assert torch.allclose(found.sort().values[-3:], shares.sort().values[-3:], atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_writes_as_transformers_does(name):
    model, tokenizer = FAMILIES[name].build(), make_tokenizer(ends=True)
    inputs = tokenizer(SENTENCE, return_tensors="pt", return_token_type_ids=False)
    own = model.generate(**inputs, max_new_tokens=12, do_sample=False, num_beams=1)[0]
    trace = regard.trace(model, tokenizer, SENTENCE, beam=1)
    wanted = tokenizer.decode(own, skip_special_tokens=True).split()
    assert trace.output_text.split()[: len(wanted)] == wanted
    assert trace.axes["source"].labels == (*SENTENCE.split(), "</s>")
    branched = trace.branch(0, "dog")
    assert branched.axes["written"].labels[0] == "dog"
    assert list(branched.sites) == FAMILIES[name].sites
    assert max(branched.site(site).check().error for site in branched.sites) <= 1e-5
    assert len(branched.beam_tree().steps) >= 1


def test_an_encoder_and_its_views():
    trace = traced("BERT")
    assert trace.axes["text"].labels == tuple(SENTENCE.split())
    output, view = view_trace(trace, head="encoder.1:2")
    assert output == SENTENCE
    assert "mouse" in ascii(view)
    swapped = traced("BERT", edits=Edits(swaps=(Swap(2, "dog"),)))
    assert swapped.axes["text"].labels[2] == "dog"


def test_a_notebook_shows_the_page_of_a_trace():
    frame = traced("GPT-2", more=2)._repr_html_()
    assert frame.startswith('<iframe srcdoc="')
    assert 'sandbox="allow-scripts"' in frame
    assert "decoder.1" in frame


def test_pieces_make_words():
    trace = regard.trace(FAMILIES["BERT"].build(), make_tokenizer(), "the cats ate")
    assert trace.axes["text"].labels == ("the", "cat", "##s", "ate")
    assert [word for word, _ in trace.axes["text"].word_groups] == ["the", "cats", "ate"]
    assert torch.allclose(trace.word_weights("encoder.0", 0).sum(-1), torch.ones(3))


def test_edits_change_what_is_generated():
    before = traced("Gemma 3", more=5)
    off = Edits(off=tuple(HeadOff("decoder.1", head) for head in range(4)))
    after = traced("Gemma 3", more=5, edits=off)
    assert "decoder.1" in after.sites
    assert before.output_text != after.output_text
    assert "→" in str(compare(before, after))
    set_one = traced("T5", beam=1, edits=Edits(weights=(Weight("decoder.0.cross", 1, 2, 3, 1.0),)))
    assert set_one.site("decoder.0.cross").weights(1)[2].tolist() == [0, 0, 0, 1, 0, 0, 0]
    with pytest.raises(ValueError, match=r"there is no site 'encoder\.9'"):
        traced("BERT", edits=Edits(off=(HeadOff("encoder.9", 0),)))


def test_what_cannot_be_traced_is_refused():
    model = FAMILIES["BERT"].build()
    with pytest.raises(ValueError, match=r"tokenizer or processor too: regard\.trace\(model, tokenizer, text\)"):
        regard.trace(model, SENTENCE)
    with pytest.raises(ValueError, match=r"Linear is no model of transformers; watch it"):
        regard.trace(torch.nn.Linear(1, 1), SENTENCE)
    with pytest.raises(ValueError, match="more = 3 means nothing"):
        traced("BERT", more=3)


# --- folders ---


def test_look_shows_a_folder(folders, tmp_path):
    output = assert_done(command("look", folders["GPT-2"], SENTENCE, "--head", "decoder.1:2", "--no-page"))
    assert "mouse" in output
    assert "decoder.1:2" in output
    written = tmp_path / "look.html"
    assert_done(command("look", folders["T5"], SENTENCE, "--no-page", "--save", written))
    assert "decoder.1.cross" in written.read_text()
    assert "encoder.0" in assert_done(command("look", folders["BERT"], SENTENCE, "--all-heads", "--no-page"))
    assert_refused(
        command("look", folders["BERT"], SENTENCE, "--checkpoint", "best"), f"{folders['BERT']} is a Hugging"
    )


def test_load_and_trace_a_folder(folders):
    loaded = regard.load(folders["GPT-2"], device="cpu")
    assert loaded.trace(SENTENCE, more=2).output_text == regard.trace(folders["GPT-2"], SENTENCE, more=2).output_text
    assert "decoder" in str(loaded.look(SENTENCE))
    with pytest.raises(ValueError, match=r"is run by transformers; here it is traced"):
        loaded(SENTENCE)
    with pytest.raises(AttributeError, match=r"'causal_lm' has no 'translate'; trace it or look at it"):
        _ = loaded.translate


@pytest.mark.parametrize("words", [["evaluate"], ["translate"], ["generate"], ["compare"]])
def test_commands_for_runs_refuse_a_folder(folders, words):
    answer = command(*words, folders["T5"], *([folders["BERT"]] if words == ["compare"] else []), typed="the cat\n")
    message = (
        "a Hugging Face model" if words == ["evaluate"] else f"{folders['T5']} is a Hugging Face model, and no run"
    )
    assert_refused(answer, message)


def test_the_page_shows_folders(folders):
    with client_of(ModelStore.from_folders(folders.values())) as client:
        cards = client.get("/api/models").json()["models"]
        assert [card["task"] for card in cards] == ["text_encoder", "causal_lm", "seq2seq_lm"]
        traces = {
            name: post_trace(client, {"model": folder.name, "text": SENTENCE}) for name, folder in folders.items()
        }
        for name, trace in traces.items():
            assert [site["name"] for site in trace["sites"]] == FAMILIES[name].sites
            site = FAMILIES[name].sites[-1]
            rows = floats(client, f"{site_path(trace, site)}/heads/1/rows/3")
            assert abs(rows.sum() - 1) < 1e-4
            assert client.get(f"/api/traces/{trace['id']}/statistics").status_code == 200
        tree = client.get(f"/api/traces/{traces['T5']['id']}/beam")
        assert tree.status_code == 200, tree.text
        edits = {"off": [{"site": "decoder.0.self", "head": 0}]}
        post_trace(client, {"model": folders["T5"].name, "text": SENTENCE, "edits": edits})
        stream = client.get("/api/generate", params={"model": folders["GPT-2"].name, "text": SENTENCE, "more": 3})
        assert [name for name, _ in events(stream.text)][:3] == ["token"] * 3, stream.text


def test_unsafe_folders_are_refused_before_anything_is_loaded(folders, tmp_path):
    pickled = tmp_path / "pickled"
    shutil.copytree(folders["BERT"], pickled)
    (pickled / "model.safetensors").unlink()
    assert_refused(command("look", pickled, SENTENCE), f"{pickled} holds no weights: model.safetensors is missing")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    assert_refused(command("look", pickled, SENTENCE), f"{pickled / 'pytorch_model.bin'} is a pickle")

    coded = tmp_path / "coded"
    shutil.copytree(folders["BERT"], coded)
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Evil"}}))
    assert_refused(command("look", coded, SENTENCE), f"{coded / 'config.json'} names code of its own")
    (coded / "config.json").write_text(json.dumps(config | {"architectures": ["os"]}))
    with pytest.raises(ValueError, match="has no model 'os'"):
        regard.load(coded)
    (coded / "config.json").write_text("[")
    with pytest.raises(ValueError, match="is not JSON"):
        regard.load(coded)
    (coded / "config.json").write_text(json.dumps(config))
    (coded / "model.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(ValueError, match="safetensors is damaged"):
        regard.load(coded)


def test_without_transformers_one_line_says_how_to_get_it(folders, monkeypatch):
    monkeypatch.setattr("regard.interop.huggingface.checkpoint.find_spec", lambda name: None)
    assert_refused(command("look", folders["BERT"], SENTENCE), "a Hugging Face model needs transformers; pip install")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Gemma 3", "Marian", "T5"])
def test_the_methods_that_explain_hold_for_models_of_transformers(name):
    trace = traced(name, **({"target": "the cat sleeps"} if name in PAIRS else {}))
    site = trace.attention_names[-1]
    after = regard.trace(
        trace.request.task_model.model.model,
        make_tokenizer(ends=name in PAIRS),
        SENTENCE,
        edits=Edits(off=(HeadOff(site, 1),)),
        **({"target": "the cat sleeps"} if name in PAIRS else {}),
    )
    heads = ablate_heads(trace, 1)
    before, without = (
        each.predictions.logits[1].double().log_softmax(-1)[heads.target.option] for each in (trace, after)
    )
    assert float(heads.effects[site][1]) == pytest.approx(float(before - without), abs=1e-5)
    tokens = attribute_tokens(trace, 1, steps=128)
    assert tokens.difference is not None
    assert tokens.total == pytest.approx(tokens.difference, abs=0.02 * max(1.0, abs(tokens.difference)))
    lens = logit_lens(trace)
    assert len(lens.layers) == 2
    assert torch.equal(lens.logits[-1], trace.predictions.logits)
    for mixed in value_zeroing(trace).values():
        assert mixed.sum(-1).allclose(torch.ones(len(mixed)), atol=1e-5)
        assert mixed.std() > 0
