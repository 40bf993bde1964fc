"""Queues under attack: what was done to them (`history`), what must hold (`checker`), and real processes doing it."""
