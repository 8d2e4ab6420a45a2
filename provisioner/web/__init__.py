"""The web service: API, pages and metrics over HTTP, in a process of its own beside the controller."""
