"""GPU drone provisioner: pilot jobs at sites for GPU jobs that wait in an HTCondor pool."""

__version__ = "0.1.0"
