"""Files to read, and laws that are tried on the same examples every time and without a clock: the first may train."""

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("text", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("text")

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Writes a file and gives its name; tests run beside the files, so that messages can be told exactly."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: str | bytes) -> str:
        raw = content.encode() if isinstance(content, str) else content
        Path(name).write_bytes(PACKED[Path(name).suffix if Path(name).suffix in PACKED else ""](raw))
        return name

    return write
