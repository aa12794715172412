"""Ray Serve: the API of `regard api` as a deployment with replicas.

    pip install 'regard[ray]'
    REGARD_RUNS=run serve run deploy.ray_serve:app

Each replica has its own models and batches, and REGARD_CPUS cores (2); Ray starts more of them when more requests are
under way. The variables are those of the shell that gives the command, and reach replicas on a cluster that runs
already. The keys of REGARD_API_KEYS are asked for as by `regard api`. POST /admin/reload reaches one replica alone: to
load models again on all, deploy again.
"""

import os
from pathlib import Path

from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp


def app(_: dict[str, str]) -> Application:
    """Called by `serve run`, with the arguments behind it, of which there are none."""
    from regard.cli.serve import read_keys

    if not (named := os.environ.get("REGARD_RUNS")):
        raise ValueError("REGARD_RUNS names no run; give the folders of runs, as in REGARD_RUNS=run serve run …")
    # a replica works in a folder of its own; what is not a folder here is the name of a shipped model
    runs = [path.resolve() if (path := Path(run)).exists() else path for run in named.split(os.pathsep)]
    keys = read_keys(None)

    def build_api() -> ASGIApp:
        """Called on every replica."""
        from regard.serve.api import Api, create_api
        from regard.serve.model_store import ModelStore

        return create_api(Api(ModelStore.from_folders(runs), keys=keys), loopback=False)

    deployment = serve.deployment(
        name="regard",
        max_ongoing_requests=256,  # the API's own queue refuses the rest with 429
        graceful_shutdown_timeout_s=61,
        ray_actor_options={"num_cpus": float(os.environ.get("REGARD_CPUS", "2"))},
        autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 32},
    )
    return deployment(serve.ingress(build_api)()).bind()
