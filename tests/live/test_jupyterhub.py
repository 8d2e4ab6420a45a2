"""Notebook servers of a real JupyterHub as jobs on shares of a drone's GPU, as the how-to says."""

from __future__ import annotations

import json

import pytest

from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import LabError, Pool, StartDrone, fetched, until
from tests.labs.jupyterhub import running_hub


@pytest.mark.matrix
def test_a_notebook_server_runs_on_a_share_of_a_drone(pool: Pool, drone_on: StartDrone) -> None:
    try:
        fetched("get-jupyterhub.sh")
    except LabError as error:
        pytest.skip(f"no JupyterHub: {error}")
    gpus = FakeGpus.build(pool.root / "notebook-gpus", 1)
    env = gpus.drone_env
    if not pool.condor.version.startswith("23."):  # that counts each GPU once
        env = {**env, "DRONE_SHARING": "time-sliced", "DRONE_SHARES": "4"}
    drone = drone_on(pool, "notebook-1", env=env)
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    with running_hub(pool) as hub:
        hub.log_in()
        server = f"/hub/api/users/{hub.user}/server"
        assert hub.ask("POST", server).status in (201, 202), hub.said

        def ready() -> bool:
            user = hub.ask("GET", f"/hub/api/users/{hub.user}").text
            found = json.loads(user)["servers"]
            assert found, hub.said
            return bool(found[""]["ready"])

        until(ready, 120, what="the notebook server answers")
        (job,) = pool.jobs()
        assert (job["JobStatus"], job["GpuMilli"]) == (2, 250)
        assert f"@{drone.id}@" in str(job["RemoteHost"])
        assert str(job["AssignedGPUs"]) in gpus.uuid(0)
        status = hub.ask("GET", f"/user/{hub.user}/api/status")
        assert status.status == 200 and json.loads(status.text)["kernels"] == 0, status.text
        assert hub.ask("DELETE", server).status in (202, 204), hub.said
        until(lambda: not pool.jobs(), what="its job is gone")
        assert hub.ask("GET", f"/user/{hub.user}/api/status").status != 200
