"""Queues in all their ways, among the other things that clients do: what there is (`plan`), what clients do with it
(`moves`, `hands`), what the log says of it (`ledger`), and whether that is what was promised (`chaos.queues`)."""
