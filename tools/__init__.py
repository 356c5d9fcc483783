"""The parts of a search system: records, sessions over a corpus, retrievers and models.

Knows no benchmark.
"""

from sextant_search import require_ours

require_ours()

from tools import moved_modules

moved_modules.install()
