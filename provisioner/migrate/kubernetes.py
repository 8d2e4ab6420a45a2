"""Options of a Kubernetes site from TARDIS's Kubernetes adapter: address, namespace, image.

TARDIS makes a Deployment for each drone, which starts a pod that ended again. Here each drone is
one pod.
"""

from __future__ import annotations

from provisioner.migrate.sites import MachineType, SiteImport
from provisioner.migrate.source import KeyReader
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

_SCALING = ("hpa", "min_replicas", "max_replicas", "cpu_utilization")
_TOKEN = (
    "a secret: not copied. Write a kubeconfig that only the service can read, with the address and the token"
    " (docs/how-to/kubernetes.md, step 1)"
)


class KubernetesSiteImport(SiteImport):
    """Import of one Kubernetes site."""

    _namespace = ""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        image = given.take("image")
        if image.text:
            text = "HTCondor must be in it: the drone's own script starts it"
            given.converted("image", self.put(machine, image.text, "image"), text)
        else:
            place = self.put(machine, placeholder("container image with HTCondor"), "image")
            given.needed("image", place, "write the image")
        setting = given.take("namespace")
        place = f"{self.ours}.namespace"
        namespace = setting.text or "default"
        if machine is self.machines[0]:
            self._namespace = namespace
        if namespace != self._namespace:
            text = f"a site has one namespace, which is `{self._namespace}` now: make another site of this type"
            given.needed("namespace", place, text)
        elif setting:
            given.converted("namespace", place)
        given.drop({"args": "the drone's own script runs in the container"})
        given.drop(dict.fromkeys(_SCALING, "the planner decides on the number of drones"))
        given.drop_rest("TARDIS's Kubernetes adapter has no such option")

    def site_options(self, block: YamlBlock) -> None:
        place = f"{self.ours}.kubeconfig"
        block.put("kubeconfig", f"{self.name}.kubeconfig", "to be written")
        self.section.take("token")
        self.section.needed("token", place, _TOKEN)
        self.section.drop(
            {"host": f"the address is in the kubeconfig that `{self.ours}.kubeconfig` names"}
        )
        if self._namespace:
            block.put("namespace", self._namespace)
