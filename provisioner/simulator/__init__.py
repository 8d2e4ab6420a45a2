"""The controller on a virtual clock, with simulated sites and overlay; see docs/internals/simulator.md."""
