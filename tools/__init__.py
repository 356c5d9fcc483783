"""The parts of a search system: records, sessions over a corpus, retrievers and models.

Knows no benchmark.
"""

import sextant

sextant.use_full_name(__name__)
