"""The HTTP port of a node: KV Connect, health and metrics (architecture §3)."""
