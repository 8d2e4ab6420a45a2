"""What becomes of TARDIS's sites: the file that each turns into, and what is told of every key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from adapters.htcondor.site import settings
from adapters.slurm.settings import REFUSED_SBATCH_OPTIONS as REFUSED_BY_SLURM_SITE, SlurmSiteConfig
from provisioner.migrate import ImportOutcome, ImportResult
from provisioner.migrate.htcondor import RESERVED
from provisioner.migrate.slurm import slurm_walltime_s
from tests.migrate.examples import ALL, HTCONDOR, SLURM, about, converted, finding, read


def site(made: ImportResult, name: str) -> Any:
    return yaml.safe_load(made.files[f"site_configs/{name}.yaml"])


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
        "submit": {
            "accounting_group": "<accounting_group without $Group, which is not known here>",
            "+Color": '"red"',
        },
        "requirements": "<requirements without $Foo, which is not known here>",
    }
    at = "site_configs/topas.yaml: options.types.one-gpu"
    assert about(made, "requirements") == [(ImportOutcome.NEEDED, 1, f"{at}.requirements")]
    assert about(made, "accounting_group") == [
        (ImportOutcome.NEEDED, 2, f"{at}.submit.accounting_group")
    ]
    assert about(made, "+Color")[0] == (ImportOutcome.CONVERTED, 3, f"{at}.submit.+Color")


def test_no_command_that_the_site_sets_itself_is_taken_over() -> None:
    assert set(settings.RESERVED_COMMANDS) - {"executable", "cmd", "transfer_input_files"} <= set(
        RESERVED
    )


def test_a_type_that_goes_to_another_schedd_needs_you() -> None:
    made = converted(
        HTCONDOR.replace(
            "whole: {jdl: whole.jdl}", "whole: {jdl: whole.jdl, SubmitOptions: {name: b}}"
        )
    )
    assert site(made, "topas")["options"]["schedd"] == "grid@submit.example.org"
    key = "TOPAS.MachineTypeConfiguration.whole.SubmitOptions.name"
    assert about(made, key) == [
        (ImportOutcome.NEEDED, 22, "site_configs/topas.yaml: options.schedd")
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"), [("pool", "collector"), ("name", "schedd"), ("remote", "schedd")]
)
@pytest.mark.parametrize("special", ["one_gpu", "whole"])
def test_an_option_of_one_type_is_not_that_of_the_site(
    theirs: str, ours: str, special: str
) -> None:
    """TARDIS's documentation has a type at the site's own pool beside one at a remote pool."""
    before, _, after = HTCONDOR.partition("      SubmitOptions:\n")
    text = (
        before + "    whole:\n      jdl: whole.jdl\n" + after[after.index("  MachineMetaData:") :]
    )
    option = f"      SubmitOptions: {{{theirs}: far.example.org}}\n"
    made = converted(text.replace(f"    {special}:\n", f"    {special}:\n{option}", 1))
    value = site(made, "topas")["options"].get(ours, "")
    assert ("far.example.org" in value) is (special == "one_gpu"), "the first type decides"
    (told,) = [f for f in made.findings if "make this type a site of its own" in f.text]
    assert told.verdict is ImportOutcome.NEEDED
    assert ".MachineTypeConfiguration.whole." in told.key


@pytest.mark.parametrize("before", ["BatchSystem", "    one_day:\n      Walltime"])
def test_sizes_at_the_wrong_level_are_told_where_they_belong(before: str) -> None:
    indented = " " * (len(before) - len(before.lstrip()))
    made = converted(
        SLURM.replace(before, f"{indented}MachineMetaData: {{one_day: {{Cores: 1}}}}\n{before}")
    )
    told = [f for f in made.findings if "at the wrong level" in f.text]
    assert [(f.key.rpartition(".")[2], f.verdict) for f in told] == [
        ("MachineMetaData", ImportOutcome.NEEDED)
    ]


def test_a_missing_walltime_leaves_a_place_to_fill_in() -> None:
    made = converted("\n".join(line for line in SLURM.splitlines() if "Walltime" not in line))
    assert site(made, "hpc")["types"]["one-day"]["walltime"] == "<longest run of a drone, as 24h>"


SSH = "host: login.example.org, username: ops, client_keys: /k, port: 2222"


def test_a_site_that_is_reached_over_ssh_is_so_here_too() -> None:
    executor = f"!DupingSSHExecutor {{{SSH}, wrapper: sh, known_hosts: , mfa_config: [{{totp: GEE-HEIM}}]}}"
    ssh = {"key": "/k", "totp": "<{file: PATH} with the totp>", "forced_command": "stdin"}
    told = {"mfa_config": ImportOutcome.NEEDED, "known_hosts": ImportOutcome.CHANGED}
    made = converted(HTCONDOR.replace("TOPAS:\n", f"TOPAS:\n  executor: {executor}\n"))
    login = {"host": "login.example.org", "port": 2222, "user": "ops"}
    assert site(made, "topas")["options"]["tools"] == {"ssh": login | ssh}
    assert {key: about(made, f"TOPAS.executor.{key}")[0][0] for key in told} == told
    assert "GEE-HEIM" not in "".join(made.files.values())


@pytest.mark.parametrize(
    ("quota", "most", "verdict"),
    [
        ("119", 5, ImportOutcome.CHANGED),
        ("12", 1, ImportOutcome.CHANGED),
        (".inf", 10, ImportOutcome.CHANGED),
        ("0", "<most drones at one time>", ImportOutcome.NEEDED),
        ("!env QUOTA", "<most drones at one time>", ImportOutcome.NEEDED),
    ],
)
def test_a_quota_of_cores_is_a_number_of_drones(
    quota: str, most: int | str, verdict: ImportOutcome
) -> None:
    made = converted(SLURM.replace("quota: 100", f"quota: {quota}"))
    assert site(made, "hpc")["limits"] == {"max_drones": most}
    assert finding(made, "Sites[0].quota").verdict is verdict


OWN_KEYS = ("partition", "account", "qos", "reservation", "constraint")
GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}


@pytest.mark.parametrize("name", sorted(REFUSED_BY_SLURM_SITE.keys() - GPUS - {*OWN_KEYS}))
def test_what_the_slurm_site_refuses_is_not_taken_over(name: str) -> None:
    made = converted(with_options(f"{{long: {{{name}: '1'}}}}"))
    assert site(made, "hpc")["options"]["types"]["one-day"] == {"partition": "normal"}
    [only] = [f for f in made.findings if f.key.endswith(f".long.{name}")]
    assert (only.verdict, only.text) == (
        ImportOutcome.DROPPED,
        f"the provisioner sets `--{name}` itself",
    )


@pytest.mark.parametrize("name", ["partition", "account"])
def test_options_with_a_key_of_their_own_stand_there(name: str) -> None:
    made = converted(with_options(f"{{long: {{{name}: one, nice: '100'}}}}"))
    options = site(made, "hpc")["options"]
    # where TARDIS tells it by a key of its own
    wanted = {} if name == "partition" else {name: "one"}
    assert options["types"]["one-day"] == {
        "partition": "normal",
        **wanted,
        "submit": {"nice": "100"},
    }
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90:30", 5430),
        ("12:00:00", 43200),
        ("1-12:30", 131400),
        ("1-00:00:01", 86401),
        ("UNLIMITED", None),
        ("1:2:3:4", None),
    ],
)
def test_walltimes_of_slurm(text: str, seconds: float | None) -> None:
    assert slurm_walltime_s(text) == seconds


@pytest.mark.parametrize(
    ("options", "gpus", "gres"),
    [
        ('{long: {gres: "gpu:4"}}', 4, ""),
        ('{long: {gres: "gpu:h100:4"}}', 4, "gpu:h100"),
        ('{long: {gpus: "a100:2"}}', 2, "gpu:a100"),
        ("{long: {gpus-per-node: 4}}", 4, ""),
        ("{short: {G: 3}}", 3, ""),
        ('{long: {gres: "mic:1"}}', 0, ""),
        ('{long: {gres: "gpu:a100:2,gpu:v100:1"}}', 0, ""),
    ],
)
def test_gpus_of_slurm(options: str, gpus: int, gres: str) -> None:
    whole = site(converted(with_options(options)), "hpc")
    assert whole["types"]["one-day"]["gpus"] == gpus
    assert whole["options"]["types"]["one-day"] == {"partition": "normal"} | (
        {"gres": gres} if gres else {}
    )
    SlurmSiteConfig.model_validate(whole["options"])


@pytest.mark.parametrize("name", ALL)
def test_no_secret_leaves_the_old_file(name: str) -> None:
    made = converted(ALL[name])
    everything = "".join(made.files.values()) + "".join(
        f"{f.key}{f.ours}{f.text}" for f in made.findings
    )
    assert ("gee-heim" in ALL[name]) is (name in ("clouds", "openstack"))
    assert "gee-heim" not in everything.lower()


LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", 1, "is empty"),
        ("a: 1\nSites: {x: 1}\n", 2, "missing key `Sites`"),
        ("Sites:\n- name: x\n- 3\n", 2, "expected a mapping with `name` and `adapter`"),
        ("Sites: &a [*a]\n", 1, "recursive alias"),
        ("? [a]\n: b\nSites: []\n", 1, "expected a key"),
        ("<<: 3\nSites: []\n", 1, "needs a mapping"),
        pytest.param(LAUGHS, 1, "with its aliases", id="laughs"),
    ],
)
def test_what_is_no_configuration_is_refused_at_its_line(text: str, where: int, words: str) -> None:
    made, problems = read(text)
    assert made is None
    assert [p.line for p in problems if words in p.message][:1] == [where]


def test_anchors_and_merges_are_what_they_are_to_tardis() -> None:
    text = HTCONDOR.replace(
        "whole: {Cores: 42, Memory: 256, Disk: 840}", "whole: {<<: *shape, Cores: 42}"
    ).replace("one_gpu: {Cores: 8,", "one_gpu: &shape {Cores: 8,")
    whole = site(converted(text), "topas")["types"]["whole"]
    assert (whole["cpus"], whole["memory"], whole["disk"]) == (42, "19968 MiB", "50 GiB")
