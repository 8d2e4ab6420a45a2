"""What several adapters build on: clients and transports. Adapters import this, never each other."""
