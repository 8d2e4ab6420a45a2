"""Configurations of the kinds that TARDIS's documentation shows, and what is done with them in these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioner.config import Problem
from provisioner.config.strict_yaml import YamlDocument
from provisioner.migrate import ImportFinding, ImportOutcome, ImportResult, ImportSource, convert

HTCONDOR = """\
BatchSystem:
  adapter: HTCondor
  max_age: 1
  ratios:
    cpu: Real(TotalSlotCpus-Cpus)/TotalSlotCpus
  options:
    pool: pool.example.org
Sites:
  - name: TOPAS
    adapter: HTCondor
    quota: 42
TOPAS:
  max_age: 1
  MachineTypes: [one_gpu, whole]
  MachineTypeConfiguration:
    one_gpu:
      jdl: gpu.jdl
      SubmitOptions:
        pool: condor.example.org
        name: grid@submit.example.org
        spool:
    whole: {jdl: whole.jdl}
  MachineMetaData:
    one_gpu: {Cores: 8, Memory: 19.5, Disk: 50}
    whole: {Cores: 42, Memory: 256, Disk: 840}
"""
GPU_JDL = """\
# a pilot with a GPU
executable = start.sh
transfer_input_files = setup.sh
output = logs/$$(cluster).out
error = logs/$$(cluster).err
environment = "${Environment}"
request_cpus = $Cores
request_memory = ${Memory}
request_gpus = 1
gpus_minimum_memory = 30000
accounting_group = tardis
requirements = TARGET.GpuClass == "a100" && \\
               TARGET.Cpus >= ${Cores}
+IsBackfill = True
MY.Pilot = "${Uuid}"
periodic_remove = NumJobStarts > 1
rank = $$(kflops)
queue 1
"""
WHOLE_JDL = """\
executable = start.sh
arguments = ${Arguments}
accounting_group = tardis
+IsBackfill = True
max_retries = 3
x509userproxy = /home/tardis/proxy
queue
"""
JDLS = {"gpu.jdl": GPU_JDL, "whole.jdl": WHOLE_JDL}

SLURM = """\
BatchSystem: {adapter: HTCondor, max_age: 1, ratios: {}, options: {pool: "pool.example.org:9620"}}
Sites:
  - {name: hpc, adapter: Slurm, quota: 100, drone_minimum_lifetime: 3600, drone_heartbeat_interval: 10}
hpc:
  executor: !SSHExecutor
    host: login.example.org
    username: billy
    client_keys:
      - /opt/keys/one
      - /opt/keys/two
  StatusUpdate: 2
  MachineTypes:
    - one_day
    - twelve_hours
  MachineTypeConfiguration:
    one_day:
      Walltime: '1440'
      Partition: normal
      StartupCommand: 'pilot.sh'
      SubmitOptions:
        short: {C: intel, J: pilot}
        long:
          gres: "gpu:a100:2,mic:1"
          exclusive:
    twelve_hours:
      Walltime: 12:00:00
      Partition: normal
      StartupCommand: pilot.sh
    six_hours:
      Walltime: '360'
  MachineMetaData:
    one_day: {Cores: 20, Memory: 62, Disk: 480}
    twelve_hours: {Cores: 20, Memory: 62, Disk: 480}
    six_hours: {Cores: 20, Memory: 62, Disk: 480}
"""

CLOUDS = """\
Plugins:
  SqliteRegistry: {db_file: drones.db}
  TelegrafMonitoring:
    host: telegraf.example.org
    port: 8092
  Auditor: {host: auditor.example.org, port: 8000}
BatchSystem:
  adapter: Slurm
  max_age: 1
  options: {long: {partition: express}}
  executor: !TardisSSHExecutor {host: pool.example.org, username: ops, password: gee-heim}
Sites:
  - {name: Woohoo, adapter: OpenStack, quota: 10}
  - {name: Hexa, adapter: CloudStack, quota: -1}
  - {name: Kube-site, adapter: Kubernetes, quota: 10}
  - {name: moab-site, adapter: Moab, quota: 2000}
Woohoo:
  auth_url: https://ops:gee-heim@cloud.example.org:13000/v3
  username: woohoo
  password: gee-heim
  MachineTypes: [m1.xlarge]
  MachineTypeConfiguration:
    m1.xlarge:
      flavorRef: 5
      networks: [{uuid: fe0317c6}]
      imageRef: bc613271
      user_data: cloudinit/woohoo.ini
  MachineMetaData:
    m1.xlarge: {Cores: 8, Memory: 16, Disk: 160}
Hexa:
  api_key: gee-heim
  api_secret: gee-heim
  end_point: https://ops:gee-heim@api.example.org/compute
  MachineTypes: [Micro, micro]
  MachineTypeConfiguration:
    Micro: {templateid: 909ce5b7, securitygroupnames: "WN,NFS"}
    micro: {templateid: 909ce5b7}
  MachineMetaData:
    Micro: {Cores: 1, Memory: 2, Disk: 30}
    micro: {Cores: 2, Memory: 4, Disk: 30}
Kube-site:
  host: https://127.0.0.1:443
  token: gee-heim
  MachineTypes: [example]
  MachineTypeConfiguration:
    example: {namespace: default, image: "busybox:1.26.1", args: [sleep, "3600"], hpa: False}
  MachineMetaData:
    example: {Cores: 2, Memory: 16}
moab-site:
  executor: !DupingSSHExecutor
    host: login.example.org
    username: clown
    wrapper: /bin/bash
    known_hosts:
    mfa_config:
      - {prompt: "Enter 2FA Token:", totp: "GEE-HEIM"}
  StatusUpdate: 2
  MachineTypes: [d2.large]
  MachineTypeConfiguration:
    d2.large: {Walltime: '02:00:00:00', NodeType: '1:ppn=20', StartupCommand: startVM.py}
  MachineMetaData:
    d2.large: {Cores: 20, Memory: 120, Disk: 196}
"""

OPENSTACK = """\
BatchSystem: {adapter: HTCondor, max_age: 1, ratios: {}, options: {pool: "pool.example.org:9620"}}
Sites:
  - {name: Woohoo, adapter: OpenStack, quota: 40}
  - {name: Vault, adapter: OpenStack, quota: 8, drone_minimum_lifetime: 3600}
Woohoo:
  auth_url: https://ops:gee-heim@cloud.example.org:13000/v3
  username: woohoo
  password: gee-heim
  project_name: WooHoo
  user_domain_name: Default
  project_domain_name: "12"
  MachineTypes: [m1.xlarge, gpu_1]
  MachineTypeConfiguration:
    m1.xlarge:
      flavorRef: 5
      imageRef: bc613271-6a54-48ca-9222-47e009dc0c29
      networks:
        - uuid: fe0317c6-0bed-488b-9108-13726656a0ea
      security_groups: [{name: drones}, {name: squid}]
      key_name: MG
      user_data: cloudinit/woohoo.ini
      adminPass: gee-heim
      metadata: {token: gee-heim}
    gpu_1:
      flavorRef: https://cloud.example.org:8774/v2.1/flavors/gpu.v100s.1
      imageRef: gpu-drone
      networks: [{uuid: fe0317c6-0bed-488b-9108-13726656a0ea}]
      security_groups: [{name: drones}]
      key_name: MG
      availability_zone: gpus
      config_drive: true
      min_count: 2
      hypervisor_hostname: gk-gpu-01
    old: {flavorRef: 3}
  MachineMetaData:
    m1.xlarge: {Cores: 8, Memory: 16, Disk: 160}
    gpu_1: {Cores: 16, Memory: 60, Disk: 80}
Vault:
  auth_url: https://vault.example.org:5000
  application_credential_id: 0123456789abcdef0123456789abcdef
  application_credential_secret: gee-heim
  MachineTypes: [volume]
  MachineTypeConfiguration:
    volume:
      flavorRef: m1.small
      block_device_mapping_v2:
        - boot_index: 0
          uuid: gpu-drone
          source_type: image
          destination_type: volume
          volume_size: 40
          volume_type: ssd
          delete_on_termination: true
      networks: auto
  MachineMetaData:
    volume: {Cores: 4, Memory: 8, Disk: 30}
"""

FAKE = """\
pipeline:
  - !LinearController
    low_utilisation: 0.90
    rate: 1
  - !Limiter {minimum: 1, maximum: 80}
  - !Logger {name: changes}
  - __type__: tardis.resources.poolfactory.create_composite_pool
logging:
  version: 1
tardis:
  BatchSystem:
    adapter: FakeBatchSystem
    allocation: 1.0
    utilisation: !TardisPeriodicValue {period: 3600, amplitude: 0.5}
    machine_status: Available
  Sites:
    - {name: Fake, adapter: FakeSite, quota: 8000}
  Fake:
    api_response_delay: !TardisRandomGauss {mu: 0.1, sigma: 0.01}
    MachineTypes: [m1.infinity]
    MachineTypeConfiguration:
      m1.infinity:
    MachineMetaData:
      m1.infinity: {Cores: 8, Memory: 16, Disk: 160}
"""

COBALD = """\
pipeline:
  - !LinearController {low_utilisation: 0.9, high_allocation: 0.9, rate: 1}
  - !Standardiser {maximum: 85, granularity: 1, backlog: 10}
  - !Buffer {window: 60}
  - !TardisPoolFactory {configuration: tardis.yml}
logging: {version: 1}
monitor: !TardisRestApi {host: 127.0.0.1, port: 1234}
"""

ALL = {"htcondor": HTCONDOR, "slurm": SLURM, "clouds": CLOUDS, "openstack": OPENSTACK, "fake": FAKE}


def read(
    text: str,
    cobald: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    installed: Sequence[str] = ("htcondor", "local"),
) -> tuple[ImportResult | None, list[Problem]]:
    """What comes of ``text``, and what forbids that anything does."""
    documents = [YamlDocument("tardis.yml"), YamlDocument("cobald.yml")]
    made = convert(
        ImportSource(documents[0], text),
        None if cobald is None else ImportSource(documents[1], cobald),
        installed=installed,
        read_file=(JDLS if files is None else files).get,
    )
    return made, [problem for document in documents for problem in document.problems]


def converted(text: str, cobald: str | None = None, **more: object) -> ImportResult:
    made, problems = read(text, cobald, **more)  # type: ignore[arg-type]
    assert problems == []
    assert made is not None
    return made


def about(made: ImportResult, key: str) -> list[tuple[ImportOutcome, int, str]]:
    """Findings about a key of theirs: verdict, line and key of ours."""
    return [(f.verdict, f.line, f.ours) for f in made.findings if f.key == key]


def finding(made: ImportResult, key: str) -> ImportFinding:
    (one,) = [f for f in made.findings if f.key == key]
    return one


def written(made: ImportResult, directory: Path) -> Path:
    """The files in ``directory``; the path of the controller file."""
    for name, text in made.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory / "provisioner.yaml"
