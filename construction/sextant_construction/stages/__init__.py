"""Questions of the stages of a build to a model: signatures, and the rules that fill them without a
model.
"""

# Files here -> the stages of a build whose signatures are in them. What a stage asks
# (stages/stage_program.py: Asked) is called as the stage, in capitals.
_FILES = {
    "latent": ("screen", "extract", "label", "collapse", "merge", "validate"),
    "query_writing": ("write", "rephrase", "distinct"),
    "recollection": ("recollect", "open", "harden", "unique"),
    "author_removal": ("scrub",),
    "conditions": ("conditions", "query_of_k", "prose", "covers", "spoil", "meets"),
    "pools": ("facets", "objective"),
}
STAGES = {
    stage: f"{__name__}.{file}:{stage.upper()}"
    for file, stages in _FILES.items()
    for stage in stages
}
STAGES |= dict.fromkeys(("rejudge", "judge", "aspects", "try"), f"{__name__}.offline_grading:GRADE")
