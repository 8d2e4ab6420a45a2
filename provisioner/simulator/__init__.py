"""The simulated world: the service on a virtual clock, with simulated sites and overlay behind the same seams.

Begin with :func:`provisioner.simulator.scenario.simulate`; ``docs/explanation/simulator.md`` tells the rest.
"""
