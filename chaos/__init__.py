"""Attacks a real cluster and judges what its clients saw.

`python -m chaos` starts three node processes, lets clients work on few keys and a queue, kills and freezes nodes
meanwhile, and then looks for any single observation that a sequential database could not have given: `linearizability`
key by key, `serializability` over the whole database, `audit` against the final state.
"""
