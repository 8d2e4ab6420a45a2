"""Drivers for HTCondor: the overlay pool, and HTCondor clusters as sites."""
