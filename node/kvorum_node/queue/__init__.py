"""Delivery of queue messages: who may have them, and for how long. What is leased stands in the log; this package
decides when.
"""

from .delivery import Delivery
from .hands import TAKE_BYTES, Consumer, TakeRoom

__all__ = ["TAKE_BYTES", "Consumer", "Delivery", "TakeRoom"]
