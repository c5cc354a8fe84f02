"""Optimizers that own the communication of data-parallel training."""

from thinwire.optim.one_bit_adam import OneBitAdam
from thinwire.optim.schedule import WarmUp, ZeroOne

__all__ = ["OneBitAdam", "WarmUp", "ZeroOne"]
