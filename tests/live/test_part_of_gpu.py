"""A server and jobs on parts of one GPU: real drones, a real Triton, real HTCondor, a fake GPU and a stand-in for MPS.

The process that computes for Triton uses the fake ``libcuda``; ``tritonserver`` itself sees no GPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.labs import mps
from tests.labs.controller import A100, LabController, Settings, gpu_type
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Diary, Pool, gpu_job, processes_with, until
from tests.labs.inference import MODEL, InferenceSite, running_inference
from tests.labs.triton import TritonPrograms

pytestmark = pytest.mark.xdist_group("inference")
VRAM_MIB = 40536
QUARTER_MIB, HALF_MIB = VRAM_MIB // 4, VRAM_MIB // 2
HELD_MIB = 8000
"""VRAM of the server."""
ALLOCATE = """
import ctypes, json, os, sys, time
cuda = ctypes.CDLL("{library}")
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)
def allocate(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(mib << 20))
"""
SERVER = """
got = [allocate({held}), allocate({more})]
del os.environ["LD_LIBRARY_PATH"]
open("{notes}", "w").write(json.dumps([os.getpid(), got, dict(os.environ)]))
"""
OUT_OF_MEMORY = 2
JOB = """
cat >allocate.py <<'END'
{allocate}
print(*[allocate(int(mib)) for mib in sys.argv[1].split(",")], flush=True)
time.sleep(float(sys.argv[2]))
END
say gpu $CUDA_VISIBLE_DEVICES
say pipes $CUDA_MPS_PIPE_DIRECTORY
say limit $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
say shown $(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits)
say own $(python3 allocate.py 15000,6000 0)
say unlimited $(env -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT python3 allocate.py 21000 0)
infer() {{
    curl -s -o answer -w '%{{http_code}} ' -d '{{}}' "http://127.0.0.1:$1/v2/models/deepmet/versions/1/infer"
    cat answer
}}
say server $(infer {port})
say balancer $(infer {balancer})
while [ ! -e {flag} ]; do sleep 0.2; done
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
exec python3 allocate.py 25000 600
"""


@dataclass(frozen=True)
class PartsSite(InferenceSite):
    """A ``local`` site with one fake GPU: a server gets a quarter of it, a drone for jobs a half."""

    fake: FakeGpus = field(kw_only=True)

    def settings(self, controller: LabController) -> Settings:
        found: dict[str, Any] = {**super().settings(controller)}
        notes = controller.directory / "tritons" / "notes"
        before = self.allocate + SERVER.format(
            held=HELD_MIB, more=QUARTER_MIB - HELD_MIB + 1, notes=notes
        )
        command = self.tritons.command(notes.parent, MODEL, self.request_s, before)
        server = found["types"]["triton"]["server"] | {"command": command}
        model, _, capability = A100
        part = {"cpus": 1, "memory": "512 MiB", "disk": "1 GiB", "sharing": "mps"}
        quarter = gpu_type(model, QUARTER_MIB, capability, **part)
        half = gpu_type(model, HALF_MIB, capability, **part)
        found["types"] = {
            "triton": quarter | {"gpus": 0.25, "server": server},
            "jobs": half | {"gpus": 0.5},
        }
        env = {name: text for name, text in self.fake.env.items() if "DRONE" not in name}
        gpu = {"model": model, "vram": f"{VRAM_MIB} MiB", "capability": capability}
        found["options"] |= {"root": "d", "env": env, "gpus": [gpu]}
        return found

    @property
    def allocate(self) -> str:
        return ALLOCATE.format(library=self.fake.directory / "libcuda.so.1")


def test_a_server_and_a_job_on_one_gpu_keep_their_limits(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    tritons = TritonPrograms.fetched()
    gpus = FakeGpus.build(pool.root / "gpus", 1)
    mps.stand_in(gpus.directory)
    controller.sites = ()
    site = PartsSite(tritons, fake=gpus)
    with running_inference(controller, site, at_least=1, idle="5min") as serving:
        serving.until_serving(1)
        pid, got, env = json.loads((controller.directory / "tritons" / "notes").read_text())
        assert got == [0, OUT_OF_MEMORY]
        assert env["CUDA_VISIBLE_DEVICES"] == gpus.uuid(0)
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={QUARTER_MIB}M"
        assert (gpus.state / f"process.{pid}").read_text() == f"0 50 {HELD_MIB} mps\n"

        diary, flag = Diary(pool, "job"), pool.file("beside")
        program = diary.program(
            JOB.format(
                allocate=site.allocate,
                port=env["SERVICE_HTTP_PORT"],
                balancer=serving.ports["http"],
                flag=flag,
            )
        )
        job = pool.submit(gpu_job(program=program, more="+GpuMilli = 500"))
        others = [
            pool.submit(gpu_job(more=more))
            for more in ("", "+GpuMilli = 100\ngpus_minimum_memory = 30000")
        ]
        until(lambda: diary.said("balancer"), 120, what="it has tried", every_s=0.5)
        said = dict(line.split(" ", 1) for line in diary.said())
        assert said["gpu"] == gpus.uuid(0)
        assert said["limit"] == f"0={HALF_MIB}M"
        assert said["pipes"] != env["CUDA_MPS_PIPE_DIRECTORY"]
        assert said["shown"] == str(HALF_MIB)
        assert said["own"] == f"0 {OUT_OF_MEMORY}"
        assert said["unlimited"] == str(OUT_OF_MEMORY)
        assert said["server"].startswith("403 ") and "restricted" in said["server"]
        assert said["balancer"].startswith("401 ")
        assert {each["type"] for each in controller.live()} == {"servers/triton", "servers/jobs"}

        load = serving.load("grpc", 20, 15)
        flag.touch()
        flag.chmod(0o644)
        until(lambda: pool.statuses(job) == [5], 60, what="it is held", every_s=0.5)
        [held] = pool.jobs(job)
        assert held["HoldReasonSubCode"] == 105, held["HoldReason"]
        assert load.answers().errors == {}
        assert (gpus.state / f"process.{pid}").read_text() == f"0 50 {HELD_MIB} mps\n"
        assert pid in processes_with("SERVICE_NAME=cms")
        assert [pool.statuses(each) for each in others] == [[1], [1]], "they need more of a GPU"
