"""Programs run in processes of their own, one for each hash seed of Python."""

import os
import subprocess
import sys


def outputs_by_hash_seed(program: str, *seeds: str) -> set[str]:
    """What the program prints; one output if nothing depends on Python's `hash`."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    }
