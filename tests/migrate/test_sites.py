"""What becomes of TARDIS's sites: the file that each turns into, and what is told of every key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from adapters.htcondor.site import settings
from adapters.slurm.settings import REFUSED_SBATCH_OPTIONS as REFUSED_BY_SLURM_SITE
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.migrate import ImportOutcome, ImportResult
from provisioner.migrate.htcondor import RESERVED
from provisioner.migrate.machine_types import slurm_walltime_s
from tests.migrate.examples import ALL, CLOUDS, EXPECTED, FAKE, HTCONDOR, SLURM, about, converted, finding, read


def site(made: ImportResult, name: str) -> Any:
    return yaml.safe_load(made.files[f"site_configs/{name}.yaml"])


# ------------------------------------------------------------------------------------------------------------ HTCondor


def test_an_htcondor_site_keeps_its_types_its_place_and_its_submit_commands() -> None:
    assert converted(HTCONDOR).files["site_configs/topas.yaml"] == (EXPECTED / "topas.yaml").read_text()


def test_every_command_of_a_template_is_told_of_at_its_own_line() -> None:
    found = [(f.line, f.key, f.verdict) for f in converted(HTCONDOR).findings if f.file == "gpu.jdl"]
    taken, changed, dropped = ImportOutcome.CONVERTED, ImportOutcome.CHANGED, ImportOutcome.DROPPED
    assert found == [
        (2, "executable", changed),
        (3, "transfer_input_files", changed),
        (4, "output", taken),
        (5, "error", taken),
        (6, "environment", changed),
        (7, "request_cpus", taken),
        (8, "request_memory", taken),
        (9, "request_gpus", taken),
        (10, "gpus_minimum_memory", taken),
        (11, "accounting_group", taken),
        (12, "requirements", taken),
        (14, "+IsBackfill", taken),
        (15, "MY.Pilot", dropped),
        (16, "periodic_remove", dropped),
        (17, "rank", taken),
        (18, "queue", taken),
    ]


def test_a_template_that_is_not_there_needs_you_and_says_where() -> None:
    made = converted(HTCONDOR, files={})
    key = "TOPAS.MachineTypeConfiguration.whole.jdl"
    assert about(made, key) == [(ImportOutcome.NEEDED, 22, "site_configs/topas.yaml: options.types.whole.requirements")]
    assert "whole.jdl cannot be read here" in finding(made, key).text
    assert site(made, "topas")["types"]["one-gpu"]["gpus"] == 0
    marked = site(made, "topas")["options"]["types"]["whole"]["requirements"]
    assert marked == "<requirements of whole.jdl, or remove the line>"


def test_what_a_template_says_that_is_no_command_needs_you() -> None:
    template = "include : x\nenvironment @=end\nexecutable = /bin/rm\n@end\nrank = 1\n"
    made = converted(HTCONDOR, files={"gpu.jdl": template})
    assert [(f.line, f.key, f.verdict) for f in made.findings if f.file == "gpu.jdl"] == [
        (1, "include : x", ImportOutcome.NEEDED),
        (2, "environment @=end", ImportOutcome.NEEDED),
        (5, "rank", ImportOutcome.CONVERTED),
    ]


TAKES = """\
requirements = TARGET.Pool == "${Foo}"
accounting_group = ${Group}
+Color = "red"
"""


def test_what_a_template_leaves_to_an_unknown_variable_needs_you_where_it_is_written() -> None:
    made = converted(HTCONDOR, files={"gpu.jdl": TAKES, "whole.jdl": '+Color = "red"\n'})
    options = site(made, "topas")["options"]
    assert options["types"]["one-gpu"] == {
        "submit": {"accounting_group": "<accounting_group without $Group, which is not known here>", "+Color": '"red"'},
        "requirements": "<requirements without $Foo, which is not known here>",
    }
    at = "site_configs/topas.yaml: options.types.one-gpu"
    assert about(made, "requirements") == [(ImportOutcome.NEEDED, 1, f"{at}.requirements")]
    assert about(made, "accounting_group") == [(ImportOutcome.NEEDED, 2, f"{at}.submit.accounting_group")]
    assert about(made, "+Color")[0] == (ImportOutcome.CONVERTED, 3, f"{at}.submit.+Color")


def test_blocking_and_owner_are_named_once_and_stand_there_as_remarks() -> None:
    made = converted(HTCONDOR)
    named = [f for f in made.findings if "blocking" in f.ours]
    assert [(f.verdict, f.ours) for f in named] == [
        (ImportOutcome.CHANGED, "site_configs/topas.yaml: blocking, owner, options.owner")
    ]
    text = made.files["site_configs/topas.yaml"]
    lines = [line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in text.splitlines()[4:]]
    whole = yaml.safe_load("\n".join(lines).replace("gpu_model:", "# ").replace("driver:", "# "))
    assert whole["blocking"] == [{"nodes": ["*"], "cpus": 8, "memory": "20 GiB"}]
    assert whole["owner"] == {"preempt_proactively": True}
    assert whole["options"]["owner"]["schedds"] == ["submit.example.org"]


def test_the_site_takes_every_command_that_is_taken_over() -> None:
    """And none that the site sets itself is: it would refuse the file."""
    assert set(settings.RESERVED_COMMANDS) - {"executable", "cmd", "transfer_input_files"} <= set(RESERVED)
    options = site(converted(HTCONDOR), "topas")["options"]
    options["types"]["one-gpu"].pop("requirements")
    made = settings.HTCondorSiteConfig.model_validate(options)
    taken = {"accounting_group": "tardis", "+IsBackfill": "True", "rank": "$(kflops)"}
    assert made.types["one-gpu"].submit == taken


def test_a_type_that_goes_to_another_schedd_needs_you() -> None:
    made = converted(HTCONDOR.replace("whole: {jdl: whole.jdl}", "whole: {jdl: whole.jdl, SubmitOptions: {name: b}}"))
    assert site(made, "topas")["options"]["schedd"] == "grid@submit.example.org"
    key = "TOPAS.MachineTypeConfiguration.whole.SubmitOptions.name"
    assert about(made, key) == [(ImportOutcome.NEEDED, 22, "site_configs/topas.yaml: options.schedd")]


SSH = "host: login.example.org, username: ops, client_keys: /k, port: 2222"


@pytest.mark.parametrize(
    ("executor", "ssh", "told"),
    [
        (f"!TardisSSHExecutor {{{SSH}, keepalive: 3}}", {"key": "/k"}, {"keepalive": ImportOutcome.DROPPED}),
        (
            f"!DupingSSHExecutor {{{SSH}, wrapper: sh, known_hosts: , mfa_config: [{{totp: GEE-HEIM}}]}}",
            {"key": "/k", "totp": "<{file: PATH} with the totp>", "forced_command": "stdin"},
            {"mfa_config": ImportOutcome.NEEDED, "known_hosts": ImportOutcome.CHANGED},
        ),
    ],
)
def test_a_site_that_is_reached_over_ssh_is_so_here_too(
    executor: str, ssh: dict[str, str], told: dict[str, ImportOutcome]
) -> None:
    made = converted(HTCONDOR.replace("TOPAS:\n", f"TOPAS:\n  executor: {executor}\n"))
    login = {"host": "login.example.org", "port": 2222, "user": "ops"}
    assert site(made, "topas")["options"]["tools"] == {"ssh": login | ssh}
    assert {key: about(made, f"TOPAS.executor.{key}")[0][0] for key in told} == told
    assert "GEE-HEIM" not in "".join(made.files.values())


# ------------------------------------------------------------------------------------------------------------- quotas


@pytest.mark.parametrize(("quota", "most"), [("100", 5), ("119", 5), ("12", 1)])
def test_a_quota_of_cores_is_a_number_of_drones(quota: str, most: int) -> None:
    made = converted(SLURM.replace("quota: 100", f"quota: {quota}"))
    assert site(made, "hpc")["limits"] == {"max_drones": most}
    told = finding(made, "Sites[0].quota")
    assert (told.verdict, told.line) == (ImportOutcome.CHANGED, 3)
    assert f"{quota} cores are at most {most} drone" in told.text


@pytest.mark.parametrize("quota", ["-1", ".inf"])
def test_no_limit_there_is_the_default_here_and_that_is_said(quota: str) -> None:
    made = converted(SLURM.replace("quota: 100", f"quota: {quota}"))
    assert site(made, "hpc")["limits"] == {"max_drones": 10}
    assert finding(made, "Sites[0].quota").verdict is ImportOutcome.CHANGED


@pytest.mark.parametrize("quota", ["0", "many", "[1]", "!env QUOTA", "{}"])
def test_a_quota_that_is_none_needs_you(quota: str) -> None:
    made = converted(SLURM.replace("quota: 100", f"quota: {quota}"))
    assert site(made, "hpc")["limits"] == {"max_drones": "<most drones at one time>"}
    assert finding(made, "Sites[0].quota").verdict is ImportOutcome.NEEDED


def test_types_of_different_sizes_have_a_cap_each() -> None:
    made = converted(HTCONDOR)
    assert {k: t["max_drones"] for k, t in site(made, "topas")["types"].items()} == {"one-gpu": 5, "whole": 1}
    assert "a mix of them may have more cores" in finding(made, "Sites[0].quota").text


# --------------------------------------------------------------------------------------------------------------- Slurm

OWN_KEYS = ("partition", "account", "qos", "reservation", "constraint")
GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}


def test_a_slurm_site_keeps_partition_walltime_gpus_and_the_way_there() -> None:
    made = converted(SLURM.replace("12:00:00", "'12:00:00'"))
    whole = site(made, "hpc")
    assert whole["adapter"] == "slurm"
    assert {k: (t["gpus"], t["cpus"], t["walltime"]) for k, t in whole["types"].items()} == {
        "one-day": (2, 20, "1d"),
        "twelve-hours": (0, 20, "12h"),
    }
    assert whole["options"] == {
        "transport": "tools",
        "tools": {"ssh": {"host": "login.example.org", "user": "billy", "key": "/opt/keys/one"}},
        "types": {
            "one-day": {
                "partition": "normal",
                "constraint": "intel",
                "gres": "gpu:a100",
                "submit": {"exclusive": True},
            },
            "twelve-hours": {"partition": "normal"},
        },
    }
    SlurmSiteConfig.model_validate(whole["options"])
    key = "hpc.MachineTypeConfiguration.one_day.SubmitOptions.long.gres"
    assert [f.text for f in made.findings if f.key == key and f.verdict is ImportOutcome.DROPPED] == [
        "`--gres=mic:1`: drones ask for no generic resource but GPUs"
    ]


@pytest.mark.parametrize("name", sorted(REFUSED_BY_SLURM_SITE.keys() - GPUS - {*OWN_KEYS}))
def test_what_the_slurm_site_refuses_is_not_taken_over(name: str) -> None:
    made = converted(with_options(f"{{long: {{{name}: '1'}}}}"))
    assert site(made, "hpc")["options"]["types"]["one-day"] == {"partition": "normal"}
    [only] = [f for f in made.findings if f.key.endswith(f".long.{name}")]
    assert (only.verdict, only.text) == (ImportOutcome.DROPPED, f"the provisioner sets `--{name}` itself")


@pytest.mark.parametrize("name", OWN_KEYS)
def test_options_with_a_key_of_their_own_stand_there(name: str) -> None:
    made = converted(with_options(f"{{long: {{{name}: one, nice: '100'}}}}"))
    options = site(made, "hpc")["options"]
    wanted = {} if name == "partition" else {name: "one"}  # where TARDIS tells it by a key of its own
    assert options["types"]["one-day"] == {"partition": "normal", **wanted, "submit": {"nice": "100"}}
    SlurmSiteConfig.model_validate(options)


def test_a_shortened_name_of_an_option_that_is_ours_needs_you() -> None:
    made = converted(with_options("{long: {part: dev, job-na: x, nice: '1'}}"))
    left = [f for f in made.findings if f.verdict is ImportOutcome.NEEDED and ".long." in f.key]
    found = {f.key.rpartition(".")[2]: f.text for f in left}
    assert found.keys() == {"part", "job-na"}
    assert "`--partition`" in found["part"] and "`--job-name`" in found["job-na"]
    SlurmSiteConfig.model_validate(site(made, "hpc")["options"])


def with_options(options: str) -> str:
    before, _, after = SLURM.partition("      SubmitOptions:\n")
    return f"{before}      SubmitOptions: {options}\n    twelve_hours:{after.partition('    twelve_hours:')[2]}"


def test_an_adapter_that_is_not_there_needs_you() -> None:
    assert about(converted(SLURM), "Sites[0].adapter") == [(ImportOutcome.NEEDED, 3, "site_configs/hpc.yaml: adapter")]
    made = converted(SLURM, installed=("slurm",))
    assert about(made, "Sites[0].adapter") == [(ImportOutcome.CONVERTED, 3, "site_configs/hpc.yaml: adapter")]


def test_what_tardis_does_not_use_is_left_out_and_said() -> None:
    made = converted(SLURM)
    key = "hpc.MachineTypeConfiguration.six_hours"
    assert about(made, key) == [(ImportOutcome.DROPPED, 29, "")]
    assert "six-hours" not in site(made, "hpc")["types"]


def test_an_unquoted_time_means_to_us_what_it_means_to_tardis() -> None:
    made = converted(SLURM)
    assert site(made, "hpc")["types"]["twelve-hours"]["walltime"] == "30d"
    odd = [f for f in made.findings if "YAML 1.1" in f.text]
    assert [(f.verdict, f.line) for f in odd] == [(ImportOutcome.NEEDED, 26)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1440", 86400),
        ("90:30", 5430),
        ("12:00:00", 43200),
        ("2-0", 172800),
        ("1-12:30", 131400),
        ("1-00:00:01", 86401),
        ("0", None),
        ("UNLIMITED", None),
        ("1:2:3:4", None),
        ("", None),
    ],
)
def test_walltimes_of_slurm(text: str, seconds: float | None) -> None:
    assert slurm_walltime_s(text) == seconds


@pytest.mark.parametrize(
    ("options", "gpus", "gres"),
    [
        ('{long: {gres: "gpu:4"}}', 4, ""),
        ('{long: {gres: "gpu:h100:4"}}', 4, "gpu:h100"),
        ("{long: {gres: gpu}}", 1, ""),
        ('{long: {gpus: "a100:2"}}', 2, "gpu:a100"),
        ("{long: {gpus-per-node: 4}}", 4, ""),
        ("{short: {G: 3}}", 3, ""),
        ("{long: {gpus: }}", 0, ""),
        ('{long: {gres: "mic:1"}}', 0, ""),
        ('{long: {gres: "gpu:a100:2,gpu:v100:1"}}', 0, ""),
    ],
)
def test_gpus_of_slurm(options: str, gpus: int, gres: str) -> None:
    whole = site(converted(with_options(options)), "hpc")
    assert whole["types"]["one-day"]["gpus"] == gpus
    assert whole["options"]["types"]["one-day"] == {"partition": "normal"} | ({"gres": gres} if gres else {})
    SlurmSiteConfig.model_validate(whole["options"])


# ---------------------------------------------------------------------------------------------------------- the others


def test_other_kinds_of_sites_keep_their_shapes() -> None:
    made = converted(CLOUDS)
    shapes = {
        name: {k: (t["cpus"], t["memory"], t["disk"]) for k, t in site(made, name)["types"].items()}
        for name in ("woohoo", "hexa", "kube-site", "moab-site")
    }
    assert shapes == {
        "woohoo": {"m1-xlarge": (8, "16 GiB", "160 GiB")},
        "hexa": {"micro": (1, "2 GiB", "30 GiB"), "micro-2": (2, "4 GiB", "30 GiB")},
        "kube-site": {"example": (2, "16 GiB", "<disk of one drone, as 20 GiB>")},
        "moab-site": {"d2-large": (20, "120 GiB", "196 GiB")},
    }


@pytest.mark.parametrize("name", ALL)
def test_no_secret_leaves_the_old_file(name: str) -> None:
    made = converted(ALL[name])
    everything = "".join(made.files.values()) + "".join(f"{f.key}{f.ours}{f.text}" for f in made.findings)
    assert ("gee-heim" in ALL[name]) is (name in ("clouds", "openstack"))
    assert "gee-heim" not in everything.lower()


def test_a_simulated_site_is_not_taken_over() -> None:
    made = converted(FAKE)
    assert list(made.files) == ["provisioner.yaml"]
    assert yaml.safe_load(made.files["provisioner.yaml"])["sites"] == []
    assert finding(made, "tardis.Sites[0].adapter").verdict is ImportOutcome.NEEDED


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", 1, "is empty"),
        ("- a\n", 1, "expected a mapping at the top"),
        ("!odd x\n", 1, "expected a mapping at the top"),
        ("a: 1\n", 1, "missing key `Sites`"),
        ("a: 1\nSites: {x: 1}\n", 2, "missing key `Sites`"),
        ("Sites:\n- name: x\n- 3\n", 2, "expected a mapping with `name` and `adapter`"),
        ("Sites: [{name: a, adapter: Slurm}\n", 1, "unclosed `[`"),
        ("Sites: &a [*a]\n", 1, "recursive alias"),
        ("Sites:\n  - name: a\n\tadapter: b\n", 3, "tab"),
        ("? [a]\n: b\nSites: []\n", 1, "expected a key"),
        ("<<: 3\nSites: []\n", 1, "needs a mapping"),
    ],
)
def test_what_is_no_configuration_is_refused_at_its_line(text: str, where: int, words: str) -> None:
    made, problems = read(text)
    assert made is None
    assert [p.line for p in problems if words in p.message][:1] == [where]


def test_a_thousand_laughs_are_refused() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    made, problems = read(laughs + "Sites: []\n")
    assert made is None
    assert ["with its aliases" in p.message for p in problems] == [True]


def test_anchors_and_merges_are_what_they_are_to_tardis() -> None:
    text = HTCONDOR.replace("whole: {Cores: 42, Memory: 256, Disk: 840}", "whole: {<<: *shape, Cores: 42}").replace(
        "one_gpu: {Cores: 8,", "one_gpu: &shape {Cores: 8,"
    )
    whole = site(converted(text), "topas")["types"]["whole"]
    assert (whole["cpus"], whole["memory"], whole["disk"]) == (42, "19968 MiB", "50 GiB")
