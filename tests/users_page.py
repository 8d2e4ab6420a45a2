"""The submit files of the page "Submit a GPU job", and what the page says of each."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "submit-a-gpu-job.md").read_text()
SUBMIT_FILES = dict(re.findall(r"```condor\n# ([\w-]+\.sub)\n(.*?)```", PAGE, re.DOTALL))
"""Submit descriptions by the names of their files."""
NEEDS = dict(re.findall(r"^\| `([\w-]+\.sub)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
"""Requirements of the jobs of each file, in the words of `provisioner demand`."""
REASONS = dict(re.findall(r"^\| `([\w-]+\.sub)` \|.*?nothing.*?: `([a-z-]+)`", PAGE, re.MULTILINE))
"""Kind of the reason why no drone starts, of files for which that is so."""
(ON_SIGTERM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PRINT_FORMAT,) = re.findall(r"```\n# gpu-jobs.cpf\n(.*?)```", PAGE, re.DOTALL)
