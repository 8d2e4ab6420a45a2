"""Faults of a Kubernetes cluster, on a real control plane: the right outcome and back-off, one line
for people, no orphan, no duplicate, and never above the cap."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from adapters.embedded import queue
from provisioner.model import BreakerState, FaultKind, Scope, SitePolicy
from tests.labs.admission import NAME, admission_webhook
from tests.labs.controller import LabController, Settings, Sightings, limits
from tests.labs.htcondor import LabError, lab_directory, meanwhile, until
from tests.labs.kubernetes import GPU, KubernetesLab
from tests.labs.kubernetes_sites import KubernetesWorld, left_of, many_pods, site_options
from tests.labs.kueue import kueue
from tests.labs.openstack_stress import QueueController

KIND = "cern/a100"
AS_POD_AND_JOB = pytest.mark.parametrize("kind", ["pod", "job"])
IDLE = {"lab/idle": "yes"}
"""Such a pod runs, and no process does: the drills look at the site's side."""


@dataclass
class DrillSite:
    cluster: KubernetesLab
    most: int = 6
    options: Settings = field(default_factory=dict)
    timeouts: Settings = field(default_factory=dict)
    more: Settings = field(default_factory=dict)
    name: str = "cern"

    def settings(self, controller: LabController) -> Settings:
        size = {"cpus": 1, "memory": "1 GiB", "disk": "1 GiB", "walltime": "1h"}
        kind = {"gpus": 1, "gpu_model": "A100", "vram": "40 GiB", "capability": 8.0, **size}
        deadlines = {
            "poll_deadline": "20s",
            "order_deadline": "20s",
            "order_confirm": "25s",
            "view_max_age": "90s",
        }
        options = {
            **site_options(self.cluster, annotations=IDLE, retain_finished="2s"),
            **self.options,
        }
        options["types"] = {"a100": {"resource": GPU}}
        return {
            "adapter": "kubernetes",
            "limits": limits(self.most),
            "timeouts": deadlines
            | controller.timeouts(missing="2s", stopping="20s", grace="2s")
            | self.timeouts,
            "types": {"a100": kind},
            "options": options,
            **self.more,
        }


@dataclass
class Drill:
    cluster: KubernetesLab
    site: DrillSite
    controller: QueueController
    watch: Sightings

    def submit(self, jobs: int) -> None:
        """Submit jobs that need a drone each."""
        queue.submit(self.controller.directory / "queue.db", ["sleep", "600"], count=jobs, gpus=1)

    def unsubmit(self) -> None:
        path = self.controller.directory / "queue.db"
        queue.remove(path, [job.id for job in queue.jobs(path)])

    def pods(self, phase: str = "") -> list[dict[str, Any]]:
        ours = [
            each
            for each in self.cluster.pods()
            if drone_of(each).startswith(f"{self.controller.name}-")
        ]
        return [each for each in ours if not phase or each["status"].get("phase") == phase]

    def drones(self, phase: str = "") -> set[str]:
        """Return the drones that have pods."""
        return {drone_of(each) for each in self.pods(phase)}

    def active(self, count: int, within_s: float = 60) -> list[dict[str, Any]]:
        """Wait until so many pods run and the controller knows."""
        until(
            lambda: len(self.pods("Running")) == count,
            within_s,
            what=f"{count} pods run",
            every_s=0.3,
        )
        until(
            lambda: self.controller.states()["booting"] == count,
            within_s,
            what="the controller knows",
            every_s=0.3,
        )
        return self.pods("Running")

    def noted(self, *words: str, within_s: float = 60) -> None:
        """Wait until the site's note, which is one line, has all these words."""

        def told() -> bool:
            note = self.controller.site_row()["note"]
            assert "\n" not in note
            return all(word in note for word in words)

        until(told, within_s, what=f"the site's note says {words}", every_s=0.3)

    def banned(self, kind: FaultKind, *words: str, scope: str = KIND) -> None:
        self.noted(f"{scope} banned", *words)
        breaker = self.controller.record.breakers()[Scope.parse(scope)]
        assert breaker.fault is not None
        assert (breaker.state, breaker.fault.kind) == (BreakerState.BANNED, kind)

    def ended(self) -> Counter[str]:
        return Counter(each["state"] for each in self.controller.drones(ended=True))

    def creates(self) -> int:
        made = [path for method, path in self.cluster.front.calls if method == "POST"]
        return len([path for path in made if path.endswith(("/pods", "/jobs"))])

    def quiet(self, ticks: int = 4) -> None:
        """Nothing is asked for while the type is left alone, although jobs wait."""
        before = self.creates()
        self.controller.ticks(ticks)
        assert self.creates() == before

    def over(self) -> None:
        """All are sent away; no pod, no secret and no live record of a drone is left."""
        self.unsubmit()
        if self.controller.live():
            self.controller.prints(
                "drones", "kill", "--site", self.site.name, "--reason", "over", "--yes"
            )
        until(lambda: not self.controller.live(), 90, what="no drone on record lives", every_s=0.3)
        until(lambda: not self.pods(), 60, what="no pod is left", every_s=0.3)
        drones = [each["id"] for each in self.controller.drones()]
        until(
            lambda: not [x for d in drones for x in left_of(self.cluster, d)],
            60,
            what="nothing is left",
            every_s=0.5,
        )
        self.watch.no_orphan_no_duplicate(self.site.most)


def drone_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get("gpu-drone-provisioner/drone", ""))


@contextmanager
def drill(cluster: KubernetesLab, **site: Any) -> Iterator[Drill]:
    with lab_directory("drill") as directory:
        here = DrillSite(cluster, **site)
        controller = QueueController(None, directory / "c", sites=(here,))  # type: ignore[arg-type]

        def look() -> Counter[str]:
            with suppress(LabError, OSError):
                over = ("Succeeded", "Failed")
                names = [
                    drone_of(each) for each in cluster.pods() if each["status"]["phase"] not in over
                ]
                return Counter(name for name in names if name.startswith(f"{controller.name}-"))
            return Counter()

        lab = Drill(cluster, here, controller, Sightings(controller, look))
        cluster.front.calls.clear()
        try:
            with meanwhile(lab.watch):
                yield lab
        except BaseException:
            print(controller.story())
            raise
        finally:
            controller.clean_up()
            cluster.reset()


# ---------------------------------------------------------------------------------------------------
# refused creates


def test_the_quota_is_reached_in_the_middle_of_a_batch(kubernetes: KubernetesLab) -> None:
    """Quotas are hidden from the adapter; the lab's is 8 GPUs."""
    hidden = {
        "message": 'resourcequotas is forbidden: User "robot" cannot list resource "resourcequotas"'
    }
    with (
        drill(kubernetes, most=12, options={"parallel": 1}) as lab,
        kubernetes.front.failing(method="GET", path="/resourcequotas", status=403, body=hidden),
        kubernetes.more_gpus("gpu01", 8),  # else the cluster would show that only 8 are free
    ):
        lab.controller.start()
        lab.submit(12)
        lab.banned(FaultKind.QUOTA, "exceeded quota")
        lab.active(8)
        lab.quiet()
        assert lab.ended() == {"failed": 4}
        lab.over()


def test_a_quota_that_is_known_is_not_exceeded(kubernetes: KubernetesLab) -> None:
    """The lab's quota is 8 GPUs."""
    with drill(kubernetes, most=12) as lab:
        lab.controller.start()
        lab.submit(12)
        lab.active(8)
        lab.controller.ticks(3)
        assert lab.creates() == 8
        lab.over()


def test_an_admission_webhook_refuses(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes) as lab, admission_webhook(kubernetes, "label cost-centre is missing"):
        lab.controller.start()
        lab.submit(2)
        lab.banned(
            FaultKind.CONFIG,
            f'admission webhook "{NAME}" denied the request: label cost-centre is missing',
        )
        lab.quiet()
        assert not lab.pods()
        lab.over()


def test_an_admission_webhook_does_not_answer_and_comes_back(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes) as lab, admission_webhook(kubernetes, "") as webhook:
        lab.controller.start()
        webhook.stop()
        lab.submit(2)
        lab.noted("failed calling webhook")
        assert not lab.pods()
        webhook.start()
        lab.controller.prints("sites", "reset", "cern", "--reason", "the webhook is back")
        lab.active(2, 90)
        lab.over()


def test_the_rights_are_taken_away_and_given_back(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes, most=2) as lab:
        lab.controller.start()
        kubernetes.revoke()
        try:
            lab.submit(2)
            lab.noted("banned", "forbidden")
            assert not lab.pods()
        finally:
            kubernetes.grant()
        lab.controller.prints("sites", "reset", "cern", "--reason", "repaired")
        lab.active(2, 90)
        lab.over()


def test_a_token_expires_and_is_replaced(kubernetes: KubernetesLab) -> None:
    access = kubernetes.kubeconfig("account", kubernetes.token())
    with drill(kubernetes, most=2, options={"kubeconfig": str(access)}) as lab:
        lab.controller.start()
        lab.submit(1)
        lab.active(1)
        kubernetes.expire()

        def says_so() -> bool:
            # an API server lets a watch go on that was begun with a good token
            kubernetes.front.cut_watches()
            (view,) = (
                each
                for each in lab.controller.json("status")["views"]
                if each["view"] == "site:cern"
            )
            return bool(view["fault"] == "denied")

        until(says_so, 90, what="the view tells it", every_s=0.5)
        kubernetes.kubeconfig("account", kubernetes.token())
        lab.submit(1)
        lab.controller.prints("sites", "reset", "cern", "--reason", "replaced")
        lab.active(2, 120)
        lab.over()


def test_pods_wait_for_the_quota_of_kueue(kubernetes: KubernetesLab) -> None:
    """A gate means that quota is lacking: nothing else is started for it, and nothing is given up."""
    with (
        kueue(kubernetes, quota=2) as queue,
        drill(kubernetes, most=4, options={"queue": "drones"}) as lab,
    ):
        lab.controller.start()
        lab.submit(4)
        until(
            lambda: len(lab.pods()) == 4 and len(lab.pods("Running")) == 2,
            60,
            what="two of four run",
            every_s=0.3,
        )
        until(
            lambda: (
                sum("waits for quota" in each["site_reason"] for each in lab.controller.live()) == 2
            ),
            60,
            what="two wait for quota",
            every_s=0.3,
        )
        lab.quiet()
        queue.quota = 4
        queue.preempt(lab.pods("Running")[0])
        until(lambda: lab.ended() == {"preempted": 1}, 60, what="one is preempted", every_s=0.3)
        until(lambda: len(lab.pods("Running")) == 3, 60, what="three of four run", every_s=0.3)
        lab.over()


# ------------------------------------------------------------------------------------------------
# pods that do not run


def test_the_image_is_missing(kubernetes: KubernetesLab) -> None:
    options = {"annotations": {"lab/waiting": "ImagePullBackOff"}}
    with drill(kubernetes, most=2, options=options) as lab:
        lab.controller.start()
        lab.submit(2)
        lab.banned(FaultKind.CONFIG, "ImagePullBackOff")
        until(lambda: not lab.pods(), 60, what="they are gone", every_s=0.3)
        lab.quiet()
        lab.over()


def test_the_node_refuses_a_pod(kubernetes: KubernetesLab) -> None:
    options = {"annotations": {"lab/refuse": "UnexpectedAdmissionError"}}
    with drill(kubernetes, most=2, options=options) as lab:
        lab.controller.start()
        lab.submit(2)
        until(lambda: lab.ended()["failed"] >= 2, 60, what="both have failed", every_s=0.3)
        reasons = {each["site_reason"] for each in lab.controller.drones(ended=True)}
        assert all("refused by its node" in each for each in reasons), reasons
        lab.over()


def test_a_cordoned_cluster_has_no_room(kubernetes: KubernetesLab) -> None:
    def cordon(cordoned: bool) -> None:
        for node in ("gpu01", "gpu02"):
            body = {"spec": {"unschedulable": cordoned}}
            kubernetes.call("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json")

    with drill(kubernetes, most=2) as lab:
        try:
            cordon(True)
            lab.controller.start()
            lab.submit(1)
            lab.controller.ticks(4)
            assert lab.creates() == 0, "no drone is started for nothing"
        finally:
            cordon(False)
        lab.active(1)
        lab.over()


# -------------------------------------------------------------------------------------------------
# pods that are ended


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_pod_is_ended_by_somebody_else(kubernetes: KubernetesLab, how: str) -> None:
    with drill(kubernetes, most=2) as lab:
        lab.controller.start()
        lab.submit(2)
        victim = lab.active(2)[0]["metadata"]["name"]
        if how == "deleted":
            kubernetes.call("DELETE", f"{kubernetes.ours}/pods/{victim}")
        else:
            body = {
                "apiVersion": "policy/v1beta1",
                "kind": "Eviction",
                "metadata": {"name": victim},
            }
            kubernetes.post(f"{kubernetes.ours}/pods/{victim}/eviction", body)
        until(
            lambda: lab.ended() == {"preempted": 1}, 40, what="it counts as preempted", every_s=0.3
        )
        lab.active(2)
        assert victim not in {each["metadata"]["name"] for each in lab.pods()}
        lab.over()


def test_a_job_whose_pod_somebody_deletes_is_deleted(kubernetes: KubernetesLab) -> None:
    """The lab's API server does not know `podReplacementPolicy`: its Job makes another pod for a moment."""
    with drill(kubernetes, most=2, options={"kind": "job", "retain_finished": "10m"}) as lab:
        lab.controller.start()
        lab.submit(1)
        (victim,) = lab.active(1)
        kubernetes.call("DELETE", f"{kubernetes.ours}/pods/{victim['metadata']['name']}")
        until(
            lambda: lab.ended() == {"preempted": 1}, 40, what="it counts as preempted", every_s=0.3
        )
        until(
            lambda: drone_of(victim) not in lab.drones(),
            40,
            what="no pod of it is left",
            every_s=0.3,
        )
        lab.active(1)
        lab.over()


def owner_pod(name: str) -> Mapping[str, Any]:
    limits = {GPU: "1", "cpu": "1", "memory": "1Gi"}
    container = {
        "name": "x",
        "image": "x",
        "resources": {"limits": limits},
        "command": ["sleep", "1000"],
    }
    spec = {
        "priorityClassName": "owner",
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
    }
    return {"metadata": {"name": name, "annotations": IDLE}, "spec": spec}


@pytest.mark.parametrize("proactive", [True, False], ids=["drained", "preempted"])
def test_the_owner_gets_a_gpu(kubernetes: KubernetesLab, proactive: bool) -> None:
    with drill(kubernetes, most=8, more={"owner": {"preempt_proactively": proactive}}) as lab:
        lab.controller.start()
        lab.submit(8)
        lab.active(8)
        kubernetes.post("/api/v1/namespaces/default/pods", owner_pod("owner-1"))
        path = "/api/v1/namespaces/default/pods/owner-1"
        until(
            lambda: kubernetes.get(path)["status"]["phase"] == "Running",
            60,
            what="the owner's pod runs",
            every_s=0.3,
        )
        until(lambda: lab.ended().total() == 1, 40, what="one drone has ended", every_s=0.3)
        lab.controller.ticks(3)
        assert len(lab.pods("Running")) == 7, "no more than one drone has left"
        lab.over()


def test_a_node_is_lost_and_comes_back(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes, most=2) as lab:
        lab.controller.start()
        lab.submit(2)
        lost = lab.active(2)[0]
        node, name = lost["spec"]["nodeName"], lost["metadata"]["name"]
        kubernetes.write("dead-nodes", node)
        path = f"{kubernetes.ours}/pods/{name}"
        said = lambda: {each["id"]: each["site_reason"] for each in lab.controller.live()}.get(name)  # noqa: E731
        until(
            lambda: said() == "its node does not answer",
            90,
            what="the drone's state is unknown",
            every_s=0.5,
        )
        until(
            lambda: "deletionTimestamp" in kubernetes.get(path)["metadata"],
            90,
            what="the pod is to go",
            every_s=0.5,
        )
        lab.controller.ticks(4)
        assert name in {each["metadata"]["name"] for each in lab.pods()}, "it is not forced away"
        assert name in {each["id"] for each in lab.controller.live()}, "it counts"
        kubernetes.write("dead-nodes", "")
        until(lambda: lab.ended().total() >= 1, 60, what="it has ended", every_s=0.3)
        lab.active(2, 90)
        lab.over()


# ------------------------------------------------------------------------------------------------
# the API server itself


def test_the_api_server_is_away(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes, most=3) as lab:
        lab.controller.start()
        lab.submit(2)
        before = {each["metadata"]["name"] for each in lab.active(2)}
        # Both: a controller manager that stays may see the nodes' leases half a minute late, and
        # evict their pods.
        for process in ("kube-controller-manager", "kube-apiserver"):
            kubernetes.kill(process)
        try:
            lab.submit(1)
            until(
                lambda: lab.controller.json("sites")["items"][0]["note"],
                40,
                what="the note tells it",
                every_s=0.5,
            )
            time.sleep(30)
            assert {each["id"] for each in lab.controller.live()} >= before, "nothing is lost"
            assert not lab.ended().keys() - {"failed", "cancelled"}
        finally:
            kubernetes.restart("kube-apiserver")
            until(kubernetes.answers, 90, what="the API server answers")
            kubernetes.restart("kube-controller-manager")
        lab.controller.prints("sites", "reset", "cern", "--reason", "back")
        lab.active(3, 90)
        assert before <= lab.drones()
        lab.over()


def test_a_watch_is_cut_and_its_version_is_gone(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes, most=2) as lab:
        lab.controller.start()
        lab.submit(2)
        victim = lab.active(2)[0]["metadata"]["name"]
        with kubernetes.front.failing(method="GET", cut="before"):
            kubernetes.call("DELETE", f"{kubernetes.ours}/pods/{victim}", {"gracePeriodSeconds": 1})
            until(
                lambda: victim not in {each["metadata"]["name"] for each in lab.pods()},
                30,
                what="it is gone",
            )
            kubernetes.compact()
        lists = len(
            [path for _, path in kubernetes.front.calls if "/pods?" in path and "limit=" in path]
        )
        until(
            lambda: victim in {d["id"] for d in lab.controller.drones(ended=True)},
            60,
            what="it is noticed",
            every_s=0.3,
        )
        more = len(
            [path for _, path in kubernetes.front.calls if "/pods?" in path and "limit=" in path]
        )
        assert more > lists, "the pods were listed again"
        lab.active(2)
        lab.over()


@AS_POD_AND_JOB
@pytest.mark.parametrize("lost", ["drone", "secret"])
def test_the_reply_to_a_create_is_lost(kubernetes: KubernetesLab, lost: str, kind: str) -> None:
    with drill(kubernetes, most=3, options={"kind": kind}) as lab:
        lab.controller.start()
        path = f"/{kind}s$" if lost == "drone" else "/secrets$"
        with kubernetes.front.failing(method="POST", path=path, cut="after", times=3):
            lab.submit(3)
            until(lambda: len(lab.pods()) == 3, 60, what="three pods", every_s=0.3)
        lab.active(3)
        lab.controller.ticks(3)
        assert len(lab.pods()) == 3, "no duplicates"
        secrets = kubernetes.get(
            f"{kubernetes.ours}/secrets?labelSelector=gpu-drone-provisioner/drone"
        )["items"]
        assert {each["metadata"]["name"] for each in secrets} == lab.drones()
        lab.over()


def make_room(lab: Drill) -> None:
    """Have two drones ended, if there are as many as allowed and none is about to end."""
    pods = lab.pods()
    if len(pods) >= lab.site.most and not any(
        "deletionTimestamp" in each["metadata"] for each in pods
    ):
        two = sorted(drone_of(each) for each in pods)[:2]
        lab.controller.prints("drones", "kill", *two, "--reason", "room", "--yes")
        lab.controller.ticks(2)


@pytest.mark.parametrize(
    ("kind", "kills"), [("pod", 5), ("job", 3), pytest.param("pod", 20, marks=pytest.mark.matrix)]
)
@pytest.mark.timeout(1200)
def test_killed_between_create_and_answer(kubernetes: KubernetesLab, kind: str, kills: int) -> None:
    quick = {"order_deadline": "5s", "order_confirm": "5s"}
    with drill(kubernetes, most=6, timeouts=quick, options={"deadline": "4s", "kind": kind}) as lab:
        lab.controller.write()
        lab.controller.begin()
        until(
            (lab.controller.directory / "queue.db").exists,
            30,
            what="the queue is there",
            every_s=0.05,
        )
        lab.controller.kill()
        lab.submit(200)
        for number in range(kills):
            with kubernetes.front.failing(
                method="POST", path="/(pods|jobs|secrets)$", late_s=600.0
            ) as held:
                lab.controller.begin()
                until(
                    lambda held=held: held.hits or make_room(lab),
                    60,
                    what="a create is on its way",
                    every_s=0.01,
                )
                time.sleep((0.0, 0.02, 0.2)[number % 3])
                lab.controller.kill()
        lab.controller.begin()
        until(
            lambda: len(lab.controller.live()) == 6,
            120,
            what="as many as allowed live on record",
            every_s=0.3,
        )
        # A pod whose secret was never created is found after two minutes.
        until(lambda: len(lab.pods("Running")) == 6, 240, what="all six run", every_s=0.5)
        assert lab.drones("Running") <= {each["id"] for each in lab.controller.live()}
        lab.over()


# ----------------------------------------------------------------------------------------------
# what is said and shown


def test_the_api_server_accepts_the_quota_and_the_network_policy(kubernetes: KubernetesLab) -> None:
    rendered = (
        KubernetesWorld(kubernetes, "access").site().render_access(SitePolicy("cern", max_drones=4))
    )
    found = {each["kind"]: each for each in yaml.safe_load_all(rendered)}
    networks = kubernetes.ours.replace("/api/v1/", "/apis/networking.k8s.io/v1/")
    for kind, path in (
        ("ResourceQuota", f"{kubernetes.ours}/resourcequotas"),
        ("NetworkPolicy", f"{networks}/networkpolicies"),
    ):
        made = kubernetes.post(
            f"{path}?dryRun=All", {**found[kind], "metadata": {"name": "rendered"}}
        )
        assert (
            made["spec"].items()
            >= {key: value for key, value in found[kind]["spec"].items() if value}.items()
        )


async def test_gpus_by_annotation_make_the_free_capacity_unknown(kubernetes: KubernetesLab) -> None:
    async with KubernetesWorld(
        kubernetes, "kai", types={"a100": {"resource": "none"}}
    ).site() as site:
        view = await site.poll()
    assert (view.nodes, view.free, view.owner_runs) == ((), None, None)
    assert "free capacity is not known: GPUs of `a100` come from" in view.notices[0]


# ----------------------------------------------------------------------------------------------------------------
# calls


def test_a_poll_calls_nothing_but_watches(kubernetes: KubernetesLab) -> None:
    with drill(kubernetes, most=3) as lab:
        lab.controller.start()
        lab.submit(3)
        lab.active(3)
        lab.controller.ticks(2)
        kubernetes.front.calls.clear()
        lab.controller.ticks(10)
        others = [
            (method, path) for method, path in kubernetes.front.calls if "watch=1" not in path
        ]
        assert not others, others
        lab.over()


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.matrix)])
async def test_many_pods_are_listed_in_pages_and_then_only_watched(
    kubernetes: KubernetesLab, count: int
) -> None:
    world = KubernetesWorld(kubernetes, "many")
    with many_pods(kubernetes, "many", count):
        kubernetes.front.calls.clear()
        async with world.site() as site:
            view = await site.poll()
            assert len(view.drones) == count
            pages = [
                path
                for _, path in kubernetes.front.calls
                if f"{kubernetes.ours}/pods?" in path and "limit=" in path
            ]
            assert len(pages) == count // 500
            begun = lambda: any("watch=1" in path for _, path in kubernetes.front.calls)  # noqa: E731
            await asyncio.to_thread(until, begun, 20, what="the watch begins")
            kubernetes.front.calls.clear()
            for _ in range(5):
                assert len((await site.poll()).drones) == count
            assert not [path for _, path in kubernetes.front.calls if "watch=1" not in path]
