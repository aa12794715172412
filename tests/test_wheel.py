"""The wheel: it holds the package whole, and works in an environment that has nothing else of the repository."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed; `make test` installs it with the rest")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.glob("regard-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an empty environment with the wheel; the dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # the folders alone: .pth files in them, such as that of an editable install, are not followed
    others = [one for one in sys.path if one.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{one}\n" for one in others))
    return folder / "bin"


def run(*command: str | Path, where: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=where, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_package_is_inside(wheel):
    tracked = subprocess.run(["git", "ls-files", "src/regard"], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("regard/")}
    existing = [name for name in tracked.stdout.split() if (ROOT / name).exists()]
    assert {name.removeprefix("src/") for name in existing} <= inside
    assert {"regard/py.typed", "regard/serve/page/index.html", "regard/serve/page/js/main.js"} <= inside
    assert not {name for name in inside if "__pycache__" in name or "tests" in name}


def test_the_models_are_in_a_wheel_of_their_own(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT / "packages" / "regard-models"], check=True)
    (built,) = tmp_path.glob("regard_models-*.whl")
    with zipfile.ZipFile(built) as archive:
        inside = archive.namelist()
        (points,) = (archive.read(name).decode() for name in inside if name.endswith("entry_points.txt"))
    assert "[regard.models]\nregard-models = regard_models" in points
    assert "regard_models/__init__.py" in inside
    assert {name.rsplit("/")[-1] for name in inside} >= {"LICENSE", "ATTRIBUTION.md"}
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "regard_models" in name or name.endswith(".safetensors")]


def test_it_is_the_wheel_that_is_imported(installed, tmp_path):
    where = run(installed / "python", "-c", "import regard; print(regard.__file__)", where=tmp_path)
    assert where.startswith(str(installed.parent))


def test_the_command_helps_and_draws(installed, tmp_path):
    assert "train" in run(installed / "regard", "--help", where=tmp_path)
    run(installed / "regard", "draw", "Causal() & Window(8)", "--save", "mask.png", where=tmp_path)
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


PAGE = """
from pathlib import Path
from starlette.testclient import TestClient
from regard import load
from regard.serve.app import create_app
from regard.serve.model_store import ModelStore

models = ModelStore.from_models({"demo": load("demo").task_model})
client = TestClient(create_app(models, token="a-token-of-the-tests"), base_url="http://127.0.0.1")
paths = ["/?token=a-token-of-the-tests", "/static/js/main.js", "/static/style.css", "/api/models"]
print(*(client.get(path).status_code for path in paths))
"""


def test_the_demo_and_the_page_run_from_it(installed, tmp_path):
    run(installed / "regard", "demo", "--steps", "5", "--out", "demo", where=tmp_path)
    assert run(installed / "python", "-c", PAGE, where=tmp_path) == "200 200 200 200\n"
