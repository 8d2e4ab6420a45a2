"""``provisioner serve``: the verb that starts the web service."""

from __future__ import annotations

import asyncio
import logging

from provisioner.cli import options as opt
from provisioner.cli.pipes import closed_pipes_raise
from provisioner.cli.run import LogForm, LogFrom
from provisioner.logs import LogLevel, log_to_stderr


def serve(
    path: opt.ConfigArgument = None,
    config: opt.ConfigPath = None,
    log_format: LogForm = None,
    log_level: LogFrom = LogLevel.INFO,
) -> None:
    """Run the web service: API, metrics and pages.

    It reads the record and works while the controller is down. The section `web` of the configuration sets its
    addresses. By default these are a unix socket beside the record and http://127.0.0.1:8618. Everybody may read;
    only root, its own user and configured accounts may change something, over the socket. SIGTERM or Ctrl-C ends it.

    \b
    Examples:
      provisioner serve /etc/provisioner/provisioner.yaml
      provisioner serve --log-format json
    """
    from provisioner.config import load_web
    from provisioner.web.serve import serve_record

    store, section = load_web(opt.config_path(opt.Where(config=path or config)))
    log_to_stderr(log_level, log_format)
    # it tells of each client that speaks no HTTP
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with closed_pipes_raise():
        asyncio.run(serve_record(store, section))
