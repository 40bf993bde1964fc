"""Named queues, topics, requests and recurring messages: what `Kv.queue`, `Kv.topic` and their like hand out.

Below them: `outgoing` makes messages for the wire, `intake` holds what one consumer was sent, `settling` carries
verdicts out, and `listener` and `receiver` are the two ways to consume.
"""
