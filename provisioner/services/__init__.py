"""Inference services: their servers, and the balancer in front of them."""
