"""Deployment files: they name commands, options and paths that exist; the Ray deployment answers where Ray is."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from regard.cli import app
from regard.cli.serve import API_PORT
from regard.serve.api import ApiLimits
from regard.serve.server import DRAIN_SECONDS
from tests.see.untrained_models import translator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_the_container_runs_a_command_whose_options_exist():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    (entry,) = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT")]
    commands = get_command(app).commands  # type: ignore[attr-defined]
    flags = {flag for option in commands[entry[1]].params for flag in option.opts}
    assert entry[0] == "regard"
    assert {word for word in entry if word.startswith("--")} <= flags
    copied = [shlex.split(line)[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / name).exists() for names in copied for name in names)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == {
        one for names in copied for one in names
    }


def test_compose_and_kubernetes_agree_with_the_server():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {container[probe]["httpGet"]["port"] for probe in container if probe.endswith("Probe")} == {8643}
    flags = {flag for option in get_command(app).commands["api"].params for flag in option.opts}  # type: ignore[attr-defined]
    assert {word for word in container["args"] if word.startswith("--")} <= flags
    (pause,) = (int(word) for word in container["lifecycle"]["preStop"]["exec"]["command"][1:])
    longest = ApiLimits().timeout + DRAIN_SECONDS + 1  # see serve_api
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= pause + longest
    assert int(compose["api"]["stop_grace_period"].removesuffix("s")) >= longest
    # a relative folder would be looked for beside the compose file, not where the command is given
    assert "RUN=$PWD/run" in (DEPLOY / "compose.yaml").read_text()
    assert compose["api"]["ports"] == ["127.0.0.1:8643:8643"]
    assert container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["targetPort"] == 8643
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/health",
        "/ready",
    }
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["api:8643"]}]
    assert f"EXPOSE {API_PORT}\n" in (dockerfile := (DEPLOY / "Dockerfile").read_text())
    assert f"http://127.0.0.1:{API_PORT}/ready" in dockerfile


RAY = """
import json, os, ray
settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("REGARD_")}
ray.init(num_cpus=2, include_dashboard=False)  # a cluster that was started without them
os.environ |= settings
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from ray import serve
from deploy.ray_serve import app
serve.run(app({}), route_prefix="/")
body = json.dumps({"q": "the cat", "source": "en", "target": "fr"}).encode()

def ask(**headers):
    try:
        return urlopen(Request("http://127.0.0.1:8000/translate", body, {"Content-Type": "application/json"} | headers))
    except HTTPError as error:
        return error

print(ask().status)
print(ask(Authorization=f"Bearer {settings['REGARD_API_KEYS']}").read().decode())
serve.shutdown()
"""


@pytest.mark.slow
def test_the_ray_deployment_answers_who_has_a_key(tmp_path):
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'regard[ray]'")
    translator().save(tmp_path / "run")
    settings = {"REGARD_RUNS": os.path.relpath(tmp_path / "run", ROOT), "REGARD_CPUS": "1", "REGARD_API_KEYS": "k" * 16}
    more = settings | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", RAY], env=os.environ | more, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("401\n"), done.stderr[-2000:]
    assert "translatedText" in done.stdout, done.stderr[-2000:]


def test_the_ray_deployment_names_what_it_lacks(monkeypatch):
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'regard[ray]'")
    from deploy.ray_serve import app

    monkeypatch.delenv("REGARD_RUNS", raising=False)
    with pytest.raises(ValueError, match="REGARD_RUNS names no run"):
        app({})
