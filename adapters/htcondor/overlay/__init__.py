"""An HTCondor pool as the overlay: jobs that wait there become demand, drones join it as startds."""

from adapters.htcondor.overlay.overlay import HTCondorOverlay
from adapters.htcondor.overlay.settings import HTCondorConfig

__all__ = ["HTCondorConfig", "HTCondorOverlay"]
