"""Attacks a real cluster and judges what its clients saw.

`python -m chaos` starts three node processes, lets clients work on few keys and a queue, kills and freezes nodes
meanwhile, and then looks for any single observation that a sequential database could not have given: `linearizability`
key by key, `serializability` over the whole database, `audit` against the final state.
"""

import os

# gRPC reads this once, when it is loaded by whichever module comes first. Its remarks about dead nodes help nobody.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
