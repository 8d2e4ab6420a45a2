"""Adapters that ship with the provisioner, one package per kind of site or overlay; reached by entry points only."""
