"""Inference services: the pool of their servers."""
