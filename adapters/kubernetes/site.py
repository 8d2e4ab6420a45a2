"""The ``kubernetes`` site: a watch reports all of our drones, each drone is a pod of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from adapters.kubernetes import rendering
from adapters.kubernetes.api import KubernetesApi, selector
from adapters.kubernetes.cache import ResourceCache
from adapters.kubernetes.capacity import ClusterCapacity, ClusterNode, ClusterPod, cluster_node, cluster_pod
from adapters.kubernetes.pods import PodNames, job_body, pod_body, secret_body
from adapters.kubernetes.records import Record, mapping, number, text
from adapters.kubernetes.rendering import CLUSTER_RIGHTS, JOB_RIGHTS, NAMESPACE_RIGHTS
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.kubernetes.states import DELETED_BY_OTHERS, DronePod, drone_pod, end_of_deleted, waiting_job
from adapters.shared.parcel import UnfitError, sendable
from adapters.shared.printing import printable
from adapters.shared.starts import Starts, housekeeping, outcome_unknown, rejected, side_by_side
from provisioner import model
from provisioner.interfaces import AdapterError, AuditFinding, OutcomeUnknownError, RejectedError
from provisioner.model import DroneId, FaultKind, OrderOutcome, OrderResult, RemoteState

_CREATE_SUCCEEDS_S = 90.0
"""Time in which a create without an answer may still succeed: an API server ends a request after 60 s."""
_ASKED_KEPT_S = 86400.0
_UNSTARTED_S = 120.0
"""Age at which a pod that waits on its node is examined: it may have no secret."""


class KubernetesSite:
    """Drones as pods of one namespace. The state is in the API server, so a restarted controller sees the same."""

    Config = KubernetesSiteConfig

    def __init__(
        self, name: str, config: KubernetesSiteConfig, types: Sequence[model.DroneType], controller: str
    ) -> None:
        self._name, self._config, self._types = name, config, tuple(types)
        self._names = PodNames(controller, name)
        self._cluster = ClusterCapacity(config, self._types)
        self._api = KubernetesApi(config)
        ours = [("labelSelector", selector(self._names.group))]
        self._pods: ResourceCache[DronePod | None] = ResourceCache(
            self._api, lambda ns: f"/api/v1/namespaces/{ns}/pods", self._drone_pod, ours, self._deleted
        )
        self._jobs: ResourceCache[DronePod | None] = ResourceCache(
            self._api, lambda ns: f"/apis/batch/v1/namespaces/{ns}/jobs", self._waiting_job, ours
        )
        self._nodes: ResourceCache[ClusterNode] = ResourceCache(self._api, lambda _: "/api/v1/nodes", cluster_node)
        living = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")]
        self._all_pods: ResourceCache[ClusterPod] = ResourceCache(
            self._api, lambda _: "/api/v1/pods", self._cluster_pod, living
        )
        self._quotas: ResourceCache[Record] = ResourceCache(
            self._api, lambda ns: f"/api/v1/namespaces/{ns}/resourcequotas", lambda found: found
        )
        self._starts = Starts(name, _CREATE_SUCCEEDS_S)
        self._asked: dict[DroneId, float] = {}
        """Drones that this controller has asked to leave, and when (monotonic)."""
        self._ends: dict[DroneId, tuple[DronePod, model.RemoteEnd, float]] = {}
        """Ended drones with their ends and when these were seen (monotonic)."""
        self._unfinished: dict[DroneId, tuple[model.StartOrder, float]] = {}
        """Orders whose pod may exist without its secret, and when they came (monotonic)."""
        self._examined: dict[str, bool] = {}
        """Pods by uid that wait on a node: whether their secret exists."""
        self._priorities: dict[str, int] = {}
        self._polled_before = False
        self._housekeeping: asyncio.Task[None] | None = None
        self._trouble = ""

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        self._pods.begin(f"pods of site {self._name}")
        if self._config.kind == "job":
            self._jobs.begin(f"jobs of site {self._name}")
        self._quotas.begin(f"quotas of site {self._name}")
        if self._cluster.known:
            self._nodes.begin(f"nodes of site {self._name}")
            self._all_pods.begin(f"all pods of site {self._name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect, after creates under way have ended. Drones live on."""
        await self._starts.close(self._config.deadline)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.wait([self._housekeeping])
        for cache in (self._pods, self._jobs, self._quotas, self._nodes, self._all_pods):
            await cache.end()
        await self._api.__aexit__(*exc)

    # ------------------------------------------------------------------------------------------------------------ poll

    async def poll(self) -> model.SiteView:
        """Return our drones and, where our rights allow, free capacity, quota and the owner's waiting pods.

        Nothing is called: watches keep copies. Ended drones are listed for ``retain_finished``.
        """
        config = self._config
        pods = await self._pods.current(config.deadline)
        jobs = await self._jobs.current(config.deadline) if config.kind == "job" else {}
        drones: dict[DroneId, model.RemoteDrone] = {}
        live = {pod.drone_id: pod for pod in (*jobs.values(), *pods.values()) if pod is not None}
        for pod in live.values():
            if pod.end is not None and pod.drone_id not in self._ends:
                self._record_end(pod)
        for drone_id, pod in live.items():
            if drone_id not in self._ends:
                drones[drone_id] = self._placed(self._checked(pod).remote(asked=drone_id in self._asked))
        for drone_id, (pod, end, _) in self._ends.items():
            drones[drone_id] = self._placed(pod.remote(end))
        nodes, claims, load, notices = await self._capacity()
        quotas = self._quotas.items.values() if self._quotas.heard_at else ()
        view = model.SiteView(
            site=self._name,
            taken_at=self._pods.heard_at,
            drones=drones,
            free={} if load is not None and not nodes else None,
            nodes=nodes,
            claims=claims,
            owner_runs=load,
            notices=(*notices, *filter(None, [self._trouble])),
            quota=self._cluster.quota(quotas),
        )
        now = time.monotonic()
        self._asked = {d: at for d, at in self._asked.items() if d in drones or at > now - _ASKED_KEPT_S}
        # A caller that polls but once (``provisioner check``) changes nothing.
        if self._polled_before and (self._housekeeping is None or self._housekeeping.done()):
            self._housekeeping = asyncio.create_task(self._clean_up(live), name=f"housekeeping of site {self._name}")
        self._polled_before = True
        return view

    async def _capacity(
        self,
    ) -> tuple[tuple[model.Node, ...], tuple[model.OwnerDemand, ...], model.OwnerLoad | None, tuple[str, ...]]:
        if not self._cluster.known:
            return (), (), None, ()
        for cache, what in ((self._nodes, "nodes"), (self._all_pods, "pods of all namespaces")):
            if not cache.heard_at and cache.error is None:  # the first list is under way
                with contextlib.suppress(AdapterError):
                    await cache.current(self._config.deadline)
            if cache.error is not None or not cache.heard_at:
                why = f": {cache.error}" if cache.error is not None else ""
                return (), (), None, (printable(f"free capacity is not known: {what} cannot be listed{why}", 300),)
        nodes, pods = tuple(self._nodes.items.values()), tuple(self._all_pods.items.values())
        listed, priority = self._cluster.nodes(nodes, pods), self._priority()
        claims = self._cluster.claims(pods, nodes, listed, priority)
        return listed, claims, self._cluster.owner_load(pods, listed, priority), ()

    def _priority(self) -> int:
        """Return the highest priority of our drones, as the API server has set it."""
        mine = [pod.priority for pod in self._pods.items.values() if pod is not None]
        return max(mine, default=max(self._priorities.values(), default=0))

    def _drone_pod(self, found: Record) -> DronePod | None:
        return drone_pod(found, self._names)

    def _waiting_job(self, found: Record) -> DronePod | None:
        return waiting_job(found, self._names)

    def _cluster_pod(self, found: Record) -> ClusterPod:
        return cluster_pod(found, self._names.drone_id(found) is not None)

    def _placed(self, drone: model.RemoteDrone) -> model.RemoteDrone:
        if not self._nodes.heard_at:
            return drone
        return replace(drone, node=self._cluster.node_name(drone.node, drone.type))

    def _checked(self, pod: DronePod) -> DronePod:
        """Return a pod; one whose secret does not exist will never start."""
        if self._examined.get(pod.uid, True):
            return pod
        why = "its secret does not exist: the controller was interrupted while it created the drone"
        return replace(pod, blocked=FaultKind.DRONE, final=True, reason=why)

    def _deleted(self, pod: DronePod | None) -> None:
        if pod is not None and pod.drone_id not in self._ends:
            self._record_end(pod, deleted=True)

    def _record_end(self, pod: DronePod, *, deleted: bool = False) -> None:
        asked = pod.drone_id in self._asked
        if asked or (deleted and pod.end is None):
            end = end_of_deleted(pod, asked=asked, now=time.time())
        else:
            assert pod.end is not None
            end = pod.end
        self._ends[pod.drone_id] = pod, end, time.monotonic()
        self._examined.pop(pod.uid, None)

    # ---------------------------------------------------------------------------------------------------- housekeeping

    async def _clean_up(self, live: Mapping[DroneId, DronePod]) -> None:
        """Run the tasks that a poll leaves, each by itself: a failure does not stop the others."""
        now, keep_s = time.monotonic(), self._config.retain_finished
        over = {d: pod for d, (pod, _, since) in self._ends.items() if now - since > keep_s}
        tasks: list[Awaitable[None]] = [self._delete(pod) for d, pod in over.items() if d in live]
        if self._config.kind == "job":  # API servers before 1.29 would start another pod for it
            lost = [pod for d, (pod, end, _) in self._ends.items() if d in live and end.message == DELETED_BY_OTHERS]
            tasks += [self._delete(pod) for pod in lost if pod.drone_id not in over]
        self._unfinished = {d: each for d, each in self._unfinished.items() if now - each[1] < _CREATE_SUCCEEDS_S}
        tasks += [self._finish(order) for d, (order, _) in self._unfinished.items() if d in live]
        tasks += [self._examine(pod) for pod in live.values() if self._is_suspect(pod)]
        for drone_id in over.keys() - live.keys():
            del self._ends[drone_id]
        self._trouble = await housekeeping(tasks, self._config.parallel)

    async def _delete(self, pod: DronePod) -> None:
        """Delete what an ended drone has left; the cluster deletes its secret."""
        await self._api.order("DELETE", await self._path(pod.drone_id), _delete_options(pod.uid), accepted=(404, 409))

    def _is_suspect(self, pod: DronePod) -> bool:
        """Return whether a pod waits on its node for so long that its secret may be missing."""
        waits = pod.state is RemoteState.PENDING and pod.node and pod.uid not in self._examined
        return bool(waits) and self._pods.heard_at - pod.created_at > _UNSTARTED_S

    async def _examine(self, pod: DronePod) -> None:
        await self._starts.settled([pod.drone_id])
        namespace = await self._api.namespace()
        path = f"/api/v1/namespaces/{namespace}/secrets/{pod.drone_id}"
        self._examined[pod.uid] = await self._api.read(path, lacking=(404,)) is not None

    # ------------------------------------------------------------------------------------------- for the administrator

    async def audit(self, policy: model.SitePolicy) -> Sequence[AuditFinding]:
        """Return the rights that our account lacks, and what the API server would refuse of a drone of each type."""
        namespace = await self._api.namespace()
        found: list[AuditFinding] = []
        wanted: list[tuple[str, str, Mapping[str, Sequence[str]]]]
        wanted = [(namespace, "", NAMESPACE_RIGHTS), ("", "", CLUSTER_RIGHTS)]
        if self._config.kind == "job":
            wanted.append((namespace, "batch", JOB_RIGHTS))
        for where, group, rights in wanted:
            for resource, verb in ((name, verb) for name, verbs in rights.items() for verb in verbs):
                if not await self._may(where, group, resource, verb):
                    scope = f"in namespace {where}" if where else "in all namespaces: free capacity is not known"
                    message = f"our account may not {verb} {resource} {scope} (`provisioner render kubernetes`)"
                    found.append(AuditFinding("rights", resource, message))
        for kind in self._types:
            bootstrap = model.Bootstrap(b"", {}, {})
            order = model.StartOrder(DroneId(f"check-{kind.name}"), kind, 60.0, 30.0, bootstrap)
            body = pod_body(order, self._config, self._names)
            try:
                path = f"/api/v1/namespaces/{namespace}/pods"
                await self._api.order("POST", path, body, [("dryRun", "All")], accepted=(409,))
            except AdapterError as error:
                found.append(AuditFinding(f"type {kind.name}", "pod", printable(str(error), 400)))
        return found

    async def _may(self, namespace: str, group: str, resource: str, verb: str) -> bool:
        name, _, part = resource.partition("/")
        wanted = {"namespace": namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
        version = "authorization.k8s.io/v1"
        review = {"apiVersion": version, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": wanted}}
        reply = await self._api.order("POST", f"/apis/{version}/selfsubjectaccessreviews", review)
        return mapping(reply.body.get("status")).get("allowed") is True

    def render_blocking(self, policy: model.SitePolicy) -> str:
        """Return placeholder pods that keep room for free GPUs."""
        return rendering.render_blocking(self._config, self._types, policy)

    def render_access(self, policy: model.SitePolicy) -> str:
        """Return the namespace, rights, quota and priority of the drones."""
        return rendering.render_access(self._config, self._types, policy)

    # ---------------------------------------------------------------------------------------------------------- orders

    async def start(self, orders: Sequence[model.StartOrder]) -> Sequence[OrderResult]:
        """Create a pod and its secret for each drone that has none yet."""
        drone_ids = [order.drone_id for order in orders]
        return await self._starts.run(drone_ids, lambda given_up: self._start(orders, given_up))

    async def _start(self, orders: Sequence[model.StartOrder], given_up: asyncio.Event) -> Sequence[OrderResult]:
        for name in {
            self._config.options(order.type.name).priority_class for order in orders
        } - self._priorities.keys():
            if (value := await self._priority_of(name)) is not None:
                self._priorities[name] = value
        return await side_by_side([self._create(order, given_up) for order in orders], self._config.parallel)

    async def _priority_of(self, name: str) -> int | None:
        with contextlib.suppress(AdapterError):  # the pods tell it as well, once there are some
            if name and (found := await self._api.read(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")):
                return int(number(found, "value"))
        return None if name else 0

    async def _create(self, order: model.StartOrder, given_up: asyncio.Event) -> OrderResult:
        """Create one drone. Never raises: another may have got through."""
        if given_up.is_set():
            return rejected(order.drone_id, FaultKind.DOWN, "not asked for: there was no time left")
        try:
            assert order.bootstrap is not None
            sendable(order.bootstrap)
            return OrderResult(order.drone_id, OrderOutcome.OK, await self._created(order))
        except UnfitError as error:
            return rejected(order.drone_id, FaultKind.CONFIG, str(error))
        except OutcomeUnknownError as error:
            self._starts.without_answer([order.drone_id])
            return outcome_unknown(order.drone_id, str(error))
        except AdapterError as error:
            self._unfinished.pop(order.drone_id, None)
            return rejected(order.drone_id, error.kind, str(error))

    async def _created(self, order: model.StartOrder) -> str:
        """Create the pod, or the Job, and then its secret, which a waiting pod is started with. Return the uid."""
        namespace, path = await self._api.namespace(), await self._path(order.drone_id)
        body = pod_body(order, self._config, self._names)
        if self._config.kind == "job":
            # A Job is accepted whatever its pod is, so the pod is tried first.
            await self._api.order("POST", f"/api/v1/namespaces/{namespace}/pods", body, [("dryRun", "All")])
            body = job_body(body)
        secret_body(order, self._config, self._names, body)  # raises before anything is created
        self._unfinished[order.drone_id] = order, time.monotonic()
        try:
            reply = await self._api.order("POST", self._collection(namespace), body, accepted=(409,))
            found = reply.body if reply.status != 409 else None
        except OutcomeUnknownError as error:
            if (found := await self._api.read(path, lacking=(404,))) is None:
                raise error from None
        if found is None:  # an earlier order got through
            found = await self._api.read(path, lacking=(404,)) or {}
            if self._names.drone_id(found) != order.drone_id:
                message = f"there is another object of the name {order.drone_id}, or it is just being deleted"
                raise RejectedError(message, FaultKind.CAPACITY)
        uid = text(mapping(found.get("metadata")), "uid")
        try:
            await self._give_secret(order, uid)
        except OutcomeUnknownError:
            raise
        except AdapterError:
            # A pod without its secret never starts.
            await self._api.order("DELETE", path, _delete_options(uid), accepted=(404, 409))
            raise
        return uid

    async def _give_secret(self, order: model.StartOrder, uid: str) -> None:
        job = self._config.kind == "job"
        owner = {"apiVersion": "batch/v1", "kind": "Job"} if job else {"apiVersion": "v1", "kind": "Pod"}
        found = {**owner, "metadata": {"name": order.drone_id, "uid": uid}}
        body = secret_body(order, self._config, self._names, found)
        path = f"/api/v1/namespaces/{await self._api.namespace()}/secrets"
        await self._api.order("POST", path, body, accepted=(409,))
        self._unfinished.pop(order.drone_id, None)

    async def _finish(self, order: model.StartOrder) -> None:
        """Create the secret of a pod that was created although no reply came."""
        found = await self._api.read(await self._path(order.drone_id), lacking=(404,)) or {}
        if self._names.drone_id(found) == order.drone_id:
            await self._give_secret(order, text(mapping(found.get("metadata")), "uid"))

    async def stop(self, orders: Sequence[model.StopOrder]) -> Sequence[OrderResult]:
        """Delete the pods of drones, with their grace, or with ``kill`` at once."""
        drone_ids = {order.drone_id for order in orders}
        await self._starts.settled(drone_ids)
        return await side_by_side([self._stop(order) for order in orders], self._config.parallel)

    async def _stop(self, order: model.StopOrder) -> OrderResult:
        """Stop one drone. An error is its result: the other drones are stopped all the same."""
        drone_id = order.drone_id
        ended = drone_id in self._ends
        try:
            path = await self._path(drone_id)
            found = await self._api.read(path, lacking=(404,))
            if found is None or self._names.drone_id(found) != drone_id:
                return OrderResult(drone_id, OrderOutcome.OK, "")
            if not ended:  # before the API server is called
                self._asked[drone_id] = time.monotonic()
            uid = text(mapping(found.get("metadata")), "uid")
            await self._api.order("DELETE", path, _delete_options(uid, kill=order.kill), accepted=(404, 409))
        except OutcomeUnknownError as error:
            return outcome_unknown(drone_id, str(error))
        except AdapterError as error:
            self._asked.pop(drone_id, None)
            return rejected(drone_id, error.kind, str(error))
        return OrderResult(drone_id, OrderOutcome.OK, uid)

    def _collection(self, namespace: str) -> str:
        if self._config.kind == "job":
            return f"/apis/batch/v1/namespaces/{namespace}/jobs"
        return f"/api/v1/namespaces/{namespace}/pods"

    async def _path(self, name: str) -> str:
        return f"{self._collection(await self._api.namespace())}/{name}"


def _delete_options(uid: str, *, kill: bool = False) -> dict[str, Any]:
    """Return DeleteOptions (meta/v1). Never without any grace: the API server would forget a pod that still runs."""
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": uid},
    }
    return {**body, "gracePeriodSeconds": 1} if kill else body
