"""Error feedback: forms for ``compress(feedback=...)``, and the residuals behind them."""

from thinwire.feedback.deep_gradient import DeepGradient
from thinwire.feedback.forms import Decayed, Feedback, Form, MovingAverage, Plain
from thinwire.feedback.momenta import Momenta
from thinwire.feedback.residuals import Residuals

__all__ = ["Decayed", "DeepGradient", "Feedback", "Form", "Momenta", "MovingAverage", "Plain", "Residuals"]
