"""Sounds: PCM samples of .wav files, one channel, at the sampling rate that a model reads."""

import wave
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from regard.data.files import read_file_bytes, require_file

EXAMPLE_SOUND = "example sound"
SPEECH_RATE = 16_000  # samples a second that speech models read
MAX_SAMPLES = 2**26  # of all channels: an hour and more at 16 kHz
REMEDY = "convert it: ffmpeg -i sound -ar 16000 -ac 1 sound.wav"

Samples = Float32[np.ndarray, " _"]


def read_wav(path: str | Path, rate: int) -> Samples:
    """The samples of a file, from -1 to 1, resampled to so many a second; the mean of its channels."""
    return decode_wav(read_file_bytes(require_file(path)), str(path), rate)


def decode_wav(encoded: bytes, where: str, rate: int) -> Samples:
    """The same of a file's contents; what is no complete PCM file is refused."""
    try:
        with wave.open(BytesIO(encoded), "rb") as file:
            channels, width, own_rate, count = file.getparams()[:4]
            if not 1 <= own_rate <= 2**20 or not 1 <= channels <= 64:
                raise ValueError(f"{channels} channels of {own_rate} samples a second")
            if count * channels > MAX_SAMPLES:
                raise ValueError(f"{count * channels:,} samples are more than the {MAX_SAMPLES:,} that are read")
            raw = file.readframes(count)
    except (wave.Error, EOFError, ValueError) as error:
        why = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise ValueError(f"{where}: not a complete .wav file of PCM samples ({why}); {REMEDY}") from None
    if not raw or len(raw) != count * channels * width:
        raise ValueError(f"{where}: holds {len(raw):,} bytes of {count * channels * width:,}; {REMEDY}")
    return resample(pcm_samples(raw, width).reshape(-1, channels).mean(1, dtype=np.float32), own_rate, rate)


def pcm_samples(raw: bytes, width: int) -> Samples:
    """Samples of 1 (unsigned), 2, 3 or 4 bytes each as numbers from -1 to 1."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(1 / 128)
    if width == 3:  # as the upper bytes of four
        four = np.zeros((len(raw) // 3, 4), np.uint8)
        four[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        raw, width = four.tobytes(), 4
    return np.frombuffer(raw, f"<i{width}").astype(np.float32) * np.float32(2.0 ** (1 - 8 * width))


def resample(samples: Samples, rate: int, to: int) -> Samples:
    """The same sound at another rate, without the frequencies that it cannot hold."""
    if rate == to or not len(samples):
        return samples.astype(np.float32)
    count = max(1, round(len(samples) * to / rate))
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * (count / len(samples))).astype(np.float32)


def example_wav(rate: int = SPEECH_RATE) -> bytes:
    """Half a second that rises from 200 to 800 Hz, as a file."""
    seconds = np.arange(rate // 2) / rate
    samples = 0.5 * np.sin(2 * np.pi * (200 * seconds + 600 * seconds**2))
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return written.getvalue()
