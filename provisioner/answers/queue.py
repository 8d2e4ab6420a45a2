"""Columns of the jobs of the embedded queue, as ``provisioner jobs`` and ``submit`` show them."""

from __future__ import annotations

from provisioner.answers.columns import age_s, gpus, ident, items, mib, text, time_at, whole

JOBS_SCHEMA = "provisioner.jobs/1"
QUEUE_STATES = {"idle": "", "running": "green", "done": "", "failed": "red", "held": "yellow"}


QUEUE_COLUMNS = (
    whole("id", "Id of the job.", level=0),
    text("state", "State.", level=0, choices=tuple(QUEUE_STATES), tint=QUEUE_STATES),
    text("owner", "Who submitted it.", level=0, least=8),
    gpus("gpu_milli", "Thousandths of a GPU.", head="GPUS"),
    whole("cpus", "CPUs.", level=1),
    mib("memory_mib", "Memory, MiB.", level=1, head="MEMORY"),
    whole("vram_mib", "Least VRAM per GPU, MiB; 0: any."),
    age_s("age_s", "Since it was submitted, seconds.", "submitted_at", head="AGE"),
    ident("drone", "The drone that runs or ran it.", "drone_id", least=12),
    whole("attempts", "How often it was started.", level=1),
    whole("exit_code", "Its exit code; null: it has not ended.", null=True, head="EXIT"),
    text("command", "The command.", lambda job: " ".join(job.argv), level=0, least=14),
    text("message", "What went wrong.", level=1, least=12),
    items("argv", "The command, word by word."),
    whole("priority", "Higher goes first."),
    time_at("submitted_at", "When it was submitted."),
    time_at("started_at", "When it was last started."),
    time_at("ended_at", "When it ended."),
)
