"""What a service has counted that has labels, by family: see `table`."""

from collections.abc import Mapping

from kvorum_raft.histogram import Histogram

from ..service import NodeService
from .operations import code_of_write


def counts(service: NodeService) -> dict[str, Mapping[tuple[str, ...], float]]:
    """Counters."""
    applied = {code_of_write(outcome): times for outcome, times in service.proposer.outcomes.items()}
    kinds = {
        "write": service.writes.codes(applied),
        "read": service.reads.codes(),
        "list": service.lists.meter.codes(),
        "queue_call": service.calls.meter.codes(),
    }
    return {"kv_ops": {(op, code): times for op, codes in kinds.items() for code, times in codes.items()}}


def histograms(service: NodeService) -> dict[str, Mapping[tuple[str, ...], Histogram]]:
    """Of seconds."""
    return {
        "kv_op_seconds": {
            ("write",): service.writes.seconds,
            ("read",): service.reads.meter.seconds,
            ("list",): service.lists.meter.seconds,
            ("queue_call",): service.calls.meter.seconds,
        },
        "queue_delivery_delay_seconds": {(): service.delivery.delays},
        "process_loop_lag_seconds": {(): service.lag.seconds},
    }
