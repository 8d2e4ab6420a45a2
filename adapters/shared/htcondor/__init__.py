"""Being a client of an HTCondor pool: configuration and tokens of our own, ads read with care, errors told apart."""
