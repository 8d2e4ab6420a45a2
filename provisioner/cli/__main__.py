"""``python -m provisioner.cli``."""

import sys

from provisioner.cli import main

sys.exit(main())
