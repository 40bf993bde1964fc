"""Programs that use kvorum as a service would, and check their own results."""
