"""Metrics of the controller, and the Grafana dashboards and alert rules that are made from one table of them."""
