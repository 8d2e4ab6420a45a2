"""The running controller: the loop (:mod:`loop`), polling, sanitizing, actuation, and estimation."""
