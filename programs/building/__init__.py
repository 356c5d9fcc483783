"""What a build asks a model, a file a recipe: signatures, and the rules that fill them without a model."""
