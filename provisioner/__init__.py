"""GPU drone provisioner: idle GPU jobs in an overlay pool become drones at sites, and the drones go again."""

__version__ = "0.1.0"
