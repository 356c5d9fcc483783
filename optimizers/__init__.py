"""Compiling programs and agents on dev: their prompts with DSPy's teleprompters, their
parameters by search.
"""

import sextant

sextant.use_full_name(__name__)
