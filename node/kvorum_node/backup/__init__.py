"""Backups, the archive of the log, and what is restored from them.

* `frames`: the format of the files; `saving`: a node, or an embedded database, writes one; `checking`: is it whole?
* `rebuilding`: a state made from a file and entries of the log; `restoring`: a folder made of it
* `targets`, `archiver`, `catalog`: where the log is archived, who does it, what is there
* `prefixes`: one prefix of a rebuilt state put back into a cluster that runs

A restored state is that of a *new* cluster (rules G1): a new cluster id, so that no client or node of the old one
mistakes it for its own, and a stamp base above every versionstamp that the old one can have given.
"""
