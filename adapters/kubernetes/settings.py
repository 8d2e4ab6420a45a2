"""Options of a Kubernetes site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from adapters.kubernetes.credentials import access_by, read_kubeconfig
from adapters.shared.json_records import Record, mapping, mappings, text
from adapters.shared.parcel import check_environment
from provisioner.config.credentials import pem_credential, token_credential
from provisioner.config.messages import type_findings
from provisioner.config.models import ConfigSection, mistake_at
from provisioner.config.units import ConfigPath, Duration, PositiveDuration
from provisioner.interfaces import AdapterError, OptionFinding
from provisioner.model import Credential, DroneType

_RESERVED = re.compile(
    r"PROVISIONER_.*|DRONE_(?!USER$).*|_CONDOR_.*|CONDOR_(?!PREFIX$).*|CUDA_VISIBLE_DEVICES",
    re.IGNORECASE,
)
_DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_DNS_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_RESOURCE = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_COUNT = re.compile(r"[0-9]{1,9}([numkMGTPE]|[KMGTPE]i)?")
OWN_PREFIX = "gpu-drone-provisioner/"
"""Labels that begin so are ours."""
GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
"""Names of whole GPUs in the vendors' device plugins."""

_OURS = {
    *(
        "containers",
        "initContainers",
        "restartPolicy",
        "terminationGracePeriodSeconds",
        "activeDeadlineSeconds",
    ),
    *("priorityClassName", "nodeSelector", "automountServiceAccountToken", "hostPID", "hostIPC"),
    *("name", "image", "command", "args", "resources", "terminationMessagePath"),
    *("runAsUser", "runAsNonRoot", "privileged", "allowPrivilegeEscalation"),
}
"""Fields of a pod, its container and their security contexts that the adapter sets: drones never run as root."""
_LISTS = ("volumes", "volumeMounts", "env", "tolerations", "resourceClaims")
"""Fields that the adapter reads or adds to."""


def _names(what: str, found: Record) -> Record:
    for key, value in found.items():
        if not _RESOURCE.fullmatch(key):
            raise mistake_at(key, f"`{key[:80]}` is no name of a {what}: write `example.org/name`")
        if key.startswith(OWN_PREFIX):
            raise mistake_at(key, f"`{key[:80]}` is set by the provisioner: remove it")
        if what == "resource" and not _COUNT.fullmatch(str(value)):
            raise mistake_at(
                key, f"`{key[:80]}`: write a whole number or a quantity such as `8000` or `20Gi`"
            )
    return found


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    """Validate fields of a pod or a container: none that is ours, and none that could not be merged with ours."""
    for key, value in found.items():
        if key in _LISTS and not (isinstance(value, list) and len(mappings(value)) == len(value)):
            raise mistake_at(
                key, f"`{key}` must be a list of mappings: write one, or remove `{key}`"
            )
    variables = [text(each, "name") for each in mappings(found, "env")]
    ours = [name for name in variables if _RESERVED.fullmatch(name)]
    for key in [*ours, *sorted(_OURS & {*found, *mapping(found, "securityContext")})]:
        raise mistake_at(key, f"`{key}` is set by the provisioner: remove it, or use its option")
    return found


_Labels = Annotated[dict[str, str], AfterValidator(partial(_names, "label"))]
_Annotations = Annotated[dict[str, str], AfterValidator(partial(_names, "annotation"))]
_Resources = Annotated[dict[str, str | int], AfterValidator(partial(_names, "resource"))]
_Fields = Annotated[dict[str, Any], AfterValidator(_fields)]


class PodOptions(ConfigSection):
    """Options of pods: for all of them, or for one drone type instead."""

    image: str = Field(
        "", pattern=r"^$|^[^\s]{1,512}$", examples=["registry.example.org/drone:25.14"]
    )
    """Container image with HTCondor, or with what `CONDOR_PREFIX` in `env` leads to."""
    priority_class: str = Field("", pattern=rf"^$|{_DNS_NAME}", examples=["gpu-drones"])
    """PriorityClass. Pods of a higher priority are the owner's, and come first. Default: the cluster's."""
    queue: str = Field("", pattern=rf"^$|{_DNS_LABEL}", examples=["drones"])
    """LocalQueue of Kueue that admits the pods. Default: none."""
    node_selector: _Labels = Field({}, examples=[{"pool": "gpu"}])
    """Labels that a node must have."""
    labels: _Labels = Field({}, examples=[{"cost-centre": "wlcg"}])
    """Further labels of each pod."""
    annotations: _Annotations = Field({}, examples=[{"gpu-fraction": "0.25"}])
    """Annotations of each pod, as for the scheduler of KAI."""
    pod: _Fields = Field({}, examples=[{"tolerations": [{"key": "gpu", "operator": "Exists"}]}])
    """Further fields of the pod's `spec`: tolerations, `imagePullSecrets`, `schedulerName`, volumes, ..."""
    container: _Fields = Field(
        {}, examples=[{"volumeMounts": [{"name": "sw", "mountPath": "/sw"}]}]
    )
    """Further fields of its container: `volumeMounts`, `imagePullPolicy`, ..."""


class KubernetesTypeConfig(PodOptions):
    """Options of one drone type."""

    resource: str = Field(
        "", pattern=rf"^$|^{_RESOURCE.pattern}$", examples=["nvidia.com/mig-1g.10gb"]
    )
    """Resource of which a drone gets one for each GPU; `none` if a scheduler assigns GPUs by annotation (KAI).
    Default: the vendor's whole GPU."""
    products: list[str] = Field([], max_length=32, examples=[["NVIDIA-A100-SXM4-40GB"]])
    """Values of the node label `nvidia.com/gpu.product` that fit: any one of them. Default: all."""
    resources: _Resources = Field({}, examples=[{"nvidia.com/gpumem": 8000}])
    """Further resources of the container, as those of HAMi."""
    claim_template: str = Field("", pattern=rf"^$|{_DNS_NAME}", examples=["one-mig-slice"])
    """ResourceClaimTemplate of the namespace (DRA) that the GPUs come from, instead of `resource`."""
    enforced: Literal["", "kernel", "mps", "none"] = Field("", examples=["none"])
    """Limit of GPU memory where the site shares GPUs: `none` for time-slicing and KAI, `mps` for MPS with a
    memory limit. Default: a whole GPU or MIG instance."""


class KubernetesSiteConfig(PodOptions):
    """Options of the ``kubernetes`` site."""

    kubeconfig: ConfigPath | None = Field(None, examples=["drones.kubeconfig"])
    """Kubeconfig file. Default: `$KUBECONFIG`, else the service account of the controller's own
    pod, else ~/.kube/config."""
    context: str = Field("", max_length=255, examples=["drones@cluster"])
    """Context of the kubeconfig. Default: its current one."""
    namespace: str = Field("", pattern=rf"^$|{_DNS_LABEL}", examples=["gpu-drones"])
    """Namespace of the drones. Default: the context's, or that of the controller's pod."""
    types: dict[str, KubernetesTypeConfig] = Field({})
    """Resources, and what else is special, of each drone type, by its name."""
    env: Annotated[
        dict[str, str], AfterValidator(partial(check_environment, reserved=_RESERVED))
    ] = Field({}, examples=[{"CONDOR_PREFIX": "/opt/condor"}])
    """Environment variables for each drone. `CONDOR_PREFIX` here is used instead of the overlay's `condor_prefix`."""
    run_as: int = Field(1000, ge=1, le=2**31 - 1)
    """User and group id of the drones. Drones never run as root."""
    kind: Literal["pod", "job"] = "pod"
    """`job`: a Job with one pod for each drone, where the site's policy wants Jobs."""
    retain_finished: Duration = Field(600.0, ge=1.0)
    """Time for which an ended drone is reported, and its pod kept."""
    deadline: PositiveDuration = 15.0
    """Longest time for one call of the API server."""
    parallel: int = Field(8, ge=1, le=64)
    """Orders to the API server at a time."""

    @cached_property
    def _by_type(self) -> Mapping[str, KubernetesTypeConfig]:
        """Options by drone type; under the empty name those of all types that have none of their own."""
        site = KubernetesTypeConfig.model_validate(
            {name: getattr(self, name) for name in PodOptions.model_fields}
        )
        found = {"": site}
        for kind, special in self.types.items():
            own = {name: getattr(special, name) for name in special.model_fields_set}
            both = {
                name: {**getattr(site, name), **value}
                for name, value in own.items()
                if isinstance(value, dict)
            }
            found[kind] = site.model_copy(update={**own, **both})
        return found

    def options(self, kind: str) -> KubernetesTypeConfig:
        """Return the options of pods of a drone type: its own, else the site's. Mappings of both count."""
        return self._by_type.get(kind, self._by_type[""])

    def resource(self, kind: DroneType) -> str:
        """Return the resource that GPUs of a drone type are; empty if they are not counted, or it has none."""
        options = self.options(kind.name)
        if not kind.gpu_milli or options.claim_template or options.resource == "none":
            return ""
        return options.resource or GPU_RESOURCES[kind.vendor]

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield what does not agree with the site's drone types: path in the site file, and message."""
        shares = "a pod gets whole units of its resource: write `gpus: 1` and the share's `vram`"
        yield from type_findings(types, self.types, shares)
        for kind in types:
            options = self.options(kind.name)
            place = ("options", "types", kind.name)
            if not options.image:
                yield ("options",), f"drone type `{kind.name}` has no image: write `image: NAME`"
            if options.claim_template and options.resource:
                yield (
                    (*place, "claim_template"),
                    "`resource` and `claim_template` exclude each other: remove one",
                )
            if not options.enforced and (
                options.resource == "none" or options.resource.endswith(".shared")
            ):
                message = f"GPUs of `{options.resource}` are shared: write `enforced: none`, or `mps` if it limits VRAM"
                yield (*place, "resource"), message
            for name in sorted(
                {"cpu", "memory", "ephemeral-storage", self.resource(kind)}
                & options.resources.keys()
            ):
                yield (*place, "resources", name), f"`{name}` is set by the drone type: remove it"
            # any one of them counts
            if options.products and "nodeSelectorTerms" in str(options.pod.get("affinity")):
                yield (
                    (*place, "products"),
                    "`products` and `nodeSelectorTerms` exclude each other: remove one",
                )

    def credentials(self) -> Iterator[Credential]:
        """Yield token, certificate and authorities of the kubeconfig; a plugin renews its own."""
        known = Credential("kubeconfig", str(self.kubeconfig or "the default kubeconfig"))
        try:
            found = read_kubeconfig(self)
            access_by(found)
            texts = {
                key: found.pem(key).encode()
                for key in ("client-certificate", "certificate-authority")
            }
            token = found.file("tokenFile") or found.get("token", str)
        except AdapterError as error:
            yield replace(known, problem=str(error), doubtful=True)
            return
        if token:
            yield token_credential(
                replace(known, name="kubeconfig.token", source=found.where), token, is_jwt=False
            )
        for key, content in texts.items():
            if content:
                each = replace(known, name=f"kubeconfig.{key}", source=found.where)
                yield pem_credential(each, content, last=key == "certificate-authority")

    def host_warnings(self) -> Iterator[OptionFinding]:
        """Yield what would not work on this host: path below the options, and message."""
        try:
            access_by(read_kubeconfig(self))
        except AdapterError as error:
            yield ("kubeconfig",) if self.kubeconfig else (), str(error)
