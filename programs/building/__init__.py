"""What the stages of a build ask a model: signatures, and the rules that fill them without a model."""

# The name of a stage -> what it asks (programs/building/fill.py: Asked).
STAGES = {
    "screen": "programs.building.latent:SCREEN",
    "extract": "programs.building.latent:EXTRACT",
    "label": "programs.building.latent:LABEL",
    "collapse": "programs.building.latent:COLLAPSE",
    "merge": "programs.building.latent:MERGE",
    "validate": "programs.building.latent:VALIDATE",
    "write": "programs.building.writing:WRITE",
    "rephrase": "programs.building.writing:REPHRASE",
    "distinct": "programs.building.writing:DISTINCT",
    "recollect": "programs.building.recollect:RECOLLECT",
    "open": "programs.building.recollect:OPEN",
    "harden": "programs.building.recollect:HARDEN",
    "unique": "programs.building.recollect:UNIQUE",
    "scrub": "programs.building.scrub:SCRUB",
    "rejudge": "programs.building.grading:GRADE",
    "judge": "programs.building.grading:GRADE",
    "conditions": "programs.building.conditions:CONDITIONS",
    "query_of_k": "programs.building.conditions:QUERY_OF_K",
    "covers": "programs.building.conditions:COVERS",
    "spoil": "programs.building.conditions:SPOIL",
    "meets": "programs.building.conditions:MEETS",
}
