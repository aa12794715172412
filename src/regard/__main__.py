"""`python -m regard`: the command line, which `torchrun -m regard train …` starts in every process."""

import atexit
import gc

from regard.cli.main import app

# net allocations before the youngest objects are searched for cycles; with the usual 700, a quarter of a second of the
# start passes in searching modules, classes and functions, which live as long as the process, and with 50,000 a tenth
GC_THRESHOLD = 400_000


def main() -> None:
    """The `regard` script: a process of its own, which sets how it collects garbage."""
    gc.set_threshold(GC_THRESHOLD)
    atexit.register(gc.freeze)  # so that the interpreter does not search all modules once more on its way out
    app(prog_name="regard")


if __name__ == "__main__":
    main()
