"""Measurements of what Sextant promises to be fast at, beside the libraries that it is
compared with.
"""

from sextant_search import PACKAGES, require_ours

require_ours(*PACKAGES)
