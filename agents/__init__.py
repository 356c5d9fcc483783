"""LangGraph agents over the same Toolbox, by name. None is here yet; programs and agents share one namespace."""

# To add one: a class with the outside of a program (see programs/__init__.py) and a graph inside, named here.
AGENTS: dict[str, str] = {}
