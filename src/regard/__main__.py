"""`python -m regard`: the command line, which `torchrun -m regard train …` starts in every process."""

from regard.cli.main import app

if __name__ == "__main__":
    app(prog_name="regard")
