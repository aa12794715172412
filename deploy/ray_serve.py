"""Ray Serve: the API of `regard api` as a deployment with replicas.

    pip install 'regard[ray]'
    REGARD_RUNS=run serve run deploy.ray_serve:app

Each replica has its own models and batches; Ray starts more of them when more requests are under way. The keys of
REGARD_API_KEYS are asked for as by `regard api`. POST /admin/reload reaches one replica alone: to load models again on
all, deploy again.
"""

import os
from pathlib import Path

from ray import serve
from starlette.types import ASGIApp


def build_app() -> ASGIApp:
    """Called on every replica."""
    from regard.cli.visualize import read_keys
    from regard.serve.api import Api, create_api
    from regard.serve.model_store import ModelStore

    runs = [Path(run) for run in os.environ["REGARD_RUNS"].split(os.pathsep)]
    return create_api(Api(ModelStore.from_folders(runs), keys=read_keys(None)), loopback=False)


app = serve.deployment(
    serve.ingress(build_app)(),
    name="regard",
    max_ongoing_requests=256,  # the API's own queue refuses the rest with 429
    graceful_shutdown_timeout_s=61,
    ray_actor_options={"num_cpus": float(os.environ.get("REGARD_CPUS", "2"))},
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 32},
).bind()
