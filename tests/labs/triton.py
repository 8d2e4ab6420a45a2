"""Real Triton servers and clients for the tests, without a GPU. A model sleeps, and takes one request at a time."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.labs.htcondor import LabError, fetched, kill, launch, living_in, until

KEY = "key-of-all-servers"
"""Without a blank: Triton gets it on its command line."""
SERVER = """\
import os, pathlib, sys, time
import numpy
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

model, request_s = sys.argv[1].split(":"), float(sys.argv[2])
ports = {name: int(os.environ[f"SERVICE_{name.upper()}"]) for name in ("http_port", "grpc_port", "metrics_port")}
closed = "inference metadata model-config shared-memory model-repository statistics trace logging".split()
key = pathlib.Path(os.environ["SERVICE_KEY_FILE"]).read_text().strip()

@batch
def twice(x):
    time.sleep(request_s)
    return {"y": 2 * x}

one = Tensor(name="x", dtype=numpy.float32, shape=(-1,)), Tensor(name="y", dtype=numpy.float32, shape=(-1,))
with Triton(config=TritonConfig(**ports), security_config=TritonSecurityConfig(key, closed)) as server:
    server.bind(model[0], twice, [one[0]], [one[1]], model_version=int(model[1]), config=ModelConfig(max_batch_size=1))
    server.serve()
"""
"""The environment is that of a drone. Its readiness alone says nothing: it is ready before it has loaded the model."""

CLIENT = """\
import asyncio, json, sys, time
import numpy

async def main(protocol, port, model, rate, seconds, token):
    if protocol == "grpc":
        import tritonclient.grpc.aio as triton
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    else:
        import tritonclient.http.aio as triton
        client = triton.InferenceServerClient(f"127.0.0.1:{port}", conn_limit=1000)
    headers = {"authorization": f"Bearer {token}"} if token else None
    given = triton.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(numpy.ones((1, 1), numpy.float32))
    name, version = model.split(":")
    answers = []

    async def one():
        began = time.time()
        try:
            got = await client.infer(name, [given], model_version=version, headers=headers)
            error = "" if got.as_numpy("y")[0][0] == 2 else "wrong answer"
        except Exception as failure:
            error = str(failure) or repr(failure)
        answers.append([began, time.time(), error])

    start = time.time()
    calls = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0, start + number / rate - time.time()))
        calls.append(asyncio.create_task(one()))
    await asyncio.gather(*calls)
    await client.close()
    json.dump(answers, sys.stdout)

asyncio.run(main(**json.loads(sys.argv[1])))
"""
ASK = """\
import json, sys, time
import numpy
import tritonclient.grpc as grpc, tritonclient.http as http

protocol, port, token, everything = json.loads(sys.argv[1])
client = {"grpc": grpc, "http": http}[protocol].InferenceServerClient(f"127.0.0.1:{port}")
headers = {"authorization": f"Bearer {token}"} if token else None
calls = {
    "index": client.get_model_repository_index,
    "ready": client.is_server_ready,
    "metadata": client.get_server_metadata,
    "load": lambda headers: client.load_model("deepmet", headers=headers),
}
if everything:
    triton = {"grpc": grpc, "http": http}[protocol]
    given = triton.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(numpy.ones((1, 1), numpy.float32))
    region = {"name": "mine", "key": "/mine", "byte_size": 64}
    log = {"settings": {"log_info": False}}
    trace = {"settings": {"trace_level": ["OFF"]}}
    calls |= {
        "infer": lambda headers: client.infer("deepmet", [given], headers=headers),
        "unload": lambda headers: client.unload_model("deepmet", headers=headers),
        "model": lambda headers: client.get_model_metadata("deepmet", headers=headers),
        "config": lambda headers: client.get_model_config("deepmet", headers=headers),
        "statistics": client.get_inference_statistics,
        "regions": client.get_system_shared_memory_status,
        "region": lambda headers: client.register_system_shared_memory(**region, headers=headers),
        "cuda regions": client.get_cuda_shared_memory_status,
        "trace": client.get_trace_settings,
        "set trace": lambda headers: client.update_trace_settings(**trace, headers=headers),
        "log": client.get_log_settings,
        "set log": lambda headers: client.update_log_settings(**log, headers=headers),
    }
answers = {}
for name, call in calls.items():
    began = time.time()
    try:
        answer = call(headers=headers)
        status = "ok" if answer is not False else "not ready"
    except Exception as failure:
        status = f"{failure.status()} {failure.message()}"
    answers[name] = [status, time.time() - began]
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True)
class Answers:
    """Answers to requests: when each was sent, when it was answered, and the error or nothing."""

    rows: Sequence[tuple[float, float, str]]

    @property
    def errors(self) -> Counter[str]:
        return Counter(error for _, _, error in self.rows if error)

    @property
    def first_ok_at(self) -> float:
        """When the first request was answered."""
        return min(done for _, done, error in self.rows if not error)

    def errors_since(self, moment: float) -> Counter[str]:
        """Errors of requests that were sent since then."""
        return Counter(error for sent, _, error in self.rows if error and sent >= moment)


@dataclass
class Load:
    """A running client."""

    process: subprocess.Popen[str]

    def answers(self) -> Answers:
        """Wait for its end, and return what it got."""
        out, _ = self.process.communicate(timeout=600)
        assert self.process.returncode == 0
        return Answers([(sent, done, error) for sent, done, error in json.loads(out)])


@dataclass(frozen=True)
class TritonPrograms:
    """The virtual environment with the server and its client."""

    python: Path

    @classmethod
    def fetched(cls) -> TritonPrograms:
        """Return the programs; without them the test is skipped."""
        try:
            return cls(fetched("get-triton.sh") / "bin" / "python")
        except LabError as error:
            pytest.skip(f"no Triton: {error}")

    def command(self, directory: Path, model: str, request_s: float, before: str = "") -> str:
        """Return the shell command of a server in a drone, with files in a directory that any account may use.

        A drone's own directory may be too deep for the names of Triton's sockets. ``before``: what
        the process that computes does at first, in Python.
        """
        program = directory / "server.py"
        program.write_text(before + SERVER)
        program.chmod(0o644)
        directory.chmod(0o1777)
        return f"PYTRITON_HOME={directory} exec {self.python} {program} {model} {request_s}"

    def load(
        self, protocol: str, port: int, model: str, rate: float, seconds: float, token: str = ""
    ) -> Load:
        """Begin to send requests at a constant rate. Each is sent once, whether others are answered or not."""
        how = {"protocol": protocol, "port": port, "model": model, "rate": rate}
        words = json.dumps({**how, "seconds": seconds, "token": token})
        command = [str(self.python), "-c", CLIENT, words]
        return Load(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def ask(
        self, protocol: str, port: int, token: str = "", *, everything: bool = False
    ) -> Mapping[str, tuple[str, float]]:
        """Return answers to calls before a request, each with its seconds: `ok` or the error with its status.

        ``everything``: also to all others that a server has.
        """
        command = [str(self.python), "-c", ASK, json.dumps([protocol, port, token, everything])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
        return {
            name: (status, seconds) for name, (status, seconds) in json.loads(done.stdout).items()
        }


@dataclass
class TritonServer:
    """A server outside any drone."""

    directory: Path
    http_port: int
    process: subprocess.Popen[bytes] | None = None
    model: str = "deepmet:1"

    @property
    def grpc_port(self) -> int:
        return self.http_port + 1

    def begin(self, programs: TritonPrograms, request_s: float) -> None:
        """Start the process."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / "key").write_text(KEY)
        names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
        ports = {f"SERVICE_{name}": str(self.http_port + n) for n, name in enumerate(names)}
        env = {**os.environ, **ports, "SERVICE_KEY_FILE": "key"}
        command = programs.command(self.directory, self.model, request_s)
        words = ("/bin/sh", "-c", command)
        self.process = launch(words, self.directory / "log", env=env, cwd=self.directory)

    def is_ready(self) -> bool:
        name, _, version = self.model.partition(":")
        path = f"v2/models/{name}/versions/{version}/ready"
        with (
            suppress(OSError),
            urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}/{path}", timeout=5
            ) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        while self.process.poll() is None or living_in(self.directory):
            kill(self.process.pid, *living_in(self.directory))
            self.process.wait(10)


@contextmanager
def running_tritons(
    programs: TritonPrograms, directory: Path, ports: Sequence[int], request_s: float
) -> Iterator[list[TritonServer]]:
    """Run servers of one model, each at three ports from one of these on, and wait until they are ready."""
    servers = [TritonServer(directory / str(port), port) for port in ports]
    try:
        for each in servers:
            each.begin(programs, request_s)
        for each in servers:
            until(each.is_ready, 60, what="a Triton is ready", every_s=0.3)
        yield servers
    finally:
        for each in servers:
            each.kill()
