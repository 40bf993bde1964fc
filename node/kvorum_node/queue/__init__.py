"""Delivery of queue messages: who may have them, and for how long. What is leased stands in the log; this package
decides when.
"""

from .delivery import Delivery
from .hands import Consumer, TakeRoom

__all__ = ["Consumer", "Delivery", "TakeRoom"]
