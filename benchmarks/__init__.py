"""What it costs: `make bench` runs each measurement in a process of its own. Figures to look at, not tests."""
