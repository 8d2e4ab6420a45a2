"""The HTCondor overlay and its child process, without daemons: ads in, classes, slots and verdicts out."""
