"""Error feedback: forms for ``compress(feedback=...)``, and the residuals behind them."""

from thinwire.feedback.forms import Decayed, Form, MovingAverage, Plain
from thinwire.feedback.residuals import Residuals

__all__ = ["Decayed", "Form", "MovingAverage", "Plain", "Residuals"]
