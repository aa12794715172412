"""COMET (Rei et al. 2020): scored by unbabel-comet in an environment of the user's own, as a subprocess.

COMET pins versions of torch and numpy that others cannot share, so it is never imported here.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.tasks.metrics import MetricScore

DEFAULT_COMET_MODEL = "Unbabel/wmt22-comet-da"
SYSTEM_SCORE = re.compile(r"^[^\t\n]*\tscore: (-?\d+\.\d+)\s*$", re.MULTILINE)  # lines of segments have three columns


@dataclass(frozen=True)
class CometScorer:
    """The comet-score of another environment.

    Args:
        python: its interpreter.
        version: of unbabel-comet there.
        model: the name of a COMET model, or a checkpoint file.
        gpus: how many it may use; 0 is the CPU.
    """

    python: str
    version: str
    model: str = DEFAULT_COMET_MODEL
    gpus: int = 0

    @staticmethod
    def find(python: str, model: str = DEFAULT_COMET_MODEL, *, gpus: int = 0) -> "CometScorer":
        """Refuses an interpreter that does not run, or that has no COMET."""
        code = "from importlib.metadata import version; print(version('unbabel-comet'))"
        done = run_python(python, "-c", code)
        if done.returncode:
            raise ValueError(f"{python} has no COMET; install it there: {python} -m pip install unbabel-comet")
        return CometScorer(python, done.stdout.strip(), model, gpus)

    def score(self, sources: Sequence[str], found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
        """The system score, times 100."""
        with TemporaryDirectory() as folder:
            paths = [Path(folder) / name for name in ("source", "translation", "reference")]
            for path, texts in zip(paths, (sources, found, wanted), strict=True):
                path.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")
            files = [word for flag, path in zip(("-s", "-t", "-r"), paths, strict=True) for word in (flag, str(path))]
            options = ["--model", self.model, "--gpus", str(self.gpus), "--quiet"]
            done = run_python(self.python, "-m", "comet.cli.score", *files, *options)
        scores = SYSTEM_SCORE.findall(done.stdout)
        if done.returncode or not scores:
            said = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
            raise ValueError(f"COMET fails: {said}; try it alone: {self.python} -m comet.cli.score --help")
        signature = f"model:{self.model}|scale:100|version:{self.version}"
        return MetricScore("COMET", 100 * float(scores[-1]), signature)


def run_python(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([python, *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(
            f"{python}: {error.strerror}; name the Python of an environment that has unbabel-comet, such as "
            "comet/bin/python"
        ) from None
