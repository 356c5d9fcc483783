"""All that Sextant uses of DSPy beyond its documented names: a new DSPy changes this file first.

A test compares `NAMES` with the file, and finds other imports of such names. Left out: `dspy.*`
itself, `dspy.lm15`, and `dspy.utils.callback.BaseCallback`, which DSPy documents.
"""

# Fills optional output fields that an answer left out, as DSPy's adapters do.
from dspy.adapters.utils import apply_output_field_defaults as apply_output_field_defaults

# Reads a text as a value of a Python type, by JSON, literals and pydantic.
from dspy.adapters.utils import parse_value as parse_value

# Says in words what a field of a type has to look like, for the prompt.
from dspy.adapters.utils import translate_field_type as translate_field_type

# Makes dicts readable by attributes, as programs read answers of a model.
from dspy.clients.call_result import attributes as attributes

# Turns LiteLLM's exceptions into those of dspy.lm15.
from dspy.clients.engines.litellm_errors import litellm_errors as litellm_errors

# Turns exceptions of dspy.lm15, and unexpected ones, into DSPy's LM errors.
from dspy.clients.errors import error_boundary as error_boundary

# Writes a request by Chat Completions as one by Responses.
from dspy.clients.legacy_requests import chat_to_responses as chat_to_responses

# Writes a dspy.lm15.Request as the arguments of a call by messages; and an answer as its response.
from dspy.clients.lm15_boundary import request_kwargs as request_kwargs
from dspy.clients.lm15_boundary import response_value as response_value

# The class of the passages that a retriever of DSPy's returns.
from dspy.dsp.utils import dotdict as dotdict

# Writes the instructions that GEPA tries next.
from dspy.teleprompt.gepa import InstructionProposer as InstructionProposer

# Has the ParallelExecutor of dspy.Evaluate and dspy.Parallel, which runs items in threads, and its
# class of progress bars.
from dspy.utils import parallelizer as parallelizer

# Calls the callbacks of dspy.context around a method.
from dspy.utils.callback import with_callbacks as with_callbacks
