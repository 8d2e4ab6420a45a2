"""Clients and transports that several adapters use. Adapters import this, never each other."""
