"""All access to language models: model names, prices, stored answers, and transport."""

import sextant

sextant.use_full_name(__name__)
