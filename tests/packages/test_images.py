"""The images of packaging/images, built from local bases without a network: a demo, and a drone of a real pool."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.htcondor import Condor, LabError, gpu_job, own, running_pool, start_drone, until
from tests.packages.conftest import CHECKOUT, IN_ROOT, packed_root, run

# The limits of a host where podman's own ones are too high.
LIMITS = ("--ulimit=nofile=1024:4096", "--ulimit=nproc=4096:4096")
UNPRIVILEGED = (*LIMITS, "--cap-drop=all", "--security-opt=no-new-privileges")
READ_ONLY = ("--read-only", "--read-only-tmpfs=false")
BASES = {
    "controller": (IN_ROOT, "bookworm"),
    "drone": ("condor,python3,ca-certificates", "trixie"),
}
WRITABLE = "find / -xdev ! -type l -writable ! -path '/proc/*' ! -path '/dev/*'"


class Images:
    """Images and containers in a storage of their own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self.state = Path(tempfile.mkdtemp(prefix="podman-"))  # podman wants a short path
        storage = ("--root", place / "storage", "--runroot", self.state)
        self.podman = ("podman", *storage, "--cgroup-manager=cgroupfs")
        self.buildah = ("unshare", "--net", "buildah", *storage)

    def check(self, image: str) -> None:
        """Skip the test if containers cannot run here, neither with the default runtime nor with runc."""
        words = ("run", "--rm", "--network=none", *UNPRIVILEGED, "--entrypoint=id", image)
        for runtime in ((), ("--runtime=runc",)):
            ran = subprocess.run([*self.podman, *runtime, *words], capture_output=True, text=True)
            if ran.returncode == 0:
                self.podman += runtime
                return
        pytest.skip(f"podman cannot run containers here: {ran.stderr[-300:]}")

    def build(self, name: str, context: Path) -> str:
        """Build an image on a fresh root of Debian, and return its name."""
        base = packed_root(*BASES[name])
        run(*self.podman, "import", "--quiet", base, f"localhost/base-{name}")
        file = CHECKOUT / f"packaging/images/{name}.Containerfile"
        words = ("--isolation=chroot", "--pull=never", "--build-arg", f"BASE=base-{name}")
        run(*self.buildah, "build", *words, "-f", file, "-t", f"localhost/{name}", context)
        self.check(f"localhost/{name}")
        return f"localhost/{name}"

    def run(self, *words: str | Path) -> str:
        """Run a container without privileges or network, and return its output."""
        alone = ("--rm", "--network=none", *UNPRIVILEGED)
        return run(*self.podman, "run", *alone, *words, timeout=300)


@pytest.fixture(scope="session")
def images(place: Path) -> Iterator[Images]:
    if missing := [tool for tool in ("buildah", "podman") if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    images = Images(place / "images")
    works = subprocess.run([*images.podman, "info"], capture_output=True, text=True)
    if works.returncode:
        pytest.skip(f"podman cannot run here: {works.stderr[-300:]}")
    yield images
    run(*images.podman, "rm", "--force", "--all", "--volumes")
    # podman mounts this directory on itself
    subprocess.run(["umount", images.place / "storage/overlay"], capture_output=True)
    shutil.rmtree(images.state)


@pytest.fixture(scope="session")
def controller(images: Images, packages: dict[str, Path]) -> str:
    return images.build("controller", packages["deb"].parent)


@pytest.fixture(scope="session")
def drone_image(images: Images) -> str:
    return images.build("drone", CHECKOUT / "packaging/images")


def test_the_controller_runs_the_demo(images: Images, controller: str) -> None:
    told = images.run(*READ_ONLY, controller, "demo")
    assert "All drones have left, no process is left" in told, told
    assert "(commit " in images.run(*READ_ONLY, controller, "--version")


@pytest.mark.parametrize(
    ("fixture", "account", "volumes"),
    [
        ("controller", "10001", {"/var/lib/provisioner"}),
        ("drone_image", "1000", {"/drone/work", "/tmp"}),
    ],
)
def test_nothing_outside_the_volumes_is_writable(
    images: Images, request: pytest.FixtureRequest, fixture: str, account: str, volumes: set[str]
) -> None:
    """By the modes of the files, also where the root of the container is not read-only."""
    image = request.getfixturevalue(fixture)
    told = images.run("--entrypoint=sh", image, "-c", f"id -u; {WRITABLE} 2>/dev/null || true")
    user, *writable = told.split()
    assert user == account
    assert set(writable) == volumes
    form = "--format={{range $path, $_ := .Config.Volumes}}{{$path}} {{end}}"
    assert set(run(*images.podman, "inspect", form, image).split()) == volumes


def test_a_drone_in_a_container_joins_runs_a_job_and_leaves(
    images: Images, drone_image: str
) -> None:
    try:
        condor = Condor.fetched("forky")
    except LabError as error:
        pytest.skip(str(error))
    options = ("--rm", "--network=host", "--env-host", *UNPRIVILEGED, *READ_ONLY)
    words = shlex.join(map(str, (*images.podman, "run", *options)))
    # The directory is of the lab's account, in a pod it is of the drone's.
    begin = f'chown -R 1000:1000 . && exec {words} -v "$PWD:$PWD" -w "$PWD" {drone_image} sh "$0"'
    with running_pool(condor) as pool:
        drone = start_drone(
            pool,
            own("image"),
            env={"CONDOR_PREFIX": "", "DRONE_IDLE_S": "6"},
            shell=("sh", "-c", begin),
            as_root=True,
        )
        drone.slot(pool)
        job = pool.submit(gpu_job(2))
        until(lambda: not pool.jobs(job), 60, what="the job is done", every_s=0.5)
        [ad] = pool.history(job)
        assert (ad["JobStatus"], ad["ExitCode"]) == (4, 0), ad
        assert drone.wait(90) == 0, drone.story()
        assert (drone.outcome["reason"], drone.outcome["jobs_ended"]) == ("idle", "1")
        until(lambda: not pool.drone_slots(drone.id), 30, what="it has left the pool")
