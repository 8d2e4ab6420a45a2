"""Random and hostile snapshots, ads and listings, and what deciding makes of them."""
