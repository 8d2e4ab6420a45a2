"""``make bench-gpu``: shared GPUs measured on a real one, beside the model of ``provisioner/sharing.py``."""
