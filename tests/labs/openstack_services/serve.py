"""serve.py SERVICE PORT [HOST...]: one service of a lab, as its project's own WSGI application, on loopback.

``nova`` is all of nova in one process, API, conductor, scheduler and a compute per host:
oslo.messaging's ``fake://`` keeps its queues in the process.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback

import lab_sqlite
import waitress


def main() -> None:
    name, port, *hosts = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.argv = [name]  # the services read it
    lab_sqlite.install()
    if name == "nova":
        import lab_nova

        application = lab_nova.build(hosts)
    else:
        application = importlib.import_module(f"{name}.wsgi.api").application
    waitress.serve(
        application, host="127.0.0.1", port=int(port), threads=8, channel_timeout=300, _quiet=True
    )


try:
    main()
except BaseException:
    traceback.print_exc()
    os._exit(1)  # nova's thread pools would keep it
