"""The ``kubernetes`` site: a watch reports all of our drones, each drone is a pod of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from adapters.kubernetes import rendering
from adapters.kubernetes.api import KubernetesApi
from adapters.kubernetes.cache import ResourceCache
from adapters.kubernetes.capacity import (
    ClusterCapacity,
    ClusterNode,
    ClusterPod,
    cluster_node,
    cluster_pod,
)
from adapters.kubernetes.pods import PodNames, job_body, pod_body, secret_body
from adapters.kubernetes.rendering import CLUSTER_RIGHTS, JOB_RIGHTS, NAMESPACE_RIGHTS
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.kubernetes.states import DronePod, drone_pod, end_of, waiting_job
from adapters.shared.housekeeping import Housekeeping, side_by_side
from adapters.shared.json_records import Record, mapping, text
from adapters.shared.parcel import sendable
from adapters.shared.printing import printable
from adapters.shared.starts import Starts, done, failed, outcome_unknown
from provisioner import model
from provisioner.drone import GPU_CHECK_EXITS
from provisioner.interfaces import (
    AdapterError,
    AuditFinding,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import (
    DroneId,
    FaultKind,
    OrderResult,
    OrderResults,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

T = TypeVar("T")

_CREATE_SUCCEEDS_S = 90.0
"""Time in which a create without an answer may still succeed: an API server ends a request after 60 s."""
_ASKED_KEPT_S = 86400.0
_UNSTARTED_S = 120.0
"""Age at which a pod that waits on its node is examined: it may have no secret."""


class KubernetesSite:
    """Drones as pods of one namespace. The state is in the API server, so a restarted controller sees the same."""

    Config = KubernetesSiteConfig
    runs_servers = False
    """Clients and the balancer do not reach ports of its drones."""

    def __init__(
        self,
        name: str,
        config: KubernetesSiteConfig,
        types: Sequence[model.DroneType],
        controller: str,
    ) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._names = PodNames(controller, name)
        self._cluster = ClusterCapacity(config, self._types)
        self._api = KubernetesApi(config)
        self._kind = "jobs" if config.kind == "job" else "pods"
        names = self._names
        ours = [
            ("labelSelector", ",".join(f"{name}={value}" for name, value in names.group.items()))
        ]
        living = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")]
        self._pods: ResourceCache[DronePod | None] = ResourceCache(
            self._api, "pods", lambda found: drone_pod(found, names), ours, self._note_end
        )
        self._jobs: ResourceCache[DronePod | None] = ResourceCache(
            self._api, "jobs", lambda found: waiting_job(found, names), ours
        )
        self._quotas: ResourceCache[Record] = ResourceCache(
            self._api, "resourcequotas", lambda found: found
        )
        self._nodes: ResourceCache[ClusterNode] = ResourceCache(
            self._api, "/api/v1/nodes", cluster_node
        )
        self._all_pods: ResourceCache[ClusterPod] = ResourceCache(
            self._api,
            "/api/v1/pods",
            lambda found: cluster_pod(found, names.drone_id(found) is not None),
            living,
        )
        self._caches: list[ResourceCache[Any]] = [self._pods, self._quotas]
        self._caches += [self._jobs] if self._kind == "jobs" else []
        self._caches += [self._nodes, self._all_pods] if not self._cluster.unknown else []
        self._starts = Starts(name, _CREATE_SUCCEEDS_S)
        self._asked: dict[DroneId, float] = {}
        """Drones that this controller has asked to leave, and when (monotonic)."""
        self._ends: dict[DroneId, tuple[DronePod, model.RemoteEnd, float]] = {}
        """Ended drones with their ends and when these were seen (monotonic)."""
        self._examined: dict[str, bool] = {}
        """Pods by uid that wait on a node: whether their secret exists."""
        self._priority: int | None = None
        """Highest priority of our pods, as the API server has set it; None before there are any."""
        self._housekeeping = Housekeeping(name, config.parallel)

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        for cache in self._caches:
            cache.begin(self._name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect, after creates under way have ended. Drones keep running."""
        await self._starts.close(self._config.deadline)
        await self._housekeeping.close()
        for cache in self._caches:
            await cache.end()
        await self._api.__aexit__(*exc)

    # ------------------------------------------------------------------------------------------------------------
    # poll

    async def poll(self) -> SiteView:
        """Return our drones and, where our rights allow, free capacity, quota and the owner's waiting pods.

        Nothing is called: watches keep copies. Ended drones are listed for ``retain_finished``.
        """
        config = self._config
        pods = await self._pods.current(config.deadline)
        jobs = await self._jobs.current(config.deadline) if config.kind == "job" else {}
        live = {
            pod.drone.drone_id: pod for pod in (*jobs.values(), *pods.values()) if pod is not None
        }
        shown = []
        for drone_id, pod in live.items():
            if pod.drone.end is not None:
                self._note_end(pod)
            if drone_id not in self._ends:
                shown.append(self._checked(pod.remote(asked=drone_id in self._asked)))
        shown += [pod.remote(end) for pod, end, _ in self._ends.values()]
        drones = {
            each.drone_id: replace(each, node=self._cluster.node_name(each.node, each.type))
            for each in shown
        }
        self._starts.there(live)
        self._priority = max(
            (pod.priority for pod in pods.values() if pod is not None), default=self._priority
        )
        notices = list(self._housekeeping.notices)
        quotas = await self._listed(self._quotas, "the quota is not known", notices)
        view = SiteView(
            site=self._name,
            taken_at=self._pods.heard_at,
            drones=drones,
            quota=self._cluster.quota((quotas or {}).values()),
        )
        view = replace(await self._with_capacity(view, pods, notices), notices=tuple(notices))
        now = time.monotonic()
        self._asked = {
            d: at for d, at in self._asked.items() if d in drones or at > now - _ASKED_KEPT_S
        }
        self._housekeeping.begin(lambda: self._clean_up(live))
        return view

    async def _listed(
        self, cache: ResourceCache[T], unknown: str, notices: list[str]
    ) -> Mapping[str, T] | None:
        """Return a copy; None, and a notice, without the right to it.

        Raises UnavailableError if it does not come: unknown capacity would limit no start, and keep
        no owner's room.
        """
        try:
            return await cache.current(self._config.deadline)
        except UnavailableError as error:
            raise UnavailableError(f"{unknown}: {error}") from None
        except AdapterError as error:
            notices.append(printable(f"{unknown}: {error}", 300))
            return None

    async def _with_capacity(
        self, view: SiteView, own: Mapping[str, DronePod | None], notices: list[str]
    ) -> SiteView:
        """Return a view with nodes, if they are known, and with what the owner waits for and uses."""
        if self._cluster.unknown:
            notices.append(self._cluster.unknown)
            return view
        unknown = "free capacity is not known: {} cannot be listed"
        all_nodes = await self._listed(self._nodes, unknown.format("nodes"), notices)
        if all_nodes is None:
            return view
        all_pods = await self._listed(
            self._all_pods, unknown.format("pods of all namespaces"), notices
        )
        if all_pods is None:
            return view
        # Our pods as the view has them: a copy that is a moment older would show their GPUs as free
        # once more.
        ours = {
            key: pod.in_cluster
            for key, pod in own.items()
            if pod is not None and pod.in_cluster is not None
        }
        bad = self._bad_nodes()
        notices += [
            f"node {name} is avoided: drones failed on it within `retain_finished`" for name in bad
        ]
        nodes = tuple(
            replace(each, open=each.open and each.name not in bad) for each in all_nodes.values()
        )
        pods = tuple({**all_pods, **ours}.values())
        listed = self._cluster.nodes(nodes, pods)
        priority = self._priority
        unfit = self._cluster.unfit(nodes, listed)
        view = replace(view, nodes=listed, free=None if listed else {}, unfit=unfit)
        if priority is None:  # whose pods come first is not known
            return view
        claims = self._cluster.claims(pods, nodes, listed, priority)
        return replace(
            view, claims=claims, owner_runs=self._cluster.owner_load(pods, listed, priority)
        )

    def _bad_nodes(self) -> Sequence[str]:
        """Return the nodes whose fault ended two drones or more, of those that are still reported."""
        failed = Counter(
            pod.drone.node
            for pod, end, _ in self._ends.values()
            if end.fault is FaultKind.NODE or end.exit_code in GPU_CHECK_EXITS
        )
        return [node for node, times in failed.items() if node and times > 1]

    def _checked(self, drone: RemoteDrone) -> RemoteDrone:
        """Return a drone; one whose secret does not exist will never start."""
        if self._examined.get(drone.remote_id, True):
            return drone
        why = "its secret does not exist: the controller was interrupted while it created the drone"
        return replace(drone, blocked=FaultKind.DRONE, final=True, reason=why)

    def _note_end(self, pod: DronePod | None) -> None:
        """Record the end of a drone that has ended, or whose pod is gone."""
        if pod is not None and (drone_id := pod.drone.drone_id) not in self._ends:
            end = end_of(pod, asked=drone_id in self._asked, now=time.time())
            self._ends[drone_id] = pod, end, time.monotonic()
            self._examined.pop(pod.drone.remote_id, None)

    # ----------------------------------------------------------------------------------------------------
    # housekeeping

    def _clean_up(self, live: Mapping[DroneId, DronePod]) -> Sequence[Awaitable[None]]:
        """Return the tasks that a poll leaves."""
        now = time.monotonic()
        keep_s = self._config.retain_finished
        over = {d: pod for d, (pod, _, since) in self._ends.items() if now - since > keep_s}
        done = [pod for d, pod in over.items() if d in live]
        if self._config.kind == "job":  # API servers before 1.29 would start another pod for it
            lost = {
                d: pod
                for d, (pod, _, _) in self._ends.items()
                if d in live and pod.drone.end is None
            }
            done += [pod for d, pod in lost.items() if d not in over]
        tasks: list[Awaitable[None]] = [self._delete(pod.path, pod.drone.remote_id) for pod in done]
        tasks += [self._examine(pod.drone) for pod in live.values() if self._is_suspect(pod)]
        for drone_id in over.keys() - live.keys():
            del self._ends[drone_id]
        return tasks

    async def _delete(self, path: str, uid: str = "", *, kill: bool = False) -> None:
        """Delete a pod or a Job; the cluster deletes its secret. Raises as an order.

        Never without any grace: the API server would forget a pod that still runs.
        """
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            options["preconditions"] = {"uid": uid}
        if kill:
            options["gracePeriodSeconds"] = 1
        await self._api.order("DELETE", path, options, accepted=("NotFound", "Conflict"))

    def _is_suspect(self, pod: DronePod) -> bool:
        """Return whether a pod waits on its node for so long that its secret may be missing."""
        drone = pod.drone
        waits = (
            drone.state is RemoteState.PENDING
            and drone.node
            and drone.remote_id not in self._examined
        )
        return bool(waits) and self._pods.heard_at - pod.created_at > _UNSTARTED_S

    async def _examine(self, drone: RemoteDrone) -> None:
        await self._starts.settled([drone.drone_id])
        secret = await self._api.read(f"secrets/{drone.drone_id}", optional=True)
        self._examined[drone.remote_id] = secret is not None

    # -------------------------------------------------------------------------------------------
    # for the administrator

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return the rights that our account lacks, and what the API server would refuse of a drone of each type."""
        namespace = await self._api.namespace()
        found: list[AuditFinding] = []
        jobs = JOB_RIGHTS if self._config.kind == "job" else {}
        wanted = (
            (namespace, "", NAMESPACE_RIGHTS),
            ("", "", CLUSTER_RIGHTS),
            (namespace, "batch", jobs),
        )
        for where, group, rights in wanted:
            scope = (
                f"in namespace {where}"
                if where
                else "in all namespaces, so free capacity is not known"
            )
            remedy = "apply `provisioner render kubernetes`" + (
                ", or change `namespace`" if where else ""
            )
            for resource, verbs in rights.items():
                if lacking := [
                    verb for verb in verbs if not await self._may(where, group, resource, verb)
                ]:
                    message = (
                        f"the account may not {', '.join(lacking)} {resource} {scope}: {remedy}"
                    )
                    found.append(AuditFinding("rights", resource, message))
        for kind in self._types:
            order = StartOrder(DroneId("check"), kind, 60.0, 30.0)
            try:
                await self._try(
                    pod_body(order, self._config, self._names), ("fieldValidation", "Strict")
                )
            except AdapterError as error:
                found.append(AuditFinding(f"type {kind.name}", "pod", printable(str(error), 400)))
        return found

    async def _try(self, body: Record, *query: tuple[str, str]) -> None:
        """Have the API server check a pod as if it was created. Raises UnavailableError or what refuses it."""
        try:
            await self._api.order(
                "POST", "pods", body, [("dryRun", "All"), *query], accepted=("AlreadyExists",)
            )
        except OutcomeUnknownError as error:  # nothing was to be done
            raise UnavailableError(str(error)) from None

    async def _may(self, namespace: str, group: str, resource: str, verb: str) -> bool:
        wanted = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
        version = "authorization.k8s.io/v1"
        review = {
            "apiVersion": version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        reply = await self._api.order("POST", f"/apis/{version}/selfsubjectaccessreviews", review)
        return mapping(reply.body, "status").get("allowed") is True

    def render_blocking(self, policy: SitePolicy) -> str:
        """Return placeholder pods that keep room for free GPUs."""
        return rendering.render_blocking(self._config, self._types, policy)

    def render_access(self, policy: SitePolicy) -> str:
        """Return the namespace, rights, quota and priority of the drones."""
        return rendering.render_access(self._config, self._types, policy)

    # ----------------------------------------------------------------------------------------------------------
    # orders

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        """Create a pod and its secret for each drone that has none yet."""

        async def create(given_up: asyncio.Event) -> OrderResults:
            return await side_by_side(
                [self._create(order, given_up) for order in orders], self._config.parallel
            )

        return await self._starts.run([order.drone_id for order in orders], create)

    async def _create(self, order: StartOrder, given_up: asyncio.Event) -> OrderResult:
        """Create one drone. Never raises: another may have got through."""
        drone_id = order.drone_id
        try:
            if given_up.is_set():
                raise UnavailableError("not asked for: there was no time left")
            assert order.bootstrap is not None
            sendable(order.bootstrap)
            return done(drone_id, await self._created(order))
        except AdapterError as error:
            if isinstance(error, OutcomeUnknownError):
                self._starts.without_answer([drone_id])
            if self._starts.may_come(drone_id):  # perhaps of an earlier order
                return outcome_unknown(drone_id, str(error))
            return failed(drone_id, error)

    async def _created(self, order: StartOrder) -> str:
        """Create the pod, or the Job, and then its secret, which a waiting pod is started with. Return the uid.

        Raises OutcomeUnknownError if a pod may be left, and UnfitError or another AdapterError if
        none is.
        """
        path = f"{self._kind}/{order.drone_id}"
        body = pod_body(order, self._config, self._names, self._bad_nodes())
        if self._config.kind == "job":
            await self._try(body)  # a Job is accepted whatever its pod is
            body = job_body(body)
        secret_body(order, self._config, self._names, "")  # raises before anything is created
        found: Record = {}
        refusal: AdapterError | None = OutcomeUnknownError("the reply to the create has no object")
        try:
            reply = await self._api.order("POST", self._kind, body, accepted=("AlreadyExists",))
            found = reply.body
            if reply.status == 409:  # an earlier order got through
                message = f"there is another object of the name {order.drone_id}, or it is just being deleted"
                found = {}
                refusal = RejectedError(message, FaultKind.CAPACITY)
        except OutcomeUnknownError as error:
            refusal = error
        try:
            found = found or await self._api.read(path, optional=True) or {}
            uid = text(found, "metadata", "uid")
            if self._names.drone_id(found) == order.drone_id:
                refusal = await self._give_secret(order, uid)
        except AdapterError as error:  # there may be a pod now
            raise OutcomeUnknownError(str(error)) from None
        if refusal is not None:
            raise refusal
        self._starts.there([order.drone_id])
        (self._jobs if self._kind == "jobs" else self._pods).add(found)
        return uid

    async def _give_secret(self, order: StartOrder, uid: str) -> AdapterError | None:
        """Create the secret. If it is refused, delete its owner, which would never start, and return the error."""
        body = secret_body(order, self._config, self._names, uid)
        try:
            await self._api.order("POST", "secrets", body, accepted=("AlreadyExists",))
        except OutcomeUnknownError:
            raise
        except AdapterError as error:
            await self._delete(f"{self._kind}/{order.drone_id}", uid, kill=True)
            return error
        return None

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        """Delete the pods of drones, with their grace, or with ``kill`` at once."""
        await self._starts.settled({order.drone_id for order in orders})
        return await side_by_side([self._stop(order) for order in orders], self._config.parallel)

    def _running(self, drone_id: DroneId) -> Iterable[str]:
        """Return the paths of a drone's pods that run, and of their Jobs.

        Pods of a Job are deleted by name as well: with the Job alone each would have its full
        grace. A drone may also be of the other kind, from before `kind` was changed.
        """
        found: dict[str, None] = {}
        for pod in self._pods.items.values():
            if pod is not None and pod.drone.drone_id == drone_id and pod.drone.end is None:
                found |= {pod.path: None, f"pods/{pod.drone.slot}": None}
        return found

    async def _stop(self, order: StopOrder) -> OrderResult:
        """Stop one drone. An error is its result: the other drones are stopped all the same."""
        drone_id = order.drone_id
        uid = ""
        path = f"{self._kind}/{drone_id}"
        is_first = drone_id not in self._asked and drone_id not in self._ends
        try:
            found = await self._api.read(path, optional=True)
            if found is not None and self._names.drone_id(found) != drone_id:
                found = None
            others = [each for each in self._running(drone_id) if each != path]
            if (found or others) and is_first:  # before the API server is called
                self._asked[drone_id] = time.monotonic()
            if found:
                uid = text(found, "metadata", "uid")
                await self._delete(path, uid, kill=order.kill)
                is_first = False  # a Job's pod will end by our request whatever follows
            elif not others and self._starts.may_come(drone_id):
                return outcome_unknown(drone_id, "an earlier create of it may still get through")
            for other in others:
                await self._delete(other, kill=order.kill)
        except AdapterError as error:
            if is_first and not isinstance(error, OutcomeUnknownError):
                self._asked.pop(drone_id, None)
            return failed(drone_id, error)
        return done(drone_id, uid)
