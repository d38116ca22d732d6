"""Language models behind one protocol."""

from bae.lm.protocol import LM
from bae.lm.usage import Usage, metered, report

__all__ = ["LM", "Usage", "metered", "report"]
