"""One module per schema revision, in the order of :data:`provisioner.store.migrations.REVISIONS`."""
