"""Slurm's notations: lists of nodes, numbers, GPUs, states, job ids and tasks."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.slurm import records


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hkn[0801-0803,0901],login1", ("hkn0801", "hkn0802", "hkn0803", "hkn0901", "login1")),
        ("rack[1-2]n[01-02]", ("rack1n01", "rack1n02", "rack2n01", "rack2n02")),
        *(("", ()), ("(null)", ()), ("None assigned", ())),
    ],
)
def test_a_list_is_written_out_in_its_order(text: str, names: tuple[str, ...]) -> None:
    assert records.expand_hostlist(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[1-2", "n1-2]", "n[[1-2]]", "n[]", "n[2-1]", "n[a-b]", "n1,,n2", "n 1", "$(reboot)"),
        # too many nodes, refused before they are written out
        *("n[1-99999999999999]", "a[1-999]b[1-999]c[1-999]", ",".join(["n[1-60000]"] * 2)),
    ],
)
def test_an_invalid_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"node|brackets|name"):
        records.expand_hostlist(text)


UNSET = {"set": False, "infinite": False, "number": 5}
INFINITE = {"set": False, "infinite": True, "number": 0}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_s", {"5:00": 300, "1:00:00": 3600, "2-00:00:00": 172800, "5": 300}),
        (
            "max_memory_per_cpu_mib",
            {"20G": 20480, "512000M": 512000, "1.50T": 1572864, "3584": 3584, "500K": 1},
        ),
        ("max_cpus_per_node", {"7": 7, "1K": 1024, "1.50K": 1536}),
    ],
)
def test_values_are_read_in_any_notation(field: str, values: dict[str, float]) -> None:
    def meant(value: Any) -> object:
        return getattr(records.read(records.Partition, {"name": "p", field: value}), field)

    assert {text: meant(text) for text in values} == values
    unit = 60 if field == "max_s" else 1
    assert (meant(7), meant({"set": True, "infinite": False, "number": 7})) == (7 * unit, 7 * unit)
    assert [meant(nothing) for nothing in (None, "", "N/A", "UNLIMITED", UNSET, INFINITE)] == [
        0
    ] * 6
    for text in ("abc", "-1", "1e9", "\N{ARABIC-INDIC DIGIT THREE}", "5:\n00"):
        with pytest.raises(ValueError):
            meant(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:4(S:0-1),gpu:h100:2", {"a100": 4, "h100": 2}),
        ("gpu:4(IDX:0-3)", {"": 4}),
        ("gpu:(null):4(IDX:0-1,3,5)", {"": 4}),
        ("gpu:(null):1(IDX:0),gpu:a100:2(IDX:1,3),gpu:1080:1", {"": 1, "a100": 2, "1080": 1}),
        ("gres:gpu:a100:2", {"a100": 2}),
        ("gpu:nvidia_a100_1g.10gb+me:7(S:0)", {"nvidia_a100_1g.10gb+me": 7}),
        ("gres/gpu=4,gres/gpu:(null)=4", {"": 4}),
        ("gres/gpu:a100:3,gres/", {"a100": 3}),
        ("cpu=8,mem=20G,gres/gpu=3,gres/gpu:a100=2", {"": 1, "a100": 2}),
        ("shard:8,craynetwork:1", {}),
        ("gpu:a100:3(IDX:0-2),gpu:h100:0(IDX:N/A)", {"a100": 3}),
    ],
)
def test_gpus_by_type(text: str, gpus: dict[str, int]) -> None:
    assert records.parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("gpu:(null):0(IDX:N/A)", {}),
        # two GPUs have jobs with shares
        ("gpu:a100:1(IDX:0),shard:a100:4(0/4,1/4,3/4,0/4)", {"a100": 3}),
        ("gpu:(null):0(IDX:N/A),shard:(null):8(4/4,4/4)", {"": 2}),
        ("gpu:a100:0(IDX:N/A),mps:a100:50(50/100,0/100)", {"a100": 1}),
        ("gpu:0,shard:a100:0(0/4,0/4)", {}),
        ("gpu:2,shard:3", {"": 5}),  # nobody says where: each may be on a GPU of its own
        ("gres/gpu=1,gres/gpu:a100=1,gres/shard=2", {"a100": 1, "": 2}),
    ],
)
def test_gpus_of_which_shares_are_in_use_are_in_use(text: str, used: dict[str, int]) -> None:
    node = records.read_node(
        {"name": "n", "state": "MIXED", "gpus": "gpu:4,shard:16(S:0)", "used_gpus": text}
    )
    assert (node.gpus, node.used_gpus) == ({"": 4}, used)


@pytest.mark.parametrize(
    "request_",
    [{"tres": "cpu=1,gres/shard=3,gres/shard:a100=3"}, {"tres_per_node": "gres/shard:a100:3"}],
)
def test_a_job_of_shares_holds_one_gpu(request_: dict[str, str]) -> None:
    job = records.read_job({"remote_id": "1", "name": "n", "state": "RUNNING", **request_})
    assert job.gpus == {"a100": 1}


@pytest.mark.parametrize(
    ("words", "state", "flags"),
    [
        # squeue and pyslurm: one word, a flag in place of the state
        ("COMPLETING", "COMPLETING", {"COMPLETING"}),
        ("CONFIGURING", "RUNNING", {"CONFIGURING"}),
        ("NEW_IN_2030", "NEW_IN_2030", set()),
        (["CANCELLED", "COMPLETING"], "CANCELLED", {"COMPLETING"}),  # slurmrestd: all of them
    ],
)
def test_the_state_of_a_job(words: object, state: str, flags: set[str]) -> None:
    job = records.read_job({"remote_id": "1", "name": "n", "state": words})
    assert (job.state, job.flags) == (state, flags)


@pytest.mark.parametrize(
    "words", ["mixed+drain+planned", "MIXED+DRAIN$+PLANNED-", ["MIXED", "DRAIN", "PLANNED"]]
)
def test_the_state_of_a_node(words: object) -> None:
    node = records.read_node({"name": "n", "state": words})
    assert node == records.SlurmNode("n", "MIXED", frozenset({"DRAIN", "PLANNED"}))


@pytest.mark.parametrize(
    "raw", [{"remote_id": "1", "state": ""}, {"remote_id": "x", "state": "RUNNING"}]
)
def test_a_job_without_a_state_or_an_id_is_no_job(raw: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        records.read_job(raw)
    with pytest.raises(ValueError, match="without a name"):
        records.read_node(raw)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,7", (0, 1, 2, 3, 7)), ("0-8:4,9", (0, 4, 8, 9)), ("1-2%1", (1, 2))]
)
def test_waiting_tasks_are_written_out(text: str, numbers: tuple[int, ...]) -> None:
    assert records.parse_tasks(text) == numbers


@pytest.mark.parametrize("text", ["0-3,...", "0-3,5...", "", "0x2BF", "0-999999999"])
def test_tasks_that_are_cut_short_are_no_listing(text: str) -> None:
    with pytest.raises(ValueError):
        records.parse_tasks(text)
