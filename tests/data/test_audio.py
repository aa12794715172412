"""Sounds: samples of every width and rate, and files that are no sounds."""

import wave
from io import BytesIO

import numpy as np
import pytest

from regard.data.preprocess import decode_wav, example_wav, read_wav, resample


def wav(raw: bytes, *, channels: int = 1, width: int = 2, rate: int = 8_000) -> bytes:
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(raw)
    return written.getvalue()


@pytest.mark.parametrize(
    ("width", "raw"),
    [
        (1, bytes([0, 128, 192])),
        (2, np.array([-(2**15), 0, 2**14], "<i2").tobytes()),
        (3, bytes([0, 0, 0x80, 0, 0, 0, 0, 0, 0x40])),
        (4, np.array([-(2**31), 0, 2**30], "<i4").tobytes()),
    ],
)
def test_samples_of_every_width_lie_between_minus_1_and_1(width, raw):
    assert decode_wav(wav(raw, width=width), "a.wav", 8_000).tolist() == [-1.0, 0.0, 0.5]


def test_channels_are_averaged():
    raw = np.array([[2**14, 0], [0, -(2**14)]], "<i2").tobytes()
    assert decode_wav(wav(raw, channels=2), "a.wav", 8_000).tolist() == [0.25, -0.25]


@pytest.mark.parametrize("to", [8_000, 16_000, 44_100])
def test_a_tone_at_another_rate_is_the_same_tone(to):
    rate, count = 22_050, 2_205  # a tenth of a second: whole periods of 200 Hz
    found = resample(np.sin(2 * np.pi * 200 * np.arange(count) / rate).astype(np.float32), rate, to)
    assert len(found) == to // 10
    assert np.abs(found - np.sin(2 * np.pi * 200 * np.arange(len(found)) / to)).max() < 1e-3


def test_frequencies_that_a_rate_cannot_hold_are_left_out():
    high = np.sin(2 * np.pi * 7_000 * np.arange(1_600) / 16_000).astype(np.float32)
    assert np.abs(resample(high, 16_000, 8_000)).max() < 1e-3


def test_the_example_can_be_read(tmp_path):
    (tmp_path / "example.wav").write_bytes(example_wav())
    found = read_wav(tmp_path / "example.wav", 16_000)
    assert found.shape == (8_000,)
    assert 0.4 < np.abs(found).max() <= 0.5


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (b"", "it ends too early"),
        (b"\x89PNG" + bytes(40), "does not start with RIFF"),
        (wav(b"\0\0" * 9)[:-3], "ends too early|bytes of 18"),
        (wav(b""), "bytes of 0"),
    ],
)
def test_what_is_no_sound_is_refused_in_a_sentence(encoded, why):
    with pytest.raises(ValueError, match=rf"^a\.wav: .*({why}).*; convert it: ffmpeg"):
        decode_wav(encoded, "a.wav", 16_000)


def test_a_header_that_claims_more_than_there_is_costs_nothing():
    lying = bytearray(wav(b"\0\0" * 9))
    lying[40:44] = (2**32 - 2).to_bytes(4, "little")  # the size of the data
    with pytest.raises(ValueError, match=r"samples are more than the|bytes of"):
        decode_wav(bytes(lying), "a.wav", 16_000)
