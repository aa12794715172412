"""The habits of the repository: its files parse, name commands and files that exist, and agree with each other."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

from regard.attention.backends import BACKENDS
from regard.attention.parts import PARTS

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "check.yml"
YAML = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]
GUIDES = [
    *YAML,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run")),
    ROOT / ".github" / "pull_request_template.md",
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", YAML, ids=name)
def test_it_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_make_command_is_a_target_of_the_makefile(path):
    # in code: after a backtick, at the start of a line, or as a workflow's step
    for line in path.read_text().splitlines():
        for target in re.findall(r"(?:`|^(?:sudo )?|run: |entry: )make (?:-\w )?([\w-]+)", line):
            assert target in TARGETS, f"{name(path)}: make {target}"


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_file_that_is_named_is_there(path):
    named = re.findall(r"(?:tests|docs|benchmarks|src|recipes)/[\w./-]*\w", path.read_text())
    for one in named:
        assert (ROOT / one).exists(), f"{name(path)}: {one}"


def test_every_target_is_phony_and_says_what_it_does():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS
    silent = {one for one in TARGETS if not re.search(rf"^{one}:.*## \w", MAKEFILE, re.MULTILINE)}
    assert silent <= {"clean"}


def test_the_suite_never_asks_for_root():
    recipes = dict(re.findall(r"^([\w-]+):([^=].*\n(?:\t.*\n)*)", MAKEFILE, re.MULTILINE))
    wanted, seen = ["test"], set()
    while wanted:
        target = wanted.pop()
        seen.add(target)
        first, *lines = recipes[target].splitlines()
        assert not any(re.match(r"\t@?(?!.*echo).*(apt|npm|sudo)", line) for line in lines), target
        wanted += [one for one in first.split("##")[0].split() if one in TARGETS - seen]
    assert "browser-check" in seen


def test_ci_runs_all_that_is_promised():
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make check" in ci
    assert "make test" in ci  # part of it
    assert "$(MAKE) lint types docs test" in MAKEFILE
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert set(jobs) == {"lint", "types", "test", "docs", "wheel"}
    steps = {job: [step.get("run", "") for step in jobs[job]["steps"]] for job in jobs}
    assert all(f"make {job}" in steps[job] for job in jobs)


def test_versions_agree():
    tested = yaml.safe_load(WORKFLOW.read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    assert tested == [one.removeprefix(prefix) for one in PROJECT["classifiers"] if one.startswith(prefix)]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_what_is_installed_by_name_is_pinned():
    constraints = (ROOT / "constraints.txt").read_text()
    pinned = set(re.findall(r"^([\w-]+)==", constraints, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    requirements = [*PROJECT["dependencies"], *extras["serve"], *extras["dev"], *extras["docs"]]
    names = {re.match(r"[\w-]+", one)[0] for one in requirements}  # type: ignore[index]
    assert names - pinned - {"regard"} == set()


def test_an_error_is_planted_into_every_part_and_backend():
    """Otherwise benchmarks/mutants.py refuses to try them all."""
    errors = runpy.run_path(str(ROOT / "benchmarks" / "planted.py"))["ERRORS"]
    assert {*PARTS, *BACKENDS} - {part for planted in errors.values() for part, *_ in planted} == set()


def test_every_planted_error_can_be_planted():
    """The code that it replaces stands once in its file."""
    errors = runpy.run_path(str(ROOT / "benchmarks" / "planted.py"))["ERRORS"]
    for file, planted in errors.items():
        text = (ROOT / "src" / "regard" / file).read_text()
        for part, wrong, old, _ in planted:
            assert text.count(old) == 1, f"{file}, {part}, {wrong}: {text.count(old)} × {old!r}; it must be once"
