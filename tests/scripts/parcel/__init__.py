"""A package whose training module uses relative imports."""
