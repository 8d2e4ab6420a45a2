"""Running a site's own tools, here or on a login node over ssh, by one protocol."""
