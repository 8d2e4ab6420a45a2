"""All of nova in this process: conductor, scheduler, a compute for each host; ``build`` returns the API."""

from __future__ import annotations

import importlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

_started: list[Any] = []


def _import_early() -> None:
    """Import the slowest modules while the other services start. The configuration first: some of
    it is read once, when a class is made."""
    from nova import config

    file = f"{os.environ['OS_NOVA_CONFIG_DIR']}/nova.conf"
    config.parse_args([], default_config_files=[file], configure_db=False, init_rpc=False)
    for name in (
        "api.openstack.compute",
        "compute.manager",
        "conductor.manager",
        "scheduler.manager",
    ):
        importlib.import_module(f"nova.{name}")
    config.CONF.clear()  # the API reads it again


def _wait_for_others() -> None:
    """nova logs in as it starts, and asks placement."""
    for url in os.environ["OPENSTACK_FIRST"].split():
        while True:
            try:
                urllib.request.urlopen(url, timeout=5)
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                time.sleep(0.05)


def build(hosts: Sequence[str]) -> Any:
    import nova.monkey_patch

    nova.monkey_patch.patch(backend="threading")
    # nova finds drivers below nova.virt only.
    import lab_driver
    import nova.virt

    sys.modules["nova.virt.lab"] = nova.virt.lab = lab_driver

    _import_early()
    _wait_for_others()
    # Reads the configuration, opens RPC, builds the API.
    import os_vif
    from nova import context, objects, service
    from nova.compute import rpcapi as compute
    from nova.conductor import rpcapi as conductor
    from nova.objects import host_mapping
    from nova.scheduler import rpcapi as scheduler
    from nova.wsgi import osapi_compute

    objects.register_all()
    os_vif.initialize()
    objects.Service.enable_min_version_cache()

    def start(**what: Any) -> None:
        each = service.Service.create(**what)
        each.start()
        _started.append(each)

    start(binary="nova-conductor", topic=conductor.RPC_TOPIC)
    start(binary="nova-scheduler", topic=scheduler.RPC_TOPIC)
    alternative = {"topic_alt": compute.RPC_TOPIC_ALT} if hasattr(compute, "RPC_TOPIC_ALT") else {}
    for host in hosts:
        start(host=host, binary="nova-compute", topic=compute.RPC_TOPIC, **alternative)
    host_mapping.discover_hosts(context.get_admin_context())
    for each in _started:  # alive now, not after the first report_interval
        each.servicegroup_api._driver._report_state(each)
    return osapi_compute.application
