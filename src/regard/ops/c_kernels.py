"""Kernels in C for CPUs: built by the machine's own compiler at their first use, kept in the user's cache."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import torch

HEADER = Path(__file__).with_name("avx512.h")  # what they share
COMPILE = [
    "-O3",
    "-std=gnu11",
    "-shared",
    "-fPIC",
    "-pthread",
    "-mfma",
    *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
]


def compile_kernels(source: Path) -> ctypes.CDLL | None:
    """Kernels in C, compiled by this machine's compiler the first time and then found in the user's cache; None where
    there is no compiler or no AVX-512 VNNI, or if REGARD_KERNELS=0."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("REGARD_KERNELS") == "0" or compiler is None or not has_avx512_vnni():
        return None
    try:
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
        texts = source.read_bytes(), HEADER.read_bytes(), " ".join([compiler, *COMPILE]).encode()
        version = sha256(b"".join(texts) + " ".join(openmp := openmp_of_torch()).encode()).hexdigest()[:16]
        library = cache_folder / f"{source.stem}-{version}.so"
        if not library.exists():
            cache_folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache_folder) as folder:  # of two that compile the last one stays
                built = Path(folder) / library.name
                command = [compiler, *COMPILE, f"-I{HEADER.parent}", "-o", str(built), str(source), "-lm"]
                # a compiler without OpenMP of its own makes kernels that compute in one thread
                if not openmp or subprocess.run([*command, *openmp], capture_output=True, timeout=60).returncode:
                    subprocess.run(command, check=True, capture_output=True, timeout=60)
                built.replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, no room, a compiler that fails
        return None


def openmp_of_torch(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Links the OpenMP library that torch has loaded, whose threads wait for its work and for ours; two such libraries
    would take the cores from each other. Where torch has another kind of threads, kernels compute in one."""
    loaded = re.findall(r"(?m) (/\S*/libgomp[^/\s]*)$", maps.read_text()) if maps.exists() else []
    # other packages bring one as well
    loaded.sort(key=lambda path: not path.startswith(str(Path(torch.__file__).parent)))
    return ["-fopenmp", "-Wl,--as-needed", loaded[0]] if loaded else []


def has_avx512_vnni() -> bool:
    if sys.platform != "linux" or not Path("/proc/cpuinfo").exists():
        return False
    flags = re.search(r"(?m)^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text())
    return flags is not None and {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= {*flags[1].split()}
