"""Files for accounting systems: attributes that jobs keep, and the configuration of AUDITOR's plug-ins.

Sources: auditor-htcondor-collector and auditor-apel-plugin 0.11.2. The collector prints an expression
for each value by ``condor_history -af``; it cuts numbers to integers and drops a record that lacks one,
so each expression has a value for every job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from adapters.htcondor import htcondor2
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.history import RUNS_IN_SLOTS
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.shared.printing import printable
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType
from provisioner.values import frozen

MACHINE_ATTRIBUTES = (
    "SiteName",
    "DroneId",
    "DroneType",
    "DroneShares",
    "DroneSharing",
    "DroneJobMilli",
    "GPUs_DeviceName",
    "ApelSpecs",
    "ApelScaling",
    "GpuSpecs",
)
"""Attributes of the slot that jobs keep, as ``MachineAttr<NAME>0`` of their last run."""
RECORD_PREFIX = "htcondor"
APEL_BENCHMARK = "HEPscore23"
_RUN_ENDED = "(CompletionDate > 0 ? CompletionDate : EnteredCurrentStatus)"
_RUN_BEGAN = "max({JobCurrentStartExecutingDate ?: 0, JobCurrentStartDate ?: 0})"
_RUN_S = f"({_RUN_ENDED} - {_RUN_BEGAN})"
# of a drone of an older release, or no drone of ours: the shares of the GPU, or all of it
_HELD_MILLI = "(MachineAttrDroneJobMilli0 ?: (1000 * (GPUsProvisioned ?: 0) / (MachineAttrDroneShares0 ?: 1)))"
RECORDED_JOBS = f"({RUNS_IN_SLOTS}) && (JobStatus == 4 || member(LastJobStatus ?: 0, {{2, 6, 7}}))"
"""A job that was removed while it waited has no end of its last run."""


@frozen
class Component:
    """Component of a record: a whole number of one unit."""

    name: str
    expression: str
    meaning: str
    scores: str = ""
    """Attribute of the slot with the benchmarks of the unit; empty: none."""


COMPONENTS = (
    Component("Cores", "CpusProvisioned ?: (RequestCpus ?: 1)", "CPU cores held", "ApelSpecs"),
    Component(
        "TotalCPU",
        "int((RemoteUserCpu ?: 0) + (RemoteSysCpu ?: 0))",
        "CPU time used by the last run, seconds",
    ),
    Component("PeakMemoryMiB", "int(MemoryUsage ?: 0)", "peak of memory, MiB"),
    Component("GPUs", "int(GPUsProvisioned ?: 0)", "GPUs, or shares of GPUs, that the job got"),
    Component(
        "GPUMilli",
        f"int({_HELD_MILLI})",
        "GPUs held, thousandths: 1000 is a whole GPU, 250 a quarter",
        "GpuSpecs",
    ),
    Component(
        "GPUHeldMilliSeconds", f"int({_HELD_MILLI} * {_RUN_S})", "GPU time held, GPU-milliseconds"
    ),
    Component(
        "GPUUsedMilliSeconds",
        f"int(1000 * (GPUsAverageUsage ?: 0) * {_RUN_S})",
        "GPU time in which the GPU computed for the job, GPU-milliseconds; see meta `gpu_use`",
    ),
    Component(
        "GPUEnergyJ",
        "int(GPUsEnergyUsage ?: 0)",
        "energy of the GPUs, joules; see meta `gpu_energy`",
    ),
    Component("GPUPeakMiB", "int(GPUsMemoryUsage ?: 0)", "peak of VRAM, MiB"),
)


def files(config: HTCondorConfig, types: Sequence[DroneType]) -> Mapping[str, str]:
    """Return the files of ``provisioner render accounting`` by name."""
    return {
        "60-provisioner-accounting.conf": pool_lines(),
        "auditor-htcondor-collector.yml": _collector(config, types),
        "auditor-apel-plugin.yml": _apel_plugin(types),
        "components.md": _components(_metas(config)),
    }


def pool_lines() -> str:
    """Return lines for the configuration of the pool's schedds."""
    names = " ".join(MACHINE_ATTRIBUTES)
    return (
        "# Jobs keep these attributes of the drone that they ran in. For each schedd, then condor_reconfig.\n"
        f"SYSTEM_JOB_MACHINE_ATTRS = $(SYSTEM_JOB_MACHINE_ATTRS) {names}\n"
    )


def _metas(config: HTCondorConfig) -> Mapping[str, tuple[str, str]]:
    """Return expression and meaning of each meta value of a record."""
    return {
        "user": ("Owner", "account of the job"),
        "group": (config.owner_attribute, "accounting group"),
        "voms": (config.vo_expression, "VO, by the option `vo` of the overlay"),
        "fqan": ("x509UserProxyFirstFQAN", "FQAN of the proxy, if the job has one"),
        "headnode": ('split(GlobalJobId, "#")[0]', "schedd"),
        "drone": ("MachineAttrDroneId0", "drone of the last run"),
        "drone_type": ("MachineAttrDroneType0", "drone type"),
        "gpu_model": ("MachineAttrGPUs_DeviceName0", "GPU model, as the driver names it"),
        "gpu_sharing": ("MachineAttrDroneSharing0", "exclusive, time-sliced, mps or mig"),
        "gpu_use": (_known("GPUsAverageUsage"), "measured, or unknown: GPUUsedMilliSeconds is 0"),
        "gpu_energy": (_known("GPUsEnergyUsage"), "measured, or unknown: GPUEnergyJ is 0"),
    }


def _known(attribute: str) -> str:
    return f'ifThenElse(isUndefined({attribute}), "unknown", "measured")'


def _collector(config: HTCondorConfig, types: Sequence[DroneType]) -> str:
    schedds = json.dumps(list(config.schedds) or ["SCHEDD"])
    scores = {
        "ApelSpecs": _benchmarks(types, "core", (APEL_BENCHMARK,)),
        "GpuSpecs": _benchmarks(types, "gpu"),
    }
    lines = [
        "# auditor-htcondor-collector 0.11. Put in place: the AUDITOR server, the state file, the schedds.",
        "addr: auditor.example.org",
        "port: 8000",
        "timeout: 10",
        "state_db: /var/lib/auditor/provisioner-state.db",
        f"record_prefix: {RECORD_PREFIX}",
        "interval: 900",
        f"pool: {json.dumps(config.collector)}",
        f"schedd_names: {schedds}",
        "query_type: exec  # the keys are expressions, which a shell would take apart",
        f"constraint: {json.dumps(RECORDED_JOBS)}",
        "tls_config: {use_tls: false}",
        "meta:",
        '  site: [{key: MachineAttrSiteName0, matches: "^(.+)$"}]',
    ]
    lines += [
        f"  {name}: {{key: {json.dumps(expression)}}}"
        for name, (expression, _) in _metas(config).items()
    ]
    lines += ["components:"]
    for each in COMPONENTS:
        lines.append(f"  - name: {each.name}")
        lines.append(f"    key: {json.dumps(each.expression)}")
        if names := scores.get(each.scores, ()):
            lines.append("    scores:")
            lines += [
                f"      - {{name: {name}, key: MachineAttr{each.scores}0.{name}}}" for name in names
            ]
    return "\n".join(lines) + "\n"


def _benchmarks(types: Iterable[DroneType], per: str, more: Sequence[str] = ()) -> list[str]:
    names = [each.name for kind in types for each in kind.benchmark if each.per == per]
    return sorted({*names, *more})


def _apel_plugin(types: Iterable[DroneType]) -> str:
    reported: dict[str, set[str]] = {}
    for kind in types:
        reported.setdefault(kind.glidein_site or kind.site, set()).add(kind.site)
    sites = "".join(
        f"    {json.dumps(name)}: {json.dumps(sorted(ours))}\n"
        for name, ours in sorted(reported.items())
    )
    score = f"{{name: {APEL_BENCHMARK}, component_name: Cores}}"
    return f"""\
# auditor-apel-plugin 0.11. Put in place: the AUDITOR server, AMS and the host certificate. The names of
# sites_to_report are those of GOCDB. APEL has no record of GPUs: this reports the cores of GPU jobs.
!Config
plugin:
  log_level: INFO
  time_json_path: /var/lib/auditor/apel-time.json
  report_interval: 86400
site:
  sites_to_report:
{sites}  benchmark_type: {APEL_BENCHMARK}
messaging:
  host: msg.argo.grnet.gr
  port: 443
  client_cert: /etc/grid-security/hostcert.pem
  client_key: /etc/grid-security/hostkey.pem
  project: accounting
  topic: gLite-APEL
  timeout: 10
  retry: 3
auditor:
  ip: auditor.example.org
  port: 8000
  timeout: 10
  site_meta_field: site
  use_tls: False
summary_fields:
  mandatory:
    VO: !MetaField {{name: voms}}
    Processors: !ComponentField {{name: Cores}}
    SubmitHost: !MetaField {{name: headnode}}
    CpuDuration: !ComponentField {{name: TotalCPU}}
    NormalisedCpuDuration: !NormalisedField
      base_value: !ComponentField {{name: TotalCPU}}
      score: !ScoreField {score}
    NormalisedWallDuration: !NormalisedField
      score: !ScoreField {score}
  optional:
    GlobalUserName: !MetaField {{name: user}}
    VOGroup: !MetaField {{name: fqan, regex: "/[^/=]+(/[^/=]+)*(?=/Role=)"}}
    VORole: !MetaField {{name: fqan, regex: "Role=[^/]+"}}
"""


def _components(metas: Mapping[str, tuple[str, str]]) -> str:
    """Return the table of names that is proposed as the convention for GPUs."""
    rows = [f"| `{each.name}` | {each.meaning} | `{each.expression}` |" for each in COMPONENTS]
    rows += [
        f"| meta `{name}` | {meaning} | `{expression}` |"
        for name, (expression, meaning) in metas.items()
    ]
    return "\n".join(["| name | meaning | from the job ad |", "|---|---|---|", *rows, ""])


class MachineAttributesReader:
    """Server of ``findings`` in a worker process: schedds that lack the lines of the pool."""

    def __init__(self, collector: str, schedds: Sequence[str]) -> None:
        self._collector = Collectors(collector)
        self._schedds = schedds

    def findings(self) -> list[AuditFinding]:
        found = []
        for name, ad in self._collector.schedds().items():
            if self._schedds and name not in self._schedds:
                continue
            shown = printable(name, 80)
            with self._collector.errors.translated(f"schedd {shown}"):
                value = htcondor2.RemoteParam(ad).get("SYSTEM_JOB_MACHINE_ATTRS", "")
            words = str(value).replace(",", " ").lower().split()
            missing = [each for each in MACHINE_ATTRIBUTES if each.lower() not in words]
            if missing:
                message = (
                    f"jobs do not keep {', '.join(missing)} of their drones, which accounting needs. Add the "
                    "lines of `provisioner render accounting` to the configuration of the schedd"
                )
                found.append(AuditFinding(shown, "accounting", message))
        return found
