"""Accounting of GPU time: ledger entries of drones and runs, reports, and what others need of them.

All of it is computed from values; ``docs/decisions/0013-accounting.md`` has the design.
"""
