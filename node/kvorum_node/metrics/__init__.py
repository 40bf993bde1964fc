"""What a node tells Prometheus: `table` names it, `collector` shows it, `operations` counts what clients asked for."""
