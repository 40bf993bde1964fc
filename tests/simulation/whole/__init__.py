"""Whole nodes and their clients in one process, under virtual time.

What runs is the shipped code from the client's `ClusterBackend` down to the log's `LogStore`. Replaced are only: the
event loop (`clock`), the wires between processes (`network`, `rpc`), LMDB's ordered key-value environment
(`environment`, compared with the real one in a property test), and the two threads (`machines`). A *schedule* is one
seed: a workload, a series of troubles, a healing, and the verdicts (`judge`).
"""
