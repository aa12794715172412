"""Hugging Face models of pictures and sounds: traced, shown and searched like those of texts."""

import wave
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from einops import rearrange
from PIL import Image

import regard
from regard.see import Edits, HeadOff, Swap, Weight, ascii
from regard.see.plots.attention_maps import image_trace_view
from regard.see.plots.panels import ImagePanel
from regard.see.trace import to_grid
from tests.cli.commands import assert_done, assert_refused
from tests.cli.commands import regard as command

from .families import FAMILIES, SIZES
from .folders import SENTENCE, make_image_processor, make_processor, make_speech_processor, make_tokenizer, save_folder

PICTURE = (np.random.default_rng(0).random((30, 21, 3)) * 255).astype(np.uint8)
SOUND = (0.5 * np.sin(np.arange(9_000) ** 1.2 / 90)).astype(np.float32)
SMALL = SIZES | {"image_size": 12, "patch_size": 4}


@pytest.fixture
def picture(tmp_path) -> Path:
    path = tmp_path / "picture.png"
    Image.fromarray(PICTURE).save(path)
    return path


@pytest.fixture
def sound(tmp_path) -> Path:
    return write_wav(tmp_path / "sound.wav", SOUND)


def write_wav(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


# --- pictures ---


def test_a_picture_is_traced_as_transformers_reads_it(picture):
    model, processor = FAMILIES["ViT"].build(), make_image_processor()
    trace = regard.trace(model, processor, picture)
    with torch.no_grad():
        own = model(**processor(images=Image.open(picture), return_tensors="pt")).logits
    assert torch.equal(trace.predictions.logits, own)
    assert trace.output_text == model.config.id2label[int(own.argmax())]
    assert trace.axes["patches"].labels[:3] == ("class", "0,0", "0,1")
    assert trace.axes["patches"].grid == (3, 3)
    assert list(trace.sites) == ["encoder.0", "encoder.1"]
    assert max(trace.site(name).check().error for name in trace.sites) <= 1e-5
    assert to_grid(trace.site("encoder.1").weights(2), trace.axes["patches"]).shape == (10, 3, 3)
    resized = np.asarray(Image.fromarray(PICTURE).resize((12, 12), Image.Resampling.BILINEAR), np.int16)
    assert trace.image is not None
    assert np.abs(rearrange(trace.image.numpy(), "c h w -> h w c").astype(np.int16) - resized).max() <= 1


def test_a_picture_in_memory_is_the_picture_in_the_file(picture):
    model, processor = FAMILIES["ViT"].build(), make_image_processor()
    wanted = regard.trace(model, processor, picture).predictions.logits
    tensor = torch.from_numpy(rearrange(PICTURE, "h w c -> c h w"))
    for given in (str(picture), Image.open(picture), PICTURE, tensor):
        assert torch.equal(regard.trace(model, processor, given).predictions.logits, wanted)
    with pytest.raises(ValueError, match=r"an image in memory is Pillow's.*not float32 shaped \(3, 30, 21\)"):
        regard.trace(model, processor, tensor.float())


@pytest.mark.parametrize(
    ("name", "settings", "before"),
    [
        ("ViTModel", SMALL, ["class"]),
        ("DeiTModel", SMALL, ["class", "distillation"]),
        ("Dinov2WithRegistersModel", SMALL | {"num_register_tokens": 2}, ["class", "register 0", "register 1"]),
        ("SiglipVisionModel", SMALL | {"vision_use_head": False}, []),
    ],
)
def test_tokens_before_the_patches_have_names(name, settings, before):
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    trace = regard.trace(kind(kind.config_class(**settings)).eval(), make_image_processor(), PICTURE)
    assert list(trace.axes["patches"].labels[: len(before) + 1]) == [*before, "0,0"]
    assert {trace.site(site).shape for site in trace.sites} == {(len(before) + 9, len(before) + 9)}
    assert max(trace.site(site).check().error for site in trace.sites) <= 1e-5
    assert trace.output_text == "image"


def test_edits_of_a_picture():
    model, processor = FAMILIES["ViT"].build(), make_image_processor()
    off = Edits(off=tuple(HeadOff("encoder.1", head) for head in range(4)))
    found = regard.trace(model, processor, PICTURE, edits=off)
    with torch.no_grad():
        model.vit.layers[1].attention.o_proj.weight.zero_()
    assert torch.allclose(
        found.predictions.logits, regard.trace(model, processor, PICTURE).predictions.logits, atol=1e-6
    )
    with pytest.raises(ValueError, match="an image has no words to swap"):
        regard.trace(model, processor, PICTURE, edits=Edits(swaps=(Swap(0, "dog"),)))


def test_views_of_a_picture():
    trace = regard.trace(FAMILIES["ViT"].build(), make_image_processor(), PICTURE)
    weights = trace.site("encoder.1").weights(3)[0, 1:].view(3, 3)
    _, copy = image_trace_view(trace, "encoder.1:3").panels()
    assert isinstance(copy, ImagePanel)
    assert copy.overlay is not None
    assert torch.allclose(copy.overlay.weights, weights.double())
    assert len(list(image_trace_view(trace, all_heads=True).panels())) == 1 + 2 * 4
    assert "all layers" in ascii(image_trace_view(trace))
    with pytest.raises(ValueError, match=r"--head encoder\.9:0: write LAYER:HEAD, one of encoder\.0:0 to 3"):
        image_trace_view(trace, "encoder.9:0")


# --- sounds ---


def test_a_sound_is_written_as_transformers_writes_it(sound):
    model, processor = FAMILIES["Whisper"].build(), make_speech_processor()
    features = processor(SOUND, sampling_rate=16_000, return_tensors="pt")["input_features"]
    own = model.generate(features, max_new_tokens=12, do_sample=False)[0]
    trace = regard.trace(model, processor, SOUND)
    assert trace.output_text[: len(text := processor.tokenizer.decode(own, skip_special_tokens=True))] == text
    assert len(set(text)) > 1
    assert list(trace.sites) == FAMILIES["Whisper"].sites
    assert max(trace.site(name).check().error for name in trace.sites) <= 1e-5
    assert trace.axes["frames"].labels[:3] == ("0.00 s", "0.02 s", "0.04 s")
    queries, keys = trace.axes_of("decoder.1.cross")
    assert keys == trace.axes["frames"]
    assert queries.labels[: len(text)] == tuple(text)
    for given in (sound, str(sound), features, features[0].numpy()):
        assert regard.trace(model, processor, given).output_text == trace.output_text


def test_searches_of_a_sound():
    model, processor = FAMILIES["Whisper"].build(), make_speech_processor()
    trace = regard.trace(model, processor, SOUND, beam=3)
    assert trace.beam_tree().hypotheses[0].ids == trace.output_ids
    branched = trace.branch(1, "z")
    assert branched.output_text[1] == "z"
    with pytest.raises(ValueError, match="25 tokens are more than the 24 that WhisperFor"):
        trace.branch(len(trace.output_ids or ()), "z")
    given = regard.trace(model, processor, SOUND, target="the cat")
    assert given.axes["written"].labels == (*"the␣cat", "</s>")
    assert given.output_text == "the cat"
    cell = Edits(weights=(Weight("decoder.0.cross", 1, query=2, key=3, value=1.0),))
    edited = regard.trace(model, processor, SOUND, edits=cell)
    assert edited.site("decoder.0.cross").weights(1)[2, 3] == 1


def test_a_multilingual_model_is_told_its_language_or_hears_it():
    model, processor = FAMILIES["Whisper"].build(), make_speech_processor()
    tokens = dict(zip(processor.tokenizer.all_special_tokens, processor.tokenizer.all_special_ids, strict=True))
    known = model.generation_config
    known.is_multilingual, known.no_timestamps_token_id = True, tokens["<|notimestamps|>"]
    known.lang_to_id = {name: tokens[name] for name in ("<|en|>", "<|de|>")}
    known.task_to_id = {name: tokens[f"<|{name}|>"] for name in ("transcribe", "translate")}
    features = processor(SOUND, sampling_rate=16_000, return_tensors="pt")["input_features"]
    for language, name in (("german", "<|de|>"), ("en", "<|en|>")):
        own = model.generate(features, max_new_tokens=8, do_sample=False, language=language)[0]
        known.language = language
        trace = regard.trace(model, processor, features)
        assert trace.axes["written"].labels[:3] == (name, "<|transcribe|>", "<|notimestamps|>")
        assert trace.forced_steps == 3
        text = processor.tokenizer.decode(own, skip_special_tokens=True)
        assert trace.output_text.startswith(text)
    known.language = None
    heard = model.detect_language(features, num_segment_frames=features.shape[-1])
    trace = regard.trace(model, processor, features)
    assert trace.axes["written"].labels[0] == processor.tokenizer.decode(heard)


# --- folders and refusals ---


def test_look_shows_folders_of_pictures_and_sounds(picture, sound, tmp_path):
    vit, whisper = (save_folder(name, tmp_path / name.lower()) for name in ("ViT", "Whisper"))
    assert "how much each patch is attended to" in assert_done(command("look", vit, picture, "--no-page"))
    drawn, page = tmp_path / "heads.png", tmp_path / "look.html"
    assert_done(command("look", vit, picture, "--no-page", "--all-heads", "--save", drawn))
    with Image.open(drawn) as image:
        assert image.width > 100
    assert_done(command("look", vit, picture, "--no-page", "--save", page))
    assert "picture.png" in page.read_text()
    shown = assert_done(command("look", whisper, sound, "--no-page", "--head", "decoder.0.cross:1"))
    assert "decoder.0.cross:1" in shown
    assert_refused(
        command("look", whisper, picture, "--no-page"), f"{picture}: not a complete .wav file of PCM samples"
    )
    assert_refused(command("look", whisper, tmp_path / "no.wav", "--no-page"), f"{tmp_path / 'no.wav'}: no such file")


def test_the_wrong_processor_or_input_is_refused():
    vit, whisper, bert = (FAMILIES[name].build() for name in ("ViT", "Whisper", "BERT"))
    tokenizer = make_tokenizer()
    with pytest.raises(ValueError, match=r"reads pictures, and \w+ is no image processor; give one"):
        regard.trace(vit, tokenizer, PICTURE)
    with pytest.raises(ValueError, match=r"reads texts, and ViTImageProcessorPil is no tokenizer; give one"):
        regard.trace(bert, make_image_processor(), SENTENCE)
    with pytest.raises(ValueError, match=r"reads sounds, and \w+ holds no feature extractor and tokenizer"):
        regard.trace(whisper, tokenizer, SOUND)
    with pytest.raises(ValueError, match="the input is a text, not ndarray"):
        regard.trace(bert, tokenizer, PICTURE)
    with pytest.raises(ValueError, match=r"a sound of 2\.0 s is longer than the 1 s that the model reads; cut it"):
        regard.trace(whisper, make_speech_processor(), np.zeros(32_000))
    with pytest.raises(ValueError, match=r"a sound is samples, shape \(n,\), or 8 features of each frame"):
        regard.trace(whisper, make_speech_processor(), np.zeros((3, 7)))
    config = transformers.WhisperConfig(**FAMILIES["Whisper"].settings)
    with pytest.raises(ValueError, match=r"WhisperModel reads input_features.*watch it: regard\.watch\(model\)"):
        regard.trace(transformers.WhisperModel(config), make_speech_processor(), SOUND)


def test_a_layer_that_runs_several_times_is_watched_and_not_traced():
    model = FAMILIES["ALBERT"].build()
    with pytest.raises(ValueError, match=r"encoder\.0 ran 2 times on the same tokens, as a layer with shared weights"):
        regard.trace(model, make_tokenizer(), SENTENCE)


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "GPT-2", "BART", "Marian"])
def test_a_text_beyond_the_model_s_positions_is_refused(name):
    model, tokenizer = FAMILIES[name].build(), make_processor(name)
    long = " ".join(["the"] * 1_100)
    with pytest.raises(
        ValueError, match=r"tokens are more than the [\d,]+ that \w+ has positions for; shorten the text"
    ):
        regard.trace(model, tokenizer, long)
