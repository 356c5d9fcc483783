"""Compiling programs and agents on dev: their prompts with DSPy's teleprompters, their
parameters by search.
"""

from sextant_search import require_ours

require_ours("agents", "environments", "evals", "programs", "tools")
