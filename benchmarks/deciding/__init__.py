"""How well decisions are made: other systems' rules and ours in the same simulated worlds, over public traces."""
