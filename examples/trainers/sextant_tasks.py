"""A task of Sextant as a verifiers taskset. In an environment that has both:

PYTHONPATH=examples/trainers vf-eval sextant_tasks -m MODEL -n 5 --env.taskset.tools.name congress
"""

from evals.serving.verifiers import SearchTaskset

__all__ = ["SearchTaskset"]
